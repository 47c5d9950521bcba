//! Announcing changes to the result cache before they are visible.

use std::fmt;
use std::sync::{Arc, OnceLock};

use firn_codec::Tombstone;
use firn_model::{
    Change, ChangeKind, ChangeSink, CommitSeq, Error, GroupId, Labels, Result, SeriesRef,
    ShardRows, TimeRange,
};

/// The receiver of all changes, if one is set.
#[derive(Default)]
pub(crate) struct ChangeFeed(OnceLock<Arc<dyn ChangeSink>>);

impl ChangeFeed {
    /// # Errors
    /// `Invalid` the second time.
    pub(crate) fn set(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.0.set(sink).map_err(|_| Error::invalid("the change sink is already set; set it once"))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Announces series before any caller can write to the new ones.
    pub(crate) fn announce_defined(&self, series: impl Iterator<Item = (SeriesRef, Labels)>) {
        if let Some(sink) = self.0.get() {
            series.for_each(|(series, labels)| sink.defined(series, &labels));
        }
    }

    /// Announces rows before they are visible. The caller holds the shard's lock, so that no other
    /// writer can publish them.
    pub(crate) fn announce_rows(&self, number: CommitSeq, rows: ShardRows<'_>) {
        let Some(sink) = self.0.get() else { return };
        let mut groups: Vec<GroupId> = rows.cells().iter().map(|cell| cell.group).collect();
        groups.dedup();
        let range = rows.cells().iter().fold(TimeRange::EMPTY, |all, cell| all.extend(cell.ts));
        sink.changed(Change { number, groups, range, kind: ChangeKind::Write });
    }

    /// Announces a delete before it is visible.
    pub(crate) fn announce_delete(&self, number: CommitSeq, deleted: &Tombstone) {
        let Some(sink) = self.0.get() else { return };
        let groups = deleted.members().iter().map(|members| members.group).collect();
        let (range, kind) = (deleted.range(), ChangeKind::Delete);
        sink.changed(Change { number, groups, range, kind });
    }

    /// Announces that an announced change may or may not survive a crash. Called before its number
    /// counts as arrived.
    pub(crate) fn announce_doubt(&self) {
        if let Some(sink) = self.0.get() {
            sink.failed();
        }
    }

    /// Announces that changes up to `announced` will not be repeated after a restart.
    pub(crate) fn announce_forgotten(&self, announced: CommitSeq) {
        if let Some(sink) = self.0.get() {
            sink.released(announced);
        }
    }
}

impl fmt::Debug for ChangeFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChangeFeed").field(&self.is_set()).finish()
    }
}
