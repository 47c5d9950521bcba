//! FirnDB as a library: durable metrics in, PromQL out.
//!
//! **Owns** [`Db`]: an engine with its maintenance threads, and the path of a query from text to
//! result. **Never** speaks a network protocol, and never writes a log message.
//!
//! **Path through**: a write has two paths, as in TimeUnion (SIGMOD 2022), section 3.4. The slow
//! path resolves labels to a [`SeriesRef`] ([`Db::resolve`]); the fast path takes references
//! ([`Db::write`]). [`Db::put`] and [`Db::put_row`] combine both for a first sample. A query is
//! parsed, takes a snapshot of the engine and is evaluated over it ([`Db::query`]).
//!
//! **Invariants**
//! - Every acknowledged sample survives a crash, as configured by `log.sync`.
//! - A query sees one frozen state.
//! - With the result cache a range query has the same bits as without
//!   (`invariant_9_a_query_with_the_result_cache_equals_its_evaluation`).
//!
//! Terms: `docs/glossary.md`. Reading order: this file, `open`, `own_folder`, `log_device`,
//! `query`, `results`, `groups`, `costs`, `newest`.
//!
//! ```
//! use firndb::{Db, Labels, Options, QueryTime, RowBatch, Value, local_env};
//!
//! # fn main() -> firndb::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! let db = Db::open(local_env(folder.path())?, Options::default())?;
//!
//! // The slow path once, then only the fast path.
//! let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
//! let attic = db.resolve(&[labels]).remove(0)?;
//! let mut batch = RowBatch::default();
//! batch.push(attic, 1_000, 21.5);
//! batch.push(attic, 16_000, 22.0);
//! db.write(&mut batch)?; // durable and visible on return
//!
//! let output = db.query_now("max_over_time(temperature[1m])", QueryTime::Instant(20_000))?;
//! let Value::Vector(vector) = output.value else { unreachable!("an instant vector") };
//! assert_eq!(vector[0].labels.get("room"), Some("attic"));
//! db.close()
//! # }
//! ```
//!
//! A group is written as rows with one shared timestamp; a row may lack members:
//!
//! ```
//! # use firndb::{Db, ForeignMember, Labels, Options, RowBatch, local_env};
//! # fn main() -> firndb::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let db = Db::open(local_env(folder.path())?, Options::default())?;
//! let device = Labels::from_pairs([("device", "pump-7")])?;
//! let members = [
//!     Labels::from_pairs([("__name__", "pressure")])?,
//!     Labels::from_pairs([("__name__", "flow")])?,
//! ];
//! let pump = db.resolve_group(&device, &members, ForeignMember::Refuse)?;
//! let mut batch = RowBatch::default();
//! pump.push_row(&mut batch, 1_000, &[Some(2.5), Some(11.0)]);
//! pump.push_row(&mut batch, 2_000, &[None, Some(11.5)]);
//! db.write(&mut batch)?;
//! # db.close()
//! # }
//! ```
//!
//! A transaction makes several changes atomically; it fails if a concurrent change conflicts:
//!
//! ```
//! # use firndb::{Db, ErrorKind, Labels, Options, RowBatch, local_env};
//! # fn main() -> firndb::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let db = Db::open(local_env(folder.path())?, Options::default())?;
//! # let labels = |name| Labels::from_pairs([("__name__", "stock"), ("of", name)]);
//! # let left = db.resolve(&[labels("left")?]).remove(0)?;
//! # let right = db.resolve(&[labels("right")?]).remove(0)?;
//! # let mut batch = RowBatch::default();
//! # batch.push(left, 1_000, 5.0);
//! # batch.push(right, 1_000, 5.0);
//! # db.write(&mut batch)?;
//! loop {
//!     let mut transaction = db.begin()?;
//!     let from = transaction.read_point(left, 1_000)?.unwrap_or(0.0);
//!     let to = transaction.read_point(right, 1_000)?.unwrap_or(0.0);
//!     transaction.update(left, 1_000, from - 1.0)?;
//!     transaction.update(right, 1_000, to + 1.0)?;
//!     match transaction.commit() {
//!         Err(e) if *e.kind() == ErrorKind::Conflict => {} // retry over the new state
//!         committed => break committed.map(drop)?,
//!     }
//! }
//! # assert_eq!(db.begin()?.read_point(right, 1_000)?, Some(6.0));
//! # db.close()
//! # }
//! ```

#![forbid(unsafe_code)]

mod costs;
mod groups;
mod log_device;
mod newest;
mod open;
mod own_folder;
mod query;
mod results;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

pub use costs::{Cost, CostOptions, GroupCost, GroupCosts};
pub use firn_cache::{ResultCache, ResultOptions, ResultStats, TextTicket};
pub use firn_engine::{
    AcceptedTimes, BlockOutline, Cardinality, CheckProgress, CheckReport, ChunkOutline,
    CommitReport, ConvertOptions, CopyReport, DeleteReport, EngineOptions as Options, Finding,
    GroupBy, GroupRule, HeadOptions, History, IndexOptions, Lane, Level, LogOptions, LogReader,
    LogReading, LoggedSample, Loss, LostSamples, LostSeries, ObjectKind, ReaderProgress,
    RecoveryProgress, RecoveryReport, Request, RestoreReport, Run, SeriesLimits, SeriesSamples,
    SeriesWalk, SlowCacheStats, SlowTierStats, Snapshot, Stats, SyncPolicy, TableId, TableRecord,
    TimeRefusal, Transaction, TreeOptions, WalkOptions, WriteReport,
};
pub use firn_env::Env;
pub use firn_model::{
    Budget, CancelToken, ChangeSink, Error, ErrorKind, GroupId, Helpers, LabelLimits, Labels,
    LabelsBuilder, MatchOp, Matcher, Pool, QueryContext, Reclaim, Reservation, Result, RowBatch,
    Sample, SeriesRef, Slot, TimeRange, Timestamp,
};
pub use firn_promql::{QueryOutput, Value};
pub use groups::{ForeignMember, GroupMembers, GroupRefs, GroupSummary};
pub use log_device::LogDevice;
pub use open::{
    inspection_env, local_env, local_env_with_slow_tier, remove_unfinished_copies, replica_env,
    restore,
};
pub use own_folder::{OwnFolder, OwnFolderKind};
pub use query::{
    QueryOptions, QueryTime, evaluate_history, list_label_names, list_label_values, list_series,
};
pub use results::QueryReply;

use firn_engine::Engine;

/// An open database. Share it in an `Arc`. Every call blocks and may come from any thread.
#[derive(Debug)]
pub struct Db {
    engine: Arc<Engine>,
    lanes: Vec<JoinHandle<()>>,
    helpers: Helpers,
    retention_ms: Option<i64>,
    drops_by_size: bool,
    results: OnceLock<results::Results>,
}

impl Db {
    /// Opens the database of `env`, or creates one in an empty folder, and starts its maintenance
    /// threads.
    ///
    /// # Errors
    /// `Busy` when another process has it open, `Corrupt`, `Invalid` for a newer format,
    /// `Unavailable`; the message names the file.
    ///
    /// ```
    /// use firndb::{Db, Options, QueryTime, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// assert_eq!(db.stats().recovery.rows, 0, "a new database has no log to replay");
    /// db.close()
    /// # }
    /// ```
    pub fn open(env: Env, options: Options) -> Result<Db> {
        Db::open_with_progress(env, options, &RecoveryProgress::default())
    }

    /// Like [`Db::open`]; another thread can read `progress` during recovery.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_with_progress(
        env: Env,
        options: Options,
        progress: &RecoveryProgress,
    ) -> Result<Db> {
        let lanes = [(Lane::Head, "firn-head"), (Lane::Tree, "firn-tree"), (Lane::Log, "firn-log")];
        let mut db = Db::open_idle(env, options, progress)?;
        for (lane, name) in lanes {
            let engine = Arc::clone(&db.engine);
            let lane = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || engine.run_lane(lane))
                .map_err(|e| Error::unavailable("cannot start a maintenance thread").because(e))?;
            db.lanes.push(lane);
        }
        Ok(db)
    }

    /// Like [`Db::open_with_progress`] without maintenance: data in memory is not moved to tables,
    /// and tables are not merged. For tools that only read.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_idle(env: Env, options: Options, progress: &RecoveryProgress) -> Result<Db> {
        let retention_ms = options.tree.retention_ms;
        let drops_by_size = options.tree.slow_bytes_max.is_some();
        let engine = Engine::open(env, options, progress)?;
        // A query has one thread of its own; with helpers on all other cores, one query can use the
        // whole machine.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (helpers, results) = (Helpers::new(cores - 1), OnceLock::new());
        Ok(Db { engine, lanes: Vec::new(), helpers, retention_ms, drops_by_size, results })
    }

    /// A reader of all samples that are written, by position in the log; see
    /// [`LogReader`]. It continues where the stored state of `name` ends, or at the end of the log
    /// if there is none. The log is kept for it, up to [`Options::reader_log_bytes_max`], until
    /// [`Db::keep_log_readers`] omits it. A name has one reader at a time.
    ///
    /// # Errors
    /// `Invalid` for a name with other characters than `a` to `z`, digits and dashes, or of more
    /// than 64; `Unavailable` if the disk fails.
    pub fn log_reader(&self, name: &str) -> Result<(LogReader, ReaderProgress)> {
        self.engine.log_reader(name)
    }

    /// Forgets the positions of all log readers but those of `names`.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    pub fn keep_log_readers(&self, names: &[String]) -> Result<()> {
        self.engine.keep_log_readers(names)
    }

    /// The labels of series; `None` for those that do not exist any more.
    ///
    /// # Errors
    /// `Corrupt` if a file of the index is damaged.
    pub fn labels_of(&self, series: &[SeriesRef]) -> Result<Vec<Option<Labels>>> {
        self.engine.labels_of(series)
    }

    /// Keeps the results of range queries on flash, so that the refresh of a dashboard computes
    /// only its newest steps. Results have the same bits with and without the cache.
    ///
    /// Call it once, before the first write, and not together with [`Db::set_change_sink`]. Without
    /// maintenance threads ([`Db::open_idle`]), results are written to flash only by
    /// [`Db::settle_result_cache`] and [`Db::close`].
    ///
    /// # Errors
    /// `Invalid` for a second call, for invalid options, or if `slow_bytes_max` drops data by size
    /// (cached results cannot follow that), `Unavailable` when the disk fails.
    pub fn enable_result_cache(&self, options: ResultOptions) -> Result<()> {
        if self.drops_by_size {
            return Err(Error::invalid(
                "the result cache cannot be enabled while slow_bytes_max drops data; \
                 limit the data with retention_ms instead",
            ));
        }
        let has_thread = !self.lanes.is_empty();
        let results = results::Results::open(&self.engine, self.retention_ms, options, has_thread)?;
        self.results.set(results).map_err(|_| Error::invalid("the result cache is already enabled"))
    }

    /// The counters of the result cache, if it is enabled.
    pub fn result_stats(&self) -> Option<ResultStats> {
        self.results.get().map(results::Results::stats)
    }

    /// Resolves label sets to references and defines new series (the slow path). Returns one result
    /// per label set, in order: a refused label set does not affect the others.
    ///
    /// ```
    /// use firndb::{Db, Labels, Options, RowBatch, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "up"), ("job", "api")])?;
    /// let first = db.resolve(&[labels.clone()]).remove(0)?;
    /// let again = db.resolve(&[labels]).remove(0)?;
    /// assert_eq!(first, again);
    /// # db.close()
    /// # }
    /// ```
    pub fn resolve(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.engine.resolve(labels)
    }

    /// As [`Db::resolve`], with a timestamp of each series: series that come with equal ones are
    /// more likely to be grouped ([`GroupBy::Auto`]).
    pub fn resolve_at(&self, labels: &[Labels], times: &[Timestamp]) -> Vec<Result<SeriesRef>> {
        self.engine.resolve_at(labels, times)
    }

    /// As [`Db::resolve`], for series of the program itself, such as its own metrics: no limit on
    /// new series refuses them, though they count.
    pub fn resolve_exempt(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.engine.resolve_exempt(labels)
    }

    /// The generation of references. References issued under another generation must be resolved
    /// again: series without samples, after retention or a delete, have left the index. Read the
    /// generation before you resolve the references that you keep with it.
    pub fn generation(&self) -> u32 {
        self.engine.generation()
    }

    /// Writes a batch (the fast path). On return, every sample that the report counts as written is
    /// visible, and durable as configured by `log.sync`. The batch is sorted in place.
    ///
    /// # Errors
    /// `Busy` (retry later), `Unavailable` (disk full or failing, or another server has taken over
    /// the slow tier), `Corrupt` (a damaged index file may contain a series), `Closed`.
    ///
    /// ```
    /// use firndb::{Db, Labels, Options, QueryTime, RowBatch, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "requests_total"), ("job", "api")])?;
    /// let series = db.resolve(&[labels]).remove(0)?;
    /// let mut batch = RowBatch::default();
    /// for minute in 0..10 {
    ///     batch.push(series, minute * 60_000, minute as f64 * 30.0);
    /// }
    /// let report = db.write(&mut batch)?;
    /// assert_eq!(report.written, 10);
    /// # db.close()
    /// # }
    /// ```
    pub fn write(&self, batch: &mut RowBatch) -> Result<WriteReport> {
        self.engine.write(batch)
    }

    /// Like [`Db::write`], for references that this database issued while [`Db::generation`]
    /// returned `generation`. If the generation is unchanged, references are not checked for
    /// existence.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn write_known(&self, batch: &mut RowBatch, generation: u32) -> Result<WriteReport> {
        self.engine.write_known(batch, generation)
    }

    /// Hides all samples in `range` of the series that match one of `selectors` and that were
    /// committed before the call. On return, the delete is visible to all queries, and durable as
    /// configured by `log.sync`. It is atomic across crashes.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `TooLarge` for too many series at once, `Busy` (retry later),
    /// `Unavailable` (disk full or failing), `Closed`.
    ///
    /// ```
    /// use firndb::{Db, Labels, MatchOp, Matcher, Options, QueryTime, TimeRange, Value, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
    /// db.put(&labels, 1_000, 21.5)?;
    /// let attic = vec![Matcher::new("room", MatchOp::Equal, "attic")?];
    /// db.delete(&[attic], TimeRange::new(0, 2_000))?;
    /// let output = db.query_now("temperature", QueryTime::Instant(1_500))?;
    /// assert_eq!(output.value, Value::Vector(Vec::new()));
    /// # db.close()
    /// # }
    /// ```
    pub fn delete(&self, selectors: &[Vec<Matcher>], range: TimeRange) -> Result<DeleteReport> {
        self.engine.delete(selectors, range)
    }

    /// As [`Db::delete`], within the time and memory of `context`, whose budget is a part of
    /// [`Db::budget`].
    ///
    /// # Errors
    /// As [`Db::delete`], `Canceled`, `Timeout`.
    pub fn delete_within(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<DeleteReport> {
        self.engine.delete_within(selectors, range, context)
    }

    /// Begins a transaction over the current state: reads and changes of points and ranges, then
    /// one commit. An open transaction holds no lock.
    ///
    /// # Errors
    /// `Busy` with too many open transactions, `Closed`.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.engine.begin()
    }

    /// As [`Db::begin`], within the time and memory of `context`, whose budget is a part of
    /// [`Db::budget`].
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub fn begin_within(&self, context: QueryContext) -> Result<Transaction<'_>> {
        self.engine.begin_within(context)
    }

    /// Rewrites all tables that contain deleted samples, so that their space is released now;
    /// maintenance does the same at least an hour later. May take long.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails; tables rewritten until then remain.
    pub fn clean_tombstones(&self) -> Result<()> {
        self.engine.clean_tombstones()
    }

    /// Moves all data from memory to tables.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn flush(&self) -> Result<()> {
        self.engine.flush()
    }

    /// Runs a lane of maintenance until it has no work left. For tests and imports that need a
    /// settled database.
    ///
    /// # Errors
    /// The error of the first failed step.
    pub fn settle(&self, lane: Lane) -> Result<()> {
        while self.engine.step(lane)?.is_some() {}
        Ok(())
    }

    /// Writes all pending results to flash. For tests that control the time of writing.
    pub fn settle_result_cache(&self) {
        if let Some(results) = self.results.get() {
            results.settle();
        }
    }

    /// Verifies the checksum of every byte of both tiers. `each` is called after every file. With
    /// `repairs`, damaged tables and index files are rewritten without the lost data.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails: the damage is then unknown; `Canceled`; `Conflict` with
    /// `repairs` when the slow tier is that of another server or lacks this database's history.
    pub fn check(
        &self,
        repairs: bool,
        cancel: &CancelToken,
        each: &mut dyn FnMut(&CheckProgress),
    ) -> Result<CheckReport> {
        let report = self.engine.check(repairs, cancel, each)?;
        if repairs && let Some(results) = self.results.get() {
            results.forget();
        }
        Ok(report)
    }

    /// A frozen view of the current state, for programs with an evaluator of their own.
    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Sets the receiver of all changes, which is called before a change becomes visible. Call it
    /// once, before the first write.
    ///
    /// # Errors
    /// `Invalid` for a second call.
    pub fn set_change_sink(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.engine.set_change_sink(sink)
    }

    /// The memory budget of the database. A program that contains only this database should report
    /// its real memory use with [`Budget::set_meter`]; otherwise only reservations count.
    pub fn budget(&self) -> &Budget {
        self.engine.budget()
    }

    /// Adds a cache outside the database that releases memory before a write is refused, after the
    /// database's own caches.
    pub fn add_reclaimer(&self, reclaimer: Arc<dyn Reclaim>) {
        self.engine.add_reclaimer(reclaimer);
    }

    /// The threads that all queries together may borrow: one per core except the first.
    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// The timestamps that a write accepts now.
    pub fn accepted_times(&self) -> AcceptedTimes {
        self.engine.accepted_times()
    }

    /// Whether another server has taken the slow tier over: this one refuses writes for good.
    pub fn is_fenced(&self) -> bool {
        self.engine.is_fenced()
    }

    /// Whether the paths of the database's folders still lead to those that were opened. Otherwise
    /// another program has removed, moved or replaced one: close the database, because new files
    /// would get into another folder.
    pub fn is_folder_in_place(&self) -> bool {
        self.engine.is_folder_in_place()
    }

    /// The number of shards, which was fixed when the database was created.
    pub fn shard_count(&self) -> usize {
        self.engine.shard_count()
    }

    /// The current time of the database's clock, in milliseconds.
    pub fn now_ms(&self) -> Timestamp {
        self.engine.env().clock.now_ms()
    }

    /// The current statistics.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Flushes and closes; later calls fail with `Closed`. A flush of more than 256 tables is
    /// skipped. So is any flush when the database is dropped: no data is lost, and the next start
    /// replays the log.
    ///
    /// # Errors
    /// As [`Db::flush`]; the database is closed nevertheless.
    pub fn close(&self) -> Result<()> {
        let closed = self.engine.close(true);
        if let (Ok(()), Some(results)) = (&closed, self.results.get()) {
            results.close(&self.engine);
        }
        closed
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let _ = self.engine.close(false);
        for lane in self.lanes.drain(..) {
            // A lane that panicked has printed the reason; the log keeps the data that it did not
            // move.
            let _ = lane.join();
        }
    }
}
