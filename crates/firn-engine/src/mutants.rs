//! Mutants and probe points: the parts of the engine that exist for its simulation only.
//!
//! A *mutant* is a deliberate bug that breaks one consistency rule. The simulation must catch each.
//! A *probe point* is a line at which a test runs the steps that another thread could run there.
//! Both are compiled only with the feature `test-util`; without it [`mutant!`] is `false` and
//! [`probe!`] is nothing.

/// Whether the engine, rooms or options `$owner` run as the mutant `$name`.
#[cfg(feature = "test-util")]
macro_rules! mutant {
    ($owner:expr, $name:ident) => {
        $owner.is_mutant($crate::mutants::Mutant::$name)
    };
}

/// Whether the engine, rooms or options `$owner` run as the mutant `$name`: never, without the
/// feature `test-util`.
#[cfg(not(feature = "test-util"))]
macro_rules! mutant {
    ($owner:expr, $name:ident) => {
        $crate::mutants::is_none(&$owner)
    };
}

/// No value runs as a mutant without the feature `test-util`.
#[cfg(not(feature = "test-util"))]
#[inline(always)]
pub(crate) fn is_none<T: ?Sized>(_owner: &T) -> bool {
    false
}

/// Runs the test's probe, if one is set, at the point `$name`.
#[cfg(feature = "test-util")]
macro_rules! probe {
    ($owner:expr, $name:ident) => {
        $owner.reach($crate::mutants::ProbePoint::$name)
    };
}

/// Runs nothing without the feature `test-util`.
#[cfg(not(feature = "test-util"))]
macro_rules! probe {
    ($owner:expr, $name:ident) => {
        ()
    };
}

/// A function that a test runs at every [`ProbePoint`].
#[cfg(feature = "test-util")]
pub type Probe = Box<dyn Fn(ProbePoint) + Send + Sync>;

/// A point at which another thread may interleave.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePoint {
    /// Series are about to leave the index.
    SeriesLeave,
    /// A tree job has written its tables; no version names them yet.
    JobRun,
    /// A commit failed; its waiters have rolled nothing back yet.
    CommitFailed,
    /// Inside a mutant.
    Mutant,
}

/// A deliberate bug that the simulation must catch.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A write is acknowledged before the log is synced.
    SyncSkipped,
    /// Rows become visible before the log is synced.
    PublishedBeforeDurable,
    /// A write is acknowledged before it is visible.
    AcknowledgedBeforeVisible,
    /// The log is truncated before the manifest names the tables.
    LogCutBeforeManifest,
    /// The manifest is advanced before the tables are written.
    ManifestBeforeTables,
    /// The log floor covers rows that the flush did not take.
    FloorTooHigh,
    /// The head drops its blocks before the new tree version is installed.
    SourceDroppedBeforeView,
    /// The head recycles blocks that readers from before the flush still use.
    RecycledUnderReaders,
    /// Definitions of new series are not logged.
    DefinitionsNotLogged,
    /// After a failed commit, definitions count as logged until its writer has rolled it back.
    DefinitionsRequeuedLate,
    /// A transaction is logged when definitions in other streams are written but not durable.
    DefinitionsOnlyWritten,
    /// Commit numbers start again after a restart.
    SequenceForgotten,
    /// Rows of a failed commit stay staged, and the next commit publishes them.
    FailedCommitPublished,
    /// Sources are merged by level instead of commit order.
    MergedByLevel,
    /// Definitions leave the log before an index segment contains them.
    IndexNotSealed,
    /// A transaction is visible before it is logged.
    TransactionPublishedBeforeDurable,
    /// A transaction becomes visible one shard after the other.
    TransactionShownByShard,
    /// A transaction has one log entry per shard.
    TransactionLoggedByShard,
    /// Recovery applies a transaction's rows after all other rows of their shards.
    TransactionReplayedLast,
    /// A transaction commits without validation.
    TransactionNotValidated,
    /// Another transaction may commit between validation and logging.
    TransactionLockDropped,
    /// A delete does not end the runs of rows that it touches.
    RunsNotClosed,
    /// A delete also hides samples that were written after it.
    DeleteHidesLater,
    /// A flush truncates the log behind deletes that the manifest does not contain.
    TombstonesNotInManifest,
    /// A flush merges rows from both sides of a delete without applying it.
    TombstonesForgottenAtFlush,
    /// Tables are merged without applying the deletes between them.
    TombstonesForgottenAtMerge,
    /// Tables are rewritten with deletes that only the log contains and that may not be durable.
    UnflushedDeletesApplied,
    /// A new manifest, a copy and the slow tier name deletes that only the log contains, without
    /// the rows of their transactions.
    UnflushedDeletesNamed,
    /// Deletes are dropped while tables still contain samples that they hide.
    TombstonesForgottenEarly,
    /// Recovery ignores deletes in the log.
    DeletesNotReplayed,
    /// Series leave the index although one was written during the removal.
    SeriesRemovedUnchecked,
    /// A removal of series looks for samples in tables only, not in memory.
    MembersOfMemoryRemoved,
    /// Lists of series ignore deletes.
    DeletedListed,
    /// Index files are removed before the manifest names their replacement.
    IndexFilesDroppedEarly,
    /// Definitions below the log floor are replayed, including those of removed series.
    RemovedSeriesReplayed,
    /// The stream count changes while the log still contains unflushed rows.
    StreamsChangedUnflushed,
    /// A fenced writer continues to write and remove objects on the slow tier.
    FenceSkipped,
    /// An abandoned copy of a folder takes the slow tier back.
    LeftCopyNotFenced,
    /// Objects are removed although the slow tier's manifest still names them.
    ObjectsRemovedEarly,
    /// Retention drops partitions that are only partly expired.
    DroppedTooEarly,
    /// Checksums of the slow-tier cache are not verified.
    FlippedBlockServed,
    /// Tables flushed while a tree job ran are dropped with the inputs of the job.
    FlushDuringJobLost,
    /// Rows are written without a memory reservation.
    MemoryNotReserved,
    /// Under memory pressure the head drops rows that no table contains.
    PressureDropsRows,
    /// Writes are accepted without limit while the slow tier is down.
    FastTierUnbounded,
    /// A cache that survived a crash is not notified of the changes in the log.
    ChangesNotReplayed,
    /// A flush truncates the log without recording which changes can no longer be announced.
    CutNotRecorded,
    /// The cache is not notified of a change whose log write failed.
    FailedCommitNotAnnounced,
}

#[cfg(feature = "test-util")]
impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 48] = [
        Mutant::SyncSkipped,
        Mutant::PublishedBeforeDurable,
        Mutant::AcknowledgedBeforeVisible,
        Mutant::LogCutBeforeManifest,
        Mutant::ManifestBeforeTables,
        Mutant::FloorTooHigh,
        Mutant::SourceDroppedBeforeView,
        Mutant::RecycledUnderReaders,
        Mutant::DefinitionsNotLogged,
        Mutant::DefinitionsRequeuedLate,
        Mutant::DefinitionsOnlyWritten,
        Mutant::SequenceForgotten,
        Mutant::FailedCommitPublished,
        Mutant::MergedByLevel,
        Mutant::IndexNotSealed,
        Mutant::TransactionPublishedBeforeDurable,
        Mutant::TransactionShownByShard,
        Mutant::TransactionLoggedByShard,
        Mutant::TransactionReplayedLast,
        Mutant::TransactionNotValidated,
        Mutant::TransactionLockDropped,
        Mutant::RunsNotClosed,
        Mutant::DeleteHidesLater,
        Mutant::TombstonesNotInManifest,
        Mutant::TombstonesForgottenAtFlush,
        Mutant::TombstonesForgottenAtMerge,
        Mutant::UnflushedDeletesApplied,
        Mutant::UnflushedDeletesNamed,
        Mutant::TombstonesForgottenEarly,
        Mutant::DeletesNotReplayed,
        Mutant::SeriesRemovedUnchecked,
        Mutant::MembersOfMemoryRemoved,
        Mutant::DeletedListed,
        Mutant::IndexFilesDroppedEarly,
        Mutant::RemovedSeriesReplayed,
        Mutant::StreamsChangedUnflushed,
        Mutant::FenceSkipped,
        Mutant::LeftCopyNotFenced,
        Mutant::ObjectsRemovedEarly,
        Mutant::DroppedTooEarly,
        Mutant::FlippedBlockServed,
        Mutant::FlushDuringJobLost,
        Mutant::MemoryNotReserved,
        Mutant::PressureDropsRows,
        Mutant::FastTierUnbounded,
        Mutant::ChangesNotReplayed,
        Mutant::CutNotRecorded,
        Mutant::FailedCommitNotAnnounced,
    ];

    /// The same mutant of the tree, if it is one.
    pub(crate) fn of_tree(self) -> Option<firn_tree::Mutant> {
        match self {
            Mutant::DroppedTooEarly => Some(firn_tree::Mutant::DroppedTooEarly),
            Mutant::FlippedBlockServed => Some(firn_tree::Mutant::FlippedBlockServed),
            Mutant::FlushDuringJobLost => Some(firn_tree::Mutant::FlushDuringJobLost),
            _ => None,
        }
    }
}
