//! A static segment: the chunks of many groups back to back, groups rising, and a sparse directory.
//!
//! There is no object per series. Every 4th chunk has a directory entry of 8 bytes; in between, a
//! chunk costs the varints of its group's step and of its length. Chunks are *runs*
//! ([`firn_codec::encode_run`]): they omit the fields that the segment stores once, which is a
//! third of a lone series' small chunk.
//!
//! A segment made from an arena holds static runs of about 8 to 32 entries: the columns of a group
//! aligned entry by entry, each decodable alone. A segment merged from several holds compressed
//! chunks, packed harder.
//!
//! Source: ByteSeries, section 3.2.2 (static and compressed segments); Heracles, section 3.1
//! (tuples aligned across the columns of a group). The chunk format is our own.

use std::sync::Arc;

use firn_codec::varint::{take_bytes, take_count, take_varint};
use firn_codec::{
    Chunk, Effort, GroupColumns, MemberColumn, SeqRange, Slots, encode_lone_run, encode_run,
};
use firn_model::{Reservation, Result, Slot, TimeRange, Timestamp, encode_varint};
use parking_lot::Mutex;

use crate::arena::{DecodeMeter, ReadBuffers};
use crate::payload::LocalGroup;
use crate::pool::{BLOCK_BYTES, BlockPool, PAGE_BLOCKS, Stretch};

/// Limits of one chunk, far below the codec's: a reader of a short range should not decode a day.
const CHUNK_ENTRIES_MAX: usize = 1 << 16;
const CHUNK_VALUES_MAX: usize = 1 << 22;
/// Chunks per directory entry: 2 bytes each. A lookup skips 2 chunks on average, each a cache miss.
const ENTRY_CHUNKS: usize = 4;
/// Directory entries that a lookup scans before it searches the whole directory.
const ENTRIES_NEAR: usize = 8;
/// A segment up to this size has memory of its own instead of a block. Deletes that follow each
/// other keep the few rows between them in segments of their own, one per shard and delete.
const SMALL_BYTES_MAX: usize = BLOCK_BYTES / 4;

/// Immutable columns of many groups.
pub(crate) struct Segment {
    /// No timestamp is before this.
    base: Timestamp,
    bytes: StretchBytes,
    directory: Box<[DirectoryEntry]>,
    chunk_count: usize,
}

/// Bytes in stretches of blocks, addressed as one sequence. No chunk spans two stretches. Released,
/// with their reservation, by the last reader.
struct StretchBytes {
    /// Each with its end.
    stretches: Vec<(u32, Stretch)>,
    pool: Arc<BlockPool>,
    held: Mutex<Reservation>,
}

/// The first of up to [`ENTRY_CHUNKS`] chunks and the offset of its step.
#[derive(Clone, Copy)]
struct DirectoryEntry {
    first: LocalGroup,
    start: u32,
}

/// Writes a [`Segment`].
pub(crate) struct SegmentBuilder {
    base: Timestamp,
    bytes: StretchBytes,
    /// The segment, while it is small.
    small: Vec<u8>,
    /// Bytes of all stretches, filled or not.
    room: usize,
    /// Bytes written.
    len: usize,
    directory: Vec<DirectoryEntry>,
    chunk_count: usize,
    last: LocalGroup,
    head: Vec<u8>,
    chunk: Vec<u8>,
    /// The range of the written values.
    pub(crate) range: TimeRange,
}

/// A position on a chunk of a segment, or behind the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentCursor {
    chunk_idx: usize,
    local: LocalGroup,
    /// The chunk's bytes.
    start: usize,
    end: usize,
}

impl SegmentBuilder {
    /// For columns without a timestamp before `base`. Takes memory from `pool` and reserves it in
    /// `held`, which is empty, from the budget as far as it lasts.
    pub(crate) fn new(base: Timestamp, pool: Arc<BlockPool>, held: Reservation) -> SegmentBuilder {
        SegmentBuilder {
            base,
            bytes: StretchBytes { stretches: Vec::new(), pool, held: Mutex::new(held) },
            small: Vec::new(),
            room: 0,
            len: 0,
            directory: Vec::new(),
            chunk_count: 0,
            last: 0,
            head: Vec::new(),
            chunk: Vec::new(),
            range: TimeRange::EMPTY,
        }
    }

    /// Adds a group behind all previous ones; an empty group is omitted. A group of very many
    /// entries gets several chunks, which do not overlap in time.
    pub(crate) fn add(&mut self, local: LocalGroup, columns: GroupColumns, effort: Effort) {
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
        self.range = self.range.union(columns.time_range());
        self.chunk.clear();
        encode_run(self.base, &columns, effort, &mut self.chunk);
        self.add_chunk(local);
    }

    /// As [`SegmentBuilder::add`] for a lone series.
    pub(crate) fn add_lone(
        &mut self,
        local: LocalGroup,
        times: &[Timestamp],
        values: &[f64],
        effort: Effort,
    ) {
        let chunks = times.chunks(CHUNK_ENTRIES_MAX).zip(values.chunks(CHUNK_ENTRIES_MAX));
        for (times, values) in chunks {
            let range = times.first().zip(times.last()).map(|(&a, &b)| TimeRange::new(a, b));
            self.range = self.range.union(range.unwrap_or(TimeRange::EMPTY));
            self.chunk.clear();
            encode_lone_run(self.base, times, values, effort, &mut self.chunk);
            self.add_chunk(local);
        }
    }

    /// Adds the encoded chunk behind all previous ones.
    fn add_chunk(&mut self, local: LocalGroup) {
        debug_assert!(self.chunk_count == 0 || self.last <= local, "groups must rise");
        if self.chunk_count.is_multiple_of(ENTRY_CHUNKS) {
            let start = u32::try_from(self.len).expect("a segment stays under 4 GiB");
            self.directory.push(DirectoryEntry { first: local, start });
            self.last = local;
        }
        self.head.clear();
        encode_varint(u64::from(local - self.last), &mut self.head);
        encode_varint(self.chunk.len() as u64, &mut self.head);
        self.append();
        self.last = local;
        self.chunk_count += 1;
    }

    /// Appends head and chunk to one stretch.
    fn append(&mut self) {
        let need = self.head.len() + self.chunk.len();
        if self.bytes.stretches.is_empty() && self.len + need <= SMALL_BYTES_MAX {
            self.small.extend_from_slice(&self.head);
            self.small.extend_from_slice(&self.chunk);
            self.len += need;
            return;
        }
        if self.room < self.len + need {
            self.close_stretch();
            let small = std::mem::take(&mut self.small);
            let least = small.len() + need;
            // Each as long as all before it, so that there are few.
            let wanted = self.len.clamp(least, least.max(PAGE_BLOCKS * BLOCK_BYTES));
            let StretchBytes { stretches, pool, held } = &mut self.bytes;
            let mut stretch = pool.take(least, wanted, held.get_mut());
            stretch.bytes_mut()[..small.len()].copy_from_slice(&small);
            self.room += stretch.bytes().len() - small.len();
            stretches.push((0, stretch));
        }
        let (end, stretch) = self.bytes.stretches.last_mut().expect("one was made");
        let at = stretch.bytes().len() - (self.room - self.len);
        let (head, chunk) = stretch.bytes_mut()[at..at + need].split_at_mut(self.head.len());
        head.copy_from_slice(&self.head);
        chunk.copy_from_slice(&self.chunk);
        self.len += need;
        *end = u32::try_from(self.len).expect("a segment stays under 4 GiB");
    }

    /// Releases the unfilled blocks of the last stretch.
    fn close_stretch(&mut self) {
        let StretchBytes { stretches, pool, held } = &mut self.bytes;
        if let Some((_, stretch)) = stretches.last_mut() {
            let filled = stretch.bytes().len() - (self.room - self.len);
            if let Some(rest) = stretch.cut_behind(filled) {
                let of_rest = held.get_mut().split(rest.bytes().len() as u64);
                pool.release(rest, of_rest);
            }
        }
        self.room = self.len;
    }

    /// The segment.
    pub(crate) fn finish(mut self) -> Segment {
        self.close_stretch();
        let StretchBytes { stretches, pool, held } = &mut self.bytes;
        if !self.small.is_empty() {
            stretches.push((self.small.len() as u32, pool.take_copy(&self.small, held.get_mut())));
        }
        stretches.shrink_to_fit();
        let segment = Segment {
            base: self.base,
            bytes: self.bytes,
            directory: self.directory.into(),
            chunk_count: self.chunk_count,
        };
        let mut held = segment.held().lock();
        let missing = segment.heap_bytes().saturating_sub(held.bytes());
        held.take(missing);
        drop(held);
        segment
    }
}

impl StretchBytes {
    /// The bytes from `start` to the end of its stretch.
    #[inline]
    fn from(&self, start: usize) -> &[u8] {
        let idx = match self.stretches.len() {
            0 | 1 => 0,
            _ => self.stretches.partition_point(|(end, _)| *end as usize <= start),
        };
        let base = idx.checked_sub(1).map_or(0, |before| self.stretches[before].0 as usize);
        let Some((end, stretch)) = self.stretches.get(idx) else { return &[] };
        stretch.bytes().get(start - base..*end as usize - base).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.stretches.last().map_or(0, |(end, _)| *end as usize)
    }

    fn heap_bytes(&self) -> usize {
        let blocks = self.stretches.iter().map(|(_, one)| one.bytes().len()).sum::<usize>();
        blocks + self.stretches.capacity() * size_of::<(u32, Stretch)>()
    }
}

impl Drop for StretchBytes {
    fn drop(&mut self) {
        let held = self.held.get_mut();
        for (_, stretch) in self.stretches.drain(..) {
            let of_stretch = held.split(stretch.bytes().len() as u64);
            self.pool.release(stretch, of_stretch);
        }
    }
}

impl Segment {
    /// The number of chunks.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// The reservation of the segment.
    pub(crate) fn held(&self) -> &Mutex<Reservation> {
        &self.bytes.held
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (size_of::<Segment>() + self.bytes.heap_bytes() + size_of_val(&*self.directory)) as u64
    }

    /// Appends the columns of `slots` in `range` of the chunks of `local` from `cursor` on to
    /// `out`, as from commits `seq`. Counts in `buffers` the bytes that it reads and decodes.
    ///
    /// # Errors
    /// `Corrupt` if the memory is malformed: a bug. As [`DecodeMeter::charge`].
    pub(crate) fn read(
        &self,
        local: LocalGroup,
        mut cursor: SegmentCursor,
        (slots, range): (Slots<'_>, TimeRange),
        seq: SeqRange,
        out: &mut Vec<GroupColumns>,
        buffers: &mut ReadBuffers,
    ) -> Result<()> {
        while let Some(chunk) = self.chunk_of(local, &cursor) {
            if range.overlaps(Chunk::time_range_of_run(chunk, self.base)?) {
                let chunk = self.open(chunk)?;
                let estimate = chunk.decoded_bytes_of(slots, range);
                buffers.meter.charge(estimate)?;
                let columns = chunk.read_touching(slots, range, &mut buffers.touched)?;
                buffers.meter.settle(estimate, columns.heap_bytes());
                if !columns.is_empty() {
                    out.push(GroupColumns { seq, ..columns });
                }
            }
            self.advance(&mut cursor)?;
        }
        Ok(())
    }

    /// As [`Segment::read`] for one member, appended to `out`; `false` if a chunk is not later than
    /// the last sample.
    pub(crate) fn append_one(
        &self,
        local: LocalGroup,
        mut cursor: SegmentCursor,
        (slot, range): (Slot, TimeRange),
        out: &mut MemberColumn,
        meter: &mut DecodeMeter,
    ) -> Result<bool> {
        while let Some(chunk) = self.chunk_of(local, &cursor) {
            if range.overlaps(Chunk::time_range_of_run(chunk, self.base)?) {
                let chunk = self.open(chunk)?;
                let estimate = chunk.decoded_bytes_of(Slots::Some(&[slot]), range);
                meter.charge(estimate)?;
                let before = out.times.len();
                if !chunk.append_one(slot, range, out)? {
                    return Ok(false);
                }
                let count = out.times.len().saturating_sub(before);
                meter.settle(estimate, count * (size_of::<Timestamp>() + size_of::<f64>()));
            }
            self.advance(&mut cursor)?;
        }
        Ok(true)
    }

    /// Removes from `left` the members of those chunks of `local` from `cursor` on that overlap
    /// `range`.
    pub(crate) fn take_present(
        &self,
        local: LocalGroup,
        mut cursor: SegmentCursor,
        range: TimeRange,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        while let Some(chunk) = self.chunk_of(local, &cursor).filter(|_| !left.is_empty()) {
            if range.overlaps(Chunk::time_range_of_run(chunk, self.base)?) {
                self.open(chunk)?.take_members(left);
            }
            self.advance(&mut cursor)?;
        }
        Ok(())
    }

    /// The time range of the chunks of `local` from `cursor` on.
    pub(crate) fn time_range(
        &self,
        local: LocalGroup,
        mut cursor: SegmentCursor,
    ) -> Result<TimeRange> {
        let mut range = TimeRange::EMPTY;
        while let Some(chunk) = self.chunk_of(local, &cursor) {
            range = range.union(Chunk::time_range_of_run(chunk, self.base)?);
            self.advance(&mut cursor)?;
        }
        Ok(range)
    }

    /// Opens a chunk of this segment.
    pub(crate) fn open<'a>(&self, chunk: &'a [u8]) -> Result<Chunk<'a>> {
        Chunk::open_run(chunk, self.base)
    }

    /// A cursor on the first chunk.
    pub(crate) fn first(&self) -> Result<SegmentCursor> {
        self.at_entry(0)
    }

    /// The group and the bytes of the chunk at the cursor; `None` behind the last chunk.
    pub(crate) fn get(&self, cursor: &SegmentCursor) -> Option<(LocalGroup, &[u8])> {
        if cursor.chunk_idx >= self.chunk_count {
            return None;
        }
        let chunk = self.bytes.from(cursor.start).get(..cursor.end - cursor.start)?;
        Some((cursor.local, chunk))
    }

    /// Moves to the next chunk.
    pub(crate) fn advance(&self, cursor: &mut SegmentCursor) -> Result<()> {
        let next = SegmentCursor { chunk_idx: cursor.chunk_idx + 1, start: cursor.end, ..*cursor };
        *cursor = self.load(next)?;
        Ok(())
    }

    /// A cursor on the first chunk of `local`, or at the position where it would be. With `near`,
    /// the end of an earlier lookup, a group not far ahead is found by a few steps; otherwise the
    /// lookup costs O(log chunks).
    pub(crate) fn seek(
        &self,
        local: LocalGroup,
        near: Option<SegmentCursor>,
    ) -> Result<SegmentCursor> {
        // A lookup leaves its cursor on the first chunk of its group. A cursor behind the last
        // chunk keeps the group of the last chunk.
        let is_ahead = |near: &SegmentCursor| {
            near.local < local || (near.local == local && near.chunk_idx < self.chunk_count)
        };
        let ahead = near.filter(is_ahead);
        let mut cursor = match ahead {
            None => self.search(local)?,
            Some(near) => {
                let entries = self.directory.get(near.chunk_idx / ENTRY_CHUNKS + 1..);
                let steps = entries.unwrap_or_default().iter().take(ENTRIES_NEAR);
                match steps.take_while(|entry| entry.first < local).count() {
                    0 => near,
                    ENTRIES_NEAR => self.search(local)?,
                    steps => self.at_entry(near.chunk_idx / ENTRY_CHUNKS + steps)?,
                }
            }
        };
        while cursor.chunk_idx < self.chunk_count && cursor.local < local {
            self.advance(&mut cursor)?;
        }
        Ok(cursor)
    }

    /// At most [`ENTRY_CHUNKS`] chunks before the first one of `local`.
    fn search(&self, local: LocalGroup) -> Result<SegmentCursor> {
        let behind = self.directory.partition_point(|entry| entry.first < local);
        self.at_entry(behind.saturating_sub(1))
    }

    fn at_entry(&self, entry_idx: usize) -> Result<SegmentCursor> {
        let chunk_idx = entry_idx * ENTRY_CHUNKS;
        let start = self.directory.get(entry_idx).map_or(0, |entry| entry.start as usize);
        self.load(SegmentCursor { chunk_idx, local: 0, start, end: start })
    }

    /// Decodes the fields before the chunk at `cursor.start`. `cursor.local` is the group of the
    /// previous chunk.
    fn load(&self, mut cursor: SegmentCursor) -> Result<SegmentCursor> {
        if cursor.chunk_idx >= self.chunk_count {
            return Ok(SegmentCursor { chunk_idx: self.chunk_count, ..cursor });
        }
        if cursor.chunk_idx.is_multiple_of(ENTRY_CHUNKS)
            && let Some(entry) = self.directory.get(cursor.chunk_idx / ENTRY_CHUNKS)
        {
            cursor.local = entry.first;
        }
        let all = self.bytes.from(cursor.start);
        let mut input = all;
        cursor.local += take_varint(&mut input, "segment group")? as LocalGroup;
        let len = take_count(&mut input, self.bytes.len(), "segment chunk length")?;
        cursor.start += all.len() - input.len();
        cursor.end = cursor.start + take_bytes(&mut input, len, "segment chunk")?.len();
        Ok(cursor)
    }

    fn chunk_of(&self, local: LocalGroup, cursor: &SegmentCursor) -> Option<&[u8]> {
        self.get(cursor).filter(|(found, _)| *found == local).map(|(_, chunk)| chunk)
    }
}

/// The columns up to a middle timestamp and those after it. The first are empty if there is only
/// one timestamp.
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

#[cfg(test)]
mod tests {
    use firn_model::{Budget, ColumnBatch, Pool, Slot};
    use proptest::prelude::*;

    use super::*;

    /// Some groups have more than a block.
    fn segment(locals: &[LocalGroup]) -> Segment {
        let budget = Budget::unlimited();
        let blocks = Arc::new(BlockPool::new(&budget));
        let mut builder = SegmentBuilder::new(0, Arc::clone(&blocks), budget.empty(Pool::Head));
        for &local in locals {
            let count = if local.is_multiple_of(50) { 900 } else { 3 + local % 40 };
            let times = (0..count).map(|idx| i64::from(local) * 10 + i64::from(idx)).collect();
            let values = (0..count).map(|idx| f64::from(local) + f64::from(idx).sin()).collect();
            let batch = ColumnBatch::of_one(Slot(0), times, values);
            builder.add(local, GroupColumns { batch, ..GroupColumns::default() }, Effort::Fast);
        }
        let segment = builder.finish();
        assert_eq!(segment.held().lock().bytes(), segment.heap_bytes());
        let blocks = blocks.usage();
        assert!(blocks.allocated_bytes - blocks.free_bytes <= segment.heap_bytes());
        segment
    }

    proptest! {
        /// Groups with several chunks occur several times. Lookups come in any order, many of them
        /// rising.
        #[test]
        fn a_lookup_from_any_cursor_ends_at_the_first_chunk_of_its_group(
            mut locals in prop::collection::vec(0..300u32, 0..200),
            lookups in prop::collection::vec((0..310u32, any::<bool>()), 1..60),
        ) {
            locals.sort_unstable();
            let segment = segment(&locals);
            let (mut near, mut last) = (None, 0);
            for (local, rises) in lookups {
                let local = if rises { last + local % 20 } else { local };
                let mut cursor = segment.seek(local, near).unwrap();
                near = Some(cursor);
                last = local;
                let rest: Vec<LocalGroup> = std::iter::from_fn(|| {
                    let found = segment.get(&cursor).map(|(local, _)| local)?;
                    segment.advance(&mut cursor).unwrap();
                    Some(found)
                })
                .collect();
                let behind = locals.partition_point(|&other| other < local);
                prop_assert_eq!(&rest, &locals[behind..]);
            }
        }
    }
}
