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
use firn_model::{CancelToken, Matcher, Pattern, Result};

use crate::id_set::{IdSet, push_run, skip_to};
use crate::matches::MatchClass;
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
    Some(Vec<u32>),
}

// Up to this many rows, reading their values is faster than scanning all values of the name.
const ROWS_TRIED_MAX: u64 = 256;
// A list this many times longer than the remaining rows is searched with seeks, not decoded.
const SEEK_RATIO: u64 = 16;
const PAIRS_PER_CHECK: u32 = 1_024;

impl Sealed {
    /// The rows that match all `matchers`.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` as the token reports.
    pub(crate) fn select(&self, matchers: &[Matcher], cancel: &CancelToken) -> Result<MatchedRows> {
        cancel.check()?;
        let Some(planned) = self.plan_matchers(matchers)? else {
            return Ok(MatchedRows { lone: IdSet::empty(), classes: Vec::new() });
        };
        let mut lone = IdSet::below(self.lone.rows.count);
        for planned in &planned {
            if lone.is_empty() {
                break;
            }
            lone = self.narrow(TableKind::Lone, &lone, planned, cancel)?;
        }
        let parts = IdSet::below(self.parts.rows.count);
        let mut classes = vec![MatchClass { parts, sets: None }];
        for planned in &planned {
            let mut narrowed = Vec::new();
            for class in &classes {
                self.split(class, planned, cancel, &mut narrowed)?;
            }
            classes = narrowed;
        }
        Ok(MatchedRows { lone, classes })
    }

    /// The matchers in order of cost; `None` if nothing can match.
    fn plan_matchers<'m>(
        &self,
        matchers: &'m [Matcher],
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
                    let found = self.find_values(name, values)?;
                    let cost = self.list_lens(&found)?;
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
        cancel: &CancelToken,
    ) -> Result<IdSet> {
        let matcher = planned.matcher;
        let Some(name) = planned.name else {
            return Ok(if matcher.matches_absent() { rows.clone() } else { IdSet::empty() });
        };
        let taken = self.rows_taken(kind, rows, planned, name, cancel)?;
        if !matcher.is_negative() && !matcher.matches_absent() {
            return Ok(taken);
        }
        let any = rows.intersect(&IdSet::from_runs(self.table(kind).rows.with_name(name)));
        let passing = if matcher.is_negative() { any.minus(&taken) } else { taken };
        Ok(if matcher.matches_absent() { passing.union(rows.minus(&any)) } else { passing })
    }

    /// Appends the rest of a class after one more matcher: at most two classes.
    fn split(
        &self,
        class: &MatchClass,
        planned: &PlannedMatcher<'_>,
        cancel: &CancelToken,
        out: &mut Vec<MatchClass>,
    ) -> Result<()> {
        let matcher = planned.matcher;
        let any = match planned.name {
            Some(name) => {
                let any = IdSet::from_runs(self.parts.rows.with_name(name));
                let any = class.parts.intersect(&any);
                let taken = self.rows_taken(TableKind::Parts, &any, planned, name, cancel)?;
                let parts = if matcher.is_negative() { any.minus(&taken) } else { taken };
                if !parts.is_empty() {
                    out.push(MatchClass { parts, sets: class.sets.clone() });
                }
                any
            }
            None => IdSet::empty(),
        };
        let parts = class.parts.minus(&any);
        if parts.is_empty() {
            return Ok(());
        }
        let all = || IdSet::below(self.sets.rows.count);
        let before = class.sets.as_ref().map_or_else(all, IdSet::clone);
        let passing = self.narrow(TableKind::MemberSets, &before, planned, cancel)?;
        if class.sets.is_none() && passing == before {
            out.push(MatchClass { parts, sets: None });
        } else if !passing.is_empty() {
            out.push(MatchClass { parts, sets: Some(passing) });
        }
        Ok(())
    }

    /// The rows of `rows` with a value that the pattern accepts.
    fn rows_taken(
        &self,
        kind: TableKind,
        rows: &IdSet,
        planned: &PlannedMatcher<'_>,
        name: u32,
        cancel: &CancelToken,
    ) -> Result<IdSet> {
        let with_name = self.table(kind).rows.with_name(name);
        if rows.is_empty() || with_name.is_empty() {
            return Ok(IdSet::empty());
        }
        let values = self.names.pairs(name);
        let scans = matches!(planned.matcher.pattern(), Pattern::Regex | Pattern::Contains(_));
        if scans && planned.taken.get().is_none() {
            let any = rows.intersect(&IdSet::from_runs(with_name.clone()));
            if any.count() <= ROWS_TRIED_MAX.min(values.len() as u64 / 4) {
                let mut value = Vec::new();
                return self.rows_by_value(kind, &any, name, cancel, |pair| {
                    self.strings.get(&self.blocks, u64::from(pair), &mut value)?;
                    Ok(takes(planned.matcher, &value))
                });
            }
        }
        let taken = match planned.taken.get() {
            Some(taken) => taken,
            None => {
                let taken = self.pairs_taken(planned.matcher, values.clone(), cancel)?;
                planned.taken.get_or_init(|| taken)
            }
        };
        let pair_count = match taken {
            AcceptedPairs::All => return Ok(rows.intersect(&IdSet::from_runs(with_name))),
            AcceptedPairs::Range(range) if *range == values => {
                return Ok(rows.intersect(&IdSet::from_runs(with_name)));
            }
            AcceptedPairs::Range(range) => range.len(),
            AcceptedPairs::Some(pairs) => pairs.len(),
        };
        if pair_count as u64 > rows.count() {
            let any = rows.intersect(&IdSet::from_runs(with_name));
            return self.rows_by_value(kind, &any, name, cancel, |pair| Ok(taken.has(pair)));
        }
        self.rows_by_lists(kind, rows, taken, cancel)
    }

    /// Checks each row's value, once for adjacent equal values.
    fn rows_by_value(
        &self,
        kind: TableKind,
        rows: &IdSet,
        name: u32,
        cancel: &CancelToken,
        mut takes: impl FnMut(u32) -> Result<bool>,
    ) -> Result<IdSet> {
        let mut reader = self.table(kind).rows.reader(&self.blocks);
        let mut last: Option<(u32, bool)> = None;
        let mut runs = Vec::new();
        for row in rows.iter() {
            if row.is_multiple_of(PAIRS_PER_CHECK) {
                cancel.check()?;
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
        Ok(IdSet::from_runs(runs))
    }

    fn rows_by_lists(
        &self,
        kind: TableKind,
        rows: &IdSet,
        taken: &AcceptedPairs,
        cancel: &CancelToken,
    ) -> Result<IdSet> {
        let row_count = rows.count();
        let table_count = self.table(kind).rows.count;
        let mut union = RowUnion::new(table_count, if taken.is_one() { 0 } else { table_count });
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
                    cancel.check()?;
                }
                add(lists.of(kind))
            })?,
            AcceptedPairs::Some(pairs) => {
                for (idx, &pair) in pairs.iter().enumerate() {
                    if (idx as u32).is_multiple_of(PAIRS_PER_CHECK) {
                        cancel.check()?;
                    }
                    add(self.pair_lists(pair)?.of(kind))?;
                }
            }
        }
        Ok(union.into_set())
    }

    fn pairs_taken(
        &self,
        matcher: &Matcher,
        values: Range<u32>,
        cancel: &CancelToken,
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
                let mut pairs = Vec::new();
                self.scan_values(values, matcher, cancel, |pair| pairs.push(pair))?;
                AcceptedPairs::Some(pairs)
            }
        })
    }

    /// The pairs of a name with one of `values`, ascending, as `values` are.
    fn find_values(&self, name: u32, values: &[String]) -> Result<Vec<u32>> {
        let mut pairs = Vec::new();
        for value in values.iter().filter(|value| !value.is_empty()) {
            pairs.extend(self.find_pair(name, value.as_bytes())?);
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
            AcceptedPairs::Some(pairs) => pairs.len() <= 1,
        }
    }

    fn has(&self, pair: u32) -> bool {
        match self {
            AcceptedPairs::All => true,
            AcceptedPairs::Range(range) => range.contains(&pair),
            AcceptedPairs::Some(pairs) => pairs.binary_search(&pair).is_ok(),
        }
    }
}

/// A union of posting lists: runs at first, a bitmap once sorting the runs would cost more.
#[derive(Debug)]
struct RowUnion {
    runs: Vec<(u32, u32)>,
    words: Vec<u64>,
    /// All ids are below.
    end: u32,
    /// With more runs than this, the bitmap is used.
    run_count_max: usize,
}

impl RowUnion {
    /// `bitmap_bits` is 0 if the runs arrive in order, so that no bitmap is needed.
    fn new(end: u32, bitmap_bits: u32) -> RowUnion {
        // Sorting a run costs about as much as reading a few words.
        let run_count_max = match bitmap_bits {
            0 => usize::MAX,
            bits => 1_024.max(bits as usize / 256),
        };
        RowUnion { runs: Vec::new(), words: Vec::new(), end, run_count_max }
    }

    #[inline]
    fn push(&mut self, first: u64, last: u64) {
        let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last)) else { return };
        if last >= self.end {
            return;
        }
        if let Some(run) = self.runs.last_mut().filter(|run| run.1 == first) {
            run.1 = last + 1;
            return;
        }
        self.runs.push((first, last + 1));
        if self.runs.len() > self.run_count_max {
            self.spill();
        }
    }

    fn spill(&mut self) {
        self.words.resize((self.end as usize).div_ceil(64), 0);
        for &(start, end) in &self.runs {
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

    fn into_set(mut self) -> IdSet {
        if self.words.is_empty() {
            return IdSet::from_runs(self.runs);
        }
        self.spill();
        let mut runs = Vec::new();
        for (idx, &word) in self.words.iter().enumerate() {
            let base = idx as u64 * 64;
            let mut word = word;
            while word != 0 {
                let start = word.trailing_zeros();
                let len = (word >> start).trailing_ones();
                push_run(base + u64::from(start), base + u64::from(start + len) - 1, &mut runs);
                let taken = u64::MAX.checked_shl(start + len).unwrap_or(0);
                word &= taken;
            }
        }
        IdSet::from_runs(runs)
    }
}

/// Adds the rows that are also in the list, with seeks in the list.
fn seek_rows(list: &Postings<'_>, rows: &IdSet, out: &mut RowUnion) {
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
fn keep_rows(list: &Postings<'_>, rows: &IdSet, out: &mut RowUnion) -> Result<()> {
    let mut left = rows.runs();
    list.for_each_run(|first, last| {
        let Ok(first_row) = u32::try_from(first) else { return };
        left = skip_to(left, first_row);
        for &(start, end) in left.iter().take_while(|run| u64::from(run.0) <= last) {
            out.push(first.max(u64::from(start)), last.min(u64::from(end) - 1));
        }
    })
}
