//! What replay tells, and what can be told of a payload without decoding its rows.

use firn_model::{GroupId, Result, ShardBits, ShardId, TimeRange};

use crate::payload::Payload;

/// What [`crate::Head::replay`] did with one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedRows {
    /// Rows that were taken in (visible if they were to be applied).
    pub row_count: u64,
    /// Rows that were refused: differences from rows that a hole in the log has swallowed.
    pub refused_count: u64,
    /// The smallest range that holds all timestamps.
    pub range: TimeRange,
}

impl Default for ReplayedRows {
    fn default() -> ReplayedRows {
        ReplayedRows { row_count: 0, refused_count: 0, range: TimeRange::EMPTY }
    }
}

/// The groups of a payload's rows (sorted, each once, replacing what `groups` had) and the range of
/// their timestamps: what a [`firn_model::Change`] tells of it. Decodes no row.
///
/// # Errors
/// `Corrupt` if it is no payload.
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
