//! Statistics of one query below the language, returned for `stats=all`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one query, shared by its threads. Updated per batch of groups, never per sample.
#[derive(Debug, Default)]
pub struct QueryStats {
    /// Groups that the index found for the query's matchers.
    pub groups_scanned: Counter,
    /// Those of the groups that have samples in the range; they are read.
    pub groups_matched: Counter,
    /// Bytes of columns read from memory.
    pub memory_bytes: Counter,
    /// Bytes read from tables on the local disk.
    pub fast_bytes: Counter,
    /// Bytes read from the slow tier.
    pub slow_bytes: Counter,
    /// Blocks of the slow tier found in the cache.
    pub cache_hits: Counter,
    /// Blocks of the slow tier that the cache did not contain.
    pub cache_misses: Counter,
    /// Steps of the answer that the result cache contained.
    pub steps_kept: Counter,
    /// Steps of the answer that were computed.
    pub steps_not_kept: Counter,
    /// Nanoseconds spent waiting for a thread.
    pub queue_ns: Counter,
    /// Nanoseconds spent finding the matching series.
    pub select_ns: Counter,
    /// Nanoseconds spent sorting the result.
    pub sort_ns: Counter,
    now_ns: Option<fn() -> u64>,
}

/// A counter that never decreases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl QueryStats {
    /// Statistics with times, measured by `now_ns`, a monotonic clock. Without it times stay 0: the
    /// rooms below read no clock of their own.
    pub fn with_clock(now_ns: fn() -> u64) -> QueryStats {
        QueryStats { now_ns: Some(now_ns), ..QueryStats::default() }
    }

    /// Runs `work` and adds its duration to `total_ns`, one of these counters.
    pub fn timed<T>(&self, total_ns: &Counter, work: impl FnOnce() -> T) -> T {
        let Some(now_ns) = self.now_ns else { return work() };
        let start = now_ns();
        let done = work();
        total_ns.add(now_ns().saturating_sub(start));
        done
    }
}
