//! Series counts per label pair.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::postings::Postings;
use firn_model::{CancelToken, GroupId, QueryContext, Result};

use crate::id_set::{IdSet, RunList};
use crate::matches::MatchClass;
use crate::sealed::format::lists::{PairPostings, TableKind};
use crate::sealed::format::shapes::{PartRecord, Shape};
use crate::sealed::format::strings::StringWalk;
use crate::sealed::read::segment::Sealed;

const ITEMS_PER_CHECK: u32 = 1_024;

/// Iterates over the pairs of a segment with their series counts, by name, then by value.
#[derive(Debug)]
pub(crate) struct PairCounts<'a> {
    segment: &'a Sealed,
    cancel: CancelToken,
    values: StringWalk<'a>,
    members: MemberCounts,
    /// The name of the current pair, which is the one before `values.next_id()`.
    name: Option<u32>,
    name_text: String,
    value: String,
    series_count: u64,
}

/// Members per part, and parts per member set.
#[derive(Debug)]
struct MemberCounts {
    of_part: Vec<u32>,
    of_set: Vec<u32>,
}

impl Sealed {
    /// The memory of [`Sealed::pair_counts`]: four bytes per part and per member set.
    pub(crate) fn pair_counts_bytes(&self) -> u64 {
        let rows = [self.parts.rows.count, self.sets.rows.count].map(u64::from);
        rows.into_iter().fold(0, u64::saturating_add).saturating_mul(4)
    }

    /// All pairs with their series counts, in order, so that several segments can be merged. Reads
    /// every part once first.
    pub(crate) fn pair_counts(&self, cancel: &CancelToken) -> Result<PairCounts<'_>> {
        Ok(PairCounts {
            segment: self,
            cancel: cancel.clone(),
            values: self.strings.walk(&self.blocks, 0)?,
            members: self.member_counts(cancel)?,
            name: None,
            name_text: String::new(),
            value: String::new(),
            series_count: 0,
        })
    }

    /// Calls `take` with the group and the member count of every part.
    pub(crate) fn part_sizes(
        &self,
        cancel: &CancelToken,
        take: &mut dyn FnMut(GroupId, u64),
    ) -> Result<()> {
        for row in 0..self.parts.rows.count {
            if row.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            let (_, member_count) = self.part(row)?;
            take(self.group_of(TableKind::Parts, row)?, u64::from(member_count));
        }
        Ok(())
    }

    /// Number of series with the pair. Reads the parts that may have it.
    pub(crate) fn pair_series_count(&self, name: &str, value: &str) -> Result<u64> {
        let Some(name) = self.names.find(name.as_bytes()) else { return Ok(0) };
        let Some(pair) = self.find_pair(name, value.as_bytes())? else { return Ok(0) };
        let lists = self.pair_lists(pair)?;
        let mut count = lists.of(TableKind::Lone).map_or(0, |list| list.len());
        for row in lists.of(TableKind::Parts).iter().flat_map(Postings::iter) {
            let row = u32::try_from(row).map_err(|_| self.bad_part())?;
            count = count.saturating_add(u64::from(self.part(row)?.1));
        }
        if let Some(list) = lists.of(TableKind::MemberSets) {
            let context = QueryContext::unbounded();
            let mut sets = RunList::new(&context.budget);
            list.iter().for_each(|set| sets.push_ids(set, set));
            let sets = sets.finish()?;
            let parts = IdSet::below(self.parts.rows.count);
            let with_set = self.count_class(&MatchClass { parts, sets: Some(sets) }, &context)?;
            count = count.saturating_add(with_set);
        }
        Ok(count)
    }

    fn member_counts(&self, cancel: &CancelToken) -> Result<MemberCounts> {
        let mut of_part = Vec::with_capacity(self.parts.rows.count as usize);
        let mut of_set = vec![0u32; self.sets.rows.count as usize];
        let shape_count = usize::try_from(self.shapes.starts.count).unwrap_or_default();
        let mut of_shape = vec![0u32; shape_count];
        let mut missing = Vec::new();
        for row in 0..self.parts.rows.count {
            if row.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
            let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
            of_part.push(part.member_count(shape.len));
            if let Some(count) = of_shape.get_mut(part.shape as usize) {
                *count = count.saturating_add(1);
            }
            part.missing(shape.len, &mut missing).ok_or_else(|| self.bad_part())?;
            for &position in &missing {
                // May wrap below zero here; adding the whole shape below makes the sum correct.
                if let Some(count) = of_set.get_mut(shape.set(position) as usize) {
                    *count = count.wrapping_sub(1);
                }
            }
        }
        for (shape, &count) in (0..).zip(&of_shape) {
            let shape = Shape::read(&self.blocks, &self.shapes, shape)?;
            for position in 0..shape.len {
                if let Some(of_set) = of_set.get_mut(shape.set(position) as usize) {
                    *of_set = of_set.wrapping_add(count);
                }
            }
        }
        Ok(MemberCounts { of_part, of_set })
    }
}

impl PairCounts<'_> {
    /// Advances to the next pair with a series; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        while self.values.next_id() < self.segment.pair_count() {
            let Ok(pair) = u32::try_from(self.values.next_id()) else { break };
            if pair.is_multiple_of(ITEMS_PER_CHECK) {
                self.cancel.check()?;
            }
            self.values.advance()?;
            self.series_count = self.members.series_count(&self.segment.pair_lists(pair)?);
            if self.series_count == 0 {
                continue;
            }
            self.value.clear();
            self.value.push_str(&self.segment.text_of(self.values.text())?);
            let name = self.segment.names.of_pair(pair);
            if self.name != Some(name) {
                self.name_text = self.segment.text_of(self.segment.names.text(name))?;
                self.name = Some(name);
            }
            return Ok(true);
        }
        Ok(false)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name_text
    }

    pub(crate) fn value(&self) -> &str {
        &self.value
    }

    pub(crate) fn series_count(&self) -> u64 {
        self.series_count
    }
}

impl MemberCounts {
    fn series_count(&self, lists: &PairPostings<'_>) -> u64 {
        let sum = |list: Option<Postings<'_>>, counts: &[u32]| -> u64 {
            let ids = list.iter().flat_map(Postings::iter);
            let counts = ids.filter_map(|id| counts.get(usize::try_from(id).ok()?));
            counts.map(|&count| u64::from(count)).sum()
        };
        let lone = lists.of(TableKind::Lone).map_or(0, |list| list.len());
        lone.saturating_add(sum(lists.of(TableKind::Parts), &self.of_part))
            .saturating_add(sum(lists.of(TableKind::MemberSets), &self.of_set))
    }
}
