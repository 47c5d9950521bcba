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
    /// By members, then by time: columns stay long, so they take fewer bytes. By time only if there
    /// are many rows: all of them are decoded for each list of members.
    Members,
    /// By time only: each slice has all members. About 64 rows are not cut, however many members
    /// they have.
    Time,
}

/// A slice by members has at least this many, if there are more, because each stores the time
/// columns again.
const MEMBERS_MIN: usize = 16;
/// A slice consists of about this many pieces of chunks and rows.
const SLICE_PIECES: usize = 8;
/// Pieces of one chunk. A damaged one may claim any number of values.
const PIECES_MAX: usize = 1 << 12;
/// In fewer rows the headers of columns take most of the bytes.
const ROWS_MIN: usize = 64;
/// Rows are decoded for each list of members, together at most this many times the size of the
/// group.
const ROW_PASSES_MAX: usize = 4;
/// A timestamp and a value.
const SAMPLE_BYTES: usize = size_of::<Timestamp>() + size_of::<f64>();

impl Slice {
    /// All members at all times.
    pub const WHOLE: Slice = Slice { slots: None, range: TimeRange::ALL };

    /// The members.
    pub fn slots(&self) -> Slots<'_> {
        slots_of(&self.slots)
    }
}

fn slots_of(list: &Option<Vec<Slot>>) -> Slots<'_> {
    list.as_deref().map_or(Slots::All, Slots::Some)
}

/// The sizes of a group's samples that are not in chunks, for [`cut_slices`].
#[derive(Clone, Debug)]
pub struct RowSizes {
    /// Number of values of each slot.
    count_by_slot: Vec<usize>,
    value_count: usize,
    row_count: usize,
    /// The present row, and the first one once it is complete.
    row: Option<RowShape>,
    first_row: Option<RowShape>,
    /// Whether the rows do not rise in time or have different members, about. Then they take more
    /// memory until they are columns.
    are_uneven: bool,
    /// The time of each value that completes another `piece_values`.
    pieces: Vec<Timestamp>,
    piece_values: usize,
}

#[derive(Clone, Copy, Debug)]
struct RowShape {
    ts: Timestamp,
    first: Slot,
    len: usize,
}

impl RowSizes {
    /// No samples yet, of a group to be cut into slices of `bytes_max`.
    pub fn new(bytes_max: usize) -> RowSizes {
        RowSizes {
            count_by_slot: Vec::new(),
            value_count: 0,
            row_count: 0,
            row: None,
            first_row: None,
            are_uneven: false,
            pieces: Vec::new(),
            piece_values: piece_bytes(bytes_max).div_ceil(SAMPLE_BYTES),
        }
    }

    /// Adds a value. Values of one row follow each other.
    #[inline]
    pub fn add(&mut self, ts: Timestamp, slot: Slot) {
        let idx = slot.0 as usize;
        if self.count_by_slot.len() <= idx {
            self.count_by_slot.resize(idx.saturating_add(1), 0);
        }
        if let Some(count) = self.count_by_slot.get_mut(idx) {
            *count = count.saturating_add(1);
        }
        if self.row.is_none_or(|row| row.ts != ts) {
            self.begin_row(ts, slot);
        }
        if let Some(row) = &mut self.row {
            row.len = row.len.saturating_add(1);
        }
        self.value_count = self.value_count.saturating_add(1);
        if self.value_count.is_multiple_of(self.piece_values) {
            self.pieces.push(ts);
        }
    }

    fn begin_row(&mut self, ts: Timestamp, first: Slot) {
        if let Some(row) = self.row.replace(RowShape { ts, first, len: 0 }) {
            let first_row = *self.first_row.get_or_insert(row);
            let is_other = (row.first, row.len) != (first_row.first, first_row.len);
            self.are_uneven |= is_other || ts < row.ts;
        }
        self.row_count = self.row_count.saturating_add(1);
    }

    /// The members, ascending, each with its number of values.
    fn members(&self) -> impl Iterator<Item = (Slot, usize)> {
        let counts = (0..).map(Slot).zip(self.count_by_slot.iter().copied());
        counts.filter(|&(_, count)| count > 0)
    }

    /// On average.
    fn values_per_row(&self) -> usize {
        self.value_count.checked_div(self.row_count).unwrap_or(0)
    }

    /// As [`Chunk::decoded_bytes`] of some members.
    fn bytes_of(&self, slots: Slots<'_>) -> usize {
        let value_count = match slots {
            Slots::All => self.value_count,
            Slots::Some(slots) => {
                let count = |slot: &Slot| self.count_by_slot.get(slot.0 as usize).copied();
                slots.iter().filter_map(count).fold(0, usize::saturating_add)
            }
        };
        match self.are_uneven {
            true => value_count.saturating_mul(SAMPLE_BYTES),
            false => decoded_bytes(value_count, self.row_count),
        }
    }

    /// Adds the pieces of `bytes` of all values.
    fn push_pieces(&self, bytes: usize, pieces: &mut Vec<(Timestamp, usize)>) {
        let of_piece = bytes.checked_div(self.pieces.len()).unwrap_or(0);
        pieces.extend(self.pieces.iter().map(|&ts| (ts, of_piece)));
    }
}

/// Cuts a group into slices of about `bytes_max` bytes once decoded. The group consists of `chunks`
/// and of `rows`. Together the slices are the whole group, no two of them overlap, and those of a
/// member ascend in time. Decodes no column.
///
/// # Errors
/// `Corrupt` if a chunk is damaged.
pub fn cut_slices(
    chunks: &[Chunk<'_>],
    rows: &RowSizes,
    bytes_max: usize,
    by: SliceBy,
) -> Result<Vec<Slice>> {
    let of_rows = rows.bytes_of(Slots::All);
    let bytes = chunks.iter().map(Chunk::decoded_bytes).fold(of_rows, usize::saturating_add);
    if bytes <= bytes_max {
        return Ok(vec![Slice::WHOLE]);
    }
    let lists = match by {
        SliceBy::Members => Some(cut_members(chunks, rows, bytes_max)?),
        SliceBy::Time => None,
    };
    let lists = lists.filter(|lists| {
        // The times of a list's rows are not known, only those of all rows.
        let is_small = |list: &Option<Vec<Slot>>| rows.bytes_of(slots_of(list)) <= bytes_max;
        let passes_bytes = lists.len().saturating_mul(of_rows);
        passes_bytes <= bytes.saturating_mul(ROW_PASSES_MAX) && lists.iter().all(is_small)
    });
    let full_row_bytes = || {
        let of_chunks = chunks.iter().map(|chunk| chunk.slots().count()).max().unwrap_or(0);
        of_chunks.max(rows.values_per_row()).saturating_mul(size_of::<f64>())
    };
    let (lists, bytes_max) = match lists {
        Some(lists) => (lists, bytes_max),
        // Uneven rows take four times their size.
        None if rows.are_uneven => (vec![None], bytes_max),
        None => (vec![None], bytes_max.max(full_row_bytes().saturating_mul(ROWS_MIN))),
    };
    if bytes <= bytes_max {
        return Ok(vec![Slice::WHOLE]);
    }
    let mut slices = Vec::new();
    for slots in lists {
        let whole = Slice { slots, range: TimeRange::ALL };
        let row_bytes = rows.bytes_of(whole.slots());
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
        if sizes.iter().copied().fold(row_bytes, usize::saturating_add) <= uncut_max {
            slices.push(whole);
            continue;
        }
        let mut pieces = Vec::new();
        rows.push_pieces(row_bytes, &mut pieces);
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
    Ok(decoded_bytes(value_count, chunk.entry_count()))
}

/// Bytes of values that share `entry_count` timestamps, or have fewer.
fn decoded_bytes(value_count: usize, entry_count: usize) -> usize {
    value_count.saturating_add(value_count.min(entry_count)).saturating_mul(size_of::<f64>())
}

/// Bytes of a piece of a slice.
fn piece_bytes(bytes_max: usize) -> usize {
    bytes_max.div_euclid(SLICE_PIECES).max(1)
}

/// The members in lists of about `bytes_max` bytes.
fn cut_members(
    chunks: &[Chunk<'_>],
    rows: &RowSizes,
    bytes_max: usize,
) -> Result<Vec<Option<Vec<Slot>>>> {
    let of_rows = |(slot, count): (Slot, usize)| (slot, count.saturating_mul(size_of::<f64>()));
    let mut bytes_by_slot: BTreeMap<Slot, usize> = rows.members().map(of_rows).collect();
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
    let count = bytes.div_ceil(piece_bytes(bytes_max)).min(PIECES_MAX) as i128;
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
            in_rows in prop::collection::vec((-500i64..5_000, 0u32..90), 0..400),
        ) {
            let mut sizes = RowSizes::new(bytes_max);
            in_rows.iter().for_each(|&(ts, slot)| sizes.add(ts, Slot(slot)));
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
            let (mut last, mut of_rows) = (BTreeMap::new(), Vec::new());
            for slice in cut_slices(&chunks, &sizes, bytes_max, by).unwrap() {
                let is_here = |&&(ts, slot): &&(Timestamp, u32)| {
                    slice.range.contains(ts) && slice.slots().contains(Slot(slot))
                };
                of_rows.extend(in_rows.iter().filter(is_here).copied());
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
            let mut in_rows = in_rows;
            in_rows.sort_unstable();
            of_rows.sort_unstable();
            prop_assert_eq!(of_rows, in_rows, "a value of a row is in one slice");
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
        let no_rows = RowSizes::new(BYTES_MAX);
        for (shape, encoded) in [("uneven", &uneven), ("wide", &wide), ("long", &long)] {
            let chunks = open(encoded);
            for by in [SliceBy::Members, SliceBy::Time] {
                let slices = cut_slices(&chunks, &no_rows, BYTES_MAX, by).unwrap();
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
        let chunks = open(&uneven[..1]);
        let whole = cut_slices(&chunks, &no_rows, BYTES_MAX, SliceBy::Members).unwrap();
        assert_eq!(whole, [Slice::WHOLE]);
    }

    /// Also if they came late or have other distances.
    #[test]
    fn slices_of_many_rows_are_small() {
        const BYTES_MAX: usize = 64 << 10;
        let uneven = |row: i64| if row == 0 { -1 << 40 } else { row * row };
        type TimeOfRow = fn(i64) -> Timestamp;
        let shapes: [(&str, u32, TimeOfRow); 4] = [
            ("long", 1, |row| row),
            ("late", 1, |row| -row),
            ("wide", 500, |row| row * 1_000),
            ("uneven", 2, uneven),
        ];
        for (shape, member_count, time) in shapes {
            let row_count = 400_000 / i64::from(member_count);
            let mut sizes = RowSizes::new(BYTES_MAX);
            for ts in (0..row_count).map(time) {
                (0..member_count).for_each(|slot| sizes.add(ts, Slot(slot)));
            }
            for by in [SliceBy::Members, SliceBy::Time] {
                let slices = cut_slices(&[], &sizes, BYTES_MAX, by).unwrap();
                let bytes_of = |slice: &Slice| {
                    let here = (0..row_count).filter(|&row| slice.range.contains(time(row)));
                    let slots =
                        (0..member_count).filter(|&slot| slice.slots().contains(Slot(slot)));
                    decoded_bytes(here.clone().count() * slots.count(), here.count())
                };
                let largest = slices.iter().map(bytes_of).max().unwrap();
                let all_members =
                    if by == SliceBy::Time { member_count as usize * 8 * ROWS_MIN } else { 0 };
                let limit = 4 * BYTES_MAX.max(all_members);
                assert!(largest <= limit, "{shape} by {by:?}: {largest} of {limit}");
            }
        }
    }
}
