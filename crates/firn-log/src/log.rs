//! The log: parallel streams, and one durable point for everything that a commit touches.

use std::sync::{Arc, OnceLock};

use firn_env::{Clock, Disk};
use firn_model::{Error, LogPosition, Result, ShardId};

use crate::append::{Append, StreamId, Tip};
use crate::block;
use crate::commit::{CommitTurn, LedBatch};
use crate::entry::EntryRef;
use crate::follow::{FollowReport, FollowedEntry, Follower};
use crate::options::{LogSetup, SEGMENT_BYTES_MAX, SyncPolicy};
use crate::recover::{ReplayEntry, ReplayReport, StreamFiles};
use crate::segment::{self, SegmentNo};
use crate::stream::Stream;
use crate::sync::{Mutex, RwLock, yield_now};

/// The hold of a stream without followers.
const NO_HOLD: LogPosition = LogPosition(u64::MAX);

/// Totals of all streams since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes above the floors: the work of a recovery. Before [`Log::start`]: the bytes of all
    /// segments on disk.
    pub bytes: u64,
    /// Bytes without entries in closed files that have entries above the floors. The next purge
    /// with higher floors frees these files.
    pub slack_bytes: u64,
    /// Segment files in use.
    pub segments: u64,
    /// Length of all segment files, including those that wait to be recycled.
    pub disk_bytes: u64,
    /// Entries appended.
    pub entries: u64,
    /// Bytes written, headers included.
    pub written_bytes: u64,
    /// Group commits; each is one write.
    pub writes: u64,
    /// Group commits that were synced.
    pub syncs: u64,
    /// Group commits that failed.
    pub failures: u64,
    /// Whether a range above the floors was acknowledged before its sync failed, or was in a file
    /// that was lost: see [`Log::harden`] and [`Log::leave_lost_files`].
    pub has_lost_commits: bool,
}

/// The write-ahead log. Every method may be called by several threads.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    setup: LogSetup,
    /// The streams on disk. Each lock is read-held for a whole replay of its stream.
    found: Vec<RwLock<StreamFiles>>,
    found_bytes: u64,
    streams: OnceLock<Vec<Stream>>,
    /// One position per stream; see [`Log::hold`].
    holds: Mutex<Vec<LogPosition>>,
}

impl Log {
    /// Creates the folders and lists the segments. Call [`Log::replay`] for every stream next.
    /// `is_started`: [`Log::start`] has succeeded with these streams before.
    ///
    /// # Errors
    /// `Invalid` for options out of range, or for segments of a newer version; `Corrupt` for a
    /// segment header that contradicts itself; `Unavailable` when the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        setup: LogSetup,
        is_started: bool,
    ) -> Result<Log> {
        let setup = setup.checked()?;
        let mut found = Vec::with_capacity(setup.stream_count);
        for stream in 0..setup.stream_count as u16 {
            disk.create_dir(&segment::folder(stream))?;
            found.push(StreamFiles::open(&*disk, StreamId(stream), &setup, is_started)?);
        }
        disk.sync_dir("log")?;
        disk.sync_dir("")?;
        let found_bytes = found.iter().map(|found| found.bytes_from(LogPosition(0))).sum();
        let found = found.into_iter().map(RwLock::new).collect();
        let holds = Mutex::new(vec![NO_HOLD; setup.stream_count]);
        Ok(Log { disk, clock, setup, found, found_bytes, streams: OnceLock::new(), holds })
    }

    /// Removes the streams that are left over from a larger [`LogSetup::stream_count`]. `floor`
    /// is the lowest floor of all streams. A caller that changes the count must use floors above
    /// every existing segment ([`Log::ceiling`]).
    ///
    /// # Errors
    /// `Invalid` if a segment of them is above the floor; `Unavailable` when the disk fails.
    pub fn discard_other_streams(&self, floor: LogPosition) -> Result<()> {
        let own = self.setup.stream_count;
        for name in self.disk.list("log")? {
            let Some(stream) = name.parse::<u16>().ok().filter(|&id| usize::from(id) >= own) else {
                continue;
            };
            let found = StreamFiles::open(&*self.disk, StreamId(stream), &self.setup, false)?;
            found.discard(&*self.disk, floor)?;
        }
        Ok(())
    }

    /// A position above every segment of every stream. When all entries of all streams are durable
    /// elsewhere, the log may be opened with another number of streams and this floor.
    ///
    /// # Errors
    /// `Internal` if the log was not started.
    pub fn ceiling(&self) -> Result<LogPosition> {
        let ends = self.streams()?.iter().map(|stream| stream.queue().end().0);
        let end = ends.max().unwrap_or(0).saturating_add(SEGMENT_BYTES_MAX);
        Ok(LogPosition(end.next_multiple_of(block::ALIGN_BYTES as u64)))
    }

    /// The folder of a stream that was started and has no file now, because its disk is not mounted
    /// or a program removed the files. A replay reports it as damage; the stream then begins again.
    pub fn missing_stream(&self) -> Option<String> {
        let missing = self.found.iter().position(|found| found.read().is_missing());
        missing.map(|idx| segment::folder(idx as u16))
    }

    /// Passes every entry of `stream` to `f`, in the order of positions. Threads may replay
    /// different streams, or one stream several times, at the same time. `floor` is the floor of
    /// the last [`Log::purge`]; segments below it are not read. A replay after the first one from
    /// the same floor does not search the tail again and reports no torn one.
    ///
    /// A torn tail is cut off. Damage to durable bytes is listed in the report, and the first entry
    /// behind it has [`ReplayEntry::after_hole`] set.
    ///
    /// # Errors
    /// The errors of `f`; `Unavailable` when the disk fails; `Invalid` for segments above the floor
    /// that were written with another number of streams or shards; `Corrupt` for a valid block that
    /// contradicts itself or has entries of an unknown kind, and for positions out of range. The
    /// log is unchanged then.
    pub fn replay(
        &self,
        stream: StreamId,
        floor: LogPosition,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<ReplayReport> {
        if self.streams.get().is_some() {
            return Err(Error::internal("the log cannot be replayed: it was already started"));
        }
        let found = self
            .found
            .get(usize::from(stream.0))
            .ok_or_else(|| Error::internal(format!("the log has no stream {}", stream.0)))?;
        found.read().replay(floor, f)
    }

    /// Opens a new segment in each stream and enables appends. A stream never continues in an old
    /// segment.
    ///
    /// # Errors
    /// `Internal` if a stream was not replayed; `Unavailable` when the disk fails or is full. It
    /// may then be called again.
    pub fn start(&self) -> Result<()> {
        if self.streams.get().is_some() {
            return Err(Error::internal("the log was already started"));
        }
        let mut streams = Vec::with_capacity(self.found.len());
        let holds = self.holds.lock();
        for ((stream, found), &hold) in (0u16..).zip(&self.found).zip(&*holds) {
            let resume = found.write().resume()?;
            let (id, devices) = (StreamId(stream), (&self.disk, &self.clock));
            streams.push(Stream::start(id, &self.setup, devices, resume, hold)?);
        }
        self.found.iter().for_each(|found| found.write().close());
        self.streams.set(streams).map_err(|_| Error::internal("the log was already started"))
    }

    /// The number of streams.
    pub fn stream_count(&self) -> usize {
        self.setup.stream_count
    }

    /// The stream of a shard. It changes only with the number of streams.
    pub fn stream_of(&self, shard: ShardId) -> StreamId {
        StreamId(shard.0 % self.setup.stream_count as u16)
    }

    /// The current segment of `stream`. A caller that depends on earlier appends compares
    /// [`Tip::failures`]: if the stream fails again, an append to this segment is refused.
    pub fn tip(&self, stream: StreamId) -> Tip {
        self.stream(stream).queue().tip()
    }

    /// Copies `entries` into the stream's buffer. Replay yields all of them or none. The caller
    /// keeps the order: appends of one shard must not race.
    ///
    /// `segment` is the segment that the payloads were encoded for ([`Log::tip`]).
    ///
    /// # Errors
    /// `TooLarge` if they do not fit into one segment; `Unavailable` when a new segment is needed
    /// and the disk is full or fails. Nothing is buffered then.
    ///
    /// # Panics
    /// If the shard of an entry is not one of `stream`.
    pub fn append(
        &self,
        stream: StreamId,
        segment: SegmentNo,
        entries: &[EntryRef<'_>],
    ) -> Result<Append> {
        // Replay refuses others, and no start could pass the entry.
        let counts = (self.setup.stream_count, self.setup.shard_count);
        let is_ours = |entry: &EntryRef<'_>| stream.owns(counts, entry.shard);
        assert!(entries.iter().all(is_ours), "an entry is of another stream than {stream:?}");
        self.stream(stream).append(segment, entries)
    }

    /// The end of the entries that were appended to `stream`.
    pub fn end(&self, stream: StreamId) -> LogPosition {
        self.stream(stream).queue().end()
    }

    /// Returns when everything up to each position is committed under the [`SyncPolicy`]. The first
    /// waiter of a stream writes and syncs for all of its waiters. A commit over several streams
    /// first leads every stream without a leader, syncs them all at once, and then waits for the
    /// others.
    ///
    /// # Errors
    /// `Unavailable` when a write or sync failed. A crash may lose or keep those entries; if the
    /// process lives on, they are not replayed. The other positions of the list are committed.
    pub fn commit(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        let queue = |stream| self.stream(stream).queue();
        if positions.first().is_some_and(|first| queue(first.0).is_memory()) {
            return self.persist(positions);
        }
        let sync = self.setup.options.sync == SyncPolicy::Always;
        if sync && positions.iter().any(|&(stream, position)| queue(stream).should_gather(position))
        {
            yield_now();
        }
        let mut outcome = Ok(());
        let (mut mine, mut open) = (Vec::new(), Vec::new());
        for &(stream, position) in positions {
            match queue(stream).turn(position) {
                CommitTurn::Done(done) => outcome = outcome.and(done),
                CommitTurn::Taken => open.push((stream, position)),
                CommitTurn::Mine(lead) => {
                    mine.push(lead);
                    open.push((stream, position));
                }
            }
        }
        self.lead(mine, sync);
        // The led positions are decided now; this waits for the others.
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

    /// A commit on byte-addressable memory, with one fence for all streams. It syncs under every
    /// policy, because skipping that saves nothing.
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

    /// Writes the batches of several streams, then syncs their files concurrently.
    fn lead(&self, mut leads: Vec<LedBatch<'_>>, sync: bool) {
        let mut outcomes: Vec<Result<()>> = leads.iter_mut().map(LedBatch::write).collect();
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
        let waiters: Vec<_> = decided.map(|(lead, outcome)| lead.finish(outcome, sync)).collect();
        drop(waiters);
    }

    /// The greatest committed position up to `position`: entries of a shard up to it are safe.
    /// After a failed commit of `position` it is below `position`, even if the stream has continued
    /// in another segment since.
    pub fn durable_before(&self, stream: StreamId, position: LogPosition) -> LogPosition {
        self.stream(stream).queue().durable_before(position)
    }

    /// As [`Log::commit`], but durable on return, whatever the policy.
    ///
    /// # Errors
    /// `Unavailable` as for [`Log::commit`], and for a position that was acknowledged before its
    /// sync failed: the log can no longer make it durable. The other positions of the list are
    /// durable.
    pub fn harden(&self, positions: &[(StreamId, LogPosition)]) -> Result<()> {
        if self.setup.options.sync == SyncPolicy::Always {
            return self.commit(positions);
        }
        let harden = |&(stream, position): &_| self.stream(stream).queue().harden(position);
        positions.iter().map(harden).fold(Ok(()), Result::and)
    }

    /// Makes all appended entries durable, whatever the policy. A failed stream does not keep the
    /// others from it.
    ///
    /// # Errors
    /// `Unavailable` as for [`Log::harden`], and while a range above the floors is lost
    /// ([`LogStats::has_lost_commits`]).
    pub fn sync(&self) -> Result<()> {
        self.streams()?.iter().map(Stream::sync).fold(Ok(()), Result::and)
    }

    /// Makes the next segment of each stream ahead, so that the append that fills the current one
    /// need not. For background work; cheap if all exist.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn prepare(&self) -> Result<()> {
        self.streams()?.iter().try_for_each(Stream::prepare)
    }

    /// Continues in new files if other programs have removed, moved or replaced files that a
    /// recovery needs. Their entries count as lost ([`LogStats::has_lost_commits`]) until they are
    /// durable elsewhere. Returns the paths of these files. Without effect if the folder is not
    /// `is_ours`, which is called once a file is missing.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub fn leave_lost_files(&self, is_ours: &dyn Fn() -> bool) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for stream in self.streams()? {
            lost.append(&mut stream.leave_lost_files(is_ours)?);
        }
        Ok(lost)
    }

    /// Drops the segments below the floors, one floor per stream. Everything up to a floor must be
    /// durable elsewhere. Floors never fall. A few files are kept for recycling, the others are
    /// removed.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails; the next call removes the remaining files.
    pub fn purge(&self, floors: &[LogPosition]) -> Result<()> {
        self.streams()?.iter().zip(floors).try_for_each(|(stream, &floor)| stream.purge(floor))
    }

    /// Keeps the entries above these positions, one per stream, for followers, whatever the floors:
    /// the next purges drop no segment that contains one. [`LogPosition`] of `u64::MAX` keeps
    /// nothing. Call it before [`Log::start`] for followers of an earlier start. Of the files that
    /// only followers need, at most `bytes_max` are kept once the log has started, the same part
    /// for each stream; the oldest are dropped first.
    pub fn hold(&self, positions: &[LogPosition], bytes_max: u64) {
        let mut holds = self.holds.lock();
        holds.clear();
        holds.extend_from_slice(positions);
        holds.resize(self.setup.stream_count, NO_HOLD);
        if let Some(streams) = self.streams.get() {
            let part = bytes_max.checked_div(streams.len() as u64).unwrap_or(0);
            streams.iter().zip(&*holds).for_each(|(stream, &hold)| stream.set_hold(hold, part));
        }
    }

    /// Bytes of the segments that only followers need.
    pub fn held_bytes(&self) -> u64 {
        self.streams.get().into_iter().flatten().map(Stream::held_bytes).sum()
    }

    /// Whether closed segments have entries above the floors: a flush would free them.
    pub fn has_closed_segments(&self) -> bool {
        self.streams.get().into_iter().flatten().any(Stream::has_closed_above_floor)
    }

    /// The end of the entries in segments that this process dropped, one position per stream.
    pub fn dropped(&self) -> Vec<LogPosition> {
        self.streams.get().into_iter().flatten().map(Stream::dropped_end).collect()
    }

    /// Reads the stream of `follower` on, up to the end of its committed entries, and passes each
    /// entry above [`Follower::position`] to `f`; and, when it opens a segment, those before it in
    /// the segment, which later payloads may be encoded against. Returns early once `f` returns
    /// `false`. Appends and commits do not wait for it.
    ///
    /// # Errors
    /// Those of `f`; `Unavailable` when the disk fails; `Corrupt` for an entry that this version
    /// cannot read. The next call continues behind the entry, or reads the segment again.
    pub fn follow(
        &self,
        follower: &mut Follower,
        f: &mut dyn FnMut(FollowedEntry<'_>) -> Result<bool>,
    ) -> Result<FollowReport> {
        let streams = self.streams()?;
        let stream = streams.get(usize::from(follower.stream().0));
        let stream = stream.ok_or_else(|| Error::internal("the log has no such stream"))?;
        follower.run(stream, f)
    }

    /// Removes the files that wait to be recycled, to free disk space.
    pub fn remove_spares(&self) {
        self.streams.get().into_iter().flatten().for_each(Stream::remove_spares);
    }

    /// The most bytes that a replay from `floors`, one per stream, has to read.
    pub fn replay_bytes(&self, floors: &[LogPosition]) -> u64 {
        let streams = self.found.iter().zip(floors);
        streams.map(|(found, &floor)| found.read().bytes_from(floor)).sum()
    }

    /// [`LogStats::bytes`] alone, which each insert compares with its limit, without a lock.
    pub fn live_bytes(&self) -> u64 {
        match self.streams.get() {
            None => self.found_bytes,
            Some(streams) => streams.iter().map(Stream::live_bytes).sum(),
        }
    }

    /// Totals of all streams.
    pub fn stats(&self) -> LogStats {
        let Some(streams) = self.streams.get() else {
            return LogStats { bytes: self.found_bytes, ..LogStats::default() };
        };
        let mut stats = LogStats::default();
        for stream in streams {
            let counters = stream.queue().counters();
            stats.bytes += stream.live_bytes();
            stats.slack_bytes += stream.slack_bytes();
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
    /// If the log was not started or has no such stream. That is a bug in the caller, which would
    /// otherwise take entries for durable.
    fn stream(&self, stream: StreamId) -> &Stream {
        let streams = self.streams.get().expect("the log is started before it is used");
        &streams[usize::from(stream.0)]
    }
}
