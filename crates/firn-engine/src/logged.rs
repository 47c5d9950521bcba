//! The payload of a transaction's log entry.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;
use std::sync::Arc;

use firn_codec::Tombstone;
use firn_codec::varint::{take_bytes, take_count, take_u8, take_varint};
use firn_model::{CommitSeq, Error, Reservation, Result, ShardBits, ShardId, encode_varint};

const VERSION: u8 = 1;
/// The shard and the length before its rows.
const ROWS_HEADER_BYTES_MAX: usize = 3 + 10;

/// A transaction as it is logged.
pub(crate) struct LoggedTransaction<'a> {
    /// Encoded tombstones, ascending.
    pub(crate) deletes: Vec<(CommitSeq, &'a [u8])>,
    /// Per shard, ascending, the range of its rows in the payload.
    pub(crate) rows: Vec<(ShardId, Range<usize>)>,
}

/// Appends the payload of a transaction to `out`. Bytes: `docs/formats/transaction.md`.
///
/// # Panics
/// If the shards of `rows` do not ascend.
pub(crate) fn encode(
    deletes: &[Arc<Tombstone>],
    rows: &[(ShardId, Vec<u8>, Reservation)],
    out: &mut Vec<u8>,
) {
    // `decode` refuses others, and no start could pass the entry.
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "the shards of a transaction ascend");
    out.push(VERSION);
    encode_varint(deletes.len() as u64, out);
    let mut bytes = Vec::new();
    for deleted in deletes {
        bytes.clear();
        deleted.encode(&mut bytes);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(&bytes);
    }
    // Exactly: a list that doubles would take more memory than is reserved for the entry.
    let row_bytes = rows.iter().map(|row| row.1.len().saturating_add(ROWS_HEADER_BYTES_MAX)).sum();
    out.reserve_exact(row_bytes);
    for (shard, payload, _) in rows {
        encode_varint(u64::from(shard.0), out);
        encode_varint(payload.len() as u64, out);
        out.extend_from_slice(payload);
    }
}

impl<'a> LoggedTransaction<'a> {
    /// Decodes `bytes`, the payload of entry `seq`, in a database with the shards of `bits`,
    /// without tombstones and rows.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no transaction, `Invalid` for one of a newer version.
    pub(crate) fn decode(
        seq: CommitSeq,
        bits: ShardBits,
        bytes: &'a [u8],
    ) -> Result<LoggedTransaction<'a>> {
        let mut input = bytes;
        let version = take_u8(&mut input, "transaction version")?;
        if version != VERSION {
            return Err(Error::invalid(format!(
                "a logged transaction has version {version}, this program reads {VERSION}; open \
                 the database with the program that wrote it"
            )));
        }
        let corrupt = |what: &str| Error::corrupt("transaction", 0, what);
        let delete_count = take_count(&mut input, bytes.len(), "deletes of a transaction")? as u64;
        let end = seq.0.checked_add(1).ok_or_else(|| corrupt("its number is too large"))?;
        let first =
            end.checked_sub(delete_count).ok_or_else(|| corrupt("more deletes than numbers"))?;
        let mut deletes = Vec::new();
        for number in first..=seq.0 {
            let len = take_count(&mut input, bytes.len(), "length of a delete")?;
            deletes.push((CommitSeq(number), take_bytes(&mut input, len, "delete")?));
        }
        let mut rows: Vec<(ShardId, Range<usize>)> = Vec::new();
        while !input.is_empty() {
            let shard = take_varint(&mut input, "shard of a transaction")?;
            let shard = u16::try_from(shard).ok().map(ShardId);
            let shard = shard.filter(|shard| usize::from(shard.0) < bits.shard_count());
            let shard = shard.ok_or_else(|| corrupt("shard out of range"))?;
            if rows.last().is_some_and(|last| last.0 >= shard) {
                return Err(corrupt("shards of a transaction are not ascending"));
            }
            let len = take_count(&mut input, bytes.len(), "length of a transaction's rows")?;
            take_bytes(&mut input, len, "rows of a transaction")?;
            let end = bytes.len().saturating_sub(input.len());
            rows.push((shard, end.saturating_sub(len)..end));
        }
        Ok(LoggedTransaction { deletes, rows })
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, ErrorKind, Pool, TimeRange};

    use super::*;

    const SEQ: CommitSeq = CommitSeq(7);

    fn encoded(shards: &[u16]) -> Vec<u8> {
        let none = || Budget::unlimited().empty(Pool::Head);
        let rows = shards.iter().map(|&shard| (ShardId(shard), vec![1, 2, 3], none()));
        let deleted = Arc::new(Tombstone::new(0, TimeRange::new(0, 9), Vec::new()));
        let mut out = Vec::new();
        encode(&[deleted], &rows.collect::<Vec<_>>(), &mut out);
        out
    }

    #[test]
    fn a_transaction_is_decoded_with_the_shards_of_its_database_only() {
        let bytes = encoded(&[0, 3]);
        let decode = |bits| LoggedTransaction::decode(SEQ, bits, &bytes);
        let found = decode(ShardBits::for_count(4)).unwrap();
        let [(SEQ, deleted)] = found.deletes[..] else { panic!("{:?}", found.deletes) };
        assert_eq!(Tombstone::decode(deleted, &[]).unwrap().range(), TimeRange::new(0, 9));
        let rows: Vec<_> =
            found.rows.into_iter().map(|(shard, rows)| (shard, &bytes[rows])).collect();
        assert_eq!(rows, [(ShardId(0), &[1, 2, 3][..]), (ShardId(3), &[1, 2, 3])]);
        let refused = decode(ShardBits::for_count(2)).err().unwrap();
        assert!(matches!(refused.kind(), ErrorKind::Corrupt { .. }), "{refused}");
    }

    #[test]
    #[should_panic(expected = "the shards of a transaction ascend")]
    fn shards_out_of_order_are_not_logged() {
        encoded(&[3, 0]);
    }
}
