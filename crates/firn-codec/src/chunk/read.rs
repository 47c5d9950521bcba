//! Reading the members of a chunk.

use std::ops::Range;
use std::sync::Arc;

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Result, Slot, TimeRange, Timestamp};

use super::directory::{Directory, MemberWalk};
use super::outline::ColumnOutline;
use super::{ENTRIES_MAX, Times, VALUES_MAX, slots_of};
use crate::columns::{MemberColumn, SlotWalk, Slots, entries_in};
use crate::integers;
use crate::merge::is_sparse;
use crate::postings::Postings;
use crate::row::SLOTS_MAX;
use crate::time_column::decode_times;
use crate::value_column::decode_values;
use crate::varint::{corrupt, cut, take_bytes, take_count};

/// The body of a lone series.
#[derive(Clone, Debug)]
pub(super) struct Lone<'a> {
    pub(super) entry_count: usize,
    /// The timestamps have equal distances and are not stored.
    pub(super) regular: bool,
    pub(super) bytes: &'a [u8],
}

impl<'a> Lone<'a> {
    /// The bytes of its value column.
    pub(super) fn values(&self, start: Timestamp) -> Result<&'a [u8]> {
        let mut input = self.bytes;
        if !self.regular {
            decode_times(start, self.entry_count, &mut input)?;
        }
        Ok(input)
    }
}

impl Lone<'_> {
    pub(super) fn read(
        &self,
        all: TimeRange,
        slots: Slots<'_>,
        range: TimeRange,
        touched: &mut usize,
    ) -> Result<ColumnBatch> {
        *touched += self.bytes.len();
        if !slots.contains(Slot(0)) {
            return Ok(ColumnBatch::default());
        }
        let mut input = self.bytes;
        let (times, entries): (Times, _) = if self.regular {
            let line = RegularTimes::new(all, self.entry_count)?;
            let entries = line.entries_in(range);
            (entries.clone().map(|idx| line.at(idx)).collect(), entries)
        } else {
            let times = decode_times(all.start, self.entry_count, &mut input)?;
            let entries = entries_in(&times, range);
            (times.get(entries.clone()).unwrap_or_default().into(), entries)
        };
        if times.is_empty() {
            return Ok(ColumnBatch::default());
        }
        let mut values = Vec::with_capacity(entries.len());
        decode_values(input, self.entry_count, entries, &mut Vec::new(), &mut values)?;
        Ok(ColumnBatch::of_one(Slot(0), times, values))
    }
}

impl Lone<'_> {
    /// See [`super::Chunk::append_one`].
    pub(super) fn append(
        &self,
        all: TimeRange,
        slot: Slot,
        range: TimeRange,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        if slot != Slot(0) {
            return Ok(true);
        }
        let mut input = self.bytes;
        let entries = if self.regular {
            let line = RegularTimes::new(all, self.entry_count)?;
            let entries = line.entries_in(range);
            if !entries.is_empty() && !out.is_next(line.at(entries.start)) {
                return Ok(false);
            }
            out.times.extend(entries.clone().map(|idx| line.at(idx)));
            entries
        } else {
            let times = decode_times(all.start, self.entry_count, &mut input)?;
            let entries = entries_in(&times, range);
            let kept = times.get(entries.clone()).unwrap_or_default();
            if !kept.first().is_none_or(|first| out.is_next(*first)) {
                return Ok(false);
            }
            out.times.extend_from_slice(kept);
            entries
        };
        if !entries.is_empty() {
            decode_values(input, self.entry_count, entries, &mut out.scratch, &mut out.values)?;
        }
        Ok(true)
    }
}

/// Timestamps of equal distances from the start of a range to its end.
struct RegularTimes {
    start: Timestamp,
    /// 0 if there is one timestamp only.
    step: u64,
    count: usize,
}

impl RegularTimes {
    fn new(range: TimeRange, count: usize) -> Result<RegularTimes> {
        let span = range.end.wrapping_sub(range.start) as u64;
        let steps = count as u64 - 1;
        let fits = if steps == 0 { span == 0 } else { span >= steps && span.is_multiple_of(steps) };
        if !fits {
            return Err(corrupt(format!("{count} regular timestamps in {span} ms")));
        }
        Ok(RegularTimes { start: range.start, step: span.checked_div(steps).unwrap_or(0), count })
    }

    fn at(&self, idx: usize) -> Timestamp {
        self.start.wrapping_add((idx as u64).wrapping_mul(self.step) as i64)
    }

    /// Those that are in `range`, which overlaps them.
    fn entries_in(&self, range: TimeRange) -> Range<usize> {
        let distance = |ts: Timestamp| ts.wrapping_sub(self.start) as u64;
        // A step of 0 is that of a single timestamp.
        let step = self.step.max(1);
        let at_most = |idx: u64| usize::try_from(idx).map_or(self.count, |idx| idx.min(self.count));
        let from = match range.start <= self.start {
            true => 0,
            false => at_most(distance(range.start).div_ceil(step)),
        };
        let to = match range.end < self.start {
            true => 0,
            false => at_most((distance(range.end) / step).saturating_add(1)),
        };
        from..to.max(from)
    }
}

/// The body of a chunk of members, split into its parts.
#[derive(Clone, Debug)]
pub(super) struct Members<'a> {
    pub(super) slots: Postings<'a>,
    bases: Vec<Base<'a>>,
    subsets: Vec<Subset<'a>>,
    /// (shape, members) runs; empty if there is one shape only.
    pub(super) shape_runs: &'a [u8],
    pub(super) directory: Directory<'a>,
    /// Bytes that opening looked at.
    opened_bytes: usize,
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

impl<'a> Members<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Members<'a>> {
        let mut input = bytes;
        let slots = Postings::take(&mut input)?;
        if slots.is_empty() || slots.len() > SLOTS_MAX as u64 {
            return Err(corrupt(format!("chunk with {} members", slots.len())));
        }
        let member_count = slots.len() as usize;
        // A base or a subset takes at least two bytes.
        let base_count = take_count(&mut input, bytes.len(), "chunk bases")?;
        let subset_count = take_count(&mut input, bytes.len(), "chunk subsets")?;
        let mut bases = Vec::with_capacity(base_count);
        for _ in 0..base_count {
            let entry_count = take_count(&mut input, ENTRIES_MAX, "chunk entries")?;
            let byte_count = take_count(&mut input, bytes.len(), "time column bytes")?;
            bases.push(Base { entry_count, bytes: take_bytes(&mut input, byte_count, "times")? });
        }
        let mut subsets = Vec::with_capacity(subset_count);
        for _ in 0..subset_count {
            let base = take_count(&mut input, usize::MAX, "subset base")?;
            let before = input.len();
            let entries = Postings::take(&mut input)?;
            let byte_count = before - input.len();
            let known = bases.get(base).is_some_and(|b| entries.len() <= b.entry_count as u64);
            if !known {
                return Err(corrupt(format!("subset of unknown base {base}")));
            }
            subsets.push(Subset { base, entries, byte_count });
        }
        let runs_at = input;
        let mut members = Members {
            slots,
            bases,
            subsets,
            shape_runs: &[],
            directory: Directory::default(),
            opened_bytes: 0,
        };
        members.skip_shape_runs(member_count, &mut input)?;
        members.shape_runs = runs_at.get(..runs_at.len() - input.len()).unwrap_or_default();
        members.directory = Directory::take(member_count, input)?;
        let apart = members.bases.iter().map(|base| base.bytes.len()).sum::<usize>()
            + members.subsets.iter().map(|subset| subset.byte_count).sum::<usize>()
            + members.directory.byte_count();
        members.opened_bytes = bytes.len().saturating_sub(apart);
        Ok(members)
    }

    pub(super) fn has_one_shape(&self) -> bool {
        self.bases.len() + self.subsets.len() == 1
    }

    /// Walks the shape runs and checks that they cover the members, with few enough values.
    fn skip_shape_runs(&self, member_count: usize, input: &mut &[u8]) -> Result<()> {
        let mut left = member_count;
        let mut value_count = 0usize;
        while left > 0 {
            let (shape, run) = if self.has_one_shape() {
                (0, left)
            } else {
                let shape = take_count(input, usize::MAX, "member shape")?;
                (shape, take_count(input, left - 1, "members of a shape")? + 1)
            };
            let count = self.shape_len(shape);
            let count = count.filter(|&count| count > 0).ok_or_else(|| {
                corrupt(format!("member shape {shape} is unknown or without entries"))
            })?;
            value_count = value_count.saturating_add(count.saturating_mul(run));
            left -= run;
        }
        if value_count > VALUES_MAX {
            return Err(corrupt(format!("chunk of {value_count} values")));
        }
        Ok(())
    }

    /// How many entries a member of `shape` has.
    fn shape_len(&self, shape: usize) -> Option<usize> {
        match shape.checked_sub(self.bases.len()) {
            None => self.bases.get(shape).map(|base| base.entry_count),
            Some(idx) => self.subsets.get(idx).map(|subset| subset.entries.len() as usize),
        }
    }

    pub(super) fn entry_count(&self) -> usize {
        self.bases.iter().map(|base| base.entry_count).sum()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<'a> {
        slots_of(self.slots)
    }

    /// The time columns, for people: those of their own, then those that are some entries of another.
    pub(super) fn outline_times(&self) -> Vec<ColumnOutline> {
        let bases = self.bases.iter().map(|base| ColumnOutline {
            codec: integers::codec_of(base.bytes),
            entry_count: base.entry_count,
            bytes: base.bytes.len(),
        });
        let subsets = self.subsets.iter().map(|subset| ColumnOutline {
            codec: format!("some of time column {}", subset.base),
            entry_count: subset.entries.len() as usize,
            bytes: subset.byte_count,
        });
        bases.chain(subsets).collect()
    }

    /// Calls `f` with each wanted member's slot, number of values, bytes, and whether these are those of the member before.
    pub(super) fn for_each_member(
        &self,
        wanted: &mut SlotWalk<'_>,
        mut f: impl FnMut(Slot, usize, &'a [u8], bool),
    ) -> Result<()> {
        let mut walk = MemberWalk::new(self);
        let mut before: Option<&[u8]> = None;
        while let Some(member) = walk.next(wanted)? {
            let count = self.shape_len(member.shape).ok_or_else(|| cut("member shape"))?;
            let is_shared = before.is_some_and(|before| std::ptr::eq(before, member.bytes));
            f(member.slot, count, member.bytes, is_shared);
            before = Some(member.bytes);
        }
        Ok(())
    }

    pub(super) fn read(
        &self,
        start: Timestamp,
        wanted: Slots<'_>,
        range: TimeRange,
        touched: &mut usize,
    ) -> Result<ColumnBatch> {
        let mut reader = Reader::new(self, start, range);
        let mut batch = ColumnBatch::default();
        let mut walk = MemberWalk::new(self);
        let mut wanted = wanted.walk();
        let mut scratch = Vec::new();
        *touched += self.opened_bytes;
        while let Some(member) = walk.next(&mut wanted)? {
            let count = self.shape_len(member.shape).ok_or_else(|| cut("member shape"))?;
            let view = reader.view(member.shape, &mut batch.times)?;
            if view.values.is_empty() {
                continue;
            }
            let kept = view.values.clone();
            let mut values = Vec::with_capacity(kept.len());
            decode_values(member.bytes, count, kept, &mut scratch, &mut values)?;
            *touched += member.bytes.len();
            batch.columns.push(Column {
                slot: member.slot,
                key: 0,
                time_idx: view.time_idx,
                presence: view.presence.clone(),
                values: ColumnValues::F64(values),
            });
        }
        *touched += walk.touched + reader.touched;
        Ok(batch)
    }
}

/// Shapes cut to a range, each worked out once and only if some member needs it.
struct Reader<'m, 'a> {
    members: &'m Members<'a>,
    start: Timestamp,
    range: TimeRange,
    bases: Vec<Option<CutBase>>,
    views: Vec<Option<View>>,
    /// Bytes of time columns and subsets that were looked at.
    touched: usize,
}

struct CutBase {
    times: Times,
    entries: Range<usize>,
    time_idx: Option<u32>,
}

/// What all members of a shape have in the range.
struct View {
    time_idx: u32,
    presence: Option<Presence>,
    /// Which of a member's values are in the range.
    values: Range<usize>,
}

impl<'m, 'a> Reader<'m, 'a> {
    fn new(members: &'m Members<'a>, start: Timestamp, range: TimeRange) -> Reader<'m, 'a> {
        let shape_count = members.bases.len() + members.subsets.len();
        Reader {
            members,
            start,
            range,
            bases: members.bases.iter().map(|_| None).collect(),
            views: (0..shape_count).map(|_| None).collect(),
            touched: 0,
        }
    }

    fn view(&mut self, shape: usize, times: &mut Vec<Times>) -> Result<&View> {
        if !matches!(self.views.get(shape), Some(Some(_))) {
            let view = self.make_view(shape, times)?;
            match self.views.get_mut(shape) {
                Some(place) => *place = Some(view),
                None => return Err(cut("member shapes")),
            }
        }
        self.views.get(shape).and_then(Option::as_ref).ok_or_else(|| cut("member shapes"))
    }

    fn make_view(&mut self, shape: usize, times: &mut Vec<Times>) -> Result<View> {
        let Some(subset_idx) = shape.checked_sub(self.members.bases.len()) else {
            let base = self.base(shape)?;
            let time_idx = if base.entries.is_empty() { 0 } else { base.shared(times) };
            return Ok(View { time_idx, presence: None, values: base.entries.clone() });
        };
        let subset = *self.members.subsets.get(subset_idx).ok_or_else(|| cut("subsets"))?;
        self.touched += subset.byte_count;
        let base = self.base(subset.base)?;
        let mut entries = Vec::with_capacity(subset.entries.len() as usize);
        subset.entries.decode(&mut entries)?;
        if entries.last().is_some_and(|&entry| entry >= base.times.len() as u64) {
            return Err(corrupt("subset has entries that its base has not"));
        }
        let from = entries.partition_point(|&entry| entry < base.entries.start as u64);
        let to = entries.partition_point(|&entry| entry < base.entries.end as u64).max(from);
        let kept = entries.get(from..to).unwrap_or_default();
        let mut presence = Presence::filled(base.entries.len(), false);
        for &entry in kept {
            presence.set(entry as usize - base.entries.start);
        }
        if kept.is_empty() || !is_sparse(&presence) {
            let time_idx = if kept.is_empty() { 0 } else { base.shared(times) };
            let presence = (!presence.is_full()).then_some(presence);
            return Ok(View { time_idx, presence, values: from..to });
        }
        let own = kept.iter().filter_map(|&entry| base.times.get(entry as usize).copied());
        times.push(own.collect());
        Ok(View { time_idx: (times.len() - 1) as u32, presence: None, values: from..to })
    }

    fn base(&mut self, idx: usize) -> Result<&mut CutBase> {
        let encoded = self.members.bases.get(idx).ok_or_else(|| cut("bases"))?;
        let place = self.bases.get_mut(idx).ok_or_else(|| cut("bases"))?;
        match place {
            Some(base) => Ok(base),
            None => {
                let mut input = encoded.bytes;
                self.touched += input.len();
                let times = decode_times(self.start, encoded.entry_count, &mut input)?;
                let entries = entries_in(&times, self.range);
                Ok(place.insert(CutBase { times: times.into(), entries, time_idx: None }))
            }
        }
    }
}

impl CutBase {
    /// Where the base's entries in the range stand among the result's time columns.
    fn shared(&mut self, times: &mut Vec<Times>) -> u32 {
        *self.time_idx.get_or_insert_with(|| {
            times.push(match self.entries.len() == self.times.len() {
                true => Arc::clone(&self.times),
                false => self.times.get(self.entries.clone()).unwrap_or_default().into(),
            });
            (times.len() - 1) as u32
        })
    }
}
