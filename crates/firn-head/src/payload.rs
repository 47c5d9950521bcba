//! The log's payload: the rows of one shard and one commit. Byte by byte: docs/formats/rows.md.
//!
//! A row's length stands before it, so that replay and the way into the arena move rows without
//! decoding them.

use firn_codec::varint::{
    encode_zigzag, take_bytes, take_count, take_u8, take_varint, take_zigzag,
};
use firn_model::{Error, Result, TimeRange, encode_varint};

/// What is written; also the oldest that is read.
const VERSION: u8 = 1;
/// Beside the version: no row from here on needs a row before this payload.
const FRESH: u8 = 0x80;
/// A row's tag and the varints that may follow it.
pub(crate) const ROW_HEADER_BYTES_MAX: usize = 1 + 5 + 5;

/// The row needs no earlier row of its group.
const WHOLE: u8 = 0x80;
/// A step to the next group of 7 or more is `7` here and a varint of the rest.
const STEP_LONG: u64 = 7;
/// A row of 15 or more bytes is `15` here and a varint of the rest.
const LEN_LONG: usize = 15;

/// A shard's group as the shard counts them. Groups are dense, so 32 bits outlast every memory.
pub(crate) type Local = u32;

/// One row as it stands in a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadRow<'a> {
    pub(crate) local: Local,
    /// Whether it can be decoded without an earlier row of the group.
    pub(crate) whole: bool,
    /// As `firn_codec::encode_row` made them.
    pub(crate) bytes: &'a [u8],
}

/// A payload whose header was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    /// The range of all timestamps.
    pub(crate) range: TimeRange,
    /// Whether no row from here on needs a row before it: an arena may begin here.
    pub(crate) is_fresh: bool,
    rows: &'a [u8],
}

/// Writes a payload's header; rows follow, groups rising.
pub(crate) fn encode_header(range: TimeRange, is_fresh: bool, out: &mut Vec<u8>) {
    out.push(if is_fresh { VERSION | FRESH } else { VERSION });
    encode_zigzag(range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
}

/// Writes one row; `step` is the distance from the row before (from 0 for the first).
#[inline]
pub(crate) fn encode_payload_row(step: Local, whole: bool, row: &[u8], out: &mut Vec<u8>) {
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
    /// Reads the header.
    ///
    /// # Errors
    /// `Corrupt` if it is not one, `Invalid` if it is of a later version.
    pub(crate) fn open(mut bytes: &'a [u8]) -> Result<Payload<'a>> {
        let first = take_u8(&mut bytes, "rows version")?;
        let (version, is_fresh) = (first & !FRESH, first & FRESH != 0);
        if version != VERSION {
            return Err(Error::invalid(format!(
                "rows entry of version {version}, this program reads {VERSION}: \
                 open the database with the version that wrote it"
            )));
        }
        let start = take_zigzag(&mut bytes, "rows start")?;
        let span = take_varint(&mut bytes, "rows span")?;
        let range = TimeRange::new(start, start.wrapping_add(span as i64));
        if range.is_empty() {
            return Err(corrupt("time range of a rows entry is upside down"));
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
fn take_row<'a>(input: &mut &'a [u8], before: Local) -> Result<PayloadRow<'a>> {
    let tag = take_u8(input, "row tag")?;
    let mut step = u64::from(tag >> 4 & 7);
    if step == STEP_LONG {
        step += take_count(input, Local::MAX as usize, "row step")? as u64;
    }
    let mut len = usize::from(tag & 15);
    if len == LEN_LONG {
        len += take_count(input, u32::MAX as usize, "row length")?;
    }
    let local = Local::try_from(u64::from(before) + step)
        .map_err(|_| corrupt("group of a row is out of range"))?;
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
    fn rows_come_back_and_cut_bytes_are_errors() {
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

    /// Version 1 as it stands in logs: never change this, add the next version's beside it.
    #[test]
    fn version_1_is_read_for_ever() {
        let bytes = [1, 19, 10, 0xa1, 7, 0x70, 3, 0x8f, 0];
        let bytes = [&bytes[..], &[9; 15]].concat();
        let payload = Payload::open(&bytes).unwrap();
        assert_eq!(payload.range, TimeRange::new(-10, 0));
        let rows: Vec<_> = payload.rows().map(Result::unwrap).collect();
        let seen: Vec<_> = rows.iter().map(|row| (row.local, row.whole, row.bytes.len())).collect();
        assert_eq!(seen, [(2, true, 1), (12, false, 0), (12, true, 15)]);
        let mut again = Vec::new();
        encode_header(payload.range, payload.is_fresh, &mut again);
        encode_payload_row(2, true, &[7], &mut again);
        encode_payload_row(10, false, &[], &mut again);
        encode_payload_row(0, true, &[9; 15], &mut again);
        assert_eq!(again, bytes);
    }
}
