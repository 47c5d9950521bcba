//! The data that generated expressions are about: small, known to the generator label by label, and made of what
//! goes wrong in practice.

use firn_model::{Labels, METRIC_NAME, STALE_NAN, Timestamp};

use super::Choices;
use crate::MemorySelect;

/// Series and their samples over two hours.
#[derive(Clone, Debug)]
pub struct World {
    /// All series, sorted by labels.
    pub series: Vec<WorldSeries>,
    /// No sample is earlier.
    pub start: Timestamp,
    /// No sample is later.
    pub end: Timestamp,
}

/// One series of a [`World`].
#[derive(Clone, Debug)]
pub struct WorldSeries {
    /// Name and labels.
    pub labels: Labels,
    /// What its values are like.
    pub kind: Kind,
    /// Samples and staleness markers in time order.
    pub samples: Vec<(Timestamp, f64)>,
}

/// What the values of a metric are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rises, falls to a small value now and then.
    Counter,
    /// Wanders over the reals, hardly ever twice the same.
    Gauge,
    /// Small whole numbers, equal ones often.
    Small,
    /// Always 1; its labels are what it says.
    Info,
    /// `le` buckets of a classic histogram.
    Bucket,
    /// NaN, infinities, the greatest and the smallest doubles, zeros of both signs.
    Wild,
}

/// Where samples lie in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Never on a whole hundredth of a second, so on no window's edge: Prometheus 2 counts the left edge in,
    /// Prometheus 3 does not.
    Off,
    /// Mostly on whole seconds, so often on edges.
    On,
}

/// When a series has samples.
#[derive(Clone, Copy, Debug)]
enum Life {
    Always,
    /// From a percentage of the world's time to another; whether a staleness marker says that it is over.
    Span(i64, i64, bool),
    /// There for some scrapes, away for as many, with staleness markers.
    Flapping(i64),
    /// At every nth scrape only, without markers.
    Sparse(i64),
    /// One scrape in ten is missing.
    Lossy,
}

/// A target or a lone series: what shares scrape times.
struct Target<'a> {
    world: &'a mut Vec<WorldSeries>,
    choices: Choices,
    common: &'a [(&'a str, &'a str)],
    times: Vec<Timestamp>,
}

/// 2026-01-01 00:00:00: far enough from now for every retention and clock check of a test.
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
    /// Draws a world. All worlds have the same series (but for their samples).
    pub fn new(seed: u64, grid: Grid) -> World {
        let mut choices = Choices::seeded(seed);
        let mut series = Vec::new();
        for (idx, (job, instance, interval_ms)) in TARGETS.into_iter().enumerate() {
            let common = [("job", job), ("instance", instance)];
            let times = scrape_times(interval_ms, grid, &mut choices);
            let choices = Choices::seeded(seed.wrapping_add(1 + idx as u64));
            let mut target = Target { world: &mut series, choices, common: &common, times };
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

fn scrape_times(interval_ms: i64, grid: Grid, choices: &mut Choices) -> Vec<Timestamp> {
    let phase_ms = choices.below(interval_ms as usize / 1_000) as i64 * 1_000;
    (0..LENGTH_MS / interval_ms - 1)
        .map(|idx| {
            let jitter_ms = match grid {
                Grid::Off => choices.below(40) as i64 * 10 + 1 + choices.below(9) as i64,
                Grid::On if choices.one_in(8) => choices.below(1_000) as i64,
                Grid::On => 0,
            };
            START + phase_ms + idx * interval_ms + jitter_ms
        })
        .collect()
}

/// What a scrape of a target brings.
fn scraped_series(target: &mut Target<'_>, job: &str, idx: usize) {
    use Life::{Always, Flapping, Lossy, Span};
    target.add("up", &[], Kind::Small, Always);
    target.add("memory_bytes", &[], Kind::Gauge, Always);
    let version = ["1.2", "1.10", "2.0"][idx % 3];
    target.add("build_info", &[("version", version), ("revision", "r-1")], Kind::Info, Always);
    target.add("target_info", &[("region", ["eu", "us"][idx % 2])], Kind::Info, Always);
    for (method, code, life) in [
        ("GET", "200", Always),
        ("GET", "404", Lossy),
        ("POST", "200", Always),
        ("POST", "500", Span(30, 70, true)),
        ("", "200", Flapping(12)),
    ] {
        if job != "db" || code == "200" {
            let labels = [("method", method), ("code", code)];
            target.add("requests_total", &labels, Kind::Counter, life);
        }
    }
    for method in ["GET", "POST", ""] {
        target.add("errors_total", &[("method", method)], Kind::Counter, Lossy);
    }
    for (room, life) in [
        ("küche", Always),
        ("居間", Span(0, 55, false)),
        ("🌡 attic", Span(45, 100, false)),
        ("line_a\\b", Flapping(40)),
    ] {
        target.add("temperature_celsius", &[("room", room)], Kind::Gauge, life);
    }
    for part in ["x", "y"] {
        target.add("queue_length", &[("part", part)], Kind::Small, Flapping(25));
    }
    target.histogram(if job == "db" { "malformed" } else { "fine" });
}

/// Series without a target.
fn lone_series(world: &mut Vec<WorldSeries>, seed: u64, grid: Grid, choices: &mut Choices) {
    let mut lone = |name: &str, labels: &[(&str, &str)], kind, life, interval_ms| {
        let times = scrape_times(interval_ms, grid, choices);
        let own_seed = seed.wrapping_mul(31).wrapping_add(world.len() as u64);
        let choices = Choices::seeded(own_seed);
        Target { world, choices, common: labels, times }.add(name, &[], kind, life);
    };
    for (tier, job) in [("gold", "api"), ("silver", "db"), ("none", "")] {
        lone("limits", &[("job", job), ("tier", tier)], Kind::Gauge, Life::Always, 30_000);
    }
    for shape in ["a", "b", "c", "d"] {
        lone("wild", &[("shape", shape)], Kind::Wild, Life::Always, 20_000);
        lone("sparse", &[("shape", shape)], Kind::Gauge, Life::Sparse(16), 15_000);
        let life = Life::Span(10, 90, shape == "a");
        lone("level", &[("shape", shape)], Kind::Small, life, 10_000);
    }
    lone("bare", &[], Kind::Gauge, Life::Always, 15_000);
    lone("bare_total", &[], Kind::Counter, Life::Always, 60_000);
}

impl Target<'_> {
    fn add(&mut self, name: &str, labels: &[(&str, &str)], kind: Kind, life: Life) {
        let values = match kind {
            Kind::Counter => self.counter(),
            Kind::Gauge => self.gauge(),
            Kind::Small => self.small(),
            Kind::Info => vec![1.0; self.times.len()],
            Kind::Wild => self.wild(),
            Kind::Bucket => unreachable!("buckets come by histogram"),
        };
        self.push(name, labels, kind, life, &values);
    }

    fn push(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        kind: Kind,
        life: Life,
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

    /// Starts far from zero (where Prometheus 2 and 3 extrapolate sparse counters differently) and resets to about
    /// ten scrapes' worth.
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
            // Large, but what divides by them is no subnormal number: Go's powers are wrong there.
            1e300,
            -1e300,
            // Small, but nothing divides it down to a subnormal number: Go's logarithm is wrong there.
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

    /// Buckets, sum and count; the malformed ones lack `+Inf`, have a bound that is no number, or fall where they
    /// should rise.
    fn histogram(&mut self, shape: &str) {
        const BOUNDS: [&str; 5] = ["0.1", "0.5", "1", "5", "+Inf"];
        for path in ["/", "/é"] {
            // As counters, these start far from zero.
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
                let (life, values) = (Life::Always, columns[idx].clone());
                self.push("latency_seconds_bucket", &labels, Kind::Bucket, life, &values);
            }
            let (labels, life) = ([("path", path)], Life::Always);
            self.push("latency_seconds_sum", &labels, Kind::Counter, life, &sums);
            let counts = columns[BOUNDS.len() - 1].clone();
            self.push("latency_seconds_count", &labels, Kind::Counter, life, &counts);
        }
    }
}

impl Life {
    fn has(self, idx: i64, count: i64, choices: &mut Choices) -> bool {
        match self {
            Life::Always => true,
            Life::Span(from, to, _) => (from..to).contains(&(idx * 100 / count)),
            Life::Flapping(scrapes) => (idx / scrapes) % 2 == 0,
            Life::Sparse(every) => idx % every == 0,
            Life::Lossy => !choices.one_in(10),
        }
    }

    fn marks_its_end(self) -> bool {
        matches!(self, Life::Span(_, _, true) | Life::Flapping(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_world_with_rising_times_off_the_grid() {
        let world = World::new(3, Grid::Off);
        assert!(world.series.windows(2).all(|pair| pair[0].labels < pair[1].labels));
        for series in &world.series {
            let times: Vec<i64> = series.samples.iter().map(|sample| sample.0).collect();
            assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{}", series.labels);
            assert!(times.iter().all(|ts| ts % 10 != 0), "{}", series.labels);
            assert!(times.iter().all(|ts| (world.start..=world.end).contains(ts)));
            assert!(!times.is_empty());
        }
        let again = World::new(3, Grid::Off);
        let bits = |world: &World| -> Vec<u64> {
            world.series.iter().flat_map(|s| s.samples.iter().map(|s| s.1.to_bits())).collect()
        };
        assert_eq!(bits(&world), bits(&again));
        assert_ne!(bits(&world), bits(&World::new(4, Grid::Off)));
    }
}
