//! Cuts a large group into slices, so that a job that copies the group decodes a bounded part of it
//! at a time. A group of 0.2 bytes per sample may take 100 times its size once it is decoded.

use std::collections::BTreeMap;

use firn_model::{Result, Slot, TimeRange, Timestamp};

use crate::chunk::Chunk;
use crate::columns::Slots;

/// Some members of a group in a time range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Ascending; `None` for all.
    slots: Option<Vec<Slot>>,
    /// The times.
    pub range: TimeRange,
}

/// The direction of the first cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceBy {
    /// By members, then by time: columns stay long, so they take fewer bytes.
    Members,
    /// By time only: each slice has all members. About 64 rows are not cut, however many members
    /// they have.
    Time,
}

/// A slice by members has at least this many, if there are more, because each stores the time
/// columns again.
const MEMBERS_MIN: usize = 16;
/// A slice consists of about this many pieces of chunks.
const SLICE_PIECES: usize = 8;
/// Pieces of one chunk. A damaged one may claim any number of values.
const PIECES_MAX: usize = 1 << 12;
/// In fewer rows the headers of columns take most of the bytes.
const ROWS_MIN: usize = 64;

impl Slice {
    /// All members at all times.
    pub const WHOLE: Slice = Slice { slots: None, range: TimeRange::ALL };

    /// The members.
    pub fn slots(&self) -> Slots<'_> {
        self.slots.as_deref().map_or(Slots::All, Slots::Some)
    }
}

/// Cuts a group into slices of about `bytes_max` bytes once decoded. The group consists of `chunks`
/// and of samples elsewhere, such as rows, of the members `others` (in any order). Together the
/// slices are the whole group, no two of them overlap, and those of a member ascend in time.
/// Decodes no column.
///
/// # Errors
/// `Corrupt` if a chunk is damaged.
pub fn cut_slices(
    chunks: &[Chunk<'_>],
    others: &[Slot],
    bytes_max: usize,
    by: SliceBy,
) -> Result<Vec<Slice>> {
    let row_bytes = match by {
        SliceBy::Members => 0,
        SliceBy::Time => {
            let members = chunks.iter().map(|chunk| chunk.slots().count()).max().unwrap_or(0);
            members.saturating_mul(size_of::<f64>())
        }
    };
    let bytes_max = bytes_max.max(row_bytes.saturating_mul(ROWS_MIN));
    let bytes = chunks.iter().map(Chunk::decoded_bytes).fold(0, usize::saturating_add);
    if bytes <= bytes_max {
        return Ok(vec![Slice::WHOLE]);
    }
    let mut slices = Vec::new();
    for slots in match by {
        SliceBy::Members => cut_members(chunks, others, bytes_max)?,
        SliceBy::Time => vec![None],
    } {
        let whole = Slice { slots, range: TimeRange::ALL };
        let mut sizes = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            sizes.push(match whole.slots() {
                Slots::All => chunk.decoded_bytes(),
                some => bytes_of_members(chunk, some)?,
            });
        }
        // A list of members has a little more than the limit, which is not worth a cut.
        let is_list = whole.slots.is_some();
        let uncut_max = if is_list { bytes_max.saturating_mul(2) } else { bytes_max };
        if sizes.iter().copied().fold(0, usize::saturating_add) <= uncut_max {
            slices.push(whole);
            continue;
        }
        let mut pieces = Vec::new();
        for (chunk, bytes) in chunks.iter().zip(sizes) {
            push_pieces(chunk.time_range(), bytes, bytes_max, &mut pieces);
        }
        let cuts = cut_times(pieces, bytes_max);
        slices.extend(cuts.into_iter().map(|range| Slice { range, ..whole.clone() }));
    }
    Ok(slices)
}

/// As [`Chunk::decoded_bytes`] of some members.
fn bytes_of_members(chunk: &Chunk<'_>, slots: Slots<'_>) -> Result<usize> {
    let mut value_count = 0usize;
    chunk.each_value_count(slots, |_, count| value_count = value_count.saturating_add(count))?;
    let time_count = value_count.min(chunk.entry_count());
    Ok(value_count.saturating_add(time_count).saturating_mul(size_of::<f64>()))
}

/// The members in lists of about `bytes_max` bytes.
fn cut_members(
    chunks: &[Chunk<'_>],
    others: &[Slot],
    bytes_max: usize,
) -> Result<Vec<Option<Vec<Slot>>>> {
    let mut bytes_by_slot: BTreeMap<Slot, usize> = others.iter().map(|&slot| (slot, 0)).collect();
    for chunk in chunks {
        chunk.each_value_count(Slots::All, |slot, count| {
            // Members of a group share timestamps as a rule.
            let values = count.saturating_mul(size_of::<f64>());
            let sum = bytes_by_slot.entry(slot).or_default();
            *sum = sum.saturating_add(values);
        })?;
    }
    let (mut lists, mut list, mut bytes) = (Vec::new(), Vec::new(), 0usize);
    for (slot, bytes_of_slot) in bytes_by_slot {
        list.push(slot);
        bytes = bytes.saturating_add(bytes_of_slot);
        if bytes >= bytes_max && list.len() >= MEMBERS_MIN {
            lists.push(Some(std::mem::take(&mut list)));
            bytes = 0;
        }
    }
    lists.extend((!list.is_empty()).then_some(Some(list)));
    Ok(lists)
}

/// Adds a chunk in pieces of (first time, bytes), as if its samples were at equal distances. Pieces
/// are much smaller than a slice, because many chunks may overlap in time.
fn push_pieces(
    range: TimeRange,
    bytes: usize,
    bytes_max: usize,
    pieces: &mut Vec<(Timestamp, usize)>,
) {
    if bytes == 0 || range.is_empty() {
        return;
    }
    let piece_bytes = bytes_max.div_euclid(SLICE_PIECES).max(1);
    let count = bytes.div_ceil(piece_bytes).min(PIECES_MAX) as i128;
    let length = i128::from(range.end).saturating_sub(range.start.into());
    for piece in 0..count {
        let start = i128::from(range.start)
            .saturating_add(length.saturating_mul(piece).checked_div(count).unwrap_or(0));
        let start = Timestamp::try_from(start).unwrap_or(range.end);
        pieces.push((start, bytes.checked_div(count as usize).unwrap_or(bytes)));
    }
}

/// Ranges of about `bytes_max` that cover all times.
fn cut_times(mut pieces: Vec<(Timestamp, usize)>, bytes_max: usize) -> Vec<TimeRange> {
    pieces.sort_unstable();
    let (mut cuts, mut start, mut bytes) = (Vec::new(), Timestamp::MIN, 0usize);
    for (first, piece_bytes) in pieces {
        if bytes > 0
            && bytes.saturating_add(piece_bytes) > bytes_max
            && let Some(end) = first.checked_sub(1).filter(|&end| end >= start)
        {
            cuts.push(TimeRange::new(start, end));
            (start, bytes) = (first, 0);
        }
        bytes = bytes.saturating_add(piece_bytes);
    }
    cuts.push(TimeRange::new(start, Timestamp::MAX));
    cuts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firn_model::{Column, ColumnBatch, ColumnValues, GroupId};
    use proptest::prelude::*;

    use super::*;
    use crate::{Effort, GroupColumns, encode_chunk, merge_columns};

    /// A chunk of members of one value each at the same times.
    fn chunk(slots: &[u32], start: Timestamp, step: Timestamp, count: usize) -> Vec<u8> {
        let times: Vec<Timestamp> = (0..count as Timestamp).map(|at| start + at * step).collect();
        let columns = slots.iter().map(|&slot| Column {
            slot: Slot(slot),
            key: 0,
            time_idx: 0,
            presence: None,
            values: ColumnValues::F64(vec![f64::from(slot); count]),
        });
        let batch = ColumnBatch { columns: columns.collect(), times: vec![Arc::from(times)] };
        let mut bytes = Vec::new();
        let columns = GroupColumns { batch, ..GroupColumns::default() };
        encode_chunk(GroupId(1), &columns, Effort::Small, &mut bytes);
        bytes
    }

    fn open(chunks: &[Vec<u8>]) -> Vec<Chunk<'_>> {
        chunks.iter().map(|bytes| Chunk::open(bytes).unwrap()).collect()
    }

    fn read(chunks: &[Chunk<'_>], slice: &Slice) -> GroupColumns {
        let read = |chunk: &Chunk<'_>| chunk.read(slice.slots(), slice.range).unwrap();
        merge_columns(&chunks.iter().map(read).collect::<Vec<_>>(), TimeRange::ALL)
    }

    /// Every (slot, timestamp), sorted.
    fn samples(columns: &GroupColumns) -> Vec<(u32, Timestamp)> {
        let batch = &columns.batch;
        let of = |column: &Column| {
            let times = &batch.times[column.time_idx as usize];
            let slot = column.slot.0;
            let is_there = |idx: &usize| match &column.presence {
                None => true,
                Some(presence) => presence.iter().any(|at| at == *idx),
            };
            (0..times.len()).filter(is_there).map(|idx| (slot, times[idx])).collect::<Vec<_>>()
        };
        batch.columns.iter().flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn slices_are_the_group_without_overlap(
            shapes in prop::collection::vec(
                (prop::collection::btree_set(0u32..60, 1..40), -500i64..500, 1i64..90, 1usize..80),
                1..8,
            ),
            bytes_max in 64usize..20_000,
            by_time in any::<bool>(),
            others in prop::collection::vec(0u32..90, 0..9),
        ) {
            let others: Vec<Slot> = others.into_iter().map(Slot).collect();
            let encoded: Vec<Vec<u8>> = shapes
                .iter()
                .map(|(slots, start, step, count)| {
                    let slots: Vec<u32> = slots.iter().copied().collect();
                    chunk(&slots, *start, *step, *count)
                })
                .collect();
            let chunks = open(&encoded);
            let by = if by_time { SliceBy::Time } else { SliceBy::Members };
            let mut found = Vec::new();
            let (mut last, mut of_others) = (BTreeMap::new(), Vec::new());
            for slice in cut_slices(&chunks, &others, bytes_max, by).unwrap() {
                let at_zero = others.iter().filter(|&&slot| slice.slots().contains(slot));
                of_others.extend(at_zero.filter(|_| slice.range.contains(0)).copied());
                let here = samples(&read(&chunks, &slice));
                for &(slot, ts) in &here {
                    prop_assert!(last.insert(slot, ts).is_none_or(|last| last < ts));
                }
                found.extend(here);
            }
            found.sort_unstable();
            let mut all = samples(&read(&chunks, &Slice::WHOLE));
            all.sort_unstable();
            prop_assert_eq!(found, all);
            let mut others = others;
            others.sort_unstable();
            of_others.sort_unstable();
            prop_assert_eq!(of_others, others, "a sample elsewhere is in one slice");
        }
    }

    #[test]
    fn slices_of_a_large_group_are_small() {
        const BYTES_MAX: usize = 64 << 10;
        let many: Vec<u32> = (0..500).collect();
        // One member has nearly all values.
        let uneven = [chunk(&many, 0, 10, 3), chunk(&[40], 30, 10, 60_000)];
        let wide = [chunk(&many, 0, 1_000, 1_000), chunk(&many, 500, 1_000, 1_000)];
        let long = [chunk(&[0], 0, 1, 100_000), chunk(&[0], 100_000, 7, 50_000)];
        for (shape, encoded) in [("uneven", &uneven), ("wide", &wide), ("long", &long)] {
            let chunks = open(encoded);
            for by in [SliceBy::Members, SliceBy::Time] {
                let slices = cut_slices(&chunks, &[], BYTES_MAX, by).unwrap();
                let sizes = slices.iter().map(|slice| {
                    let columns = read(&chunks, slice);
                    8 * (columns.value_count() + columns.entry_count())
                });
                let largest = sizes.max().unwrap();
                let all_members = if by == SliceBy::Time { many.len() * 8 * ROWS_MIN } else { 0 };
                let limit = 4 * BYTES_MAX.max(all_members);
                assert!(largest <= limit, "{shape} by {by:?}: {largest} of {limit}");
            }
        }
        let whole = cut_slices(&open(&uneven[..1]), &[], BYTES_MAX, SliceBy::Members).unwrap();
        assert_eq!(whole, [Slice::WHOLE]);
    }
}
