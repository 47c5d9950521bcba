//! The engine's parts of manifest edits: every tag is encoded and decoded here.
//!
//! | tag | part | bytes behind the tag |
//! |---|---|---|
//! | 1 | [`Identity`] | varint shard count, varint stream count |
//! | 2 | last commit | varint number |
//! | 3 | tombstones | (varint number, varint length, tombstone)*, see `stored_tombstones` |
//! | 4 | forgotten tombstones | varint number* |
//! | 5 | mark of the data folder | 8 bytes |
//! | 6 | [`SlowPart`], on the slow tier only | zigzag milliseconds, varint count, varint epoch* |
//! | 7 | claims | (8 bytes, the number of a process)* |
//!
//! The log's part ([`LogCut`]) has no tag. Each part of a kind replaces the previous one, except
//! that tombstones add up. `docs/formats/manifest.md` describes the bytes.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::Tombstones;
use firn_codec::varint::{encode_zigzag, take_count, take_varint, take_zigzag};
use firn_model::{
    CommitSeq, Error, LogPosition, Reservation, Result, Timestamp, decode_varint, encode_varint,
};

use crate::sequence;
use crate::stored_tombstones::{self, StoredTombstones};

const TAG_IDENTITY: u8 = 1;
const TAG_SEQUENCE: u8 = 2;
const TAG_TOMBSTONES: u8 = 3;
const TAG_FORGOTTEN: u8 = 4;
const TAG_MARK: u8 = 5;
const TAG_SLOW: u8 = 6;
const TAG_CLAIMS: u8 = 7;

/// The file that a damaged part is reported for.
const FILE: &str = "manifest";

/// The number of shards, fixed when a database is created, and the number of log streams, which
/// only an open can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) shard_count: usize,
    pub(crate) stream_count: usize,
}

/// The log positions and change numbers below which a restart needs no log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCut {
    /// Per stream: rows below this are in tables, their definitions in index files.
    pub(crate) floors: Vec<LogPosition>,
    /// Changes with larger numbers are above the floors. All up to this one were announced before
    /// the log was truncated.
    pub(crate) announced: CommitSeq,
    /// Whether each of these streams has a segment: the log was started.
    pub(crate) is_started: bool,
}

/// The facts that only the slow tier's manifest contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowPart {
    /// Wall time at which the manifest was written.
    pub(crate) written_ms: Timestamp,
    /// Epoch in the object key of each index segment, in the order of the index's part.
    pub(crate) segment_epochs: Vec<u64>,
}

/// All of the engine's parts of a state and the edits after it.
#[derive(Debug)]
pub(crate) struct EngineParts {
    /// `None` in a new database.
    pub(crate) identity: Option<Identity>,
    /// The last commit.
    pub(crate) last: CommitSeq,
    /// Deletes that tables may still need.
    pub(crate) tombstones: StoredTombstones,
    /// Identifies the data folder.
    pub(crate) mark: Option<u64>,
    /// Numbers of processes; `None` in a folder written by versions that did not record them.
    pub(crate) claims: Option<Vec<u64>>,
    /// On the slow tier only.
    pub(crate) slow: Option<SlowPart>,
}

impl EngineParts {
    /// Decodes `parts`, the engine's parts of a manifest in order, each once. The tombstones count
    /// in `memory`.
    ///
    /// # Errors
    /// `Corrupt` for an unknown tag or a part that ends early.
    pub(crate) fn decode<'a>(
        parts: impl Iterator<Item = &'a [u8]>,
        memory: Reservation,
    ) -> Result<EngineParts> {
        let mut all = EngineParts {
            identity: None,
            last: CommitSeq(0),
            tombstones: StoredTombstones::new(memory),
            mark: None,
            claims: None,
            slow: None,
        };
        for part in parts {
            let (&tag, rest) = part.split_first().ok_or_else(|| damaged("a part is empty"))?;
            match tag {
                TAG_IDENTITY => all.identity = Some(Identity::decode(rest)?),
                TAG_SEQUENCE => all.last = decode_sequence(rest)?,
                TAG_TOMBSTONES => {
                    all.tombstones.add_list(rest)?.ok_or_else(|| damaged("deletes"))?;
                }
                TAG_FORGOTTEN => decode_forgotten(rest, &mut all.tombstones)?,
                TAG_MARK => all.mark = Some(decode_mark(rest)?),
                TAG_SLOW => all.slow = Some(SlowPart::decode(rest)?),
                TAG_CLAIMS => all.claims = Some(decode_claims(rest)?),
                _ => return Err(damaged("the engine's part has an unknown tag")),
            }
        }
        all.tombstones.release_unused();
        Ok(all)
    }
}

/// Whether a log can have `count` streams or shards.
pub(crate) fn is_count(count: usize) -> bool {
    (1..=usize::from(u16::MAX)).contains(&count)
}

impl Identity {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![TAG_IDENTITY];
        encode_varint(self.shard_count as u64, &mut out);
        encode_varint(self.stream_count as u64, &mut out);
        assert_eq!(
            Identity::decode(out.get(1..).unwrap_or_default()).ok(),
            Some(self),
            "counts of shards and streams decode as written: no start can read them otherwise"
        );
        out
    }

    fn decode(mut rest: &[u8]) -> Result<Identity> {
        let mut count = || {
            let count = decode_varint(&mut rest).and_then(|count| usize::try_from(count).ok());
            count.filter(|&count| is_count(count))
        };
        let (shard_count, stream_count) = (count(), count());
        // Other numbers of shards have no `ShardBits`.
        let is_possible = |&count: &usize| count.is_power_of_two() && count <= 1 << 15;
        match (shard_count.filter(is_possible), stream_count) {
            (Some(shard_count), Some(stream_count)) => Ok(Identity { shard_count, stream_count }),
            _ => Err(damaged("counts of shards and streams")),
        }
    }
}

// No commit and no floor has this number, so that it ends the part.
const STARTED: u64 = u64::MAX;

impl LogCut {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.floors.iter().for_each(|floor| encode_varint(floor.0, &mut out));
        encode_varint(self.announced.0, &mut out);
        if self.is_started {
            encode_varint(STARTED, &mut out);
        }
        out
    }

    /// The cut of a log with `stream_count` streams.
    ///
    /// # Errors
    /// `Corrupt` if `part` ends early or late, as that of another number of streams does.
    pub(crate) fn decode(mut part: &[u8], stream_count: usize) -> Result<LogCut> {
        let bad = || damaged("floors of the log");
        let floor = |_| decode_varint(&mut part).map(LogPosition).ok_or_else(bad);
        let floors = (0..stream_count).map(floor).collect::<Result<Vec<_>>>()?;
        let announced = CommitSeq(decode_varint(&mut part).ok_or_else(bad)?);
        sequence::check_stored(announced, FILE)?;
        let is_started = !part.is_empty();
        if is_started && (decode_varint(&mut part) != Some(STARTED) || !part.is_empty()) {
            return Err(bad());
        }
        Ok(LogCut { floors, announced, is_started })
    }
}

impl SlowPart {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![TAG_SLOW];
        encode_zigzag(self.written_ms, &mut out);
        encode_varint(self.segment_epochs.len() as u64, &mut out);
        self.segment_epochs.iter().for_each(|&epoch| encode_varint(epoch, &mut out));
        out
    }

    fn decode(mut rest: &[u8]) -> Result<SlowPart> {
        let bad = |e: Error| damaged(e.what());
        let written_ms = take_zigzag(&mut rest, "time of the manifest").map_err(bad)?;
        let count_max = rest.len();
        let count = take_count(&mut rest, count_max, "index segments").map_err(bad)?;
        let epoch = |_| take_varint(&mut rest, "epoch of a segment").map_err(bad);
        let segment_epochs = (0..count).map(epoch).collect::<Result<Vec<_>>>()?;
        Ok(SlowPart { written_ms, segment_epochs })
    }
}

/// Whether `part` names the folder and process that wrote a manifest, or is on the slow tier only:
/// a state moves to another folder without these.
pub(crate) fn is_of_writer(part: &[u8]) -> bool {
    matches!(part.first(), Some(&(TAG_MARK | TAG_SLOW | TAG_CLAIMS)))
}

/// Whether `part` names the folder and process that wrote a manifest.
pub(crate) fn is_claim(part: &[u8]) -> bool {
    matches!(part.first(), Some(&(TAG_MARK | TAG_CLAIMS)))
}

/// Whether `part` contains claims.
#[cfg(test)]
pub(crate) fn is_claims(part: &[u8]) -> bool {
    part.first() == Some(&TAG_CLAIMS)
}

pub(crate) fn encode_sequence(last: CommitSeq) -> Vec<u8> {
    let mut out = vec![TAG_SEQUENCE];
    encode_varint(last.0, &mut out);
    out
}

fn decode_sequence(mut rest: &[u8]) -> Result<CommitSeq> {
    let last = decode_varint(&mut rest).map(CommitSeq);
    let last = last.ok_or_else(|| damaged("the last commit"))?;
    sequence::check_stored(last, FILE)?;
    Ok(last)
}

pub(crate) fn encode_tombstones(tombstones: &Tombstones) -> Vec<u8> {
    let mut out = vec![TAG_TOMBSTONES];
    stored_tombstones::encode(tombstones, &mut out);
    out
}

pub(crate) fn encode_forgotten(seqs: &[CommitSeq]) -> Vec<u8> {
    let mut out = vec![TAG_FORGOTTEN];
    seqs.iter().for_each(|seq| encode_varint(seq.0, &mut out));
    out
}

fn decode_forgotten(mut rest: &[u8], tombstones: &mut StoredTombstones) -> Result<()> {
    while !rest.is_empty() {
        let seq = decode_varint(&mut rest).ok_or_else(|| damaged("forgotten deletes"))?;
        tombstones.remove(CommitSeq(seq));
    }
    Ok(())
}

pub(crate) fn encode_mark(mark: u64) -> Vec<u8> {
    let mut out = vec![TAG_MARK];
    out.extend_from_slice(&mark.to_le_bytes());
    out
}

fn decode_mark(rest: &[u8]) -> Result<u64> {
    let mark = rest.try_into().map_err(|_| damaged("the mark of the folder"))?;
    Ok(u64::from_le_bytes(mark))
}

/// A folder's claims, oldest first; on the slow tier the one process that wrote the manifest.
pub(crate) fn encode_claims(numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![TAG_CLAIMS];
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    out
}

fn decode_claims(rest: &[u8]) -> Result<Vec<u64>> {
    let (numbers, []) = rest.as_chunks() else {
        return Err(damaged("the claims of the folder's processes"));
    };
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

fn damaged(part: &str) -> Error {
    Error::corrupt(FILE, 0, format!("{part}: the part cannot be decoded; restore a backup"))
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};

    use super::*;

    fn decode(parts: &[&[u8]]) -> Result<EngineParts> {
        EngineParts::decode(parts.iter().copied(), Budget::unlimited().empty(Pool::Index))
    }

    #[test]
    fn every_part_is_decoded_as_it_was_encoded_and_no_prefix_of_it() {
        let identity = Identity { shard_count: 64, stream_count: 3 };
        let slow = SlowPart { written_ms: -5, segment_epochs: vec![1, 300] };
        let parts = [
            identity.encode(),
            encode_sequence(CommitSeq(70_000)),
            encode_mark(7),
            slow.encode(),
            encode_claims(&[8, 9]),
        ];
        let all = decode(&parts.each_ref().map(Vec::as_slice)).unwrap();
        assert_eq!((all.identity, all.last), (Some(identity), CommitSeq(70_000)));
        assert_eq!((all.mark, all.claims, all.slow), (Some(7), Some(vec![8, 9]), Some(slow)));
        for part in &parts {
            for len in 0..part.len() {
                let decoded = decode(&[&part[..len]]);
                // Fewer claims are claims too.
                let is_claims = part[0] == TAG_CLAIMS && len % 8 == 1;
                assert_eq!(decoded.is_ok(), is_claims, "{len} bytes of {part:?}");
            }
        }
        assert!(decode(&[&[99]]).is_err());
    }

    #[test]
    fn numbers_that_no_database_has_are_refused() {
        let of_tag = |tag: u8, numbers: &[u64]| {
            let mut part = vec![tag];
            numbers.iter().for_each(|&number| encode_varint(number, &mut part));
            decode(&[&part])
        };
        for (shard_count, stream_count) in [(0, 1), (3, 1), (1 << 16, 1), (64, 0), (64, 1 << 16)] {
            assert!(of_tag(TAG_IDENTITY, &[shard_count, stream_count]).is_err());
        }
        assert!(of_tag(TAG_IDENTITY, &[1 << 15, 9]).is_ok());
        assert!(of_tag(TAG_SEQUENCE, &[u64::MAX]).is_err());
        assert!(of_tag(TAG_SEQUENCE, &[1 << 62]).is_ok());
    }

    #[test]
    fn a_cut_is_decoded_for_its_number_of_streams() {
        for is_started in [false, true] {
            let floors = vec![LogPosition(5), LogPosition(1 << 40)];
            let cut = LogCut { floors, announced: CommitSeq(9), is_started };
            let part = cut.encode();
            assert_eq!(LogCut::decode(&part, 2).unwrap(), cut);
            for stream_count in [0, 1, 3, 4] {
                assert!(LogCut::decode(&part, stream_count).is_err(), "{stream_count} streams");
            }
        }
    }
}
