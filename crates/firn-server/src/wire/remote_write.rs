//! Remote write 1.0: `prometheus.WriteRequest`, walked without decoding it.
//!
//! Pass 1 ([`decode`]) locates and hashes the encoded labels of each series and decodes only
//! samples. Labels are parsed ([`labels`]) only for series that the sender cache does not know. A
//! full decode costs ten times this walk.
//!
//! ```text
//! WriteRequest { timeseries = 1: TimeSeries, metadata = 3: MetricMetadata }
//! TimeSeries   { labels = 1: Label, samples = 2: Sample, exemplars = 3, histograms = 4 }
//! Label        { name = 1: string, value = 2: string }
//! Sample       { value = 1: double, timestamp = 2: int64, milliseconds }
//! Metadata     { type = 1: enum, metric_family_name = 2, help = 4, unit = 5: string }
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{LabelsBuilder, MetricType, Result, Sample, Timestamp};

use crate::metadata::Metadata;
use crate::wire::decoded::{Decoded, SpanHasher};
use crate::wire::{LabelFault, utf8};
use firn_model::protobuf::{Reader, WireType, malformed, wrong_type};

/// Walks a decompressed request into `out`, which the caller has cleared.
///
/// Label messages are skipped unchecked: [`labels`] checks those that the sender cache does not
/// know.
///
/// # Errors
/// `Invalid` with the byte where the message is malformed; `TooLarge` from [`Decoded`].
pub fn decode(body: &[u8], hasher: &SpanHasher, out: &mut Decoded) -> Result<()> {
    let mut request = Reader::new(body);
    while !request.is_done() {
        let at = request.at();
        match request.key()? {
            (1, WireType::Bytes) => decode_series(body, request.message()?, hasher, out)?,
            (3, WireType::Bytes) => decode_metadata(request.message()?, out)?,
            (field @ (1 | 3), wire) => return Err(wrong_type(at, "WriteRequest", field, wire)),
            (field, wire) => request.skip(field, wire)?,
        }
    }
    Ok(())
}

/// Parses the labels of one series: the span that [`decode`] located.
///
/// # Errors
/// [`LabelFault::Malformed`] if the bytes are not labels, [`LabelFault::Refused`] if they are not
/// UTF-8. The builder enforces rules on names, repeats and limits.
pub fn labels(span: &[u8], out: &mut LabelsBuilder) -> Result<(), LabelFault> {
    out.clear();
    let mut series = Reader::new(span);
    while !series.is_done() {
        let at = series.at();
        match series.key()? {
            (1, WireType::Bytes) => {
                let (name, value) = decode_label(series.message()?)?;
                out.push(utf8("label name", name)?, utf8("label value", value)?);
            }
            (1, wire) => return Err(wrong_type(at, "TimeSeries", 1, wire).into()),
            // Samples between labels, which the walk has decoded already.
            (field, wire) => series.skip(field, wire)?,
        }
    }
    Ok(())
}

fn decode_series(
    body: &[u8],
    mut series: Reader<'_>,
    hasher: &SpanHasher,
    out: &mut Decoded,
) -> Result<()> {
    let mut span = 0..0;
    let mut cacheable = true;
    while !series.is_done() {
        let at = series.at();
        match series.key()? {
            (1, WireType::Bytes) => {
                series.bytes()?;
                if span.is_empty() {
                    span.start = at;
                } else if span.end != at {
                    // Labels with something between: the span is right but will not come again.
                    cacheable = false;
                }
                span.end = series.skip_run(1);
            }
            (2, WireType::Bytes) => out.push_sample(decode_sample(series.message()?)?)?,
            (3, WireType::Bytes) => {
                series.bytes()?;
                out.exemplar_count = out.exemplar_count.saturating_add(1);
            }
            (4, WireType::Bytes) => {
                series.bytes()?;
                out.histogram_count = out.histogram_count.saturating_add(1);
            }
            (field @ 1..=4, wire) => return Err(wrong_type(at, "TimeSeries", field, wire)),
            (field, wire) => series.skip(field, wire)?,
        }
    }
    let hash = hasher.hash(body.get(span.clone()).unwrap_or(&[]));
    out.push_series(hash, span, cacheable)
}

#[inline]
fn decode_sample(mut message: Reader<'_>) -> Result<Sample> {
    let mut sample = Sample { ts: 0, value: 0.0 };
    while !message.is_done() {
        let at = message.at();
        match message.key()? {
            (1, WireType::Fixed64) => sample.value = f64::from_bits(message.fixed64()?),
            (2, WireType::Varint) => sample.ts = message.varint()? as Timestamp,
            (field @ 1..=2, wire) => return Err(wrong_type(at, "Sample", field, wire)),
            (field, wire) => message.skip(field, wire)?,
        }
    }
    Ok(sample)
}

fn decode_label<'a>(mut message: Reader<'a>) -> Result<(&'a [u8], &'a [u8])> {
    let (mut name, mut value) = (&[][..], &[][..]);
    while !message.is_done() {
        let at = message.at();
        match message.key()? {
            (1, WireType::Bytes) => name = message.bytes()?,
            (2, WireType::Bytes) => value = message.bytes()?,
            (field @ 1..=2, wire) => return Err(wrong_type(at, "Label", field, wire)),
            (field, wire) => message.skip(field, wire)?,
        }
    }
    Ok((name, value))
}

fn decode_metadata(mut message: Reader<'_>, out: &mut Decoded) -> Result<()> {
    let (mut name, mut help, mut unit) = ("", "", "");
    let mut kind = MetricType::Unknown;
    while !message.is_done() {
        let at = message.at();
        match message.key()? {
            (1, WireType::Varint) => kind = MetricType::of_number(message.varint()?),
            (2, WireType::Bytes) => name = text(message.bytes()?, at)?,
            (4, WireType::Bytes) => help = text(message.bytes()?, at)?,
            (5, WireType::Bytes) => unit = text(message.bytes()?, at)?,
            (field @ (1 | 2 | 4 | 5), wire) => {
                return Err(wrong_type(at, "MetricMetadata", field, wire));
            }
            (field, wire) => message.skip(field, wire)?,
        }
    }
    out.push_metadata(name, Metadata::new(kind, help, unit));
    Ok(())
}

fn text(bytes: &[u8], at: usize) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| malformed(at, "not UTF-8").because(e))
}

#[cfg(test)]
mod tests;
