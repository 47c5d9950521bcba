//! The structures of a segment file; each file contains encoder and decoder of one.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub(crate) mod blocks;
pub(crate) mod buckets;
pub(crate) mod footer;
pub(crate) mod hash;
pub(crate) mod letters;
pub(crate) mod lists;
pub(crate) mod names;
pub(crate) mod rows;
pub(crate) mod shapes;
pub(crate) mod strings;
pub(crate) mod varint;
