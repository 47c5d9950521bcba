//! The state of a queue: waiting, in flight, committed and failed positions. Plain data under the
//! lock of `commit.rs`, which decides which thread does the work.

use std::collections::VecDeque;
use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{Error, LogPosition, Result};

use crate::block::{self, BlockAddress, BlockBuffer};
use crate::entry::EntryRef;
use crate::segment::{self, CommittedPart, CurrentSegment, Header, PreviousSegment, SegmentNo};

/// The most failures that are remembered for late waiters. A waiter returns within the time of one
/// commit; this many failures take far longer.
const FAILED_MAX: usize = 1024;

/// While a batch is synced, this many waiting bytes are written ahead: more than a system call
/// costs, less than many senders append during one sync.
pub(crate) const AHEAD_BYTES: usize = if cfg!(test) { 16 } else { 16 << 10 };

/// Zeros after each batch in a recycled file. They mark the end of the segment.
pub(crate) const END_BYTES: usize = block::ALIGN_BYTES;

/// A larger buffer is released after its batch. Definitions of new series may need megabytes, rows
/// never do.
const SPARE_BYTES_MAX: usize = 512 << 10;

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// Buffered; this is the end of the last entry.
    At(LogPosition),
    /// Refused: another segment than the expected one is current.
    Rotated,
    /// Refused: the segment is full, or it failed.
    Full,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    pub(crate) failures: u64,
}

/// The waiting entries of one stream and the segment that receives them.
///
/// Always `durable <= committed <= in_flight_end <= end`.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) segment: Segment,
    /// The segment accepts no more entries: it is full or it failed.
    pub(crate) is_closed: bool,
    buffer: BlockBuffer,
    spare: Vec<u8>,
    /// End of the appended entries.
    pub(crate) end: LogPosition,
    /// End of the entries that a leader has taken.
    pub(crate) in_flight_end: LogPosition,
    /// Written, and synced if the policy requires it. A commit waits for this.
    pub(crate) committed: LogPosition,
    /// Synced.
    pub(crate) durable: LogPosition,
    /// The range that was committed without a sync before a sync failed, or in a file
    /// that another program removed. The log can no longer make it durable.
    lost: LostRange,
    /// Number of batches. While `is_led`, the number of the batch in flight.
    pub(crate) batch: u64,
    pub(crate) is_led: bool,
    /// The batch in flight is written and is being synced.
    is_written: bool,
    /// A thread is writing a part of the next batch. That batch gets no leader before the write
    /// ends.
    pub(crate) is_ahead: bool,
    /// Why writing a part of the next batch failed while a batch was in flight.
    ahead_failure: Option<Arc<str>>,
    failed: VecDeque<FailedRange>,
    pub(crate) counters: QueueCounters,
    /// Threads that are inside a commit now.
    callers: u32,
    /// Peaks of `callers`: since the last batch was taken, and before it.
    caller_peaks: [u32; 2],
    /// Batches end at multiples of this in the file.
    unit_bytes: u64,
}

/// The file that receives the entries.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    file: Arc<dyn DiskFile>,
    /// Bytes of the file that were passed to writes.
    written_bytes: u64,
    /// Set by a failure: the valid range of this segment.
    failed_at: Option<PreviousSegment>,
}

/// Positions above `after` up to `through`; empty if both are 0.
#[derive(Clone, Copy, Debug, Default)]
struct LostRange {
    after: LogPosition,
    through: LogPosition,
}

/// Positions above `after` up to `through` did not become durable.
#[derive(Debug)]
struct FailedRange {
    after: LogPosition,
    through: LogPosition,
    why: Arc<str>,
}

impl QueueState {
    pub(crate) fn new(header: Header, file: Arc<dyn DiskFile>, unit_bytes: u64) -> QueueState {
        let base = header.base;
        let mut state = QueueState {
            segment: Segment::new(header, file),
            is_closed: false,
            buffer: BlockBuffer::default(),
            spare: Vec::new(),
            end: base,
            in_flight_end: base,
            committed: base,
            durable: base,
            lost: LostRange::default(),
            batch: 0,
            is_led: false,
            is_written: false,
            is_ahead: false,
            ahead_failure: None,
            failed: VecDeque::new(),
            counters: QueueCounters::default(),
            callers: 0,
            caller_peaks: [0; 2],
            unit_bytes,
        };
        state.begin_segment();
        state
    }

    /// See [`crate::commit::Queue::append`].
    pub(crate) fn append(&mut self, expected: SegmentNo, entries: &[EntryRef<'_>]) -> PushOutcome {
        if self.segment.header.number != expected {
            return PushOutcome::Rotated;
        }
        let room = self.segment.header.bytes - self.segment.written_bytes;
        let wanted = (self.buffer.len() + block::bytes_max(entries)) as u64 + self.unit_bytes;
        if self.is_closed || wanted > room {
            return PushOutcome::Full;
        }
        self.buffer.append(entries);
        self.end = self.buffer_end();
        self.counters.entries += entries.len() as u64;
        PushOutcome::At(self.end)
    }

    /// Whether everything up to `position` is committed.
    ///
    /// # Errors
    /// `Unavailable` if the entry that ends at `position` failed.
    pub(crate) fn is_committed(&self, position: LogPosition, name: &str) -> Result<bool> {
        match self.failed.iter().find(|failed| failed.holds(position)) {
            Some(failed) => Err(Error::unavailable(format!(
                "log {name}: a write is not durable: {}; retry it",
                failed.why
            ))),
            None => Ok(self.committed >= position),
        }
    }

    /// Whether `position` was committed, but a power loss may still lose it.
    pub(crate) fn is_lost(&self, position: LogPosition) -> bool {
        self.lost.after < position && position <= self.lost.through
    }

    /// Everything above `floor` and up to `through` was committed, and a restart will not find it.
    pub(crate) fn lose(&mut self, floor: LogPosition, through: LogPosition) {
        self.lost = LostRange { after: floor, through };
    }

    /// Upper end of the lost range. Nothing above it is lost.
    pub(crate) fn lost_through(&self) -> LogPosition {
        self.lost.through
    }

    /// Everything up to `floor` is durable elsewhere, so losses up to there no longer count.
    pub(crate) fn raise_floor(&mut self, floor: LogPosition) {
        if self.lost.through <= floor {
            self.lost = LostRange::default();
        }
    }

    /// The greatest committed position up to `position`: below it if a failed range contains it.
    pub(crate) fn durable_before(&self, position: LogPosition) -> LogPosition {
        let failed = self.failed.iter().find(|failed| failed.holds(position));
        failed.map_or(self.committed.min(position), |failed| failed.after)
    }

    /// A thread enters a commit.
    pub(crate) fn enter_commit(&mut self) {
        self.callers += 1;
        self.caller_peaks[0] = self.caller_peaks[0].max(self.callers);
    }

    /// The thread leaves the commit.
    pub(crate) fn leave_commit(&mut self) {
        self.callers -= 1;
    }

    /// Whether other threads are likely to join the next batch if it waits for them.
    pub(crate) fn has_concurrent_commits(&self) -> bool {
        self.caller_peaks.iter().any(|&peak| peak > 1)
    }

    /// Hands the whole buffer to a leader. The batch includes bytes that were written ahead.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let batch = self.take_buffer();
        self.caller_peaks = [self.callers, self.caller_peaks[0]];
        self.in_flight_end = self.end;
        self.batch += 1;
        self.is_led = true;
        self.is_written = false;
        batch
    }

    /// The batch in flight is written. Later entries may now be written after it.
    pub(crate) fn mark_written(&mut self) {
        self.is_written = true;
    }

    /// Whether a waiter should write the waiting entries while a batch is in flight.
    pub(crate) fn should_write_ahead(&self) -> bool {
        let may = self.is_led && self.is_written && !self.is_ahead && self.ahead_failure.is_none();
        may && self.buffer.len() >= AHEAD_BYTES
    }

    /// Hands the whole buffer to a thread that writes but does not sync it.
    pub(crate) fn take_ahead(&mut self) -> Batch {
        self.is_ahead = true;
        self.take_buffer()
    }

    /// Records the outcome of a write ahead. Returns whether it failed the stream.
    pub(crate) fn end_ahead(&mut self, number: SegmentNo, outcome: &Result<()>) -> bool {
        self.is_ahead = false;
        let is_current = self.segment.header.number == number && self.segment.failed_at.is_none();
        match outcome {
            Err(error) if is_current && self.is_led => {
                self.ahead_failure = Some(error.to_string().into());
                false
            }
            Err(error) if is_current => {
                self.fail(&error.to_string());
                true
            }
            _ => false,
        }
    }

    fn take_buffer(&mut self) -> Batch {
        let offset = self.segment.written_bytes;
        self.buffer.pad(offset, self.unit_bytes);
        let bytes = self.buffer.take(std::mem::take(&mut self.spare));
        self.segment.written_bytes += bytes.len() as u64;
        self.end = self.buffer_end();
        let room = self.segment.header.bytes - self.segment.written_bytes;
        Batch {
            bytes,
            number: self.segment.header.number,
            file: Arc::clone(&self.segment.file),
            offset,
            address: BlockAddress {
                nonce: self.segment.header.nonce,
                position: LogPosition(self.segment.header.base.0 + offset),
            },
            durable: self.durable,
            zeros: if self.segment.header.is_recycled { room.min(END_BYTES as u64) } else { 0 },
        }
    }

    /// Copies all waiting entries into byte-addressable memory. Returns the range that is not
    /// durable yet.
    ///
    /// # Errors
    /// The device's error; the stream has then failed.
    pub(crate) fn write_through(&mut self) -> Result<UnfencedWrite> {
        let mut batch = self.take_buffer();
        self.in_flight_end = self.end;
        if let Err(error) = batch.write() {
            self.fail(&error.to_string());
            return Err(error);
        }
        let (number, file) = (batch.number, Arc::clone(&batch.file));
        let offset = self.durable.0 - self.segment.header.base.0;
        let len = self.segment.written_bytes + batch.zeros - offset;
        self.keep_spare(batch);
        Ok(UnfencedWrite { number, file, offset, len, end: self.end })
    }

    /// The range of [`QueueState::write_through`] is durable, and with it everything before.
    pub(crate) fn persisted(&mut self, written: &UnfencedWrite) {
        // After a rotation or a failure, the thread that caused it has already accounted for the
        // old segment.
        let is_current = self.segment.header.number == written.number;
        if is_current && self.segment.failed_at.is_none() {
            self.durable = self.durable.max(written.end);
            self.committed = self.durable;
            self.counters.writes += 1;
            self.counters.syncs += 1;
        }
    }

    /// The batch in flight was written, and synced if `synced`. Returns why the entries after it
    /// have already failed, if they have.
    pub(crate) fn succeed(&mut self, synced: bool) -> Option<Arc<str>> {
        self.is_led = false;
        self.committed = self.in_flight_end;
        if synced {
            self.durable = self.committed;
        }
        self.counters.writes += 1;
        self.counters.syncs += u64::from(synced);
        self.ahead_failure.take()
    }

    /// The batch in flight and everything after it failed. Positions skip the failed range.
    pub(crate) fn fail(&mut self, why: &str) {
        self.is_led = false;
        self.ahead_failure = None;
        self.segment.failed_at = Some(PreviousSegment {
            number: self.segment.header.number,
            end: self.committed,
            durable: self.durable,
        });
        self.is_closed = true;
        self.buffer.close();
        let through = self.buffer_end();
        self.buffer.clear();
        if self.durable < self.committed {
            let is_first = self.lost.through == LogPosition(0);
            let after = if is_first { self.durable } else { self.lost.after };
            self.lost = LostRange { after, through: self.committed };
        }
        if self.failed.len() == FAILED_MAX
            && let Some(oldest) = self.failed.pop_front()
            && let Some(next) = self.failed.front_mut()
        {
            // A very late waiter may see its commit reported as failed although it succeeded, never
            // the reverse.
            next.after = oldest.after;
        }
        self.failed.push_back(FailedRange { after: self.committed, through, why: why.into() });
        // The next position is the first one that can succeed again.
        self.end = LogPosition(through.0 + block::ALIGN_BYTES as u64);
        self.in_flight_end = self.end;
        self.committed = self.end;
        self.durable = self.end;
        self.counters.failures += 1;
    }

    /// Keeps the memory of a written batch for reuse.
    pub(crate) fn keep_spare(&mut self, batch: Batch) {
        self.counters.bytes += batch.bytes.len() as u64;
        if batch.bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare = batch.bytes;
        }
    }

    /// Continues in another segment; the current one is durable or failed. Fills in base and
    /// predecessor.
    pub(crate) fn switch(&mut self, mut next: Header, file: Arc<dyn DiskFile>) {
        assert_eq!(self.durable, self.end, "a rotation before all bytes were durable");
        next.previous = self.segment.as_previous(self.end);
        next.base = self.end;
        self.segment = Segment::new(next, file);
        self.is_closed = false;
        self.begin_segment();
    }

    /// The current segment, and the part of it that a reader may read.
    pub(crate) fn tail(&self) -> CommittedPart {
        let Segment { header, failed_at, .. } = &self.segment;
        // After a failure, the committed position is beyond the valid bytes.
        let end = failed_at.map_or(self.committed, |failed| failed.end);
        CommittedPart { number: header.number, base: header.base, end: end.max(header.base) }
    }

    /// The current segment, and how far it is durable.
    pub(crate) fn current(&self) -> CurrentSegment {
        let Segment { header, failed_at, .. } = &self.segment;
        let durable = failed_at.map_or(self.durable, |failed| failed.durable);
        let durable = if durable > header.base { durable } else { LogPosition(0) };
        CurrentSegment { number: header.number, durable }
    }

    fn begin_segment(&mut self) {
        let spare = self.buffer.take(Vec::new());
        self.buffer = BlockBuffer::starting_with(&self.segment.header.encode(), spare);
        self.end = self.buffer_end();
    }

    fn buffer_end(&self) -> LogPosition {
        let offset = self.segment.written_bytes + self.buffer.len() as u64;
        LogPosition(self.segment.header.base.0 + offset)
    }
}

impl Segment {
    fn new(header: Header, file: Arc<dyn DiskFile>) -> Segment {
        Segment { header, file, written_bytes: 0, failed_at: None }
    }

    pub(crate) fn file(&self) -> Arc<dyn DiskFile> {
        Arc::clone(&self.file)
    }

    /// The record of this segment, which ended at `end`, for the header of the next one. A segment
    /// that failed before any commit counts as never used: the record then names its own
    /// predecessor.
    fn as_previous(&self, end: LogPosition) -> Option<PreviousSegment> {
        match self.failed_at {
            None => Some(PreviousSegment { number: self.header.number, end, durable: end }),
            Some(failed) if failed.end > self.header.base => Some(failed),
            Some(_) => self.header.previous,
        }
    }
}

impl FailedRange {
    fn holds(&self, position: LogPosition) -> bool {
        self.after < position && position <= self.through
    }
}

/// Bytes in byte-addressable memory that may still be in a processor cache. They may include writes
/// of other threads: a thread that needs its own durable bytes writes back every earlier cache
/// line, so no thread waits for another.
#[derive(Debug)]
pub(crate) struct UnfencedWrite {
    number: SegmentNo,
    file: Arc<dyn DiskFile>,
    offset: u64,
    len: u64,
    end: LogPosition,
}

impl UnfencedWrite {
    /// Starts to make them durable; a following [`UnfencedWrite::fence`] completes it.
    pub(crate) fn write_back(&self) {
        if let Some(memory) = self.file.memory() {
            memory.write_back(self.offset, self.len);
        }
    }

    /// See [`firn_env::Memory::fence`].
    pub(crate) fn fence(&self) {
        if let Some(memory) = self.file.memory() {
            memory.fence();
        }
    }
}

/// The bytes of one group commit.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    number: SegmentNo,
    file: Arc<dyn DiskFile>,
    offset: u64,
    address: BlockAddress,
    durable: LogPosition,
    /// Number of zeros written after the bytes.
    zeros: u64,
}

impl Batch {
    /// Seals the blocks and writes them. Called without the queue's lock.
    pub(crate) fn write(&mut self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let head_bytes = if self.offset == 0 { segment::HEADER_BYTES } else { 0 };
        let mut first = self.address;
        first.position.0 += head_bytes as u64;
        block::seal(&mut self.bytes[head_bytes..], first, self.durable);
        // Bytes of an older segment would otherwise look like a torn write.
        self.bytes.resize(self.bytes.len() + self.zeros as usize, 0);
        self.file.write_at(self.offset, &self.bytes)
    }

    /// The segment of the batch.
    pub(crate) fn number(&self) -> SegmentNo {
        self.number
    }

    /// The file to sync after the write.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }
}
