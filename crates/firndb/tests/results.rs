//! Invariant 9 for the whole database: with the result cache a range query returns the same bits as
//! an evaluation, under late data, deletes, new series, flushes and restarts.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::cell::Cell;
use std::time::Duration;

use firn_cache::Mutant;
use firn_model::{Pool, Reservation, STALE_NAN};
use firn_promql::{EvalOptions, Value, parse};
use firn_sim::{Rng, Sim};
use firndb::{
    Db, Env, GroupRule, Labels, Lane, LogOptions, MatchOp, Matcher, Options, QueryOptions,
    QueryReply, QueryTime, RecoveryProgress, ResultOptions, RowBatch, TimeRange, Timestamp,
    TreeOptions,
};

const STEP_MS: i64 = 15_000;
const MINUTE_MS: i64 = 60_000;
/// Used with every second seed.
const RETENTION_MS: i64 = 90 * MINUTE_MS;
const QUERIES: [&str; 11] = [
    "cpu_total",
    "sum by (host) (rate(cpu_total[2m]))",
    "max_over_time(cpu_total[5m]) / on (host) sum by (host) (memory)",
    "cpu_total{host=~\"h[0-3]\"} offset 3m",
    "avg_over_time(sum(memory)[10m:1m])",
    "count(cpu_total) or vector(0)",
    "topk(2, memory)",
    // Parts that other queries share.
    "sum by (host) (rate(cpu_total[2m])) / on (host) sum by (host) (memory) > 0.5",
    "clamp_max(sum by (host) (rate(cpu_total[2m])), 3) or -count(cpu_total)",
    // With an annotation, so neither it nor its part is kept.
    "sum by (host) (rate(memory[2m])) / on (host) sum by (host) (memory)",
    // Never kept.
    "{host=\"h1\"}",
];

fn options() -> Options {
    Options {
        shard_count: 4,
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..Options::default()
    }
}

/// A cache with few small slabs.
fn results(mutant: Option<Mutant>, hot_bytes_max: u64) -> ResultOptions {
    let shared_samples_min = if hot_bytes_max == 0 { 1_000_000 } else { 0 };
    let mut options =
        ResultOptions { hot_bytes_max, shared_samples_min, ..ResultOptions::default() };
    options.store.slab_bytes = 64 << 10;
    options.store.flash_bytes_max = 16 * (64 << 10);
    options.store.compaction_trigger = 3;
    options.store.mutant = mutant;
    options
}

fn range(start: Timestamp, end: Timestamp) -> QueryTime {
    QueryTime::Range { start, end, step_ms: STEP_MS }
}

/// The result of the database, and the result of an evaluation.
fn query_both(db: &Db, text: &str, start: Timestamp, end: Timestamp) -> [String; 2] {
    query_both_with(db, text, (start, end, STEP_MS), QueryOptions::default().lookback_ms)
}

fn query_both_with(
    db: &Db,
    text: &str,
    (start, end, step_ms): (Timestamp, Timestamp, i64),
    lookback_ms: i64,
) -> [String; 2] {
    let options = QueryOptions { lookback_ms, ..QueryOptions::default() };
    let time = QueryTime::Range { start, end, step_ms };
    let expr = parse(text).unwrap();
    // Two forms of text, each of which must come back as it was kept.
    let form = (db.result_stats().unwrap().steps_hit % 2) as u8;
    let form_text = |value: &Value| format!("{form}{}", bits(value));
    let queried = match db.recall(text, time, &options, form) {
        Some(text) => String::from_utf8(text.to_vec()).unwrap(),
        None => {
            match db.evaluate_or_recall(&expr, time, &options, &db.context(), Some(form)).unwrap() {
                QueryReply::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                QueryReply::Output(output, ticket) => {
                    let text = form_text(&output.value);
                    if let Some(ticket) = ticket {
                        db.keep_text(ticket, text.as_bytes());
                    }
                    text
                }
            }
        }
    };
    let options = EvalOptions { lookback_ms, ..EvalOptions::range(start, end, step_ms) };
    let computed = firn_promql::eval(&expr, &db.snapshot(), &options, &db.context()).unwrap();
    [queried, form_text(&computed.value)]
}

/// Every bit of a matrix.
fn bits(value: &Value) -> String {
    let Value::Matrix(series) = value else { return format!("{value:?}") };
    let text = |one: &firn_promql::Series| {
        let floats = one.floats.iter().map(|sample| (sample.ts, sample.value.to_bits()));
        format!("{}: {:?} {:?}\n", one.labels, floats.collect::<Vec<_>>(), one.histograms)
    };
    series.iter().map(text).collect()
}

/// A database in a simulated world that experiences every event; the seed decides the times of
/// maintenance and restarts.
struct World {
    sim: Sim,
    rng: Rng,
    mutant: Option<Mutant>,
    retention_ms: Option<i64>,
    /// The threads of a server, which do maintenance too.
    has_threads: bool,
    db: Option<Db>,
    /// Memory that is reserved elsewhere.
    held_memory: Option<Reservation>,
    queries: u64,
    /// Queries that hit the cache at least in part.
    hits: u64,
    /// The number of crashes, and of crashes after which the first query hit the cache.
    crashes: u64,
    hits_after_crash: u64,
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> World {
        World::with_threads(seed, mutant, false)
    }

    fn with_threads(seed: u64, mutant: Option<Mutant>, has_threads: bool) -> World {
        let (sim, rng) = (Sim::new(seed), Rng::new(seed));
        // A run takes hours of simulated time.
        sim.clock.advance(Duration::from_secs(86_400));
        let retention_ms = (seed % 2 == 1).then_some(RETENTION_MS);
        let mut world = World {
            sim,
            rng,
            mutant,
            retention_ms,
            has_threads,
            db: None,
            held_memory: None,
            queries: 0,
            hits: 0,
            crashes: 0,
            hits_after_crash: 0,
        };
        world.open();
        world
    }

    /// A world in which each series has a sample at each of the last `steps` steps.
    fn with_rows(seed: u64, steps: u64) -> World {
        let mut world = World::new(seed, None);
        for _ in 0..steps {
            world.advance_one_step();
            world.write_row(0);
        }
        world
    }

    fn open(&mut self) {
        self.held_memory = None;
        let options = Options {
            tree: TreeOptions {
                retention_ms: self.retention_ms,
                fast_partition_ms: 15 * MINUTE_MS,
                slow_partition_ms: 15 * MINUTE_MS,
                old_partition_ms: 15 * MINUTE_MS,
                ..Default::default()
            },
            ..options()
        };
        let env: Env = self.sim.env();
        let open = if self.has_threads { Db::open_with_progress } else { Db::open_idle };
        let db = open(env, options, &RecoveryProgress::default()).unwrap();
        // Some runs read everything from slabs, in some not everything fits into memory.
        let hot_bytes_max = *self.rng.pick(&[0, 32 << 10, 1 << 20]);
        db.enable_result_cache(results(self.mutant, hot_bytes_max)).unwrap();
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn now(&self) -> Timestamp {
        self.db().now_ms()
    }

    /// Hosts without a job send one metric, whose series stay lone, then others, from which the
    /// index learns that each host is a group.
    fn learn_groups(&mut self) {
        for metrics in [&["cpu_total"][..], &["m0", "m1", "m2", "m3"][..]] {
            let all = (0..6).flat_map(|host| metrics.iter().map(move |name| labels(name, host)));
            let all: Vec<Labels> = all.collect();
            let (ts, mut batch) = (self.now(), RowBatch::default());
            for series in self.db().resolve(&all) {
                batch.push(series.unwrap(), ts, 1.0);
            }
            self.db().write(&mut batch).unwrap();
        }
        let identity = labels("cpu_total", 0).filter(|name| name != "__name__");
        assert_ne!(self.db().group_rule(&identity), GroupRule::Other);
    }

    fn write(&mut self) {
        let late = self.rng.chance(0.1);
        let mut batch = RowBatch::default();
        for host in 0..1 + self.rng.below(6) {
            for metric in ["cpu_total", "memory"] {
                let series = self.db().resolve(&[labels(metric, host)]).remove(0).unwrap();
                // On a grid, so that some late writes replace existing samples.
                let behind = if late { self.rng.below(240) as i64 } else { 0 };
                let ts = self.now().div_euclid(STEP_MS) * STEP_MS - behind * STEP_MS;
                let value = self.some_value();
                batch.push(series, ts, value);
            }
        }
        self.db().write(&mut batch).unwrap();
    }

    fn some_value(&mut self) -> f64 {
        match self.rng.below(60) {
            0 => f64::NAN,
            1 => STALE_NAN,
            _ => self.rng.below(1_000) as f64 / 8.0,
        }
    }

    /// Changes some samples, new or old, in a transaction.
    fn transact(&mut self) {
        let mut changes = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            let series = labels("memory", self.rng.below(6));
            let series = self.db().resolve(&[series]).remove(0).unwrap();
            let behind = self.rng.below(120) as i64;
            let ts = (self.now().div_euclid(STEP_MS) - behind) * STEP_MS;
            changes.push((series, ts, self.some_value()));
        }
        let mut transaction = self.db().begin().unwrap();
        for (series, ts, value) in changes {
            transaction.insert(series, ts, value).unwrap();
        }
        transaction.commit().unwrap();
    }

    /// Reserves all the memory that caches may have, for a while.
    fn exhaust_cache_memory(&mut self) {
        let mut held = self.db().budget().empty(Pool::Cache);
        let mut part = 1_u64 << 40;
        while part > 64 {
            part /= if held.grow(part).is_ok() { 1 } else { 2 };
        }
        self.held_memory = Some(held);
    }

    fn advance_one_step(&mut self) {
        self.sim.clock.advance(Duration::from_millis(STEP_MS as u64));
    }

    /// Writes one sample of each series, `behind` steps in the past.
    fn write_row(&mut self, behind: i64) {
        let ts = (self.now().div_euclid(STEP_MS) - behind) * STEP_MS;
        let mut batch = RowBatch::default();
        for host in 0..4 {
            for metric in ["cpu_total", "memory"] {
                let series = self.db().resolve(&[labels(metric, host)]).remove(0).unwrap();
                batch.push(series, ts, self.rng.below(1_000) as f64 / 8.0);
            }
        }
        self.db().write(&mut batch).unwrap();
    }

    fn delete(&mut self) {
        let host = format!("h{}", self.rng.below(4));
        let start = self.now() - self.rng.between(0, 3_600_000);
        let selector = vec![Matcher::new("host", MatchOp::Equal, host).unwrap()];
        self.db().delete(&[selector], TimeRange::new(start, start + 120_000)).unwrap();
    }

    fn query(&mut self) {
        let count = if self.rng.chance(0.05) { 11 } else { 9 };
        let text = QUERIES[self.rng.below(count) as usize];
        // Some queries reach further back than retention.
        let minutes = match self.rng.chance(0.02) {
            true => 120,
            false => *self.rng.pick(&[10, 30, 60]),
        };
        // Most panels have one step and begin at a multiple of it.
        let step_ms = if self.rng.chance(0.03) { 4 * STEP_MS } else { STEP_MS };
        let phase_ms = if self.rng.chance(0.01) { 7_000 } else { 0 };
        let lookback_ms = if self.rng.chance(0.01) { MINUTE_MS } else { 5 * MINUTE_MS };
        let end = self.now().div_euclid(step_ms) * step_ms + phase_ms;
        let before = self.db().result_stats().unwrap().steps_hit;
        let time = (end - minutes * MINUTE_MS, end, step_ms);
        let [queried, computed] = query_both_with(self.db(), text, time, lookback_ms);
        assert_eq!(queried, computed, "{text} {time:?} {lookback_ms}");
        let after = self.db().result_stats().unwrap().steps_hit;
        self.queries += 1;
        self.hits += u64::from(after > before);
    }

    fn maintain(&mut self) {
        match self.rng.below(4) {
            0 | 1 => self.db().flush().unwrap(),
            2 => self.db().settle(Lane::Head).unwrap(),
            _ => self.db().settle(Lane::Tree).unwrap(),
        }
    }

    /// Closes, kills, or cuts the power.
    fn restart(&mut self) {
        match self.rng.below(6) {
            0 | 1 => {
                self.db().close().unwrap();
                self.db = None;
                return self.open();
            }
            2..=4 => self.db = None,
            _ => {
                self.sim.crash();
                self.db = None;
                self.sim.restart();
            }
        }
        self.open();
        self.crashes += 1;
        // Later queries may hit results that this one stores.
        self.query();
        self.hits_after_crash += u64::from(self.db().result_stats().unwrap().steps_hit > 0);
        (0..4).for_each(|_| self.query());
    }

    fn step(&mut self) {
        if self.held_memory.is_some() && self.rng.chance(0.2) {
            self.held_memory = None;
        }
        let seconds = self.rng.below(20);
        self.sim.clock.advance(Duration::from_secs(seconds));
        // Background work at times that the seed chooses.
        if self.rng.chance(0.5) && !self.has_threads {
            self.db().settle_result_cache();
        }
        match self.rng.below(200) {
            0..70 => self.write(),
            70..190 => self.query(),
            190 | 191 => self.delete(),
            192 if self.rng.chance(0.5) => self.exhaust_cache_memory(),
            192 => self.transact(),
            193..197 => self.maintain(),
            197 => self.restart(),
            // An hour without writes.
            _ if self.rng.chance(0.2) => self.sim.clock.advance(Duration::from_secs(3_600)),
            _ => {}
        }
    }
}

fn labels(metric: &str, host: u64) -> Labels {
    let (host, instance) = (format!("h{host}"), format!("i{host}"));
    Labels::from_pairs([("__name__", metric), ("host", &host), ("instance", &instance)]).unwrap()
}

/// Writes, late writes, updates, deletes, retention, restarts of all kinds and queries.
/// `FIRN_SEED_COUNT=n` runs n seeds.
#[test]
fn invariant_9_a_query_with_the_result_cache_equals_its_evaluation() {
    let seeds = std::env::var("FIRN_SEED_COUNT").ok().and_then(|count| count.parse().ok());
    let sum = Cell::new([0; 4]);
    for seed in 0..seeds.unwrap_or(14) {
        let mut world = World::new(seed, None);
        if seed % 3 == 1 {
            world.learn_groups();
        }
        (0..1_000).for_each(|_| world.step());
        let own = [world.queries, world.hits, world.crashes, world.hits_after_crash];
        sum.set(std::array::from_fn(|idx| sum.get()[idx] + own[idx]));
    }
    let [queries, hits, crashes, hits_after_crash] = sum.get();
    println!("{queries} comparisons, {hits} of them with steps from the cache");
    println!("{crashes} crashes, {hits_after_crash} of them followed by a hit");
    assert!(hits * 10 >= queries * 6, "{hits} of {queries}");
    assert!(crashes > 10 && hits_after_crash * 10 > crashes, "{hits_after_crash} of {crashes}");
}

/// The same with the threads of a server: slabs are written, tables are flushed and merged
/// concurrently with changes and queries. Hits then depend on timing, so only their presence is
/// checked.
#[test]
fn invariant_9_holds_beside_the_threads_of_a_server() {
    // An even seed: otherwise retention could cut between the two results.
    let mut world = World::with_threads(2, None, true);
    let mut slabs_written = 0;
    for _ in 0..1_000 {
        world.step();
        slabs_written = slabs_written.max(world.db().result_stats().unwrap().store.slabs_written);
    }
    println!("{} comparisons, {} hits, {slabs_written} slabs", world.queries, world.hits);
    assert!(world.hits > 0 && slabs_written > 0 && world.crashes > 0, "an event did not occur");
}

#[test]
fn without_invalidation_a_wrong_result_occurs_within_a_thousand_steps() {
    let run = std::panic::AssertUnwindSafe(|| {
        let mut world = World::new(0, Some(Mutant::InvalidationOff));
        (0..1_000).for_each(|_| world.step());
    });
    assert!(std::panic::catch_unwind(run).is_err(), "no difference was detected");
}

/// Results that were kept when a server is killed are valid afterwards, except for steps that were
/// written since. The test does not read the newest flush.
#[test]
fn a_killed_database_keeps_its_results_except_for_later_changes() {
    let mut world = World::with_rows(2, 240);
    let (end, minutes) = (world.now().div_euclid(STEP_MS) * STEP_MS, 50);
    let start = end - minutes * MINUTE_MS;
    let refresh = |world: &World| {
        let before = world.db().result_stats().unwrap();
        for text in &QUERIES[..4] {
            let [queried, computed] = query_both(world.db(), text, start, end);
            assert_eq!(queried, computed, "{text}");
        }
        let after = world.db().result_stats().unwrap();
        (after.steps_hit - before.steps_hit, after.steps_missed - before.steps_missed)
    };
    let steps = 4 * (minutes as u64 * 4 + 1);
    assert_eq!(refresh(&world), (0, steps));
    world.db().flush().unwrap();
    world.db().settle_result_cache();
    // Only in the log: 20 minutes ago, and now.
    world.write_row(80);
    world.advance_one_step();
    world.write_row(0);
    world.db = None;
    world.open();
    let (found, missing) = refresh(&world);
    assert_eq!(found + missing, steps);
    // All steps before the late sample, for each of the four queries.
    assert!(found >= 4 * 25 * 4, "{found} of {steps}");
    assert!(missing > 0);
    assert_eq!(refresh(&world), (steps, 0));
}

/// A repair loses samples that a kept result may contain: no result from before the repair is
/// returned.
#[test]
fn samples_lost_in_a_repair_are_in_no_result() {
    let mut world = World::with_rows(2, 240);
    world.db().flush().unwrap();
    let end = world.now().div_euclid(STEP_MS) * STEP_MS;
    let start = end - 50 * MINUTE_MS;
    let [kept, _] = query_both(world.db(), QUERIES[0], start, end);
    world.db.take().unwrap().close().unwrap();
    let tables = world.sim.disk.files().into_iter().filter(|path| path.contains("tables/"));
    let largest = tables.max_by_key(|path| world.sim.disk.bytes(path).unwrap().len()).unwrap();
    let flip = |bytes: &mut Vec<u8>| bytes[100..400].iter_mut().for_each(|byte| *byte ^= 0x55);
    world.sim.disk.damage(&largest, flip).unwrap();
    let db = Db::open_idle(world.sim.env(), options(), &RecoveryProgress::default()).unwrap();
    let report = db.check(true, &firndb::CancelToken::new(), &mut |_| ()).unwrap();
    assert!(report.findings.iter().any(|found| found.loss.is_some() && found.is_repaired));
    db.close().unwrap();
    drop(db);
    world.open();
    let [queried, computed] = query_both(world.db(), QUERIES[0], start, end);
    assert!(queried == computed, "a result from before the repair was returned");
    assert!(queried != kept, "nothing was lost");
}

#[test]
fn a_refreshed_dashboard_computes_only_its_newest_steps_even_after_a_restart() {
    let mut world = World::new(4, None);
    for _ in 0..240 {
        world.advance_one_step();
        world.write_row(1);
    }
    let refresh = |world: &World| {
        let now = world.now().div_euclid(STEP_MS) * STEP_MS;
        for text in &QUERIES[..4] {
            let [queried, computed] = query_both(world.db(), text, now - 1_800_000, now);
            assert_eq!(queried, computed, "{text}");
        }
        world.db().result_stats().unwrap()
    };
    let first = refresh(&world);
    assert_eq!((first.store.misses, first.steps_hit), (4, 0));
    for _ in 0..5 {
        world.advance_one_step();
        refresh(&world);
    }
    let last = refresh(&world);
    assert_eq!(last.store.misses, 4, "{last:?}");
    assert_eq!(last.steps_missed - first.steps_missed, 4 * 5, "one new step per refresh");
    world.db().close().unwrap();
    world.db = None;
    world.open();
    let again = refresh(&world);
    assert_eq!((again.store.misses, again.steps_missed), (0, 0), "{again:?}");
}

/// A result that retention may cut while it is kept is computed each time; others are kept.
#[test]
fn results_that_retention_may_cut_are_not_kept() {
    let world = World::with_rows(1, 480);
    let end = world.now().div_euclid(STEP_MS) * STEP_MS;
    for (minutes, is_kept) in [(60, true), (86, false), (120, false)] {
        let found = |world: &World| world.db().result_stats().unwrap().steps_hit;
        let before = found(&world);
        for _ in 0..2 {
            let [queried, computed] =
                query_both(world.db(), "max_over_time(memory[5m])", end - minutes * MINUTE_MS, end);
            assert_eq!(queried, computed, "{minutes} minutes");
        }
        assert_eq!(found(&world) > before, is_kept, "{minutes} minutes");
    }
}

/// A result that is too large to be returned from the cache stays unchanged: the computed result
/// does not replace it.
#[test]
fn a_result_too_large_to_return_is_not_kept_again() {
    let mut world = World::with_rows(8, 40);
    let end = world.now().div_euclid(STEP_MS) * STEP_MS;
    world.db = None;
    let db = Db::open_idle(world.sim.env(), options(), &RecoveryProgress::default()).unwrap();
    let limited = |answer_bytes_max| ResultOptions { answer_bytes_max, ..results(None, 0) };
    db.enable_result_cache(limited(1_000)).unwrap();
    let query = |steps| {
        let [queried, computed] = query_both(&db, "memory", end - steps * STEP_MS, end);
        assert_eq!(queried, computed, "{steps} steps");
        db.result_stats().unwrap()
    };
    let first = query(30);
    assert_eq!((first.fills, first.steps_hit), (1, 0));
    let again = query(30);
    assert_eq!((again.fills, again.steps_hit), (1, 0), "{again:?}");
    assert_eq!(again.store.set_bytes, first.store.set_bytes);
    // The kept result is still available to a query for fewer steps.
    let short = query(1);
    assert_eq!((short.steps_hit, short.fills), (2, 1), "{short:?}");
}

/// A hit counts against the limits of its query like a computed result.
#[test]
fn a_hit_over_the_sample_limit_is_refused_like_an_evaluation() {
    let world = World::with_rows(6, 20);
    let end = world.now().div_euclid(STEP_MS) * STEP_MS;
    let db = world.db();
    let query = |samples_max| {
        let options = QueryOptions { samples_max, ..QueryOptions::default() };
        let time = range(end - 20 * STEP_MS, end);
        let queried = db.query("memory", time, &options, &db.context());
        queried.map(|output| bits(&output.value)).map_err(|e| e.to_string())
    };
    let whole = query(1_000_000).unwrap();
    let found = db.result_stats().unwrap().steps_hit;
    assert_eq!(query(1_000_000).unwrap(), whole);
    assert!(db.result_stats().unwrap().steps_hit > found, "the second query is a hit");
    let refused = query(3).unwrap_err();
    assert!(refused.contains("too many samples"), "{refused}");
}
