//! A reader of the log: the samples of all commits, by position, with the labels of their series.
//!
//! The reader sees the samples that a restart would replay: durable by the sync policy, in the
//! order of each shard. Samples that were refused are not in the log. Deletes are not reported.

use std::fmt;
use std::sync::Arc;

use firn_head::{LogDecoder, decode_standalone};
use firn_log::{EntryKind, FollowedEntry, Follower, StreamId};
use firn_model::{
    Labels, LogPosition, Pool, Reservation, Result, SeriesRef, ShardBits, ShardId, Timestamp,
};

use crate::Engine;
use crate::logged::LoggedTransaction;
use crate::readers::ReaderProgress;

/// Memory is reserved in steps of this, ahead of its use.
const MEMORY_STEP_BYTES: u64 = 64 << 10;
/// A transaction whose samples take a larger part of the memory than one of these is skipped.
const FRACTION_MAX: u64 = 2;

/// A sample in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedSample {
    /// Its series.
    pub series: SeriesRef,
    /// Its time in milliseconds.
    pub ts: Timestamp,
    /// Its value, bit for bit.
    pub value: f64,
}

/// The outcome of [`LogReader::read`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogReading {
    /// There is no more committed entry.
    pub is_at_end: bool,
    /// Rows that could not be decoded, because earlier ones are missing, and samples of
    /// transactions that never fit into the memory.
    pub lost_rows: u64,
    /// Bytes of the log that are damaged.
    pub damaged_bytes: u64,
    /// Bytes that were dropped before they were read.
    pub missing_bytes: u64,
}

/// Follows the log of a database. Neither a write nor a query waits for it.
pub struct LogReader {
    engine: Arc<Engine>,
    name: String,
    followers: Vec<Follower>,
    decoder: LogDecoder,
    /// The memory of the decoder.
    memory: Reservation,
}

impl fmt::Debug for LogReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogReader").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Engine {
    /// A reader that continues where the stored state of `name` ends, or at the end of the log if
    /// there is none. The log is kept for it from now on, up to
    /// [`crate::EngineOptions::reader_log_bytes_max`], until [`Engine::keep_log_readers`] omits it.
    /// A name has one reader at a time.
    ///
    /// # Errors
    /// `Invalid` for a name with other characters than `a` to `z`, digits and dashes, or of more
    /// than 64; `Unavailable` if the disk fails.
    pub fn log_reader(self: &Arc<Engine>, name: &str) -> Result<(LogReader, ReaderProgress)> {
        self.flusher.ensure_log_started(&self.rooms.log)?;
        let progress = self.reader_progress(name)?;
        let followers = self.rooms.streams().zip(&progress.done);
        let reader = LogReader {
            engine: Arc::clone(self),
            name: name.to_owned(),
            followers: followers.map(|(stream, &done)| Follower::new(stream, done)).collect(),
            decoder: LogDecoder::new(self.rooms.bits),
            memory: self.rooms.budget.empty(Pool::Requests),
        };
        Ok((reader, progress))
    }

    /// The labels of series; `None` for those that do not exist any more.
    ///
    /// # Errors
    /// `Corrupt` if a file of the index is damaged.
    pub fn labels_of(&self, series: &[SeriesRef]) -> Result<Vec<Option<Labels>>> {
        let view = self.rooms.index.view();
        series.iter().map(|&series| view.labels(series)).collect()
    }

    /// Bytes of log that were dropped before a reader had read them.
    pub fn reader_dropped_bytes(&self) -> u64 {
        self.readers.dropped_bytes()
    }

    /// Bytes of log files that only readers need.
    pub fn reader_held_bytes(&self) -> u64 {
        self.rooms.log.held_bytes()
    }
}

impl LogReader {
    /// The position in each stream: everything up to it was read.
    pub fn positions(&self) -> Vec<LogPosition> {
        self.followers.iter().map(Follower::position).collect()
    }

    /// Bytes of log after the positions.
    pub fn behind_bytes(&self) -> u64 {
        let ends = self.engine.rooms.log_ends();
        let behind = ends.iter().zip(&self.followers);
        behind.map(|((_, end), one)| end.0.saturating_sub(one.position().0)).sum()
    }

    /// Bytes of log after `positions`, one per stream, without those that were dropped.
    pub fn bytes_after(&self, positions: &[LogPosition]) -> u64 {
        let rooms = &self.engine.rooms;
        let (ends, dropped) = (rooms.log_ends(), rooms.log.dropped());
        let from = positions.iter().zip(&dropped).map(|(position, dropped)| position.max(dropped));
        ends.iter().zip(from).map(|((_, end), from)| end.0.saturating_sub(from.0)).sum()
    }

    /// Continues at `positions`, one per stream.
    pub fn seek(&mut self, positions: &[LogPosition]) {
        self.followers.iter_mut().zip(positions).for_each(|(one, &position)| one.seek(position));
    }

    /// Appends samples to `samples` until it has `count_max`, or an entry more, or the log ends.
    /// With `until`, one position per stream, nothing after it is read.
    ///
    /// # Errors
    /// `Busy` without memory, `Unavailable` if the disk fails, `Corrupt`. `samples` may have
    /// samples then, and the positions are behind them. An entry that found no memory is read by
    /// the next call.
    pub fn read(
        &mut self,
        samples: &mut Vec<LoggedSample>,
        count_max: usize,
        until: Option<&[LogPosition]>,
    ) -> Result<LogReading> {
        let read = self.read_on(samples, count_max, until);
        // Entries may have added less than was reserved for them.
        let kept = self.decoder.heap_bytes().next_multiple_of(MEMORY_STEP_BYTES);
        self.memory.shrink_to(kept);
        read
    }

    fn read_on(
        &mut self,
        samples: &mut Vec<LoggedSample>,
        count_max: usize,
        until: Option<&[LogPosition]>,
    ) -> Result<LogReading> {
        let mut reading = LogReading { is_at_end: true, ..LogReading::default() };
        let LogReader { engine, followers, decoder, memory, .. } = self;
        for (idx, follower) in followers.iter_mut().enumerate() {
            let limit = until.and_then(|until| until.get(idx)).copied();
            let limit = limit.unwrap_or(LogPosition(u64::MAX));
            if follower.position() >= limit {
                continue;
            }
            if samples.len() >= count_max {
                reading.is_at_end = false;
                break;
            }
            let stream = follower.stream();
            follower.set_limit(limit);
            let (mut lost_rows, mut decoded, mut is_refused) = (0, follower.position(), false);
            let followed = engine.rooms.log.follow(follower, &mut |entry| {
                let count = transaction_len(engine, &entry)?;
                let bytes = entry_bytes(&entry, samples.len().saturating_add(count));
                if count > 0 && bytes > memory.limit_bytes() / FRACTION_MAX {
                    lost_rows += count as u64;
                } else {
                    let reserved = reserve(memory, decoder, bytes);
                    reserved.inspect_err(|_| is_refused = true)?;
                    samples.reserve_exact(count);
                    lost_rows += decode(engine, stream, decoder, &entry, samples)?;
                }
                decoded = decoded.max(entry.position);
                Ok(entry.is_before || samples.len() < count_max && entry.position < limit)
            });
            if is_refused {
                // It is already behind the entry.
                follower.seek(decoded);
            }
            let report = followed?;
            reading.lost_rows += lost_rows;
            reading.damaged_bytes += report.damaged_bytes;
            reading.missing_bytes += report.missing_bytes;
            reading.is_at_end &= report.is_at_end || follower.position() >= limit;
        }
        Ok(reading)
    }

    /// Stores the state of this reader; durable on return. The log may drop everything up to
    /// `progress.done`.
    ///
    /// # Errors
    /// `Closed` if the reader was forgotten, `Unavailable` if the disk fails: the previous state is
    /// kept.
    pub fn save(&self, progress: &ReaderProgress) -> Result<()> {
        self.engine.store_progress(&self.name, progress)
    }

    /// The database.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

/// Number of samples of `entry` if it is a transaction that is decoded, else 0. Only transactions
/// are entries with any number of samples: rows of other writes are logged in small parts.
fn transaction_len(engine: &Engine, entry: &FollowedEntry<'_>) -> Result<usize> {
    let mut count = 0;
    if entry.kind == EntryKind::Transaction && !entry.is_before {
        decode_transaction(engine.rooms.bits, entry, |_, _, _| count += 1)?;
    }
    Ok(count)
}

/// The most bytes that `entry` adds: of the decoder's state, or of `sample_count` samples.
fn entry_bytes(entry: &FollowedEntry<'_>, sample_count: usize) -> u64 {
    match entry.kind {
        // Labels are found in the index.
        EntryKind::Definition => 0,
        // A byte of a row is at least a value of a new member, which takes about ten bytes of
        // state; a new group of one member takes a page for 64 of them at worst.
        EntryKind::Rows => (entry.payload.len() as u64).saturating_mul(16),
        EntryKind::Transaction if entry.is_before => 0,
        EntryKind::Transaction => sample_count.saturating_mul(size_of::<LoggedSample>()) as u64,
    }
}

/// Reserves memory for the state and for `bytes` that an entry adds.
fn reserve(memory: &mut Reservation, decoder: &LogDecoder, bytes: u64) -> Result<()> {
    let wanted = decoder.heap_bytes().saturating_add(bytes);
    if bytes > 0 && wanted > memory.bytes() {
        let missing = wanted.saturating_sub(memory.bytes());
        memory.grow(missing.next_multiple_of(MEMORY_STEP_BYTES))?;
    }
    Ok(())
}

/// Decodes an entry; returns the number of rows that were lost.
fn decode(
    engine: &Engine,
    stream: StreamId,
    decoder: &mut LogDecoder,
    entry: &FollowedEntry<'_>,
    samples: &mut Vec<LoggedSample>,
) -> Result<u64> {
    let (bits, log): (ShardBits, _) = (engine.rooms.bits, &engine.rooms.log);
    if entry.restarts {
        let shards = (0..bits.shard_count() as u16).map(ShardId);
        shards.filter(|&shard| log.stream_of(shard) == stream).for_each(|shard| {
            decoder.restart(shard);
        });
    }
    let push = |series, ts, value| {
        if !entry.is_before {
            samples.push(LoggedSample { series, ts, value });
        }
    };
    match entry.kind {
        EntryKind::Definition => Ok(0),
        EntryKind::Rows => decoder.decode(entry.shard, entry.payload, push),
        EntryKind::Transaction if entry.is_before => Ok(0),
        EntryKind::Transaction => decode_transaction(bits, entry, push).map(|()| 0),
    }
}

/// Calls `push` with the samples of a transaction.
fn decode_transaction(
    bits: ShardBits,
    entry: &FollowedEntry<'_>,
    mut push: impl FnMut(SeriesRef, Timestamp, f64),
) -> Result<()> {
    let logged = LoggedTransaction::decode(entry.seq, bits, entry.payload)?;
    for (shard, rows) in logged.rows {
        let rows = entry.payload.get(rows).unwrap_or_default();
        decode_standalone(bits, shard, rows, &mut push)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
