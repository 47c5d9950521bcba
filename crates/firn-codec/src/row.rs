//! Rows of one group, each coded against the group's state: the log's payload and the head's active
//! rows are these bytes.
//!
//! A row names the members it has only where they differ from the row before, marks the members whose
//! value changed in a bitmap, and codes each changed value as the varint of its decimal delta, or as
//! the bytes of its XOR where the value is no short decimal. No ids and no timestamps per sample.
//! A *restart* row is coded against nothing (a state of zeros), so that a log segment can be read
//! from its start. Byte by byte: docs/formats/row.md.
//!
//! Source: Heracles 3.1 (shared timestamps, rows in the head); the value form is ours.

mod set;
mod value;

use firn_model::{Cell, Result, Slot, Timestamp};

use self::set::{MemberSet, MemberSets, SetForm};
use self::value::{SlotState, decode_value, encode_value, skip_value};
use crate::columns::{SlotWalk, Slots};
use crate::varint::{corrupt, encode_zigzag, take_bytes, take_u8, take_zigzag};

/// Slots of a group are below this: bounds what a decoder allocates for damaged bytes.
pub const SLOTS_MAX: usize = 1 << 16;

// The flags of a row: restart, set form (2 bits), change form (2), time form (2), other set.
const RESTART: u8 = 1;
const SET_SHIFT: u32 = 1;
const CHANGES_SHIFT: u32 = 3;
const TIME_SHIFT: u32 = 5;
/// The set form is about a remembered set that is not the last row's.
const OTHER_SET: u8 = 0x80;

/// Which of the row's members have another value than before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeForm {
    None = 0,
    All = 1,
    /// A bit for each member of the row.
    Bits = 2,
    /// The same, bytes of zero left out: a bit for each byte, then those that are not zero.
    SparseBits = 3,
}

/// How the timestamp follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeForm {
    /// The step of the row before again.
    SameStep = 0,
    /// The step and how much it differs from the one before.
    NewStep = 1,
    /// The same timestamp: a further piece of a row.
    SameTime = 2,
}

/// What encoder and decoder know of a group: its last row. A lone series costs these 24 bytes and no
/// heap; more members cost 9 bytes and a bit each.
#[derive(Clone, Debug, Default)]
pub struct RowState {
    last_ts: Timestamp,
    members: Members,
}

#[derive(Clone, Debug)]
enum Members {
    /// Only slot 0 was ever seen.
    One { last: u64, step: u32, mode: u8, in_last_row: bool },
    /// More.
    Many { table: Box<Table>, step: u32 },
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// Bits of each slot's last value, and how the next is coded: two arrays, 9 bytes a slot.
    lasts: Vec<u64>,
    modes: Vec<u8>,
    sets: MemberSets,
}

impl Default for Members {
    fn default() -> Members {
        Members::One { last: 0, step: 0, mode: 0, in_last_row: false }
    }
}

impl RowState {
    /// As before the first row.
    pub fn new() -> RowState {
        RowState::default()
    }

    /// Forgets all rows; keeps its memory.
    pub fn reset(&mut self) {
        self.last_ts = 0;
        match &mut self.members {
            Members::One { .. } => self.members = Members::default(),
            Members::Many { table, step } => {
                *step = 0;
                table.lasts.fill(0);
                table.modes.fill(0);
                table.sets.clear();
            }
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.members {
            Members::One { .. } => 0,
            Members::Many { table, .. } => {
                size_of::<Table>()
                    + table.lasts.capacity() * 8
                    + table.modes.capacity()
                    + table.sets.heap_bytes()
            }
        }
    }

    /// How many slots it knows: the last one that was ever seen, and all before it.
    #[inline]
    pub fn slot_count(&self) -> usize {
        match &self.members {
            Members::One { in_last_row, .. } => usize::from(*in_last_row),
            Members::Many { table, .. } => table.lasts.len(),
        }
    }

    fn step(&mut self) -> &mut u32 {
        match &mut self.members {
            Members::One { step, .. } | Members::Many { step, .. } => step,
        }
    }

    /// The table, made from the lone member if there was none.
    fn table(&mut self) -> &mut Table {
        if let Members::One { last, step, mode, in_last_row } = self.members {
            let mut table = Table { lasts: vec![last], modes: vec![mode], ..Table::default() };
            if in_last_row {
                table.sets.set_dense(1);
            }
            self.members = Members::Many { table: Box::new(table), step };
        }
        match &mut self.members {
            Members::Many { table, .. } => table,
            Members::One { .. } => unreachable!("the lone member was just moved into a table"),
        }
    }
}

/// The most bytes that a row with `cells` cells takes.
pub fn row_bytes_max(cells: usize) -> usize {
    // Flags, time, set (its gap form is at most 3 bytes a slot), a bit each, 12 bytes each.
    1 + 10 + 24 + cells * 3 + cells.div_ceil(8) + cells * 12
}

/// Appends one row. `cells` (at least one, slots strictly rising) share `ts` and the group that
/// `state` is of; their own `group` and `ts` are not looked at. A `restart` row needs nothing before
/// it.
///
/// # Panics
/// If there is no cell or a slot is [`SLOTS_MAX`] or more: the caller checked both.
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
        Members::One { last, mode, in_last_row, .. } if last_slot.0 == 0 => {
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
            let (set, other) = table.sets.encode(cells, time == TimeForm::SameTime, out);
            table.grow(last_slot.0 as usize + 1);
            (set, other, table.encode_changes(cells, out))
        }
    };
    flags |= (set as u8) << SET_SHIFT | (changes as u8) << CHANGES_SHIFT;
    flags |= (time as u8) << TIME_SHIFT | if other { OTHER_SET } else { 0 };
    out[flags_idx] = flags;
}

/// Takes exactly one row from the front of `input` and calls `cell` for each of its members, slots
/// rising. Returns the row's timestamp.
///
/// # Errors
/// `Corrupt` if the bytes are no row. `state` is of no use then until the next restart row; `cell` may
/// have been called for a part.
pub fn decode_row(
    state: &mut RowState,
    input: &mut &[u8],
    mut cell: impl FnMut(Slot, f64),
) -> Result<Timestamp> {
    decode_row_slots(state, Slots::All, input, |_, slot, value| cell(slot, value))
}

/// As [`decode_row`] for the members of `slots` only, with the row's timestamp: what stands before them
/// is stepped over, what stands behind them is left in `input`. `state` is of use for the same `slots`
/// only until the next restart row.
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
    let (set, changes) = ((flags >> SET_SHIFT) & 3, (flags >> CHANGES_SHIFT) & 3);
    let (time, other) = ((flags >> TIME_SHIFT) & 3, flags & OTHER_SET != 0);
    if time > TimeForm::SameTime as u8 {
        return Err(corrupt(format!("row flags {flags:#04x} are unknown")));
    }
    if flags & RESTART != 0 {
        state.reset();
    }
    let ts = decode_time(state, time, input)?;
    if let Members::One { last, mode, in_last_row, .. } = &mut state.members {
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

/// What is remembered of a step: four bytes, steps that do not fit are as good as none.
fn kept_step(step: i64) -> u32 {
    u32::try_from(step).unwrap_or(0)
}

impl Table {
    /// Room for slots below `end`, and an eighth more when it must move: memory a slot is what counts.
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

    /// Writes which members changed, then their values.
    fn encode_changes(&mut self, cells: &[Cell], out: &mut Vec<u8>) -> ChangeForm {
        let bits_idx = out.len();
        let bits_len = cells.len().div_ceil(8);
        out.resize(bits_idx + bits_len, 0);
        let mut changed = 0;
        for (idx, cell) in cells.iter().enumerate() {
            let slot_idx = cell.slot.0 as usize;
            let mut slot =
                SlotState { last: &mut self.lasts[slot_idx], mode: &mut self.modes[slot_idx] };
            if slot.differs(cell.value) {
                out[bits_idx + idx / 8] |= 1 << (idx % 8);
                changed += 1;
                encode_value(&mut slot, cell.value, out);
            }
        }
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
        mut wanted: SlotWalk<'_>,
        input: &mut &[u8],
        mut cell: impl FnMut(Slot, f64),
    ) -> Result<()> {
        let end = self.sets.last().map_or(0, MemberSet::end);
        self.grow(end);
        let Some(set) = self.sets.last() else {
            return Err(corrupt("row has the members of a row that is not there"));
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
        let all = form == ChangeForm::All as u8;
        if let (true, Some(wanted)) = (set.is_dense(), wanted.listed()) {
            let changes = if all { Changes::All } else { Changes::Bits(bits) };
            let slot_count = set.len();
            return self.decode_some_of_dense(slot_count, &changes, wanted, input, cell);
        }
        for (idx, slot_idx) in set.slots().enumerate() {
            if wanted.is_done() {
                break;
            }
            let slot_id = Slot(slot_idx as u32);
            let (Some(last), Some(mode)) =
                (self.lasts.get_mut(slot_idx), self.modes.get_mut(slot_idx))
            else {
                return Err(corrupt("row members are over the slots"));
            };
            let is_changed = all || bits.get(idx / 8).is_some_and(|b| b & (1 << (idx % 8)) != 0);
            if !wanted.take(slot_id) {
                // Nobody keeps up with the modes of members behind the last one wanted.
                if wanted.is_done() {
                    break;
                }
                if is_changed {
                    skip_value(mode, input)?;
                }
                continue;
            }
            if is_changed {
                decode_value(&mut SlotState { last, mode }, input)?;
            }
            cell(slot_id, f64::from_bits(*last));
        }
        Ok(())
    }

    /// As [`Table::decode_changes`] where the row has slots 0 to `slot_count` - 1: only members that changed are
    /// stepped over, a scrape of hundreds costs some tens of steps.
    fn decode_some_of_dense(
        &mut self,
        slot_count: usize,
        changes: &Changes<'_>,
        wanted: &[Slot],
        input: &mut &[u8],
        mut cell: impl FnMut(Slot, f64),
    ) -> Result<()> {
        let mut next = 0;
        for &slot in wanted {
            let slot_idx = slot.0 as usize;
            let end = slot_idx.min(slot_count);
            while let Some(changed) = changes.next(next).filter(|&changed| changed < end) {
                let mode = self.modes.get_mut(changed);
                skip_value(mode.ok_or_else(|| corrupt("row members are over the slots"))?, input)?;
                next = changed + 1;
            }
            if slot_idx >= slot_count {
                break;
            }
            let (Some(last), Some(mode)) =
                (self.lasts.get_mut(slot_idx), self.modes.get_mut(slot_idx))
            else {
                return Err(corrupt("row members are over the slots"));
            };
            if changes.next(next) == Some(slot_idx) {
                decode_value(&mut SlotState { last, mode }, input)?;
            }
            next = slot_idx + 1;
            cell(slot, f64::from_bits(*last));
        }
        Ok(())
    }
}

/// Which members of a dense row changed.
enum Changes<'a> {
    All,
    /// A bit each; those that are not there did not.
    Bits(&'a [u8]),
}

impl Changes<'_> {
    /// The first member from `from` on that changed.
    #[inline]
    fn next(&self, from: usize) -> Option<usize> {
        let Changes::Bits(bits) = self else { return Some(from) };
        let first = bits.get(from / 8)? >> (from % 8);
        if first != 0 {
            return Some(from + first.trailing_zeros() as usize);
        }
        let rest = bits.get(from / 8 + 1..)?;
        let byte_idx = rest.iter().position(|&byte| byte != 0)?;
        Some((from / 8 + 1 + byte_idx) * 8 + rest.get(byte_idx)?.trailing_zeros() as usize)
    }
}

/// Leaves out zero bytes of the `len` bytes at `start` if that is smaller.
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
