//! Sealed segments: compressed, immutable index files that are searched in place.
//!
//! **Content** (docs/formats/index.md describes every byte). Label pairs are stored once, sorted
//! and front coded; a pair is its rank. Three tables contain rows: *lone* series, *parts* (a
//! group's identity labels and the labels that all its members share), and *member sets* (the
//! remaining labels of members, shared by all groups). A part has a *shape*: a list of member sets
//! that similar groups share, minus the members that the part lacks. Each pair has a posting list
//! per table; buckets map hashes and group ids to rows.
//!
//! **Invariants**: a segment contains each series once. Opening loads only names and schemas. A
//! byte is used only after its block's checksum was verified. A damaged block is `Corrupt` with
//! file and offset and fails only the calls that need it. No input causes a panic.
//!
//! Reading order: `format` (the structures: each is encoded and decoded in one file), `read`
//! (lookups, selections, listings), `write` (builder, clustering, merge). Imports follow this
//! order: `write` uses `read`, and both use `format`.
//!
//! Sources: the compressed inverted index of ByteSeries (SoCC 2020), section 3.2.2; the groups and
//! two-level lists of TimeUnion (SIGMOD 2022), section 3.1.

mod format;
mod read;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use format::hash::HashedLabels;
pub(crate) use format::strings::{CODE_BYTES, code_count_max};
pub(crate) use read::counts::PairCounts;
pub(crate) use read::listing::{SealedNames, SealedValues};
#[cfg(test)]
pub(crate) use read::lookup::OpenGroup;
pub(crate) use read::lookup::{LabelReader, PartHint};
pub(crate) use read::matched_rows::MatchedRows;
pub(crate) use read::segment::Sealed;
pub(crate) use write::builder::{Builder, MergeFilter, PartInput};
pub(crate) use write::pair_union::PairSource;
