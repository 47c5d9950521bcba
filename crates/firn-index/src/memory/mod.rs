//! One segment in memory: new series until they are written to a file.

pub(crate) mod arena;
mod counts;
pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod lookup;
pub(crate) mod matching;
pub(crate) mod pairs;
pub(crate) mod parts;
pub(crate) mod posting;
pub(crate) mod sets;
