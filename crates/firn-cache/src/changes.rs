//! What happened lately: the changes and the new series that an answer on its way must be looked at against.

use std::collections::VecDeque;

use firn_model::{Change, CommitSeq, GroupId, Labels, TimeRange};

/// A change of more groups than this is remembered as one of any group.
const GROUPS_MAX: usize = 256;

/// The latest changes and definitions, bounded.
#[derive(Debug)]
pub(crate) struct Recent {
    changes: VecDeque<RecentChange>,
    change_count_max: usize,
    /// Changes up to this number may have been forgotten.
    forgotten: CommitSeq,
    defined: VecDeque<(GroupId, Labels)>,
    defined_count_max: usize,
    /// Definitions so far.
    defined_count: u64,
}

/// A change, as far as it is remembered.
#[derive(Clone, Debug)]
pub(crate) struct RecentChange {
    number: CommitSeq,
    pub(crate) range: TimeRange,
    /// Sorted; `None` for any.
    pub(crate) groups: Option<Box<[GroupId]>>,
}

impl Recent {
    pub(crate) fn new(
        change_count_max: usize,
        defined_count_max: usize,
        from: CommitSeq,
    ) -> Recent {
        Recent {
            changes: VecDeque::new(),
            change_count_max,
            // What happened before it was opened it does not know.
            forgotten: from,
            defined: VecDeque::new(),
            defined_count_max,
            defined_count: 0,
        }
    }

    pub(crate) fn changed(&mut self, change: &Change) {
        let groups = (change.groups.len() <= GROUPS_MAX).then(|| Box::from(&*change.groups));
        let (number, range) = (change.number, change.range);
        self.changes.push_back(RecentChange { number, range, groups });
        while self.changes.len() > self.change_count_max {
            let oldest = self.changes.pop_front();
            self.forgotten = oldest.map_or(self.forgotten, |one| self.forgotten.max(one.number));
        }
    }

    /// The changes with a number above `number`, in any order; `None` if some may be forgotten.
    pub(crate) fn changes_after(
        &self,
        number: CommitSeq,
    ) -> Option<impl Iterator<Item = &RecentChange> + '_> {
        let is_known = number >= self.forgotten;
        is_known.then(|| self.changes.iter().filter(move |change| change.number > number))
    }

    pub(crate) fn defined(&mut self, group: GroupId, labels: &Labels) {
        self.defined.push_back((group, labels.clone()));
        self.defined_count += 1;
        while self.defined.len() > self.defined_count_max {
            self.defined.pop_front();
        }
    }

    /// How many definitions there were.
    pub(crate) fn defined_count(&self) -> u64 {
        self.defined_count
    }

    /// The definitions since there were `count`; `None` if some may be forgotten.
    pub(crate) fn defined_since(
        &self,
        count: u64,
    ) -> Option<impl Iterator<Item = &(GroupId, Labels)> + '_> {
        let wanted = usize::try_from(self.defined_count - count.min(self.defined_count)).ok()?;
        let skipped = self.defined.len().checked_sub(wanted)?;
        Some(self.defined.iter().skip(skipped))
    }
}

impl RecentChange {
    /// Whether it may have touched one of `groups` (sorted).
    pub(crate) fn touches(&self, groups: &[GroupId]) -> bool {
        match &self.groups {
            None => true,
            Some(own) => have_common(own, groups),
        }
    }
}

/// Whether two sorted lists have an element in common.
pub(crate) fn have_common(a: &[GroupId], b: &[GroupId]) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    short.iter().any(|group| long.binary_search(group).is_ok())
}

#[cfg(test)]
mod tests {
    use firn_model::ChangeKind;

    use super::*;

    fn change(number: u64, group: u64) -> Change {
        Change {
            number: CommitSeq(number),
            groups: vec![GroupId(group)],
            range: TimeRange::at(0),
            kind: ChangeKind::Write,
        }
    }

    #[test]
    fn what_is_forgotten_is_known_to_be() {
        let mut recent = Recent::new(2, 2, CommitSeq(3));
        let after = |recent: &Recent, number| {
            let changes = recent.changes_after(CommitSeq(number))?;
            Some(changes.map(|change| change.number.0).collect::<Vec<_>>())
        };
        assert_eq!(after(&recent, 2), None);
        // Numbers of different shards come in any order.
        recent.changed(&change(6, 1));
        recent.changed(&change(5, 1));
        assert_eq!(after(&recent, 3), Some(vec![6, 5]));
        assert_eq!(after(&recent, 5), Some(vec![6]));
        recent.changed(&change(9, 1));
        assert_eq!(after(&recent, 5), None, "change 6 was forgotten");
        assert_eq!(after(&recent, 6), Some(vec![9]));
        assert!(recent.changes_after(CommitSeq(6)).unwrap().all(|one| one.touches(&[GroupId(1)])));
        assert!(!recent.changes[0].touches(&[GroupId(0), GroupId(2)]));
    }

    #[test]
    fn definitions_are_counted() {
        let mut recent = Recent::new(2, 2, CommitSeq(0));
        for group in 0..3 {
            recent.defined(GroupId(group), &Labels::empty());
        }
        let since = |count| {
            let defined = recent.defined_since(count)?;
            Some(defined.map(|one| one.0.0).collect::<Vec<_>>())
        };
        assert_eq!(since(3), Some(vec![]));
        assert_eq!(since(1), Some(vec![1, 2]));
        assert_eq!(since(0), None);
    }
}
