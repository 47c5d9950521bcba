//! Transposes rows to columns: unites the pieces of a row, and the newest write wins.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Slot, Timestamp};

use crate::columns::{GroupColumns, SeqRange, is_sparse, newest_of_each};

/// Collects the row pieces of one group in write order and transposes them.
///
/// Memory: 24 bytes per value until [`RowsToColumns::finish`], 40 during it. Time: some nanoseconds
/// per value, for a counting sort by slot and a check that each member's timestamps rise. Members
/// with timestamps out of order are sorted.
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
    cells: Vec<(Slot, Timestamp, f64)>,
    /// The timestamp of each row piece.
    times: Vec<Timestamp>,
    /// Slots are below this one.
    end: usize,
    /// Working memory of `finish`.
    sorted: Vec<(Timestamp, f64)>,
}

impl RowsToColumns {
    /// An empty collection.
    pub fn new() -> RowsToColumns {
        RowsToColumns::default()
    }

    /// Adds one value; of equal (slot, timestamp) the last one wins. Fastest if the values of a row
    /// are pushed one after the other.
    #[inline]
    pub fn push(&mut self, ts: Timestamp, slot: Slot, value: f64) {
        if self.times.last() != Some(&ts) {
            self.times.push(ts);
        }
        self.end = self.end.max(slot.0 as usize + 1);
        self.cells.push((slot, ts, value));
    }

    /// Number of values pushed.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The columns of all pushed values, from commits `seq`. Keeps the memory for the next group.
    ///
    /// Members share the time column of all timestamps. Those that would be sparse on it share one
    /// time column per pattern.
    pub fn finish(&mut self, seq: SeqRange) -> GroupColumns {
        if self.end <= 1 {
            return GroupColumns { batch: self.finish_one(), seq };
        }
        self.times.sort_unstable();
        self.times.dedup();
        let all: Arc<[Timestamp]> = self.times.as_slice().into();
        let ends = self.sort_by_slot();
        let mut columns = ColumnsOfMembers::new(all);
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
        self.times.clear();
        self.end = 0;
        GroupColumns { batch: columns.batch, seq }
    }

    /// The fast path of `finish` for a lone series (only slot 0 has values).
    fn finish_one(&mut self) -> ColumnBatch {
        self.sorted.clear();
        self.sorted.extend(self.cells.drain(..).map(|(_, ts, value)| (ts, value)));
        self.times.clear();
        self.end = 0;
        if self.sorted.is_empty() {
            return ColumnBatch::default();
        }
        let kept = newest_of_each(&mut self.sorted);
        let samples = self.sorted.get(..kept).unwrap_or_default();
        let times = samples.iter().map(|sample| sample.0).collect();
        ColumnBatch::of_one(Slot(0), times, samples.iter().map(|sample| sample.1).collect())
    }

    /// Groups the samples by slot in `sorted`, in push order; returns the end of each slot's
    /// samples.
    fn sort_by_slot(&mut self) -> Vec<usize> {
        let mut next = vec![0usize; self.end];
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

/// Columns under construction, slots ascending.
struct ColumnsOfMembers {
    all: Arc<[Timestamp]>,
    shared: Option<u32>,
    sparse: HashMap<Vec<u64>, u32>,
    batch: ColumnBatch,
}

impl ColumnsOfMembers {
    fn new(all: Arc<[Timestamp]>) -> ColumnsOfMembers {
        let (shared, sparse) = (None, HashMap::new());
        ColumnsOfMembers { all, shared, sparse, batch: ColumnBatch::default() }
    }

    fn push(&mut self, slot: Slot, samples: &[(Timestamp, f64)]) {
        let mut presence = presence_in(&self.all, samples);
        let times = &mut self.batch.times;
        let mut add = |new: Arc<[Timestamp]>| {
            times.push(new);
            (times.len() - 1) as u32
        };
        let time_idx = match presence.take_if(|presence| is_sparse(presence)) {
            None => *self.shared.get_or_insert_with(|| add(Arc::clone(&self.all))),
            Some(pattern) => *self
                .sparse
                .entry(pattern.words().to_vec())
                .or_insert_with(|| add(samples.iter().map(|sample| sample.0).collect())),
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
    use firn_model::CommitSeq;

    use super::*;

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
