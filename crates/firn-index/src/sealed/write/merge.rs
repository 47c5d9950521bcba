//! Adds a segment file to a builder.

use firn_model::Result;

use crate::sealed::format::lists::TableKind;
use crate::sealed::format::shapes::{PartRecord, Shape};
use crate::sealed::read::segment::Sealed;
use crate::sealed::write::builder::{Builder, BuiltPart, MergeFilter};

const NONE: u32 = u32::MAX;

impl Builder<'_> {
    /// Adds the series of `segment`, source number `source`, that `live` keeps. Reads it
    /// sequentially; needs four bytes per member set meanwhile.
    ///
    /// # Errors
    /// `Corrupt` if the segment is damaged; the builder must be dropped then.
    pub(crate) fn merge(
        &mut self,
        source: usize,
        segment: &Sealed,
        live: &dyn MergeFilter,
    ) -> Result<()> {
        self.merge_lone(source, segment, live)?;
        self.merge_parts(source, segment, live)
    }

    fn merge_lone(
        &mut self,
        source: usize,
        segment: &Sealed,
        live: &dyn MergeFilter,
    ) -> Result<()> {
        let mut reader = segment.lone.rows.reader(&segment.blocks);
        let mut slots = Vec::new();
        for row in 0..segment.lone.rows.count {
            let group = segment.group_of(TableKind::Lone, row)?;
            slots.clear();
            slots.push(0);
            live.retain(group, &mut slots);
            if !slots.is_empty() {
                let labels = segment.row_pairs(&mut reader, row, |_, _| true)?;
                let labels = renumbered(labels, self.pairs.numbers(source));
                let labels = self.sets.push(&labels);
                self.lone.push((group, labels));
            }
        }
        Ok(())
    }

    fn merge_parts(
        &mut self,
        source: usize,
        segment: &Sealed,
        live: &dyn MergeFilter,
    ) -> Result<()> {
        self.origin += 1;
        let origin = self.origin;
        let mut sets = vec![NONE; segment.sets.rows.count as usize];
        let mut part_reader = segment.parts.rows.reader(&segment.blocks);
        let mut set_reader = segment.sets.rows.reader(&segment.blocks);
        let (mut missing, mut slots, mut members) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..segment.parts.rows.count {
            let bad = || segment.bad_part();
            let group = segment.group_of(TableKind::Parts, row)?;
            let part = PartRecord::read(&segment.blocks, &segment.part_records, row)?;
            let shape = Shape::read(&segment.blocks, &segment.shapes, part.shape)?;
            let member_count = part.member_count(shape.len);
            part.missing(shape.len, &mut missing).ok_or_else(bad)?;
            part.slots(member_count, &mut slots).ok_or_else(bad)?;
            let next_slot = part.next_slot(member_count).ok_or_else(bad)?;
            members.clear();
            let mut gone = missing.iter().copied().peekable();
            let positions = (0..shape.len).filter(|at| gone.next_if_eq(at).is_none());
            members.extend(slots.iter().copied().zip(positions));
            members.sort_unstable();
            slots.sort_unstable();
            live.retain(group, &mut slots);
            if slots.is_empty() && !live.keeps_group(group) {
                continue;
            }
            let start = self.members.len();
            for &(slot, position) in &members {
                if slots.binary_search(&slot).is_err() {
                    continue;
                }
                let set = shape.set(position);
                let known = sets.get(set as usize).copied().ok_or_else(bad)?;
                let known = match known {
                    NONE => {
                        let labels = segment.row_pairs(&mut set_reader, set, |_, _| true)?;
                        let known =
                            self.sets.intern(&renumbered(labels, self.pairs.numbers(source)));
                        sets[set as usize] = known;
                        known
                    }
                    known => known,
                };
                self.members.push((slot, known));
            }
            let labels = |part_reader: &mut _, identity: bool| {
                segment
                    .row_pairs(part_reader, row, |schema, idx| schema.is_identity(idx) == identity)
            };
            let numbers = self.pairs.numbers(source);
            let identity = renumbered(labels(&mut part_reader, true)?, numbers);
            let common = renumbered(labels(&mut part_reader, false)?, numbers);
            let (identity, common) = (self.sets.intern(&identity), self.sets.intern(&common));
            let members = start..self.members.len();
            self.parts.push(BuiltPart { group, identity, common, members, next_slot, origin });
        }
        Ok(())
    }
}

/// Maps pairs of a segment to sorted pairs of the builder.
fn renumbered(mut pairs: Vec<u32>, to: &[u32]) -> Vec<u32> {
    // Rows are checked to contain pairs of the segment only, so each has a number.
    pairs.iter_mut().for_each(|pair| *pair = to[*pair as usize]);
    pairs.sort_unstable();
    pairs
}
