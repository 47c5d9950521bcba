//! Lookups, selections and listings on a segment file.

mod automaton;
mod collect;
pub(crate) mod counts;
pub(crate) mod found;
mod keys;
mod listing;
pub(crate) mod lookup;
mod matching;
pub(crate) mod salvage;
pub(crate) mod segment;
