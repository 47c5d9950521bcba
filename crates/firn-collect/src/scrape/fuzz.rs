//! The check that the fuzzer in `fuzz/` runs on its input. Compiled for tests and fuzzers only.

use std::collections::HashMap;

use firn_model::{Budget, Error, GroupId, Labels, Pool, Result, RowBatch, SeriesRef, Slot};

use super::{
    BodyFormat, ExposedLabels, MetadataItem, ScrapeCache, ScrapeCounts, ScrapeOptions, ScrapedBody,
    SeriesSource,
};
use crate::relabel::NameScheme;

/// A message repeats at most this much of a body.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

const OPTIONS: ScrapeOptions = ScrapeOptions {
    honor_timestamps: true,
    track_timestamps_staleness: true,
    names: NameScheme::Utf8,
    sample_count_max: 0,
    label_count_max: 0,
    label_name_bytes_max: 0,
    label_value_bytes_max: 0,
};

#[derive(Default)]
struct KnownSeries(HashMap<Labels, u32>);

impl SeriesSource for KnownSeries {
    fn labels(&mut self, exposed: &ExposedLabels) -> Result<Option<Labels>> {
        Labels::from_pairs(exposed.iter()).map(Some)
    }

    fn resolve(&mut self, new: &[Labels]) -> Vec<Result<SeriesRef>> {
        let mut resolve = |labels: &Labels| {
            let next = u32::try_from(self.0.len()).map_err(|_| Error::internal("too many"))?;
            let slot = *self.0.entry(labels.clone()).or_insert(next);
            Ok(SeriesRef { group: GroupId(0), slot: Slot(slot) })
        };
        new.iter().map(&mut resolve).collect()
    }

    fn metadata(&mut self, _: &str, _: MetadataItem<'_>) {}
}

/// Scrapes of two bodies: the first byte is the format, a zero byte separates the bodies. The first
/// body is read twice from the cache, and each scrape stores the same as one without its texts.
///
/// # Panics
/// If the scrapes differ, or for a long message.
pub fn scrape(data: &[u8]) {
    let Some((&first, bodies)) = data.split_first() else { return };
    let format = match first % 3 {
        0 => BodyFormat::Text,
        1 => BodyFormat::OpenMetrics,
        _ => BodyFormat::Protobuf,
    };
    let middle = bodies.iter().position(|byte| *byte == 0).unwrap_or(bodies.len());
    let (one, other) = match format {
        // Its messages contain zero bytes.
        BodyFormat::Protobuf => (bodies, bodies),
        _ => bodies.split_at(middle),
    };
    let other = other.strip_prefix(b"\0").unwrap_or(other);
    let (mut cached, mut uncached) = (Scraper::default(), Scraper::default());
    for body in [one, one, other, one] {
        uncached.cache.forget_references();
        assert_eq!(cached.scrape(body, format), uncached.scrape(body, format));
    }
}

#[derive(Default)]
struct Scraper {
    cache: ScrapeCache,
    series: KnownSeries,
    batch: RowBatch,
    ts: i64,
}

impl Scraper {
    /// The cells, counts without the series added, and whether the scrape succeeded.
    fn scrape(&mut self, body: &[u8], format: BodyFormat) -> Outcome {
        self.ts = self.ts.wrapping_add(1);
        let Scraper { cache, series, batch, ts } = self;
        batch.clear();
        let mut held = Budget::unlimited().empty(Pool::Requests);
        let body = ScrapedBody { bytes: body, format, ts: *ts };
        let (counts, result) = cache.scrape(body, &OPTIONS, series, batch, &mut held);
        if let Err(error) = &result {
            assert!(error.to_string().len() <= MESSAGE_BYTES_MAX, "{error:.200}");
        }
        let cells = batch.cells().iter();
        let mut cells: Vec<_> =
            cells.map(|cell| (cell.slot.0, cell.ts, cell.value.to_bits())).collect();
        cells.sort_unstable();
        (cells, ScrapeCounts { added: 0, ..counts }, result.is_ok())
    }
}

type Outcome = (Vec<(u32, i64, u64)>, ScrapeCounts, bool);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_each_format_pass() {
        scrape(b"\0# TYPE a histogram\na{le=\"1\"} 1\nb 2 3\n\0b 2\na{le=\"1\"} 1\n");
        scrape(b"\x01# TYPE a counter\na_total 1 # {x=\"y\"} 1\n# EOF\n\0# EOF\n");
        scrape(b"\x02\x10\x0a\x01a\x18\x01\x22\x09\x12\x09\x09\0\0\0\0\0\0\0\0");
    }

    proptest::proptest! {
        #[test]
        fn random_bodies_pass(
            first in 0..3_u8,
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100),
        ) {
            let mut data = vec![first];
            data.extend_from_slice(&bytes);
            scrape(&data);
        }
    }
}
