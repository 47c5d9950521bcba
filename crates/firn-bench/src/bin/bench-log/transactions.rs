//! Transactions on the log, its features switched on in turn (DecLog, Figure 12(a)).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::log::central::Central;
use firn_bench::log::device::MemoryDevice;
use firn_bench::log::ycsb::{
    Driver, OPERATIONS, OperationKind, POINT_BYTES, WORKLOADS, YcsbWorkload, encode_point,
};
use firn_bench::report::Aim;
use firn_codec::Slots;
use firn_env::{Disk, LocalDisk, OpenMode};
use firn_head::{Head, HeadOptions, ShardWriter, bound_bytes, encode_standalone};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{
    Budget, Cell, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits, ShardId,
    Slot, TimeRange, encode_varint,
};

use crate::replayed::{self, Recovered};
use crate::work::start_log;
use crate::{Outcome, SHARD_COUNT, STREAM_COUNT, aim};

/// Keys of the transactions.
pub(crate) const KEY_COUNT: usize = 20_000;
pub(crate) const RUN: Duration = Duration::from_millis(700);
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Rounds of each arm; the one with the median throughput counts.
pub(crate) const ROUNDS: usize = 3;
/// Conversions after each 256 transactions, at most: more than become due in that time.
const CONVERSIONS: usize = 8;

/// The logging of transactions; each arm adds a feature to the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arm {
    /// No log.
    NoLog,
    /// One queue, one counter, two fences for every entry.
    Strict,
    /// No fence between independent entries: two for a group.
    Relaxed,
    /// No shared counter: one stream of our log, unencoded points.
    DataDriven,
    /// A stream for each core.
    Parallel,
    /// Encoded rows, groups aligned to 256 bytes.
    Compressed,
    /// In addition, the log is truncated while it is written.
    Checkpoint,
}

const ARMS: [(Arm, &str); 7] = [
    (Arm::NoLog, "no log"),
    (Arm::Strict, "one queue, strict order"),
    (Arm::Relaxed, "one queue, group commit"),
    (Arm::DataDriven, "+ no shared counter"),
    (Arm::Parallel, "+ streams"),
    (Arm::Compressed, "+ compressed, aligned"),
    (Arm::Checkpoint, "+ checkpoint"),
];

pub(crate) enum Sink {
    None,
    Central(Central),
    Log { log: Log, encoded: bool },
}

/// On cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

/// A head, a log, and the newest point of each key.
pub(crate) struct Store {
    pub(crate) head: Head,
    pub(crate) bits: ShardBits,
    pub(crate) budget: Budget,
    sink: Sink,
    seq: Apart<AtomicU64>,
    newest: Vec<AtomicI64>,
    is_cut: bool,
    /// Positions of the last truncation; locked by the thread that does maintenance.
    floors: Mutex<Vec<LogPosition>>,
}

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

fn log_options(arm: Arm, device: &Arc<dyn Disk>) -> LogSetup {
    let is_one = arm == Arm::DataDriven || device.folder().is_some();
    let is_aligned = matches!(arm, Arm::Compressed | Arm::Checkpoint);
    LogSetup {
        stream_count: if is_one { 1 } else { STREAM_COUNT },
        shard_count: SHARD_COUNT,
        unit_bytes: if is_aligned { 256 } else { 8 },
        options: LogOptions { segment_bytes: SEGMENT_BYTES, sync: SyncPolicy::Always },
    }
}

impl Store {
    fn new(arm: Arm, device: &Arc<dyn Disk>) -> Outcome<Store> {
        let bits = ShardBits::for_count(SHARD_COUNT);
        let budget = Budget::unlimited();
        let sink = match arm {
            Arm::NoLog => Sink::None,
            Arm::Strict | Arm::Relaxed => {
                let file = device.open("central.log", OpenMode::Create)?;
                file.preallocate(SEGMENT_BYTES)?;
                file.sync()?;
                Sink::Central(Central::new(file, SEGMENT_BYTES, arm == Arm::Relaxed))
            }
            _ => {
                let log = start_log(Arc::clone(device), log_options(arm, device))?;
                Sink::Log { log, encoded: matches!(arm, Arm::Compressed | Arm::Checkpoint) }
            }
        };
        Ok(Store {
            head: Head::new(bits, HeadOptions::default(), budget.clone()),
            bits,
            budget,
            sink,
            seq: Apart(AtomicU64::new(0)),
            newest: (0..KEY_COUNT).map(|_| AtomicI64::new(0)).collect(),
            is_cut: arm == Arm::Checkpoint,
            floors: Mutex::new(vec![LogPosition(0); STREAM_COUNT]),
        })
    }

    fn into_sink(self) -> (Sink, Vec<LogPosition>) {
        (self.sink, self.floors.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs transactions until the time is up. Returns their number, the number of points written,
    /// and the latencies of commits.
    fn send(
        &self,
        workload: YcsbWorkload,
        thread: usize,
        threads: usize,
        start: Instant,
    ) -> Outcome<(u64, u64, Vec<u32>)> {
        let mut driver = Driver::new(workload, KEY_COUNT, thread, threads);
        let (mut keys, mut batch) = ([0; OPERATIONS], RowBatch::default());
        let (mut count, mut points, mut latencies) = (0u64, 0, Vec::new());
        while start.elapsed() < RUN {
            let kind = driver.next(&mut keys);
            count += 1;
            if kind == OperationKind::Read {
                self.read(&keys)?;
                continue;
            }
            for key in keys {
                let newest = &self.newest[key];
                let ts = if kind == OperationKind::Insert {
                    newest.store(count as i64, Ordering::Relaxed);
                    count as i64
                } else {
                    newest.load(Ordering::Relaxed)
                };
                batch.push(series(key), ts, (scatter(count) % 100) as f64);
            }
            batch.sort(self.bits);
            points += batch.len() as u64;
            let before = Instant::now();
            match kind {
                OperationKind::Update => self.update(&batch)?,
                _ => self.write(&batch)?,
            }
            latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
            batch.clear();
            if count.is_multiple_of(256) {
                self.tend()?;
            }
        }
        Ok((count, points, latencies))
    }

    /// As the engine writes rows: shard by shard into log and head, then durable, then visible.
    pub(crate) fn write(&self, batch: &RowBatch) -> Outcome<()> {
        let mut ends: Vec<(StreamId, LogPosition)> = Vec::with_capacity(STREAM_COUNT);
        let mut staged: Vec<(ShardId, LogPosition)> = Vec::with_capacity(OPERATIONS);
        let mut given = self.budget.reserve(Pool::Head, bound_bytes(batch))?;
        for rows in batch.by_shard() {
            let mut shard = self.head.shard(rows.shard);
            let seq = self.draw();
            let position = match &self.sink {
                Sink::None | Sink::Central(_) => {
                    shard.encode(seq, rows, 1);
                    LogPosition(seq.0)
                }
                Sink::Log { log, encoded } => {
                    let stream = log.stream_of(rows.shard);
                    let position = loop {
                        let segment = log.tip(stream).segment;
                        let payload = shard.encode(seq, rows, segment.0);
                        let (kind, shard) = (EntryKind::Rows, rows.shard);
                        let appended = if *encoded {
                            let entry = EntryRef { kind, shard, seq, payload };
                            log.append(stream, segment, &[entry])?
                        } else {
                            let points: Vec<_> = rows.cells().iter().map(point).collect();
                            let entry = |payload| EntryRef { kind, shard, seq, payload };
                            let entries: Vec<_> =
                                points.iter().map(|one| entry(&one[..])).collect();
                            log.append(stream, segment, &entries)?
                        };
                        if let Append::At(position) = appended {
                            break position;
                        }
                    };
                    match ends.iter_mut().find(|end| end.0 == stream) {
                        Some(end) => end.1 = end.1.max(position),
                        None => ends.push((stream, position)),
                    }
                    position
                }
            };
            shard.stage(position, &mut given);
            staged.push((rows.shard, position));
        }
        self.commit(batch, &ends)?;
        for (shard, position) in staged {
            self.head.publish(shard, position);
        }
        Ok(())
    }

    /// As the engine commits a transaction: one entry of the first stream with the rows of all
    /// shards, which are locked until it has its position, in arenas of their own.
    fn update(&self, batch: &RowBatch) -> Outcome<()> {
        let mut given = self.budget.reserve(Pool::Head, bound_bytes(batch))?;
        let rows: Vec<(ShardId, Vec<u8>)> =
            batch.by_shard().map(|rows| (rows.shard, encode_standalone(rows, self.bits))).collect();
        let mut payload = Vec::new();
        if let Sink::Log { encoded: true, .. } = &self.sink {
            for (shard, bytes) in &rows {
                encode_varint(u64::from(shard.0), &mut payload);
                encode_varint(bytes.len() as u64, &mut payload);
                payload.extend_from_slice(bytes);
            }
        } else {
            batch.cells().iter().for_each(|cell| payload.extend_from_slice(&point(cell)));
        }
        let mut writers: Vec<ShardWriter<'_>> =
            rows.iter().map(|&(shard, _)| self.head.shard(shard)).collect();
        let (seq, shard, kind) = (self.draw(), ShardId(0), EntryKind::Transaction);
        let mut ends = Vec::new();
        if let Sink::Log { log, .. } = &self.sink {
            let stream = log.stream_of(shard);
            let entry = EntryRef { kind, shard, seq, payload: &payload };
            while ends.is_empty() {
                if let Append::At(end) = log.append(stream, log.tip(stream).segment, &[entry])? {
                    ends.push((stream, end));
                }
            }
        }
        for (writer, (_, bytes)) in writers.iter_mut().zip(&rows) {
            writer.stage_transaction(seq, bytes, &mut given);
        }
        drop(writers);
        self.commit(batch, &ends)?;
        rows.iter().for_each(|&(shard, _)| self.head.decide_transaction(shard, seq, true));
        Ok(())
    }

    fn commit(&self, batch: &RowBatch, ends: &[(StreamId, LogPosition)]) -> Outcome<()> {
        match &self.sink {
            Sink::None => {}
            Sink::Central(central) => {
                let points: Vec<_> = batch.cells().iter().map(point).collect();
                central.commit(points.iter().map(|one| &one[..]))?;
            }
            Sink::Log { log, .. } => log.commit(ends)?,
        }
        Ok(())
    }

    fn draw(&self) -> CommitSeq {
        CommitSeq(1 + self.seq.0.fetch_add(1, Ordering::Relaxed))
    }

    fn read(&self, keys: &[usize; OPERATIONS]) -> Outcome<()> {
        let snapshot = self.head.snapshot();
        for &key in keys {
            let ts = self.newest[key].load(Ordering::Relaxed);
            let found = snapshot.read(series(key).group, Slots::All, TimeRange::new(ts, ts + 1))?;
            std::hint::black_box(found);
        }
        Ok(())
    }

    /// The maintenance of an engine; senders take turns, so that all are delayed equally.
    fn tend(&self) -> Outcome<()> {
        let Ok(mut floors) = self.floors.try_lock() else { return Ok(()) };
        for _ in 0..CONVERSIONS {
            let Some(job) = self.head.plan_convert() else { break };
            self.head.apply_convert(job.run()?);
        }
        if let Sink::Log { log, .. } = &self.sink {
            if self.is_cut {
                let streams = (0..log.stream_count()).map(|stream| StreamId(stream as u16));
                // As if a flush had just moved all of it to tables.
                *floors = streams.map(|stream| log.end(stream)).collect();
                log.sync()?;
                log.purge(&floors)?;
            }
            log.prepare()?;
        }
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        match &self.sink {
            Sink::None => 0,
            Sink::Central(central) => central.written_bytes(),
            Sink::Log { log, .. } => log.stats().written_bytes,
        }
    }
}

fn point(cell: &Cell) -> [u8; POINT_BYTES] {
    encode_point(cell.group.0, cell.ts, cell.value)
}

/// Each key is a lone series.
pub(crate) fn series(key: usize) -> SeriesRef {
    SeriesRef { group: GroupId(key as u64), slot: Slot(0) }
}
