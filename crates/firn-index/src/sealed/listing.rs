//! Which names and values there are, with and without a selection.

use std::collections::BTreeSet;

use firn_model::{CancelToken, Result, SeriesRef};
use hashbrown::HashSet;

use crate::matching::GroupMatch;
use crate::sealed::{Kind, Sealed};

const ITEMS_PER_CHECK: usize = 1_024;

impl Sealed {
    /// Adds the label names of `of` (slots that are not in this segment are skipped), or of all series.
    pub(crate) fn label_names(
        &self,
        of: Option<&[GroupMatch]>,
        out: &mut BTreeSet<String>,
        cancel: &CancelToken,
    ) -> Result<()> {
        // Every name that is stored is a series'.
        let mut ranks: BTreeSet<u32> = BTreeSet::new();
        match of {
            None => ranks.extend(0..self.names.count() as u32),
            Some(of) => {
                let mut seen = HashSet::new();
                self.each_row(of, cancel, |kind, row| {
                    let rows = &self.table(kind).rows;
                    let schema_idx = rows.schema_of(row).ok_or_else(|| self.bad_part())?;
                    if seen.insert((kind as u8, schema_idx)) {
                        ranks.extend(&rows.schemas[schema_idx].names);
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

    /// Adds the values that `name` has in `of`, or in all series.
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
                out.insert(self.text_of(walk.text())?);
            }
            return Ok(());
        };
        let mut seen = vec![0u64; pairs.len().div_ceil(64)];
        let mut readers = [Kind::Lone, Kind::Parts, Kind::Sets]
            .map(|kind| self.table(kind).rows.reader(&self.blocks));
        self.each_row(of, cancel, |kind, row| {
            let reader = &mut readers[kind as usize];
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
            let rank = (pair - pairs.start) as usize;
            if seen[rank / 64] & (1 << (rank % 64)) != 0 {
                self.strings.get(&self.blocks, u64::from(pair), &mut value)?;
                out.insert(self.text_of(&value)?);
            }
        }
        Ok(())
    }

    /// Calls `each` with the lone rows, part rows and member sets of a selection; with some more than once.
    fn each_row(
        &self,
        of: &[GroupMatch],
        cancel: &CancelToken,
        mut each: impl FnMut(Kind, u32) -> Result<()>,
    ) -> Result<()> {
        let mut sets = HashSet::new();
        for (idx, group) in of.iter().enumerate() {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            if let Some(row) = self.lone_row(group.group)? {
                each(Kind::Lone, row)?;
                continue;
            }
            let mut last = None;
            for member in &group.members {
                let series = SeriesRef { group: group.group, slot: member.slot };
                let Some((row, set)) = self.member(series)? else { continue };
                if last.replace(row) != Some(row) {
                    each(Kind::Parts, row)?;
                }
                if sets.insert(set) {
                    each(Kind::Sets, set)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn text_of(&self, bytes: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
        text.ok_or_else(|| self.blocks.corrupt(self.strings.text.bytes.start, "a label is no text"))
    }
}
