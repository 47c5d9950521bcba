//! The one scheduler: asks the rooms for plans, runs them, makes their edits durable, swaps views.
//!
//! Order when data moves, each step only after the one before it: file durable, manifest durable,
//! view swapped, log floor advanced, blocks hot (design, "Consistency"). A crash between any two
//! loses nothing: before the manifest the files are unreferenced, after it the log only holds
//! what is in tables too.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use firn_codec::{GroupColumns, Tombstones, merge_columns};
use firn_head::{FlushJob, SealMarks};
use firn_log::{StreamId, SyncPolicy};
use firn_model::{
    CancelToken, CommitSeq, Error, ErrorKind, GroupId, LogPosition, Pool, Result, SeriesRef,
    ShardId, TimeRange, Timestamp,
};
use firn_tree::{Job, JobKind, TierScope};

use crate::manifest::{Edit, Room};
use crate::planted::Planted;
use crate::recover::LogCut;
use crate::{Engine, Moment, recover, tier};

/// What one [`Engine::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Active rows of a shard became a static segment.
    Convert,
    /// Small segments of a shard became one.
    Compress,
    /// The head went to level 0 and the log was cut.
    Flush,
    /// New series went to an index file.
    Seal,
    /// Flushed memory was given back.
    Recycle,
    /// Tables were merged, uploaded, patched or dropped.
    Tree(JobKind),
    /// New partitions became longer or shorter, towards the fast tier's limit.
    Adapt,
    /// Files that nobody needs were removed.
    Garbage,
    /// Deletes that hide nothing any more were forgotten.
    Forget,
    /// Index files became one.
    Merge,
    /// Series without any sample left the index.
    RemoveSeries,
    /// The slow tier's manifest was claimed or brought up to date.
    Publish,
    /// A replica went on to what the slow tier's manifest says.
    Follow,
}

/// Which part of the work a caller takes, so that a long upload never holds up a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Convert, compress, flush, put new series into index files.
    Head,
    /// Compaction, upload, retention, garbage, the index's files.
    Tree,
    /// Keeps what an interval of [`crate::EngineOptions::log`] promises when no commit comes by, however long the
    /// others work; there is nothing to do for another policy.
    Log,
}

// An idle lane looks for work this often: at a million samples a second an arena fills in four.
const IDLE_MS: u64 = 250;
// A failing slow tier is asked again after this long, doubled up to the maximum.
const RETRY_MS: u64 = 1_000;
const RETRY_MS_MAX: u64 = 60_000;

/// What a flush moves.
struct FrozenHead {
    /// Up to where the log's rows are in it or in tables already.
    cut: LogCut,
    /// `None` when only deletes leave the log.
    job: Option<FlushJob>,
    /// All deletes: what comes later is younger than everything in the job.
    tombstones: Arc<Tombstones>,
    index_part: Option<Vec<u8>>,
    /// What was sealed before this lies below the floors.
    settled: u64,
}

impl Engine {
    /// Does the most urgent piece of work of a lane, if there is one. Several threads may call this,
    /// one per lane; the simulation calls it from one.
    ///
    /// # Errors
    /// Those of disk and bucket; the work is planned anew at the next call.
    pub fn step(&self, lane: Lane) -> Result<Option<Step>> {
        self.check_open()?;
        let done = match lane {
            Lane::Head | Lane::Log if self.options.read_only => Ok(None),
            Lane::Head => self.step_head(),
            Lane::Tree => self.step_tree(),
            Lane::Log => self.sync_lazily().map(|()| None),
        };
        if done.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Unavailable) {
            // A full disk, maybe: what the log keeps to be written again is room for tables.
            self.log.remove_spares();
        }
        done
    }

    fn step_head(&self) -> Result<Option<Step>> {
        self.keep_room();
        if self.should_flush() {
            self.flush()?;
            return Ok(Some(Step::Flush));
        }
        if self.should_seal() {
            self.seal_new_series()?;
            return Ok(Some(Step::Seal));
        }
        if let Some(job) = self.head.plan_convert() {
            self.head.apply_convert(job.run()?);
            return Ok(Some(Step::Convert));
        }
        if let Some(job) = self.head.plan_compress() {
            self.head.apply_convert(job.run()?);
            return Ok(Some(Step::Compress));
        }
        if self.recycle_surplus() > 0 {
            return Ok(Some(Step::Recycle));
        }
        self.hold_index_memory();
        // No writer has to make the next log segment.
        if self.log_started.load(Relaxed) {
            self.log.prepare()?;
        }
        Ok(None)
    }

    /// Gives `bytes` of flushed memory back, or all there is, older time first: tables have its rows. For who needs the memory
    /// elsewhere. Returns how much.
    pub fn recycle(&self, bytes: u64) -> u64 {
        let recycled_bytes = self.head.recycle(bytes);
        self.break_readers();
        recycled_bytes
    }

    /// What is hot over its limit, or so old that nobody asks for it or retention has ended it.
    fn recycle_surplus(&self) -> u64 {
        let age_ms_max = self.options.tree.retention_ms.unwrap_or(i64::MAX);
        let age_ms_max = age_ms_max.min(self.options.hot_age_ms_max);
        let hard_line = self.env.clock.now_ms().saturating_sub(age_ms_max);
        let recycled_bytes = self.head.recycle_surplus(hard_line);
        self.break_readers();
        recycled_bytes
    }

    fn break_readers(&self) {
        if self.planted(Planted::RecycledUnderReaders) {
            self.head.release_under_readers();
        }
    }

    /// What an earlier sync has lost is not told again: a flush is on its way, and must not slow this down.
    fn sync_lazily(&self) -> Result<()> {
        match self.options.log.sync {
            SyncPolicy::IntervalMs(_) if self.log_started.load(Relaxed) => {
                self.log.harden(&self.log_ends())
            }
            _ => Ok(()),
        }
    }

    fn step_tree(&self) -> Result<Option<Step>> {
        let _one_at_a_time = self.tree_lane.lock();
        if self.options.read_only {
            return self.follow();
        }
        self.tree.relieve_slow_cache();
        if let Some(step) = self.tend_index()? {
            return Ok(Some(step));
        }
        let now = self.env.clock.now_ms();
        let reach = self.tier.reach(now);
        if self.planted(Planted::ObjectsRemovedEarly) {
            self.tree.note_published(&self.tree.slow_tables().dead, 0);
            self.tree.collect_garbage(&self.env, reach)?;
        }
        if reach == TierScope::Both && self.on_slow_tier(now, || self.tend_slow_tier())? {
            return Ok(Some(Step::Publish));
        }
        let version = self.tree.version();
        let deletes = self.tree_deletes();
        if let Some(job) = self.tree.plan(&version, &deletes, now, reach) {
            drop(version);
            match job.is_slow() {
                true => self.on_slow_tier(now, || self.run_tree_job(&job))?,
                false => self.run_tree_job(&job)?,
            }
            return Ok(Some(Step::Tree(job.kind())));
        }
        if reach == TierScope::Both && self.tree.adapt(&version) {
            return Ok(Some(Step::Adapt));
        }
        drop(version);
        if self.forget_applied(&deletes)? > 0 {
            self.note_data_gone();
            return Ok(Some(Step::Forget));
        }
        let removed = match reach {
            TierScope::Both => self.on_slow_tier(now, || {
                Ok(self.tree.collect_garbage(&self.env, reach)?
                    + self.collect_dead_segments(now)?)
            }),
            TierScope::Fast => self.tree.collect_garbage(&self.env, reach),
        }?;
        Ok((removed > 0).then_some(Step::Garbage))
    }

    /// Work that needs the slow tier. When it fails the tier is left alone for a while, and the fast one goes
    /// on meanwhile.
    fn on_slow_tier<T>(&self, now: Timestamp, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        self.tier.note(&done, now);
        done
    }

    fn run_tree_job(&self, job: &Job) -> Result<()> {
        let edit = job.run(&self.env, &self.budget, &CancelToken::new())?;
        self.probe(Moment::JobRun);
        if edit.is_empty() {
            return Ok(());
        }
        self.tree.check(&edit)?;
        self.commit_edit(Edit::default().with(Room::Tree, edit.encode()), || {
            let _view = self.view.write();
            self.tree.apply(&edit)?;
            if job.kind() == JobKind::Drop {
                // What is still hot would be seen by new readers until its memory is given back.
                self.head.recycle_before(CommitSeq(job.newest_seq().0.saturating_add(1)));
            }
            Ok(())
        })
        .map_err(|e| e.context(job))?;
        if matches!(job.kind(), JobKind::Drop | JobKind::Clean) {
            self.note_data_gone();
        }
        Ok(())
    }

    fn should_seal(&self) -> bool {
        let index = self.index.stats();
        index.unsealed_bytes > self.options.new_series_bytes_max.max(index.segment_bytes / 2)
    }

    fn should_flush(&self) -> bool {
        let (row_count, unflushed_bytes) = self.head.unflushed();
        if row_count == 0 && self.deletes.unflushed().is_empty() {
            return false;
        }
        let (now, log) = (self.env.clock.now_ms(), self.log.stats());
        self.flush_asked.load(Relaxed)
            || unflushed_bytes > self.options.head_bytes_max
            || log.bytes > self.options.log_bytes_max
            // Tables must have what the log cannot make durable any more.
            || log.has_lost_commits
            || now.saturating_sub(self.flushed_at_ms.load(Relaxed)) > self.options.flush_age_ms_max
    }

    /// Moves everything that is in the head now to level 0 and cuts the log behind it.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full, `Busy` while a failed commit is being undone: the
    /// head keeps its rows, the log its segments.
    pub fn flush(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.ensure_log_started()?;
        let _one_at_a_time = self.flush_lane.lock();
        let started_ms = self.env.clock.now_ms();
        if let Some(frozen) = self.freeze()? {
            if self.planted(Planted::LogCutBeforeManifest) {
                self.log.purge(&frozen.cut.floors)?;
            }
            if self.planted(Planted::ManifestBeforeTables) {
                let cut = frozen.cut.encode();
                self.commit_edit(Edit::default().with(Room::Log, cut), || Ok(()))?;
            }
            let tables = self.write_level0(&frozen)?;
            if let Some(sink) = self.sink.get() {
                sink.released(frozen.cut.told);
            }
            self.install(&frozen, &tables)?;
            self.index.settle(frozen.settled);
            self.log.purge(&frozen.cut.floors)?;
            self.counters.flushes.add(1);
            // Without a lock that a query may wait for.
            drop(frozen);
            self.recycle_surplus();
        }
        self.note_kept_by_flush();
        self.flush_asked.store(false, Relaxed);
        self.flushed_at_ms.store(started_ms, Relaxed);
        Ok(())
    }

    fn write_level0(&self, frozen: &FrozenHead) -> Result<firn_tree::Edit> {
        let Some(job) = &frozen.job else { return Ok(firn_tree::Edit::default()) };
        let nothing = Tombstones::default();
        let forgets = self.planted(Planted::TombstonesForgottenAtFlush);
        let tombstones = if forgets { &nothing } else { &*frozen.tombstones };
        let known = |chunk| self.only_known(chunk).transpose();
        let mut chunks = job.chunks(tombstones).filter_map(known);
        self.tree.write_level0(&mut chunks, tombstones.through())
    }

    /// Everything that is in the head now, durable and visible, with the definitions of its series in
    /// an index segment that nobody refers to yet. `None` if there is nothing.
    fn freeze(&self) -> Result<Option<FrozenHead>> {
        // Until it is decided what is taken: a transaction in between would be in the log below a floor, and
        // its rows or deletes neither in the tables nor in the manifest.
        let no_transactions = self.transactions.pause();
        let settled = self.index.next_number();
        // What is in the log below these floors is staged in the head before the seal below.
        let mut floors: Vec<LogPosition> =
            self.streams().map(|stream| self.log.end(stream)).collect();
        if self.planted(Planted::FloorTooHigh) {
            floors.iter_mut().for_each(|floor| floor.0 += 1 << 16);
        }
        let marks = self.head.seal_all();
        let told = self.all_told();
        self.publish_sealed(&marks)?;
        let job = self.head.plan_flush();
        let is_whole = job.as_ref().map_or(marks.marks.is_empty(), |job| job.covers(&marks));
        if job.is_none() && (!is_whole || self.deletes.unflushed().is_empty()) {
            return Ok(None);
        }
        if !is_whole {
            return Err(Error::busy(1_000, "flush: a failed commit is being undone; again later"));
        }
        let tombstones = self.deletes.tombstones();
        // What comes from here on stands above the floors.
        drop(no_transactions);
        // After the rows: every series among them was defined before.
        let index_part = self.write_new_series()?;
        let cut = LogCut { floors, told };
        Ok(Some(FrozenHead { cut, job, tombstones, index_part, settled }))
    }

    /// A number up to which all changes have been told. Those of rows that are in the log by now are not larger.
    pub(crate) fn all_told(&self) -> CommitSeq {
        if self.planted(Planted::CutNotNoted) {
            return self.cut.lock().told;
        }
        let last = self.sequence.last();
        // A number is drawn, and its change told, under the lock of a shard: whoever drew one up to `last` is through with
        // that when the lock was free once.
        let shards = 0..self.bits.shard_count() as u16;
        shards.for_each(|shard| drop(self.head.shard(ShardId(shard))));
        last
    }

    /// The series that no index file has go to one, between flushes: there a lone series holds a quarter of the memory, a
    /// member of a group a fiftieth. The log keeps their definitions until the next flush; both say the same.
    fn seal_new_series(&self) -> Result<()> {
        let _one_at_a_time = self.flush_lane.lock();
        if let Some(part) = self.write_new_series()? {
            self.apply_index(part)?;
        }
        Ok(())
    }

    /// An index file that nobody refers to yet, with the series that no other has; its manifest part. `None` if there are none.
    fn write_new_series(&self) -> Result<Option<Vec<u8>>> {
        match self.index.plan_seal() {
            Some(seal) if !self.planted(Planted::IndexNotSealed) => {
                // Taken, not asked for: it is what frees memory.
                let mut memory = self.budget.empty(Pool::Jobs);
                memory.take(seal.memory_bytes());
                seal.run(&*self.env.disk).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Tables, index segment and floors become part of the database in one step, and what was flushed
    /// turns hot in the head.
    fn install(&self, frozen: &FrozenHead, tables: &firn_tree::Edit) -> Result<()> {
        let FrozenHead { cut, job, tombstones, index_part, .. } = frozen;
        let mut edit = Edit::default()
            .with(Room::Engine, recover::encode_sequence(self.sequence.last()))
            .with(Room::Log, cut.encode())
            .with(Room::Tree, tables.encode());
        if let Some(part) = index_part {
            edit = edit.with(Room::Index, part.clone());
        }
        if let Some(part) = self.tombstones_part(&self.deletes.unflushed_of(tombstones)) {
            edit = edit.with(Room::Engine, part);
        }
        let head_flushed = || job.iter().for_each(|job| self.head.flushed(job));
        self.commit_edit(edit, || {
            if self.planted(Planted::SourceDroppedBeforeView) {
                head_flushed();
                self.head.recycle(u64::MAX);
                self.probe(Moment::Planted);
            }
            self.deletes.note_flushed(tombstones.through());
            {
                let _view = self.view.write();
                self.tree.apply(tables)?;
                head_flushed();
            }
            self.cut.lock().clone_from(cut);
            index_part.as_ref().map_or(Ok(()), |part| self.index.apply(part))
        })?;
        self.hold_index_memory();
        Ok(())
    }

    /// After damage of the log there may be rows of series whose definitions are lost. Nobody can ask
    /// for them, and they must not turn up when their ids are given again.
    fn only_known(
        &self,
        chunk: Result<(GroupId, GroupColumns)>,
    ) -> Result<Option<(GroupId, GroupColumns)>> {
        let (group, mut columns) = chunk?;
        if self.recovery.damage.is_empty() {
            return Ok(Some((group, columns)));
        }
        let mut failed = None;
        columns.batch.columns.retain(|column| {
            let known = self.index.contains(SeriesRef { group, slot: column.slot });
            known.unwrap_or_else(|e| {
                failed = Some(e);
                true
            })
        });
        if let Some(e) = failed {
            return Err(e);
        }
        let columns = merge_columns(&[columns], TimeRange::ALL);
        Ok((!columns.is_empty()).then_some((group, columns)))
    }

    /// Makes what was staged when the shards were sealed durable and visible, so that the flush
    /// takes whole shards and nothing that could still fail.
    fn publish_sealed(&self, marks: &SealMarks) -> Result<()> {
        self.log.commit(&self.log_ends())?;
        for &(shard, position) in &marks.marks {
            self.head.publish(shard, position);
        }
        Ok(())
    }

    /// One atomic manifest record, then `apply`: when this returns, what the edit names will be found
    /// after a crash and is seen by new snapshots. Both happen under the manifest's lock, so that a
    /// whole state that is written meanwhile never lacks an edit that is durable.
    pub(crate) fn commit_edit(&self, edit: Edit, apply: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut manifest = self.manifest.lock();
        manifest.commit(&edit, || self.whole_state())?;
        apply()
    }

    /// The state before the edit that is being made: rooms apply edits only afterwards.
    pub(crate) fn whole_state(&self) -> Edit {
        let state = self.whole_state_of(self.tier.mark());
        match self.tier.claims_part() {
            Some(part) => state.with(Room::Engine, part),
            None => state,
        }
    }

    /// The same as of a folder with this mark, which has never claimed a slow tier. The caller holds the manifest's lock.
    pub(crate) fn whole_state_of(&self, mark: u64) -> Edit {
        let state = Edit::default()
            .with(Room::Engine, self.identity.encode())
            .with(Room::Engine, tier::encode_writer(mark))
            .with(Room::Engine, recover::encode_sequence(self.sequence.last()))
            .with(Room::Log, self.cut.lock().encode())
            .with(Room::Index, self.index.snapshot_part())
            .with(Room::Tree, self.tree.snapshot_part());
        match self.tombstones_part(&self.tombstones_of_state()) {
            Some(part) => state.with(Room::Engine, part),
            None => state,
        }
    }

    /// The end of what each stream of the log was given.
    fn log_ends(&self) -> Vec<(StreamId, LogPosition)> {
        self.streams().map(|stream| (stream, self.log.end(stream))).collect()
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + use<> {
        (0..self.log.stream_count()).map(|stream| StreamId(stream as u16))
    }

    /// Asks the maintenance thread for a flush soon.
    pub fn ask_for_flush(&self) {
        self.flush_asked.store(true, Relaxed);
        self.wake_maintenance();
    }

    pub(crate) fn wake_maintenance(&self) {
        // Who has looked and does not sleep yet would sleep through it.
        let _asleep = self.asleep.lock();
        self.wake.notify_all();
    }

    /// Steps a lane until the engine is closed. Runs on a thread of its own; an error is logged and
    /// counted, and the lane tries again after a while that grows.
    pub fn run_lane(&self, lane: Lane) {
        let mut retry_ms = RETRY_MS;
        let idle_ms = match (lane, self.options.log.sync) {
            (Lane::Log, SyncPolicy::IntervalMs(interval_ms)) => interval_ms,
            _ => IDLE_MS,
        };
        while self.is_open() {
            let done = self.step(lane);
            if done.is_ok() {
                retry_ms = RETRY_MS;
            }
            let wait_ms = match done {
                Ok(Some(_)) => continue,
                Ok(None) => idle_ms,
                Err(e) if *e.kind() == ErrorKind::Closed => return,
                Err(e) => {
                    self.counters.maintenance_errors.add(1);
                    // What is written after a sync that failed has its time, too.
                    let is_paced = lane == Lane::Log;
                    let wait_ms = if is_paced { retry_ms.min(idle_ms) } else { retry_ms };
                    tracing::error!("maintenance ({lane:?}) failed, again in {wait_ms} ms: {e}");
                    retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
                    wait_ms
                }
            };
            self.wait_for_work(lane, Duration::from_millis(wait_ms));
        }
    }

    fn wait_for_work(&self, lane: Lane, at_most: Duration) {
        if lane != Lane::Log {
            (self.options.on_idle)();
        }
        let mut asleep = self.asleep.lock();
        if !self.is_open() || (lane == Lane::Head && self.head_has_work()) {
            return;
        }
        self.wake.wait_for(&mut asleep, at_most);
    }

    fn head_has_work(&self) -> bool {
        self.flush_asked.load(Relaxed)
    }
}
