//! Building a segment from any mix of label sets and other segments.

use firn_env::DiskFile;
use firn_model::{Error, GroupId, Result};

use crate::sealed::Sealed;

/// Collects groups in any order as ids of pairs, some tens of bytes per series, and writes one file.
#[derive(Debug, Default)]
pub(crate) struct Builder {}

/// A group, or some of its members: what is given twice is taken once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartInput<'a> {
    pub(crate) group: GroupId,
    /// A group of one: `identity` is all its labels, it has slot 0 and no [`Builder::member`] follows.
    pub(crate) lone: bool,
    /// The labels that decide who joins, as ids of [`Builder::pair`], in any order.
    pub(crate) identity: &'a [u32],
    /// The first slot that was never given (0: the one after the highest here).
    pub(crate) next_slot: u32,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTotals {
    pub(crate) file_bytes: u64,
    pub(crate) series_count: u64,
    pub(crate) group_count: u64,
}

/// Which series stay when segments merge.
pub(crate) trait Live {
    /// Removes the slots of `group` that are to be forgotten. A lone series has slot 0.
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>);
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder::default()
    }

    /// The id of a pair in this builder.
    pub(crate) fn pair(&mut self, name: &[u8], value: &[u8]) -> u32 {
        let _ = (name, value);
        0
    }

    /// Begins a part; its members follow, unless it is lone.
    pub(crate) fn part(&mut self, part: PartInput<'_>) {
        let _ = (part.group, part.lone, part.identity, part.next_slot);
    }

    /// A member of the part that was begun last: its slot and all labels beside the identity.
    pub(crate) fn member(&mut self, slot: u32, pairs: &[u32]) {
        let _ = (slot, pairs);
    }

    /// Takes in what is alive of another segment.
    ///
    /// # Errors
    /// `Corrupt` if the segment is damaged.
    pub(crate) fn merge(&mut self, segment: &Sealed, live: &dyn Live) -> Result<()> {
        let _ = (segment, live);
        Err(Error::internal("sealed segments are not reachable yet"))
    }

    /// Writes the segment to an empty file and makes it durable.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails; `TooLarge` when ids are used up.
    pub(crate) fn finish(self, file: &dyn DiskFile) -> Result<SegmentTotals> {
        let _ = file;
        Err(Error::internal("sealed segments are not reachable yet"))
    }
}
