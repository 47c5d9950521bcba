//! The report of a replay, and the facts that a payload yields without decoding its rows.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{GroupId, Result, ShardBits, ShardId, TimeRange};

use crate::payload::Payload;

/// The outcome of [`crate::Head::replay`] for one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedRows {
    /// Rows that were accepted (visible if they were to be applied).
    pub row_count: u64,
    /// Rows that were refused: they are encoded against rows in a hole of the log.
    pub refused_count: u64,
    /// The smallest range of all timestamps.
    pub range: TimeRange,
}

impl Default for ReplayedRows {
    fn default() -> ReplayedRows {
        ReplayedRows { row_count: 0, refused_count: 0, range: TimeRange::EMPTY }
    }
}

/// The range of the timestamps of a payload. Reads its header only.
///
/// # Errors
/// `Corrupt` if `payload` is no payload, `Invalid` for one of a newer version.
pub fn payload_range(payload: &[u8]) -> Result<TimeRange> {
    Payload::open(payload).map(|payload| payload.range)
}

/// Whether no row of the shard from this payload on is encoded against an earlier payload. `false`
/// for a malformed one. Reads its header only.
pub fn is_fresh(payload: &[u8]) -> bool {
    Payload::open(payload).is_ok_and(|payload| payload.is_fresh)
}

/// The groups of a payload's rows (sorted and unique, replacing the content of `groups`) and the
/// range of their timestamps, for a [`firn_model::Change`]. Decodes no row.
///
/// # Errors
/// `Corrupt` if `payload` is no payload.
pub fn payload_groups(
    bits: ShardBits,
    shard: ShardId,
    payload: &[u8],
    groups: &mut Vec<GroupId>,
) -> Result<TimeRange> {
    let payload = Payload::open(payload)?;
    groups.clear();
    for row in payload.rows() {
        groups.push(bits.group(shard, u64::from(row?.local)));
    }
    groups.dedup();
    Ok(payload.range)
}
