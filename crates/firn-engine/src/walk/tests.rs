//! Walks compared with a plain map: every sample once and in order, in bounded memory, with few
//! requests to the slow tier.

use std::collections::BTreeMap;

use firn_index::GroupRule;
use firn_model::{MatchOp, RowBatch, STALE_NAN_BITS};
use firn_sim::{Rng, Sim, for_seeds};

use super::*;
use crate::{ConvertOptions, Engine, EngineOptions, HeadOptions, Lane, RecoveryProgress};

/// Labels to time to bits.
type World = BTreeMap<Labels, BTreeMap<Timestamp, u64>>;

// So far before the simulated clock that nothing is in the future.
const START_MS: Timestamp = 1_760_000_000_000;

fn engine() -> Arc<Engine> {
    engine_of(&Sim::new(1))
}

fn engine_of(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions {
        memory_bytes_max: 256 << 20,
        shard_count: 4,
        stream_count: Some(1),
        tree: firn_tree::TreeOptions {
            block_bytes: 256,
            table_bytes_max: 2 << 10,
            old_partition_ms: 2 * 3_600_000,
            ..Default::default()
        },
        head: HeadOptions {
            convert: ConvertOptions {
                arena_bytes_max: 256,
                sparse_arena_times: 4,
                ..ConvertOptions::default()
            },
            ..Default::default()
        },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).unwrap()
}

fn labels(metric: u64, instance: u64) -> Labels {
    let (metric, instance) = (format!("m{metric}"), format!("i{instance}"));
    Labels::from_pairs([("__name__", metric.as_str()), ("instance", &instance), ("job", "j")])
        .unwrap()
}

/// Some instances have no job: their series are lone until the index has learned their groups.
fn some_labels(metric: u64, instance: u64) -> Labels {
    labels(metric, instance).filter(|name| name != "job" || instance < 2)
}

/// Defines further series, so that the index learns groups of instances without a job.
fn learn_groups(engine: &Engine) {
    let sets: Vec<Labels> = (2..5)
        .flat_map(|instance| (10..18).map(move |metric| some_labels(metric, instance)))
        .collect();
    assert!(engine.resolve(&sets).iter().all(Result::is_ok));
    let identity = sets[0].filter(|name| name == "instance");
    assert_ne!(engine.group_rule(&identity), GroupRule::Other);
}

/// Writes a random piece of some series: short or long, dense or sparse, late or not, with gaps.
fn write(engine: &Engine, rng: &mut Rng, world: &mut World) {
    let labels = some_labels(rng.below(4), rng.below(5));
    let series = engine.resolve(std::slice::from_ref(&labels)).remove(0).unwrap();
    let mut batch = RowBatch::default();
    let mut ts = START_MS + rng.between(0, 40) * 3_600_000;
    let step_ms = *rng.pick(&[1, 1_000, 15_000, 3_600_000]);
    for _ in 0..rng.below(120) {
        let bits = if rng.chance(0.05) { STALE_NAN_BITS } else { (rng.below(9) as f64).to_bits() };
        batch.push(series, ts, f64::from_bits(bits));
        world.entry(labels.clone()).or_default().insert(ts, bits);
        ts += step_ms;
    }
    engine.write(&mut batch).unwrap();
}

/// Deletes a piece of all series of one instance.
fn delete(engine: &Engine, rng: &mut Rng, world: &mut World) {
    let instance = format!("i{}", rng.below(5));
    let start = START_MS + rng.between(0, 40) * 3_600_000;
    let range = TimeRange::new(start, start + rng.between(0, 20_000_000));
    engine.delete(&[vec![Matcher::equal("instance", &instance)]], range).unwrap();
    for (_, samples) in world.iter_mut().filter(|(l, _)| l.get("instance") == Some(&instance)) {
        samples.retain(|&ts, _| !range.contains(ts));
    }
}

fn walk(engine: &Engine, options: WalkOptions) -> Vec<(Labels, Vec<(Timestamp, u64)>)> {
    let mut walk = engine.snapshot().walk(options.clone(), &QueryContext::unbounded()).unwrap();
    let mut found: Vec<(Labels, Vec<(Timestamp, u64)>)> = Vec::new();
    let mut last_idx = None;
    while let Some(run) = walk.next_run().unwrap() {
        assert!(!run.times.is_empty() && run.times.len() == run.values.len());
        if last_idx.replace(run.series_idx) != Some(run.series_idx) {
            found.push((run.labels.clone(), Vec::new()));
        }
        let samples = run.times.iter().zip(run.values).map(|(&ts, value)| (ts, value.to_bits()));
        found.last_mut().unwrap().1.extend(samples);
    }
    assert!(walk.next_run().unwrap().is_none(), "the end stays the end");
    found
}

fn wanted(world: &World, options: &WalkOptions) -> Vec<(Labels, Vec<(Timestamp, u64)>)> {
    let matching = world.iter().filter(|(labels, _)| {
        options.matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or("")))
    });
    let cut = matching.map(|(labels, samples)| {
        let inside = samples.iter().filter(|(ts, _)| options.range.contains(**ts));
        (labels.clone(), inside.map(|(&ts, &bits)| (ts, bits)).collect::<Vec<_>>())
    });
    cut.filter(|(_, samples)| !samples.is_empty()).collect()
}

/// With buffers of any size, a walk returns every sample that exists, once and in order: from
/// memory, from tables of all levels and from both at once, late or not, without deleted ones.
#[test]
fn walks_and_a_plain_map_agree() {
    for_seeds(20, |seed| {
        let mut rng = Rng::new(seed);
        let (engine, mut world) = (engine(), World::new());
        for _ in 0..rng.below(30) {
            write(&engine, &mut rng, &mut world);
            if rng.chance(0.1) {
                learn_groups(&engine);
            }
            if rng.chance(0.1) {
                delete(&engine, &mut rng, &mut world);
            }
            if rng.chance(0.2) {
                engine.flush().unwrap();
            }
            if rng.chance(0.2) {
                while engine.step(*rng.pick(&[Lane::Head, Lane::Tree])).unwrap().is_some() {}
            }
        }
        for samples_max in [20, 300, 1 << 20] {
            let start = START_MS + rng.between(-10, 50) * 3_600_000 + rng.between(0, 9);
            let range = match rng.below(3) {
                0 => TimeRange::ALL,
                _ => TimeRange::new(start, start + rng.between(0, 30) * 1_800_000),
            };
            let matchers = match rng.below(3) {
                0 => Vec::new(),
                1 => vec![Matcher::equal("instance", "i1")],
                _ => vec![Matcher::new("__name__", MatchOp::Regex, "m[12]").unwrap()],
            };
            let options = WalkOptions { matchers, range, extra: Labels::empty(), samples_max };
            let (found, wanted) = (walk(&engine, options.clone()), wanted(&world, &options));
            assert_eq!(found.len(), wanted.len(), "{options:?}");
            for (found, wanted) in found.iter().zip(&wanted) {
                assert!(found == wanted, "{options:?}: {} is not {}", found.0, wanted.0);
            }
        }
        seed
    });
}

#[test]
fn memory_is_bounded_for_any_input() {
    let engine = engine();
    for instance in 0..40 {
        let series = engine.resolve(&[labels(0, instance), labels(1, instance)]);
        let mut batch = RowBatch::default();
        for series in series.iter().map(|series| *series.as_ref().unwrap()) {
            // Of the second metric there is much more, so that batches made for the first are too
            // large for it.
            let count = if series.slot.0 == 0 { 10 } else { 5_000 };
            (0..count).for_each(|n| batch.push(series, START_MS + n * 15_000, n as f64));
        }
        engine.write(&mut batch).unwrap();
        engine.flush().unwrap();
    }
    let budget = firn_model::Budget::new(1 << 20);
    let context = QueryContext::new(firn_model::CancelToken::new(), budget.clone());
    let (matchers, range) = (Vec::new(), TimeRange::ALL);
    let options = WalkOptions { matchers, range, extra: Labels::empty(), samples_max: 2_000 };
    let mut walk = engine.snapshot().walk(options, &context).unwrap();
    let (mut sample_count, mut longest) = (0, 0);
    while let Some(run) = walk.next_run().unwrap() {
        sample_count += run.times.len();
        longest = longest.max(run.times.len());
    }
    assert_eq!(sample_count, 40 * 5_010);
    assert!(longest <= 4_000, "{longest} samples in one run");
    // All samples take 3.2 MB; label sets, blocks and one batch fit into a part of that.
    assert!(budget.usage().peak_bytes < 512 << 10, "{:?}", budget.usage());
    drop(walk);
    assert_eq!(budget.usage().used_bytes, 0);
}

/// Before, a batch of 32 series with a sample per second, or a window that had grown over sparse
/// samples before dense ones, was `TooLarge` with little memory.
#[test]
fn a_window_that_does_not_fit_is_read_in_parts() {
    let engine = engine();
    let times: Vec<Timestamp> = (0..48)
        .map(|hour| START_MS + hour * 3_600_000)
        .chain((0..4_000).map(|second| START_MS + 48 * 3_600_000 + second * 1_000))
        .collect();
    for instance in 0..40 {
        let series = engine.resolve(&[labels(0, instance)]).remove(0).unwrap();
        let mut batch = RowBatch::default();
        times.iter().for_each(|&ts| batch.push(series, ts, instance as f64));
        engine.write(&mut batch).unwrap();
        engine.flush().unwrap();
    }
    let budget = firn_model::Budget::unlimited().part_of_setting(1 << 20, "--query-memory");
    let context = QueryContext::new(firn_model::CancelToken::new(), budget);
    let (matchers, range) = (Vec::new(), TimeRange::ALL);
    let options = WalkOptions { matchers, range, extra: Labels::empty(), samples_max: 4_096 };
    let mut walk = engine.snapshot().walk(options, &context).unwrap();
    let mut found: Vec<Vec<Timestamp>> = vec![Vec::new(); 40];
    while let Some(run) = walk.next_run().unwrap() {
        found[run.series_idx].extend(run.times);
    }
    assert!(found.iter().all(|found| *found == times));
}

/// Days of history that is only on the slow tier, window by window: the next windows come along
/// with one.
#[test]
fn a_walk_over_the_slow_tier_asks_it_some_times_and_not_once_a_window() {
    let sim = Sim::new(1);
    let engine = engine_of(&sim);
    let series: Vec<SeriesRef> =
        (0..3).map(|instance| engine.resolve(&[labels(0, instance)]).remove(0).unwrap()).collect();
    let start = sim.env().clock.now_ms();
    for hour in 0..72 {
        sim.clock.advance(std::time::Duration::from_secs(3_600));
        let mut batch = RowBatch::default();
        // Enough for long chunks in a partition of two hours: it does not grow any more.
        for (round, &series) in (0..72).flat_map(|round| series.iter().map(move |s| (round, s))) {
            batch.push(series, start + (hour * 72 + round) * 50_000, round as f64);
        }
        engine.write(&mut batch).unwrap();
        engine.flush().unwrap();
        while engine.step(Lane::Tree).unwrap().is_some() {}
    }
    drop(engine);
    let engine = engine_of(&sim);
    assert!(engine.stats().tree.levels[2].partition_count > 20);
    let range = TimeRange::new(start, start + 60 * 3_600_000);
    let (matchers, extra) = (Vec::new(), Labels::empty());
    let options = WalkOptions { matchers, range, extra, samples_max: 100 };
    let mut walk = engine.snapshot().walk(options, &QueryContext::unbounded()).unwrap();
    let (mut run_count, mut sample_count) = (0, 0);
    while let Some(run) = walk.next_run().unwrap() {
        run_count += 1;
        sample_count += run.times.len();
    }
    assert_eq!(sample_count, 3 * (60 * 72 + 1));
    let traffic = engine.stats().tree.traffic;
    assert!(run_count > 100, "{run_count} runs");
    assert!(traffic.slow_round_trips < 16, "{run_count} runs, {traffic:?}");
}

#[test]
fn extra_labels_are_added_where_they_are_missing_and_count_in_the_order() {
    let engine = engine();
    for (labels, value) in [
        (Labels::from_pairs([("__name__", "m"), ("zone", "z1")]).unwrap(), 1.0),
        (Labels::from_pairs([("__name__", "m"), ("a", "9"), ("job", "j")]).unwrap(), 2.0),
        (Labels::from_pairs([("__name__", "m"), ("job", "j")]).unwrap(), 3.0),
    ] {
        let series = engine.resolve(&[labels]).remove(0).unwrap();
        let mut batch = RowBatch::default();
        batch.push(series, START_MS, value);
        engine.write(&mut batch).unwrap();
    }
    let extra = Labels::from_pairs([("a", "1"), ("zone", "z0")]).unwrap();
    let (matchers, range) = (Vec::new(), TimeRange::ALL);
    let found = walk(&engine, WalkOptions { matchers, range, extra, samples_max: 1_000 });
    let named: Vec<String> = found.iter().map(|(labels, _)| labels.to_string()).collect();
    assert_eq!(
        named,
        [r#"m{a="1",job="j",zone="z0"}"#, r#"m{a="1",zone="z1"}"#, r#"m{a="9",job="j",zone="z0"}"#]
    );
}

#[test]
fn a_walk_stops_on_request() {
    let engine = engine();
    let mut rng = Rng::new(3);
    (0..10).for_each(|_| write(&engine, &mut rng, &mut World::new()));
    let context = QueryContext::unbounded();
    let (matchers, range) = (Vec::new(), TimeRange::ALL);
    let options = WalkOptions { matchers, range, extra: Labels::empty(), samples_max: 10 };
    let mut walk = engine.snapshot().walk(options, &context).unwrap();
    assert!(walk.next_run().unwrap().is_some());
    context.cancel.cancel();
    let stopped = loop {
        match walk.next_run() {
            Ok(Some(_)) => {}
            other => break other.map(|run| run.map(|run| run.series_idx)),
        }
    };
    assert_eq!(*stopped.unwrap_err().kind(), ErrorKind::Canceled);
}
