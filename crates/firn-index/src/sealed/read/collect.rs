//! From matched rows to groups, slots and keys.

use std::rc::Rc;

use firn_model::{QueryContext, Result, Slot};
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::id_set::{IdSet, RunList};
use crate::key_table::KeyTable;
use crate::matches::{GroupMatch, MatchClass, Member, groups_bytes};
use crate::sealed::format::lists::TableKind;
use crate::sealed::format::rows::RowReader;
use crate::sealed::format::shapes::{PartReader, PartRecord, Shape};
use crate::sealed::read::keys::KeyMaker;
use crate::sealed::read::matched_rows::{MatchedRows, each_passing};
use crate::sealed::read::segment::Sealed;

const ROWS_PER_CHECK: usize = 1_024;
// Memory is reserved again after this many bytes of groups.
const BYTES_PER_HOLD: u64 = 64 << 10;
// Up to this many members of a shape are searched one by one in each part.
const POSITIONS_SEARCHED_MAX: usize = 4;

// The memory of an entry of `lists_of_sets`, and of a shape's positions beside these.
const LIST_OF_SET_BYTES: usize = 10;
const SHAPE_BYTES: usize = 96;

/// Appends matched groups.
#[derive(Debug)]
struct Collector<'a> {
    sealed: &'a Sealed,
    keys: KeyMaker<'a>,
    table: &'a mut KeyTable,
    /// Bytes of all groups so far.
    bytes: u64,
    out: &'a mut Vec<GroupMatch>,
    part_rows: RowReader<'a>,
    set_rows: RowReader<'a>,
    /// The projected pairs of each member set.
    lists_of_sets: HashMap<u32, u32>,
    /// The memory of the passing positions of all shapes of the current class.
    shape_bytes: u64,
    scratch: Scratch,
}

/// The matching positions of a shape in a class.
#[derive(Debug)]
struct PassingPositions {
    len: u32,
    /// Ascending, each with the projected pairs of its member set.
    positions: Vec<(u32, u32)>,
}

#[derive(Debug, Default)]
struct Scratch {
    missing: Vec<u32>,
    slots: Vec<u32>,
}

impl Sealed {
    /// Appends the matched series. Groups are in no order and may be in pieces, with ascending
    /// slots; [`unite`](crate::matches::unite) joins them. Keys are made under the grouping of
    /// `keys`.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` as the token reports.
    pub(crate) fn collect_groups(
        &self,
        found: &MatchedRows,
        keys: &mut KeyTable,
        context: &QueryContext,
        out: &mut Vec<GroupMatch>,
    ) -> Result<()> {
        let before = out.len();
        let mut collector = Collector {
            sealed: self,
            keys: KeyMaker::new(self, keys.grouping()),
            bytes: groups_bytes(out),
            table: keys,
            out,
            part_rows: self.parts.rows.reader(&self.blocks),
            set_rows: self.sets.rows.reader(&self.blocks),
            lists_of_sets: HashMap::new(),
            shape_bytes: 0,
            scratch: Scratch::default(),
        };
        collector.lone(&found.lone, context)?;
        for class in found.classes.list() {
            collector.class(class, context)?;
        }
        collector.hold(0)?;
        let Collector { keys: maker, table, out, bytes, .. } = collector;
        maker.finish(table, bytes, &mut out[before..], &context.cancel)
    }
}

impl Collector<'_> {
    /// Reserves memory for the collected groups and for `more` groups.
    fn hold(&mut self, more: usize) -> Result<()> {
        let more = (more * size_of::<GroupMatch>()) as u64;
        let of_sets = (self.lists_of_sets.capacity() * LIST_OF_SET_BYTES) as u64;
        self.table.hold_others(self.bytes + more + self.keys.bytes() + self.shape_bytes + of_sets)
    }

    fn push(&mut self, found: GroupMatch) {
        self.bytes += found.bytes();
        self.out.push(found);
    }

    /// Lone series.
    fn lone(&mut self, rows: &IdSet, context: &QueryContext) -> Result<()> {
        let mut reader = self.sealed.lone.rows.reader(&self.sealed.blocks);
        self.hold(rows.count() as usize)?;
        self.out.reserve(rows.count() as usize);
        for (idx, row) in rows.iter().enumerate() {
            if idx.is_multiple_of(ROWS_PER_CHECK) {
                context.cancel.check()?;
                self.hold(rows.count() as usize - idx)?;
            }
            let key = self.keys.project(&mut reader, row)?;
            let group = self.sealed.group_of(TableKind::Lone, row)?;
            let members = std::iter::once(Member { slot: Slot(0), key }).collect();
            self.push(GroupMatch { group, members });
        }
        Ok(())
    }

    /// Collects the matching members in the parts of a class.
    fn class(&mut self, class: &MatchClass, context: &QueryContext) -> Result<()> {
        let parts = self.candidates(class, context)?;
        let parts = parts.as_ref().unwrap_or(&class.parts);
        let mut shapes: HashMap<u32, Rc<PassingPositions>> = HashMap::new();
        let mut last: Option<(u32, Rc<PassingPositions>)> = None;
        let sealed = self.sealed;
        let mut part_reader = PartReader::new(&sealed.blocks, &sealed.part_records);
        self.hold(parts.count() as usize)?;
        self.out.reserve(parts.count() as usize);
        self.shape_bytes = 0;
        let (mut held_to, mut left) = (self.bytes + BYTES_PER_HOLD, parts.count() as usize);
        for (idx, row) in parts.iter().enumerate() {
            if idx.is_multiple_of(ROWS_PER_CHECK) {
                context.cancel.check()?;
            }
            left -= 1;
            // Group sizes differ by factors of thousands.
            if self.bytes + self.shape_bytes > held_to {
                self.hold(left)?;
                held_to = self.bytes + self.shape_bytes + BYTES_PER_HOLD;
            }
            let part = part_reader.read(row)?;
            // Similar parts are usually adjacent.
            let passing = match &last {
                Some((shape, passing)) if *shape == part.shape => passing,
                _ => {
                    let passing = match shapes.get(&part.shape) {
                        Some(passing) => Rc::clone(passing),
                        None => {
                            let passing = Rc::new(self.passing(part.shape, class)?);
                            shapes.insert(part.shape, Rc::clone(&passing));
                            passing
                        }
                    };
                    &last.insert((part.shape, passing)).1
                }
            };
            if !passing.positions.is_empty() {
                self.part(row, &part, passing)?;
            }
        }
        Ok(())
    }

    /// The parts of the class with one of its member sets; `None` if that is not cheaper.
    fn candidates(&self, class: &MatchClass, context: &QueryContext) -> Result<Option<IdSet>> {
        let budget = &context.budget;
        let Some(shapes) = self.sealed.shapes_of_class(class, budget)? else { return Ok(None) };
        let mut parts = RunList::new(budget);
        for shape in shapes.iter() {
            let shape = Shape::read(&self.sealed.blocks, &self.sealed.shapes, shape)?;
            let pushed = shape.parts.for_each_run(|first, last| parts.push_ids(first, last));
            pushed
                .map_err(|e| self.sealed.blocks.corrupt_by(self.sealed.shapes.bytes.start, &e))?;
        }
        Ok(Some(parts.finish()?.intersect(&class.parts, budget)?))
    }

    fn passing(&mut self, shape: u32, class: &MatchClass) -> Result<PassingPositions> {
        let shape = Shape::read(&self.sealed.blocks, &self.sealed.shapes, shape)?;
        let mut positions = Vec::new();
        each_passing(&shape, class.sets.as_ref(), |position, set| {
            positions.push((position, self.list_of_set(set)?));
            Ok(())
        })?;
        positions.sort_unstable();
        self.shape_bytes += (SHAPE_BYTES + positions.capacity() * size_of::<(u32, u32)>()) as u64;
        Ok(PassingPositions { len: shape.len, positions })
    }

    fn part(&mut self, row: u32, part: &PartRecord<'_>, passing: &PassingPositions) -> Result<()> {
        let (sealed, scratch) = (self.sealed, &mut self.scratch);
        let bad = || sealed.bad_part();
        // A few positions are searched among the missing ones; for many, all missing positions are
        // decoded once.
        let is_few = passing.positions.len() <= POSITIONS_SEARCHED_MAX;
        if !is_few {
            part.missing(passing.len, &mut scratch.missing).ok_or_else(bad)?;
            part.slots(part.member_count(passing.len), &mut scratch.slots).ok_or_else(bad)?;
        }
        let list = self.keys.project(&mut self.part_rows, row)?;
        let mut members = SmallVec::new();
        let mut missing = 0;
        for &(position, list_of_set) in &passing.positions {
            let rank = if is_few {
                let Some(rank) = part.rank_of(position) else { continue };
                rank
            } else {
                while scratch.missing.get(missing).is_some_and(|&at| at < position) {
                    missing += 1;
                }
                if scratch.missing.get(missing) == Some(&position) {
                    continue;
                }
                position - missing as u32
            };
            let slot = match is_few {
                true => part.slot(rank),
                false => scratch.slots.get(rank as usize).copied(),
            };
            let slot = Slot(slot.ok_or_else(bad)?);
            members.push(Member { slot, key: self.keys.key(list, list_of_set) });
        }
        if members.is_empty() {
            return Ok(());
        }
        if !part.is_in_order() {
            members.sort_by_key(|member: &Member| member.slot);
        }
        let group = sealed.group_of(TableKind::Parts, row)?;
        self.push(GroupMatch { group, members });
        Ok(())
    }

    fn list_of_set(&mut self, set: u32) -> Result<u32> {
        if let Some(&list) = self.lists_of_sets.get(&set) {
            return Ok(list);
        }
        let list = self.keys.project(&mut self.set_rows, set)?;
        self.lists_of_sets.insert(set, list);
        Ok(list)
    }
}
