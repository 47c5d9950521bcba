//! Members that join and leave groups that stay, as pods of a Kubernetes node do. They leave the
//! index with their samples, and listings over a time range separate old members from new ones
//! without reading data.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, HeadOptions, Lane, LogOptions, RecoveryProgress};
use firn_model::{
    Grouping, Labels, Matcher, QueryContext, RowBatch, Selection, SeriesRef, TimeRange,
};
use firn_sim::{ObservedSamples, Sim};

use crate::world::{self, known_values};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const LIVING: usize = 48;
const NEW_EVERY_HOUR: usize = LIVING / 3;

fn open(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions {
        shard_count: 4,
        tree: firn_tree::TreeOptions {
            retention_ms: Some(4 * HOUR_MS),
            block_bytes: 512,
            bucket_grace_ms: 0,
            ..Default::default()
        },
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        head: HeadOptions { hot_bytes_max: 0, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

fn labels(pod: usize) -> Labels {
    let pod = format!("p{pod}");
    let pairs =
        [("__name__", "up"), ("job", "kube"), ("instance", "node-1"), ("pod", pod.as_str())];
    Labels::from_pairs(pairs).expect("valid labels")
}

fn resolve(engine: &Engine, pods: impl Iterator<Item = usize>) -> Vec<SeriesRef> {
    let labels: Vec<Labels> = pods.map(labels).collect();
    engine.resolve(&labels).into_iter().map(|found| found.expect("resolves")).collect()
}

/// Advances the clock by an hour, writes a sample of each of `pods` for every five minutes of it,
/// flushes, and completes all background work.
fn live_an_hour(sim: &Sim, engine: &Engine, pods: std::ops::Range<usize>) {
    let start = sim.env().clock.now_ms();
    sim.clock.advance(Duration::from_millis(HOUR_MS as u64));
    let refs = resolve(engine, pods);
    let mut batch = RowBatch::default();
    for ts in (start..start + HOUR_MS).step_by(5 * MINUTE_MS as usize) {
        refs.iter().for_each(|&series| batch.push(series, ts, ts as f64));
    }
    assert_eq!(engine.write(&mut batch).expect("a write").unknown, 0);
    engine.flush().expect("a flush");
    while engine.step(Lane::Head).expect("a step").is_some() {}
    while engine.step(Lane::Tree).expect("a step").is_some() {}
}

fn pods_of(hour: usize) -> std::ops::Range<usize> {
    hour * NEW_EVERY_HOUR..hour * NEW_EVERY_HOUR + LIVING
}

/// Every hour a third of the pods is replaced, and retention removes samples that are older than
/// four hours. Members without samples leave the index although their group stays. Once half of the
/// group's slots are dead, new members join a sibling group, so slot numbers stay low. After a
/// power failure the index and the references are unchanged.
#[test]
fn members_without_samples_leave_a_living_group_and_a_sibling_opens() {
    const HOURS: usize = 20;
    let sim = Sim::new(21);
    let engine = open(&sim);
    let first = resolve(&engine, 0..1)[0].group;
    let mut series_count_max = 0;
    for hour in 0..HOURS {
        live_an_hour(&sim, &engine, pods_of(hour));
        series_count_max = engine.stats().index.series_count.max(series_count_max);
        let here =
            ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL).expect("a read").series;
        let is_here = |pod: usize| here.contains_key(&labels(pod));
        assert!(pods_of(hour).all(is_here), "the living have their samples");
    }
    let ever = pods_of(HOURS - 1).end;
    let stats = engine.stats();
    // Retention is four hours, a partition spans up to two hours, and the index is checked for dead
    // series every hour.
    let bound = LIVING + 8 * NEW_EVERY_HOUR;
    assert!(series_count_max <= bound as u64, "{series_count_max} series, {bound} may be");
    assert_eq!(stats.series_removed, ever as u64 - stats.index.series_count);
    let pods: BTreeSet<String> = known_values(&engine, "pod").into_iter().collect();
    assert_eq!(pods.len() as u64, stats.index.series_count);
    assert!(!pods.contains("p0") && pods.contains(&format!("p{}", ever - 1)));
    let newest = resolve(&engine, ever - 1..ever)[0];
    assert_ne!(newest.group, first, "a sibling opened");
    assert!((newest.slot.0 as usize) < ever / 2, "{newest:?} is one of few");
    // After a restart the same holds, and new members join the youngest sibling.
    drop(engine);
    sim.crash();
    sim.restart();
    let engine = open(&sim);
    assert_eq!(engine.stats().index.series_count, stats.index.series_count);
    assert_eq!(resolve(&engine, ever - 1..ever)[0], newest);
    assert_eq!(resolve(&engine, ever..ever + 1)[0].group, newest.group);
}

/// Before, retention dropped everything at once, for good.
#[test]
fn a_clock_that_jumps_ahead_drops_nothing_for_a_day() {
    const YEARS_50_MS: i64 = 50 * 365 * 24 * HOUR_MS;
    let sim = Sim::new(23);
    let engine = open(&sim);
    let dropped_after = |change_ms: i64| {
        sim.clock.set_now_ms(sim.env().clock.now_ms() + change_ms);
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        engine.stats().expired_tables
    };
    live_an_hour(&sim, &engine, 0..4);
    assert_eq!(dropped_after(YEARS_50_MS), 0);
    sim.clock.advance(Duration::from_secs(3_600));
    assert_eq!(dropped_after(0), 0);
    assert_eq!(dropped_after(-YEARS_50_MS), 0);
    live_an_hour(&sim, &engine, 0..4);
    assert_eq!(dropped_after(YEARS_50_MS), 0);
    sim.clock.advance(Duration::from_secs(24 * 3_600));
    assert!(dropped_after(0) > 0, "it has lasted for a day");
}

/// Tables that are written while the clock is ahead do not make it right at the next start.
#[test]
fn starts_while_the_clock_is_ahead_drop_nothing() {
    const MONTH_MS: i64 = 30 * 24 * HOUR_MS;
    let sim = Sim::new(24);
    let mut engine = open(&sim);
    live_an_hour(&sim, &engine, 0..4);
    sim.clock.set_now_ms(sim.env().clock.now_ms() + MONTH_MS);
    for _ in 0..3 {
        live_an_hour(&sim, &engine, 0..4);
        sim.crash();
        sim.restart();
        engine = open(&sim);
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        assert_eq!(engine.stats().expired_tables, 0);
    }
    (0..24).for_each(|_| live_an_hour(&sim, &engine, 0..4));
    assert!(engine.stats().expired_tables > 0, "it has lasted for a day");
}

/// Listings over a time range read no block and decode no column, wherever the samples are stored,
/// and they separate the members of one group.
#[test]
fn lists_over_a_time_range_read_no_data() {
    let sim = Sim::new(22);
    let engine = open(&sim);
    let start = sim.env().clock.now_ms();
    let listed = |engine: &Engine, range: TimeRange| -> BTreeSet<Labels> {
        let context = QueryContext::unbounded();
        let matchers = vec![Matcher::equal("job", "kube")];
        let selection = Selection { matchers: matchers.clone(), range, grouping: Grouping::Series };
        let snapshot = engine.snapshot();
        let keys = world::listed(&snapshot, &selection).expect("a listing");
        let mut has_pod = false;
        let mut look = |name: &str| {
            has_pod |= name == "pod";
            Ok(ControlFlow::Continue(()))
        };
        snapshot.each_label_name(&matchers, range, &context, &mut look).expect("a listing");
        assert_eq!(has_pod, !keys.is_empty());
        let mut pods = Vec::new();
        let mut add = |pod: &str| {
            pods.push(pod.to_owned());
            Ok(ControlFlow::Continue(()))
        };
        snapshot.each_label_value("pod", &matchers, range, &context, &mut add).expect("a listing");
        let of_keys: BTreeSet<&str> = keys.iter().filter_map(|key| key.get("pod")).collect();
        assert_eq!(pods, of_keys.into_iter().collect::<Vec<_>>(), "{range:?}");
        let stats = &context.stats;
        let reads = [&stats.fast_bytes, &stats.slow_bytes, &stats.cache_hits, &stats.cache_misses];
        assert_eq!(reads.map(|count| count.get()), [0; 4], "blocks were read for {range:?}");
        assert_eq!(stats.memory_bytes.get(), 0, "columns were decoded for {range:?}");
        keys
    };
    // An hour's samples are in its first 55 minutes.
    let hour = |hour: usize| {
        let start = start + hour as i64 * HOUR_MS;
        TimeRange::new(start, start + 55 * MINUTE_MS)
    };
    let pods = |pods: std::ops::Range<usize>| pods.map(labels).collect::<BTreeSet<Labels>>();
    for last in 0..4 {
        live_an_hour(&sim, &engine, pods_of(last));
        for asked in 0..=last {
            assert_eq!(
                listed(&engine, hour(asked)),
                pods(pods_of(asked)),
                "hour {asked} of {last}"
            );
        }
    }
    // Members with samples in memory are listed too.
    let now = sim.env().clock.now_ms();
    for pods in [200..210, 205..230] {
        let refs = resolve(&engine, pods);
        let mut batch = RowBatch::default();
        refs.iter().for_each(|&series| batch.push(series, now, 1.0));
        engine.write(&mut batch).expect("a write");
        while engine.step(Lane::Head).expect("a step").is_some() {}
    }
    assert_eq!(listed(&engine, TimeRange::new(now, now + HOUR_MS)), pods(200..230));
    assert_eq!(listed(&engine, hour(1)), pods(pods_of(1)));
    let all: BTreeSet<Labels> = pods(0..pods_of(3).end).union(&pods(200..230)).cloned().collect();
    assert_eq!(listed(&engine, TimeRange::ALL), all);
    engine.flush().expect("a flush");
    drop(engine);
    let engine = open(&sim);
    assert_eq!(listed(&engine, TimeRange::new(now, now + HOUR_MS)), pods(200..230));
    assert_eq!(listed(&engine, TimeRange::ALL), all);
    // A delete of all samples of a member removes it from listings, before and after it is applied
    // to the tables.
    let delete = vec![Matcher::equal("pod", "p205")];
    engine.delete(&[delete], TimeRange::ALL).expect("a delete");
    let rest: BTreeSet<Labels> = all.into_iter().filter(|one| *one != labels(205)).collect();
    assert_eq!(listed(&engine, TimeRange::ALL), rest);
    engine.clean_tombstones().expect("cleaning");
    assert_eq!(listed(&engine, TimeRange::ALL), rest);
}
