//! What the log costs and what it gives: DecLog's transactions on memory and on a file, the log's own CPU and bytes,
//! senders that wait for the device and senders that do not, and how soon all is there again after a kill.
//!
//! `bench-log --only words`, of ycsb, bytes, cpu, senders, plain, recovery, kill; all without. The folder is that of temporary
//! files (`TMPDIR`); it decides which device is measured.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_bench::client::Connection;
use firn_bench::fleet::{Fleet, Kind as FleetKind};
use firn_bench::index::{process_cpu_ns, scatter};
use firn_bench::load::Load;
use firn_bench::log::central::Central;
use firn_bench::log::device::MemoryDevice;
use firn_bench::log::recordings;
use firn_bench::log::ycsb::{Driver, Kind, OPERATIONS, POINT_BYTES, WORKLOADS, Workload};
use firn_bench::report::{Aim, finish, median};
use firn_bench::server::Program;
use firn_codec::Slots;
use firn_env::{Clock, Disk, LocalDisk, OpenMode, SystemClock};
use firn_head::{Head, HeadOptions, ShardWriter, bound_bytes, encode_apart};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, StreamId, SyncPolicy};
use firn_model::{
    Budget, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits, ShardId, Slot,
    TimeRange, encode_varint,
};
use firndb::{Db, Labels, Lane, Options, RecoveryProgress, local_env};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SHARD_COUNT: usize = 64;
const STREAM_COUNT: usize = 2;
/// Keys of the transactions.
const KEY_COUNT: usize = 20_000;
const RUN: Duration = Duration::from_millis(700);
const SEGMENT_BYTES: u64 = 8 << 20;
/// Samples of a sender's request, Prometheus' default.
const BATCH: usize = 2_000;
const SERIES_COUNT: usize = 100_000;
/// Arenas that become columns beside 256 transactions, at most: more than come to wait in that time.
const CONVERSIONS: usize = 8;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, folder, rounds, more] = args.as_slice()
        && word == "--child"
    {
        return write_and_wait(Path::new(folder), rounds.parse()?, more.parse()?);
    }
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1).cloned().unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split([' ', ',']).any(|word| word == name);
    let mut aims = Vec::new();
    if wanted("ycsb") {
        ycsb(&mut aims)?;
    }
    if wanted("bytes") {
        bytes(&mut aims)?;
    }
    if wanted("cpu") {
        cpu(&mut aims)?;
    }
    if wanted("senders") {
        senders(&mut aims)?;
    }
    if wanted("plain") {
        plain(&mut aims)?;
    }
    if wanted("recovery") {
        recovery(&mut aims)?;
    }
    if wanted("kill") {
        kill(&mut aims)?;
    }
    Ok(finish("log", &aims)?)
}

fn aim(aims: &mut Vec<Aim>, name: impl Into<String>, figure: f64, at_most: f64) {
    aims.push(Aim { name: name.into(), figure, at_most });
}

// ---- transactions on the log, its features switched on in turn (DecLog, Figure 12(a)) ----

/// How transactions are logged; each adds something to the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arm {
    /// Not at all.
    NoLog,
    /// One queue, one counter, two fences for every entry.
    Strict,
    /// No fence between independent entries: two for a group.
    Relaxed,
    /// No counter that all share: one stream of ours, points as they came.
    DataDriven,
    /// A stream for each core.
    Parallel,
    /// Rows as they are encoded, groups aligned to 256 bytes.
    Compressed,
    /// And the log is cut while it is written.
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

enum Sink {
    None,
    Central(Central),
    Log { log: Log, encoded: bool },
}

/// On cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

/// A head, a log, and the newest point of each key.
struct Store {
    head: Head,
    bits: ShardBits,
    budget: Budget,
    sink: Sink,
    seq: Apart<AtomicU64>,
    newest: Vec<AtomicI64>,
    is_cut: bool,
}

/// What one arm did.
struct Figures {
    per_s: f64,
    cpu_us: f64,
    /// Latencies of commits, in order, nanoseconds.
    commits: Vec<u32>,
    bytes_per_point: f64,
}

fn ycsb(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!(
        "{:8} {:8} {:>7}  {:26} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "device",
        "workload",
        "threads",
        "log",
        "txn/s",
        "CPU us",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "B/point"
    );
    let mut scaling = BTreeMap::new();
    for workload in WORKLOADS {
        for threads in [1, 2] {
            for (arm, name) in ARMS {
                let device: Arc<dyn Disk> = Arc::new(MemoryDevice::default());
                let figures = run(workload, arm, threads, &device)?;
                print_figures("memory", workload, threads, name, &figures);
                scaling.insert((workload.name, name, threads), figures.per_s);
            }
        }
    }
    for workload in [WORKLOADS[0], WORKLOADS[2]] {
        for threads in [1, 2] {
            for (arm, name) in [ARMS[0], ARMS[2], ARMS[5]] {
                let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
                let device: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder.path())?);
                let figures = run(workload, arm, threads, &device)?;
                print_figures("file", workload, threads, name, &figures);
            }
        }
    }
    let grows = |arm: usize| {
        let at = |threads| scaling.get(&("A", ARMS[arm].1, threads)).copied().unwrap_or(f64::NAN);
        at(2) / at(1)
    };
    println!(
        "A on memory, 2 threads over 1: no log {:.2}, central {:.2}, ours {:.2}",
        grows(0),
        grows(2),
        grows(5)
    );
    let ours = "memory device, A: 1 thread's transactions over 2 threads' (1.8x)";
    aim(aims, ours, 1.0 / grows(5), 1.0 / 1.8);
    let at = |arm: usize| scaling.get(&("A", ARMS[arm].1, 1)).copied().unwrap_or(f64::NAN);
    aim(aims, "memory device, A, 1 thread: central's transactions over ours", at(2) / at(5), 1.0);
    Ok(())
}

fn print_figures(device: &str, workload: Workload, threads: usize, arm: &str, figures: &Figures) {
    let at = |share: f64| {
        let idx = (figures.commits.len() as f64 * share) as usize;
        figures.commits.get(idx).map_or(f64::NAN, |&ns| f64::from(ns) / 1e3)
    };
    println!(
        "{device:8} {:8} {threads:>7}  {arm:26} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {:>8.1}",
        workload.name,
        figures.per_s,
        figures.cpu_us,
        at(0.5),
        at(0.99),
        at(0.999),
        figures.bytes_per_point
    );
}

fn run(workload: Workload, arm: Arm, threads: usize, device: &Arc<dyn Disk>) -> Outcome<Figures> {
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
    Ok(Figures {
        per_s: count as f64 / seconds,
        cpu_us: cpu / 1e3 / count as f64,
        commits,
        bytes_per_point: store.written_bytes() as f64 / points as f64,
    })
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
                let options = LogOptions {
                    stream_count: if arm == Arm::DataDriven { 1 } else { STREAM_COUNT },
                    shard_count: SHARD_COUNT,
                    segment_bytes: SEGMENT_BYTES,
                    sync: SyncPolicy::Always,
                    unit_bytes: if matches!(arm, Arm::Compressed | Arm::Checkpoint) {
                        256
                    } else {
                        8
                    },
                };
                let log = start_log(Arc::clone(device), options)?;
                Sink::Log { log, encoded: matches!(arm, Arm::Compressed | Arm::Checkpoint) }
            }
        };
        Ok(Store {
            head: Head::new(HeadOptions::new(bits), budget.clone()),
            bits,
            budget,
            sink,
            seq: Apart(AtomicU64::new(0)),
            newest: (0..KEY_COUNT).map(|_| AtomicI64::new(0)).collect(),
            is_cut: arm == Arm::Checkpoint,
        })
    }

    /// Transactions until the time is up: how many, points written, latencies of commits.
    fn send(
        &self,
        workload: Workload,
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
            if kind == Kind::Read {
                self.read(&keys)?;
                continue;
            }
            for key in keys {
                let newest = &self.newest[key];
                let ts = if kind == Kind::Insert {
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
                Kind::Update => self.update(&batch)?,
                _ => self.write(&batch)?,
            }
            latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
            batch.clear();
            if count.is_multiple_of(256) && thread == 0 {
                self.tend()?;
            }
        }
        Ok((count, points, latencies))
    }

    /// As the engine writes rows: shard by shard into log and head, then durable, then visible.
    fn write(&self, batch: &RowBatch) -> Outcome<()> {
        let mut ends: Vec<(StreamId, LogPosition)> = Vec::with_capacity(STREAM_COUNT);
        let mut staged: Vec<(ShardId, LogPosition)> = Vec::with_capacity(OPERATIONS);
        let point = [0x5a; POINT_BYTES];
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
                        let segment = log.segment(stream);
                        let payload = shard.encode(seq, rows, segment.0);
                        let entry = |payload| EntryRef {
                            kind: EntryKind::Rows,
                            shard: rows.shard,
                            seq,
                            payload,
                        };
                        let appended = if *encoded {
                            log.append(stream, segment, &[entry(payload)])?
                        } else {
                            let entries = vec![entry(&point[..]); rows.cells().len()];
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

    /// As the engine commits a transaction: one entry of the first stream with the rows of all shards, which are held
    /// until it has its place, and lie in arenas of their own.
    fn update(&self, batch: &RowBatch) -> Outcome<()> {
        let mut given = self.budget.reserve(Pool::Head, bound_bytes(batch))?;
        let rows: Vec<(ShardId, Vec<u8>)> =
            batch.by_shard().map(|rows| (rows.shard, encode_apart(rows, self.bits))).collect();
        let mut payload = Vec::new();
        for (shard, bytes) in &rows {
            encode_varint(u64::from(shard.0), &mut payload);
            encode_varint(bytes.len() as u64, &mut payload);
            payload.extend_from_slice(bytes);
        }
        let mut writers: Vec<ShardWriter<'_>> =
            rows.iter().map(|&(shard, _)| self.head.shard(shard)).collect();
        let (seq, shard, kind) = (self.draw(), ShardId(0), EntryKind::Transaction);
        let mut ends = Vec::new();
        if let Sink::Log { log, .. } = &self.sink {
            let stream = log.stream_of(shard);
            let entry = EntryRef { kind, shard, seq, payload: &payload };
            while ends.is_empty() {
                if let Append::At(end) = log.append(stream, log.segment(stream), &[entry])? {
                    ends.push((stream, end));
                }
            }
        }
        for (writer, (_, bytes)) in writers.iter_mut().zip(&rows) {
            writer.stage_apart(seq, bytes, &mut given);
        }
        drop(writers);
        self.commit(batch, &ends)?;
        rows.iter().for_each(|&(shard, _)| self.head.decide_apart(shard, seq, true));
        Ok(())
    }

    fn commit(&self, batch: &RowBatch, ends: &[(StreamId, LogPosition)]) -> Outcome<()> {
        let point = [0x5a; POINT_BYTES];
        match &self.sink {
            Sink::None => {}
            Sink::Central(central) => central.commit(batch.cells().iter().map(|_| &point[..]))?,
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

    /// What the maintenance of an engine does beside.
    fn tend(&self) -> Outcome<()> {
        for _ in 0..CONVERSIONS {
            let Some(job) = self.head.plan_convert() else { break };
            self.head.apply_convert(job.run()?);
        }
        if let Sink::Log { log, .. } = &self.sink {
            if self.is_cut {
                let streams = (0..log.stream_count()).map(|stream| StreamId(stream as u16));
                // As if a flush had just moved all of it to tables.
                let floors: Vec<LogPosition> = streams.map(|stream| log.end(stream)).collect();
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

/// Each key is a series that stands alone.
fn series(key: usize) -> SeriesRef {
    SeriesRef { group: GroupId(key as u64), slot: Slot(0) }
}

fn start_log(disk: Arc<dyn Disk>, options: LogOptions) -> Outcome<Log> {
    let stream_count = options.stream_count;
    let log = Log::open(disk, Arc::new(SystemClock::new()) as Arc<dyn Clock>, options)?;
    for stream in 0..stream_count {
        log.replay(StreamId(stream as u16), LogPosition(0), &mut |_| Ok(()))?;
    }
    log.start()?;
    log.prepare()?;
    Ok(log)
}

// ---- bytes of the recordings ----

fn bytes(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!("\n{:14} {:>10} {:>10} {:>14}", "recording", "samples", "log bytes", "bytes/sample");
    let (mut all_samples, mut all_bytes) = (0, 0);
    for target in recordings::TARGETS {
        let Some((keys, scrapes)) = recordings::read(target) else {
            println!("{target:14} absent");
            continue;
        };
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let options = Options { log_sync: SyncPolicy::Never, ..Options::default() };
        let db = Db::open_idle(local_env(folder.path())?, options, &RecoveryProgress::default())?;
        // The whole text of a series as one label: as many bytes as its labels have.
        let labels = keys.iter().map(|key| {
            let name = key.split('{').next().unwrap_or_default();
            let pairs = [("__name__", name), ("instance", "i"), ("job", target), ("series", key)];
            Labels::from_pairs(pairs)
        });
        let labels = labels.collect::<firndb::Result<Vec<Labels>>>()?;
        let refs = db.resolve(&labels).into_iter().collect::<firndb::Result<Vec<SeriesRef>>>()?;
        let (mut batch, mut samples) = (RowBatch::default(), 0u64);
        for (ts, values) in scrapes {
            values.iter().for_each(|&(series, value)| batch.push(refs[series], ts, value));
            samples += values.len() as u64;
            db.write(&mut batch)?;
            batch.clear();
        }
        let bytes = db.stats().log.written_bytes;
        println!("{target:14} {samples:>10} {bytes:>10} {:>14.3}", bytes as f64 / samples as f64);
        all_samples += samples;
        all_bytes += bytes;
    }
    if all_samples > 0 {
        let figure = all_bytes as f64 / all_samples as f64;
        aim(aims, "log bytes a sample, recordings, a commit for each scrape", figure, 1.0);
    }
    Ok(())
}

// ---- the log's own CPU ----

/// What a database logged, as its log has it.
struct Logged {
    /// Stream, shard, kind, payload.
    entries: Vec<(StreamId, ShardId, EntryKind, Vec<u8>)>,
    payload_bytes: u64,
    sample_count: u64,
}

/// A request's twenty groups fall into so many of 64 shards.
const ENTRIES_PER_REQUEST: usize = 17;

fn cpu(aims: &mut Vec<Aim>) -> Outcome<()> {
    let logged = logged()?;
    println!("\nlog alone, entries of requests of {BATCH} samples, 100k grouped series:");
    let mut by_policy = BTreeMap::new();
    for (name, sync, unit_bytes) in [
        ("never, packed", SyncPolicy::Never, 8),
        ("always, packed", SyncPolicy::Always, 8),
        ("always, 512 B", SyncPolicy::Always, 512),
        ("always, 4 KiB", SyncPolicy::Always, 4_096),
    ] {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let options = LogOptions {
            stream_count: STREAM_COUNT,
            shard_count: SHARD_COUNT,
            segment_bytes: 32 << 20,
            sync,
            unit_bytes,
        };
        let log = start_log(Arc::new(LocalDisk::open(folder.path())?), options)?;
        let (start, cpu) = (Instant::now(), process_cpu_ns());
        for commit in logged.entries.chunks(ENTRIES_PER_REQUEST) {
            append_all(&log, commit)?;
        }
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
        let samples = logged.sample_count as f64;
        let written_bytes = log.stats().written_bytes;
        if written_bytes < logged.payload_bytes {
            let bytes = logged.payload_bytes;
            return Err(format!("{written_bytes} bytes were written of {bytes}").into());
        }
        let bytes = written_bytes as f64 / samples;
        println!(
            "  {name:16} {:>6.1} ns CPU a sample, {bytes:.3} bytes a sample, {:.1} M samples/s",
            cpu / samples,
            samples / seconds / 1e6
        );
        by_policy.insert(name, cpu / samples);
    }
    aim(aims, "log's CPU a sample, always, ns", by_policy["always, packed"], 30.0);
    Ok(())
}

fn append_all(log: &Log, commit: &[(StreamId, ShardId, EntryKind, Vec<u8>)]) -> Outcome<()> {
    let mut ends: BTreeMap<StreamId, LogPosition> = BTreeMap::new();
    for (stream, shard, kind, payload) in commit {
        let entry = EntryRef { kind: *kind, shard: *shard, seq: CommitSeq(1), payload };
        loop {
            if let Append::At(end) = log.append(*stream, log.segment(*stream), &[entry])? {
                ends.insert(*stream, end);
                break;
            }
        }
    }
    Ok(log.commit(&ends.into_iter().collect::<Vec<_>>())?)
}

/// Twenty rounds of the series through a database, taken from its log.
fn logged() -> Outcome<Logged> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let sample_count = fill_and_kill(folder.path(), 20, 0)?;
    let options = LogOptions {
        stream_count: STREAM_COUNT,
        shard_count: SHARD_COUNT,
        segment_bytes: 32 << 20,
        sync: SyncPolicy::Never,
        unit_bytes: 8,
    };
    let disk = local_env(folder.path())?.disk;
    let log = Log::open(disk, Arc::new(SystemClock::new()) as Arc<dyn Clock>, options)?;
    let mut streams = Vec::new();
    for stream in 0..STREAM_COUNT as u16 {
        let (stream, mut entries) = (StreamId(stream), Vec::new());
        log.replay(stream, LogPosition(0), &mut |entry| {
            entries.push((stream, entry.shard, entry.kind, entry.payload.to_vec()));
            Ok(())
        })?;
        streams.push(entries.into_iter());
    }
    // In turn from each stream, as they were written.
    let mut entries = Vec::new();
    loop {
        let before = entries.len();
        streams.iter_mut().for_each(|stream| entries.extend(stream.next()));
        if entries.len() == before {
            break;
        }
    }
    let payload_bytes = entries.iter().map(|entry| entry.3.len() as u64).sum();
    // A sample of this kind takes about a byte.
    if payload_bytes < sample_count / 4 {
        let count = entries.len();
        return Err(format!("{sample_count} samples left {count} entries in the log").into());
    }
    Ok(Logged { entries, payload_bytes, sample_count })
}

/// Writes `rounds` samples of each series in requests of [`BATCH`].
fn write_rounds(db: &Db, rounds: usize) -> Outcome<u64> {
    let refs = define(db)?;
    let mut fleet = Fleet::new(FleetKind::Grouped, SERIES_COUNT);
    let start = now_ms() - rounds as i64 * 15_000;
    let (mut count, mut batch) = (0, RowBatch::default());
    for round in 0..rounds {
        let mut outcome = Ok(());
        fleet.next_round(start + round as i64 * 15_000, |series, ts, value| {
            batch.push(refs[series], ts, value);
            count += 1;
            if batch.len() == BATCH {
                outcome =
                    std::mem::replace(&mut outcome, Ok(())).and(db.write(&mut batch).map(|_| ()));
                batch.clear();
            }
        });
        outcome?;
    }
    Ok(count)
}

fn define(db: &Db) -> Outcome<Vec<SeriesRef>> {
    let fleet = Fleet::new(FleetKind::Grouped, SERIES_COUNT);
    let mut refs = Vec::with_capacity(SERIES_COUNT);
    for first in (0..SERIES_COUNT).step_by(10_000) {
        let labels = (first..first + 10_000).map(|series| {
            let labels = fleet.labels(series);
            Labels::from_pairs(labels.iter().map(|(name, value)| (*name, value.as_str())))
        });
        let labels = labels.collect::<firndb::Result<Vec<Labels>>>()?;
        for series in db.resolve(&labels) {
            refs.push(series?);
        }
    }
    Ok(refs)
}

// ---- senders ----

fn senders(aims: &mut Vec<Aim>) -> Outcome<()> {
    let sync_us = device_sync_us()?;
    println!("\ndevice: a sync of 4 KiB takes {sync_us:.0} us");
    println!(
        "{:>8} {:8} {:>12} {:>12} {:>10} {:>10} {:>15}",
        "senders", "log.sync", "M samples/s", "CPU s/M", "p50 us", "p99 us", "requests/sync"
    );
    for (count, sample_rounds) in [(1usize, 40), (32, 240)] {
        let mut rounds: [Vec<Sent>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            for (policy, into) in
                [SyncPolicy::Always, SyncPolicy::Never].into_iter().zip(&mut rounds)
            {
                into.push(send(count, policy, sample_rounds)?);
            }
        }
        let mut figures = Vec::new();
        for (name, rounds) in ["always", "never"].into_iter().zip(&rounds) {
            let middle = |f: fn(&Sent) -> f64| median(rounds.iter().map(f).collect());
            let sent = Sent {
                per_s: middle(|sent| sent.per_s),
                cpu_s: middle(|sent| sent.cpu_s),
                p50_us: middle(|sent| sent.p50_us),
                p99_us: middle(|sent| sent.p99_us),
                per_sync: middle(|sent| sent.per_sync),
            };
            println!(
                "{count:>8} {name:8} {:>12.3} {:>12.4} {:>10.0} {:>10.0} {:>15.1}",
                sent.per_s / 1e6,
                sent.cpu_s,
                sent.p50_us,
                sent.p99_us,
                sent.per_sync
            );
            figures.push(sent);
        }
        let [always, never] = &figures[..] else { continue };
        if count == 1 {
            let waited_ms = (always.p50_us - sync_us).max(0.0) / 1e3;
            aim(aims, "one sender's commit above the device's sync, ms, p50", waited_ms, 2.0);
        } else {
            aim(aims, "32 senders: CPU of always over never", always.cpu_s / never.cpu_s, 1.1);
            aim(
                aims,
                "32 senders: throughput of never over always",
                never.per_s / always.per_s,
                1.1,
            );
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

/// `rounds` samples of each series, each sender with a share of the series.
fn send(sender_count: usize, log_sync: SyncPolicy, rounds: i64) -> Outcome<Sent> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let options = Options { log_sync, stream_count: STREAM_COUNT, ..Options::default() };
    let db = Db::open(local_env(folder.path())?, options)?;
    let refs = define(&db)?;
    let start_ms = now_ms() - rounds * 15_000;
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    let outcomes: Vec<Outcome<Vec<f64>>> = std::thread::scope(|scope| {
        let senders: Vec<_> = refs
            .chunks(SERIES_COUNT.div_ceil(sender_count))
            .map(|share| {
                let db = &db;
                scope.spawn(move || {
                    let (mut batch, mut latencies) = (RowBatch::default(), Vec::new());
                    for round in 0..rounds {
                        for part in share.chunks(BATCH) {
                            for series in part {
                                let value = scatter(series.group.0 ^ (round as u64) << 40) % 100;
                                batch.push(*series, start_ms + round * 15_000, value as f64);
                            }
                            let before = Instant::now();
                            db.write(&mut batch)?;
                            latencies.push(before.elapsed().as_secs_f64() * 1e6);
                            batch.clear();
                        }
                    }
                    Ok(latencies)
                })
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
    let samples = SERIES_COUNT as f64 * rounds as f64;
    Ok(Sent {
        per_s: samples / seconds,
        cpu_s: cpu / 1e9 / samples * 1e6,
        p50_us: latencies[latencies.len() / 2],
        p99_us: latencies[latencies.len() * 99 / 100],
        per_sync: latencies.len() as f64 / db.stats().log.syncs.max(1) as f64,
    })
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

// ---- plain writes beside transactions ----

/// What a plain insert costs where there were no transactions, after some, and while one is open.
fn plain(aims: &mut Vec<Aim>) -> Outcome<()> {
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
        (define(&db)?, now_ms() - ROUNDS * 15_000, RowBatch::default());
    let mut write_round = |round: i64| -> Outcome<()> {
        for part in refs.chunks(BATCH) {
            for series in part {
                let value = scatter(series.group.0 ^ (round as u64) << 40) % 100;
                batch.push(*series, start_ms + round * 15_000, value as f64);
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

// ---- recovery ----

fn recovery(aims: &mut Vec<Aim>) -> Outcome<()> {
    const ROUNDS: usize = 400;
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let samples = fill_and_kill(folder.path(), ROUNDS, 0)?;
    println!("\nreplay of {:.1} M samples, 100k grouped series", samples as f64 / 1e6);
    let mut whole_s = f64::NAN;
    for threads in [1, 2] {
        let (wall_s, cpu_s) = open_s(folder.path(), threads)?;
        println!(
            "  {threads} threads: {wall_s:.3} s, {cpu_s:.3} s CPU, {:.1} M samples/s and core",
            samples as f64 / cpu_s / 1e6
        );
        if threads == 1 {
            let ns = cpu_s * 1e9 / samples as f64;
            aim(aims, "replay, CPU ns a sample (5M a second and core)", ns, 200.0);
        }
        whole_s = wall_s;
    }
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    fill_and_kill(folder.path(), ROUNDS, ROUNDS / 100)?;
    let (cut_s, cpu_s) = open_s(folder.path(), 2)?;
    println!("  with a checkpoint and a hundredth behind it: {cut_s:.3} s, {cpu_s:.3} s CPU");
    aim(aims, "recovery with a checkpoint over that without", cut_s / whole_s, 0.05);
    Ok(())
}

/// Wall and CPU seconds until what a kill left is open, the middle of five. Opening changes a folder, so each opens a copy.
fn open_s(folder: &Path, recovery_threads: usize) -> Outcome<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let copy = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        copy_folder(folder, copy.path())?;
        let options =
            Options { recovery_threads, stream_count: STREAM_COUNT, ..Options::default() };
        let (start, cpu) = (Instant::now(), process_cpu_ns());
        let db = Db::open_idle(local_env(copy.path())?, options, &RecoveryProgress::default())?;
        times.push((start.elapsed().as_secs_f64(), (process_cpu_ns() - cpu) / 1e9));
        drop(db);
    }
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(times[times.len() / 2])
}

/// Synced, so that nothing of it is written while something else is measured.
fn copy_folder(source: &Path, target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source)? {
        let (entry, path) = entry.map(|entry| (entry.path(), target.join(entry.file_name())))?;
        if entry.is_dir() {
            copy_folder(&entry, &path)?;
        } else {
            std::fs::copy(&entry, &path)?;
            std::fs::File::open(&path)?.sync_all()?;
        }
    }
    Ok(())
}

/// A process of its own writes; it is killed with `rounds` in its log, or with `more` behind a flush if there are any.
fn fill_and_kill(folder: &Path, rounds: usize, more: usize) -> Outcome<u64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(folder).arg(rounds.to_string()).arg(more.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut told = [0; 8];
    let read = child.stdout.take().ok_or("no output")?.read_exact(&mut told);
    child.kill()?;
    child.wait()?;
    read?;
    Ok(u64::from_le_bytes(told))
}

fn write_and_wait(folder: &Path, rounds: usize, more: usize) -> Outcome<()> {
    let options = Options {
        flush_age_ms_max: i64::MAX,
        head_bytes_max: u64::MAX >> 1,
        stream_count: STREAM_COUNT,
        ..Options::default()
    };
    let db = Db::open(local_env(folder)?, options)?;
    let mut samples = write_rounds(&db, rounds)?;
    if more > 0 {
        db.flush()?;
        samples += write_rounds(&db, more)?;
    }
    io::stdout().write_all(&samples.to_le_bytes())?;
    io::stdout().flush()?;
    // Until it is killed.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

// ---- a million series, killed ----

fn kill(aims: &mut Vec<Aim>) -> Outcome<()> {
    let Some(program) = Program::Firn.path() else {
        println!("\nkill: firn is not built beside this program");
        return Ok(());
    };
    const ROUNDS: i64 = 10;
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut server = start_server(&program, folder.path(), address)?;
    wait_until_ready(address);
    let mut load = Load::new(1_000_000);
    let start_ms = now_ms() - ROUNDS * 15_000;
    for round in 0..ROUNDS {
        load.scrape(address, Program::Firn.write_path(), start_ms + round * 15_000);
    }
    server.kill()?;
    server.wait()?;
    let start = Instant::now();
    let mut server = start_server(&program, folder.path(), address)?;
    wait_until_ready(address);
    let ready_s = start.elapsed().as_secs_f64();
    let query =
        format!("/api/v1/query?query=count(%7Bjob%3D%22node%22%7D)&time={}", now_ms() / 1_000);
    let answer = String::from_utf8_lossy(Connection::open(address).get(&query)).into_owned();
    let all_s = start.elapsed().as_secs_f64();
    server.kill()?;
    server.wait()?;
    println!(
        "\n1M series, {ROUNDS} samples each, killed: ready after {ready_s:.2} s, counted after {all_s:.2} s"
    );
    if !answer.contains("\"1000000\"") {
        return Err(format!("not all series are there: {answer}").into());
    }
    aim(aims, "1M series: s from SIGKILL's restart to a complete answer", all_s, 2.0);
    Ok(())
}

fn start_server(program: &Path, folder: &Path, address: std::net::SocketAddr) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(folder).arg("--listen").arg(address.to_string());
    command.args(["--self-scrape=never", "--flush-age-max=2h"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Asks every 5 ms whether it answers 200.
fn wait_until_ready(address: std::net::SocketAddr) {
    let is_ready = || -> io::Result<bool> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream
            .write_all(b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    while !is_ready().unwrap_or(false) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}
