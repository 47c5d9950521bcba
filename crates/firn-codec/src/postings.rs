//! Sorted lists of ids in the smallest of four forms: gaps, runs, bitmap, packed gaps.
//!
//! ```text
//! list    = varint(count << 2 | form) [first:varint [bytes:varint payload]]
//!           first only if count > 0, the payload only if count > 1
//! gaps    = varint(id - previous - 1) for each id after the first
//! runs    = (varint(run length - 1) varint(ids skipped - 1))*, no skip after the last run
//! bitmap  = bit i of byte i / 8 is id `first + i`; bit 0 is set
//! packed  = skip width:u8, for each block of 128 gaps its last id less `first`, packed at that
//!           width; for each block the width of its gaps:u8; the blocks' gaps (id - previous - 1),
//!           each block from a whole byte on
//! ```
//! Long lists are packed: a seek skips a block by its last id, and 128 gaps unpack at about a
//! nanosecond each. Measured over label sets of TSBS and Kubernetes, the best form per list takes
//! half the bytes of the best single form.
//!
//! ```
//! use firn_codec::postings::{Postings, encode_postings};
//!
//! let mut bytes = Vec::new();
//! encode_postings(&[3, 4, 5, 900], &mut bytes);
//! let list = Postings::take(&mut bytes.as_slice()).unwrap();
//! assert_eq!(list.len(), 4);
//! assert_eq!(list.iter().seek(6), Some(900));
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

mod encode;

use std::ops::ControlFlow;

use firn_model::{Result, Slot};

pub use self::encode::encode_postings;
use crate::bits::{get_bits, packed_bytes};
use crate::varint::{corrupt, cut, take_bytes, take_count, take_varint};

const GAPS: u64 = 0;
const RUNS: u64 = 1;
const BITMAP: u64 = 2;
const PACKED: u64 = 3;
// Number of gaps in a block of the packed form.
const BLOCK: usize = 128;

/// An encoded list; borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Postings<'a> {
    form: u64,
    count: u64,
    first: u64,
    payload: &'a [u8],
}

impl<'a> Postings<'a> {
    /// A list of one id.
    pub fn one(id: u64) -> Postings<'static> {
        Postings { form: GAPS, count: 1, first: id, payload: &[] }
    }

    /// Takes a list of `count` ids (at least one) without a header: the first id, then for each
    /// other id its gap, `id - previous - 1`, all varints.
    ///
    /// # Errors
    /// `Corrupt` if the bytes end early.
    pub fn take_gaps(count: u64, input: &mut &'a [u8]) -> Result<Postings<'a>> {
        let first = take_varint(input, "first id")?;
        let start = *input;
        for _ in 1..count {
            take_varint(input, "gap")?;
        }
        let payload = start.get(..start.len().saturating_sub(input.len())).unwrap_or_default();
        Ok(Postings { form: GAPS, count, first, payload })
    }

    /// Takes a list from the front of `input`. Reads only its header: O(1).
    ///
    /// # Errors
    /// `Corrupt` if the bytes end early.
    pub fn take(input: &mut &'a [u8]) -> Result<Postings<'a>> {
        let header = take_varint(input, "posting list header")?;
        let (form, count) = (header & 3, header >> 2);
        let first = if count > 0 { take_varint(input, "first id")? } else { 0 };
        let payload = match count {
            0 | 1 => &[],
            _ => {
                let bytes = take_count(input, input.len(), "posting list bytes")?;
                take_bytes(input, bytes, "posting list")?
            }
        };
        Ok(Postings { form, count, first, payload })
    }

    /// Number of ids.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the ids in ascending order, without allocations. Damaged bytes end the
    /// iteration early and never panic; [`Postings::decode`] reports them.
    pub fn iter(&self) -> PostingsIter<'a> {
        let is_packed = self.form == PACKED && self.count > 1;
        let packed = if is_packed { PackedGaps::parse(self) } else { None };
        PostingsIter {
            list: *self,
            left: self.count,
            next: self.first,
            run_left: None,
            bit_idx: 0,
            packed: packed.unwrap_or_default(),
        }
    }

    /// The number of ids below `id`, and whether `id` is in the list. O(ids below), a few ns for
    /// short lists. Damaged bytes end the list early.
    #[inline]
    pub fn rank(&self, id: u64) -> (u64, bool) {
        if self.count == 0 || id <= self.first {
            return (0, self.count > 0 && id == self.first);
        }
        if self.form != GAPS && self.count > 1 {
            return self.rank_of_any(id);
        }
        let (mut last, mut payload) = (self.first, self.payload);
        for below in 1..self.count {
            let gap = take_varint(&mut payload, "gap").ok();
            let Some(next) = gap.and_then(|gap| last.checked_add(gap)?.checked_add(1)) else {
                return (below, false);
            };
            if next >= id {
                return (below, next == id);
            }
            last = next;
        }
        (self.count, false)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`below` is at most the number of ids")]
    fn rank_of_any(&self, id: u64) -> (u64, bool) {
        match self.form {
            RUNS => return self.rank_in_runs(id),
            BITMAP => return self.rank_in_bitmap(id),
            _ => {}
        }
        let mut below = 0;
        for next in self.iter() {
            if next >= id {
                return (below, next == id);
            }
            below += 1;
        }
        (below, false)
    }

    /// A step per run. `id` is above the first id.
    fn rank_in_runs(&self, id: u64) -> (u64, bool) {
        let (mut payload, mut start, mut below) = (self.payload, self.first, 0u64);
        while below < self.count && start <= id {
            let Ok(more) = take_varint(&mut payload, "run length") else { break };
            let inside = id.saturating_sub(start);
            if inside <= more {
                let rank = below.saturating_add(inside);
                return (rank.min(self.count), rank < self.count);
            }
            below = below.saturating_add(more).saturating_add(1);
            let Ok(skipped) = take_varint(&mut payload, "ids skipped") else { break };
            start = start.saturating_add(more).saturating_add(skipped).saturating_add(2);
        }
        (below.min(self.count), false)
    }

    /// A step per eight ids. `id` is above the first id.
    fn rank_in_bitmap(&self, id: u64) -> (u64, bool) {
        let bit_idx = id.saturating_sub(self.first);
        let byte_idx = usize::try_from(bit_idx / 8).unwrap_or(usize::MAX);
        let Some((whole, rest)) = self.payload.split_at_checked(byte_idx) else {
            return (self.count, false);
        };
        let byte = rest.first().copied().unwrap_or_default();
        let bit = 1u8 << (bit_idx % 8);
        let ones = |byte: u8| u64::from(byte.count_ones());
        let below = whole.iter().map(|&byte| ones(byte)).sum::<u64>();
        let below = below.saturating_add(ones(byte & bit.wrapping_sub(1)));
        (below.min(self.count), byte & bit != 0 && below < self.count)
    }

    /// Those of `slots`, which must ascend, that are in the list.
    pub fn common<'s>(self, slots: &'s [Slot]) -> impl Iterator<Item = Slot> + use<'a, 's> {
        let mut ids = self.iter();
        let mut at = ids.next();
        slots.iter().copied().filter(move |slot| {
            let id = u64::from(slot.0);
            if at.is_some_and(|at| at < id) {
                at = ids.seek(id);
            }
            at == Some(id)
        })
    }

    /// Calls `each` with the ids as ascending runs `(first, last)`; runs may be adjacent. A stored
    /// run costs one call.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer ids than the header states, or surplus runs or packed gaps;
    /// `each` was then called for a part.
    pub fn for_each_run(&self, mut each: impl FnMut(u64, u64)) -> Result<()> {
        match (self.form, self.count) {
            (_, 0) => Ok(()),
            (_, 1) => {
                each(self.first, self.first);
                Ok(())
            }
            (RUNS, _) => self.for_each_stored_run(|first, last| {
                each(first, last);
                ControlFlow::Continue(())
            }),
            _ => self.for_each_until(|id| {
                each(id, id);
                ControlFlow::Continue(())
            }),
        }
    }

    /// Calls `each` with the ids, ascending, until it breaks. Faster than [`Postings::iter`]: about
    /// a nanosecond per id of a long list.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer ids than the header states, or more; `each` was then called for
    /// a part. Bytes after a break are not checked.
    #[inline]
    pub(crate) fn for_each_until(
        &self,
        mut each: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        match (self.form, self.count) {
            (_, 0) => Ok(()),
            (_, 1) => {
                let _ = each(self.first);
                Ok(())
            }
            (RUNS, _) => {
                self.for_each_stored_run(|first, last| (first..=last).try_for_each(&mut each))
            }
            (BITMAP, _) => self.for_each_bit(each),
            (PACKED, _) => self.for_each_unpacked(each),
            _ => self.for_each_gap(each),
        }
    }

    #[inline]
    fn for_each_gap(&self, mut each: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        let (mut id, mut payload) = (self.first, self.payload);
        for _ in 1..self.count {
            if each(id).is_break() {
                return Ok(());
            }
            let gap = take_varint(&mut payload, "gap")?;
            let next = id.checked_add(gap).and_then(|id| id.checked_add(1));
            id = next.ok_or_else(|| corrupt("posting list: gaps over 64 bits"))?;
        }
        if each(id).is_break() { Ok(()) } else { self.check_end(0, payload.is_empty()) }
    }

    #[inline]
    fn for_each_bit(&self, mut each: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        let (mut left, mut word_at) = (self.count, 0u64);
        for bytes in self.payload.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(byte, stored)| *byte = *stored);
            let mut bits = u64::from_le_bytes(word);
            while bits != 0 {
                let bit_idx = word_at.saturating_add(u64::from(bits.trailing_zeros()));
                let id = self.first.checked_add(bit_idx);
                let (Some(id), Some(less)) = (id, left.checked_sub(1)) else {
                    return self.check_end(left, false);
                };
                left = less;
                if each(id).is_break() {
                    return Ok(());
                }
                bits &= bits.wrapping_sub(1);
            }
            word_at = word_at.saturating_add(64);
        }
        self.check_end(left, true)
    }

    /// After the last id: `left` ids are missing, and no bytes are left if `is_spent`.
    fn check_end(&self, left: u64, is_spent: bool) -> Result<()> {
        match (left, is_spent) {
            (0, true) => Ok(()),
            (0, false) => Err(corrupt("posting list contains more ids than its header states")),
            _ => Err(cut("posting list")),
        }
    }

    fn for_each_stored_run(&self, mut each: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<()> {
        let over = || corrupt("posting list contains more ids than its header states");
        let (mut payload, mut start, mut left) = (self.payload, self.first, self.count);
        loop {
            let more = take_varint(&mut payload, "run length")?;
            let last = start.checked_add(more).ok_or_else(over)?;
            left = left.checked_sub(more).and_then(|left| left.checked_sub(1)).ok_or_else(over)?;
            if each(start, last).is_break() {
                return Ok(());
            }
            if left == 0 {
                return if payload.is_empty() { Ok(()) } else { Err(over()) };
            }
            let skipped = take_varint(&mut payload, "ids skipped")?;
            start = last.checked_add(skipped).and_then(|id| id.checked_add(2)).ok_or_else(over)?;
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "a packed list has two ids or more, and `parse` has refused counts beyond usize"
    )]
    fn for_each_unpacked(&self, mut each: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        let packed = PackedGaps::parse(self).ok_or_else(|| cut("packed posting list"))?;
        let (mut id, mut left, mut data) = (self.first, self.count as usize - 1, packed.data);
        let mut is_done = each(id).is_break();
        for &width in packed.widths {
            if is_done {
                return Ok(());
            }
            let count = left.min(BLOCK);
            let gaps = crate::bits::take_packed(&mut data, count, u32::from(width))?;
            let mut fits = true;
            crate::bits::for_each_packed(gaps, 0, count, u32::from(width), |gap| {
                let next = id.wrapping_add(gap).wrapping_add(1);
                fits &= next > id && gap != u64::MAX;
                if fits && !is_done {
                    id = next;
                    is_done = each(id).is_break();
                }
            });
            if !fits {
                return Err(corrupt("posting list: packed ids over 64 bits"));
            }
            left -= count;
        }
        match is_done || (left == 0 && data.is_empty()) {
            true => Ok(()),
            false => Err(corrupt("packed posting list: its length does not match its header")),
        }
    }

    /// Appends all ids to `out`.
    ///
    /// # Errors
    /// `Corrupt` if the number of ids differs from the header's; `out` then contains a part.
    pub fn decode(&self, out: &mut Vec<u64>) -> Result<()> {
        self.for_each_until(|id| {
            out.push(id);
            ControlFlow::Continue(())
        })
    }
}

/// An iterator over the ids of a [`Postings`].
#[derive(Clone, Debug)]
pub struct PostingsIter<'a> {
    list: Postings<'a>,
    left: u64,
    /// The next id (gaps, runs); valid while `left > 0`.
    next: u64,
    /// Ids left in the current run after `next`; `None` before the first run was read.
    run_left: Option<u64>,
    /// Index of the next bit (bitmap).
    bit_idx: u64,
    packed: PackedGaps<'a>,
}

/// The parts of a packed payload, and the position of an iterator in it.
#[derive(Clone, Copy, Debug, Default)]
struct PackedGaps<'a> {
    skip_width: u32,
    lasts: &'a [u8],
    widths: &'a [u8],
    data: &'a [u8],
    /// Index of the next gap.
    gap_idx: usize,
    /// The offset of its block in `data`.
    block_at: usize,
}

impl<'a> PackedGaps<'a> {
    fn parse(list: &Postings<'a>) -> Option<PackedGaps<'a>> {
        let (&skip_width, rest) = list.payload.split_first()?;
        let gap_count = usize::try_from(list.count).ok()?.checked_sub(1)?;
        let block_count = gap_count.div_ceil(BLOCK);
        let skip_width = u32::from(skip_width);
        if skip_width > 64 {
            return None;
        }
        let (lasts, rest) = rest.split_at_checked(packed_bytes(block_count, skip_width))?;
        let (widths, data) = rest.split_at_checked(block_count)?;
        let gap_idx = 0;
        Some(PackedGaps { skip_width, lasts, widths, data, gap_idx, block_at: 0 })
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`gap_idx` and `block_at` are at most 2^12 times the number of blocks, each a byte of the list"
    )]
    fn next_gap(&mut self) -> Option<u64> {
        let width = u32::from(*self.widths.get(self.gap_idx / BLOCK)?);
        let bit_idx = (self.gap_idx % BLOCK) * width as usize;
        let block = self.data.get(self.block_at..)?;
        if width > 64 || bit_idx + width as usize > block.len() * 8 {
            return None;
        }
        self.gap_idx += 1;
        if self.gap_idx.is_multiple_of(BLOCK) {
            self.block_at += BLOCK / 8 * width as usize;
        }
        Some(get_bits(block, bit_idx, width))
    }

    /// Moves to the end of the current block if its last id, less the first id, is below
    /// `distance`; returns that difference.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`gap_idx` and `block_at` are at most 2^12 times the number of blocks, each a byte of the list"
    )]
    fn skip_block(&mut self, distance: u64) -> Option<u64> {
        let block = self.gap_idx / BLOCK;
        let width = *self.widths.get(block)?;
        let last = get_bits(self.lasts, block * self.skip_width as usize, self.skip_width);
        if last >= distance {
            return None;
        }
        self.block_at += BLOCK / 8 * usize::from(width);
        self.gap_idx = (block + 1) * BLOCK;
        Some(last)
    }
}

impl PostingsIter<'_> {
    /// The first of the remaining ids that is at least `id`; smaller ids are skipped. Skips runs,
    /// packed blocks and bits of a bitmap at once, gaps one by one.
    pub fn seek(&mut self, id: u64) -> Option<u64> {
        if self.list.count > 1 && self.list.form == BITMAP {
            self.bit_idx = self.bit_idx.max(id.saturating_sub(self.list.first));
        }
        if self.list.count > 1 && self.list.form == RUNS {
            return self.seek_runs(id);
        }
        if self.list.count > 1 && self.list.form == PACKED {
            self.skip_blocks(id);
        }
        self.find(|&next| next >= id)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`skipped` is at most `run_left`")]
    fn seek_runs(&mut self, id: u64) -> Option<u64> {
        while self.left > 0 {
            let Some(run_left) = self.run_left.or_else(|| self.varint()) else {
                self.left = 0;
                break;
            };
            let skipped = id.saturating_sub(self.next).min(run_left);
            self.next = self.next.saturating_add(skipped);
            self.left = self.left.saturating_sub(skipped);
            self.run_left = Some(run_left - skipped);
            // The run's last id may still be too small; then the loop continues.
            let found = self.next()?;
            if found >= id {
                return Some(found);
            }
        }
        None
    }

    /// Skips the blocks with a last id below `id`.
    fn skip_blocks(&mut self, id: u64) {
        let Some(distance) = id.checked_sub(self.list.first) else { return };
        while self.left > 1 && self.next < id {
            let Some(last) = self.packed.skip_block(distance) else { return };
            self.next = self.list.first.saturating_add(last);
            let passed = self.packed.gap_idx as u64;
            // The id before the next gap is still to be yielded, unless the list ends with the
            // block.
            self.left = self.list.count.saturating_sub(passed);
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the byte at `bit_idx / 8` exists")]
    fn next_bit(&mut self) -> Option<u64> {
        loop {
            let byte_idx = usize::try_from(self.bit_idx / 8).ok()?;
            let byte = *self.list.payload.get(byte_idx)?;
            let rest = byte >> (self.bit_idx % 8);
            if rest != 0 {
                let bit = self.bit_idx + u64::from(rest.trailing_zeros());
                self.bit_idx = bit + 1;
                return self.list.first.checked_add(bit);
            }
            self.bit_idx = (self.bit_idx / 8 + 1) * 8;
        }
    }

    fn varint(&mut self) -> Option<u64> {
        take_varint(&mut self.list.payload, "id").ok()
    }

    /// The id after `next` in the gap form.
    fn after_gap(&mut self, id: u64) -> Option<u64> {
        let gap = self.varint()?;
        id.checked_add(gap)?.checked_add(1)
    }
}

impl Iterator for PostingsIter<'_> {
    type Item = u64;

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`left` and `run_left` are not zero where they are counted down"
    )]
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let id = match (self.list.form, self.list.count) {
            (_, 1) => self.next,
            (BITMAP, _) => match self.next_bit() {
                Some(id) => id,
                None => {
                    self.left = 0;
                    return None;
                }
            },
            (RUNS, _) => {
                let run_left = match self.run_left {
                    Some(left) => left,
                    None => match self.varint() {
                        Some(left) => left,
                        None => {
                            self.left = 0;
                            return None;
                        }
                    },
                };
                let id = self.next;
                if self.left > 1 {
                    let following = match run_left {
                        0 => self.after_gap(id).and_then(|next| {
                            self.run_left = None;
                            // The skip counts the ids between the runs, at least one.
                            next.checked_add(1)
                        }),
                        _ => {
                            self.run_left = Some(run_left - 1);
                            id.checked_add(1)
                        }
                    };
                    match following {
                        Some(next) => self.next = next,
                        None => self.left = 1,
                    }
                } else {
                    self.run_left = Some(run_left);
                }
                id
            }
            (PACKED, _) => {
                let id = self.next;
                if self.left > 1 {
                    let gap = self.packed.next_gap();
                    let next = gap.and_then(|gap| id.checked_add(gap)?.checked_add(1));
                    match next {
                        Some(next) => self.next = next,
                        None => self.left = 1,
                    }
                }
                id
            }
            _ => {
                let id = self.next;
                if self.left > 1 {
                    match self.after_gap(id) {
                        Some(next) => self.next = next,
                        None => self.left = 1,
                    }
                }
                id
            }
        };
        self.left -= 1;
        Some(id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, usize::try_from(self.left).ok())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(ids: &[u64], form: u64) {
        let mut out = Vec::new();
        encode_postings(ids, &mut out);
        let mut input = out.as_slice();
        let list = Postings::take(&mut input).unwrap();
        assert!(input.is_empty());
        assert_eq!((list.form, list.len()), (form, ids.len() as u64), "{ids:?}");
        for &id in ids {
            for id in [id.saturating_sub(1), id, id.saturating_add(1)] {
                let below = ids.partition_point(|&other| other < id);
                assert_eq!(list.rank(id), (below as u64, ids.binary_search(&id).is_ok()), "{id}");
            }
        }
        let mut again = Vec::new();
        list.decode(&mut again).unwrap();
        assert_eq!(again, ids);
        again.clear();
        list.for_each_run(|first, last| again.extend(first..=last)).unwrap();
        assert_eq!(again, ids);
        for seek in [0, 1, 5, 64, 100, 1 << 40, u64::MAX] {
            let mut iter = list.iter();
            let at = ids.partition_point(|&id| id < seek);
            assert_eq!(iter.seek(seek), ids.get(at).copied(), "seek {seek} in {ids:?}");
            let rest = ids.get(at + 1..).unwrap_or_default();
            assert_eq!(iter.collect::<Vec<_>>(), rest, "after seek {seek} in {ids:?}");
            let mut iter = list.iter();
            iter.next();
            let at = at.max(1.min(ids.len()));
            assert_eq!(iter.seek(seek), ids.get(at).copied(), "late seek {seek} in {ids:?}");
        }
    }

    #[test]
    fn the_smallest_form_is_written() {
        check(&[], GAPS);
        check(&[u64::MAX], GAPS);
        check(&[0, u64::MAX], GAPS);
        check(&[5, 900, 70_000], GAPS);
        check(&(10..5000).collect::<Vec<_>>(), RUNS);
        check(&(0..50).chain(100..200).collect::<Vec<_>>(), RUNS);
        check(&(0..400).filter(|id| id % 3 != 1).collect::<Vec<_>>(), BITMAP);
        check(&(u64::MAX - 9..=u64::MAX).collect::<Vec<_>>(), RUNS);
        check(&(0..1_000).map(|id| id * 37 % 11 + id * 61).collect::<Vec<_>>(), PACKED);
        check(&(0..513).map(|id| u64::MAX - (1 << 62) + (id << 52)).collect::<Vec<_>>(), PACKED);
        check(&(0..641).map(|id| id * 100).collect::<Vec<_>>(), PACKED);
    }

    fn ids() -> impl Strategy<Value = Vec<u64>> {
        let runs = prop::collection::vec((1u64..200, 1u64..60), 0..12);
        let runs = (any::<u32>(), runs).prop_map(|(start, runs)| {
            let mut next = u64::from(start);
            let mut ids = Vec::new();
            for (skipped, len) in runs {
                ids.extend(next + skipped..next + skipped + len);
                next += skipped + len;
            }
            ids
        });
        let scattered = |below: u64| {
            prop::collection::btree_set(0..below, 0..80).prop_map(|ids| ids.into_iter().collect())
        };
        let many = prop::collection::vec(0u64..300, 500..900).prop_map(|gaps| {
            let mut next = 7;
            let mut ids = Vec::new();
            for gap in gaps {
                next += gap + 1;
                ids.push(next);
            }
            ids
        });
        prop_oneof![runs, scattered(150), scattered(4000), scattered(u64::MAX), many]
    }

    proptest! {
        #[test]
        fn any_list_round_trips(ids in ids(), seeks in prop::collection::vec(any::<u64>(), 1..8)) {
            let mut out = Vec::new();
            encode_postings(&ids, &mut out);
            let list = Postings::take(&mut out.as_slice()).unwrap();
            let mut again = Vec::new();
            list.decode(&mut again).unwrap();
            prop_assert_eq!(&again, &ids);
            again.clear();
            list.for_each_run(|first, last| again.extend(first..=last)).unwrap();
            prop_assert_eq!(&again, &ids);
            let first_count = ids.len() / 2;
            again.clear();
            list.for_each_until(|id| match again.len() == first_count {
                true => ControlFlow::Break(()),
                false => {
                    again.push(id);
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
            prop_assert_eq!(&again, &ids[..first_count]);
            let span = ids.last().map_or(1, |last| last - ids[0]).saturating_add(2);
            let mut seeks: Vec<u64> =
                seeks.iter().map(|seek| ids.first().map_or(0, |id| id + seek % span)).collect();
            seeks.sort_unstable();
            let (mut iter, mut left) = (list.iter(), ids.as_slice());
            for seek in seeks {
                left = &left[left.partition_point(|&id| id < seek)..];
                prop_assert_eq!(iter.seek(seek), left.first().copied());
                left = left.get(1..).unwrap_or_default();
            }
        }

        #[test]
        fn any_bytes_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            seek in any::<u64>(),
        ) {
            if let Ok(list) = Postings::take(&mut bytes.as_slice()) {
                let seen: Vec<u64> = list.iter().take(300).collect();
                prop_assert!(seen.is_sorted_by(|a, b| a < b));
                list.iter().seek(seek);
                if list.len() < 100_000 {
                    prop_assert!(list.rank(seek).0 <= list.len());
                }
                let mut seen = 0u64;
                let mut last_seen = None;
                if list.len() < 100_000 && list.for_each_run(|first, last| {
                    assert!(last_seen.is_none_or(|seen| seen < first) && first <= last);
                    last_seen = Some(last);
                    seen += (last - first).saturating_add(1);
                }).is_ok() {
                    prop_assert_eq!(seen, list.len());
                }
            }
        }
    }

    #[test]
    fn damage_is_reported_or_harmless() {
        let ids: Vec<u64> = (0..40).chain(60..90).chain([1000, 5000]).collect();
        let mut out = Vec::new();
        encode_postings(&ids, &mut out);
        for bit in 0..out.len() * 8 {
            let mut flipped = out.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(list) = Postings::take(&mut flipped.as_slice()) {
                let seen: Vec<u64> = list.iter().take(200).collect();
                assert!(seen.is_sorted_by(|a, b| a < b));
            }
        }
    }

    #[test]
    fn common_returns_the_slots_in_the_list() {
        let f = |ids: &[u64], slots: &[u32], want: &[u32]| {
            let mut list = Vec::new();
            encode_postings(ids, &mut list);
            let list = Postings::take(&mut list.as_slice()).unwrap();
            let slots: Vec<Slot> = slots.iter().copied().map(Slot).collect();
            assert_eq!(list.common(&slots).map(|slot| slot.0).collect::<Vec<_>>(), want);
        };
        f(&[2, 7, 9], &[0, 5, 7, 8, 9, 10], &[7, 9]);
        f(&[0, 1, 2, 3, 9], &[1, 3, 4, 5, 9], &[1, 3, 9]);
        f(&[0], &[0, 1], &[0]);
        f(&[1_000], &[1], &[]);
        f(&[], &[1], &[]);
    }
}
