//! Workloads and baselines for the cache: queries as YCSB-TS draws them, the best possible hit
//! ratios, and a cache of fixed chunks.

pub mod bounds;
pub mod dashboard;
pub mod policies;
pub mod server;

use std::collections::{BTreeMap, HashMap};

use firn_sim::Rng;

/// Time between two points: most of the paper's data sets have it (TSCache, table 3).
pub const INTERVAL_S: i64 = 300;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const MONTH_MS: u64 = 30 * DAY_MS;

/// Draws ranks from 0 on: rank `n` has the weight `1 / (n + 1)^theta`, as in YCSB. For many ranks,
/// the weights after the first ones are summed as an integral, with an error of a millionth.
#[derive(Debug)]
pub struct Zipf {
    count: u64,
    /// Sums of the first weights.
    sums: Vec<f64>,
    /// `1 - theta`, and the weight of all ranks after the first ones.
    power: f64,
    tail: f64,
}

impl Zipf {
    /// Ranks below `count`; `theta` is not 1.
    pub fn new(count: u64, theta: f64) -> Zipf {
        const FIRST: u64 = 4_096;
        let mut sum = 0.0;
        let sums = (1..=count.min(FIRST)).map(|rank| {
            sum += (rank as f64).powf(-theta);
            sum
        });
        let sums: Vec<f64> = sums.collect();
        let power = 1.0 - theta;
        let raised = |rank: u64| (rank as f64 + 0.5).powf(power);
        let tail = if count > FIRST { (raised(count) - raised(FIRST)) / power } else { 0.0 };
        Zipf { count, sums, power, tail }
    }

    /// A rank.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let first = self.sums.last().copied().unwrap_or_default();
        let at = rng.below(1 << 53) as f64 / (1_u64 << 53) as f64 * (first + self.tail);
        if at < first || self.tail == 0.0 {
            return (self.sums.partition_point(|&sum| sum <= at) as u64).min(self.count - 1);
        }
        let start = (self.sums.len() as f64 + 0.5).powf(self.power);
        let rank = ((at - first) * self.power + start).powf(1.0 / self.power) + 0.5;
        (rank as u64 - 1).min(self.count - 1)
    }
}

/// A query: points `first..=last` of a key, counted from the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The number of the key.
    pub key: usize,
    /// The first.
    pub first: i64,
    /// The last.
    pub last: i64,
}

impl Query {
    /// The number of points in the range.
    pub fn point_count(self) -> u64 {
        (self.last - self.first + 1) as u64
    }
}

/// The distribution of range lengths (TSCache, sections 5.1 and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// A minute to a week.
    Full,
    /// A minute to an hour.
    Small,
    /// An hour to a day.
    Medium,
    /// A day to a week.
    Large,
}

impl Mix {
    /// The shortest and the longest.
    fn lengths_ms(self) -> (u64, u64) {
        match self {
            Mix::Full => (MINUTE_MS, 7 * DAY_MS),
            Mix::Small => (MINUTE_MS, HOUR_MS),
            Mix::Medium => (HOUR_MS, DAY_MS),
            Mix::Large => (DAY_MS, 7 * DAY_MS),
        }
    }
}

/// Queries after TSCache, sections 5.1 and 5.5: zipf keys, zipf lengths between two bounds, ends
/// mostly new ("latest").
///
/// Times are drawn in milliseconds and widened to whole points, as a dashboard aligns them to its
/// step. The code of YCSB-TS draws seconds by default, and the start instead of the end; this
/// variant comes closest to the paper's hit ratios. The resolution determines how new most queries
/// are: with a theta of 0.99 the newest tenth of N moments has ln(N / 10) / ln(N) of all queries,
/// 90% for five months of milliseconds and 78% for as many points of five minutes.
#[derive(Debug)]
pub struct Workload {
    rng: Rng,
    keys: Zipf,
    lengths: Zipf,
    length_ms_min: u64,
    ages: Zipf,
    interval_ms: u64,
    point_count: u64,
    /// How many of nine queries target the old hot spot: anywhere in the first month of the data.
    old_of_nine: u64,
}

/// Theta of YCSB's zipf.
const THETA: f64 = 0.99;

impl Workload {
    /// Over `key_count` keys of `point_count` points, each `interval_s` after the previous one.
    pub fn new(
        seed: u64,
        key_count: usize,
        (point_count, interval_s): (usize, i64),
        mix: Mix,
        old_of_nine: u64,
    ) -> Workload {
        let (length_ms_min, length_ms_max) = mix.lengths_ms();
        let (point_count, interval_ms) = (point_count as u64, interval_s.unsigned_abs() * 1_000);
        Workload {
            rng: Rng::new(seed),
            keys: Zipf::new(key_count as u64, THETA),
            lengths: Zipf::new(length_ms_max - length_ms_min + 1, THETA),
            length_ms_min,
            ages: Zipf::new(point_count * interval_ms, THETA),
            interval_ms,
            point_count,
            old_of_nine,
        }
    }

    /// The next query.
    pub fn draw(&mut self) -> Query {
        let is_old = self.rng.below(9) < self.old_of_nine;
        let key = self.keys.draw(&mut self.rng) as usize;
        let (interval_ms, all_ms) = (self.interval_ms, self.point_count * self.interval_ms);
        let end_ms = match is_old {
            true => self.rng.below(MONTH_MS.min(all_ms)) + 1,
            false => all_ms - self.ages.draw(&mut self.rng),
        };
        let length_ms = self.length_ms_min + self.lengths.draw(&mut self.rng);
        let first = (end_ms.saturating_sub(length_ms) / interval_ms) as i64;
        let last = (end_ms.div_ceil(interval_ms) as i64 - 1).max(first);
        Query { key, first, last }
    }
}

/// A cache with objects of a fixed time span, as Fatcache in the paper (section 5.2); evicts the
/// least recently used. A query stores the chunks that it covers completely.
#[derive(Debug)]
pub struct ChunkCache {
    chunk_points: i64,
    chunk_count_max: usize,
    stamps: HashMap<(usize, i64), u64>,
    by_stamp: BTreeMap<u64, (usize, i64)>,
    now: u64,
    /// Objects that were looked up.
    pub requests: u64,
}

impl ChunkCache {
    /// Chunks of `chunk_points` points each, `points_max` points in all.
    pub fn new(chunk_points: i64, points_max: usize) -> ChunkCache {
        let chunk_count_max = points_max / chunk_points as usize;
        let (stamps, by_stamp) = (HashMap::new(), BTreeMap::new());
        ChunkCache { chunk_points, chunk_count_max, stamps, by_stamp, now: 0, requests: 0 }
    }

    /// Whether all of a query is cached; stores the missing chunks.
    pub fn ask(&mut self, query: Query) -> bool {
        let chunks = query.first / self.chunk_points..=query.last / self.chunk_points;
        let mut is_hit = true;
        for chunk in chunks {
            self.requests += 1;
            let key = (query.key, chunk);
            let is_there = self.stamps.contains_key(&key);
            is_hit &= is_there;
            let start = chunk * self.chunk_points;
            let is_whole = query.first <= start && start + self.chunk_points - 1 <= query.last;
            if is_there || is_whole {
                self.touch(key);
            }
        }
        is_hit
    }

    fn touch(&mut self, key: (usize, i64)) {
        self.now += 1;
        if let Some(before) = self.stamps.insert(key, self.now) {
            self.by_stamp.remove(&before);
        }
        self.by_stamp.insert(self.now, key);
        while self.stamps.len() > self.chunk_count_max {
            let Some((_, oldest)) = self.by_stamp.pop_first() else { return };
            self.stamps.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_by_their_weights() {
        for (count, theta) in [(10, 0.99), (5_000_000, 0.99), (100_000, 0.5)] {
            let (zipf, mut rng) = (Zipf::new(count, theta), Rng::new(3));
            let drawn: Vec<u64> = (0..40_000).map(|_| zipf.draw(&mut rng)).collect();
            let weight = |until: u64| (1..=until).map(|n| (n as f64).powf(-theta)).sum::<f64>();
            for until in [1, 3, count / 10, count / 2, count].into_iter().filter(|&n| n > 0) {
                let found = drawn.iter().filter(|&&rank| rank < until).count() as f64 / 40_000.0;
                let want = weight(until) / weight(count);
                assert!(
                    (found - want).abs() < 0.01,
                    "{found} and not {want} below {until} of {count}"
                );
            }
        }
    }

    #[test]
    fn queries_are_mostly_new_short_and_of_few_keys() {
        let mut workload = Workload::new(1, 100, (43_200, INTERVAL_S), Mix::Full, 0);
        let queries: Vec<Query> = (0..10_000).map(|_| workload.draw()).collect();
        let share = |is: &dyn Fn(&Query) -> bool| queries.iter().filter(|q| is(q)).count();
        assert!(share(&|q| q.key < 10) > 5_000);
        let newest = share(&|q| q.last >= 43_200 / 10 * 9);
        assert!((8_800..9_200).contains(&newest), "{newest} end in the newest tenth");
        assert!(share(&|q| q.last - q.first < 100) > 5_000);
        assert!(queries.iter().all(|q| 0 <= q.first && q.first <= q.last && q.last < 43_200));
        let mut old = Workload::new(1, 100, (43_200, INTERVAL_S), Mix::Small, 8);
        let hot = (0..9_000).filter(|_| old.draw().last < 30 * 288).count();
        assert!((7_800..8_500).contains(&hot), "{hot} of 9000 are old");
    }

    #[test]
    fn a_chunk_is_there_when_a_query_had_all_of_it() {
        let mut cache = ChunkCache::new(10, 30);
        let mut ask = |key, first, last| cache.ask(Query { key, first, last });
        assert!(!ask(0, 0, 19) && ask(0, 3, 17) && ask(0, 0, 9));
        assert!(!ask(0, 20, 28) && !ask(0, 20, 28), "never had it whole");
        assert!(!ask(1, 0, 19) && !ask(0, 10, 12), "the least recently used chunk was evicted");
        assert!(ask(0, 0, 9) && ask(1, 0, 19));
    }
}
