//! Many threads at once: every acknowledged entry is replayed, in the order of its shard.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use firn_env::{Clock, Disk};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, LogPosition, ShardId};
use firn_sim::{Operation, Sim};

use crate::world::seeds;

const THREADS: u64 = 8;
const COMMITS: u64 = 300;
const SHARDS: u16 = 16;

/// Acknowledged sequences by shard, in order.
type Acknowledged = BTreeMap<u16, Vec<u64>>;

#[test]
fn threads_share_commits_and_keep_every_entry() {
    for seed in seeds(1, 1) {
        let (log, acknowledged) = run(&Sim::new(seed));
        assert_eq!(log.stats().failures, 0);
        let count = acknowledged.values().map(Vec::len).sum::<usize>() as u64;
        assert_eq!(count, THREADS * COMMITS * 2);
    }
}

#[test]
fn threads_on_a_failing_disk_keep_acknowledged_entries() {
    for seed in seeds(2, 1) {
        let sim = Sim::new(seed);
        sim.faults.set_rate(Operation::Sync, 0.02);
        sim.faults.set_rate(Operation::Write, 0.02);
        sim.faults.set_rate(Operation::Create, 0.1);
        let (log, _) = run(&sim);
        assert!(log.stats().failures > 10, "{:?}", log.stats());
    }
}

fn open(sim: &Sim) -> Log {
    let disk: Arc<dyn Disk> = Arc::new(sim.disk.clone());
    let clock: Arc<dyn Clock> = Arc::new(sim.clock.clone());
    let setup = LogSetup {
        stream_count: 3,
        shard_count: usize::from(SHARDS),
        unit_bytes: 512,
        options: LogOptions { segment_bytes: 32 << 10, sync: SyncPolicy::Always },
    };
    Log::open(disk, clock, setup, false).unwrap()
}

/// Runs all threads, cuts the power and checks the replay.
fn run(sim: &Sim) -> (Log, Acknowledged) {
    let log = open(sim);
    for stream in 0..3 {
        log.replay(StreamId(stream), LogPosition(0), &mut |_| Ok(())).unwrap();
    }
    // The disk may fail from the first operation on.
    while log.start().is_err() {}
    let shards: Vec<Mutex<Vec<u64>>> = (0..SHARDS).map(|_| Mutex::default()).collect();
    let acknowledged = Mutex::new(BTreeMap::<u16, Vec<u64>>::new());
    let next_seq = AtomicU64::new(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (log, shards) = (&log, &shards);
                let (acknowledged, next_seq) = (&acknowledged, &next_seq);
                scope.spawn(move || {
                    for turn in 0..COMMITS {
                        let mut written = Vec::new();
                        for piece in 0..2 {
                            let shard =
                                ((thread + turn * 5 + piece * 3) % u64::from(SHARDS)) as u16;
                            written.extend(append(
                                log,
                                shard,
                                &shards[usize::from(shard)],
                                next_seq,
                            ));
                        }
                        let ends: Vec<_> =
                            written.iter().map(|&(_, _, stream, end)| (stream, end)).collect();
                        let outcome = log.commit(&ends);
                        for (shard, seq, stream, end) in written {
                            let is_safe = log.durable_before(stream, end) == end;
                            assert!(is_safe || outcome.is_err(), "acknowledged, not durable");
                            if is_safe {
                                acknowledged.lock().unwrap().entry(shard).or_default().push(seq);
                            }
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = log.prepare();
                std::thread::yield_now();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let mut acknowledged = acknowledged.into_inner().unwrap();
    acknowledged.values_mut().for_each(|seqs| seqs.sort_unstable());
    sim.faults.clear();
    sim.restart();
    check(sim, &shards, &acknowledged);
    (log, acknowledged)
}

fn append(
    log: &Log,
    shard: u16,
    order: &Mutex<Vec<u64>>,
    next_seq: &AtomicU64,
) -> Option<(u16, u64, StreamId, LogPosition)> {
    // One writer per shard: its sequence order is the log order.
    let mut order = order.lock().unwrap();
    let seq = next_seq.fetch_add(1, Ordering::Relaxed);
    let stream = log.stream_of(ShardId(shard));
    let payload = seq.to_le_bytes().repeat(1 + (seq % 40) as usize);
    loop {
        let entry = EntryRef {
            kind: EntryKind::Rows,
            shard: ShardId(shard),
            seq: CommitSeq(seq),
            payload: &payload,
        };
        match log.append(stream, log.tip(stream).segment, &[entry]) {
            Ok(Append::At(end)) => {
                order.push(seq);
                return Some((shard, seq, stream, end));
            }
            Ok(Append::Rotated) => {}
            // The disk refused a new segment.
            Err(_) => return None,
        }
    }
}

fn check(sim: &Sim, shards: &[Mutex<Vec<u64>>], acknowledged: &Acknowledged) {
    let log = open(sim);
    let mut replayed = Acknowledged::new();
    for stream in 0..3 {
        let report = log
            .replay(StreamId(stream), LogPosition(0), &mut |entry| {
                let seq = entry.seq.0;
                assert_eq!(entry.payload, seq.to_le_bytes().repeat(1 + (seq % 40) as usize));
                replayed.entry(entry.shard.0).or_default().push(seq);
                Ok(())
            })
            .unwrap();
        assert_eq!(report.damage, Vec::<String>::new());
    }
    for (shard, seqs) in &replayed {
        assert!(seqs.is_sorted(), "shard {shard} is out of order");
        let appended = shards[usize::from(*shard)].lock().unwrap();
        assert!(seqs.iter().all(|seq| appended.binary_search(seq).is_ok()));
    }
    for (shard, seqs) in acknowledged {
        let found = &replayed[shard];
        let lost = seqs.iter().find(|seq| found.binary_search(seq).is_err());
        assert_eq!(lost, None, "shard {shard}");
    }
}
