//! Index: which series are there, and which of them match.
//!
//! **Owns** symbols (label pairs, each stored once), groups and their members, the way from a label
//! set to its [`SeriesRef`](firn_model::SeriesRef) and back, posting lists, the definitions that
//! the log keeps for it, and the sealed segment files `index/<n>.seg`.
//!
//! **Never** sees a sample, a time range or the log; never knows which group has data when (the
//! caller narrows [`Matches`] by that); never takes an id back.
//!
//! **Way through**: [`Index::resolve`] finds or defines; a definition is *pending* until
//! [`Index::take_pending`] hands its bytes to the log, *unsealed* until a [`SealJob`] wrote it to a
//! segment and [`Index::apply`] was told. [`Index::view`] is the side of the queries.
//!
//! **Invariants**
//! - A label set has exactly one `SeriesRef`, however it is split into group and member labels.
//! - Group ids are dense per shard and never reused; slots are dense per group.
//! - A definition carries its group's labels, so that each can be replayed alone, twice, and in any
//!   order between streams.
//! - An [`IndexView`] never shows a series that was defined after it was taken.
//! - Nothing is ever removed in this version: ids and posting lists only grow.
//!
//! **Shape in memory** (`TimeUnion` 3.1: lists hold groups, a second level finds the members;
//! `ByteSeries` 3.2: label pairs once, postings compressed). A pair `name=value` is a `u32`. A label
//! set is a list of pairs; the member label sets are interned, since a thousand hosts have the same
//! thousand members. A group is its label list and one `u32` per slot. Posting lists are run coded:
//! pair to groups, pair to member sets, member set to groups.
//!
//! Reading order: `options`, `arena`, `idset`, `posting`, `pairs`, `sets`, `groups`, `state`,
//! `definition`, `lookup`, `limits`, `index`, `matching`, `keys`, `key_table`, `view`, `segment`,
//! `segment_read`, `part`, `seal`, `sealed`.

#![forbid(unsafe_code)]

mod arena;
mod definition;
mod groups;
mod idset;
mod index;
#[allow(dead_code)]
mod key_table;
mod keys;
mod limits;
mod lookup;
mod matching;
mod options;
mod pairs;
mod part;
mod posting;
mod seal;
#[allow(dead_code, unused_imports)]
mod sealed;
mod segment;
mod segment_read;
mod sets;
mod state;
#[cfg(test)]
mod tests;
mod view;

pub use index::Index;
pub use limits::SeriesLimits;
pub use matching::{GroupMatch, Matches, Member, Members};
pub use options::IndexOptions;
pub use seal::SealJob;
pub use view::{Cardinality, GroupInfo, IndexStats, IndexView};
