//! Group commit: the first waiter writes and syncs for all waiters.
//!
//! A [`Queue`] is one stream's buffer and the file behind it. An append copies bytes under a short
//! lock. A thread that needs them durable becomes the *leader* if there is none: it takes the whole
//! buffer, writes and syncs it without the lock, and wakes the others. Meanwhile the next batch
//! fills. There is no log thread: on busy cores a hand-over would cost a scheduler slice (measured:
//! 4 ms), and a single caller pays for no hand-over at all.
//!
//! **Failures.** After a failed write or sync the bytes on disk are unknown, so it is never retried
//! in place. Everything uncommitted fails and the segment accepts no more entries. Positions skip
//! the failed range, and the stream continues in another segment.
//!
//! **Pipeline.** Entries that arrive while a batch is synced are written after it meanwhile, once
//! there are enough of them. The sync of one batch overlaps the write of the next.
//!
//! **Gathering.** Where several threads commit, a leader first yields to runnable threads, so that
//! their appends join its batch. One sync then covers most entries that would have arrived during
//! it. A thread that commits alone never yields.
//!
//! **Byte-addressable memory** needs no leader. A thread copies the waiting entries under the lock,
//! writes back all cache lines that are not durable, including those of other threads, and fences.
//! No thread sleeps.
//!
//! Waiters of the batch in flight and of the next batch use different condition variables. When a
//! batch is durable, all of its waiters wake, and one waiter of the next batch to lead it.
//!
//! Source: DecLog (PVLDB), section 4.2 (log queues and their pipeline) and section 4.4.2 (group
//! commit). `commit_model.rs` tries the interleavings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_env::DiskFile;
use firn_model::{Error, LogPosition, Result};

use super::sync::{Condvar, Mutex, MutexGuard, yield_now};
use crate::append::Tip;
use crate::entry::EntryRef;
use crate::queue::{Batch, PushOutcome, QueueCounters, QueueState, UnfencedWrite};
use crate::segment::{CommittedPart, CurrentSegment, Header, SegmentNo};

/// The waiting entries of one stream and the segment that receives them.
#[derive(Debug)]
pub(crate) struct Queue {
    name: String,
    is_memory: bool,
    state: Mutex<QueueState>,
    /// [`QueueState::end`] of the last append, for readers without the lock.
    appended_end: AtomicU64,
    /// Waiters of batch `n` use entry `n % 2`. Only the batch in flight and the next one have
    /// waiters.
    done: [Condvar; 2],
}

impl Queue {
    /// A queue whose segment is current and empty. Error messages contain `name`; batches end at
    /// multiples of `unit_bytes`.
    pub(crate) fn new(
        name: String,
        header: Header,
        file: Arc<dyn DiskFile>,
        unit_bytes: u64,
    ) -> Queue {
        let is_memory = file.memory().is_some();
        let appended_end = AtomicU64::new(header.base.0);
        let state = Mutex::new(QueueState::new(header, file, unit_bytes));
        let done = [Condvar::new(), Condvar::new()];
        Queue { name, is_memory, state, appended_end, done }
    }

    /// Whether the device is byte-addressable memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// See [`crate::Log::tip`].
    pub(crate) fn tip(&self) -> Tip {
        let state = self.state.lock();
        Tip { segment: state.segment.header.number, failures: state.counters.failures }
    }

    /// The current segment, up to the end of its committed bytes.
    pub(crate) fn tail(&self) -> CommittedPart {
        self.state.lock().tail()
    }

    /// The current segment, and how far it is durable.
    pub(crate) fn current(&self) -> CurrentSegment {
        self.state.lock().current()
    }

    /// Length of the current segment's file.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.state.lock().segment.header.bytes
    }

    /// End of the appended entries.
    pub(crate) fn end(&self) -> LogPosition {
        self.state.lock().end
    }

    /// As [`Queue::end`] without the lock, which inserts wait for. It does not count the padding of
    /// the batches since the last append.
    pub(crate) fn appended_end(&self) -> LogPosition {
        LogPosition(self.appended_end.load(Ordering::Relaxed))
    }

    /// Whether the path of the current segment's file still leads to it.
    pub(crate) fn is_in_place(&self) -> bool {
        let file = self.state.lock().segment.file();
        file.is_in_place()
    }

    /// See [`QueueState::lose`].
    pub(crate) fn lose(&self, floor: LogPosition, through: LogPosition) {
        self.state.lock().lose(floor, through);
    }

    /// Upper end of the range that a failed sync lost after it was committed.
    pub(crate) fn lost_through(&self) -> LogPosition {
        self.state.lock().lost_through()
    }

    /// Everything up to `floor` is durable elsewhere, so losses up to there no longer count.
    pub(crate) fn raise_floor(&self, floor: LogPosition) {
        self.state.lock().raise_floor(floor);
    }

    pub(crate) fn counters(&self) -> QueueCounters {
        self.state.lock().counters
    }

    /// Copies entries into the buffer, all into one block. Allocates only when the buffer grows.
    pub(crate) fn append(&self, expected: SegmentNo, entries: &[EntryRef<'_>]) -> PushOutcome {
        let mut state = self.state.lock();
        let outcome = state.append(expected, entries);
        self.appended_end.store(state.end.0, Ordering::Relaxed);
        outcome
    }

    /// Waits until everything up to `position` is committed. `sync` decides whether a batch that
    /// this thread leads is synced.
    ///
    /// # Errors
    /// `Unavailable` if the entry that ends at `position` failed. A crash may lose or keep it.
    pub(crate) fn commit(&self, position: LogPosition, sync: bool) -> Result<()> {
        let mut state = self.state.lock();
        state.enter_commit();
        let mut gathers = sync;
        let outcome = loop {
            match state.is_committed(position, &self.name) {
                Ok(false) => {}
                decided => break decided.map(|_| ()),
            }
            let is_mine = !state.is_led && !state.is_ahead;
            if gathers && is_mine && state.has_concurrent_commits() {
                gathers = false;
                drop(state);
                yield_now();
                state = self.state.lock();
            } else {
                state = self.wait_or_lead(state, position, sync);
            }
        };
        state.leave_commit();
        outcome
    }

    /// Whether a commit of `position` would lead now and should first let other threads append.
    pub(crate) fn should_gather(&self, position: LogPosition) -> bool {
        let state = self.state.lock();
        !state.is_led
            && !state.is_ahead
            && state.committed < position
            && state.has_concurrent_commits()
    }

    /// For byte-addressable memory: if `position` is not durable, copies the waiting entries there
    /// and returns the range to write back and fence. [`Queue::persisted`] must follow.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`].
    pub(crate) fn write_through(&self, position: LogPosition) -> Result<Option<UnfencedWrite>> {
        let mut state = self.state.lock();
        if state.is_committed(position, &self.name)? {
            return Ok(None);
        }
        state.write_through().map(Some)
    }

    /// The range that [`Queue::write_through`] returned for `position` was written back and fenced.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`]: a write of another thread may have failed meanwhile,
    /// and the segment then ends before `position`.
    pub(crate) fn persisted(&self, written: &UnfencedWrite, position: LogPosition) -> Result<()> {
        let mut state = self.state.lock();
        state.persisted(written);
        state.is_committed(position, &self.name).map(|_| ())
    }

    /// The next step for `position`: none, lead, or wait for the current leader. A caller that
    /// leads may take the turn of other queues too before it writes.
    pub(crate) fn turn(&self, position: LogPosition) -> CommitTurn<'_> {
        debug_assert!(!self.is_memory, "memory needs no leader");
        let mut state = self.state.lock();
        match state.is_committed(position, &self.name) {
            Ok(true) => CommitTurn::Done(Ok(())),
            Err(error) => CommitTurn::Done(Err(error)),
            Ok(false) if state.is_led || state.is_ahead => CommitTurn::Taken,
            Ok(false) => {
                CommitTurn::Mine(LedBatch { queue: self, batch: Some(state.take_batch()) })
            }
        }
    }

    /// Waits until everything up to `position` is durable, whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Queue::commit`], and for a position that was committed before its
    /// sync failed: a power loss may lose it.
    pub(crate) fn harden(&self, position: LogPosition) -> Result<()> {
        let mut state = self.state.lock();
        while !state.is_committed(position, &self.name)? || state.durable < position {
            state = self.wait_or_lead(state, position, true);
        }
        if state.is_lost(position) { Err(self.lost_error()) } else { Ok(()) }
    }

    /// The error for positions that were committed before a sync failed.
    pub(crate) fn lost_error(&self) -> Error {
        Error::unavailable(format!(
            "log {}: a sync failed or a file was lost; the writes before it become durable with \
             the next flush",
            self.name
        ))
    }

    /// The greatest committed position up to `position`: below it if a failed range contains it.
    pub(crate) fn durable_before(&self, position: LogPosition) -> LogPosition {
        self.state.lock().durable_before(position)
    }

    /// Closes the current segment, makes it durable up to its end or its failure, and continues in
    /// `next`, whose base and predecessor are filled in here. Returns the committed part of the old
    /// segment, and the position of the new one. One thread at a time.
    pub(crate) fn rotate(
        &self,
        next: Header,
        file: Arc<dyn DiskFile>,
    ) -> (CommittedPart, LogPosition) {
        let mut state = self.state.lock();
        state.is_closed = true;
        // A failure ends this loop too: it moves `durable` to the end.
        while state.durable < state.end {
            let end = state.end;
            state = self.wait_or_lead(state, end, true);
        }
        let (extent, end) = (state.tail(), state.end);
        state.switch(next, file);
        (extent, end)
    }

    fn wait_or_lead<'a>(
        &'a self,
        state: MutexGuard<'a, QueueState>,
        position: LogPosition,
        sync: bool,
    ) -> MutexGuard<'a, QueueState> {
        if self.is_memory {
            return self.persist(state);
        }
        if !state.is_led && !state.is_ahead {
            return self.lead(state, sync);
        }
        if state.should_write_ahead() {
            return self.write_ahead(state);
        }
        let is_next = !state.is_led || position > state.in_flight_end;
        let batch = state.batch + u64::from(is_next);
        self.done[(batch % 2) as usize].wait(state)
    }

    fn persist<'a>(&'a self, mut state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        // The state records the failure, so every waiter sees it.
        let Ok(written) = state.write_through() else { return state };
        drop(state);
        written.write_back();
        written.fence();
        let mut state = self.state.lock();
        state.persisted(&written);
        state
    }

    fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
        sync: bool,
    ) -> MutexGuard<'a, QueueState> {
        let mut lead = LedBatch { queue: self, batch: Some(state.take_batch()) };
        drop(state);
        let outcome = lead.write().and_then(|()| if sync { lead.file().sync() } else { Ok(()) });
        drop(lead.finish(outcome, sync));
        self.state.lock()
    }

    /// Writes the first bytes of the next batch while the batch in flight is synced.
    fn write_ahead<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
    ) -> MutexGuard<'a, QueueState> {
        let mut ahead = AheadWrite { queue: self, batch: Some(state.take_ahead()) };
        drop(state);
        let outcome = ahead.batch.as_mut().map_or(Ok(()), Batch::write);
        ahead.finish(&outcome)
    }

    /// Decides the batch in flight. `batch` holds its bytes, if they are still available.
    fn finish(&self, outcome: Result<()>, synced: bool, batch: Option<Batch>) -> BatchWaiters<'_> {
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
        BatchWaiters { queue: self, in_flight, failed: why.is_some() }
    }
}

/// The waiters of a decided batch. Dropping this wakes all of them at once, without the queue's
/// lock. A leader of several queues decides all of them first, so a thread that waits for two
/// sleeps once.
#[must_use]
pub(crate) struct BatchWaiters<'a> {
    queue: &'a Queue,
    in_flight: usize,
    failed: bool,
}

impl Drop for BatchWaiters<'_> {
    fn drop(&mut self) {
        let next = &self.queue.done[1 - self.in_flight];
        // One waiter of the next batch is enough to lead it.
        if self.failed {
            next.notify_all()
        } else {
            next.notify_one()
        }
        self.queue.done[self.in_flight].notify_all();
    }
}

/// The outcome of [`Queue::turn`].
pub(crate) enum CommitTurn<'a> {
    /// Committed, or failed.
    Done(Result<()>),
    /// Another thread leads; [`Queue::commit`] waits for it.
    Taken,
    /// The caller leads a batch of everything that waits: write, sync, finish.
    Mine(LedBatch<'a>),
}

/// A batch with its leader. Dropping it unfinished fails the batch, so a leader that panics leaves
/// no waiter behind.
pub(crate) struct LedBatch<'a> {
    queue: &'a Queue,
    batch: Option<Batch>,
}

impl<'a> LedBatch<'a> {
    /// Seals the batch and writes it.
    pub(crate) fn write(&mut self) -> Result<()> {
        self.batch.as_mut().map_or(Ok(()), Batch::write)?;
        self.queue.state.lock().mark_written();
        Ok(())
    }

    /// The file to sync after the write.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        self.batch.as_ref().expect("a batch stays until it is finished").file()
    }

    /// Decides the batch.
    pub(crate) fn finish(mut self, outcome: Result<()>, synced: bool) -> BatchWaiters<'a> {
        let batch = self.batch.take();
        self.queue.finish(outcome, synced, batch)
    }
}

/// A part of the next batch with the thread that writes it. Dropping it unfinished reports a failed
/// write.
struct AheadWrite<'a> {
    queue: &'a Queue,
    batch: Option<Batch>,
}

impl<'a> AheadWrite<'a> {
    fn finish(&mut self, outcome: &Result<()>) -> MutexGuard<'a, QueueState> {
        let mut state = self.queue.state.lock();
        let Some(batch) = self.batch.take() else { return state };
        let next = ((state.batch + 1) % 2) as usize;
        if state.end_ahead(batch.number(), outcome) {
            for done in &self.queue.done {
                done.notify_all();
            }
        } else if !state.is_led {
            // A thread that would have led the batch is asleep again.
            self.queue.done[next].notify_one();
        }
        state.keep_spare(batch);
        state
    }
}

impl Drop for AheadWrite<'_> {
    fn drop(&mut self) {
        if self.batch.is_some() {
            drop(self.finish(&Err(Error::internal("log: the thread that wrote ahead panicked"))));
        }
    }
}

impl Drop for LedBatch<'_> {
    fn drop(&mut self) {
        if self.batch.take().is_some() {
            let error = Error::internal("log: the thread that led the commit panicked");
            drop(self.queue.finish(Err(error), false, None));
        }
    }
}
