//! Transactions step by step: what they see, what is a conflict and what is not, and what wins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firn_engine::{
    Engine, EngineOptions, Lane, LogOptions, Mutant, RecoveryProgress, SyncPolicy, Transaction,
};
use firn_env::Env;
use firn_model::{
    Change, ChangeSink, CommitSeq, ErrorKind, Labels, Matcher, Result, RowBatch, Sample, SeriesRef,
    ShardBits, TimeRange,
};
use firn_sim::{ObservedSamples, Operation, Rng, Sim, SimDisk, SyncFaultDisk};
use parking_lot::Mutex;

const SERIES: usize = 12;

fn open(sim: &Sim) -> Arc<Engine> {
    open_with(sim, EngineOptions::default())
}

fn open_with(sim: &Sim, options: EngineOptions) -> Arc<Engine> {
    try_open(sim.env(), options).expect("opens")
}

fn try_open(env: Env, options: EngineOptions) -> Result<Arc<Engine>> {
    let options = EngineOptions {
        shard_count: 4,
        stream_count: Some(2),
        tree: firn_tree::TreeOptions { block_bytes: 256, ..Default::default() },
        log: LogOptions { segment_bytes: 64 << 10, ..options.log },
        ..options
    };
    Engine::open(env, options, &RecoveryProgress::default())
}

/// Series in groups of their own, so that they are in several shards and streams.
fn labels(idx: usize) -> Labels {
    let name = format!("m{idx}");
    let pairs = [("__name__", name.as_str()), ("of", "transactions")];
    Labels::from_pairs(pairs).expect("valid labels")
}

fn matcher(idx: usize) -> [Matcher; 1] {
    [Matcher::equal("__name__", format!("m{idx}"))]
}

fn refs(engine: &Engine) -> Vec<SeriesRef> {
    let labels: Vec<Labels> = (0..SERIES).map(labels).collect();
    engine.resolve(&labels).into_iter().map(|found| found.expect("resolves")).collect()
}

fn write(engine: &Engine, idx: usize, ts: i64, value: f64) {
    let mut batch = RowBatch::default();
    batch.push(refs(engine)[idx], ts, value);
    engine.write(&mut batch).expect("a write");
}

/// (timestamp, value) of one series.
fn read(engine: &Engine, idx: usize) -> Vec<(i64, f64)> {
    let seen =
        ObservedSamples::read(&engine.snapshot(), &matcher(idx), TimeRange::ALL).expect("a read");
    seen.series.values().flatten().map(|sample| (sample.ts, sample.value)).collect()
}

fn read_in(transaction: &mut Transaction<'_>, idx: usize) -> Vec<(i64, f64)> {
    let found = transaction.read(&matcher(idx), TimeRange::ALL).expect("a read");
    found.iter().flat_map(|one| &one.samples).map(|one| (one.ts, one.value)).collect()
}

fn transact(
    engine: &Engine,
    changes: impl FnOnce(&mut Transaction<'_>, &[SeriesRef]) -> Result<()>,
) {
    let refs = refs(engine);
    let mut transaction = engine.begin().expect("begins");
    changes(&mut transaction, &refs).expect("changes");
    transaction.commit().expect("commits");
}

fn is_conflict<T>(result: Result<T>) -> bool {
    result.is_err_and(|e| {
        assert!(*e.kind() != ErrorKind::Conflict || e.to_string().ends_with("retry"), "{e}");
        *e.kind() == ErrorKind::Conflict && e.is_retriable()
    })
}

fn crash(sim: &Sim, engine: &mut Arc<Engine>) {
    sim.crash();
    sim.restart();
    *engine = open(sim);
}

#[test]
fn a_transaction_sees_its_own_changes_and_others_see_all_or_none_of_them() {
    let sim = Sim::new(1);
    let mut engine = open(&sim);
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let refs = refs(&engine);
    let mut transaction = engine.begin().expect("begins");
    for &series in &refs {
        transaction.insert(series, 2_000, 2.0).expect("an insert");
    }
    transaction.update(refs[0], 1_000, 3.0).expect("an update");
    assert!(transaction.delete(refs[1], 1_000).expect("a delete"));
    assert!(!transaction.delete(refs[1], 1_000).expect("a delete"), "it is gone");
    assert_eq!(transaction.delete_range(&matcher(2), TimeRange::ALL).expect("a delete"), 1);
    transaction.insert(refs[2], 3_000, 4.0).expect("an insert");
    let missing = transaction.update(refs[2], 1_000, 5.0).expect_err("it was deleted here");
    assert_eq!(*missing.kind(), ErrorKind::NotFound);
    let doubled = transaction.update_range(&matcher(3), TimeRange::ALL, |_, one| 2.0 * one.value);
    assert_eq!(doubled.expect("an update"), 2);
    let want = |read: &mut dyn FnMut(usize) -> Vec<(i64, f64)>| {
        assert_eq!(read(0), [(1_000, 3.0), (2_000, 2.0)]);
        assert_eq!(read(1), [(2_000, 2.0)]);
        assert_eq!(read(2), [(3_000, 4.0)]);
        assert_eq!(read(3), [(1_000, 2.0), (2_000, 4.0)]);
        assert_eq!(read(4), [(1_000, 1.0), (2_000, 2.0)]);
    };
    want(&mut |idx| read_in(&mut transaction, idx));
    (0..SERIES).for_each(|idx| assert_eq!(read(&engine, idx), [(1_000, 1.0)], "m{idx}"));
    let before = engine.snapshot();
    let report = transaction.commit().expect("commits");
    assert_eq!((report.written_samples, report.deleted_series), (SERIES as u64 + 2, 2));
    want(&mut |idx| read(&engine, idx));
    let seen = ObservedSamples::read(&before, &[], TimeRange::ALL).expect("a read");
    assert_eq!(seen.sample_count(), SERIES, "an older snapshot sees none of it");
    crash(&sim, &mut engine);
    want(&mut |idx| read(&engine, idx));
    let recovery = engine.stats().recovery;
    assert_eq!((recovery.transactions, recovery.deletes), (1, 2));
}

/// They stay in the log until the rows of their shards have come to them, as many as there may be.
#[test]
fn recovery_has_the_rows_of_few_transactions_in_memory_at_a_time() {
    const COUNT: i64 = 12;
    const SAMPLES: i64 = 1_000;
    let sim = Sim::new(3);
    let mut engine = open(&sim);
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let refs = refs(&engine);
    for number in 0..COUNT {
        let mut transaction = engine.begin().expect("begins");
        for step in 0..SAMPLES {
            let ts = 2_000 + number * SAMPLES + step;
            transaction.insert(refs[step as usize % SERIES], ts, ts as f64).expect("an insert");
        }
        transaction.commit().expect("commits");
        write(&engine, 0, 1_000, number as f64);
    }
    let logged_bytes = engine.stats().log.bytes;
    let before: Vec<_> = (0..SERIES).map(|idx| read(&engine, idx)).collect();
    crash(&sim, &mut engine);
    (0..SERIES).for_each(|idx| assert_eq!(read(&engine, idx), before[idx], "m{idx}"));
    let recovery = engine.stats().recovery;
    assert_eq!(recovery.transactions, COUNT as u64);
    let held_bytes = recovery.transaction_bytes_max;
    assert!(held_bytes > 0 && held_bytes * 4 < logged_bytes, "{held_bytes} of {logged_bytes}");
}

/// The log has twice as many bytes as memory may have: rows become columns while they are read, as when they were written.
#[test]
fn recovery_of_plain_inserts_takes_no_more_memory_than_writing_them() {
    let options = || EngineOptions { head_bytes_max: 2 << 20, ..EngineOptions::default() };
    let limit_bytes = options().head_bytes_max;
    let sim = Sim::new(5);
    let engine = open_with(&sim, options());
    let (refs, mut batch, mut ts) = (refs(&engine), RowBatch::default(), 0);
    while engine.stats().log.bytes < 2 * limit_bytes {
        for _ in 0..200 {
            ts += 1_000;
            refs.iter().for_each(|&series| batch.push(series, ts, (ts / 60_000) as f64));
        }
        engine.write(&mut batch).expect("a write");
        batch.clear();
        while engine.step(Lane::Head).expect("a step").is_some() {}
    }
    assert_eq!(engine.stats().flushes, 0, "the log has all of it");
    let written_bytes = engine.budget().usage().peak_bytes;
    let (logged_bytes, count) = (engine.stats().log.bytes, read(&engine, 0).len());
    drop(engine);
    sim.restart();
    let engine = open_with(&sim, options());
    let recovered_bytes = engine.budget().usage().peak_bytes;
    println!(
        "{logged_bytes} bytes of log: {written_bytes} of memory to write, {recovered_bytes} to recover"
    );
    assert!(recovered_bytes < limit_bytes, "{recovered_bytes} of {logged_bytes}");
    assert_eq!(read(&engine, 0).len(), count);
}

/// A sync of the second stream takes as long as it likes. A transaction with samples of series there waits for nothing but its
/// own entry, which is in the first.
#[test]
fn a_transaction_waits_for_no_other_stream() {
    let sim = Sim::new(4);
    let [holds, is_stuck] = [false; 2].map(|is| Arc::new(AtomicBool::new(is)));
    let wait = {
        let (holds, is_stuck) = (Arc::clone(&holds), Arc::clone(&is_stuck));
        move || {
            while holds.load(Ordering::SeqCst) {
                is_stuck.store(true, Ordering::SeqCst);
                std::thread::yield_now();
            }
        }
    };
    let disk = SyncFaultDisk::delaying(Arc::new(sim.disk.clone()), "log/1/", wait);
    let options =
        EngineOptions { shard_count: 4, stream_count: Some(2), ..EngineOptions::default() };
    let env = Env { disk: Arc::new(disk), ..sim.env() };
    let mut engine = Engine::open(env, options, &RecoveryProgress::default()).expect("opens");
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let (refs, bits) = (refs(&engine), ShardBits::for_count(4));
    let of_second = |&idx: &usize| bits.shard(refs[idx].group).0 % 2 == 1;
    let slow = (0..SERIES).find(of_second).expect("a series in the second stream");
    holds.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&engine, slow, 2_000, 2.0));
        while !is_stuck.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        transact(&engine, |transaction, refs| {
            refs.iter().try_for_each(|&series| transaction.update(series, 1_000, 3.0))
        });
        (0..SERIES).for_each(|idx| assert_eq!(read(&engine, idx), [(1_000, 3.0)], "m{idx}"));
        assert!(!writer.is_finished(), "what is not durable was acknowledged");
        holds.store(false, Ordering::SeqCst);
        writer.join().expect("a write");
    });
    for _ in 0..2 {
        assert_eq!(read(&engine, slow), [(1_000, 3.0), (2_000, 2.0)]);
        crash(&sim, &mut engine);
    }
}

/// By the clock no time passes, so that no write finds a sync due. The lane of the log syncs, whatever the others do.
#[test]
fn an_interval_is_kept_where_no_write_comes_by() {
    let sim = Sim::new(6);
    let log_sync = SyncPolicy::IntervalMs(1);
    let mut engine = open_with(
        &sim,
        EngineOptions {
            log: LogOptions { sync: log_sync, ..Default::default() },
            ..EngineOptions::default()
        },
    );
    engine.step(Lane::Log).expect("the heads of the segments are synced");
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| engine.run_lane(Lane::Log));
        [1_000, 2_000].iter().for_each(|&ts| write_and_wait_for_a_sync(&engine, ts));
        sim.crash();
        engine.close(false).expect("nothing is left to be synced");
        lane.join().expect("a lane ends");
    });
    sim.restart();
    engine = open_with(
        &sim,
        EngineOptions {
            log: LogOptions { sync: log_sync, ..Default::default() },
            ..EngineOptions::default()
        },
    );
    assert_eq!(read(&engine, 0), [(1_000, 1.0), (2_000, 1.0)]);
}

/// After a sync that failed, what was acknowledged before it waits for a flush, and that for room. What is written meanwhile is
/// synced as soon as ever.
#[test]
fn an_interval_is_kept_behind_a_sync_that_failed() {
    let sim = Sim::new(11);
    let log_sync = SyncPolicy::IntervalMs(1);
    let engine = open_with(
        &sim,
        EngineOptions {
            log: LogOptions { sync: log_sync, ..Default::default() },
            ..EngineOptions::default()
        },
    );
    write(&engine, 0, 500, 1.0);
    (1..3).for_each(|nth| sim.faults.fail_nth(Operation::Sync, nth));
    engine.step(Lane::Log).expect_err("both streams fail");
    assert!(engine.stats().log.has_lost_commits);
    write(&engine, 0, 1_000, 1.0);
    engine.step(Lane::Log).expect("what comes later is synced");
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| engine.run_lane(Lane::Log));
        (1..9).for_each(|step| write_and_wait_for_a_sync(&engine, 1_000 + step));
        assert!(engine.stats().log.has_lost_commits);
        engine.close(false).expect_err("what was lost is lost");
        lane.join().expect("a lane ends");
    });
}

fn write_and_wait_for_a_sync(engine: &Engine, ts: i64) {
    let syncs = engine.stats().log.syncs;
    write(engine, 0, ts, 1.0);
    let start = std::time::Instant::now();
    while engine.stats().log.syncs == syncs {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody syncs");
        std::thread::yield_now();
    }
}

/// Each write and each sync of a start with another number of streams fails in turn. A row that is acknowledged then is there after
/// a kill, whichever number the next start finds.
#[test]
fn what_is_acknowledged_after_a_change_of_streams_that_failed_is_there() {
    let mut kept = 0;
    for nth in 0.. {
        let sim = Sim::new(8);
        let open = |count| {
            let options = EngineOptions {
                shard_count: 4,
                stream_count: Some(count),
                log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
                ..EngineOptions::default()
            };
            Engine::open(sim.env(), options, &RecoveryProgress::default())
        };
        let engine = open(2).expect("opens");
        (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
        drop(engine);
        let faults_before = sim.faults.fault_count();
        sim.faults.fail_at(sim.faults.change_count() + nth);
        let opened = open(1);
        let has_failed = sim.faults.fault_count() > faults_before;
        sim.faults.forget_plans();
        let mut acknowledged = 0;
        if let Ok(engine) = &opened {
            let refs = refs(engine);
            for (ts, &series) in (2_000..).zip(&refs) {
                let mut batch = RowBatch::default();
                batch.push(series, ts, 2.0);
                acknowledged += usize::from(engine.write(&mut batch).is_ok());
            }
            kept += u64::from(has_failed && acknowledged == SERIES);
        }
        drop(opened);
        let engine = open(1).expect("opens");
        let seen = (0..SERIES).map(|idx| read(&engine, idx).len()).sum::<usize>();
        assert!(seen >= SERIES + acknowledged, "operation {nth}: {seen} of {acknowledged} more");
        if !has_failed {
            break;
        }
    }
    assert!(kept > 5, "{kept} starts went on");
}

/// One shard has all rows, and they do not get smaller. What one thread makes of them others wait for.
#[test]
fn recovery_of_one_hot_shard_keeps_to_its_memory() {
    let options = EngineOptions {
        shard_count: 1,
        recovery_threads: 4,
        head_bytes_max: 2 << 20,
        ..EngineOptions::default()
    };
    let sim = Sim::new(9);
    let open = || Engine::open(sim.env(), options.clone(), &RecoveryProgress::default());
    let engine = open().expect("opens");
    let (refs, mut batch, mut rng, mut ts) = (refs(&engine), RowBatch::default(), Rng::new(9), 0);
    while engine.stats().log.bytes < options.head_bytes_max {
        for _ in 0..100 {
            ts += 1_000;
            refs.iter().for_each(|&series| batch.push(series, ts, rng.next_u64() as f64));
        }
        engine.write(&mut batch).expect("a write");
        batch.clear();
    }
    let logged_bytes = engine.stats().log.bytes;
    drop(engine);
    let engine = open().expect("opens");
    let recovered_bytes = engine.budget().usage().peak_bytes;
    println!("{logged_bytes} bytes of log, {recovered_bytes} of memory to recover");
    assert!(recovered_bytes < options.head_bytes_max / 2 * 3, "{recovered_bytes}");
    assert_eq!(read(&engine, 0).len(), (ts / 1_000) as usize);
}

/// The last sync fails: it is told, and all is closed.
#[test]
fn a_close_that_cannot_sync_closes() {
    let sim = Sim::new(10);
    let log_sync = SyncPolicy::IntervalMs(3_600_000);
    let engine = open_with(
        &sim,
        EngineOptions {
            log: LogOptions { sync: log_sync, ..Default::default() },
            ..EngineOptions::default()
        },
    );
    write(&engine, 0, 1_000, 1.0);
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| engine.run_lane(Lane::Tree));
        sim.faults.fail_nth(Operation::Sync, 1);
        engine.close(false).expect_err("a sync fails");
        assert!(!engine.is_open());
        lane.join().expect("a lane ends");
    });
}

/// A lane that looks whether it may sleep, for an hour, while the database is closed.
#[test]
fn a_lane_ends_however_late_it_sleeps() {
    for seed in 0..200 {
        let log_sync = SyncPolicy::IntervalMs(3_600_000);
        let options = EngineOptions {
            log: LogOptions { sync: log_sync, ..Default::default() },
            ..EngineOptions::default()
        };
        let engine = open_with(&Sim::new(seed), options);
        std::thread::scope(|scope| {
            let lane = scope.spawn(|| engine.run_lane(Lane::Log));
            (0..seed).for_each(|_| std::thread::yield_now());
            engine.close(false).expect("closes");
            lane.join().expect("a lane ends");
        });
    }
}

/// Who only looks does not know how many streams a log has, and changes nothing.
#[test]
fn a_log_keeps_its_streams_where_nobody_says_how_many() {
    let sim = Sim::new(7);
    let mut engine = open_with(&sim, EngineOptions::default());
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    drop(engine);
    let keeps = EngineOptions { shard_count: 4, ..EngineOptions::default() };
    engine = Engine::open(sim.env(), keeps, &RecoveryProgress::default()).expect("opens");
    assert_eq!((engine.stats().flushes, engine.stats().log.segments), (0, 4), "two in each stream");
    (0..SERIES).for_each(|idx| assert_eq!(read(&engine, idx), [(1_000, 1.0)], "m{idx}"));
}

#[test]
fn dropped_or_without_changes_a_transaction_does_nothing() {
    let sim = Sim::new(2);
    let engine = open(&sim);
    write(&engine, 0, 1_000, 1.0);
    let refs = refs(&engine);
    let last = engine.stats().last_seq;
    let mut dropped = engine.begin().expect("begins");
    dropped.insert(refs[0], 1_000, 2.0).expect("an insert");
    drop(dropped);
    let mut reader = engine.begin().expect("begins");
    assert_eq!(reader.read_point(refs[0], 1_000).expect("a read"), Some(1.0));
    assert_eq!(reader.read_point(refs[0], 1_001).expect("a read"), None);
    assert_eq!(engine.stats().last_seq, last);
    // What it has read is changed: it is as if it had come first.
    transact(&engine, |other, refs| other.update(refs[0], 1_000, 3.0));
    assert_eq!(read_in(&mut reader, 0), [(1_000, 1.0)]);
    assert_eq!(reader.commit().expect("nothing to validate").seq, None);
    assert_eq!((engine.stats().transactions, engine.stats().conflicts), (1, 0));
}

/// What one transaction read, and what another one does before it commits: whether that is a conflict.
#[test]
fn what_was_read_and_touched_since_is_a_conflict_and_nothing_else() {
    type Step = fn(&mut Transaction<'_>, &[SeriesRef]) -> Result<()>;
    let hour = 3_600_000;
    let cases: [(&str, Step, Step, bool); 14] = [
        ("nothing read", |_, _| Ok(()), |t, r| t.update(r[0], 1_000, 9.0), false),
        (
            "a point",
            |t, r| t.read_point(r[0], 1_000).map(drop),
            |t, r| t.update(r[0], 1_000, 9.0),
            true,
        ),
        (
            "its absence",
            |t, r| t.read_point(r[0], 5).map(drop),
            |t, r| t.insert(r[0], 5, 9.0),
            true,
        ),
        (
            "a neighbour in time",
            |t, r| t.read_point(r[0], 1_000).map(drop),
            |t, r| t.insert(r[0], 1_001, 9.0),
            false,
        ),
        (
            "another series",
            |t, r| t.read_point(r[0], 1_000).map(drop),
            |t, r| t.update(r[1], 1_000, 9.0),
            false,
        ),
        (
            "deleted",
            |t, r| t.read_point(r[0], 1_000).map(drop),
            |t, r| t.delete(r[0], 1_000).map(drop),
            true,
        ),
        (
            "deleted by range",
            |t, r| t.read_point(r[0], 1_000).map(drop),
            |t, _| t.delete_range(&matcher(0), TimeRange::ALL).map(drop),
            true,
        ),
        (
            "a range",
            |t, _| t.read(&matcher(0), TimeRange::new(0, 9_000)).map(drop),
            |t, r| t.insert(r[0], 7_000, 9.0),
            true,
        ),
        (
            "before a range",
            |t, _| t.read(&matcher(0), TimeRange::new(0, 9_000)).map(drop),
            |t, r| t.insert(r[0], -3_600_000, 9.0),
            false,
        ),
        (
            "a range of others",
            |t, _| t.read(&matcher(0), TimeRange::ALL).map(drop),
            |t, r| t.insert(r[1], 7_000, 9.0),
            false,
        ),
        (
            "deleted in a range",
            |t, _| t.read(&matcher(0), TimeRange::ALL).map(drop),
            |t, _| t.delete_range(&[], TimeRange::at(1_000)).map(drop),
            true,
        ),
        (
            "a delete by range",
            |t, _| t.delete_range(&matcher(0), TimeRange::ALL).map(drop),
            |t, r| t.insert(r[0], 7_000, 9.0),
            true,
        ),
        (
            "an update by range",
            |t, _| t.update_range(&[], TimeRange::ALL, |_, one| one.value + 1.0).map(drop),
            |t, r| t.insert(r[3], 7_000, 9.0),
            true,
        ),
        (
            "two deletes",
            |t, _| t.delete_range(&matcher(0), TimeRange::ALL).map(drop),
            |t, _| t.delete_range(&matcher(1), TimeRange::ALL).map(drop),
            false,
        ),
    ];
    for (name, first, second, want) in cases {
        for between in ["nothing", "a flush"] {
            let sim = Sim::new(3);
            let engine = open(&sim);
            sim.clock.advance(Duration::from_millis(hour));
            (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
            let refs = refs(&engine);
            let mut transaction = engine.begin().expect("begins");
            first(&mut transaction, &refs).expect(name);
            transaction.insert(refs[5], 2_000, 1.0).expect("an insert");
            transact(&engine, second);
            if between == "a flush" {
                engine.flush().expect("a flush");
            }
            assert_eq!(is_conflict(transaction.commit()), want, "{name}, {between} in between");
            let written = read(&engine, 5).len() == 2;
            assert_eq!(written, !want, "{name}: all or nothing");
            assert_eq!(engine.stats().conflicts, u64::from(want), "{name}");
        }
    }
}

/// A series that nobody knew when the range was read is seen by validation.
#[test]
fn a_new_series_in_a_range_that_was_read_is_a_conflict() {
    for (name, want) in [("m1", true), ("other", false)] {
        let sim = Sim::new(4);
        let engine = open(&sim);
        write(&engine, 0, 1_000, 1.0);
        let mut transaction = engine.begin().expect("begins");
        let regex = Matcher::new("__name__", firn_model::MatchOp::Regex, "m[01]").expect("a regex");
        transaction.read(&[regex], TimeRange::ALL).expect("a read");
        transaction.insert(refs(&engine)[0], 2_000, 1.0).expect("an insert");
        let pairs = [("__name__", name), ("not", "known")];
        let labels = Labels::from_pairs(pairs).expect("valid labels");
        let series = engine.resolve(&[labels]).remove(0).expect("resolves");
        let mut other = engine.begin().expect("begins");
        other.insert(series, 1_500, 1.0).expect("an insert");
        other.commit().expect("commits");
        assert_eq!(is_conflict(transaction.commit()), want, "{name}");
    }
}

/// On one point: inserted, deleted, inserted again, updated twice; plain and in transactions; between any two of these
/// nothing, a flush, all the way to the slow tier, a crash, or a flush and a crash.
#[test]
fn invariant_2_the_newest_of_plain_writes_and_transactions_wins() {
    for path in 0..5_usize.pow(4) {
        let sim = Sim::new(path as u64);
        let mut engine = open(&sim);
        let between = |engine: &mut Arc<Engine>, step: u32| {
            let how = path / 5_usize.pow(step) % 5;
            if how == 1 || how == 2 || how == 4 {
                engine.flush().expect("a flush");
            }
            if how == 2 {
                sim.clock.advance(Duration::from_secs(6 * 3_600));
                while engine.step(Lane::Head).expect("a step").is_some() {}
                while engine.step(Lane::Tree).expect("a step").is_some() {}
            }
            if how >= 3 {
                crash(&sim, engine);
            }
        };
        let want = |engine: &Engine, values: [Option<f64>; 4], step: &str| {
            for (idx, want) in values.into_iter().enumerate() {
                let want: Vec<_> = want.map(|value| (1_000, value)).into_iter().collect();
                assert_eq!(read(engine, idx), want, "m{idx} after {step}, path {path}");
            }
        };
        // Of m0 all is done in transactions; of m1 inserts are plain; m2 stays; m3 comes late.
        (1..3).for_each(|idx| write(&engine, idx, 1_000, 1.0));
        transact(&engine, |t, refs| t.insert(refs[0], 1_000, 1.0));
        between(&mut engine, 0);
        transact(&engine, |t, refs| {
            t.update(refs[0], 1_000, 2.0)?;
            t.delete(refs[0], 1_000)?;
            t.delete_range(&matcher(1), TimeRange::new(0, 1_000)).map(drop)
        });
        want(&engine, [None, None, Some(1.0), None], "delete");
        between(&mut engine, 1);
        write(&engine, 1, 1_000, 3.0);
        transact(&engine, |t, refs| t.insert(refs[0], 1_000, 3.0));
        want(&engine, [Some(3.0), Some(3.0), Some(1.0), None], "insert");
        between(&mut engine, 2);
        for value in [4.0, 5.0] {
            transact(&engine, |t, refs| {
                t.update(refs[0], 1_000, value)?;
                let changed = t.update_range(&matcher(1), TimeRange::ALL, |_, _| value)?;
                assert_eq!(changed, 1, "path {path}");
                Ok(())
            });
            if value == 4.0 {
                between(&mut engine, 3);
                write(&engine, 3, 1_000, 1.0);
            }
        }
        write(&engine, 3, 1_000, 6.0);
        for round in ["update", "a crash", "cleaning"] {
            want(&engine, [Some(5.0), Some(5.0), Some(1.0), Some(6.0)], round);
            match round {
                "update" => crash(&sim, &mut engine),
                _ => engine.clean_tombstones().expect("cleaning"),
            }
        }
    }
}

/// A write of the device fails: nothing of the transaction is seen, nobody waits for it for ever, the next one goes on.
#[test]
fn a_transaction_that_did_not_become_durable_leaves_nothing() {
    let sim = Sim::new(5);
    let mut engine = open(&sim);
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let refs = refs(&engine);
    sim.faults.fail_nth(Operation::Write, 1);
    let mut failing = engine.begin().expect("begins");
    refs.iter().for_each(|&series| failing.update(series, 1_000, 2.0).expect("an update"));
    failing.delete_range(&matcher(0), TimeRange::ALL).expect("a delete");
    let error = failing.commit().expect_err("the device failed");
    assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
    for idx in 0..SERIES {
        assert_eq!(read(&engine, idx), [(1_000, 1.0)], "m{idx}");
    }
    transact(&engine, |t, refs| t.update(refs[1], 1_000, 3.0));
    engine.flush().expect("a flush");
    crash(&sim, &mut engine);
    assert_eq!(read(&engine, 0), [(1_000, 1.0)]);
    assert_eq!(read(&engine, 1), [(1_000, 3.0)]);
}

/// Series that are new are there with the transaction, whatever stream their definitions are in.
#[test]
fn new_series_of_a_transaction_are_known_after_a_crash() {
    for sync in [SyncPolicy::Always, SyncPolicy::Never] {
        let sim = Sim::new(6);
        let options = EngineOptions {
            log: LogOptions { sync, ..Default::default() },
            ..EngineOptions::default()
        };
        let engine = open_with(&sim, options);
        transact(&engine, |t, refs| refs.iter().try_for_each(|one| t.insert(*one, 1_000, 1.0)));
        sim.crash();
        sim.restart();
        let engine = open(&sim);
        let counts: Vec<usize> = (0..SERIES).map(|idx| read(&engine, idx).len()).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{sync:?}: {counts:?}");
        assert!(sync != SyncPolicy::Always || counts[0] == 1);
    }
}

#[test]
fn limits_are_told() {
    let sim = Sim::new(7);
    let engine = open(&sim);
    let now = sim.env().clock.now_ms();
    (0..300).for_each(|ts| write(&engine, 0, ts, 1.0));
    let refs = refs(&engine);
    let mut transaction = engine.begin().expect("begins");
    let error = transaction.insert(refs[0], now + 3_600_000, 1.0).expect_err("the future");
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    let deleted = (0..300).map(|ts| transaction.delete(refs[0], ts)).find_map(Result::err);
    assert_eq!(*deleted.expect("too many").kind(), ErrorKind::TooLarge);
    drop(transaction);
    // More than a segment holds.
    let mut large = engine.begin().expect("begins");
    for idx in 0..40_000 {
        large.insert(refs[idx % SERIES], idx as i64, (idx as f64).sqrt()).expect("an insert");
    }
    let error = large.commit().expect_err("too much for a segment");
    assert_eq!(*error.kind(), ErrorKind::TooLarge, "{error}");
    assert!(error.to_string().contains("a transaction of 40000 samples"), "{error}");
    let mut unknown = engine.begin().expect("begins");
    let series = SeriesRef { slot: firn_model::Slot(4_000), ..refs[0] };
    unknown.insert(series, 1, 1.0).expect("shows at the commit");
    assert_eq!(*unknown.commit().expect_err("no such series").kind(), ErrorKind::NotFound);
    assert_eq!(read(&engine, 0).len(), 300);
}

/// Numbers of what was told, by kind, and what could be seen when it was.
#[derive(Default)]
struct Told(Mutex<Vec<CommitSeq>>);

impl ChangeSink for Told {
    fn changed(&self, change: &Change) {
        self.0.lock().push(change.number);
    }
}

/// The cache knows of every part of a transaction before a snapshot's number covers it.
#[test]
fn every_change_of_a_transaction_is_told_before_it_is_visible() {
    let sim = Sim::new(8);
    let engine = open(&sim);
    let told = Arc::new(Told::default());
    let sink: Arc<dyn ChangeSink> = Arc::<Told>::clone(&told);
    engine.set_change_sink(sink).expect("the first");
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let before = engine.snapshot().number();
    told.0.lock().clear();
    transact(&engine, |t, refs| {
        t.delete(refs[0], 1_000)?;
        t.delete_range(&matcher(1), TimeRange::ALL)?;
        refs[2..].iter().try_for_each(|&series| t.update(series, 1_000, 2.0))
    });
    let after = engine.snapshot().number();
    assert_eq!(after, CommitSeq(before.0 + 2), "one number for each delete, rows have the last");
    let mut numbers = told.0.lock().clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, [CommitSeq(before.0 + 1), after]);
    let sample = Sample { ts: 1_000, value: 2.0 };
    assert_eq!(read(&engine, 2), [(sample.ts, sample.value)]);
}

/// What happens to a transaction that only the log has, before the power goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A write of the manifest fails, and the next edit begins another one.
    ManifestFails,
    /// The process is killed, and the power goes while the next one opens.
    Killed,
    /// The database is copied without what is only in memory and log: that is what is read.
    Copied,
    /// The slow tier is told: a replica is what is read.
    Told,
}

const WAYS: [Way; 4] = [Way::ManifestFails, Way::Killed, Way::Copied, Way::Told];

/// A transaction takes a sample from one series and gives it to another one. Returns how a half of that is there, or whether
/// the whole is.
fn move_a_sample(seed: u64, way: Way, mutant: Option<Mutant>) -> std::result::Result<bool, String> {
    let sim = Sim::new(seed);
    let log_sync = SyncPolicy::IntervalMs(24 * 3_600_000);
    let options = || EngineOptions {
        mutant,
        log: LogOptions { sync: log_sync, ..Default::default() },
        ..EngineOptions::default()
    };
    let engine = open_with(&sim, options());
    write(&engine, 0, 1_000, 1.0);
    engine.flush().expect("a flush");
    transact(&engine, |transaction, refs| {
        assert_eq!(transaction.delete_range(&matcher(0), TimeRange::ALL)?, 1);
        transaction.insert(refs[1], 1_000, 1.0)
    });
    let work = || {
        sim.clock.advance(Duration::from_secs(6 * 3_600));
        for _ in 0..20 {
            sim.clock.advance(Duration::from_secs(61));
            // What fails is tried again.
            let _ = engine.step(Lane::Tree);
        }
    };
    let after = match way {
        Way::ManifestFails => {
            sim.faults.fail_nth(Operation::Write, 1 + seed % 10);
            work();
            sim.restart();
            open_with(&sim, options())
        }
        Way::Killed => {
            drop(engine);
            // As many as a start makes.
            sim.faults.crash_at(sim.faults.change_count() + seed % 44);
            assert!(try_open(sim.env(), options()).is_err(), "the power goes");
            sim.restart();
            open_with(&sim, options())
        }
        Way::Copied => {
            let other = Sim::new(!seed);
            engine.copy_to(&other.env(), true).expect("a copy");
            open(&other)
        }
        Way::Told => {
            work();
            let disk = Arc::new(SimDisk::new(sim.faults.clone()));
            let options = EngineOptions { read_only: true, ..options() };
            try_open(Env { disk, ..sim.env() }, options).expect("the slow tier was told")
        }
    };
    match (read(&after, 0).as_slice(), read(&after, 1).as_slice()) {
        ([], [(1_000, 1.0)]) => Ok(true),
        ([(1_000, 1.0)], []) => Ok(false),
        half => Err(format!("{way:?}: {half:?}")),
    }
}

pub(crate) fn found(seed: u64, mistake: Mutant) -> Option<String> {
    let way = WAYS[seed as usize % WAYS.len()];
    move_a_sample(seed, way, Some(mistake)).err()
}

/// A delete is named where the rows of its transaction are: not before both are durable.
#[test]
fn nothing_names_the_deletes_of_a_transaction_before_it_has_its_rows() {
    for way in WAYS {
        let (mut whole, mut nothing, mut halves) = (0, 0, 0);
        for seed in 0..100 {
            let is_there = move_a_sample(seed, way, None);
            match is_there.unwrap_or_else(|half| panic!("seed {seed}: {half}")) {
                true => whole += 1,
                false => nothing += 1,
            }
            let mistake = Some(Mutant::UnflushedDeletesNamed);
            halves += usize::from(move_a_sample(seed, way, mistake).is_err());
        }
        println!("{way:?}: {whole} whole, {nothing} not there; {halves} halves by mistake");
        assert!(nothing > 0 && halves > 0, "{way:?} shows nothing");
        assert!(whole > 0 || matches!(way, Way::Copied | Way::Told), "{way:?} keeps nothing");
    }
}
