//! Matching: from matchers to groups and slots, on compressed lists.
//!
//! A label is on the group, on the member, or absent. A matcher on name `n` therefore splits the
//! groups: those with `n` as a group label match or fail as a whole; for all others the member sets
//! decide. All matchers together split the groups into a few *classes*, each with its matching
//! member sets. Only then are groups read: posting lists contain groups, and a second level finds
//! the slots, as in TimeUnion (SIGMOD 2022), section 3.1.

use std::borrow::Cow;

use firn_model::{
    Budget, GroupId, Matcher, Pattern, Pool, QueryContext, Reservation, Result, RwLock, Slot,
};
use smallvec::SmallVec;

use crate::id_set::{IdSet, RunList};
use crate::key_table::KeyTable;
use crate::matches::{GroupMatch, MatchClass, MatchClasses, Member, Members, groups_bytes};
use crate::memory::index::{MemoryIndex, SeriesPosition, Watermark};
use crate::memory::keys::Keys;
use crate::memory::posting::PostingList;
use crate::presence::{LookupOutcome, Presence};

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
// Member sets whose lists are read under one lock.
const SETS_PER_LOCK: usize = 256;
// Up to this many member sets yield the candidate groups from their lists; with more, all groups
// are scanned.
const SETS_LISTED_MAX: u64 = 16_384;

/// The matching parts and member sets of one segment in memory.
///
/// # Errors
/// `Canceled` or `Timeout` as the token reports; `Busy` or `TooLarge` without memory.
pub(crate) fn select(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    matchers: &[Matcher],
    context: &QueryContext,
) -> Result<MatchClasses> {
    let mut classes = MatchClasses::all(mark.parts, context);
    // Not in the head of the loop: the lock would be held throughout. A second read lock would then
    // wait for a waiting writer, which waits for the first: a deadlock.
    let matchers = shortest_first(&memory.read(), matchers);
    for matcher in matchers {
        context.cancel.check()?;
        match (matcher.pattern(), matcher.is_negative()) {
            (Pattern::Any, false) => continue,
            (Pattern::Any, true) => return Ok(MatchClasses::none(context)),
            _ => {}
        }
        let within = match classes.list() {
            [only] if only.parts.runs().len() > 1 => Some(&only.parts),
            _ => None,
        };
        let split = split(memory, mark, matcher, within, context)?;
        let mut narrowed = MatchClasses::none(context);
        for class in classes.list() {
            context.cancel.check()?;
            class.split(&split, &mut narrowed, &context.budget)?;
        }
        classes = narrowed;
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
    classes: &MatchClasses,
    context: &QueryContext,
) -> Result<u64> {
    let mut count = 0;
    for class in classes.list() {
        let candidates = class.candidates(memory, mark, context)?;
        let mut parts = PartWalk::new(class, candidates.iter(), (memory, mark), context)?;
        let mut add = |_: &MemoryIndex, part: &MatchedPart<'_>| {
            count += part.positions.len() as u64;
            part.positions.len()
        };
        while parts.read(&mut add)? {}
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
    classes: &MatchClasses,
    table: &mut KeyTable,
    context: &QueryContext,
    out: &mut Vec<GroupMatch>,
) -> Result<()> {
    let mut keys = Keys::new(&memory.read(), table);
    let mut bytes = groups_bytes(out);
    for class in classes.list() {
        let candidates = class.candidates(memory, mark, context)?;
        let mut parts = PartWalk::new(class, candidates.iter(), (memory, mark), context)?;
        while parts.read(|memory, part| {
            let found = take_members(memory, part, bytes, &mut keys);
            let count = found.as_ref().map_or(0, |found| found.members.len());
            bytes += found.as_ref().map_or(0, GroupMatch::bytes);
            out.extend(found);
            count
        })? {
            // Memory is reclaimed between the locks.
            keys.make_room()?;
        }
    }
    Ok(())
}

/// The first members of `part`, all of them if the free memory suffices. `None` without members.
/// `bytes` are held for the groups before.
fn take_members(
    memory: &MemoryIndex,
    part: &MatchedPart<'_>,
    bytes: u64,
    keys: &mut Keys<'_>,
) -> Option<GroupMatch> {
    let count = part.positions.len();
    if !keys.try_hold(bytes + GroupMatch::bytes_of(count)) {
        return None;
    }
    let first_slot = memory.parts.first_slot(part.number);
    let mut members = Members::new();
    members.reserve_exact(count);
    for &at in part.positions {
        let position = SeriesPosition { part_no: part.number, at };
        let Some(key) = keys.try_key(memory, position, part.sets[at as usize]) else {
            members.shrink_to_fit();
            break;
        };
        members.push(Member { slot: Slot(first_slot + at), key });
    }
    let group = memory.parts.id(part.number);
    (!members.is_empty()).then_some(GroupMatch { group, members })
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
    context: &QueryContext,
) -> Result<MatcherSplit> {
    let (all_sets, budget) = (IdSet::below(mark.sets), &context.budget);
    let Some(name) = memory.read().pairs.find_name(matcher.name().as_bytes()) else {
        // No series has the label.
        let sets = if matcher.matches_absent() { all_sets } else { IdSet::empty() };
        return Ok(MatcherSplit { pass: IdSet::empty(), any: IdSet::empty(), sets });
    };
    let taken = match matcher.pattern() {
        Pattern::NonEmpty => None,
        Pattern::OneOf(values) => {
            Some(lists_of_values(memory, (mark, within), matcher.name(), values, context)?)
        }
        _ => Some(lists_of_scan(memory, (mark, within), matcher, name, context)?),
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
    let any = read_list(memory, mark.parts, budget, |memory| &memory.pairs.name(name).parts)?;
    let any_sets = read_list(memory, mark.sets, budget, |memory| &memory.pairs.name(name).sets)?;
    let (taken, taken_sets) = taken.unwrap_or_else(|| (any.clone(), any_sets.clone()));
    let (pass, mut sets) = if matcher.is_negative() {
        (any.minus(&taken, budget)?, any_sets.minus(&taken_sets, budget)?)
    } else {
        (taken, taken_sets)
    };
    if matcher.matches_absent() {
        sets = sets.union(&all_sets.minus(&any_sets, budget)?, budget)?;
    }
    Ok(MatcherSplit { pass, any, sets })
}

/// The groups and member sets with one of `values`.
fn lists_of_values(
    memory: &RwLock<MemoryIndex>,
    (mark, within): (Watermark, Option<&IdSet>),
    name: &str,
    values: &[String],
    context: &QueryContext,
) -> Result<(IdSet, IdSet)> {
    let mut lists = PairLists::new(mark, within, &context.budget);
    let mut found = Vec::new();
    for batch in values.chunks(ITEMS_PER_LOCK) {
        context.cancel.check()?;
        found.clear();
        {
            let memory = memory.read();
            let find = |value: &String| memory.pairs.find(name.as_bytes(), value.as_bytes());
            found.extend(batch.iter().filter_map(find));
        }
        lists.add(memory, &found)?;
    }
    lists.finish()
}

/// The groups and member sets with a value that the pattern accepts. Tries every value of the name
/// once.
fn lists_of_scan(
    memory: &RwLock<MemoryIndex>,
    (mark, within): (Watermark, Option<&IdSet>),
    matcher: &Matcher,
    name: u32,
    context: &QueryContext,
) -> Result<(IdSet, IdSet)> {
    let mut lists = PairLists::new(mark, within, &context.budget);
    let mut found = Vec::new();
    let regex = matcher.regex();
    let per_lock = regex.map_or(ITEMS_PER_LOCK, |regex| regex.texts_per_check(ITEMS_PER_LOCK));
    let mut next = 0;
    loop {
        context.cancel.check()?;
        found.clear();
        {
            let memory = memory.read();
            let rest = memory.pairs.name(name).pairs.get(next..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let batch = rest.iter().copied().take(per_lock);
            found
                .extend(batch.filter(|&pair| matcher.pattern_takes(memory.pairs.value_text(pair))));
            next += per_lock.min(rest.len());
        }
        lists.add(memory, &found)?;
    }
    lists.finish()
}

/// The visible lists of some pairs together.
#[derive(Debug)]
struct PairLists<'a> {
    mark: Watermark,
    within: Option<&'a IdSet>,
    parts: RunList<'a>,
    sets: RunList<'a>,
}

impl<'a> PairLists<'a> {
    fn new(mark: Watermark, within: Option<&'a IdSet>, budget: &'a Budget) -> PairLists<'a> {
        PairLists { mark, within, parts: RunList::new(budget), sets: RunList::new(budget) }
    }

    /// Adds the lists of at most [`ITEMS_PER_LOCK`] pairs.
    fn add(&mut self, memory: &RwLock<MemoryIndex>, pairs: &[u32]) -> Result<()> {
        let PairLists { mark, within, parts, sets } = self;
        parts.fill_locked(|parts| {
            let memory = memory.read();
            for &pair in pairs {
                if !parts.is_full() {
                    memory.pairs.pair(pair).parts.extend_runs_within(mark.parts, *within, parts);
                }
            }
        })?;
        sets.fill_locked(|sets| {
            let memory = memory.read();
            for &pair in pairs {
                if !sets.is_full() {
                    memory.pairs.pair(pair).sets.extend_runs(mark.sets, sets);
                }
            }
        })
    }

    fn finish(self) -> Result<(IdSet, IdSet)> {
        Ok((self.parts.finish()?, self.sets.finish()?))
    }
}

/// The ids of a posting list below `end`.
///
/// # Errors
/// As [`RunList::finish`].
pub(crate) fn read_list(
    memory: &RwLock<MemoryIndex>,
    end: u32,
    budget: &Budget,
    list: impl Fn(&MemoryIndex) -> &PostingList,
) -> Result<IdSet> {
    let mut runs = RunList::new(budget);
    runs.fill_locked(|runs| list(&memory.read()).extend_runs(end, runs))?;
    runs.finish()
}

impl MatchClass {
    /// Adds the rest of the class after one more matcher: at most two classes.
    fn split(&self, split: &MatcherSplit, out: &mut MatchClasses, budget: &Budget) -> Result<()> {
        let whole = self.parts.intersect(&split.pass, budget)?;
        out.push(MatchClass { parts: whole, sets: self.sets.clone() })?;
        let by_member = self.parts.minus(&split.any, budget)?;
        if by_member.is_empty() {
            return Ok(());
        }
        let sets = match &self.sets {
            Some(sets) => sets.intersect(&split.sets, budget)?,
            None => split.sets.clone(),
        };
        out.push(MatchClass { parts: by_member, sets: Some(sets) })
    }

    /// The parts that may have a matching member.
    fn candidates(
        &self,
        memory: &RwLock<MemoryIndex>,
        mark: Watermark,
        context: &QueryContext,
    ) -> Result<Cow<'_, IdSet>> {
        candidates(memory, mark, (&self.parts, self.sets.as_ref()), context)
    }
}

/// The members of a part that a class contains and that were not read before.
struct MatchedPart<'a> {
    number: u32,
    /// The sets of all visible members.
    sets: &'a [u32],
    /// The indexes of the matching ones in `sets`. At least one.
    positions: &'a [u32],
}

/// Reads the parts of a class, some under each lock.
struct PartWalk<'a, I> {
    memory: &'a RwLock<MemoryIndex>,
    mark: Watermark,
    context: &'a QueryContext,
    finder: MemberFinder,
    numbers: I,
    /// A part of which `positions` were not read yet.
    unread: Option<u32>,
    positions: Vec<u32>,
}

impl<'a, I: Iterator<Item = u32>> PartWalk<'a, I> {
    /// `numbers` are the candidates of `class`.
    fn new(
        class: &MatchClass,
        numbers: I,
        (memory, mark): (&'a RwLock<MemoryIndex>, Watermark),
        context: &'a QueryContext,
    ) -> Result<PartWalk<'a, I>> {
        let finder = MemberFinder::new(class.sets.as_ref(), &context.budget)?;
        let (unread, positions) = Default::default();
        Ok(PartWalk { memory, mark, context, finder, numbers, unread, positions })
    }

    /// Calls `take` with every part that has a matching member, under one lock. `take` returns the
    /// number of members that it has read. If it reads fewer than all, the lock is released, and
    /// the next call begins with the rest. Returns `false` at the end.
    fn read(
        &mut self,
        mut take: impl FnMut(&MemoryIndex, &MatchedPart<'_>) -> usize,
    ) -> Result<bool> {
        self.context.cancel.check()?;
        let memory = self.memory.read();
        let mut looked_at = 0;
        while looked_at < ITEMS_PER_LOCK {
            let unread = self.unread.take();
            let Some(number) = unread.or_else(|| self.numbers.next()) else { return Ok(false) };
            let visible = memory.parts.count_below(number, self.mark.series) as usize;
            let sets = &memory.parts.sets(number)[..visible];
            if unread.is_none() {
                self.finder.find(sets, &mut self.positions);
            }
            looked_at += sets.len().max(1);
            if self.positions.is_empty() {
                continue;
            }
            let read = take(&memory, &MatchedPart { number, sets, positions: &self.positions });
            self.positions.drain(..read);
            if !self.positions.is_empty() {
                self.unread = Some(number);
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// The parts that may have a member with a set of `sets`, if there are some.
fn candidates<'p>(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    (parts, sets): (&'p IdSet, Option<&IdSet>),
    context: &QueryContext,
) -> Result<Cow<'p, IdSet>> {
    let listed = sets.filter(|sets| sets.count() <= SETS_LISTED_MAX.min(parts.count()));
    let Some(sets) = listed else { return Ok(Cow::Borrowed(parts)) };
    let mut runs = RunList::new(&context.budget);
    let mut sets = sets.iter();
    loop {
        context.cancel.check()?;
        let batch: SmallVec<[u32; SETS_PER_LOCK]> = sets.by_ref().take(SETS_PER_LOCK).collect();
        if batch.is_empty() {
            return Ok(Cow::Owned(runs.finish()?.intersect(parts, &context.budget)?));
        }
        runs.fill_locked(|runs| {
            let memory = memory.read();
            for &set in batch.iter() {
                if !runs.is_full() {
                    memory.sets.set(set).parts.extend_runs(mark.parts, runs);
                }
            }
        })?;
    }
}

/// Looks for a present member of `parts`, with a set of `sets` (those of `finder`) if there are
/// some. The newest parts are first, one alone, then more under each lock.
///
/// # Errors
/// As [`select`], and those of `present`.
pub(crate) fn find_member(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    (parts, sets): (&IdSet, Option<&IdSet>),
    finder: &mut MemberFinder,
    context: &QueryContext,
    present: &mut dyn Presence,
) -> Result<LookupOutcome> {
    if parts.is_empty() || sets.is_some_and(IdSet::is_empty) {
        return Ok(LookupOutcome::Absent);
    }
    let candidates = candidates(memory, mark, (parts, sets), context)?;
    let mut numbers = candidates.iter().rev().peekable();
    let mut groups: Vec<(GroupId, usize)> = Vec::new();
    let (mut slots, mut positions): (Vec<Slot>, Vec<u32>) = Default::default();
    let mut at_once = 1;
    while numbers.peek().is_some() {
        context.cancel.check()?;
        groups.clear();
        slots.clear();
        {
            let memory = memory.read();
            let mut looked_at = 0;
            while groups.len() < at_once && looked_at < ITEMS_PER_LOCK {
                let Some(part_no) = numbers.next() else { break };
                let visible = memory.parts.count_below(part_no, mark.series) as usize;
                let sets = &memory.parts.sets(part_no)[..visible];
                looked_at += sets.len().max(1);
                finder.find(sets, &mut positions);
                if !positions.is_empty() {
                    let first_slot = memory.parts.first_slot(part_no);
                    slots.extend(positions.iter().map(|at| Slot(first_slot + at)));
                    groups.push((memory.parts.id(part_no), slots.len()));
                }
            }
        }
        let mut start = 0;
        for &(group, end) in &groups {
            let found = present.look(group, &slots[start..end])?;
            if found != LookupOutcome::Absent {
                return Ok(found);
            }
            start = end;
        }
        at_once = ITEMS_PER_LOCK.min(4 * at_once);
    }
    Ok(LookupOutcome::Absent)
}

/// Finds the indexes of member sets in one part after the other.
#[derive(Debug)]
pub(crate) enum MemberFinder {
    All,
    /// Each set with its index in the last part: parts are often alike.
    Few(Vec<(u32, u32)>),
    Marked(
        Vec<u64>,
        #[expect(dead_code, reason = "it counts as long as the finder exists")] Reservation,
    ),
}

impl MemberFinder {
    /// # Errors
    /// `Busy` or `TooLarge` without memory.
    pub(crate) fn new(sets: Option<&IdSet>, budget: &Budget) -> Result<MemberFinder> {
        let Some(sets) = sets else { return Ok(MemberFinder::All) };
        if sets.count() <= SETS_SEARCHED_MAX {
            return Ok(MemberFinder::Few(sets.iter().map(|set| (set, 0)).collect()));
        }
        let end = sets.runs().last().map_or(0, |run| run.1);
        let word_count = (end as usize).div_ceil(64);
        let held = budget.reserve(Pool::Query, (word_count * size_of::<u64>()) as u64)?;
        let mut words = vec![0u64; word_count];
        sets.iter().for_each(|set| words[set as usize / 64] |= 1 << (set % 64));
        Ok(MemberFinder::Marked(words, held))
    }

    /// Fills `positions` with the matching indexes of a part's member sets, ascending.
    fn find(&mut self, sets: &[u32], positions: &mut Vec<u32>) {
        positions.clear();
        let all = 0..sets.len() as u32;
        match self {
            MemberFinder::All => positions.extend(all),
            MemberFinder::Marked(words, _) => positions.extend(all.filter(|&at| {
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
