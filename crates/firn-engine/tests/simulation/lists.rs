//! Lists of names, values and series over a time range against a map of all series. Most series
//! have only samples of earlier hours, so that lists are narrowed to the groups with data.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, HeadOptions, Lane, RecoveryProgress};
use firn_model::{
    Grouping, Labels, MatchOp, Matcher, QueryContext, RowBatch, Selection, SeriesRef, TimeRange,
};
use firn_sim::{Rng, Sim};

use crate::world;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const HOURS: usize = 5;
const PODS_PER_HOUR: usize = 160;
const QUERIES: usize = 40;

/// The hours, from the first to the last, in which each series has samples.
type Model = BTreeMap<Labels, (usize, usize)>;

fn open(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions {
        shard_count: 4,
        tree: firn_tree::TreeOptions { block_bytes: 512, bucket_grace_ms: 0, ..Default::default() },
        head: HeadOptions { hot_bytes_max: 0, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

/// Two series per pod. Pods share the group of a node or are groups, by `job` and `instance` or
/// learned. Tasks of one series each, which share no label that identifies a group, are lone.
fn labels(pod: usize) -> [Labels; 2] {
    let (name, zone) = (format!("p{pod}"), format!("z{}", pod % 7));
    let node = format!("n{}", if pod.is_multiple_of(3) { pod } else { pod % 20 });
    ["cpu", "mem"].map(|metric| {
        let task = format!("t{pod}-{metric}");
        let mut pairs = vec![("__name__", metric), ("zone", &*zone)];
        match pod % 6 {
            2 => pairs.extend([("pod", &*name), ("kind", "learned")]),
            5 => pairs.push(("task", &*task)),
            _ => pairs.extend([("pod", &*name), ("job", "kube"), ("instance", &*node)]),
        }
        Labels::from_pairs(pairs).expect("valid labels")
    })
}

/// Each form of a group is there: if a rule of the index changes, this test must not lose one.
fn check_groups(engine: &Engine, all: &[Labels], refs: &[SeriesRef]) {
    let snapshot = engine.snapshot();
    let mut counts = [0, 0];
    for (labels, series) in all.iter().zip(refs) {
        let group = snapshot.index().group(series.group).expect("no file is damaged");
        let is_lone = group.expect("a known series").is_lone;
        assert_eq!(is_lone, labels.get("task").is_some(), "{labels}");
        counts[0] += usize::from(is_lone);
        counts[1] += usize::from(labels.get("kind").is_some());
    }
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
}

fn step_all(engine: &Engine, lane: Lane) {
    while engine.step(lane).expect("a step").is_some() {}
}

fn within(hours: (usize, usize), start: i64) -> TimeRange {
    let at = |hour: usize| start + hour as i64 * HOUR_MS;
    // The last sample of an hour is older.
    TimeRange::new(at(hours.0), at(hours.1) + 55 * MINUTE_MS)
}

fn random_matchers(rng: &mut Rng) -> Vec<Matcher> {
    let choices = [
        ("__name__", MatchOp::Equal, "cpu"),
        ("zone", MatchOp::Equal, "z3"),
        ("zone", MatchOp::NotEqual, "z1"),
        ("pod", MatchOp::Regex, "p.*7"),
        ("pod", MatchOp::NotRegex, "p1.*"),
        ("job", MatchOp::Equal, ""),
        ("job", MatchOp::Equal, "kube"),
        ("kind", MatchOp::Regex, "learned|"),
        ("task", MatchOp::Regex, "t.*-cpu"),
        ("task", MatchOp::NotEqual, ""),
        ("instance", MatchOp::Equal, "n4"),
    ];
    let mut matchers = Vec::new();
    for _ in 0..rng.below(3) {
        let (name, op, value) = *rng.pick(&choices);
        matchers.push(Matcher::new(name, op, value).expect("a matcher"));
    }
    matchers
}

fn check(engine: &Engine, model: &Model, start: i64, rng: &mut Rng) {
    let (snapshot, context) = (engine.snapshot(), QueryContext::unbounded());
    for _ in 0..QUERIES {
        let first = rng.below(HOURS as u64) as usize;
        let last = first + rng.below(2.min((HOURS - first) as u64)) as usize;
        let (range, matchers) = (within((first, last), start), random_matchers(rng));
        let asked = format!("hours {first} to {last} of {matchers:?}");
        let is_here = |(labels, hours): &(&Labels, &(usize, usize))| {
            hours.0 <= last
                && hours.1 >= first
                && matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or("")))
        };
        let series: BTreeSet<&Labels> = model.iter().filter(is_here).map(|one| one.0).collect();
        let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, value) in series.iter().flat_map(|labels| labels.iter()) {
            values.entry(name).or_default().insert(value);
        }

        let limit = if rng.chance(0.3) { 1 + rng.below(9) as usize } else { 0 };
        let count = if limit == 0 { usize::MAX } else { limit };
        let mut names: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            names.push(name.to_owned());
            let is_last = names.len() == count;
            Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        snapshot.each_label_name(&matchers, range, &context, &mut add).expect("names");
        assert!(names.iter().eq(values.keys().take(count)), "{names:?} in {asked}");
        for name in ["pod", "task", "zone", "__name__", "job", "instance", "kind", "nothing"] {
            let mut listed: Vec<String> = Vec::new();
            let mut add = |value: &str| {
                listed.push(value.to_owned());
                let is_last = listed.len() == count;
                Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            let found = snapshot.each_label_value(name, &matchers, range, &context, &mut add);
            found.expect("values");
            let want = values.get(name).into_iter().flatten().take(count);
            assert!(listed.iter().eq(want), "{listed:?} of {name} in {asked}");
        }

        let grouping = Grouping::Series;
        let selection = Selection { matchers: matchers.clone(), range, grouping };
        let listed = world::listed(&snapshot, &selection).expect("a list");
        assert!(listed.iter().eq(series.iter().copied()), "{listed:?} in {asked}");
        let some = |limit: usize| {
            let mut some = Vec::new();
            let mut add = |labels| {
                some.push(labels);
                Ok(())
            };
            snapshot.present_series(&matchers, range, limit, &context, &mut add).expect("a list");
            some
        };
        let all = some(0);
        assert_eq!((all.len(), all.iter().collect()), (series.len(), series), "{asked}");
        assert_eq!(some(limit), all[..count.min(all.len())], "the first {limit} in {asked}");
    }
}

/// Deletes whole series, and then the first hours of others.
fn delete_some(engine: &Engine, model: &mut Model, start: i64) {
    for (name, pattern) in [("pod", "p.*5"), ("task", "t.*5-mem")] {
        let whole = Matcher::new(name, MatchOp::Regex, pattern).expect("a matcher");
        engine.delete(&[vec![whole.clone()]], TimeRange::ALL).expect("a delete");
        let series_count = model.len();
        model.retain(|labels, _| !whole.matches(labels.get(name).unwrap_or("")));
        assert!(model.len() < series_count, "no series matches {pattern}");
    }
    let last = 2;
    let part = Matcher::equal("zone", "z2");
    let range = TimeRange::new(i64::MIN, within((0, last), start).end);
    engine.delete(&[vec![part.clone()]], range).expect("a delete");
    model.retain(|labels, hours| {
        if part.matches(labels.get("zone").unwrap_or("")) {
            hours.0 = hours.0.max(last + 1);
        }
        hours.0 <= hours.1
    });
}

#[test]
fn lists_equal_those_of_a_walk_over_all_series() {
    for seed in 31..34 {
        let (sim, mut rng) = (Sim::new(seed), Rng::new(seed));
        let mut engine = open(&sim);
        let start = sim.env().clock.now_ms();
        let mut model = Model::new();
        for hour in 0..HOURS {
            sim.clock.advance(Duration::from_millis(HOUR_MS as u64));
            // New pods, and half of the previous hour's.
            let first = (hour * PODS_PER_HOUR).saturating_sub(PODS_PER_HOUR / 2);
            let all: Vec<Labels> = (first..(hour + 1) * PODS_PER_HOUR).flat_map(labels).collect();
            let refs = engine.resolve(&all).into_iter().map(|found| found.expect("resolves"));
            let refs: Vec<_> = refs.collect();
            check_groups(&engine, &all, &refs);
            let mut batch = RowBatch::default();
            for quarter in 0..4 {
                let ts = start + hour as i64 * HOUR_MS + quarter * 15 * MINUTE_MS;
                refs.iter().for_each(|&series| batch.push(series, ts, ts as f64));
            }
            assert_eq!(engine.write(&mut batch).expect("a write").unknown, 0);
            for labels in all {
                model.entry(labels).or_insert((hour, hour)).1 = hour;
            }
            if hour + 1 < HOURS {
                engine.flush().expect("a flush");
                step_all(&engine, Lane::Tree);
            }
        }
        // The last hour is in rows, and then in columns.
        check(&engine, &model, start, &mut rng);
        step_all(&engine, Lane::Head);
        check(&engine, &model, start, &mut rng);
        delete_some(&engine, &mut model, start);
        check(&engine, &model, start, &mut rng);
        engine.flush().expect("a flush");
        drop(engine);
        engine = open(&sim);
        check(&engine, &model, start, &mut rng);
        engine.clean_tombstones().expect("cleaning");
        step_all(&engine, Lane::Tree);
        check(&engine, &model, start, &mut rng);
    }
}
