//! The result of a selection: groups, their matching members, and keys.

use firn_model::{GroupId, Labels, Pool, QueryContext, Reservation, Result, Slot};
use smallvec::SmallVec;

use crate::id_set::IdSet;

/// The matched series by group, with keys.
#[derive(Debug)]
pub struct Matches {
    /// The distinct keys under the grouping; [`Member::key`] indexes them.
    pub keys: Vec<Labels>,
    /// The groups with a matching member, ids ascending.
    pub groups: Vec<GroupMatch>,
    /// The memory of both.
    pub held: Reservation,
}

/// The matching members of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMatch {
    /// The group.
    pub group: GroupId,
    /// At least one, slots ascending.
    pub members: Members,
}

/// Members of one group. Up to two are stored inline: groups of a narrow selection rarely have
/// more, lone series never.
pub type Members = SmallVec<[Member; 2]>;

/// A matching series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its slot in the group.
    pub slot: Slot,
    /// Its key: an index into [`Matches::keys`].
    pub key: u32,
}

impl Matches {
    /// Number of series.
    pub fn series_count(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }
}

/// Parts for which the same matchers depend on the members.
#[derive(Clone, Debug)]
pub(crate) struct MatchClass {
    pub(crate) parts: IdSet,
    /// Matching member sets; `None`: all.
    pub(crate) sets: Option<IdSet>,
}

/// The classes of a selection in one segment. Their parts are disjoint.
///
/// There may be as many classes as combinations of the matchers' labels on groups. Each has its own
/// member sets, so their memory is reserved: a selection with too many is refused.
#[derive(Debug)]
pub(crate) struct MatchClasses {
    list: Vec<MatchClass>,
    held: Reservation,
}

// The memory of a class with small sets, and of its place in a list that grows by doubling.
const CLASS_BYTES: u64 = 3 * size_of::<MatchClass>() as u64 + 1_024;
// Selections with up to this many classes are not reserved.
const CLASSES_UNRESERVED: usize = 8;

impl MatchClasses {
    pub(crate) fn none(context: &QueryContext) -> MatchClasses {
        MatchClasses { list: Vec::new(), held: context.budget.empty(Pool::Query) }
    }

    /// One class: every member of the first `part_count` parts.
    pub(crate) fn all(part_count: u32, context: &QueryContext) -> MatchClasses {
        let list = vec![MatchClass { parts: IdSet::below(part_count), sets: None }];
        MatchClasses { list, ..MatchClasses::none(context) }
    }

    pub(crate) fn list(&self) -> &[MatchClass] {
        &self.list
    }

    /// Adds a class unless it is empty.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory.
    pub(crate) fn push(&mut self, class: MatchClass) -> Result<()> {
        if class.parts.is_empty() || class.sets.as_ref().is_some_and(IdSet::is_empty) {
            return Ok(());
        }
        if self.list.len() >= CLASSES_UNRESERVED {
            self.held.cover(CLASS_BYTES * (self.list.len() as u64 + 1))?;
        }
        self.list.push(class);
        Ok(())
    }

    /// The classes without the parts that are not in `parts`.
    ///
    /// # Errors
    /// As [`MatchClasses::push`].
    pub(crate) fn within(&self, parts: &IdSet, context: &QueryContext) -> Result<MatchClasses> {
        let mut kept = MatchClasses::none(context);
        for class in &self.list {
            context.cancel.check()?;
            let parts = class.parts.intersect(parts, &context.budget)?;
            kept.push(MatchClass { parts, sets: class.sets.clone() })?;
        }
        Ok(kept)
    }
}

// From this many groups on, a radix sort is faster than comparisons.
const GROUPS_SORTED_BY_DIGITS: usize = 256;
const DIGIT_BITS: u32 = 11;

/// The memory of `groups`.
pub(crate) fn groups_bytes(groups: &[GroupMatch]) -> u64 {
    groups.iter().map(GroupMatch::bytes).sum()
}

impl GroupMatch {
    /// Its memory, including its entry in a list that grows by doubling.
    pub(crate) fn bytes(&self) -> u64 {
        let spilled = if self.members.spilled() { self.members.capacity() } else { 0 };
        GroupMatch::bytes_of(spilled)
    }

    /// The memory of a group with `count` members.
    pub(crate) fn bytes_of(count: usize) -> u64 {
        let spilled = if count > Members::new().inline_size() { count } else { 0 };
        (2 * size_of::<GroupMatch>() + spilled * size_of::<Member>()) as u64
    }
}

/// Sorts by group and slot, and joins the pieces of a group.
pub(crate) fn unite(groups: &mut Vec<GroupMatch>) {
    sort_by_group(groups);
    groups.dedup_by(|later, kept| {
        let is_same = later.group == kept.group;
        if is_same {
            kept.members.append(&mut later.members);
            kept.members.sort_unstable_by_key(|member| member.slot);
        }
        is_same
    });
}

/// A radix sort by id: comparisons took half of the time of a selection over thousands of groups.
fn sort_by_group(groups: &mut Vec<GroupMatch>) {
    if groups.is_sorted_by_key(|group| group.group) {
        return;
    }
    if groups.len() < GROUPS_SORTED_BY_DIGITS {
        return groups.sort_unstable_by_key(|group| group.group);
    }
    let ids = || groups.iter().map(|group| group.group.0);
    let least = ids().min().unwrap_or(0);
    let span = ids().max().unwrap_or(0) - least;
    let mut order: Vec<(u64, u32)> = ids().map(|id| id - least).zip(0..).collect();
    let mut sorted = order.clone();
    for shift in (0..u64::BITS - span.leading_zeros()).step_by(DIGIT_BITS as usize) {
        let digit = |id: u64| (id >> shift) as usize % (1 << DIGIT_BITS);
        let mut starts = [0u32; 1 << DIGIT_BITS];
        order.iter().for_each(|&(id, _)| starts[digit(id)] += 1);
        let mut next = 0;
        for start in &mut starts {
            next += std::mem::replace(start, next);
        }
        for &(id, idx) in &order {
            let place = &mut starts[digit(id)];
            sorted[*place as usize] = (id, idx);
            *place += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    let mut taken = std::mem::take(groups);
    groups.extend(order.iter().map(|&(id, idx)| GroupMatch {
        group: GroupId(least + id),
        members: std::mem::take(&mut taken[idx as usize].members),
    }));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_of_groups_are_united_in_order(
            ids in prop::collection::vec(
                prop_oneof![any::<u64>(), 0u64..1 << 20, (u64::MAX - 9)..],
                0..700,
            ),
        ) {
            let mut expected = std::collections::BTreeMap::<u64, Vec<u32>>::new();
            let mut groups: Vec<GroupMatch> = Vec::new();
            // Later pieces have the lower slots.
            for (&id, slot) in ids.iter().zip((0..1_000u32).rev()) {
                expected.entry(id).or_default().insert(0, slot);
                let member = Member { slot: Slot(slot), key: slot };
                let members = [member].into_iter().collect();
                groups.push(GroupMatch { group: GroupId(id), members });
            }
            unite(&mut groups);
            let slots = |group: &GroupMatch| group.members.iter().map(|m| m.slot.0).collect();
            let found: Vec<(u64, Vec<u32>)> =
                groups.iter().map(|g| (g.group.0, slots(g))).collect();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
