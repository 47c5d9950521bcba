//! Matching: from matchers to rows, on the compressed lists.
//!
//! A label is on the group, on the member, or absent. A matcher on a name therefore splits the
//! parts: those with the name match or fail as a whole; for all others the member sets decide. All
//! matchers together split the parts into a few *classes*, each with its matching member sets, as
//! in memory. The most selective matcher is first; the others read their lists only for the
//! remaining rows. If few rows remain, a pattern is applied to their values instead of scanning all
//! values.

use std::cell::OnceCell;
use std::ops::Range;

use firn_codec::postings::Postings;
use firn_model::{Budget, Error, Matcher, Pattern, Pool, QueryContext, Reservation, Result};

use crate::id_set::{IdSet, RunList, skip_to};
use crate::matches::{MatchClass, MatchClasses};
use crate::sealed::format::lists::TableKind;
use crate::sealed::read::automaton::{successor, takes};
use crate::sealed::read::matched_rows::MatchedRows;
use crate::sealed::read::segment::Sealed;

/// A matcher with its properties in this segment.
#[derive(Debug)]
struct PlannedMatcher<'m> {
    matcher: &'m Matcher,
    name: Option<u32>,
    /// The approximate number of rows to read.
    cost: u64,
    taken: OnceCell<AcceptedPairs>,
}

/// The pairs that a pattern accepts.
#[derive(Debug)]
enum AcceptedPairs {
    All,
    Range(Range<u32>),
    Some(PairList),
}

// Up to this many rows, reading their values is faster than scanning all values of the name.
const ROWS_TRIED_MAX: u64 = 256;
// A list this many times longer than the remaining rows is searched with seeks, not decoded.
const SEEK_RATIO: u64 = 16;
const PAIRS_PER_CHECK: u32 = 1_024;
// The capacity of a new list of pairs.
const PAIRS_AT_FIRST: usize = 16;

impl Sealed {
    /// The rows that match all `matchers`.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` as the token reports; `Busy` or `TooLarge` without memory.
    pub(crate) fn select(
        &self,
        matchers: &[Matcher],
        context: &QueryContext,
    ) -> Result<MatchedRows> {
        context.cancel.check()?;
        let Some(planned) = self.plan_matchers(matchers, context)? else {
            let classes = MatchClasses::none(context);
            return Ok(MatchedRows { lone: IdSet::empty(), classes });
        };
        let mut lone = IdSet::below(self.lone.rows.count);
        for planned in &planned {
            if lone.is_empty() {
                break;
            }
            lone = self.narrow(TableKind::Lone, &lone, planned, context)?;
        }
        let mut classes = MatchClasses::all(self.parts.rows.count, context);
        for planned in &planned {
            let mut narrowed = MatchClasses::none(context);
            for class in classes.list() {
                context.cancel.check()?;
                self.split(class, planned, context, &mut narrowed)?;
            }
            classes = narrowed;
        }
        Ok(MatchedRows { lone, classes })
    }

    /// The matchers in order of cost; `None` if nothing can match.
    fn plan_matchers<'m>(
        &self,
        matchers: &'m [Matcher],
        context: &QueryContext,
    ) -> Result<Option<Vec<PlannedMatcher<'m>>>> {
        let mut all = Vec::with_capacity(matchers.len());
        for matcher in matchers {
            match (matcher.pattern(), matcher.is_negative()) {
                (Pattern::Any, false) => continue,
                (Pattern::Any, true) => return Ok(None),
                _ => {}
            }
            let name = self.names.find(matcher.name().as_bytes());
            let taken = OnceCell::new();
            let cost = match (matcher.pattern(), name) {
                (_, None) => 0,
                (Pattern::OneOf(values), Some(name)) => {
                    let found = self.find_values(name, values, context)?;
                    let cost = self.list_lens(found.list())?;
                    // The cell is new, so this cannot fail.
                    let _ = taken.set(AcceptedPairs::Some(found));
                    if matcher.is_negative() || matcher.matches_absent() { 1 << 41 } else { cost }
                }
                (Pattern::Prefix { .. }, _) => 1 << 40,
                (Pattern::Contains(_), _) => 1 << 42,
                (Pattern::Regex, _) => 1 << 43,
                _ => 1 << 41,
            };
            all.push(PlannedMatcher { matcher, name, cost, taken });
        }
        all.sort_by_key(|planned| planned.cost);
        Ok(Some(all))
    }

    /// The rows of `rows` that match. An absent label counts as `""`.
    fn narrow(
        &self,
        kind: TableKind,
        rows: &IdSet,
        planned: &PlannedMatcher<'_>,
        context: &QueryContext,
    ) -> Result<IdSet> {
        let matcher = planned.matcher;
        let Some(name) = planned.name else {
            return Ok(if matcher.matches_absent() { rows.clone() } else { IdSet::empty() });
        };
        let taken = self.rows_taken(kind, rows, planned, name, context)?;
        if !matcher.is_negative() && !matcher.matches_absent() {
            return Ok(taken);
        }
        let budget = &context.budget;
        let any = self.table(kind).rows.with_name(name, rows, budget)?;
        let passing = if matcher.is_negative() { any.minus(&taken, budget)? } else { taken };
        match matcher.matches_absent() {
            true => passing.union(&rows.minus(&any, budget)?, budget),
            false => Ok(passing),
        }
    }

    /// Appends the rest of a class after one more matcher: at most two classes.
    fn split(
        &self,
        class: &MatchClass,
        planned: &PlannedMatcher<'_>,
        context: &QueryContext,
        out: &mut MatchClasses,
    ) -> Result<()> {
        let (matcher, budget) = (planned.matcher, &context.budget);
        let any = match planned.name {
            Some(name) => {
                let any = self.parts.rows.with_name(name, &class.parts, budget)?;
                let taken = self.rows_taken(TableKind::Parts, &any, planned, name, context)?;
                let parts = if matcher.is_negative() { any.minus(&taken, budget)? } else { taken };
                out.push(MatchClass { parts, sets: class.sets.clone() })?;
                any
            }
            None => IdSet::empty(),
        };
        let parts = class.parts.minus(&any, budget)?;
        if parts.is_empty() {
            return Ok(());
        }
        let all = || IdSet::below(self.sets.rows.count);
        let before = class.sets.as_ref().map_or_else(all, IdSet::clone);
        let passing = self.narrow(TableKind::MemberSets, &before, planned, context)?;
        if class.sets.is_none() && passing == before {
            return out.push(MatchClass { parts, sets: None });
        }
        out.push(MatchClass { parts, sets: Some(passing) })
    }

    /// The rows of `rows` with a value that the pattern accepts.
    fn rows_taken(
        &self,
        kind: TableKind,
        rows: &IdSet,
        planned: &PlannedMatcher<'_>,
        name: u32,
        context: &QueryContext,
    ) -> Result<IdSet> {
        if rows.is_empty() {
            return Ok(IdSet::empty());
        }
        let with_name = || self.table(kind).rows.with_name(name, rows, &context.budget);
        let values = self.names.pairs(name);
        let scans = matches!(planned.matcher.pattern(), Pattern::Regex | Pattern::Contains(_));
        if scans && planned.taken.get().is_none() {
            let any = with_name()?;
            if any.count() <= ROWS_TRIED_MAX.min(values.len() as u64 / 4) {
                let mut value = Vec::new();
                return self.rows_by_value(kind, &any, name, context, |pair| {
                    self.strings.get(&self.blocks, u64::from(pair), &mut value)?;
                    Ok(takes(planned.matcher, &value))
                });
            }
        }
        let taken = match planned.taken.get() {
            Some(taken) => taken,
            None => {
                let taken = self.pairs_taken(planned.matcher, values.clone(), context)?;
                planned.taken.get_or_init(|| taken)
            }
        };
        let pair_count = match taken {
            AcceptedPairs::All => return with_name(),
            AcceptedPairs::Range(range) if *range == values => return with_name(),
            AcceptedPairs::Range(range) => range.len(),
            AcceptedPairs::Some(pairs) => pairs.list().len(),
        };
        if pair_count as u64 > rows.count() {
            let any = with_name()?;
            return self.rows_by_value(kind, &any, name, context, |pair| Ok(taken.has(pair)));
        }
        self.rows_by_lists(kind, rows, taken, context)
    }

    /// Checks each row's value, once for adjacent equal values.
    fn rows_by_value(
        &self,
        kind: TableKind,
        rows: &IdSet,
        name: u32,
        context: &QueryContext,
        mut takes: impl FnMut(u32) -> Result<bool>,
    ) -> Result<IdSet> {
        let mut reader = self.table(kind).rows.reader(&self.blocks);
        let mut last: Option<(u32, bool)> = None;
        let mut runs = RunList::new(&context.budget);
        for row in rows.iter() {
            if row.is_multiple_of(PAIRS_PER_CHECK) {
                context.cancel.check()?;
            }
            let schema = reader.load(row)?;
            let Ok(column_idx) = schema.names.binary_search(&name) else { continue };
            let pair = self.pair_at(name, reader.rank(row, column_idx)?)?;
            let is_taken = match last {
                Some((last, is_taken)) if last == pair => is_taken,
                _ => takes(pair)?,
            };
            last = Some((pair, is_taken));
            if is_taken {
                runs.push((row, row + 1));
            }
        }
        runs.finish()
    }

    fn rows_by_lists(
        &self,
        kind: TableKind,
        rows: &IdSet,
        taken: &AcceptedPairs,
        context: &QueryContext,
    ) -> Result<IdSet> {
        let row_count = rows.count();
        let table_count = self.table(kind).rows.count;
        let bitmap_bits = if taken.is_one() { 0 } else { table_count };
        let mut union = RowUnion::new(table_count, bitmap_bits, &context.budget);
        let mut add = |list: Option<Postings<'_>>| {
            let Some(list) = list else { return Ok(()) };
            let added = if list.len() > SEEK_RATIO * row_count {
                seek_rows(&list, rows, &mut union);
                Ok(())
            } else if row_count == u64::from(table_count) {
                list.for_each_run(|first, last| union.push(first, last))
            } else {
                keep_rows(&list, rows, &mut union)
            };
            added.map_err(|error| self.blocks.corrupt_by(self.lists.bytes.start, &error))
        };
        match taken {
            AcceptedPairs::All => {}
            AcceptedPairs::Range(range) => self.each_pair_lists(range.clone(), |pair, lists| {
                if pair.is_multiple_of(PAIRS_PER_CHECK) {
                    context.cancel.check()?;
                }
                add(lists.of(kind))
            })?,
            AcceptedPairs::Some(pairs) => {
                for (idx, &pair) in pairs.list().iter().enumerate() {
                    if (idx as u32).is_multiple_of(PAIRS_PER_CHECK) {
                        context.cancel.check()?;
                    }
                    add(self.pair_lists(pair)?.of(kind))?;
                }
            }
        }
        union.into_set()
    }

    fn pairs_taken(
        &self,
        matcher: &Matcher,
        values: Range<u32>,
        context: &QueryContext,
    ) -> Result<AcceptedPairs> {
        Ok(match matcher.pattern() {
            Pattern::Any | Pattern::NonEmpty => AcceptedPairs::All,
            Pattern::Prefix { text, longer } => {
                let ids = u64::from(values.start)..u64::from(values.end);
                let start = match self.strings.find(&self.blocks, ids.clone(), text.as_bytes())? {
                    Ok(found) => found + u64::from(*longer),
                    Err(place) => place,
                };
                let end = match successor(text.as_bytes()) {
                    Some(after) => {
                        let (Ok(end) | Err(end)) = self.strings.find(&self.blocks, ids, &after)?;
                        end
                    }
                    None => ids.end,
                };
                AcceptedPairs::Range(start as u32..end as u32)
            }
            // The values of `OneOf` are searched in `plan_matchers`.
            Pattern::OneOf(_) | Pattern::Contains(_) | Pattern::Regex => {
                let mut pairs = PairList::new(context);
                self.scan_values(values, matcher, &context.cancel, |pair| pairs.push(pair))?;
                AcceptedPairs::Some(pairs)
            }
        })
    }

    /// The pairs of a name with one of `values`, ascending, as `values` are.
    fn find_values(
        &self,
        name: u32,
        values: &[String],
        context: &QueryContext,
    ) -> Result<PairList> {
        let mut pairs = PairList::new(context);
        for value in values.iter().filter(|value| !value.is_empty()) {
            if let Some(pair) = self.find_pair(name, value.as_bytes())? {
                pairs.push(pair)?;
            }
        }
        Ok(pairs)
    }

    pub(crate) fn find_pair(&self, name: u32, value: &[u8]) -> Result<Option<u32>> {
        let pairs = self.names.pairs(name);
        let ids = u64::from(pairs.start)..u64::from(pairs.end);
        Ok(self.strings.find(&self.blocks, ids, value)?.ok().map(|pair| pair as u32))
    }

    fn list_lens(&self, pairs: &[u32]) -> Result<u64> {
        let mut sum = 0;
        for &pair in pairs.iter().take(ROWS_TRIED_MAX as usize) {
            let lists = self.pair_lists(pair)?.lists;
            sum = lists.iter().flatten().map(Postings::len).fold(sum, u64::saturating_add);
        }
        Ok(sum)
    }
}

impl AcceptedPairs {
    fn is_one(&self) -> bool {
        match self {
            AcceptedPairs::All => false,
            AcceptedPairs::Range(range) => range.len() <= 1,
            AcceptedPairs::Some(pairs) => pairs.list().len() <= 1,
        }
    }

    fn has(&self, pair: u32) -> bool {
        match self {
            AcceptedPairs::All => true,
            AcceptedPairs::Range(range) => range.contains(&pair),
            AcceptedPairs::Some(pairs) => pairs.list().binary_search(&pair).is_ok(),
        }
    }
}

/// Ascending pairs; their memory is reserved.
#[derive(Debug)]
struct PairList {
    pairs: Vec<u32>,
    held: Reservation,
}

impl PairList {
    fn new(context: &QueryContext) -> PairList {
        PairList { pairs: Vec::new(), held: context.budget.empty(Pool::Query) }
    }

    fn push(&mut self, pair: u32) -> Result<()> {
        if self.pairs.len() == self.pairs.capacity() {
            let more = self.pairs.len().max(PAIRS_AT_FIRST);
            // While the list is moved, both copies exist.
            self.held.cover(((2 * self.pairs.len() + more) * size_of::<u32>()) as u64)?;
            self.pairs.reserve_exact(more);
        }
        self.pairs.push(pair);
        Ok(())
    }

    fn list(&self) -> &[u32] {
        &self.pairs
    }
}

/// A union of posting lists: runs at first, a bitmap once sorting the runs would cost more.
#[derive(Debug)]
struct RowUnion<'b> {
    runs: RunList<'b>,
    words: Vec<u64>,
    /// The memory of `words`.
    held: Reservation,
    refusal: Option<Error>,
    /// All ids are below.
    end: u32,
    /// With more runs than this, the bitmap is used.
    run_count_max: usize,
}

impl<'b> RowUnion<'b> {
    /// `bitmap_bits` is 0 if the runs arrive in order, so that no bitmap is needed.
    fn new(end: u32, bitmap_bits: u32, budget: &'b Budget) -> RowUnion<'b> {
        // Sorting a run costs about as much as reading a few words.
        let run_count_max = match bitmap_bits {
            0 => usize::MAX,
            bits => 1_024.max(bits as usize / 256),
        };
        RowUnion {
            runs: RunList::new(budget),
            words: Vec::new(),
            held: budget.empty(Pool::Query),
            refusal: None,
            end,
            run_count_max,
        }
    }

    #[inline]
    fn push(&mut self, first: u64, last: u64) {
        let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last)) else { return };
        if last >= self.end {
            return;
        }
        self.runs.push_joined(first, last + 1);
        if self.runs.len() > self.run_count_max {
            self.spill();
        }
    }

    fn spill(&mut self) {
        if self.words.is_empty() {
            let word_count = (self.end as usize).div_ceil(64);
            if let Err(refusal) = self.held.grow((word_count * size_of::<u64>()) as u64) {
                self.refusal = Some(refusal);
                return self.runs.clear();
            }
            self.words.resize(word_count, 0);
        }
        for &(start, end) in self.runs.runs() {
            let (first, last) = (start as usize / 64, (end - 1) as usize / 64);
            let (from, to) = (u64::MAX << (start % 64), u64::MAX >> (63 - (end - 1) % 64));
            if first == last {
                self.words[first] |= from & to;
            } else {
                self.words[first] |= from;
                self.words[first + 1..last].fill(u64::MAX);
                self.words[last] |= to;
            }
        }
        self.runs.clear();
    }

    fn into_set(mut self) -> Result<IdSet> {
        if !self.words.is_empty() {
            self.spill();
        }
        let RowUnion { mut runs, words, refusal, .. } = self;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        for (idx, &word) in words.iter().enumerate() {
            let base = idx as u64 * 64;
            let mut word = word;
            while word != 0 {
                let start = word.trailing_zeros();
                let len = (word >> start).trailing_ones();
                runs.push_ids(base + u64::from(start), base + u64::from(start + len) - 1);
                let taken = u64::MAX.checked_shl(start + len).unwrap_or(0);
                word &= taken;
            }
        }
        runs.finish()
    }
}

/// Adds the rows that are also in the list, with seeks in the list.
fn seek_rows(list: &Postings<'_>, rows: &IdSet, out: &mut RowUnion<'_>) {
    let mut ids = list.iter();
    let mut next = ids.next();
    for &(start, end) in rows.runs() {
        if next.is_some_and(|id| id < u64::from(start)) {
            next = ids.seek(u64::from(start));
        }
        while let Some(id) = next.filter(|&id| id < u64::from(end)) {
            out.push(id, id);
            next = ids.next();
        }
        if next.is_none() {
            return;
        }
    }
}

/// Adds the rows that are also in the list, by decoding the list.
fn keep_rows(list: &Postings<'_>, rows: &IdSet, out: &mut RowUnion<'_>) -> Result<()> {
    let mut left = rows.runs();
    list.for_each_run(|first, last| {
        let Ok(first_row) = u32::try_from(first) else { return };
        left = skip_to(left, first_row);
        for &(start, end) in left.iter().take_while(|run| u64::from(run.0) <= last) {
            out.push(first.max(u64::from(start)), last.min(u64::from(end) - 1));
        }
    })
}
