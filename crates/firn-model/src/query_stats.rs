//! What one query did below the language, told to who asks for it (`stats=all`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one query; its threads share them. Counted per batch of groups, never per sample.
#[derive(Debug, Default)]
pub struct QueryStats {
    /// Groups that the index found for the query's matchers.
    pub groups_scanned: Count,
    /// Groups among them that have samples in the range: these are read.
    pub groups_matched: Count,
    /// Bytes of columns that came from memory.
    pub memory_bytes: Count,
    /// Bytes read from tables on the local disk.
    pub fast_bytes: Count,
    /// Bytes read from the slow tier.
    pub slow_bytes: Count,
    /// Blocks of the slow tier that were in the cache.
    pub cache_hits: Count,
    /// Blocks of the slow tier that were not.
    pub cache_misses: Count,
    /// Steps of its answer that the cache of answers has.
    pub steps_kept: Count,
    /// Steps that it has not.
    pub steps_not_kept: Count,
    /// Nanoseconds that it waited for a thread.
    pub queue_ns: Count,
    /// Nanoseconds spent on finding what matches.
    pub select_ns: Count,
    /// Nanoseconds spent on sorting the result.
    pub sort_ns: Count,
    now_ns: Option<fn() -> u64>,
}

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Raises it.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// What it is now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl QueryStats {
    /// Counts, and takes times by `now_ns`, a clock that never goes back. Without one times stay 0: the rooms
    /// below read no clock of their own.
    pub fn with_clock(now_ns: fn() -> u64) -> QueryStats {
        QueryStats { now_ns: Some(now_ns), ..QueryStats::default() }
    }

    /// Runs `work` and adds the time it took to `total_ns`, one of these counters.
    pub fn timed<T>(&self, total_ns: &Count, work: impl FnOnce() -> T) -> T {
        let Some(now_ns) = self.now_ns else { return work() };
        let start = now_ns();
        let done = work();
        total_ns.add(now_ns().saturating_sub(start));
        done
    }
}
