//! FirnDB as a library: metrics in, PromQL out, nothing acknowledged ever lost.
//!
//! **Owns** [`Db`]: an engine with its two maintenance threads, and the way of a query from text to
//! result. **Never** speaks a network protocol, never logs in to anything, never blocks but in the
//! calls that say so.
//!
//! Two ways in, as in TimeUnion ("TimeUnion: An Efficient Architecture with Unified Data Model for
//! Timeseries Management Systems on Hybrid Cloud Storage", section 3.4): the slow path resolves
//! labels to a [`SeriesRef`], the fast path takes references. [`Db::put`] and [`Db::put_row`] are both in
//! one for a first sample.
//!
//! ```
//! use firndb::{Db, Labels, Options, QueryTime, RowBatch, local_env};
//!
//! # fn main() -> firndb::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! let db = Db::open(local_env(folder.path())?, Options::default())?;
//!
//! // Slow path once, fast path ever after.
//! let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
//! let attic = db.resolve(&[labels]).remove(0)?;
//! let mut batch = RowBatch::default();
//! batch.push(attic, 1_000, 21.5);
//! batch.push(attic, 16_000, 22.0);
//! db.write(&mut batch)?; // durable and visible when it returns
//!
//! let answer = db.query_now("max_over_time(temperature[1m])", QueryTime::Instant(20_000))?;
//! println!("{:?}", answer.value);
//! db.close()
//! # }
//! ```
//!
//! A group is written as rows with one shared timestamp; a member may be missing in a row:
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
//! A transaction does several changes at once, or none if another one came between:
//!
//! ```
//! # use firndb::{Db, ErrorKind, Labels, Options, RowBatch, local_env};
//! # fn main() -> firndb::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let db = Db::open(local_env(folder.path())?, Options::default())?;
//! # let labels = |name| Labels::from_pairs([("__name__", "stock"), ("of", name)]);
//! # let (left, right) = (db.resolve(&[labels("left")?]).remove(0)?, db.resolve(&[labels("right")?]).remove(0)?);
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
//!         Err(e) if *e.kind() == ErrorKind::Conflict => {} // again, over the new state
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
mod query;
mod results;

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

pub use costs::{Cost, CostOptions, GroupCost, GroupCosts};
pub use firn_cache::{ResultCache, ResultOptions, ResultStats};
pub use firn_engine::{
    BlockOutline, Cardinality, CheckProgress, CheckReport, ChunkOutline, CommitReport,
    ConvertOptions, CopyReport, DeleteReport, EngineOptions as Options, Finding, HeadOptions,
    IndexOptions, Lane, Level, LogOptions, Loss, LostSamples, LostSeries, ObjectKind,
    RecoveryProgress, RecoveryReport, Request, RestoreReport, Run, SeriesLimits, SeriesSamples,
    SeriesWalk, SlowCacheStats, SlowTierStats, Snapshot, Stats, SyncPolicy, TableId, TableRecord,
    Transaction, TreeOptions, WalkOptions, WriteReport,
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
pub use open::{local_env, local_env_with_slow_tier, restore};
pub use query::{QueryOptions, QueryTime};

use firn_engine::Engine;

/// An open database. Share it in an `Arc`; every call may come from any thread and blocks.
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
    /// Opens the database of `env`, or makes one in an empty folder, and starts its maintenance.
    ///
    /// # Errors
    /// `Busy` when another process has it open, `Corrupt`, `Invalid` for a newer format,
    /// `Unavailable`; the message names the file.
    pub fn open(env: Env, options: Options) -> Result<Db> {
        Db::open_with_progress(env, options, &RecoveryProgress::default())
    }

    /// As [`Db::open`]; another thread can watch `progress` meanwhile.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_with_progress(
        env: Env,
        options: Options,
        progress: &RecoveryProgress,
    ) -> Result<Db> {
        let mut lanes = vec![(Lane::Head, "firn-head"), (Lane::Tree, "firn-tree")];
        if let SyncPolicy::IntervalMs(_) = options.log.sync {
            lanes.push((Lane::Log, "firn-log"));
        }
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

    /// As [`Db::open_with_progress`] without maintenance: nothing that lies in memory moves to tables and
    /// no tables are merged. For programs that only look.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_idle(env: Env, options: Options, progress: &RecoveryProgress) -> Result<Db> {
        let retention_ms = options.tree.retention_ms;
        let drops_by_size = options.tree.slow_bytes_max.is_some();
        let engine = Engine::open(env, options, progress)?;
        // A query has a thread of its own; with helpers on all other cores one query may use the whole machine.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (helpers, results) = (Helpers::new(cores - 1), OnceLock::new());
        Ok(Db { engine, lanes: Vec::new(), helpers, retention_ms, drops_by_size, results })
    }

    /// Keeps answers of range queries on flash from now on, so that a dashboard's next refresh computes its newest
    /// steps only. What they say stays what evaluating says. Once, before the first write, in place of
    /// [`Db::set_change_sink`]. Without maintenance ([`Db::open_idle`]) they go to flash by [`Db::settle_result_cache`] and at the
    /// end alone.
    ///
    /// # Errors
    /// `Invalid` the second time, for options that make no sense, or where data is dropped by size (at a time that
    /// answers cannot know), `Unavailable` when the disk fails.
    pub fn enable_result_cache(&self, options: ResultOptions) -> Result<()> {
        if self.drops_by_size {
            return Err(Error::invalid(
                "results cannot be kept while slow_bytes_max drops data; bound it by retention_ms instead",
            ));
        }
        let has_thread = !self.lanes.is_empty();
        let results = results::Results::open(&self.engine, self.retention_ms, options, has_thread)?;
        self.results.set(results).map_err(|_| Error::invalid("results are kept already"))
    }

    /// Numbers of the result cache, if there is one.
    pub fn result_stats(&self) -> Option<ResultStats> {
        self.results.get().map(results::Results::stats)
    }

    /// The references of label sets; those that are new are defined (the slow path). One result
    /// per label set, in order: a refused one does not hinder the others.
    pub fn resolve(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.engine.resolve(labels)
    }

    /// References that were given out under another generation must be resolved again: series without any
    /// sample, because retention took them or they were deleted, have left the index. Read it before the
    /// references that are kept with it are asked for.
    pub fn generation(&self) -> u32 {
        self.engine.generation()
    }

    /// Writes a batch (the fast path). What the report calls written is durable, as the setting
    /// `log.sync` says, and visible when this returns. The batch is sorted in place.
    ///
    /// # Errors
    /// `Busy` (retry after a while), `Unavailable` (disk full or failing), `Closed`.
    pub fn write(&self, batch: &mut RowBatch) -> Result<WriteReport> {
        self.engine.write(batch)
    }

    /// As [`Db::write`], for references that this database gave out since [`Db::generation`] said
    /// `generation`: as long as that holds nobody looks whether they exist.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn write_known(&self, batch: &mut RowBatch, generation: u32) -> Result<WriteReport> {
        self.engine.write_known(batch, generation)
    }

    /// Hides all samples in `range` of the series that one of `selectors` matches and that were
    /// committed before. Durable, as the setting `log.sync` says, and visible everywhere at once when it
    /// returns; after a crash it is there as a whole or not at all.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `TooLarge` for too many series at once, `Busy` (retry after a
    /// while), `Unavailable` (disk full or failing), `Closed`.
    pub fn delete(&self, selectors: &[Vec<Matcher>], range: TimeRange) -> Result<DeleteReport> {
        self.engine.delete(selectors, range)
    }

    /// Opens a transaction over the present state: reads and changes of points and ranges, then one commit.
    /// Nothing is locked while it is open.
    ///
    /// # Errors
    /// `Busy` with too many open ones, `Closed`.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.engine.begin()
    }

    /// Rewrites all tables that have what deletes hide, so that the space comes back now and not some
    /// time after an hour. May take long.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails; what was done stays done.
    pub fn clean_tombstones(&self) -> Result<()> {
        self.engine.clean_tombstones()
    }

    /// Moves everything from memory to tables now.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn flush(&self) -> Result<()> {
        self.engine.flush()
    }

    /// Runs a lane of maintenance until there is nothing left to do: for tests and imports that
    /// want a settled database.
    ///
    /// # Errors
    /// The first failed step's.
    pub fn settle(&self, lane: Lane) -> Result<()> {
        while self.engine.step(lane)?.is_some() {}
        Ok(())
    }

    /// Writes what is to be written of the kept answers: for tests that want to know when.
    pub fn settle_result_cache(&self) {
        if let Some(results) = self.results.get() {
            results.settle();
        }
    }

    /// Reads every byte of both tiers against its checksum; `each` is told after every file. With `repairs`,
    /// damaged tables are written anew without what is lost.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails: then it is not known what is damaged; `Canceled`.
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

    /// Freezes the present: for programs that evaluate by themselves.
    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Who is told of every change before it is visible. Once, before the first write.
    ///
    /// # Errors
    /// `Invalid` the second time.
    pub fn set_change_sink(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.engine.set_change_sink(sink)
    }

    /// The memory budget that everything draws on. A program that is nothing but this database tells it
    /// what it really holds ([`Budget::set_meter`]); otherwise what is reserved is all that counts.
    pub fn budget(&self) -> &Budget {
        self.engine.budget()
    }

    /// Who gives memory back, after the database's own caches, before a write is refused: caches around it.
    pub fn add_reclaimer(&self, giver: Arc<dyn Reclaim>) {
        self.engine.add_reclaimer(giver);
    }

    /// The threads that all queries together may borrow: one per core beyond the first.
    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// The clock that the database lives by.
    pub fn now_ms(&self) -> Timestamp {
        self.engine.env().clock.now_ms()
    }

    /// Numbers at this moment.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Flushes and closes; later calls fail with `Closed`. Dropping does the same without flush:
    /// nothing is lost, the next start replays the log.
    ///
    /// # Errors
    /// Those of [`Db::flush`]; it is closed all the same.
    pub fn close(&self) -> Result<()> {
        let closed = self.engine.close(true);
        if let (Ok(()), Some(results)) = (&closed, self.results.get()) {
            results.close(&self.engine)?;
        }
        closed
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let _ = self.engine.close(false);
        for lane in self.lanes.drain(..) {
            // A lane that panicked has printed why; the log keeps what it did not move.
            let _ = lane.join();
        }
    }
}
