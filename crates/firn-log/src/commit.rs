//! Group commit: whoever waits first writes and syncs for everybody who waits.
//!
//! A [`Queue`] is one stream's buffer and the file behind it. Appending copies bytes under a short
//! lock. A thread that needs them durable becomes the *leader* if there is none: it takes the whole
//! buffer, writes and syncs it without the lock, and tells the others. Meanwhile the next batch
//! fills. No thread of its own: with the cores busy, a hand-over to one would cost a scheduler
//! slice (measured: 4 ms), and one caller alone pays for no hand-over at all.
//!
//! **A failed write or sync** says nothing about what is on disk, so it is never retried in place:
//! everything not committed fails, nothing more goes into that segment, and positions jump over
//! what failed, so that the rest of the stream can go on in another segment.
//!
//! Waiters of the batch in flight and of the next batch wait on different condition variables:
//! when a batch is durable all of its waiters wake, and just one of the next to lead it.
//!
//! Source: DecLog 4.2, 4.4.2 (queues, group commit); `commit_model.rs` tries the interleavings.

use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{Error, LogPosition, Result};

use super::sync::{Condvar, Mutex, MutexGuard};
use crate::entry::EntryRef;
use crate::queue::{Counters, Pushed, State};
use crate::segment::{Header, SegmentNo};

/// One stream's waiting entries and the segment that they go to.
#[derive(Debug)]
pub(crate) struct Queue {
    name: String,
    state: Mutex<State>,
    /// Waiters of batch `n` are at `n % 2`; only the one in flight and the next can have any.
    done: [Condvar; 2],
}

impl Queue {
    /// A queue whose segment is current and empty. `name` is for errors.
    pub(crate) fn new(name: String, header: Header, file: Arc<dyn DiskFile>) -> Queue {
        let state = Mutex::new(State::new(header, file));
        Queue { name, state, done: [Condvar::new(), Condvar::new()] }
    }

    /// The current segment.
    pub(crate) fn segment(&self) -> SegmentNo {
        self.state.lock().segment.header.number
    }

    /// End of all that was appended.
    pub(crate) fn end(&self) -> LogPosition {
        self.state.lock().end
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Copies entries into the buffer, all into one block. Nothing is allocated but the buffer's
    /// growth.
    pub(crate) fn append(&self, expected: SegmentNo, entries: &[EntryRef<'_>]) -> Pushed {
        self.state.lock().append(expected, entries)
    }

    /// Waits until everything up to `position` is committed; `sync` says whether a batch that this
    /// thread leads is synced.
    ///
    /// # Errors
    /// `Unavailable` if what ends at `position` failed; it may or may not be there after a crash.
    pub(crate) fn commit(&self, position: LogPosition, sync: bool) -> Result<()> {
        let mut state = self.state.lock();
        while !state.is_committed(position, &self.name)? {
            state = self.wait_or_lead(state, position, sync);
        }
        Ok(())
    }

    /// As [`Queue::commit`], but `None` at once if another thread leads: the caller has other
    /// streams to lead first.
    pub(crate) fn commit_unless_led(
        &self,
        position: LogPosition,
        sync: bool,
    ) -> Option<Result<()>> {
        let mut state = self.state.lock();
        loop {
            match state.is_committed(position, &self.name) {
                Ok(true) => return Some(Ok(())),
                Ok(false) if state.is_led => return None,
                Ok(false) => state = self.lead(state, sync),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Waits until everything that was appended so far is durable, whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`].
    pub(crate) fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        let position = state.end;
        while !state.is_committed(position, &self.name)? || state.durable < position {
            state = self.wait_or_lead(state, position, true);
        }
        Ok(())
    }

    /// The greatest position up to `position` that was committed without a failure in between.
    pub(crate) fn durable_before(&self, position: LogPosition) -> LogPosition {
        self.state.lock().durable_before(position)
    }

    /// Closes the current segment, makes it durable as far as it goes, and goes on in `next`, whose
    /// base and predecessor are filled in here. Returns the end of what was in the old segment.
    /// One thread at a time.
    pub(crate) fn rotate(&self, next: Header, file: Arc<dyn DiskFile>) -> LogPosition {
        let mut state = self.state.lock();
        state.is_closed = true;
        // A failure ends this too: it moves `durable` to the end.
        while state.durable < state.end {
            let end = state.end;
            state = self.wait_or_lead(state, end, true);
        }
        let end = state.end;
        state.switch(next, file);
        end
    }

    fn wait_or_lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        position: LogPosition,
        sync: bool,
    ) -> MutexGuard<'a, State> {
        if !state.is_led {
            return self.lead(state, sync);
        }
        let batch = state.batch + u64::from(position > state.in_flight_end);
        self.done[(batch % 2) as usize].wait(&mut state);
        state
    }

    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>, sync: bool) -> MutexGuard<'a, State> {
        let mut batch = state.take_batch();
        drop(state);
        let unwinding = FailOnUnwind(self);
        let outcome = batch.write(sync);
        std::mem::forget(unwinding);
        let mut state = self.state.lock();
        self.finish(&mut state, outcome, sync);
        state.keep_spare(batch);
        state
    }

    fn finish(&self, state: &mut State, outcome: Result<()>, synced: bool) {
        let in_flight = (state.batch % 2) as usize;
        match outcome {
            Ok(()) => {
                state.succeed(synced);
                // One of the next batch is enough to lead it.
                self.done[1 - in_flight].notify_one();
            }
            Err(error) => {
                state.fail(&error.to_string());
                self.done[1 - in_flight].notify_all();
            }
        }
        self.done[in_flight].notify_all();
    }
}

/// A leader that panics must not leave the others waiting for it.
struct FailOnUnwind<'a>(&'a Queue);

impl Drop for FailOnUnwind<'_> {
    fn drop(&mut self) {
        let error = Error::internal("the thread that led the commit panicked");
        self.0.finish(&mut self.0.state.lock(), Err(error), false);
    }
}
