//! The simulated world, the engine in it, and the oracle that the engine must agree with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use firn_engine::{
    ConvertOptions, Engine, EngineOptions, HeadOptions, JobKind, Lane, LogOptions, Mutant,
    ProbePoint, RecoveryProgress, Snapshot, Step, SyncPolicy,
};
use firn_model::{
    Change, ChangeKind, ChangeSink, CommitSeq, Error, ErrorKind, Grouping, Labels, Matcher, Pool,
    QueryContext, RowBatch, STALE_NAN_BITS, Sample, Selection, SeriesRef, Slot, TimeRange,
    Timestamp,
};
use firn_sim::{ObservedSamples, Oracle, Rng, Sim};
use parking_lot::Mutex;

use crate::faults::{FaultOutcome, PlannedFault};

/// A behaviour of the engine that the oracle does not allow.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Number of occurrences of each event, over all seeds.
#[derive(Debug, Default)]
pub(crate) struct EventCounts(BTreeMap<String, u64>);

// Bytes by which a short run may briefly exceed its limit; see `check_memory`.
const EXCHANGED_BYTES: u64 = 40 << 10;
// Includes references of series that have left the index.
const KEPT_REFS_MAX: usize = 60;
/// Hosts without `job` and `instance`, and their metrics.
pub(crate) const UNTARGETED_HOSTS: [u64; 6] = [3, 4, 5, 6, 7, 8];
pub(crate) const UNTARGETED_METRICS: u64 = 5;

/// The samples that one write call puts into a group at one time: all are visible or none.
pub(crate) type Pieces = BTreeMap<(u64, Timestamp), BTreeMap<Labels, u64>>;

pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) rng: Rng,
    pub(crate) tally: EventCounts,
    pub(crate) seed: u64,
    /// Start of the hour that all writes are limited to, if any.
    hour_start: Option<Timestamp>,
    pub(crate) mutant: Option<Mutant>,
    /// Bytes that open snapshots may keep in memory.
    pinned_bytes_max: u64,
    /// The memory limit of a run under pressure.
    pressure_limit_bytes: Option<u64>,
    log_sync: SyncPolicy,
    /// Threads of recovery. With more than one, the scheduler decides which rows become columns,
    /// and thus how the run continues.
    pub(crate) recovery_threads: usize,
    /// A sync failed after writes were acknowledged. Recovery may report their loss as damage until
    /// tables contain them.
    may_be_damaged: bool,
    /// The memory that the process reports.
    resident_bytes: Arc<AtomicU64>,
    engine: Option<Arc<Engine>>,
    pub(crate) oracle: Oracle,
    held: Vec<(Snapshot, ObservedSamples)>,
    pub(crate) changes: Arc<AnnouncedChanges>,
    digest: u64,
    work_done: u64,
    /// The epoch of the last claim of the slow tier.
    epoch: u64,
    /// Number of engine calls, and the job that each did by the number of the call.
    call_count: u64,
    pub(crate) done: Vec<(u64, &'static str)>,
    /// The fault planned for one of these calls, and its outcome.
    pub(crate) planned: Option<PlannedFault>,
    pub(crate) outcome: Option<FaultOutcome>,
    prints_trace: bool,
    /// An inconsistent view that a read in the middle of a flush or a commit returned.
    pub(crate) torn: Arc<Mutex<Option<String>>>,
    /// References that a sender keeps, and the rows written with them while background work ran.
    kept: Arc<Mutex<RetainedRefs>>,
    /// Flushes in the middle of a tree job.
    interleaved_flushes: Arc<AtomicU64>,
    pub(crate) race: Arc<Mutex<CommitRace>>,
    /// Series without `job` and `instance` that were lone series.
    pub(crate) once_lone: BTreeSet<Labels>,
}

/// A sender that is not notified when series leave the index.
#[derive(Default)]
struct RetainedRefs {
    refs: Vec<(Labels, SeriesRef)>,
    /// Selects the reference of the next write.
    turn: usize,
    written: Vec<InterleavedWrite>,
}

/// Reads and writes of another thread in the middle of a commit; used only with a mutant.
#[derive(Default)]
pub(crate) struct CommitRace {
    /// New values that only this transaction writes.
    pub(crate) shown: Vec<(Labels, Sample)>,
    /// The sample that another transaction writes.
    pub(crate) contended: Option<(SeriesRef, Timestamp)>,
    pub(crate) has_interfered: bool,
}

/// A sample that was written in the middle of background work.
struct InterleavedWrite {
    labels: Labels,
    sample: Sample,
    is_acknowledged: bool,
}

/// The changes that the engine announced before they became visible.
#[derive(Default)]
pub(crate) struct AnnouncedChanges(
    Mutex<BTreeSet<(u64, Timestamp)>>,
    pub(crate) Mutex<BTreeSet<CommitSeq>>,
);

impl ChangeSink for AnnouncedChanges {
    fn changed(&self, change: Change) {
        if change.kind == ChangeKind::Delete {
            self.1.lock().insert(change.number);
            return;
        }
        let mut announced = self.0.lock();
        for group in &change.groups {
            announced.insert((group.0, change.range.start));
            announced.insert((group.0, change.range.end));
        }
    }
}

impl EventCounts {
    pub(crate) fn add(&mut self, other: &EventCounts) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    pub(crate) fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn assert_happened(&self, events: &[&'static str]) {
        for what in events {
            assert!(self.0.get(*what).is_some_and(|&count| count > 0), "{what} never happened");
        }
    }

    pub(crate) fn assert_everything_happened(&self) {
        self.assert_happened(&[
            "write acknowledged",
            "write failed",
            "crash",
            "crash in the middle",
            "kill",
            "synced in the background",
            "lost changes after a failed sync",
            "clean restart",
            "Convert",
            "Flush",
            "Seal",
            "Adapt",
            "Garbage",
            "SlowGarbage",
            "held snapshot read",
            "held snapshot lost its memory",
            "memory reclaimed",
            "Recycle",
            "maintenance failed",
            "disk full",
            "slow tier down",
            "transaction acknowledged",
            "transaction failed",
            "transaction of nothing",
            "transaction in conflict",
            "another transaction in between",
            "delete acknowledged",
            "delete failed",
            "delete of nothing",
            "Forget",
            "tables cleaned",
            "tombstones cleaned on demand",
            "Merge",
            "RemoveSeries",
            "Claim",
            "Publish",
            "written in between",
            "flushed while a job ran",
            "stale reference refused",
            "series listed",
            "power lost at a fence",
            "slow cache hit",
            "slow cache damage seen",
            "groups learned",
            "power lost before learned groups were logged",
            "power lost after learned groups were logged",
            "power lost after learned groups were flushed",
            "host with lone series and members",
            "member that was a lone series before",
        ]);
        for kind in JobKind::ALL {
            assert!(self.0.contains_key(kind.name()), "{} never happened", kind.name());
        }
    }
}

/// The number of cores is among them, which takes as long to find out as a short run.
static DEFAULTS: LazyLock<EngineOptions> = LazyLock::new(EngineOptions::default);

impl World {
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>) -> World {
        // In a fifth of the runs the log is in byte-addressable memory.
        let sim = if seed % 5 == 3 { Sim::with_memory(seed) } else { Sim::new(seed) };
        let log_sync = match seed % 7 {
            4 => SyncPolicy::IntervalMs(60_000),
            6 => SyncPolicy::Never,
            _ => SyncPolicy::Always,
        };
        let mut world = World {
            sim,
            rng: Rng::new(seed ^ 0x5eed),
            tally: EventCounts::default(),
            seed,
            hour_start: None,
            mutant,
            // In a quarter of the runs the limit is low enough to invalidate old snapshots.
            pinned_bytes_max: if seed.is_multiple_of(4) { 8 << 10 } else { u64::MAX },
            pressure_limit_bytes: None,
            log_sync,
            recovery_threads: 1,
            may_be_damaged: false,
            resident_bytes: Arc::default(),
            engine: None,
            oracle: Oracle::new(),
            held: Vec::new(),
            changes: Arc::default(),
            digest: 0,
            work_done: 0,
            epoch: 0,
            call_count: 0,
            done: Vec::new(),
            planned: None,
            outcome: None,
            prints_trace: false,
            torn: Arc::default(),
            kept: Arc::default(),
            interleaved_flushes: Arc::default(),
            race: Arc::default(),
            once_lone: BTreeSet::new(),
        };
        if world.may_lose_acknowledged() {
            world.oracle.trust_power(true);
        }
        world
    }

    /// As [`World::new`], with memory for a few batches and no other limit on the head.
    pub(crate) fn short_of_memory(seed: u64, mutant: Option<Mutant>) -> World {
        let mut world = World::new(seed, mutant);
        world.pressure_limit_bytes = Some((112 + 16 * world.rng.below(6)) << 10);
        world
    }

    /// Whether a power failure may lose acknowledged changes.
    pub(crate) fn may_lose_acknowledged(&self) -> bool {
        self.log_sync != SyncPolicy::Always && self.sim.memory.is_none()
    }

    pub(crate) fn trace_to_stdout(&mut self) {
        self.prints_trace = true;
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Number of completed pieces of background work.
    pub(crate) fn work_done(&self) -> u64 {
        self.work_done
    }

    pub(crate) fn trace(&self, event: impl FnOnce() -> String) {
        if self.prints_trace {
            println!("{:>6} {}", self.sim.faults.change_count(), event());
        }
    }

    /// The options of a run. Restarts change only the number of streams.
    fn options(&mut self) -> EngineOptions {
        let ample = self.ample_options();
        match self.pressure_limit_bytes {
            None => ample,
            Some(memory_bytes_max) => EngineOptions {
                memory_bytes_max,
                log_bytes_max: 1 << 20,
                head_bytes_max: u64::MAX,
                head: HeadOptions { hot_bytes_max: u64::MAX, ..ample.head },
                ..ample
            },
        }
    }

    fn ample_options(&mut self) -> EngineOptions {
        const MINUTE_MS: i64 = 60_000;
        let ((fast_ms, slow_ms, old_ms), upload_age_ms_max) = match self.seed % 2 {
            0 => ((30 * MINUTE_MS, 120 * MINUTE_MS, 960 * MINUTE_MS), 240 * MINUTE_MS),
            _ => ((15 * MINUTE_MS, 30 * MINUTE_MS, 60 * MINUTE_MS), 60 * MINUTE_MS),
        };
        EngineOptions {
            memory_bytes_max: 256 << 20,
            shard_count: 4,
            log_bytes_max: 64 << 10,
            recovery_threads: self.recovery_threads,
            // A new number at each start.
            stream_count: Some(1 + self.rng.below(3) as usize),
            new_series_bytes_max: [2 << 10, u64::MAX][self.seed as usize / 2 % 2],
            head_bytes_max: 64 << 10,
            flush_age_ms_max: 30 * 60_000,
            // Some runs flush whenever they may, a second after the previous flush.
            restart_ms_max: [0, 2_000, 2_000][self.seed as usize / 4 % 3],
            hot_age_ms_max: 2 * 3_600_000,
            log: LogOptions { segment_bytes: 8 << 10, sync: self.log_sync },
            head: HeadOptions {
                convert: small_arenas(256),
                // A few parts, each with at least one block.
                hot_bytes_max: 24 << 10,
                cooling_bytes_max: self.pinned_bytes_max,
                slice_bytes: self.slice_bytes(),
                ..HeadOptions::default()
            },
            tree: firn_tree::TreeOptions {
                retention_ms: self.retention_ms(),
                block_bytes: 256,
                slice_bytes: self.slice_bytes(),
                table_bytes_max: 4 << 10,
                fast_partition_ms: fast_ms,
                slow_partition_ms: slow_ms,
                old_partition_ms: old_ms,
                upload_age_ms_max,
                // Under memory pressure, only memory causes refused writes.
                fast_bytes_max: (self.seed % 3 == 1 && self.pressure_limit_bytes.is_none())
                    .then_some(2 << 10),
                patches_max: 1 + (self.seed % 4) as usize / 2,
                // A few slabs. Half of the runs keep almost nothing in memory.
                slow_cache_bytes_max: 64 << 10,
                cache_bytes_max: if self.seed.is_multiple_of(2) { 2 << 10 } else { 256 << 20 },
                ..Default::default()
            },
            mutant: self.mutant,
            ..DEFAULTS.clone()
        }
    }

    /// Some runs cut groups of few samples.
    fn slice_bytes(&self) -> usize {
        [100, 1_000, 512 << 10][self.seed as usize / 3 % 3]
    }

    fn retention_ms(&self) -> Option<i64> {
        (self.seed % 5 == 2).then_some(20 * 3_600_000)
    }

    /// Raises the time below which retention may remove samples.
    fn raise_floor(&mut self) {
        if let Some(retention_ms) = self.retention_ms() {
            self.oracle.set_floor(self.sim.env().clock.now_ms() - retention_ms);
        }
    }

    /// Opens the engine, again after each crash in between.
    pub(crate) fn open(&mut self) -> Result<(), Failure> {
        self.raise_floor();
        for _ in 0..50 {
            let options = self.options();
            let opened = Engine::open(self.sim.env(), options, &RecoveryProgress::default());
            match opened {
                Ok(engine) => return self.opened(engine),
                Err(e) if is_power_loss(&e) => {
                    self.tally.count("crash in the middle");
                    self.trace(|| "the power fails while opening".into());
                    self.restore_power();
                }
                Err(e) if *e.kind() == ErrorKind::Unavailable => {
                    self.trace(|| format!("opening failed: {e}"));
                    self.sim.faults.clear();
                }
                Err(e) => return Err(Failure(format!("open: {e:?}"))),
            }
        }
        Err(Failure("the database does not open in 50 tries".into()))
    }

    fn opened(&mut self, engine: Arc<Engine>) -> Result<(), Failure> {
        self.trace(|| "opened".into());
        // A reference that was never durable may be assigned to another series.
        self.kept.lock().refs.clear();
        let sink: Arc<dyn ChangeSink> = Arc::<AnnouncedChanges>::clone(&self.changes);
        engine.set_change_sink(sink).map_err(|e| Failure(e.to_string()))?;
        let damage = &engine.stats().recovery.damage;
        if !damage.is_empty() {
            if !self.may_be_damaged {
                return Err(Failure(format!(
                    "recovery reports damage without a cause: {damage:?}"
                )));
            }
            self.tally.count("lost changes after a failed sync");
        }
        match self.mutant {
            Some(Mutant::SourceDroppedBeforeView) => self.watch_flushes(&engine),
            Some(Mutant::TransactionShownByShard | Mutant::TransactionLockDropped) => {
                self.race_with_commits(&engine);
            }
            _ => self.interleave_writes(&engine),
        }
        self.engine = Some(engine);
        self.compare(Oracle::settle)?;
        // Recovered data is made durable before the log accepts more.
        if self.engine().stats().log.segments > 0 {
            self.oracle.harden();
        }
        Ok(())
    }

    /// Reads in the middle of every flush, as a query on another thread would.
    fn watch_flushes(&self, engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        let torn = Arc::clone(&self.torn);
        let before: Mutex<usize> = Mutex::new(0);
        engine.set_probe(Box::new(move |point| {
            let Some(engine) = weak.upgrade().filter(|_| point == ProbePoint::Mutant) else {
                return;
            };
            let points = read_all(&engine.snapshot()).map_or(0, |seen| seen.sample_count());
            let mut most = before.lock();
            if points < *most {
                *torn.lock() =
                    Some(format!("{points} points in the middle of a flush, before {most}"));
            }
            *most = (*most).max(points);
        }));
    }

    /// Writes with old references in the middle of background work, as a sender on another thread
    /// would: when series are about to leave the index, when a commit has failed, and when a tree
    /// job has written tables that no version names yet. In the last case the rows are late and are
    /// flushed at once.
    fn interleave_writes(&self, engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        let (kept, flushes) = (Arc::clone(&self.kept), Arc::clone(&self.interleaved_flushes));
        let (clock, faults) = (Arc::clone(&self.sim.env().clock), self.sim.faults.clone());
        engine.set_probe(Box::new(move |point| {
            // A write below may fail too and reach this probe again.
            let (Some(engine), Some(mut kept)) = (weak.upgrade(), kept.try_lock()) else { return };
            kept.turn += 1;
            // Most probe points pass without a write.
            let every = if point == ProbePoint::JobRun { 12 } else { 3 };
            if !kept.turn.is_multiple_of(every) {
                return;
            }
            for idx in 0..kept.refs.len().min(5) {
                let (labels, series) =
                    kept.refs[(kept.turn / 3 + 7 * idx) % kept.refs.len()].clone();
                let value = (kept.turn + idx) as f64;
                let late_ms = match point {
                    ProbePoint::JobRun => (kept.turn % 7) as i64 * 1_200_000,
                    _ => 0,
                };
                let sample = Sample { ts: clock.now_ms() - late_ms, value };
                let mut batch = RowBatch::default();
                batch.push(series, sample.ts, sample.value);
                match engine.write(&mut batch) {
                    // The series had left the index, and the report counts the refused row.
                    Ok(report) if report.unknown > 0 => {}
                    written => {
                        let is_acknowledged = written.is_ok() && !faults.is_off();
                        kept.written.push(InterleavedWrite { labels, sample, is_acknowledged });
                    }
                }
            }
            drop(kept);
            if point == ProbePoint::JobRun && engine.flush().is_ok() {
                flushes.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }

    /// Writes a sample with an old reference. The sample is readable under its labels afterwards,
    /// or it was refused.
    pub(crate) fn write_with_old_reference(&mut self) -> Result<(), Failure> {
        let kept = {
            let kept = self.kept.lock();
            match kept.refs.len() {
                0 => return Ok(()),
                count => kept.refs[self.rng.below(count as u64) as usize].clone(),
            }
        };
        let (ts, value) = (self.random_timestamp(), self.random_value());
        let mut batch = RowBatch::default();
        batch.push(kept.1, ts, f64::from_bits(value));
        let written = self.engine().write(&mut batch);
        if let Ok(report) = &written
            && report.unknown > 0
        {
            self.tally.count("stale reference refused");
            return Ok(());
        }
        let begun = self.begin(ts, &BTreeMap::from([(kept.0, value)]));
        match self.received(written) {
            Ok(_) => {
                self.oracle.acknowledge(begun);
                Ok(())
            }
            Err(e) => self.after_error(&e),
        }
    }

    /// Passes the writes of the probe to the oracle: acknowledged ones are there, the others may
    /// be.
    fn record_interleaved_writes(&mut self) {
        for _ in 0..self.interleaved_flushes.swap(0, Ordering::Relaxed) {
            self.tally.count("flushed while a job ran");
        }
        let late = std::mem::take(&mut self.kept.lock().written);
        for InterleavedWrite { labels, sample, is_acknowledged } in late {
            let begun = self.oracle.begin(vec![(labels, sample)]);
            if is_acknowledged {
                self.tally.count("written in between");
                self.oracle.acknowledge(begun);
            }
        }
    }

    /// Deletes the series of a random selector for good.
    pub(crate) fn remove_series(&mut self) -> Result<(), Failure> {
        let matchers = self.random_matchers();
        if self.delete_for_good(&matchers)? {
            for _ in 0..self.rng.below(6) {
                self.step(Lane::Tree)?;
            }
        }
        Ok(())
    }

    /// Deletes all samples of a selector, cleans the tables and advances the clock, so that the
    /// series leave the index in one of the next steps unless a step fails. Returns whether the
    /// delete was acknowledged.
    pub(crate) fn delete_for_good(&mut self, matchers: &[Matcher]) -> Result<bool, Failure> {
        let engine = self.engine();
        let begun = self.oracle.begin_delete(matchers, TimeRange::ALL);
        let deleted = engine.delete(&[matchers.to_vec()], TimeRange::ALL);
        match self.received(deleted) {
            Ok(_) => self.oracle.acknowledge(begun),
            Err(e) => return self.after_error(&e).map(|()| false),
        }
        self.clean_tombstones()?;
        self.advance(Duration::from_secs(3_700));
        self.flush()?;
        Ok(true)
    }

    /// Calls the engine, with the fault that is planned for this call.
    fn call<T>(
        &mut self,
        what: impl FnOnce(&Engine) -> firn_model::Result<T>,
    ) -> firn_model::Result<T> {
        let engine = self.engine();
        let number = self.call_count;
        self.call_count += 1;
        let Some(planned) = self.planned.take_if(|planned| planned.call == number) else {
            return what(&engine);
        };
        let faults = &self.sim.faults;
        let before = faults.fault_count();
        planned.begin(faults);
        let result = what(&engine);
        let error = result.as_ref().err().map(ToString::to_string);
        self.outcome = Some(FaultOutcome { is_hit: faults.fault_count() > before, error });
        if !faults.is_off() {
            faults.forget_plans();
        }
        // The call may have taken hours.
        self.raise_floor();
        result
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().expect("opened"))
    }

    /// Writes a batch of random rows.
    pub(crate) fn write(&mut self) -> Result<(), Failure> {
        let labels = self.random_labels();
        self.write_rows(&labels).map(|_| ())
    }

    /// Writes a batch of random rows of some series. Returns whether it was acknowledged.
    pub(crate) fn write_rows(&mut self, labels: &[Labels]) -> Result<bool, Failure> {
        let engine = self.engine();
        let mut refs = Vec::new();
        for (labels, resolved) in labels.iter().zip(engine.resolve(labels)) {
            match resolved {
                Ok(series) => refs.push(series),
                Err(e) if self.is_short(&e) => {
                    self.tally.count("series refused for memory");
                    // A sender uses known references without a lookup in the index.
                    let kept = self.kept.lock();
                    match kept.refs.iter().find(|(known, _)| known == labels) {
                        Some((_, series)) => refs.push(*series),
                        None => return Ok(false),
                    }
                }
                Err(e) => return Err(Failure(format!("resolve: {e:?}"))),
            }
        }
        {
            let mut kept = self.kept.lock();
            kept.refs.extend(labels.iter().cloned().zip(refs.iter().copied()));
            let surplus = kept.refs.len().saturating_sub(KEPT_REFS_MAX);
            kept.refs.drain(..surplus);
        }
        let mut batch = RowBatch::default();
        let mut pieces = Pieces::new();
        let rows = 1 + self.rng.below(4);
        for _ in 0..rows {
            let ts = self.random_timestamp();
            for (labels, &series) in labels.iter().zip(&refs) {
                if self.rng.chance(0.8) {
                    let value = self.random_value();
                    batch.push(series, ts, f64::from_bits(value));
                    let piece = pieces.entry((series.group.0, ts)).or_default();
                    piece.insert(labels.clone(), value);
                }
            }
        }
        let count: usize = pieces.values().map(BTreeMap::len).sum();
        // Values that the batch itself overwrites count as well.
        let value_count = batch.len() as u64;
        let begun: Vec<_> = pieces.iter().map(|((_, ts), piece)| self.begin(*ts, piece)).collect();
        let written = engine.write(&mut batch);
        match self.received(written) {
            Ok(report) => {
                self.tally.count("write acknowledged");
                self.trace(|| format!("write of {count} points acknowledged"));
                if report.written != value_count {
                    return Err(Failure(format!("{report:?} for {value_count} values")));
                }
                begun.into_iter().for_each(|piece| self.oracle.acknowledge(piece));
                self.check_announced(&pieces).map(|()| true)
            }
            Err(e) => {
                self.tally.count("write failed");
                if self.is_short(&e) {
                    self.tally.count("write refused for memory");
                }
                self.trace(|| format!("write of {count} points failed: {e}"));
                self.after_error(&e).map(|()| false)
            }
        }
    }

    /// Writes and uploads the same hour repeatedly, until its partition is old and has patches.
    /// Unless `is_calm`, the power or a change may fail in any of the jobs.
    pub(crate) fn rewrite_one_hour(&mut self, is_calm: bool) -> Result<(), Failure> {
        let now = self.sim.env().clock.now_ms();
        self.hour_start = Some((now - 3_600_000).div_euclid(3_600_000) * 3_600_000);
        for _ in 0..4 {
            self.write()?;
            self.flush()?;
            let minutes = self.rng.below(90);
            self.advance(Duration::from_secs(60 * minutes));
            let number = self.sim.faults.change_count() + self.rng.below(4);
            match self.rng.below(4) {
                _ if is_calm => {}
                0 => self.sim.faults.crash_at(number),
                1 => self.sim.faults.fail_at(number),
                _ => {}
            }
            for _ in 0..8 {
                self.step(Lane::Tree)?;
            }
        }
        self.hour_start = None;
        Ok(())
    }

    /// Deletes the samples that a random selector matches in a random range.
    pub(crate) fn delete(&mut self) -> Result<(), Failure> {
        let matchers = self.random_matchers();
        let range = self.random_range();
        self.delete_in(&matchers, range)
    }

    /// Deletes the samples that a selector matches in a range.
    pub(crate) fn delete_in(
        &mut self,
        matchers: &[Matcher],
        range: TimeRange,
    ) -> Result<(), Failure> {
        let there = self.oracle.certain_count(matchers, range);
        let begun = self.oracle.begin_delete(matchers, range);
        let deleted = self.call(|engine| engine.delete(&[matchers.to_vec()], range));
        match self.received(deleted) {
            Ok(report) => {
                self.done.extend(report.seq.map(|_| (self.call_count - 1, "delete")));
                self.trace(|| format!("delete of {matchers:?} in {range:?}: {report:?}"));
                if report.seq.is_none() && there > 0 {
                    return Err(Failure(format!("{there} points were there to delete")));
                }
                self.oracle.acknowledge(begun);
                if report.seq.is_some_and(|seq| !self.changes.1.lock().contains(&seq)) {
                    return Err(Failure(format!("{report:?} is visible but was not announced")));
                }
                self.tally.count(match report.seq {
                    Some(_) => "delete acknowledged",
                    None => "delete of nothing",
                });
                self.verify()
            }
            Err(e) => {
                self.trace(|| format!("delete of {matchers:?} in {range:?} failed: {e}"));
                self.tally.count("delete failed");
                self.after_error(&e)
            }
        }
    }

    /// Rewrites the tables that contain deleted samples, on both tiers.
    pub(crate) fn clean_tombstones(&mut self) -> Result<(), Failure> {
        let before = self.engine().stats().tree.traffic.cleanings;
        let result = self.call(Engine::clean_tombstones);
        let stats = self.engine().stats();
        let is_done = result.is_ok() && stats.tombstones == 0;
        if stats.tree.traffic.cleanings > before {
            self.tally.count("tables cleaned");
            self.done.push((self.call_count - 1, JobKind::Clean.name()));
        }
        self.work(result.map(|()| is_done.then_some("tombstones cleaned on demand")))
    }

    fn begin(&mut self, ts: Timestamp, piece: &BTreeMap<Labels, u64>) -> firn_sim::PieceId {
        let cell = |(labels, bits): (&Labels, &u64)| {
            (labels.clone(), Sample { ts, value: f64::from_bits(*bits) })
        };
        self.oracle.begin(piece.iter().map(cell).collect())
    }

    /// Checks that every acknowledged change was announced first: with the ends of a range that
    /// covers it.
    pub(crate) fn check_announced(&self, pieces: &Pieces) -> Result<(), Failure> {
        let announced = self.changes.0.lock();
        for &(group, ts) in pieces.keys() {
            let around = announced.range((group, i64::MIN)..=(group, ts)).next_back().is_some()
                && announced.range((group, ts)..=(group, i64::MAX)).next().is_some();
            if !around {
                return Err(Failure(format!(
                    "group {group} at {ts} is visible but was not announced"
                )));
            }
        }
        Ok(())
    }

    /// Runs one piece of background work.
    pub(crate) fn step(&mut self, lane: Lane) -> Result<(), Failure> {
        let result = self.call(|engine| engine.step(lane));
        let name = result.map(|step| step.map(|step| self.step_name(step)));
        self.work(name)
    }

    /// The name of a step. A claim that finds a manifest reads it, unlike all other steps that
    /// publish, so it has a name of its own.
    fn step_name(&mut self, step: Step) -> &'static str {
        if step != Step::Publish {
            return name_of(step);
        }
        let epoch = self.engine().stats().slow_tier.epoch;
        let before = std::mem::replace(&mut self.epoch, epoch);
        if epoch > before.max(1) { "Claim" } else { name_of(step) }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.call(Engine::flush);
        self.work(result.map(|()| Some("Flush")))
    }

    /// Syncs the log as the interval of `log_sync` requires, if it is one.
    pub(crate) fn sync_lazily(&mut self) -> Result<(), Failure> {
        if !matches!(self.log_sync, SyncPolicy::IntervalMs(_)) || !self.rng.chance(0.2) {
            return Ok(());
        }
        let result = self.call(|engine| engine.step(Lane::Log));
        match self.received(result) {
            Ok(_) => {
                self.tally.count("synced in the background");
                self.trace(|| "synced".into());
                if !self.engine().stats().log.has_lost_commits {
                    self.oracle.harden();
                }
                Ok(())
            }
            Err(e) => {
                self.trace(|| format!("a sync failed: {e}"));
                self.after_error(&e)
            }
        }
    }

    fn work(&mut self, result: firn_model::Result<Option<&'static str>>) -> Result<(), Failure> {
        if matches!(result, Ok(Some("Flush"))) && !self.sim.faults.is_off() {
            // Tables contain everything from before the flush.
            self.oracle.harden();
            self.may_be_damaged = false;
        }
        self.record_interleaved_writes();
        if let Some(torn) = self.torn.lock().take() {
            return Err(Failure(torn));
        }
        match self.received(result) {
            Ok(Some(what)) => {
                self.trace(|| what.into());
                self.tally.count(what);
                self.done.push((self.call_count.saturating_sub(1), what));
                self.work_done += 1;
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(e) => {
                self.trace(|| format!("maintenance failed: {e}"));
                self.tally.count("maintenance failed");
                self.after_error(&e)
            }
        }
    }

    /// The result that a client receives. A fence of memory returns no error, so the simulated
    /// engine continues briefly after a power failure at a fence; a real one does not.
    pub(crate) fn received<T>(&mut self, answer: firn_model::Result<T>) -> firn_model::Result<T> {
        if answer.is_ok() && self.sim.memory.is_some() && self.sim.faults.is_off() {
            self.tally.count("power lost at a fence");
            return Err(Error::closed("simulated power loss: the client receives no response"));
        }
        answer
    }

    pub(crate) fn after_error(&mut self, e: &Error) -> Result<(), Failure> {
        self.record_interleaved_writes();
        if is_power_loss(e) && self.sim.faults.is_off() {
            self.tally.count("crash in the middle");
            return self.reopen();
        }
        match e.kind() {
            ErrorKind::Unavailable | ErrorKind::Busy { .. } => Ok(()),
            _ => Err(Failure(format!("an error without an injected cause: {e:?}"))),
        }
    }

    fn is_short(&self, e: &Error) -> bool {
        self.pressure_limit_bytes.is_some() && matches!(e.kind(), ErrorKind::Busy { .. })
    }

    /// Simulates memory that the process uses without a reservation, as an allocator does.
    pub(crate) fn hold_unreserved(&mut self) {
        let Some(limit) = self.pressure_limit_bytes else { return };
        let budget = self.engine().budget().clone();
        let usage = budget.usage();
        let beside = usage.by_pool[Pool::Process as usize];
        let more = self.rng.below(limit / 3);
        self.resident_bytes.store(usage.used_bytes - beside + more, Ordering::Relaxed);
        let resident_bytes = Arc::clone(&self.resident_bytes);
        budget.set_meter(move || Some(resident_bytes.load(Ordering::Relaxed)));
        budget.measure();
        self.tally.count("process holds more");
        self.trace(|| format!("{more} bytes beside"));
    }

    /// Checks that reserved memory stays under the limit, except for memory that is being
    /// exchanged, and that the head reserves all memory that it uses.
    pub(crate) fn check_memory(&self) -> Result<(), Failure> {
        let Some(limit) = self.pressure_limit_bytes else { return Ok(()) };
        let stats = self.engine().stats();
        let counted: u64 =
            [Pool::Head, Pool::Hot].map(|p| stats.memory.by_pool[p as usize]).iter().sum();
        let head = &stats.head;
        let held = head.arena_bytes + head.segment_bytes + head.state_bytes + head.hot_bytes;
        if held > counted {
            return Err(Failure(format!("the head holds {held} bytes and counts {counted}")));
        }
        // A seal may open arenas in all four shards on top of a budget that other pools have
        // filled.
        let beside = stats.memory.by_pool[Pool::Process as usize];
        let most =
            limit.max(limit / 100 * Pool::Head.threshold_percent() + beside) + EXCHANGED_BYTES;
        if stats.memory.used_bytes > most {
            return Err(Failure(format!("{:?} over the limit of {limit}", stats.memory)));
        }
        Ok(())
    }

    /// Releases all other memory and checks that writes are accepted again.
    pub(crate) fn resume_writes(&mut self) -> Result<(), Failure> {
        self.held.clear();
        for _ in 0..20 {
            self.resident_bytes.store(0, Ordering::Relaxed);
            // The measured memory of the process falls slowly.
            (0..100).for_each(|_| self.engine().budget().measure());
            let before = self.tally.0.get("write acknowledged").copied();
            self.write()?;
            if self.tally.0.get("write acknowledged").copied() > before {
                return Ok(());
            }
            for _ in 0..20 {
                self.step(Lane::Head)?;
            }
        }
        Err(Failure(format!("writes stay refused: {:?}", self.engine().stats().memory)))
    }

    pub(crate) fn advance(&mut self, duration: Duration) {
        self.trace(|| format!("{duration:?} pass"));
        self.sim.clock.advance(duration);
        self.raise_floor();
    }

    pub(crate) fn set_slow_tier_down(&mut self, is_down: bool) {
        if is_down {
            self.tally.count("slow tier down");
        }
        self.trace(|| format!("slow tier down: {is_down}"));
        self.sim.bucket.set_down(is_down);
    }

    /// Half of the changes to the slow tier are applied but report an error.
    pub(crate) fn set_responses_lost(&mut self, are_lost: bool) {
        self.trace(|| format!("responses of the slow tier are lost: {are_lost}"));
        self.sim.faults.set_lost_acknowledgement_rate(if are_lost { 0.5 } else { 0.0 });
    }

    /// The disk is full for a few writes, then has room again.
    pub(crate) fn fill_disk(&mut self) -> Result<(), Failure> {
        self.tally.count("disk full");
        self.trace(|| "the disk is full".into());
        self.set_capacity_bytes(0);
        for _ in 0..3 {
            self.write()?;
        }
        self.flush()?;
        self.set_capacity_bytes(u64::MAX);
        self.trace(|| "the disk has room".into());
        self.verify()
    }

    /// Sets the capacity of the disk and of the memory that contains the log.
    fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.sim.disk.set_capacity_bytes(capacity_bytes);
        self.sim.memory.iter().for_each(|memory| memory.set_capacity_bytes(capacity_bytes));
    }

    pub(crate) fn end_faults(&mut self) -> Result<(), Failure> {
        self.sim.faults.clear();
        self.sim.bucket.set_down(false);
        self.set_capacity_bytes(u64::MAX);
        // An injected failure may still be pending inside the engine: one write consumes it.
        self.write()
    }

    /// Cuts the power.
    pub(crate) fn crash(&mut self) -> Result<(), Failure> {
        self.tally.count("crash");
        self.trace(|| "crash".into());
        self.sim.crash();
        self.reopen()
    }

    /// Kills the process. All written bytes stay, whatever the sync policy.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        if self.sim.faults.is_off() {
            return self.crash();
        }
        self.tally.count("kill");
        self.trace(|| "kill".into());
        self.end();
        // Data that is read before the log starts need not be durable under any policy, and no call
        // has acknowledged it.
        self.oracle.trust_power(true);
        self.open()
    }

    /// A log that has started has made its recovered data durable.
    fn harden_started_log(&mut self) {
        let is_started = |engine: &Arc<Engine>| engine.stats().log.segments > 0;
        if !self.may_lose_acknowledged() && self.engine.as_ref().is_some_and(is_started) {
            self.oracle.harden();
            self.oracle.trust_power(false);
        }
    }

    pub(crate) fn restart_cleanly(&mut self) -> Result<(), Failure> {
        self.tally.count("clean restart");
        self.trace(|| "clean restart".into());
        let closed = self.engine().close(true);
        self.end();
        match closed {
            Err(e) if is_power_loss(&e) => self.restore_power(),
            Ok(()) if !self.sim.faults.is_off() => self.oracle.harden(),
            Ok(()) | Err(_) => {}
        }
        self.open()
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        self.end();
        self.restore_power();
        self.open()
    }

    /// Drops the engine and all its readers.
    fn end(&mut self) {
        self.held.clear();
        self.harden_started_log();
        if let Some(engine) = self.engine.take() {
            self.may_be_damaged |= engine.stats().log.has_lost_commits;
        }
    }

    fn restore_power(&mut self) {
        self.sim.restart();
        self.oracle.lose_power();
    }

    /// Damages the slow-tier cache (flips a bit, zeroes bytes or truncates it) while none of it is
    /// in memory. All reads must stay correct.
    pub(crate) fn damage_slow_cache(&mut self) -> Result<(), Failure> {
        const FILE: &str = "slow-cache/slabs";
        self.verify()?;
        self.restart_cleanly()?;
        if self.sim.disk.files().iter().any(|file| file == FILE) {
            let rng = &mut self.rng;
            let damaged = self.sim.disk.damage(FILE, |bytes| {
                let at = rng.below(bytes.len().max(1) as u64) as usize;
                let hurt = &mut bytes[at..];
                match rng.below(3) {
                    0 => hurt.iter_mut().take(1).for_each(|byte| *byte ^= 1 << rng.below(8)),
                    1 => hurt.iter_mut().take(600).for_each(|byte| *byte = 0),
                    _ => bytes.truncate(at),
                }
            });
            damaged.map_err(|e| Failure(e.to_string()))?;
            self.trace(|| "the slow cache is damaged".into());
        }
        self.verify()?;
        let stats = self.engine().stats().tree.slow_cache;
        if stats.hits > 0 {
            self.tally.count("slow cache hit");
        }
        if stats.damaged > 0 {
            self.tally.count("slow cache damage seen");
        }
        Ok(())
    }

    /// Compares all readable samples with the oracle. A sample that was read once must stay.
    pub(crate) fn verify(&mut self) -> Result<(), Failure> {
        self.compare(Oracle::check)
    }

    /// Checks a list of series: it contains all that have samples in the range, and none whose
    /// samples are all deleted.
    pub(crate) fn verify_list(&mut self) -> Result<(), Failure> {
        let snapshot = self.engine().snapshot();
        let (matchers, range) = (self.random_matchers(), self.random_range());
        let context = QueryContext::unbounded();
        let read = || -> firn_model::Result<_> {
            let matchers = matchers.clone();
            let selection = Selection { matchers, range, grouping: Grouping::Series };
            let matchers = &selection.matchers;
            let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            snapshot.each_label_name(matchers, range, &context, &mut |name| {
                values.insert(name.to_owned(), BTreeSet::new());
                Ok(ControlFlow::Continue(()))
            })?;
            for (name, of_name) in &mut values {
                snapshot.each_label_value(name, matchers, range, &context, &mut |value| {
                    of_name.insert(value.to_owned());
                    Ok(ControlFlow::Continue(()))
                })?;
            }
            Ok((
                listed(&snapshot, &selection)?,
                values,
                ObservedSamples::read(&snapshot, matchers, range)?,
                ObservedSamples::read(&snapshot, matchers, TimeRange::ALL)?,
            ))
        };
        let (listed, values, here, all) = match read() {
            Ok(read) => read,
            Err(e) => return self.after_error(&e),
        };
        self.tally.count("series listed");
        if let Some(missed) = here.series.keys().find(|labels| !listed.contains(labels)) {
            return Err(Failure(format!("{missed} has samples in {range:?} and is not listed")));
        }
        if let Some(gone) = listed.iter().find(|labels| !all.series.contains_key(labels)) {
            return Err(Failure(format!("{gone} is listed in {range:?} without a sample")));
        }
        // Names and values are those of the listed series.
        let mut want: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, value) in listed.iter().flat_map(Labels::iter) {
            want.entry(name.to_owned()).or_default().insert(value.to_owned());
        }
        match values == want {
            true => Ok(()),
            false => Err(Failure(format!("{values:?} are listed in {range:?}, not {want:?}"))),
        }
    }

    fn compare(
        &mut self,
        against: fn(&mut Oracle, &ObservedSamples) -> Result<(), String>,
    ) -> Result<(), Failure> {
        self.harden_started_log();
        let seen = read_all(&self.engine().snapshot());
        match self.received(seen) {
            Ok(seen) => {
                self.digest = self.digest.rotate_left(7) ^ seen.digest();
                against(&mut self.oracle, &seen).map_err(Failure)
            }
            Err(e) => {
                self.trace(|| format!("read failed: {e}"));
                self.after_error(&e)
            }
        }
    }

    /// Opens a snapshot that stays open while the data below it changes.
    pub(crate) fn hold_snapshot(&mut self) -> Result<(), Failure> {
        let snapshot = self.engine().snapshot();
        match read_all(&snapshot) {
            Ok(points) => self.held.push((snapshot, points)),
            Err(e) => return self.after_error(&e),
        }
        Ok(())
    }

    pub(crate) fn verify_held(&mut self) -> Result<(), Failure> {
        for (snapshot, before) in std::mem::take(&mut self.held) {
            match read_all(&snapshot) {
                Ok(now) if now == before => self.tally.count("held snapshot read"),
                Ok(now) => {
                    return Err(Failure(format!(
                        "a held snapshot had {} points and has {} others now",
                        before.sample_count(),
                        now.sample_count()
                    )));
                }
                Err(e) if e.what().contains("was revoked") => {
                    if self.pinned_bytes_max == u64::MAX {
                        return Err(Failure(format!("there was no limit: {e}")));
                    }
                    self.tally.count("held snapshot lost its memory");
                }
                Err(e) => return self.after_error(&e),
            }
        }
        Ok(())
    }

    /// Requests memory from the engine, as another consumer would.
    pub(crate) fn recycle(&mut self) -> Result<(), Failure> {
        let bytes = self.engine().recycle(self.rng.below(4 << 10));
        let what = (bytes > 0).then_some("memory reclaimed");
        self.work(Ok(what))?;
        self.verify_held()?;
        self.verify()
    }

    /// The series of one scrape target, or of a host without `job`: lone series until the index
    /// groups them by itself, for which [`World::learn_groups`] sends enough of them.
    pub(crate) fn random_labels(&mut self) -> Vec<Labels> {
        let target = self.rng.below(4);
        let count = 1 + self.rng.below(6);
        let host = if target == 3 { *self.rng.pick(&UNTARGETED_HOSTS) } else { target };
        (0..count)
            .map(|idx| {
                let metric = (idx + self.rng.below(2)) % 8;
                if target == 3 {
                    return untargeted_series(host, metric % UNTARGETED_METRICS);
                }
                let (name, instance) = (format!("m{metric}"), format!("host-{host}"));
                let pairs =
                    [("__name__", name.as_str()), ("job", "sim"), ("instance", instance.as_str())];
                Labels::from_pairs(pairs).expect("valid labels")
            })
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Mostly now, sometimes late, sometimes very late; on a grid so that points meet.
    pub(crate) fn random_timestamp(&mut self) -> Timestamp {
        let grid = 15_000;
        if let Some(start) = self.hour_start {
            return start + self.rng.below(200) as i64 * grid;
        }
        let now = self.sim.env().clock.now_ms();
        let back = match self.rng.below(10) {
            0..=6 => self.rng.below(8) as i64 * grid,
            7 | 8 => self.rng.below(400) as i64 * grid,
            _ => self.rng.below(40) as i64 * 3_600_000,
        };
        // Writes beyond the retention are refused. The hour is for the clock, which moves later.
        let back = self.retention_ms().map_or(back, |ms| back.min(ms - 3_600_000));
        (now - back).div_euclid(grid) * grid
    }

    pub(crate) fn random_matchers(&mut self) -> Vec<Matcher> {
        let mut matchers = Vec::new();
        if self.rng.chance(0.6) {
            let name = format!("m{}", self.rng.below(8));
            matchers.push(Matcher::equal("__name__", &name));
        }
        if self.rng.chance(0.6) {
            let name = *self.rng.pick(&["instance", "instance", "only"]);
            let host = match name {
                "only" => *self.rng.pick(&UNTARGETED_HOSTS),
                _ => self.rng.below(6),
            };
            matchers.push(Matcher::equal(name, format!("host-{host}")));
        }
        matchers
    }

    /// Mostly some minutes, sometimes a long range or all time, rarely one instant.
    pub(crate) fn random_range(&mut self) -> TimeRange {
        let end = self.random_timestamp();
        match self.rng.below(10) {
            0 => TimeRange::ALL,
            1 => TimeRange::new(i64::MIN, end),
            2 => TimeRange::at(end),
            3 => TimeRange::new(end - self.rng.below(48) as i64 * 3_600_000, end),
            _ => TimeRange::new(end - self.rng.below(60) as i64 * 15_000, end),
        }
    }

    pub(crate) fn random_value(&mut self) -> u64 {
        match self.rng.below(10) {
            0..=5 => (self.rng.below(1_000) as f64 / 10.0).to_bits(),
            6 => STALE_NAN_BITS,
            7 => *self.rng.pick(&[0, 1 << 63, 1, f64::INFINITY.to_bits(), f64::MAX.to_bits()]),
            _ => self.rng.next_u64(),
        }
    }
}

fn name_of(step: Step) -> &'static str {
    match step {
        Step::Convert => "Convert",
        Step::Compress => "Compress",
        Step::Flush => "Flush",
        Step::Seal => "Seal",
        Step::Recycle => "Recycle",
        Step::Tree(kind) => kind.name(),
        Step::Adapt => "Adapt",
        Step::Garbage => "Garbage",
        Step::SlowGarbage => "SlowGarbage",
        Step::Forget => "Forget",
        Step::Merge => "Merge",
        Step::RemoveSeries => "RemoveSeries",
        Step::Publish => "Publish",
        _ => "another step",
    }
}

fn is_power_loss(e: &Error) -> bool {
    *e.kind() == ErrorKind::Closed
}

/// A series of a host that sends neither `job` nor `instance`.
pub(crate) fn untargeted_series(host: u64, metric: u64) -> Labels {
    let (name, host) = (format!("m{metric}"), format!("host-{host}"));
    Labels::from_pairs([("__name__", name.as_str()), ("only", &host)]).expect("valid labels")
}

/// Conversions at `arena_bytes_max` bytes per arena, so that short runs of a test convert.
pub(crate) fn small_arenas(arena_bytes_max: usize) -> ConvertOptions {
    ConvertOptions { arena_bytes_max, sparse_arena_times: 4, ..ConvertOptions::default() }
}

/// The values of a label in the index, with or without samples.
pub(crate) fn known_values(engine: &Engine, name: &str) -> Vec<String> {
    let (snapshot, context) = (engine.snapshot(), QueryContext::unbounded());
    let mut values = Vec::new();
    let found = snapshot.index().select(&[], &context).expect("a selection");
    let mut add = |value: &str| {
        values.push(value.to_owned());
        Ok(ControlFlow::Continue(()))
    };
    found.each_value(name, &context, &mut |_, _: &[Slot]| Ok(true), &mut add).expect("a listing");
    values
}

/// The label sets that a list of a selection by series contains.
pub(crate) fn listed(
    snapshot: &Snapshot,
    selection: &Selection,
) -> firn_model::Result<BTreeSet<Labels>> {
    let found = snapshot.present(selection, &QueryContext::unbounded())?;
    let members = found.groups.iter().flat_map(|group| &group.members);
    Ok(members.map(|member| found.keys[member.key as usize].clone()).collect())
}

/// Reads every sample of every series from one snapshot.
pub(crate) fn read_all(snapshot: &Snapshot) -> firn_model::Result<ObservedSamples> {
    ObservedSamples::read(snapshot, &[], TimeRange::ALL)
}
