//! The columns of one group from one source, and cutting them to a time range.

use std::ops::Range;
use std::sync::Arc;

use firn_model::{
    Column, ColumnBatch, ColumnValues, CommitSeq, Presence, Slot, TimeRange, Timestamp,
};

/// Timestamps that several members or columns share.
pub(crate) type Times = Arc<[Timestamp]>;

/// The range of commits from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SeqRange {
    /// The oldest commit.
    pub min: CommitSeq,
    /// The newest commit.
    pub max: CommitSeq,
}

impl SeqRange {
    /// Just `seq`.
    pub fn at(seq: CommitSeq) -> SeqRange {
        SeqRange { min: seq, max: seq }
    }

    /// The smallest range that covers both.
    pub fn union(self, other: SeqRange) -> SeqRange {
        SeqRange { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// The columns of one group from one source. Their `key` is 0 until the engine sets it.
///
/// Invariants: timestamps of a time column strictly rise; columns are sorted by slot without
/// duplicates; a column has at least one value, and one value for each entry of its time column
/// that is present.
#[derive(Clone, Debug, Default)]
pub struct GroupColumns {
    /// The columns.
    pub batch: ColumnBatch,
    /// The commits that wrote them.
    pub seq: SeqRange,
}

/// The samples of one member, appended piece by piece in time order. A reader of many series reuses
/// it. It has as many timestamps as values; timestamps rise.
#[derive(Clone, Debug, Default)]
pub struct MemberColumn {
    /// The timestamps.
    pub times: Vec<Timestamp>,
    /// Their values.
    pub values: Vec<f64>,
    pub(crate) scratch: Vec<u64>,
}

impl MemberColumn {
    /// Removes the samples and keeps the memory.
    pub fn clear(&mut self) {
        self.times.clear();
        self.values.clear();
    }

    /// Appends a sample. Returns `false`, without effect, if it is not later than all others.
    #[inline]
    pub fn push(&mut self, ts: Timestamp, value: f64) -> bool {
        let is_next = self.is_next(ts);
        if is_next {
            self.times.push(ts);
            self.values.push(value);
        }
        is_next
    }

    /// Appends samples whose timestamps rise. Returns `false`, without effect, if they do not start
    /// after all others.
    pub fn extend(&mut self, times: &[Timestamp], values: &[f64]) -> bool {
        let is_next = times.first().is_none_or(|first| self.is_next(*first));
        if is_next {
            self.times.extend_from_slice(times);
            self.values.extend_from_slice(values);
        }
        is_next
    }

    pub(crate) fn is_next(&self, ts: Timestamp) -> bool {
        self.times.last().is_none_or(|last| *last < ts)
    }
}

/// A selection of members.
#[derive(Clone, Copy, Debug)]
pub enum Slots<'a> {
    /// Every member.
    All,
    /// These slots; sorted, unique.
    Some(&'a [Slot]),
}

/// Tests slots in ascending order against a selection: one step per slot instead of a search.
#[derive(Clone, Copy, Debug)]
pub struct SlotWalk<'a> {
    left: Option<&'a [Slot]>,
}

impl<'a> SlotWalk<'a> {
    /// The slots that remain selected; `None` if the selection is `All`.
    pub(crate) fn listed(&self) -> Option<&'a [Slot]> {
        self.left
    }

    /// Whether no later slot is selected.
    pub fn is_done(&self) -> bool {
        self.left.is_some_and(<[Slot]>::is_empty)
    }

    /// Whether `slot` is selected. Slots must rise from call to call.
    #[inline]
    pub fn take(&mut self, slot: Slot) -> bool {
        let Some(left) = &mut self.left else { return true };
        while let [first, rest @ ..] = left
            && *first <= slot
        {
            let found = *first == slot;
            *left = rest;
            if found {
                return true;
            }
        }
        false
    }
}

impl<'a> Slots<'a> {
    /// A walk that starts at the first slot.
    pub fn walk(self) -> SlotWalk<'a> {
        SlotWalk {
            left: match self {
                Slots::All => None,
                Slots::Some(slots) => Some(slots),
            },
        }
    }

    /// Whether `slot` is selected. O(log slots).
    pub fn contains(&self, slot: Slot) -> bool {
        match self {
            Slots::All => true,
            Slots::Some(slots) => slots.binary_search(&slot).is_ok(),
        }
    }
}

impl GroupColumns {
    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.batch.columns.is_empty()
    }

    /// Number of entries of all time columns, which is the number of rows.
    pub fn entry_count(&self) -> usize {
        self.batch.times.iter().map(|times| times.len()).sum()
    }

    /// Number of values of all columns.
    pub fn value_count(&self) -> usize {
        self.batch.columns.iter().map(|column| column.values.len()).sum()
    }

    /// The smallest range that contains all timestamps.
    pub fn time_range(&self) -> TimeRange {
        self.batch.times.iter().fold(TimeRange::EMPTY, |range, times| range.union(span(times)))
    }

    /// Bytes of heap memory.
    pub fn heap_bytes(&self) -> usize {
        let times: usize = self.batch.times.iter().map(|times| 16 + size_of_val(&**times)).sum();
        let columns: usize = self.batch.columns.iter().map(column_heap_bytes).sum();
        times
            + columns
            + self.batch.times.capacity() * size_of::<Arc<[Timestamp]>>()
            + self.batch.columns.capacity() * size_of::<Column>()
    }

    /// The part inside `range`: shares whole time columns and copies values. Members without a
    /// value there are left out.
    pub fn slice(&self, range: TimeRange) -> GroupColumns {
        if range.covers(self.time_range()) {
            return self.clone();
        }
        let cuts: Vec<Range<usize>> =
            self.batch.times.iter().map(|times| entries_in(times, range)).collect();
        let mut kept_times = TimeColumns::default();
        let columns = self.batch.columns.iter().filter_map(|column| {
            let times = &self.batch.times[column.time_idx as usize];
            let cut = &cuts[column.time_idx as usize];
            let (presence, values) = cut_column(column, cut.clone())?;
            let time_idx = kept_times.keep(column.time_idx, times, cut);
            Some(Column { slot: column.slot, key: column.key, time_idx, presence, values })
        });
        let columns = columns.collect();
        GroupColumns { batch: ColumnBatch { times: kept_times.times, columns }, seq: self.seq }
    }

    /// Panics unless the invariants hold. For tests, and before bytes become durable.
    pub fn check(&self) {
        for times in &self.batch.times {
            assert!(times.is_sorted_by(|a, b| a < b), "timestamps of a time column must rise");
        }
        let columns = &self.batch.columns;
        assert!(columns.is_sorted_by(|a, b| a.slot < b.slot), "columns must be sorted by slot");
        for column in columns {
            let entry_count = self.batch.times[column.time_idx as usize].len();
            let present = column.presence.as_ref().map_or(entry_count, |presence| {
                assert_eq!(presence.len(), entry_count, "presence must cover the time column");
                presence.count_present()
            });
            assert_eq!(column.values.len(), present, "a value for each present entry");
            assert!(present > 0, "a column without values must be left out");
        }
    }
}

/// The doubles of a column.
pub(crate) fn doubles(values: &ColumnValues) -> &[f64] {
    match values {
        ColumnValues::F64(values) => values,
        _ => unreachable!("readers refuse column types that this version does not know"),
    }
}

/// The range from the first to the last of sorted timestamps.
pub(crate) fn span(times: &[Timestamp]) -> TimeRange {
    match times {
        [only] => TimeRange::at(*only),
        [first, .., last] => TimeRange::new(*first, *last),
        [] => TimeRange::EMPTY,
    }
}

/// The entries of sorted `times` that are in `range`.
pub(crate) fn entries_in(times: &[Timestamp], range: TimeRange) -> Range<usize> {
    let start = times.partition_point(|&ts| ts < range.start);
    let end = times.partition_point(|&ts| ts <= range.end);
    start..end.max(start)
}

/// Presence and values of the entries in `cut`; `None` if there is no value.
pub(crate) fn cut_column(
    column: &Column,
    cut: Range<usize>,
) -> Option<(Option<Presence>, ColumnValues)> {
    let values = doubles(&column.values);
    let (presence, part) = match &column.presence {
        None => (None, values.get(cut)?),
        Some(presence) => {
            let before = (0..cut.start).filter(|&idx| presence.get(idx)).count();
            let mut kept = Presence::new();
            cut.for_each(|idx| kept.push(presence.get(idx)));
            let part = values.get(before..before + kept.count_present())?;
            ((!kept.is_full()).then_some(kept), part)
        }
    };
    (!part.is_empty()).then(|| (presence, ColumnValues::F64(part.to_vec())))
}

/// Sorts one member's samples by time and keeps the last pushed of equal timestamps; returns their
/// number.
pub(crate) fn newest_of_each(samples: &mut [(Timestamp, f64)]) -> usize {
    if samples.is_empty() {
        return 0;
    }
    if samples.is_sorted_by(|a, b| a.0 < b.0) {
        return samples.len();
    }
    samples.sort_by_key(|sample| sample.0);
    let mut kept = 0;
    for idx in 0..samples.len() {
        // The sort is stable: of equal timestamps the newest is last and overwrites the others.
        if idx > 0 && samples[kept].0 != samples[idx].0 {
            kept += 1;
        }
        samples[kept] = samples[idx];
    }
    kept + 1
}

/// As [`are_sparse`] for the entries that are present.
pub(crate) fn is_sparse(presence: &Presence) -> bool {
    are_sparse(presence.count_present(), presence.len())
}

/// Whether timestamps of its own are cheaper for a member with `count` of `all_count` entries: if
/// it has under 1/16 of them, reading them costs at most half as much as walking its bits and the
/// shared timestamps.
pub(crate) fn are_sparse(count: usize, all_count: usize) -> bool {
    count.saturating_mul(16) < all_count
}

fn column_heap_bytes(column: &Column) -> usize {
    let presence = column.presence.as_ref().map_or(0, |presence| size_of_val(presence.words()));
    presence + column.values.len() * 8
}

/// The time columns of a result; each is cut once, and only if a member uses it.
#[derive(Default)]
pub(crate) struct TimeColumns {
    pub(crate) times: Vec<Arc<[Timestamp]>>,
    /// Pairs of the index in the source and the index here.
    kept: Vec<(u32, u32)>,
}

impl TimeColumns {
    fn keep(&mut self, source_idx: u32, times: &Arc<[Timestamp]>, cut: &Range<usize>) -> u32 {
        if let Some(&(_, idx)) = self.kept.iter().rev().find(|(source, _)| *source == source_idx) {
            return idx;
        }
        let idx = self.times.len() as u32;
        self.times.push(match cut.len() == times.len() {
            true => Arc::clone(times),
            false => times.get(cut.clone()).unwrap_or_default().into(),
        });
        self.kept.push((source_idx, idx));
        idx
    }
}
