//! The scheduler of background work: calls the rooms for plans, runs them, commits their edits.
//!
//! Work runs in lanes, each on a thread of its caller, so that a long upload never delays a flush.
//! The simulation calls all lanes from one thread.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use firn_log::SyncPolicy;
use firn_model::{CommitSeq, Error, ErrorKind, Mutex, Result, Timestamp};
use firn_tree::{Job, JobKind, PlanTimes, TierScope, Version};

use crate::Engine;
use crate::edit::{Edit, Room};
use crate::lock;
use crate::pressure;
use crate::retention_clock::RetentionClock;
use crate::stats::Counter;
use crate::upkeep::UpkeepWork;

/// The work that one [`Engine::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Active rows of a shard became a static segment.
    Convert,
    /// Small segments of a shard became one.
    Compress,
    /// The head was flushed to level 0 and the log truncated.
    Flush,
    /// New series were written to an index file.
    Seal,
    /// Flushed memory was released.
    Recycle,
    /// Tables were merged, uploaded, patched or dropped.
    Tree(JobKind),
    /// New partitions became longer or shorter, towards the fast tier's limit.
    Adapt,
    /// Unreferenced files were removed.
    Garbage,
    /// Unreferenced objects of the slow tier were removed.
    SlowGarbage,
    /// Deletes that hide no sample any more were dropped.
    Forget,
    /// Index files became one.
    Merge,
    /// Series without samples were removed from the index.
    RemoveSeries,
    /// The slow tier's manifest was claimed or brought up to date.
    Publish,
    /// A replica swapped to a newer manifest of the slow tier.
    Follow,
}

/// A kind of background work with a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Conversions, compressions, flushes, new index files.
    Head,
    /// Compactions, uploads, retention, garbage, merges of index files.
    Tree,
    /// Syncs at the interval of [`crate::EngineOptions::log`] when no commit does, if it has one.
    /// Replaces files of log and manifest that other programs have removed.
    Log,
}

// An idle lane looks for work this often: at a million samples a second an arena fills in 4 s.
const IDLE_MS: u64 = 250;
// After a failure the lane waits this long, doubled up to the maximum.
const RETRY_MS: u64 = 1_000;
const RETRY_MS_MAX: u64 = 60_000;
// If only memory was missing, up to this: it may be free at any time, and the work frees more.
const BUSY_RETRY_MS_MAX: u64 = 4_000;

/// The state of the lanes.
pub(crate) struct Lanes {
    /// Held by each step of the tree's lane, by checks and while index files are copied. The first
    /// lock in the order: before the claim, `leaving` and the flush lane.
    pub(crate) tree: Mutex<()>,
    retention: RetentionClock,
    error_count: Counter,
    /// Whether the last step of the tree's lane could not remove a file.
    has_garbage_failed: AtomicBool,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            tree: Mutex::new(&lock::TREE_LANE, ()),
            retention: RetentionClock::default(),
            error_count: Counter::default(),
            has_garbage_failed: AtomicBool::new(false),
        }
    }
}

impl Lanes {
    /// Failed steps since the start.
    pub(crate) fn error_count(&self) -> u64 {
        self.error_count.get()
    }
}

impl Engine {
    /// Does the most urgent work of a lane, if there is any. Several threads may call this, one per
    /// lane.
    ///
    /// # Errors
    /// Those of disk and bucket; the next call plans the work again.
    pub fn step(&self, lane: Lane) -> Result<Option<Step>> {
        self.rooms.wakeup.check_open()?;
        self.pressure.forget_owed(&self.rooms);
        let done = match lane {
            Lane::Head | Lane::Log if self.rooms.options.read_only => Ok(None),
            Lane::Head => self.step_head(),
            Lane::Tree => self.step_tree(),
            Lane::Log => {
                self.sync_at_interval().and_then(|()| self.replace_lost_files()).map(|()| None)
            }
        };
        if done.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Unavailable) {
            // The disk may be full: segments kept for reuse make room for tables.
            self.rooms.log.remove_spares();
            self.sacrifice_log();
        }
        done
    }

    fn step_head(&self) -> Result<Option<Step>> {
        let rooms = &self.rooms;
        self.pressure.keep_room(rooms);
        let has_deletes = !self.ledger.tombstones.unflushed().is_empty();
        let unflushed = rooms.head.unflushed();
        if self.flusher.is_due(rooms, unflushed, has_deletes, self.definitions.logged_bytes())
            || (unflushed.0 > 0
                && pressure::are_new_series_large(&rooms.index.stats(), &rooms.options))
        {
            self.flush()?;
            return Ok(Some(Step::Flush));
        }
        if pressure::is_seal_due(rooms) {
            self.seal_new_series()?;
            return Ok(Some(Step::Seal));
        }
        if let Some(job) = rooms.head.plan_convert() {
            self.convert(job)?;
            return Ok(Some(Step::Convert));
        }
        if let Some(job) = rooms.head.plan_compress() {
            rooms.head.apply_convert(job.run()?);
            return Ok(Some(Step::Compress));
        }
        if rooms.recycle_surplus() > 0 {
            return Ok(Some(Step::Recycle));
        }
        self.upkeep.hold_memory(rooms);
        if self.flusher.is_log_started() {
            self.release_log()?;
            // Writers find the next log segment ready.
            rooms.log.prepare()?;
        }
        Ok(None)
    }

    /// Does not report the loss of an earlier sync again: a flush is due because of it, and an
    /// error here would only delay later syncs.
    fn sync_at_interval(&self) -> Result<()> {
        match self.rooms.options.log.sync {
            SyncPolicy::IntervalMs(_) if self.flusher.is_log_started() => {
                self.rooms.log.harden(&self.rooms.log_ends())
            }
            _ => Ok(()),
        }
    }

    /// Replaces files of log and manifest that other programs have removed: without them a start
    /// would not find the next writes. Lost entries of the log make a flush due.
    fn replace_lost_files(&self) -> Result<()> {
        let rooms = &self.rooms;
        // New files would get into a folder that is not the database's.
        if !self.flusher.is_log_started() || !self.is_folder_in_place() {
            return Ok(());
        }
        // Again once a file is missing: the folder may have been moved since.
        let is_ours = || self.is_folder_in_place();
        for path in rooms.log.leave_lost_files(&is_ours)? {
            tracing::error!(
                "another program has removed or replaced the log file {path}: its samples are \
                 flushed to tables, and the log continues in a new file"
            );
            rooms.wakeup.request_flush();
        }
        if self.ledger.replace_lost_manifest(rooms, &is_ours)? {
            tracing::error!(
                "another program has removed or replaced the manifest: it is written again"
            );
        }
        Ok(())
    }

    /// Whether the path of the data folder, and that of the log's, still leads to the folder that
    /// was opened. Otherwise another program has removed, moved or replaced it, and the caller
    /// should close the database: new files would get into another folder.
    pub fn is_folder_in_place(&self) -> bool {
        self.locks.are_in_place()
    }

    fn step_tree(&self) -> Result<Option<Step>> {
        let Engine { rooms, ledger, upkeep, slow, .. } = self;
        let _one_at_a_time = self.lanes.tree.lock();
        if rooms.options.read_only {
            return Ok(slow.follow(rooms, ledger, upkeep)?.then_some(Step::Follow));
        }
        let tree = &rooms.tree;
        tree.relieve_slow_cache();
        // First: a long backlog of jobs, or one that fails because the disk is full, must not keep
        // files that no one reads. A file that cannot be removed delays every other step only.
        if !self.lanes.has_garbage_failed.swap(false, Relaxed) {
            let removed = tree.collect_garbage(&rooms.env, TierScope::Fast);
            self.lanes.has_garbage_failed.store(removed.is_err(), Relaxed);
            if removed? > 0 {
                return Ok(Some(Step::Garbage));
            }
        }
        self.run_next_job()
    }

    /// The most urgent work on tables and the files of the index.
    fn run_next_job(&self) -> Result<Option<Step>> {
        let Engine { rooms, ledger, pressure, upkeep, slow, .. } = self;
        let tree = &rooms.tree;
        match upkeep.tend(rooms, ledger, pressure)? {
            Some(UpkeepWork::Merged) => return Ok(Some(Step::Merge)),
            Some(UpkeepWork::SeriesRemoved) => return Ok(Some(Step::RemoveSeries)),
            None => {}
        }
        let clock = &*rooms.env.clock;
        let now = clock.now_ms();
        let scope = slow.scope(now);
        if mutant!(rooms, ObjectsRemovedEarly) {
            tree.note_published(&tree.slow_tables().dead, 0);
            tree.collect_garbage(&rooms.env, scope)?;
        }
        if scope == TierScope::Both && slow.run(clock, || slow.tend(rooms, ledger))? {
            return Ok(Some(Step::Publish));
        }
        let version = tree.version();
        // Of deletes that a transaction could conflict with until it ended.
        self.transactions.prune();
        ledger.tombstones.release_unused();
        let deletes = ledger.tombstones.of_tree(rooms);
        let times = self.plan_times(now, &version);
        if let Some(job) = tree.plan(&version, &deletes, times, scope) {
            drop(version);
            match job.is_slow() {
                true => slow.run(clock, || self.run_tree_job(&job))?,
                false => self.run_tree_job(&job)?,
            }
            return Ok(Some(Step::Tree(job.kind())));
        }
        if scope == TierScope::Both && tree.adapt(&version) {
            return Ok(Some(Step::Adapt));
        }
        drop(version);
        if self.forget_applied(&deletes)? > 0 {
            upkeep.note_data_gone();
            return Ok(Some(Step::Forget));
        }
        let removed_count = match scope {
            TierScope::Both => slow.run(clock, || {
                let tables = tree.collect_garbage(&rooms.env, scope)?;
                Ok(tables + slow.collect_dead_segments(rooms, now)?)
            })?,
            TierScope::Fast => 0,
        };
        Ok((removed_count > 0).then_some(Step::SlowGarbage))
    }

    fn plan_times(&self, now: Timestamp, version: &Version) -> PlanTimes {
        let rooms = &self.rooms;
        let retention_now = match rooms.options.tree.retention_ms {
            Some(_) => self.lanes.retention.now_ms(&*rooms.env.clock, || version.times_of_tables()),
            None => now,
        };
        PlanTimes { now, retention_now }
    }

    fn run_tree_job(&self, job: &Job) -> Result<()> {
        let Engine { rooms, ledger, .. } = self;
        let edit = job.run(&rooms.env, &rooms.budget, rooms.wakeup.closing())?;
        probe!(rooms, JobRun);
        if edit.is_empty() {
            return Ok(());
        }
        rooms.tree.check(&edit)?;
        let part = Edit::default().with(Room::Tree, edit.encode());
        let committed = ledger.commit(rooms, part, || {
            let _view = rooms.view.write();
            rooms.tree.apply(&edit)?;
            if job.kind() == JobKind::Drop {
                // Hot blocks would stay visible to new readers until they are recycled.
                rooms.head.recycle_before(CommitSeq(job.newest_seq().0.saturating_add(1)));
            }
            Ok(())
        });
        committed.map_err(|e| e.context(job))?;
        if job.kind() == JobKind::Drop {
            self.note_expired(job);
        }
        if matches!(job.kind(), JobKind::Drop | JobKind::Clean) {
            self.upkeep.note_data_gone();
        }
        Ok(())
    }

    /// Logs and counts the tables that retention, or the limit of the slow tier, has dropped.
    fn note_expired(&self, job: &Job) {
        let (count, samples) = (job.inputs().count() as u64, job.input_values());
        let (bytes, range) = (job.input_bytes(), job.input_range());
        tracing::info!(
            tables = count,
            samples,
            bytes,
            start_ms = range.start,
            end_ms = range.end,
            "dropped data beyond the retention or the limit of the slow tier"
        );
        self.counters.expired_tables.add(count);
        self.counters.expired_samples.add(samples);
        self.counters.expired_bytes.add(bytes);
    }

    /// Releases `bytes` of flushed memory, or all that there is, oldest rows first: tables contain
    /// them. For callers that need the memory elsewhere. Returns the bytes released.
    pub fn recycle(&self, bytes: u64) -> u64 {
        self.rooms.recycle(bytes)
    }

    /// Requests a flush soon from the head's lane.
    pub fn request_flush(&self) {
        self.rooms.wakeup.request_flush();
    }

    /// Steps a lane until the engine is closed. The caller runs it on a thread of its own. Errors
    /// are logged and counted, and the lane retries after a growing pause.
    pub fn run_lane(&self, lane: Lane) {
        let mut retry_ms = RETRY_MS;
        let idle_ms = match (lane, self.rooms.options.log.sync) {
            (Lane::Log, SyncPolicy::IntervalMs(interval_ms)) => interval_ms,
            _ => IDLE_MS,
        };
        while self.is_open() {
            let was_requested = self.rooms.wakeup.is_flush_requested();
            if lane == Lane::Tree {
                // Of a step of another caller, such as a snapshot.
                self.slow.take_failure();
            }
            let done = self.step(lane);
            // Other work may succeed between two failures; only a lane without any is well.
            if matches!(done, Ok(None)) {
                retry_ms = RETRY_MS;
            }
            let is_retry = done.is_err() && was_requested;
            let wait_ms = match done {
                Ok(Some(_)) => continue,
                Ok(None) => idle_ms,
                Err(e) if *e.kind() == ErrorKind::Closed => return,
                // The work is planned again after the next start.
                Err(e)
                    if *e.kind() == ErrorKind::Canceled
                        && self.rooms.wakeup.stopping().check().is_err() =>
                {
                    return;
                }
                Err(e) => {
                    self.lanes.error_count.add(1);
                    self.pause_after(lane, &e, idle_ms, &mut retry_ms)
                }
            };
            self.wait_for_work(lane, Duration::from_millis(wait_ms), is_retry);
        }
    }

    /// Logs the failure of a lane. Returns its pause in milliseconds, and doubles the next one.
    fn pause_after(&self, lane: Lane, error: &Error, idle_ms: u64, retry_ms: &mut u64) -> u64 {
        if lane == Lane::Tree
            && let Some(retry_ms) = self.slow.take_failure()
        {
            tracing::error!("work on the slow tier failed, retry in {retry_ms} ms: {error}");
            // Work on the fast tier continues meanwhile.
            return idle_ms;
        }
        // Writes after a failed sync still have their interval.
        let wait_ms = if lane == Lane::Log { idle_ms.min(*retry_ms) } else { *retry_ms };
        tracing::error!("maintenance ({lane:?}) failed, retry in {wait_ms} ms: {error}");
        let is_busy = matches!(error.kind(), ErrorKind::Busy { .. });
        let most = if is_busy { BUSY_RETRY_MS_MAX } else { RETRY_MS_MAX };
        *retry_ms = (*retry_ms * 2).min(most);
        wait_ms
    }

    /// A flush that was requested and has failed, `is_retry`, waits like other work.
    fn wait_for_work(&self, lane: Lane, limit: Duration, is_retry: bool) {
        let rooms = &self.rooms;
        if lane != Lane::Log {
            (rooms.options.on_idle)();
        }
        let has_work = || lane == Lane::Head && !is_retry && rooms.wakeup.is_flush_requested();
        rooms.wakeup.wait(limit, has_work);
    }
}

#[cfg(test)]
mod tests {
    use firn_sim::Sim;

    use super::*;
    use crate::{EngineOptions, RecoveryProgress};

    /// Before, the lane paused as long as the slow tier, and then tried the slow tier first: while
    /// a store was down, local tables were neither merged nor dropped.
    #[test]
    fn a_store_that_fails_or_hangs_leaves_time_for_the_fast_tier() {
        let sim = Sim::new(1);
        let options = EngineOptions::default();
        let engine = Engine::open(sim.env(), options, &RecoveryProgress::default()).unwrap();
        while engine.step(Lane::Tree).unwrap().is_some() {}
        sim.bucket.set_down(true);
        let mut retry_ms = RETRY_MS;
        for _ in 0..10 {
            // The claim is looked at once a minute.
            sim.clock.advance(Duration::from_secs(61));
            let error = engine.step(Lane::Tree).unwrap_err();
            let pause_ms = engine.pause_after(Lane::Tree, &error, IDLE_MS, &mut retry_ms);
            sim.clock.advance(Duration::from_millis(pause_ms));
            assert_eq!(engine.step(Lane::Tree).unwrap(), None);
        }
        assert_eq!(retry_ms, RETRY_MS);
        let clock = &*engine.rooms.env.clock;
        let hanging = engine.slow.run(clock, || -> Result<()> {
            sim.clock.advance(Duration::from_secs(90));
            Err(Error::unavailable("no answer"))
        });
        hanging.unwrap_err();
        assert!(engine.slow.scope(clock.now_ms()) == TierScope::Fast);
    }
}
