//! Points on the wire: JSON `[[time,value],...]`, or in binary `time:i64 length:u32 bytes` for each
//! point, little endian.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::fmt;

use firn_cache::{CachedRange, Point};
use firn_model::{Result, TimeRange, Timestamp};
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::protocol::Format;
use crate::wire::number::push_i64;

/// Length of a point with a current time in milliseconds and few digits; the list grows if needed.
const JSON_POINT_BYTES: usize = 20;
/// Bytes before the payload of each point.
const POINT_HEAD_BYTES: usize = 12;

/// Decodes points. A JSON value keeps its text.
///
/// # Errors
/// The mistake and its position: malformed points, times that do not rise, times outside `range`.
pub(super) fn decode(
    format: Format,
    range: TimeRange,
    bytes: &[u8],
) -> std::result::Result<Vec<Point<'_>>, String> {
    let points = match format {
        Format::Json => decode_json(bytes)?,
        Format::Binary => decode_binary(bytes)?,
    };
    let mut before: Option<Timestamp> = None;
    for (idx, point) in points.iter().enumerate() {
        let ts = point.ts;
        if !range.contains(ts) {
            let (start, end) = (range.start, range.end);
            return Err(format!("point {idx} has time {ts}, outside the range {start} to {end}"));
        }
        if before.is_some_and(|before| before >= ts) {
            return Err(format!(
                "point {idx} has time {ts}, after a point with {}; times must rise",
                before.unwrap_or_default()
            ));
        }
        before = Some(ts);
    }
    Ok(points)
}

fn decode_json(bytes: &[u8]) -> std::result::Result<Vec<Point<'_>>, String> {
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let points = source.deserialize_seq(JsonPoints { count: bytes.len() / JSON_POINT_BYTES });
    points
        .and_then(|points| source.end().map(|()| points))
        .map_err(|e| format!("expected a JSON list of [time,value] with integer times: {e}"))
}

/// Deserializes points directly into their final list, because they are most of a request.
struct JsonPoints {
    count: usize,
}

impl<'de> Visitor<'de> for JsonPoints {
    type Value = Vec<Point<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of [time,value]")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut items: A,
    ) -> std::result::Result<Vec<Point<'de>>, A::Error> {
        let mut points = Vec::with_capacity(self.count);
        while let Some((ts, value)) = items.next_element::<(Timestamp, &'de RawValue)>()? {
            points.push(Point { ts, head: None, payload: value.get().as_bytes() });
        }
        Ok(points)
    }
}

fn decode_binary(bytes: &[u8]) -> std::result::Result<Vec<Point<'_>>, String> {
    let mut points = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let cut = || {
            let at = bytes.len().saturating_sub(rest.len());
            format!("point {} at byte {at} of the value is cut short", points.len())
        };
        let (head, behind) = rest.split_first_chunk::<POINT_HEAD_BYTES>().ok_or_else(cut)?;
        let [t0, t1, t2, t3, t4, t5, t6, t7, l0, l1, l2, l3] = *head;
        let ts = i64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let (payload, behind) = behind.split_at_checked(len).ok_or_else(cut)?;
        points.push(Point { ts, head: None, payload });
        rest = behind;
    }
    Ok(points)
}

/// Writes the points to `out`, which is empty. If they exceed `bytes_max`, the rest is omitted
/// after the first point that exceeds it.
///
/// # Errors
/// `Corrupt` if a slab contradicts its checksums: then nothing of it may be used.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`decode_binary` read the length of a payload from 32 bits"
)]
pub(super) fn encode(
    format: Format,
    got: &CachedRange,
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    // A number's text is about as long as its time's.
    let text_bytes = usize::try_from(got.bytes().saturating_mul(2)).unwrap_or(usize::MAX);
    out.reserve(text_bytes.min(bytes_max));
    match format {
        Format::Json => {
            out.push(b'[');
            got.for_each(&mut |point| {
                if out.len() > bytes_max {
                    return;
                }
                out.extend_from_slice(if out.len() > 1 { b",[" } else { b"[" });
                push_i64(point.ts, out);
                out.push(b',');
                out.extend_from_slice(point.payload);
                out.push(b']');
            })?;
            out.push(b']');
        }
        Format::Binary => got.for_each(&mut |point| {
            if out.len() > bytes_max {
                return;
            }
            out.extend_from_slice(&point.ts.to_le_bytes());
            out.extend_from_slice(&(point.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(point.payload);
        })?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_points_are_reported_with_their_position() {
        let range = TimeRange::new(0, 9);
        for (format, value, what) in [
            (Format::Json, &b"{}"[..], "expected a JSON list of [time,value]"),
            (Format::Json, b"[[1,2],[2.5,1]]", "column"),
            (Format::Json, b"[[1,2],[1,3]]", "point 1 has time 1, after a point with 1"),
            (Format::Json, b"[[1,2],[10,3]]", "point 1 has time 10, outside the range 0 to 9"),
            (Format::Json, b"[[1,2]", "column 6"),
            (Format::Json, b"", "EOF"),
            (Format::Binary, b"\x01\0\0\0\0\0\0\0\x02\0\0\0a", "point 0 at byte 0"),
            (Format::Binary, b"\x01", "point 0 at byte 0"),
        ] {
            let why = decode(format, range, value).unwrap_err();
            assert!(why.contains(what) && !why.contains('\n'), "{why}");
        }
        let points = decode(Format::Json, range, b" [[1, {\"a\": [1, 2]}] ,[3,null]] ").unwrap();
        let texts: Vec<_> = points.iter().map(|point| (point.ts, point.payload)).collect();
        assert_eq!(texts, [(1, &b"{\"a\": [1, 2]}"[..]), (3, b"null")]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_points_or_not(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for format in [Format::Json, Format::Binary] {
                if let Ok(points) = decode(format, TimeRange::ALL, &bytes) {
                    prop_assert!(points.is_sorted_by(|a, b| a.ts < b.ts));
                }
            }
        }
    }
}
