//! Time columns: strictly rising timestamps. Regular ones cost some bytes in total, ones with
//! jitter the bits of their distance from a line.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{Result, Timestamp};

use crate::effort::Effort;
use crate::integers::{ColumnKind, decode_integers, encode_integers};
use crate::varint::corrupt;

/// Appends `times` (at least one, strictly rising) relative to `base`, which must not exceed the
/// first.
pub(crate) fn encode_times(base: Timestamp, times: &[Timestamp], out: &mut Vec<u8>) {
    // A distance over 2^63 wraps in both directions.
    let distances: Vec<i64> = times.iter().map(|ts| ts.wrapping_sub(base)).collect();
    encode_integers(&distances, ColumnKind::Times, Effort::Fast, out);
}

/// Takes `count` timestamps from the front of `input` and checks that they rise (invariant 4).
pub(crate) fn decode_times(
    base: Timestamp,
    count: usize,
    input: &mut &[u8],
) -> Result<Vec<Timestamp>> {
    let distances = decode_integers(input, count)?;
    let times: Vec<Timestamp> =
        distances.into_iter().map(|distance| base.wrapping_add(distance as i64)).collect();
    if !times.is_sorted_by(|a, b| a < b) {
        return Err(corrupt("timestamps of a time column do not rise"));
    }
    Ok(times)
}
