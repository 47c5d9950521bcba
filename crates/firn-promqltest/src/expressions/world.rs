//! The data of generated expressions: small, known to the generator with every label, and composed
//! of the difficult cases of real data.

use firn_model::{Labels, METRIC_NAME, STALE_NAN, Timestamp};

use super::choices::DecisionSource;
use crate::MemorySelect;

/// Series and their samples over two hours.
#[derive(Clone, Debug)]
pub struct World {
    /// All series, sorted by labels.
    pub series: Vec<WorldSeries>,
    /// The earliest possible sample time.
    pub start: Timestamp,
    /// The latest possible sample time.
    pub end: Timestamp,
}

/// One series of a [`World`].
#[derive(Clone, Debug)]
pub struct WorldSeries {
    /// Name and labels.
    pub labels: Labels,
    /// The kind of its values.
    pub kind: MetricKind,
    /// Samples and staleness markers in time order.
    pub samples: Vec<(Timestamp, f64)>,
}

/// The kind of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Increases; resets to a small value now and then.
    Counter,
    /// A random walk over the reals with hardly any equal values.
    Gauge,
    /// Small integers, often equal.
    Small,
    /// Always 1; its labels are the data.
    Info,
    /// `le` buckets of a classic histogram.
    Bucket,
    /// NaN, infinities, very large and very small numbers, zeros of both signs.
    Wild,
}

/// The alignment of sample times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeAlignment {
    /// Never on a whole hundredth of a second, so never on a window's boundary: Prometheus 2
    /// includes the left boundary, Prometheus 3 does not.
    Off,
    /// Usually on whole seconds, which are often boundaries.
    On,
}

/// The times at which a series has samples.
#[derive(Clone, Copy, Debug)]
enum SampleSchedule {
    Always,
    /// From one percentage of the time range to another; the bool adds a staleness marker at the
    /// end.
    Span(i64, i64, bool),
    /// Alternately present and absent for this number of scrapes, with staleness markers.
    Flapping(i64),
    /// At every nth scrape only, without markers.
    Sparse(i64),
    /// One scrape in ten is missing.
    Lossy,
}

/// A scrape target, or a lone series: everything that shares scrape times.
struct ScrapeTarget<'a> {
    world: &'a mut Vec<WorldSeries>,
    choices: DecisionSource,
    common: &'a [(&'a str, &'a str)],
    times: Vec<Timestamp>,
}

/// 2026-01-01 00:00:00: a time that every retention and clock check of a test accepts.
const START: Timestamp = 1_767_225_600_000;
const LENGTH_MS: i64 = 2 * 3_600_000;

const TARGETS: [(&str, &str, i64); 6] = [
    ("api", "a:1", 15_000),
    ("api", "b:1", 15_000),
    ("api", "c:1", 15_000),
    ("db", "a:1", 30_000),
    ("db", "d:1", 30_000),
    ("küche", "é\"1\\", 20_000),
];

impl World {
    /// Draws a world. All worlds have the same series, with different samples.
    pub fn new(seed: u64, grid: TimeAlignment) -> World {
        let mut choices = DecisionSource::seeded(seed);
        let mut series = Vec::new();
        for (idx, (job, instance, interval_ms)) in TARGETS.into_iter().enumerate() {
            let common = [("job", job), ("instance", instance)];
            let times = scrape_times(interval_ms, grid, &mut choices);
            let choices = DecisionSource::seeded(seed.wrapping_add(1 + idx as u64));
            let mut target = ScrapeTarget { world: &mut series, choices, common: &common, times };
            scraped_series(&mut target, job, idx);
        }
        lone_series(&mut series, seed, grid, &mut choices);
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        World { series, start: START, end: START + LENGTH_MS }
    }

    /// The world as storage.
    pub fn to_select(&self) -> MemorySelect {
        let mut store = MemorySelect::new();
        for series in &self.series {
            series.samples.iter().for_each(|(ts, value)| store.push(&series.labels, *ts, *value));
        }
        store
    }
}

fn scrape_times(
    interval_ms: i64,
    grid: TimeAlignment,
    choices: &mut DecisionSource,
) -> Vec<Timestamp> {
    let phase_ms = choices.below(interval_ms as usize / 1_000) as i64 * 1_000;
    (0..LENGTH_MS / interval_ms - 1)
        .map(|idx| {
            let jitter_ms = match grid {
                TimeAlignment::Off => choices.below(40) as i64 * 10 + 1 + choices.below(9) as i64,
                TimeAlignment::On if choices.one_in(8) => choices.below(1_000) as i64,
                TimeAlignment::On => 0,
            };
            START + phase_ms + idx * interval_ms + jitter_ms
        })
        .collect()
}

/// The series of one scrape target.
fn scraped_series(target: &mut ScrapeTarget<'_>, job: &str, idx: usize) {
    use SampleSchedule::{Always, Flapping, Lossy, Span};
    target.add("up", &[], MetricKind::Small, Always);
    target.add("memory_bytes", &[], MetricKind::Gauge, Always);
    let version = ["1.2", "1.10", "2.0"][idx % 3];
    target.add(
        "build_info",
        &[("version", version), ("revision", "r-1")],
        MetricKind::Info,
        Always,
    );
    target.add("target_info", &[("region", ["eu", "us"][idx % 2])], MetricKind::Info, Always);
    for (method, code, life) in [
        ("GET", "200", Always),
        ("GET", "404", Lossy),
        ("POST", "200", Always),
        ("POST", "500", Span(30, 70, true)),
        ("", "200", Flapping(12)),
    ] {
        if job != "db" || code == "200" {
            let labels = [("method", method), ("code", code)];
            target.add("requests_total", &labels, MetricKind::Counter, life);
        }
    }
    for method in ["GET", "POST", ""] {
        target.add("errors_total", &[("method", method)], MetricKind::Counter, Lossy);
    }
    for (room, life) in [
        ("küche", Always),
        ("居間", Span(0, 55, false)),
        ("🌡 attic", Span(45, 100, false)),
        ("line_a\\b", Flapping(40)),
    ] {
        target.add("temperature_celsius", &[("room", room)], MetricKind::Gauge, life);
    }
    for part in ["x", "y"] {
        target.add("queue_length", &[("part", part)], MetricKind::Small, Flapping(25));
    }
    target.histogram(if job == "db" { "malformed" } else { "fine" });
}

/// Series without a target.
fn lone_series(
    world: &mut Vec<WorldSeries>,
    seed: u64,
    grid: TimeAlignment,
    choices: &mut DecisionSource,
) {
    let mut lone = |name: &str, labels: &[(&str, &str)], kind, life, interval_ms| {
        let times = scrape_times(interval_ms, grid, choices);
        let own_seed = seed.wrapping_mul(31).wrapping_add(world.len() as u64);
        let choices = DecisionSource::seeded(own_seed);
        ScrapeTarget { world, choices, common: labels, times }.add(name, &[], kind, life);
    };
    for (tier, job) in [("gold", "api"), ("silver", "db"), ("none", "")] {
        lone(
            "limits",
            &[("job", job), ("tier", tier)],
            MetricKind::Gauge,
            SampleSchedule::Always,
            30_000,
        );
    }
    for shape in ["a", "b", "c", "d"] {
        lone("wild", &[("shape", shape)], MetricKind::Wild, SampleSchedule::Always, 20_000);
        lone("sparse", &[("shape", shape)], MetricKind::Gauge, SampleSchedule::Sparse(16), 15_000);
        let life = SampleSchedule::Span(10, 90, shape == "a");
        lone("level", &[("shape", shape)], MetricKind::Small, life, 10_000);
    }
    lone("bare", &[], MetricKind::Gauge, SampleSchedule::Always, 15_000);
    lone("bare_total", &[], MetricKind::Counter, SampleSchedule::Always, 60_000);
}

impl ScrapeTarget<'_> {
    fn add(&mut self, name: &str, labels: &[(&str, &str)], kind: MetricKind, life: SampleSchedule) {
        let values = match kind {
            MetricKind::Counter => self.counter(),
            MetricKind::Gauge => self.gauge(),
            MetricKind::Small => self.small(),
            MetricKind::Info => vec![1.0; self.times.len()],
            MetricKind::Wild => self.wild(),
            MetricKind::Bucket => unreachable!("buckets come by histogram"),
        };
        self.push(name, labels, kind, life, &values);
    }

    fn push(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        kind: MetricKind,
        life: SampleSchedule,
        values: &[f64],
    ) {
        let pairs = [(METRIC_NAME, name)].into_iter();
        let pairs = pairs.chain(self.common.iter().copied()).chain(labels.iter().copied());
        let labels = Labels::from_pairs(pairs).expect("names that differ");
        let mut samples = Vec::new();
        let mut was_there = false;
        for (idx, (ts, value)) in self.times.iter().zip(values).enumerate() {
            let is_there = life.has(idx as i64, self.times.len() as i64, &mut self.choices);
            if is_there {
                samples.push((*ts, *value));
            } else if was_there && life.marks_its_end() {
                samples.push((*ts, STALE_NAN));
            }
            was_there = is_there;
        }
        self.world.push(WorldSeries { labels, kind, samples });
    }

    /// Starts far from zero, because Prometheus 2 and 3 extrapolate sparse counters near zero
    /// differently, and resets to the increase of about ten scrapes.
    fn counter(&mut self) -> Vec<f64> {
        let slope = 1.0 + self.choices.below(50) as f64;
        let mut value = slope * 1_000.0 + self.choices.below(1_000) as f64;
        let mut next = || {
            let idles = self.choices.one_in(5);
            let resets = self.choices.one_in(60);
            value += if idles { 0.0 } else { (slope * self.choices.fraction() * 2.0).round() };
            if resets {
                value = slope * 10.0;
            }
            value
        };
        self.times.iter().map(|_| next()).collect()
    }

    fn gauge(&mut self) -> Vec<f64> {
        let scale = *self.choices.pick(&[1.0, 40.0, 1e3]);
        let mut value = scale * self.choices.real();
        let mut next = || {
            value += scale * self.choices.real() * 0.1;
            value
        };
        self.times.iter().map(|_| next()).collect()
    }

    fn small(&mut self) -> Vec<f64> {
        let mut value = 1.0;
        let mut next = || {
            if self.choices.one_in(6) {
                value = self.choices.below(4) as f64;
            }
            value
        };
        self.times.iter().map(|_| next()).collect()
    }

    fn wild(&mut self) -> Vec<f64> {
        const VALUES: [f64; 11] = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            // Large, but small enough that dividing by it yields no subnormal number: Go's powers
            // are wrong for these.
            1e300,
            -1e300,
            // Small, but large enough that no division yields a subnormal number: Go's logarithm is
            // wrong for these.
            1e-200,
            -0.0,
            0.0,
            1e100,
            -1e-200,
            9_007_199_254_740_993.0,
        ];
        let mut next = || match self.choices.one_in(3) {
            true => *self.choices.pick(&VALUES),
            false => self.choices.real() * 100.0,
        };
        self.times.iter().map(|_| next()).collect()
    }

    /// Buckets, sum and count. Malformed histograms lack `+Inf`, have an invalid bound, or have
    /// falling counts.
    fn histogram(&mut self, shape: &str) {
        const BOUNDS: [&str; 5] = ["0.1", "0.5", "1", "5", "+Inf"];
        for path in ["/", "/é"] {
            // The buckets are counters and start far from zero.
            let mut counts = [1_000.0, 2_000.0, 2_500.0, 2_600.0, 2_700.0];
            let mut columns = vec![Vec::new(); BOUNDS.len()];
            let (mut sums, mut sum) = (Vec::new(), 1_000.0);
            for _ in 0..self.times.len() {
                for _ in 0..self.choices.below(4) {
                    let bucket = self.choices.below(BOUNDS.len());
                    counts[bucket..].iter_mut().for_each(|count| *count += 1.0);
                    sum += 0.25 * bucket as f64;
                }
                sums.push(sum);
                columns.iter_mut().zip(counts).for_each(|(column, count)| column.push(count));
            }
            for (idx, bound) in BOUNDS.into_iter().enumerate() {
                let bound = match (shape, path, bound) {
                    ("malformed", "/", "+Inf") => "many",
                    ("malformed", "/é", "5") => "0.2",
                    _ => bound,
                };
                let labels = [("le", bound), ("path", path)];
                let (life, values) = (SampleSchedule::Always, columns[idx].clone());
                self.push("latency_seconds_bucket", &labels, MetricKind::Bucket, life, &values);
            }
            let (labels, life) = ([("path", path)], SampleSchedule::Always);
            self.push("latency_seconds_sum", &labels, MetricKind::Counter, life, &sums);
            let counts = columns[BOUNDS.len() - 1].clone();
            self.push("latency_seconds_count", &labels, MetricKind::Counter, life, &counts);
        }
    }
}

impl SampleSchedule {
    fn has(self, idx: i64, count: i64, choices: &mut DecisionSource) -> bool {
        match self {
            SampleSchedule::Always => true,
            SampleSchedule::Span(from, to, _) => (from..to).contains(&(idx * 100 / count)),
            SampleSchedule::Flapping(scrapes) => (idx / scrapes) % 2 == 0,
            SampleSchedule::Sparse(every) => idx % every == 0,
            SampleSchedule::Lossy => !choices.one_in(10),
        }
    }

    fn marks_its_end(self) -> bool {
        matches!(self, SampleSchedule::Span(_, _, true) | SampleSchedule::Flapping(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_world_with_rising_times_off_the_grid() {
        let world = World::new(3, TimeAlignment::Off);
        assert!(world.series.windows(2).all(|pair| pair[0].labels < pair[1].labels));
        for series in &world.series {
            let times: Vec<i64> = series.samples.iter().map(|sample| sample.0).collect();
            assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{}", series.labels);
            assert!(times.iter().all(|ts| ts % 10 != 0), "{}", series.labels);
            assert!(times.iter().all(|ts| (world.start..=world.end).contains(ts)));
            assert!(!times.is_empty());
        }
        let again = World::new(3, TimeAlignment::Off);
        let bits = |world: &World| -> Vec<u64> {
            world.series.iter().flat_map(|s| s.samples.iter().map(|s| s.1.to_bits())).collect()
        };
        assert_eq!(bits(&world), bits(&again));
        assert_ne!(bits(&world), bits(&World::new(4, TimeAlignment::Off)));
    }
}
