//! Series that are written round after round: in groups as in scrapes, alone, or as irregular
//! events; as remote write requests of a sender with some shards, or sample by sample for the
//! library.

use std::net::SocketAddr;

use crate::client::post_all;
use crate::remote_write::{packed, push_label, push_series};

/// Series of one host, which are one group where there are groups.
pub const SERIES_PER_HOST: usize = 100;
/// Samples of a request, Prometheus' default.
const SAMPLES_PER_REQUEST: usize = 2_000;
const CONNECTIONS_MAX: usize = 64;

/// The kind of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hundred series of a host share `job` and `instance`; every 15 s.
    Grouped,
    /// The same without those two labels: each is a lone series.
    Lone,
    /// Alone, and a sample every three minutes on average at a whole second, small counts.
    Events,
}

/// Some series and their current values.
#[derive(Debug)]
pub struct Fleet {
    kind: Kind,
    values: Vec<u8>,
    round: u64,
}

impl Kind {
    /// For tables and for a command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Grouped => "grouped",
            Kind::Lone => "lone",
            Kind::Events => "events",
        }
    }

    /// The kind of that name.
    pub fn of(name: &str) -> Option<Kind> {
        [Kind::Grouped, Kind::Lone, Kind::Events].into_iter().find(|kind| kind.name() == name)
    }

    /// Milliseconds of a round.
    pub fn round_ms(self) -> i64 {
        if self == Kind::Events { 60_000 } else { 15_000 }
    }
}

impl Fleet {
    /// `series_count` series; the same every time.
    pub fn new(kind: Kind, series_count: usize) -> Fleet {
        Fleet { kind, values: vec![50; series_count], round: 0 }
    }

    /// Number of series.
    pub fn series_count(&self) -> usize {
        self.values.len()
    }

    /// The metric of a series.
    pub fn metric(series: usize) -> String {
        format!("cpu_usage_of_kind_{:02}_total", series % SERIES_PER_HOST)
    }

    /// The ten labels of a series, sorted by name.
    pub fn labels(&self, series: usize) -> Vec<(&'static str, String)> {
        let host = series / SERIES_PER_HOST;
        let cycle = |of: &[&str]| of[host % of.len()].to_owned();
        let (job, instance) = match self.kind {
            Kind::Grouped => ("job", "instance"),
            _ => ("part", "hostname"),
        };
        let mut labels = vec![
            ("__name__", Fleet::metric(series)),
            ("arch", cycle(&["x64", "x86"])),
            ("datacenter", cycle(&["eu-central-1a", "eu-central-1b", "us-west-2a"])),
            (instance, format!("host-{host}:9100")),
            (job, "node".into()),
            ("os", cycle(&["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"])),
            ("rack", (host % 100).to_string()),
            ("region", cycle(&["eu-central-1", "us-west-2", "ap-northeast-1"])),
            ("service", (host % 20).to_string()),
            ("team", cycle(&["SF", "NYC", "LON", "CHI"])),
        ];
        labels.sort();
        labels
    }

    /// The next round from `start` on: calls `sample` with each series that has a sample, its time
    /// and value.
    pub fn next_round(&mut self, start: i64, mut sample: impl FnMut(usize, i64, f64)) {
        self.round += 1;
        for (series, value) in self.values.iter_mut().enumerate() {
            let dice = scatter(series as u64, self.round);
            if self.kind == Kind::Events {
                if dice.is_multiple_of(3) {
                    let second = (dice >> 8) % 60;
                    sample(series, start + second as i64 * 1_000, ((dice >> 16) % 20) as f64);
                }
                continue;
            }
            // A clamped integer walk, as in TSBS DevOps; a third of the steps is 0.
            let step = [0, 0, 0, 1, -1, 2, -2, 3, -3][(dice % 9) as usize];
            *value = (i16::from(*value) + step).clamp(0, 100) as u8;
            let offset = (series / SERIES_PER_HOST * 7_919) % 15_000;
            sample(series, start + offset as i64, f64::from(*value));
        }
    }

    /// Sends the next round as remote write requests of a sender with `shard_count` shards, over
    /// several connections. A shard has the series of all hosts with hashes that map to it, as in
    /// Prometheus.
    ///
    /// # Panics
    /// If the server responds with anything but 2xx.
    pub fn send_round(
        &mut self,
        address: SocketAddr,
        path: &str,
        start: i64,
        shard_count: usize,
    ) -> usize {
        let mut shards: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0); shard_count];
        let (mut bodies, mut sample_count) = (Vec::new(), 0);
        let names = Fleet { kind: self.kind, values: Vec::new(), round: 0 };
        let mut encoded = Vec::new();
        self.next_round(start, |series, ts, value| {
            encoded.clear();
            for (name, value) in names.labels(series) {
                push_label(name, &value, &mut encoded);
            }
            let shard = scatter(series as u64, 0) as usize % shard_count;
            let (body, count) = &mut shards[shard];
            push_series(&encoded, std::iter::once((ts, value)), body);
            *count += 1;
            sample_count += 1;
            if *count == SAMPLES_PER_REQUEST {
                bodies.push(packed(body));
                body.clear();
                *count = 0;
            }
        });
        let rest = shards.iter().filter(|(_, count)| *count > 0);
        bodies.extend(rest.map(|(body, _)| packed(body)));
        post_all(address, path, &bodies, shard_count.min(CONNECTIONS_MAX));
        sample_count
    }
}

fn scatter(series: u64, round: u64) -> u64 {
    let mixed =
        series.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
}
