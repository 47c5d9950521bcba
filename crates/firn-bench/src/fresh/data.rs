//! The samples of a run as remote write requests, the same every time.
//!
//! A request is encoded once and keeps its bytes: a scrape overwrites times and values in place.
//! The generator then costs little more than snappy, so that it can serve as a unit of CPU.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::index::scatter;
use crate::remote_write::{packed, push_label, push_metadata, push_series};

use super::shape::{Labelling, SenderShape, SentSeries};
use super::walk::Value;

/// Milliseconds between two samples of a series.
pub const INTERVAL_MS: i64 = 15_000;
// Samples of a request, Prometheus' default.
const SERIES_PER_REQUEST: usize = 2_000;
const SHARDS: usize = 8;
// Enough for all metrics of a shape.
const SOURCES_WITH_METADATA: usize = 1_000;
// The bytes of one sample: tag, length, tag and value, tag and time. A time is a varint of six
// bytes from 1971 until 3084.
const SAMPLE_BYTES: usize = 2 + 9 + 7;

/// Some sources of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Their shape.
    pub shape: SenderShape,
    /// Their number.
    pub source_count: usize,
}

/// All series of a run and their current values.
#[derive(Debug)]
pub struct Data {
    requests: Vec<ShardRequest>,
    series_count: usize,
}

#[derive(Debug, Default)]
struct ShardRequest {
    /// The request of the last scrape, not compressed.
    body: Vec<u8>,
    series: Vec<SeriesState>,
}

#[derive(Debug)]
struct SeriesState {
    /// Its encoded labels in the body.
    labels: Range<u32>,
    /// Its sample in the body, after `labels`.
    sample_at: u32,
    /// From the start of a scrape to its samples.
    phase_ms: u16,
    value: Value,
}

impl Data {
    /// The series of `parts`, before their first sample. Each generation has sources of its own;
    /// queries read those of generation 0.
    pub fn new(parts: &[Part], labelling: Labelling, generation: usize) -> Data {
        let mut data = Data { requests: Vec::new(), series_count: 0 };
        for part in parts {
            data.add(*part, labelling, generation);
        }
        data
    }

    fn add(&mut self, Part { shape, source_count }: Part, labelling: Labelling, generation: usize) {
        // A shard has a random part of the series of all sources, as in Prometheus.
        let shard_count = if shape.is_mixed_by_sender() { SHARDS } else { 1 };
        let mut shards: Vec<ShardRequest> = Vec::new();
        shards.resize_with(shard_count, ShardRequest::default);
        for source in generation * source_count..(generation + 1) * source_count {
            for (idx, series) in shape.series(source, labelling.form(source)).iter().enumerate() {
                let seed = scatter((source as u64) << 20 | idx as u64);
                let request = &mut shards[(seed >> 32) as usize % shard_count];
                request.push(series, seed);
                if request.series.len() == SERIES_PER_REQUEST {
                    self.requests.push(std::mem::take(request).finished());
                }
            }
        }
        let rest = shards.into_iter().filter(|request| !request.series.is_empty());
        self.requests.extend(rest.map(ShardRequest::finished));
        self.series_count += source_count * shape.series_per_source();
    }

    /// Number of series.
    pub fn series_count(&self) -> usize {
        self.series_count
    }

    /// A request with a type and a help text for each metric of `parts`.
    pub fn metadata(parts: &[Part], labelling: Labelling) -> Vec<u8> {
        let mut names = BTreeSet::new();
        for Part { shape, source_count } in parts {
            for source in 0..SOURCES_WITH_METADATA.min(*source_count) {
                let labels = shape.series(source, labelling.form(source));
                let labels = labels.into_iter().flat_map(|series| series.labels);
                names.extend(labels.filter(|(name, _)| name == "__name__").map(|label| label.1));
            }
        }
        let mut body = Vec::new();
        names.iter().for_each(|name| push_metadata(name, &mut body));
        packed(&body)
    }

    /// The requests with one sample of each series, in the interval that starts at `start_ms`.
    pub fn scrape(&mut self, start_ms: i64) -> Vec<Vec<u8>> {
        self.requests.iter_mut().map(|request| request.scrape(start_ms)).collect()
    }

    /// The requests with `count` samples of each series from `start_ms` on: the history before
    /// the scrapes. Several threads compute it.
    pub fn history(&mut self, start_ms: i64, count: i64, interval_ms: i64) -> Vec<Vec<u8>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let per_thread = self.requests.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let parts: Vec<_> = self
                .requests
                .chunks_mut(per_thread)
                .map(|part| {
                    scope.spawn(move || -> Vec<Vec<u8>> {
                        part.iter_mut().map(|r| r.history(start_ms, count, interval_ms)).collect()
                    })
                })
                .collect();
            parts.into_iter().flat_map(|part| part.join().expect("it only computes")).collect()
        })
    }
}

impl ShardRequest {
    fn push(&mut self, series: &SentSeries, seed: u64) {
        let mut labels = Vec::new();
        for (name, value) in &series.labels {
            push_label(name, value, &mut labels);
        }
        let phase_ms = match series.clock {
            0 => 0,
            // Multiples of 10 ms: the times of queries end in 5 ms and are never those of a sample.
            clock => (scatter(clock) % (INTERVAL_MS as u64 / 10) * 10) as u16,
        };
        // A time with as many bytes as all later ones.
        let sample = std::iter::once((1_700_000_000_000, 0.0));
        push_series(&labels, sample, &mut self.body);
        let sample_at = self.body.len() - SAMPLE_BYTES;
        let labels = (sample_at - labels.len()) as u32..sample_at as u32;
        let value = Value::new(series.walk, seed);
        self.series.push(SeriesState { labels, sample_at: sample_at as u32, phase_ms, value });
    }

    fn finished(mut self) -> ShardRequest {
        self.body.shrink_to_fit();
        self
    }

    fn scrape(&mut self, start_ms: i64) -> Vec<u8> {
        let ShardRequest { body, series } = self;
        for SeriesState { sample_at, phase_ms, value, .. } in series {
            let sample = &mut body[*sample_at as usize..][..SAMPLE_BYTES];
            sample[3..11].copy_from_slice(&value.next().to_le_bytes());
            let mut ts = (start_ms + i64::from(*phase_ms)) as u64;
            for byte in &mut sample[12..17] {
                *byte = ts as u8 | 0x80;
                ts >>= 7;
            }
            debug_assert!((1..0x80).contains(&ts), "a time has six bytes");
            sample[17] = ts as u8;
        }
        packed(body)
    }

    fn history(&mut self, start_ms: i64, count: i64, interval_ms: i64) -> Vec<u8> {
        let ShardRequest { body, series } = self;
        let mut out = Vec::with_capacity(body.len() + series.len() * count as usize * 20);
        for SeriesState { labels, phase_ms, value, .. } in series {
            let labels = &body[labels.start as usize..labels.end as usize];
            let first_ms = start_ms + i64::from(*phase_ms);
            let samples = (0..count).map(|idx| (first_ms + idx * interval_ms, value.next()));
            push_series(labels, samples, &mut out);
        }
        packed(&out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Encoded labels with the samples of each series.
    type Decoded = BTreeMap<Vec<u8>, Vec<(i64, f64)>>;

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn field<'a>(bytes: &mut &'a [u8]) -> (u8, &'a [u8]) {
        let tag = varint(bytes) as u8;
        let length = varint(bytes) as usize;
        let (inner, rest) = bytes.split_at(length);
        *bytes = rest;
        (tag, inner)
    }

    fn decode(bodies: &[Vec<u8>], into: &mut Decoded) {
        for body in bodies {
            let body = snap::raw::Decoder::new().decompress_vec(body).unwrap();
            let mut body = body.as_slice();
            while !body.is_empty() {
                let (tag, mut series) = field(&mut body);
                assert_eq!(tag, 0x0a);
                let (mut labels, mut samples) = (Vec::new(), Vec::new());
                while !series.is_empty() {
                    let before = series;
                    match field(&mut series) {
                        (0x0a, _) => labels.extend(&before[..before.len() - series.len()]),
                        (0x12, sample) => {
                            assert_eq!((sample[0], sample[9]), (0x09, 0x10));
                            let value = f64::from_le_bytes(sample[1..9].try_into().unwrap());
                            let mut ts = &sample[10..];
                            samples.push((varint(&mut ts) as i64, value));
                            assert!(ts.is_empty());
                        }
                        (tag, _) => panic!("unexpected field {tag:#x}"),
                    }
                }
                into.entry(labels).or_default().append(&mut samples);
            }
        }
    }

    #[test]
    fn requests_contain_each_series_once_a_scrape_at_its_own_time() {
        const START_MS: i64 = 1_790_000_010_000;
        for shape in SenderShape::ALL {
            let source_count = 3_000 / shape.series_per_source();
            let part = Part { shape, source_count };
            let mut data = Data::new(&[part], Labelling::Mixed, 0);
            let mut decoded = Decoded::new();
            decode(&data.history(START_MS, 4, INTERVAL_MS), &mut decoded);
            for scrape in 4..7 {
                decode(&data.scrape(START_MS + scrape * INTERVAL_MS), &mut decoded);
            }
            assert_eq!(decoded.len(), data.series_count(), "{shape:?}");
            assert_eq!(decoded.len(), source_count * shape.series_per_source());
            let mut first_times = BTreeMap::new();
            for source in 0..source_count {
                for series in shape.series(source, Labelling::Mixed.form(source)) {
                    let mut labels = Vec::new();
                    for (name, value) in &series.labels {
                        push_label(name, value, &mut labels);
                    }
                    let samples = &decoded[&labels];
                    let (first_ms, _) = samples[0];
                    assert!((START_MS..START_MS + INTERVAL_MS).contains(&first_ms));
                    assert_eq!(first_ms % 10, 0);
                    let times = (0..7).map(|idx| first_ms + idx * INTERVAL_MS);
                    assert!(samples.iter().map(|sample| sample.0).eq(times), "{samples:?}");
                    assert_eq!(*first_times.entry(series.clock).or_insert(first_ms), first_ms);
                    assert!(series.clock != 0 || first_ms == START_MS);
                }
            }
        }
    }

    #[test]
    fn the_same_data_every_time() {
        let part = Part { shape: SenderShape::Cadvisor, source_count: 20 };
        let bodies = || {
            let mut data = Data::new(&[part], Labelling::Lone, 1);
            (data.history(1_790_000_000_000, 3, 60_000), data.scrape(1_790_000_180_000))
        };
        assert!(bodies() == bodies());
    }

    #[test]
    fn generations_share_no_series() {
        for shape in SenderShape::ALL {
            let part = Part { shape, source_count: 40 };
            let mut decoded = Decoded::new();
            for generation in 0..3 {
                let mut data = Data::new(&[part], Labelling::Mixed, generation);
                decode(&data.scrape(1_790_000_000_000), &mut decoded);
            }
            assert_eq!(decoded.len(), 3 * 40 * shape.series_per_source(), "{shape:?}");
        }
    }
}
