//! Label names and values of the matched series of one segment.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;

use firn_codec::postings::Postings;
use firn_model::{CancelToken, GroupId, Pool, QueryContext, Reservation, Result, Slot};

use crate::id_set::{IdSet, RunList, skip_to};
use crate::presence::{LookupOutcome, Presence};
use crate::sealed::format::lists::{BUNCH_LISTS, PairPostings, PostingBunch, TableKind};
use crate::sealed::format::shapes::{PartReader, PartRecord, Shape};
use crate::sealed::format::strings::StringWalk;
use crate::sealed::read::matched_rows::{MatchedRows, each_passing};
use crate::sealed::read::segment::{Sealed, Table};

/// The values of one name, ascending, with a lookup of the matched series that have each.
#[derive(Debug)]
pub(crate) struct SealedValues<'a> {
    sealed: &'a Sealed,
    found: &'a MatchedRows,
    /// Per class, its parts without the name: their members may have it.
    without: Vec<IdSet>,
    all_sets: IdSet,
    /// The pairs of the name, of which `wanted` are visited.
    pairs: Range<u32>,
    /// By value rank, a bit; `None`: all.
    wanted: Option<(Vec<u64>, Reservation)>,
    walk: StringWalk<'a>,
    lists: ListWalk<'a>,
    current: Option<(u32, String)>,
}

/// The label names of the matched rows, ascending.
#[derive(Debug)]
pub(crate) struct SealedNames<'a> {
    sealed: &'a Sealed,
    found: &'a MatchedRows,
    /// By name.
    wanted: Vec<WantedName>,
    current: Option<u32>,
    _held: Reservation,
}

/// The matched rows that have a name.
#[derive(Clone, Copy, Debug, Default)]
enum WantedName {
    #[default]
    Unused,
    /// In rows of groups or member sets only.
    InGroups,
    /// In this lone row, and maybe elsewhere.
    Lone(u32),
}

const _: () = assert!(size_of::<WantedName>() == 8, "one for each name of the file is in memory");

/// The posting lists of ascending pairs.
#[derive(Debug)]
struct ListWalk<'a> {
    sealed: &'a Sealed,
    bunch: PostingBunch<'a>,
    /// The pair of the lists at the front of `bunch`.
    next: u64,
}

const ITEMS_PER_CHECK: u32 = 1_024;

impl<'a> SealedValues<'a> {
    /// `None` without a pair of the name.
    ///
    /// # Errors
    /// `Corrupt`, `Canceled` or `Timeout` as the token reports.
    pub(crate) fn open(
        sealed: &'a Sealed,
        found: &'a MatchedRows,
        name: &str,
        context: &QueryContext,
    ) -> Result<Option<SealedValues<'a>>> {
        let Some(name) = sealed.names.find(name.as_bytes()) else { return Ok(None) };
        let pairs = sealed.names.pairs(name);
        let budget = &context.budget;
        let without = found.classes.list().iter().map(|class| {
            let with_name = sealed.parts.rows.with_name(name, &class.parts, budget)?;
            class.parts.minus(&with_name, budget)
        });
        let all_sets = IdSet::below(sealed.sets.rows.count);
        let mut values = SealedValues {
            sealed,
            found,
            without: without.collect::<Result<_>>()?,
            all_sets,
            walk: sealed.strings.walk(&sealed.blocks, u64::from(pairs.start))?,
            lists: ListWalk { sealed, bunch: PostingBunch::default(), next: 0 },
            pairs,
            wanted: None,
            current: None,
        };
        values.wanted = values.values_of_few_rows(name, context)?;
        values.advance()?;
        Ok(Some(values))
    }

    /// The ranks of the values on the rows that may match; `None` if these are not few.
    fn values_of_few_rows(
        &self,
        name: u32,
        context: &QueryContext,
    ) -> Result<Option<(Vec<u64>, Reservation)>> {
        let budget = &context.budget;
        let with_name = |table: &Table, rows: &IdSet| table.rows.with_name(name, rows, budget);
        let mut rows = vec![(TableKind::Lone, with_name(&self.sealed.lone, &self.found.lone)?)];
        for (class, without) in self.found.classes.list().iter().zip(&self.without) {
            rows.push((TableKind::Parts, with_name(&self.sealed.parts, &class.parts)?));
            if !without.is_empty() {
                let sets = class.sets.as_ref().unwrap_or(&self.all_sets);
                rows.push((TableKind::MemberSets, with_name(&self.sealed.sets, sets)?));
            }
        }
        let row_count = rows.iter().map(|rows| rows.1.count()).fold(0, u64::saturating_add);
        if row_count >= self.pairs.len() as u64 / 2 {
            return Ok(None);
        }
        let word_count = self.pairs.len().div_ceil(64);
        let bytes = word_count.saturating_mul(size_of::<u64>()) as u64;
        let held = budget.reserve(Pool::Query, bytes)?;
        let mut wanted = vec![0u64; word_count];
        for (kind, rows) in &rows {
            let mut reader = self.sealed.table(*kind).rows.reader(&self.sealed.blocks);
            for row in rows.iter() {
                if row.is_multiple_of(ITEMS_PER_CHECK) {
                    context.cancel.check()?;
                }
                let schema = reader.load(row)?;
                if let Ok(column_idx) = schema.names.binary_search(&name) {
                    let rank = reader.rank(row, column_idx)? as usize;
                    if let Some(word) = wanted.get_mut(rank / 64) {
                        *word |= 1 << (rank % 64);
                    }
                }
            }
        }
        Ok(Some((wanted, held)))
    }

    /// The current value; `None` after the last.
    pub(crate) fn text(&self) -> Option<&str> {
        self.current.as_ref().map(|(_, text)| text.as_str())
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        let last = self.current.take();
        let mut next = last.as_ref().map_or(self.pairs.start, |(pair, _)| pair.saturating_add(1));
        while next < self.pairs.end && !self.wants(next) {
            next = next.saturating_add(1);
        }
        if next >= self.pairs.end {
            return Ok(());
        }
        self.walk.go_to(u64::from(next))?;
        self.walk.advance()?;
        let text = std::str::from_utf8(self.walk.text());
        let text = text.map_err(|_| self.sealed.bad_text())?;
        let mut buffer = last.map(|(_, text)| text).unwrap_or_default();
        buffer.clear();
        buffer.push_str(text);
        self.current = Some((next, buffer));
        Ok(())
    }

    fn wants(&self, pair: u32) -> bool {
        let Some((wanted, _)) = &self.wanted else { return true };
        let rank = pair.saturating_sub(self.pairs.start) as usize;
        wanted.get(rank / 64).is_some_and(|word| word & (1 << (rank % 64)) != 0)
    }

    /// Looks for a present series among the matched ones with the current value.
    pub(crate) fn find_present(
        &mut self,
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let Some(&(pair, _)) = self.current.as_ref() else { return Ok(LookupOutcome::Absent) };
        let (sealed, found, cancel) = (self.sealed, self.found, &context.cancel);
        let lists = self.lists.get(pair)?;
        if let Some(list) = lists.of(TableKind::Lone) {
            let outcome = sealed.find_lone_present(common(&list, &found.lone), cancel, present)?;
            if outcome != LookupOutcome::Absent {
                return Ok(outcome);
            }
        }
        for (class, without) in found.classes.list().iter().zip(&self.without) {
            if let Some(list) = lists.of(TableKind::Parts) {
                let rows = common(&list, &class.parts);
                let outcome =
                    sealed.find_part_present(rows, class.sets.as_ref(), cancel, present)?;
                if outcome != LookupOutcome::Absent {
                    return Ok(outcome);
                }
            }
            if let Some(list) = lists.of(TableKind::MemberSets) {
                let sets = common(&list, class.sets.as_ref().unwrap_or(&self.all_sets));
                let outcome = sealed.find_set_present(sets, without, cancel, present)?;
                if outcome != LookupOutcome::Absent {
                    return Ok(outcome);
                }
            }
        }
        Ok(LookupOutcome::Absent)
    }
}

impl<'a> SealedNames<'a> {
    /// # Errors
    /// As [`SealedValues::open`].
    pub(crate) fn open(
        sealed: &'a Sealed,
        found: &'a MatchedRows,
        context: &QueryContext,
    ) -> Result<SealedNames<'a>> {
        let bytes = sealed.names.count().saturating_mul(size_of::<WantedName>()) as u64;
        let _held = context.budget.reserve(Pool::Query, bytes)?;
        let mut wanted = vec![WantedName::default(); sealed.names.count()];
        let mut add = |table: &Table, rows: &IdSet, is_lone: bool| {
            table.rows.each_name(rows, |name, row| {
                if let Some(name) = wanted.get_mut(name as usize) {
                    *name = match (is_lone.then_some(row), *name) {
                        (Some(row), _) => WantedName::Lone(row),
                        (None, WantedName::Unused) => WantedName::InGroups,
                        (None, known) => known,
                    };
                }
            });
            context.cancel.check()
        };
        add(&sealed.lone, &found.lone, true)?;
        let all_sets = IdSet::below(sealed.sets.rows.count);
        for class in found.classes.list() {
            add(&sealed.parts, &class.parts, false)?;
            add(&sealed.sets, class.sets.as_ref().unwrap_or(&all_sets), false)?;
        }
        let mut names = SealedNames { sealed, found, wanted, current: None, _held };
        names.go_to(0)?;
        Ok(names)
    }

    /// Moves to the first wanted name from `name` on.
    fn go_to(&mut self, name: u32) -> Result<()> {
        let end = u32::try_from(self.sealed.names.count()).unwrap_or(u32::MAX);
        let is_unused =
            |name: &u32| matches!(self.wanted.get(*name as usize), None | Some(WantedName::Unused));
        self.current = (name..end).find(|name| !is_unused(name));
        match self.current.is_some() && self.text().is_none() {
            true => Err(self.sealed.bad_text()),
            false => Ok(()),
        }
    }

    /// The current name; `None` after the last.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.sealed.names.text(self.current?)).ok()
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        self.current.map_or(Ok(()), |name| self.go_to(name.saturating_add(1)))
    }

    /// Looks for a present series among the matched ones with the current name.
    pub(crate) fn find_present(
        &self,
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let Some(name) = self.current else { return Ok(LookupOutcome::Absent) };
        let lone = match self.wanted.get(name as usize) {
            Some(WantedName::Lone(row)) => Some(*row),
            _ => None,
        };
        self.sealed.find_name(self.found, (name, lone), context, present)
    }
}

impl<'a> ListWalk<'a> {
    fn get(&mut self, pair: u32) -> Result<PairPostings<'a>> {
        let (lists, pair) = (&self.sealed.lists, u64::from(pair));
        let blocks = &self.sealed.blocks;
        let bad = || lists.bad(blocks);
        let is_ahead = pair >= self.next && pair / BUNCH_LISTS == self.next / BUNCH_LISTS;
        if !is_ahead || self.next.is_multiple_of(BUNCH_LISTS) {
            self.next = (pair / BUNCH_LISTS).saturating_mul(BUNCH_LISTS);
            let len = BUNCH_LISTS.min(self.sealed.pair_count().saturating_sub(self.next));
            let bunch = lists.get(blocks, pair / BUNCH_LISTS)?;
            self.bunch = PostingBunch::open(bunch, len).ok_or_else(bad)?;
        }
        loop {
            let found = self.bunch.take(self.next % BUNCH_LISTS).ok_or_else(bad)?;
            self.next = self.next.saturating_add(1);
            if self.next > pair {
                return Ok(found);
            }
        }
    }
}

impl Sealed {
    /// Looks for a present series among the matched ones with the name. `lone` is a lone row with
    /// it, if there is one.
    fn find_name(
        &self,
        found: &MatchedRows,
        (name, lone): (u32, Option<u32>),
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let (cancel, budget) = (&context.cancel, &context.budget);
        // One row is found without a walk over all schemas.
        let mut outcome = self.find_lone_present(lone.into_iter(), cancel, present)?;
        if lone.is_some() && outcome == LookupOutcome::Absent {
            let rows = self.lone.rows.with_name(name, &found.lone, budget)?;
            outcome = self.find_lone_present(rows.iter(), cancel, present)?;
        }
        if outcome != LookupOutcome::Absent {
            return Ok(outcome);
        }
        let all_sets = IdSet::below(self.sets.rows.count);
        for class in found.classes.list() {
            let parts = self.parts.rows.with_name(name, &class.parts, budget)?;
            let outcome =
                self.find_part_present(parts.iter(), class.sets.as_ref(), cancel, present)?;
            if outcome != LookupOutcome::Absent {
                return Ok(outcome);
            }
            let sets = class.sets.as_ref().unwrap_or(&all_sets);
            let sets = self.sets.rows.with_name(name, sets, budget)?;
            let without = class.parts.minus(&parts, budget)?;
            let outcome = self.find_set_present(sets.iter(), &without, cancel, present)?;
            if outcome != LookupOutcome::Absent {
                return Ok(outcome);
            }
        }
        Ok(LookupOutcome::Absent)
    }

    /// `found` without the rows of other groups.
    pub(crate) fn keep_groups(
        &self,
        found: &MatchedRows,
        groups: &[GroupId],
        context: &QueryContext,
    ) -> Result<MatchedRows> {
        let budget = &context.budget;
        let (mut lone, mut parts) = (RunList::new(budget), RunList::new(budget));
        for (group, idx) in groups.iter().zip(1u32..) {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                context.cancel.check()?;
            }
            for (table, kept) in [(&self.lone, &mut lone), (&self.parts, &mut parts)] {
                let mut rows = table.by_id.rows(&self.blocks, group.0)?;
                while let Some(row) = rows.next(&self.blocks)? {
                    kept.push_ids(row.into(), row.into());
                }
            }
        }
        let lone = found.lone.intersect(&lone.finish()?, budget)?;
        let classes = found.classes.within(&parts.finish()?, context)?;
        Ok(MatchedRows { lone, classes })
    }

    /// Looks for a present one among some lone series.
    fn find_lone_present(
        &self,
        rows: impl Iterator<Item = u32>,
        cancel: &CancelToken,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        for (row, idx) in rows.zip(1u32..) {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            let outcome = present.look(self.group_of(TableKind::Lone, row)?, &[Slot(0)])?;
            if outcome != LookupOutcome::Absent {
                return Ok(outcome);
            }
        }
        Ok(LookupOutcome::Absent)
    }

    /// Looks for a present member of some parts, with a set of `sets` if there are some.
    fn find_part_present(
        &self,
        rows: impl Iterator<Item = u32>,
        sets: Option<&IdSet>,
        cancel: &CancelToken,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        let mut reader = PartReader::new(&self.blocks, &self.part_records);
        let mut passing: Option<(u32, u32, Vec<u32>)> = None;
        let (mut ids, mut slots): (Vec<u32>, Vec<Slot>) = Default::default();
        for (row, idx) in rows.zip(1u32..) {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            let part = reader.read(row)?;
            let (_, len, positions) = match &mut passing {
                Some(passing) if passing.0 == part.shape => passing,
                passing => {
                    let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
                    let mut positions = Vec::new();
                    if let Some(sets) = sets {
                        each_passing(&shape, Some(sets), |position, _| {
                            positions.push(position);
                            Ok(())
                        })?;
                        positions.sort_unstable();
                    }
                    passing.insert((part.shape, shape.len, positions))
                }
            };
            slots.clear();
            match sets {
                None => {
                    let member_count = part.member_count(*len);
                    part.slots(member_count, &mut ids).ok_or_else(|| self.bad_part())?;
                    slots.extend(ids.iter().map(|&slot| Slot(slot)));
                }
                Some(_) => {
                    for &position in &*positions {
                        slots.extend(self.slot_of(&part, position)?);
                    }
                }
            }
            slots.sort_unstable();
            if slots.is_empty() {
                continue;
            }
            let outcome = present.look(self.group_of(TableKind::Parts, row)?, &slots)?;
            if outcome != LookupOutcome::Absent {
                return Ok(outcome);
            }
        }
        Ok(LookupOutcome::Absent)
    }

    /// Looks for a present member of `parts` with one of some sets.
    fn find_set_present(
        &self,
        sets: impl Iterator<Item = u32>,
        parts: &IdSet,
        cancel: &CancelToken,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        if parts.is_empty() {
            return Ok(LookupOutcome::Absent);
        }
        let mut reader = PartReader::new(&self.blocks, &self.part_records);
        for set in sets {
            for shape_idx in self.shapes_of_set(set)?.iter() {
                let shape_idx = u32::try_from(shape_idx).map_err(|_| self.bad_part())?;
                let shape = Shape::read(&self.blocks, &self.shapes, shape_idx)?;
                let position = shape.position(set).ok_or_else(|| self.bad_part())?;
                for (row, idx) in common(&shape.parts, parts).zip(0u32..) {
                    if idx.is_multiple_of(ITEMS_PER_CHECK) {
                        cancel.check()?;
                    }
                    let Some(slot) = self.slot_of(&reader.read(row)?, position)? else { continue };
                    let outcome = present.look(self.group_of(TableKind::Parts, row)?, &[slot])?;
                    if outcome != LookupOutcome::Absent {
                        return Ok(outcome);
                    }
                }
            }
        }
        Ok(LookupOutcome::Absent)
    }

    /// The slot of a part's member by its position; `None` if the part lacks it.
    fn slot_of(&self, part: &PartRecord<'_>, position: u32) -> Result<Option<Slot>> {
        let Some(rank) = part.rank_of(position) else { return Ok(None) };
        part.slot(rank).map(|slot| Some(Slot(slot))).ok_or_else(|| self.bad_part())
    }
}

/// The ids of a list that are also in `rows`, ascending, found as they are needed.
fn common<'a>(list: &Postings<'a>, rows: &'a IdSet) -> impl Iterator<Item = u32> + use<'a> {
    let mut ids = list.iter();
    let (mut next, mut runs) = (ids.next(), rows.runs());
    std::iter::from_fn(move || {
        loop {
            let id = u32::try_from(next?).ok()?;
            runs = skip_to(runs, id);
            let start = runs.first()?.0;
            if start <= id {
                next = ids.next();
                return Some(id);
            }
            next = ids.seek(u64::from(start));
        }
    })
}
