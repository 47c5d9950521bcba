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

/// A larger buffer is given back after its batch.
const SPARE_BYTES_MAX: usize = 4 << 20;

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
    /// Batches so far; while `is_led`, the number of the one in flight.
    pub(crate) batch: u64,
    pub(crate) is_led: bool,
    failed: VecDeque<Failed>,
    pub(crate) counters: Counters,
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

/// Positions above `after` up to `through` did not become durable.
#[derive(Debug)]
struct Failed {
    after: LogPosition,
    through: LogPosition,
    why: Arc<str>,
}

impl State {
    pub(crate) fn new(header: Header, file: Arc<dyn DiskFile>) -> State {
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
            batch: 0,
            is_led: false,
            failed: VecDeque::new(),
            counters: Counters::default(),
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
        if self.is_closed || (self.buffer.len() + block::bytes_max(entries)) as u64 > room {
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

    /// The greatest position up to `position` that was committed without a failure in between.
    pub(crate) fn durable_before(&self, position: LogPosition) -> LogPosition {
        let failed = self.failed.iter().find(|failed| failed.holds(position));
        failed.map_or(self.committed.min(position), |failed| failed.after)
    }

    /// Hands the whole buffer to a leader.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let bytes = self.buffer.take(std::mem::take(&mut self.spare));
        let offset = self.segment.written_bytes;
        self.segment.written_bytes += bytes.len() as u64;
        self.end = self.buffer_end();
        self.in_flight_end = self.end;
        self.batch += 1;
        self.is_led = true;
        Batch {
            bytes,
            file: Arc::clone(&self.segment.file),
            offset,
            place: Place {
                nonce: self.segment.header.nonce,
                position: LogPosition(self.segment.header.base.0 + offset),
            },
            durable: self.durable,
        }
    }

    /// The batch in flight was written, and synced if `synced`.
    pub(crate) fn succeed(&mut self, synced: bool) {
        self.is_led = false;
        self.committed = self.in_flight_end;
        if synced {
            self.durable = self.committed;
        }
        self.counters.writes += 1;
        self.counters.syncs += u64::from(synced);
    }

    /// The batch in flight failed and with it everything behind. Positions jump over it.
    pub(crate) fn fail(&mut self, why: &str) {
        self.is_led = false;
        self.segment.failed_at = Some(Previous {
            number: self.segment.header.number,
            end: self.committed,
            durable: self.durable,
        });
        self.is_closed = true;
        self.buffer.close();
        let through = self.buffer_end();
        self.buffer.clear();
        if self.failed.len() == FAILED_MAX {
            self.failed.pop_front();
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

/// What a leader writes.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    file: Arc<dyn DiskFile>,
    offset: u64,
    place: Place,
    durable: LogPosition,
}

impl Batch {
    /// Seals the blocks, writes them, and syncs if `sync`. Called without the queue's lock.
    pub(crate) fn write(&mut self, sync: bool) -> Result<()> {
        if !self.bytes.is_empty() {
            let head_bytes = if self.offset == 0 { segment::HEADER_BYTES } else { 0 };
            let mut first = self.place;
            first.position.0 += head_bytes as u64;
            block::seal(&mut self.bytes[head_bytes..], first, self.durable);
            self.file.write_at(self.offset, &self.bytes)?;
        }
        if sync { self.file.sync() } else { Ok(()) }
    }
}
