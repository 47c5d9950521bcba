//! Series with their samples: recorded scrapes, public data sets, and hosts as TSBS has them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use firndb::{Labels, Timestamp};

use crate::fleet::{Fleet, Kind};
use crate::index::label_sets::{Pairs, exposed};
use crate::remote_write::{packed, push_label, push_series};

const FOLDER: &str = "../shared/data";
/// The scrape targets that were recorded.
pub const SCRAPES: [&str; 6] =
    ["node", "prometheus", "alertmanager", "pushgateway", "redis", "process"];
/// The public data sets.
pub const PUBLIC: [&str; 7] =
    ["smd", "asd", "nab", "petshop", "beijing_air", "alp_samples", "alp_rowgroups"];
// Prometheus' marker for a series that was absent from the next scrape.
const STALE_NAN_BITS: u64 = 0x7ff0_0000_0000_0002;
const SERIES_PER_REQUEST: usize = 500;
// Servers refuse bodies of some ten MB.
const SAMPLES_PER_REQUEST: usize = 500_000;

/// A series and its samples, which rise by time.
#[derive(Clone, Debug)]
pub struct Series {
    /// Names and values of its labels.
    pub pairs: Vec<(String, String)>,
    /// Times in milliseconds, and values.
    pub samples: Vec<(Timestamp, f64)>,
}

/// Some series.
#[derive(Clone, Debug, Default)]
pub struct Set {
    /// All of them.
    pub series: Vec<Series>,
}

impl Set {
    /// A recorded target as Prometheus would store it, or all of them.
    ///
    /// # Errors
    /// `NotFound` without recordings; other errors if they are malformed.
    pub fn scraped(targets: &[&str]) -> io::Result<Set> {
        let mut set = Set::default();
        for target in targets {
            set.series.extend(scraped(target)?);
        }
        Ok(set)
    }

    /// A public data set, each series alone.
    ///
    /// # Errors
    /// `NotFound` without the data; other errors if it is malformed.
    pub fn public(name: &str) -> io::Result<Set> {
        let path = Path::new(FOLDER).join(format!("{name}.series.zst"));
        let text = String::from_utf8(zstd::decode_all(fs::File::open(&path)?)?)
            .map_err(io::Error::other)?;
        let broken = |line: &str| io::Error::other(format!("{}: {line:?}", path.display()));
        let mut set = Set::default();
        for line in text.lines() {
            if let Some(key) = line.strip_prefix('>') {
                let pairs = exposed(&format!("{key} ")).ok_or_else(|| broken(line))?;
                set.series.push(Series { pairs, samples: Vec::new() });
                continue;
            }
            let (ts, value) = line.split_once(',').ok_or_else(|| broken(line))?;
            let ts: Timestamp = ts.parse().map_err(|_| broken(line))?;
            let value: f64 = value.parse().map_err(|_| broken(line))?;
            let samples = &mut set.series.last_mut().ok_or_else(|| broken(line))?.samples;
            // Some sources repeat timestamps or step back.
            if samples.last().is_none_or(|last| last.0 < ts) {
                samples.push((ts, value));
            }
        }
        Ok(set)
    }

    /// Hosts of a hundred series each as TSBS DevOps has them, every 15 s from `start` on.
    pub fn tsbs(series_count: usize, rounds: usize, start: Timestamp) -> Set {
        let mut fleet = Fleet::new(Kind::Grouped, series_count);
        let series = |series| Series {
            pairs: fleet.labels(series).into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
            samples: Vec::with_capacity(rounds),
        };
        let mut set = Set { series: (0..series_count).map(series).collect() };
        for round in 0..rounds as i64 {
            fleet.next_round(start + round * 15_000, |series, ts, value| {
                set.series[series].samples.push((ts, value));
            });
        }
        set
    }

    /// Number of samples.
    pub fn sample_count(&self) -> usize {
        self.series.iter().map(|series| series.samples.len()).sum()
    }

    /// Label sets as the library takes them.
    ///
    /// # Errors
    /// `Invalid` labels.
    pub fn labels(&self) -> firndb::Result<Vec<Labels>> {
        let of = |series: &Series| {
            Labels::from_pairs(series.pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())))
        };
        self.series.iter().map(of).collect()
    }

    /// All samples as they would arrive: by time, with the number of the series.
    pub fn by_time(&self) -> BTreeMap<Timestamp, Vec<(u32, f64)>> {
        let mut times: BTreeMap<Timestamp, Vec<(u32, f64)>> = BTreeMap::new();
        for (number, series) in self.series.iter().enumerate() {
            for &(ts, value) in &series.samples {
                times.entry(ts).or_default().push((number as u32, value));
            }
        }
        times
    }

    /// As remote write requests, up to some hundred series with all their samples in each.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        let body = |series: &[Series]| {
            let mut body = Vec::new();
            for series in series {
                let mut pairs = series.pairs.clone();
                pairs.sort();
                let mut labels = Vec::new();
                pairs.iter().for_each(|(name, value)| push_label(name, value, &mut labels));
                push_series(&labels, series.samples.iter().copied(), &mut body);
            }
            packed(&body)
        };
        let mut requests = Vec::new();
        let mut rest = self.series.as_slice();
        while !rest.is_empty() {
            let mut sample_count = 0;
            let fits = |series: &&Series| {
                sample_count += series.samples.len();
                sample_count <= SAMPLES_PER_REQUEST
            };
            let count = rest.iter().take(SERIES_PER_REQUEST).take_while(fits).count().max(1);
            let (series, after) = rest.split_at(count);
            requests.push(body(series));
            rest = after;
        }
        requests
    }

    /// As OpenMetrics text, from which Prometheus' tool makes blocks.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_open_metrics(&self, out: &mut impl Write) -> io::Result<()> {
        for series in &self.series {
            let of = |wanted| series.pairs.iter().find(|(name, _)| name == wanted);
            let name = of("__name__").map_or("", |pair| pair.1.as_str());
            let labels: Vec<String> = series
                .pairs
                .iter()
                .filter(|(name, _)| name != "__name__")
                .map(|(name, value)| {
                    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                    format!("{name}=\"{}\"", value.replace('\n', "\\n"))
                })
                .collect();
            let labels = labels.join(",");
            for (ts, value) in &series.samples {
                let (s, ms) = (ts.div_euclid(1_000), ts.rem_euclid(1_000));
                let value = match value {
                    v if v.is_nan() => "NaN".to_owned(),
                    v if v.is_infinite() => if *v > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
                    v => format!("{v:?}"),
                };
                writeln!(out, "{name}{{{labels}}} {value} {s}.{ms:03}")?;
            }
        }
        writeln!(out, "# EOF")
    }
}

fn scraped(target: &str) -> io::Result<Vec<Series>> {
    let path = Path::new(FOLDER).join(format!("scrape_{target}.zst"));
    let bytes = zstd::decode_all(fs::File::open(&path)?)?;
    let broken = || io::Error::other(format!("{}: not a recording", path.display()));
    let mut rest = bytes.strip_prefix(b"FIRNSCR1").ok_or_else(broken)?;
    // By text, and by label set: the order of labels may differ between scrapes.
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut meanings: HashMap<Pairs, usize> = HashMap::new();
    let mut series: Vec<Series> = Vec::new();
    let mut before: Vec<usize> = Vec::new();
    while !rest.is_empty() {
        // Time (8 bytes), duration (4), length (4), text.
        let (head, tail) = rest.split_at_checked(16).ok_or_else(broken)?;
        let ts = u64::from_le_bytes(head[..8].try_into().map_err(io::Error::other)?) as Timestamp;
        let length = u32::from_le_bytes(head[12..].try_into().map_err(io::Error::other)?) as usize;
        let (text, tail) = tail.split_at_checked(length).ok_or_else(broken)?;
        rest = tail;
        let text = std::str::from_utf8(text).map_err(io::Error::other)?;
        let mut here = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, value) = line.rsplit_once(' ').ok_or_else(broken)?;
            let value: f64 = value.parse().map_err(|_| broken())?;
            let number = match numbers.get(key) {
                Some(number) => *number,
                None => {
                    let mut pairs: Pairs = exposed(line).ok_or_else(broken)?;
                    pairs.push(("job".to_owned(), target.to_owned()));
                    pairs.push(("instance".to_owned(), format!("{target}.example.org:9100")));
                    pairs.sort();
                    let number = *meanings.entry(pairs.clone()).or_insert(series.len());
                    if number == series.len() {
                        series.push(Series { pairs, samples: Vec::new() });
                    }
                    numbers.insert(key, number);
                    number
                }
            };
            if series[number].samples.last().is_none_or(|last| last.0 < ts) {
                series[number].samples.push((ts, value));
                here.push(number);
            }
        }
        for &number in &before {
            if series[number].samples.last().is_some_and(|last| last.0 < ts) {
                series[number].samples.push((ts, f64::from_bits(STALE_NAN_BITS)));
            }
        }
        before = here;
    }
    Ok(series)
}
