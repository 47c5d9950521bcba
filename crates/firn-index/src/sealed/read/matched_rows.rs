//! The matching rows of one segment. Counting them does not read most groups.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::postings::Postings;
use firn_model::{Budget, QueryContext, Result};

use crate::id_set::{IdSet, RunList, skip_to};
use crate::matches::{MatchClass, MatchClasses};
use crate::sealed::format::shapes::{PartReader, Shape};
use crate::sealed::read::segment::Sealed;

/// Matching lone rows, and classes of parts with their matching member sets.
#[derive(Debug)]
pub(crate) struct MatchedRows {
    pub(crate) lone: IdSet,
    pub(crate) classes: MatchClasses,
}

// Up to this many member sets yield the candidate parts from their shapes; with more, all shapes
// or all parts of the class are read.
const SETS_LISTED_MAX: u64 = 1_024;
// Reading this many parts takes as long as the lists of their shapes.
const PARTS_TRIED_MAX: u64 = 64;
// Reading a part's record takes as long as this many ids of a list.
const IDS_PER_PART: u64 = 4;
const ITEMS_PER_CHECK: u64 = 1_024;

impl Sealed {
    /// The exact number of series.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` as the token reports.
    pub(crate) fn count(&self, found: &MatchedRows, context: &QueryContext) -> Result<u64> {
        let mut count = found.lone.count();
        for class in found.classes.list() {
            count = self.count_class(class, context)?.saturating_add(count);
        }
        Ok(count)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a shape has at most as many parts as the table, and a product of 32-bit numbers \
                  fits in 64 bits"
    )]
    pub(crate) fn count_class(&self, class: &MatchClass, context: &QueryContext) -> Result<u64> {
        let part_count = class.parts.count();
        let shapes = match self.shapes_of_class(class, &context.budget)? {
            Some(shapes) => shapes,
            None if part_count <= PARTS_TRIED_MAX.min(self.shapes.starts.count) => {
                return self.count_parts(class, &class.parts, context);
            }
            None => IdSet::below(u32::try_from(self.shapes.starts.count).unwrap_or(u32::MAX)),
        };
        let budget = &context.budget;
        let is_all = part_count == u64::from(self.parts.rows.count);
        let (mut count, mut positions) = (0, Vec::new());
        for (idx, shape) in (0u64..).zip(shapes.iter()) {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                context.cancel.check()?;
            }
            let shape = Shape::read(&self.blocks, &self.shapes, shape)?;
            if shape.parts.len() > u64::from(self.parts.rows.count) {
                return Err(self.shapes.bad(&self.blocks));
            }
            positions.clear();
            each_passing(&shape, class.sets.as_ref(), |position, _| {
                positions.push(position);
                Ok(())
            })?;
            if positions.is_empty() {
                continue;
            }
            let rows = match is_all && shape.has_lists() {
                true => IdSet::empty(),
                false => self.rows_of(&shape.parts, budget)?.intersect(&class.parts, budget)?,
            };
            let row_count = if is_all { shape.parts.len() } else { rows.count() };
            if !shape.has_lists() {
                count = self.count_parts(class, &rows, context)?.saturating_add(count);
                continue;
            }
            let lists = positions.iter().map(|&position| shape.lacking(position));
            let lists = lists.collect::<Option<Vec<_>>>().ok_or_else(|| self.bad_part())?;
            let mut lacking = lists.iter().map(Postings::len).fold(0, u64::saturating_add);
            if !is_all && lacking > IDS_PER_PART * row_count {
                count = self.count_parts(class, &rows, context)?.saturating_add(count);
                continue;
            }
            if !is_all {
                lacking = 0;
                for list in &lists {
                    lacking += self.count_common(list, &rows)?;
                }
            }
            let members = (row_count * positions.len() as u64).saturating_sub(lacking);
            count = members.saturating_add(count);
        }
        Ok(count)
    }

    /// Counts part by part.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot; counts of rows and members of one file are below 2^63"
    )]
    fn count_parts(&self, class: &MatchClass, rows: &IdSet, context: &QueryContext) -> Result<u64> {
        let mut reader = PartReader::new(&self.blocks, &self.part_records);
        let mut passing: Option<(u32, u32, Vec<u32>)> = None;
        let (mut count, mut missing) = (0, Vec::new());
        for (idx, row) in (0u64..).zip(rows.iter()) {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                context.cancel.check()?;
            }
            let part = reader.read(row)?;
            let (_, len, positions) = match &mut passing {
                Some(passing) if passing.0 == part.shape => passing,
                passing => {
                    let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
                    let mut positions = Vec::new();
                    each_passing(&shape, class.sets.as_ref(), |position, _| {
                        positions.push(position);
                        Ok(())
                    })?;
                    positions.sort_unstable();
                    passing.insert((part.shape, shape.len, positions))
                }
            };
            part.missing(*len, &mut missing).ok_or_else(|| self.bad_part())?;
            let is_wanted = |position: &&u32| positions.binary_search(position).is_ok();
            count += (positions.len() - missing.iter().filter(is_wanted).count()) as u64;
        }
        Ok(count)
    }

    /// The shapes with a member set of the class; `None` if reading parts one by one is cheaper.
    pub(crate) fn shapes_of_class(
        &self,
        class: &MatchClass,
        budget: &Budget,
    ) -> Result<Option<IdSet>> {
        let is_wanted = |sets: &&IdSet| {
            sets.count() <= SETS_LISTED_MAX && class.parts.count() > PARTS_TRIED_MAX
        };
        let Some(sets) = class.sets.as_ref().filter(is_wanted) else { return Ok(None) };
        let mut shapes = RunList::new(budget);
        for set in sets.iter() {
            let pushed = self.shapes_of_set(set)?.for_each_run(|first, last| {
                shapes.push_ids(first, last);
            });
            pushed.map_err(|e| self.blocks.corrupt_by(self.set_shapes.bytes.start, &e))?;
        }
        shapes.finish().map(Some)
    }

    /// A posting list of a shape as a set.
    pub(crate) fn rows_of(&self, list: &Postings<'_>, budget: &Budget) -> Result<IdSet> {
        let mut rows = RunList::new(budget);
        let pushed = list.for_each_run(|first, last| rows.push_ids(first, last));
        pushed.map_err(|e| self.blocks.corrupt_by(self.shapes.bytes.start, &e))?;
        rows.finish()
    }

    /// Number of `rows` in a posting list of a shape.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot; counts of rows and members of one file are below 2^63"
    )]
    fn count_common(&self, list: &Postings<'_>, rows: &IdSet) -> Result<u64> {
        let (mut left, mut count) = (rows.runs(), 0);
        let walked = list.for_each_run(|first, last| {
            let Ok(first_row) = u32::try_from(first) else { return };
            left = skip_to(left, first_row);
            for &(start, end) in left.iter().take_while(|run| u64::from(run.0) <= last) {
                count += last.min(u64::from(end) - 1) + 1 - first.max(u64::from(start));
            }
        });
        walked.map_err(|e| self.blocks.corrupt_by(self.shapes.bytes.start, &e))?;
        Ok(count)
    }
}

/// Calls `each` with the positions of a shape that have a member set of `sets` (of any without
/// them), and with these, in no order.
pub(crate) fn each_passing(
    shape: &Shape<'_>,
    sets: Option<&IdSet>,
    mut each: impl FnMut(u32, u32) -> Result<()>,
) -> Result<()> {
    match sets {
        Some(sets) if sets.count() < u64::from(shape.len / 8) => {
            for set in sets.iter() {
                if let Some(position) = shape.position(set) {
                    each(position, set)?;
                }
            }
        }
        sets => {
            for position in 0..shape.len {
                let set = shape.set(position);
                if sets.is_none_or(|sets| sets.has(set)) {
                    each(position, set)?;
                }
            }
        }
    }
    Ok(())
}
