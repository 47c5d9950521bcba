//! Edits: the tree's part of one manifest record, and the whole state as one part.
//!
//! ```text
//! part     = edit | snapshot
//! edit     = 3:u8 zigzag(made_ms) varint(next id) varint(removed) varint(id)*
//!            varint(added) record* varint(cleaned) (varint(id) varint(deletes_through))*
//! snapshot = 4:u8 varint(next id) varint(tables) record*
//!            varint(dead) (varint(id) zigzag(since_ms))*
//! ```
//! Forms 1 and 2 are the same without `cleaned`, and their records without `deletes_through`; they
//! are read, never written.
//!
//! The manifest's checksum covers the bytes; here they are only checked for consistency.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::varint::{encode_zigzag, take_count, take_u8, take_varint, take_zigzag};
use firn_model::{CommitSeq, Error, Result, Timestamp, encode_varint};

use crate::record::{RecordForm, TableId, TableRecord};
use crate::suffix::Suffix;

const FIRST_EDIT: u8 = 1;
const FIRST_SNAPSHOT: u8 = 2;
const EDIT: u8 = 3;
const SNAPSHOT: u8 = 4;

/// Tables that are added and removed in one step.
#[derive(Clone, Default)]
pub struct Edit {
    pub(crate) made_ms: Timestamp,
    pub(crate) added: Vec<TableRecord>,
    pub(crate) removed: Vec<TableId>,
    /// Remaining tables in which deletes up to a number hide nothing.
    pub(crate) cleaned: Vec<(TableId, CommitSeq)>,
    /// Directories of the added tables, so that they need not be read again.
    pub(crate) suffixes: Vec<Arc<Suffix>>,
}

/// The tables that all parts of a manifest add up to.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ManifestTables {
    /// No table that a manifest named has this id or a higher one.
    pub(crate) next_id: u64,
    pub(crate) tables: BTreeMap<TableId, TableRecord>,
    /// Removed objects that may still exist on the slow tier, and when they were removed.
    pub(crate) dead: BTreeMap<TableId, Timestamp>,
}

impl Edit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.cleaned.is_empty()
    }

    /// The added tables.
    pub fn added(&self) -> &[TableRecord] {
        &self.added
    }

    /// The removed tables.
    pub fn removed(&self) -> &[TableId] {
        &self.removed
    }

    /// Bytes of the added tables.
    pub fn added_bytes(&self) -> u64 {
        self.added.iter().map(|record| record.bytes).sum()
    }

    pub(crate) fn add(&mut self, written: Vec<(TableRecord, Suffix)>) {
        for (record, suffix) in written {
            self.added.push(record);
            self.suffixes.push(Arc::new(suffix));
        }
    }

    /// The tree's part of a manifest record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![EDIT];
        let next_id =
            self.added.iter().map(|record| record.id.0.saturating_add(1)).max().unwrap_or(0);
        encode_zigzag(self.made_ms, &mut out);
        encode_varint(next_id, &mut out);
        encode_varint(self.removed.len() as u64, &mut out);
        self.removed.iter().for_each(|id| encode_varint(id.0, &mut out));
        encode_varint(self.added.len() as u64, &mut out);
        self.added.iter().for_each(|record| record.encode(&mut out));
        encode_varint(self.cleaned.len() as u64, &mut out);
        for (id, deletes_through) in &self.cleaned {
            encode_varint(id.0, &mut out);
            encode_varint(deletes_through.0, &mut out);
        }
        out
    }
}

impl std::fmt::Debug for Edit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edit")
            .field("added", &self.added)
            .field("removed", &self.removed)
            .field("cleaned", &self.cleaned)
            .finish_non_exhaustive()
    }
}

impl ManifestTables {
    /// Adds up parts in the order of the manifest.
    ///
    /// # Errors
    /// `Corrupt` if a part cannot be decoded or contradicts earlier ones; `Invalid` for a form or a
    /// column type of a newer version.
    pub(crate) fn read(parts: &[&[u8]]) -> Result<ManifestTables> {
        let mut state = ManifestTables::default();
        for part in parts {
            state.take_part(part)?;
        }
        Ok(state)
    }

    fn take_part(&mut self, part: &[u8]) -> Result<()> {
        let mut input = part;
        match take_u8(&mut input, "tree part")? {
            FIRST_EDIT => self.take_edit(&mut input, RecordForm::First)?,
            FIRST_SNAPSHOT => *self = ManifestTables::take_snapshot(&mut input, RecordForm::First)?,
            EDIT => {
                self.take_edit(&mut input, RecordForm::WithDeletes)?;
                self.take_cleaned(&mut input)?;
            }
            SNAPSHOT => *self = ManifestTables::take_snapshot(&mut input, RecordForm::WithDeletes)?,
            form => {
                return Err(Error::invalid(format!(
                    "manifest: the tree's part has form {form}, this program reads {FIRST_EDIT} to \
                     {SNAPSHOT}; start the newer program"
                )));
            }
        }
        if !input.is_empty() {
            return Err(Error::corrupt("manifest", 0, "the tree's part is too long"));
        }
        Ok(())
    }

    fn take_edit(&mut self, input: &mut &[u8], form: RecordForm) -> Result<()> {
        let made_ms = take_zigzag(input, "time of the edit")?;
        self.next_id = self.next_id.max(take_varint(input, "next table id")?);
        for _ in 0..take_count(input, input.len(), "removed tables")? {
            let id = TableId(take_varint(input, "removed table")?);
            let Some(record) = self.tables.remove(&id) else {
                return Err(Error::corrupt(
                    "manifest",
                    0,
                    format!("{id} is removed but not there"),
                ));
            };
            if record.level.is_slow() {
                self.dead.insert(id, made_ms);
            }
        }
        self.take_records(input, form)
    }

    fn take_cleaned(&mut self, input: &mut &[u8]) -> Result<()> {
        for _ in 0..take_count(input, input.len(), "cleaned tables")? {
            let id = TableId(take_varint(input, "cleaned table")?);
            let deletes_through = CommitSeq(take_varint(input, "applied deletes")?);
            let record = self.tables.get_mut(&id).ok_or_else(|| {
                Error::corrupt("manifest", 0, format!("{id} is cleaned but not there"))
            })?;
            record.deletes_through = record.deletes_through.max(deletes_through);
        }
        Ok(())
    }

    fn take_snapshot(input: &mut &[u8], form: RecordForm) -> Result<ManifestTables> {
        let next_id = take_varint(input, "next table id")?;
        let mut state = ManifestTables { next_id, ..ManifestTables::default() };
        state.take_records(input, form)?;
        for _ in 0..take_count(input, input.len(), "dead tables")? {
            let id = TableId(take_varint(input, "dead table")?);
            state.dead.insert(id, take_zigzag(input, "time of death")?);
        }
        Ok(state)
    }

    fn take_records(&mut self, input: &mut &[u8], form: RecordForm) -> Result<()> {
        for _ in 0..take_count(input, input.len(), "added tables")? {
            let record = TableRecord::take(input, form)?;
            let id = record.id;
            self.next_id = self.next_id.max(id.0.saturating_add(1));
            if self.tables.insert(id, record).is_some() {
                return Err(Error::corrupt("manifest", 0, format!("{id} is added twice")));
            }
        }
        Ok(())
    }

    /// The whole state as one part.
    pub(crate) fn encode<'a>(
        next_id: u64,
        tables: impl ExactSizeIterator<Item = &'a TableRecord>,
        dead: &[(TableId, Timestamp)],
    ) -> Vec<u8> {
        let mut out = vec![SNAPSHOT];
        encode_varint(next_id, &mut out);
        encode_varint(tables.len() as u64, &mut out);
        tables.for_each(|record| record.encode(&mut out));
        encode_varint(dead.len() as u64, &mut out);
        for (id, since_ms) in dead {
            encode_varint(id.0, &mut out);
            encode_zigzag(*since_ms, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{Partition, PartitionLen};
    use crate::record::{Level, sample_record};

    fn record(id: u64, level: Level) -> TableRecord {
        sample_record(id, level, Partition::of(0, PartitionLen::MIN))
    }

    fn edit(added: Vec<TableRecord>, removed: &[u64]) -> Vec<u8> {
        let removed = removed.iter().copied().map(TableId).collect();
        Edit { made_ms: 50, added, removed, ..Edit::default() }.encode()
    }

    #[test]
    fn parts_add_up_and_the_dead_are_remembered() {
        let one = edit(vec![record(1, Level::Zero), record(2, Level::Two)], &[]);
        let two = edit(vec![record(3, Level::Two)], &[1, 2]);
        let state = ManifestTables::read(&[&one, &two]).unwrap();
        assert_eq!(state.tables.keys().copied().collect::<Vec<_>>(), [TableId(3)]);
        assert_eq!(state.dead, BTreeMap::from([(TableId(2), 50)]));
        assert_eq!(state.next_id, 4);
        let dead: Vec<_> = state.dead.iter().map(|(id, since)| (*id, *since)).collect();
        let whole = ManifestTables::encode(state.next_id, state.tables.values(), &dead);
        assert_eq!(ManifestTables::read(&[&one, &whole]).unwrap(), state);
        assert_eq!(ManifestTables::read(&[]).unwrap(), ManifestTables::default());
    }

    #[test]
    fn a_cleaned_table_is_remembered_as_such() {
        let one = edit(vec![record(1, Level::Two)], &[]);
        let f = |seq: u64, want: u64| {
            let cleaned = vec![(TableId(1), CommitSeq(seq))];
            let two = Edit { cleaned, ..Edit::default() }.encode();
            let state = ManifestTables::read(&[&one, &two]).unwrap();
            assert_eq!(state.tables[&TableId(1)].deletes_through, CommitSeq(want));
            assert!(ManifestTables::read(&[&two]).is_err(), "cleaned but not there");
        };
        f(20, 20);
        f(3, 11);
    }

    /// Forms 1 and 2 as existing manifests contain them: never change this.
    #[test]
    fn the_first_forms_are_read_for_ever() {
        let mut record_bytes = Vec::new();
        record(1, Level::Zero).encode(&mut record_bytes);
        record_bytes.pop();
        let want = TableRecord { deletes_through: CommitSeq(0), ..record(1, Level::Zero) };
        let edit = [&[FIRST_EDIT, 100, 2, 0, 1][..], &record_bytes].concat();
        let state = ManifestTables::read(&[&edit]).unwrap();
        assert_eq!((&state.tables[&TableId(1)], state.next_id), (&want, 2));
        let snapshot = [&[FIRST_SNAPSHOT, 9, 1][..], &record_bytes, &[1, 5, 100]].concat();
        let state = ManifestTables::read(&[&snapshot]).unwrap();
        assert_eq!((&state.tables[&TableId(1)], state.next_id), (&want, 9));
        assert_eq!(state.dead, BTreeMap::from([(TableId(5), 50)]));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let one = edit(vec![record(1, Level::Zero)], &[]);
        assert!(ManifestTables::read(&[&one, &one]).is_err(), "added twice");
        assert!(ManifestTables::read(&[&edit(vec![], &[9])]).is_err(), "removed but not there");
        assert!(ManifestTables::read(&[&[7]]).unwrap_err().to_string().contains("form 7"));
        for len in 0..one.len() {
            assert!(ManifestTables::read(&[&one[..len]]).is_err());
        }
    }
}
