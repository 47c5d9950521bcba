//! Measures durable commits per second and the cost of an entry.
//!
//! `cargo run --release -p firn-log --example commits [folder]`; the folder selects the device.
//! Prints a table of threads, commits and syncs per second, mean time of a commit and CPU per
//! commit. Then prints the cost of an entry when many entries share a commit, and the speed of
//! replay.

#![allow(clippy::disallowed_methods, reason = "measures real disks")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_env::{Clock, Disk, LocalDisk, SystemClock};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, LogPosition, Result, ShardId};

const STREAM_COUNT: usize = 2;
const SHARD_COUNT: u16 = 64;
const TIME: Duration = Duration::from_secs(2);

/// A remote write request's share of a shard: 30 to 40 samples.
const PAYLOAD: [u8; 512] = [0x5a; 512];

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("firn-log-commits-{}", std::process::id()));
    println!("| threads | commits/s | syncs/s | mean us | CPU us/commit |");
    println!("|---|---|---|---|---|");
    for threads in [1, 8, 64] {
        let log = open(&folder, SyncPolicy::Always)?;
        commits(&log, threads)?;
        wipe(&folder);
    }
    let log = open(&folder, SyncPolicy::Never)?;
    entries(&log)?;
    drop(log);
    replay(&folder)?;
    wipe(&folder);
    Ok(())
}

fn open(folder: &PathBuf, sync: SyncPolicy) -> Result<Log> {
    let log = find(folder, sync)?;
    for stream in 0..STREAM_COUNT as u16 {
        log.replay(StreamId(stream), LogPosition(0), &mut |_| Ok(()))?;
    }
    log.start()?;
    log.prepare()?;
    Ok(log)
}

fn find(folder: &PathBuf, sync: SyncPolicy) -> Result<Log> {
    let disk: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder)?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let setup = LogSetup {
        stream_count: STREAM_COUNT,
        shard_count: usize::from(SHARD_COUNT),
        unit_bytes: 8,
        options: LogOptions { segment_bytes: 64 << 20, sync },
    };
    Log::open(disk, clock, setup, false)
}

fn wipe(folder: &PathBuf) {
    // The folder was created by this program.
    let _ = std::fs::remove_dir_all(folder);
}

fn append(log: &Log, shard: u16, seq: u64, payload: &[u8]) -> Result<(StreamId, LogPosition)> {
    let shard = ShardId(shard);
    let stream = log.stream_of(shard);
    loop {
        let segment = log.tip(stream).segment;
        let entry = EntryRef { kind: EntryKind::Rows, shard, seq: CommitSeq(seq), payload };
        if let Append::At(position) = log.append(stream, segment, &[entry])? {
            return Ok((stream, position));
        }
    }
}

/// Each thread appends one entry and waits for it, in a loop.
fn commits(log: &Log, threads: u16) -> Result<()> {
    let (start, cpu, before) = (Instant::now(), cpu_time(), log.stats());
    let counts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut count = 0u64;
                    while start.elapsed() < TIME {
                        let position = append(log, thread % SHARD_COUNT, count, &PAYLOAD)?;
                        log.commit(&[position])?;
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker panicked"))
            .collect::<Result<Vec<u64>>>()
    })?;
    let (count, seconds) = (counts.iter().sum::<u64>() as f64, start.elapsed().as_secs_f64());
    let syncs = (log.stats().syncs - before.syncs) as f64;
    let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6;
    println!(
        "| {threads} | {:.0} | {:.0} | {:.0} | {:.1} |",
        count / seconds,
        syncs / seconds,
        seconds * 1e6 * f64::from(threads) / count,
        cpu_us / count
    );
    Ok(())
}

/// One thread; one commit (a write, no sync) per thousand entries.
fn entries(log: &Log) -> Result<()> {
    println!();
    for payload_bytes in [0, 64, 512] {
        let (cpu, count) = (cpu_time(), 2_000_000u64 >> (payload_bytes / 256));
        let before = log.stats().written_bytes;
        let mut append_time = Duration::ZERO;
        for chunk in 0..count / 1_000 {
            let start = Instant::now();
            let mut ends = [(StreamId(0), LogPosition(0)), (StreamId(1), LogPosition(0))];
            for idx in 0..1_000u16 {
                let shard = idx % SHARD_COUNT;
                let end = append(log, shard, chunk, &PAYLOAD[..payload_bytes])?;
                ends[usize::from(end.0.0)] = end;
            }
            append_time += start.elapsed();
            log.commit(&ends)?;
            log.prepare()?;
        }
        let cpu_ns = (cpu_time() - cpu).as_secs_f64() * 1e9;
        println!(
            "{payload_bytes} byte entries: append {:.0} ns, with write and segments {:.0} ns CPU, \
             {:.2} bytes around each",
            append_time.as_nanos() as f64 / count as f64,
            cpu_ns / count as f64,
            (log.stats().written_bytes - before) as f64 / count as f64 - payload_bytes as f64
        );
    }
    Ok(())
}

fn replay(folder: &PathBuf) -> Result<()> {
    let log = find(folder, SyncPolicy::Never)?;
    let (start, mut entries, mut bytes) = (Instant::now(), 0u64, 0usize);
    for stream in 0..STREAM_COUNT as u16 {
        let report = log.replay(StreamId(stream), LogPosition(0), &mut |entry| {
            bytes += entry.payload.len();
            Ok(())
        })?;
        entries += report.entries;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "replay, one thread: {entries} entries, {:.1} M/s, {:.2} GB/s",
        entries as f64 / seconds / 1e6,
        bytes as f64 / seconds / 1e9
    );
    Ok(())
}

/// User and system time of this process so far. Linux counts it in hundredths of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
