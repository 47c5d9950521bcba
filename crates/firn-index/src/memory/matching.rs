//! Matching: from matchers to groups and slots, on compressed lists.
//!
//! A label is on the group, on the member, or absent. A matcher on name `n` therefore splits the
//! groups: those with `n` as a group label match or fail as a whole; for all others the member sets
//! decide. All matchers together split the groups into a few *classes*, each with its matching
//! member sets. Only then are groups read: posting lists contain groups, and a second level finds
//! the slots, as in TimeUnion (SIGMOD 2022), section 3.1.

use firn_model::{CancelToken, Matcher, Pattern, Result, Slot};
use parking_lot::RwLock;

use crate::id_set::IdSet;
use crate::key_table::KeyTable;
use crate::matches::{GroupMatch, MatchClass, Member, groups_bytes};
use crate::memory::index::{MemoryIndex, SeriesPosition, Watermark};
use crate::memory::keys::Keys;

/// The split of the groups by one matcher.
#[derive(Debug)]
struct MatcherSplit {
    /// Groups that match as a whole.
    pass: IdSet,
    /// Groups that have the name as a group label.
    any: IdSet,
    /// Matching member sets.
    sets: IdSet,
}

// Values, lists or slots read under one lock. This usually takes well below a millisecond and
// exceeds the bound by at most one group, so that a writer of new series does not wait for a query.
const ITEMS_PER_LOCK: usize = 1_024;
// Up to this many member sets are searched one by one in a part; more are marked in a bitmap.
const SETS_SEARCHED_MAX: u64 = 8;
// Up to this many member sets yield the candidate groups from their lists; with more, all groups
// are scanned.
const SETS_LISTED_MAX: u64 = 16_384;

/// The matching parts and member sets of one segment in memory.
///
/// # Errors
/// `Canceled` or `Timeout` as the token reports.
pub(crate) fn select(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    matchers: &[Matcher],
    cancel: &CancelToken,
) -> Result<Vec<MatchClass>> {
    let mut classes = vec![MatchClass { parts: IdSet::below(mark.parts), sets: None }];
    // Not in the head of the loop: the lock would be held throughout. A second read lock would then
    // wait for a waiting writer, which waits for the first: a deadlock.
    let matchers = shortest_first(&memory.read(), matchers);
    for matcher in matchers {
        cancel.check()?;
        match (matcher.pattern(), matcher.is_negative()) {
            (Pattern::Any, false) => continue,
            (Pattern::Any, true) => return Ok(Vec::new()),
            _ => {}
        }
        let within = match &classes[..] {
            [only] if only.parts.runs().len() > 1 => Some(&only.parts),
            _ => None,
        };
        let split = split(memory, mark, matcher, within, cancel)?;
        classes = classes.iter().flat_map(|class| class.split(&split)).collect();
    }
    Ok(classes)
}

/// Number of series in `classes`.
///
/// # Errors
/// As [`select`].
pub(crate) fn count(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    classes: &[MatchClass],
    cancel: &CancelToken,
) -> Result<u64> {
    let mut count = 0;
    for class in classes {
        class.each_part(memory, mark, cancel, |_, _, _, positions| {
            count += positions.len() as u64;
            Ok(())
        })?;
    }
    Ok(count)
}

/// Appends the groups of `classes` with their matching members to `out`, in no order and possibly
/// in pieces.
///
/// # Errors
/// As [`select`].
pub(crate) fn collect_groups(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    classes: &[MatchClass],
    table: &mut KeyTable,
    cancel: &CancelToken,
    out: &mut Vec<GroupMatch>,
) -> Result<()> {
    let mut keys = Keys::new(&memory.read(), table);
    let mut bytes = groups_bytes(out);
    for class in classes {
        class.each_part(memory, mark, cancel, |memory, part_no, sets, positions| {
            let first_slot = memory.parts.first_slot(part_no);
            let member = |&at: &u32| {
                let key = keys.key(memory, SeriesPosition { part_no, at }, sets[at as usize])?;
                Ok(Member { slot: Slot(first_slot + at), key })
            };
            let members = positions.iter().map(member).collect::<Result<_>>()?;
            let found = GroupMatch { group: memory.parts.id(part_no), members };
            bytes += found.bytes();
            keys.hold_others(bytes)?;
            out.push(found);
            Ok(())
        })?;
    }
    Ok(())
}

/// The matchers with the shortest lists first: the others then read their lists only for the
/// remaining groups.
fn shortest_first<'m>(memory: &MemoryIndex, matchers: &'m [Matcher]) -> Vec<&'m Matcher> {
    let mut order: Vec<&Matcher> = matchers.iter().collect();
    order.sort_by_cached_key(|matcher| match matcher.pattern() {
        Pattern::OneOf(values) if !matcher.is_negative() && !matcher.matches_absent() => {
            let pair =
                |value: &String| memory.pairs.find(matcher.name().as_bytes(), value.as_bytes());
            let pairs = values.iter().take(ITEMS_PER_LOCK).filter_map(pair);
            pairs.map(|pair| memory.pairs.pair(pair).parts.length()).sum()
        }
        _ => usize::MAX,
    });
    order
}

/// Splits the groups and member sets of the view by `matcher`. Groups that match as a whole may be
/// omitted if they are not in `within`.
fn split(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    matcher: &Matcher,
    within: Option<&IdSet>,
    cancel: &CancelToken,
) -> Result<MatcherSplit> {
    let all_sets = IdSet::below(mark.sets);
    let Some(name) = memory.read().pairs.find_name(matcher.name().as_bytes()) else {
        // No series has the label.
        let sets = if matcher.matches_absent() { all_sets } else { IdSet::empty() };
        return Ok(MatcherSplit { pass: IdSet::empty(), any: IdSet::empty(), sets });
    };
    let taken = match matcher.pattern() {
        Pattern::NonEmpty => None,
        Pattern::OneOf(values) => {
            Some(lists_of_values(memory, (mark, within), matcher.name(), values))
        }
        _ => Some(lists_of_scan(memory, (mark, within), matcher, name, cancel)?),
    };
    let is_plain = !matcher.is_negative() && !matcher.matches_absent();
    let taken = match taken {
        // No member matches, so the list of all groups with the name is not needed. For a name that
        // all groups have, that list costs more than the rest of a narrow query's matching.
        Some((pass, sets)) if is_plain && sets.is_empty() => {
            return Ok(MatcherSplit { pass, any: IdSet::empty(), sets });
        }
        taken => taken,
    };
    let (any, any_sets) = {
        let memory = memory.read();
        let name = memory.pairs.name(name);
        (name.parts.below(mark.parts), name.sets.below(mark.sets))
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
    Ok(MatcherSplit { pass, any, sets })
}

/// The groups and member sets with one of `values`.
fn lists_of_values(
    memory: &RwLock<MemoryIndex>,
    (mark, within): (Watermark, Option<&IdSet>),
    name: &str,
    values: &[String],
) -> (IdSet, IdSet) {
    let (mut groups, mut sets) = (Vec::new(), Vec::new());
    for batch in values.chunks(ITEMS_PER_LOCK) {
        let memory = memory.read();
        for value in batch {
            if let Some(pair) = memory.pairs.find(name.as_bytes(), value.as_bytes()) {
                memory.pairs.pair(pair).parts.extend_runs_within(mark.parts, within, &mut groups);
                memory.pairs.pair(pair).sets.extend_runs(mark.sets, &mut sets);
            }
        }
    }
    (IdSet::from_runs(groups), IdSet::from_runs(sets))
}

/// The groups and member sets with a value that the pattern accepts. Tries every value of the name
/// once.
fn lists_of_scan(
    memory: &RwLock<MemoryIndex>,
    (mark, within): (Watermark, Option<&IdSet>),
    matcher: &Matcher,
    name: u32,
    cancel: &CancelToken,
) -> Result<(IdSet, IdSet)> {
    let (mut groups, mut sets) = (Vec::new(), Vec::new());
    let regex = matcher.regex();
    let per_lock = regex.map_or(ITEMS_PER_LOCK, |regex| regex.texts_per_check(ITEMS_PER_LOCK));
    let mut next = 0;
    loop {
        cancel.check()?;
        let memory = memory.read();
        let rest = memory.pairs.name(name).pairs.get(next..).unwrap_or_default();
        if rest.is_empty() {
            return Ok((IdSet::from_runs(groups), IdSet::from_runs(sets)));
        }
        for &pair in rest.iter().take(per_lock) {
            if matcher.pattern_takes(memory.pairs.value_text(pair)) {
                memory.pairs.pair(pair).parts.extend_runs_within(mark.parts, within, &mut groups);
                memory.pairs.pair(pair).sets.extend_runs(mark.sets, &mut sets);
            }
        }
        next += per_lock.min(rest.len());
    }
}

impl MatchClass {
    /// The rest of the class after one more matcher: at most two classes.
    fn split(&self, split: &MatcherSplit) -> impl Iterator<Item = MatchClass> {
        let whole =
            MatchClass { parts: self.parts.intersect(&split.pass), sets: self.sets.clone() };
        let sets = match &self.sets {
            Some(sets) => sets.intersect(&split.sets),
            None => split.sets.clone(),
        };
        let by_member = MatchClass { parts: self.parts.minus(&split.any), sets: Some(sets) };
        [whole, by_member].into_iter().filter(|class| {
            !class.parts.is_empty() && class.sets.as_ref().is_none_or(|sets| !sets.is_empty())
        })
    }

    /// Calls `each` with every part that has a matching member: its visible member sets, and the
    /// indexes of the matching ones.
    fn each_part(
        &self,
        memory: &RwLock<MemoryIndex>,
        mark: Watermark,
        cancel: &CancelToken,
        mut each: impl FnMut(&MemoryIndex, u32, &[u32], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let candidates = self.candidates(memory, mark, cancel)?;
        let mut finder = MemberFinder::new(self.sets.as_ref());
        let mut positions: Vec<u32> = Vec::new();
        let mut numbers = candidates.iter().peekable();
        while numbers.peek().is_some() {
            cancel.check()?;
            let memory = memory.read();
            let mut looked_at = 0;
            while looked_at < ITEMS_PER_LOCK {
                let Some(part_no) = numbers.next() else { break };
                let visible = memory.parts.count_below(part_no, mark.series) as usize;
                let sets = &memory.parts.sets(part_no)[..visible];
                looked_at += sets.len().max(1);
                finder.find(sets, &mut positions);
                if !positions.is_empty() {
                    each(&memory, part_no, sets, &positions)?;
                }
            }
        }
        Ok(())
    }

    /// The groups that may have a matching member.
    fn candidates(
        &self,
        memory: &RwLock<MemoryIndex>,
        mark: Watermark,
        cancel: &CancelToken,
    ) -> Result<IdSet> {
        let listed = self.sets.as_ref().filter(|sets| sets.count() <= SETS_LISTED_MAX);
        let Some(sets) = listed else { return Ok(self.parts.clone()) };
        let mut runs = Vec::new();
        let mut sets = sets.iter().peekable();
        while sets.peek().is_some() {
            cancel.check()?;
            let memory = memory.read();
            for set in sets.by_ref().take(ITEMS_PER_LOCK) {
                part_runs(&memory, set, mark, &mut runs);
            }
        }
        Ok(IdSet::from_runs(runs).intersect(&self.parts))
    }
}

fn part_runs(memory: &MemoryIndex, set: u32, mark: Watermark, runs: &mut Vec<(u32, u32)>) {
    memory.sets.set(set).parts.extend_runs(mark.parts, runs);
}

/// Finds the indexes of member sets in one part after the other.
#[derive(Debug)]
enum MemberFinder {
    All,
    /// Each set with its index in the last part: parts are often alike.
    Few(Vec<(u32, u32)>),
    Marked(Vec<u64>),
}

impl MemberFinder {
    fn new(sets: Option<&IdSet>) -> MemberFinder {
        let Some(sets) = sets else { return MemberFinder::All };
        if sets.count() <= SETS_SEARCHED_MAX {
            return MemberFinder::Few(sets.iter().map(|set| (set, 0)).collect());
        }
        let end = sets.runs().last().map_or(0, |run| run.1);
        let mut words = vec![0u64; (end as usize).div_ceil(64)];
        sets.iter().for_each(|set| words[set as usize / 64] |= 1 << (set % 64));
        MemberFinder::Marked(words)
    }

    /// Fills `positions` with the matching indexes of a part's member sets, ascending.
    fn find(&mut self, sets: &[u32], positions: &mut Vec<u32>) {
        positions.clear();
        let all = 0..sets.len() as u32;
        match self {
            MemberFinder::All => positions.extend(all),
            MemberFinder::Marked(words) => positions.extend(all.filter(|&at| {
                let set = sets[at as usize];
                words.get(set as usize / 64).is_some_and(|word| word & (1 << (set % 64)) != 0)
            })),
            MemberFinder::Few(wanted) => {
                for (set, guess) in wanted {
                    if sets.get(*guess as usize) != Some(set) {
                        let Some(at) = sets.iter().position(|s| s == set) else { continue };
                        *guess = at as u32;
                    }
                    positions.push(*guess);
                }
                positions.sort_unstable();
            }
        }
    }
}
