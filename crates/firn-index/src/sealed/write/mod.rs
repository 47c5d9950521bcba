//! The write path of a segment file: from label sets and other segments to a new file.

pub(crate) mod builder;
mod cluster;
mod columns;
mod factor;
mod file;
mod merge;
pub(crate) mod pair_union;
mod salvage;
