//! Transactions on the log, its features switched on in turn (DecLog, Figure 12(a)).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use firn_bench::index::process_cpu_ns;
use firn_bench::log::device::MemoryDevice;
use firn_bench::log::ycsb::{WORKLOADS, YcsbWorkload};
use firn_bench::report::Aim;
use firn_env::{Disk, LocalDisk};
use firn_model::LogPosition;

use crate::replayed::{self, Recovered};
use crate::store::{Arm, Sink, Store, log_options};
use crate::{Outcome, aim};

/// Rounds of each arm; the one with the median throughput counts.
pub(crate) const ROUNDS: usize = 3;
const ARMS: [(Arm, &str); 7] = [
    (Arm::NoLog, "no log"),
    (Arm::Strict, "one queue, strict order"),
    (Arm::Relaxed, "one queue, group commit"),
    (Arm::DataDriven, "+ no shared counter"),
    (Arm::Parallel, "+ streams"),
    (Arm::Compressed, "+ compressed, aligned"),
    (Arm::Checkpoint, "+ checkpoint"),
];

/// Measurements of one arm.
struct Figures {
    per_s: f64,
    cpu_us: f64,
    /// Latencies of commits, in order, nanoseconds.
    commits: Vec<u32>,
    bytes_per_point: f64,
    /// Milliseconds of recovery per million written points; `None` without a log.
    recovery_ms: Option<f64>,
}

pub(crate) fn ycsb(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!(
        "{:8} {:8} {:>7}  {:26} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>11}",
        "device",
        "workload",
        "threads",
        "log",
        "txn/s",
        "CPU us",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "B/point",
        "recovery ms"
    );
    let mut scaling = BTreeMap::new();
    for workload in WORKLOADS {
        let arms = in_turn(&ARMS, |arm, threads| {
            let device: Arc<dyn Disk> = Arc::new(MemoryDevice::default());
            run(workload, arm, threads, &device)
        })?;
        for (threads, name, figures) in arms {
            print_figures("memory", workload, threads, name, &figures);
            scaling.insert((workload.name, name, threads), figures.per_s);
        }
    }
    for workload in WORKLOADS {
        let arms = in_turn(&[ARMS[0], ARMS[2], ARMS[5]], |arm, threads| {
            let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
            let device: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder.path())?);
            run(workload, arm, threads, &device)
        })?;
        for (threads, name, figures) in arms {
            print_figures("file", workload, threads, name, &figures);
        }
    }
    println!("recovery: milliseconds of a million points that were written");
    let grows_of = |workload: &'static str, arm: usize| {
        let key = |threads| (workload, ARMS[arm].1, threads);
        let at = |threads| scaling.get(&key(threads)).copied().unwrap_or(f64::NAN);
        at(2) / at(1)
    };
    let grows = |arm: usize| grows_of("A", arm);
    for YcsbWorkload { name, .. } in WORKLOADS {
        let grows = |arm: usize| grows_of(name, arm);
        println!(
            "{name} on memory, 2 threads over 1: no log {:.2}, strict order {:.2}, group commit {:.2}, ours {:.2}",
            grows(0),
            grows(1),
            grows(2),
            grows(5)
        );
        let ours = format!("memory device, {name}: 1 thread's transactions over 2 threads' (1.8x)");
        aim(aims, ours, 1.0 / grows(5), 1.0 / 1.8);
    }
    aim(
        aims,
        "memory device, A: 2 threads' transactions over 1, strict order (flat)",
        grows(1),
        1.3,
    );
    aim(aims, "memory device, A: the same, group commit (flat)", grows(2), 1.3);
    for threads in [1, 2] {
        let at =
            |arm: usize| scaling.get(&("A", ARMS[arm].1, threads)).copied().unwrap_or(f64::NAN);
        let name =
            format!("memory device, A, {threads} threads: group commit's transactions over ours");
        aim(aims, name, at(2) / at(5), 1.0);
    }
    Ok(())
}

/// The median round by throughput of each arm, with one thread and with two. Arms take turns, so
/// that a slow minute of the machine affects all of them.
fn in_turn(
    arms: &[(Arm, &'static str)],
    run: impl Fn(Arm, usize) -> Outcome<Figures>,
) -> Outcome<Vec<(usize, &'static str, Figures)>> {
    let mut rounds: Vec<[Vec<Figures>; 2]> = arms.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for (&(arm, _), both) in arms.iter().zip(&mut rounds) {
            for (threads, into) in (1..).zip(both) {
                into.push(run(arm, threads)?);
            }
        }
    }
    let mut all = Vec::new();
    for (&(_, name), both) in arms.iter().zip(rounds) {
        for (threads, mut figures) in (1..).zip(both) {
            figures.sort_by(|one, other| one.per_s.total_cmp(&other.per_s));
            all.push((threads, name, figures.swap_remove(ROUNDS / 2)));
        }
    }
    all.sort_by_key(|&(threads, ..)| threads);
    Ok(all)
}

fn print_figures(
    device: &str,
    workload: YcsbWorkload,
    threads: usize,
    arm: &str,
    figures: &Figures,
) {
    let at = |share: f64| {
        let idx = (figures.commits.len() as f64 * share) as usize;
        figures.commits.get(idx).map_or(f64::NAN, |&ns| f64::from(ns) / 1e3)
    };
    let recovery = figures.recovery_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    println!(
        "{device:8} {:8} {threads:>7}  {arm:26} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {:>8.1} {recovery:>11}",
        workload.name,
        figures.per_s,
        figures.cpu_us,
        at(0.5),
        at(0.99),
        at(0.999),
        figures.bytes_per_point
    );
}

fn run(
    workload: YcsbWorkload,
    arm: Arm,
    threads: usize,
    device: &Arc<dyn Disk>,
) -> Outcome<Figures> {
    let store = Store::new(arm, device)?;
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let outcomes: Vec<Outcome<(u64, u64, Vec<u32>)>> = std::thread::scope(|scope| {
        let sender = |thread: usize| {
            let store = &store;
            move || store.send(workload, thread, threads, start)
        };
        let senders: Vec<_> = (0..threads).map(|thread| scope.spawn(sender(thread))).collect();
        senders.into_iter().map(|sender| sender.join().expect("a sender panicked")).collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    let (mut count, mut points, mut commits) = (0, 0, Vec::new());
    for outcome in outcomes {
        let (sent, written, latencies) = outcome?;
        count += sent;
        points += written;
        commits.extend(latencies);
    }
    commits.sort_unstable();
    let bytes_per_point = store.written_bytes() as f64 / points as f64;
    let (sink, floors) = store.into_sink();
    let recovery_ms = recover(sink, arm, device, &floors, points)?;
    let (per_s, cpu_us) = (count as f64 / seconds, cpu / 1e3 / count as f64);
    Ok(Figures { per_s, cpu_us, commits, bytes_per_point, recovery_ms })
}

/// Replays into another head with one thread per stream. All written transactions return if the log
/// has all of them.
fn recover(
    sink: Sink,
    arm: Arm,
    device: &Arc<dyn Disk>,
    floors: &[LogPosition],
    points: u64,
) -> Outcome<Option<f64>> {
    let store = Store::new(Arm::NoLog, device)?;
    let start = Instant::now();
    let (found, is_all) = match sink {
        Sink::None => return Ok(None),
        Sink::Central(central) => (replayed::central(&store, &central)?, central.is_whole()),
        Sink::Log { log, .. } => {
            drop(log);
            (
                replayed::log(&store, device, log_options(arm, device), floors)?,
                arm != Arm::Checkpoint,
            )
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let Recovered { points: found } = found;
    if is_all && found != points {
        return Err(format!("{arm:?}: recovered {found} of {points} points").into());
    }
    // A central log replays only its last lap: the time is that of the points in this lap.
    let covered = if arm == Arm::Checkpoint { points } else { found };
    Ok(Some(seconds * 1e3 / covered as f64 * 1e6))
}
