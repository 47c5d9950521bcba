//! Remote write load: hosts with 100 series of 10 labels each, scrape after scrape (time-major).

use crate::client::{Endpoint, post_all};
use crate::remote_write::{packed, push_label, push_series};

/// Series of one host.
pub const SERIES_PER_HOST: usize = 100;
// 20 whole hosts a request, as a sender with Prometheus' default of 2,000 samples does.
const HOSTS_PER_REQUEST: usize = 20;
const CONNECTIONS: usize = 4;

/// The series of a load: their encoded labels and the state of their values.
#[derive(Debug)]
pub struct Load {
    hosts: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    /// Each series' labels as remote write encodes them.
    labels: Vec<Vec<u8>>,
    values: Vec<f64>,
    random: u64,
}

impl Load {
    /// `series_count` (a multiple of 100) series; the same every time.
    pub fn new(series_count: usize) -> Load {
        assert!(series_count.is_multiple_of(SERIES_PER_HOST * HOSTS_PER_REQUEST));
        let hosts = (0..series_count / SERIES_PER_HOST).map(Host::new).collect();
        Load { hosts }
    }

    /// Number of series.
    pub fn series_count(&self) -> usize {
        self.hosts.len() * SERIES_PER_HOST
    }

    /// Sends one sample of every series at `ts`, over four connections.
    ///
    /// # Panics
    /// If the server responds with anything but 2xx: errors must not be measured.
    pub fn scrape(&mut self, endpoint: impl Into<Endpoint>, path: &str, ts: i64) {
        post_all(endpoint, path, &self.bodies(ts), CONNECTIONS);
    }

    /// The requests with one sample of every series at `ts`.
    pub fn bodies(&mut self, ts: i64) -> Vec<Vec<u8>> {
        self.hosts.chunks_mut(HOSTS_PER_REQUEST).map(|hosts| request(hosts, ts)).collect()
    }
}

impl Host {
    fn new(host: usize) -> Host {
        let tags = [
            ("arch", if host.is_multiple_of(2) { "x64".into() } else { "x86".into() }),
            ("datacenter", format!("eu-central-1{}", ["a", "b", "c"][host % 3])),
            ("instance", format!("host-{host}:9100")),
            ("job", "node".into()),
            ("os", ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"][host % 3].into()),
            ("rack", format!("{}", host % 100)),
            ("region", ["eu-central-1", "us-west-2", "ap-northeast-1"][host % 3].into()),
            ("service", format!("{}", host % 20)),
            ("team", ["SF", "NYC", "LON", "CHI"][host % 4].into()),
        ];
        let labels = (0..SERIES_PER_HOST)
            .map(|series| {
                let mut out = Vec::new();
                push_label("__name__", &format!("cpu_usage_of_kind_{series:02}_total"), &mut out);
                tags.iter().for_each(|(name, value)| push_label(name, value, &mut out));
                out
            })
            .collect();
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(host as u64 + 1);
        Host { labels, values: vec![50.0; SERIES_PER_HOST], random }
    }

    fn step(&mut self) {
        for value in &mut self.values {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            // A clamped integer walk, as in TSBS DevOps; a third of the steps is 0.
            let step = [0, 0, 0, 1, -1, 2, -2, 3, -3][(self.random % 9) as usize];
            *value = (*value + f64::from(step)).clamp(0.0, 100.0);
        }
    }
}

/// One WriteRequest, snappy-compressed.
fn request(hosts: &mut [Host], ts: i64) -> Vec<u8> {
    let mut body = Vec::with_capacity(hosts.len() * SERIES_PER_HOST * 300);
    for host in hosts {
        host.step();
        for (labels, value) in host.labels.iter().zip(&host.values) {
            push_series(labels, std::iter::once((ts, *value)), &mut body);
        }
    }
    packed(&body)
}
