//! A clock that only tests and sleeps advance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use firn_env::Clock;
use firn_model::Timestamp;

/// Wall time and monotonic time of a simulated machine. Clones show the same time.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<ClockTimes>);

#[derive(Debug)]
struct ClockTimes {
    wall_ms: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl SimClock {
    /// 2026-01-01T00:00:00Z: arbitrary, but easy to read in a trace.
    pub const START_MS: Timestamp = 1_767_225_600_000;

    /// A clock at [`SimClock::START_MS`].
    pub fn new() -> SimClock {
        SimClock(Arc::new(ClockTimes {
            wall_ms: AtomicI64::new(SimClock::START_MS),
            monotonic_ns: AtomicU64::new(0),
        }))
    }

    /// Advances wall time and monotonic time.
    pub fn advance(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.monotonic_ns.fetch_add(ns, Ordering::Relaxed);
        // Whole milliseconds of monotonic time, so that many small steps lose nothing.
        let ms = (before.wrapping_add(ns) / 1_000_000).wrapping_sub(before / 1_000_000);
        self.0.wall_ms.fetch_add(ms as i64, Ordering::Relaxed);
    }

    /// Sets the wall clock, as an administrator or NTP would; monotonic time is unchanged.
    pub fn set_now_ms(&self, now: Timestamp) {
        self.0.wall_ms.store(now, Ordering::Relaxed);
    }
}

impl Default for SimClock {
    fn default() -> SimClock {
        SimClock::new()
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> Timestamp {
        self.0.wall_ms.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns.load(Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_advances_both_times_and_a_jump_only_one() {
        let clock = SimClock::new();
        for _ in 0..4 {
            clock.sleep(Duration::from_micros(250));
        }
        assert_eq!(clock.now_ms(), SimClock::START_MS + 1);
        clock.set_now_ms(-5);
        assert_eq!((clock.now_ms(), clock.monotonic_ns()), (-5, 1_000_000));
    }
}
