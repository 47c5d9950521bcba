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
use firn_model::{CommitSeq, Error, Reservation, Result, ShardId, encode_varint};

const VERSION: u8 = 1;

/// A transaction as it is logged.
pub(crate) struct LoggedTransaction {
    pub(crate) deletes: Vec<(CommitSeq, Arc<Tombstone>)>,
    /// Per shard, ascending, the range of its rows in the payload.
    pub(crate) rows: Vec<(ShardId, Range<usize>)>,
}

/// Appends the payload of a transaction to `out`. Bytes: `docs/formats/transaction.md`.
pub(crate) fn encode(
    deletes: &[Arc<Tombstone>],
    rows: &[(ShardId, Vec<u8>, Reservation)],
    out: &mut Vec<u8>,
) {
    out.push(VERSION);
    encode_varint(deletes.len() as u64, out);
    let mut bytes = Vec::new();
    for deleted in deletes {
        bytes.clear();
        deleted.encode(&mut bytes);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(&bytes);
    }
    for (shard, payload, _) in rows {
        encode_varint(u64::from(shard.0), out);
        encode_varint(payload.len() as u64, out);
        out.extend_from_slice(payload);
    }
}

impl LoggedTransaction {
    /// Decodes `bytes`, the payload of entry `seq`.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no transaction, `Invalid` for one of a newer version.
    pub(crate) fn decode(seq: CommitSeq, bytes: &[u8]) -> Result<LoggedTransaction> {
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
            let deleted = Tombstone::decode(take_bytes(&mut input, len, "delete")?)?;
            deletes.push((CommitSeq(number), Arc::new(deleted)));
        }
        let mut rows: Vec<(ShardId, Range<usize>)> = Vec::new();
        while !input.is_empty() {
            let shard = take_varint(&mut input, "shard of a transaction")?;
            let shard = ShardId(u16::try_from(shard).map_err(|_| corrupt("shard out of range"))?);
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
