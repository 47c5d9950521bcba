//! The log: streams side by side, one durable point for everything that a commit touches.

use std::sync::{Arc, OnceLock};

use firn_env::{Clock, Disk};
use firn_model::{Error, LogPosition, Result, ShardId};

use crate::entry::EntryRef;
use crate::recover::{FoundStream, ReplayEntry, ReplayReport};
use crate::segment::{self, SegmentNo};
use crate::stream::Stream;
use crate::sync::Mutex;

/// One of the log's parallel streams. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// When it is on disk. Nothing acknowledged is ever lost.
    #[default]
    Always,
    /// When the operating system has it; synced when a commit finds the last sync older than this
    /// ([`Log::sync`] does the rest when commits pause). A power loss costs about as much.
    IntervalMs(u64),
    /// When the operating system has it. A killed process loses nothing, a power loss up to the
    /// segment's size.
    Never,
}

/// How a log is laid out and how safe it is.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Parallel streams, 1 to 65,535. Fixed as long as there are segments.
    pub stream_count: usize,
    /// Shards, 1 to 65,535. Fixed when a database is created.
    pub shard_count: usize,
    /// Length of a segment file: disk space is used in steps of this, and one append must fit.
    /// At least 4 KiB.
    pub segment_bytes: u64,
    /// When a commit is acknowledged.
    pub sync: SyncPolicy,
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// Into the stream; this is the end of its last entry, to be given to [`Log::commit`].
    At(LogPosition),
    /// Nowhere: the stream goes on in another segment. Ask [`Log::segment`] and encode again.
    Rotated,
}

/// Numbers about the log, all streams together, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes above the floors: what a recovery would have to replay. Before [`Log::start`]: the
    /// bytes of the segments found.
    pub bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// Length of all segment files.
    pub disk_bytes: u64,
    /// Entries appended.
    pub entries: u64,
    /// Bytes written, headers included.
    pub written_bytes: u64,
    /// Group commits: one write each.
    pub writes: u64,
    /// Group commits that were synced.
    pub syncs: u64,
    /// Group commits that failed.
    pub failures: u64,
}

/// The write-ahead log. All calls may come from several threads.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    options: LogOptions,
    /// As found on disk; each lock is held for the whole of a stream's replay.
    found: Vec<Mutex<FoundStream>>,
    found_bytes: u64,
    streams: OnceLock<Vec<Stream>>,
}

impl Log {
    /// Makes the folders and finds the segments. Next comes [`Log::replay`] for every stream.
    ///
    /// # Errors
    /// `Invalid` for options out of range, or if the segments on disk were written with other
    /// counts of streams or shards or by a newer version; `Unavailable` when the disk fails.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, options: LogOptions) -> Result<Log> {
        let options = check_options(options)?;
        let mut found = Vec::with_capacity(options.stream_count);
        for stream in 0..options.stream_count as u16 {
            disk.create_dir(&segment::folder(stream))?;
            found.push(FoundStream::open(&*disk, StreamId(stream), &options)?);
        }
        disk.sync_dir("log")?;
        disk.sync_dir("")?;
        let found_bytes = found.iter().map(FoundStream::bytes).sum();
        let found = found.into_iter().map(Mutex::new).collect();
        Ok(Log { disk, clock, options, found, found_bytes, streams: OnceLock::new() })
    }

    /// Gives every entry of `stream` to `f`, in the order of positions. Streams may be replayed at
    /// the same time by several threads. `floor` is what the last [`Log::purge`] was given:
    /// segments that lie below it are not read.
    ///
    /// A tail that a crash tore is cut. Damage to what was durable once is told in the report, and
    /// the first entry behind it has [`ReplayEntry::after_hole`] set.
    ///
    /// # Errors
    /// What `f` returns; `Unavailable` when the disk fails; `Corrupt` for valid entries of a kind
    /// that only a newer version knows. All of them leave the log as it was.
    pub fn replay(
        &self,
        stream: StreamId,
        floor: LogPosition,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<ReplayReport> {
        if self.streams.get().is_some() {
            return Err(Error::internal("the log was started, it cannot be replayed any more"));
        }
        let found = self
            .found
            .get(usize::from(stream.0))
            .ok_or_else(|| Error::internal(format!("the log has no stream {}", stream.0)))?;
        found.lock().replay(floor, f)
    }

    /// Opens a new segment in each stream; from here on appends are taken. A stream never goes on
    /// in a segment that it had before.
    ///
    /// # Errors
    /// `Internal` if a stream was not replayed; `Unavailable` when the disk fails or is full, then
    /// it may be called again.
    pub fn start(&self) -> Result<()> {
        if self.streams.get().is_some() {
            return Err(Error::internal("the log was started before"));
        }
        let mut streams = Vec::with_capacity(self.found.len());
        for (stream, found) in (0u16..).zip(&self.found) {
            let resume = found.lock().resume(&*self.disk)?;
            let id = StreamId(stream);
            streams.push(Stream::start(id, &self.options, &self.disk, &self.clock, resume)?);
        }
        self.found.iter().for_each(|found| found.lock().close());
        self.streams.set(streams).map_err(|_| Error::internal("the log was started before"))
    }

    /// The number of streams.
    pub fn stream_count(&self) -> usize {
        self.options.stream_count
    }

    /// The stream of a shard, the same as long as the log exists.
    pub fn stream_of(&self, shard: ShardId) -> StreamId {
        StreamId(shard.0 % self.options.stream_count as u16)
    }

    /// The segment that appends to `stream` go to now.
    pub fn segment(&self, stream: StreamId) -> SegmentNo {
        self.stream(stream).queue().segment()
    }

    /// Copies `entries` into the stream's buffer. They stay together: replay gives all of them or
    /// none. The caller keeps the order: appends of one shard must not race.
    ///
    /// `segment` is the one that payloads were encoded for ([`Log::segment`]).
    ///
    /// # Errors
    /// `TooLarge` if they do not fit into one segment; `Unavailable` when a new segment is needed
    /// and the disk is full or fails. Nothing was buffered then.
    pub fn append(
        &self,
        stream: StreamId,
        segment: SegmentNo,
        entries: &[EntryRef<'_>],
    ) -> Result<Append> {
        let owner = |entry: &EntryRef<'_>| self.stream_of(entry.shard);
        debug_assert!(entries.iter().all(|entry| owner(entry) == stream), "shard in wrong stream");
        self.stream(stream).append(segment, entries)
    }

    /// The end of what was appended to `stream`.
    pub fn end(&self, stream: StreamId) -> LogPosition {
        self.stream(stream).queue().end()
    }

    /// Returns when everything up to each position is committed as [`SyncPolicy`] says. Whoever
    /// comes first writes and syncs for all who wait; a commit over several streams leads those that
    /// nobody leads before it waits for others.
    ///
    /// # Errors
    /// `Unavailable` when a write or sync failed: those entries may or may not be there after a
    /// crash, and are not there if the process lives on. The others in the list are committed.
    pub fn commit(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        let sync = self.options.sync == SyncPolicy::Always;
        let mut outcome = Ok(());
        let queue = |stream| self.stream(stream).queue();
        // A set of streams that others lead; one bit each, streams beyond 64 share bits harmlessly.
        let mut led_by_others = 0u64;
        for &(stream, position) in positions {
            match queue(stream).commit_unless_led(position, sync) {
                Some(result) => outcome = outcome.and(result),
                None => led_by_others |= 1 << (stream.0 % 64),
            }
        }
        for &(stream, position) in positions {
            if led_by_others & (1 << (stream.0 % 64)) != 0 {
                outcome = outcome.and(queue(stream).commit(position, sync));
            }
        }
        for &(stream, _) in positions {
            if self.stream(stream).is_sync_due() {
                outcome = outcome.and(queue(stream).sync());
            }
        }
        outcome
    }

    /// The greatest position up to `position` such that nothing between the two was committed: what
    /// of a shard's entries up to `position` is safe. Lower than `position` after a failed commit,
    /// also when the stream has gone on in another segment since.
    pub fn durable_before(&self, stream: StreamId, position: LogPosition) -> LogPosition {
        self.stream(stream).queue().durable_before(position)
    }

    /// Makes everything that was appended durable, whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Log::commit`].
    pub fn sync(&self) -> Result<()> {
        self.streams()?.iter().try_for_each(|stream| stream.queue().sync())
    }

    /// Makes the next segment of each stream where there is none yet, so that the append that fills
    /// the current one does not have to. Meant for background work; cheap when there is nothing to do.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn prepare(&self) -> Result<()> {
        self.streams()?.iter().try_for_each(Stream::prepare)
    }

    /// Removes the segments that lie below the floors, one floor for each stream: everything up to a
    /// floor is kept elsewhere, durably. Floors never fall.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails; what was not removed is removed by the next call.
    pub fn purge(&self, floors: &[LogPosition]) -> Result<()> {
        self.streams()?.iter().zip(floors).try_for_each(|(stream, &floor)| stream.purge(floor))
    }

    /// The log's numbers.
    pub fn stats(&self) -> LogStats {
        let Some(streams) = self.streams.get() else {
            return LogStats { bytes: self.found_bytes, ..LogStats::default() };
        };
        let mut stats = LogStats::default();
        for stream in streams {
            let counters = stream.queue().counters();
            stats.bytes += stream.live_bytes();
            stats.segments += stream.segment_count() as u64;
            stats.entries += counters.entries;
            stats.written_bytes += counters.bytes;
            stats.writes += counters.writes;
            stats.syncs += counters.syncs;
            stats.failures += counters.failures;
        }
        stats.disk_bytes = stats.segments * self.options.segment_bytes;
        stats
    }

    fn streams(&self) -> Result<&[Stream]> {
        let streams = self.streams.get();
        streams.map(Vec::as_slice).ok_or_else(|| Error::internal("the log was not started"))
    }

    /// # Panics
    /// If the log was not started or has no such stream: a bug in the caller, who would otherwise
    /// believe that something is durable.
    fn stream(&self, stream: StreamId) -> &Stream {
        let streams = self.streams.get().expect("the log is started before it is used");
        &streams[usize::from(stream.0)]
    }
}

fn check_options(options: LogOptions) -> Result<LogOptions> {
    let is_count = |count: usize| (1..=usize::from(u16::MAX)).contains(&count);
    if !is_count(options.stream_count) || !is_count(options.shard_count) {
        return Err(Error::invalid(format!(
            "log: {} streams and {} shards, each must be 1 to 65,535",
            options.stream_count, options.shard_count
        )));
    }
    if !(4 << 10..=1 << 31).contains(&options.segment_bytes) {
        return Err(Error::invalid(format!(
            "log: segments of {} bytes, they must have 4 KiB to 2 GiB",
            options.segment_bytes
        )));
    }
    Ok(options)
}
