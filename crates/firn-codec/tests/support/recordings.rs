//! The real recordings in `../shared/data`, beside the repository.

use std::collections::HashMap;
use std::path::PathBuf;

use firn_model::{STALE_NAN, Timestamp};

/// Values of one moment: series number and value, rising by number.
pub(crate) type Row = (Timestamp, Vec<(u32, f64)>);
/// A series as text files have it: its samples in file order.
pub(crate) type Series = Vec<(Timestamp, f64)>;

/// Scrape targets that were recorded.
pub(crate) const SCRAPES: [&str; 6] =
    ["node", "prometheus", "alertmanager", "pushgateway", "redis", "process"];
/// Files of series.
pub(crate) const SERIES: [&str; 7] =
    ["smd", "asd", "nab", "petshop", "beijing_air", "alp_samples", "alp_rowgroups"];

/// A recording's bytes; `None`, with the reason printed, where the recordings are absent.
///
/// # Panics
/// If they are absent and `FIRN_REQUIRE_SHARED=1`.
pub(crate) fn read(file: &str) -> Option<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = root.join(file);
    if !path.exists() {
        let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
        assert!(!required, "{} is absent, but FIRN_REQUIRE_SHARED=1", path.display());
        println!("skipped: {} is absent", path.display());
        return None;
    }
    let packed = std::fs::read(&path).expect("recording is readable");
    Some(zstd::stream::decode_all(packed.as_slice()).expect("recording is zstd"))
}

/// All rows of a scrape target, as Prometheus would store them: a series that vanishes gets a
/// staleness marker. Series are numbered in the order they are first seen.
pub(crate) fn scrapes(target: &str) -> Option<Vec<Row>> {
    let bytes = read(&format!("scrape_{target}.zst"))?;
    let mut input = bytes.strip_prefix(b"FIRNSCR1").expect("a recorded scrape");
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut rows: Vec<Row> = Vec::new();
    while !input.is_empty() {
        let ts = u64::from_le_bytes(take(&mut input)) as Timestamp;
        let _duration_us: [u8; 4] = take(&mut input);
        let body_bytes = u32::from_le_bytes(take(&mut input)) as usize;
        let (body, rest) = input.split_at(body_bytes);
        input = rest;
        let body = std::str::from_utf8(body).expect("a scrape is text");
        let mut cells: Vec<(u32, f64)> = Vec::new();
        for line in body.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (key, value) = line.rsplit_once(' ').expect("a value after the series");
            let next = numbers.len() as u32;
            let number = *numbers.entry(key.to_owned()).or_insert(next);
            cells.push((number, value.parse().expect("a number")));
        }
        cells.sort_by_key(|cell| cell.0);
        cells.dedup_by_key(|cell| cell.0);
        let mut vanished = Vec::new();
        if let Some((_, before)) = rows.last() {
            for &(number, value) in before {
                let here = cells.binary_search_by_key(&number, |cell| cell.0).is_ok();
                if !here && value.to_bits() != STALE_NAN.to_bits() {
                    vanished.push((number, STALE_NAN));
                }
            }
        }
        cells.extend(vanished);
        cells.sort_by_key(|cell| cell.0);
        rows.push((ts, cells));
    }
    Some(rows)
}

/// All series of a text file. Keeps the last of repeated timestamps and drops samples that are
/// older than their predecessor.
pub(crate) fn series(name: &str) -> Option<Vec<Series>> {
    let bytes = read(&format!("{name}.series.zst"))?;
    let text = String::from_utf8(bytes).expect("series are text");
    let mut all: Vec<Series> = Vec::new();
    for line in text.lines() {
        if line.starts_with('>') {
            all.push(Vec::new());
            continue;
        }
        let (ts, value) = line.split_once(',').expect("timestamp,value");
        let ts: Timestamp = ts.parse().expect("a timestamp");
        let value: f64 = value.parse().expect("a number");
        let samples = all.last_mut().expect("a series begins with >");
        match samples.last_mut() {
            Some(last) if last.0 == ts => last.1 = value,
            Some(last) if last.0 > ts => {}
            _ => samples.push((ts, value)),
        }
    }
    Some(all)
}

fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = input.split_first_chunk::<N>().expect("a whole frame");
    *input = rest;
    *taken
}
