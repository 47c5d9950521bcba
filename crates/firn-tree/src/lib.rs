//! Tree: keeps columns that left memory, by group and time: young ones on the fast tier, old ones
//! on the slow tier.
//!
//! **Owns** tables (sorted immutable files), time partitions, the three levels, patches,
//! compaction, upload, retention, and the caches of slow-tier blocks in memory and on the fast
//! tier. Sources: TimeUnion (SIGMOD 2022), section 3.3 (levels, partitions, patches); Heracles,
//! section 3.1.3 (columns of a group apart from its time column, so that one member is read alone).
//!
//! **Never** knows a label, the log or the head; never starts a thread; never makes its own edits
//! durable: it returns [`Edit`]s, and the engine's manifest decides.
//!
//! **Write path**: [`Tree::write_level0`] cuts a flush into one table per partition; [`Tree::plan`]
//! looks at a [`Version`] and returns the next [`Job`]; [`Job::run`] writes new tables that nothing
//! refers to yet; the engine makes the [`Edit`] durable, and [`Tree::apply`] installs the next
//! version. **Read path**: [`Version::scan`].
//!
//! **Invariants**
//! - A file exists before an edit names it, and as long as a manifest or a reader can name it.
//! - Partitions are aligned, so two of them are nested or disjoint; those of level 1, and those of
//!   level 2, are disjoint (or equal).
//! - For one group and one range of time, level 0 is newer than level 1, level 1 than the patches
//!   of level 2, and those than its tables. So every merge takes *all* tables of the fast tier that
//!   overlap its inputs, and the ranges of [`firn_model::CommitSeq`] of any two tables that may
//!   contain the same sample never interleave: newest wins by commit, never by age of file.
//! - A chunk whose newest commit is newer than a delete has had that delete applied: merges hide
//!   deleted samples between their inputs first. So a reader hides samples of older chunks only.
//! - Tables of one level-1 partition, and tables (patches apart) of one level-2 partition, have
//!   disjoint ranges of groups.
//! - Every byte of a table is under a checksum that also covers its offset and its table.
//!
//! Reading order: `options`, `partition`, `record`, `header`, `block`, `presence`, `suffix`,
//! `writer`, `output`, `store`, `cache`, `slow_cache`, `table_map`, `table`, `version`, `scan`,
//! `cursor`, `layout`, `size`, `plan`, `scrub`, `inspect`, `job_kind`, `job`, `edit`, `tree`,
//! `stats`. Bytes of a table: docs/formats/table.md. Terms: `docs/glossary.md`.
//!
//! When the layout of a table changes, change `block`, `suffix`, the version in `header` and the
//! document in one commit.

#![forbid(unsafe_code)]

mod block;
mod cache;
mod cursor;
mod edit;
mod header;
mod inspect;
mod job;
mod job_kind;
mod layout;
mod mutant;
mod options;
mod output;
mod partition;
mod plan;
mod presence;
mod record;
mod scan;
mod scrub;
mod size;
mod slow_cache;
mod stats;
mod store;
mod suffix;
mod table;
mod table_map;
mod tree;
mod version;
mod writer;

#[cfg(test)]
mod tests;

pub use edit::Edit;
pub use inspect::{BlockOutline, ChunkOutline};
pub use job::Job;
pub use job_kind::JobKind;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use mutant::Mutant;
pub use options::TreeOptions;
pub use partition::{Partition, PartitionLen, PartitionLengths};
pub use plan::{Deletes, PlanTimes, TierScope};
pub use record::{Level, TableId, TableRecord};
pub use scan::{ColumnRequest, Prefetch, ReadAhead, UpcomingGroup, UpcomingScan};
pub use scrub::{Damage, LostSamples};
pub use slow_cache::SlowCacheStats;
pub use stats::{LevelStats, TrafficStats, TreeStats};
pub use tree::{FlushChunks, SlowTables, Tree};
pub use version::{Directories, PresenceReader, Version};
