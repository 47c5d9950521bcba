//! The data of the query benchmark: a data center's series, deterministic, in time order.
//!
//! - `cpu_usage_*`: 10 gauges of 1,000 hosts with the tags of TSBS DevOps, 30 s apart, over 25 h.
//! - `host_requests_total`: one counter of each of 10,000 hosts with the same tags, 15 s, 6 h 20
//!   min.
//! - `http_requests_total`: 100 counters of each of 1,000 scraped targets, 15 s, 80 min.
//!
//! The first two have neither `job` nor `instance`: their series are lone. The third has the shape
//! of scrapes. Requests carry ten minutes of 50 to 100 hosts, so that loading takes minutes.

use crate::remote_write::{packed, push_label, push_series};

/// Hosts with the ten gauges.
pub const HOSTS: usize = 1_000;
/// The gauges, without the prefix `cpu_usage_`.
pub const GAUGES: [&str; 10] =
    ["user", "system", "idle", "nice", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];
/// Regions of TSBS' hosts.
pub(crate) const REGIONS: [&str; 9] = [
    "ap-northeast-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "eu-central-1",
    "eu-west-1",
    "sa-east-1",
    "us-east-1",
    "us-west-1",
    "us-west-2",
];
const COUNTER_HOSTS: usize = 10_000;
const TARGETS: usize = 1_000;
const SERIES_PER_TARGET: usize = 100;

/// The time span of the samples that are sent at once.
pub const SLICE_MS: i64 = 600_000;
/// The number of slices with samples of the longest series.
pub const SLICE_COUNT: i64 = 150;

const GAUGE_SLICES: i64 = SLICE_COUNT;
const COUNTER_SLICES: i64 = 38;
const TARGET_SLICES: i64 = 8;
const GAUGE_INTERVAL_MS: i64 = 30_000;
const COUNTER_INTERVAL_MS: i64 = 15_000;

/// All series: their encoded labels and the state of their values.
#[derive(Debug)]
pub struct DevOps {
    requests: Vec<RequestSeries>,
}

/// The series of one request.
#[derive(Debug)]
struct RequestSeries {
    series: Vec<SeriesWalk>,
    interval_ms: i64,
    /// The number of slices, up to the last one, in which they have samples.
    slice_count: i64,
    shape: Shape,
}

#[derive(Debug)]
struct SeriesWalk {
    labels: Vec<u8>,
    value: f64,
    random: u64,
    /// The largest rise of a counter between two samples.
    pace: u64,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A walk between 0 and 100 in whole numbers, as TSBS makes them.
    Gauge,
    /// A rising count that restarts about every six hours.
    Counter,
}

impl DevOps {
    /// All series, before their first sample.
    pub fn new() -> DevOps {
        let mut requests = Vec::new();
        let mut add = |series: Vec<Vec<SeriesWalk>>, per_request: usize, shape, slice_count| {
            let interval_ms = match shape {
                Shape::Gauge => GAUGE_INTERVAL_MS,
                Shape::Counter => COUNTER_INTERVAL_MS,
            };
            let mut hosts = series.into_iter().peekable();
            while hosts.peek().is_some() {
                let series = hosts.by_ref().take(per_request).flatten().collect();
                requests.push(RequestSeries { series, interval_ms, slice_count, shape });
            }
        };
        add((0..HOSTS).map(gauges).collect(), 100, Shape::Gauge, GAUGE_SLICES);
        add((0..COUNTER_HOSTS).map(host_counter).collect(), 500, Shape::Counter, COUNTER_SLICES);
        add((0..TARGETS).map(target_counters).collect(), 5, Shape::Counter, TARGET_SLICES);
        DevOps { requests }
    }

    /// The requests of slice `slice` (0 is the oldest), which starts at `start_ms`, and their
    /// number of samples.
    pub fn slice(&mut self, slice: i64, start_ms: i64) -> (Vec<Vec<u8>>, usize) {
        let first = |slice_count: i64| SLICE_COUNT - slice_count;
        let mut active: Vec<&mut RequestSeries> =
            self.requests.iter_mut().filter(|r| slice >= first(r.slice_count)).collect();
        let sample_count = active
            .iter()
            .map(|request| request.series.len() * (SLICE_MS / request.interval_ms) as usize)
            .sum();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let per_thread = active.len().div_ceil(threads).max(1);
        let bodies = std::thread::scope(|scope| {
            let parts: Vec<_> = active
                .chunks_mut(per_thread)
                .map(|part| {
                    scope.spawn(|| part.iter_mut().map(|r| r.request(start_ms)).collect::<Vec<_>>())
                })
                .collect();
            parts.into_iter().flat_map(|part| part.join().expect("it only computes")).collect()
        });
        (bodies, sample_count)
    }
}

impl Default for DevOps {
    fn default() -> DevOps {
        DevOps::new()
    }
}

impl RequestSeries {
    fn request(&mut self, start_ms: i64) -> Vec<u8> {
        let count = SLICE_MS / self.interval_ms;
        let mut body = Vec::with_capacity(self.series.len() * (300 + 20 * count as usize));
        for series in &mut self.series {
            let SeriesWalk { labels, value, random, pace } = series;
            let samples = (0..count).map(|idx| {
                *value = self.shape.next(*value, random, *pace);
                (start_ms + idx * self.interval_ms, *value)
            });
            push_series(labels, samples, &mut body);
        }
        packed(&body)
    }
}

impl Shape {
    fn next(self, value: f64, random: &mut u64, pace: u64) -> f64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let draw = *random >> 16;
        match self {
            Shape::Gauge => {
                let step = [0, 0, 0, 1, -1, 2, -2, 3, -3][(draw % 9) as usize];
                (value + f64::from(step)).clamp(0.0, 100.0)
            }
            Shape::Counter if draw.is_multiple_of(1_500) => 0.0,
            Shape::Counter => value + (draw % pace) as f64,
        }
    }
}

fn gauges(host: usize) -> Vec<SeriesWalk> {
    let tags = tags(host);
    GAUGES
        .iter()
        .enumerate()
        .map(|(idx, gauge)| {
            let name = format!("cpu_usage_{gauge}");
            SeriesWalk::new(&name, &tags, 50.0, host * GAUGES.len() + idx)
        })
        .collect()
}

fn host_counter(host: usize) -> Vec<SeriesWalk> {
    vec![SeriesWalk::new("host_requests_total", &tags(host), 0.0, 1_000_000 + host)]
}

fn target_counters(target: usize) -> Vec<SeriesWalk> {
    (0..SERIES_PER_TARGET)
        .map(|idx| {
            let tags = [
                ("code", ["200", "201", "301", "404", "500"][idx % 5].to_owned()),
                ("handler", format!("/api/v1/things/{}", idx / 10)),
                ("instance", format!("10.0.{}.{}:9100", target / 250, target % 250)),
                ("job", format!("service-{}", target % 20)),
                ("method", ["GET", "POST"][idx / 5 % 2].to_owned()),
                ("region", REGIONS[target % REGIONS.len()].to_owned()),
                ("team", ["SF", "NYC", "LON", "CHI"][target % 4].to_owned()),
            ];
            SeriesWalk::new("http_requests_total", &tags, 0.0, 2_000_000 + target * 100 + idx)
        })
        .collect()
}

/// The ten tags of a TSBS host, sorted by name.
fn tags(host: usize) -> [(&'static str, String); 10] {
    let region = REGIONS[host * 7 % REGIONS.len()];
    let environment = ["production", "staging", "test"][host % 3];
    [
        ("arch", ["x64", "x86"][host % 2].to_owned()),
        ("datacenter", format!("{region}{}", ["a", "b", "c"][host / 9 % 3])),
        ("hostname", format!("host_{host}")),
        ("os", ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"][host / 2 % 3].to_owned()),
        ("rack", format!("{}", host % 100)),
        ("region", region.to_owned()),
        ("service", format!("{}", host % 20)),
        ("service_environment", environment.to_owned()),
        ("service_version", format!("{}", host / 3 % 2)),
        ("team", ["SF", "NYC", "LON", "CHI"][host / 5 % 4].to_owned()),
    ]
}

impl SeriesWalk {
    fn new(name: &str, tags: &[(&'static str, String)], value: f64, number: usize) -> SeriesWalk {
        let mut labels = Vec::new();
        push_label("__name__", name, &mut labels);
        tags.iter().for_each(|(name, value)| push_label(name, value, &mut labels));
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1);
        SeriesWalk { labels, value, random, pace: 10 + random % 4_000 }
    }
}
