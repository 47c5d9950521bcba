//! The clocks of the machine.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use firn_model::Timestamp;

/// Milliseconds since 1970. The database has a clock of its own, which exists only once it is open.
pub(crate) fn clock_ms() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as Timestamp)
}

/// Nanoseconds since a fixed time of this process.
pub(crate) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
