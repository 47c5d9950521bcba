//! Nanoseconds per sample of an unchanged scrape, and bytes per line of the cache.
//!
//! `cargo run --release -p firn-collect --example scrape -- FILE [openmetrics]` reads a body and
//! changes the last digit of each value from scrape to scrape.

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use firn_collect::relabel::NameScheme;
use firn_collect::scrape::{
    BodyFormat, ExposedLabels, MetadataItem, ScrapeCache, ScrapeOptions, ScrapedBody, SeriesSource,
};
use firn_model::{Budget, GroupId, Labels, Pool, Result, RowBatch, SeriesRef, Slot};

#[derive(Default)]
struct Slots(HashMap<Labels, u32>);

impl SeriesSource for Slots {
    fn labels(&mut self, exposed: &ExposedLabels) -> Result<Option<Labels>> {
        Labels::from_pairs(exposed.iter()).map(Some)
    }

    fn resolve(&mut self, new: &[Labels]) -> Vec<Result<SeriesRef>> {
        let mut slot = |labels: &Labels| {
            let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
            *self.0.entry(labels.clone()).or_insert(next)
        };
        new.iter()
            .map(|labels| Ok(SeriesRef { group: GroupId(1), slot: Slot(slot(labels)) }))
            .collect()
    }

    fn metadata(&mut self, _: &str, _: MetadataItem<'_>) {}
}

const SCRAPES: u32 = 2_000;

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("a file is required")?;
    let format = match arguments.next() {
        Some(_) => BodyFormat::OpenMetrics,
        None => BodyFormat::Text,
    };
    let body = std::fs::read(file)?;
    let mut other = body.clone();
    for at in 1..other.len() {
        if other[at] == b'\n' && other[at - 1].is_ascii_digit() {
            other[at - 1] = b'0' + (other[at - 1] - b'0' + 1) % 10;
        }
    }
    let options = ScrapeOptions {
        honor_timestamps: true,
        track_timestamps_staleness: false,
        names: NameScheme::Utf8,
        sample_count_max: 0,
        label_count_max: 0,
        label_name_bytes_max: 0,
        label_value_bytes_max: 0,
    };
    let (mut cache, mut slots) = (ScrapeCache::default(), Slots::default());
    let mut batch = RowBatch::default();
    let mut held = Budget::unlimited().empty(Pool::Requests);
    let mut scrape = |ts: i64, bytes: &[u8]| {
        batch.clear();
        let body = ScrapedBody { bytes, format, ts };
        let (counts, result) = cache.scrape(body, &options, &mut slots, &mut batch, &mut held);
        result.map(|()| counts)
    };
    let start = Instant::now();
    let first = scrape(0, &body)?;
    let first_ns = start.elapsed().as_nanos() as f64 / first.scraped as f64;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for ts in 0..SCRAPES {
            scrape(i64::from(ts) * 15_000, if ts % 2 == 0 { &other } else { &body })?;
        }
        let ns = start.elapsed().as_nanos() as f64;
        best = best.min(ns / (f64::from(SCRAPES) * first.scraped as f64));
    }
    println!(
        "{} samples in {} bytes: first {first_ns:.0} ns, unchanged {best:.1} ns per sample, \
         {:.1} bytes per line",
        first.scraped,
        body.len(),
        cache.heap_bytes() as f64 / cache.line_count() as f64
    );
    Ok(())
}
