//! Mistakes on purpose: each breaks one rule, and the tests must notice it.

/// A mistake that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// What changed stays in the index.
    TrimForgotten,
    /// What is set anew does not replace what the open slab had.
    OldPointsKept,
    /// A checkpoint claims changes that nobody told yet.
    CheckpointAhead,
    /// A slab that missed changes is taken at open.
    MissedChangesTrusted,
    /// The checksums of blocks are not looked at.
    BlocksNotChecked,
}
