//! Label names and values, of all series or of a selection.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeSet;

use firn_codec::postings::Postings;
use firn_model::{CancelToken, Result};
use hashbrown::HashSet;

use crate::matches::GroupMatch;
use crate::sealed::format::lists::TableKind;
use crate::sealed::format::shapes::{PartRecord, Shape};
use crate::sealed::read::segment::Sealed;

const ITEMS_PER_CHECK: usize = 1_024;

impl Sealed {
    /// Adds the label names of the series of `of` (slots that are not in this segment are skipped),
    /// or of all series.
    pub(crate) fn label_names(
        &self,
        of: Option<&[GroupMatch]>,
        out: &mut BTreeSet<String>,
        cancel: &CancelToken,
    ) -> Result<()> {
        let mut ranks: BTreeSet<u32> = BTreeSet::new();
        match of {
            None => {
                for name in 0..u32::try_from(self.names.count()).unwrap_or(u32::MAX) {
                    cancel.check()?;
                    for pair in self.names.pairs(name) {
                        if self.is_used(pair)? {
                            ranks.insert(name);
                            break;
                        }
                    }
                }
            }
            Some(of) => {
                let mut seen = HashSet::new();
                self.each_row(of, cancel, |kind, row| {
                    let rows = &self.table(kind).rows;
                    let schema_idx = rows.schema_of(row).ok_or_else(|| self.bad_part())?;
                    if seen.insert((kind as u8, schema_idx)) {
                        let schema = rows.schemas.get(schema_idx);
                        ranks.extend(schema.iter().flat_map(|schema| &schema.names));
                    }
                    Ok(())
                })?;
            }
        }
        for rank in ranks {
            out.insert(self.text_of(self.names.text(rank))?);
        }
        Ok(())
    }

    /// Adds the values of `name` in `of`, or in all series.
    pub(crate) fn label_values(
        &self,
        name: &str,
        of: Option<&[GroupMatch]>,
        out: &mut BTreeSet<String>,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Some(name) = self.names.find(name.as_bytes()) else { return Ok(()) };
        let pairs = self.names.pairs(name);
        let Some(of) = of else {
            let mut walk = self.strings.walk(&self.blocks, u64::from(pairs.start))?;
            for pair in pairs {
                if (pair as usize).is_multiple_of(ITEMS_PER_CHECK) {
                    cancel.check()?;
                }
                walk.advance()?;
                if self.is_used(pair)? {
                    out.insert(self.text_of(walk.text())?);
                }
            }
            return Ok(());
        };
        let mut seen = vec![0u64; pairs.len().div_ceil(64)];
        let mut readers = [TableKind::Lone, TableKind::Parts, TableKind::MemberSets]
            .map(|kind| self.table(kind).rows.reader(&self.blocks));
        self.each_row(of, cancel, |kind, row| {
            let reader = readers.get_mut(kind as usize).ok_or_else(|| self.bad_part())?;
            let schema = reader.load(row)?;
            if let Ok(column_idx) = schema.names.binary_search(&name) {
                let rank = reader.rank(row, column_idx)? as usize;
                if let Some(word) = seen.get_mut(rank / 64) {
                    *word |= 1 << (rank % 64);
                }
            }
            Ok(())
        })?;
        let mut value = Vec::new();
        for pair in pairs.clone() {
            let rank = pair.saturating_sub(pairs.start) as usize;
            if seen.get(rank / 64).is_some_and(|word| word & (1 << (rank % 64)) != 0) {
                self.strings.get(&self.blocks, u64::from(pair), &mut value)?;
                out.insert(self.text_of(&value)?);
            }
        }
        Ok(())
    }

    /// Calls `each` with the lone rows, part rows and distinct member sets of a selection.
    fn each_row(
        &self,
        of: &[GroupMatch],
        cancel: &CancelToken,
        mut each: impl FnMut(TableKind, u32) -> Result<()>,
    ) -> Result<()> {
        let mut sets = HashSet::new();
        let (mut slots, mut missing) = (Vec::new(), Vec::new());
        for (idx, group) in of.iter().enumerate() {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            if let Some(row) = self.lone_row(group.group)? {
                each(TableKind::Lone, row)?;
                continue;
            }
            let mut rows = self.parts.by_id.rows(&self.blocks, group.group.0)?;
            while let Some(row) = rows.next(&self.blocks)? {
                let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
                let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
                let member_count = part.member_count(shape.len);
                part.slots(member_count, &mut slots).ok_or_else(|| self.bad_part())?;
                part.missing(shape.len, &mut missing).ok_or_else(|| self.bad_part())?;
                let mut gone = missing.iter().copied().peekable();
                let here = (0..shape.len).filter(|at| gone.next_if_eq(at).is_none());
                let is_wanted = |slot: u32| {
                    group.members.binary_search_by_key(&slot, |member| member.slot.0).is_ok()
                };
                let mut is_first = true;
                for (position, &slot) in here.zip(&slots) {
                    if !is_wanted(slot) {
                        continue;
                    }
                    if std::mem::take(&mut is_first) {
                        each(TableKind::Parts, row)?;
                    }
                    let set = shape.set(position);
                    if sets.insert(set) {
                        each(TableKind::MemberSets, set)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a series has the pair. The pairs of a part without members may have none.
    fn is_used(&self, pair: u32) -> Result<bool> {
        if self.empty_part_count == 0 {
            return Ok(true);
        }
        let lists = self.pair_lists(pair)?;
        if lists.of(TableKind::Lone).is_some() || lists.of(TableKind::MemberSets).is_some() {
            return Ok(true);
        }
        for row in lists.of(TableKind::Parts).iter().flat_map(Postings::iter) {
            let row = u32::try_from(row).map_err(|_| self.bad_part())?;
            if self.part(row)?.1 > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn text_of(&self, bytes: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
        text.ok_or_else(|| {
            self.blocks.corrupt(
                self.strings.text.bytes.start,
                "a label is invalid UTF-8: run `firn check --repair`",
            )
        })
    }
}
