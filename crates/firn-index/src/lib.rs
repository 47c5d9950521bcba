//! Index: the known series, and which of them match a selection.
//!
//! **Owns** label names and pairs (each stored once), groups and their members, the maps from label
//! sets to [`SeriesRef`](firn_model::SeriesRef) and back, posting lists, the definitions that the
//! log keeps, and the segment files `index/<n>.seg`.
//!
//! **Never** sees a sample, a time range or the log. It does not know when a group has data:
//! callers narrow [`Matches`] by time, and a removal receives the series without data. Ids are
//! never reused.
//!
//! **Segments.** The *active* segment, in memory, takes new series. It is *frozen* while a
//! [`SealJob`] writes it to a *sealed* one: a compressed file that is mapped and never loaded
//! completely. A [`MergeJob`] makes one file of several and may drop series without data. A group
//! may have members in several segments; a label set is in exactly one. The active and static
//! buffers of ByteSeries (SoCC 2020), section 3.2, have the same roles.
//!
//! **Path through.** [`Index::resolve`] finds or defines series. A definition is *pending* until
//! [`Index::take_pending`] returns its bytes for the log. Jobs are planned, run while other calls
//! continue, and return a manifest part; once the manifest has it, [`Index::apply`] swaps the list
//! of segments. Queries use [`Index::view`].
//!
//! **Invariants**
//! - A label set has exactly one `SeriesRef`, in any split into group and member labels and in any
//!   segment. A removed label set that returns gets a new reference.
//! - Group ids are dense per shard and never reused; slots are dense per group.
//! - A definition contains its group's labels, so that it can be replayed alone, twice, and in any
//!   order of streams.
//! - An [`IndexView`] never contains a series that was defined after it was created, and still
//!   contains the series that a later removal drops.
//! - A removed reference belongs to an older [`Index::generation`].
//!
//! **Structure in memory.** A pair `name=value` is a `u32`, and a label set is a list of pairs.
//! Member label sets are interned, since a thousand hosts have the same thousand members. A *part*
//! has consecutive members of a group: the group's labels, the labels that all these members share,
//! and one `u32` per slot. Posting lists are run coded: pair to parts, pair to member sets, member
//! set to parts. Lists contain groups, and a second level finds the members, as in TimeUnion
//! (SIGMOD 2022), section 3.1.
//!
//! Reading order: `options`, `pair`, `lock`, `id_set`, `matches`, `key_table`, `memory`, `sealed`,
//! `definition`, `group_rules`, `catalog`, `version`, `limits`, `known_refs`, `jobs`, `index`,
//! `matched`, `view`, `presence`, `listing`, `cardinality`. Imports: `index` uses `jobs`, which
//! uses `version`, which uses `memory` and `sealed`.
//!
//! Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod cardinality;
mod catalog;
mod definition;
mod group_rules;
mod id_set;
mod index;
mod jobs;
mod key_table;
mod known_refs;
mod limits;
mod listing;
mod lock;
mod matched;
mod matches;
mod memory;
mod options;
mod pair;
mod presence;
mod sealed;
#[cfg(test)]
mod tests;
mod version;
mod view;

pub use cardinality::Cardinality;
pub use group_rules::GroupRule;
pub use index::Index;
pub use jobs::{
    Liveness, LostSeries, MergeJob, ReadCopy, Removal, Repaired, SealJob, WRITE_BUFFER_BYTES,
};
pub use matched::MatchedSeries;
pub use matches::{GroupMatch, Matches, Member, Members};
pub use options::{GroupBy, IndexOptions, SeriesLimits};
pub use presence::{LookupOutcome, Presence};
pub use view::{GroupInfo, IndexStats, IndexView};
