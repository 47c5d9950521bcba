//! The engine that ships: `Db::write` with the result cache, its log in files and on memory, on one
//! thread and on two.

use std::sync::Arc;
use std::time::Instant;

use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::log::device::MemoryDevice;
use firn_bench::log::ycsb::OPERATIONS;
use firn_bench::report::{Aim, median};
use firn_log::SyncPolicy;
use firn_model::{RowBatch, SeriesRef};
use firndb::{Db, Lane, LogOptions, Options, RecoveryProgress, ResultOptions, local_env};
use tempfile::TempDir;

use crate::work::{ROUND_MS, define, now_ms};
use crate::{BATCH, FILE_STREAM_COUNT, Outcome, SERIES_COUNT, STREAM_COUNT, aim};

/// A place of the log, and a policy.
#[derive(Clone, Copy, Debug)]
struct LogPlace {
    name: &'static str,
    sync: SyncPolicy,
    is_memory: bool,
    /// Whether each thread has a database of its own: the growth that this machine allows.
    is_apart: bool,
}

const FILES: LogPlace =
    LogPlace { name: "files, always", sync: SyncPolicy::Always, is_memory: false, is_apart: false };
const MEMORY: LogPlace = LogPlace { name: "memory", is_memory: true, ..FILES };

const PLACES: [LogPlace; 4] = [
    FILES,
    LogPlace { name: "files, never", sync: SyncPolicy::Never, ..FILES },
    MEMORY,
    LogPlace { name: "memory, apart", is_apart: true, ..MEMORY },
];

/// Samples of a request, samples of each series: a sender's, and a transaction's.
const SIZES: [(usize, i64); 2] = [(BATCH, 80), (OPERATIONS, 12)];

pub(crate) fn engine(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!("\nDb::write with the result cache, {SERIES_COUNT} grouped series:");
    println!(
        "{:16} {:>10} {:>14} {:>12} {:>14} {:>12} {:>8}",
        "log", "samples", "1 thread, M/s", "CPU s/M", "2 threads, M/s", "CPU s/M", "grows"
    );
    for (batch, rounds) in SIZES {
        // Rounds take turns, because the two cores of a machine may be one for some time.
        let mut runs = PLACES.map(|_| [Vec::new(), Vec::new()]);
        for _ in 0..5 {
            for (place, into) in PLACES.into_iter().zip(&mut runs) {
                for (threads, into) in (1..).zip(into) {
                    into.push(write(place, batch, rounds, threads)?);
                }
            }
        }
        let mut growths = [0.0; PLACES.len()];
        for ((place, runs), growth) in PLACES.iter().zip(runs).zip(&mut growths) {
            let [one, two] = runs.map(|runs| {
                let middle = |f: fn(&(f64, f64)) -> f64| median(runs.iter().map(f).collect());
                (middle(|run| run.0), middle(|run| run.1))
            });
            *growth = two.0 / one.0;
            println!(
                "{:16} {batch:>10} {:>14.2} {:>12.3} {:>14.2} {:>12.3} {growth:>8.2}",
                place.name, one.0, one.1, two.0, two.1
            );
        }
        let [.., memory, apart] = growths;
        let name = format!("Db::write, log on memory, {batch} samples: 1 thread over 2 (1.8x)");
        aim(aims, name, 1.0 / memory, 1.0 / 1.8);
        let name = format!("Db::write, {batch} samples: 2 threads apart over 2 threads together");
        aim(aims, name, apart / memory, 1.1);
    }
    Ok(())
}

/// Writes `rounds` samples of each series in requests of `batch`; each thread has a share of the
/// series. Returns million samples per second, and CPU seconds per million. Rows are not converted
/// during the run: no thread of the database runs.
fn write(place: LogPlace, batch: usize, rounds: i64, threads: usize) -> Outcome<(f64, f64)> {
    let start_ms = now_ms() - (rounds + 1) * ROUND_MS;
    let opened = (0..if place.is_apart { threads } else { 1 })
        .map(|_| open(place, start_ms))
        .collect::<Outcome<Vec<_>>>()?;
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let outcomes: Vec<Outcome<()>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let (db, refs, _) = &opened[thread % opened.len()];
                let share = refs.chunks(SERIES_COUNT.div_ceil(threads)).nth(thread);
                let share = share.unwrap_or_default();
                scope.spawn(move || write_share(db, share, batch, start_ms + ROUND_MS, rounds))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("a writer panicked")).collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    outcomes.into_iter().collect::<Outcome<()>>()?;
    let millions = SERIES_COUNT as f64 * rounds as f64 / 1e6;
    Ok((millions / seconds, cpu / 1e9 / millions))
}

/// A database whose series have their definitions and the lasting structures of each shard.
fn open(place: LogPlace, start_ms: i64) -> Outcome<(Db, Vec<SeriesRef>, TempDir)> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let mut env = local_env(folder.path())?;
    if place.is_memory {
        env.log = Some(Arc::new(MemoryDevice::default()));
    }
    let options = Options {
        stream_count: Some(if place.is_memory { STREAM_COUNT } else { FILE_STREAM_COUNT }),
        log: LogOptions { sync: place.sync, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open_idle(env, options, &RecoveryProgress::default())?;
    db.enable_result_cache(ResultOptions::default())?;
    let refs = define(&db)?;
    write_share(&db, &refs, BATCH, start_ms, 1)?;
    db.settle(Lane::Head)?;
    Ok((db, refs, folder))
}

fn write_share(
    db: &Db,
    share: &[SeriesRef],
    batch_len: usize,
    start_ms: i64,
    rounds: i64,
) -> Outcome<()> {
    let mut batch = RowBatch::default();
    for round in 0..rounds {
        for part in share.chunks(batch_len) {
            for series in part {
                let value = scatter(series.group.0 ^ (round as u64) << 40) % 100;
                batch.push(*series, start_ms + round * ROUND_MS, value as f64);
            }
            db.write(&mut batch)?;
            batch.clear();
        }
    }
    Ok(())
}
