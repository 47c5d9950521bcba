//! From how many bytes on a part is worth having, measured for the backend that computes the rest.

use std::time::Duration;

use parking_lot::Mutex;

/// More is never asked of a part: the paper's figure for its own backend.
const BYTES_MAX: u64 = 512 << 10;
/// What is left of an older measurement when one more comes.
const FADING: f64 = 0.98;
/// Before so many nothing is said.
const COUNT_MIN: f64 = 8.0;

/// The break-even of one backend (TSCache 3.3).
///
/// A part saves the backend its bytes and costs a look into the cache. What a byte costs the backend is the slope of the line
/// through its answers' sizes and times; how long it takes to answer anything at all is paid with a part or without.
#[derive(Debug, Default)]
pub struct BreakEven {
    sums: Mutex<Sums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
    /// What a look takes that finds a part.
    part_ns: f64,
}

impl BreakEven {
    /// The backend took so long for an answer of so many bytes.
    pub fn computed(&self, bytes: u64, took: Duration) {
        let (bytes, ns) = (bytes as f64, took.as_nanos() as f64);
        let mut sums = self.sums.lock();
        let old = *sums;
        *sums = Sums {
            count: old.count * FADING + 1.0,
            bytes: old.bytes * FADING + bytes,
            ns: old.ns * FADING + ns,
            bytes_squared: old.bytes_squared * FADING + bytes * bytes,
            bytes_ns: old.bytes_ns * FADING + bytes * ns,
            ..old
        };
    }

    /// The cache took so long to find a part.
    pub fn gave_part(&self, took: Duration) {
        let ns = took.as_nanos() as f64;
        let mut sums = self.sums.lock();
        sums.part_ns = if sums.part_ns == 0.0 { ns } else { 0.9 * sums.part_ns + 0.1 * ns };
    }

    /// Parts of fewer bytes cost more than they save. 0 until enough is measured, and where long answers take no longer than
    /// short ones; 512 KiB at most.
    pub fn bytes_min(&self) -> u64 {
        let sums = *self.sums.lock();
        let spread = sums.count * sums.bytes_squared - sums.bytes * sums.bytes;
        let slope = (sums.count * sums.bytes_ns - sums.bytes * sums.ns) / spread;
        let is_known = sums.count >= COUNT_MIN && spread > 0.0 && slope > 0.0;
        if is_known { ((sums.part_ns / slope) as u64).min(BYTES_MAX) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_look_costs_in_bytes_of_the_backend() {
        let even = BreakEven::default();
        assert_eq!(even.bytes_min(), 0);
        even.gave_part(Duration::from_micros(100));
        let answers = |ns_per_byte: u64| {
            for n in 0..500 {
                let bytes = 1_000 * (n % 10);
                even.computed(bytes, Duration::from_nanos(5_000_000 + bytes * ns_per_byte));
            }
        };
        answers(50);
        assert!((1_990..=2_010).contains(&even.bytes_min()), "{}", even.bytes_min());
        // Another backend, or a busier one.
        answers(200);
        assert!((490..=510).contains(&even.bytes_min()), "{}", even.bytes_min());
        for _ in 0..200 {
            even.gave_part(Duration::from_secs(9));
        }
        assert_eq!(even.bytes_min(), BYTES_MAX);
        for n in 0..500 {
            even.computed(1_000 * (n % 10), Duration::from_millis(20 - n % 10));
        }
        assert_eq!(even.bytes_min(), 0, "long answers that take less say nothing about bytes");
    }
}
