//! Entries: the unit that callers append. The payload is opaque; this module encodes the few bytes
//! around it.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{CommitSeq, ShardId, decode_varint, encode_varint};

/// The kind of an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Rows of one shard, as the head encodes them.
    Rows = 1,
    /// Definitions of series of one shard, as the index encodes them.
    Definition = 2,
    /// A transaction: its deletes and its rows in all shards, as the engine encodes them.
    Transaction = 3,
}

/// An entry that borrows its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The kind of the payload.
    pub kind: EntryKind,
    /// The shard of the entry. All entries of a shard are in one stream.
    pub shard: ShardId,
    /// The commit of the entry.
    pub seq: CommitSeq,
    /// The payload, opaque to the log.
    pub payload: &'a [u8],
}

/// The most bytes that [`encode`] writes before a payload: length, kind, shard, sequence.
const HEADER_BYTES_MAX: usize = 5 + 1 + 3 + 10;

/// The most bytes that `entries` take.
pub(crate) fn bytes_max(entries: &[EntryRef<'_>]) -> usize {
    let bytes = entries.iter().map(|entry| entry.payload.len().saturating_add(HEADER_BYTES_MAX));
    bytes.fold(0, usize::saturating_add)
}

/// Appends one entry to `out`. `previous` is the sequence of the previous entry in the block, 0 for
/// the first. Neighbours have close sequences, so the difference takes one byte instead of eight.
pub(crate) fn encode(entry: &EntryRef<'_>, previous: CommitSeq, out: &mut Vec<u8>) {
    encode_varint(entry.payload.len() as u64, out);
    out.push(entry.kind as u8);
    encode_varint(u64::from(entry.shard.0), out);
    encode_varint(zigzag(entry.seq.0.wrapping_sub(previous.0)), out);
    out.extend_from_slice(entry.payload);
}

/// Decodes one entry from the front of `input`. `None` if this version cannot read it; in a block
/// with a matching checksum that means a newer version.
pub(crate) fn decode<'a>(input: &mut &'a [u8], previous: CommitSeq) -> Option<EntryRef<'a>> {
    let len = usize::try_from(decode_varint(input)?).ok()?;
    let (&kind, rest) = input.split_first()?;
    *input = rest;
    let kind = match kind {
        1 => EntryKind::Rows,
        2 => EntryKind::Definition,
        3 => EntryKind::Transaction,
        _ => return None,
    };
    let shard = ShardId(u16::try_from(decode_varint(input)?).ok()?);
    let seq = CommitSeq(previous.0.wrapping_add(unzigzag(decode_varint(input)?)));
    let (payload, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(EntryRef { kind, shard, seq, payload })
}

/// Small for small differences of either sign.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_round_trips(
            rows in any::<bool>(), shard: u16, seq: u64, previous: u64, payload: Vec<u8>,
        ) {
            let kind = if rows { EntryKind::Rows } else { EntryKind::Definition };
            let entry =
                EntryRef { kind, shard: ShardId(shard), seq: CommitSeq(seq), payload: &payload };
            let mut out = Vec::new();
            encode(&entry, CommitSeq(previous), &mut out);
            prop_assert!(out.len() <= bytes_max(&[entry]));
            let mut input = &out[..];
            prop_assert_eq!(decode(&mut input, CommitSeq(previous)), Some(entry));
            prop_assert!(input.is_empty());
        }

        #[test]
        fn any_bytes_decode_to_an_entry_or_none(bytes: Vec<u8>, previous: u64) {
            let _ = decode(&mut &bytes[..], CommitSeq(previous));
        }
    }

    #[test]
    fn the_bytes_around_a_payload_are_few() {
        let entry =
            EntryRef { kind: EntryKind::Rows, shard: ShardId(63), seq: CommitSeq(9), payload: &[] };
        let mut out = Vec::new();
        encode(&entry, CommitSeq(8), &mut out);
        assert_eq!(out, [0, 1, 63, 2]);
    }
}
