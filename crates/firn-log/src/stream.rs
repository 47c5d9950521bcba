//! Stream: a queue over a chain of segments. Makes segments ahead, rotates and purges them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_env::{Clock, Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, LogPosition, Result};

use crate::append::{Append, StreamId};
use crate::block;
use crate::commit::Queue;
use crate::entry::EntryRef;
use crate::options::{LogSetup, SyncPolicy};
use crate::queue::PushOutcome;
use crate::segment::{
    self, BlankSegment, CommittedPart, CurrentSegment, Header, PreviousSegment, SegmentNo,
};
use crate::sync::Mutex;

/// Files of one stream that are kept for recycling; more are removed. A flush every few minutes
/// frees about four segments of 32 MiB.
const SPARES_MAX: usize = 4;

/// The first segment after a start has this part of the full length. Each start closes the segment
/// of the process before, which may have only a few entries, and its file stays until the next
/// flush. Opening also zeroes less (measured: two segments of 32 MiB take 20 to 300 ms). The next
/// segment is made in the background.
const START_FRACTION: u64 = 32;
const START_BYTES_MIN: u64 = 8 << 10;

/// One of the log's parallel files.
///
/// Lock order: `next`, then the queue's lock or `spares`; `old` is locked alone. `next` is held
/// during the I/O that makes a segment, so only threads that need that segment wait for it.
#[derive(Debug)]
pub(crate) struct Stream {
    id: StreamId,
    setup: LogSetup,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    queue: Queue,
    next: Mutex<NextSegment>,
    /// Closed segments, oldest first.
    old: Mutex<Vec<OldSegment>>,
    /// Segments below the floor whose files wait to be recycled.
    spares: Mutex<Vec<SegmentNo>>,
    /// The first segment of this process.
    first: SegmentNo,
    /// The end of the replayed entries, and the first position of this process. Nothing is between.
    resumed: (LogPosition, LogPosition),
    /// Replay needs nothing at or below this position.
    floor: AtomicU64,
    /// Followers need everything above this position, whatever the floor.
    hold: AtomicU64,
    /// Limit of [`Stream::held_bytes`].
    held_bytes_max: AtomicU64,
    /// The end of the entries in segments that this process dropped.
    dropped_end: AtomicU64,
    /// Start of the last sync under the interval policy.
    synced_at_ns: AtomicU64,
}

#[derive(Debug)]
struct NextSegment {
    number: SegmentNo,
    blank: Option<BlankSegment>,
    /// Whether the blank records how far the current segment is durable.
    is_proof: bool,
}

/// A closed segment. It may be removed once the floor has reached its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OldSegment {
    pub(crate) number: SegmentNo,
    pub(crate) end: LogPosition,
    /// Length of its file.
    pub(crate) bytes: u64,
    /// Its committed part; `None` if it has no entries that this log can read.
    pub(crate) extent: Option<CommittedPart>,
}

/// The segment that contains a position, for a follower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedSegment {
    pub(crate) extent: CommittedPart,
    /// The stream has continued in a later segment.
    pub(crate) is_closed: bool,
    /// Bytes after the follower's position that were dropped.
    pub(crate) missing_bytes: u64,
}

impl OldSegment {
    /// Whether neither a recovery from `floor` nor a follower at `hold` needs it.
    fn is_free(&self, floor: LogPosition, hold: LogPosition) -> bool {
        self.end <= floor && !self.extent.is_some_and(|extent| extent.has_entries_after(hold))
    }

    fn slack_bytes(&self) -> u64 {
        let used = self.extent.map_or(0, |extent| extent.end.0.saturating_sub(extent.base.0));
        self.bytes.saturating_sub(used)
    }
}

/// The state in which a stream continues after recovery.
#[derive(Debug)]
pub(crate) struct ResumePoint {
    pub(crate) base: LogPosition,
    pub(crate) floor: LogPosition,
    pub(crate) next_number: SegmentNo,
    pub(crate) previous: Option<PreviousSegment>,
    pub(crate) old: Vec<OldSegment>,
}

impl Stream {
    /// Continues after recovery, always in a new segment: a torn one is never written again.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub(crate) fn start(
        id: StreamId,
        setup: &LogSetup,
        (disk, clock): (&Arc<dyn Disk>, &Arc<dyn Clock>),
        resume: ResumePoint,
        hold: LogPosition,
    ) -> Result<Stream> {
        let mut next = NextSegment { number: resume.next_number, blank: None, is_proof: false };
        // Segments below the floor can be recycled before the first purge.
        // Oldest first: the header after a segment names it, and a gap would look like a purge.
        let needed = resume.old.iter().find(|old| !old.is_free(resume.floor, hold));
        let needed = needed.map_or(SegmentNo(u64::MAX), |needed| needed.number);
        let is_spare = |old: &OldSegment, bytes: u64| {
            let is_blank = old.end == LogPosition(0);
            (is_blank || old.number < needed) && old.bytes == bytes
        };
        let (mut spares, mut old): (Vec<OldSegment>, Vec<OldSegment>) =
            resume.old.into_iter().partition(|old| is_spare(old, setup.options.segment_bytes));
        let start_bytes = start_bytes(setup);
        let starter = old.iter().position(|old| is_spare(old, start_bytes));
        let starter = starter.map(|idx| old.remove(idx));
        let more = spares.split_off(spares.len().min(SPARES_MAX));
        let freed = spares.iter().chain(&starter).filter_map(|freed| freed.extent);
        let dropped_end = freed.fold(LogPosition(0), |end, freed| end.max(freed.entries_end()));
        let spares = Mutex::new(spares.iter().map(|spare| spare.number).collect::<Vec<_>>());
        let starter = starter.map(|starter| starter.number);
        let blank = next.take_first(id, setup, (&**disk, &**clock), starter, &spares)?;
        let header =
            Header { base: resume.base, previous: resume.previous, ..header_of(id, setup, &blank) };
        Ok(Stream {
            id,
            setup: setup.clone(),
            disk: Arc::clone(disk),
            clock: Arc::clone(clock),
            queue: Queue::new(format!("stream {}", id.0), header, blank.file, setup.unit_bytes),
            next: Mutex::new(next),
            old: Mutex::new(more.into_iter().chain(old).collect()),
            spares,
            first: blank.number,
            resumed: (resume.previous.map_or(resume.floor, |previous| previous.end), resume.base),
            floor: AtomicU64::new(resume.floor.0),
            hold: AtomicU64::new(hold.0),
            held_bytes_max: AtomicU64::new(u64::MAX),
            dropped_end: AtomicU64::new(dropped_end.0),
            synced_at_ns: AtomicU64::new(clock.monotonic_ns()),
        })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// See [`crate::Log::append`].
    pub(crate) fn append(&self, expected: SegmentNo, entries: &[EntryRef<'_>]) -> Result<Append> {
        match self.queue.append(expected, entries) {
            PushOutcome::At(position) => Ok(Append::At(position)),
            PushOutcome::Rotated => Ok(Append::Rotated),
            PushOutcome::Full => {
                self.check_size(entries)?;
                self.rotate(expected)?;
                Ok(Append::Rotated)
            }
        }
    }

    /// Whether a range above the floor was committed and then lost by a failed sync.
    pub(crate) fn has_lost_commits(&self) -> bool {
        self.queue.lost_through().0 > self.floor.load(Ordering::Relaxed)
    }

    /// See [`crate::Log::sync`].
    pub(crate) fn sync(&self) -> Result<()> {
        self.queue.harden(self.queue.end())?;
        if self.has_lost_commits() { Err(self.queue.lost_error()) } else { Ok(()) }
    }

    /// Whether the interval policy requires a sync now. Returns `true` to one caller per interval.
    pub(crate) fn is_sync_due(&self) -> bool {
        let SyncPolicy::IntervalMs(interval_ms) = self.setup.options.sync else { return false };
        let now_ns = self.clock.monotonic_ns();
        let synced_at_ns = self.synced_at_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(synced_at_ns) >= interval_ms.saturating_mul(1_000_000)
            && self
                .synced_at_ns
                .compare_exchange(synced_at_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Makes the next segment ahead if there is none. Once something of the current segment is
    /// durable, its file records that, as the proof against a loss of the current one.
    pub(crate) fn prepare(&self) -> Result<()> {
        let mut next = self.next.lock();
        let current = self.queue.current();
        let is_proof = current.durable > LogPosition(0);
        match &next.blank {
            None => {
                next.blank = Some(self.take_whole(&mut next)?);
                next.is_proof = is_proof;
            }
            Some(blank) if is_proof && !next.is_proof => {
                let (number, recorded) =
                    (blank.number, segment::record_current(&*blank.file, current));
                if recorded.is_err() {
                    // Its bytes are unknown after a failed sync. Best effort: the next start finds
                    // a file that remains.
                    next.blank = None;
                    let _ = self.disk.remove(&segment::path(self.id.0, number));
                }
                recorded?;
                next.is_proof = true;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Continues in a new segment if another program has removed or replaced files that a recovery
    /// needs. Their entries count as lost until the floor is above them. Returns their paths.
    pub(crate) fn leave_lost_files(&self, is_ours: &dyn Fn() -> bool) -> Result<Vec<String>> {
        let mut next = self.next.lock();
        let lost = self.lost_files()?;
        if lost.is_empty() || !is_ours() {
            return Ok(Vec::new());
        }
        // The folder and the file that was made ahead may be lost, too.
        self.disk.create_dir(&segment::folder(self.id.0))?;
        self.disk.sync_dir("log")?;
        self.disk.sync_dir("")?;
        next.blank = next.blank.take().filter(|blank| blank.file.is_in_place());
        let full = self.queue.tip().segment;
        let end = self.continue_in_next(&mut next, full)?;
        self.queue.lose(LogPosition(self.floor.load(Ordering::Relaxed)), end);
        Ok(lost)
    }

    /// The paths that should lead to the current segment and to closed ones above the floor, and do
    /// not. Of closed ones only the names are examined, and none that is known to be lost.
    fn lost_files(&self) -> Result<Vec<String>> {
        let floor = self.queue.lost_through().0.max(self.floor.load(Ordering::Relaxed));
        let current = self.queue.current();
        let found = self.disk.list(&segment::folder(self.id.0))?;
        let old = self.old.lock();
        let needed = old.iter().filter(|old| old.end.0 > floor).map(|old| old.number);
        let mut lost: Vec<String> = needed
            .map(|number| segment::path(self.id.0, number))
            .filter(|path| !found.iter().any(|name| path.ends_with(&format!("/{name}"))))
            .collect();
        // Before its first write it has nothing to lose, but no later start would find it.
        if !self.queue.is_in_place() {
            lost.push(segment::path(self.id.0, current.number));
        }
        Ok(lost)
    }

    /// Followers need everything above `hold`, in files of up to `bytes_max` in total.
    pub(crate) fn set_hold(&self, hold: LogPosition, bytes_max: u64) {
        self.hold.store(hold.0, Ordering::Relaxed);
        self.held_bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Removes the segments that end at or below `floor` and that no follower needs.
    pub(crate) fn purge(&self, floor: LogPosition) -> Result<()> {
        let floor = self.floor.fetch_max(floor.0, Ordering::Relaxed).max(floor.0);
        self.queue.raise_floor(LogPosition(floor));
        while let Some(oldest) = self.oldest_free(LogPosition(floor)) {
            // Its header must survive a power failure before an older segment leaves. Returns at
            // once if it is durable, as always without a relaxed policy.
            self.queue.harden(self.queue.tail().end)?;
            let dropped = oldest.extent.map_or(0, |extent| extent.entries_end().0);
            self.dropped_end.fetch_max(dropped, Ordering::Relaxed);
            if self.keep_spare(oldest) {
                continue;
            }
            // A crash may bring the removed name back. Replay gets the floor again and skips the
            // file, so the folder is not synced.
            match self.disk.remove(&segment::path(self.id.0, oldest.number)) {
                Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
                _ => self.old.lock().retain(|old| old.number != oldest.number),
            }
        }
        Ok(())
    }

    fn keep_spare(&self, old: OldSegment) -> bool {
        let mut spares = self.spares.lock();
        if spares.len() == SPARES_MAX || old.bytes != self.setup.options.segment_bytes {
            return false;
        }
        spares.push(old.number);
        drop(spares);
        self.old.lock().retain(|other| other.number != old.number);
        true
    }

    /// Bytes above the floor: the work of a recovery.
    pub(crate) fn live_bytes(&self) -> u64 {
        let floor = self.floor.load(Ordering::Relaxed);
        let (replayed_end, base) = self.resumed;
        let replayed = replayed_end.0.saturating_sub(floor);
        replayed + self.queue.appended_end().0.saturating_sub(base.0.max(floor))
    }

    /// Whether a recovery needs a closed segment.
    pub(crate) fn has_closed_above_floor(&self) -> bool {
        let floor = self.floor.load(Ordering::Relaxed);
        self.old.lock().iter().any(|old| old.end.0 > floor)
    }

    /// Bytes behind the entries in the closed files that a recovery needs: a restart leaves them.
    pub(crate) fn slack_bytes(&self) -> u64 {
        let floor = self.floor.load(Ordering::Relaxed);
        let old = self.old.lock();
        let above = old.iter().filter(|old| old.end.0 > floor);
        above.map(OldSegment::slack_bytes).sum()
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.old.lock().len() + 1
    }

    /// Removes the files that wait to be recycled.
    pub(crate) fn remove_spares(&self) {
        let spares = std::mem::take(&mut *self.spares.lock());
        for number in spares {
            // Best effort: the next start finds files that remain.
            let _ = self.disk.remove(&segment::path(self.id.0, number));
        }
    }

    /// Total length of all files, including those that wait to be recycled.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let spare_bytes = self.spares.lock().len() as u64 * self.setup.options.segment_bytes;
        let old_bytes: u64 = self.old.lock().iter().map(|old| old.bytes).sum();
        old_bytes + self.queue.segment_bytes() + spare_bytes
    }

    /// The oldest segment with committed entries after `position`, or the current one.
    pub(crate) fn followed(&self, position: LogPosition) -> FollowedSegment {
        // A rotation holds this lock until the closed segment is in the list.
        let _no_rotation = self.next.lock();
        let current = self.queue.tail();
        let old = self.old.lock();
        let mut closed = old.iter().filter_map(|old| old.extent);
        let found = closed.find(|extent| extent.has_entries_after(position));
        let dropped_end = self.dropped_end.load(Ordering::Relaxed);
        FollowedSegment {
            extent: found.unwrap_or(current),
            is_closed: found.is_some(),
            missing_bytes: dropped_end.saturating_sub(position.0),
        }
    }

    /// Opens the file of a segment for a follower.
    ///
    /// # Errors
    /// `NotFound` if it was purged meanwhile; `Unavailable`.
    pub(crate) fn open_followed(&self, number: SegmentNo) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&segment::path(self.id.0, number), OpenMode::Read)
    }

    /// The end of the entries in segments that this process dropped.
    pub(crate) fn dropped_end(&self) -> LogPosition {
        LogPosition(self.dropped_end.load(Ordering::Relaxed))
    }

    /// Bytes that only followers need: of closed segments at or below the floor.
    pub(crate) fn held_bytes(&self) -> u64 {
        let floor = self.floor.load(Ordering::Relaxed);
        let old = self.old.lock();
        old.iter().filter(|old| old.end.0 <= floor).map(|old| old.bytes).sum()
    }

    /// Before the current segment has its header, the newest one with entries of an earlier process
    /// stays, as the proof that the stream was not lost. Segments of this process stay then, too:
    /// records in unused files may name them.
    fn oldest_free(&self, floor: LogPosition) -> Option<OldSegment> {
        let current = self.queue.tail();
        let mut hold = LogPosition(self.hold.load(Ordering::Relaxed));
        if self.held_bytes() > self.held_bytes_max.load(Ordering::Relaxed) {
            hold = LogPosition(u64::MAX);
        }
        let old = self.old.lock();
        let (oldest, later) = old.split_first()?;
        let is_proof = |old: &OldSegment| {
            let entries_end = old.extent.map_or(0, |extent| extent.entries_end().0);
            old.number < self.first && entries_end > 0
        };
        let is_proven = current.end > current.base || later.iter().any(is_proof);
        (is_proven && oldest.is_free(floor, hold)).then_some(*oldest)
    }

    fn rotate(&self, full: SegmentNo) -> Result<()> {
        let mut next = self.next.lock();
        if self.queue.tip().segment != full {
            return Ok(());
        }
        self.continue_in_next(&mut next, full).map(drop)
    }

    /// Closes the current segment `full`. Returns its end.
    fn continue_in_next(&self, next: &mut NextSegment, full: SegmentNo) -> Result<LogPosition> {
        let blank = self.take_whole(next)?;
        let header = header_of(self.id, &self.setup, &blank);
        let bytes = self.queue.segment_bytes();
        let (extent, end) = self.queue.rotate(header, blank.file);
        self.old.lock().push(OldSegment { number: full, end, bytes, extent: Some(extent) });
        Ok(end)
    }

    fn take_whole(&self, next: &mut NextSegment) -> Result<BlankSegment> {
        let (disk, clock) = (&*self.disk, &*self.clock);
        // The caller holds `next`: the current segment stays current until it is taken.
        let new = (self.setup.options.segment_bytes, Some(self.queue.current()));
        let spares = (&self.spares, self.setup.options.segment_bytes);
        next.take(self.id, (disk, clock), spares, new)
    }

    fn check_size(&self, entries: &[EntryRef<'_>]) -> Result<()> {
        let bytes = block::bytes_max(entries) as u64;
        // As `QueueState::append` for an empty segment, or the append would rotate for ever.
        let head_bytes = segment::HEADER_BYTES as u64 + self.setup.unit_bytes;
        let room = self.setup.options.segment_bytes - head_bytes;
        if bytes > room {
            return Err(Error::too_large(format!(
                "log: an append of {bytes} bytes, expected at most {room}; \
                 send smaller batches or raise the segment size"
            )));
        }
        Ok(())
    }
}

impl NextSegment {
    /// The first segment after a start: the short file `starter` recycled, else a new short one. A
    /// full disk may still have a whole file to recycle.
    fn take_first(
        &mut self,
        id: StreamId,
        setup: &LogSetup,
        (disk, clock): (&dyn Disk, &dyn Clock),
        starter: Option<SegmentNo>,
        spares: &Mutex<Vec<SegmentNo>>,
    ) -> Result<BlankSegment> {
        let new_bytes = start_bytes(setup);
        let short = Mutex::new(starter.into_iter().collect());
        let mut take = |spares, spare_bytes| {
            self.take(id, (disk, clock), (spares, spare_bytes), (new_bytes, None))
        };
        let whole_bytes = setup.options.segment_bytes;
        let is_whole = new_bytes == whole_bytes;
        let first = if is_whole { take(spares, whole_bytes) } else { take(&short, new_bytes) };
        match first {
            Err(_) if !spares.lock().is_empty() => take(spares, whole_bytes),
            first => first,
        }
    }

    /// The segment that was made ahead, else a recycled file of `spares`, which have `spare_bytes`,
    /// else a new file of `new_bytes`.
    /// `current` is the stream's current segment, if there is one yet.
    fn take(
        &mut self,
        id: StreamId,
        (disk, clock): (&dyn Disk, &dyn Clock),
        (spares, spare_bytes): (&Mutex<Vec<SegmentNo>>, u64),
        (new_bytes, current): (u64, Option<CurrentSegment>),
    ) -> Result<BlankSegment> {
        if let Some(blank) = self.blank.take() {
            return Ok(blank);
        }
        loop {
            let number = self.number;
            // Each number is tried once: a failed attempt may have left a file.
            self.number.0 += 1;
            let nonce = nonce(id, number, clock);
            let spare = spares.lock().pop();
            let Some(old) = spare else {
                return segment::create_blank(disk, id.0, number, (new_bytes, nonce), current);
            };
            let new = (number, spare_bytes, nonce);
            match segment::recycle(disk, id.0, old, new, current) {
                Ok(Some(blank)) => return Ok(blank),
                // The file has another length, or the disk fails. Best effort: the next start finds
                // a file that remains.
                Ok(None) | Err(_) => {
                    let _ = disk.remove(&segment::path(id.0, old));
                }
            }
        }
    }
}

/// Length of the first segment after a start.
fn start_bytes(setup: &LogSetup) -> u64 {
    let whole = setup.options.segment_bytes;
    let part = (whole / START_FRACTION).next_multiple_of(START_BYTES_MIN);
    part.max(START_BYTES_MIN).max(2 * setup.unit_bytes).min(whole)
}

/// Distinguishes, as far as 32 bits can, all segments that ever used the same disk region.
fn nonce(id: StreamId, number: SegmentNo, clock: &dyn Clock) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.0.to_le_bytes());
    hasher.update(&number.0.to_le_bytes());
    hasher.update(&clock.now_ms().to_le_bytes());
    hasher.update(&clock.monotonic_ns().to_le_bytes());
    // Blank segments are full of zeros, so 0 cannot be a tag.
    hasher.finalize().max(1)
}

/// The header of a segment that becomes current. [`Stream::start`] or `QueueState::switch` fills in
/// base and predecessor.
fn header_of(id: StreamId, setup: &LogSetup, blank: &BlankSegment) -> Header {
    Header {
        stream: id.0,
        stream_count: setup.stream_count as u16,
        shard_count: setup.shard_count as u16,
        number: blank.number,
        base: LogPosition(0),
        bytes: blank.bytes,
        nonce: blank.nonce,
        is_recycled: blank.is_recycled,
        previous: None,
    }
}
