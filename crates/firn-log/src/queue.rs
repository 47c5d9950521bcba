//! A queue's state: what waits, what is in flight, what is committed and what failed. Plain data
//! under the lock of `commit.rs`, which decides who does the work when.

use std::collections::VecDeque;
use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{Error, LogPosition, Result};

use crate::block::{self, BlockBuffer, Place};
use crate::entry::EntryRef;
use crate::segment::{self, Header, Previous, SegmentNo};

/// Failures that are remembered for those who still have to hear of them. Waiters ask within the
/// time of one commit; so many failures take far longer.
const FAILED_MAX: usize = 1024;

/// So many bytes that wait while a batch is being synced are written at once: more than a call into
/// the system costs, less than what many senders bring in one sync.
pub(crate) const AHEAD_BYTES: usize = if cfg!(test) { 16 } else { 16 << 10 };

/// Zeros behind a batch in a file that was used before: they say that nothing follows yet.
pub(crate) const END_BYTES: usize = block::ALIGN_BYTES;

/// A larger buffer is given back after its batch: definitions of new series may take megabytes, rows never take that much.
const SPARE_BYTES_MAX: usize = 512 << 10;

/// Where entries went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Into the buffer; this is the end of the last one.
    At(LogPosition),
    /// Nowhere: another segment than the expected one is current.
    Rotated,
    /// Nowhere: the segment has no room, or it failed.
    Full,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    pub(crate) failures: u64,
}

/// One stream's waiting entries and the segment that they go to.
///
/// `durable <= committed <= in_flight_end <= end`, always.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) segment: Segment,
    /// Takes nothing more: it is full or failed.
    pub(crate) is_closed: bool,
    buffer: BlockBuffer,
    spare: Vec<u8>,
    /// End of all that was appended.
    pub(crate) end: LogPosition,
    /// End of what was handed to a leader.
    pub(crate) in_flight_end: LogPosition,
    /// Written, and synced if the policy wants it: what a commit waits for.
    pub(crate) committed: LogPosition,
    /// Synced.
    pub(crate) durable: LogPosition,
    /// What was committed without a sync lies in here, where one failed: nobody can make it durable any more.
    lost: Lost,
    /// Batches so far; while `is_led`, the number of the one in flight.
    pub(crate) batch: u64,
    pub(crate) is_led: bool,
    /// The batch in flight is written, its sync is on the way.
    is_written: bool,
    /// Somebody writes a part of the next batch. Nobody leads that one before it is written.
    pub(crate) is_ahead: bool,
    /// Why a part of the next batch could not be written, while a batch is in flight.
    ahead_failure: Option<Arc<str>>,
    failed: VecDeque<Failed>,
    pub(crate) counters: Counters,
    /// Threads that are in a commit now.
    callers: u32,
    /// The most of them since the last batch was taken, and before that one.
    crowd: [u32; 2],
    /// Batches end at multiples of this in the file.
    unit_bytes: u64,
}

/// The file that the entries go to.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    file: Arc<dyn DiskFile>,
    /// How much of the file was handed to writes.
    written_bytes: u64,
    /// Set by a failure: what is valid in it.
    failed_at: Option<Previous>,
}

/// Above `after` up to `through`; nothing if both are 0.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    after: LogPosition,
    through: LogPosition,
}

/// Positions above `after` up to `through` did not become durable.
#[derive(Debug)]
struct Failed {
    after: LogPosition,
    through: LogPosition,
    why: Arc<str>,
}

impl State {
    pub(crate) fn new(header: Header, file: Arc<dyn DiskFile>, unit_bytes: u64) -> State {
        let base = header.base;
        let mut state = State {
            segment: Segment::new(header, file),
            is_closed: false,
            buffer: BlockBuffer::default(),
            spare: Vec::new(),
            end: base,
            in_flight_end: base,
            committed: base,
            durable: base,
            lost: Lost::default(),
            batch: 0,
            is_led: false,
            is_written: false,
            is_ahead: false,
            ahead_failure: None,
            failed: VecDeque::new(),
            counters: Counters::default(),
            callers: 0,
            crowd: [0; 2],
            unit_bytes,
        };
        state.begin_segment();
        state
    }

    /// See [`crate::commit::Queue::append`].
    pub(crate) fn append(&mut self, expected: SegmentNo, entries: &[EntryRef<'_>]) -> Pushed {
        if self.segment.header.number != expected {
            return Pushed::Rotated;
        }
        let room = self.segment.header.bytes - self.segment.written_bytes;
        let wanted = (self.buffer.len() + block::bytes_max(entries)) as u64 + self.unit_bytes;
        if self.is_closed || wanted > room {
            return Pushed::Full;
        }
        self.buffer.append(entries);
        self.end = self.buffer_end();
        self.counters.entries += entries.len() as u64;
        Pushed::At(self.end)
    }

    /// Whether everything up to `position` is committed.
    ///
    /// # Errors
    /// `Unavailable` if what ends at `position` failed.
    pub(crate) fn is_committed(&self, position: LogPosition, name: &str) -> Result<bool> {
        match self.failed.iter().find(|failed| failed.holds(position)) {
            Some(failed) => Err(Error::unavailable(format!(
                "log {name}: a write did not become durable, retry: {}",
                failed.why
            ))),
            None => Ok(self.committed >= position),
        }
    }

    /// Whether `position` was committed and may be gone after a crash of the system all the same.
    pub(crate) fn is_lost(&self, position: LogPosition) -> bool {
        self.lost.after < position && position <= self.lost.through
    }

    /// Nothing above it was lost.
    pub(crate) fn lost_through(&self) -> LogPosition {
        self.lost.through
    }

    /// All up to `floor` is kept elsewhere.
    pub(crate) fn keep_elsewhere(&mut self, floor: LogPosition) {
        if self.lost.through <= floor {
            self.lost = Lost::default();
        }
    }

    /// The greatest position up to `position` that was committed without a failure in between.
    pub(crate) fn durable_before(&self, position: LogPosition) -> LogPosition {
        let failed = self.failed.iter().find(|failed| failed.holds(position));
        failed.map_or(self.committed.min(position), |failed| failed.after)
    }

    /// A thread begins to wait for a commit.
    pub(crate) fn enter(&mut self) {
        self.callers += 1;
        self.crowd[0] = self.crowd[0].max(self.callers);
    }

    /// It has what it waited for.
    pub(crate) fn leave(&mut self) {
        self.callers -= 1;
    }

    /// Whether others are likely to come along if the next batch waits for them.
    pub(crate) fn has_company(&self) -> bool {
        self.crowd.iter().any(|&crowd| crowd > 1)
    }

    /// Hands the whole buffer to a leader. What was written ahead is a part of its batch.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let batch = self.take_buffer();
        self.crowd = [self.callers, self.crowd[0]];
        self.in_flight_end = self.end;
        self.batch += 1;
        self.is_led = true;
        self.is_written = false;
        batch
    }

    /// The batch in flight is written: what follows may be written behind it.
    pub(crate) fn written(&mut self) {
        self.is_written = true;
    }

    /// Whether a waiter should write what waits although a batch is in flight.
    pub(crate) fn is_worth_ahead(&self) -> bool {
        let may = self.is_led && self.is_written && !self.is_ahead && self.ahead_failure.is_none();
        may && self.buffer.len() >= AHEAD_BYTES
    }

    /// Hands the whole buffer to somebody who only writes it.
    pub(crate) fn take_ahead(&mut self) -> Batch {
        self.is_ahead = true;
        self.take_buffer()
    }

    /// What was taken ahead is written, or not. Returns whether the stream has failed by it.
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
            place: Place {
                nonce: self.segment.header.nonce,
                position: LogPosition(self.segment.header.base.0 + offset),
            },
            durable: self.durable,
            zeros: if self.segment.header.is_recycled { room.min(END_BYTES as u64) } else { 0 },
        }
    }

    /// Copies all that waits into byte-addressable memory. Returns what is not durable there.
    ///
    /// # Errors
    /// What the device says; the stream has failed then.
    pub(crate) fn write_through(&mut self) -> Result<Written> {
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
        Ok(Written { number, file, offset, len, end: self.end })
    }

    /// What [`State::write_through`] returned is durable, and with it all before.
    pub(crate) fn persisted(&mut self, written: &Written) {
        // Who went on in another segment, or gave this one up, has seen to what was in it.
        let is_current = self.segment.header.number == written.number;
        if is_current && self.segment.failed_at.is_none() {
            self.durable = self.durable.max(written.end);
            self.committed = self.durable;
            self.counters.writes += 1;
            self.counters.syncs += 1;
        }
    }

    /// The batch in flight was written, and synced if `synced`. Returns why what comes after it has
    /// failed already, if it has.
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

    /// The batch in flight failed and with it everything behind. Positions jump over it.
    pub(crate) fn fail(&mut self, why: &str) {
        self.is_led = false;
        self.ahead_failure = None;
        self.segment.failed_at = Some(Previous {
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
            self.lost = Lost { after, through: self.committed };
        }
        if self.failed.len() == FAILED_MAX
            && let Some(oldest) = self.failed.pop_front()
            && let Some(next) = self.failed.front_mut()
        {
            // Who is that late is told that it failed, even if it was in between: never the other way round.
            next.after = oldest.after;
        }
        self.failed.push_back(Failed { after: self.committed, through, why: why.into() });
        // The next position is the first that can succeed again.
        self.end = LogPosition(through.0 + block::ALIGN_BYTES as u64);
        self.in_flight_end = self.end;
        self.committed = self.end;
        self.durable = self.end;
        self.counters.failures += 1;
    }

    /// Takes a written buffer's room back.
    pub(crate) fn keep_spare(&mut self, batch: Batch) {
        self.counters.bytes += batch.bytes.len() as u64;
        if batch.bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare = batch.bytes;
        }
    }

    /// Goes on in another segment; the current one is durable or failed. Fills in where it stands.
    pub(crate) fn switch(&mut self, mut next: Header, file: Arc<dyn DiskFile>) {
        assert_eq!(self.durable, self.end, "a segment was left with bytes that are not durable");
        next.previous = self.segment.as_previous(self.end);
        next.base = self.end;
        self.segment = Segment::new(next, file);
        self.is_closed = false;
        self.begin_segment();
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

    /// What the next segment says about this one, which ended at `end`. One that failed before
    /// anything in it was committed counts as never used: then its own predecessor is named.
    fn as_previous(&self, end: LogPosition) -> Option<Previous> {
        match self.failed_at {
            None => Some(Previous { number: self.header.number, end, durable: end }),
            Some(failed) if failed.end > self.header.base => Some(failed),
            Some(_) => self.header.previous,
        }
    }
}

impl Failed {
    fn holds(&self, position: LogPosition) -> bool {
        self.after < position && position <= self.through
    }
}

/// Bytes that are in byte-addressable memory, but perhaps in a processor's cache still. They may be of several threads:
/// who needs its own durable writes the lines of all before back, so nobody waits for another to do it.
#[derive(Debug)]
pub(crate) struct Written {
    number: SegmentNo,
    file: Arc<dyn DiskFile>,
    offset: u64,
    len: u64,
    end: LogPosition,
}

impl Written {
    /// Begins to make them durable; a [`Written::fence`] behind this ends it.
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

/// What a leader writes.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    number: SegmentNo,
    file: Arc<dyn DiskFile>,
    offset: u64,
    place: Place,
    durable: LogPosition,
    /// So many are written behind it.
    zeros: u64,
}

impl Batch {
    /// Seals the blocks and writes them. Called without the queue's lock.
    pub(crate) fn write(&mut self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let head_bytes = if self.offset == 0 { segment::HEADER_BYTES } else { 0 };
        let mut first = self.place;
        first.position.0 += head_bytes as u64;
        block::seal(&mut self.bytes[head_bytes..], first, self.durable);
        // What an older segment left there would look like what a crash tore.
        self.bytes.resize(self.bytes.len() + self.zeros as usize, 0);
        self.file.write_at(self.offset, &self.bytes)
    }

    /// The segment that it goes to.
    pub(crate) fn number(&self) -> SegmentNo {
        self.number
    }

    /// The file that is to be synced after the write.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }
}
