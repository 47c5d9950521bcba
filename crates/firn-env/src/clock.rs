//! The clock seam.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_model::Timestamp;

/// Wall time and monotonic time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Wall time in milliseconds since the Unix epoch; may jump.
    fn now_ms(&self) -> Timestamp;

    /// Nanoseconds since an arbitrary start; never decreases.
    fn monotonic_ns(&self) -> u64;

    /// Waits. A simulated clock only advances its time.
    fn sleep(&self, duration: Duration);
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// The machine's clock; [`Clock::monotonic_ns`] counts from this call.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
