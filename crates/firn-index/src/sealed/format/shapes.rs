//! Shapes and parts. A shape is a list of member sets that similar groups share. A part has a
//! shape, the positions that it lacks, and the slots of its members.
//!
//! A thousand hosts have the same thousand members: the list is stored once, and a host costs only
//! the members that it lacks.
//!
//! ```text
//! shape   = varint(positions) width:u8 packed(set by position)
//!           packed(position by set, at the width of the last position)
//!           posting list(parts of the shape) [lacks]
//! lacks   = width:u8 packed(start of each position's list)            from 16 parts on
//!           posting list(parts that lack the position)*
//! part    = varint(shape << 5 | missing << 3 | has next slot << 2 | slots form)
//!           missing positions [varint(next slot - (highest slot + 1))] slots
//! missing = nothing                                                   0
//!         | varint(position)                                          1
//!         | varint(position) varint(positions between)                2
//!         | posting list                                              3
//! slots   = nothing: slots are 0, 1, 2... in order of positions       form 0
//!         | varint(runs) (varint(zigzag(first slot - expected)) varint(slots - 1))*    form 1
//!         | width:u8 varint(members) packed(slot)                     form 2
//! ```
//!
//! Parts are in bunches of 8. Missing members are stored twice, by part and by position: a
//! selection of one member in fifty thousand parts is then the list of the shape's parts minus one
//! list. The groups follow TimeUnion (SIGMOD 2022), section 3.1; shapes are not part of that paper.

use firn_codec::bits::{bit_width, get_bits, pack, packed_bytes};
use firn_codec::postings::{Postings, encode_postings};
use firn_codec::varint::take_bytes;
use firn_model::{Result, decode_varint, encode_varint};

use crate::sealed::format::blocks::{Blocks, Records};
use crate::sealed::format::varint::take_varint;

pub(crate) const BUNCH_PARTS: u64 = 8;
// The records of fewer parts are read as fast as a few lists, and short lists cost more space than
// they save time.
const PARTS_WITH_LISTS_MIN: u64 = 16;

/// Three or more missing positions are stored as a posting list.
const MISSING_LISTED: u64 = 3;
const SLOTS_DENSE: u64 = 0;
const SLOTS_RUNS: u64 = 1;
const SLOTS_PACKED: u64 = 2;

/// A list of member sets by position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) len: u32,
    width: u32,
    sets: &'a [u8],
    order_width: u32,
    order: &'a [u8],
    /// Part rows.
    pub(crate) parts: Postings<'a>,
    lacks: Option<MissingLists<'a>>,
}

/// For each position the parts that lack it.
#[derive(Clone, Copy, Debug)]
struct MissingLists<'a> {
    width: u32,
    starts: &'a [u8],
    lists: &'a [u8],
}

/// The record of a part: its shape, missing positions, and slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartRecord<'a> {
    pub(crate) shape: u32,
    missing: Option<Postings<'a>>,
    next_extra: u64,
    slots: SlotMap<'a>,
}

#[derive(Clone, Copy, Debug)]
enum SlotMap<'a> {
    Dense,
    Runs(u64, &'a [u8]),
    Packed(u32, u64, &'a [u8]),
}

impl<'a> Shape<'a> {
    pub(crate) fn read(blocks: &'a Blocks, shapes: &Records, shape: u32) -> Result<Shape<'a>> {
        Shape::take(&mut shapes.get(blocks, u64::from(shape))?).ok_or_else(|| shapes.bad(blocks))
    }

    fn take(input: &mut &'a [u8]) -> Option<Shape<'a>> {
        let len = u32::try_from(decode_varint(input)?).ok()?;
        let (&width, after) = input.split_first()?;
        *input = after;
        let width = Some(u32::from(width)).filter(|width| *width <= 32)?;
        let order_width = bit_width(u64::from(len.saturating_sub(1)));
        let sets = take_bytes(input, packed_bytes(len as usize, width), "sets").ok()?;
        let order = take_bytes(input, packed_bytes(len as usize, order_width), "order").ok()?;
        let parts = Postings::take(input).ok()?;
        let lacks = match parts.len() >= PARTS_WITH_LISTS_MIN {
            true => Some(MissingLists::take(input, len)?),
            false => None,
        };
        Some(Shape { len, width, sets, order_width, order, parts, lacks })
    }

    /// As [`Shape::read`], without [`Shape::lacking`]; advances `input` past the shape.
    pub(crate) fn take_without_lists(input: &mut &'a [u8]) -> Option<Shape<'a>> {
        let mut shape = Shape::take(input)?;
        if let Some(lacks) = shape.lacks.take() {
            *input = lacks.lists;
            for _ in 0..shape.len {
                Postings::take(input).ok()?;
            }
        }
        Some(shape)
    }

    /// Whether [`Shape::lacking`] returns lists.
    pub(crate) fn has_lists(&self) -> bool {
        self.lacks.is_some()
    }

    /// The parts of the shape that lack a position below `len`; `None` without lists or if
    /// malformed.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot; the product of 32-bit numbers fits in 64 bits, and widths are at most 32"
    )]
    pub(crate) fn lacking(&self, position: u32) -> Option<Postings<'a>> {
        let lacks = self.lacks.as_ref()?;
        let start = get_bits(lacks.starts, position as usize * lacks.width as usize, lacks.width);
        Postings::take(&mut lacks.lists.get(usize::try_from(start).ok()?..)?).ok()
    }

    /// The member set at a position below `len`.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "hot; the product of 32-bit numbers fits in 64 bits, and widths are at most 32"
    )]
    pub(crate) fn set(&self, position: u32) -> u32 {
        get_bits(self.sets, position as usize * self.width as usize, self.width) as u32
    }

    /// The position of a member set.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "hot; the product of 32-bit numbers fits in 64 bits, and widths are at most 32"
    )]
    pub(crate) fn position(&self, set: u32) -> Option<u32> {
        let at = |idx: u32| {
            get_bits(self.order, idx as usize * self.order_width as usize, self.order_width) as u32
        };
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.set(at(middle)) < set { low = middle + 1 } else { high = middle }
        }
        Some(at(low.min(self.len.checked_sub(1)?))).filter(|&position| self.set(position) == set)
    }
}

impl<'a> MissingLists<'a> {
    /// Takes all remaining bytes of a shape.
    fn take(input: &mut &'a [u8], len: u32) -> Option<MissingLists<'a>> {
        let (&width, after) = input.split_first()?;
        let width = Some(u32::from(width)).filter(|width| *width <= 32)?;
        let (starts, lists) = after.split_at_checked(packed_bytes(len as usize, width))?;
        *input = &[];
        Some(MissingLists { width, starts, lists })
    }
}

/// Appends a shape. `lacking` contains (position, part) for each missing member, in any order.
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
pub(crate) fn push_shape(
    sets: &[u32],
    parts: &[u64],
    lacking: &mut [(u32, u32)],
    out: &mut Vec<u8>,
) {
    let width = bit_width(u64::from(sets.iter().copied().max().unwrap_or(0)));
    encode_varint(sets.len() as u64, out);
    out.push(width as u8);
    pack(sets.iter().map(|&set| u64::from(set)), width, out);
    let mut order: Vec<u32> = (0..sets.len() as u32).collect();
    order.sort_unstable_by_key(|&position| sets[position as usize]);
    let order_width = bit_width((sets.len() as u64).saturating_sub(1));
    pack(order.iter().map(|&position| u64::from(position)), order_width, out);
    encode_postings(parts, out);
    if parts.len() as u64 >= PARTS_WITH_LISTS_MIN {
        push_lacks(sets.len() as u32, lacking, out);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "encodes data of this process")]
fn push_lacks(len: u32, lacking: &mut [(u32, u32)], out: &mut Vec<u8>) {
    lacking.sort_unstable();
    let (mut starts, mut lists, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = &*lacking;
    for position in 0..len {
        let (here, after) = rest.split_at(rest.partition_point(|entry| entry.0 == position));
        ids.clear();
        ids.extend(here.iter().map(|entry| u64::from(entry.1)));
        starts.push(lists.len() as u64);
        encode_postings(&ids, &mut lists);
        rest = after;
    }
    let width = bit_width(starts.last().copied().unwrap_or(0));
    out.push(width as u8);
    pack(starts, width, out);
    out.extend_from_slice(&lists);
}

/// Reads parts; reading the next one of a bunch is cheaper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartReader<'a> {
    blocks: &'a Blocks,
    parts: Records,
    /// The part at the front of `rest`.
    next: u64,
    rest: &'a [u8],
}

impl<'a> PartReader<'a> {
    pub(crate) fn new(blocks: &'a Blocks, parts: &Records) -> PartReader<'a> {
        PartReader { blocks, parts: *parts, next: 0, rest: &[] }
    }

    /// The part of a row.
    pub(crate) fn read(&mut self, row: u32) -> Result<PartRecord<'a>> {
        let row = u64::from(row);
        let is_ahead = row >= self.next && row / BUNCH_PARTS == self.next / BUNCH_PARTS;
        if !is_ahead || self.next.is_multiple_of(BUNCH_PARTS) {
            self.rest = self.parts.get(self.blocks, row / BUNCH_PARTS)?;
            self.next = (row / BUNCH_PARTS).saturating_mul(BUNCH_PARTS);
        }
        loop {
            let part =
                PartRecord::take(&mut self.rest).ok_or_else(|| self.parts.bad(self.blocks))?;
            self.next = self.next.saturating_add(1);
            if self.next > row {
                return Ok(part);
            }
        }
    }
}

impl<'a> PartRecord<'a> {
    /// The part of a row.
    pub(crate) fn read(blocks: &'a Blocks, parts: &Records, row: u32) -> Result<PartRecord<'a>> {
        PartReader::new(blocks, parts).read(row)
    }

    /// Decodes the part at the front of `input`.
    #[inline]
    pub(crate) fn take(input: &mut &'a [u8]) -> Option<PartRecord<'a>> {
        let head = take_varint(input)?;
        let shape = u32::try_from(head >> 5).ok()?;
        let missing = match head >> 3 & 3 {
            0 => None,
            MISSING_LISTED => Some(Postings::take(input).ok()?),
            count => Some(Postings::take_gaps(count, input).ok()?),
        };
        let next_extra = if head & 4 != 0 { decode_varint(input)? } else { 0 };
        let slots = match head & 3 {
            SLOTS_DENSE => SlotMap::Dense,
            SLOTS_RUNS => {
                let count = decode_varint(input)?;
                let start = *input;
                for _ in 0..count {
                    decode_varint(input)?;
                    decode_varint(input)?;
                }
                SlotMap::Runs(count, start.get(..start.len().checked_sub(input.len())?)?)
            }
            SLOTS_PACKED => {
                let (&width, after) = input.split_first()?;
                *input = after;
                let width = Some(u32::from(width)).filter(|width| *width <= 32)?;
                let count = decode_varint(input)?;
                let bytes = packed_bytes(usize::try_from(count).ok()?, width);
                SlotMap::Packed(width, count, take_bytes(input, bytes, "slots").ok()?)
            }
            _ => return None,
        };
        Some(PartRecord { shape, missing, next_extra, slots })
    }

    /// Number of members, for a shape of `len` positions.
    pub(crate) fn member_count(&self, len: u32) -> u32 {
        let missing = self.missing.map_or(0, |missing| missing.len());
        u32::try_from(u64::from(len).saturating_sub(missing)).unwrap_or_default()
    }

    /// Writes the missing positions, ascending, to `out`. `None` if malformed.
    pub(crate) fn missing(&self, len: u32, out: &mut Vec<u32>) -> Option<()> {
        out.clear();
        if let Some(missing) = self.missing {
            missing
                .for_each_run(|first, last| {
                    if last < u64::from(len)
                        && let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last))
                    {
                        out.extend(first..=last);
                    }
                })
                .ok()?;
            (out.len() as u64 == missing.len()).then_some(())?;
        }
        Some(())
    }

    /// The position of the member with rank `rank`.
    pub(crate) fn position_of(&self, rank: u32) -> Option<u32> {
        let mut position = rank;
        for missing in self.missing.iter().flat_map(|missing| missing.iter()) {
            if missing > u64::from(position) {
                break;
            }
            position = position.checked_add(1)?;
        }
        Some(position)
    }

    /// The rank of the member at `position`; `None` if it is missing.
    #[inline]
    pub(crate) fn rank_of(&self, position: u32) -> Option<u32> {
        let Some(missing) = &self.missing else { return Some(position) };
        let (below, has) = missing.rank(u64::from(position));
        if has { None } else { position.checked_sub(u32::try_from(below).ok()?) }
    }

    /// The slot of the member with rank `rank`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "hot; the product of 32-bit numbers fits in 64 bits, and widths are at most 32"
    )]
    pub(crate) fn slot(&self, rank: u32) -> Option<u32> {
        match self.slots {
            SlotMap::Dense => Some(rank),
            SlotMap::Runs(..) => {
                let mut left = rank;
                self.runs().find_map(|(first, count)| {
                    if left < count {
                        return first.checked_add(left);
                    }
                    left -= count;
                    None
                })
            }
            SlotMap::Packed(width, count, bytes) => (u64::from(rank) < count)
                .then(|| get_bits(bytes, rank as usize * width as usize, width) as u32),
        }
    }

    /// The rank of the member with `slot`, in a part of `member_count` members.
    pub(crate) fn rank_of_slot(&self, slot: u32, member_count: u32) -> Option<u32> {
        match self.slots {
            SlotMap::Dense => (slot < member_count).then_some(slot),
            SlotMap::Runs(..) => {
                let mut before = 0u32;
                for (first, count) in self.runs() {
                    if let Some(at) = slot.checked_sub(first).filter(|&at| at < count) {
                        return before.checked_add(at).filter(|&rank| rank < member_count);
                    }
                    before = before.checked_add(count)?;
                }
                None
            }
            SlotMap::Packed(..) => (0..member_count).find(|&rank| self.slot(rank) == Some(slot)),
        }
    }

    /// Writes all slots, by rank, to `out`. `None` if their number is not `member_count`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "hot; the product of 32-bit numbers fits in 64 bits, and widths are at most 32"
    )]
    pub(crate) fn slots(&self, member_count: u32, out: &mut Vec<u32>) -> Option<()> {
        out.clear();
        match self.slots {
            SlotMap::Dense => out.extend(0..member_count),
            SlotMap::Runs(..) => {
                for (first, count) in self.runs() {
                    // Check the bound before reserving.
                    if count as usize > member_count as usize - out.len() {
                        return None;
                    }
                    out.extend(first..first.checked_add(count)?);
                }
            }
            SlotMap::Packed(width, count, bytes) => {
                if count != u64::from(member_count) {
                    return None;
                }
                let slot = |rank| get_bits(bytes, rank as usize * width as usize, width) as u32;
                out.extend((0..member_count).map(slot));
            }
        }
        (out.len() == member_count as usize).then_some(())
    }

    /// Whether slots ascend with positions.
    pub(crate) fn is_in_order(&self) -> bool {
        match self.slots {
            SlotMap::Dense => true,
            SlotMap::Runs(..) => self.runs().is_sorted_by_key(|run| run.0),
            SlotMap::Packed(..) => false,
        }
    }

    /// The first slot that was never issued.
    pub(crate) fn next_slot(&self, member_count: u32) -> Option<u32> {
        let end = match self.slots {
            SlotMap::Dense => u64::from(member_count),
            SlotMap::Runs(..) => self
                .runs()
                .map(|(first, count)| u64::from(first).saturating_add(u64::from(count)))
                .max()
                .unwrap_or(0),
            SlotMap::Packed(..) => {
                let slots = (0..member_count).filter_map(|rank| self.slot(rank));
                slots.max().map_or(0, |slot| u64::from(slot).saturating_add(1))
            }
        };
        u32::try_from(end.checked_add(self.next_extra)?).ok()
    }

    /// First slot and count of each run; ends early if malformed.
    fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let (count, mut rest) = match self.slots {
            SlotMap::Runs(count, bytes) => (count, bytes),
            _ => (0, &[][..]),
        };
        let mut expected = 0u32;
        (0..count).map_while(move |_| {
            let distance = decode_varint(&mut rest)?;
            let distance = (distance >> 1) as i64 ^ ((distance & 1) as i64).wrapping_neg();
            let first = i64::from(expected).checked_add(distance)?;
            let first = u32::try_from(first).ok()?;
            let count = u32::try_from(decode_varint(&mut rest)?).ok()?.checked_add(1)?;
            expected = first.checked_add(count)?;
            Some((first, count))
        })
    }
}

/// Appends a part: its missing positions (ascending), and its slots in order of positions.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
pub(crate) fn push_part(
    shape: u32,
    missing: &[u64],
    slots: &[u32],
    next_slot: u32,
    out: &mut Vec<u8>,
) {
    let end = slots.iter().max().map_or(0, |slot| slot + 1);
    debug_assert!(next_slot >= end, "next slot {next_slot} is given");
    let is_dense = slots.iter().zip(0..).all(|(slot, rank)| *slot == rank);
    let width = bit_width(u64::from(end.saturating_sub(1)));
    let (form, coded) = if is_dense {
        (SLOTS_DENSE, Vec::new())
    } else {
        let runs = slot_runs(slots);
        let mut packed = vec![width as u8];
        encode_varint(slots.len() as u64, &mut packed);
        pack(slots.iter().map(|&slot| u64::from(slot)), width, &mut packed);
        if runs.len() <= packed.len() { (SLOTS_RUNS, runs) } else { (SLOTS_PACKED, packed) }
    };
    let next_extra = u64::from(next_slot - end);
    let missing_form = MISSING_LISTED.min(missing.len() as u64);
    let flags = missing_form << 3 | u64::from(next_extra > 0) << 2 | form;
    encode_varint(u64::from(shape) << 5 | flags, out);
    match *missing {
        [] => {}
        [only] => encode_varint(only, out),
        [first, second] => {
            encode_varint(first, out);
            encode_varint(second - first - 1, out);
        }
        _ => encode_postings(missing, out),
    }
    if next_extra > 0 {
        encode_varint(next_extra, out);
    }
    out.extend_from_slice(&coded);
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
fn slot_runs(slots: &[u32]) -> Vec<u8> {
    let (mut runs, mut count, mut expected) = (Vec::new(), 0u64, 0);
    for run in slots.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let distance = i64::from(run[0]) - i64::from(expected);
        encode_varint(((distance << 1) ^ (distance >> 63)) as u64, &mut runs);
        encode_varint(run.len() as u64 - 1, &mut runs);
        expected = run[0].wrapping_add(run.len() as u32);
        count += 1;
    }
    let mut out = Vec::with_capacity(runs.len() + 2);
    encode_varint(count, &mut out);
    out.extend_from_slice(&runs);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_shape_maps_sets_and_positions_both_ways(
            sets in prop::collection::btree_set(0u32..5_000, 0..80),
            turn in 0usize..80,
        ) {
            let mut sets: Vec<u32> = sets.into_iter().collect();
            let turn = turn.min(sets.len());
            sets.rotate_left(turn);
            let mut bytes = Vec::new();
            push_shape(&sets, &[3, 9], &mut [], &mut bytes);
            let shape = Shape::take(&mut &bytes[..]).unwrap();
            let got: Vec<u32> = (0..shape.len).map(|at| shape.set(at)).collect();
            prop_assert_eq!(got, sets.clone());
            for set in 0..5_000 {
                let want = sets.iter().position(|s| *s == set).map(|at| at as u32);
                prop_assert_eq!(shape.position(set), want);
            }
            prop_assert_eq!(shape.parts.iter().collect::<Vec<_>>(), vec![3, 9]);
        }

        #[test]
        fn a_shape_of_many_parts_lists_missing_members(
            part_count in 0u64..60,
            lacking in prop::collection::btree_set((0u32..9, 0u32..60), 0..80),
        ) {
            let parts: Vec<u64> = (0..part_count).map(|part| 2 * part).collect();
            let mut pairs: Vec<(u32, u32)> = lacking.iter().rev().copied().collect();
            let mut bytes = Vec::new();
            push_shape(&[5, 1, 4, 0, 3, 2, 7, 8, 6], &parts, &mut pairs, &mut bytes);
            let shape = Shape::take(&mut &bytes[..]).unwrap();
            prop_assert_eq!(shape.has_lists(), part_count >= PARTS_WITH_LISTS_MIN);
            for position in 0..9 {
                let want: Vec<u64> =
                    lacking.iter().filter(|l| l.0 == position).map(|l| u64::from(l.1)).collect();
                let got = shape.lacking(position).map(|list| list.iter().collect::<Vec<_>>());
                prop_assert_eq!(got, shape.has_lists().then_some(want));
            }
        }

        #[test]
        fn a_part_maps_slots_and_positions(
            missing in prop_oneof![
                prop::collection::btree_set(0u64..40, 0..4),
                prop::collection::btree_set(0u64..40, 0..20),
            ],
            swaps in prop::collection::vec((0usize..40, 0usize..40), 0..30),
            shift in prop_oneof![Just(0u32), 0u32..4_000],
            extra in 0u32..3,
        ) {
            let missing: Vec<u64> = missing.into_iter().collect();
            let count = 40 - missing.len();
            let mut slots: Vec<u32> =
                (0..count as u32).map(|slot| slot + slot / 17 * shift).collect();
            for (a, b) in swaps {
                slots.swap(a % count, b % count);
            }
            let next_slot = slots.iter().max().unwrap() + 1 + extra;
            let mut bytes = Vec::new();
            push_part(7, &missing, &slots, next_slot, &mut bytes);
            let mut input = bytes.as_slice();
            let part = PartRecord::take(&mut input).unwrap();
            prop_assert!(input.is_empty());
            prop_assert_eq!((part.shape, part.member_count(40)), (7, count as u32));
            let mut got = Vec::new();
            part.slots(count as u32, &mut got).unwrap();
            prop_assert_eq!(&got, &slots);
            prop_assert_eq!(part.next_slot(count as u32), Some(next_slot));
            prop_assert!(!part.is_in_order() || slots.is_sorted());
            part.missing(40, &mut got).unwrap();
            let got: Vec<u64> = got.into_iter().map(u64::from).collect();
            prop_assert_eq!(got, missing.clone());
            let here: Vec<u32> = (0..40).filter(|at| !missing.contains(&u64::from(*at))).collect();
            for (rank, (&position, &slot)) in here.iter().zip(&slots).enumerate() {
                prop_assert_eq!(part.position_of(rank as u32), Some(position));
                prop_assert_eq!(part.rank_of(position), Some(rank as u32));
                prop_assert_eq!(part.slot(rank as u32), Some(slot));
                prop_assert_eq!(part.rank_of_slot(slot, count as u32), Some(rank as u32));
            }
            for position in &missing {
                prop_assert_eq!(part.rank_of(*position as u32), None);
            }
            let taken: BTreeSet<u32> = slots.iter().copied().collect();
            for slot in (0..5_000).filter(|slot| !taken.contains(slot)) {
                prop_assert_eq!(part.rank_of_slot(slot, count as u32), None);
            }
        }

        #[test]
        fn any_bytes_decode_to_a_part_or_fail(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            at in any::<u32>(),
        ) {
            if let Some(part) = PartRecord::take(&mut bytes.as_slice()) {
                part.slots(100, &mut Vec::new());
                part.missing(100, &mut Vec::new());
                let found = [part.slot(at), part.rank_of(at % 1000), part.position_of(at % 1000)];
                let results = [part.rank_of_slot(at, 100), part.next_slot(100)];
                prop_assert!(found.len() + results.len() > usize::from(part.is_in_order()));
            }
            if let Some(shape) = Shape::take(&mut &bytes[..]) {
                shape.position(at);
                for position in 0..shape.len.min(100) {
                    prop_assert!(shape.has_lists() || shape.lacking(position).is_none());
                }
            }
        }
    }
}
