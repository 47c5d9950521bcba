//! Index: which series are there, and which of them match.
//!
//! **Owns** symbols (label pairs, each stored once), groups and their members, the way from a label
//! set to its [`SeriesRef`](firn_model::SeriesRef) and back, posting lists, the definitions that
//! the log keeps for it, and the sealed segment files `index/<n>.seg`.
//!
//! **Never** sees a sample, a time range or the log; never knows which group has data when (the
//! caller narrows [`Matches`] by that, and says at a removal what has none); never gives an id twice.
//!
//! **Segments** (`ByteSeries` 3.2): one *active*, in memory, takes what is new; it is *frozen* while a
//! [`SealJob`] writes it to a *sealed* one, a compressed file that is mapped, never loaded. A
//! [`MergeJob`] makes one of several, and may leave out what has no data. A group may have members in
//! several segments; a label set is in one.
//!
//! **Way through**: [`Index::resolve`] finds or defines; a definition is *pending* until
//! [`Index::take_pending`] hands its bytes to the log. Jobs are planned, run while others go on, put into
//! the manifest, then [`Index::apply`] swaps the list of segments. [`Index::view`] is the side of the
//! queries.
//!
//! **Invariants**
//! - A label set has exactly one `SeriesRef`, however it is split into group and member labels and
//!   whatever segment it is in. One that was removed and comes back has another.
//! - Group ids are dense per shard and never reused; slots are dense per group.
//! - A definition carries its group's labels, so that each can be replayed alone, twice, and in any
//!   order between streams.
//! - An [`IndexView`] never shows a series that was defined after it was taken, and shows what a later
//!   removal leaves out.
//! - A reference that was removed is of another [`Index::generation`].
//!
//! **Shape in memory** (`TimeUnion` 3.1: lists hold groups, a second level finds the members). A pair
//! `name=value` is a `u32`. A label set is a list of pairs; the member label sets are interned, since a
//! thousand hosts have the same thousand members. A *part* is some members of a group in a row: the
//! group's labels, those that all these members share beside, and one `u32` per slot. Posting lists are
//! run coded: pair to parts, pair to member sets, member set to parts.
//!
//! Reading order: `options`, `arena`, `id_set`, `posting`, `pairs`, `sets`, `parts`, `state`,
//! `definition`, `lookup`, `layers`, `limits`, `index`, `matching`, `keys`, `key_table`, `found`, `view`,
//! `cardinality`, `catalog`, `jobs`, `sealed`.

#![forbid(unsafe_code)]

mod cardinality;
mod catalog;
mod definition;
mod id_set;
mod index;
mod jobs;
mod key_table;
mod known_refs;
mod limits;
mod matched;
mod matches;
mod memory;
mod options;
mod pair;
mod sealed;
#[cfg(test)]
mod tests;
mod version;
mod view;

pub use cardinality::Cardinality;
pub use index::Index;
pub use jobs::{Liveness, LostSeries, MergeJob, ReadCopy, Removal, Repaired, SealJob};
pub use matched::MatchedSeries;
pub use matches::{GroupMatch, Matches, Member, Members};
pub use options::{IndexOptions, SeriesLimits};
pub use view::{GroupInfo, IndexStats, IndexView};
