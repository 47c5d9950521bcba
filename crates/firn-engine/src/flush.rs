//! The flush: everything in the head moves to level 0, and the log is truncated.
//!
//! Order of the steps, each after the previous one is complete: files durable, manifest durable,
//! view swapped and blocks hot, log truncated. A crash between any two loses nothing. Before the
//! manifest the files are unreferenced; after it the log below the new floors contains only rows
//! that tables contain too.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use firn_codec::{GroupColumns, Tombstones, merge_columns};
use firn_env::Clock;
use firn_head::{ConvertJob, FlushJob, SealMarks};
use firn_log::Log;
use firn_model::{
    Error, ErrorKind, GroupId, LogPosition, Mutex, Result, SeriesRef, ShardId, TimeRange, Timestamp,
};
use firn_tree::FlushChunks;

use crate::Engine;
use crate::edit::{Edit, Room};
use crate::lock;
use crate::parts::{self, LogCut};
use crate::replay_time::{FlushPace, LoggedWork, ReplaySpeed};
use crate::rooms::Rooms;
use crate::stats::Counter;

/// A shard with at least this many waiting arenas is converted before a flush and after a delete.
const BACKLOG_ARENAS_MIN: usize = 3;

/// The lane of flushes, and when the last one was.
///
/// Lock order: the lane before that of transactions and the manifest's lock.
pub(crate) struct Flusher {
    lane: Mutex<()>,
    /// Starting the log needs disk space; it is retried under the lane.
    is_log_started: AtomicBool,
    flushed_at_ms: AtomicI64,
    flush_count: Counter,
    /// The speed of a replay here: of the last one, and of conversions since then.
    speed: ReplaySpeed,
    pace: FlushPace,
    /// Bytes of logged definitions that index files contained at the last flush.
    flushed_definition_bytes: AtomicU64,
}

/// The contents of a flush.
struct FrozenHead {
    /// The rows below it are in the flush, or in tables already.
    cut: LogCut,
    /// `None` if only deletes or definitions leave the log.
    job: Option<FlushJob>,
    /// All deletes: later ones are younger than everything in the job.
    tombstones: Arc<Tombstones>,
    index_part: Option<Vec<u8>>,
    /// Index layers sealed before this number are below the floors.
    settled: u64,
    /// Bytes of definitions that were logged before the floors were read.
    definition_bytes: u64,
}

impl Flusher {
    /// `speed` is that of the replay.
    pub(crate) fn new(clock: &dyn Clock, speed: ReplaySpeed) -> Flusher {
        Flusher {
            lane: Mutex::new(&lock::FLUSH_LANE, ()),
            is_log_started: AtomicBool::new(false),
            flushed_at_ms: AtomicI64::new(clock.now_ms()),
            flush_count: Counter::default(),
            speed,
            pace: FlushPace::new(monotonic_ms(clock)),
            flushed_definition_bytes: AtomicU64::new(0),
        }
    }

    /// The measured speed of a replay.
    pub(crate) fn speed(&self) -> &ReplaySpeed {
        &self.speed
    }

    /// Milliseconds that a restart now would replay the log. `row_count` rows are only there, and
    /// `definition_bytes` were logged in total.
    pub(crate) fn replay_ms(&self, rooms: &Rooms, row_count: u64, definition_bytes: u64) -> f64 {
        let bytes = rooms.log.live_bytes();
        let definition_bytes = self.unflushed_definition_bytes(definition_bytes);
        let work = LoggedWork { bytes, definition_bytes, row_count };
        self.speed.estimate_ms(work, &rooms.options)
    }

    /// Bytes of definitions that a replay reads, of those that were logged in total.
    fn unflushed_definition_bytes(&self, definition_bytes: u64) -> u64 {
        definition_bytes.saturating_sub(self.flushed_definition_bytes.load(Relaxed))
    }

    /// Flushes since the start.
    pub(crate) fn flush_count(&self) -> u64 {
        self.flush_count.get()
    }

    /// Holds back flushes until the returned guard is dropped.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lane.lock()
    }

    pub(crate) fn is_log_started(&self) -> bool {
        self.is_log_started.load(Acquire)
    }

    /// Starts the log, if opening could not.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full.
    pub(crate) fn ensure_log_started(&self, log: &Log) -> Result<()> {
        if self.is_log_started() {
            return Ok(());
        }
        let _one_at_a_time = self.lane.lock();
        if !self.is_log_started() {
            log.start()?;
            self.is_log_started.store(true, Release);
        }
        Ok(())
    }

    /// Whether a flush is requested or due. `unflushed`: rows of the head and their bytes.
    /// `has_deletes`: some are in the log only. `definition_bytes` of definitions were logged in
    /// total.
    pub(crate) fn is_due(
        &self,
        rooms: &Rooms,
        unflushed: (u64, u64),
        has_deletes: bool,
        definition_bytes: u64,
    ) -> bool {
        let (row_count, unflushed_bytes) = unflushed;
        let has_definitions = self.unflushed_definition_bytes(definition_bytes) > 0;
        if row_count == 0 && !has_deletes && !has_definitions {
            // The lane would not sleep while a request waits.
            rooms.wakeup.clear_flush_request();
            return false;
        }
        let (now, log) = (rooms.env.clock.now_ms(), rooms.log.stats());
        let age_ms = now.saturating_sub(self.flushed_at_ms.load(Relaxed));
        let restart_ms = self.replay_ms(rooms, row_count, definition_bytes);
        let restart_ms_max = rooms.options.restart_ms_max as f64;
        let is_long = self.pace.is_due(monotonic_ms(&*rooms.env.clock), restart_ms, restart_ms_max);
        is_long
            || rooms.wakeup.is_flush_requested()
            || unflushed_bytes > rooms.options.head_bytes_max
            // A process that is killed leaves a file with few entries.
            || log.bytes.saturating_add(log.slack_bytes) > rooms.options.log_bytes_max
            // Tables must contain the commits that the log cannot make durable any more.
            || log.has_lost_commits
            || age_ms > rooms.options.flush_age_ms_max
    }

    fn note_done(&self, rooms: &Rooms, started_ms: Timestamp) {
        rooms.wakeup.clear_flush_request();
        self.flushed_at_ms.store(started_ms, Relaxed);
    }
}

impl Engine {
    /// Moves the contents of the head to level 0 and truncates the log.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full, `Busy` while a failed commit is rolled back,
    /// `Canceled` if the database stops and the flush writes many tables. The head then keeps its
    /// rows and the log its segments.
    pub fn flush(&self) -> Result<()> {
        self.flush_or_settle(false)
    }

    /// As [`Engine::flush`], and moves the log's floor above the definitions in index files even if
    /// there is nothing to flush: only then may such series leave the index.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    pub(crate) fn flush_and_settle(&self) -> Result<()> {
        self.flush()?;
        match self.rooms.index.has_unsettled() {
            true => self.flush_or_settle(true),
            false => Ok(()),
        }
    }

    fn flush_or_settle(&self, settles: bool) -> Result<()> {
        let Engine { rooms, ledger, flusher, .. } = self;
        if rooms.options.read_only {
            return Ok(());
        }
        flusher.ensure_log_started(&rooms.log)?;
        let _one_at_a_time = flusher.lane.lock();
        let clock = &*rooms.env.clock;
        let (started_ms, began_ms) = (clock.now_ms(), monotonic_ms(clock));
        let saved_ms = self.replay_ms();
        self.convert_backlog()?;
        if let Some(frozen) = self.freeze(settles)? {
            if mutant!(rooms, LogCutBeforeManifest) {
                self.purge_log(&frozen.cut.floors)?;
            }
            if mutant!(rooms, ManifestBeforeTables) {
                let edit = Edit::default().with(Room::Log, frozen.cut.encode());
                ledger.commit(rooms, edit, || Ok(()))?;
            }
            let tables = self.write_level0(&frozen)?;
            self.changes.announce_forgotten(frozen.cut.announced);
            self.install(&frozen, &tables)?;
            rooms.index.settle(frozen.settled);
            self.purge_log(&frozen.cut.floors)?;
            flusher.flush_count.add(1);
            flusher.flushed_definition_bytes.store(frozen.definition_bytes, Relaxed);
            let times = (began_ms, monotonic_ms(clock));
            flusher.pace.note_flushed(times, saved_ms, self.replay_ms());
            // Dropped without a lock that a query could wait for.
            drop(frozen);
            rooms.recycle_surplus();
        }
        self.pressure.note_kept_by_flush(rooms);
        flusher.note_done(rooms, started_ms);
        Ok(())
    }

    /// The flush at a close, which only saves the next start a replay. Rows of more than a few
    /// hundred partitions stay in the log, because each partition is a file to sync.
    pub(crate) fn flush_at_close(&self) -> Result<()> {
        // Tables must contain the commits that the log cannot make durable any more.
        if !self.rooms.log.stats().has_lost_commits {
            self.rooms.wakeup.stop();
        }
        match self.flush() {
            Err(e) if *e.kind() == ErrorKind::Canceled => {
                tracing::info!(
                    "the last flush is skipped, because its samples are spread over too many \
                     partitions: the next start replays them from the log"
                );
                Ok(())
            }
            flushed => flushed,
        }
    }

    /// Converts rows where many arenas wait. To cut a large group, a flush decodes the rows of all
    /// arenas that overlap a slice in time. And an arena takes kilobytes, however few its rows are:
    /// a caller that deletes in a loop ends one per shard each time, and so converts them itself.
    ///
    /// # Errors
    /// Those of [`ConvertJob::run`].
    pub(crate) fn convert_backlog(&self) -> Result<()> {
        let head = &self.rooms.head;
        for shard in (0..self.rooms.bits.shard_count()).map(|id| ShardId(id as u16)) {
            while let Some(job) = head.plan_convert_rows_of(shard, BACKLOG_ARENAS_MIN) {
                self.convert(job)?;
            }
        }
        Ok(())
    }

    /// Runs a conversion of rows and notes its speed.
    pub(crate) fn convert(&self, job: ConvertJob) -> Result<()> {
        let clock = &*self.rooms.env.clock;
        let (row_count, started_ns) = (job.input_rows(), clock.monotonic_ns());
        let converted = job.run()?;
        let spent_ns = clock.monotonic_ns().saturating_sub(started_ns);
        self.flusher.speed().conversion.add(spent_ns, row_count);
        self.rooms.head.apply_convert(converted);
        Ok(())
    }

    /// Milliseconds that a restart now would replay the log, as estimated.
    pub(crate) fn replay_ms(&self) -> f64 {
        let row_count = self.rooms.head.unflushed().0;
        self.flusher.replay_ms(&self.rooms, row_count, self.definitions.logged_bytes())
    }

    /// Moves the series that no index file contains to a file, between flushes. A lone series takes
    /// a quarter of the memory once a file contains it, a group member a fiftieth. The log keeps
    /// their definitions until the next flush; both are the same.
    pub(crate) fn seal_new_series(&self) -> Result<()> {
        let _one_at_a_time = self.flusher.lane.lock();
        if let Some(part) = self.upkeep.write_new_series(&self.rooms)? {
            self.upkeep.apply(&self.rooms, &self.ledger, part)?;
        }
        Ok(())
    }

    /// Freezes the contents of the head, durable and visible, and writes the definitions of its
    /// series to an index segment that nothing refers to yet. `None` if there is nothing to flush:
    /// no row, delete or definition in the log, unless it `settles` definitions.
    fn freeze(&self, settles: bool) -> Result<Option<FrozenHead>> {
        let Engine { rooms, ledger, flusher, .. } = self;
        // No transaction may commit until the contents are fixed: it would be in the log below a
        // floor, and its rows and deletes in neither tables nor manifest.
        let no_transactions = self.transactions.pause();
        let settled = rooms.index.next_number();
        let definition_bytes = self.definitions.logged_bytes();
        // Everything in the log below these floors is staged in the head before the seal below.
        let mut floors: Vec<LogPosition> =
            rooms.streams().map(|stream| rooms.log.end(stream)).collect();
        if mutant!(rooms, FloorTooHigh) {
            floors.iter_mut().for_each(|floor| floor.0 += 1 << 16);
        }
        let marks = rooms.head.seal_all();
        let announced = ledger.all_announced(rooms);
        publish_sealed(rooms, &marks)?;
        let job = rooms.head.plan_flush();
        let is_whole = job.as_ref().map_or(marks.marks.is_empty(), |job| job.covers(&marks));
        let moves_floors = settles
            || !ledger.tombstones.unflushed().is_empty()
            || flusher.unflushed_definition_bytes(definition_bytes) > 0;
        if job.is_none() && !(is_whole && moves_floors) {
            return Ok(None);
        }
        if !is_whole {
            return Err(Error::busy(
                1_000,
                "flush delayed: a failed commit is being rolled back; retry in a second",
            ));
        }
        let tombstones = ledger.tombstones.all();
        // Later transactions are above the floors.
        drop(no_transactions);
        // After the rows: every series among them was defined before.
        let index_part = self.upkeep.write_new_series(rooms)?;
        let cut = LogCut { floors, announced, is_started: true };
        Ok(Some(FrozenHead { cut, job, tombstones, index_part, settled, definition_bytes }))
    }

    fn write_level0(&self, frozen: &FrozenHead) -> Result<firn_tree::Edit> {
        let Some(job) = &frozen.job else { return Ok(firn_tree::Edit::default()) };
        let none = Tombstones::default();
        let is_forgotten = mutant!(self, TombstonesForgottenAtFlush);
        let tombstones = if is_forgotten { &none } else { &*frozen.tombstones };
        let chunks = || {
            let known = |chunk| self.only_known(chunk).transpose();
            Box::new(job.chunks(tombstones).filter_map(known)) as FlushChunks<'_>
        };
        self.rooms.tree.write_level0(&chunks, tombstones.through(), self.rooms.wakeup.stopping())
    }

    /// Makes tables, index segment and floors part of the database in one step, and the flushed
    /// blocks of the head hot.
    fn install(&self, frozen: &FrozenHead, tables: &firn_tree::Edit) -> Result<()> {
        let Engine { rooms, ledger, .. } = self;
        let FrozenHead { cut, job, tombstones, index_part, .. } = frozen;
        let mut edit = Edit::default()
            .with(Room::Engine, parts::encode_sequence(ledger.sequence.last()))
            .with(Room::Log, cut.encode())
            .with(Room::Tree, tables.encode());
        if let Some(part) = index_part {
            edit = edit.with(Room::Index, part.clone());
        }
        let unflushed = ledger.tombstones.unflushed_of(tombstones);
        if let Some(part) = ledger.tombstones.part(rooms, &unflushed) {
            edit = edit.with(Room::Engine, part);
        }
        let head_flushed = || job.iter().for_each(|job| rooms.head.flushed(job));
        ledger.commit(rooms, edit, || {
            if mutant!(rooms, SourceDroppedBeforeView) {
                head_flushed();
                rooms.head.recycle(u64::MAX);
                probe!(rooms, Mutant);
            }
            ledger.tombstones.note_flushed(tombstones.through());
            {
                let _view = rooms.view.write();
                rooms.tree.apply(tables)?;
                head_flushed();
            }
            ledger.set_cut(cut.clone());
            index_part.as_ref().map_or(Ok(()), |part| rooms.index.apply(part))
        })?;
        self.upkeep.hold_memory(rooms);
        Ok(())
    }

    /// Drops columns of unknown series. After damage of the log there may be rows of series whose
    /// definitions are lost. They cannot be queried, and must not reappear when their ids are used
    /// again.
    fn only_known(
        &self,
        chunk: Result<(GroupId, GroupColumns)>,
    ) -> Result<Option<(GroupId, GroupColumns)>> {
        let (group, mut columns) = chunk?;
        if self.recovery.report.damage.is_empty() {
            return Ok(Some((group, columns)));
        }
        let mut failed = None;
        columns.batch.columns.retain(|column| {
            let known = self.rooms.index.contains(SeriesRef { group, slot: column.slot });
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
}

fn monotonic_ms(clock: &dyn Clock) -> f64 {
    clock.monotonic_ns() as f64 / 1e6
}

/// Makes the rows staged before the seal durable and visible, so that the flush takes whole shards
/// and no row whose commit could still fail.
fn publish_sealed(rooms: &Rooms, marks: &SealMarks) -> Result<()> {
    rooms.log.commit(&rooms.log_ends())?;
    for &(shard, position) in &marks.marks {
        rooms.head.publish(shard, position);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
