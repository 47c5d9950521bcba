//! Transposes rows to columns: unites the pieces of a row, and the newest write wins.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Slot, Timestamp};

use crate::columns::{GroupColumns, SeqRange, are_sparse, newest_of_each};

/// Collects the row pieces of one group in write order and transposes them.
///
/// Fastest for rows that rise in time and have the same members, as most do: memory is 8 bytes per
/// value, and columns are copied out of the rows. Otherwise it takes 24 bytes per value until
/// [`RowsToColumns::finish`], 40 during it, and some nanoseconds per value, for a counting sort by
/// slot and a check that each member's timestamps rise. Members with timestamps out of order are
/// sorted.
///
/// ```
/// use firn_codec::{RowsToColumns, SeqRange};
/// use firn_model::{CommitSeq, Slot};
///
/// let mut rows = RowsToColumns::new();
/// rows.push(1_000, Slot(0), 1.5);
/// rows.push(1_000, Slot(1), 7.0);
/// rows.push(2_000, Slot(0), 1.6);
/// let columns = rows.finish(SeqRange::at(CommitSeq(9)));
/// assert_eq!(columns.value_count(), 3);
/// assert_eq!(&*columns.batch.times[0], [1_000, 2_000]);
/// ```
#[derive(Debug, Default)]
pub struct RowsToColumns {
    /// Rows that rise in time and have the members of the first one; the last may be incomplete.
    /// Empty once `cells` has them.
    even: EvenRows,
    /// All values, in the order in which they were pushed, if the rows are not even.
    cells: Vec<(Slot, Timestamp, f64)>,
    /// Working memory of `finish`.
    sorted: Vec<(Timestamp, f64)>,
}

/// Bytes for each value of uneven rows, while they become columns: the value as it was pushed,
/// sorted, and in its column.
const UNEVEN_VALUE_BYTES: usize =
    size_of::<(Slot, Timestamp, f64)>() + 2 * size_of::<(Timestamp, f64)>();

/// Rows of the same members.
#[derive(Debug, Default)]
struct EvenRows {
    members: Vec<Slot>,
    times: Vec<Timestamp>,
    /// Row after row.
    values: Vec<f64>,
    /// Number of values of the last row.
    last_row_len: usize,
}

impl RowsToColumns {
    /// An empty collection.
    pub fn new() -> RowsToColumns {
        RowsToColumns::default()
    }

    /// Adds one value; of equal (slot, timestamp) the last one wins. Fastest if the values of a row
    /// are pushed one after the other, slots rising.
    #[inline]
    pub fn push(&mut self, ts: Timestamp, slot: Slot, value: f64) {
        if !self.cells.is_empty() || !self.even.push(ts, slot, value) {
            self.push_cell(ts, slot, value);
        }
    }

    /// Number of values pushed.
    pub fn len(&self) -> usize {
        self.even.values.len() + self.cells.len()
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the columns of the pushed values, about; of values of uneven rows also those of the
    /// copies from which the columns are made.
    #[inline]
    pub fn decoded_bytes(&self) -> usize {
        size_of::<f64>() * (self.even.values.len() + self.even.times.len())
            + UNEVEN_VALUE_BYTES * self.cells.len()
    }

    /// As [`RowsToColumns::decoded_bytes`], with the copies of even rows.
    #[inline]
    pub fn working_bytes(&self) -> usize {
        self.decoded_bytes() + size_of::<f64>() * self.even.values.len()
    }

    /// Timestamps and values if only slot 0 has values, and they rise in time.
    pub fn lone(&self) -> Option<(&[Timestamp], &[f64])> {
        let is_lone = self.even.members == [Slot(0)] && self.cells.is_empty();
        is_lone.then_some((&*self.even.times, &*self.even.values))
    }

    /// Removes all values and keeps the memory.
    pub fn clear(&mut self) {
        self.even.clear();
        self.cells.clear();
    }

    /// The columns of all pushed values, from commits `seq`. Keeps the memory for the next group.
    ///
    /// Members share the time column of all timestamps. Those that would be sparse on it share one
    /// time column per pattern.
    pub fn finish(&mut self, seq: SeqRange) -> GroupColumns {
        if self.even.last_row_len < self.even.members.len() {
            self.even.take_cells(&mut self.cells);
        }
        let batch = match self.cells.is_empty() {
            true => self.even.take_columns(),
            false => self.take_columns(),
        };
        GroupColumns { batch, seq }
    }

    #[inline(never)]
    fn push_cell(&mut self, ts: Timestamp, slot: Slot, value: f64) {
        self.even.take_cells(&mut self.cells);
        self.cells.push((slot, ts, value));
    }

    /// The columns of `cells`, which are removed.
    fn take_columns(&mut self) -> ColumnBatch {
        let mut times: Vec<Timestamp> = self.cells.iter().map(|cell| cell.1).collect();
        times.dedup();
        times.sort_unstable();
        times.dedup();
        let ends = self.sort_by_slot();
        let mut columns = ColumnsOfMembers::new(times.into());
        let mut start = 0;
        for (slot, end) in ends.into_iter().enumerate() {
            if let Some(samples) = self.sorted.get_mut(start..end)
                && !samples.is_empty()
            {
                let kept = newest_of_each(samples);
                columns.push(Slot(slot as u32), &samples[..kept]);
            }
            start = end;
        }
        self.cells.clear();
        columns.batch
    }

    /// Groups the samples by slot in `sorted`, in push order; returns the end of each slot's
    /// samples.
    fn sort_by_slot(&mut self) -> Vec<usize> {
        let end = self.cells.iter().map(|cell| cell.0.0 as usize + 1).max().unwrap_or(0);
        let mut next = vec![0usize; end];
        for (slot, ..) in &self.cells {
            next[slot.0 as usize] += 1;
        }
        let mut sum = 0;
        for count in &mut next {
            (*count, sum) = (sum, sum + *count);
        }
        self.sorted.clear();
        self.sorted.resize(self.cells.len(), (0, 0.0));
        for &(slot, ts, value) in &self.cells {
            let target = &mut next[slot.0 as usize];
            self.sorted[*target] = (ts, value);
            *target += 1;
        }
        next
    }
}

impl EvenRows {
    /// Adds a value; `false`, without effect, if the rows would not be even.
    #[inline]
    fn push(&mut self, ts: Timestamp, slot: Slot, value: f64) -> bool {
        let next = self.members.get(self.last_row_len);
        let fits = match self.times.last() {
            Some(last) if *last == ts => match next {
                Some(next) => *next == slot,
                None => self.times.len() == 1 && self.add_member(slot),
            },
            Some(last) => {
                let is_next = next.is_none() && *last < ts && self.members.first() == Some(&slot);
                is_next && self.begin_row(ts)
            }
            None => self.add_member(slot) && self.begin_row(ts),
        };
        if fits {
            self.last_row_len += 1;
            self.values.push(value);
        }
        fits
    }

    fn add_member(&mut self, slot: Slot) -> bool {
        let is_next = self.members.last().is_none_or(|last| *last < slot);
        if is_next {
            self.members.push(slot);
        }
        is_next
    }

    fn begin_row(&mut self, ts: Timestamp) -> bool {
        self.times.push(ts);
        self.last_row_len = 0;
        true
    }

    /// Moves all values to `cells`.
    fn take_cells(&mut self, cells: &mut Vec<(Slot, Timestamp, f64)>) {
        if self.members.is_empty() {
            return;
        }
        let rows = self.times.iter().zip(self.values.chunks(self.members.len()));
        for (&ts, row) in rows {
            cells.extend(self.members.iter().zip(row).map(|(&slot, &value)| (slot, ts, value)));
        }
        self.clear();
    }

    /// The columns of all values, which are removed. The last row is complete.
    fn take_columns(&mut self) -> ColumnBatch {
        let member_count = self.members.len();
        if member_count == 0 {
            return ColumnBatch::default();
        }
        let column = |(idx, &slot): (usize, &Slot)| {
            let values = match member_count {
                1 => self.values.clone(),
                _ => self.values[idx..].iter().step_by(member_count).copied().collect(),
            };
            Column { slot, key: 0, time_idx: 0, presence: None, values: ColumnValues::F64(values) }
        };
        let columns = self.members.iter().enumerate().map(column).collect();
        let batch = ColumnBatch { times: vec![self.times.as_slice().into()], columns };
        self.clear();
        batch
    }

    fn clear(&mut self) {
        self.members.clear();
        self.times.clear();
        self.values.clear();
        self.last_row_len = 0;
    }
}

/// Columns under construction, slots ascending.
struct ColumnsOfMembers {
    all: Arc<[Timestamp]>,
    shared: Option<u32>,
    /// The time columns of sparse members.
    sparse: HashMap<Arc<[Timestamp]>, u32>,
    /// Working memory.
    own: Vec<Timestamp>,
    batch: ColumnBatch,
}

impl ColumnsOfMembers {
    fn new(all: Arc<[Timestamp]>) -> ColumnsOfMembers {
        let (shared, sparse, own, batch) = Default::default();
        ColumnsOfMembers { all, shared, sparse, own, batch }
    }

    fn push(&mut self, slot: Slot, samples: &[(Timestamp, f64)]) {
        let times = &mut self.batch.times;
        let mut add = |new: Arc<[Timestamp]>| {
            times.push(new);
            (times.len() - 1) as u32
        };
        let (time_idx, presence) = if are_sparse(samples.len(), self.all.len()) {
            self.own.clear();
            self.own.extend(samples.iter().map(|sample| sample.0));
            let known = self.sparse.get(&*self.own).copied();
            let idx = known.unwrap_or_else(|| {
                let new: Arc<[Timestamp]> = self.own.as_slice().into();
                let idx = add(Arc::clone(&new));
                self.sparse.insert(new, idx);
                idx
            });
            (idx, None)
        } else {
            let shared = *self.shared.get_or_insert_with(|| add(Arc::clone(&self.all)));
            (shared, presence_in(&self.all, samples))
        };
        let values = ColumnValues::F64(samples.iter().map(|sample| sample.1).collect());
        self.batch.columns.push(Column { slot, key: 0, time_idx, presence, values });
    }
}

/// The entries of `all` that the member has; `None` if it has all.
fn presence_in(all: &[Timestamp], samples: &[(Timestamp, f64)]) -> Option<Presence> {
    if samples.len() == all.len() {
        return None;
    }
    let mut presence = Presence::filled(all.len(), false);
    let mut idx = 0;
    for &(ts, _) in samples {
        while all[idx] < ts {
            idx += 1;
        }
        presence.set(idx);
        idx += 1;
    }
    Some(presence)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use firn_model::CommitSeq;

    use super::*;

    /// Rows of any shape have the columns of a plain map: even rows, rows that stop being even at
    /// any place, pieces, repeated and late timestamps.
    #[test]
    fn rows_of_any_shape_are_transposed_as_by_a_map() {
        let row = |ts: Timestamp, slots: &[u32]| {
            slots.iter().map(move |&slot| (ts, slot, ts as f64 + f64::from(slot) / 8.0)).collect()
        };
        let odd_rows: [Vec<(Timestamp, u32, f64)>; 8] = [
            vec![],
            row(40, &[1, 3]),
            row(40, &[1, 3, 4, 9]),
            row(40, &[3, 1, 4]),
            row(30, &[1, 3, 4]),
            row(5, &[1, 3, 4]),
            row(40, &[0]),
            vec![(40, 1, 1.0), (40, 3, 2.0), (40, 4, 3.0), (40, 3, 4.0)],
        ];
        for even_count in 0..4 {
            for odd in &odd_rows {
                let even = (1..=even_count).flat_map(|idx| -> Vec<_> { row(idx * 10, &[1, 3, 4]) });
                let all: Vec<_> = even.chain(odd.iter().copied()).collect();
                let mut rows = RowsToColumns::new();
                for _ in 0..2 {
                    let mut want: BTreeMap<u32, BTreeMap<Timestamp, f64>> = BTreeMap::new();
                    for &(ts, slot, value) in &all {
                        rows.push(ts, Slot(slot), value);
                        want.entry(slot).or_default().insert(ts, value);
                    }
                    assert_eq!(rows.len(), all.len());
                    let columns = rows.finish(SeqRange::at(CommitSeq(1)));
                    columns.check();
                    let mut seen: BTreeMap<u32, BTreeMap<Timestamp, f64>> = BTreeMap::new();
                    for column in &columns.batch.columns {
                        let times = &columns.batch.times[column.time_idx as usize];
                        let present = (0..times.len())
                            .filter(|&idx| column.presence.as_ref().is_none_or(|p| p.get(idx)));
                        let values = crate::columns::doubles(&column.values);
                        let samples = present.map(|idx| times[idx]).zip(values.iter().copied());
                        seen.insert(column.slot.0, samples.collect());
                    }
                    assert_eq!(seen, want, "{all:?}");
                }
            }
        }
    }

    #[test]
    fn a_lone_series_is_readable_before_the_end() {
        let mut rows = RowsToColumns::new();
        for _ in 0..2 {
            rows.push(10, Slot(0), 1.0);
            rows.push(20, Slot(0), 2.0);
            assert_eq!(rows.lone(), Some((&[10, 20][..], &[1.0, 2.0][..])));
            rows.push(20, Slot(0), 3.0);
            assert_eq!(rows.lone(), None);
            rows.clear();
            assert!(rows.is_empty());
        }
    }

    #[test]
    fn pieces_unite_and_the_newest_wins() {
        let mut rows = RowsToColumns::new();
        for round in 0..2 {
            rows.push(10, Slot(0), 1.0);
            rows.push(10, Slot(2), 2.0);
            rows.push(20, Slot(0), 3.0);
            rows.push(10, Slot(1), 4.0);
            rows.push(10, Slot(0), 5.0);
            let columns = rows.finish(SeqRange::at(CommitSeq(round)));
            columns.check();
            assert_eq!(columns.batch.times.len(), 1);
            assert_eq!(&*columns.batch.times[0], [10, 20]);
            let values: Vec<_> = columns
                .batch
                .columns
                .iter()
                .map(|column| (column.slot.0, crate::columns::doubles(&column.values).to_vec()))
                .collect();
            assert_eq!(values, [(0, vec![5.0, 3.0]), (1, vec![4.0]), (2, vec![2.0])]);
            assert!(rows.is_empty());
        }
        assert!(rows.finish(SeqRange::default()).is_empty());
    }
}
