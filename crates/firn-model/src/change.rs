//! The change feed from the engine to a cache: numbered changes, each announced before its write is
//! visible.

use crate::{CommitSeq, GroupId, Labels, SeriesRef, TimeRange};

/// One change to the data that queries can see.
///
/// Numbers rise, but changes of different shards may be announced out of order. A snapshot's number
/// is the largest one below which every change is visible in the snapshot. A cache that is filled
/// from that snapshot must drop data for every change with a larger number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The commit that made the change.
    pub number: CommitSeq,
    /// The groups touched, sorted.
    pub groups: Vec<GroupId>,
    /// The timestamps touched.
    pub range: TimeRange,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The kind of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Samples were inserted or overwritten.
    Write,
    /// Samples were deleted or dropped by retention.
    Delete,
}

/// A listener for changes. Writers call it, so it must be fast and must not call the engine.
pub trait ChangeSink: Send + Sync {
    /// `change` is about to become visible.
    fn changed(&self, change: Change);

    /// A series was defined. Called once snapshots can see the series, before any change to it is
    /// announced, and therefore under the lock that defines it. Repeated calls for one series are
    /// harmless.
    fn defined(&self, _series: SeriesRef, _labels: &Labels) {}

    /// All changes up to `through` were announced and are about to leave the log. After a crash,
    /// later changes are announced again; these may not be. Background work calls it, so it may use
    /// the disk.
    fn released(&self, _through: CommitSeq) {}

    /// An announced change failed on its way to the log's device. It is not visible, but the log
    /// may contain it after a crash. Called before a snapshot's number covers the change.
    fn failed(&self) {}
}
