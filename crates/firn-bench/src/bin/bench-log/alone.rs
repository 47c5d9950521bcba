//! The log alone: transactions that consist of their commit, so that threads wait for the log only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::log::central::Central;
use firn_bench::log::device::MemoryDevice;
use firn_bench::log::ycsb::{OPERATIONS, POINT_BYTES};
use firn_bench::report::{Aim, median};
use firn_env::{Disk, OpenMode};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, ShardId};

use crate::store::{RUN, SEGMENT_BYTES};
use crate::transactions::ROUNDS;
use crate::work::start_log;
use crate::{Outcome, SHARD_COUNT, STREAM_COUNT, aim};

/// The log that receives the ten points of each transaction.
enum AloneSink {
    Central(Central),
    Log(Log),
}

const SINKS: [&str; 4] =
    ["one queue, strict order", "one queue, group commit", "ours, 1 stream", "ours, 2 streams"];

pub(crate) fn alone(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!("\nlog alone on memory, transactions of {OPERATIONS} points of one group:");
    let mut grows = Vec::new();
    for (idx, name) in SINKS.iter().enumerate() {
        let [one, two] = [1, 2].map(|threads| -> Outcome<(f64, f64)> {
            let rounds = (0..ROUNDS).map(|_| run(idx, threads)).collect::<Outcome<Vec<_>>>()?;
            let middle = |f: fn(&(f64, f64)) -> f64| median(rounds.iter().map(f).collect());
            Ok((middle(|round| round.0), middle(|round| round.1)))
        });
        let ((one, one_us), (two, two_us)) = (one?, two?);
        println!(
            "  {name:26} {one:>9.0} txn/s, {one_us:.2} us CPU; 2 threads {two:>9.0}, {two_us:.2}; grows {:.2}",
            two / one
        );
        grows.push(two / one);
    }
    aim(
        aims,
        "log alone: 1 thread's transactions over 2 threads' (1.8x)",
        1.0 / grows[3],
        1.0 / 1.8,
    );
    aim(aims, "log alone: 2 threads' transactions over 1, group commit (flat)", grows[1], 1.2);
    Ok(())
}

/// Transactions a second, and CPU microseconds of each.
fn run(sink: usize, threads: usize) -> Outcome<(f64, f64)> {
    let device: Arc<dyn Disk> = Arc::new(MemoryDevice::default());
    let sink = match sink {
        0 | 1 => {
            let file = device.open("central.log", OpenMode::Create)?;
            file.preallocate(SEGMENT_BYTES)?;
            AloneSink::Central(Central::new(file, SEGMENT_BYTES, sink == 1))
        }
        _ => AloneSink::Log(start_log(
            device,
            LogSetup {
                stream_count: if sink == 2 { 1 } else { STREAM_COUNT },
                shard_count: SHARD_COUNT,
                unit_bytes: 256,
                options: LogOptions { segment_bytes: SEGMENT_BYTES, sync: SyncPolicy::Always },
            },
        )?),
    };
    let (start, cpu, seq) = (Instant::now(), process_cpu_ns(), AtomicU64::new(0));
    let send = |thread: usize| -> Outcome<u64> {
        let (points, mut count) = ([[0x5a; POINT_BYTES]; OPERATIONS], 0u64);
        while start.elapsed() < RUN {
            match &sink {
                AloneSink::Central(central) => central.commit(points.iter().map(|one| &one[..]))?,
                // As a scrape: its series are a group, and a group is in one shard.
                AloneSink::Log(log) => {
                    let dice = scatter(count << 8 | thread as u64);
                    let shard = ShardId((dice % SHARD_COUNT as u64) as u16);
                    let seq = CommitSeq(seq.fetch_add(1, Ordering::Relaxed));
                    commit(log, shard, seq, &points)?;
                }
            }
            count += 1;
            if count.is_multiple_of(256)
                && let AloneSink::Log(log) = &sink
            {
                // As after a flush: the next segment is an older one.
                let streams = (0..log.stream_count()).map(|stream| StreamId(stream as u16));
                log.purge(&streams.map(|stream| log.end(stream)).collect::<Vec<_>>())?;
                log.prepare()?;
            }
        }
        Ok(count)
    };
    let send = &send;
    let counts: Vec<Outcome<u64>> = std::thread::scope(|scope| {
        let senders: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || send(thread))).collect();
        senders.into_iter().map(|sender| sender.join().expect("a sender panicked")).collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    let count = counts.into_iter().sum::<Outcome<u64>>()? as f64;
    Ok((count / seconds, cpu / 1e3 / count))
}

fn commit(
    log: &Log,
    shard: ShardId,
    seq: CommitSeq,
    points: &[[u8; POINT_BYTES]; OPERATIONS],
) -> Outcome<()> {
    let (stream, kind) = (log.stream_of(shard), EntryKind::Rows);
    let entries = points.each_ref().map(|payload| EntryRef { kind, shard, seq, payload });
    loop {
        if let Append::At(end) = log.append(stream, log.tip(stream).segment, &entries)? {
            return Ok(log.commit(&[(stream, end)])?);
        }
    }
}
