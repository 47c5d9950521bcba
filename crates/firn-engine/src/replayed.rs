//! The changes that the log still contains, for a cache that survived the last process.
//!
//! Only time and number of each change are kept, and changes at close times become one. A cache
//! that applies each change to all series drops some valid answers but serves no stale ones, and
//! recovery need not determine the series of the rows that it reads.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeMap;

use firn_log::SyncPolicy;
use firn_model::{CommitSeq, TimeRange, Timestamp};

use crate::Engine;
use crate::recovery::RecoveryReport;

/// Initial length of a cell: changes in one cell are merged.
const CELL_MS: i64 = 60_000;
/// With more cells, their length is doubled.
const CELLS_MAX: usize = 16_384;
/// A change over more cells is kept separately.
const CELLS_PER_CHANGE_MAX: i64 = 64;
/// With more of those, the last two are merged.
const WIDE_MAX: usize = 256;

/// The changes before the database was opened, for a component that knows the state after an
/// earlier change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Every change with a larger number is in [`Replayed::changes`].
    pub after: CommitSeq,
    /// The last number assigned before. State of a later number belongs to history that this
    /// database lost.
    pub through: CommitSeq,
    /// Times, each with the largest number of a change that touched it. Never narrower than the
    /// changes.
    pub changes: Vec<(TimeRange, CommitSeq)>,
    /// Whether visible samples may be lost: the log or an index file is damaged.
    pub is_damaged: bool,
    /// Whether samples that become visible may be lost in a crash: the log is not synced before.
    pub may_lose: bool,
}

/// Times of changes, in bounded memory.
#[derive(Clone, Debug)]
pub(crate) struct ChangeTimes {
    cell_ms: i64,
    /// Keyed by time divided by the length of a cell.
    cells: BTreeMap<i64, CommitSeq>,
    wide: Vec<(TimeRange, CommitSeq)>,
}

impl Default for ChangeTimes {
    fn default() -> ChangeTimes {
        ChangeTimes { cell_ms: CELL_MS, cells: BTreeMap::new(), wide: Vec::new() }
    }
}

impl ChangeTimes {
    pub(crate) fn note(&mut self, range: TimeRange, number: CommitSeq) {
        if range.is_empty() {
            return;
        }
        let cell = |ts: Timestamp| ts.div_euclid(self.cell_ms);
        let (first, last) = (cell(range.start), cell(range.end));
        if last.saturating_sub(first) >= CELLS_PER_CHANGE_MAX {
            return self.note_wide(range, number);
        }
        for cell in first..=last {
            let known = self.cells.entry(cell).or_default();
            *known = number.max(*known);
        }
        while self.cells.len() > CELLS_MAX {
            // At most 2^51: longer cells of all times are fewer than `CELLS_MAX`.
            self.cell_ms = self.cell_ms.saturating_mul(2);
            for (cell, number) in std::mem::take(&mut self.cells) {
                let known = self.cells.entry(cell.div_euclid(2)).or_default();
                *known = number.max(*known);
            }
        }
    }

    fn note_wide(&mut self, range: TimeRange, number: CommitSeq) {
        let is_full = self.wide.len() >= WIDE_MAX;
        match self.wide.last_mut() {
            Some(last) if is_full || last.0.covers(range) => {
                *last = (last.0.union(range), last.1.max(number));
            }
            _ => self.wide.push((range, number)),
        }
    }

    pub(crate) fn add(&mut self, other: &ChangeTimes) {
        other.ranges().for_each(|(range, number)| self.note(range, number));
    }

    /// All times, in no order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (TimeRange, CommitSeq)> + '_ {
        let cells = self.cells.iter().map(|(&cell, &number)| {
            let start = cell.saturating_mul(self.cell_ms);
            (TimeRange::new(start, start.saturating_add(self.cell_ms.saturating_sub(1))), number)
        });
        cells.chain(self.wide.iter().copied())
    }
}

impl Engine {
    /// The changes before this database was opened, for a cache that was notified of them then.
    /// Call it before the first write.
    pub fn replayed(&self) -> Replayed {
        Replayed {
            after: self.recovery.after,
            through: self.recovery.through,
            changes: self.recovery.times.ranges().collect(),
            is_damaged: !self.recovery.report.damage.is_empty(),
            may_lose: self.rooms.options.log.sync != SyncPolicy::Always,
        }
    }
}

/// The report of a recovery, and the changes that it read from the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayedLog {
    pub(crate) report: RecoveryReport,
    pub(crate) after: CommitSeq,
    pub(crate) through: CommitSeq,
    pub(crate) times: ChangeTimes,
}

#[cfg(test)]
mod tests {
    use firn_sim::Rng;

    use super::*;

    /// Every noted time is there, with a number that is not smaller.
    fn assert_covers(times: &ChangeTimes, range: TimeRange, number: CommitSeq) {
        let mut next = Some(range.start);
        let mut all: Vec<_> = times.ranges().filter(|one| one.1 >= number).collect();
        all.sort_unstable_by_key(|one| (one.0.start, one.0.end));
        for (found, _) in all {
            match next {
                Some(start) if found.start <= start => {
                    next = found.end.checked_add(1).map(|end| end.max(start));
                }
                _ => {}
            }
        }
        assert!(next.is_none_or(|next| next > range.end), "{range:?} of {number:?} is not covered");
    }

    #[test]
    fn no_change_is_narrower_than_it_was_and_memory_is_bounded() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut times, mut noted) = (ChangeTimes::default(), Vec::new());
            let spread = *rng.pick(&[1_000_000, 10_000_000_000_000]);
            for number in 1..40_000u64 {
                let start = rng.between(-spread, spread);
                let width = *rng.pick(&[0, 0, 0, 100_000, 1 << 40]);
                let range = TimeRange::new(start, start + width);
                times.note(range, CommitSeq(number));
                if number % 997 == 0 {
                    noted.push((range, CommitSeq(number)));
                }
            }
            assert!(times.cells.len() <= CELLS_MAX && times.wide.len() <= WIDE_MAX);
            noted.iter().for_each(|&(range, number)| assert_covers(&times, range, number));
            let mut both = ChangeTimes::default();
            both.add(&times);
            noted.iter().for_each(|&(range, number)| assert_covers(&both, range, number));
        }
    }

    #[test]
    fn new_data_does_not_make_old_times_change() {
        let mut times = ChangeTimes::default();
        (0..100_000).for_each(|idx| times.note(TimeRange::at(idx * 15), CommitSeq(idx as u64 + 1)));
        let number_at = |ts| {
            let found = times.ranges().find(|one| one.0.contains(ts));
            found.map(|one| one.1.0)
        };
        assert_eq!(number_at(0), Some(4_000));
        assert_eq!(number_at(-1), None);
        times.note(TimeRange::ALL, CommitSeq(7));
        times.note(TimeRange::at(i64::MIN), CommitSeq(8));
        times.note(TimeRange::at(i64::MAX), CommitSeq(9));
        for (ts, number) in [(i64::MIN, 8), (i64::MAX, 9), (-1, 7)] {
            assert_covers(&times, TimeRange::at(ts), CommitSeq(number));
        }
    }
}
