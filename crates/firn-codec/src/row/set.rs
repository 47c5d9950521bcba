//! The member set of a row, in as few bytes as possible.
//!
//! Most scrapes of a target have the members of the previous scrape. A sender that splits a scrape
//! over several connections sends its pieces in turn, so the sets of all pieces of a row are
//! remembered.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::ops::Range;

use firn_model::{Cell, Result, Slot};

use crate::limits::SLOTS_MAX;
use crate::postings::{Postings, encode_postings};
use crate::varint::{corrupt, encode_varint, take_count};

/// Encoding of a row's member set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetForm {
    /// A remembered set.
    Same = 0,
    /// Slots 0 to n - 1.
    Dense = 1,
    /// A remembered set with some slots added or removed.
    Toggled = 2,
    /// A list of slots.
    Listed = 3,
}

/// Number of remembered sets: one per piece of a row, at most one piece per connection of a sender.
const REMEMBERED_MAX: usize = 64;
/// A set with fewer than one in four of the slots below its end is sparse.
const SPARSE_BELOW: u64 = 4;

/// The sets of the latest rows, most recently used first.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberSets {
    recent: Vec<MemberSet>,
}

/// A set of slots of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberSet {
    len: u32,
    /// The last slot + 1. Equals `len` if no slot below is missing.
    end: u32,
    /// One bit per slot; empty if no slot below `end` is missing.
    words: Vec<u64>,
}

impl MemberSets {
    pub(super) fn clear(&mut self) {
        self.recent.clear();
    }

    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    #[inline]
    pub(super) fn heap_bytes(&self) -> usize {
        let words: usize = self.recent.iter().map(|set| set.words.capacity() * 8).sum();
        words + self.recent.capacity() * size_of::<MemberSet>()
    }

    /// The last row's set.
    pub(super) fn last(&self) -> Option<&MemberSet> {
        self.recent.first()
    }

    /// Makes slots 0 to `end - 1` the last row's set.
    pub(super) fn set_dense(&mut self, end: u32) {
        self.remember(MemberSet { len: end, end, words: Vec::new() }, false);
    }

    /// Appends the members of a row; `piece` if it has the timestamp of the previous row. Returns
    /// the form and whether it refers to a remembered set other than the last.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "encodes values of the caller, not stored bytes"
    )]
    pub(super) fn encode(
        &mut self,
        cells: &[Cell],
        piece: bool,
        out: &mut Vec<u8>,
    ) -> (SetForm, bool) {
        let end = cells.last().map_or(0, |cell| cell.slot.0 + 1);
        let len = cells.len() as u32;
        let same = |set: &MemberSet| {
            // Slots ascend, so if their number equals `end` they are all of them.
            (set.len, set.end) == (len, end) && (len == end || set.has_all(cells))
        };
        if let Some(idx) = self.recent.iter().position(same) {
            return (SetForm::Same, self.encode_use(idx, out));
        }
        if len == end {
            encode_varint(u64::from(end), out);
            self.remember(MemberSet { len, end, words: Vec::new() }, piece);
            return (SetForm::Dense, false);
        }
        // Pieces are disjoint: the set with the first member is the predecessor of this one.
        let first = cells.first().map_or(Slot(0), |cell| cell.slot);
        let near = self.recent.iter().position(|set| set.has(first)).unwrap_or(0);
        let listed: Vec<u64> = cells.iter().map(|cell| u64::from(cell.slot.0)).collect();
        let set = MemberSet::of(&listed, len, end);
        let toggled = self.recent.get(near).map_or(Vec::new(), |before| before.toggled(&set));
        let start = out.len();
        encode_postings(&listed, out);
        if !toggled.is_empty() && toggled.len() < listed.len() {
            let middle = out.len();
            let other = self.encode_use(near, out);
            encode_postings(&toggled, out);
            if out.len() - middle < middle - start {
                out.drain(start..middle);
                self.replace_last(set);
                return (SetForm::Toggled, other);
            }
            // A set that was only compared does not count as used.
            out.truncate(middle);
            self.recent.get_mut(..=near).into_iter().for_each(|used| used.rotate_left(1));
        }
        self.remember(set, piece);
        (SetForm::Listed, false)
    }

    /// Takes the members of a row; [`MemberSets::last`] then returns them.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "counts are at most SLOTS_MAX and slots below it, and both fit in 17 bits"
    )]
    pub(super) fn decode(
        &mut self,
        form: u8,
        other: bool,
        piece: bool,
        input: &mut &[u8],
    ) -> Result<()> {
        if form == SetForm::Dense as u8 {
            let end = take_count(input, SLOTS_MAX, "row members")? as u32;
            self.remember(MemberSet { len: end, end, words: Vec::new() }, piece);
            return Ok(());
        }
        if form == SetForm::Listed as u8 {
            let slots = take_slots(input)?;
            let end = slots.last().map_or(0, |slot| *slot as u32 + 1);
            let replaced = self.recent.first_mut().filter(|_| !piece);
            let words = replaced.map_or(Vec::new(), |set| std::mem::take(&mut set.words));
            self.remember(MemberSet::within(words, &slots, slots.len() as u32, end), piece);
            return Ok(());
        }
        if other {
            let idx = take_count(input, REMEMBERED_MAX, "row set")?;
            match self.recent.get_mut(..=idx) {
                Some(used) => used.rotate_right(1),
                None => return Err(corrupt(format!("row names unknown set {idx}"))),
            }
        }
        if form == SetForm::Toggled as u8 {
            let slots = take_slots(input)?;
            let before = self.recent.first().cloned().unwrap_or_default();
            self.replace_last(before.toggle(&slots));
        }
        Ok(())
    }

    /// Makes set `idx` the last one; appends its index if it was another.
    #[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
    fn encode_use(&mut self, idx: usize, out: &mut Vec<u8>) -> bool {
        if idx == 0 {
            return false;
        }
        encode_varint(idx as u64, out);
        self.recent[..=idx].rotate_right(1);
        true
    }

    /// Remembers the set of a further piece in addition; the set of a new row replaces the last
    /// one.
    fn remember(&mut self, set: MemberSet, piece: bool) {
        if piece {
            self.recent.truncate(REMEMBERED_MAX - 1);
            self.recent.insert(0, set);
        } else {
            self.replace_last(set);
        }
    }

    fn replace_last(&mut self, set: MemberSet) {
        match self.recent.first_mut() {
            Some(last) => *last = set,
            None => {
                self.recent.reserve_exact(1);
                self.recent.push(set);
            }
        }
    }
}

impl MemberSet {
    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// The last slot + 1.
    pub(super) fn end(&self) -> usize {
        self.end as usize
    }

    /// Whether these are slots 0 to `len` - 1.
    pub(super) fn is_dense(&self) -> bool {
        self.words.is_empty()
    }

    /// The slots, rising.
    #[expect(clippy::arithmetic_side_effects, reason = "no set has words beyond SLOTS_MAX")]
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let dense_end = if self.words.is_empty() { self.end() } else { 0 };
        let words = self.words.iter().enumerate();
        (0..dense_end).chain(words.flat_map(|(idx, &word)| ones(word).map(move |b| idx * 64 + b)))
    }

    /// Whether most slots below `end` are missing, as in a row of one of many containers.
    pub(super) fn is_sparse(&self) -> bool {
        u64::from(self.len) * SPARSE_BELOW < u64::from(self.end)
    }

    /// The slots in a range, rising.
    #[expect(clippy::arithmetic_side_effects, reason = "no set has words beyond SLOTS_MAX")]
    pub(super) fn slots_in(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let dense_end = if self.is_dense() { self.end().min(range.end) } else { 0 };
        let (first, mut mask) = (range.start / 64, u64::MAX << (range.start % 64));
        let words = self.words.iter().enumerate().skip(first);
        let slots = words.flat_map(move |(idx, &word)| {
            let word = word & std::mem::replace(&mut mask, u64::MAX);
            ones(word).map(move |bit| idx * 64 + bit)
        });
        (range.start..dense_end).chain(slots.take_while(move |&slot_idx| slot_idx < range.end))
    }

    fn of(slots: &[u64], len: u32, end: u32) -> MemberSet {
        MemberSet::within(Vec::new(), slots, len, end)
    }

    /// As [`MemberSet::of`], in the memory of `words`.
    fn within(mut words: Vec<u64>, slots: &[u64], len: u32, end: u32) -> MemberSet {
        if len == end {
            return MemberSet { len, end, words: Vec::new() };
        }
        words.clear();
        words.resize((end as usize).div_ceil(64), 0);
        for slot in slots {
            if let Some(word) = words.get_mut((slot / 64) as usize) {
                *word |= 1 << (slot % 64);
            }
        }
        MemberSet { len, end, words }
    }

    /// Number of members below a slot.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "counts of bits, a shift below 64")]
    pub(super) fn rank(&self, slot_idx: usize) -> usize {
        if self.words.is_empty() {
            return slot_idx.min(self.end());
        }
        let (whole, part) = (slot_idx / 64, (1 << (slot_idx % 64)) - 1);
        let whole_count: u32 = self.words.iter().take(whole).map(|word| word.count_ones()).sum();
        let last = self.words.get(whole).map_or(0, |word| (word & part).count_ones());
        (whole_count + last) as usize
    }

    /// Number of members among the 64 slots from `slot_idx` on, a multiple of 64.
    #[inline]
    pub(super) fn count_in_word(&self, slot_idx: usize) -> usize {
        match self.is_dense() {
            true => self.end().saturating_sub(slot_idx).min(64),
            false => self.words.get(slot_idx / 64).map_or(0, |word| word.count_ones() as usize),
        }
    }

    #[inline]
    pub(super) fn has(&self, slot: Slot) -> bool {
        if self.words.is_empty() {
            return slot.0 < self.end;
        }
        let word = self.words.get((slot.0 / 64) as usize).copied().unwrap_or(0);
        word >> (slot.0 % 64) & 1 == 1
    }

    fn has_all(&self, cells: &[Cell]) -> bool {
        cells.iter().all(|cell| self.has(cell.slot))
    }

    /// The slots that are in exactly one of the two sets.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn toggled(&self, other: &MemberSet) -> Vec<u64> {
        let mut toggled = Vec::new();
        for idx in 0..(self.end.max(other.end) as usize).div_ceil(64) {
            let differing = self.word(idx) ^ other.word(idx);
            toggled.extend(ones(differing).map(|bit| (idx * 64 + bit) as u64));
        }
        toggled
    }

    /// This set with `slots` added or removed.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "slots are below SLOTS_MAX, and the last word is not zero"
    )]
    fn toggle(&self, slots: &[u64]) -> MemberSet {
        let last = slots.last().map_or(0, |&slot| slot as usize + 1);
        let mut words: Vec<u64> =
            (0..self.end().max(last).div_ceil(64)).map(|idx| self.word(idx)).collect();
        for slot in slots {
            if let Some(word) = words.get_mut((slot / 64) as usize) {
                *word ^= 1 << (slot % 64);
            }
        }
        while words.last() == Some(&0) {
            words.pop();
        }
        let len = words.iter().map(|word| word.count_ones()).sum();
        let end = words.last().map_or(0, |word| words.len() as u32 * 64 - word.leading_zeros());
        if len == end {
            words = Vec::new();
        }
        MemberSet { len, end, words }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`idx` is the index of a word of slots below SLOTS_MAX"
    )]
    fn word(&self, idx: usize) -> u64 {
        if !self.words.is_empty() {
            return self.words.get(idx).copied().unwrap_or(0);
        }
        match self.end().saturating_sub(idx * 64) {
            left @ 0..64 => (1 << left) - 1,
            _ => u64::MAX,
        }
    }
}

/// Takes a list of slots.
#[expect(clippy::cast_possible_truncation, reason = "at most SLOTS_MAX, checked above")]
fn take_slots(input: &mut &[u8]) -> Result<Vec<u64>> {
    let list = Postings::take(input)?;
    if list.len() > SLOTS_MAX as u64 {
        return Err(corrupt(format!("row with {} members", list.len())));
    }
    let mut slots = Vec::with_capacity(list.len() as usize);
    list.decode(&mut slots)?;
    match slots.last() {
        Some(&slot) if slot >= SLOTS_MAX as u64 => {
            Err(corrupt(format!("slot {slot} is over {SLOTS_MAX}")))
        }
        _ => Ok(slots),
    }
}

/// The indexes of the one bits, ascending.
#[expect(clippy::arithmetic_side_effects, reason = "`left` is not zero there")]
fn ones(word: u64) -> impl Iterator<Item = usize> {
    let mut left = word;
    std::iter::from_fn(move || {
        (left != 0).then(|| {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            bit
        })
    })
}
