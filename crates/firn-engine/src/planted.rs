//! Mistakes that the simulation must find. Each breaks one rule of the design's consistency page.

/// A mistake made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A write is acknowledged before the log is synced.
    SyncSkipped,
    /// Rows become visible before the log is synced.
    PublishedBeforeDurable,
    /// A write is acknowledged before it is visible.
    AcknowledgedBeforeVisible,
    /// The log is purged before the manifest names the tables.
    LogCutBeforeManifest,
    /// The manifest names tables that are not written yet.
    ManifestBeforeTables,
    /// The log's floor covers rows that the flush did not take.
    FloorTooHigh,
    /// The head drops its blocks before the new tree version is installed.
    SourceDroppedBeforeView,
    /// The head gives blocks back although readers are left that began before the flush.
    RecycledUnderReaders,
    /// Definitions of new series are not logged.
    DefinitionsNotLogged,
    /// Who goes on after a failed commit takes the definitions in it for logged until its writer has undone it.
    DefinitionsRequeuedLate,
    /// A transaction is logged when definitions in other streams are written, not when they are durable.
    DefinitionsOnlyWritten,
    /// After a restart commit numbers start again.
    SequenceForgotten,
    /// Rows of a failed commit stay staged and are published by the next one.
    FailedCommitPublished,
    /// Sources are merged by where they lie, not by commit order.
    MergedByLevel,
    /// Definitions leave the log before an index segment holds them.
    IndexNotSealed,
    /// A transaction is visible before the log has it.
    TransactionPublishedBeforeDurable,
    /// A transaction becomes visible in one shard after the other.
    TransactionShownByShard,
    /// A transaction has an entry of its own for the rows of each shard.
    TransactionLoggedByShard,
    /// Recovery takes a transaction's rows after all others of their shards.
    TransactionReplayedLast,
    /// A transaction commits whatever others touched meanwhile.
    TransactionNotValidated,
    /// Others may commit between the validation of a transaction and its place in the log.
    TransactionLockDropped,
    /// A delete does not end the runs of rows that it touches.
    RunsNotClosed,
    /// A delete hides what was written after it too.
    DeleteHidesLater,
    /// A flush cuts the log behind deletes that it does not put into the manifest.
    TombstonesNotInManifest,
    /// A flush unites rows of both sides of a delete without applying it.
    TombstonesForgottenAtFlush,
    /// Tables are merged without applying the deletes between them.
    TombstonesForgottenAtMerge,
    /// Tables are written anew with deletes applied that only the log has, which may not be durable.
    UnflushedDeletesApplied,
    /// A new manifest, a copy and the slow tier's manifest name deletes that only the log has, without the rows of their
    /// transactions.
    UnflushedDeletesNamed,
    /// Deletes are forgotten while tables still have what they hide.
    TombstonesForgottenEarly,
    /// Deletes that the log gives back are not taken.
    DeletesNotReplayed,
    /// Series leave the index although one was written while it was written anew.
    SeriesRemovedUnchecked,
    /// Whether a series has samples is asked of tables only, when series leave the index.
    MembersOfMemoryRemoved,
    /// Lists of series are made as if there were no deletes.
    DeletedListed,
    /// Index files that a merge replaces go before the manifest names the new one.
    IndexFilesDroppedEarly,
    /// Definitions below the log's floor are taken in again, those of series that have left among them.
    RemovedSeriesReplayed,
    /// The number of the log's streams is changed although the log has what no table has.
    StreamsChangedUnflushed,
    /// A writer whose slow tier another has taken over goes on writing and removing there.
    FenceSkipped,
    /// A folder that was copied and left behind takes the slow tier back from the copy.
    LeftCopyNotFenced,
    /// Objects go at once, though the slow tier's manifest still names them.
    ObjectsRemovedEarly,
    /// Retention drops partitions that are over in part.
    DroppedTooEarly,
    /// What the cache of the slow tier has is not checked.
    FlippedBlockServed,
    /// What was flushed while a job of the tree ran goes with what the job replaces.
    FlushDuringJobLost,
    /// Rows are written without memory being set aside for them.
    MemoryNotReserved,
    /// Short of memory, the head lets go of rows that are in no table yet.
    PressureDropsRows,
    /// Writes are taken however much waits for a slow tier that is down.
    FastTierUnbounded,
    /// A cache that outlived a crash is not told again what the log has.
    ChangesNotToldAgain,
    /// A flush cuts the log and does not note which changes nobody can be told again.
    CutNotNoted,
    /// Nobody is told that a change failed on its way to the log's device.
    FailedCommitNotTold,
}

impl Planted {
    /// Every mistake.
    pub const ALL: [Planted; 48] = [
        Planted::SyncSkipped,
        Planted::PublishedBeforeDurable,
        Planted::AcknowledgedBeforeVisible,
        Planted::LogCutBeforeManifest,
        Planted::ManifestBeforeTables,
        Planted::FloorTooHigh,
        Planted::SourceDroppedBeforeView,
        Planted::RecycledUnderReaders,
        Planted::DefinitionsNotLogged,
        Planted::DefinitionsRequeuedLate,
        Planted::DefinitionsOnlyWritten,
        Planted::SequenceForgotten,
        Planted::FailedCommitPublished,
        Planted::MergedByLevel,
        Planted::IndexNotSealed,
        Planted::TransactionPublishedBeforeDurable,
        Planted::TransactionShownByShard,
        Planted::TransactionLoggedByShard,
        Planted::TransactionReplayedLast,
        Planted::TransactionNotValidated,
        Planted::TransactionLockDropped,
        Planted::RunsNotClosed,
        Planted::DeleteHidesLater,
        Planted::TombstonesNotInManifest,
        Planted::TombstonesForgottenAtFlush,
        Planted::TombstonesForgottenAtMerge,
        Planted::UnflushedDeletesApplied,
        Planted::UnflushedDeletesNamed,
        Planted::TombstonesForgottenEarly,
        Planted::DeletesNotReplayed,
        Planted::SeriesRemovedUnchecked,
        Planted::MembersOfMemoryRemoved,
        Planted::DeletedListed,
        Planted::IndexFilesDroppedEarly,
        Planted::RemovedSeriesReplayed,
        Planted::StreamsChangedUnflushed,
        Planted::FenceSkipped,
        Planted::LeftCopyNotFenced,
        Planted::ObjectsRemovedEarly,
        Planted::DroppedTooEarly,
        Planted::FlippedBlockServed,
        Planted::FlushDuringJobLost,
        Planted::MemoryNotReserved,
        Planted::PressureDropsRows,
        Planted::FastTierUnbounded,
        Planted::ChangesNotToldAgain,
        Planted::CutNotNoted,
        Planted::FailedCommitNotTold,
    ];

    /// Those that are the tree's.
    #[cfg(feature = "test-util")]
    pub(crate) fn of_tree(self) -> Option<firn_tree::Mutant> {
        match self {
            Planted::DroppedTooEarly => Some(firn_tree::Mutant::DroppedTooEarly),
            Planted::FlippedBlockServed => Some(firn_tree::Mutant::FlippedBlockServed),
            Planted::FlushDuringJobLost => Some(firn_tree::Mutant::FlushDuringJobLost),
            _ => None,
        }
    }
}
