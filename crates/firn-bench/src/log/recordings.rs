//! The recorded scrapes of `../shared/data`, frame by frame.

use std::collections::HashMap;
use std::path::PathBuf;

/// Scrape targets that were recorded.
pub const TARGETS: [&str; 6] =
    ["node", "prometheus", "alertmanager", "pushgateway", "redis", "process"];

/// One scrape: its time, and values by the number of their series.
pub type Scrape = (i64, Vec<(usize, f64)>);

/// A target's series as in the text, and its scrapes; `None` without the recording.
///
/// # Panics
/// If the recording is malformed.
pub fn read(target: &str) -> Option<(Vec<String>, Vec<Scrape>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let packed = std::fs::read(folder.join(format!("scrape_{target}.zst"))).ok()?;
    let bytes = zstd::stream::decode_all(packed.as_slice()).expect("a recording is zstd");
    let mut input = bytes.strip_prefix(b"FIRNSCR1").expect("a recording's magic");
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let (mut series, mut scrapes) = (Vec::new(), Vec::new());
    while !input.is_empty() {
        let ts = u64::from_le_bytes(take(&mut input)) as i64;
        let _duration_us: [u8; 4] = take(&mut input);
        let body_bytes = u32::from_le_bytes(take(&mut input)) as usize;
        let (body, rest) = input.split_at(body_bytes);
        input = rest;
        let body = std::str::from_utf8(body).expect("a scrape is text");
        let mut values = Vec::new();
        for line in body.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (key, value) = line.rsplit_once(' ').expect("a value after the series");
            let number = *numbers.entry(key.to_owned()).or_insert_with(|| {
                series.push(key.to_owned());
                series.len() - 1
            });
            values.push((number, value.parse().expect("a number")));
        }
        scrapes.push((ts, values));
    }
    Some((series, scrapes))
}

fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = input.split_first_chunk::<N>().expect("a whole frame");
    *input = rest;
    *taken
}
