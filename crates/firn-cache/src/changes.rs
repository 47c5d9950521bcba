//! The changes since a moment: what an answer computed from an older snapshot must be trimmed by.

use std::collections::VecDeque;

use firn_model::{Change, ChangeSink, CommitSeq, GroupId, TimeRange};
use parking_lot::Mutex;

/// Remembers the latest changes, bounded. Tell it to the engine as its [`ChangeSink`].
#[derive(Debug)]
pub struct ChangeLog {
    state: Mutex<State>,
    change_count_max: usize,
}

#[derive(Debug, Default)]
struct State {
    changes: VecDeque<Change>,
    /// Changes up to this number may have been forgotten.
    forgotten: CommitSeq,
}

/// What changed since a snapshot in some groups and a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Nothing: an answer computed from that snapshot still holds.
    No,
    /// Timestamps within this range.
    Within(TimeRange),
    /// The snapshot is older than what is remembered: anything may have changed.
    Unknown,
}

impl ChangeLog {
    /// Remembers at most `change_count_max` changes.
    pub fn new(change_count_max: usize) -> ChangeLog {
        ChangeLog { state: Mutex::default(), change_count_max }
    }

    /// What changes numbered after `number` touched of `groups` (sorted) inside `range`.
    pub fn touched_since(
        &self,
        number: CommitSeq,
        groups: &[GroupId],
        range: TimeRange,
    ) -> Touched {
        let state = self.state.lock();
        if number < state.forgotten {
            return Touched::Unknown;
        }
        let touched = state
            .changes
            .iter()
            .filter(|change| change.number > number)
            .filter(|change| change.groups.iter().any(|g| groups.binary_search(g).is_ok()))
            .fold(TimeRange::EMPTY, |all, change| all.union(change.range.intersect(range)));
        if touched.is_empty() { Touched::No } else { Touched::Within(touched) }
    }
}

impl ChangeSink for ChangeLog {
    fn changed(&self, change: &Change) {
        let mut state = self.state.lock();
        state.changes.push_back(change.clone());
        while state.changes.len() > self.change_count_max {
            if let Some(oldest) = state.changes.pop_front() {
                state.forgotten = state.forgotten.max(oldest.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_model::ChangeKind;

    use super::*;

    fn change(number: u64, group: u64, range: TimeRange) -> Change {
        Change {
            number: CommitSeq(number),
            groups: vec![GroupId(group)],
            range,
            kind: ChangeKind::Write,
        }
    }

    #[test]
    fn only_later_changes_of_the_same_groups_and_range_touch() {
        let log = ChangeLog::new(2);
        log.changed(&change(5, 1, TimeRange::new(10, 20)));
        log.changed(&change(4, 2, TimeRange::new(0, 100)));
        let f = |number, group, start, end| {
            log.touched_since(CommitSeq(number), &[GroupId(group)], TimeRange::new(start, end))
        };
        assert_eq!(f(4, 1, 0, 15), Touched::Within(TimeRange::new(10, 15)));
        assert_eq!(f(5, 1, 0, 15), Touched::No);
        assert_eq!(f(4, 1, 21, 30), Touched::No);
        assert_eq!(f(4, 2, 0, 30), Touched::No);
        log.changed(&change(6, 3, TimeRange::at(1)));
        assert_eq!(f(4, 1, 0, 15), Touched::Unknown, "change 5 was forgotten");
        assert_eq!(f(5, 1, 0, 15), Touched::No);
    }
}
