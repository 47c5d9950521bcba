//! The log: streams side by side, one durable point for everything that a commit touches.

use std::sync::{Arc, OnceLock};

use firn_env::{Clock, Disk};
use firn_model::{Error, LogPosition, Result, ShardId};

use crate::block;
use crate::commit::{Lead, Turn};
use crate::entry::EntryRef;
use crate::recover::{FoundStream, ReplayEntry, ReplayReport};
use crate::segment::{self, SegmentNo};
use crate::stream::Stream;
use crate::sync::{Mutex, yield_now};

/// One of the log's parallel streams. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// When it is on disk. Nothing acknowledged is ever lost.
    #[default]
    Always,
    /// When the operating system has it; synced when a commit finds the last sync older than this, and by whoever calls
    /// [`Log::sync`] so often. A power loss costs what was written in that time, and while the sync behind it ran.
    IntervalMs(u64),
    /// When the operating system has it. A killed process loses nothing, a power loss up to the
    /// segment's size.
    Never,
}

/// Segments are no longer than this.
const SEGMENT_BYTES_MAX: u64 = 1 << 31;

/// How a log is laid out and how safe it is.
#[derive(Clone, Debug)]
pub struct LogSetup {
    /// Parallel streams, 1 to 65,535. The count may change once all segments are below the floor.
    pub stream_count: usize,
    /// Shards, 1 to 65,535. Fixed when a database is created.
    pub shard_count: usize,
    /// Bytes that the device writes as a whole, a power of two from 8 bytes to 64 KiB. Each group
    /// commit ends at a multiple of it, so that no unit with committed bytes is written again. 8
    /// packs tightly and relies on the device to keep the bytes of a sector that a write does not
    /// cover.
    pub unit_bytes: u64,
    /// Settings that may differ from one start to the next.
    pub options: LogOptions,
}

/// Settings of a log that may differ from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Length of a segment file: disk space is used in steps of this, and one append must fit.
    /// At least 4 KiB.
    pub segment_bytes: u64,
    /// When a commit is acknowledged.
    pub sync: SyncPolicy,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 32 << 20, sync: SyncPolicy::Always }
    }
}

/// Where appends to a stream go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// The segment that payloads have to be encoded for.
    pub segment: SegmentNo,
    /// How often the stream has failed before: what was appended before a failure may be missing after a crash although
    /// what comes behind it is there.
    pub failures: u64,
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// Into the stream; this is the end of its last entry, to be given to [`Log::commit`].
    At(LogPosition),
    /// Nowhere: the stream goes on in another segment. Ask [`Log::tip`] and encode again.
    Rotated,
}

/// Numbers about the log, all streams together, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes above the floors: what a recovery would have to replay. Before [`Log::start`]: the
    /// bytes of the segments found.
    pub bytes: u64,
    /// Segment files in use.
    pub segments: u64,
    /// Length of all segment files, with those that wait to be written again.
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
    /// Whether something above the floors was acknowledged before its sync, which failed: see [`Log::harden`].
    pub has_lost_commits: bool,
}

/// The write-ahead log. All calls may come from several threads.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    setup: LogSetup,
    /// As found on disk; each lock is held for the whole of a stream's replay.
    found: Vec<Mutex<FoundStream>>,
    found_bytes: u64,
    streams: OnceLock<Vec<Stream>>,
}

impl Log {
    /// Makes the folders and finds the segments. Next comes [`Log::replay`] for every stream.
    ///
    /// # Errors
    /// `Invalid` for options out of range, or if the segments on disk were written by a newer version;
    /// `Unavailable` when the disk fails.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, setup: LogSetup) -> Result<Log> {
        let setup = check_setup(setup)?;
        let mut found = Vec::with_capacity(setup.stream_count);
        for stream in 0..setup.stream_count as u16 {
            disk.create_dir(&segment::folder(stream))?;
            found.push(FoundStream::open(&*disk, StreamId(stream), &setup)?);
        }
        disk.sync_dir("log")?;
        disk.sync_dir("")?;
        let found_bytes = found.iter().map(|found| found.bytes_from(LogPosition(0))).sum();
        let found = found.into_iter().map(Mutex::new).collect();
        Ok(Log { disk, clock, setup, found, found_bytes, streams: OnceLock::new() })
    }

    /// Removes what is left of streams that there were before [`LogSetup::stream_count`] was changed.
    /// `floor` is the lowest of all streams' floors; whoever changes the count makes floors that no
    /// segment of before reaches ([`Log::ceiling`]).
    ///
    /// # Errors
    /// `Invalid` if something in them lies above the floor; `Unavailable` when the disk fails.
    pub fn discard_other_streams(&self, floor: LogPosition) -> Result<()> {
        let own = self.setup.stream_count;
        for name in self.disk.list("log")? {
            let Some(stream) = name.parse::<u16>().ok().filter(|&id| usize::from(id) >= own) else {
                continue;
            };
            let found = FoundStream::open(&*self.disk, StreamId(stream), &self.setup)?;
            found.discard(&*self.disk, floor)?;
        }
        Ok(())
    }

    /// A position above everything that any stream's segments can have. Where all streams' entries are
    /// kept elsewhere, the log may be opened with another number of streams and this as their floor.
    ///
    /// # Errors
    /// `Internal` if the log was not started.
    pub fn ceiling(&self) -> Result<LogPosition> {
        let ends = self.streams()?.iter().map(|stream| stream.queue().end().0);
        let end = ends.max().unwrap_or(0).saturating_add(SEGMENT_BYTES_MAX);
        Ok(LogPosition(end.next_multiple_of(block::ALIGN_BYTES as u64)))
    }

    /// Gives every entry of `stream` to `f`, in the order of positions. Streams may be replayed at
    /// the same time by several threads. `floor` is what the last [`Log::purge`] was given:
    /// segments that lie below it are not read.
    ///
    /// A tail that a crash tore is cut. Damage to what was durable once is told in the report, and
    /// the first entry behind it has [`ReplayEntry::after_hole`] set.
    ///
    /// # Errors
    /// What `f` returns; `Unavailable` when the disk fails; `Invalid` for segments above the floor that were
    /// written with other counts of streams or shards; `Corrupt` for valid entries of a kind
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
            let resume = found.lock().resume()?;
            let id = StreamId(stream);
            streams.push(Stream::start(id, &self.setup, &self.disk, &self.clock, resume)?);
        }
        self.found.iter().for_each(|found| found.lock().close());
        self.streams.set(streams).map_err(|_| Error::internal("the log was started before"))
    }

    /// The number of streams.
    pub fn stream_count(&self) -> usize {
        self.setup.stream_count
    }

    /// The stream of a shard, the same as long as the count of streams is.
    pub fn stream_of(&self, shard: ShardId) -> StreamId {
        StreamId(shard.0 % self.setup.stream_count as u16)
    }

    /// Where appends to `stream` go now. Who depends on earlier appends looks at [`Tip::failures`]: an append to this
    /// segment is refused if the stream fails once more before it.
    pub fn tip(&self, stream: StreamId) -> Tip {
        self.stream(stream).queue().tip()
    }

    /// Copies `entries` into the stream's buffer. They stay together: replay gives all of them or
    /// none. The caller keeps the order: appends of one shard must not race.
    ///
    /// `segment` is the one that payloads were encoded for ([`Log::tip`]).
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
    /// nobody leads, all of them synced at once, before it waits for others.
    ///
    /// # Errors
    /// `Unavailable` when a write or sync failed: those entries may or may not be there after a
    /// crash, and are not there if the process lives on. The others in the list are committed.
    pub fn commit(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        let queue = |stream| self.stream(stream).queue();
        if positions.first().is_some_and(|first| queue(first.0).is_memory()) {
            return self.persist(positions);
        }
        let sync = self.setup.options.sync == SyncPolicy::Always;
        if sync && positions.iter().any(|&(stream, position)| queue(stream).gathers(position)) {
            yield_now();
        }
        let mut outcome = Ok(());
        let (mut mine, mut open) = (Vec::new(), Vec::new());
        for &(stream, position) in positions {
            match queue(stream).turn(position) {
                Turn::Done(done) => outcome = outcome.and(done),
                Turn::Taken => open.push((stream, position)),
                Turn::Mine(lead) => {
                    mine.push(lead);
                    open.push((stream, position));
                }
            }
        }
        self.lead(mine, sync);
        // Those that were led here are decided now, the others are waited for.
        for (stream, position) in open {
            outcome = outcome.and(queue(stream).commit(position, sync));
        }
        for &(stream, position) in positions {
            if self.stream(stream).is_sync_due() {
                outcome = outcome.and(queue(stream).harden(position));
            }
        }
        outcome
    }

    /// A commit on byte-addressable memory, whatever the policy: it is no dearer than to leave it out. One fence for
    /// all streams.
    fn persist(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        let (mut outcome, mut written) = (Ok(()), Vec::with_capacity(positions.len()));
        for &(stream, position) in positions {
            let queue = self.stream(stream).queue();
            match queue.write_through(position) {
                Ok(one) => written.extend(one.map(|one| (queue, one, position))),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        written.iter().for_each(|(_, one, _)| one.write_back());
        if let Some((_, last, _)) = written.last() {
            last.fence();
        }
        for (queue, one, position) in &written {
            outcome = outcome.and(queue.persisted(one, *position));
        }
        outcome
    }

    /// Writes the batches of several streams, then syncs all of their files side by side.
    fn lead(&self, mut leads: Vec<Lead<'_>>, sync: bool) {
        let mut outcomes: Vec<Result<()>> = leads.iter_mut().map(Lead::write).collect();
        if sync {
            let written: Vec<usize> =
                (0..leads.len()).filter(|&idx| outcomes[idx].is_ok()).collect();
            let files: Vec<_> = written.iter().map(|&idx| Arc::clone(leads[idx].file())).collect();
            let synced = match files.as_slice() {
                [file] => vec![file.sync()],
                files => self.disk.sync_files(files),
            };
            written.into_iter().zip(synced).for_each(|(idx, synced)| outcomes[idx] = synced);
        }
        let decided = leads.into_iter().zip(outcomes);
        let wakes: Vec<_> = decided.map(|(lead, outcome)| lead.finish(outcome, sync)).collect();
        drop(wakes);
    }

    /// The greatest position up to `position` such that nothing between the two was committed: what
    /// of a shard's entries up to `position` is safe. Lower than `position` after a failed commit,
    /// also when the stream has gone on in another segment since.
    pub fn durable_before(&self, stream: StreamId, position: LogPosition) -> LogPosition {
        self.stream(stream).queue().durable_before(position)
    }

    /// As [`Log::commit`], but when this returns it is durable whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Log::commit`], and for a position that was acknowledged before its sync, which failed: the log
    /// cannot make that durable any more. The others in the list are durable.
    pub fn harden(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        if self.setup.options.sync == SyncPolicy::Always {
            return self.commit(positions);
        }
        let harden = |&(stream, position): &_| self.stream(stream).queue().harden(position);
        positions.iter().map(harden).fold(Ok(()), Result::and)
    }

    /// Makes everything that was appended durable, whatever the policy. A stream that fails keeps no other one from it.
    ///
    /// # Errors
    /// `Unavailable` as for [`Log::harden`], and for as long as anything above the floors is lost ([`LogStats::has_lost_commits`]).
    pub fn sync(&self) -> Result<()> {
        self.streams()?.iter().map(Stream::sync).fold(Ok(()), Result::and)
    }

    /// Makes the next segment of each stream where there is none yet, so that the append that fills
    /// the current one does not have to. Meant for background work; cheap when there is nothing to do.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn prepare(&self) -> Result<()> {
        self.streams()?.iter().try_for_each(Stream::prepare)
    }

    /// Forgets the segments that lie below the floors, one floor for each stream: everything up to a
    /// floor is kept elsewhere, durably. Floors never fall. A few of the files are kept to be
    /// written again, the others are removed.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails; what was not removed is removed by the next call.
    pub fn purge(&self, floors: &[LogPosition]) -> Result<()> {
        self.streams()?.iter().zip(floors).try_for_each(|(stream, &floor)| stream.purge(floor))
    }

    /// Removes the files that wait to be written again: others need the room.
    pub fn remove_spares(&self) {
        self.streams.get().into_iter().flatten().for_each(Stream::remove_spares);
    }

    /// Bytes that a replay from `floors` on, one per stream, has to read, as far as that is known before.
    pub fn replay_bytes(&self, floors: &[LogPosition]) -> u64 {
        let streams = self.found.iter().zip(floors);
        streams.map(|(found, &floor)| found.lock().bytes_from(floor)).sum()
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
            stats.disk_bytes += stream.disk_bytes();
            stats.entries += counters.entries;
            stats.written_bytes += counters.bytes;
            stats.writes += counters.writes;
            stats.syncs += counters.syncs;
            stats.failures += counters.failures;
            stats.has_lost_commits |= stream.has_lost_commits();
        }
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

fn check_setup(setup: LogSetup) -> Result<LogSetup> {
    let is_count = |count: usize| (1..=usize::from(u16::MAX)).contains(&count);
    if !is_count(setup.stream_count) || !is_count(setup.shard_count) {
        return Err(Error::invalid(format!(
            "log: {} streams and {} shards, each must be 1 to 65,535",
            setup.stream_count, setup.shard_count
        )));
    }
    let unit_bytes = setup.unit_bytes;
    if !unit_bytes.is_power_of_two() || !(8..=64 << 10).contains(&unit_bytes) {
        return Err(Error::invalid(format!(
            "log: units of {unit_bytes} bytes, they must be a power of two from 8 to 65,536"
        )));
    }
    if setup.options.segment_bytes < 2 * unit_bytes {
        return Err(Error::invalid(format!(
            "log: segments of {} bytes hold no two units of {unit_bytes}; make them larger",
            setup.options.segment_bytes
        )));
    }
    if !(4 << 10..=SEGMENT_BYTES_MAX).contains(&setup.options.segment_bytes) {
        return Err(Error::invalid(format!(
            "log: segments of {} bytes, they must have 4 KiB to 2 GiB",
            setup.options.segment_bytes
        )));
    }
    Ok(setup)
}
