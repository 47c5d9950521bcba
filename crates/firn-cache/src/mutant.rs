//! Mutants: deliberate bugs that the tests must catch. They exist only with the feature
//! `test-util`.

/// A deliberate bug in the cache.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A trimmed range stays in the index.
    TrimForgotten,
    /// A rescue claims more of a slab than it has moved.
    RescuedWhole,
    /// A set does not replace the points of its range in the open slab.
    OldPointsKept,
    /// A set or delete of another program is not written to the file of changes.
    ChangeNotNoted,
    /// After a crash of the machine, unsynced slabs and changes are taken for intact.
    RunNotCompared,
    /// A checkpoint claims changes that were not announced yet.
    CheckpointAhead,
    /// At open, slabs that missed changes are kept.
    MissedChangesTrusted,
    /// At open, slabs that contain changes which a crash undid are kept.
    LostPastTrusted,
    /// Slabs that were written while a change might still appear in recovery are kept after a
    /// crash.
    DoubtIgnored,
    /// Changes that are announced again at open trim nothing.
    ReplayIgnored,
    /// The checksums of blocks are not compared.
    BlocksNotChecked,
    /// Announced changes stay in the inbox.
    ChangesNotTaken,
    /// No change reaches the cached answers.
    InvalidationOff,
    /// A change trims the slabs, but not the decoded answers in memory.
    HotNotTrimmed,
    /// An answer is kept although the cache was cleared while it was computed.
    FillOutlivesClear,
    /// A clear restarts the numbering of read tickets.
    TicketsReused,
    /// An answer is kept without the changes since its snapshot being cut out of it.
    FillNotTrimmed,
    /// The lock is released between cutting the changes out of an answer and keeping it.
    FillKeptLater,
    /// A new series is not matched against the selectors.
    NewSeriesIgnored,
    /// A change trims only the steps at its own times, not those whose window reaches it.
    WindowIgnored,
    /// An answer from a later snapshot is returned to an earlier one.
    LaterAnswerReturned,
    /// A text is kept although the cache was cleared while it was made.
    TextOutlivesClear,
    /// A text is kept beside an answer from a later snapshot.
    EarlierTextKept,
}

/// Whether `$holder` has the mutant; the constant `false` without the feature.
#[cfg(feature = "test-util")]
macro_rules! mutant {
    ($holder:expr, $mutant:ident) => {
        $holder.mutant == Some($crate::mutant::Mutant::$mutant)
    };
}
#[cfg(not(feature = "test-util"))]
macro_rules! mutant {
    ($holder:expr, $mutant:ident) => {
        false
    };
}
pub(crate) use mutant;
