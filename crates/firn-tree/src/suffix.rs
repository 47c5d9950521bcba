//! The suffix: a table's directory, read in one request because the manifest knows its length.
//!
//! ```text
//! suffix = varint(set count) (varint(set bytes) presence set)* entry (per block) footer
//! entry  = varint(block bytes) varint(first group - last group of the block before)
//!          varint(last group - first group) varint(chunk count)
//!          zigzag(first ts - first ts of the block before) varint(last ts - first ts)
//!          varint(number of the lowest set)
//!          only if first and last group differ: groups: posting list, width:u8, for each group
//!          the number of its set less the lowest, packed at that width
//! footer = "TABL" version:u16 zero:u16 salt:u32 suffix_bytes:u32 block_count:u32 chunk_count:u64
//!          crc32:u32
//! ```
//! The checksum covers the salt, the suffix's offset and all bytes before the checksum.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::HashMap;

use firn_codec::GroupColumns;
use firn_codec::bits::{bit_width, get_bits, pack, packed_bytes};
use firn_codec::frame::crc32_parts;
use firn_codec::postings::{Postings, encode_postings};
use firn_codec::varint::{
    encode_zigzag, take_bytes, take_count, take_u8, take_varint, take_zigzag,
};
use firn_model::{Error, GroupId, Result, Slot, TimeRange, Timestamp, encode_varint};

use crate::header::{FORMAT, TABLE_HEADER_BYTES};
use crate::partition::Partition;
use crate::presence::{Grid, PresenceSet, PresenceSets, Span, encode_set};
use crate::record::TableRecord;

const FOOTER_BYTES: usize = 32;

/// The location of a block, and bounds of its contents.
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
    sets: BlockSets,
}

/// Which presence sets the groups of a block have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BlockSets {
    /// The lowest number of a set.
    lowest: u32,
    /// Bits of a group's number less the lowest; 0: all have that one.
    width: u32,
    /// Offsets in [`Suffix::lists`] of the list of groups (none if there is only one group) and of
    /// the numbers after it.
    groups_at: u32,
    numbers_at: u32,
    group_count: u32,
}

/// A table's directory in memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Suffix {
    /// In the order of the file, so by group.
    pub(crate) blocks: Vec<BlockEntry>,
    grid: Grid,
    sets: PresenceSets,
    /// Per block of several groups their list, then the numbers of their sets.
    lists: Vec<u8>,
    chunk_count: u64,
}

/// Builds a suffix while the blocks are written, or walked.
pub(crate) struct SuffixBuilder {
    suffix: Suffix,
    /// The sets by their bytes.
    numbers: HashMap<Vec<u8>, u32>,
    /// The groups of the open block: rising, none twice.
    groups: Vec<u64>,
    /// The set numbers of the groups before the last.
    set_numbers: Vec<u64>,
    /// The members of the last group.
    members: Vec<(Slot, Span)>,
    chunk_count: u32,
    time_range: TimeRange,
}

impl SuffixBuilder {
    /// An empty builder for a table of `partition`.
    pub(crate) fn new(partition: Partition) -> SuffixBuilder {
        SuffixBuilder {
            suffix: Suffix::new(partition),
            numbers: HashMap::new(),
            groups: Vec::new(),
            set_numbers: Vec::new(),
            members: Vec::new(),
            chunk_count: 0,
            time_range: TimeRange::EMPTY,
        }
    }

    /// Counts a chunk of `columns` into the open block; groups must not fall.
    pub(crate) fn add(&mut self, group: GroupId, columns: &GroupColumns) {
        if self.groups.last() != Some(&group.0) {
            self.end_group();
            self.groups.push(group.0);
        }
        self.suffix.grid.add_members(columns, &mut self.members);
        self.chunk_count = self.chunk_count.saturating_add(1);
        self.time_range = self.time_range.union(columns.time_range());
    }

    /// Completes the open block of `bytes`, which directly follows the previous one.
    pub(crate) fn seal_block(&mut self, bytes: u32) {
        self.end_group();
        let (Some(&first), Some(&last)) = (self.groups.first(), self.groups.last()) else { return };
        let numbers = &self.set_numbers;
        let lowest = numbers.iter().min().copied().unwrap_or(0);
        let highest = numbers.iter().max().copied().unwrap_or(0);
        let width = bit_width(highest.saturating_sub(lowest));
        let lists = &mut self.suffix.lists;
        let groups_at = count_u32(lists.len());
        if first != last {
            encode_postings(&self.groups, lists);
        }
        let numbers_at = count_u32(lists.len());
        if width > 0 {
            pack(numbers.iter().map(|number| number.saturating_sub(lowest)), width, lists);
        }
        let group_count = count_u32(self.groups.len());
        let lowest = u32::try_from(lowest).expect("sets are numbered in 32 bits");
        let sets = BlockSets { lowest, width, groups_at, numbers_at, group_count };
        let (slot_min, slot_max) = self.suffix.slots_of(&sets).unwrap_or((Slot(0), Slot(u32::MAX)));
        let offset = self.suffix.blocks_end();
        self.suffix.chunk_count = self.suffix.chunk_count.saturating_add(self.chunk_count.into());
        self.suffix.blocks.push(BlockEntry {
            offset,
            bytes,
            chunk_count: self.chunk_count,
            group_first: GroupId(first),
            group_last: GroupId(last),
            time_range: self.time_range,
            slot_min,
            slot_max,
            sets,
        });
        self.groups.clear();
        self.set_numbers.clear();
        self.chunk_count = 0;
        self.time_range = TimeRange::EMPTY;
    }

    fn end_group(&mut self) {
        if self.members.is_empty() {
            return;
        }
        let mut set = Vec::new();
        encode_set(&mut self.members, &mut set);
        let next = count_u32(self.suffix.sets.len());
        let number = match self.numbers.get(&set) {
            Some(&number) => number,
            None => {
                self.suffix.sets.push(&set).expect("encode_set made this set");
                self.numbers.insert(set, next);
                next
            }
        };
        self.set_numbers.push(number.into());
    }

    /// The suffix of the sealed blocks.
    pub(crate) fn suffix(&self) -> &Suffix {
        &self.suffix
    }

    pub(crate) fn finish(self) -> Suffix {
        self.suffix
    }
}

impl Suffix {
    fn new(partition: Partition) -> Suffix {
        Suffix {
            blocks: Vec::new(),
            grid: Grid::of(partition),
            sets: PresenceSets::default(),
            lists: Vec::new(),
            chunk_count: 0,
        }
    }

    /// Offset of the next block, or of the suffix.
    pub(crate) fn blocks_end(&self) -> u64 {
        let end_of = |block: &BlockEntry| block.offset.saturating_add(block.bytes.into());
        self.blocks.last().map_or(TABLE_HEADER_BYTES as u64, end_of)
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunk_count
    }

    /// Bytes in memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        let blocks_bytes = self.blocks.capacity().saturating_mul(size_of::<BlockEntry>());
        blocks_bytes.saturating_add(self.sets.heap_bytes()).saturating_add(self.lists.capacity())
    }

    /// Calls `each` with every group, rising, each once.
    pub(crate) fn for_each_group(&self, mut each: impl FnMut(GroupId)) {
        let mut last = None;
        let mut found = |group: GroupId| {
            // A large one fills several blocks.
            if last.replace(group) != Some(group) {
                each(group);
            }
        };
        for block in &self.blocks {
            match self.groups_of(&block.sets).filter(|_| block.group_first != block.group_last) {
                Some(groups) => groups.iter().for_each(|group| found(GroupId(group))),
                None => found(block.group_first),
            }
        }
    }

    /// The blocks that can hold `group`: neighbours, because chunks are sorted by group.
    pub(crate) fn blocks_of(&self, group: GroupId) -> std::ops::Range<usize> {
        let start = self.blocks.partition_point(|block| block.group_last < group);
        let end = self.blocks.partition_point(|block| block.group_first <= group).max(start);
        if end.saturating_sub(start) == 1 && !self.holds(start, group) {
            return start..start;
        }
        start..end
    }

    /// Whether the table has samples of `group` in `range`, exact to the cells of its presence
    /// sets.
    pub(crate) fn may_hold(&self, group: GroupId, range: TimeRange) -> bool {
        self.parts_of(group, range).next().is_some()
    }

    /// The members of `group` in `range`: the span from the first to the last sample, exact to a
    /// cell and cut to the block, and the slots. Each member is in one part of each block.
    pub(crate) fn parts_of(
        &self,
        group: GroupId,
        range: TimeRange,
    ) -> impl Iterator<Item = (TimeRange, Postings<'_>)> {
        self.blocks_of(group).flat_map(move |block_idx| self.parts_in(block_idx, group, range))
    }

    /// Like [`Suffix::parts_of`] for one block.
    pub(crate) fn parts_in(
        &self,
        block_idx: usize,
        group: GroupId,
        range: TimeRange,
    ) -> impl Iterator<Item = (TimeRange, Postings<'_>)> {
        let block = self.blocks.get(block_idx);
        let block_range = block.map_or(TimeRange::EMPTY, |block| block.time_range);
        let set = match block_range.overlaps(range) {
            true => self.set_of(block_idx, group),
            false => None,
        };
        set.into_iter().flat_map(PresenceSet::parts).filter_map(move |(span, slots)| {
            let span = self.grid.range(span).intersect(block_range);
            span.overlaps(range).then_some((span, slots))
        })
    }

    fn set_of(&self, block_idx: usize, group: GroupId) -> Option<PresenceSet<'_>> {
        let sets = self.blocks.get(block_idx)?.sets;
        if sets.width == 0 {
            return self.holds(block_idx, group).then(|| self.sets.get(sets.lowest))?;
        }
        // At most some hundred groups to pass.
        let (rank, is_there) = self.groups_of(&sets)?.rank(group.0);
        if !is_there {
            return None;
        }
        self.sets.get(self.number_of(&sets, usize::try_from(rank).ok()?))
    }

    fn number_of(&self, sets: &BlockSets, rank: usize) -> u32 {
        let numbers = self.lists.get(sets.numbers_at as usize..).unwrap_or_default();
        let bit_idx = rank.saturating_mul(sets.width as usize);
        let number = get_bits(numbers, bit_idx, sets.width);
        sets.lowest.saturating_add(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// The groups of a block that has several.
    fn groups_of(&self, sets: &BlockSets) -> Option<Postings<'_>> {
        let mut list = self.lists.get(sets.groups_at as usize..sets.numbers_at as usize)?;
        // Unreadable lists were refused when the suffix was opened.
        Postings::take(&mut list).ok()
    }

    /// The lowest and the highest slot of a block; `None` if it names a missing set.
    fn slots_of(&self, sets: &BlockSets) -> Option<(Slot, Slot)> {
        let count = if sets.width == 0 { 1 } else { sets.group_count as usize };
        let mut bounds = None;
        for rank in 0..count {
            let (min, max) = self.sets.slots_of(self.number_of(sets, rank))?;
            let (all_min, all_max) = bounds.unwrap_or((min, max));
            bounds = Some((all_min.min(min), all_max.max(max)));
        }
        bounds
    }

    /// Whether one block has chunks of `group`. At most some hundred groups to look through.
    fn holds(&self, block_idx: usize, group: GroupId) -> bool {
        let Some(block) = self.blocks.get(block_idx) else { return false };
        if group < block.group_first || group > block.group_last {
            return false;
        }
        block.group_first == group
            || block.group_last == group
            || self
                .groups_of(&block.sets)
                .is_none_or(|groups| groups.iter().seek(group.0) == Some(group.0))
    }

    /// Appends the suffix, which will be at [`Suffix::blocks_end`].
    ///
    /// # Panics
    /// If the blocks are not sorted by group.
    pub(crate) fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        let start = out.len();
        encode_varint(self.sets.len() as u64, out);
        for set in self.sets.iter() {
            encode_varint(set.len() as u64, out);
            out.extend_from_slice(set);
        }
        let step = |from: u64, to: u64| to.checked_sub(from).expect("blocks are sorted by group");
        let (mut group_before, mut ts_before) = (0, 0);
        for block in &self.blocks {
            encode_varint(block.bytes.into(), out);
            encode_varint(step(group_before, block.group_first.0), out);
            encode_varint(step(block.group_first.0, block.group_last.0), out);
            encode_varint(block.chunk_count.into(), out);
            let range = block.time_range;
            encode_zigzag(range.start.wrapping_sub(ts_before), out);
            encode_varint(range.end.wrapping_sub(range.start) as u64, out);
            let sets = &block.sets;
            encode_varint(sets.lowest.into(), out);
            if block.group_first != block.group_last {
                let number_bytes = packed_bytes(sets.group_count as usize, sets.width);
                let (from, numbers_at) = (sets.groups_at as usize, sets.numbers_at as usize);
                let groups = self.lists.get(from..numbers_at).expect("the list of groups");
                let numbers = self.lists.get(numbers_at..).and_then(|at| at.get(..number_bytes));
                out.extend_from_slice(groups);
                out.push(u8::try_from(sets.width).expect("a width is at most 32 bits"));
                out.extend_from_slice(numbers.expect("the numbers of the groups' sets"));
            }
            (group_before, ts_before) = (block.group_last.0, range.start);
        }
        let suffix_bytes = out.len().saturating_sub(start).saturating_add(FOOTER_BYTES);
        out.extend_from_slice(&self.footer(FORMAT.version, salt, suffix_bytes));
        let checked = out.get(start..).unwrap_or_default();
        let checksum = checksum(salt, self.blocks_end(), checked);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// The footer of `version` before its checksum.
    fn footer(&self, version: u16, salt: u32, suffix_bytes: usize) -> Vec<u8> {
        let mut out = FORMAT.kind.to_vec();
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&salt.to_le_bytes());
        out.extend_from_slice(&count_u32(suffix_bytes).to_le_bytes());
        out.extend_from_slice(&count_u32(self.blocks.len()).to_le_bytes());
        out.extend_from_slice(&self.chunk_count.to_le_bytes());
        out
    }

    /// Opens the suffix of the table of `record`.
    ///
    /// # Errors
    /// `Corrupt` with file and offset; `Invalid` for a version that this build cannot read.
    pub(crate) fn decode(record: &TableRecord, bytes: &[u8]) -> Result<Suffix> {
        let (file, offset) = (record.path(), record.suffix_offset());
        let bad = |what: String| Error::corrupt(file.as_str(), offset, what);
        let cut = || bad("suffix is cut short".into());
        let (checked, crc) = bytes.split_last_chunk::<4>().ok_or_else(cut)?;
        let (mut entries, footer) =
            checked.split_last_chunk::<{ FOOTER_BYTES - 4 }>().ok_or_else(cut)?;
        let (found, expected) = (u32::from_le_bytes(*crc), checksum(record.salt, offset, checked));
        if found != expected {
            return Err(bad(format!("suffix checksum {found:#010x}, expected {expected:#010x}")));
        }
        let [_, _, _, _, low, high, ..] = *footer;
        let version = u16::from_le_bytes([low, high]);
        if version < FORMAT.oldest || version > FORMAT.version {
            return Err(Error::invalid(format!(
                "{file}: table version {version}, this program reads {} to {}; start the newer \
                 program",
                FORMAT.oldest, FORMAT.version
            )));
        }
        let mut suffix = Suffix::new(record.partition);
        suffix.take_sets(&mut entries).map_err(|e| bad(e.what().into()))?;
        suffix.lists.reserve(entries.len());
        while !entries.is_empty() {
            suffix.take_entry(&mut entries).map_err(|e| bad(e.what().into()))?;
        }
        suffix.lists.shrink_to_fit();
        suffix.sets.shrink_to_fit();
        if suffix.footer(version, record.salt, bytes.len()) != footer {
            return Err(bad("footer of the suffix differs from its entries".into()));
        }
        suffix.check(record).map_err(|what| bad(what.into()))?;
        Ok(suffix)
    }

    fn take_sets(&mut self, input: &mut &[u8]) -> Result<()> {
        // A set takes at least four bytes.
        for _ in 0..take_count(input, input.len(), "set count")? {
            let set_bytes = take_count(input, input.len(), "set bytes")?;
            self.sets.push(take_bytes(input, set_bytes, "presence set")?)?;
        }
        Ok(())
    }

    fn take_entry(&mut self, input: &mut &[u8]) -> Result<()> {
        let overflow = || Error::corrupt("suffix", 0, "block entry is out of range");
        let (group_before, ts_before) =
            self.blocks.last().map_or((0, 0), |last| (last.group_last.0, last.time_range.start));
        let bytes = take_u32(input, "block bytes")?;
        let first = take_varint(input, "first group")?;
        let first = group_before.checked_add(first).ok_or_else(overflow)?;
        let last = take_varint(input, "last group")?;
        let last = first.checked_add(last).ok_or_else(overflow)?;
        let chunk_count = take_u32(input, "chunk count")?;
        let start: Timestamp = ts_before.wrapping_add(take_zigzag(input, "first timestamp")?);
        let end = start.checked_add_unsigned(take_varint(input, "last timestamp")?);
        let end = end.ok_or_else(overflow)?;
        let lowest = take_u32(input, "lowest set")?;
        let end_of = |lists: &[u8]| u32::try_from(lists.len()).map_err(|_| overflow());
        let groups_at = end_of(&self.lists)?;
        let (mut numbers_at, mut width, mut group_count) = (groups_at, 0, 1);
        if first != last {
            let before = *input;
            let groups = Postings::take(input)?;
            let mut ends = None;
            groups.for_each_run(|from, to| {
                ends = Some((ends.map_or(from, |ends: (u64, u64)| ends.0), to))
            })?;
            if ends != Some((first, last)) || groups.len() > u64::from(chunk_count) {
                return Err(overflow());
            }
            let list_bytes = before.len().saturating_sub(input.len());
            self.lists.extend_from_slice(before.get(..list_bytes).unwrap_or_default());
            numbers_at = end_of(&self.lists)?;
            group_count = u32::try_from(groups.len()).map_err(|_| overflow())?;
            width = u32::from(take_u8(input, "width of set numbers")?);
            if width > u32::BITS {
                return Err(overflow());
            }
            let number_bytes = packed_bytes(group_count as usize, width);
            self.lists.extend_from_slice(take_bytes(input, number_bytes, "set numbers")?);
        }
        let sets = BlockSets { lowest, width, groups_at, numbers_at, group_count };
        let (slot_min, slot_max) = self.slots_of(&sets).ok_or_else(overflow)?;
        self.chunk_count = self.chunk_count.saturating_add(chunk_count.into());
        let offset = self.blocks_end();
        self.blocks.push(BlockEntry {
            offset,
            bytes,
            chunk_count,
            group_first: GroupId(first),
            group_last: GroupId(last),
            time_range: TimeRange::new(start, end),
            slot_min,
            slot_max,
            sets,
        });
        Ok(())
    }

    /// Checks the blocks against the manifest's record. The writer asserts it before the suffix is
    /// written; a reader reports `Corrupt`.
    pub(crate) fn check(&self, record: &TableRecord) -> Result<(), &'static str> {
        if self.blocks.len() as u64 != u64::from(record.block_count) {
            return Err("number of blocks in the suffix differs from the manifest");
        }
        if self.blocks_end() != record.suffix_offset() {
            return Err("blocks do not fill the table");
        }
        if self.chunk_count != record.chunk_count {
            return Err("number of chunks in the suffix differs from the manifest");
        }
        let mut group_before = record.group_min;
        for block in &self.blocks {
            if block.group_first < group_before || block.group_last < block.group_first {
                return Err("blocks are not sorted by group");
            }
            if block.time_range.is_empty() || !record.time_range.covers(block.time_range) {
                return Err("timestamps of a block are outside the table's");
            }
            group_before = block.group_last;
        }
        if group_before > record.group_max {
            return Err("groups of a block are outside the table's");
        }
        Ok(())
    }
}

/// The range of a block in the bytes of its table.
pub(crate) fn block_range(entry: &BlockEntry) -> std::ops::Range<usize> {
    let start = usize::try_from(entry.offset).unwrap_or(usize::MAX);
    start..start.saturating_add(entry.bytes as usize)
}

/// A count of the writer, or of a suffix that was opened: a suffix has at most 4 GiB.
fn count_u32(count: usize) -> u32 {
    u32::try_from(count).expect("a suffix is under 4 GiB")
}

fn take_u32(input: &mut &[u8], field: &'static str) -> Result<u32> {
    u32::try_from(take_varint(input, field)?)
        .map_err(|_| Error::corrupt("suffix", 0, format!("{field} is over 32 bits")))
}

fn checksum(salt: u32, offset: u64, bytes: &[u8]) -> u32 {
    crc32_parts(&[&salt.to_le_bytes(), &offset.to_le_bytes(), bytes])
}

#[cfg(test)]
mod tests {
    use firn_codec::varint::varint_bytes;
    use firn_model::{ColumnBatch, CommitSeq};

    use super::*;
    use crate::partition::PartitionLen;
    use crate::record::{Level, TableId, sample_record};
    use crate::writer::{TableShape, TableWriter};

    fn columns(slots: std::ops::RangeInclusive<u32>, times: &[Timestamp]) -> GroupColumns {
        let mut columns = GroupColumns::default();
        for slot in slots {
            let values = vec![1.0; times.len()];
            let one = ColumnBatch::of_one(Slot(slot), times.into(), values);
            columns.batch.times = one.times;
            columns.batch.columns.extend(one.columns);
        }
        columns
    }

    /// Four blocks: many groups, two of one group, a group of which one member ends early.
    fn sample() -> (Suffix, TableRecord) {
        let partition = Partition::of(0, PartitionLen::MIN);
        let mut suffix = SuffixBuilder::new(partition);
        let ends = [partition.range().start, partition.range().end];
        for group in [1, 2, 5, 9] {
            suffix.add(GroupId(group), &columns(0..=0, &ends));
        }
        suffix.seal_block(100);
        for slots in [0..=9, 10..=19] {
            suffix.add(GroupId(9), &columns(slots, &[5, 100_000]));
            suffix.seal_block(100);
        }
        suffix.add(GroupId(9), &columns(20..=20, &ends));
        suffix.add(GroupId(70), &columns(0..=2, &[0, 10]));
        suffix.add(GroupId(70), &columns(1..=1, &ends[1..]));
        suffix.add(GroupId(u64::MAX), &columns(7..=7, &ends));
        suffix.seal_block(100);
        let suffix = suffix.finish();
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
            let is_there = again.may_hold(GroupId(group), TimeRange::ALL);
            assert_eq!(is_there, !want.is_empty(), "{group}");
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
    fn a_suffix_lists_members_and_their_times() {
        let (suffix, record) = sample();
        let all = record.partition.range();
        let f = |group, range| -> Vec<((i64, i64), Vec<u64>)> {
            let parts = suffix.parts_of(GroupId(group), range);
            parts.map(|(range, slots)| ((range.start, range.end), slots.iter().collect())).collect()
        };
        let whole = (all.start, all.end);
        assert_eq!(f(2, all), [(whole, vec![0])]);
        assert_eq!(f(3, all), []);
        // A cell has 14,062.5 ms; a block's range is exact to the millisecond.
        let first = (5, 100_000);
        let want = [(whole, vec![0]), (first, (0..10).collect()), (first, (10..20).collect())];
        assert_eq!(f(9, all)[..3], want);
        let late = [(whole, vec![0]), (whole, vec![20])];
        assert_eq!(f(9, TimeRange::new(100_001, all.end)), late);
        assert_eq!(f(70, all), [((0, 14_062), vec![0, 2]), (whole, vec![1])]);
        assert_eq!(f(70, TimeRange::new(14_063, 20_000)), [(whole, vec![1])]);
        assert!(suffix.may_hold(GroupId(70), TimeRange::at(9)));
        assert!(!suffix.may_hold(GroupId(70), TimeRange::new(all.end + 1, i64::MAX)));
        // Sets are shared: {0} of all cells, two of ten slots, {20}, group 70's, {7}.
        assert_eq!(suffix.sets.len(), 6);
    }

    #[test]
    fn a_suffix_that_is_not_all_of_the_table_is_refused() {
        let (suffix, record) = sample();
        let record = TableRecord { suffix_bytes: 0, ..record };
        let whole = record.clone();
        suffix.check(&record).unwrap();
        suffix.check(&TableRecord { chunk_count: 1, ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { block_count: 1, ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { bytes: 1, ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { group_min: GroupId(2), ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { group_max: GroupId(99), ..record.clone() }).unwrap_err();
        suffix.check(&TableRecord { time_range: TimeRange::at(5), ..record }).unwrap_err();
        let mut falling = suffix;
        falling.blocks.swap(0, 1);
        falling.check(&whole).unwrap_err();
    }

    /// Tables of 30 minutes as hosts, devices and short-lived containers make them: the cost of
    /// presence sets.
    #[test]
    fn presence_sets_cost_little() {
        const MINUTE_MS: i64 = 60_000;
        let half_hour = PartitionLen::from_ms(30 * MINUTE_MS).unwrap();
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % below
        };
        // Name; groups, members; ms between samples; whether members are short-lived; per mille of
        // the table at most.
        let cases = [
            ("hosts of 101 metrics every 10 s", 400, 101, 10_000, false, 1),
            ("targets of 600 series every 15 s", 60, 600, 15_000, false, 1),
            ("lone series every 15 s", 40_000, 1, 15_000, false, 1),
            ("lone series every 60 s, each at its own second", 40_000, 1, 60_000, false, 10),
            ("nodes of 300 series, a third of them new every hour", 60, 300, 30_000, true, 10),
        ];
        for (name, group_count, member_count, step_ms, is_churn, per_mille_max) in cases {
            let shape = TableShape {
                level: Level::One,
                patch: false,
                partition: Partition::of(0, half_hour),
                written_ms: 0,
                deletes_through: CommitSeq(0),
            };
            let mut writer = TableWriter::new(TableId(1), shape, 16 << 10);
            for group in 0..group_count {
                let start = next(step_ms as u64) as i64;
                let times: Vec<i64> = (0..)
                    .map(|idx| start + idx * step_ms)
                    .take_while(|ts| *ts < 30 * MINUTE_MS)
                    .collect();
                let mut columns = GroupColumns::default();
                for slot in 0..member_count {
                    // Twenty series of one container start or end together.
                    let pod = slot / 20;
                    let cut = (pod * 7 + group) as usize % times.len();
                    let entries = match (is_churn, (pod + group) % 6) {
                        (true, 0) => 0..cut.max(1),
                        (true, 1) => cut..times.len(),
                        _ => 0..times.len(),
                    };
                    let mut value = next(100) as f64;
                    let values = entries.clone().map(|_| {
                        value += next(7) as f64 - 3.0;
                        value
                    });
                    let times = times[entries.clone()].to_vec();
                    let mut one = ColumnBatch::of_one(Slot(slot), times.into(), values.collect());
                    one.columns[0].time_idx = columns.batch.times.len() as u32;
                    columns.batch.times.extend(one.times);
                    columns.batch.columns.extend(one.columns);
                }
                writer.push(GroupId(group.into()), &columns, &mut Vec::new());
            }
            let written = writer.finish_bytes();
            let (suffix, record) = (&written.suffix, &written.record);
            let sets: usize = suffix.sets.iter().map(|set| set.len() + 1).sum();
            let numbers = suffix.blocks.iter().map(|block| {
                let BlockSets { group_count, width, lowest, .. } = block.sets;
                packed_bytes(group_count as usize, width) + 1 + varint_bytes(lowest.into())
            });
            let bytes = sets + numbers.sum::<usize>();
            let per_chunk = bytes as f64 / record.chunk_count as f64;
            let per_mille = 1_000.0 * bytes as f64 / record.bytes as f64;
            println!(
                "| {name} | {per_chunk:.3} | {:.3} % | {} sets, {} chunks, {} bytes, {:.3} B/value",
                per_mille / 10.0,
                suffix.sets.len(),
                record.chunk_count,
                record.bytes,
                record.bytes as f64 / record.value_count as f64,
            );
            assert!(per_mille <= f64::from(per_mille_max), "{name}: {per_mille} per mille");
        }
    }
}
