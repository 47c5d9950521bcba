//! Rows of one group, each encoded relative to the group's previous row. The log's payload and the
//! head's active rows consist of these bytes.
//!
//! A row lists its members only if they differ from those of the previous row, marks the members
//! with changed values in a bitmap, and stores each changed value as the varint of its decimal
//! delta, or as the bytes of its XOR if it is not a short decimal. There are no ids and no
//! timestamps per sample. The values of each 64 slots of a long row follow their length, so that a
//! reader of a few members passes the others. A *restart* row is encoded relative to a state of
//! zeros, so that a log segment can be read from its start. The bytes are specified in
//! docs/formats/row.md.
//!
//! Source: Heracles, section 3.1 (shared timestamps, rows in the head). The value form is FirnDB's
//! own.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

mod set;
mod value;

use std::ops::Range;
use std::slice;

use firn_model::{Cell, Result, Slot, Timestamp};

use self::set::{MemberSet, MemberSets, SetForm};
use self::value::{
    SlotState, decimal_count, decode_value, encode_value, skip_decimals, skip_value,
};
use crate::columns::{SlotWalk, Slots};
use crate::limits::SLOTS_MAX;
use crate::varint::{corrupt, encode_zigzag, take_bytes, take_count, take_u8, take_zigzag};

// Flags of a row: restart, set form (2 bits), change form (2), time form (2), other set.
const RESTART: u8 = 1;
const SET_SHIFT: u32 = 1;
const CHANGES_SHIFT: u32 = 3;
const TIME_SHIFT: u32 = 5;
/// The set form refers to a remembered set that is not the last row's.
const OTHER_SET: u8 = 0x80;

/// Slots per block. In rows with blocks that reach beyond the first one, the length of a block's
/// values precedes them.
const BLOCK_SLOTS: usize = 64;
const BLOCKS_MAX: usize = SLOTS_MAX.div_ceil(BLOCK_SLOTS);
/// A restart row begins rows with blocks if it has at least one in this many of its slots.
const BLOCK_SHARE_MIN: usize = 4;

/// Encoding of the set of members with changed values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeForm {
    None = 0,
    All = 1,
    /// One bit for each member of the row.
    Bits = 2,
    /// The same without zero bytes: one bit for each byte, then the non-zero bytes.
    SparseBits = 3,
}

/// Encoding of the timestamp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeForm {
    /// The step of the previous row.
    SameStep = 0,
    /// The difference between the step and the previous one.
    NewStep = 1,
    /// The timestamp of the previous row: another piece of the same row.
    SameTime = 2,
}

/// The state of a group that encoder and decoder share: its last row. A lone series costs these 24
/// bytes and no heap memory; in larger groups each member costs 9 bytes and a bit.
#[derive(Clone, Debug, Default)]
pub struct RowState {
    last_ts: Timestamp,
    members: MemberState,
}

#[derive(Clone, Debug)]
enum MemberState {
    /// Only slot 0 occurred so far.
    One { last: u64, step: u32, mode: u8, in_last_row: bool },
    /// Any set of slots.
    Many { table: Box<SlotTable>, step: u32 },
}

#[derive(Clone, Debug, Default)]
struct SlotTable {
    /// Two arrays, 9 bytes per slot: the bits of the last value, and the coding of the next.
    lasts: Vec<u64>,
    modes: Vec<u8>,
    sets: MemberSets,
    /// Whether rows have blocks: the last restart row had.
    has_blocks: bool,
}

impl Default for MemberState {
    fn default() -> MemberState {
        MemberState::One { last: 0, step: 0, mode: 0, in_last_row: false }
    }
}

impl RowState {
    /// The state before the first row.
    pub fn new() -> RowState {
        RowState::default()
    }

    /// Resets the state to that before the first row and keeps the memory.
    pub fn reset(&mut self) {
        self.last_ts = 0;
        match &mut self.members {
            MemberState::One { .. } => self.members = MemberState::default(),
            MemberState::Many { table, step } => {
                *step = 0;
                table.lasts.fill(0);
                table.modes.fill(0);
                table.sets.clear();
                table.has_blocks = false;
            }
        }
    }

    /// Bytes of heap memory.
    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match &self.members {
            MemberState::One { .. } => 0,
            MemberState::Many { table, .. } => {
                size_of::<SlotTable>()
                    + table.lasts.capacity() * 8
                    + table.modes.capacity()
                    + table.sets.heap_bytes()
            }
        }
    }

    /// Number of known slots: the largest slot seen so far, plus one.
    #[inline]
    pub fn slot_count(&self) -> usize {
        match &self.members {
            MemberState::One { in_last_row, .. } => usize::from(*in_last_row),
            MemberState::Many { table, .. } => table.lasts.len(),
        }
    }

    fn step(&mut self) -> &mut u32 {
        match &mut self.members {
            MemberState::One { step, .. } | MemberState::Many { step, .. } => step,
        }
    }

    /// The table; created from the lone member if there was none.
    fn table(&mut self) -> &mut SlotTable {
        if let MemberState::One { last, step, mode, in_last_row } = self.members {
            let mut table =
                SlotTable { lasts: vec![last], modes: vec![mode], ..SlotTable::default() };
            if in_last_row {
                table.sets.set_dense(1);
            }
            self.members = MemberState::Many { table: Box::new(table), step };
        }
        match &mut self.members {
            MemberState::Many { table, .. } => table,
            MemberState::One { .. } => unreachable!("the lone member was just moved into a table"),
        }
    }
}

/// Upper bound of the bytes of a row with `cells` cells.
#[expect(clippy::arithmetic_side_effects, reason = "a count of cells in memory")]
pub fn row_bytes_max(cells: usize) -> usize {
    // Flags, set form, time, set (its gap form takes at most 3 bytes per slot), lengths of blocks,
    // a bit and 12 bytes per cell.
    2 + 10 + 24 + cells * 3 + cells.min(BLOCKS_MAX) * 2 + cells.div_ceil(8) + cells * 12
}

/// Appends one row. `cells` (at least one, slots strictly ascending) share `ts` and the group of
/// `state`; their own `group` and `ts` are ignored. A `restart` row is independent of earlier rows.
///
/// # Panics
/// If there is no cell or a slot is [`SLOTS_MAX`] or more; the caller must check both.
///
/// # Examples
/// ```
/// use firn_codec::{RowState, decode_row, encode_row};
/// use firn_model::{Cell, GroupId, Slot};
///
/// let cell = |slot, value| Cell { group: GroupId(1), ts: 1_000, slot: Slot(slot), value };
/// let mut bytes = Vec::new();
/// encode_row(&mut RowState::new(), true, 1_000, &[cell(0, 1.5), cell(3, -2.0)], &mut bytes);
///
/// let mut decoded = Vec::new();
/// let mut input = bytes.as_slice();
/// let push = |slot, value| decoded.push((slot, value));
/// assert_eq!(decode_row(&mut RowState::new(), &mut input, push).unwrap(), 1_000);
/// assert_eq!(decoded, [(Slot(0), 1.5), (Slot(3), -2.0)]);
/// ```
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, not stored bytes"
)]
pub fn encode_row(
    state: &mut RowState,
    restart: bool,
    ts: Timestamp,
    cells: &[Cell],
    out: &mut Vec<u8>,
) {
    let last_slot = cells.last().expect("a row has at least one cell").slot;
    assert!((last_slot.0 as usize) < SLOTS_MAX, "slot {} is over {SLOTS_MAX}", last_slot.0);
    debug_assert!(cells.is_sorted_by(|a, b| a.slot < b.slot), "slots of a row must rise");
    let flags_idx = out.len();
    out.push(0);
    let mut flags = 0;
    if restart {
        state.reset();
        flags |= RESTART;
    }
    let time = encode_time(state, ts, out);
    let (set, other, changes) = match &mut state.members {
        MemberState::One { last, mode, in_last_row, .. } if last_slot.0 == 0 => {
            let set = if *in_last_row { SetForm::Same } else { SetForm::Dense };
            if set == SetForm::Dense {
                out.push(1);
            }
            *in_last_row = true;
            let mut slot = SlotState { last, mode };
            let changed = slot.differs(cells[0].value);
            if changed {
                encode_value(&mut slot, cells[0].value, out);
            }
            (set, false, if changed { ChangeForm::All } else { ChangeForm::None })
        }
        _ => {
            let table = state.table();
            let end = last_slot.0 as usize + 1;
            // A piece of a row, with few members of each block, is short without lengths.
            table.has_blocks |=
                restart && end > BLOCK_SLOTS && cells.len() >= end / BLOCK_SHARE_MIN;
            let form_idx = out.len();
            if restart && table.has_blocks {
                out.push(0);
            }
            let (mut set, other) = table.sets.encode(cells, time == TimeForm::SameTime, out);
            if restart && table.has_blocks {
                out[form_idx] = set as u8;
                set = SetForm::Same;
            }
            table.grow(last_slot.0 as usize + 1);
            (set, other, table.encode_changes(cells, out))
        }
    };
    flags |= (set as u8) << SET_SHIFT | (changes as u8) << CHANGES_SHIFT;
    flags |= (time as u8) << TIME_SHIFT | if other { OTHER_SET } else { 0 };
    out[flags_idx] = flags;
}

/// Takes one row from the front of `input` and calls `cell` for each of its members, slots
/// ascending. Returns the row's timestamp.
///
/// # Errors
/// `Corrupt` if the bytes are not a row. `state` is then invalid until the next restart row, and
/// `cell` may have been called for some members.
pub fn decode_row(
    state: &mut RowState,
    input: &mut &[u8],
    mut cell: impl FnMut(Slot, f64),
) -> Result<Timestamp> {
    decode_row_slots(state, Slots::All, input, |_, slot, value| cell(slot, value))
}

/// As [`decode_row`] for the members in `slots` only; `cell` also receives the row's timestamp.
/// Skips the members before them and leaves the bytes after them in `input`. Until the next restart
/// row `state` can only be used with the same `slots`.
///
/// # Errors
/// As [`decode_row`].
pub fn decode_row_slots(
    state: &mut RowState,
    slots: Slots<'_>,
    input: &mut &[u8],
    mut cell: impl FnMut(Timestamp, Slot, f64),
) -> Result<Timestamp> {
    let flags = take_u8(input, "row flags")?;
    let (mut set, changes) = ((flags >> SET_SHIFT) & 3, (flags >> CHANGES_SHIFT) & 3);
    let (time, other) = ((flags >> TIME_SHIFT) & 3, flags & OTHER_SET != 0);
    if time > TimeForm::SameTime as u8 {
        return Err(corrupt(format!("row flags {flags:#04x} are unknown")));
    }
    if flags & RESTART != 0 {
        state.reset();
    }
    let ts = decode_time(state, time, input)?;
    if flags & RESTART != 0 {
        take_layout(state, &mut set, input)?;
    }
    if let MemberState::One { last, mode, in_last_row, .. } = &mut state.members {
        let same = set == SetForm::Same as u8 && *in_last_row && !other;
        let first = set == SetForm::Dense as u8 && input.first() == Some(&1);
        if (same || first) && changes <= ChangeForm::All as u8 {
            if first {
                take_u8(input, "row members")?;
            }
            *in_last_row = true;
            let mut slot = SlotState { last, mode };
            if changes == ChangeForm::All as u8 {
                decode_value(&mut slot, input)?;
            }
            if slots.walk().take(Slot(0)) {
                cell(ts, Slot(0), f64::from_bits(*slot.last));
            }
            return Ok(ts);
        }
    }
    let table = state.table();
    table.sets.decode(set, other, time == TimeForm::SameTime as u8, input)?;
    table.decode_changes(changes, slots.walk(), input, |slot, value| cell(ts, slot, value))?;
    Ok(ts)
}

/// The timestamp of the row at the front of `input`. Calls `member` with those of `slots`, which
/// ascend, that are members of the row. No value is read, so `state` must have seen the earlier
/// rows, back to a restart row, by this function only.
///
/// # Errors
/// As [`decode_row`].
pub fn decode_row_members(
    state: &mut RowState,
    mut input: &[u8],
    slots: &[Slot],
    member: impl FnMut(Slot),
) -> Result<Timestamp> {
    let flags = take_u8(&mut input, "row flags")?;
    let (mut set, time) = ((flags >> SET_SHIFT) & 3, (flags >> TIME_SHIFT) & 3);
    if flags & RESTART != 0 {
        state.reset();
    }
    let ts = decode_time(state, time, &mut input)?;
    if flags & RESTART != 0 {
        take_layout(state, &mut set, &mut input)?;
    }
    let sets = &mut state.table().sets;
    sets.decode(set, flags & OTHER_SET != 0, time == TimeForm::SameTime as u8, &mut input)?;
    let Some(set) = sets.last() else {
        return Err(corrupt("row refers to the members of a missing row"));
    };
    slots.iter().copied().filter(|&slot| set.has(slot)).for_each(member);
    Ok(ts)
}

/// Whether a row has the members of the row before it, at another time. `false` if only a decoder
/// can determine it.
pub fn row_keeps_members(row: &[u8]) -> bool {
    row.first().is_some_and(|flags| {
        let (set, time) = ((flags >> SET_SHIFT) & 3, (flags >> TIME_SHIFT) & 3);
        flags & (RESTART | OTHER_SET) == 0
            && set == SetForm::Same as u8
            && time != TimeForm::SameTime as u8
    })
}

/// Whether a row can be decoded without the rows before it.
pub fn row_is_restart(row: &[u8]) -> bool {
    row.first().is_some_and(|flags| flags & RESTART != 0)
}

/// Takes the layout of a restart row and those after it. Such a row refers to no remembered set:
/// with that form, rows have blocks, and the form of the set follows.
fn take_layout(state: &mut RowState, set: &mut u8, input: &mut &[u8]) -> Result<()> {
    if *set != SetForm::Same as u8 {
        return Ok(());
    }
    *set = take_u8(input, "row set form")?;
    if *set != SetForm::Dense as u8 && *set != SetForm::Listed as u8 {
        return Err(corrupt(format!("row set form {set} is unknown")));
    }
    state.table().has_blocks = true;
    Ok(())
}

fn encode_time(state: &mut RowState, ts: Timestamp, out: &mut Vec<u8>) -> TimeForm {
    let step = ts.wrapping_sub(state.last_ts);
    let last_step = i64::from(*state.step());
    state.last_ts = ts;
    if step == 0 {
        return TimeForm::SameTime;
    }
    *state.step() = kept_step(step);
    if step == last_step {
        return TimeForm::SameStep;
    }
    encode_zigzag(step.wrapping_sub(last_step), out);
    TimeForm::NewStep
}

fn decode_time(state: &mut RowState, form: u8, input: &mut &[u8]) -> Result<Timestamp> {
    if form == TimeForm::SameTime as u8 {
        return Ok(state.last_ts);
    }
    let mut step = i64::from(*state.step());
    if form == TimeForm::NewStep as u8 {
        step = step.wrapping_add(take_zigzag(input, "row timestamp")?);
    }
    *state.step() = kept_step(step);
    state.last_ts = state.last_ts.wrapping_add(step);
    Ok(state.last_ts)
}

/// The step as remembered in four bytes; 0 if it does not fit.
fn kept_step(step: i64) -> u32 {
    u32::try_from(step).unwrap_or(0)
}

impl SlotTable {
    /// Makes room for slots below `end`. A reallocation adds an eighth: memory per slot matters
    /// most.
    #[expect(clippy::arithmetic_side_effects, reason = "slots are below SLOTS_MAX")]
    fn grow(&mut self, end: usize) {
        let len = self.lasts.len();
        if len >= end {
            return;
        }
        if end > self.lasts.capacity() {
            self.lasts.reserve_exact(end + len / 8 - len);
            self.modes.reserve_exact(end + len / 8 - len);
        }
        self.lasts.resize(end, 0);
        self.modes.resize(end, 0);
    }

    /// Appends the changed members, then their values.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn encode_changes(&mut self, cells: &[Cell], out: &mut Vec<u8>) -> ChangeForm {
        let bits_idx = out.len();
        let bits_len = cells.len().div_ceil(8);
        out.resize(bits_idx + bits_len, 0);
        let is_long = cells.last().is_some_and(|cell| cell.slot.0 as usize >= BLOCK_SLOTS);
        let has_blocks = self.has_blocks && is_long;
        let (mut changed, mut block) = (0, None);
        for (idx, cell) in cells.iter().enumerate() {
            let slot_idx = cell.slot.0 as usize;
            let mut slot =
                SlotState { last: &mut self.lasts[slot_idx], mode: &mut self.modes[slot_idx] };
            if slot.differs(cell.value) {
                out[bits_idx + idx / 8] |= 1 << (idx % 8);
                changed += 1;
                let block_idx = slot_idx / BLOCK_SLOTS;
                if has_blocks && block.is_none_or(|(open_idx, _)| open_idx != block_idx) {
                    block.take().into_iter().for_each(|(_, start)| end_block(start, out));
                    block = Some((block_idx, out.len()));
                    out.push(0);
                }
                encode_value(&mut slot, cell.value, out);
            }
        }
        block.into_iter().for_each(|(_, start)| end_block(start, out));
        if changed == 0 || changed == cells.len() {
            out.drain(bits_idx..bits_idx + bits_len);
            return if changed == 0 { ChangeForm::None } else { ChangeForm::All };
        }
        if squeeze_zeros(bits_idx, bits_len, out) {
            ChangeForm::SparseBits
        } else {
            ChangeForm::Bits
        }
    }

    fn decode_changes(
        &mut self,
        form: u8,
        wanted: SlotWalk<'_>,
        input: &mut &[u8],
        mut cell: impl FnMut(Slot, f64),
    ) -> Result<()> {
        let end = self.sets.last().map_or(0, MemberSet::end);
        self.grow(end);
        let Some(set) = self.sets.last() else {
            return Err(corrupt("row refers to the members of a missing row"));
        };
        let bits_len = set.len().div_ceil(8);
        let widened;
        let bits: &[u8] = if form == ChangeForm::Bits as u8 {
            take_bytes(input, bits_len, "row changes")?
        } else if form == ChangeForm::SparseBits as u8 {
            widened = widen_zeros(bits_len, input)?;
            &widened
        } else {
            &[]
        };
        let changes = match form == ChangeForm::All as u8 {
            true => Changes::All,
            false => Changes::Bits(bits),
        };
        let (lasts, modes) = (&mut *self.lasts, &mut *self.modes);
        let mut members = RowMembers { lasts, modes, set, changes, has_blocks: self.has_blocks };
        match wanted.listed() {
            Some(wanted) => members.decode_listed(wanted, input, &mut cell),
            None => members.decode_all(input, &mut cell),
        }
    }
}

/// The members of a row, their changes, and their state before the row.
struct RowMembers<'a> {
    lasts: &'a mut [u64],
    modes: &'a mut [u8],
    set: &'a MemberSet,
    changes: Changes<'a>,
    /// Whether long rows have blocks.
    has_blocks: bool,
}

/// A position among the members of a row.
#[derive(Clone, Copy)]
struct MemberPosition {
    slot_idx: usize,
    /// Number of members below `slot_idx`.
    member_idx: usize,
}

impl RowMembers<'_> {
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "slots of a set are below SLOTS_MAX"
    )]
    fn decode_all(&mut self, input: &mut &[u8], cell: &mut impl FnMut(Slot, f64)) -> Result<()> {
        let has_blocks = self.has_blocks && self.is_long();
        if self.set.is_dense() {
            let slots = self.lasts.iter_mut().zip(&mut *self.modes).take(self.set.len());
            let mut left_in_block = 0;
            for (idx, (last, mode)) in slots.enumerate() {
                if left_in_block == 0 {
                    left_in_block = BLOCK_SLOTS;
                    if has_blocks && self.changes.count(idx..idx + BLOCK_SLOTS) > 0 {
                        take_block_len(input)?;
                    }
                }
                left_in_block -= 1;
                if self.changes.has(idx) {
                    decode_value(&mut SlotState { last, mode }, input)?;
                }
                cell(Slot(idx as u32), f64::from_bits(*last));
            }
            return Ok(());
        }
        let mut block_idx = None;
        for (idx, slot_idx) in self.set.slots().enumerate() {
            let (Some(last), Some(mode)) =
                (self.lasts.get_mut(slot_idx), self.modes.get_mut(slot_idx))
            else {
                return Err(corrupt("row members exceed the known slots"));
            };
            if self.changes.has(idx) {
                let own = Some(slot_idx / BLOCK_SLOTS);
                if has_blocks && block_idx != own {
                    take_block_len(input)?;
                    block_idx = own;
                }
                decode_value(&mut SlotState { last, mode }, input)?;
            }
            cell(Slot(slot_idx as u32), f64::from_bits(*last));
        }
        Ok(())
    }

    /// Decodes the members in `wanted` and skips the others: blocks by their length, members before
    /// a wanted one of their block at about a step for eight bytes of values. The modes of others
    /// are not known, so their values are never read: neither in long rows nor in short ones.
    #[expect(clippy::arithmetic_side_effects, reason = "slots and members are below SLOTS_MAX")]
    fn decode_listed(
        &mut self,
        mut wanted: &[Slot],
        input: &mut &[u8],
        cell: &mut impl FnMut(Slot, f64),
    ) -> Result<()> {
        let mut block = MemberPosition { slot_idx: 0, member_idx: 0 };
        if !self.has_blocks {
            return self.decode_listed_in(block, wanted, input, cell);
        }
        if !self.is_long() {
            let count = wanted.partition_point(|slot| (slot.0 as usize) < BLOCK_SLOTS);
            let (here, _) = wanted.split_at(count);
            return self.decode_listed_in(block, here, input, cell);
        }
        while let Some(first) = wanted.first()
            && block.slot_idx < self.set.end()
        {
            let members =
                block.member_idx..block.member_idx + self.set.count_in_word(block.slot_idx);
            let next =
                MemberPosition { slot_idx: block.slot_idx + BLOCK_SLOTS, member_idx: members.end };
            if members.is_empty() {
                block = next;
                continue;
            }
            let is_changed = self.changes.count(members) > 0;
            let len = if is_changed { take_block_len(input)? } else { 0 };
            let mut values = take_bytes(input, len, "row block")?;
            if (first.0 as usize) < next.slot_idx {
                let before = wanted.partition_point(|slot| (slot.0 as usize) < block.slot_idx);
                let (_, rest) = wanted.split_at(before);
                let count = rest.partition_point(|slot| (slot.0 as usize) < next.slot_idx);
                let (here, later) = rest.split_at(count);
                self.decode_listed_in(block, here, &mut values, cell)?;
                wanted = later;
            }
            block = next;
        }
        Ok(())
    }

    /// As [`RowMembers::decode_listed`] within one block, from `next` on. Visits the wanted
    /// members, or all members if they are fewer: a row of one member may be read for a list of
    /// thousands.
    #[expect(clippy::arithmetic_side_effects, reason = "slots and members are below SLOTS_MAX")]
    fn decode_listed_in(
        &mut self,
        mut next: MemberPosition,
        wanted: &[Slot],
        input: &mut &[u8],
        cell: &mut impl FnMut(Slot, f64),
    ) -> Result<()> {
        let Some(last) = wanted.last() else { return Ok(()) };
        let end = (last.0 as usize + 1).min(self.set.end());
        if self.set.is_sparse() && self.set.slots_in(next.slot_idx..end).nth(wanted.len()).is_none()
        {
            return self.decode_each_in(next, end, wanted, input, cell);
        }
        for &slot in wanted {
            let slot_idx = slot.0 as usize;
            let here = self.skip(next, slot_idx.min(self.set.end()), input)?;
            if slot_idx >= self.set.end() {
                break;
            }
            next = MemberPosition { slot_idx: slot_idx + 1, ..here };
            if !self.set.has(slot) {
                continue;
            }
            next.member_idx += 1;
            let (Some(last), Some(mode)) =
                (self.lasts.get_mut(slot_idx), self.modes.get_mut(slot_idx))
            else {
                return Err(corrupt("row members exceed the known slots"));
            };
            if self.changes.has(here.member_idx) {
                decode_value(&mut SlotState { last, mode }, input)?;
            }
            cell(slot, f64::from_bits(*last));
        }
        Ok(())
    }

    /// As [`RowMembers::decode_listed_in`] for the members from `next` to `end`, a slot.
    #[expect(clippy::arithmetic_side_effects, reason = "members are below SLOTS_MAX")]
    fn decode_each_in(
        &mut self,
        next: MemberPosition,
        end: usize,
        mut wanted: &[Slot],
        input: &mut &[u8],
        cell: &mut impl FnMut(Slot, f64),
    ) -> Result<()> {
        for (count, slot_idx) in self.set.slots_in(next.slot_idx..end).enumerate() {
            let is_changed = self.changes.has(next.member_idx + count);
            let (Some(last), Some(mode)) =
                (self.lasts.get_mut(slot_idx), self.modes.get_mut(slot_idx))
            else {
                return Err(corrupt("row members exceed the known slots"));
            };
            (_, wanted) = wanted.split_at(wanted.partition_point(|w| (w.0 as usize) < slot_idx));
            match wanted.first() {
                Some(&slot) if slot.0 as usize == slot_idx => {
                    if is_changed {
                        decode_value(&mut SlotState { last, mode }, input)?;
                    }
                    cell(slot, f64::from_bits(*last));
                }
                _ if is_changed => skip_value(mode, input)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether there are members behind the first block.
    fn is_long(&self) -> bool {
        self.set.end() > BLOCK_SLOTS
    }

    /// Skips the values of the members from `next` to `end`, a slot. The modes of members whose
    /// coding changes here are tracked.
    #[expect(clippy::arithmetic_side_effects, reason = "slots and members are below SLOTS_MAX")]
    fn skip(
        &mut self,
        mut next: MemberPosition,
        end: usize,
        input: &mut &[u8],
    ) -> Result<MemberPosition> {
        let is_sparse = self.set.is_sparse();
        while next.slot_idx < end {
            let run = if is_sparse { self.sparse_run(next, end) } else { self.run(next, end) };
            let (behind, changed_count) =
                run.ok_or_else(|| corrupt("row members exceed the known slots"))?;
            if !skip_decimals(changed_count, input) {
                next = self.skip_each(next, behind.slot_idx, input)?;
            } else {
                next = behind;
            }
            // The member with another coding, if that is why the run ended.
            next = self.skip_each(next, (next.slot_idx + 1).min(end), input)?;
        }
        Ok(next)
    }

    /// The first slot from `next` to `end` whose coding is no decimal, or `end`, and the number of
    /// changed members before it. `None` if there are not as many slots.
    #[expect(clippy::arithmetic_side_effects, reason = "slots are below SLOTS_MAX")]
    fn run(&self, next: MemberPosition, end: usize) -> Option<(MemberPosition, usize)> {
        let slot_idx = next.slot_idx + decimal_count(self.modes.get(next.slot_idx..end)?);
        let behind = MemberPosition { slot_idx, member_idx: self.set.rank(slot_idx) };
        Some((behind, self.changes.count(next.member_idx..behind.member_idx)))
    }

    /// As [`RowMembers::run`], but only changed members end it, and only members are visited: in a
    /// row of one of many containers, most slots are of others.
    #[expect(clippy::arithmetic_side_effects, reason = "members are below SLOTS_MAX")]
    fn sparse_run(&self, next: MemberPosition, end: usize) -> Option<(MemberPosition, usize)> {
        let (mut member_idx, mut changed_count) = (next.member_idx, 0);
        for slot_idx in self.set.slots_in(next.slot_idx..end) {
            if self.changes.has(member_idx) {
                if decimal_count(slice::from_ref(self.modes.get(slot_idx)?)) == 0 {
                    return Some((MemberPosition { slot_idx, member_idx }, changed_count));
                }
                changed_count += 1;
            }
            member_idx += 1;
        }
        Some((MemberPosition { slot_idx: end, member_idx }, changed_count))
    }

    /// As [`RowMembers::skip`], one value after the other.
    #[expect(clippy::arithmetic_side_effects, reason = "members are below SLOTS_MAX")]
    fn skip_each(
        &mut self,
        next: MemberPosition,
        end: usize,
        input: &mut &[u8],
    ) -> Result<MemberPosition> {
        let mut member_idx = next.member_idx;
        for slot_idx in self.set.slots_in(next.slot_idx..end) {
            if self.changes.has(member_idx) {
                let mode = self.modes.get_mut(slot_idx);
                skip_value(
                    mode.ok_or_else(|| corrupt("row members exceed the known slots"))?,
                    input,
                )?;
            }
            member_idx += 1;
        }
        Ok(MemberPosition { slot_idx: end.max(next.slot_idx), member_idx })
    }
}

/// Takes the number of bytes of a block's values.
fn take_block_len(input: &mut &[u8]) -> Result<usize> {
    let len_max = input.len();
    take_count(input, len_max, "row block")
}

/// The changed members of a row.
enum Changes<'a> {
    All,
    /// One bit per member; missing bits are 0.
    Bits(&'a [u8]),
}

impl Changes<'_> {
    #[inline]
    fn has(&self, member_idx: usize) -> bool {
        match self {
            Changes::All => true,
            Changes::Bits(bits) => {
                bits.get(member_idx / 8).is_some_and(|byte| byte & (1 << (member_idx % 8)) != 0)
            }
        }
    }

    /// Number of changed members in a range.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of bits, shifts below 8")]
    fn count(&self, members: Range<usize>) -> usize {
        let Changes::Bits(bits) = self else { return members.len() };
        if members.is_empty() {
            return 0;
        }
        let (first, last) = (members.start / 8, members.end / 8);
        let byte = |idx: usize| bits.get(idx).copied().unwrap_or(0);
        let below = |idx: usize, end: usize| (byte(idx) & ((1 << (end % 8)) - 1)).count_ones();
        let whole = bits.get(first..last.min(bits.len())).unwrap_or_default();
        let count: u32 = whole.iter().map(|byte| byte.count_ones()).sum();
        (count + below(last, members.end) - below(first, members.start)) as usize
    }
}

/// Sets the length of the block that begins at `start` with a byte for it, and ends here.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, of at most 12 bytes each, not stored bytes"
)]
fn end_block(start: usize, out: &mut Vec<u8>) {
    let len = out.len() - start - 1;
    out[start] = len as u8 & 0x7f;
    if len > 0x7f {
        out[start] |= 0x80;
        out.insert(start + 1, (len >> 7) as u8);
    }
}

/// Removes the zero bytes of the `len` bytes at `start` if the result is smaller.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, not stored bytes"
)]
fn squeeze_zeros(start: usize, len: usize, out: &mut Vec<u8>) -> bool {
    let bits = &out[start..start + len];
    let kept = bits.iter().filter(|byte| **byte != 0).count();
    let head_len = len.div_ceil(8);
    if head_len + kept >= len {
        return false;
    }
    let mut squeezed = vec![0; head_len];
    for (idx, &byte) in bits.iter().enumerate() {
        if byte != 0 {
            squeezed[idx / 8] |= 1 << (idx % 8);
            squeezed.push(byte);
        }
    }
    out.splice(start..start + len, squeezed);
    true
}

/// The inverse of [`squeeze_zeros`].
fn widen_zeros(len: usize, input: &mut &[u8]) -> Result<Vec<u8>> {
    let head = take_bytes(input, len.div_ceil(8), "row changes")?;
    let mut bits = vec![0; len];
    for (idx, byte) in bits.iter_mut().enumerate() {
        if head.get(idx / 8).is_some_and(|head| head & (1 << (idx % 8)) != 0) {
            *byte = take_u8(input, "row changes")?;
        }
    }
    Ok(bits)
}
