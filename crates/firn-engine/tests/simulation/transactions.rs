//! Transactions step by step: their reads, their conflicts, and the order in which changes win.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firn_engine::{
    Engine, EngineOptions, Lane, LogOptions, Mutant, RecoveryProgress, SyncPolicy, Transaction,
};
use firn_env::Env;
use firn_model::{
    CancelToken, Change, ChangeSink, CommitSeq, ErrorKind, Labels, Matcher, QueryContext, Result,
    RowBatch, Sample, SeriesRef, ShardBits, TimeRange,
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

/// Each series has a group of its own, so the series are in several shards and streams.
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

/// Before, series that only the transaction itself had written were deleted and not counted.
#[test]
fn a_delete_of_a_range_counts_the_series_that_its_transaction_wrote() {
    let sim = Sim::new(1);
    let engine = open(&sim);
    (0..2).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let refs = refs(&engine);
    let mut transaction = engine.begin().expect("begins");
    for (idx, ts) in [(1, 2_000), (2, 2_000), (2, 2_001), (3, 2_000), (3, 9_000), (4, 9_000)] {
        transaction.insert(refs[idx], ts, 2.0).expect("an insert");
    }
    // Two that are stored, one of which was written here too, and two that are only written here.
    let every = [Matcher::equal("of", "transactions")];
    let range = TimeRange::new(0, 5_000);
    assert_eq!(transaction.delete_range(&every, range).expect("a delete"), 4);
    assert_eq!(transaction.delete_range(&matcher(2), range).expect("a delete"), 0, "it is gone");
    transaction.insert(refs[2], 2_000, 3.0).expect("an insert");
    transaction.insert(refs[2], 2_001, 3.0).expect("an insert");
    assert_eq!(transaction.delete_range(&matcher(2), TimeRange::at(2_001)).expect("a delete"), 1);
    assert_eq!(transaction.delete_range(&matcher(4), range).expect("a delete"), 0, "it is later");
    transaction.commit().expect("commits");
    let left: Vec<Vec<(i64, f64)>> = (0..5).map(|idx| read(&engine, idx)).collect();
    let want = [&[][..], &[], &[(2_000, 3.0)], &[(9_000, 2.0)], &[(9_000, 2.0)]];
    assert_eq!(left, want);
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

/// During recovery, transactions stay in the log until replay of the rows of their shards reaches
/// them, so memory contains only few at a time.
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

/// The log has twice as many bytes as the head may use. Rows become columns during replay, as they
/// did when they were written.
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
        "{logged_bytes} bytes of log, {written_bytes} of memory to write, \
         {recovered_bytes} to recover"
    );
    assert!(recovered_bytes < limit_bytes, "{recovered_bytes} of {logged_bytes}");
    assert_eq!(read(&engine, 0).len(), count);
}

/// A sync of the second stream hangs. A transaction with samples of series there waits only for its
/// own entry, which is in the first stream. After a power failure both the transaction and the
/// write that waited are there.
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
        assert!(!writer.is_finished(), "a write was acknowledged before it was durable");
        holds.store(false, Ordering::SeqCst);
        writer.join().expect("a write");
    });
    for _ in 0..2 {
        assert_eq!(read(&engine, slow), [(1_000, 3.0), (2_000, 2.0)]);
        crash(&sim, &mut engine);
    }
}

/// The simulated clock does not move, so no write finds a sync due. The lane of the log syncs
/// anyway. After a power failure all rows are there.
#[test]
fn an_interval_is_kept_without_writes() {
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

/// A sync of both streams fails, so rows that were acknowledged before it are durable only after a
/// flush, which needs room on the disk. Later rows are synced within the interval nevertheless, and
/// the close reports the loss.
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
    engine.step(Lane::Log).expect("later rows are synced");
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| engine.run_lane(Lane::Log));
        (1..9).for_each(|step| write_and_wait_for_a_sync(&engine, 1_000 + step));
        assert!(engine.stats().log.has_lost_commits);
        engine.close(false).expect_err("the loss is reported");
        lane.join().expect("a lane ends");
    });
}

fn write_and_wait_for_a_sync(engine: &Engine, ts: i64) {
    let syncs = engine.stats().log.syncs;
    write(engine, 0, ts, 1.0);
    let start = std::time::Instant::now();
    while engine.stats().log.syncs == syncs {
        assert!(start.elapsed() < Duration::from_secs(60), "no sync follows");
        std::thread::yield_now();
    }
}

/// Each write and each sync fails in turn while the database opens with another number of streams.
/// If it opens, the rows that it acknowledges are in the log. They must be there after a kill and
/// the next start.
#[test]
fn rows_acknowledged_after_a_failed_change_of_streams_are_durable() {
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
    assert!(kept > 5, "{kept} starts continued");
}

/// One shard contains all rows, and columns do not make them smaller. Threads that read the log
/// wait for the thread that inserts the rows.
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

/// The last sync fails, so the row may not be on the disk. The close reports the error, and the
/// database is closed.
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

/// A lane prepares to sleep for an hour while the database is closed. It must end.
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

/// An open without a number of streams keeps those of the log, and flushes nothing.
#[test]
fn a_log_keeps_its_streams_by_default() {
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
    // A sample that the reader has read is changed. The reader commits as if it had come first.
    transact(&engine, |other, refs| other.update(refs[0], 1_000, 3.0));
    assert_eq!(read_in(&mut reader, 0), [(1_000, 1.0)]);
    assert_eq!(reader.commit().expect("nothing to validate").seq, None);
    assert_eq!((engine.stats().transactions, engine.stats().conflicts), (1, 0));
}

/// Reads, changes and the validation of a commit end with the context, and stay within its memory.
#[test]
fn a_transaction_ends_with_its_context() {
    let sim = Sim::new(3);
    let engine = open(&sim);
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let refs = refs(&engine);
    type Step = fn(&mut Transaction<'_>, &[SeriesRef]) -> Result<()>;
    let steps: [(&str, Step); 5] = [
        ("read", |t, _| t.read(&matcher(0), TimeRange::ALL).map(drop)),
        ("read_point", |t, r| t.read_point(r[0], 1_000).map(drop)),
        ("update_range", |t, _| t.update_range(&matcher(0), TimeRange::ALL, |_, _| 2.0).map(drop)),
        ("delete_range", |t, _| t.delete_range(&matcher(0), TimeRange::ALL).map(drop)),
        ("delete", |t, r| t.delete(r[0], 1_000).map(drop)),
    ];
    for (name, step) in steps {
        let cancel = CancelToken::new();
        let budget = engine.budget().part(1 << 20);
        let mut transaction =
            engine.begin_within(QueryContext::new(cancel.clone(), budget)).expect("begins");
        cancel.time_out();
        let error = step(&mut transaction, &refs).expect_err(name);
        assert_eq!(*error.kind(), ErrorKind::Timeout, "{name}");
        // A part of the memory that one sample needs.
        let tiny = engine.budget().part(8);
        let context = QueryContext::new(CancelToken::new(), tiny);
        let mut transaction = engine.begin_within(context).expect("begins");
        if name != "delete_range" {
            let error = step(&mut transaction, &refs).expect_err(name);
            let is_refused = matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Busy { .. });
            assert!(is_refused, "{name}: {error}");
        }
    }
    // A delete that was not begun by the caller, too.
    let cancel = CancelToken::new();
    cancel.time_out();
    let context = QueryContext::new(cancel, engine.budget().part(1 << 20));
    let error =
        engine.delete_within(&[matcher(0).to_vec()], TimeRange::ALL, &context).expect_err("late");
    assert_eq!(*error.kind(), ErrorKind::Timeout);
    // The samples that all reads return are counted.
    for (name, step) in steps.iter().filter(|(name, _)| *name != "delete_range") {
        for (samples_max, is_refused) in [(1, true), (2, false)] {
            let mut transaction = engine.begin().expect("begins");
            transaction.limit_samples(samples_max);
            transaction.read_point(refs[1], 1_000).expect("one sample");
            match step(&mut transaction, &refs) {
                Ok(()) => assert!(!is_refused, "{name}"),
                Err(error) => {
                    assert!(is_refused && *error.kind() == ErrorKind::TooLarge, "{name}: {error}");
                }
            }
        }
    }
    // The commit, too.
    let cancel = CancelToken::new();
    let context = QueryContext::new(cancel.clone(), engine.budget().part(1 << 20));
    let mut transaction = engine.begin_within(context).expect("begins");
    assert_eq!(read_in(&mut transaction, 0), [(1_000, 1.0)]);
    transaction.insert(refs[1], 2_000, 5.0).expect("an insert");
    cancel.cancel();
    let error = transaction.commit().expect_err("canceled");
    assert_eq!(*error.kind(), ErrorKind::Canceled);
    (0..SERIES).for_each(|idx| assert_eq!(read(&engine, idx), [(1_000, 1.0)], "m{idx}"));
}

/// In each case one transaction reads, and another one commits a change before the first commits:
/// whether that is a conflict.
#[test]
fn only_a_change_of_read_samples_is_a_conflict() {
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

/// Validation sees a series that was defined after the range was read.
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

/// One sample is inserted, deleted, inserted again and updated twice, by plain writes and by
/// transactions. Between two steps nothing happens, or a flush, a flush with all merges and
/// uploads, a power failure, or a flush and a power failure, in every combination. Every step is
/// durable before the next one, and the newest change wins.
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
        // m0 is changed by transactions only; inserts of m1 are plain; m2 is not changed; m3 is
        // written late.
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

/// A write of the log fails during a commit, so the log contains at most a part of the transaction.
/// No change of it is visible, no reader waits for it, and the next transaction commits. The same
/// holds after a power failure.
#[test]
fn a_transaction_that_did_not_become_durable_is_not_visible() {
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

/// A transaction writes to new series whose definitions are in several streams, then the power
/// fails. The transaction is there with its series, or not at all; with `SyncPolicy::Always` it is
/// there.
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
fn limits_are_errors() {
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
    // More samples than a segment of the log can contain.
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

/// Commit numbers of the announced changes.
#[derive(Default)]
struct AnnouncedNumbers(Mutex<Vec<CommitSeq>>);

impl ChangeSink for AnnouncedNumbers {
    fn changed(&self, change: Change) {
        self.0.lock().push(change.number);
    }
}

/// The change sink is notified of every part of a transaction before the number of a snapshot
/// covers it.
#[test]
fn every_change_of_a_transaction_is_announced_before_it_is_visible() {
    let sim = Sim::new(8);
    let engine = open(&sim);
    let announced = Arc::new(AnnouncedNumbers::default());
    let sink: Arc<dyn ChangeSink> = Arc::<AnnouncedNumbers>::clone(&announced);
    engine.set_change_sink(sink).expect("the first");
    (0..SERIES).for_each(|idx| write(&engine, idx, 1_000, 1.0));
    let before = engine.snapshot().number();
    announced.0.lock().clear();
    transact(&engine, |t, refs| {
        t.delete(refs[0], 1_000)?;
        t.delete_range(&matcher(1), TimeRange::ALL)?;
        refs[2..].iter().try_for_each(|&series| t.update(series, 1_000, 2.0))
    });
    let after = engine.snapshot().number();
    assert_eq!(after, CommitSeq(before.0 + 2), "one number for each delete, rows have the last");
    let mut numbers = announced.0.lock().clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, [CommitSeq(before.0 + 1), after]);
    let sample = Sample { ts: 1_000, value: 2.0 };
    assert_eq!(read(&engine, 2), [(sample.ts, sample.value)]);
}

/// An event that follows a transaction that only the log contains.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    /// A write of the manifest fails, and the next edit starts a new manifest.
    ManifestFails,
    /// The process is killed, and the power fails while the next one opens.
    Killed,
    /// The database is copied without memory and log, and the copy is read.
    Copied,
    /// The slow tier's manifest is written, and a replica is read.
    Published,
}

const INTERRUPTIONS: [Interruption; 4] = [
    Interruption::ManifestFails,
    Interruption::Killed,
    Interruption::Copied,
    Interruption::Published,
];

/// A transaction moves a sample from one series to another. Returns whether the move is visible;
/// the error describes a visible half.
fn move_a_sample(
    seed: u64,
    interruption: Interruption,
    mutant: Option<Mutant>,
) -> std::result::Result<bool, String> {
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
            // A failed job is tried again.
            let _ = engine.step(Lane::Tree);
        }
    };
    let after = match interruption {
        Interruption::ManifestFails => {
            sim.faults.fail_nth(Operation::Write, 1 + seed % 10);
            work();
            sim.restart();
            open_with(&sim, options())
        }
        Interruption::Killed => {
            drop(engine);
            // About as many changes as a start makes.
            sim.faults.crash_at(sim.faults.change_count() + seed % 42);
            assert!(try_open(sim.env(), options()).is_err(), "the power goes");
            sim.restart();
            open_with(&sim, options())
        }
        Interruption::Copied => {
            let other = Sim::new(!seed);
            engine.copy_to(&other.env(), true).expect("a copy");
            open(&other)
        }
        Interruption::Published => {
            work();
            let disk = Arc::new(SimDisk::new(sim.faults.clone()));
            let options = EngineOptions { read_only: true, ..options() };
            try_open(Env { disk, ..sim.env() }, options).expect("the slow tier has a manifest")
        }
    };
    match (read(&after, 0).as_slice(), read(&after, 1).as_slice()) {
        ([], [(1_000, 1.0)]) => Ok(true),
        ([(1_000, 1.0)], []) => Ok(false),
        half => Err(format!("{interruption:?}: {half:?}")),
    }
}

pub(crate) fn catch_mutant(seed: u64, mutant: Mutant) -> Option<String> {
    let interruption = INTERRUPTIONS[seed as usize % INTERRUPTIONS.len()];
    move_a_sample(seed, interruption, Some(mutant)).err()
}

/// A transaction with a delete and a row is only in the log when an [`Interruption`] follows.
/// Afterwards the transaction is visible as a whole or not at all: the manifest, a copy and the
/// slow tier name its delete only together with its row. The mutant must show halves.
#[test]
fn the_deletes_of_a_transaction_become_durable_with_its_rows() {
    for interruption in INTERRUPTIONS {
        let (mut whole, mut nothing, mut halves) = (0, 0, 0);
        for seed in 0..100 {
            let is_there = move_a_sample(seed, interruption, None);
            match is_there.unwrap_or_else(|half| panic!("seed {seed}: {half}")) {
                true => whole += 1,
                false => nothing += 1,
            }
            let mutant = Some(Mutant::UnflushedDeletesNamed);
            halves += usize::from(move_a_sample(seed, interruption, mutant).is_err());
        }
        println!(
            "{interruption:?}: {whole} whole, {nothing} not there; {halves} halves with the mutant"
        );
        assert!(nothing > 0 && halves > 0, "{interruption:?} shows nothing");
        assert!(
            whole > 0 || matches!(interruption, Interruption::Copied | Interruption::Published),
            "{interruption:?} keeps nothing"
        );
    }
}
