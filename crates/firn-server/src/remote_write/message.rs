//! The messages of remote write 1.0 and 2.0, and their packing.

use std::collections::HashMap;

use firn_collect::config::WriteMessage;
use firn_model::{Error, Labels, MetricType, Result, Sample, encode_varint};
use snap::raw::{Encoder, max_compress_len};

use crate::metadata::Metadata;

/// The labels of a series as they are sent: the fields `labels` of a `TimeSeries` of version 1.0.
pub(super) type EncodedLabels = Box<[u8]>;

/// The samples of one series in a request.
#[derive(Debug)]
pub(super) struct SeriesSamples<'a> {
    /// See [`encode_labels`].
    pub(super) labels: &'a [u8],
    /// Times in milliseconds and values.
    pub(super) samples: Vec<(i64, f64)>,
}

/// The name of a metric and its metadata.
pub(super) type NamedMetadata = (Box<str>, Metadata);

/// Metadata of a request, within its memory.
#[derive(Debug)]
pub(super) struct MetadataPage {
    entries: Vec<NamedMetadata>,
    bytes: u64,
    bytes_max: u64,
}

impl MetadataPage {
    /// A page that takes, with its request, at most `bytes_max`, or has one entry.
    pub(super) fn new(bytes_max: u64) -> MetadataPage {
        MetadataPage { entries: Vec::new(), bytes: 0, bytes_max }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// `TooLarge` if the page is full.
    pub(super) fn push(&mut self, name: &str, metadata: &Metadata) -> Result<()> {
        let texts = name.len() + metadata.help.len() + metadata.unit.len();
        let bytes = (texts as u64).saturating_add(METADATA_ENTRY_BYTES);
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(METADATA_COPIES));
        if self.bytes > self.bytes_max && !self.entries.is_empty() {
            return Err(Error::too_large("the page of metadata is full"));
        }
        self.entries.push((name.into(), metadata.clone()));
        Ok(())
    }

    pub(super) fn entries(&self) -> &[NamedMetadata] {
        &self.entries
    }
}

// An entry beside its texts, in a list that has grown to twice its length.
const METADATA_ENTRY_BYTES: u64 = 128;
// The entry, the message, which may have grown to twice its length and be copied, and its packing.
const METADATA_COPIES: u64 = 5;
// The most bytes of a sample with its tag and length: tag 1, length 1, value 9, time 11.
const SAMPLE_BYTES_MAX: u64 = 22;
// Around the labels and samples of a series: tags, lengths, and the numbers of its metadata.
const SERIES_BYTES_MAX: u64 = 32;

/// The fields `labels` of a `TimeSeries` of version 1.0.
pub(super) fn encode_labels(labels: &Labels) -> EncodedLabels {
    let label_bytes =
        |name: &str, value: &str| field_bytes(name.len()).saturating_add(field_bytes(value.len()));
    let all = labels.iter().map(|(name, value)| field_bytes(label_bytes(name, value)));
    // Exactly: a list that doubles would take more memory than is reserved for it.
    let mut out = Vec::with_capacity(all.fold(0, usize::saturating_add));
    for (name, value) in labels.iter() {
        out.push(1 << 3 | 2);
        encode_varint(label_bytes(name, value) as u64, &mut out);
        push_bytes(1, name.as_bytes(), &mut out);
        push_bytes(2, value.as_bytes(), &mut out);
    }
    out.into_boxed_slice()
}

/// Bytes of a field of `len` bytes, with tag and length.
fn field_bytes(len: usize) -> usize {
    let varint_bytes = (usize::BITS - (len | 1).leading_zeros()).div_ceil(7) as usize;
    len.saturating_add(varint_bytes).saturating_add(1)
}

/// Names and values of encoded labels.
fn decode_labels(mut encoded: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let mut label = take_bytes(&mut encoded)?;
        Some((take_bytes(&mut label)?, take_bytes(&mut label)?))
    })
}

/// The next field of bytes; the tag has one byte.
fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = input.get(1..)?;
    let len = usize::try_from(firn_model::decode_varint(&mut rest)?).ok()?;
    let (bytes, behind) = rest.split_at_checked(len)?;
    *input = behind;
    Some(bytes)
}

/// Upper bound of the memory that a request takes: as a message, and packed.
pub(super) fn request_bytes_max(labels_bytes: u64, series_count: u64, sample_count: u64) -> u64 {
    let series = series_count.saturating_mul(SERIES_BYTES_MAX);
    let samples = sample_count.saturating_mul(SAMPLE_BYTES_MAX);
    // The table of symbols takes more than the labels of version 1.0 where none are repeated.
    let message = labels_bytes.saturating_mul(2).saturating_add(series).saturating_add(samples);
    let packed = max_compress_len(usize::try_from(message).unwrap_or(usize::MAX)) as u64;
    message.saturating_add(packed).max(1)
}

/// The packed request of `series`.
pub(super) fn write_request(
    message: WriteMessage,
    series: &[SeriesSamples<'_>],
    metadata: impl FnMut(&str) -> Option<Metadata>,
) -> Vec<u8> {
    let body = match message {
        WriteMessage::V2 => write_2(series, metadata),
        _ => write_1(series),
    };
    pack(&body)
}

/// The packed request of metadata alone, of version 1.0.
pub(super) fn metadata_request(metadata: &[NamedMetadata]) -> Vec<u8> {
    let mut out = Vec::new();
    push_metadata(metadata, &mut out);
    pack(&out)
}

/// The packed request of samples and metadata. `metadata` is sorted by name.
pub fn push_request(
    message: WriteMessage,
    samples: &[(Labels, Sample)],
    metadata: &[(Box<str>, Metadata)],
) -> Vec<u8> {
    let labels: Vec<EncodedLabels> =
        samples.iter().map(|(labels, _)| encode_labels(labels)).collect();
    let series = labels.iter().zip(samples).map(|(labels, (_, sample))| SeriesSamples {
        labels,
        samples: vec![(sample.ts, sample.value)],
    });
    let series: Vec<SeriesSamples<'_>> = series.collect();
    let body = match message {
        WriteMessage::V2 => write_2(&series, |name| metadata_of(name, metadata).cloned()),
        _ => {
            let mut body = write_1(&series);
            push_metadata(metadata, &mut body);
            body
        }
    };
    pack(&body)
}

/// The metadata of the family of a series.
fn metadata_of<'m>(name: &str, sorted: &'m [NamedMetadata]) -> Option<&'m Metadata> {
    let of = |name: &str| {
        let idx = sorted.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        sorted.get(idx).map(|(_, metadata)| metadata)
    };
    let has_parts = |metadata: &&Metadata| {
        matches!(
            metadata.kind,
            MetricType::Histogram | MetricType::GaugeHistogram | MetricType::Summary
        )
    };
    let family = |suffix: &&str| of(name.strip_suffix(suffix)?).filter(has_parts);
    of(name).or_else(|| ["_bucket", "_sum", "_count"].iter().find_map(family))
}

fn push_metadata(metadata: &[NamedMetadata], out: &mut Vec<u8>) {
    let mut one = Vec::new();
    for (name, metadata) in metadata {
        one.clear();
        push_number(1, metadata.kind.number(), &mut one);
        push_bytes(2, name.as_bytes(), &mut one);
        push_bytes(4, metadata.help.as_bytes(), &mut one);
        push_bytes(5, metadata.unit.as_bytes(), &mut one);
        push_bytes(3, &one, out);
    }
}

fn write_1(series: &[SeriesSamples<'_>]) -> Vec<u8> {
    let (mut out, mut one) = (Vec::new(), Vec::new());
    series.iter().for_each(|series| push_series(series, &mut one, &mut out));
    out
}

/// A series, which is field 1 of a request of version 1.0. `one` is a buffer.
fn push_series(series: &SeriesSamples<'_>, one: &mut Vec<u8>, out: &mut Vec<u8>) {
    one.clear();
    one.extend_from_slice(series.labels);
    series.samples.iter().for_each(|&sample| push_sample(sample, one));
    push_bytes(1, one, out);
}

fn write_2(
    series: &[SeriesSamples<'_>],
    mut metadata: impl FnMut(&str) -> Option<Metadata>,
) -> Vec<u8> {
    let mut symbols = Symbols::default();
    symbols.number(b"");
    let (mut all, mut one, mut part) = (Vec::new(), Vec::new(), Vec::new());
    for series in series {
        one.clear();
        part.clear();
        let mut found = None;
        for (name, value) in decode_labels(series.labels) {
            encode_varint(symbols.number(name), &mut part);
            encode_varint(symbols.number(value), &mut part);
            if name == b"__name__" {
                found = std::str::from_utf8(value).ok().and_then(&mut metadata);
            }
        }
        push_bytes(1, &part, &mut one);
        series.samples.iter().for_each(|&sample| push_sample(sample, &mut one));
        if let Some(found) = found {
            part.clear();
            push_number(1, found.kind.number(), &mut part);
            push_number(3, symbols.number(found.help.as_bytes()), &mut part);
            push_number(4, symbols.number(found.unit.as_bytes()), &mut part);
            push_bytes(5, &part, &mut one);
        }
        push_bytes(5, &one, &mut all);
    }
    let mut out = Vec::new();
    symbols.texts.iter().for_each(|text| push_bytes(4, text, &mut out));
    out.extend_from_slice(&all);
    out
}

/// The table of a request of version 2.0.
#[derive(Default)]
struct Symbols {
    texts: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u64>,
}

impl Symbols {
    fn number(&mut self, text: &[u8]) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as u64;
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }
}

/// A sample, which is field 2 of a series in both versions.
fn push_sample((ts, value): (i64, f64), out: &mut Vec<u8>) {
    let mut sample = Vec::with_capacity(SAMPLE_BYTES_MAX as usize);
    sample.push(1 << 3 | 1);
    sample.extend_from_slice(&value.to_bits().to_le_bytes());
    push_number(2, ts as u64, &mut sample);
    push_bytes(2, &sample, out);
}

fn push_number(field: u8, number: u64, out: &mut Vec<u8>) {
    out.push(field << 3);
    encode_varint(number, out);
}

fn push_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Snappy's block format.
fn pack(body: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; max_compress_len(body.len())];
    // Only a buffer that is too small, or 4 GiB, fails.
    let len = Encoder::new().compress(body, &mut packed).unwrap_or(0);
    packed.truncate(len);
    // The rest would be held until the receiver answers.
    packed.shrink_to_fit();
    packed
}

#[cfg(test)]
mod tests {
    use firn_model::STALE_NAN_BITS;
    use snap::raw::Decoder;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> EncodedLabels {
        encode_labels(&Labels::from_pairs(pairs.iter().copied()).unwrap())
    }

    fn none(_: &str) -> Option<Metadata> {
        None
    }

    /// Version 2.0 has no list of metadata: each series has that of its family.
    #[test]
    fn pushed_series_of_a_histogram_have_its_metadata() {
        let named = |name: &str, kind| (Box::from(name), Metadata::new(kind, name, ""));
        let all = [
            named("a", MetricType::Gauge),
            named("h", MetricType::Histogram),
            named("h_count", MetricType::Counter),
        ];
        for (name, want) in [
            ("a", Some("a")),
            ("a_sum", None),
            ("h", Some("h")),
            ("h_bucket", Some("h")),
            ("h_count", Some("h_count")),
            ("h_max", None),
        ] {
            let found = metadata_of(name, &all).map(|metadata| &*metadata.help);
            assert_eq!(found, want, "{name}");
        }
        let labels = Labels::from_pairs([("__name__", "h_sum")]).unwrap();
        let samples = [(labels, Sample { ts: 1, value: 2.0 })];
        let packed = push_request(WriteMessage::V2, &samples, &all);
        let expected = b"\x22\x00\x22\x08__name__\x22\x05h_sum\x22\x01h\x2a\x19\x0a\x02\x01\x02\
            \x12\x0b\x09\0\0\0\0\0\0\0\x40\x10\x01\x2a\x06\x08\x03\x18\x03\x20\x00";
        assert_eq!(Decoder::new().decompress_vec(&packed).unwrap(), expected);
        let packed = push_request(WriteMessage::V1, &samples, &all);
        let body = Decoder::new().decompress_vec(&packed).unwrap();
        assert!(body.starts_with(b"\x0a\x20\x0a\x11\x0a\x08__name__\x12\x05h_sum"), "{body:x?}");
    }

    #[test]
    fn version_1_has_the_bytes_of_the_specification() {
        let labels = labels(&[("__name__", "up"), ("job", "a")]);
        let samples = vec![(-1, 1.5), (3, f64::from_bits(STALE_NAN_BITS))];
        let series = [SeriesSamples { labels: &labels, samples }];
        let packed = write_request(WriteMessage::V1, &series, none);
        assert!(packed.len() as u64 <= request_bytes_max(labels.len() as u64, 1, 2));
        let mut expected =
            b"\x0a\x3e\x0a\x0e\x0a\x08__name__\x12\x02up\x0a\x08\x0a\x03job\x12\x01a".to_vec();
        expected.extend(
            b"\x12\x14\x09\0\0\0\0\0\0\xf8\x3f\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        );
        expected.extend(b"\x12\x0b\x09\x02\0\0\0\0\0\xf0\x7f\x10\x03");
        expected[1] = (expected.len() - 2) as u8;
        assert_eq!(Decoder::new().decompress_vec(&packed).unwrap(), expected);
    }

    #[test]
    fn version_2_shares_texts_and_has_metadata() {
        let all = [labels(&[("__name__", "up"), ("job", "up")]), labels(&[("__name__", "x")])];
        let series = all.each_ref().map(|labels| SeriesSamples { labels, samples: vec![(7, 1.0)] });
        let packed = write_request(WriteMessage::V2, &series, |name| {
            (name == "x").then(|| Metadata::new(MetricType::Gauge, "Help.", ""))
        });
        let body = Decoder::new().decompress_vec(&packed).unwrap();
        let sample = b"\x12\x0b\x09\0\0\0\0\0\0\xf0\x3f\x10\x07";
        let expected = [
            b"\x22\0\x22\x08__name__\x22\x02up\x22\x03job\x22\x01x\x22\x05Help.".as_slice(),
            b"\x2a\x13\x0a\x04\x01\x02\x03\x02",
            sample,
            b"\x2a\x19\x0a\x02\x01\x04",
            sample,
            b"\x2a\x06\x08\x02\x18\x05\x20\0",
        ];
        assert_eq!(body, expected.concat());
    }

    /// Before, the metadata of all metrics was copied at once, for each destination.
    #[test]
    fn a_page_of_metadata_ends_with_its_memory() {
        let metadata = Metadata::new(MetricType::Gauge, &"h".repeat(500), "");
        let mut page = MetadataPage::new(20_000);
        let count = (0..).take_while(|idx| page.push(&format!("m{idx}"), &metadata).is_ok());
        let count = count.count();
        assert!((5..10).contains(&count) && page.entries().len() == count, "{count}");
        assert!(metadata_request(page.entries()).capacity() <= 20_000);
        // An entry that is larger is sent alone.
        let mut page = MetadataPage::new(1);
        assert!(page.push("a", &metadata).is_ok() && page.push("b", &metadata).is_err());
    }

    #[test]
    fn encoded_labels_are_as_long_as_computed() {
        for len in [1, 60, 61, 120, 127, 128, 16_383, 16_384, 70_000] {
            let value = "v".repeat(len);
            let labels = Labels::from_pairs([("a", value.as_str()), ("b", "1")]).unwrap();
            let pairs = [("a", value.as_bytes()), ("b", b"1".as_slice())];
            let encoded = encode_labels(&labels);
            let expected = pairs.map(|(name, value)| (name.as_bytes(), value));
            assert_eq!(decode_labels(&encoded).collect::<Vec<_>>(), expected);
            let bytes = |len| field_bytes(field_bytes(1) + field_bytes(len));
            assert_eq!(encoded.len(), bytes(len) + bytes(1));
        }
    }

    #[test]
    fn a_request_never_takes_more_than_its_bound() {
        for (label_count, sample_count) in [(0, 0), (1, 1), (30, 1), (3, 500)] {
            let names: Vec<String> = (0..label_count).map(|idx| format!("n{idx}")).collect();
            let pairs = names.iter().map(|name| (name.as_str(), name.as_str()));
            let labels = encode_labels(&Labels::from_pairs(pairs).unwrap());
            let samples = vec![(i64::MIN, f64::MAX); sample_count];
            let series = [SeriesSamples { labels: &labels, samples }];
            let bound = request_bytes_max(labels.len() as u64, 1, sample_count as u64);
            for message in [WriteMessage::V1, WriteMessage::V2] {
                assert!(write_request(message, &series, none).len() as u64 <= bound);
            }
        }
    }
}
