//! What the engine tells a cache: numbered changes, each before its write is visible.

use crate::{CommitSeq, GroupId, Labels, SeriesRef, TimeRange};

/// One change of what queries can see.
///
/// Numbers rise, but those of different shards may be reported out of order. A snapshot's number is
/// the largest below which every change is visible in it; a cache that fills from that snapshot is
/// trimmed by every change with a larger number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The commit that it belongs to.
    pub number: CommitSeq,
    /// The groups touched, sorted.
    pub groups: Vec<GroupId>,
    /// The timestamps touched.
    pub range: TimeRange,
    /// What happened.
    pub kind: ChangeKind,
}

/// What a [`Change`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Samples were inserted or overwritten.
    Write,
    /// Samples were deleted or dropped by retention.
    Delete,
}

/// Who wants to know. Called by writers, so it must be quick and must not call the engine.
pub trait ChangeSink: Send + Sync {
    /// `change` is about to become visible.
    fn changed(&self, change: &Change);

    /// A series was defined: told once snapshots can see it and before any change of it is told, so under the lock
    /// that defines it. Telling again of a series that was told before does no harm.
    fn defined(&self, _series: SeriesRef, _labels: &Labels) {}

    /// Every change up to `through` has been told; after a crash later ones are told again, these may not be. Called
    /// before they leave the log, by background work: it may use the disk.
    fn forgotten(&self, _through: CommitSeq) {}

    /// A change that was told failed on its way to the log's device. It is not visible, but the log may turn out to have
    /// it after a crash. Told before a snapshot's number covers it.
    fn doubted(&self) {}
}
