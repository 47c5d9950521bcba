//! The manifest's record of a table: enough to plan without opening the table.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::fmt;

use firn_codec::SeqRange;
use firn_codec::varint::{encode_zigzag, take_u8, take_varint, take_zigzag};
use firn_model::{ColumnType, CommitSeq, Error, GroupId, Result, TimeRange, Timestamp};

use firn_model::encode_varint;

use crate::partition::Partition;

/// A table's name. Never reused for a table that a manifest has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u64);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// The level of a table. 0 and 1 are files of the fast tier, 2 are objects of the slow tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As flushed: tables of one partition overlap.
    Zero = 0,
    /// Merged: tables of one partition have disjoint groups.
    One = 1,
    /// Uploaded: as level 1, and patches beside them.
    Two = 2,
}

impl Level {
    /// All, from young to old.
    pub const ALL: [Level; 3] = [Level::Zero, Level::One, Level::Two];

    fn from_u8(number: u8) -> Option<Level> {
        Level::ALL.into_iter().find(|level| *level as u8 == number)
    }

    /// Whether its tables are objects of the slow tier.
    pub fn is_slow(self) -> bool {
        self == Level::Two
    }
}

/// The encoding of a record; the form of its part in the manifest determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordForm {
    First,
    WithDeletes,
}

/// One table as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// Its name.
    pub id: TableId,
    /// Its level.
    pub level: Level,
    /// Whether it holds late data beside the tables of a level-2 partition.
    pub patch: bool,
    /// The partition that contains all its samples.
    pub partition: Partition,
    /// Length of the file.
    pub bytes: u64,
    /// Length of the directory at its end, which is read first, in one request.
    pub suffix_bytes: u32,
    /// Part of every checksum of the file, so that bytes of another table do not match.
    pub salt: u32,
    /// First group.
    pub group_min: GroupId,
    /// Last group.
    pub group_max: GroupId,
    /// The timestamps of its samples.
    pub time_range: TimeRange,
    /// The commits that its samples are from.
    pub seq: SeqRange,
    /// The types of its columns: bit `n` for [`ColumnType`] number `n`.
    pub column_types: u32,
    /// Number of blocks.
    pub block_count: u32,
    /// Number of chunks.
    pub chunk_count: u64,
    /// Rows: entries of all time columns of all chunks.
    pub entry_count: u64,
    /// Values.
    pub value_count: u64,
    /// Wall time at which its oldest sample was flushed.
    pub written_ms: Timestamp,
    /// Deletes up to this one hide nothing in it: they were applied when it was written, or touch
    /// none of its samples.
    pub deletes_through: CommitSeq,
}

impl TableRecord {
    /// Path of the file or key of the object.
    pub fn path(&self) -> String {
        table_path(self.id)
    }

    /// Whether `group` can be in it.
    pub fn may_hold(&self, group: GroupId) -> bool {
        self.group_min <= group && group <= self.group_max
    }

    /// Checks a chunk of `group` with timestamps in `range`. A merge relies on both.
    ///
    /// # Errors
    /// `Corrupt` (without file and offset) if the group or a timestamp is outside of the table.
    pub(crate) fn check_chunk(&self, group: GroupId, range: TimeRange) -> Result<()> {
        if !self.may_hold(group) || !self.time_range.covers(range) {
            return Err(Error::corrupt("", 0, "chunk of a group or a time outside of its table"));
        }
        Ok(())
    }

    /// Offset of the suffix: the end of the blocks.
    pub(crate) fn suffix_offset(&self) -> u64 {
        self.bytes.saturating_sub(self.suffix_bytes.into())
    }

    /// Appends the record.
    ///
    /// # Panics
    /// If it contradicts itself: the manifest could not be read again.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert_eq!(self.check(), Ok(()), "{self:?}");
        let (partition_idx, partition_doublings) = self.partition.to_parts();
        encode_varint(self.id.0, out);
        out.push(self.level as u8);
        out.push(u8::from(self.patch));
        encode_zigzag(partition_idx, out);
        out.push(partition_doublings);
        encode_varint(self.bytes, out);
        encode_varint(self.suffix_bytes.into(), out);
        out.extend_from_slice(&self.salt.to_le_bytes());
        encode_varint(self.group_min.0, out);
        encode_varint(self.group_max.0, out);
        encode_zigzag(self.time_range.start, out);
        encode_zigzag(self.time_range.end, out);
        encode_varint(self.seq.min.0, out);
        encode_varint(self.seq.max.0, out);
        encode_varint(self.column_types.into(), out);
        encode_varint(self.block_count.into(), out);
        encode_varint(self.chunk_count, out);
        encode_varint(self.entry_count, out);
        encode_varint(self.value_count, out);
        encode_zigzag(self.written_ms, out);
        encode_varint(self.deletes_through.0, out);
    }

    /// Checks that the fields do not contradict each other. The writer asserts it; a reader
    /// reports `Corrupt`.
    fn check(&self) -> Result<(), &'static str> {
        if u64::from(self.suffix_bytes) > self.bytes {
            return Err("suffix is longer than the table");
        }
        if !self.partition.range().covers(self.time_range) {
            return Err("timestamps outside the partition");
        }
        if self.group_min > self.group_max {
            return Err("first group is above the last one");
        }
        Ok(())
    }

    /// Takes a record from the front of `input`; those of the first form end before
    /// `deletes_through`.
    ///
    /// # Errors
    /// `Corrupt` if it is cut short or contradicts itself; `Invalid` if it has columns of a type
    /// that this version cannot read.
    pub(crate) fn take(input: &mut &[u8], form: RecordForm) -> Result<TableRecord> {
        let bad = |what: &str| Error::corrupt("manifest", 0, format!("table record: {what}"));
        let id = TableId(take_varint(input, "table id")?);
        let level = Level::from_u8(take_u8(input, "level")?).ok_or_else(|| bad("level"))?;
        let patch = take_u8(input, "patch mark")? != 0;
        let partition_idx = take_zigzag(input, "partition")?;
        let partition_doublings = take_u8(input, "partition length")?;
        let partition = Partition::from_parts(partition_idx, partition_doublings)
            .ok_or_else(|| bad("partition"))?;
        let bytes = take_varint(input, "table bytes")?;
        let suffix_bytes = take_u32(input, "suffix bytes")?;
        let (salt, rest) = input.split_first_chunk::<4>().ok_or_else(|| bad("salt"))?;
        *input = rest;
        let record = TableRecord {
            id,
            level,
            patch,
            partition,
            bytes,
            suffix_bytes,
            salt: u32::from_le_bytes(*salt),
            group_min: GroupId(take_varint(input, "first group")?),
            group_max: GroupId(take_varint(input, "last group")?),
            time_range: TimeRange::new(
                take_zigzag(input, "first timestamp")?,
                take_zigzag(input, "last timestamp")?,
            ),
            seq: SeqRange {
                min: CommitSeq(take_varint(input, "first commit")?),
                max: CommitSeq(take_varint(input, "last commit")?),
            },
            column_types: take_u32(input, "column types")?,
            block_count: take_u32(input, "block count")?,
            chunk_count: take_varint(input, "chunk count")?,
            entry_count: take_varint(input, "entry count")?,
            value_count: take_varint(input, "value count")?,
            written_ms: take_zigzag(input, "time of writing")?,
            deletes_through: match form {
                RecordForm::First => CommitSeq(0),
                RecordForm::WithDeletes => CommitSeq(take_varint(input, "applied deletes")?),
            },
        };
        record.check().map_err(bad)?;
        let unknown = record.column_types & !column_type_bit(ColumnType::F64);
        if unknown != 0 {
            return Err(Error::invalid(format!(
                "{} has column types {unknown:#b} that this version does not know; start the \
                 newer program",
                record.path()
            )));
        }
        Ok(record)
    }
}

/// A column type in [`TableRecord::column_types`].
pub(crate) fn column_type_bit(column_type: ColumnType) -> u32 {
    1u32.wrapping_shl(column_type as u32)
}

pub(crate) const TABLE_FOLDER: &str = "tables";
const TABLE_EXTENSION: &str = ".fst";

pub(crate) fn table_path(id: TableId) -> String {
    format!("{TABLE_FOLDER}/{}{TABLE_EXTENSION}", id.0)
}

/// The id in a table's file name, `None` for other files, such as `017.fst` and `+17.fst`.
pub(crate) fn table_of_name(name: &str) -> Option<TableId> {
    let id = name.strip_suffix(TABLE_EXTENSION)?;
    let table = TableId(id.parse().ok()?);
    (id == table.0.to_string()).then_some(table)
}

fn take_u32(input: &mut &[u8], field: &'static str) -> Result<u32> {
    u32::try_from(take_varint(input, field)?)
        .map_err(|_| Error::corrupt("manifest", 0, format!("table record: {field} is too large")))
}

#[cfg(test)]
pub(crate) fn sample_record(id: u64, level: Level, partition: Partition) -> TableRecord {
    TableRecord {
        id: TableId(id),
        level,
        patch: false,
        partition,
        bytes: 1000,
        suffix_bytes: 100,
        salt: 7,
        group_min: GroupId(1),
        group_max: GroupId(u64::MAX),
        time_range: partition.range(),
        seq: SeqRange::at(CommitSeq(9)),
        column_types: 2,
        block_count: 3,
        chunk_count: 4,
        entry_count: 5,
        value_count: 6,
        written_ms: -7,
        deletes_through: CommitSeq(11),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionLen;

    #[test]
    fn a_record_comes_back_and_a_cut_one_is_refused() {
        for ts in [i64::MIN, -1, 0, i64::MAX] {
            let record = sample_record(3, Level::One, Partition::of(ts, PartitionLen::MIN));
            let mut out = Vec::new();
            record.encode(&mut out);
            let mut input = out.as_slice();
            assert_eq!(TableRecord::take(&mut input, RecordForm::WithDeletes).unwrap(), record);
            assert!(input.is_empty());
            out.pop();
            let old = TableRecord::take(&mut out.as_slice(), RecordForm::First).unwrap();
            assert_eq!(old, TableRecord { deletes_through: CommitSeq(0), ..record });
            for len in 0..out.len() {
                assert!(TableRecord::take(&mut &out[..len], RecordForm::WithDeletes).is_err());
            }
        }
    }

    #[test]
    fn a_record_that_contradicts_itself_is_refused() {
        let record = sample_record(3, Level::One, Partition::of(0, PartitionLen::MIN));
        record.check().unwrap();
        let outside = TimeRange::at(record.time_range.end + 1);
        TableRecord { suffix_bytes: 1001, ..record.clone() }.check().unwrap_err();
        TableRecord { time_range: outside, ..record.clone() }.check().unwrap_err();
        TableRecord { group_max: GroupId(0), ..record }.check().unwrap_err();
    }

    #[test]
    fn a_chunk_outside_of_its_table_is_refused() {
        let record = sample_record(3, Level::One, Partition::of(0, PartitionLen::MIN));
        let record = TableRecord { group_max: GroupId(9), ..record };
        let range = record.time_range;
        record.check_chunk(GroupId(9), range).unwrap();
        record.check_chunk(GroupId(10), range).unwrap_err();
        record.check_chunk(record.group_min, TimeRange::at(range.end + 1)).unwrap_err();
    }

    #[test]
    fn a_newer_column_type_is_refused_by_name() {
        let mut record = sample_record(3, Level::One, Partition::of(0, PartitionLen::MIN));
        record.column_types = 0b110;
        let mut out = Vec::new();
        record.encode(&mut out);
        let error = TableRecord::take(&mut out.as_slice(), RecordForm::First).unwrap_err();
        assert!(error.to_string().contains("tables/3.fst has column types 0b100"), "{error}");
    }

    #[test]
    fn names_and_ids() {
        assert_eq!(table_path(TableId(17)), "tables/17.fst");
        assert_eq!(table_of_name("17.fst"), Some(TableId(17)));
        for other in ["17.tmp", "017.fst", "+17.fst", "17.FST", "17.fst.bak", ".fst", "a.fst"] {
            assert_eq!(table_of_name(other), None, "{other}");
        }
    }
}
