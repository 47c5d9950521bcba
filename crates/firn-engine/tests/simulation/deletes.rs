//! Deletes step by step: the samples that they hide, the samples that they keep, and the space that
//! they free.

use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, RecoveryProgress};
use firn_model::{ErrorKind, Grouping, Labels, Matcher, RowBatch, Selection, SeriesRef, TimeRange};
use firn_sim::{ObservedSamples, Sim};

use crate::world::{known_values, listed};

const SERIES: usize = 12;

fn open(sim: &Sim) -> Arc<Engine> {
    open_with(sim, None)
}

fn open_with(sim: &Sim, series_max: Option<u64>) -> Arc<Engine> {
    let mut options = EngineOptions {
        shard_count: 4,
        stream_count: Some(2),
        tree: firn_tree::TreeOptions { block_bytes: 256, bucket_grace_ms: 0, ..Default::default() },
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..EngineOptions::default()
    };
    options.index.limits.series_max = series_max;
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

/// Half of the series are members of one group, the others are lone series.
fn labels(idx: usize) -> Labels {
    let name = format!("m{idx}");
    let in_group = [("__name__", name.as_str()), ("job", "sim"), ("instance", "host")];
    let alone = [("__name__", name.as_str()), ("only", "here")];
    let pairs = if idx.is_multiple_of(2) { &in_group[..] } else { &alone[..] };
    Labels::from_pairs(pairs.iter().copied()).expect("valid labels")
}

/// One sample of every series at each of `times`.
fn write(engine: &Engine, times: impl IntoIterator<Item = i64>, value: f64) {
    let labels: Vec<Labels> = (0..SERIES).map(labels).collect();
    let refs: Vec<_> = engine.resolve(&labels).into_iter().map(|r| r.expect("resolves")).collect();
    let mut batch = RowBatch::default();
    for ts in times {
        refs.iter().for_each(|&series| batch.push(series, ts, value));
    }
    engine.write(&mut batch).expect("a write");
}

fn delete(engine: &Engine, idx: usize, range: (i64, i64)) -> u64 {
    let matchers = vec![Matcher::equal("__name__", format!("m{idx}"))];
    engine.delete(&[matchers], TimeRange::new(range.0, range.1)).expect("a delete").series
}

/// (timestamp, value) of one series.
fn read(engine: &Engine, idx: usize) -> Vec<(i64, f64)> {
    let matchers = [Matcher::equal("__name__", format!("m{idx}"))];
    let seen =
        ObservedSamples::read(&engine.snapshot(), &matchers, TimeRange::ALL).expect("a read");
    seen.series.values().flatten().map(|sample| (sample.ts, sample.value)).collect()
}

fn flush(engine: &Engine) {
    engine.flush().expect("a flush");
}

fn settle(engine: &Engine) {
    while engine.step(Lane::Head).expect("a step").is_some() {}
    while engine.step(Lane::Tree).expect("a step").is_some() {}
}

/// Series are written, deleted in part, rewritten in part, and deleted in part again. Between two
/// steps nothing happens, or a flush, a flush with all merges and uploads, a power failure, or a
/// flush and a power failure, in every combination. Every step is durable before the next one. The
/// readable samples are always those that were written after the last delete of their time.
#[test]
fn invariant_2_the_newest_write_wins_and_a_delete_hides_earlier_samples_only() {
    for path in 0..5_usize.pow(4) {
        let sim = Sim::new(path as u64);
        let mut engine = open(&sim);
        let between = |engine: &mut Arc<Engine>, step: u32| {
            let how = path / 5_usize.pow(step) % 5;
            if how == 1 || how == 2 || how == 4 {
                flush(engine);
            }
            if how == 2 {
                // Longer than a partition waits to be complete, so all tables are uploaded.
                sim.clock.advance(Duration::from_secs(6 * 3_600));
                settle(engine);
            }
            if how >= 3 {
                sim.crash();
                sim.restart();
                *engine = open(&sim);
            }
        };
        write(&engine, [1_000, 2_000, 3_000], 1.0);
        between(&mut engine, 0);
        assert_eq!(delete(&engine, 0, (i64::MIN, 2_000)), 1);
        assert_eq!(delete(&engine, 1, (2_000, 2_500)), 1);
        between(&mut engine, 1);
        write(&engine, [2_000], 2.0);
        between(&mut engine, 2);
        delete(&engine, 1, (1_000, 1_999));
        between(&mut engine, 3);
        for round in ["before", "after"] {
            let f = |idx, want: &[(i64, f64)]| {
                assert_eq!(read(&engine, idx), want, "m{idx}, path {path}, {round} cleaning");
            };
            f(0, &[(2_000, 2.0), (3_000, 1.0)]);
            f(1, &[(2_000, 2.0), (3_000, 1.0)]);
            f(2, &[(1_000, 1.0), (2_000, 2.0), (3_000, 1.0)]);
            f(3, &[(1_000, 1.0), (2_000, 2.0), (3_000, 1.0)]);
            engine.clean_tombstones().expect("cleaning");
            assert_eq!(engine.stats().tombstones, 0, "path {path}");
        }
    }
}

/// An open snapshot does not change with a later delete, even while the tables are rewritten.
#[test]
fn invariant_3_a_held_snapshot_does_not_see_a_later_delete() {
    let sim = Sim::new(1);
    let engine = open(&sim);
    write(&engine, 0..100, 1.0);
    flush(&engine);
    let snapshot = engine.snapshot();
    let before = ObservedSamples::read(&snapshot, &[], TimeRange::ALL).expect("a read");
    engine.delete(&[vec![]], TimeRange::ALL).expect("a delete");
    engine.clean_tombstones().expect("cleaning");
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    assert_eq!(ObservedSamples::read(&snapshot, &[], TimeRange::ALL).expect("a read"), before);
    assert_eq!(
        ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL)
            .expect("a read")
            .series
            .len(),
        0
    );
}

/// Cleaning removes the bytes of deleted samples on both tiers, leaves other tables unchanged, and
/// removes the tombstones.
#[test]
fn cleaning_frees_space_on_both_tiers() {
    let sim = Sim::new(2);
    let engine = open(&sim);
    let hour_ms = 3_600_000;
    let bytes = |engine: &Engine| {
        let stats = engine.stats();
        [0, 1, 2].map(|level: usize| stats.tree.levels[level].bytes)
    };
    let now = sim.env().clock.now_ms();
    let old = now - 20 * hour_ms;
    let noisy = |times: std::ops::Range<i64>| {
        for step in times.step_by(60_000) {
            write(&engine, [step], (step as f64).sin());
        }
    };
    noisy(old..old + hour_ms);
    noisy(old + 4 * hour_ms..old + 5 * hour_ms);
    flush(&engine);
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    settle(&engine);
    noisy(now..now + hour_ms);
    flush(&engine);
    let [level0, level1, level2] = bytes(&engine);
    assert!(level0 + level1 > 0 && level2 > 0, "{:?}", bytes(&engine));
    let puts = engine.stats().tree.traffic.cleanings;

    // Nearly all samples of the first hour and of the last one.
    for range in [(old, old + hour_ms - 1), (now, now + hour_ms - 1)] {
        for idx in 1..SERIES {
            assert_eq!(delete(&engine, idx, range), 1);
        }
    }
    assert_eq!(engine.stats().deletes, 2 * (SERIES as u64 - 1));
    engine.clean_tombstones().expect("cleaning");
    let after = bytes(&engine);
    assert!(after[0] + after[1] < (level0 + level1) / 2, "{level0}, {level1}, {after:?}");
    assert!(after[2] < level2 * 2 / 3, "{level2}, {after:?}");
    let stats = engine.stats();
    assert_eq!((stats.tombstones, stats.tombstone_bytes), (0, 0));
    assert!(stats.tree.traffic.cleanings - puts <= 2 * stats.tree.levels.len() as u64, "{stats:?}");
    sim.clock.advance(Duration::from_secs(3_600));
    settle(&engine);
    let tables = sim.bucket.keys().into_iter().filter(|key| key.starts_with("tables/")).count();
    assert_eq!(tables as u64, engine.stats().tree.levels[2].table_count);
    for idx in 0..SERIES {
        let count = if idx == 0 { 180 } else { 60 };
        assert_eq!(read(&engine, idx).len(), count, "m{idx}");
    }
}

/// Without a request, deletes are applied to the tables an hour later.
#[test]
fn deletes_are_applied_to_tables_without_a_request() {
    let sim = Sim::new(3);
    let engine = open(&sim);
    write(&engine, 0..100, 1.0);
    flush(&engine);
    engine.delete(&[vec![]], TimeRange::new(0, 49)).expect("a delete");
    settle(&engine);
    assert_eq!(engine.stats().tombstones, 1);
    sim.clock.advance(Duration::from_secs(3_700));
    settle(&engine);
    assert_eq!(engine.stats().tombstones, 0);
    assert_eq!(read(&engine, 0).len(), 50);
}

/// The slow tier is down during a delete. The delete is accepted, and it hides its samples once the
/// slow tier is back.
#[test]
fn a_delete_does_not_need_the_slow_tier() {
    let sim = Sim::new(4);
    let engine = open(&sim);
    write(&engine, 0..100, 1.0);
    flush(&engine);
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    settle(&engine);
    drop(engine);
    let engine = open(&sim);
    sim.bucket.set_down(true);
    assert_eq!(delete(&engine, 3, (0, 98)), 1);
    sim.bucket.set_down(false);
    assert_eq!(read(&engine, 3), [(99, 1.0)]);
}

/// Many deletes without rows are flushed, and the log is truncated.
#[test]
fn deletes_alone_are_flushed() {
    let sim = Sim::new(5);
    let engine = open(&sim);
    write(&engine, 0..1_000, 1.0);
    flush(&engine);
    for ts in 0..100 {
        assert_eq!(delete(&engine, 2, (ts, ts)), 1);
    }
    settle(&engine);
    assert_eq!(engine.stats().log.bytes, 0, "the log is truncated: {:?}", engine.stats().log);
    drop(engine);
    let engine = open(&sim);
    assert_eq!(engine.stats().recovery.deletes, 0);
    assert_eq!(engine.stats().tombstones, 100);
    assert_eq!(read(&engine, 2).len(), 900);
}

/// A series is listed while it has a sample, whatever remains of the rest of its group.
#[test]
fn a_series_without_samples_is_not_listed() {
    let sim = Sim::new(7);
    let engine = open(&sim);
    // Far enough apart for table directories to separate them.
    let late = 48 * 3_600_000;
    write(&engine, [1_000, late], 1.0);
    let list = |engine: &Engine, range: (i64, i64)| {
        let range = TimeRange::new(range.0, range.1);
        let selection = Selection { matchers: vec![], range, grouping: Grouping::Series };
        listed(&engine.snapshot(), &selection).expect("a listing").len()
    };
    delete(&engine, 0, (0, late));
    delete(&engine, 1, (0, late));
    delete(&engine, 2, (0, 1_000));
    for round in 0..3 {
        let counts = [(0, 1_000), (late, late)].map(|range| list(&engine, range));
        assert_eq!(counts, [SERIES - 3, SERIES - 2], "round {round}");
        assert_eq!(list(&engine, (0, 2 * late)), SERIES - 2, "round {round}");
        match round {
            0 => flush(&engine),
            _ => engine.clean_tombstones().expect("cleaning"),
        }
    }
}

/// A series whose samples are deleted and cleaned leaves the index within an hour. It is not listed
/// any more, the index shrinks, writes with its old reference are refused, and the same labels get
/// a new reference.
#[test]
fn a_series_without_samples_leaves_the_index() {
    let sim = Sim::new(8);
    let engine = open(&sim);
    let refs = |engine: &Engine| -> Vec<SeriesRef> {
        let labels: Vec<Labels> = (0..SERIES).map(labels).collect();
        engine.resolve(&labels).into_iter().map(|found| found.expect("resolves")).collect()
    };
    write(&engine, [1_000, 2_000], 1.0);
    flush(&engine);
    let before = refs(&engine);
    // The whole group, and all lone series except two.
    let is_dead = |idx: usize| idx.is_multiple_of(2) || idx < SERIES - 3;
    let dead_count = (0..SERIES).filter(|&idx| is_dead(idx)).count();
    for idx in (0..SERIES).filter(|&idx| is_dead(idx)) {
        assert_eq!(delete(&engine, idx, (i64::MIN, i64::MAX)), 1);
    }
    engine.clean_tombstones().expect("cleaning");
    let stats = engine.stats().index;
    assert_eq!((stats.series_count, engine.generation()), (SERIES as u64, 0));
    sim.clock.advance(Duration::from_secs(3_700));
    write(&engine, [3_000], 2.0);
    // All series were written again, so none leaves the index.
    settle(&engine);
    assert_eq!((engine.stats().index.series_count, engine.generation()), (SERIES as u64, 0));

    for idx in (0..SERIES).filter(|&idx| is_dead(idx)) {
        assert_eq!(delete(&engine, idx, (i64::MIN, i64::MAX)), 1);
    }
    flush(&engine);
    engine.clean_tombstones().expect("cleaning");
    sim.clock.advance(Duration::from_secs(3_700));
    settle(&engine);
    let after = engine.stats();
    let left = (SERIES - dead_count) as u64;
    assert_eq!((after.index.series_count, after.series_removed), (left, dead_count as u64));
    assert!(after.index.segment_bytes < stats.segment_bytes, "{stats:?}, {:?}", after.index);
    assert_eq!(engine.generation(), 1);
    assert_eq!(known_values(&engine, "__name__"), ["m11", "m9"]);
    // The old reference is refused, and the same label set has a new one from now on.
    let mut batch = RowBatch::default();
    batch.push(before[0], 5_000, 1.0);
    batch.push(before[SERIES - 1], 5_000, 1.0);
    let report = engine.write_known(&mut batch, 0).expect("a write");
    assert_eq!((report.written, report.unknown), (1, 1));
    let again = refs(&engine);
    for (idx, (again, old)) in again.iter().zip(&before).enumerate() {
        assert_eq!(is_dead(idx), !before.contains(again), "m{idx}: {old:?}, then {again:?}");
    }
    write(&engine, [6_000], 3.0);
    sim.crash();
    sim.restart();
    let engine = open(&sim);
    assert_eq!(refs(&engine), again);
    assert_eq!(read(&engine, 0), [(6_000, 3.0)]);
    assert_eq!(read(&engine, SERIES - 1).len(), 5);
}

#[test]
fn an_empty_range_is_refused_and_a_delete_without_matches_does_nothing() {
    let sim = Sim::new(6);
    let engine = open(&sim);
    let error = engine.delete(&[vec![]], TimeRange::new(5, 4)).expect_err("an empty range");
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    write(&engine, 0..10, 1.0);
    let report = engine.delete(&[vec![Matcher::equal("job", "none")]], TimeRange::ALL);
    assert_eq!(report.expect("a delete").seq, None);
    assert_eq!(delete(&engine, 1, (500, 600)), 0);
    assert_eq!(read(&engine, 1).len(), 10);
}

/// A database full of series accepts new ones after a delete and a clean-up. It waited for an hour,
/// and for a flush, which it never had if all that arrived were new series.
#[test]
fn series_that_were_cleaned_leave_room_for_new_ones_at_once() {
    for restarts in [false, true] {
        let sim = Sim::new(9);
        let mut engine = open_with(&sim, Some(SERIES as u64));
        write(&engine, [1_000, 2_000], 1.0);
        let is_accepted = |engine: &Engine| engine.resolve(&[labels(SERIES)]).remove(0).is_ok();
        (0..7).for_each(|idx| assert_eq!(delete(&engine, idx, (i64::MIN, i64::MAX)), 1));
        settle(&engine);
        assert!(!is_accepted(&engine), "the deletes are not applied yet");
        engine.clean_tombstones().expect("cleaning");
        if restarts {
            drop(engine);
            sim.crash();
            sim.restart();
            engine = open_with(&sim, Some(SERIES as u64));
            settle(&engine);
            assert!(!is_accepted(&engine), "the removal is due in an hour");
            engine.clean_tombstones().expect("cleaning");
        }
        settle(&engine);
        let stats = engine.stats();
        assert_eq!((stats.series_removed, stats.index.series_count), (7, SERIES as u64 - 7));
        assert!(is_accepted(&engine));
        assert_eq!(read(&engine, SERIES - 1), [(1_000, 1.0), (2_000, 1.0)]);
    }
}
