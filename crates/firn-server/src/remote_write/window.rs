//! A part of a window: samples of the log, by shard.

use std::collections::HashMap;
use std::sync::Arc;

use firn_collect::config::WriteMessage;
use firn_model::{Reservation, SeriesRef, Timestamp};
use firndb::LoggedSample;

use super::message::{SeriesSamples, request_bytes_max, write_request};
use super::series::Outgoing;
use crate::metadata::Metadata;

/// Samples that are sent together: a window, or a part of one whose labels are long.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// By shard, in the order of the log.
    pub(super) shards: Vec<Vec<OutgoingSample>>,
    /// The memory of the labels.
    pub(super) held: Reservation,
}

/// The limits of the requests of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    /// The most samples of a request.
    pub(super) len_max: usize,
    /// The most memory of a request of several samples, without metadata.
    pub(super) bytes_max: u64,
    /// The memory of the metadata in each request, which version 2.0 sends.
    pub(super) metadata_bytes: u64,
}

/// A sample with the labels of its series.
#[derive(Clone, Debug)]
pub(super) struct OutgoingSample {
    labels: Arc<[u8]>,
    pub(super) ts: Timestamp,
    value: f64,
}

impl SendWindow {
    /// Distributes samples over `shard_count` shards by series. The same samples always make the
    /// same shards and requests. Returns the number of samples without labels
    /// too, which are dropped. `held` is the memory of `labels`.
    pub(super) fn new(
        samples: &[LoggedSample],
        labels: &HashMap<SeriesRef, Outgoing>,
        shard_count: usize,
        held: Reservation,
    ) -> (SendWindow, u64) {
        let mut shards: Vec<Vec<OutgoingSample>> = vec![Vec::new(); shard_count.max(1)];
        let mut dropped = 0;
        for sample in samples {
            let Some(Some(labels)) = labels.get(&sample.series) else {
                dropped += 1;
                continue;
            };
            let shard = shard_of(sample.series, shards.len());
            let (labels, ts, value) = (Arc::clone(labels), sample.ts, sample.value);
            shards[shard].push(OutgoingSample { labels, ts, value });
        }
        (SendWindow { shards, held }, dropped)
    }

    /// The most memory that one request of each shard takes.
    pub(super) fn requests_bytes(&self, limits: RequestLimits) -> u64 {
        let of_shard = |samples: &Vec<OutgoingSample>| {
            batches(samples, limits).map(|batch| batch_bytes_max(batch, limits)).max()
        };
        self.shards.iter().filter_map(of_shard).fold(0, u64::saturating_add)
    }

    /// Number of samples.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(Vec::len).sum()
    }
}

/// Members of a group mostly share a shard, because their labels have texts in common.
fn shard_of(series: SeriesRef, shard_count: usize) -> usize {
    let key = series.group.0 ^ (u64::from(series.slot.0) / 256) << 40;
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) % shard_count as u64) as usize
}

/// Upper bound of the memory of the request of `samples`.
pub(super) fn batch_bytes_max(samples: &[OutgoingSample], limits: RequestLimits) -> u64 {
    let labels = samples.iter().map(|sample| sample.labels.len() as u64).sum();
    request_bytes_max(labels, samples.len() as u64, samples.len() as u64)
        .saturating_add(limits.metadata_bytes)
}

/// Divides the samples of a shard into requests. The same samples always make the same requests.
pub(super) fn batches(
    mut samples: &[OutgoingSample],
    limits: RequestLimits,
) -> impl Iterator<Item = &[OutgoingSample]> {
    let RequestLimits { len_max, bytes_max, .. } = limits;
    std::iter::from_fn(move || {
        let mut labels_bytes: u64 = 0;
        let fits = |(idx, sample): &(usize, &OutgoingSample)| {
            labels_bytes = labels_bytes.saturating_add(sample.labels.len() as u64);
            let count = *idx as u64 + 1;
            request_bytes_max(labels_bytes, count, count) <= bytes_max
        };
        let fitting = samples.iter().take(len_max).enumerate().take_while(fits).count();
        let (batch, rest) = samples.split_at_checked(fitting.max(1))?;
        samples = rest;
        Some(batch)
    })
}

/// The packed request of `samples`, those older than `oldest` left out, and the number of samples
/// in it.
pub(super) fn batch_request(
    message: WriteMessage,
    samples: &[OutgoingSample],
    oldest: Timestamp,
    metadata: impl FnMut(&str) -> Option<Metadata>,
) -> (Vec<u8>, u64) {
    let mut places: HashMap<*const u8, usize> = HashMap::new();
    let mut series: Vec<SeriesSamples<'_>> = Vec::new();
    let mut count = 0;
    for sample in samples.iter().filter(|sample| sample.ts >= oldest) {
        let place = *places.entry(sample.labels.as_ptr()).or_insert_with(|| {
            series.push(SeriesSamples { labels: &sample.labels, samples: Vec::new() });
            series.len() - 1
        });
        series[place].samples.push((sample.ts, sample.value));
        count += 1;
    }
    (write_request(message, &series, metadata), count)
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, GroupId, Pool, Slot};

    use super::*;

    fn no_memory() -> Reservation {
        Budget::unlimited().empty(Pool::Requests)
    }

    fn limits(len_max: usize, bytes_max: u64) -> RequestLimits {
        RequestLimits { len_max, bytes_max, metadata_bytes: 0 }
    }

    fn series(group: u64, slot: u32) -> SeriesRef {
        SeriesRef { group: GroupId(group), slot: Slot(slot) }
    }

    #[test]
    fn a_series_has_one_shard_and_keeps_its_order() {
        let mut labels: HashMap<SeriesRef, Outgoing> = HashMap::new();
        let mut samples = Vec::new();
        for round in 0..50 {
            for idx in 0..40 {
                let series = series(idx, 0);
                // Every fourth series is dropped by a rule.
                let outgoing = || (idx % 4 > 0).then(|| Arc::from([idx as u8].as_slice()));
                labels.entry(series).or_insert_with(outgoing);
                samples.push(LoggedSample { series, ts: round, value: idx as f64 });
            }
        }
        let (window, dropped) = SendWindow::new(&samples, &labels, 4, no_memory());
        assert_eq!((window.len(), dropped), (1_500, 500));
        let mut shard_of_series = HashMap::new();
        for (shard, samples) in window.shards.iter().enumerate() {
            let mut last = HashMap::new();
            assert!(samples.len() > 100, "shards are used evenly");
            for sample in samples {
                assert_eq!(*shard_of_series.entry(sample.labels[0]).or_insert(shard), shard);
                assert!(last.insert(sample.labels[0], sample.ts) < Some(sample.ts));
            }
        }
    }

    /// Before, requests were as long as the configuration allows, whatever memory there was.
    #[test]
    fn requests_are_as_large_as_their_memory() {
        let sample = |idx: i64| {
            let labels = Arc::from(vec![b'x'; if idx == 7 { 9_000 } else { 100 }]);
            OutgoingSample { labels, ts: idx, value: 1.0 }
        };
        let samples: Vec<OutgoingSample> = (0..40).map(sample).collect();
        let lens = |len_max, bytes_max| {
            let limits = limits(len_max, bytes_max);
            let lens: Vec<usize> = batches(&samples, limits)
                .inspect(|batch| {
                    assert!(batch.len() == 1 || batch_bytes_max(batch, limits) <= bytes_max);
                })
                .map(<[_]>::len)
                .collect();
            assert_eq!(lens.iter().sum::<usize>(), samples.len());
            lens
        };
        assert_eq!(lens(16, u64::MAX), [16, 16, 8]);
        assert_eq!(lens(16, 6_000), [7, 1, 10, 10, 10, 2]);
        assert_eq!(lens(16, 0).len(), 40);
        let all: Vec<i64> =
            batches(&samples, limits(16, 6_000)).flatten().map(|one| one.ts).collect();
        assert!(all.is_sorted());
        assert_eq!(batches(&[], limits(16, 6_000)).count(), 0);
    }

    #[test]
    fn old_samples_are_left_out_of_a_request() {
        let labels: Arc<[u8]> = Arc::from([].as_slice());
        let sample = |ts| OutgoingSample { labels: Arc::clone(&labels), ts, value: 1.0 };
        let samples = [sample(1), sample(2), sample(3)];
        let (body, count) = batch_request(WriteMessage::V1, &samples, 2, |_| None);
        assert_eq!(count, 2);
        assert!(body.len() as u64 <= batch_bytes_max(&samples, limits(9, 0)));
    }
}
