//! The head of a chunk or run: the fields before its body.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{CommitSeq, GroupId, Result, TimeRange, Timestamp};

use crate::columns::SeqRange;
use crate::limits::ENTRIES_MAX;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_count, take_u8, take_varint, take_zigzag,
};

/// The version that is written and read.
pub(super) const VERSION: u8 = 1;
/// Flag: only slot 0, one time column, no NULL.
pub(super) const LONE: u8 = 0x10;
/// Flag with `LONE`: the timestamps are equidistant.
pub(super) const REGULAR: u8 = 0x20;

/// The fields before a chunk's body.
pub(super) struct Head {
    pub(super) tag: u8,
    pub(super) group: GroupId,
    pub(super) seq: SeqRange,
    pub(super) range: TimeRange,
    /// For a lone series.
    pub(super) entry_count: Option<usize>,
}

impl Head {
    pub(super) fn take(input: &mut &[u8]) -> Result<Head> {
        let tag = Head::take_tag(input)?;
        let group = GroupId(take_varint(input, "chunk group")?);
        let min = take_varint(input, "chunk seq")?;
        let max = min.checked_add(take_varint(input, "chunk seq")?);
        let max = max.ok_or_else(|| corrupt("chunk seq is over 64 bits"))?;
        let start = take_zigzag(input, "chunk start")?;
        let span = take_varint(input, "chunk end")?;
        let range = range_of(start, span)?;
        let entry_count = Head::take_entry_count(tag, input)?;
        let seq = SeqRange { min: CommitSeq(min), max: CommitSeq(max) };
        Ok(Head { tag, group, seq, range, entry_count })
    }

    pub(super) fn take_run(input: &mut &[u8], base: Timestamp) -> Result<Head> {
        let tag = Head::take_tag(input)?;
        let start = base.wrapping_add(take_varint(input, "run start")? as i64);
        let entry_count = Head::take_entry_count(tag, input)?;
        let distance = take_varint(input, "run end")?;
        let steps = match entry_count {
            Some(count) if tag & REGULAR != 0 => (count as u64).saturating_sub(1),
            _ => 1,
        };
        let span = distance.checked_mul(steps).ok_or_else(|| corrupt("run end is over 64 bits"))?;
        let range = range_of(start, span)?;
        Ok(Head { tag, group: GroupId(0), seq: SeqRange::default(), range, entry_count })
    }

    fn take_tag(input: &mut &[u8]) -> Result<u8> {
        let tag = take_u8(input, "chunk version")?;
        if ![VERSION, VERSION | LONE, VERSION | LONE | REGULAR].contains(&tag) {
            return Err(corrupt(format!(
                "chunk version {tag:#04x}, this build reads {VERSION:#04x}"
            )));
        }
        Ok(tag)
    }

    fn take_entry_count(tag: u8, input: &mut &[u8]) -> Result<Option<usize>> {
        if tag & LONE == 0 {
            return Ok(None);
        }
        let entry_count = take_count(input, ENTRIES_MAX, "chunk entries")?;
        if entry_count == 0 {
            return Err(corrupt("chunk without entries"));
        }
        Ok(Some(entry_count))
    }
}

fn range_of(start: Timestamp, span: u64) -> Result<TimeRange> {
    let end = start.checked_add_unsigned(span);
    let end = end.ok_or_else(|| corrupt("chunk end is over 64 bits"))?;
    Ok(TimeRange::new(start, end))
}

/// Appends the head of a chunk.
pub(super) fn encode_head(
    flags: u8,
    group: GroupId,
    seq: SeqRange,
    range: TimeRange,
    out: &mut Vec<u8>,
) {
    assert!(seq.min <= seq.max, "commits of a chunk: {seq:?}");
    assert!(!range.is_empty(), "time range of a chunk: {range:?}");
    out.push(VERSION | flags);
    encode_varint(group.0, out);
    encode_varint(seq.min.0, out);
    encode_varint(seq.max.0.wrapping_sub(seq.min.0), out);
    encode_zigzag(range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
}
