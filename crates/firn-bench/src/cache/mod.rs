//! What the cache is measured with: queries as YCSB-TS draws them, and the cache of fixed chunks that it is compared with.

pub mod dashboard;

use std::collections::{BTreeMap, HashMap};

use firn_sim::Rng;

/// Time between two points: most of the paper's data sets have it (TSCache, table 3).
pub const INTERVAL_S: i64 = 300;
/// Points of a week.
pub const WEEK_POINTS: usize = 7 * 86_400 / INTERVAL_S as usize;

/// Draws ranks from 0 on: rank `n` has the weight `1 / (n + 1)^theta`, as YCSB has it.
#[derive(Debug)]
pub struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    /// Ranks below `count`.
    pub fn new(count: usize, theta: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-theta);
            sum
        });
        Zipf { sums: sums.collect() }
    }

    /// A rank.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let at = rng.below(1 << 53) as f64 / (1_u64 << 53) as f64 * all;
        self.sums.partition_point(|&sum| sum <= at).min(self.sums.len() - 1)
    }
}

/// A query: points `first..=last` of a key, counted from the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Whose points.
    pub key: usize,
    /// The first.
    pub first: i64,
    /// The last.
    pub last: i64,
}

/// Queries as TSCache 5.1 and 5.5 have them: keys zipf, lengths zipf between two, ends mostly new.
#[derive(Debug)]
pub struct Workload {
    rng: Rng,
    keys: Zipf,
    lengths: Zipf,
    length_min: i64,
    ages: Zipf,
    point_count: i64,
    /// Of nine queries so many go to the old hot spot: the first month of the data.
    old_of_nine: u64,
    hot_ages: Zipf,
}

/// Theta of YCSB's zipf.
const THETA: f64 = 0.99;
const MONTH_POINTS: usize = 30 * 86_400 / INTERVAL_S as usize;

impl Workload {
    /// Over `key_count` keys of `point_count` points; `lengths` are the shortest and the longest query in points.
    pub fn new(
        seed: u64,
        key_count: usize,
        point_count: usize,
        lengths: (usize, usize),
        old_of_nine: u64,
    ) -> Workload {
        Workload {
            rng: Rng::new(seed),
            keys: Zipf::new(key_count, THETA),
            lengths: Zipf::new(lengths.1 - lengths.0 + 1, THETA),
            length_min: lengths.0 as i64,
            ages: Zipf::new(point_count, THETA),
            point_count: point_count as i64,
            old_of_nine,
            hot_ages: Zipf::new(MONTH_POINTS.min(point_count), THETA),
        }
    }

    /// The next query.
    pub fn draw(&mut self) -> Query {
        let is_old = self.rng.below(9) < self.old_of_nine;
        let key = self.keys.draw(&mut self.rng);
        let (newest, ages) = match is_old {
            true => ((MONTH_POINTS as i64).min(self.point_count) - 1, &self.hot_ages),
            false => (self.point_count - 1, &self.ages),
        };
        let last = newest - ages.draw(&mut self.rng) as i64;
        let length = self.length_min + self.lengths.draw(&mut self.rng) as i64;
        Query { key, first: (last - length + 1).max(0), last: last.max(0) }
    }
}

/// A cache whose objects are chunks of a fixed time, as Fatcache has them in the paper (5.2): least recently used goes. A
/// query puts in the chunks that it has whole.
#[derive(Debug)]
pub struct ChunkCache {
    chunk_points: i64,
    chunk_count_max: usize,
    stamps: HashMap<(usize, i64), u64>,
    by_stamp: BTreeMap<u64, (usize, i64)>,
    now: u64,
    /// Objects that were asked for.
    pub requests: u64,
}

impl ChunkCache {
    /// Chunks of so many points, of which so many points fit.
    pub fn new(chunk_points: i64, points_max: usize) -> ChunkCache {
        let chunk_count_max = points_max / chunk_points as usize;
        let (stamps, by_stamp) = (HashMap::new(), BTreeMap::new());
        ChunkCache { chunk_points, chunk_count_max, stamps, by_stamp, now: 0, requests: 0 }
    }

    /// Whether all of a query is there; what is not is put in.
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
    fn queries_are_mostly_new_short_and_of_few_keys() {
        let mut workload = Workload::new(1, 100, 20_000, (1, WEEK_POINTS), 0);
        let queries: Vec<Query> = (0..10_000).map(|_| workload.draw()).collect();
        let share = |is: &dyn Fn(&Query) -> bool| queries.iter().filter(|q| is(q)).count();
        assert!(share(&|q| q.key < 10) > 5_000);
        assert!(share(&|q| q.last >= 19_800) > 4_000);
        assert!(share(&|q| q.last - q.first < 100) > 5_000);
        assert!(queries.iter().all(|q| 0 <= q.first && q.first <= q.last && q.last < 20_000));
        let mut old = Workload::new(1, 100, 20_000, (1, 10), 8);
        let hot = (0..9_000).filter(|_| old.draw().last < MONTH_POINTS as i64).count();
        assert!((7_800..8_500).contains(&hot), "{hot} of 9000 are old");
    }

    #[test]
    fn a_chunk_is_there_when_a_query_had_all_of_it() {
        let mut cache = ChunkCache::new(10, 30);
        let mut ask = |key, first, last| cache.ask(Query { key, first, last });
        assert!(!ask(0, 0, 19) && ask(0, 3, 17) && ask(0, 0, 9));
        assert!(!ask(0, 20, 28) && !ask(0, 20, 28), "never had it whole");
        assert!(!ask(1, 0, 19) && !ask(0, 10, 12), "the one that was used least recently went");
        assert!(ask(0, 0, 9) && ask(1, 0, 19));
    }
}
