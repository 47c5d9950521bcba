//! Active rows of one shard: appended, never changed, no object and no allocation per series.
//!
//! A row is `varint step back to the group's previous row (0 = none), varint length * 4 + hidden +
//! 2 if long, of a long row the varint step back to the group's first row, row bytes`. A page table
//! of `u32` per group points to the group's last row. Readers follow the steps back, skip rows that
//! are not visible to them, and decode forward. The first row of a group in an arena is whole, so
//! an arena is self-contained; mostly it has all members, so that a search for members begins with
//! it.
//!
//! Source: ByteSeries, section 3.2.1 (active segment: an append-only array per shard). The row
//! format is our own.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};

use firn_codec::{
    GroupColumns, MemberColumn, RowSizes, RowState, RowsToColumns, SeqRange, Slots,
    decode_row_members, decode_row_slots,
};
use firn_model::{Reservation, Result, Slot, TimeRange, Timestamp, encode_varint};
use parking_lot::Mutex;

use crate::growing::{FIRST_BUCKET_BYTES, Growing};
use crate::payload::LocalGroup;
use crate::words::{BLOCK_BYTES, Words};

/// Groups per page: 1 KiB, so that a shard with few active groups stays small.
const PAGE_GROUPS: usize = 256;
/// The memory of decoded samples is checked after this many.
const CHECKED_SAMPLES: usize = 256;
const SAMPLE_BYTES: usize = size_of::<Timestamp>() + size_of::<f64>();
/// Two steps and the length of a row: varints of 32 and 34 bits.
pub(crate) const ROW_HEADER_BYTES_MAX: usize = 5 + 5 + 5;
/// Shorter rows have no step back to the first row, whose bytes would weigh.
const LONG_ROW_BYTES_MIN: usize = 64;
/// The first row is searched this many rows back where these are short.
const SHORT_ROWS_MAX: usize = 4;

/// The most bytes of an arena with its first row.
pub(crate) const ARENA_BYTES_MIN: usize =
    size_of::<Arena>() + BLOCK_BYTES + PAGE_GROUPS * 4 + 2 * FIRST_BUCKET_BYTES;

/// The rows of one generation of a shard.
///
/// Written under the shard's lock, read without a lock.
pub(crate) struct Arena {
    words: Words,
    /// Per group: start of its last row plus one; 0 = no row. Stored with release after the row's
    /// bytes, so a reader that loads it with acquire may read this row and all before it.
    chains: Growing<AtomicU32>,
    /// The arena's reservation, released with the last reader.
    pub(crate) held: Mutex<Reservation>,
}

/// A row to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) local: LocalGroup,
    pub(crate) bytes: &'a [u8],
    /// Present only as the base of later rows: its values are not read.
    pub(crate) hidden: bool,
}

/// Buffers of a reader, reused from group to group.
#[derive(Default)]
pub(crate) struct ReadBuffers {
    rows: RowBuffers,
    columns: RowsToColumns,
    /// Bytes of chunks that were read.
    pub(crate) touched: usize,
    pub(crate) meter: DecodeMeter,
}

/// Reserves the memory of decoded samples before they are decoded: chunks of constant values have
/// a hundredth of their size.
#[derive(Default)]
pub(crate) struct DecodeMeter {
    /// Bytes that the present group takes.
    bytes: u64,
    /// For the largest group so far; `None` if nothing is counted.
    held: Option<Reservation>,
}

impl DecodeMeter {
    pub(crate) fn new(held: Reservation) -> DecodeMeter {
        DecodeMeter { bytes: 0, held: Some(held) }
    }

    pub(crate) fn begin_group(&mut self) {
        self.bytes = 0;
    }

    /// Replaces the `estimate` of the last charge by the bytes that were decoded.
    pub(crate) fn settle(&mut self, estimate: usize, actual: usize) {
        let more = 2 * actual.saturating_sub(estimate) as u64;
        let less = 2 * estimate.saturating_sub(actual) as u64;
        self.bytes = self.bytes.saturating_add(more).saturating_sub(less);
    }

    /// Counts `bytes` of samples twice: in lists that grow, or also merged.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<()> {
        let Some(held) = &mut self.held else { return Ok(()) };
        self.bytes = self.bytes.saturating_add(2 * bytes as u64);
        match self.bytes.checked_sub(held.bytes()) {
            Some(missing) if missing > 0 => held.grow(missing),
            _ => Ok(()),
        }
    }
}

impl ReadBuffers {
    /// Bytes of rows and chunks that were read.
    #[cfg(feature = "test-util")]
    pub(crate) fn bytes_touched(&self) -> usize {
        self.rows.touched + self.touched
    }
}

#[derive(Default)]
struct RowBuffers {
    rows: Vec<RowLocation>,
    row: Vec<u8>,
    state: RowState,
    /// The state of a walk over members without values.
    members: RowState,
    here: Vec<Slot>,
    /// Bytes of rows that were read.
    touched: usize,
}

impl Arena {
    pub(crate) fn new(held: Reservation) -> Arena {
        Arena { words: Words::new(), chains: Growing::new(PAGE_GROUPS), held: Mutex::new(held) }
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (size_of::<Arena>() + self.words.heap_bytes() + self.chains.heap_bytes()) as u64
    }

    /// Whether the group has a row here, visible or not.
    pub(crate) fn has_group(&self, local: LocalGroup) -> bool {
        self.last(local, Ordering::Relaxed) != 0
    }

    /// Appends a row at `end` and returns the new end. Only the writer calls this, with `end` as
    /// the previous call returned it. `scratch` is any buffer.
    pub(crate) fn append(&self, end: u32, row: NewRow<'_>, scratch: &mut Vec<u8>) -> u32 {
        let last = &self.chains.get_or_make(page(row.local))[entry_of(row.local)];
        let before = last.load(Ordering::Relaxed);
        let step = if before == 0 { 0 } else { end + 1 - before };
        let first = match row.bytes.len() >= LONG_ROW_BYTES_MIN {
            true => before.checked_sub(1).and_then(|before| self.first_row(before)),
            false => None,
        };
        let flags = u64::from(first.is_some()) << 1 | u64::from(row.hidden);
        scratch.clear();
        encode_varint(u64::from(step), scratch);
        encode_varint((row.bytes.len() as u64) << 2 | flags, scratch);
        if let Some(first) = first {
            encode_varint(u64::from(end - first), scratch);
        }
        scratch.extend_from_slice(row.bytes);
        self.words.write(end as usize, scratch);
        last.store(end + 1, Ordering::Release);
        end + scratch.len() as u32
    }

    /// The smallest group at or above `from` with a row, visible or not.
    pub(crate) fn next_group(&self, from: LocalGroup) -> Option<LocalGroup> {
        let mut from = from as usize;
        while from / PAGE_GROUPS < self.chains.block_end() {
            if let Some(page) = self.chains.get(from / PAGE_GROUPS) {
                let mut rest = page[from % PAGE_GROUPS..].iter();
                if let Some(at) = rest.position(|last| last.load(Ordering::Acquire) != 0) {
                    return Some((from + at) as LocalGroup);
                }
            }
            from = (from / PAGE_GROUPS + 1) * PAGE_GROUPS;
        }
        None
    }

    /// Whether the group has a row before `visible`.
    pub(crate) fn has_row(&self, local: LocalGroup, visible: u32) -> bool {
        let mut at = self.last(local, Ordering::Acquire);
        while at > visible {
            at = self.header(at - 1).before.map_or(0, |start| start + 1);
        }
        at != 0
    }

    /// The group's values of `slots` in `range` from rows before `visible`.
    ///
    /// # Errors
    /// `Corrupt` if a row is malformed. It passed the log's checksum, so that is a bug.
    pub(crate) fn read(
        &self,
        local: LocalGroup,
        visible: u32,
        (slots, range): (Slots<'_>, TimeRange),
        seq: SeqRange,
        buffers: &mut ReadBuffers,
    ) -> Result<GroupColumns> {
        if let Err(error) = self.read_rows(local, visible, (slots, range), usize::MAX, buffers) {
            buffers.columns.clear();
            return Err(error);
        }
        let working_bytes = buffers.columns.working_bytes();
        let columns = buffers.columns.finish(seq);
        // The copies are in buffers, which the reservation of the largest group has.
        buffers.meter.settle(working_bytes, columns.heap_bytes());
        Ok(columns)
    }

    /// All values of the group from rows before `visible`. Those of a lone series are appended to
    /// `lone`, if it is passed and they are later than its samples; then the result is empty.
    /// Reduces `left` by the bytes that it decodes; `None` if there are more.
    ///
    /// # Errors
    /// As [`Arena::read`].
    pub(crate) fn read_all(
        &self,
        local: LocalGroup,
        visible: u32,
        seq: SeqRange,
        lone: Option<&mut MemberColumn>,
        left: &mut usize,
        buffers: &mut ReadBuffers,
    ) -> Result<Option<GroupColumns>> {
        let all = (Slots::All, TimeRange::ALL);
        let read = self.read_rows(local, visible, all, *left, buffers);
        let rows = &mut buffers.columns;
        let rest = match read {
            Ok(bytes) => left.checked_sub(bytes),
            Err(error) => {
                rows.clear();
                return Err(error);
            }
        };
        let Some(rest) = rest else {
            rows.clear();
            return Ok(None);
        };
        *left = rest;
        if let (Some(lone), Some((times, values))) = (lone, rows.lone())
            && lone.extend(times, values)
        {
            rows.clear();
        }
        Ok(Some(rows.finish(seq)))
    }

    /// Adds the sizes of the group's rows before `visible` to `sizes`.
    ///
    /// # Errors
    /// As [`Arena::read`].
    pub(crate) fn add_sizes(
        &self,
        local: LocalGroup,
        visible: u32,
        sizes: &mut RowSizes,
        buffers: &mut ReadBuffers,
    ) -> Result<()> {
        self.each_row(local, visible, &mut buffers.rows, |state, bytes, hidden| {
            decode_row_slots(state, Slots::All, bytes, |ts, slot, _| {
                if !hidden {
                    sizes.add(ts, slot);
                }
            })?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// As [`Arena::read`] for one member, appended to `out`; `false` if a row is not later than the
    /// last sample.
    pub(crate) fn append_one(
        &self,
        local: LocalGroup,
        visible: u32,
        (slot, range): (Slot, TimeRange),
        buffers: &mut ReadBuffers,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        let (mut rises, mut charged) = (true, out.times.len());
        let ReadBuffers { rows, meter, .. } = buffers;
        let mut charge = |count: usize| meter.charge(count * SAMPLE_BYTES);
        self.each_row(local, visible, rows, |state, bytes, hidden| {
            decode_row_slots(state, Slots::Some(&[slot]), bytes, |ts, _, value| {
                if !hidden && range.contains(ts) {
                    rises &= out.push(ts, value);
                }
            })?;
            if out.times.len() - charged >= CHECKED_SAMPLES {
                charge(out.times.len() - charged)?;
                charged = out.times.len();
            }
            Ok(if rises { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        charge(out.times.len() - charged)?;
        Ok(rises)
    }

    /// Removes from `left`, which ascends, the members with a value in `range` in rows before
    /// `visible`. Reads no value.
    pub(crate) fn take_present(
        &self,
        local: LocalGroup,
        visible: u32,
        range: TimeRange,
        buffers: &mut ReadBuffers,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        let RowBuffers { rows, row, members, here, touched, .. } = &mut buffers.rows;
        let mut take = |found: &RowLocation, left: &mut Vec<Slot>| {
            here.clear();
            let bytes = self.words.read(found.start as usize, found.len as usize, row);
            *touched += bytes.len();
            let ts = decode_row_members(members, bytes, left, |slot| here.push(slot))?;
            if !found.hidden && range.contains(ts) && !here.is_empty() {
                left.retain(|slot| here.binary_search(slot).is_err());
            }
            Ok(())
        };
        let last = self.last(local, Ordering::Acquire).checked_sub(1);
        let first = last.and_then(|last| self.first_row(last)).filter(|first| *first < visible);
        if let Some(first) = first {
            take(&self.header(first).row, left)?;
        }
        if left.is_empty() {
            return Ok(());
        }
        self.find_rows(local, visible, rows);
        for found in rows.iter().rev() {
            if left.is_empty() {
                break;
            }
            take(found, left)?;
        }
        Ok(())
    }

    /// Calls `each` with the groups with a row, visible or not, ascending.
    pub(crate) fn each_group(&self, mut each: impl FnMut(LocalGroup)) {
        let mut from = Some(0);
        while let Some(local) = from.and_then(|from| self.next_group(from)) {
            each(local);
            from = local.checked_add(1);
        }
    }

    /// Decodes the group's rows into `buffers.columns`. Returns the bytes of the columns; stops
    /// once there are more than `bytes_max`, about.
    fn read_rows(
        &self,
        local: LocalGroup,
        visible: u32,
        (slots, range): (Slots<'_>, TimeRange),
        bytes_max: usize,
        buffers: &mut ReadBuffers,
    ) -> Result<usize> {
        let ReadBuffers { rows, columns, meter, .. } = buffers;
        let (mut checked_count, mut charged) = (0, 0);
        self.each_row(local, visible, rows, |state, bytes, hidden| {
            decode_row_slots(state, slots, bytes, |ts, slot, value| {
                if !hidden && range.contains(ts) {
                    columns.push(ts, slot, value);
                }
            })?;
            if columns.len() - checked_count < CHECKED_SAMPLES {
                return Ok(ControlFlow::Continue(()));
            }
            checked_count = columns.len();
            meter.charge(columns.working_bytes() - charged)?;
            charged = columns.working_bytes();
            let is_over = columns.decoded_bytes() > bytes_max;
            Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        meter.charge(columns.working_bytes() - charged)?;
        Ok(columns.decoded_bytes())
    }

    /// Calls `decode` with the group's rows, oldest first, and whether they are hidden. Their bytes
    /// are relative to the state.
    #[inline]
    fn each_row(
        &self,
        local: LocalGroup,
        visible: u32,
        buffers: &mut RowBuffers,
        mut decode: impl FnMut(&mut RowState, &mut &[u8], bool) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let RowBuffers { rows, row, state, touched, .. } = buffers;
        self.find_rows(local, visible, rows);
        *state = RowState::new();
        for found in rows.iter().rev() {
            let mut bytes = self.words.read(found.start as usize, found.len as usize, row);
            let row_bytes = bytes.len();
            let flow = decode(state, &mut bytes, found.hidden)?;
            *touched += row_bytes - bytes.len();
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn last(&self, local: LocalGroup, ordering: Ordering) -> u32 {
        self.chains.get(page(local)).map_or(0, |page| page[entry_of(local)].load(ordering))
    }

    /// The group's visible rows, last row first.
    fn find_rows(&self, local: LocalGroup, visible: u32, rows: &mut Vec<RowLocation>) {
        rows.clear();
        let mut next = self.last(local, Ordering::Acquire).checked_sub(1);
        while let Some(start) = next {
            let RowHeader { before, row, .. } = self.header(start);
            if start < visible {
                rows.push(row);
            }
            next = before;
        }
    }

    /// The start of the first row of the group that has a row at `start`, unless it is many steps
    /// back.
    fn first_row(&self, mut start: u32) -> Option<u32> {
        for _ in 0..SHORT_ROWS_MAX {
            let RowHeader { before, first, .. } = self.header(start);
            if first.is_some() {
                return first;
            }
            let Some(before) = before else { return Some(start) };
            start = before;
        }
        None
    }

    #[inline]
    fn header(&self, start: u32) -> RowHeader {
        let mut bytes = self.words.peek(start as usize);
        let back = |step: u64| {
            debug_assert!(step <= u64::from(start), "a step back of {step} at {start}");
            if step == 0 { None } else { start.checked_sub(step as u32) }
        };
        let (step, step_bytes) = take_low_varint(&mut bytes);
        let (len, len_bytes) = take_low_varint(&mut bytes);
        let (first_step, first_bytes) = match len & 2 != 0 {
            true => take_low_varint(&mut bytes),
            false => (0, 0),
        };
        let start = start + step_bytes + len_bytes + first_bytes;
        let row = RowLocation { start, len: (len >> 2) as u32, hidden: len & 1 != 0 };
        RowHeader { before: back(step), first: back(first_step), row }
    }
}

/// Takes a varint of at most five bytes from the low end of `bytes`; returns it with its length.
#[inline]
fn take_low_varint(bytes: &mut u128) -> (u64, u32) {
    let low = *bytes as u64;
    let len = ((!low & 0x80_8080_8080).trailing_zeros() / 8 + 1).min(5);
    let used = low & ((1 << (8 * len)) - 1);
    let group = |idx: u32| (used >> idx) & (0x7f << (7 * idx));
    *bytes >>= 8 * len;
    (group(0) | group(1) | group(2) | group(3) | group(4), len)
}

/// The decoded header of a row.
struct RowHeader {
    /// The start of the group's previous row.
    before: Option<u32>,
    /// The start of the group's first row, if this one is long and not the first.
    first: Option<u32>,
    row: RowLocation,
}

/// Location of a row's bytes.
struct RowLocation {
    start: u32,
    len: u32,
    hidden: bool,
}

const _: () = assert!(ROW_HEADER_BYTES_MAX <= 16, "one peek has a row's whole header");

#[inline]
fn page(local: LocalGroup) -> usize {
    local as usize / PAGE_GROUPS
}

#[inline]
fn entry_of(local: LocalGroup) -> usize {
    local as usize % PAGE_GROUPS
}

#[cfg(test)]
mod tests {
    use firn_codec::encode_row;
    use firn_model::{Budget, Cell, GroupId, Pool};

    use super::*;

    #[test]
    fn low_varints_are_those_of_the_codec() {
        for shift in 0..=33 {
            for number in [1u64 << shift, (1 << shift) - 1].map(|number| number.min(1 << 33)) {
                let mut encoded = Vec::new();
                encode_varint(number, &mut encoded);
                let len = encoded.len() as u32;
                encoded.resize(16, 0x81);
                let mut bytes = u128::from_le_bytes(encoded.try_into().unwrap());
                assert_eq!(take_low_varint(&mut bytes), (number, len));
                assert_eq!(bytes as u8, 0x81);
            }
        }
    }

    #[test]
    fn presence_reads_the_first_row_of_many() {
        let arena = Arena::new(Budget::unlimited().empty(Pool::Head));
        let (mut state, mut bytes, mut scratch) = (RowState::new(), Vec::new(), Vec::new());
        let (mut end, mut first_row_bytes) = (0, 0);
        for ts in 0..50 {
            bytes.clear();
            let cell = |slot| Cell { group: GroupId(0), slot: Slot(slot), ts, value: ts as f64 };
            let cells: Vec<Cell> = (0..100).map(cell).collect();
            encode_row(&mut state, ts == 0, ts, &cells, &mut bytes);
            if ts == 0 {
                first_row_bytes = bytes.len();
            }
            end =
                arena.append(end, NewRow { local: 0, bytes: &bytes, hidden: false }, &mut scratch);
        }
        let take = |visible, range, slots: &[u32]| {
            let (mut buffers, mut left) =
                (ReadBuffers::default(), slots.iter().copied().map(Slot).collect());
            arena.take_present(0, visible, range, &mut buffers, &mut left).unwrap();
            (left, buffers.rows.touched)
        };
        assert_eq!(take(end, TimeRange::ALL, &[0, 99]), (vec![], first_row_bytes));
        assert_eq!(take(0, TimeRange::ALL, &[99]), (vec![Slot(99)], 0));
        assert_eq!(take(end, TimeRange::new(30, 40), &[7, 100]).0, [Slot(100)]);
        assert_eq!(take(end, TimeRange::new(50, 60), &[7]).0, [Slot(7)]);
    }

    #[test]
    fn long_rows_lead_to_the_first_row() {
        let arena = Arena::new(Budget::unlimited().empty(Pool::Head));
        let (mut end, mut scratch) = (0, Vec::new());
        let mut append = |local, len: usize| {
            let start = end;
            let bytes = vec![7; len];
            end =
                arena.append(end, NewRow { local, bytes: &bytes, hidden: len == 65 }, &mut scratch);
            start
        };
        let first = append(0, 200);
        let other = append(1, 3);
        // Rows that are shorter are passed, a few.
        for len in [100, 1, 1, 64, 65, 1 << 20, 1, 1, 1, 90] {
            assert_eq!(arena.first_row(append(0, len)), Some(first), "{len}");
            append(1, 3);
        }
        let starts: Vec<u32> = (0..SHORT_ROWS_MAX).map(|_| append(0, 1)).collect();
        assert_eq!(arena.first_row(starts[SHORT_ROWS_MAX - 2]), Some(first));
        assert_eq!(arena.first_row(starts[SHORT_ROWS_MAX - 1]), None);
        assert_eq!(arena.first_row(append(0, 100)), None);
        assert_eq!(arena.first_row(other), Some(other));
        let mut rows = Vec::new();
        arena.find_rows(0, u32::MAX, &mut rows);
        let lens: Vec<(u32, bool)> = rows.iter().rev().map(|row| (row.len, row.hidden)).collect();
        assert_eq!(
            lens[..6],
            [(200, false), (100, false), (1, false), (1, false), (64, false), (65, true)]
        );
        assert_eq!(lens.len(), 16);
    }

    /// Two groups take turns, so rows share words at their ends. Under Miri, memory is as weakly
    /// ordered as the language permits.
    #[test]
    fn a_row_in_a_chain_is_complete_for_readers_without_a_lock() {
        const ROW_COUNT: usize = if cfg!(miri) { 30 } else { 2_000 };
        let arena = Arena::new(Budget::unlimited().empty(Pool::Head));
        let write = || {
            let mut states = [RowState::default(), RowState::default()];
            let (mut end, mut bytes, mut scratch) = (0, Vec::new(), Vec::new());
            for ts in 0..ROW_COUNT as i64 {
                for (local, state) in (0..).zip(&mut states) {
                    bytes.clear();
                    let cell = Cell { group: GroupId(0), slot: Slot(0), ts, value: ts as f64 };
                    encode_row(state, ts == 0, ts, &[cell], &mut bytes);
                    let row = NewRow { local, bytes: &bytes, hidden: false };
                    end = arena.append(end, row, &mut scratch);
                }
            }
        };
        let read = |local| {
            let (mut out, mut buffers) = (MemberColumn::default(), ReadBuffers::default());
            while out.times.len() < ROW_COUNT {
                out.clear();
                let all = (Slot(0), TimeRange::ALL);
                assert!(arena.append_one(local, u32::MAX, all, &mut buffers, &mut out).unwrap());
                assert!(out.times.iter().copied().eq(0..out.times.len() as i64), "{:?}", out.times);
                assert!(out.values.iter().zip(&out.times).all(|(value, ts)| *value == *ts as f64));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(write);
            scope.spawn(|| read(0));
            scope.spawn(|| read(1));
        });
    }
}
