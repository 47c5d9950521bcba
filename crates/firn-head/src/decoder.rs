//! Decodes the payloads of the log for a reader that follows it: the values of every row.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::{RowState, decode_row};
use firn_model::{Result, SeriesRef, ShardBits, ShardId, Timestamp};

use crate::payload::{LocalGroup, Payload};
use crate::states::GroupStates;

/// The last rows of all groups, as the encoders of the log had them: 28 bytes per group, and 9 to
/// 10 bytes per member of larger groups.
pub struct LogDecoder {
    bits: ShardBits,
    shards: Vec<ShardDecoder>,
}

struct ShardDecoder {
    states: GroupStates,
    /// Rows of groups that were last seen under another stamp must be whole. Never 0.
    stamp: u32,
    /// The stamp at the payload before the last fresh one.
    fresh_stamp: u32,
}

impl std::fmt::Debug for LogDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogDecoder").field("heap_bytes", &self.heap_bytes()).finish_non_exhaustive()
    }
}

impl LogDecoder {
    /// A decoder of all shards, without any row.
    pub fn new(bits: ShardBits) -> LogDecoder {
        let shard = |_| ShardDecoder { states: GroupStates::default(), stamp: 1, fresh_stamp: 1 };
        LogDecoder { bits, shards: (0..bits.shard_count()).map(shard).collect() }
    }

    /// Forgets the rows of `shard`: a new segment begins, or entries are missing.
    pub fn restart(&mut self, shard: ShardId) {
        if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
            *shard = ShardDecoder { states: GroupStates::default(), stamp: 1, fresh_stamp: 1 };
        }
    }

    /// Calls `cell` with the values of a payload of `shard`, in the order of the payload. Returns
    /// the number of rows that were refused, because they are encoded against missing ones.
    ///
    /// # Errors
    /// `Corrupt` if it is no payload of this database; the shard must then be restarted. `Invalid`
    /// for a newer version.
    pub fn decode(
        &mut self,
        shard: ShardId,
        payload: &[u8],
        mut cell: impl FnMut(SeriesRef, Timestamp, f64),
    ) -> Result<u64> {
        let payload = Payload::open(payload)?;
        let (bits, mut cells, mut refused) = (self.bits, Vec::new(), 0u64);
        let Some(decoder) = self.shards.get_mut(usize::from(shard.0)) else { return Ok(0) };
        if payload.is_fresh {
            // No later row needs a row before this payload.
            decoder.states.forget_before(decoder.fresh_stamp);
            decoder.stamp = decoder.stamp.saturating_add(1);
            decoder.fresh_stamp = decoder.stamp;
        }
        let stamp = decoder.stamp;
        for row in payload.rows() {
            let row = row?;
            let group = bits.group(shard, u64::from(row.local));
            let mut input = row.bytes;
            cells.clear();
            let decoded = decoder.states.with(row.local, stamp, |state, last| {
                if !row.whole && last != stamp {
                    return None;
                }
                Some(decode_row(state, &mut input, |slot, value| cells.push((slot, value))))
            });
            match decoded {
                Some(ts) => {
                    let ts = ts?;
                    for &(slot, value) in &cells {
                        cell(SeriesRef { group, slot }, ts, value);
                    }
                }
                None => {
                    // The state is of no use, so later rows of the group are refused, too.
                    decoder.states.with(row.local, 0, |_, _| ());
                    refused = refused.saturating_add(1);
                }
            }
        }
        Ok(refused)
    }

    /// Bytes held.
    pub fn heap_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.states.heap_bytes()).sum()
    }
}

/// Calls `cell` with the values of a payload that needs no earlier rows, as those of a transaction.
///
/// # Errors
/// `Corrupt` if it is no such payload, `Invalid` for a newer version.
pub fn decode_standalone(
    bits: ShardBits,
    shard: ShardId,
    payload: &[u8],
    mut cell: impl FnMut(SeriesRef, Timestamp, f64),
) -> Result<()> {
    let (mut state, mut before): (RowState, Option<LocalGroup>) = (RowState::default(), None);
    for row in Payload::open(payload)?.rows() {
        let row = row?;
        if before.replace(row.local) != Some(row.local) {
            state = RowState::default();
        }
        let group = bits.group(shard, u64::from(row.local));
        let (mut input, mut cells) = (row.bytes, Vec::new());
        let ts = decode_row(&mut state, &mut input, |slot, value| cells.push((slot, value)))?;
        cells.iter().for_each(|&(slot, value)| cell(SeriesRef { group, slot }, ts, value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, CommitSeq, GroupId, Pool, RowBatch, Slot};

    use super::*;
    use crate::encoder::{Encoder, encode_standalone};

    type Decoded = Vec<(SeriesRef, Timestamp, u64)>;

    fn batch(cells: &[(u64, u32, Timestamp, f64)], bits: ShardBits) -> RowBatch {
        let mut batch = RowBatch::default();
        for &(group, slot, ts, value) in cells {
            let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
            batch.push(series, ts, value);
        }
        batch.sort(bits);
        batch
    }

    fn decode(decoder: &mut LogDecoder, payload: &[u8]) -> (Decoded, u64) {
        let mut cells = Vec::new();
        let refused = decoder
            .decode(ShardId(0), payload, |series, ts, value| {
                cells.push((series, ts, value.to_bits()));
            })
            .unwrap();
        (cells, refused)
    }

    /// Payloads of one shard: many groups over many commits, with restarts as a new segment, a new
    /// arena and an abandoned payload cause them.
    #[test]
    fn every_value_comes_back_and_rows_without_their_past_are_refused() {
        let bits = ShardBits::for_count(1);
        let mut encoder = Encoder::new(Budget::unlimited().empty(Pool::Head));
        encoder.enter(1);
        let mut decoder = LogDecoder::new(bits);
        let stale = f64::from_bits(0x7ff0_0000_0000_0002);
        let (mut late, mut late_refused) = (None, 0);
        for round in 0..50u64 {
            let ts = 1_000 * round as i64;
            let mut cells = vec![(round % 7, 0, ts, round as f64), (7, 0, ts, stale)];
            cells.extend((0..20).map(|slot| (8, slot, ts, f64::from(slot) * 0.25)));
            let rows = batch(&cells, bits);
            match round {
                10 => encoder.restart(),
                20 => encoder.enter_arena(),
                30 => {
                    encoder.enter(2);
                    decoder.restart(ShardId(0));
                }
                _ => {}
            }
            let shard_rows = rows.by_shard().next().unwrap();
            let payload = encoder.encode(CommitSeq(round), shard_rows, bits).to_vec();
            encoder.take_pending();
            let (decoded, refused) = decode(&mut decoder, &payload);
            let mut expected: Decoded = cells
                .iter()
                .map(|&(group, slot, ts, value)| {
                    let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
                    (series, ts, value.to_bits())
                })
                .collect();
            expected.sort_unstable();
            assert_eq!((decoded, refused), (expected, 0), "round {round}");
            // One that begins in the middle.
            if round >= 5 {
                let late = late.get_or_insert_with(|| LogDecoder::new(bits));
                late_refused += decode(late, &payload).1;
            }
        }
        assert!(late_refused > 0);
        assert!(decoder.heap_bytes() < 16 << 10, "{}", decoder.heap_bytes());
    }

    #[test]
    fn rows_of_a_transaction_need_no_state() {
        let bits = ShardBits::for_count(1);
        let rows = batch(&[(1, 0, 5, 1.0), (1, 0, 6, 2.0), (4, 3, 5, -0.0)], bits);
        let payload = encode_standalone(rows.by_shard().next().unwrap(), bits);
        let mut found = Vec::new();
        decode_standalone(bits, ShardId(0), &payload, |series, ts, value| {
            found.push((series.group.0, series.slot.0, ts, value.to_bits()));
        })
        .unwrap();
        let minus_zero = (-0.0f64).to_bits();
        assert_eq!(
            found,
            [(1, 0, 5, 1f64.to_bits()), (1, 0, 6, 2f64.to_bits()), (4, 3, 5, minus_zero)]
        );
        assert!(decode_standalone(bits, ShardId(0), &payload[..4], |_, _, _| ()).is_err());
    }
}
