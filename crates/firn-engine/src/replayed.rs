//! What a restart tells a cache that has outlived the last end: which changes the log still has.
//!
//! Of each only its time and its number are kept, and changes of near times as one: a cache that takes every change
//! for one of all series loses some answers and no truth, and recovery need not look whose rows it reads.

use std::collections::BTreeMap;

use firn_log::SyncPolicy;
use firn_model::{CommitSeq, TimeRange, Timestamp};

use crate::Engine;
use crate::recovery::RecoveryReport;

/// Changes inside of one such stretch of time are one, at first.
const CELL_MS: i64 = 60_000;
/// With more cells each becomes twice as long.
const CELLS_MAX: usize = 16_384;
/// A change over more cells is kept by itself.
const CELLS_PER_CHANGE_MAX: i64 = 64;
/// With more of those the last two become one.
const WIDE_MAX: usize = 256;

/// What was changed before the database was opened, as far as somebody who knows the state after an earlier change
/// needs to hear of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Every change with a larger number is in [`Replayed::changes`].
    pub after: CommitSeq,
    /// The last number that was given before: what is of a later one is of a past that this database has lost.
    pub through: CommitSeq,
    /// Times, and the largest number of a change that touched one of them. Wider than what was changed, never narrower.
    pub changes: Vec<(TimeRange, CommitSeq)>,
    /// Whether something that could be seen may be gone: the log or an index file is damaged.
    pub is_damaged: bool,
    /// Whether something that can be seen from now on may be gone after the next crash: the log is not synced before.
    pub may_lose: bool,
}

/// Times of changes, in bounded memory.
#[derive(Clone, Debug)]
pub(crate) struct ChangeTimes {
    cell_ms: i64,
    /// By time divided by the length of a cell.
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
        if last - first >= CELLS_PER_CHANGE_MAX {
            return self.note_wide(range, number);
        }
        for cell in first..=last {
            let known = self.cells.entry(cell).or_default();
            *known = number.max(*known);
        }
        while self.cells.len() > CELLS_MAX {
            self.cell_ms *= 2;
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
            (TimeRange::new(start, start.saturating_add(self.cell_ms - 1)), number)
        });
        cells.chain(self.wide.iter().copied())
    }
}

impl Engine {
    /// What happened before this database was opened, for a cache that was told of changes then. Ask before the
    /// first write.
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
