//! The recorded scrapes of `../shared/data`: frames of text exposition, read as a scraper would.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;

use crate::process::{repository, skip};

/// One scrape: its time and its samples by series key (`name{labels}` as the target wrote it).
pub(crate) struct Scrape {
    pub(crate) ts: i64,
    pub(crate) samples: BTreeMap<String, f64>,
}

/// The recording of `target`, or a printed reason to skip.
pub(crate) fn recorded(target: &str) -> Option<Vec<Scrape>> {
    let path: PathBuf = repository().join(format!("../shared/data/scrape_{target}.zst"));
    let Ok(file) = std::fs::File::open(&path) else {
        skip(&format!("{} is absent (a clone without the shared recordings)", path.display()));
        return None;
    };
    let mut bytes = Vec::new();
    zstd::stream::read::Decoder::new(file)
        .and_then(|mut decoder| decoder.read_to_end(&mut bytes))
        .expect("a zstd stream");
    Some(frames(&bytes).map(|(ts, body)| Scrape { ts, samples: parse(body) }).collect())
}

fn frames(bytes: &[u8]) -> impl Iterator<Item = (i64, &str)> {
    let mut rest = bytes.strip_prefix(b"FIRNSCR1").expect("the recording's magic");
    std::iter::from_fn(move || {
        let (head, after) = rest.split_at_checked(16)?;
        let ts = u64::from_le_bytes(head[..8].try_into().ok()?) as i64;
        let body_bytes = u32::from_le_bytes(head[12..].try_into().ok()?) as usize;
        let (body, after) = after.split_at_checked(body_bytes)?;
        rest = after;
        Some((ts, std::str::from_utf8(body).expect("text")))
    })
}

/// Recorded bodies have no timestamps: the value is behind the last blank.
fn parse(body: &str) -> BTreeMap<String, f64> {
    body.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.trim().to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// The labels of a series key, `__name__` first.
pub(crate) fn labels(key: &str) -> Vec<(String, String)> {
    let (name, rest) = key.split_once('{').unwrap_or((key, "}"));
    let mut labels = vec![("__name__".to_owned(), name.to_owned())];
    let mut rest = rest.trim_end_matches('}');
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut chars = after.char_indices();
        let mut end = after.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c)) => value.push(c),
                    None => {}
                },
                c => value.push(c),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        rest = &after[end..];
    }
    labels
}

/// The keys that were in `before` and are not in `now`: they get a staleness marker.
pub(crate) fn vanished(before: &Scrape, now: &Scrape) -> BTreeSet<String> {
    before.samples.keys().filter(|key| !now.samples.contains_key(*key)).cloned().collect()
}
