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

use firn_cache::{CachedRange, Point, PointRef};
use firn_model::{Reservation, Result, TimeRange, Timestamp};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
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
    match format {
        Format::Json => decode_json(bytes, PointOrder::within(range)),
        Format::Binary => decode_binary(bytes, PointOrder::within(range)),
    }
}

/// Checks the times of points while they are decoded. Times that rise have more digits the more
/// there are, so that the memory of a list is a small multiple of its text.
struct PointOrder {
    range: TimeRange,
    before: Option<Timestamp>,
    count: usize,
}

impl PointOrder {
    fn within(range: TimeRange) -> PointOrder {
        PointOrder { range, before: None, count: 0 }
    }

    /// The mistake of the next point, if there is one.
    fn check(&mut self, ts: Timestamp) -> std::result::Result<(), String> {
        let (idx, TimeRange { start, end }) = (self.count, self.range);
        if !self.range.contains(ts) {
            return Err(format!("point {idx} has time {ts}, outside the range {start} to {end}"));
        }
        if let Some(before) = self.before.replace(ts).filter(|before| *before >= ts) {
            return Err(format!(
                "point {idx} has time {ts}, after a point with {before}; times must rise"
            ));
        }
        self.count = idx.saturating_add(1);
        Ok(())
    }
}

fn decode_json(bytes: &[u8], order: PointOrder) -> std::result::Result<Vec<Point<'_>>, String> {
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let mut fault = None;
    let points = source.deserialize_seq(JsonPoints {
        count: bytes.len() / JSON_POINT_BYTES,
        order,
        fault: &mut fault,
    });
    points.and_then(|points| source.end().map(|()| points)).map_err(|e| {
        fault.unwrap_or_else(|| {
            format!("expected a JSON list of [time,value] with integer times: {e}")
        })
    })
}

/// Deserializes points directly into their final list, because they are most of a request.
struct JsonPoints<'f> {
    count: usize,
    order: PointOrder,
    /// The mistake of a time.
    fault: &'f mut Option<String>,
}

impl<'de> Visitor<'de> for JsonPoints<'_> {
    type Value = Vec<Point<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of [time,value]")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        mut self,
        mut items: A,
    ) -> std::result::Result<Vec<Point<'de>>, A::Error> {
        let mut points = Vec::with_capacity(self.count);
        while let Some((ts, value)) = items.next_element::<(Timestamp, &'de RawValue)>()? {
            if let Err(why) = self.order.check(ts) {
                *self.fault = Some(why);
                return Err(A::Error::custom("the time is wrong"));
            }
            points.push(Point { ts, head: None, payload: value.get().as_bytes() });
        }
        Ok(points)
    }
}

fn decode_binary(
    bytes: &[u8],
    mut order: PointOrder,
) -> std::result::Result<Vec<Point<'_>>, String> {
    // Doubling would hold the old list and the new one: more than the value's reservation.
    let mut points = Vec::with_capacity(bytes.len() / POINT_HEAD_BYTES);
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
        order.check(ts)?;
        points.push(Point { ts, head: None, payload });
        rest = behind;
    }
    Ok(points)
}

/// Writes the points to `out`, which is empty, and reserves its memory in `held`, which has that of
/// the points. Returns `false` if they exceed `bytes_max`; `out` is then incomplete.
///
/// # Errors
/// `Corrupt` if a slab contradicts its checksums: then nothing of it may be used; `Busy` or
/// `TooLarge` without memory.
pub(super) fn encode(
    format: Format,
    got: &CachedRange,
    bytes_max: usize,
    out: &mut Vec<u8>,
    held: &mut Reservation,
) -> Result<bool> {
    let text_bytes = if held.bytes() > ESTIMATED_BYTES_MAX {
        let text_bytes = text_bytes(format, got)?;
        if text_bytes > bytes_max {
            return Ok(false);
        }
        text_bytes
    } else {
        // A number's text is about as long as its time's.
        usize::try_from(got.bytes().saturating_mul(2)).unwrap_or(usize::MAX).min(bytes_max)
    };
    let mut reserved = reserve(out, text_bytes, held);
    let (start, end): (&[u8], &[u8]) =
        if format == Format::Json { (b"[", b"]") } else { (b"", b"") };
    if reserved.is_ok() {
        out.extend_from_slice(start);
    }
    got.for_each(&mut |point| {
        if out.len() > bytes_max || reserved.is_err() {
            return;
        }
        let more = point.payload.len().saturating_add(POINT_TEXT_BYTES);
        if out.capacity().saturating_sub(out.len()) < more {
            reserved = reserve(out, out.len().saturating_add(more), held);
        }
        if reserved.is_ok() {
            push_point(format, point, out);
        }
    })?;
    out.extend_from_slice(end);
    reserved.map(|()| out.len() <= bytes_max)
}

/// The text of points with less memory is estimated: it is short, and counting takes time.
const ESTIMATED_BYTES_MAX: u64 = 64 << 10;

/// Length of the text of all points. A text that grows by doubling would hold up to three times as
/// much.
fn text_bytes(format: Format, got: &CachedRange) -> Result<usize> {
    let mut bytes = 0_usize;
    got.for_each(&mut |point| {
        let beside = match format {
            Format::Json => decimal_bytes(point.ts).saturating_add("[,],".len()),
            Format::Binary => POINT_HEAD_BYTES,
        };
        bytes = bytes.saturating_add(beside).saturating_add(point.payload.len());
    })?;
    // The outer brackets; the last point has no comma.
    Ok(if format == Format::Json { bytes.saturating_add(1) } else { bytes })
}

fn decimal_bytes(ts: Timestamp) -> usize {
    let digits = ts.unsigned_abs().checked_ilog10().unwrap_or(0) as usize;
    digits.saturating_add(1).saturating_add(usize::from(ts < 0))
}

/// A point's text beside its value at most, and room for the line before all points and the ends of
/// both.
const POINT_TEXT_BYTES: usize = 256;

/// Makes room for `bytes` more in `out`.
fn reserve(out: &mut Vec<u8>, bytes: usize, held: &mut Reservation) -> Result<()> {
    let before = out.capacity() as u64;
    let capacity = out.len().saturating_add(bytes).saturating_add(POINT_TEXT_BYTES);
    // Old and new bytes exist together while they are copied.
    held.grow(capacity as u64)?;
    out.reserve_exact(capacity.saturating_sub(out.len()));
    held.shrink(before);
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "`decode_binary` read the length of a payload from 32 bits"
)]
fn push_point(format: Format, point: PointRef<'_>, out: &mut Vec<u8>) {
    match format {
        Format::Json => {
            out.extend_from_slice(if out.len() > 1 { b",[" } else { b"[" });
            push_i64(point.ts, out);
            out.push(b',');
            out.extend_from_slice(point.payload);
            out.push(b']');
        }
        Format::Binary => {
            out.extend_from_slice(&point.ts.to_le_bytes());
            out.extend_from_slice(&(point.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(point.payload);
        }
    }
}
