//! The log's payload: the rows of one shard and one commit. `docs/formats/rows.md` has the bytes.
//!
//! Each row is preceded by its length, so replay and staging copy rows without decoding them.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::varint::{
    encode_zigzag, take_bytes, take_count, take_u8, take_varint, take_zigzag,
};
use firn_model::{Error, Result, TimeRange, encode_varint};

/// The version that is written: rows may have blocks.
const VERSION: u8 = 2;
/// The oldest version that is read. Its rows have no blocks; all else is the same.
const VERSION_MIN: u8 = 1;
/// Flag beside the version: from here on, no row needs a row before this payload.
const FRESH: u8 = 0x80;
/// The most bytes of a row's tag and the varints after it.
pub(crate) const ROW_HEADER_BYTES_MAX: usize = 1 + 5 + 5;

/// The row needs no earlier row of its group.
const WHOLE: u8 = 0x80;
/// A step of 7 or more to the next group is `7` here and a varint of the rest.
const STEP_LONG: u64 = 7;
/// A length of 15 or more bytes is `15` here and a varint of the rest.
const LEN_LONG: usize = 15;

/// Number of a group in its shard. Groups are dense, so 32 bits exceed every memory size.
pub(crate) type LocalGroup = u32;

/// One row of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadRow<'a> {
    pub(crate) local: LocalGroup,
    /// Whether the row can be decoded without an earlier row of the group.
    pub(crate) whole: bool,
    /// The bytes of `firn_codec::encode_row`.
    pub(crate) bytes: &'a [u8],
}

/// A payload with a decoded header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    /// The range of all timestamps.
    pub(crate) range: TimeRange,
    /// Whether no row from here on needs an earlier row: an arena may begin here.
    pub(crate) is_fresh: bool,
    rows: &'a [u8],
}

/// Writes a payload's header; the rows follow, groups rising.
pub(crate) fn encode_header(range: TimeRange, is_fresh: bool, out: &mut Vec<u8>) {
    out.push(if is_fresh { VERSION | FRESH } else { VERSION });
    encode_zigzag(range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
}

/// Writes one row; `step` is the distance from the group of the previous row (from 0 for the
/// first).
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "both are compared with their limit first"
)]
#[inline]
pub(crate) fn encode_payload_row(step: LocalGroup, whole: bool, row: &[u8], out: &mut Vec<u8>) {
    let step = u64::from(step);
    let tag = (step.min(STEP_LONG) as u8) << 4 | row.len().min(LEN_LONG) as u8;
    out.push(if whole { tag | WHOLE } else { tag });
    if step >= STEP_LONG {
        encode_varint(step - STEP_LONG, out);
    }
    if row.len() >= LEN_LONG {
        encode_varint((row.len() - LEN_LONG) as u64, out);
    }
    out.extend_from_slice(row);
}

impl<'a> Payload<'a> {
    /// Decodes the header.
    ///
    /// # Errors
    /// `Corrupt` if it is no header, `Invalid` for a later version.
    pub(crate) fn open(mut bytes: &'a [u8]) -> Result<Payload<'a>> {
        let first = take_u8(&mut bytes, "rows version")?;
        let (version, is_fresh) = (first & !FRESH, first & FRESH != 0);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(Error::invalid(format!(
                "rows entry has format version {version}, expected {VERSION_MIN} to {VERSION}; \
                 start the version of firn that wrote it"
            )));
        }
        let start = take_zigzag(&mut bytes, "rows start")?;
        let span = take_varint(&mut bytes, "rows span")?;
        let range = TimeRange::new(start, start.wrapping_add(span as i64));
        if range.is_empty() {
            return Err(corrupt("time range of a rows entry ends before it starts"));
        }
        Ok(Payload { range, is_fresh, rows: bytes })
    }

    /// The rows in order.
    pub(crate) fn rows(self) -> impl Iterator<Item = Result<PayloadRow<'a>>> {
        let mut input = self.rows;
        let mut local = 0;
        std::iter::from_fn(move || {
            if input.is_empty() {
                return None;
            }
            let row = take_row(&mut input, local);
            match &row {
                Ok(row) => local = row.local,
                Err(_) => input = &[],
            }
            Some(row)
        })
    }
}

#[inline]
fn take_row<'a>(input: &mut &'a [u8], before: LocalGroup) -> Result<PayloadRow<'a>> {
    let tag = take_u8(input, "row tag")?;
    let mut step = u64::from(tag >> 4 & 7);
    if step == STEP_LONG {
        let more = take_count(input, LocalGroup::MAX as usize, "row step")?;
        step = step.saturating_add(more as u64);
    }
    let mut len = usize::from(tag & 15);
    if len == LEN_LONG {
        len = len.saturating_add(take_count(input, u32::MAX as usize, "row length")?);
    }
    let local = LocalGroup::try_from(u64::from(before).saturating_add(step))
        .map_err(|_| corrupt("group of a row exceeds 32 bits"))?;
    Ok(PayloadRow { local, whole: tag & WHOLE != 0, bytes: take_bytes(input, len, "row")? })
}

fn corrupt(what: &str) -> Error {
    Error::corrupt("encoded bytes", 0, what)
}

#[cfg(test)]
mod tests {
    use firn_model::ErrorKind;

    use super::*;

    #[test]
    fn rows_round_trip_and_truncated_bytes_are_errors() {
        let range = TimeRange::new(i64::MIN, i64::MAX);
        let lens = [0, 1, 14, 15, 16, 300];
        let steps = [0, 0, 1, 6, 7, 1_000_000];
        let mut out = Vec::new();
        encode_header(range, true, &mut out);
        for (idx, (&step, &len)) in steps.iter().zip(&lens).enumerate() {
            encode_payload_row(step, idx % 2 == 0, &vec![idx as u8; len], &mut out);
        }
        let payload = Payload::open(&out).unwrap();
        assert_eq!(payload.range, range);
        let mut local = 0;
        for (idx, row) in payload.rows().enumerate() {
            let row = row.unwrap();
            local += steps[idx];
            assert_eq!((row.local, row.whole), (local, idx % 2 == 0));
            assert_eq!(row.bytes, vec![idx as u8; lens[idx]]);
        }
        assert_eq!(Payload::open(&[9]).unwrap_err().kind(), &ErrorKind::Invalid);
        for cut in 0..out.len() {
            if let Ok(payload) = Payload::open(&out[..cut]) {
                assert!(payload.rows().count() <= lens.len(), "cut at {cut}");
            }
        }
    }

    /// Versions 1 and 2 as they are in logs. Never change them; add the next version beside them.
    #[test]
    fn versions_1_and_2_are_read_for_ever() {
        let bytes = [2, 19, 10, 0xa1, 7, 0x70, 3, 0x8f, 0];
        let bytes = [&bytes[..], &[9; 15]].concat();
        for version in [1, 2] {
            let bytes = [&[version], &bytes[1..]].concat();
            let payload = Payload::open(&bytes).unwrap();
            assert_eq!(payload.range, TimeRange::new(-10, 0));
            let rows: Vec<_> = payload.rows().map(Result::unwrap).collect();
            let seen: Vec<_> =
                rows.iter().map(|row| (row.local, row.whole, row.bytes.len())).collect();
            assert_eq!(seen, [(2, true, 1), (12, false, 0), (12, true, 15)]);
        }
        let payload = Payload::open(&bytes).unwrap();
        let mut again = Vec::new();
        encode_header(payload.range, payload.is_fresh, &mut again);
        encode_payload_row(2, true, &[7], &mut again);
        encode_payload_row(10, false, &[], &mut again);
        encode_payload_row(0, true, &[9; 15], &mut again);
        assert_eq!(again, bytes);
    }
}
