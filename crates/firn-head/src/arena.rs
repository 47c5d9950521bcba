//! Active rows of one shard: appended, never changed, no object and no allocation per series.
//!
//! A row is `varint step back to the group's previous row (0 = none), varint length * 2 + hidden,
//! row bytes`. A page table of `u32` per group points to the group's last row. Readers follow the
//! steps back, skip rows that are not visible to them, and decode forward. The first row of a group
//! in an arena is whole, so an arena is self-contained. A second table shortens the search for the
//! members of larger groups ([`Shortcut`]).
//!
//! Source: ByteSeries, section 3.2.1 (active segment: an append-only array per shard). The row
//! format is our own.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use firn_codec::{
    GroupColumns, MemberColumn, RowSizes, RowState, RowsToColumns, SeqRange, Slots,
    decode_row_members, decode_row_slots, row_is_restart, row_keeps_members,
};
use firn_model::{Reservation, Result, Slot, TimeRange, Timestamp, encode_varint};
use parking_lot::Mutex;

use crate::growing::{FIRST_BUCKET_BYTES, Growing};
use crate::payload::LocalGroup;
use crate::words::{self, Words};

/// Groups per page: 1 KiB, so that a shard with few active groups stays small.
const PAGE_GROUPS: usize = 256;
/// The same for shortcuts.
const PAGE_SHORTCUTS: usize = 64;
/// The memory of decoded samples is checked after this many.
const CHECKED_SAMPLES: usize = 256;
const SAMPLE_BYTES: usize = size_of::<Timestamp>() + size_of::<f64>();
/// Step and length of a row: varints of 32 and 33 bits.
pub(crate) const ROW_HEADER_BYTES_MAX: usize = 5 + 5;
/// Groups whose whole rows are shorter have no shortcut: lone series and pairs, mostly.
const SHORTCUT_ROW_BYTES_MIN: usize = 24;

/// The most bytes of an arena with its first row.
pub(crate) const ARENA_BYTES_MIN: usize =
    size_of::<Arena>() + words::BLOCK_BYTES + PAGE_BYTES + 3 * FIRST_BUCKET_BYTES;
const PAGE_BYTES: usize =
    PAGE_GROUPS * size_of::<AtomicU32>() + PAGE_SHORTCUTS * size_of::<Shortcut>();

/// The rows of one generation of a shard.
///
/// Written under the shard's lock, read without a lock.
pub(crate) struct Arena {
    words: Words,
    /// Per group: start of its last row plus one; 0 = no row. Stored with release after the row's
    /// bytes, so a reader that loads it with acquire may read this row and all before it.
    chains: Growing<AtomicU32>,
    shortcuts: Growing<Shortcut>,
    /// Times of shortcuts count from here.
    shortcut_base: OnceLock<Timestamp>,
    /// Bytes of rows that queries have read.
    query_bytes: AtomicU64,
    /// The arena's reservation, released with the last reader.
    pub(crate) held: Mutex<Reservation>,
}

/// The way to the members of a group in two steps, however many rows it has.
#[derive(Default)]
struct Shortcut {
    /// Start of a whole row plus one; 0 = none. Stored before `latest`.
    whole: AtomicU32,
    /// The latest row that has the members of the whole row, if all rows between them have, too:
    /// its start plus one, above 32 bits of its time. If it is before the whole row, it belongs to
    /// an earlier one.
    latest: AtomicU64,
}

/// A row to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) local: LocalGroup,
    /// Its time, if that is known.
    pub(crate) ts: Option<Timestamp>,
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
    /// Bytes of rows that were read.
    pub(crate) fn row_bytes(&self) -> usize {
        self.rows.touched
    }

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
        Arena {
            words: Words::new(),
            chains: Growing::new(PAGE_GROUPS),
            shortcuts: Growing::new(PAGE_SHORTCUTS),
            shortcut_base: OnceLock::new(),
            query_bytes: AtomicU64::new(0),
            held: Mutex::new(held),
        }
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let tables = self.chains.heap_bytes() + self.shortcuts.heap_bytes();
        (size_of::<Arena>() + self.words.heap_bytes() + tables) as u64
    }

    /// Bytes of rows that queries have read, over and over again.
    pub(crate) fn query_bytes(&self) -> u64 {
        self.query_bytes.load(Ordering::Relaxed)
    }

    /// Adds to [`Arena::query_bytes`].
    pub(crate) fn count_query_bytes(&self, bytes: u64) {
        self.query_bytes.fetch_add(bytes, Ordering::Relaxed);
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
        scratch.clear();
        encode_varint(u64::from(step), scratch);
        encode_varint((row.bytes.len() as u64) << 1 | u64::from(row.hidden), scratch);
        scratch.extend_from_slice(row.bytes);
        self.words.write(end as usize, scratch);
        self.note_shortcut((end + 1, before), row);
        last.store(end + 1, Ordering::Release);
        end + scratch.len() as u32
    }

    /// Continues the shortcut of a group by `row`. `starts`: of the row and of the one before it,
    /// plus one.
    fn note_shortcut(&self, (start, before): (u32, u32), row: NewRow<'_>) {
        if row_is_restart(row.bytes) {
            if row.bytes.len() >= SHORTCUT_ROW_BYTES_MIN {
                let (page, entry) = shortcut_place(row.local);
                let shortcut = &self.shortcuts.get_or_make(page)[entry];
                shortcut.whole.store(start, Ordering::Release);
                self.note_latest(shortcut, start, row);
            }
            return;
        }
        let Some(shortcut) = self.shortcut(row.local).filter(|_| row_keeps_members(row.bytes))
        else {
            return;
        };
        let latest = (shortcut.latest.load(Ordering::Relaxed) >> 32) as u32;
        if before != 0 && (before == latest || before == shortcut.whole.load(Ordering::Relaxed)) {
            self.note_latest(shortcut, start, row);
        }
    }

    fn note_latest(&self, shortcut: &Shortcut, start: u32, row: NewRow<'_>) {
        // 24 days before and after the first time.
        let base = |ts: Timestamp| *self.shortcut_base.get_or_init(|| ts.saturating_sub(1 << 31));
        let after = row
            .ts
            .filter(|_| !row.hidden)
            .and_then(|ts| ts.checked_sub(base(ts)).and_then(|after| u32::try_from(after).ok()));
        if let Some(after) = after {
            let latest = u64::from(start) << 32 | u64::from(after);
            shortcut.latest.store(latest, Ordering::Release);
        }
    }

    #[inline]
    fn shortcut(&self, local: LocalGroup) -> Option<&Shortcut> {
        let (page, entry) = shortcut_place(local);
        self.shortcuts.get(page).map(|page| &page[entry])
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
        let mut take = |found: &RowLocation, is_in_range: bool, left: &mut Vec<Slot>| {
            here.clear();
            let bytes = self.words.read(found.start as usize, found.len as usize, row);
            *touched += bytes.len();
            let ts = decode_row_members(members, bytes, left, |slot| here.push(slot))?;
            if is_in_range || !found.hidden && range.contains(ts) {
                left.retain(|slot| here.binary_search(slot).is_err());
            }
            Ok(())
        };
        if let Some((whole, latest)) = self.shortcut_rows(local, visible) {
            let is_in_range = latest.is_some_and(|ts| range.contains(ts));
            take(&self.header(whole).row, is_in_range, left)?;
        }
        if left.is_empty() {
            return Ok(());
        }
        self.find_rows(local, visible, rows);
        for found in rows.iter().rev() {
            if left.is_empty() {
                break;
            }
            take(found, false, left)?;
        }
        Ok(())
    }

    /// The start of a whole row before `visible`, and the time of the latest row with its members
    /// if that is known and the row is before `visible`.
    fn shortcut_rows(&self, local: LocalGroup, visible: u32) -> Option<(u32, Option<Timestamp>)> {
        let shortcut = self.shortcut(local)?;
        // In this order: if another whole row is stored in between, it is after the latest row.
        let latest = shortcut.latest.load(Ordering::Acquire);
        let whole = shortcut.whole.load(Ordering::Acquire).checked_sub(1)?;
        let (latest, after) = ((latest >> 32) as u32, latest as u32);
        let is_known = latest > whole && latest <= visible;
        let base = self.shortcut_base.get().filter(|_| is_known);
        let ts = base.and_then(|base| base.checked_add(i64::from(after)));
        (whole < visible).then_some((whole, ts))
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
            let RowHeader { before, row } = self.header(start);
            if start < visible {
                rows.push(row);
            }
            next = before;
        }
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
        let start = start + step_bytes + len_bytes;
        let row = RowLocation { start, len: (len >> 1) as u32, hidden: len & 1 != 0 };
        RowHeader { before: back(step), row }
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
fn shortcut_place(local: LocalGroup) -> (usize, usize) {
    (local as usize / PAGE_SHORTCUTS, local as usize % PAGE_SHORTCUTS)
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
            let cell =
                |slot| Cell { group: GroupId(0), slot: Slot(slot), ts, value: ts as f64 + 1.5 };
            let cells: Vec<Cell> = (0..100).map(cell).collect();
            encode_row(&mut state, ts == 0, ts, &cells, &mut bytes);
            if ts == 0 {
                first_row_bytes = bytes.len();
            }
            end = arena.append(
                end,
                NewRow { local: 0, ts: Some(ts), bytes: &bytes, hidden: false },
                &mut scratch,
            );
        }
        let take = |visible, range, slots: &[u32]| {
            let (mut buffers, mut left) =
                (ReadBuffers::default(), slots.iter().copied().map(Slot).collect());
            arena.take_present(0, visible, range, &mut buffers, &mut left).unwrap();
            (left, buffers.rows.touched)
        };
        assert_eq!(take(end, TimeRange::ALL, &[0, 99]), (vec![], first_row_bytes));
        // The last row has the members of the first.
        assert_eq!(take(end, TimeRange::new(45, 60), &[0, 99]), (vec![], first_row_bytes));
        assert_eq!(take(0, TimeRange::ALL, &[99]), (vec![Slot(99)], 0));
        assert_eq!(take(end, TimeRange::new(30, 40), &[7, 100]).0, [Slot(100)]);
        assert_eq!(take(end, TimeRange::new(50, 60), &[7]).0, [Slot(7)]);
    }

    /// Rows of changing members, hidden, whole and of unknown time: a search by shortcuts finds the
    /// members that a search through all rows finds.
    #[test]
    fn shortcuts_find_the_members_of_all_rows() {
        const SEED_COUNT: u64 = if cfg!(miri) { 2 } else { 200 };
        for seed in 0..SEED_COUNT {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let arena = Arena::new(Budget::unlimited().empty(Pool::Head));
            let (mut state, mut bytes, mut scratch) = (RowState::new(), Vec::new(), Vec::new());
            let (mut end, mut rows, mut members) = (0, Vec::new(), (0..40).collect::<Vec<u32>>());
            for no in 0..30 {
                if draw(5) == 0 {
                    members = (0..40).filter(|_| draw(3) > 0).collect();
                }
                let ts = no + draw(3) as i64;
                let cell = |&slot: &u32| Cell {
                    group: GroupId(0),
                    slot: Slot(slot),
                    ts,
                    value: (no * 7) as f64,
                };
                let cells: Vec<Cell> = members.iter().map(cell).collect();
                if cells.is_empty() {
                    continue;
                }
                bytes.clear();
                encode_row(&mut state, rows.is_empty() || draw(8) == 0, ts, &cells, &mut bytes);
                let (hidden, is_known) = (draw(8) == 0, draw(8) > 0);
                let ts_known = is_known.then_some(ts);
                let row = NewRow { local: 0, ts: ts_known, bytes: &bytes, hidden };
                end = arena.append(end, row, &mut scratch);
                rows.push((ts, members.clone(), hidden, end));
            }
            for _ in 0..50 {
                let start = draw(35) as i64;
                let range = TimeRange::new(start, start + draw(6) as i64);
                let visible = rows[draw(rows.len() as u64) as usize].3;
                let wanted: Vec<u32> = (0..42).filter(|_| draw(2) == 0).collect();
                let is_present = |slot: &u32| {
                    rows.iter().any(|(ts, members, hidden, end)| {
                        *end <= visible && !hidden && range.contains(*ts) && members.contains(slot)
                    })
                };
                let mut left: Vec<Slot> = wanted.iter().copied().map(Slot).collect();
                let mut buffers = ReadBuffers::default();
                arena.take_present(0, visible, range, &mut buffers, &mut left).unwrap();
                let absent = wanted.iter().filter(|slot| !is_present(slot)).copied().map(Slot);
                assert_eq!(left, absent.collect::<Vec<_>>(), "seed {seed}, {range:?}");
            }
        }
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
                    let row = NewRow { local, ts: Some(ts), bytes: &bytes, hidden: false };
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
