//! Thousands of small deletes: the memory that they share, also after a restart, and the cleaning
//! that starts by itself.

use std::sync::Arc;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress};
use firn_model::{ErrorKind, Labels, Matcher, Pool, RowBatch, TimeRange};
use firn_sim::{ObservedSamples, Sim};

const SERIES: usize = 500;
const TIMES: i64 = 3_000;
/// From here on a cleaning starts by itself.
const CLEAN_COUNT: u64 = 1_250;

fn open(sim: &Sim, memory_bytes_max: u64) -> Arc<Engine> {
    let options = EngineOptions {
        memory_bytes_max,
        shard_count: 4,
        stream_count: Some(1),
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

/// Lone series with one sample at each time, in tables.
fn filled(sim: &Sim, memory_bytes_max: u64) -> Arc<Engine> {
    let engine = open(sim, memory_bytes_max);
    let labels: Vec<Labels> = (0..SERIES)
        .map(|idx| {
            Labels::from_pairs([("__name__", "m"), ("only", &*idx.to_string())]).expect("labels")
        })
        .collect();
    let refs: Vec<_> = engine.resolve(&labels).into_iter().map(|r| r.expect("resolves")).collect();
    for first in (0..TIMES).step_by(100) {
        let mut batch = RowBatch::default();
        for ts in first..first + 100 {
            refs.iter().for_each(|&series| batch.push(series, ts, 1.0));
        }
        engine.write(&mut batch).expect("a write");
    }
    engine.flush().expect("a flush");
    engine
}

/// Hides the samples of all series at `ts`.
fn delete_at(engine: &Engine, ts: i64) {
    let report = engine.delete(&[vec![]], TimeRange::at(ts)).expect("a delete");
    assert_eq!(report.series, SERIES as u64);
}

fn index_bytes(engine: &Engine) -> u64 {
    engine.budget().usage().by_pool[Pool::Index as usize]
}

fn read(engine: &Engine) -> usize {
    let matchers = [Matcher::equal("only", "7")];
    let seen = ObservedSamples::read(&engine.snapshot(), &matchers, TimeRange::ALL);
    seen.expect("a read").series.values().flatten().count()
}

/// 1,000 deletes of 500 series each took 12 MB, of which a restart counted nothing. Each takes some
/// hundred bytes, also in the manifest, and a restart from manifest and log counts as much.
#[test]
fn equal_deletes_share_their_members_before_and_after_a_restart() {
    const DELETES: i64 = 1_000;
    let sim = Sim::new(1);
    let engine = filled(&sim, 1 << 30);
    delete_at(&engine, 0);
    let first = index_bytes(&engine);
    for ts in 1..DELETES {
        delete_at(&engine, ts);
        if ts == DELETES / 2 {
            engine.flush().expect("a flush");
        }
    }
    let grown = index_bytes(&engine) - first;
    assert!(grown < DELETES as u64 * 300, "{grown} bytes for {DELETES} deletes");
    assert!(engine.stats().tombstone_bytes < DELETES as u64 * 300);
    let held = index_bytes(&engine);
    drop(engine);

    let engine = open(&sim, 1 << 30);
    assert_eq!(engine.stats().recovery.deletes as i64, DELETES / 2 - 1, "the rest is flushed");
    let recovered = index_bytes(&engine);
    assert!(recovered.abs_diff(held) < held / 4, "{recovered} bytes after, {held} before");
    assert_eq!(read(&engine), (TIMES - DELETES) as usize);
    engine.clean_tombstones().expect("cleaning");
    // The memory is released with the last tombstone.
    let left = index_bytes(&engine);
    assert!(left < recovered / 20, "{left} bytes left of {recovered}");
    assert_eq!(read(&engine), (TIMES - DELETES) as usize);
}

/// The limit is lowered below the memory of the deletes. The database opens with all of them, their
/// memory is visible in the pool, and a further delete is refused until there is room.
#[test]
fn a_restart_with_too_little_memory_keeps_every_delete_and_refuses_more() {
    let sim = Sim::new(2);
    let engine = filled(&sim, 1 << 30);
    (0..500).for_each(|ts| delete_at(&engine, ts));
    drop(engine);
    let engine = open(&sim, 64 << 10);
    assert_eq!(engine.stats().tombstones, 500);
    assert!(index_bytes(&engine) > 500 * 100);
    let error = engine.delete(&[vec![]], TimeRange::at(600)).expect_err("no memory");
    assert!(matches!(error.kind(), ErrorKind::Busy { .. }), "{error}");
    drop(engine);
    assert_eq!(read(&open(&sim, 1 << 30)), TIMES as usize - 500);
}

/// Maintenance applies many deletes to tables without a request and before they are old. Few
/// further ones wait, so that tables are not rewritten for each.
#[test]
fn many_deletes_are_applied_without_a_request() {
    let sim = Sim::new(3);
    let engine = filled(&sim, 1 << 30);
    let settle = || {
        while engine.step(Lane::Head).expect("a step").is_some() {}
        while engine.step(Lane::Tree).expect("a step").is_some() {}
    };
    settle();
    let mut most = 0;
    for ts in 0..2_600 {
        delete_at(&engine, ts);
        if ts % 50 == 49 {
            settle();
            most = most.max(engine.stats().tombstones);
        }
    }
    let stats = engine.stats();
    assert!((CLEAN_COUNT / 2..=CLEAN_COUNT).contains(&most), "{most} at a time");
    assert!(stats.tombstones < 200, "{} left", stats.tombstones);
    let rewrites = stats.tree.traffic.cleanings;
    assert!((2..=8).contains(&rewrites), "{rewrites} tables rewritten");
    assert_eq!(read(&engine), TIMES as usize - 2_600);
}

/// Maintenance does not run, so deletes are refused at the limit. The error describes the way out,
/// and maintenance then applies them.
#[test]
fn deletes_beyond_the_limit_are_refused_until_they_are_applied() {
    let sim = Sim::new(4);
    let engine = filled(&sim, 1 << 30);
    let series = vec![Matcher::equal("only", "7")];
    let delete = |ts: i64| engine.delete(std::slice::from_ref(&series), TimeRange::new(0, ts));
    (0..10_000).for_each(|ts| assert_eq!(delete(ts).expect("a delete").series, 1));
    let error = delete(0).expect_err("too many");
    assert!(matches!(error.kind(), ErrorKind::Busy { retry_after_ms: 10_000 }), "{error}");
    assert!(error.to_string().contains("/api/v1/admin/tsdb/clean_tombstones"), "{error}");
    while engine.step(Lane::Head).expect("a step").is_some() {}
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    assert_eq!(engine.stats().tombstones, 0);
    assert!(delete(0).is_ok());
    assert_eq!(read(&engine), 0);
}

/// Each delete ends an arena of every shard with a few late rows. While maintenance did not run,
/// 50 deletes took ten times the memory of the rows.
#[test]
fn late_rows_between_deletes_take_little_more_memory_than_without() {
    let head_bytes = |deletes: bool| {
        let engine = open(&Sim::new(5), 1 << 30);
        let labels = |idx: usize| {
            Labels::from_pairs([("__name__", "m"), ("only", &*idx.to_string())]).expect("labels")
        };
        let labels: Vec<Labels> = (0..40).map(labels).collect();
        let refs: Vec<_> =
            engine.resolve(&labels).into_iter().map(|r| r.expect("resolves")).collect();
        for ts in 0..100 {
            let mut batch = RowBatch::default();
            refs.iter().for_each(|&series| batch.push(series, ts, 1.0));
            engine.write(&mut batch).expect("a write");
            if deletes {
                engine.delete(&[vec![]], TimeRange::new(0, 1_000)).expect("a delete");
            }
        }
        engine.budget().usage().by_pool[Pool::Head as usize]
    };
    let (with, without) = (head_bytes(true), head_bytes(false));
    assert!(with <= 4 * without, "{with} bytes with deletes, {without} without");
}
