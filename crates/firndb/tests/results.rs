//! Invariant 9 through the whole database: with the result cache a range query says what evaluating says, bit for bit,
//! under late data, deletes, new series, flushes and restarts.

use std::path::Path;

use firn_promql::{EvalOptions, Value, parse};
use firn_sim::Rng;
use firndb::{
    Db, Labels, MatchOp, Matcher, Options, QueryTime, ResultOptions, RowBatch, SyncPolicy,
    TimeRange, Timestamp, local_env,
};

const BASE: Timestamp = 1_700_000_000_000;
const STEP_MS: i64 = 15_000;
const QUERIES: [&str; 8] = [
    "cpu_total",
    "sum by (host) (rate(cpu_total[2m]))",
    "max_over_time(cpu_total[5m]) / on (host) sum by (host) (memory)",
    "cpu_total{host=~\"h[0-3]\"} offset 3m",
    "avg_over_time(sum(memory)[10m:1m])",
    "count(cpu_total) or vector(0)",
    "topk(2, memory)",
    // Refused: without the cache then.
    "{host=\"h1\"}",
];

fn open(folder: &Path) -> Db {
    let options = Options {
        shard_count: 4,
        // The test cuts no power.
        log_sync: SyncPolicy::Never,
        ..Options::default()
    };
    let db = Db::open(local_env(folder).unwrap(), options).unwrap();
    let mut options = ResultOptions::default();
    options.store.slab_bytes = 64 << 10;
    options.store.flash_bytes_max = 16 * (64 << 10);
    options.store.compaction_trigger = 3;
    db.keep_results(options).unwrap();
    db
}

fn range(start: Timestamp, end: Timestamp) -> QueryTime {
    QueryTime::Range { start, end, step_ms: STEP_MS }
}

/// What the database says, and what evaluating says.
fn ask_both(db: &Db, text: &str, start: Timestamp, end: Timestamp) -> [String; 2] {
    let asked = db.query_now(text, range(start, end)).map(|output| output.value);
    let options = EvalOptions::range(start, end, STEP_MS);
    let expr = parse(text).unwrap();
    let computed = firn_promql::eval(&expr, &db.snapshot(), &options, &db.context());
    [asked, computed.map(|output| output.value)].map(|value| match value {
        Ok(value) => bits(&value),
        Err(e) => panic!("{text}: {e}"),
    })
}

/// Every bit of a matrix.
fn bits(value: &Value) -> String {
    let Value::Matrix(series) = value else { return format!("{value:?}") };
    let text = |one: &firn_promql::Series| {
        let floats = one.floats.iter().map(|sample| (sample.ts - BASE, sample.value.to_bits()));
        format!("{}: {:?} {:?}\n", one.labels, floats.collect::<Vec<_>>(), one.histograms)
    };
    series.iter().map(text).collect()
}

struct World {
    db: Db,
    rng: Rng,
    now: Timestamp,
}

impl World {
    fn write(&mut self) {
        let late = self.rng.chance(0.1);
        let mut batch = RowBatch::default();
        for host in 0..1 + self.rng.below(6) {
            for metric in ["cpu_total", "memory"] {
                let labels = Labels::from_pairs([
                    ("__name__", metric),
                    ("host", &format!("h{host}")),
                    ("instance", &format!("i{host}")),
                ]);
                let series = self.db.resolve(&[labels.unwrap()]).remove(0).unwrap();
                let behind = if late { self.rng.between(0, 3_600_000) } else { 0 };
                batch.push(series, self.now - behind, self.rng.below(1_000) as f64 / 8.0);
            }
        }
        self.db.write(&mut batch).unwrap();
    }

    fn delete(&mut self) {
        let host = format!("h{}", self.rng.below(4));
        let start = self.now - self.rng.between(0, 3_600_000);
        let selector = vec![Matcher::new("host", MatchOp::Equal, host).unwrap()];
        self.db.delete(&[selector], TimeRange::new(start, start + 120_000)).unwrap();
    }

    fn query(&mut self) {
        let text = *self.rng.pick(&QUERIES);
        let minutes = *self.rng.pick(&[10, 30, 60]);
        let end = self.now.div_euclid(STEP_MS) * STEP_MS;
        let [asked, computed] = ask_both(&self.db, text, end - minutes * 60_000, end);
        assert_eq!(asked, computed, "{text}");
    }
}

#[test]
fn invariant_9_a_query_with_the_result_cache_says_what_evaluating_says() {
    let mut found = 0;
    for seed in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World { db: open(folder.path()), rng: Rng::new(seed), now: BASE };
        for _ in 0..400 {
            world.now += world.rng.between(0, 20_000);
            match world.rng.below(100) {
                0..45 => world.write(),
                45..95 => world.query(),
                95..97 => world.delete(),
                97 => world.db.flush().unwrap(),
                _ => {
                    // A clean end or a sudden one; the cache outlives the first only.
                    found += world.db.result_stats().unwrap().steps_found;
                    if world.rng.chance(0.5) {
                        world.db.close().unwrap();
                    }
                    let World { db, rng, now } = world;
                    drop(db);
                    world = World { db: open(folder.path()), rng, now };
                }
            }
        }
        found += world.db.result_stats().unwrap().steps_found;
    }
    println!("{found} steps came from the cache");
    assert!(found > 10_000, "{found} steps came from the cache");
}

#[test]
fn a_dashboard_that_is_refreshed_computes_its_newest_steps_only_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World { db: open(folder.path()), rng: Rng::new(7), now: BASE };
    for _ in 0..240 {
        world.now += STEP_MS;
        let now = world.now;
        world.now -= 1_000;
        world.write();
        world.now = now;
    }
    let refresh = |world: &World| {
        for text in &QUERIES[..4] {
            let [asked, computed] = ask_both(&world.db, text, world.now - 1_800_000, world.now);
            assert_eq!(asked, computed, "{text}");
        }
        world.db.result_stats().unwrap()
    };
    let first = refresh(&world);
    assert_eq!((first.store.misses, first.steps_found), (4, 0));
    for _ in 0..5 {
        world.now += STEP_MS;
        refresh(&world);
    }
    let last = refresh(&world);
    assert_eq!(last.store.misses, 4, "{last:?}");
    assert_eq!(last.steps_missing - first.steps_missing, 4 * 5, "one new step per refresh");
    world.db.close().unwrap();
    drop(world.db);
    world.db = open(folder.path());
    let again = refresh(&world);
    assert_eq!((again.store.misses, again.steps_missing), (0, 0), "{again:?}");
}

/// A hit is held against the limits of its query as what is computed is.
#[test]
fn a_hit_over_the_limit_of_samples_is_refused_as_evaluating_refuses_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World { db: open(folder.path()), rng: Rng::new(9), now: BASE };
    for _ in 0..20 {
        world.now += STEP_MS;
        world.write();
    }
    let (start, end) = (BASE, BASE + 20 * STEP_MS);
    let ask = |samples_max| {
        let options = firndb::QueryOptions { samples_max, ..firndb::QueryOptions::default() };
        let asked = world.db.query("memory", range(start, end), &options, &world.db.context());
        asked.map(|output| bits(&output.value)).map_err(|e| e.to_string())
    };
    let whole = ask(1_000_000).unwrap();
    let found = world.db.result_stats().unwrap().steps_found;
    assert_eq!(ask(1_000_000).unwrap(), whole);
    assert!(world.db.result_stats().unwrap().steps_found > found, "the second answer is a hit");
    let refused = ask(3).unwrap_err();
    assert!(refused.contains("too many samples"), "{refused}");
}
