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
//! **The pipeline.** What comes in while a batch is synced is written behind it meanwhile, once there
//! is enough of it: the tail of one batch, its sync, overlaps the body of the next.
//!
//! **Company.** Where several threads commit, a leader lets those run first that are ready to: what they append comes into
//! its batch. One sync then carries most of what would have come in while it ran. Who commits alone waits for nobody.
//!
//! **Byte-addressable memory** needs none of this: a thread copies what waits under the lock, writes the cache lines of
//! everything that is not durable back, also what others have copied, and fences. Nobody leads, nobody sleeps.
//!
//! Waiters of the batch in flight and of the next batch wait on different condition variables:
//! when a batch is durable all of its waiters wake, and just one of the next to lead it.
//!
//! Source: DecLog 4.2, 4.4.2 (queues, group commit); `commit_model.rs` tries the interleavings.

use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{Error, LogPosition, Result};

use super::sync::{Condvar, Mutex, MutexGuard, yield_now};
use crate::Tip;
use crate::entry::EntryRef;
use crate::queue::{Batch, Counters, Pushed, State, Written};
use crate::segment::{Header, SegmentNo};

/// One stream's waiting entries and the segment that they go to.
#[derive(Debug)]
pub(crate) struct Queue {
    name: String,
    is_memory: bool,
    state: Mutex<State>,
    /// Waiters of batch `n` are at `n % 2`; only the one in flight and the next can have any.
    done: [Condvar; 2],
}

impl Queue {
    /// A queue whose segment is current and empty. `name` is for errors; batches end at multiples of
    /// `unit_bytes`.
    pub(crate) fn new(
        name: String,
        header: Header,
        file: Arc<dyn DiskFile>,
        unit_bytes: u64,
    ) -> Queue {
        let is_memory = file.memory().is_some();
        let state = Mutex::new(State::new(header, file, unit_bytes));
        Queue { name, is_memory, state, done: [Condvar::new(), Condvar::new()] }
    }

    /// Whether its device is byte-addressable memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// See [`crate::Log::tip`].
    pub(crate) fn tip(&self) -> Tip {
        let state = self.state.lock();
        Tip { segment: state.segment.header.number, failures: state.counters.failures }
    }

    /// Length of the current segment's file.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.state.lock().segment.header.bytes
    }

    /// End of all that was appended.
    pub(crate) fn end(&self) -> LogPosition {
        self.state.lock().end
    }

    /// Nothing above it was committed and then lost by a sync that failed.
    pub(crate) fn lost_through(&self) -> LogPosition {
        self.state.lock().lost_through()
    }

    /// All up to `floor` is kept elsewhere, durably: of that nothing counts as lost any more.
    pub(crate) fn keep_elsewhere(&self, floor: LogPosition) {
        self.state.lock().keep_elsewhere(floor);
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
        state.enter();
        let mut gathers = sync;
        let outcome = loop {
            match state.is_committed(position, &self.name) {
                Ok(false) => {}
                decided => break decided.map(|_| ()),
            }
            let is_mine = !state.is_led && !state.is_ahead;
            if gathers && is_mine && state.has_company() {
                gathers = false;
                drop(state);
                yield_now();
                state = self.state.lock();
            } else {
                state = self.wait_or_lead(state, position, sync);
            }
        };
        state.leave();
        outcome
    }

    /// Whether a commit of `position` would lead now, and should let others come along first.
    pub(crate) fn gathers(&self, position: LogPosition) -> bool {
        let state = self.state.lock();
        !state.is_led && !state.is_ahead && state.committed < position && state.has_company()
    }

    /// On byte-addressable memory: copies what waits there, if `position` is not durable, and says what has to be
    /// written back and fenced. [`Queue::persisted`] follows.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`].
    pub(crate) fn write_through(&self, position: LogPosition) -> Result<Option<Written>> {
        let mut state = self.state.lock();
        if state.is_committed(position, &self.name)? {
            return Ok(None);
        }
        state.write_through().map(Some)
    }

    /// What [`Queue::write_through`] returned for `position` was written back and fenced.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`]: what another thread wrote meanwhile may have failed, and the segment ends
    /// before this then.
    pub(crate) fn persisted(&self, written: &Written, position: LogPosition) -> Result<()> {
        let mut state = self.state.lock();
        state.persisted(written);
        state.is_committed(position, &self.name).map(|_| ())
    }

    /// What there is to do for `position`: nothing, to lead, or to wait for another thread that
    /// leads. Who is to lead may take the turn of other queues too before it writes.
    pub(crate) fn turn(&self, position: LogPosition) -> Turn<'_> {
        debug_assert!(!self.is_memory, "on memory nobody leads");
        let mut state = self.state.lock();
        match state.is_committed(position, &self.name) {
            Ok(true) => Turn::Done(Ok(())),
            Err(error) => Turn::Done(Err(error)),
            Ok(false) if state.is_led || state.is_ahead => Turn::Taken,
            Ok(false) => Turn::Mine(Lead { queue: self, batch: Some(state.take_batch()) }),
        }
    }

    /// Waits until everything up to `position` is durable, whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`]; and where it was committed without a sync and that failed: it may be gone
    /// after a crash of the system.
    pub(crate) fn harden(&self, position: LogPosition) -> Result<()> {
        let mut state = self.state.lock();
        while !state.is_committed(position, &self.name)? || state.durable < position {
            state = self.wait_or_lead(state, position, true);
        }
        if state.is_lost(position) { Err(self.lost()) } else { Ok(()) }
    }

    /// What is told where a sync failed.
    pub(crate) fn lost(&self) -> Error {
        Error::unavailable(format!(
            "log {}: a sync failed; what was written before it is durable after the next flush",
            self.name
        ))
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
        state: MutexGuard<'a, State>,
        position: LogPosition,
        sync: bool,
    ) -> MutexGuard<'a, State> {
        if self.is_memory {
            return self.persist(state);
        }
        if !state.is_led && !state.is_ahead {
            return self.lead(state, sync);
        }
        if state.is_worth_ahead() {
            return self.write_ahead(state);
        }
        let is_next = !state.is_led || position > state.in_flight_end;
        let batch = state.batch + u64::from(is_next);
        self.done[(batch % 2) as usize].wait(state)
    }

    fn persist<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // A failure is in the state then, where each who waits finds it.
        let Ok(written) = state.write_through() else { return state };
        drop(state);
        written.write_back();
        written.fence();
        let mut state = self.state.lock();
        state.persisted(&written);
        state
    }

    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>, sync: bool) -> MutexGuard<'a, State> {
        let mut lead = Lead { queue: self, batch: Some(state.take_batch()) };
        drop(state);
        let outcome = lead.write().and_then(|()| if sync { lead.file().sync() } else { Ok(()) });
        drop(lead.finish(outcome, sync));
        self.state.lock()
    }

    /// While the batch in flight is synced: the next one's bytes are written already.
    fn write_ahead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut ahead = Ahead { queue: self, batch: Some(state.take_ahead()) };
        drop(state);
        let outcome = ahead.batch.as_mut().map_or(Ok(()), Batch::write);
        ahead.finish(&outcome)
    }

    /// Decides the batch in flight, whose bytes are `batch` if they are still at hand.
    fn finish(&self, outcome: Result<()>, synced: bool, batch: Option<Batch>) -> Wakes<'_> {
        let mut state = self.state.lock();
        let in_flight = (state.batch % 2) as usize;
        let why = match outcome {
            Ok(()) => state.succeed(synced),
            Err(error) => Some(error.to_string().into()),
        };
        if let Some(why) = &why {
            state.fail(why);
        }
        if let Some(batch) = batch {
            state.keep_spare(batch);
        }
        Wakes { queue: self, in_flight, failed: why.is_some() }
    }
}

/// A batch is decided; dropping this wakes those who wait for it, all at once and without the queue's lock. Who leads several
/// queues decides all of them first: who waits for two sleeps once.
#[must_use]
pub(crate) struct Wakes<'a> {
    queue: &'a Queue,
    in_flight: usize,
    failed: bool,
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        let next = &self.queue.done[1 - self.in_flight];
        // One of the next batch is enough to lead it.
        if self.failed {
            next.notify_all()
        } else {
            next.notify_one()
        }
        self.queue.done[self.in_flight].notify_all();
    }
}

/// What [`Queue::turn`] found.
pub(crate) enum Turn<'a> {
    /// Committed, or failed.
    Done(Result<()>),
    /// Another thread leads: [`Queue::commit`] waits for it.
    Taken,
    /// The caller leads, all that waits is its batch: write, sync, finish.
    Mine(Lead<'a>),
}

/// A batch of one queue on its way, and the duty to tell those who wait for it: a leader that
/// panics must not leave them waiting.
pub(crate) struct Lead<'a> {
    queue: &'a Queue,
    batch: Option<Batch>,
}

impl<'a> Lead<'a> {
    /// Seals the batch and writes it.
    pub(crate) fn write(&mut self) -> Result<()> {
        self.batch.as_mut().map_or(Ok(()), Batch::write)?;
        self.queue.state.lock().written();
        Ok(())
    }

    /// The file that is to be synced after the write.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        self.batch.as_ref().expect("a lead has its batch until it is finished").file()
    }

    /// Says what came of it.
    pub(crate) fn finish(mut self, outcome: Result<()>, synced: bool) -> Wakes<'a> {
        let batch = self.batch.take();
        self.queue.finish(outcome, synced, batch)
    }
}

/// A part of the next batch on its way into the file, and the duty to say so.
struct Ahead<'a> {
    queue: &'a Queue,
    batch: Option<Batch>,
}

impl<'a> Ahead<'a> {
    fn finish(&mut self, outcome: &Result<()>) -> MutexGuard<'a, State> {
        let mut state = self.queue.state.lock();
        let Some(batch) = self.batch.take() else { return state };
        let next = ((state.batch + 1) % 2) as usize;
        if state.end_ahead(batch.number(), outcome) {
            for done in &self.queue.done {
                done.notify_all();
            }
        } else if !state.is_led {
            // Whoever was to lead meanwhile went back to sleep.
            self.queue.done[next].notify_one();
        }
        state.keep_spare(batch);
        state
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        if self.batch.is_some() {
            drop(self.finish(&Err(Error::internal("the thread that wrote ahead panicked"))));
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.batch.take().is_some() {
            let error = Error::internal("the thread that led the commit panicked");
            drop(self.queue.finish(Err(error), false, None));
        }
    }
}
