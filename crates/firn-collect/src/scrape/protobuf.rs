//! Protobuf bodies: `io.prometheus.client.MetricFamily` messages, each behind its length.
//!
//! [`to_text`] writes a body as lines of the Prometheus text format, with the types and units of
//! OpenMetrics, so that one parser and one cache serve all formats. Numbers survive bit by bit,
//! except for the payloads of NaNs. Of native histograms the classic parts are written, as
//! Prometheus reads them without `scrape_native_histograms`: FirnDB does not store the native ones.

use std::io::Write;

use firn_model::protobuf::{Reader, WireType, malformed, wrong_type};
use firn_model::{Error, Result, excerpt};

use super::held::Held;
use super::number::push_bound;

/// Each bucket repeats the labels of its histogram, so the text may be far longer than the body.
const TEXT_BYTES_PER_BYTE: usize = 64;
const TEXT_BYTES_BASE: usize = 64 << 10;
const TEXT_BYTES_MAX: usize = 256 << 20;
// The usual ratio is 2 to 4. A longer text is reserved family by family.
const TEXT_BYTES_RESERVED: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FamilyType {
    Counter,
    Gauge,
    Summary,
    Untyped,
    Histogram,
    GaugeHistogram,
}

/// The text of `body`, and the number of its exemplars, which are not written.
///
/// # Errors
/// `Invalid` with the byte of the first mistake; `TooLarge` for a text of more than 64 bytes for
/// each byte of the body, or of 256 MiB; `Busy` without memory for it.
pub(super) fn to_text(body: &[u8], held: &mut Held<'_>) -> Result<(Vec<u8>, u64)> {
    let text_bytes_max = body
        .len()
        .saturating_mul(TEXT_BYTES_PER_BYTE)
        .saturating_add(TEXT_BYTES_BASE)
        .min(TEXT_BYTES_MAX);
    let text_bytes = body.len().saturating_mul(TEXT_BYTES_RESERVED).min(text_bytes_max);
    held.add(text_bytes)?;
    let mut writer = Writer {
        out: Vec::with_capacity(text_bytes),
        held,
        reserved_bytes: text_bytes,
        text_bytes_max,
        exemplar_count: 0,
        labels: Vec::new(),
        name: Vec::new(),
    };
    let mut bodies = Reader::new(body);
    while !bodies.is_done() {
        let family = bodies.message()?;
        writer.family(family)?;
    }
    Ok((writer.out, writer.exemplar_count))
}

struct Writer<'h, 's> {
    out: Vec<u8>,
    held: &'h mut Held<'s>,
    /// Bytes that are reserved for the text.
    reserved_bytes: usize,
    text_bytes_max: usize,
    exemplar_count: u64,
    /// The labels of the metric: `,"name"="value"` for each.
    labels: Vec<u8>,
    /// The name of the family, escaped.
    name: Vec<u8>,
}

#[derive(Default)]
struct Histogram<'a> {
    count: u64,
    count_float: f64,
    sum: f64,
    buckets: Vec<Reader<'a>>,
}

impl Writer<'_, '_> {
    fn family(&mut self, family: Reader<'_>) -> Result<()> {
        let (mut name, mut help, mut unit) = ("", "", "");
        let (mut kind, mut has_metrics) = (0, false);
        let mut fields = family;
        while !fields.is_done() {
            let at = fields.at();
            match fields.key()? {
                (1, WireType::Bytes) => name = text(fields.bytes()?, at)?,
                (2, WireType::Bytes) => help = text(fields.bytes()?, at)?,
                (3, WireType::Varint) => kind = fields.varint()?,
                (4, WireType::Bytes) => {
                    has_metrics = true;
                    fields.bytes()?;
                }
                (5, WireType::Bytes) => unit = text(fields.bytes()?, at)?,
                (field @ 1..=5, wire) => return Err(wrong_type(at, "MetricFamily", field, wire)),
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        if !has_metrics {
            return Ok(());
        }
        let (kind, type_name) = match kind {
            0 => (FamilyType::Counter, "counter"),
            1 => (FamilyType::Gauge, "gauge"),
            2 => (FamilyType::Summary, "summary"),
            3 => (FamilyType::Untyped, "unknown"),
            4 => (FamilyType::Histogram, "histogram"),
            5 => (FamilyType::GaugeHistogram, "gaugehistogram"),
            _ => {
                return Err(Error::invalid(format!(
                    "metric {:?} has the unknown type {kind}",
                    excerpt(name)
                )));
            }
        };
        if name.is_empty() {
            return Err(Error::invalid("a metric family has no name"));
        }
        let base =
            name.strip_suffix("_total").filter(|_| kind == FamilyType::Counter).unwrap_or(name);
        let before = base.strip_suffix(unit).filter(|before| before.ends_with('_'));
        if !unit.is_empty() && before.is_none() {
            return Err(Error::invalid(format!(
                "unit {:?} is not a suffix of metric {:?}",
                excerpt(unit),
                excerpt(name)
            )));
        }
        self.name.clear();
        push_escaped(name, true, &mut self.name);
        self.comment("HELP", help)?;
        self.comment("TYPE", type_name)?;
        if !unit.is_empty() {
            self.comment("UNIT", unit)?;
        }
        let mut fields = family;
        while !fields.is_done() {
            match fields.key()? {
                (4, WireType::Bytes) => {
                    let metric = fields.message()?;
                    self.metric(metric, kind)?;
                }
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        Ok(())
    }

    fn comment(&mut self, keyword: &str, text: &str) -> Result<()> {
        self.check_size()?;
        self.out.extend_from_slice(b"# ");
        self.out.extend_from_slice(keyword.as_bytes());
        self.out.extend_from_slice(b" \"");
        self.out.extend_from_slice(&self.name);
        self.out.extend_from_slice(b"\" ");
        push_escaped(text, false, &mut self.out);
        self.out.push(b'\n');
        Ok(())
    }

    fn metric(&mut self, metric: Reader<'_>, kind: FamilyType) -> Result<()> {
        let mut ts = 0_i64;
        let mut content = None;
        self.labels.clear();
        let wanted = match kind {
            FamilyType::Gauge => 2,
            FamilyType::Counter => 3,
            FamilyType::Summary => 4,
            FamilyType::Untyped => 5,
            FamilyType::Histogram | FamilyType::GaugeHistogram => 7,
        };
        let mut fields = metric;
        while !fields.is_done() {
            let at = fields.at();
            match fields.key()? {
                (1, WireType::Bytes) => self.label(fields.message()?)?,
                (6, WireType::Varint) => ts = fields.varint()?.cast_signed(),
                (field, WireType::Bytes) if field == wanted => content = Some(fields.message()?),
                (field @ 1..=7, wire) if field == wanted || field == 1 || field == 6 => {
                    return Err(wrong_type(at, "Metric", field, wire));
                }
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        let content = content.unwrap_or(Reader::new(&[]));
        match kind {
            FamilyType::Counter | FamilyType::Gauge | FamilyType::Untyped => {
                let value = self.number(content)?;
                self.sample("", None, value, ts)
            }
            FamilyType::Summary => self.summary(content, ts),
            FamilyType::Histogram | FamilyType::GaugeHistogram => self.histogram(content, ts),
        }
    }

    fn label(&mut self, mut pair: Reader<'_>) -> Result<()> {
        let (mut name, mut value) = ("", "");
        while !pair.is_done() {
            let at = pair.at();
            match pair.key()? {
                (1, WireType::Bytes) => name = text(pair.bytes()?, at)?,
                (2, WireType::Bytes) => value = text(pair.bytes()?, at)?,
                (field @ 1..=2, wire) => return Err(wrong_type(at, "LabelPair", field, wire)),
                (field, wire) => pair.skip(field, wire)?,
            }
        }
        self.labels.extend_from_slice(b",\"");
        push_escaped(name, true, &mut self.labels);
        self.labels.extend_from_slice(b"\"=\"");
        push_escaped(value, true, &mut self.labels);
        self.labels.push(b'"');
        Ok(())
    }

    /// The value of a counter, a gauge or an untyped metric.
    fn number(&mut self, mut fields: Reader<'_>) -> Result<f64> {
        let mut value = 0.0;
        while !fields.is_done() {
            match fields.key()? {
                (1, WireType::Fixed64) => value = f64::from_bits(fields.fixed64()?),
                (2, WireType::Bytes) => {
                    self.exemplar_count = self.exemplar_count.saturating_add(1);
                    fields.bytes()?;
                }
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        Ok(value)
    }

    fn summary(&mut self, mut fields: Reader<'_>, ts: i64) -> Result<()> {
        let (mut count, mut sum, mut quantiles) = (0, 0.0, Vec::new());
        while !fields.is_done() {
            match fields.key()? {
                (1, WireType::Varint) => count = fields.varint()?,
                (2, WireType::Fixed64) => sum = f64::from_bits(fields.fixed64()?),
                (3, WireType::Bytes) => {
                    let mut quantile = fields.message()?;
                    let (mut bound, mut value) = (0.0, 0.0);
                    while !quantile.is_done() {
                        match quantile.key()? {
                            (1, WireType::Fixed64) => bound = f64::from_bits(quantile.fixed64()?),
                            (2, WireType::Fixed64) => value = f64::from_bits(quantile.fixed64()?),
                            (field, wire) => quantile.skip(field, wire)?,
                        }
                    }
                    quantiles.push((bound, value));
                }
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        self.sample("_count", None, count as f64, ts)?;
        self.sample("_sum", None, sum, ts)?;
        for (quantile, value) in quantiles {
            self.sample("", Some(("quantile", quantile)), value, ts)?;
        }
        Ok(())
    }

    fn histogram(&mut self, fields: Reader<'_>, ts: i64) -> Result<()> {
        let histogram = Histogram::read(fields)?;
        let either = |float: f64, count: u64| if float == 0.0 { count as f64 } else { float };
        let total = either(histogram.count_float, histogram.count);
        self.sample("_count", None, total, ts)?;
        self.sample("_sum", None, histogram.sum, ts)?;
        for mut bucket in histogram.buckets {
            let (mut count, mut count_float, mut bound) = (0, 0.0, 0.0);
            while !bucket.is_done() {
                match bucket.key()? {
                    (1, WireType::Varint) => count = bucket.varint()?,
                    (2, WireType::Fixed64) => bound = f64::from_bits(bucket.fixed64()?),
                    (3, WireType::Bytes) => {
                        self.exemplar_count = self.exemplar_count.saturating_add(1);
                        bucket.bytes()?;
                    }
                    (4, WireType::Fixed64) => count_float = f64::from_bits(bucket.fixed64()?),
                    (field, wire) => bucket.skip(field, wire)?,
                }
            }
            self.sample("_bucket", Some(("le", bound)), either(count_float, count), ts)?;
            if bound == f64::INFINITY {
                return Ok(());
            }
        }
        self.sample("_bucket", Some(("le", f64::INFINITY)), total, ts)
    }

    fn sample(
        &mut self,
        suffix: &str,
        bound: Option<(&str, f64)>,
        value: f64,
        ts: i64,
    ) -> Result<()> {
        self.check_size()?;
        let out = &mut self.out;
        out.extend_from_slice(b"{\"");
        out.extend_from_slice(&self.name);
        out.extend_from_slice(suffix.as_bytes());
        out.push(b'"');
        out.extend_from_slice(&self.labels);
        if let Some((label, bound)) = bound {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(label.as_bytes());
            out.extend_from_slice(b"\"=\"");
            push_bound(bound, out);
            out.push(b'"');
        }
        out.extend_from_slice(b"} ");
        // Writing into a `Vec` cannot fail. The shortest digits read back as the same number.
        let _ = match value.is_finite() && value.fract() == 0.0 && value.abs() < 1e15 {
            true => write!(out, "{value}"),
            false => write!(out, "{value:e}"),
        };
        // 0 is no time: the messages do not distinguish it from none.
        if ts != 0 {
            let _ = write!(out, " {ts}");
        }
        out.push(b'\n');
        Ok(())
    }

    /// Checks and reserves the room of the next line.
    fn check_size(&mut self) -> Result<()> {
        let bytes = self.out.len().saturating_add(self.labels.len());
        if bytes > self.text_bytes_max {
            return Err(Error::too_large(format!(
                "the series of a protobuf body have over {} bytes of labels",
                self.text_bytes_max
            )));
        }
        // The text grows to twice its length.
        let wanted = bytes.saturating_add(self.name.len()).saturating_mul(2);
        let missing = wanted.saturating_sub(self.reserved_bytes);
        if missing > 0 {
            self.held.add(missing)?;
            self.reserved_bytes = wanted;
        }
        Ok(())
    }
}

impl<'a> Histogram<'a> {
    fn read(mut fields: Reader<'a>) -> Result<Histogram<'a>> {
        let mut histogram = Histogram::default();
        while !fields.is_done() {
            match fields.key()? {
                (1, WireType::Varint) => histogram.count = fields.varint()?,
                (2, WireType::Fixed64) => histogram.sum = f64::from_bits(fields.fixed64()?),
                (3, WireType::Bytes) => histogram.buckets.push(fields.message()?),
                (4, WireType::Fixed64) => {
                    histogram.count_float = f64::from_bits(fields.fixed64()?);
                }
                (field, wire) => fields.skip(field, wire)?,
            }
        }
        Ok(histogram)
    }
}

fn text(bytes: &[u8], at: usize) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed(at, "a text is not UTF-8"))
}

fn push_escaped(text: &str, quotes: bool, out: &mut Vec<u8>) {
    for &byte in text.as_bytes() {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' if quotes => out.extend_from_slice(b"\\\""),
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests;
