//! Mistakes on purpose: each breaks one rule, and the tests must notice it.

/// A mistake that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// What changed stays in the index.
    TrimForgotten,
    /// Of a slab that goes, more is taken for kept than was asked for and moved.
    RescuedWhole,
    /// What is set anew does not replace what the open slab had.
    OldPointsKept,
    /// A set or delete of another program is made and not noted.
    ChangeNotNoted,
    /// What was not synced when the machine went down is taken for what was written.
    RunNotCompared,
    /// A checkpoint claims changes that nobody told yet.
    CheckpointAhead,
    /// A slab that missed changes is taken at open.
    MissedChangesTrusted,
    /// What knows of changes that a crash took back is taken at open.
    LostPastTrusted,
    /// What is computed while a change may come up in a crash is taken after one.
    DoubtIgnored,
    /// Changes that are told again at open cut nothing.
    ReplayIgnored,
    /// The checksums of blocks are not looked at.
    BlocksNotChecked,
    /// No change reaches the cached answers.
    InvalidationOff,
    /// A change reaches the slabs, and not the answers that are in memory as they are given.
    HotNotTrimmed,
    /// An answer is kept although all answers were given up meanwhile.
    FillOutlivesClear,
    /// After all was given up tickets of reads are numbered anew.
    TicketsReused,
    /// An answer is kept without looking at what changed since its snapshot.
    FillNotTrimmed,
    /// What changes between the look at what has changed and the keeping is missed.
    FillKeptLater,
    /// A new series is not matched against the selectors.
    NewSeriesIgnored,
    /// A change touches only the steps at its own time, not those whose window reaches it.
    WindowIgnored,
    /// An answer from a later snapshot is given to an earlier one.
    LaterAnswerGiven,
}
