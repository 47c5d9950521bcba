//! The flush at a close is bounded, and a flush frees the files of the log.

use std::sync::Arc;

use firn_model::{ErrorKind, Labels, QueryContext, RowBatch, SeriesRef, ShardId, TimeRange};
use firn_sim::Sim;

use crate::{Engine, EngineOptions, Lane, RecoveryProgress, Step, WalkOptions};

const DAY_MS: i64 = 24 * 3_600_000;

fn open(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions { shard_count: 4, ..EngineOptions::default() };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

fn series(engine: &Engine) -> SeriesRef {
    let labels = Labels::from_pairs([("__name__", "m")]).expect("labels");
    engine.resolve(&[labels]).remove(0).expect("resolves")
}

/// One sample of each of the last `day_count` days.
fn write_days(sim: &Sim, engine: &Engine, day_count: i64) {
    let (series, now) = (series(engine), sim.env().clock.now_ms());
    let mut batch = RowBatch::default();
    for day in 0..day_count {
        batch.push(series, now - day * DAY_MS, day as f64);
    }
    engine.write(&mut batch).expect("a write");
}

fn sample_count(engine: &Engine) -> usize {
    let (matchers, range) = (Vec::new(), TimeRange::ALL);
    let options = WalkOptions { matchers, range, extra: Labels::empty(), samples_max: 1_000 };
    let mut walk = engine.snapshot().walk(options, &QueryContext::unbounded()).expect("a walk");
    let mut count = 0;
    while let Some(run) = walk.next_run().expect("a run") {
        count += run.times.len();
    }
    count
}

fn table_count(sim: &Sim) -> usize {
    sim.env().disk.list("tables").expect("lists").len()
}

/// 200,000 samples two hours apart made a stop take a minute: each partition is a synced file.
#[test]
fn a_close_does_not_flush_rows_of_many_partitions() {
    for (day_count, is_flushed) in [(100, true), (1_000, false)] {
        let sim = Sim::new(1);
        let engine = open(&sim);
        write_days(&sim, &engine, day_count);
        engine.close(true).expect("closes");
        assert_eq!(table_count(&sim), if is_flushed { day_count as usize } else { 0 });
        drop(engine);
        let engine = open(&sim);
        assert_eq!(engine.rooms.head.unflushed().0 > 0, !is_flushed);
        assert_eq!(sample_count(&engine), day_count as usize);
        // Without a stop, a flush of many tables is completed.
        engine.flush().expect("flushes");
        assert_eq!(table_count(&sim), day_count as usize);
        assert_eq!(sample_count(&engine), day_count as usize);
    }
}

/// A flush that runs when the stop begins ends as well, and loses nothing.
#[test]
fn a_running_flush_of_many_tables_ends_at_a_stop() {
    let sim = Sim::new(1);
    let engine = open(&sim);
    write_days(&sim, &engine, 1_000);
    engine.rooms.wakeup.stop();
    let error = engine.flush().expect_err("it is canceled");
    assert_eq!(*error.kind(), ErrorKind::Canceled, "{error}");
    assert_eq!((table_count(&sim), sample_count(&engine)), (0, 1_000));
    engine.close(true).expect("closes");
    drop(engine);
    assert_eq!(sample_count(&open(&sim)), 1_000);
}

/// Each killed process leaves a file with few entries. Their sizes count for the limit of the log,
/// so that a flush frees them.
#[test]
fn the_files_of_killed_processes_are_flushed_at_the_size_of_the_log() {
    let sim = Sim::new(3);
    let open = || {
        let options = EngineOptions {
            shard_count: 4,
            log_bytes_max: 16 << 20,
            flush_age_ms_max: i64::MAX,
            ..EngineOptions::default()
        };
        Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
    };
    let disk = sim.env().disk;
    let file_count = || disk.list("log/0").expect("lists").len();
    let mut most = 0;
    for _ in 0..40 {
        let engine = open();
        write_days(&sim, &engine, 1);
        while engine.step(Lane::Head).expect("a step").is_some() {}
        most = most.max(file_count());
    }
    assert!((15..20).contains(&most), "{most} files");
    assert_eq!(sample_count(&open()), 1);
}

/// A full disk has no room for the next segment of the log. A flush frees closed ones.
#[test]
fn a_full_disk_makes_a_flush_that_frees_the_log() {
    let sim = Sim::new(4);
    for _ in 0..5 {
        write_days(&sim, &open(&sim), 1);
    }
    let engine = open(&sim);
    write_days(&sim, &engine, 1);
    let files = sim.disk.files();
    let used = files.iter().map(|name| sim.disk.bytes(name).expect("bytes").len() as u64);
    sim.disk.set_capacity_bytes(used.sum::<u64>() + (1 << 20));
    let before = sim.env().disk.list("log/0").expect("lists").len();
    // Conversions come first.
    let mut steps = 0..10;
    assert!(steps.any(|_| engine.step(Lane::Head).is_err()), "no room for the next segment");
    assert_eq!(table_count(&sim), 0);
    assert_eq!(engine.step(Lane::Head).expect("a step"), Some(Step::Flush));
    let after = sim.env().disk.list("log/0").expect("lists").len();
    assert_eq!((before, after), (6, 1));
    assert_eq!(table_count(&sim), 1);
}

/// A transaction that fails in its validation has logged its new series. Before, they started no
/// flush: the log grew without a bound, and with it the time of a start.
#[test]
fn a_log_of_definitions_alone_is_flushed() {
    let sim = Sim::new(5);
    let open = || {
        let options = EngineOptions {
            shard_count: 4,
            log_bytes_max: 16 << 20,
            flush_age_ms_max: i64::MAX,
            restart_ms_max: i64::MAX,
            ..EngineOptions::default()
        };
        Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
    };
    let long = "x".repeat(1_000);
    let define = |engine: &Engine, ids: std::ops::Range<u32>| {
        let labels = ids.map(|id| {
            let value = format!("{long}{id}");
            Labels::from_pairs([("__name__", "m"), ("id", value.as_str())]).expect("labels")
        });
        for series in engine.resolve(&labels.collect::<Vec<_>>()) {
            series.expect("resolves");
        }
        for shard in (0..4).map(ShardId) {
            let stream = engine.rooms.log.stream_of(shard);
            engine.log_definitions(shard, stream).expect("logs");
        }
        engine.rooms.log.commit(&engine.rooms.log_ends()).expect("commits");
    };
    let logged = |engine: &Engine| engine.rooms.log.stats().bytes;
    let engine = open();
    let (mut flush_count, mut most) = (0, 0);
    for round in 0..40 {
        define(&engine, round * 1_000..(round + 1) * 1_000);
        most = most.max(logged(&engine));
        while let Some(step) = engine.step(Lane::Head).expect("a step") {
            flush_count += u64::from(step == Step::Flush);
        }
    }
    assert!(flush_count >= 2 && most < 20 << 20, "{flush_count} flushes, {most} bytes");
    assert_eq!(table_count(&sim), 0);
    define(&engine, 40_000..41_000);
    engine.flush().expect("flushes");
    assert_eq!((logged(&engine), engine.step(Lane::Head).expect("a step")), (0, None));
    drop(engine);
    // All series are there, and the next start finds nothing to flush.
    let engine = open();
    assert_eq!(engine.step(Lane::Head).expect("a step"), None);
    let before = engine.rooms.index.stats().series_count;
    define(&engine, 0..41_000);
    assert_eq!((before, engine.rooms.index.stats().series_count), (41_000, 41_000));
}
