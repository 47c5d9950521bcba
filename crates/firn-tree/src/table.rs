//! A table that a version names: its record and, for the fast tier, its open file.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use firn_codec::Tombstone;
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{CommitSeq, Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::record::TableRecord;
use crate::suffix::Suffix;
use crate::table_map::{OpenFile, OpenTables, TableMap};

/// One table. Readers hold it by `Arc`; its file is removed only after the last one dropped it.
pub(crate) struct Table {
    pub(crate) record: TableRecord,
    path: String,
    file: Mutex<Option<OpenFile>>,
    damaged: AtomicBool,
    /// A longer partition would not make its chunks longer, as a job found out.
    is_grown: AtomicBool,
    /// Its directory, while a reader holds it.
    suffix: Mutex<Weak<Suffix>>,
    /// Deletes up to this one hide nothing in it, found out after its record was written.
    deletes_through: AtomicU64,
}

impl Table {
    pub(crate) fn new(record: TableRecord) -> Table {
        let path = record.path();
        Table {
            deletes_through: AtomicU64::new(record.deletes_through.0),
            record,
            path,
            file: Mutex::new(None),
            damaged: AtomicBool::new(false),
            is_grown: AtomicBool::new(false),
            suffix: Mutex::default(),
        }
    }

    /// Its file below the disk's root, or its key in the bucket.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Its record with the present `deletes_through`.
    pub(crate) fn present_record(&self) -> TableRecord {
        let deletes_through = CommitSeq(self.deletes_through.load(Ordering::Relaxed));
        TableRecord { deletes_through, ..self.record.clone() }
    }

    /// Deletes up to `seq` hide nothing in it.
    pub(crate) fn set_cleaned(&self, seq: CommitSeq) {
        self.deletes_through.fetch_max(seq.0, Ordering::Relaxed);
    }

    /// Whether a delete of this number can hide something in it, whatever it deletes.
    pub(crate) fn may_hide(&self, seq: CommitSeq) -> bool {
        self.record.seq.min < seq && self.deletes_through.load(Ordering::Relaxed) < seq.0
    }

    /// Whether delete `seq` may hide something in it that is older, by the record.
    pub(crate) fn needs(&self, seq: CommitSeq, tombstone: &Tombstone) -> bool {
        let record = &self.record;
        self.may_hide(seq)
            && record.time_range.overlaps(tombstone.range())
            && tombstone.touches_groups(record.group_min, record.group_max)
    }

    /// Whether this process found out that a longer partition would not make its chunks longer.
    pub(crate) fn is_grown(&self) -> bool {
        self.is_grown.load(Ordering::Relaxed)
    }

    /// See [`Table::is_grown`].
    pub(crate) fn set_grown(&self) {
        self.is_grown.store(true, Ordering::Relaxed);
    }

    /// Whether damage was found in it. It is then left out of merges, so that its good blocks stay
    /// readable and other work continues.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Records damage, and returns the error.
    pub(crate) fn note(&self, error: Error) -> Error {
        if matches!(error.kind(), ErrorKind::Corrupt { .. }) {
            self.damaged.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Its directory, if a reader holds it.
    pub(crate) fn held_suffix(&self) -> Option<Arc<Suffix>> {
        self.suffix.lock().upgrade()
    }

    /// Shares this directory with later readers, while one holds it.
    pub(crate) fn share_suffix(&self, suffix: &Arc<Suffix>) {
        *self.suffix.lock() = Arc::downgrade(suffix);
    }

    /// Its file on the fast tier.
    pub(crate) fn open(
        &self,
        disk: &dyn Disk,
        open: &Arc<OpenTables>,
    ) -> Result<Arc<dyn DiskFile>> {
        let mut slot = self.file.lock();
        if let Some(open) = &*slot {
            return Ok(Arc::clone(&open.file));
        }
        let file = disk.open(&self.path, OpenMode::Read)?;
        *slot = OpenFile::of(&file, open);
        Ok(file)
    }

    /// Its mapped file, with the blocks that were verified since the file was opened or changed.
    /// `None` if it cannot be opened or mapped, and for a damaged table: more of its bytes may be
    /// damaged.
    pub(crate) fn map(&self, disk: &dyn Disk, open: &Arc<OpenTables>) -> Option<Arc<TableMap>> {
        if self.is_damaged() {
            return None;
        }
        let mut slot = self.file.lock();
        if slot.is_none() && open.has_room() {
            let file = disk.open(&self.path, OpenMode::Read).ok()?;
            *slot = OpenFile::of(&file, open);
        }
        slot.as_mut()?.map(self.record.block_count).cloned()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.record.fmt(f)
    }
}
