//! Upper bounds for the cache: an unlimited one, and one that keeps the most recently used points,
//! each on its own and without overhead.

use std::collections::HashSet;

use super::Query;

/// The number of points that a cache may keep, ordered by use: the ideal that slabs approximate.
#[derive(Debug)]
pub struct PointLru {
    point_count: usize,
    points_max: usize,
    len: usize,
    /// The neighbours of each point in a ring ordered by use; [`NONE`] for absent points. The last
    /// element is the ring's own.
    before: Vec<u32>,
    after: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl PointLru {
    /// For `key_count` keys of `point_count` points, of which `points_max` may be kept.
    ///
    /// # Panics
    /// If there are more than four billion points.
    pub fn new(key_count: usize, point_count: usize, points_max: usize) -> PointLru {
        let own = key_count * point_count;
        assert!(own < NONE as usize, "points have numbers of 32 bits");
        let mut before = vec![NONE; own + 1];
        before[own] = own as u32;
        let after = before.clone();
        PointLru { point_count, points_max, len: 0, before, after }
    }

    /// Whether all of a query is cached; stores the missing points and evicts the oldest if full.
    pub fn ask(&mut self, query: Query) -> bool {
        let own = self.before.len() - 1;
        let start = query.key * self.point_count;
        let mut is_hit = true;
        for at in start + query.first as usize..=start + query.last as usize {
            if self.before[at] == NONE {
                is_hit = false;
                self.len += 1;
            } else {
                self.unlink(at);
            }
            // The ring's predecessor is the most recently used point.
            let last = self.before[own] as usize;
            self.before[at] = last as u32;
            self.after[at] = own as u32;
            self.after[last] = at as u32;
            self.before[own] = at as u32;
        }
        while self.len > self.points_max {
            let oldest = self.after[own] as usize;
            self.unlink(oldest);
            self.before[oldest] = NONE;
            self.len -= 1;
        }
        is_hit
    }

    fn unlink(&mut self, at: usize) {
        let (before, after) = (self.before[at] as usize, self.after[at] as usize);
        self.after[before] = after as u32;
        self.before[after] = before as u32;
    }
}

/// Percent of the queries after the first `warm` that an unlimited cache answers.
pub fn unbounded_percent(queries: impl Iterator<Item = Query>, warm: usize) -> f64 {
    let mut known = HashSet::new();
    let (mut hits, mut asked) = (0, 0);
    for (number, query) in queries.enumerate() {
        let mut is_hit = true;
        for point in query.first..=query.last {
            is_hit &= !known.insert((query.key, point));
        }
        if number >= warm {
            asked += 1;
            hits += u64::from(is_hit);
        }
    }
    100.0 * hits as f64 / f64::from(asked.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_that_were_used_last_are_there() {
        let mut lru = PointLru::new(2, 10, 4);
        let mut ask = |key, first, last| lru.ask(Query { key, first, last });
        assert!(!ask(0, 0, 2) && ask(0, 1, 2) && !ask(1, 9, 9));
        // Point 0 of key 0 was used longest ago.
        assert!(!ask(1, 0, 0) && ask(0, 1, 2) && ask(1, 9, 9) && !ask(0, 0, 0));
        assert!(!ask(1, 0, 0), "it was evicted when the cache was full");
        assert!(!ask(1, 0, 9), "more than there is room for");
        assert!(ask(1, 6, 9) && !ask(1, 5, 5));
        let queries = [(0, 4), (2, 3), (4, 5), (0, 5)];
        let queries = queries.map(|(first, last)| Query { key: 0, first, last });
        assert_eq!(unbounded_percent(queries.into_iter(), 1), 100.0 * 2.0 / 3.0);
    }
}
