//! Senders that wait for the device and senders that do not, and plain writes beside transactions.

use std::ops::Range;
use std::time::Instant;

use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::log::ycsb::OPERATIONS;
use firn_bench::report::{Aim, median};
use firn_env::{Disk, LocalDisk, OpenMode};
use firn_log::SyncPolicy;
use firn_model::{RowBatch, SeriesRef};
use firndb::{Db, Lane, Options, RecoveryProgress, local_env};

use crate::work::{ROUND_MS, define, now_ms};
use crate::{BATCH, Outcome, SERIES_COUNT, STREAM_COUNT, aim};

/// How requests are logged, and how they come.
#[derive(Clone, Copy, Debug)]
struct Manner {
    name: &'static str,
    sync: SyncPolicy,
    stream_count: usize,
    /// After each request another sender has its turn, as where they wait. Else, where nobody waits, a sender goes on until its
    /// share of the processor is used up.
    in_turn: bool,
}

const ALWAYS: Manner =
    Manner { name: "always", sync: SyncPolicy::Always, stream_count: STREAM_COUNT, in_turn: false };
const NEVER: Manner = Manner { name: "never", sync: SyncPolicy::Never, ..ALWAYS };

const MANNERS: [Manner; 4] = [
    ALWAYS,
    NEVER,
    Manner { name: "never, in turn", in_turn: true, ..NEVER },
    Manner { name: "always, 1 stream", stream_count: 1, ..ALWAYS },
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

/// What some senders got done.
struct Sent {
    per_s: f64,
    /// CPU seconds a million samples.
    cpu_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Requests for each sync of one file.
    per_sync: f64,
}

/// `rounds` samples of each series, each sender with a share of the series. Rows do not become columns meanwhile: that is the
/// same work however they are logged, but more of it would fall into the time of those who wait.
fn send(sender_count: usize, manner: Manner, rounds: i64) -> Outcome<Sent> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let options =
        Options { log_sync: manner.sync, stream_count: manner.stream_count, ..Options::default() };
    let db = Db::open_idle(local_env(folder.path())?, options, &RecoveryProgress::default())?;
    let refs = define(&db)?;
    let start_ms = now_ms() - rounds * ROUND_MS;
    // Definitions, and what each shard keeps.
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

/// What a plain insert costs where there were no transactions, after some, and while one is open.
pub(crate) fn plain(aims: &mut Vec<Aim>) -> Outcome<()> {
    const TRANSACTIONS: usize = 500;
    println!("\nplain writes of {BATCH} samples, CPU ns a sample:");
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..3 {
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
    const ROUNDS: i64 = 20;
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let options = Options { log_sync: SyncPolicy::Never, ..Options::default() };
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
    // What every shard keeps is made by the first round.
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
