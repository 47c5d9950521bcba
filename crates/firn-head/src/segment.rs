//! A static segment: the chunks of many groups back to back, groups rising, and a sparse directory.
//!
//! No object per series: every 4th group has a directory entry of 8 bytes, in between a group costs
//! the varints of its step and its chunk's length. A chunk is stored without what the segment knows:
//! its group and its commits read as 0 there.
//!
//! Source: ByteSeries 3.2.2 (static and compressed segments), with our chunks.

use firn_codec::varint::{take_bytes, take_count, take_varint, varint_bytes};
use firn_codec::{Chunk, Effort, GroupColumns, SeqRange, Slots, encode_chunk};
use firn_model::{GroupId, Reservation, Result, TimeRange, encode_varint};
use parking_lot::Mutex;

use crate::payload::Local;

/// Limits of one chunk, far below the codec's: a reader of a short range should not decode a day.
const CHUNK_ENTRIES_MAX: usize = 1 << 16;
const CHUNK_VALUES_MAX: usize = 1 << 22;
/// Chunks per directory entry: 2 bytes each; a lookup skips 2 chunks on average, each a cache miss.
const ENTRY_CHUNKS: usize = 4;

/// Immutable columns of many groups.
pub(crate) struct Segment {
    bytes: Box<[u8]>,
    directory: Box<[Entry]>,
    chunk_count: usize,
    /// What it holds, given back when the last reader lets go.
    pub(crate) held: Mutex<Reservation>,
}

/// The first of up to [`ENTRY_CHUNKS`] chunks and where its step stands.
#[derive(Clone, Copy)]
struct Entry {
    first: Local,
    start: u32,
}

/// Writes a [`Segment`].
pub(crate) struct SegmentBuilder {
    bytes: Vec<u8>,
    directory: Vec<Entry>,
    chunk_count: usize,
    last: Local,
    chunk: Vec<u8>,
    /// Of the values written.
    pub(crate) range: TimeRange,
}

/// A place in a segment's groups.
#[derive(Clone, Default)]
pub(crate) struct SegmentCursor {
    chunk_idx: usize,
    at: usize,
    last: Local,
}

impl SegmentBuilder {
    pub(crate) fn new() -> SegmentBuilder {
        SegmentBuilder {
            bytes: Vec::new(),
            directory: Vec::new(),
            chunk_count: 0,
            last: 0,
            chunk: Vec::new(),
            range: TimeRange::EMPTY,
        }
    }

    /// Adds a group behind all before; an empty one is left out. A group of very many entries gets
    /// several chunks, which do not overlap in time.
    pub(crate) fn add(&mut self, local: Local, mut columns: GroupColumns, effort: Effort) {
        if columns.is_empty() {
            return;
        }
        if columns.entry_count() > CHUNK_ENTRIES_MAX || columns.value_count() > CHUNK_VALUES_MAX {
            let (older, younger) = halves(&columns);
            if !older.is_empty() {
                self.add(local, older, effort);
                self.add(local, younger, effort);
                return;
            }
        }
        debug_assert!(self.chunk_count == 0 || self.last <= local, "groups must rise");
        self.range = self.range.union(columns.time_range());
        columns.seq = SeqRange::default();
        self.chunk.clear();
        encode_chunk(GroupId(0), &columns, effort, &mut self.chunk);
        if self.chunk_count.is_multiple_of(ENTRY_CHUNKS) {
            let start = u32::try_from(self.bytes.len()).expect("a segment stays under 4 GiB");
            self.directory.push(Entry { first: local, start });
            self.last = local;
        }
        encode_varint(u64::from(local - self.last), &mut self.bytes);
        encode_varint(self.chunk.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(&self.chunk);
        self.last = local;
        self.chunk_count += 1;
    }

    /// The segment; what it holds is reserved by the caller.
    pub(crate) fn finish(self, held: Reservation) -> Segment {
        Segment {
            bytes: self.bytes.into(),
            directory: self.directory.into(),
            chunk_count: self.chunk_count,
            held: Mutex::new(held),
        }
    }
}

impl Segment {
    /// Bytes that it holds.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (size_of::<Segment>() + self.bytes.len() + size_of_val(&*self.directory)) as u64
    }

    /// Appends the group's columns of `slots` in `range` to `out`, as from commits `seq`.
    ///
    /// # Errors
    /// `Corrupt` if memory is not what was written: a bug.
    pub(crate) fn read(
        &self,
        local: Local,
        (slots, range): (Slots<'_>, TimeRange),
        seq: SeqRange,
        out: &mut Vec<GroupColumns>,
    ) -> Result<()> {
        let mut cursor = self.seek(local);
        while let Some(chunk) = self.next_of(local, &mut cursor)? {
            let columns = Chunk::open(chunk)?.read(slots, range)?;
            if !columns.is_empty() {
                out.push(GroupColumns { seq, ..columns });
            }
        }
        Ok(())
    }

    /// The time range of the group's chunks.
    pub(crate) fn time_range(&self, local: Local) -> Result<TimeRange> {
        let mut cursor = self.seek(local);
        let mut range = TimeRange::EMPTY;
        while let Some(chunk) = self.next_of(local, &mut cursor)? {
            range = range.union(Chunk::open(chunk)?.time_range());
        }
        Ok(range)
    }

    /// The next group and its chunk.
    pub(crate) fn next(&self, cursor: &mut SegmentCursor) -> Result<Option<(Local, &[u8])>> {
        if cursor.chunk_idx == self.chunk_count {
            return Ok(None);
        }
        if cursor.chunk_idx.is_multiple_of(ENTRY_CHUNKS)
            && let Some(entry) = self.directory.get(cursor.chunk_idx / ENTRY_CHUNKS)
        {
            cursor.last = entry.first;
        }
        let mut input = self.bytes.get(cursor.at..).unwrap_or_default();
        let step = take_varint(&mut input, "segment group")?;
        let len = take_count(&mut input, self.bytes.len(), "segment chunk length")?;
        let chunk = take_bytes(&mut input, len, "segment chunk")?;
        cursor.at += varint_bytes(step) + varint_bytes(len as u64) + len;
        cursor.last += step as Local;
        cursor.chunk_idx += 1;
        Ok(Some((cursor.last, chunk)))
    }

    /// A cursor before the first chunk of `local`, at most [`ENTRY_CHUNKS`] before. O(log chunks).
    fn seek(&self, local: Local) -> SegmentCursor {
        let behind = self.directory.partition_point(|entry| entry.first < local);
        let entry_idx = behind.saturating_sub(1);
        let at = self.directory.get(entry_idx).map_or(0, |entry| entry.start as usize);
        SegmentCursor { chunk_idx: entry_idx * ENTRY_CHUNKS, at, last: 0 }
    }

    /// The next chunk of `local`, if the cursor is before or in its chunks.
    fn next_of(&self, local: Local, cursor: &mut SegmentCursor) -> Result<Option<&[u8]>> {
        loop {
            match self.next(cursor)? {
                Some((found, _)) if found < local => {}
                Some((found, chunk)) if found == local => return Ok(Some(chunk)),
                _ => return Ok(None),
            }
        }
    }
}

/// The columns up to a middle timestamp and those after it; the first are empty if there is only one
/// timestamp.
fn halves(columns: &GroupColumns) -> (GroupColumns, GroupColumns) {
    let range = columns.time_range();
    let longest = columns.batch.times.iter().max_by_key(|times| times.len());
    let middle = match longest.and_then(|times| times.get(times.len().div_ceil(2))) {
        Some(&middle) if middle > range.start => middle,
        _ if range.start < range.end => range.end,
        _ => return (GroupColumns::default(), columns.clone()),
    };
    (
        columns.slice(TimeRange::new(range.start, middle - 1)),
        columns.slice(TimeRange::new(middle, range.end)),
    )
}
