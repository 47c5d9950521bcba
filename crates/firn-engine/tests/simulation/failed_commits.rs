//! A write or a sync of the log fails while other writers continue. A row that is acknowledged
//! afterwards never returns from recovery without its series.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firn_engine::{
    Engine, EngineOptions, Lane, LogOptions, Mutant, ProbePoint, RecoveryProgress, SyncPolicy,
};
use firn_model::{Labels, Matcher, Result, RowBatch, SeriesRef, TimeRange};
use firn_sim::{ObservedSamples, Operation, Sim};

const SHARD_COUNT: usize = 4;

fn open(sim: &Sim, log_sync: SyncPolicy) -> Arc<Engine> {
    open_mutant(sim, log_sync, None)
}

fn open_mutant(sim: &Sim, log_sync: SyncPolicy, mutant: Option<Mutant>) -> Arc<Engine> {
    let options = EngineOptions {
        shard_count: SHARD_COUNT,
        stream_count: Some(2),
        log: LogOptions { segment_bytes: 64 << 10, sync: log_sync },
        mutant,
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

/// Each series has a group of its own, so the series are in several shards and streams.
fn labels(name: &str) -> Labels {
    Labels::from_pairs([("__name__", name)]).expect("valid labels")
}

fn resolve(engine: &Engine, name: &str) -> SeriesRef {
    engine.resolve(&[labels(name)]).remove(0).expect("resolves")
}

fn write(engine: &Engine, series: SeriesRef, ts: i64, value: f64) -> Result<()> {
    let mut batch = RowBatch::default();
    batch.push(series, ts, value);
    engine.write(&mut batch).map(drop)
}

fn transact(engine: &Engine, series: SeriesRef, ts: i64, value: f64) -> Result<()> {
    let mut transaction = engine.begin()?;
    transaction.insert(series, ts, value)?;
    transaction.commit().map(drop)
}

/// (timestamp, value) of one series.
fn read(engine: &Engine, name: &str) -> Vec<(i64, f64)> {
    let matcher = [Matcher::equal("__name__", name)];
    let seen = ObservedSamples::read(&engine.snapshot(), &matcher, TimeRange::ALL).expect("a read");
    seen.series.values().flatten().map(|sample| (sample.ts, sample.value)).collect()
}

/// Defines new series, whose ids may be those of series that recovery did not restore. Each must
/// have its own samples and no others.
fn new_series_have_only_their_own_samples(engine: &Engine) {
    for idx in 0..2 * SHARD_COUNT {
        let name = format!("new{idx}");
        write(engine, resolve(engine, &name), 9_000, 9.0).expect("a write");
        assert_eq!(read(engine, &name), [(9_000, 9.0)], "{name}");
    }
}

/// The log fails to write or to sync the commit that defines a series, so the definition is not
/// durable. Before the failed writer is notified, a second writer writes to the series in the next
/// segment. After a power failure the second row is there with its series, and the first row is
/// not.
pub(crate) fn write_after_failed_commits(mutant: Option<Mutant>) {
    type Write = fn(&Engine, SeriesRef, i64, f64) -> Result<()>;
    let ways: [Write; 2] = [write, transact];
    for operation in [Operation::Write, Operation::Sync] {
        for (first, second) in ways.into_iter().flat_map(|one| ways.map(|other| (one, other))) {
            for name in ["a", "b", "c", "d"] {
                let sim = Sim::new(1);
                let engine = open_mutant(&sim, SyncPolicy::Always, mutant);
                let series = resolve(&engine, name);
                let has_written = Arc::new(AtomicBool::new(false));
                let (weak, writes_now) = (Arc::downgrade(&engine), Arc::clone(&has_written));
                engine.set_probe(Box::new(move |point| {
                    if point == ProbePoint::CommitFailed
                        && !writes_now.swap(true, Ordering::Relaxed)
                    {
                        let engine = weak.upgrade().expect("it is open");
                        second(&engine, series, 2_000, 2.0).expect("the next segment takes it");
                    }
                }));
                sim.faults.fail_nth(operation, 1);
                let failed = first(&engine, series, 1_000, 1.0);
                failed.expect_err("the log fails");
                assert!(has_written.load(Ordering::Relaxed), "the second writer did not write");
                assert_eq!(read(&engine, name), [(2_000, 2.0)], "{operation:?}, {name}");
                drop(engine);
                sim.restart();
                let engine = open_mutant(&sim, SyncPolicy::Always, mutant);
                assert_eq!(read(&engine, name), [(2_000, 2.0)], "{operation:?}, {name}");
                new_series_have_only_their_own_samples(&engine);
            }
        }
    }
}

#[test]
fn a_write_after_a_failed_commit_logs_its_definitions() {
    write_after_failed_commits(None);
}

/// Four writers define new series while every tenth write and sync of the log fails; then the power
/// fails. Rows of failed commits may or may not have reached the disk. Every acknowledged row must
/// be readable.
#[test]
fn failures_of_the_log_lose_no_acknowledged_row_of_several_writers() {
    const WRITERS: usize = 4;
    let (mut acknowledged, mut refused) = (0, 0);
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let engine = open(&sim, SyncPolicy::Always);
        for operation in [Operation::Write, Operation::Sync] {
            sim.faults.set_rate(operation, 0.1);
        }
        let write_some = |writer: usize| {
            let engine = &engine;
            move || {
                let mut there = Vec::new();
                for step in 0..30_u8 {
                    // Mostly a new series, now and then one that all writers share.
                    let name = match step % 3 {
                        0 => format!("shared{}", step / 3),
                        _ => format!("of{writer}-{}", step / 2),
                    };
                    let (ts, value) = (1_000 * i64::from(step) + writer as i64, f64::from(step));
                    if write(engine, resolve(engine, &name), ts, value).is_ok() {
                        there.push((name, ts, value));
                    }
                }
                there
            }
        };
        let there: Vec<(String, i64, f64)> = std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(write_some(writer))).collect();
            writers.into_iter().flat_map(|one| one.join().expect("a writer")).collect()
        });
        acknowledged += there.len();
        refused += WRITERS * 30 - there.len();
        sim.faults.clear();
        drop(engine);
        sim.restart();
        let engine = open(&sim, SyncPolicy::Always);
        for (name, ts, value) in there {
            assert!(read(&engine, &name).contains(&(ts, value)), "seed {seed}: {name} at {ts}");
        }
        new_series_have_only_their_own_samples(&engine);
    }
    assert!(acknowledged > 1_000 && refused > 100, "{acknowledged} and {refused}");
}

/// With an interval policy, a row is acknowledged and the sync that follows fails, so the row may
/// not be on the disk. A second row is written to the next segment and synced, then the power
/// fails. The second row and its series must be readable. If the first row is lost, recovery
/// reports damage.
#[test]
fn a_failed_lazy_sync_separates_no_later_row_from_its_series() {
    let hour = SyncPolicy::IntervalMs(3_600_000);
    let mut lost = 0;
    for seed in 0..60 {
        for name in ["a", "b"] {
            let sim = Sim::new(seed);
            let engine = open(&sim, hour);
            let series = resolve(&engine, name);
            write(&engine, series, 1_000, 1.0).expect("a write");
            sim.faults.fail_nth(Operation::Sync, 1 + seed % 2);
            engine.step(Lane::Log).expect_err("a sync fails");
            write(&engine, series, 2_000, 2.0).expect("a write");
            engine.step(Lane::Log).expect("the next segment is synced");
            drop(engine);
            sim.restart();
            let engine = open(&sim, hour);
            let found = read(&engine, name);
            assert!(found.contains(&(2_000, 2.0)), "seed {seed}: {found:?}");
            if !found.contains(&(1_000, 1.0)) {
                assert!(
                    !engine.stats().recovery.damage.is_empty(),
                    "seed {seed}: no damage is reported"
                );
                lost += 1;
            }
            new_series_have_only_their_own_samples(&engine);
        }
    }
    assert!(lost > 5, "{lost} lost");
}

/// With an interval policy, visible series may not be durable. A transaction updates samples of
/// such series, and its entry is in another stream; the power fails at one of the syncs that
/// follow. The transaction is visible as a whole or not at all, with its series, and no damage is
/// reported.
#[test]
fn an_update_is_not_durable_before_the_series_that_it_changes() {
    let hour = SyncPolicy::IntervalMs(3_600_000);
    let mut lost = 0;
    for (seed, nth) in (0..20).flat_map(|seed| (0..4).map(move |nth| (seed, nth))) {
        let sim = Sim::new(seed);
        let engine = open(&sim, hour);
        let names: Vec<String> = (0..2 * SHARD_COUNT).map(|idx| format!("old{idx}")).collect();
        for name in &names {
            write(&engine, resolve(&engine, name), 1_000, 1.0).expect("a write");
        }
        let mut transaction = engine.begin().expect("begins");
        for name in &names {
            transaction.update(resolve(&engine, name), 1_000, 2.0).expect("an update");
        }
        transaction.commit().expect("commits");
        sim.faults.crash_at(sim.faults.change_count() + nth);
        // The power fails in this step or later.
        let _ = engine.step(Lane::Log);
        drop(engine);
        sim.restart();
        let engine = open(&sim, hour);
        assert_eq!(engine.stats().recovery.damage, [], "no sync has failed");
        let found: Vec<_> = names.iter().map(|name| read(&engine, name)).collect();
        let is_whole = |value| found.iter().all(|found| *found == [(1_000, value)]);
        assert!(is_whole(2.0) || !found.iter().flatten().any(|one| one.1 == 2.0), "{found:?}");
        lost += usize::from(!is_whole(2.0));
        new_series_have_only_their_own_samples(&engine);
    }
    assert!(lost > 5, "{lost} lost");
}
