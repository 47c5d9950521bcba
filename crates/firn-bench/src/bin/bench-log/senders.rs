//! Senders that wait for the device and senders that do not, in this process and over HTTP; reads
//! and plain writes beside transactions.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use firn_bench::client::post_all;
use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::load::Load;
use firn_bench::log::ycsb::OPERATIONS;
use firn_bench::report::{Aim, median};
use firn_bench::server::Program;
use firn_env::{Disk, LocalDisk, OpenMode};
use firn_log::SyncPolicy;
use firn_model::{RowBatch, SeriesRef};
use firndb::{Db, Lane, LogOptions, Options, RecoveryProgress, local_env};

use crate::work::{ROUND_MS, define, now_ms};
use crate::{BATCH, FILE_STREAM_COUNT, Outcome, SERIES_COUNT, aim};

/// The logging and the order of requests.
#[derive(Clone, Copy, Debug)]
struct Manner {
    name: &'static str,
    sync: SyncPolicy,
    stream_count: usize,
    /// Whether senders alternate after each request, as they do if they wait. Otherwise a sender
    /// that never waits runs until its time slice ends.
    in_turn: bool,
}

const ALWAYS: Manner = Manner {
    name: "always",
    sync: SyncPolicy::Always,
    stream_count: FILE_STREAM_COUNT,
    in_turn: false,
};
const NEVER: Manner = Manner { name: "never", sync: SyncPolicy::Never, ..ALWAYS };

const MANNERS: [Manner; 4] = [
    ALWAYS,
    NEVER,
    Manner { name: "never, in turn", in_turn: true, ..NEVER },
    Manner { name: "always, 2 streams", stream_count: 2, ..ALWAYS },
];

pub(crate) fn senders(aims: &mut Vec<Aim>) -> Outcome<()> {
    let sync_us = device_sync_us()?;
    println!("\ndevice: a sync of 4 KiB takes {sync_us:.0} us");
    println!(
        "{:>8} {:17} {:>12} {:>12} {:>10} {:>10} {:>15}",
        "senders", "log.sync", "M samples/s", "CPU s/M", "p50 us", "p99 us", "requests/sync"
    );
    for (count, sample_rounds) in [(1usize, 40), (32, 240)] {
        let mut rounds = MANNERS.map(|_| Vec::new());
        for _ in 0..3 {
            for (manner, into) in MANNERS.into_iter().zip(&mut rounds) {
                into.push(send(count, manner, sample_rounds)?);
            }
        }
        let [always, never, ..]: [Sent; MANNERS.len()] = std::array::from_fn(|idx| {
            let middle = |f: fn(&Sent) -> f64| median(rounds[idx].iter().map(f).collect());
            let sent = Sent {
                per_s: middle(|sent| sent.per_s),
                cpu_s: middle(|sent| sent.cpu_s),
                p50_us: middle(|sent| sent.p50_us),
                p99_us: middle(|sent| sent.p99_us),
                per_sync: middle(|sent| sent.per_sync),
            };
            println!(
                "{count:>8} {:17} {:>12.3} {:>12.4} {:>10.0} {:>10.0} {:>15.1}",
                MANNERS[idx].name,
                sent.per_s / 1e6,
                sent.cpu_s,
                sent.p50_us,
                sent.p99_us,
                sent.per_sync
            );
            sent
        });
        if count == 1 {
            let waited_ms = (always.p50_us - sync_us).max(0.0) / 1e3;
            aim(aims, "one sender's commit above the device's sync, ms, p50", waited_ms, 2.0);
        } else {
            aim(aims, "32 senders: CPU of always over never", always.cpu_s / never.cpu_s, 1.1);
            let figure = never.per_s / always.per_s;
            aim(aims, "32 senders: throughput of never over always", figure, 1.1);
        }
    }
    Ok(())
}

/// Work done by some senders.
struct Sent {
    per_s: f64,
    /// CPU seconds a million samples.
    cpu_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Requests for each sync of one file.
    per_sync: f64,
}

/// Writes `rounds` samples of each series; each sender has a share of the series. Rows are not
/// converted during the run: that work does not depend on the log, but more of it would be charged
/// to senders that wait.
fn send(sender_count: usize, manner: Manner, rounds: i64) -> Outcome<Sent> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let options = Options {
        stream_count: Some(manner.stream_count),
        log: LogOptions { sync: manner.sync, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open_idle(local_env(folder.path())?, options, &RecoveryProgress::default())?;
    let refs = define(&db)?;
    let start_ms = now_ms() - rounds * ROUND_MS;
    // Definitions, and lasting structures of each shard.
    send_share(&db, &refs, manner, start_ms, 0..1)?;
    db.settle(Lane::Head)?;
    let syncs = db.stats().log.syncs;
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let outcomes: Vec<Outcome<Vec<f64>>> = std::thread::scope(|scope| {
        let senders: Vec<_> = refs
            .chunks(SERIES_COUNT.div_ceil(sender_count))
            .map(|share| {
                let db = &db;
                scope.spawn(move || send_share(db, share, manner, start_ms, 1..rounds))
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().expect("a sender panicked")).collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    let mut latencies = Vec::new();
    for outcome in outcomes {
        latencies.extend(outcome?);
    }
    latencies.sort_by(f64::total_cmp);
    let samples = SERIES_COUNT as f64 * (rounds - 1) as f64;
    Ok(Sent {
        per_s: samples / seconds,
        cpu_s: cpu / 1e9 / samples * 1e6,
        p50_us: latencies[latencies.len() / 2],
        p99_us: latencies[latencies.len() * 99 / 100],
        per_sync: latencies.len() as f64 / (db.stats().log.syncs - syncs).max(1) as f64,
    })
}

/// One sender's requests; their latencies, microseconds.
fn send_share(
    db: &Db,
    share: &[SeriesRef],
    manner: Manner,
    start_ms: i64,
    rounds: Range<i64>,
) -> Outcome<Vec<f64>> {
    let (mut batch, mut latencies) = (RowBatch::default(), Vec::new());
    for round in rounds {
        for part in share.chunks(BATCH) {
            for series in part {
                let value = scatter(series.group.0 ^ (round as u64) << 40) % 100;
                batch.push(*series, start_ms + round * ROUND_MS, value as f64);
            }
            let before = Instant::now();
            db.write(&mut batch)?;
            latencies.push(before.elapsed().as_secs_f64() * 1e6);
            batch.clear();
            if manner.in_turn {
                std::thread::yield_now();
            }
        }
    }
    Ok(latencies)
}

/// Concurrent senders, each with one connection and one request in flight.
const CONNECTIONS: usize = 32;

/// The same through the server: 32 senders of remote write that wait for each response, so that
/// they alternate for any sync policy.
pub(crate) fn server(aims: &mut Vec<Aim>) -> Outcome<()> {
    const SCRAPES: i64 = 40;
    if Program::Firn.path().is_none() {
        println!("\nserver: firn is not built beside this program");
        return Ok(());
    }
    println!(
        "\n{CONNECTIONS} senders of remote write requests of {BATCH} samples, the server's CPU:"
    );
    let mut load = Load::new(SERIES_COUNT);
    let first_ms = now_ms() - SCRAPES * ROUND_MS;
    let mut scrapes: Vec<Vec<Vec<u8>>> =
        (0..SCRAPES).map(|scrape| load.bodies(first_ms + scrape * ROUND_MS)).collect();
    // Definitions, and lasting structures of each shard.
    let definitions = scrapes.remove(0);
    let bodies = scrapes.concat();
    let samples = (bodies.len() * BATCH) as f64;
    let syncs = ["always", "never"];
    let mut rounds: [Vec<(f64, f64)>; 2] = Default::default();
    for _ in 0..3 {
        for (sync, into) in syncs.iter().zip(&mut rounds) {
            let sync = format!("--log-sync={sync}");
            let more =
                [&sync, "--self-scrape=never", "--flush-age-max=2h", "--restart-time-max=2h"];
            let server = Program::Firn.start_with(&more)?;
            let path = Program::Firn.write_path();
            post_all(server.address, path, &definitions, CONNECTIONS);
            let (start, cpu_s) = (Instant::now(), server.cpu_s());
            post_all(server.address, path, &bodies, CONNECTIONS);
            let seconds = start.elapsed().as_secs_f64();
            into.push((samples / seconds / 1e6, (server.cpu_s() - cpu_s) / samples * 1e6));
        }
    }
    let middle =
        |idx: usize, f: fn(&(f64, f64)) -> f64| median(rounds[idx].iter().map(f).collect());
    for (idx, sync) in syncs.iter().enumerate() {
        let (per_s, cpu_s) = (middle(idx, |one| one.0), middle(idx, |one| one.1));
        println!("  {sync:7} {per_s:.3} M samples/s, {cpu_s:.4} CPU s/M");
    }
    let cpu = middle(0, |one| one.1) / middle(1, |one| one.1);
    aim(aims, "32 remote write senders: CPU of always over never", cpu, 1.1);
    let throughput = middle(1, |one| one.0) / middle(0, |one| one.0);
    aim(aims, "32 remote write senders: throughput of never over always", throughput, 1.1);
    Ok(())
}

/// Waits of readers: a snapshot and one sample of it, beside a writer of plain rows alone, and
/// beside one more thread with transactions, each of which becomes visible under the snapshot lock.
pub(crate) fn reads() -> Outcome<()> {
    const RUN: Duration = Duration::from_secs(2);
    println!("\na new snapshot and one series of it, us:");
    for transactions in [false, true] {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let db = Db::open(local_env(folder.path())?, Options::default())?;
        let refs = define(&db)?;
        let start_ms = now_ms() - 3_600_000;
        let (is_over, committed) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut latencies = Vec::new();
        std::thread::scope(|scope| -> Outcome<()> {
            let (db, refs, is_over, committed) = (&db, &refs, &is_over, &committed);
            let plain = scope.spawn(move || -> Outcome<()> {
                let mut batch = RowBatch::default();
                for round in 0.. {
                    for part in refs.chunks(BATCH) {
                        if is_over.load(Relaxed) {
                            return Ok(());
                        }
                        part.iter().for_each(|&series| batch.push(series, start_ms + round, 1.0));
                        db.write(&mut batch)?;
                        batch.clear();
                    }
                }
                Ok(())
            });
            let updates = transactions.then(|| {
                scope.spawn(move || -> Outcome<()> {
                    while !is_over.load(Relaxed) {
                        let idx = committed.fetch_add(1, Relaxed);
                        let mut transaction = db.begin()?;
                        for step in 0..OPERATIONS as u64 {
                            let dice = scatter(idx * OPERATIONS as u64 + step);
                            transaction.insert(refs[dice as usize % refs.len()], start_ms, 2.0)?;
                        }
                        transaction.commit()?;
                    }
                    Ok(())
                })
            });
            let start = Instant::now();
            while start.elapsed() < RUN {
                let before = Instant::now();
                let snapshot = db.snapshot();
                std::hint::black_box(&snapshot);
                latencies.push(before.elapsed().as_secs_f64() * 1e6);
                drop(snapshot);
                // Two threads write, on as few cores as there may be.
                std::thread::yield_now();
            }
            is_over.store(true, Relaxed);
            plain.join().expect("a writer panicked")?;
            updates.map_or(Ok(()), |thread| thread.join().expect("a writer panicked"))
        })?;
        latencies.sort_by(f64::total_cmp);
        let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
        println!(
            "  beside plain writes{}: p50 {:.1}, p99 {:.1}, p99.9 {:.1}; {} transactions",
            if transactions { " and transactions" } else { "" },
            at(0.5),
            at(0.99),
            at(0.999),
            committed.into_inner()
        );
    }
    Ok(())
}

fn device_sync_us() -> Outcome<f64> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let file = LocalDisk::open(folder.path())?.open("probe", OpenMode::Create)?;
    file.preallocate(1 << 20)?;
    file.sync()?;
    let mut times = Vec::new();
    for idx in 0..100 {
        let before = Instant::now();
        file.write_at(idx * 4_096, &[1; 4_096])?;
        file.sync()?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Cost of a plain insert without transactions, after some, and beside an open one.
pub(crate) fn plain(aims: &mut Vec<Aim>) -> Outcome<()> {
    const TRANSACTIONS: usize = 500;
    println!("\nplain writes of {BATCH} samples, CPU ns a sample:");
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..5 {
        for ((transactions, is_open), into) in
            [(0, false), (TRANSACTIONS, false), (TRANSACTIONS, true)].into_iter().zip(&mut rounds)
        {
            into.push(plain_ns(transactions, is_open)?);
        }
    }
    let [without, after, open] = rounds.map(median);
    println!(
        "  no transactions {without:.1}, after {TRANSACTIONS} {after:.1}, beside an open one {open:.1}"
    );
    aim(aims, "plain writes: CPU after transactions over that without", after / without, 1.05);
    aim(aims, "plain writes: CPU beside an open transaction over that", open / without, 1.05);
    Ok(())
}

fn plain_ns(transactions: usize, is_open: bool) -> Outcome<f64> {
    const ROUNDS: i64 = 100;
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let options = Options {
        log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open_idle(local_env(folder.path())?, options, &RecoveryProgress::default())?;
    let (refs, start_ms, mut batch) =
        (define(&db)?, now_ms() - ROUNDS * ROUND_MS, RowBatch::default());
    let mut write_round = |round: i64| -> Outcome<()> {
        for part in refs.chunks(BATCH) {
            for series in part {
                let value = scatter(series.group.0 ^ (round as u64) << 40) % 100;
                batch.push(*series, start_ms + round * ROUND_MS, value as f64);
            }
            db.write(&mut batch)?;
            batch.clear();
        }
        Ok(())
    };
    // The first round creates lasting structures of every shard.
    write_round(0)?;
    for idx in 0..transactions {
        let mut transaction = db.begin()?;
        for step in 0..OPERATIONS {
            let series = refs[scatter((idx * OPERATIONS + step) as u64) as usize % refs.len()];
            transaction.insert(series, start_ms, 1.0)?;
        }
        transaction.commit()?;
    }
    db.settle(Lane::Head)?;
    let open = is_open.then(|| db.begin()).transpose()?;
    let cpu = process_cpu_ns();
    for round in 1..ROUNDS {
        write_round(round)?;
    }
    let cpu = process_cpu_ns() - cpu;
    drop(open);
    Ok(cpu / (SERIES_COUNT as f64 * (ROUNDS - 1) as f64))
}
