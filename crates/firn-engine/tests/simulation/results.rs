//! A result cache beside the engine, through crashes, kills and failing devices. An answer that was
//! cached before a crash equals that of the first snapshot after it, or it is missing; a large part
//! of the answers survives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use firn_cache::{
    Answer, AnswerSeries, Dependency, OwnerHistory, ResultCache, ResultOptions, ResultQuery, Span,
    StoreOptions,
};
use firn_engine::{
    Engine, EngineOptions, GroupRule, HeadOptions, Lane, LogOptions, Mutant, RecoveryProgress,
    Replayed, Snapshot,
};
use firn_model::{
    Budget, ChangeSink, Error, ErrorKind, GroupId, Grouping, Labels, Matcher, QueryContext,
    RowBatch, Sample, SeriesRef, TimeRange, Timestamp,
};
use firn_sim::{ObservedSamples, Operation, Rng, Sim, for_cases};

use crate::Outcome;
use crate::world::small_arenas;

const STEPS: u64 = 150;
pub(crate) const STEP_MS: i64 = 15_000;
pub(crate) const WINDOW_MS: i64 = 60_000;

/// An answer as a map of value bits.
pub(crate) type AnswerBits = BTreeMap<Labels, BTreeMap<Timestamp, u64>>;

struct CacheSimulation {
    sim: Sim,
    rng: Rng,
    options: EngineOptions,
    engine: Option<Arc<Engine>>,
    cache: Option<Arc<ResultCache>>,
    tally: CacheTally,
}

/// Hits of the result cache.
#[derive(Clone, Copy, Debug, Default)]
struct CacheTally {
    steps: u64,
    steps_hit: u64,
    /// Steps of answers right after a kill or a power failure, and the hits among them.
    steps_after_crash: u64,
    hits_after_crash: u64,
    crashes: u64,
    failed_writes: u64,
    /// The times that further series showed groups.
    learned: u64,
}

/// Kills, power failures and failing devices hit the engine and its cache at random. All synced
/// data is on the disk, and some slabs of the cache. Every answer equals the readable data of its
/// snapshot, and many answers are cached even right after a crash.
#[test]
fn answers_that_outlive_a_crash_equal_the_first_snapshot() {
    let all = RefCell::new(CacheTally::default());
    for_cases(150, |seed| {
        let tally = run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        let mut all = all.borrow_mut();
        all.steps += tally.steps;
        all.steps_hit += tally.steps_hit;
        all.steps_after_crash += tally.steps_after_crash;
        all.hits_after_crash += tally.hits_after_crash;
        all.crashes += tally.crashes;
        all.failed_writes += tally.failed_writes;
        all.learned += tally.learned;
    });
    let all = all.into_inner();
    println!("{all:?}");
    if std::env::var_os("FIRN_SEED").is_some() {
        return;
    }
    assert!(all.crashes > 100 && all.failed_writes > 50 && all.learned > 50, "{all:?}");
    assert!(all.steps_hit * 3 > all.steps, "{all:?}");
    assert!(all.hits_after_crash * 6 > all.steps_after_crash, "{all:?}");
}

/// Runs the scenario with a mutant. Returns how it was caught, or `None` if it was not.
pub(crate) fn catch_mutant(seed: u64, mutant: Mutant) -> Option<String> {
    run(seed, Some(mutant)).err()
}

fn run(seed: u64, mutant: Option<Mutant>) -> Outcome<CacheTally> {
    let mut life = live(seed, mutant)?;
    for _ in 0..STEPS {
        life.step()?;
    }
    Ok(life.tally)
}

fn live(seed: u64, mutant: Option<Mutant>) -> Outcome<CacheSimulation> {
    let options = EngineOptions {
        shard_count: 4,
        stream_count: Some(1 + (seed % 3) as usize),
        recovery_threads: 1 + (seed % 3) as usize,
        mutant,
        log: LogOptions { segment_bytes: 16 << 10, ..Default::default() },
        head: HeadOptions { convert: small_arenas(512), ..Default::default() },
        ..EngineOptions::default()
    };
    let (sim, rng) = (Sim::new(seed), Rng::new(seed ^ 0xca54));
    let mut life = CacheSimulation {
        sim,
        rng,
        options,
        engine: None,
        cache: None,
        tally: CacheTally::default(),
    };
    life.open()?;
    Ok(life)
}

/// A sync of the log fails during a write, and answers without that row are cached. Then the
/// database is closed while the device still fails, or after it has recovered. The log may or may
/// not contain the row. Cached answers must equal the readable data after the database opens again.
#[test]
fn answers_that_outlive_a_close_with_a_failing_log_equal_the_first_snapshot() {
    let mut found = [0, 0];
    for seed in 0..60 {
        let is_failing = seed % 2 == 0;
        let steps = close_after_a_failed_write(seed, is_failing);
        found[usize::from(is_failing)] += steps.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{} steps found after a clean close, {} after one that failed", found[0], found[1]);
    assert!(found[0] > 1_000, "{found:?}");
}

fn close_after_a_failed_write(seed: u64, is_failing: bool) -> Outcome<u64> {
    let mut life = live(seed, None)?;
    for _ in 0..60 {
        life.step()?;
    }
    life.sim.faults.clear();
    life.write()?;
    for _ in 0..8 {
        life.query()?;
    }
    life.sim.faults.fail_nth(Operation::Sync, 1);
    life.write()?;
    life.sim.faults.clear();
    for _ in 0..8 {
        life.query()?;
    }
    life.cache().flush();
    if is_failing {
        life.sim.faults.set_rate(Operation::Sync, 1.0);
    }
    life.close()?;
    life.tally = CacheTally::default();
    for _ in 0..8 {
        life.query()?;
    }
    Ok(life.tally.steps_hit)
}

fn is_injected(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unavailable | ErrorKind::Busy { .. })
}

/// Hosts except the first have no job.
fn labels(name: &str, host: u64) -> Labels {
    let host_name = format!("h{host}");
    let mut pairs = vec![("__name__", name), ("instance", host_name.as_str())];
    if host == 0 {
        pairs.push(("job", "sim"));
    }
    Labels::from_pairs(pairs).expect("valid labels")
}

impl CacheSimulation {
    fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().expect("opened"))
    }

    fn cache(&self) -> Arc<ResultCache> {
        Arc::clone(self.cache.as_ref().expect("opened"))
    }

    fn open(&mut self) -> Outcome<()> {
        for _ in 0..50 {
            match self.try_open() {
                Ok(()) => return Ok(()),
                Err(e) if is_injected(&e) => {
                    self.sim.faults.clear();
                    if self.sim.faults.is_off() {
                        self.sim.restart();
                    }
                }
                Err(e) => return Err(format!("open: {e:?}")),
            }
        }
        Err("the database does not open in 50 tries".into())
    }

    /// Opens engine and cache as the library does.
    fn try_open(&mut self) -> firn_model::Result<()> {
        let progress = RecoveryProgress::default();
        let engine = Engine::open(self.sim.env(), self.options.clone(), &progress)?;
        let Replayed { is_damaged, may_lose, .. } = engine.replayed();
        assert!(!is_damaged && !may_lose, "nothing is damaged, and all is synced");
        let options = ResultOptions {
            store: StoreOptions {
                slab_bytes: 16 << 10,
                flash_bytes_max: 40 * (16 << 10),
                compaction_trigger: 4,
                ..StoreOptions::default()
            },
            // Half of the time all answers are read from slabs.
            hot_bytes_max: *self.rng.pick(&[0, 1 << 20]),
            ..ResultOptions::default()
        };
        let cache = open_beside(&engine, options)?;
        (self.engine, self.cache) = (Some(engine), Some(cache));
        Ok(())
    }

    fn step(&mut self) -> Outcome<()> {
        let seconds = self.rng.below(30);
        self.sim.clock.advance(Duration::from_secs(seconds));
        match self.rng.below(100) {
            0..=44 => self.query(),
            45..=66 => self.write(),
            67..=69 => self.delete(),
            70 | 71 => self.transact(),
            72..=75 => {
                let lane = *self.rng.pick(&[Lane::Head, Lane::Tree]);
                let stepped = self.engine().step(lane);
                self.after(stepped)
            }
            76..=79 => {
                let flushed = self.engine().flush();
                self.after(flushed)
            }
            80..=87 => {
                while self.cache().work() {}
                Ok(())
            }
            88 | 89 => {
                let operation =
                    *self.rng.pick(&[Operation::Write, Operation::Sync, Operation::Create]);
                self.sim.faults.fail_nth(operation, 1 + self.rng.below(6));
                Ok(())
            }
            90 => {
                let soon = self.sim.faults.change_count() + self.rng.below(30);
                self.sim.faults.crash_at(soon);
                Ok(())
            }
            91 => self.fail_a_write(),
            92 | 93 => self.kill(),
            94 => self.lose_power(),
            95 => self.close(),
            _ => self.query(),
        }
    }

    fn after<T>(&mut self, done: firn_model::Result<T>) -> Outcome<()> {
        match done {
            Ok(_) => Ok(()),
            Err(_) if self.sim.faults.is_off() => self.lose_power(),
            Err(e) if is_injected(&e) => Ok(()),
            Err(e) => Err(format!("an error without an injected cause: {e:?}")),
        }
    }

    /// Mostly now, sometimes late; on a grid, so that values are overwritten.
    fn random_ts(&mut self) -> Timestamp {
        let now = self.sim.env().clock.now_ms();
        let back = match self.rng.below(10) {
            0 => self.rng.below(240),
            _ => self.rng.below(3),
        };
        (now - back as i64 * STEP_MS).div_euclid(STEP_MS) * STEP_MS
    }

    /// Defines further series of the hosts without a job, so that the index learns their groups.
    fn learn_groups(&mut self) {
        let further = |host| (0..8).map(move |idx| labels(&format!("further{idx}"), host));
        let sets: Vec<Labels> = (1..3).flat_map(further).collect();
        let engine = self.engine();
        let resolved = engine.resolve(&sets);
        let identity = sets[0].filter(|name| name == "instance");
        if resolved.iter().all(Result::is_ok) && engine.group_rule(&identity) != GroupRule::Other {
            self.tally.learned += 1;
        }
    }

    fn random_series(&mut self) -> Option<Vec<SeriesRef>> {
        let host = self.rng.below(3);
        if self.rng.chance(0.03) {
            self.learn_groups();
        }
        let all = ["m0", "m1", "m2"].map(|name| labels(name, host));
        let count = 1 + self.rng.below(3) as usize;
        let found = self.engine().resolve(&all[..count]);
        found.into_iter().collect::<firn_model::Result<_>>().ok()
    }

    fn write(&mut self) -> Outcome<()> {
        let written = self.try_write();
        self.after(written)
    }

    fn try_write(&mut self) -> firn_model::Result<()> {
        let Some(series) = self.random_series() else { return Ok(()) };
        let mut batch = RowBatch::default();
        for _ in 0..1 + self.rng.below(3) {
            let ts = self.random_ts();
            for &series in &series {
                batch.push(series, ts, f64::from_bits(self.rng.next_u64() >> 2));
            }
        }
        self.engine().write(&mut batch).map(|_| ())
    }

    fn delete(&mut self) -> Outcome<()> {
        let end = self.random_ts();
        let range = TimeRange::new(end - self.rng.below(20) as i64 * STEP_MS, end);
        let name = format!("m{}", self.rng.below(3));
        let deleted = self.engine().delete(&[vec![Matcher::equal("__name__", &name)]], range);
        self.after(deleted)
    }

    fn transact(&mut self) -> Outcome<()> {
        let Some(series) = self.random_series() else { return Ok(()) };
        let (ts, value) = (self.random_ts(), self.rng.next_u64() >> 2);
        let engine = self.engine();
        let committed = engine.begin().and_then(|mut transaction| {
            series
                .iter()
                .try_for_each(|&one| transaction.insert(one, ts, f64::from_bits(value)))?;
            transaction.commit()
        });
        self.after(committed)
    }

    /// A sync fails during a write, so the log may or may not contain its row. Answers without the
    /// row are cached, and the run is interrupted at once.
    fn fail_a_write(&mut self) -> Outcome<()> {
        self.sim.faults.clear();
        self.sim.faults.fail_nth(Operation::Sync, 1);
        self.write()?;
        self.tally.failed_writes += 1;
        self.sim.faults.clear();
        for _ in 0..self.rng.below(12) {
            self.query()?;
        }
        self.cache().flush();
        if self.rng.chance(0.5) { self.kill() } else { self.lose_power() }
    }

    /// Kills the process. All written bytes stay on the disk.
    fn kill(&mut self) -> Outcome<()> {
        self.sim.faults.clear();
        (self.engine, self.cache) = (None, None);
        self.reopened()
    }

    /// Cuts the power. Unsynced bytes are lost.
    fn lose_power(&mut self) -> Outcome<()> {
        self.sim.crash();
        (self.engine, self.cache) = (None, None);
        self.sim.restart();
        self.reopened()
    }

    fn close(&mut self) -> Outcome<()> {
        let closed = self.engine().close(true);
        if closed.is_ok() {
            let _ = self.cache().close(self.engine().snapshot().number());
        }
        (self.engine, self.cache) = (None, None);
        if self.sim.faults.is_off() {
            self.sim.restart();
        }
        self.open()
    }

    fn reopened(&mut self) -> Outcome<()> {
        self.open()?;
        self.tally.crashes += 1;
        let before = (self.tally.steps, self.tally.steps_hit);
        for _ in 0..3 {
            self.query()?;
        }
        self.tally.steps_after_crash += self.tally.steps - before.0;
        self.tally.hits_after_crash += self.tally.steps_hit - before.1;
        Ok(())
    }

    /// Refreshes one of a few panels.
    fn query(&mut self) -> Outcome<()> {
        let result = self.try_query();
        let wrong = result.as_ref().ok().and_then(Option::clone);
        wrong.map_or_else(|| self.after(result), Err)
    }

    /// Runs a query. Returns a description of the answer if it is wrong.
    fn try_query(&mut self) -> firn_model::Result<Option<String>> {
        let name = format!("m{}", self.rng.below(3));
        let matchers = vec![Matcher::equal("__name__", &name)];
        let span = Span::Relative { first_ms: -WINDOW_MS, last_ms: 0 };
        let dependencies = [Dependency { matchers, span }];
        let now = self.sim.env().clock.now_ms();
        let behind = *self.rng.pick(&[0, 0, 0, 40]);
        let end = (now - behind * STEP_MS).div_euclid(STEP_MS) * STEP_MS;
        let start = end - *self.rng.pick(&[10, 40, 120]) * STEP_MS;
        let expression = format!("last({name})");
        let cache_query = |range| cache_query(&expression, &dependencies, range);
        let (engine, cache) = (self.engine(), self.cache());
        let session = cache.begin(&Budget::unlimited());
        let snapshot = engine.snapshot();
        let found = cache.lookup(&session, &cache_query((start, end)), snapshot.number());
        if self.rng.chance(0.1) {
            self.try_write()?;
        }
        let compute = |(start, end)| compute(&snapshot, &dependencies[0], start, end);
        let whole = bits(&compute((start, end))?);
        let mut answer = bits(&found.answer);
        let missing = found.missing.map(|range| Ok((range, compute(range)?))).transpose()?;
        let steps = |(start, end): (i64, i64)| ((end - start) / STEP_MS + 1) as u64;
        self.tally.steps += steps((start, end));
        self.tally.steps_hit += steps((start, end)) - found.missing.map_or(0, steps);
        for (labels, values) in missing.iter().flat_map(|one| bits(&one.1)) {
            answer.entry(labels).or_default().extend(values);
        }
        if answer != whole {
            let missing = found.missing;
            return Ok(Some(format!("{expression} from {start} to {end}, missing {missing:?}")));
        }
        if let Some((range, computed)) = missing {
            let groups = [Some(groups(&snapshot, &dependencies[0].matchers)?)];
            cache.fill(&session, &cache_query(range), snapshot.number(), &groups, &computed);
        }
        Ok(None)
    }
}

/// Opens a cache and subscribes it to the changes of the engine, as the library does.
pub(crate) fn open_beside(
    engine: &Engine,
    options: ResultOptions,
) -> firn_model::Result<Arc<ResultCache>> {
    let Replayed { after, through, changes, is_damaged, .. } = engine.replayed();
    let recovered = (!is_damaged).then_some(OwnerHistory { replays_after: after, through });
    let disk = Arc::clone(&engine.env().disk);
    let cache = ResultCache::open(disk, "cache/results", engine.budget(), options, recovered)?;
    changes.into_iter().for_each(|(range, number)| cache.replayed(range, number));
    let cache = Arc::new(cache);
    engine.set_change_sink(Arc::<ResultCache>::clone(&cache) as Arc<dyn ChangeSink>)?;
    cache.rematch(|matchers| groups(&engine.snapshot(), matchers))?;
    Ok(cache)
}

/// The query for the steps of a range, answer ends included.
pub(crate) fn cache_query<'a>(
    expression: &'a str,
    dependencies: &'a [Dependency],
    (start, end): (Timestamp, Timestamp),
) -> ResultQuery<'a> {
    ResultQuery { expression, start, end, step_ms: STEP_MS, lookback_ms: 0, dependencies }
}

pub(crate) fn groups(
    snapshot: &Snapshot,
    matchers: &[Matcher],
) -> firn_model::Result<Vec<GroupId>> {
    let one_key = Grouping::By(Vec::new());
    let found = snapshot.index().matches(matchers, &one_key, &QueryContext::unbounded())?;
    Ok(found.groups.iter().map(|found| found.group).collect())
}

/// Computes for each series and step a number that identifies the samples in the window of the
/// step.
pub(crate) fn compute(
    snapshot: &Snapshot,
    dependency: &Dependency,
    start: Timestamp,
    end: Timestamp,
) -> firn_model::Result<Answer> {
    let range = TimeRange::new(start - WINDOW_MS, end);
    let seen = ObservedSamples::read(snapshot, &dependency.matchers, range)?;
    let series = seen.series.into_iter().map(|(labels, samples)| {
        let steps = (0..).map(|idx| start + idx * STEP_MS).take_while(|&ts| ts <= end);
        let floats = steps.filter_map(|ts| {
            let window = TimeRange::new(ts - WINDOW_MS, ts);
            let inside = samples.iter().filter(|sample| window.contains(sample.ts));
            let mixed = inside.fold(None, |mixed: Option<u64>, sample| {
                let bits = mixed.unwrap_or_default() ^ sample.value.to_bits();
                Some(Rng::new(bits ^ sample.ts as u64).next_u64())
            });
            mixed.map(|bits| Sample { ts, value: f64::from_bits(bits) })
        });
        AnswerSeries { labels, floats: floats.collect(), histograms: Vec::new() }
    });
    Ok(Answer { series: series.filter(|one| !one.floats.is_empty()).collect() })
}

pub(crate) fn bits(answer: &Answer) -> AnswerBits {
    let series = answer.series.iter().map(|one| {
        let floats = one.floats.iter().map(|sample| (sample.ts, sample.value.to_bits()));
        (one.labels.clone(), floats.collect())
    });
    series.collect()
}
