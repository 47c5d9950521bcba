//! The suffix: a table's directory, read in one request because the manifest knows its length.
//!
//! ```text
//! suffix = entry (per block) footer
//! entry  = varint(block bytes) varint(first group - last group of the block before)
//!          varint(last group - first group) varint(chunk count)
//!          zigzag(first ts - first ts of the block before) varint(last ts - first ts)
//!          varint(lowest slot) varint(highest slot - lowest slot)
//!          groups: posting list, only if first and last group differ
//! footer = "TABL" version:u16 zero:u16 salt:u32 suffix_bytes:u32 block_count:u32 chunk_count:u64
//!          crc32:u32
//! ```
//! The checksum covers the salt, the suffix's offset and all bytes before the checksum.

use firn_codec::frame::crc32_parts;
use firn_codec::postings::{Postings, encode_postings};
use firn_codec::varint::{encode_zigzag, take_count, take_varint, take_zigzag};
use firn_model::{Error, GroupId, Result, Slot, TimeRange, Timestamp, encode_varint};

use crate::record::TableRecord;
use crate::writer::{FORMAT, TABLE_HEADER_BYTES};

const FOOTER_BYTES: usize = 32;

/// Where a block lies and what it can hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockEntry {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) chunk_count: u32,
    pub(crate) group_first: GroupId,
    pub(crate) group_last: GroupId,
    pub(crate) time_range: TimeRange,
    pub(crate) slot_min: Slot,
    pub(crate) slot_max: Slot,
    /// Where its list of groups lies in [`Suffix::lists`]; empty if it holds one group only.
    groups: (u32, u32),
}

/// What a writer learns about a block, and what a walk over a block tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockShape {
    /// Rising, none twice.
    pub(crate) groups: Vec<u64>,
    pub(crate) chunk_count: u32,
    pub(crate) time_range: Option<TimeRange>,
    pub(crate) slots: Option<(Slot, Slot)>,
}

/// A table's directory in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Suffix {
    /// In the order of the file, so by group.
    pub(crate) blocks: Vec<BlockEntry>,
    lists: Vec<u8>,
    chunk_count: u64,
}

impl BlockShape {
    /// Counts a chunk in; groups must not fall.
    pub(crate) fn add(&mut self, group: GroupId, range: TimeRange, first: Slot, last: Slot) {
        if self.groups.last() != Some(&group.0) {
            self.groups.push(group.0);
        }
        self.chunk_count += 1;
        self.time_range = Some(self.time_range.map_or(range, |all| all.union(range)));
        let (min, max) = self.slots.unwrap_or((first, last));
        self.slots = Some((min.min(first), max.max(last)));
    }
}

impl Suffix {
    /// Adds the next block; it lies directly behind the one before.
    pub(crate) fn push(&mut self, bytes: u32, shape: &BlockShape) {
        let (Some(&first), Some(&last)) = (shape.groups.first(), shape.groups.last()) else {
            return;
        };
        let (slot_min, slot_max) = shape.slots.unwrap_or((Slot(0), Slot(u32::MAX)));
        let start = self.lists.len() as u32;
        if first != last {
            encode_postings(&shape.groups, &mut self.lists);
        }
        self.chunk_count += u64::from(shape.chunk_count);
        self.blocks.push(BlockEntry {
            offset: self.blocks_end(),
            bytes,
            chunk_count: shape.chunk_count,
            group_first: GroupId(first),
            group_last: GroupId(last),
            time_range: shape.time_range.unwrap_or(TimeRange::ALL),
            slot_min,
            slot_max,
            groups: (start, self.lists.len() as u32),
        });
    }

    /// Where the next block, or the suffix, begins.
    pub(crate) fn blocks_end(&self) -> u64 {
        self.blocks
            .last()
            .map_or(TABLE_HEADER_BYTES as u64, |block| block.offset + u64::from(block.bytes))
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunk_count
    }

    /// Bytes in memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<BlockEntry>() + self.lists.capacity()
    }

    /// The blocks that can hold `group`: neighbours, because chunks are sorted by group.
    pub(crate) fn blocks_of(&self, group: GroupId) -> std::ops::Range<usize> {
        let start = self.blocks.partition_point(|block| block.group_last < group);
        let end = self.blocks.partition_point(|block| block.group_first <= group).max(start);
        if end - start == 1 && !self.holds(start, group) {
            return start..start;
        }
        start..end
    }

    /// Whether the table has samples of `group`.
    pub(crate) fn has_group(&self, group: GroupId) -> bool {
        self.blocks_of(group).any(|block_idx| self.holds(block_idx, group))
    }

    /// Whether the table may have samples of `group` in `range`, exact to the block.
    pub(crate) fn may_hold(&self, group: GroupId, range: TimeRange) -> bool {
        self.blocks_of(group).any(|block_idx| {
            let block = self.blocks.get(block_idx);
            block.is_some_and(|block| block.time_range.overlaps(range))
                && self.holds(block_idx, group)
        })
    }

    /// Whether one block has chunks of `group`. At most some hundred groups to look through.
    fn holds(&self, block_idx: usize, group: GroupId) -> bool {
        let Some(block) = self.blocks.get(block_idx) else { return false };
        if group < block.group_first || group > block.group_last {
            return false;
        }
        if block.group_first == group || block.group_last == group {
            return true;
        }
        let (start, end) = block.groups;
        let mut list = self.lists.get(start as usize..end as usize).unwrap_or_default();
        match Postings::take(&mut list) {
            Ok(groups) => groups.iter().seek(group.0) == Some(group.0),
            // Unreadable lists were refused when the suffix was opened.
            Err(_) => true,
        }
    }

    /// Appends the suffix; it will lie at [`Suffix::blocks_end`].
    pub(crate) fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        let start = out.len();
        let (mut group_before, mut ts_before) = (0, 0);
        for block in &self.blocks {
            encode_varint(block.bytes.into(), out);
            encode_varint(block.group_first.0 - group_before, out);
            encode_varint(block.group_last.0 - block.group_first.0, out);
            encode_varint(block.chunk_count.into(), out);
            let range = block.time_range;
            encode_zigzag(range.start.wrapping_sub(ts_before), out);
            encode_varint(range.end.wrapping_sub(range.start) as u64, out);
            encode_varint(block.slot_min.0.into(), out);
            encode_varint((block.slot_max.0 - block.slot_min.0).into(), out);
            let (list_start, list_end) = block.groups;
            out.extend_from_slice(&self.lists[list_start as usize..list_end as usize]);
            (group_before, ts_before) = (block.group_last.0, range.start);
        }
        let suffix_bytes = (out.len() - start + FOOTER_BYTES) as u32;
        out.extend_from_slice(&FORMAT.kind);
        out.extend_from_slice(&FORMAT.version.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&salt.to_le_bytes());
        out.extend_from_slice(&suffix_bytes.to_le_bytes());
        out.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.chunk_count.to_le_bytes());
        let checksum = checksum(salt, self.blocks_end(), &out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Opens the suffix of the table of `record`.
    ///
    /// # Errors
    /// `Corrupt` with file and offset; `Invalid` for a version that this build cannot read.
    pub(crate) fn decode(record: &TableRecord, bytes: &[u8]) -> Result<Suffix> {
        let (file, offset) = (record.path(), record.suffix_offset());
        let bad = |what: String| Error::corrupt(file.as_str(), offset, what);
        let (checked, crc) = bytes
            .split_last_chunk::<4>()
            .filter(|_| bytes.len() >= FOOTER_BYTES)
            .ok_or_else(|| bad("suffix is cut short".into()))?;
        let (found, expected) = (u32::from_le_bytes(*crc), checksum(record.salt, offset, checked));
        if found != expected {
            return Err(bad(format!("suffix checksum {found:#010x}, expected {expected:#010x}")));
        }
        let (mut entries, footer) = bytes.split_at(bytes.len() - FOOTER_BYTES);
        let version = footer.get(4..6).map_or(0, |at| u16::from_le_bytes([at[0], at[1]]));
        if version < FORMAT.oldest || version > FORMAT.version {
            return Err(Error::invalid(format!(
                "{file}: table version {version}, this program reads {} to {}; start the newer \
                 program",
                FORMAT.oldest, FORMAT.version
            )));
        }
        let mut suffix = Suffix { lists: Vec::with_capacity(entries.len()), ..Suffix::default() };
        while !entries.is_empty() {
            suffix.take_entry(&mut entries).map_err(|e| bad(e.what().into()))?;
        }
        suffix.lists.shrink_to_fit();
        suffix.check(record).map_err(|what| bad(what.into()))?;
        Ok(suffix)
    }

    fn take_entry(&mut self, input: &mut &[u8]) -> Result<()> {
        let overflow = || Error::corrupt("suffix", 0, "block entry is out of range");
        let (group_before, ts_before) =
            self.blocks.last().map_or((0, 0), |last| (last.group_last.0, last.time_range.start));
        let bytes = take_count(input, u32::MAX as usize, "block bytes")? as u32;
        let first = take_varint(input, "first group")?;
        let first = group_before.checked_add(first).ok_or_else(overflow)?;
        let last = take_varint(input, "last group")?;
        let last = first.checked_add(last).ok_or_else(overflow)?;
        let chunk_count = take_count(input, u32::MAX as usize, "chunk count")? as u32;
        let start: Timestamp = ts_before.wrapping_add(take_zigzag(input, "first timestamp")?);
        let end = start.wrapping_add(take_varint(input, "last timestamp")? as i64);
        let slot_min = take_count(input, u32::MAX as usize, "lowest slot")? as u32;
        let slot_span = take_count(input, u32::MAX as usize, "highest slot")? as u32;
        let slot_max = slot_min.checked_add(slot_span).ok_or_else(overflow)?;
        let list_start = self.lists.len() as u32;
        if first != last {
            let before = *input;
            let groups = Postings::take(input)?;
            if groups.iter().next() != Some(first) {
                return Err(overflow());
            }
            self.lists.extend_from_slice(&before[..before.len() - input.len()]);
        }
        self.chunk_count = self.chunk_count.saturating_add(chunk_count.into());
        let offset = self.blocks_end();
        self.blocks.push(BlockEntry {
            offset,
            bytes,
            chunk_count,
            group_first: GroupId(first),
            group_last: GroupId(last),
            time_range: TimeRange::new(start, end),
            slot_min: Slot(slot_min),
            slot_max: Slot(slot_max),
            groups: (list_start, self.lists.len() as u32),
        });
        Ok(())
    }

    /// Whether this is all of the table, no block more or less than the manifest says.
    pub(crate) fn check(&self, record: &TableRecord) -> Result<(), &'static str> {
        if self.blocks.len() as u64 != u64::from(record.block_count) {
            return Err("suffix has other blocks than the manifest says");
        }
        if self.blocks_end() != record.suffix_offset() {
            return Err("blocks do not fill the table");
        }
        if self.chunk_count != record.chunk_count {
            return Err("suffix has other chunks than the manifest says");
        }
        Ok(())
    }
}

fn checksum(salt: u32, offset: u64, bytes: &[u8]) -> u32 {
    crc32_parts(&[&salt.to_le_bytes(), &offset.to_le_bytes(), bytes])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{Partition, PartitionLen};
    use crate::record::{Level, sample_record};

    fn sample() -> (Suffix, TableRecord) {
        let mut suffix = Suffix::default();
        let mut add = |groups: &[u64], range, slots: (u32, u32)| {
            let mut shape = BlockShape::default();
            groups.iter().for_each(|&group| {
                shape.add(GroupId(group), range, Slot(slots.0), Slot(slots.1));
            });
            suffix.push(100, &shape);
        };
        add(&[1, 2, 5, 9], TimeRange::ALL, (0, 0));
        add(&[9], TimeRange::new(-5, 7), (0, 9));
        add(&[9], TimeRange::new(-5, 7), (10, 19));
        add(&[9, 70, u64::MAX], TimeRange::at(i64::MAX), (0, u32::MAX));
        let partition = Partition::of(0, PartitionLen::MIN);
        let mut record = sample_record(1, Level::One, partition);
        record.block_count = 4;
        record.chunk_count = suffix.chunk_count();
        record.bytes = suffix.blocks_end();
        (suffix, record)
    }

    #[test]
    fn a_suffix_comes_back_and_finds_groups() {
        let (suffix, mut record) = sample();
        let mut out = Vec::new();
        suffix.encode(record.salt, &mut out);
        record.bytes += out.len() as u64;
        record.suffix_bytes = out.len() as u32;
        let again = Suffix::decode(&record, &out).unwrap();
        assert_eq!(again, suffix);
        let f = |group, want: std::ops::Range<usize>| {
            assert_eq!(again.blocks_of(GroupId(group)), want, "{group}");
            assert_eq!(again.has_group(GroupId(group)), !want.is_empty(), "{group}");
        };
        f(0, 0..0);
        f(1, 0..1);
        f(3, 0..0);
        f(5, 0..1);
        f(9, 0..4);
        f(10, 3..3);
        f(70, 3..4);
        f(u64::MAX, 3..4);
        for bit in 0..out.len() * 8 {
            let mut flipped = out.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Suffix::decode(&record, &flipped).is_err(), "bit {bit}");
        }
        for len in 0..out.len() {
            assert!(Suffix::decode(&record, &out[..len]).is_err());
        }
        record.salt += 1;
        assert!(Suffix::decode(&record, &out).is_err(), "of another table");
    }

    #[test]
    fn a_suffix_that_is_not_all_of_the_table_is_refused() {
        let (suffix, record) = sample();
        let record = TableRecord { suffix_bytes: 0, ..record };
        suffix.check(&record).unwrap();
        suffix.check(&TableRecord { chunk_count: 1, ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { block_count: 1, ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { bytes: 1, ..record }).unwrap_err();
    }
}
