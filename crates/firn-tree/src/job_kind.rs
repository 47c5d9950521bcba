//! The kinds of jobs.

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobKind {
    /// Retention: drops whole partitions.
    Drop,
    /// Merges level 0, and the tables of level 1 that it overlaps, into level 1.
    Compact,
    /// Uploads the fast tier's tables of some level-2 partitions.
    Upload,
    /// Merges tables of level 2 with their patches.
    MergePatches,
    /// Merges old partitions of level 2 into a longer one.
    MergePartitions,
    /// Rewrites a table without samples that deletes hide.
    Clean,
    /// Rewrites a damaged table without its lost blocks.
    Repair,
}

impl JobKind {
    /// Every kind that [`crate::Tree::plan`] plans.
    pub const ALL: [JobKind; 6] = [
        JobKind::Drop,
        JobKind::Compact,
        JobKind::Upload,
        JobKind::MergePatches,
        JobKind::MergePartitions,
        JobKind::Clean,
    ];

    /// The kind's name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            JobKind::Drop => "drop",
            JobKind::Compact => "compact",
            JobKind::Upload => "upload",
            JobKind::MergePatches => "merge_patches",
            JobKind::MergePartitions => "merge_partitions",
            JobKind::Clean => "clean",
            JobKind::Repair => "repair",
        }
    }
}
