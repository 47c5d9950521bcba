//! The latest changes and new series: an answer in flight is checked against them when it is filled
//! in.

use std::collections::VecDeque;

use firn_model::{Change, CommitSeq, GroupId, Labels, TimeRange};

/// A change of more groups is remembered as a change of any group.
const GROUPS_MAX: usize = 256;

// Upper bounds of the memory of changes and definitions: the labels of one series, and the groups
// of one change, may take kilobytes.
const CHANGE_BYTES_MAX: usize = 2 << 20;
const DEFINED_BYTES_MAX: usize = 1 << 20;

/// The latest changes and definitions, bounded.
#[derive(Debug)]
pub(crate) struct Recent {
    changes: VecDeque<RecentChange>,
    change_bytes: usize,
    change_count_max: usize,
    /// Changes up to this number may have been forgotten.
    forgotten: CommitSeq,
    defined: VecDeque<(GroupId, Labels)>,
    defined_bytes: usize,
    defined_count_max: usize,
    /// Definitions so far.
    defined_count: u64,
}

/// A remembered change.
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
            change_bytes: 0,
            change_count_max,
            // Changes before the cache was opened are unknown.
            forgotten: from,
            defined: VecDeque::new(),
            defined_bytes: 0,
            defined_count_max,
            defined_count: 0,
        }
    }

    pub(crate) fn changed(&mut self, change: Change) {
        let Change { number, range, groups, .. } = change;
        let groups = (groups.len() <= GROUPS_MAX).then(|| groups.into_boxed_slice());
        let change = RecentChange { number, range, groups };
        self.change_bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > self.change_count_max || self.change_bytes > CHANGE_BYTES_MAX {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.change_bytes -= oldest.bytes();
            self.forgotten = self.forgotten.max(oldest.number);
        }
    }

    /// Memory in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.change_bytes + self.defined_bytes
    }

    /// The changes above `number`, in any order; `None` if some may be forgotten.
    pub(crate) fn changes_after(
        &self,
        number: CommitSeq,
    ) -> Option<impl Iterator<Item = &RecentChange> + '_> {
        let is_known = number >= self.forgotten;
        is_known.then(|| self.changes.iter().filter(move |change| change.number > number))
    }

    pub(crate) fn defined(&mut self, group: GroupId, labels: &Labels) {
        self.defined.push_back((group, labels.clone()));
        self.defined_bytes += defined_bytes(labels);
        self.defined_count += 1;
        while self.defined.len() > self.defined_count_max || self.defined_bytes > DEFINED_BYTES_MAX
        {
            let Some((_, oldest)) = self.defined.pop_front() else { break };
            self.defined_bytes -= defined_bytes(&oldest);
        }
    }

    /// Number of definitions so far.
    pub(crate) fn defined_count(&self) -> u64 {
        self.defined_count
    }

    /// The definitions since the number was `count`; `None` if some may be forgotten.
    pub(crate) fn defined_since(
        &self,
        count: u64,
    ) -> Option<impl Iterator<Item = &(GroupId, Labels)> + '_> {
        let wanted = usize::try_from(self.defined_count - count.min(self.defined_count)).ok()?;
        let skipped = self.defined.len().checked_sub(wanted)?;
        Some(self.defined.iter().skip(skipped))
    }
}

/// Memory of a definition.
fn defined_bytes(labels: &Labels) -> usize {
    size_of::<(GroupId, Labels)>() + labels.as_encoded().len()
}

impl RecentChange {
    fn bytes(&self) -> usize {
        size_of::<RecentChange>() + self.groups.as_deref().map_or(0, size_of_val)
    }

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
    fn forgotten_changes_are_reported_as_unknown() {
        let mut recent = Recent::new(2, 2, CommitSeq(3));
        let after = |recent: &Recent, number| {
            let changes = recent.changes_after(CommitSeq(number))?;
            Some(changes.map(|change| change.number.0).collect::<Vec<_>>())
        };
        assert_eq!(after(&recent, 2), None);
        // Numbers of different shards come in any order.
        recent.changed(change(6, 1));
        recent.changed(change(5, 1));
        assert_eq!(after(&recent, 3), Some(vec![6, 5]));
        assert_eq!(after(&recent, 5), Some(vec![6]));
        recent.changed(change(9, 1));
        assert_eq!(after(&recent, 5), None, "change 6 was forgotten");
        assert_eq!(after(&recent, 6), Some(vec![9]));
        assert!(recent.changes_after(CommitSeq(6)).unwrap().all(|one| one.touches(&[GroupId(1)])));
        assert!(!recent.changes[0].touches(&[GroupId(0), GroupId(2)]));
    }

    #[test]
    fn long_labels_and_many_groups_take_no_more_than_their_bytes() {
        let mut recent = Recent::new(usize::MAX, usize::MAX, CommitSeq(0));
        let long = Labels::from_pairs([("path", &*"x".repeat(10_000))]).unwrap();
        for number in 1..=2_000 {
            recent.defined(GroupId(number), &long);
            let groups = (0..GROUPS_MAX as u64).map(GroupId).collect();
            recent.changed(Change { groups, ..change(number, 0) });
        }
        let bytes = recent.heap_bytes();
        let most = CHANGE_BYTES_MAX + DEFINED_BYTES_MAX;
        assert!((most - 20_000..=most).contains(&bytes), "{bytes}");
        assert!(recent.changes_after(CommitSeq(1)).is_none());
        assert!(recent.changes_after(CommitSeq(1_500)).is_some());
        assert!(recent.defined_since(0).is_none() && recent.defined_since(1_990).is_some());
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
