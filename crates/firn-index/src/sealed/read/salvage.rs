//! Salvage: the readable content of a damaged segment.
//!
//! Records are read in file order. If the start of a record cannot be read, the record begins at
//! the end of the previous one. The next file rebuilds all starts, lists and buckets, so damage to
//! them alone loses nothing. A damaged block therefore costs only the label sets in it, and those
//! that need a text or a shape in it.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{GroupId, Result};

use crate::memory::pairs::Pairs;
use crate::sealed::format::lists::TableKind;
use crate::sealed::format::rows::{BLOCK_ROWS, Schema};
use crate::sealed::format::shapes::{BUNCH_PARTS, PartRecord, Shape};
use crate::sealed::format::strings::BLOCK_TEXTS;
use crate::sealed::read::segment::Sealed;

pub(crate) const NONE: u32 = u32::MAX;

/// The readable label pairs.
#[derive(Debug)]
pub(crate) struct SalvagedPairs {
    /// For the builder.
    pub(crate) pairs: Pairs,
    /// By pair of the segment, the one of `pairs`; [`NONE`] if its text is lost.
    pub(crate) known: Vec<u32>,
}

/// A member's slot, and the labels of its member set if they can be read.
pub(crate) type SalvagedMember<'s> = (u32, Option<&'s [u32]>);

impl Sealed {
    /// The pairs with readable texts.
    ///
    /// # Errors
    /// `TooLarge` when ids are exhausted.
    pub(crate) fn salvage_pairs(&self) -> Result<SalvagedPairs> {
        let (text, count) = (&self.strings.text, self.pair_count());
        let known_count = usize::try_from(count).unwrap_or_default();
        let known = vec![NONE; known_count];
        let mut salvaged = SalvagedPairs { pairs: Pairs::default(), known };
        let mut next = Some(0);
        for block in 0..count.div_ceil(BLOCK_TEXTS) {
            let texts = text.salvage(&self.blocks, block, &mut next, |rest| {
                self.strings.take_block(&self.blocks, block, rest)
            });
            let first = block.saturating_mul(BLOCK_TEXTS);
            for (pair, text) in (first..).zip(texts.into_iter().flatten()) {
                let Ok(pair) = u32::try_from(pair) else { break };
                let name = self.names.text(self.names.of_pair(pair));
                let id = salvaged.pairs.intern(name, &text)?;
                if let Some(known) = salvaged.known.get_mut(pair as usize) {
                    *known = id;
                }
            }
        }
        Ok(salvaged)
    }

    /// Calls `each` with each row, its schema and its pairs; `None` if its block is damaged.
    pub(crate) fn salvage_rows(
        &self,
        kind: TableKind,
        mut each: impl FnMut(u32, &Schema, Option<Vec<u32>>),
    ) {
        let rows = &self.table(kind).rows;
        let mut reader = rows.reader(&self.blocks);
        let (mut next, mut block) = (Some(0), 0u64);
        for (schema_idx, schema) in rows.schemas.iter().enumerate() {
            for first in schema.rows.clone().step_by(BLOCK_ROWS as usize) {
                let taken = rows.cells.salvage(&self.blocks, block, &mut next, |rest| {
                    reader.take_block(schema_idx, first, rest)
                });
                block = block.saturating_add(1);
                for row in first..schema.rows.end.min(first.saturating_add(BLOCK_ROWS)) {
                    let pairs = taken.map(|()| self.row_pairs(&mut reader, row, |_, _| true));
                    each(row, schema, pairs.and_then(Result::ok));
                }
            }
        }
    }

    /// The group of each row, from the row's id or from the buckets by id.
    pub(crate) fn salvage_ids(&self, kind: TableKind) -> Vec<Option<GroupId>> {
        let table = self.table(kind);
        let mut ids: Vec<Option<GroupId>> =
            (0..table.rows.count).map(|row| self.group_of(kind, row).ok()).collect();
        if ids.contains(&None) {
            table.by_id.salvage(&self.blocks, |id, row| {
                if let Some(group) = ids.get_mut(row as usize) {
                    group.get_or_insert(GroupId(id));
                }
            });
        }
        ids
    }

    pub(crate) fn salvage_parts(&self) -> Vec<Option<PartRecord<'_>>> {
        let (count, mut next) = (self.parts.rows.count as usize, Some(0));
        let mut parts = Vec::with_capacity(count);
        while parts.len() < count {
            let bunch = parts.len() as u64 / BUNCH_PARTS;
            let bunch_max = usize::try_from(BUNCH_PARTS).unwrap_or(usize::MAX);
            let len = count.saturating_sub(parts.len()).min(bunch_max);
            let taken = self.part_records.salvage(&self.blocks, bunch, &mut next, |rest| {
                (0..len).map(|_| PartRecord::take(rest)).collect::<Option<Vec<_>>>()
            });
            match taken {
                Some(taken) => parts.extend(taken.into_iter().map(Some)),
                None => parts.resize(parts.len().saturating_add(len), None),
            }
        }
        parts
    }

    pub(crate) fn salvage_shapes(&self) -> Vec<Option<Shape<'_>>> {
        let mut next = Some(0);
        let mut shape =
            |idx| self.shapes.salvage(&self.blocks, idx, &mut next, Shape::take_without_lists);
        (0..self.shapes.starts.count).map(&mut shape).collect()
    }
}

/// Slots with the labels of their member sets, as far as they can be read; `None` if the part is
/// malformed.
pub(crate) fn members_of<'s>(
    part: &PartRecord<'_>,
    shape: &Shape<'_>,
    sets: &'s [Option<Vec<u32>>],
) -> Option<Vec<SalvagedMember<'s>>> {
    let (mut missing, mut slots) = (Vec::new(), Vec::new());
    part.missing(shape.len, &mut missing)?;
    part.slots(part.member_count(shape.len), &mut slots)?;
    let mut gone = missing.into_iter().peekable();
    let positions = (0..shape.len).filter(|at| gone.next_if_eq(at).is_none());
    let set_at = |position| sets.get(shape.set(position) as usize).and_then(Option::as_deref);
    Some(slots.into_iter().zip(positions.map(set_at)).collect())
}
