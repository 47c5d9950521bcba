//! The store of the transactions: a head, a log of the arm, and the newest point of each key.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use firn_bench::index::scatter;
use firn_bench::log::central::Central;
use firn_bench::log::ycsb::{
    Driver, OPERATIONS, OperationKind, POINT_BYTES, YcsbWorkload, encode_point,
};
use firn_codec::Slots;
use firn_env::{Disk, OpenMode};
use firn_head::{Head, HeadOptions, ShardWriter, bound_bytes, encode_standalone};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{
    Budget, Cell, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits, ShardId,
    Slot, TimeRange, encode_varint,
};

use crate::work::start_log;
use crate::{Outcome, SHARD_COUNT, STREAM_COUNT};

/// Keys of the transactions.
const KEY_COUNT: usize = 20_000;
pub(crate) const RUN: Duration = Duration::from_millis(700);
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Conversions after each 256 transactions, at most: more than become due in that time.
const CONVERSIONS: usize = 8;

/// The logging of transactions; each arm adds a feature to the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arm {
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

pub(crate) fn log_options(arm: Arm, device: &Arc<dyn Disk>) -> LogSetup {
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
    pub(crate) fn new(arm: Arm, device: &Arc<dyn Disk>) -> Outcome<Store> {
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

    pub(crate) fn into_sink(self) -> (Sink, Vec<LogPosition>) {
        (self.sink, self.floors.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs transactions until the time is up. Returns their number, the number of points written,
    /// and the latencies of commits.
    pub(crate) fn send(
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

    pub(crate) fn written_bytes(&self) -> u64 {
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
