//! Writes one table: chunks of rising groups in, blocks and a suffix out.

use std::sync::Arc;

use firn_codec::{Effort, GroupColumns, SeqRange, encode_chunk};
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{ColumnBatch, CommitSeq, GroupId, Result, TimeRange, Timestamp};
use zstd::bulk::Compressor;

use crate::block::BlockBuilder;
use crate::header::header;
use crate::partition::Partition;
use crate::record::{Level, TableId, TableRecord, column_type_bit};
use crate::suffix::{Suffix, SuffixBuilder};

// Above it some per mille are gained for several times the CPU.
const PACK_LEVEL: i32 = 9;
// 4,096 entries: more gain no bytes, and a short query decodes a whole column of a chunk.
const CHUNK_ENTRIES_MAX: usize = 4_096;

/// A table that is being written. Full blocks are written to a file, or stay in memory for an
/// upload.
pub(crate) struct TableWriter {
    shape: TableShape,
    id: TableId,
    salt: u32,
    block_bytes: usize,
    block: BlockBuilder,
    /// Packs blocks, for tables of the slow tier.
    packer: Option<Compressor<'static>>,
    suffix: SuffixBuilder,
    /// Bytes after `flushed_bytes` that are not in the file.
    tail: Vec<u8>,
    flushed_bytes: u64,
    file: Option<Arc<dyn DiskFile>>,
    group_min: GroupId,
    group_max: Option<GroupId>,
    time_range: TimeRange,
    seq: Option<SeqRange>,
    column_types: u32,
    entry_count: u64,
    value_count: u64,
    chunk_bytes: u64,
}

/// The properties of a table that are fixed before its first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape {
    pub(crate) level: Level,
    pub(crate) patch: bool,
    pub(crate) partition: Partition,
    pub(crate) written_ms: Timestamp,
    pub(crate) deletes_through: CommitSeq,
}

/// A table whose bytes are complete.
pub(crate) struct Written {
    pub(crate) record: TableRecord,
    pub(crate) suffix: Suffix,
    /// All bytes of a table that is uploaded; empty for a file.
    pub(crate) bytes: Vec<u8>,
}

impl TableWriter {
    /// A block is closed when its payload reaches `block_bytes`.
    pub(crate) fn new(id: TableId, shape: TableShape, block_bytes: usize) -> TableWriter {
        // Neighbouring ids must not lead to neighbouring checksums of zeroed bytes.
        let salt = (id.0 as u32).wrapping_mul(0x9e37_79b1) ^ (id.0 >> 32) as u32 ^ 0x7461_626c;
        // Without memory for it blocks stay plain.
        let packer = shape.level.is_slow().then(|| Compressor::new(PACK_LEVEL).ok()).flatten();
        TableWriter {
            shape,
            id,
            salt,
            block_bytes,
            block: BlockBuilder::default(),
            packer,
            suffix: SuffixBuilder::new(shape.partition),
            tail: header(salt),
            flushed_bytes: 0,
            file: None,
            group_min: GroupId(0),
            group_max: None,
            time_range: TimeRange::EMPTY,
            seq: None,
            column_types: 0,
            entry_count: 0,
            value_count: 0,
            chunk_bytes: 0,
        }
    }

    /// The group that was added last.
    pub(crate) fn group_max(&self) -> Option<GroupId> {
        self.group_max
    }

    /// Bytes of the table so far, the open block included.
    pub(crate) fn bytes(&self) -> u64 {
        self.flushed_bytes + self.memory_bytes()
    }

    /// Bytes that are held in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.tail.len() + self.block.bytes()) as u64
    }

    /// Adds all of `columns`, which are inside the partition; groups must not descend.
    pub(crate) fn push(&mut self, group: GroupId, columns: &GroupColumns, scratch: &mut Vec<u8>) {
        assert!(self.group_max.is_none_or(|last| last <= group), "groups must not descend");
        if columns.is_empty() {
            return;
        }
        if self.group_max.is_none() {
            self.group_min = group;
        }
        self.group_max = Some(group);
        self.seq = Some(self.seq.map_or(columns.seq, |seq| seq.union(columns.seq)));
        self.push_time_pieces(group, columns, scratch);
    }

    /// Halves by time until no time column is too long.
    fn push_time_pieces(&mut self, group: GroupId, columns: &GroupColumns, scratch: &mut Vec<u8>) {
        let longest = columns.batch.times.iter().max_by_key(|times| times.len());
        let Some(longest) = longest.filter(|times| times.len() > CHUNK_ENTRIES_MAX) else {
            return self.push_slot_pieces(group, columns, scratch);
        };
        let middle = longest[longest.len() / 2];
        // `middle` is not the first timestamp of its column, so it is above i64::MIN.
        for half in [TimeRange::new(i64::MIN, middle - 1), TimeRange::new(middle, i64::MAX)] {
            let piece = columns.slice(half);
            if !piece.is_empty() {
                self.push_time_pieces(group, &piece, scratch);
            }
        }
    }

    /// Estimates the chunk's size from the bytes per value of the table so far, and cuts it by
    /// members.
    fn push_slot_pieces(&mut self, group: GroupId, columns: &GroupColumns, scratch: &mut Vec<u8>) {
        // Two bytes a value to begin with: the real recordings take less.
        let bytes = columns.value_count() as u64 * (self.chunk_bytes + 2_000);
        self.push_members(group, columns, bytes / (self.value_count + 1_000), scratch);
    }

    /// Cuts a large group by members, so that a block holds few members' columns and one member is
    /// read without the others. A chunk that is far larger than guessed is cut again.
    fn push_members(
        &mut self,
        group: GroupId,
        columns: &GroupColumns,
        guess_bytes: u64,
        scratch: &mut Vec<u8>,
    ) {
        let members = &columns.batch.columns;
        let piece_count = guess_bytes.div_ceil(self.block_bytes as u64).max(1);
        if piece_count == 1 || members.len() < 2 {
            scratch.clear();
            encode_chunk(group, columns, Effort::Small, scratch);
            if scratch.len() > 2 * self.block_bytes && members.len() > 1 {
                return self.push_members(group, columns, scratch.len() as u64, scratch);
            }
            return self.push_chunk(group, columns, scratch);
        }
        let values_per_piece = columns.value_count().div_ceil(piece_count as usize);
        let (mut start, mut value_count) = (0, 0);
        for (idx, member) in members.iter().enumerate() {
            value_count += member.values.len();
            let is_last = idx + 1 == members.len();
            // At least two pieces, so that cutting again always ends.
            if value_count >= values_per_piece
                || is_last
                || (start == 0 && idx + 2 == members.len())
            {
                let piece = members_of(columns, start..idx + 1);
                self.push_members(group, &piece, 0, scratch);
                (start, value_count) = (idx + 1, 0);
            }
        }
    }

    /// Adds an encoded chunk.
    fn push_chunk(&mut self, group: GroupId, columns: &GroupColumns, chunk: &[u8]) {
        let members = &columns.batch.columns;
        let range = columns.time_range();
        assert!(
            self.shape.partition.range().covers(range),
            "samples outside their partition would be lost with it"
        );
        if !self.block.is_empty() && self.block.bytes() + chunk.len() > self.block_bytes {
            self.seal_block();
        }
        self.block.push(group, chunk);
        self.suffix.add(group, columns);
        self.time_range = self.time_range.union(range);
        self.entry_count += columns.entry_count() as u64;
        self.value_count += columns.value_count() as u64;
        self.chunk_bytes += chunk.len() as u64;
        for member in members {
            self.column_types |= column_type_bit(member.values.column_type());
        }
        if self.block.bytes() >= self.block_bytes {
            self.seal_block();
        }
    }

    fn seal_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let start = self.tail.len();
        let offset = self.flushed_bytes + start as u64;
        assert!(
            offset == self.suffix.suffix().blocks_end(),
            "blocks follow each other without gaps"
        );
        self.block.seal(self.salt, offset, self.packer.as_mut(), &mut self.tail);
        let block_bytes = u32::try_from(self.tail.len() - start).expect("a block is under 4 GiB");
        self.suffix.seal_block(block_bytes);
    }

    /// Moves whole blocks to the file, which is created if it does not exist.
    pub(crate) fn flush(&mut self, disk: &dyn Disk) -> Result<()> {
        // Below one block there is nothing to move but the header.
        if self.tail.len() < self.block_bytes {
            return Ok(());
        }
        self.write_tail(disk).map(|_| ())
    }

    fn write_tail(&mut self, disk: &dyn Disk) -> Result<Arc<dyn DiskFile>> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let mode = if self.flushed_bytes == 0 { OpenMode::Create } else { OpenMode::Write };
                let file = disk.open(&crate::record::table_path(self.id), mode)?;
                self.file = Some(Arc::clone(&file));
                file
            }
        };
        file.write_at(self.flushed_bytes, &self.tail)?;
        self.flushed_bytes += self.tail.len() as u64;
        self.tail.clear();
        Ok(file)
    }

    /// Whether it holds a file open.
    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Closes the file; the next write opens it again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Completes the file; the caller syncs it, and the folder.
    pub(crate) fn finish_file(mut self, disk: &dyn Disk) -> Result<(Written, Arc<dyn DiskFile>)> {
        let record = self.seal();
        let file = self.write_tail(disk)?;
        Ok((self.written(record), file))
    }

    /// Completes the bytes of a table that is uploaded.
    pub(crate) fn finish_bytes(mut self) -> Written {
        assert!(self.flushed_bytes == 0, "a table is a file or an object, not both");
        let record = self.seal();
        self.written(record)
    }

    /// Completes the bytes in memory and returns the record, after the checks that a reader
    /// repeats.
    fn seal(&mut self) -> TableRecord {
        self.seal_block();
        let start = self.tail.len();
        let suffix = self.suffix.suffix();
        suffix.encode(self.salt, &mut self.tail);
        let suffix_bytes = u32::try_from(self.tail.len() - start);
        let record = TableRecord {
            id: self.id,
            level: self.shape.level,
            patch: self.shape.patch,
            partition: self.shape.partition,
            bytes: self.flushed_bytes + self.tail.len() as u64,
            suffix_bytes: suffix_bytes.expect("a suffix is far under 4 GiB"),
            salt: self.salt,
            group_min: self.group_min,
            group_max: self.group_max.unwrap_or(self.group_min),
            time_range: self.time_range,
            seq: self.seq.unwrap_or_default(),
            column_types: self.column_types,
            block_count: suffix.blocks.len() as u32,
            chunk_count: suffix.chunk_count(),
            entry_count: self.entry_count,
            value_count: self.value_count,
            written_ms: self.shape.written_ms,
            deletes_through: self.shape.deletes_through,
        };
        assert_eq!(suffix.check(&record), Ok(()), "a wrong suffix must not become durable");
        record
    }

    fn written(self, record: TableRecord) -> Written {
        Written { record, suffix: self.suffix.finish(), bytes: self.tail }
    }
}

/// Some members, with the time columns that they use.
fn members_of(columns: &GroupColumns, members: std::ops::Range<usize>) -> GroupColumns {
    let mut batch = ColumnBatch::default();
    let mut kept: Vec<Option<u32>> = vec![None; columns.batch.times.len()];
    for member in &columns.batch.columns[members] {
        let time_idx = member.time_idx as usize;
        let kept_idx = *kept[time_idx].get_or_insert_with(|| {
            batch.times.push(Arc::clone(&columns.batch.times[time_idx]));
            batch.times.len() as u32 - 1
        });
        let mut member = member.clone();
        member.time_idx = kept_idx;
        batch.columns.push(member);
    }
    GroupColumns { batch, seq: columns.seq }
}
