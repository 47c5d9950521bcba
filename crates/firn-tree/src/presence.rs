//! Presence sets in a table's directory: which members of a group a block has, and when.
//!
//! ```text
//! set  = part*
//! part = varint(first cell * 32 + 31 - last cell) postings(slots)
//! ```
//! A partition is divided into 32 *cells* of time: most members of most groups are present from its
//! first cell to its last, so nearly all blocks of a table have one of a few sets, and each set is
//! stored once. A member is in one part of a set, from the cell of its first sample to that of its
//! last.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::GroupColumns;
use firn_codec::postings::{Postings, encode_postings};
use firn_codec::varint::take_varint;
use firn_model::{Column, Error, Result, Slot, TimeRange, Timestamp, encode_varint};

use crate::partition::Partition;

// A cell is 14 s of the shortest partition, 30 min of one of 16 h (as much as Prometheus' chunks),
// and 4 h of the longest.
const CELLS: u8 = 32;

/// The cells of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    start: i128,
    len_ms: i128,
}

/// From the first to the last cell in which a member has samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    first: u8,
    last: u8,
}

/// The members of one group that a block has; borrows a table's directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PresenceSet<'a>(&'a [u8]);

/// The sets of one table, by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PresenceSets {
    bytes: Vec<u8>,
    entries: Vec<SetEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct SetEntry {
    end: u32,
    slot_min: Slot,
    slot_max: Slot,
}

impl Grid {
    pub(crate) fn of(partition: Partition) -> Grid {
        let (idx, _) = partition.to_parts();
        let len_ms = i128::from(partition.len().as_ms());
        Grid { start: i128::from(idx).saturating_mul(len_ms), len_ms }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot path; operands of 64 bits cannot overflow 128, and `len_ms` is positive"
    )]
    fn cell(self, ts: Timestamp) -> u8 {
        let cell = (i128::from(ts) - self.start) * i128::from(CELLS) / self.len_ms;
        u8::try_from(cell.clamp(0, i128::from(CELLS - 1))).unwrap_or(CELLS - 1)
    }

    fn span(self, first: Timestamp, last: Timestamp) -> Span {
        Span { first: self.cell(first), last: self.cell(last) }
    }

    /// The timestamps of some cells.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot path; operands of 64 bits cannot overflow 128, and `len_ms` is positive"
    )]
    pub(crate) fn range(self, span: Span) -> TimeRange {
        let start_of = |cell: u8| {
            let cells = i128::from(cell) * self.len_ms;
            self.start + (cells + i128::from(CELLS - 1)) / i128::from(CELLS)
        };
        let clamp =
            |ts: i128| i64::try_from(ts).unwrap_or(if ts < 0 { i64::MIN } else { i64::MAX });
        TimeRange::new(clamp(start_of(span.first)), clamp(start_of(span.last + 1) - 1))
    }

    /// Appends the members of `columns` and the span of each.
    #[expect(clippy::indexing_slicing, reason = "hot loop; columns are in memory, and consistent")]
    pub(crate) fn add_members(self, columns: &GroupColumns, out: &mut Vec<(Slot, Span)>) {
        let whole = columns.batch.times.iter().map(|times| match &times[..] {
            [first, .., last] => self.span(*first, *last),
            [one] => self.span(*one, *one),
            [] => Span { first: 0, last: 0 },
        });
        let whole: Vec<Span> = whole.collect();
        let span_of = |column: &Column| {
            let time_idx = column.time_idx as usize;
            let Some(presence) = &column.presence else { return whole[time_idx] };
            let times = &columns.batch.times[time_idx];
            let (mut entries, mut last) = (presence.iter(), None);
            let first = entries.next();
            entries.for_each(|entry| last = Some(entry));
            let ends = first.map(|first| (times[first], times[last.unwrap_or(first)]));
            ends.map_or(whole[time_idx], |(first, last)| self.span(first, last))
        };
        out.extend(columns.batch.columns.iter().map(|column| (column.slot, span_of(column))));
    }
}

impl Span {
    fn union(self, other: Span) -> Span {
        Span { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    fn to_number(self) -> u64 {
        let behind = (CELLS - 1).saturating_sub(self.last);
        u64::from(self.first).saturating_mul(u64::from(CELLS)).saturating_add(behind.into())
    }

    fn from_number(number: u64) -> Option<Span> {
        const CELL_COUNT: u64 = CELLS as u64;
        let span = Span {
            first: u8::try_from(number / CELL_COUNT).ok()?,
            last: (CELLS - 1).checked_sub(u8::try_from(number % CELL_COUNT).ok()?)?,
        };
        (span.first <= span.last).then_some(span)
    }
}

/// Appends the set of `members`, in any order; the spans of a repeated member are united. `members`
/// is left empty.
pub(crate) fn encode_set(members: &mut Vec<(Slot, Span)>, out: &mut Vec<u8>) {
    members.sort_unstable();
    members.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.union(next.1);
        }
        is_same
    });
    // Stable, so that the slots of each span still rise.
    members.sort_by_key(|member| member.1);
    let mut slots: Vec<u64> = Vec::new();
    for part in members.chunk_by(|a, b| a.1 == b.1) {
        let Some((_, span)) = part.first() else { continue };
        encode_varint(span.to_number(), out);
        slots.clear();
        slots.extend(part.iter().map(|member| u64::from(member.0.0)));
        encode_postings(&slots, out);
    }
    members.clear();
}

impl PresenceSets {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a set, which [`encode_set`] made.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be decoded.
    pub(crate) fn push(&mut self, set: &[u8]) -> Result<()> {
        let (slot_min, slot_max) = checked_bounds(set)?;
        self.bytes.extend_from_slice(set);
        let end = u32::try_from(self.bytes.len()).map_err(|_| bad("sets are over 4 GiB"))?;
        self.entries.push(SetEntry { end, slot_min, slot_max });
        Ok(())
    }

    pub(crate) fn get(&self, number: u32) -> Option<PresenceSet<'_>> {
        let entry = self.entries.get(number as usize)?;
        let previous = (number as usize).checked_sub(1).and_then(|idx| self.entries.get(idx));
        let start = previous.map_or(0, |previous| previous.end);
        self.bytes.get(start as usize..entry.end as usize).map(PresenceSet)
    }

    /// The lowest and the highest slot of a set.
    pub(crate) fn slots_of(&self, number: u32) -> Option<(Slot, Slot)> {
        self.entries.get(number as usize).map(|entry| (entry.slot_min, entry.slot_max))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0u32..).map_while(|number| self.get(number)).map(|set| set.0)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let entries_bytes = self.entries.capacity().saturating_mul(size_of::<SetEntry>());
        self.bytes.capacity().saturating_add(entries_bytes)
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }
}

impl<'a> PresenceSet<'a> {
    /// The spans and their members.
    pub(crate) fn parts(self) -> impl Iterator<Item = (Span, Postings<'a>)> {
        let mut rest = self.0;
        // Sets were checked when they were added.
        std::iter::from_fn(move || take_part(&mut rest).ok())
    }
}

fn take_part<'a>(input: &mut &'a [u8]) -> Result<(Span, Postings<'a>)> {
    let span = Span::from_number(take_varint(input, "cells of a presence set")?);
    let span = span.ok_or_else(|| bad("cells of a presence set are out of order"))?;
    Ok((span, Postings::take(input)?))
}

/// The lowest and the highest slot of a set that is all of `set`.
fn checked_bounds(set: &[u8]) -> Result<(Slot, Slot)> {
    let mut rest = set;
    let mut bounds: Option<(u64, u64)> = None;
    while !rest.is_empty() {
        let (_, slots) = take_part(&mut rest)?;
        slots.for_each_run(|first, last| {
            let (min, max) = bounds.unwrap_or((first, last));
            bounds = Some((min.min(first), max.max(last)));
        })?;
    }
    let (min, max) = bounds.ok_or_else(|| bad("a presence set is empty"))?;
    match (u32::try_from(min), u32::try_from(max)) {
        (Ok(min), Ok(max)) => Ok((Slot(min), Slot(max))),
        _ => Err(bad("a slot of a presence set is over 32 bits")),
    }
}

fn bad(what: &str) -> Error {
    Error::corrupt("suffix", 0, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionLen;

    const LENGTHS_MS: [i64; 3] = [450_000, 1_800_000, 57_600_000];

    #[test]
    fn a_span_holds_its_timestamps_and_little_more() {
        for len in LENGTHS_MS.map(|ms| PartitionLen::from_ms(ms).unwrap()) {
            for ts in [i64::MIN, -1, 0, 1_700_000_000_000, i64::MAX] {
                let partition = Partition::of(ts, len);
                let (grid, all) = (Grid::of(partition), partition.range());
                assert_eq!(grid.range(grid.span(all.start, all.end)), all);
                let cell_ms = len.as_ms() / i64::from(CELLS) + 1;
                let mut at = all.start;
                loop {
                    let range = grid.range(grid.span(at, at));
                    assert!(range.contains(at) && all.covers(range), "{at} in {range:?}");
                    assert!(range.end - range.start < cell_ms, "{range:?}");
                    let Some(next) = range.end.checked_add(1).filter(|ts| all.contains(*ts)) else {
                        break;
                    };
                    at = next;
                }
            }
        }
    }

    #[test]
    fn a_set_comes_back_with_each_member_once() {
        let span = |first, last| Span { first, last };
        let mut members = vec![
            (Slot(7), span(3, 3)),
            (Slot(0), span(0, 31)),
            (Slot(7), span(30, 31)),
            (Slot(5), span(3, 31)),
            (Slot(u32::MAX), span(31, 31)),
        ];
        let mut out = Vec::new();
        encode_set(&mut members, &mut out);
        assert!(members.is_empty());
        let mut sets = PresenceSets::default();
        sets.push(&out).unwrap();
        let parts: Vec<(Span, Vec<u64>)> = sets
            .get(0)
            .unwrap()
            .parts()
            .map(|(span, slots)| (span, slots.iter().collect()))
            .collect();
        let want = [
            (span(0, 31), vec![0]),
            (span(3, 31), vec![5, 7]),
            (span(31, 31), vec![u64::from(u32::MAX)]),
        ];
        assert_eq!(parts, want);
        assert_eq!(sets.slots_of(0), Some((Slot(0), Slot(u32::MAX))));
        assert!(sets.get(1).is_none());
        // Nothing; a cell behind the last; cells that fall; no slot; half of a part.
        for wrong in [&[][..], &[0x80, 0x08, 4, 0], &[0xbf, 0x01, 4, 0], &[0, 0], &[0]] {
            assert!(PresenceSets::default().push(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_span_has_its_number() {
        for first in 0..CELLS {
            for last in first..CELLS {
                let span = Span { first, last };
                assert_eq!(Span::from_number(span.to_number()), Some(span));
            }
        }
        assert_eq!(Span { first: 0, last: CELLS - 1 }.to_number(), 0);
        assert_eq!(Span::from_number(u64::MAX), None);
    }
}
