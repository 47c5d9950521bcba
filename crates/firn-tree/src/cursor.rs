//! Walks one table from its first group to its last with little memory: the reader of merges.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use firn_codec::{Chunk, GroupColumns, Slice};
use firn_model::{Error, GroupId, Reservation, Result};

use crate::block::{Block, Walk, unpack};
use crate::store::{Read, Store};
use crate::suffix::{Suffix, block_range};
use crate::table::Table;

/// The buffer of an [`EncodedGroup`] that is kept for the next group.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Reads ahead some blocks at a time, past the cache: a merge reads everything once.
pub(crate) struct TableCursor {
    store: Arc<Store>,
    table: Arc<Table>,
    suffix: Arc<Suffix>,
    read_ahead_bytes: u64,
    /// The next block that is not in `run`.
    next_block: usize,
    /// Blocks `run_first..next_block`.
    run: Arc<[u8]>,
    /// Blocks of `run` that are not in `chunks` yet: offset in the table, range in the run.
    blocks: VecDeque<(u64, Range<usize>)>,
    /// The payload of the present block if it is packed, else empty.
    unpacked: Vec<u8>,
    /// Chunks of the present block: group, range in `unpacked` or, if that is empty, in the run.
    chunks: VecDeque<(GroupId, Range<usize>)>,
    block_offset: u64,
    /// The group of the last chunk that was loaded.
    last_group: GroupId,
}

impl TableCursor {
    /// At the first group.
    pub(crate) fn open(
        store: &Arc<Store>,
        table: &Arc<Table>,
        read_ahead_bytes: u64,
    ) -> Result<TableCursor> {
        let suffix = store.suffix(table)?;
        let mut cursor = TableCursor {
            store: Arc::clone(store),
            table: Arc::clone(table),
            suffix,
            read_ahead_bytes,
            next_block: 0,
            run: Arc::from([]),
            blocks: VecDeque::new(),
            unpacked: Vec::new(),
            chunks: VecDeque::new(),
            block_offset: 0,
            last_group: GroupId(0),
        };
        cursor.advance()?;
        Ok(cursor)
    }

    /// The group that is next, `None` at the end.
    pub(crate) fn group(&self) -> Option<GroupId> {
        self.chunks.front().map(|(group, _)| *group)
    }

    /// Takes all chunks of the next group if it is `group`, as the input `idx` of a merge.
    ///
    /// # Errors
    /// `Busy` without memory for them; `Corrupt` or `Unavailable` if the table cannot be read.
    pub(crate) fn take_group(
        &mut self,
        group: GroupId,
        idx: usize,
        out: &mut EncodedGroup,
    ) -> Result<()> {
        while let Some((next, place)) = self.chunks.front().cloned()
            && next == group
        {
            let held = if self.unpacked.is_empty() { &*self.run } else { &*self.unpacked };
            let bytes = held.get(place).unwrap_or_default();
            let place = out.append(bytes)?;
            out.chunks.push(EncodedChunk { place, idx, block_offset: self.block_offset });
            self.chunks.pop_front();
            self.advance()?;
        }
        Ok(())
    }

    /// Loads blocks until a chunk is there or the table ends.
    fn advance(&mut self) -> Result<()> {
        while self.chunks.is_empty() {
            if self.blocks.is_empty() && !self.read_run()? {
                return Ok(());
            }
            let Some((offset, place)) = self.blocks.pop_front() else { return Ok(()) };
            self.block_offset = offset;
            let bytes = self.run.get(place.clone()).unwrap_or_default();
            let file = self.table.path();
            let unpacked = unpack(file, offset, self.table.record.salt, bytes);
            let payload = unpacked.map_err(|e| self.damage(e))?;
            let start = match &payload {
                Cow::Borrowed(payload) => place.end - payload.len(),
                Cow::Owned(_) => 0,
            };
            let (chunks, last_group) = (&mut self.chunks, &mut self.last_group);
            let walked = Block::open(file, offset, &payload).and_then(|block| {
                block.for_ranges(|group, chunk| {
                    if group < *last_group {
                        return Err(Error::corrupt("", 0, "groups of a table fall"));
                    }
                    *last_group = group;
                    chunks.push_back((group, start + chunk.start..start + chunk.end));
                    Ok(Walk::On)
                })
            });
            walked.map_err(|e| self.damage(e))?;
            self.unpacked = match payload {
                Cow::Borrowed(_) => Vec::new(),
                Cow::Owned(payload) => payload,
            };
        }
        Ok(())
    }

    /// Reads the next blocks, at least one; `false` at the end of the table.
    fn read_run(&mut self) -> Result<bool> {
        let entries = &self.suffix.blocks[self.next_block..];
        let Some(first) = entries.first() else { return Ok(false) };
        let mut bytes = 0;
        let count = entries
            .iter()
            .take_while(|entry| {
                let fits = bytes == 0 || bytes + u64::from(entry.bytes) <= self.read_ahead_bytes;
                bytes += if fits { u64::from(entry.bytes) } else { 0 };
                fits
            })
            .count();
        let read = Read { table: &self.table, offset: first.offset, bytes };
        let run = self.store.read(&[read]).pop();
        self.run = run.unwrap_or_else(|| Err(Error::internal("a read returned nothing")))?;
        let base = block_range(first).start;
        self.blocks = entries[..count]
            .iter()
            .map(|entry| {
                let place = block_range(entry);
                (entry.offset, place.start - base..place.end - base)
            })
            .collect();
        self.next_block += count;
        Ok(true)
    }

    fn damage(&self, error: Error) -> Error {
        self.damage_at(self.block_offset, error)
    }

    fn damage_at(&self, block_offset: u64, error: Error) -> Error {
        self.table.note(Error::corrupt(self.table.path(), block_offset, error.what()))
    }
}

/// The chunks of one group from all inputs of a merge, encoded: decoded they may have 100 times
/// the size.
pub(crate) struct EncodedGroup {
    bytes: Vec<u8>,
    chunks: Vec<EncodedChunk>,
    /// Of `bytes`.
    memory: Reservation,
}

struct EncodedChunk {
    place: Range<usize>,
    /// The index of the input and the offset of its block.
    idx: usize,
    block_offset: u64,
}

impl EncodedGroup {
    pub(crate) fn new(memory: Reservation) -> EncodedGroup {
        EncodedGroup { bytes: Vec::new(), chunks: Vec::new(), memory }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.chunks.clear();
        // A large group must not hold memory during the following ones.
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
            self.memory.shrink(u64::MAX);
        }
    }

    /// Returns the place of `chunk` in the buffer.
    fn append(&mut self, chunk: &[u8]) -> Result<Range<usize>> {
        let (start, capacity) = (self.bytes.len(), self.bytes.capacity());
        let end = start + chunk.len();
        if end > capacity {
            let next = end.max(2 * capacity);
            // Both buffers exist while the bytes are moved.
            self.memory.cover((capacity + next) as u64)?;
            self.bytes.reserve_exact(next - start);
        }
        self.bytes.extend_from_slice(chunk);
        Ok(start..end)
    }

    /// The chunks, opened, in the order in which they were taken from `inputs`.
    ///
    /// # Errors
    /// `Corrupt` for a damaged chunk.
    pub(crate) fn open(&self, inputs: &[TableCursor]) -> Result<Vec<Chunk<'_>>> {
        let open = |(idx, chunk): (usize, &EncodedChunk)| {
            let bytes = self.bytes.get(chunk.place.clone()).unwrap_or_default();
            Chunk::open(bytes).map_err(|e| self.damage(idx, inputs, e))
        };
        self.chunks.iter().enumerate().map(open).collect()
    }

    /// Decodes chunk `idx` of [`EncodedGroup::open`], which is `chunk`, in a slice.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged.
    pub(crate) fn read(
        &self,
        group: GroupId,
        (idx, chunk): (usize, &Chunk<'_>),
        slice: &Slice,
        inputs: &[TableCursor],
    ) -> Result<GroupColumns> {
        let check = |columns: GroupColumns| {
            let input = self.chunks.get(idx).and_then(|at| inputs.get(at.idx));
            input.map_or(Ok(()), |it| it.table.record.check_chunk(group, columns.time_range()))?;
            Ok(columns)
        };
        let read = chunk.read(slice.slots(), slice.range).and_then(check);
        read.map_err(|e| self.damage(idx, inputs, e))
    }

    fn damage(&self, idx: usize, inputs: &[TableCursor], error: Error) -> Error {
        let Some(chunk) = self.chunks.get(idx) else { return error };
        match inputs.get(chunk.idx) {
            Some(input) => input.damage_at(chunk.block_offset, error),
            None => error,
        }
    }
}
