//! Reads the body of a chunk with members.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::ops::{ControlFlow, Range};

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Result, Slot, TimeRange, Timestamp};

use super::directory::Directory;
use super::lone::append_samples;
use super::outline::{ColumnOutline, ColumnsOutline};
use super::walk::MemberWalk;
use crate::columns::{MemberColumn, SlotWalk, Slots, Times, is_sparse};
use crate::integers;
use crate::limits::{ENTRIES_MAX, SLOTS_MAX, VALUES_MAX};
use crate::postings::Postings;
use crate::time_column::TimeColumn;
use crate::value_column::{self, decode_values};
use crate::varint::{corrupt, cut, take_bytes, take_count};

/// The body of a chunk with members, split into its parts.
#[derive(Clone, Debug)]
pub(super) struct MembersBody<'a> {
    pub(super) slots: Postings<'a>,
    bases: Bases<'a>,
    subsets: Vec<Subset<'a>>,
    /// Runs of (shape, number of members); empty if there is only one shape.
    pub(super) shape_runs: &'a [u8],
    pub(super) directory: Directory<'a>,
    /// Number of values of all members.
    pub(super) value_count: usize,
    /// Number of bytes read by `open`.
    opened_bytes: usize,
}

/// The bases. Most chunks have one, which takes no allocation.
#[derive(Clone, Debug)]
struct Bases<'a> {
    first: Base<'a>,
    others: Vec<Base<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Base<'a> {
    entry_count: usize,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Subset<'a> {
    base: usize,
    entries: Postings<'a>,
    byte_count: usize,
}

impl<'a> MembersBody<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<MembersBody<'a>> {
        let mut input = bytes;
        let slots = Postings::take(&mut input)?;
        if slots.is_empty() || slots.len() > SLOTS_MAX as u64 {
            return Err(corrupt(format!("chunk with {} members", slots.len())));
        }
        let member_count = index_of(slots.len());
        // Bounds the allocations: each base or subset takes at least two bytes.
        let base_count = take_count(&mut input, bytes.len(), "chunk bases")?;
        let subset_count = take_count(&mut input, bytes.len(), "chunk subsets")?;
        let other_count =
            base_count.checked_sub(1).ok_or_else(|| corrupt("chunk without time columns"))?;
        let first = Base::take(&mut input)?;
        let mut bases = Bases { first, others: Vec::with_capacity(other_count) };
        for _ in 0..other_count {
            bases.others.push(Base::take(&mut input)?);
        }
        let mut subsets = Vec::with_capacity(subset_count);
        for _ in 0..subset_count {
            let base = take_count(&mut input, usize::MAX, "subset base")?;
            let before = input.len();
            let entries = Postings::take(&mut input)?;
            let byte_count = before.saturating_sub(input.len());
            let known = bases.get(base).is_some_and(|b| entries.len() <= b.entry_count as u64);
            if !known {
                return Err(corrupt(format!("subset of unknown base {base}")));
            }
            subsets.push(Subset { base, entries, byte_count });
        }
        let runs_at = input;
        let mut members = MembersBody {
            slots,
            bases,
            subsets,
            shape_runs: &[],
            directory: Directory::default(),
            value_count: 0,
            opened_bytes: 0,
        };
        members.value_count = members.skip_shape_runs(member_count, &mut input)?;
        members.shape_runs =
            runs_at.get(..runs_at.len().saturating_sub(input.len())).unwrap_or_default();
        members.directory = Directory::take(member_count, input)?;
        let base_bytes: usize = members.bases.iter().map(|base| base.bytes.len()).sum();
        let subset_bytes: usize = members.subsets.iter().map(|subset| subset.byte_count).sum();
        let unread_bytes = [base_bytes, subset_bytes, members.directory.byte_count()];
        members.opened_bytes = unread_bytes.into_iter().fold(bytes.len(), usize::saturating_sub);
        Ok(members)
    }

    /// The only time column, if every member has a value at each of its timestamps.
    fn only_base(&self) -> Option<Base<'a>> {
        (self.bases.others.is_empty() && self.subsets.is_empty()).then_some(self.bases.first)
    }

    fn walk(&self) -> MemberWalk<'_, 'a> {
        MemberWalk::new(self.slots, self.shape_runs, self.has_one_shape(), &self.directory)
    }

    fn has_one_shape(&self) -> bool {
        self.only_base().is_some()
    }

    /// Reads the shape runs and checks that they cover all members and do not exceed
    /// [`VALUES_MAX`]. Returns the number of values.
    fn skip_shape_runs(&self, member_count: usize, input: &mut &[u8]) -> Result<usize> {
        let mut left = member_count;
        let mut value_count = 0usize;
        while left > 0 {
            let (shape, run) = if self.has_one_shape() {
                (0, left)
            } else {
                let shape = take_count(input, usize::MAX, "member shape")?;
                let more = take_count(input, left.saturating_sub(1), "members of a shape")?;
                (shape, more.saturating_add(1))
            };
            let count = self.shape_len(shape);
            let count = count.filter(|&count| count > 0).ok_or_else(|| {
                corrupt(format!("member shape {shape} is unknown or without entries"))
            })?;
            value_count = value_count.saturating_add(count.saturating_mul(run));
            left = left.saturating_sub(run);
        }
        if value_count > VALUES_MAX {
            return Err(corrupt(format!("chunk of {value_count} values")));
        }
        Ok(value_count)
    }

    /// Number of entries of a member of `shape`.
    fn shape_len(&self, shape: usize) -> Option<usize> {
        match shape.checked_sub(self.bases.len()) {
            None => self.bases.get(shape).map(|base| base.entry_count),
            Some(idx) => self.subsets.get(idx).map(|subset| index_of(subset.entries.len())),
        }
    }

    pub(super) fn entry_count(&self) -> usize {
        self.bases.iter().map(|base| base.entry_count).sum()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<'a> {
        slots_of(self.slots)
    }

    /// Outlines the time columns: bases first, then subsets.
    fn outline_times(&self) -> Vec<ColumnOutline> {
        let bases = self.bases.iter().map(|base| ColumnOutline {
            codec: integers::codec_of(base.bytes),
            entry_count: base.entry_count,
            bytes: base.bytes.len(),
        });
        let subsets = self.subsets.iter().map(|subset| ColumnOutline {
            codec: format!("subset of time column {}", subset.base),
            entry_count: index_of(subset.entries.len()),
            bytes: subset.byte_count,
        });
        bases.chain(subsets).collect()
    }

    /// Calls `f` for each selected member with its slot, number of values and bytes, and whether it
    /// shares the bytes of the previous member.
    pub(super) fn for_each_member(
        &self,
        wanted: &mut SlotWalk<'_>,
        mut f: impl FnMut(Slot, usize, &'a [u8], bool),
    ) -> Result<()> {
        let mut walk = self.walk();
        let mut before: Option<&[u8]> = None;
        while let Some(member) = walk.next(wanted)? {
            let count = self.shape_len(member.shape).ok_or_else(|| cut("member shape"))?;
            let is_shared = before.is_some_and(|before| std::ptr::eq(before, member.bytes));
            f(member.slot, count, member.bytes, is_shared);
            before = Some(member.bytes);
        }
        Ok(())
    }

    /// Outlines the columns; decodes none.
    pub(super) fn outline(&self) -> Result<ColumnsOutline> {
        let mut outline =
            ColumnsOutline { times: self.outline_times(), ..ColumnsOutline::default() };
        self.for_each_member(&mut Slots::All.walk(), |slot, entry_count, bytes, is_shared| {
            let (codec, bytes) = match is_shared {
                true => ("same as the previous column".to_owned(), 0),
                false => (value_column::codec_of(bytes), bytes.len()),
            };
            outline.values.push((slot, ColumnOutline { codec, entry_count, bytes }));
        })?;
        Ok(outline)
    }

    /// See [`super::reader::Chunk::append_one`].
    pub(super) fn append(
        &self,
        start: Timestamp,
        slot: Slot,
        range: TimeRange,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        let Some(member) = self.walk().seek(slot)? else { return Ok(true) };
        let subset = match member.shape.checked_sub(self.bases.len()) {
            None => None,
            Some(idx) => Some(self.subsets.get(idx).ok_or_else(|| cut("subsets"))?),
        };
        let base = self.bases.get(subset.map_or(member.shape, |subset| subset.base));
        let Base { entry_count, mut bytes } = *base.ok_or_else(|| cut("bases"))?;
        let times = TimeColumn::take(start, entry_count, &mut bytes)?;
        match subset {
            None => append_samples(&times, member.bytes, range, out),
            Some(subset) => append_subset(&times, subset.entries, member.bytes, range, out),
        }
    }

    pub(super) fn read(
        &self,
        start: Timestamp,
        wanted: Slots<'_>,
        range: TimeRange,
        touched: &mut usize,
    ) -> Result<ColumnBatch> {
        let mut reader = ShapeReader::new(self, start, range);
        let mut batch = ColumnBatch::default();
        let mut walk = self.walk();
        let mut wanted = wanted.walk();
        let mut scratch = Vec::new();
        let mut touched_bytes = self.opened_bytes;
        while let Some(member) = walk.next(&mut wanted)? {
            let count = self.shape_len(member.shape).ok_or_else(|| cut("member shape"))?;
            let view = reader.view(member.shape, &mut batch.times)?;
            if view.values.is_empty() {
                continue;
            }
            let kept = view.values.clone();
            let mut values = Vec::with_capacity(kept.len());
            decode_values(member.bytes, count, kept, &mut scratch, &mut values)?;
            touched_bytes = touched_bytes.saturating_add(member.bytes.len());
            batch.columns.push(Column {
                slot: member.slot,
                key: 0,
                time_idx: view.time_idx,
                presence: view.presence.clone(),
                values: ColumnValues::F64(values),
            });
        }
        let lookups = walk.touched.saturating_add(reader.touched);
        *touched = touched.saturating_add(touched_bytes).saturating_add(lookups);
        Ok(batch)
    }
}

/// As [`append_samples`] for a column with values at `entries` of `times` only.
fn append_subset(
    times: &TimeColumn,
    entries: Postings<'_>,
    bytes: &[u8],
    range: TimeRange,
    out: &mut MemberColumn,
) -> Result<bool> {
    let kept = times.entries_in(range);
    let before = out.times.len();
    let (mut from, mut is_known) = (0usize, true);
    entries.for_each_until(|entry| {
        let entry = index_of(entry);
        if entry >= kept.end {
            is_known = entry < times.len();
            return ControlFlow::Break(());
        }
        match times.get(entry) {
            Some(ts) if entry >= kept.start => out.times.push(ts),
            _ => from = from.saturating_add(1),
        }
        ControlFlow::Continue(())
    })?;
    if !is_known {
        return Err(corrupt("subset has entries outside of its base"));
    }
    let Some(&first) = out.times.get(before) else { return Ok(true) };
    if before.checked_sub(1).and_then(|last| out.times.get(last)).is_some_and(|last| *last >= first)
    {
        out.times.truncate(before);
        return Ok(false);
    }
    let to = from.saturating_add(out.times.len()).saturating_sub(before);
    decode_values(bytes, index_of(entries.len()), from..to, &mut out.scratch, &mut out.values)?;
    Ok(true)
}

/// The shapes cut to a range. Each is computed once, and only if a member uses it.
struct ShapeReader<'m, 'a> {
    members: &'m MembersBody<'a>,
    start: Timestamp,
    range: TimeRange,
    bases: Vec<Option<CutBase>>,
    views: Vec<Option<ShapeView>>,
    /// Bytes of time columns and subsets that were read.
    touched: usize,
}

struct CutBase {
    times: TimeColumn,
    entries: Range<usize>,
    time_idx: Option<u32>,
}

/// A shape cut to the range.
struct ShapeView {
    time_idx: u32,
    presence: Option<Presence>,
    /// The indexes of a member's values inside the time range.
    values: Range<usize>,
}

impl<'m, 'a> ShapeReader<'m, 'a> {
    fn new(
        members: &'m MembersBody<'a>,
        start: Timestamp,
        range: TimeRange,
    ) -> ShapeReader<'m, 'a> {
        let shape_count = members.bases.len().saturating_add(members.subsets.len());
        ShapeReader {
            members,
            start,
            range,
            bases: members.bases.iter().map(|_| None).collect(),
            views: (0..shape_count).map(|_| None).collect(),
            touched: 0,
        }
    }

    fn view(&mut self, shape: usize, times: &mut Vec<Times>) -> Result<&ShapeView> {
        if !matches!(self.views.get(shape), Some(Some(_))) {
            let view = self.make_view(shape, times)?;
            match self.views.get_mut(shape) {
                Some(cached) => *cached = Some(view),
                None => return Err(cut("member shapes")),
            }
        }
        self.views.get(shape).and_then(Option::as_ref).ok_or_else(|| cut("member shapes"))
    }

    fn make_view(&mut self, shape: usize, times: &mut Vec<Times>) -> Result<ShapeView> {
        let Some(subset_idx) = shape.checked_sub(self.members.bases.len()) else {
            let base = self.base(shape)?;
            let time_idx = if base.entries.is_empty() { 0 } else { base.shared(times) };
            return Ok(ShapeView { time_idx, presence: None, values: base.entries.clone() });
        };
        let subset = *self.members.subsets.get(subset_idx).ok_or_else(|| cut("subsets"))?;
        self.touched = self.touched.saturating_add(subset.byte_count);
        let base = self.base(subset.base)?;
        let mut entries = Vec::with_capacity(index_of(subset.entries.len()));
        subset.entries.decode(&mut entries)?;
        if entries.last().is_some_and(|&entry| entry >= base.times.len() as u64) {
            return Err(corrupt("subset has entries outside of its base"));
        }
        let from = entries.partition_point(|&entry| entry < base.entries.start as u64);
        let to = entries.partition_point(|&entry| entry < base.entries.end as u64).max(from);
        let kept = entries.get(from..to).unwrap_or_default();
        let mut presence = Presence::filled(base.entries.len(), false);
        for &entry in kept {
            presence.set(index_of(entry).saturating_sub(base.entries.start));
        }
        if kept.is_empty() || !is_sparse(&presence) {
            let time_idx = if kept.is_empty() { 0 } else { base.shared(times) };
            let presence = (!presence.is_full()).then_some(presence);
            return Ok(ShapeView { time_idx, presence, values: from..to });
        }
        let own = kept.iter().filter_map(|&entry| base.times.get(index_of(entry)));
        times.push(own.collect());
        Ok(ShapeView { time_idx: last_index(times), presence: None, values: from..to })
    }

    fn base(&mut self, idx: usize) -> Result<&mut CutBase> {
        let encoded = self.members.bases.get(idx).ok_or_else(|| cut("bases"))?;
        let cached = self.bases.get_mut(idx).ok_or_else(|| cut("bases"))?;
        match cached {
            Some(base) => Ok(base),
            None => {
                let mut input = encoded.bytes;
                self.touched = self.touched.saturating_add(input.len());
                let times = TimeColumn::take(self.start, encoded.entry_count, &mut input)?;
                let entries = times.entries_in(self.range);
                Ok(cached.insert(CutBase { times, entries, time_idx: None }))
            }
        }
    }
}

impl CutBase {
    /// Index of the base's entries in the range among the result's time columns.
    fn shared(&mut self, times: &mut Vec<Times>) -> u32 {
        *self.time_idx.get_or_insert_with(|| {
            times.push(self.times.slice(self.entries.clone()));
            last_index(times)
        })
    }
}

impl<'a> Base<'a> {
    fn take(input: &mut &'a [u8]) -> Result<Base<'a>> {
        let entry_count = take_count(input, ENTRIES_MAX, "chunk entries")?;
        let byte_count = take_count(input, input.len(), "time column bytes")?;
        Ok(Base { entry_count, bytes: take_bytes(input, byte_count, "times")? })
    }
}

impl<'a> Bases<'a> {
    fn len(&self) -> usize {
        self.others.len().saturating_add(1)
    }

    fn get(&self, idx: usize) -> Option<&Base<'a>> {
        match idx.checked_sub(1) {
            None => Some(&self.first),
            Some(other_idx) => self.others.get(other_idx),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Base<'a>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// An id of a posting list as an index; one that exceeds `usize` matches no entry.
fn index_of(id: u64) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// The index of the last time column.
fn last_index(times: &[Times]) -> u32 {
    u32::try_from(times.len()).unwrap_or(u32::MAX).saturating_sub(1)
}

/// The slots of a posting list.
fn slots_of(list: Postings<'_>) -> impl Iterator<Item = Slot> + use<'_> {
    list.iter().map_while(|id| u32::try_from(id).ok().map(Slot))
}
