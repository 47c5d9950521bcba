//! Label names and values of the matched series of one segment in memory.

use firn_model::{GroupId, Pool, QueryContext, Reservation, Result, RwLock, Slot};

use crate::id_set::{IdSet, RunList};
use crate::matches::{MatchClass, MatchClasses};
use crate::memory::index::{MemoryIndex, Watermark};
use crate::memory::matching::{MemberFinder, find_member, read_list};
use crate::memory::pairs::PairEntry;
use crate::memory::posting::PostingList;
use crate::presence::{LookupOutcome, Presence};

/// The values of one name, ascending, with a lookup of the matched series that have each.
#[derive(Debug)]
pub(crate) struct MemoryValues<'a> {
    memory: &'a RwLock<MemoryIndex>,
    mark: Watermark,
    classes: Vec<NamedClass<'a>>,
    texts: String,
    /// By value.
    pairs: Vec<PairText>,
    next: usize,
    _held: Reservation,
}

/// A class, and its parts without the name: their members may have it.
#[derive(Debug)]
struct NamedClass<'a> {
    class: &'a MatchClass,
    without: IdSet,
    finder: MemberFinder,
}

#[derive(Clone, Copy, Debug)]
struct PairText {
    start: usize,
    len: u32,
    pair: u32,
    /// The first bytes that not all texts share: they decide nearly every comparison.
    key: u64,
}

// Pairs or rows read under one lock.
const PAIRS_PER_LOCK: usize = 1_024;
// Bytes of values read under one lock; more if one value is longer.
const TEXT_BYTES_PER_LOCK: usize = 64 << 10;
// Names sorted under one lock.
const NAMES_PER_LOCK: usize = 512;

impl<'a> MemoryValues<'a> {
    /// `None` without a pair of the name.
    ///
    /// # Errors
    /// `Busy` without memory, `Canceled` or `Timeout` as the token reports.
    pub(crate) fn open(
        memory: &'a RwLock<MemoryIndex>,
        mark: Watermark,
        classes: &'a MatchClasses,
        name: &str,
        context: &QueryContext,
    ) -> Result<Option<MemoryValues<'a>>> {
        let Some(name) = memory.read().pairs.find_name(name.as_bytes()) else { return Ok(None) };
        let budget = &context.budget;
        let any = read_list(memory, mark.parts, budget, |memory| &memory.pairs.name(name).parts)?;
        let any_sets =
            read_list(memory, mark.sets, budget, |memory| &memory.pairs.name(name).sets)?;
        let named = |class: &'a MatchClass| {
            context.cancel.check()?;
            let without = class.parts.minus(&any, budget)?;
            let finder = MemberFinder::new(class.sets.as_ref(), budget)?;
            Ok(NamedClass { class, without, finder })
        };
        let classes = classes.list().iter().map(named).collect::<Result<_>>()?;
        let mut values = MemoryValues {
            memory,
            mark,
            classes,
            texts: String::new(),
            pairs: Vec::new(),
            next: 0,
            _held: context.budget.empty(Pool::Query),
        };
        values.find_pairs(name, (&any, &any_sets), context)?;
        sort_texts(&values.texts, &mut values.pairs);
        Ok(Some(values))
    }

    /// Fills the list of pairs: those of the rows that may match if these are few, otherwise all.
    fn find_pairs(
        &mut self,
        name: u32,
        (any, any_sets): (&IdSet, &IdSet),
        context: &QueryContext,
    ) -> Result<()> {
        let pair_count = self.memory.read().pairs.name(name).pairs.len();
        let budget = &context.budget;
        let parts = self.classes.iter().map(|named| named.class.parts.intersect(any, budget));
        let parts = parts.collect::<Result<Vec<IdSet>>>()?;
        let of_members = self.classes.iter().filter(|named| !named.without.is_empty());
        let sets = of_members.map(|named| match &named.class.sets {
            Some(sets) => sets.intersect(any_sets, budget),
            None => Ok(any_sets.clone()),
        });
        let sets = sets.collect::<Result<Vec<IdSet>>>()?;
        let row_count: u64 = parts.iter().chain(&sets).map(IdSet::count).sum();
        if row_count >= pair_count as u64 / 2 {
            let mut next = 0;
            while next < pair_count {
                self.make_room(context)?;
                let memory = self.memory.read();
                let batch = &memory.pairs.name(name).pairs[next..];
                next += push_texts(&memory, batch, (&mut self.texts, &mut self.pairs));
            }
            return Ok(());
        }
        let _found_held = context.budget.reserve(Pool::Query, 8 * row_count)?;
        let mut found: Vec<u32> = Vec::new();
        let mut add = |pair: Option<u32>| {
            if let Some(pair) = pair.filter(|pair| found.last() != Some(pair)) {
                found.push(pair);
            }
        };
        each_locked(self.memory, parts.iter().flat_map(IdSet::iter), |memory, part_no| {
            let mut pairs = memory.parts.identity(part_no).chain(memory.parts.common(part_no));
            add(pairs.find(|&pair| memory.pairs.pair(pair).name == name));
        });
        each_locked(self.memory, sets.iter().flat_map(IdSet::iter), |memory, set| {
            add(memory.sets.pairs(set).find(|&pair| memory.pairs.pair(pair).name == name));
        });
        found.sort_unstable();
        found.dedup();
        let mut rest = &found[..];
        while !rest.is_empty() {
            self.make_room(context)?;
            let count = push_texts(&self.memory.read(), rest, (&mut self.texts, &mut self.pairs));
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Makes room for the texts that are read under one lock.
    fn make_room(&mut self, context: &QueryContext) -> Result<()> {
        context.cancel.check()?;
        let MemoryValues { texts, pairs, _held: held, .. } = self;
        let bytes = |texts: &String, pairs: &Vec<PairText>| {
            (texts.capacity() + pairs.capacity() * size_of::<PairText>()) as u64
        };
        let before = bytes(texts, pairs);
        let more_text = if texts.capacity() - texts.len() < TEXT_BYTES_PER_LOCK {
            texts.len().max(TEXT_BYTES_PER_LOCK)
        } else {
            0
        };
        let more_pairs = if pairs.capacity() - pairs.len() < PAIRS_PER_LOCK {
            pairs.len().max(PAIRS_PER_LOCK)
        } else {
            0
        };
        // Old and new lists exist together while they are copied.
        held.cover(2 * before + (more_text + more_pairs * size_of::<PairText>()) as u64)?;
        texts.reserve_exact(more_text);
        pairs.reserve_exact(more_pairs);
        held.shrink_to(bytes(texts, pairs));
        Ok(())
    }

    /// The current value; `None` after the last.
    pub(crate) fn text(&self) -> Option<&str> {
        self.pairs.get(self.next).map(|pair| pair.of(&self.texts))
    }

    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    /// Looks for a present series among the matched ones with the current value.
    pub(crate) fn find_present(
        &mut self,
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let absent = Ok(LookupOutcome::Absent);
        let Some(&PairText { pair, .. }) = self.pairs.get(self.next) else { return absent };
        let newest = self.newest(&self.memory.read(), pair);
        if let Some((group, slot)) = newest {
            let found = present.look(group, &[slot])?;
            if found != LookupOutcome::Absent {
                return Ok(found);
            }
        }
        let (memory, mark) = (self.memory, self.mark);
        for NamedClass { class, without, finder } in &mut self.classes {
            let parts = (mark.parts, Some(&class.parts));
            let parts = read_within(memory, parts, context, |m| &m.pairs.pair(pair).parts)?;
            let sets = (mark.sets, class.sets.as_ref());
            let sets = match without.is_empty() {
                true => IdSet::empty(),
                false => read_within(memory, sets, context, |m| &m.pairs.pair(pair).sets)?,
            };
            let on_parts = (&parts, class.sets.as_ref());
            let found = find_member(memory, mark, on_parts, finder, context, present)?;
            if found != LookupOutcome::Absent {
                return Ok(found);
            }
            let mut finder = MemberFinder::new(Some(&sets), &context.budget)?;
            let on_members = (&*without, Some(&sets));
            let found = find_member(memory, mark, on_members, &mut finder, context, present)?;
            if found != LookupOutcome::Absent {
                return Ok(found);
            }
        }
        absent
    }

    /// The newest series with `pair`, if it matches.
    fn newest(&self, memory: &MemoryIndex, pair: u32) -> Option<(GroupId, Slot)> {
        let PairEntry { parts, sets, .. } = memory.pairs.pair(pair);
        let matches = |named: &NamedClass<'_>, part_no, set| match set {
            None => named.class.sets.is_none() && named.class.parts.has(part_no),
            Some(set) => {
                named.without.has(part_no)
                    && named.class.sets.as_ref().is_none_or(|sets| sets.has(set))
            }
        };
        newest_member(memory, self.mark, (parts, sets), |part_no, set| {
            self.classes.iter().any(|named| matches(named, part_no, set))
        })
    }
}

/// The newest series on one of `parts`, or on one of `sets`, if it `matches` by its part and, if
/// it is found by a set, by that. Most probably it is present, and it is found without reading a
/// list.
fn newest_member(
    memory: &MemoryIndex,
    mark: Watermark,
    (parts, sets): (&PostingList, &PostingList),
    matches: impl Fn(u32, Option<u32>) -> bool,
) -> Option<(GroupId, Slot)> {
    let visible = |part_no| memory.parts.count_below(part_no, mark.series);
    if let Some(part_no) = parts.last_below(mark.parts) {
        let last = visible(part_no).checked_sub(1)?;
        return matches(part_no, None).then(|| member_at(memory, part_no, last));
    }
    let set = sets.last_below(mark.sets)?;
    let part_no = memory.sets.set(set).parts.last_below(mark.parts)?;
    let members = &memory.parts.sets(part_no)[..visible(part_no) as usize];
    let at = members.iter().rposition(|&member| member == set)?;
    matches(part_no, Some(set)).then(|| member_at(memory, part_no, at as u32))
}

/// A batch of the names of one segment, ascending. Some may be on no visible series. Only the
/// current text is copied.
#[derive(Debug)]
pub(crate) struct MemoryNames<'a> {
    memory: &'a RwLock<MemoryIndex>,
    mark: Watermark,
    classes: &'a MatchClasses,
    /// By text.
    ids: Vec<u32>,
    next: usize,
    text: String,
    held: Reservation,
}

impl<'a> MemoryNames<'a> {
    /// All names, in batches that are sorted under one lock each.
    ///
    /// # Errors
    /// As [`MemoryValues::open`].
    pub(crate) fn open(
        memory: &'a RwLock<MemoryIndex>,
        mark: Watermark,
        classes: &'a MatchClasses,
        context: &QueryContext,
    ) -> Result<Vec<MemoryNames<'a>>> {
        let name_count = memory.read().pairs.name_count();
        let batch = |start: u32| {
            context.cancel.check()?;
            let mut ids: Vec<u32> = (start..name_count).take(NAMES_PER_LOCK).collect();
            {
                let memory = memory.read();
                let text = |id: &u32| memory.pairs.name_text(*id);
                ids.sort_unstable_by(|a, b| text(a).cmp(text(b)));
            }
            let (text, held) = (String::new(), context.budget.empty(Pool::Query));
            let mut names = MemoryNames { memory, mark, classes, ids, next: 0, text, held };
            names.read_text()?;
            Ok(names)
        };
        (0..name_count).step_by(NAMES_PER_LOCK).map(batch).collect()
    }

    fn read_text(&mut self) -> Result<()> {
        let Some(&id) = self.ids.get(self.next) else { return Ok(()) };
        self.text.clear();
        self.text.push_str(self.memory.read().pairs.name_text(id));
        let bytes = size_of::<MemoryNames<'_>>() + self.ids.capacity() * 4 + self.text.capacity();
        self.held.cover(bytes as u64)
    }

    /// The current name; `None` after the last.
    pub(crate) fn text(&self) -> Option<&str> {
        (self.next < self.ids.len()).then_some(&self.text)
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        self.next += 1;
        self.read_text()
    }

    /// Looks for a present series among the matched ones with the current name.
    pub(crate) fn find_present(
        &self,
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let Some(&id) = self.ids.get(self.next) else { return Ok(LookupOutcome::Absent) };
        find_name(self.memory, self.mark, self.classes, id, context, present)
    }
}

/// Looks for a present series among the matched ones with the name.
fn find_name(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    classes: &MatchClasses,
    name: u32,
    context: &QueryContext,
    present: &mut dyn Presence,
) -> Result<LookupOutcome> {
    let matches = |class: &MatchClass, part_no, set: Option<u32>| {
        let sets_have = |sets: &IdSet| set.is_some_and(|set| sets.has(set));
        class.parts.has(part_no) && class.sets.as_ref().is_none_or(sets_have)
    };
    let newest = {
        let memory = memory.read();
        let entry = memory.pairs.name(name);
        newest_member(&memory, mark, (&entry.parts, &entry.sets), |part_no, set| {
            classes.list().iter().any(|class| matches(class, part_no, set))
        })
    };
    if let Some((group, slot)) = newest {
        let found = present.look(group, &[slot])?;
        if found != LookupOutcome::Absent {
            return Ok(found);
        }
    }
    for class in classes.list() {
        let parts = (mark.parts, Some(&class.parts));
        let parts = read_within(memory, parts, context, |m| &m.pairs.name(name).parts)?;
        let sets = (mark.sets, class.sets.as_ref());
        let sets = read_within(memory, sets, context, |m| &m.pairs.name(name).sets)?;
        let mut finder = MemberFinder::new(class.sets.as_ref(), &context.budget)?;
        let on_parts = (&parts, class.sets.as_ref());
        let found = find_member(memory, mark, on_parts, &mut finder, context, present)?;
        if found != LookupOutcome::Absent {
            return Ok(found);
        }
        if sets.is_empty() {
            continue;
        }
        let without = class.parts.minus(&parts, &context.budget)?;
        let mut finder = MemberFinder::new(Some(&sets), &context.budget)?;
        let on_members = (&without, Some(&sets));
        let found = find_member(memory, mark, on_members, &mut finder, context, present)?;
        if found != LookupOutcome::Absent {
            return Ok(found);
        }
    }
    Ok(LookupOutcome::Absent)
}

/// `classes` without the parts of other groups.
pub(crate) fn keep_groups(
    memory: &RwLock<MemoryIndex>,
    classes: &MatchClasses,
    groups: &[GroupId],
    context: &QueryContext,
) -> Result<MatchClasses> {
    let mut parts = RunList::new(&context.budget);
    for batch in groups.chunks(PAIRS_PER_LOCK) {
        parts.fill_locked(|parts| {
            let memory = memory.read();
            let of_groups = batch.iter().flat_map(|&group| memory.parts.of_group(group));
            of_groups.for_each(|part_no| parts.push((part_no, part_no + 1)));
        })?;
    }
    classes.within(&parts.finish()?, context)
}

/// The ids of a posting list below `end` and in `within`.
fn read_within(
    memory: &RwLock<MemoryIndex>,
    (end, within): (u32, Option<&IdSet>),
    context: &QueryContext,
    list: impl Fn(&MemoryIndex) -> &PostingList,
) -> Result<IdSet> {
    let mut runs = RunList::new(&context.budget);
    runs.fill_locked(|runs| list(&memory.read()).extend_runs_within(end, within, runs))?;
    runs.finish()
}

fn member_at(memory: &MemoryIndex, part_no: u32, at: u32) -> (GroupId, Slot) {
    (memory.parts.id(part_no), Slot(memory.parts.first_slot(part_no) + at))
}

/// Appends the texts of the first pairs, as many as fit into the room for one lock, and at least
/// one. Returns their number.
fn push_texts(
    memory: &MemoryIndex,
    pairs: &[u32],
    (texts, out): (&mut String, &mut Vec<PairText>),
) -> usize {
    let full = texts.len() + TEXT_BYTES_PER_LOCK;
    for (count, &pair) in pairs.iter().take(PAIRS_PER_LOCK).enumerate() {
        let (start, text) = (texts.len(), memory.pairs.value_text(pair));
        if count > 0 && start + text.len() > full {
            return count;
        }
        texts.push_str(text);
        out.push(PairText { start, len: text.len() as u32, pair, key: 0 });
    }
    pairs.len().min(PAIRS_PER_LOCK)
}

impl PairText {
    fn of<'t>(&self, texts: &'t str) -> &'t str {
        &texts[self.start..self.start + self.len as usize]
    }
}

/// Sorts `pairs` by text.
fn sort_texts(texts: &str, pairs: &mut [PairText]) {
    let [first, rest @ ..] = &*pairs else { return };
    let first = first.of(texts).as_bytes();
    let shared_len = rest.iter().fold(first.len(), |shared_len, pair| {
        let both = first[..shared_len].iter().zip(pair.of(texts).as_bytes());
        both.take_while(|(a, b)| a == b).count()
    });
    for pair in &mut *pairs {
        let mut key = [0; 8];
        let different = pair.of(texts).as_bytes().get(shared_len..).unwrap_or_default();
        key.iter_mut().zip(different).for_each(|(to, from)| *to = *from);
        pair.key = u64::from_be_bytes(key);
    }
    pairs.sort_unstable_by(|a, b| a.key.cmp(&b.key).then_with(|| a.of(texts).cmp(b.of(texts))));
}

/// Calls `each` with every id, a bounded number under each lock.
fn each_locked(
    memory: &RwLock<MemoryIndex>,
    ids: impl Iterator<Item = u32>,
    mut each: impl FnMut(&MemoryIndex, u32),
) {
    let mut ids = ids.peekable();
    while ids.peek().is_some() {
        let memory = memory.read();
        ids.by_ref().take(PAIRS_PER_LOCK).for_each(|id| each(&memory, id));
    }
}

impl Watermark {
    /// Whether a visible series has the pair. Both lists ascend, so their first entries are the
    /// oldest.
    fn sees_pair(self, memory: &MemoryIndex, pair: u32) -> bool {
        let pair = memory.pairs.pair(pair);
        pair.parts.first().is_some_and(|part_no| part_no < self.parts)
            || pair.sets.first().is_some_and(|set| memory.sets.set(set).first_series < self.series)
    }
}

/// Calls `take` with every visible pair of a name, a bounded number under each lock.
pub(crate) fn each_pair(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    name: u32,
    mut take: impl FnMut(&MemoryIndex, u32),
) {
    let mut next = 0;
    loop {
        let memory = memory.read();
        let rest = memory.pairs.name(name).pairs.get(next..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let batch = rest.iter().take(PAIRS_PER_LOCK);
        batch.filter(|&&pair| mark.sees_pair(&memory, pair)).for_each(|&p| take(&memory, p));
        next += PAIRS_PER_LOCK.min(rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that share a beginning, end within it, or differ only behind the key.
    #[test]
    fn texts_are_sorted_as_strings_are() {
        let lists: [&[&str]; 4] = [
            &["host-9", "host-10", "host-1", "host-11", "host-1\0", "host-", "host-1\0\0"],
            &["", "b", "a"],
            &["host-0123456789", "host-0123456788", "host-0123456", "host-01234567"],
            &["é", "e", "\u{10ffff}", "~"],
        ];
        for list in lists {
            let (mut texts, mut pairs) = (String::new(), Vec::new());
            for (pair, text) in (0..).zip(list) {
                pairs.push(PairText { start: texts.len(), len: text.len() as u32, pair, key: 0 });
                texts.push_str(text);
            }
            sort_texts(&texts, &mut pairs);
            let mut want = list.to_vec();
            want.sort_unstable();
            assert_eq!(pairs.iter().map(|pair| pair.of(&texts)).collect::<Vec<_>>(), want);
        }
        sort_texts("", &mut []);
    }
}
