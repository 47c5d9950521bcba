//! Sealed segments: the compressed index, one immutable file each, answered where it lies.
//!
//! **Shape** (docs/formats/index.md, byte by byte). Every label pair once, sorted, front coded; a pair is its rank. Three
//! tables of rows (`rows`): *lone* series, *parts* (a group's labels: those that decide who joins it and those that all
//! its members share), and *member sets* (what is left of a member's labels, shared by all groups). A part has a *shape*:
//! a list of member sets, shared by groups that are alike, less what the group lacks of it. From each pair a list of rows
//! of each table; from hashes and group ids to rows by `buckets`.
//!
//! **Invariants**: a segment holds each series once. Nothing is loaded at open but names and schemas. A byte is used only
//! after its block's checksum was compared; what cannot be is `Corrupt` with file and offset, and only what needs that
//! block fails. No input makes it panic.
//!
//! Reading order: `blocks`, `footer`, `letters`, `strings`, `names`, `rows`, `buckets`, `shapes`, `hash`; then the reader here,
//! `lookup`, `automaton`, `matching`, `found`, `keys`, `collect`, `listing`, `counts`; then `pair_union`, `builder`,
//! `factor`, `cluster`, `columns`, `write`, `merge`, `salvage`.
//!
//! Sources: `ByteSeries` 3.2 (the compressed inverted index), `TimeUnion` 3.1 (groups, two-level lists).

mod format;
mod read;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use format::hash::HashedLabels;
pub(crate) use read::counts::PairCounts;
#[cfg(test)]
pub(crate) use read::lookup::OpenGroup;
pub(crate) use read::lookup::PartHint;
pub(crate) use read::matched_rows::MatchedRows;
pub(crate) use read::segment::Sealed;
pub(crate) use write::builder::{Builder, MergeFilter, PartInput};
pub(crate) use write::pair_union::PairSource;
