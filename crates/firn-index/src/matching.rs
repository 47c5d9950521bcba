//! Matching: from matchers to groups and slots, on compressed lists.
//!
//! A label is on the group, or on the member, or absent. A matcher on name `n` therefore splits the
//! groups three ways: those with `n` as a group label pass or fail as a whole; all others leave it to
//! their members, that is to their member sets. All matchers together split the groups into a few
//! *classes*, each with the member sets that pass in it. Only then are groups looked at: lists hold
//! groups, the second level finds slots (`TimeUnion` 3.1).

use firn_model::{CancelToken, GroupId, Grouping, Labels, Matcher, Pattern, Result, Slot};
use smallvec::SmallVec;

use crate::idset::IdSet;
use crate::index::Shared;
use crate::keys::Keys;
use crate::sets::LOST_SET;
use crate::state::{Place, State, Watermark};

/// What matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// The distinct keys under the grouping; [`Member::key`] indexes them.
    pub keys: Vec<Labels>,
    /// The groups with a member that matches, ids rising.
    pub groups: Vec<GroupMatch>,
}

/// The members of one group that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMatch {
    /// The group.
    pub group: GroupId,
    /// At least one, slots rising.
    pub members: Members,
}

/// Members of one group. One or two are held in place: most groups of a narrow selection have no more,
/// and neither has a series that stands alone.
pub type Members = SmallVec<[Member; 2]>;

/// A series that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its slot in the group.
    pub slot: Slot,
    /// Its key: an index of [`Matches::keys`].
    pub key: u32,
}

impl Matches {
    /// How many series.
    pub fn series_count(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }
}

/// Groups in which the same matchers are left to the members.
#[derive(Debug)]
struct Class {
    groups: IdSet,
    /// Member sets that pass; `None`: all.
    sets: Option<IdSet>,
}

/// How one matcher splits the groups.
#[derive(Debug)]
struct Split {
    /// Groups that pass as a whole.
    pass: IdSet,
    /// Groups that have the name as a group label.
    any: IdSet,
    /// Member sets that pass.
    sets: IdSet,
}

// Values, lists or slots looked at under one lock: mostly well below a millisecond, and never more
// than one group's slots beyond it, so that a writer of new series does not wait for a query.
const ITEMS_PER_LOCK: usize = 1_024;
// Up to so many member sets are searched in a group one by one, more are marked in a bitmap.
const SETS_SEARCHED_MAX: u64 = 8;
// Up to so many member sets say themselves which groups have them; more, and groups are scanned.
const SETS_LISTED_MAX: u64 = 16_384;

pub(crate) fn matches(
    shared: &Shared,
    mark: Watermark,
    matchers: &[Matcher],
    grouping: &Grouping,
    cancel: &CancelToken,
) -> Result<Matches> {
    let mut classes = vec![Class { groups: IdSet::below(mark.groups), sets: None }];
    for matcher in matchers {
        cancel.check()?;
        match (matcher.pattern(), matcher.is_negative()) {
            (Pattern::Any, false) => continue,
            (Pattern::Any, true) => return Ok(Matches::default()),
            _ => {}
        }
        let split = split(shared, mark, matcher, cancel)?;
        classes = classes.iter().flat_map(|class| class.split(&split)).collect();
    }
    let mut keys = Keys::new(&shared.state.read(), grouping);
    let mut groups = Vec::new();
    for class in &classes {
        class.collect(shared, mark, &mut keys, cancel, &mut groups)?;
    }
    groups.sort_unstable_by_key(|group| group.group);
    Ok(Matches { keys: keys.into_labels(), groups })
}

/// How `matcher` splits the groups and member sets that the view knows.
fn split(
    shared: &Shared,
    mark: Watermark,
    matcher: &Matcher,
    cancel: &CancelToken,
) -> Result<Split> {
    let all_sets = IdSet::below(mark.sets);
    let Some(name) = shared.state.read().pairs.find_name(matcher.name().as_bytes()) else {
        // No series has the label.
        let sets = if matcher.matches_absent() { all_sets } else { IdSet::empty() };
        return Ok(Split { pass: IdSet::empty(), any: IdSet::empty(), sets });
    };
    let taken = match matcher.pattern() {
        Pattern::NonEmpty => None,
        Pattern::OneOf(values) => Some(lists_of_values(shared, mark, matcher.name(), values)),
        _ => Some(lists_of_scan(shared, mark, matcher, name, cancel)?),
    };
    let is_plain = !matcher.is_negative() && !matcher.matches_absent();
    let taken = match taken {
        // No member takes part, so nobody asks who else has the label: for a name that all groups have,
        // that set costs more than the rest of a narrow query's matching.
        Some((pass, sets)) if is_plain && sets.is_empty() => {
            return Ok(Split { pass, any: IdSet::empty(), sets });
        }
        taken => taken,
    };
    let (any, any_sets) = {
        let state = shared.state.read();
        let name = state.pairs.name(name);
        (name.groups.below(mark.groups), name.sets.below(mark.sets))
    };
    let (taken, taken_sets) = taken.unwrap_or_else(|| (any.clone(), any_sets.clone()));
    let (pass, mut sets) = if matcher.is_negative() {
        (any.minus(&taken), any_sets.minus(&taken_sets))
    } else {
        (taken, taken_sets)
    };
    if matcher.matches_absent() {
        sets = sets.union(all_sets.minus(&any_sets));
    }
    Ok(Split { pass, any, sets })
}

/// The groups and member sets that have one of `values`.
fn lists_of_values(
    shared: &Shared,
    mark: Watermark,
    name: &str,
    values: &[String],
) -> (IdSet, IdSet) {
    let (mut groups, mut sets) = (Vec::new(), Vec::new());
    for batch in values.chunks(ITEMS_PER_LOCK) {
        let state = shared.state.read();
        for value in batch {
            if let Some(pair) = state.pairs.find(name.as_bytes(), value.as_bytes()) {
                state.pairs.pair(pair).groups.extend_runs(mark.groups, &mut groups);
                state.pairs.pair(pair).sets.extend_runs(mark.sets, &mut sets);
            }
        }
    }
    (IdSet::from_runs(groups), IdSet::from_runs(sets))
}

/// The groups and member sets that have a value which the pattern takes: every value of the name is
/// tried once.
fn lists_of_scan(
    shared: &Shared,
    mark: Watermark,
    matcher: &Matcher,
    name: u32,
    cancel: &CancelToken,
) -> Result<(IdSet, IdSet)> {
    let (mut groups, mut sets) = (Vec::new(), Vec::new());
    let mut next = 0;
    loop {
        cancel.check()?;
        let state = shared.state.read();
        let rest = state.pairs.name(name).pairs.get(next..).unwrap_or_default();
        if rest.is_empty() {
            return Ok((IdSet::from_runs(groups), IdSet::from_runs(sets)));
        }
        for &pair in rest.iter().take(ITEMS_PER_LOCK) {
            if matcher.pattern_takes(state.pairs.value_text(pair)) {
                state.pairs.pair(pair).groups.extend_runs(mark.groups, &mut groups);
                state.pairs.pair(pair).sets.extend_runs(mark.sets, &mut sets);
            }
        }
        next += ITEMS_PER_LOCK.min(rest.len());
    }
}

impl Class {
    /// What is left of the class after one more matcher: at most two classes.
    fn split(&self, split: &Split) -> impl Iterator<Item = Class> {
        let whole = Class { groups: self.groups.intersect(&split.pass), sets: self.sets.clone() };
        let sets = match &self.sets {
            Some(sets) => sets.intersect(&split.sets),
            None => split.sets.clone(),
        };
        let by_member = Class { groups: self.groups.minus(&split.any), sets: Some(sets) };
        [whole, by_member].into_iter().filter(|class| {
            !class.groups.is_empty() && class.sets.as_ref().is_none_or(|sets| !sets.is_empty())
        })
    }

    /// Appends the groups of the class with their matching members to `out`, in no order.
    fn collect(
        &self,
        shared: &Shared,
        mark: Watermark,
        keys: &mut Keys,
        cancel: &CancelToken,
        out: &mut Vec<GroupMatch>,
    ) -> Result<()> {
        let candidates = self.candidates(shared, mark, cancel)?;
        let mut finder = SlotFinder::new(self.sets.as_ref());
        let mut slots: Vec<u32> = Vec::new();
        let mut numbers = candidates.iter().peekable();
        while numbers.peek().is_some() {
            cancel.check()?;
            let state = shared.state.read();
            let mut looked_at = 0;
            while looked_at < ITEMS_PER_LOCK {
                let Some(group_no) = numbers.next() else { break };
                let visible = state.groups.slot_count_below(group_no, mark.series) as usize;
                let sets = &state.groups.slots(group_no)[..visible];
                looked_at += sets.len().max(1);
                finder.find(sets, &mut slots);
                if slots.is_empty() {
                    continue;
                }
                let member = |&slot: &u32| {
                    let key = keys.key(&state, Place { group_no, slot }, sets[slot as usize]);
                    Member { slot: Slot(slot), key }
                };
                let members = slots.iter().map(member).collect();
                out.push(GroupMatch { group: state.groups.id(group_no), members });
            }
        }
        Ok(())
    }

    /// The groups that may have a matching member.
    fn candidates(&self, shared: &Shared, mark: Watermark, cancel: &CancelToken) -> Result<IdSet> {
        let listed = self.sets.as_ref().filter(|sets| sets.count() <= SETS_LISTED_MAX);
        let Some(sets) = listed else { return Ok(self.groups.clone()) };
        let mut runs = Vec::new();
        let mut sets = sets.iter().peekable();
        while sets.peek().is_some() {
            cancel.check()?;
            let state = shared.state.read();
            for set in sets.by_ref().take(ITEMS_PER_LOCK) {
                group_runs(&state, set, mark, &mut runs);
            }
        }
        Ok(IdSet::from_runs(runs).intersect(&self.groups))
    }
}

fn group_runs(state: &State, set: u32, mark: Watermark, runs: &mut Vec<(u32, u32)>) {
    state.sets.set(set).groups.extend_runs(mark.groups, runs);
}

/// Finds the slots of some member sets in one group after the other.
#[derive(Debug)]
enum SlotFinder {
    All,
    /// Each set with the slot where the last group had it: groups are mostly alike.
    Few(Vec<(u32, u32)>),
    Marked(Vec<u64>),
}

impl SlotFinder {
    fn new(sets: Option<&IdSet>) -> SlotFinder {
        let Some(sets) = sets else { return SlotFinder::All };
        if sets.count() <= SETS_SEARCHED_MAX {
            return SlotFinder::Few(sets.iter().map(|set| (set, 0)).collect());
        }
        let end = sets.runs().last().map_or(0, |run| run.1);
        let mut words = vec![0u64; (end as usize).div_ceil(64)];
        sets.iter().for_each(|set| words[set as usize / 64] |= 1 << (set % 64));
        SlotFinder::Marked(words)
    }

    /// Fills `slots` with the matching ones of a group's member sets, rising.
    fn find(&mut self, sets: &[u32], slots: &mut Vec<u32>) {
        slots.clear();
        let all = 0..sets.len() as u32;
        match self {
            SlotFinder::All => slots.extend(all.filter(|&slot| sets[slot as usize] != LOST_SET)),
            SlotFinder::Marked(words) => slots.extend(all.filter(|&slot| {
                let set = sets[slot as usize];
                words.get(set as usize / 64).is_some_and(|word| word & (1 << (set % 64)) != 0)
            })),
            SlotFinder::Few(wanted) => {
                for (set, guess) in wanted {
                    if sets.get(*guess as usize) != Some(set) {
                        let Some(slot) = sets.iter().position(|s| s == set) else { continue };
                        *guess = slot as u32;
                    }
                    slots.push(*guess);
                }
                slots.sort_unstable();
            }
        }
    }
}
