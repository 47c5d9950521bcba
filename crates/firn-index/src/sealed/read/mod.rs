//! The read path of a segment file: lookups, selections, listings, salvage.

mod automaton;
mod candidates;
mod collect;
pub(crate) mod counts;
mod keys;
pub(crate) mod listing;
pub(crate) mod lookup;
pub(crate) mod matched_rows;
mod matching;
pub(crate) mod salvage;
pub(crate) mod segment;
