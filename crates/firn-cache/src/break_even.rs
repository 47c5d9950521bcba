//! From how many bytes on a part is worth having, measured for the backend that computes the rest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// More is never asked of a part: the paper's figure for its own backend.
const BYTES_MAX: u64 = 512 << 10;
/// What is left of an older measurement when one more comes.
const FADING: f64 = 0.98;
/// Before so many nothing is said.
const COUNT_MIN: f64 = 8.0;
/// Sizes that differ by less of their sum of squares than this are one size, and rounding.
const SPREAD_MIN: f64 = 1e-6;
/// What a look takes before one was measured: a read from flash.
const LOOK_NS: f64 = 100_000.0;
/// One that takes longer than so many usual ones says that the machine was busy.
const LOOKS_MAX: f64 = 10.0;
/// Of so many questions one takes every part: what a look takes is measured on whatever came out.
const MEASURED_EVERY: u64 = 16;

/// The break-even of one backend (TSCache 3.3).
///
/// A part saves the backend its bytes and costs a look into the cache. What a byte costs the backend is the slope of the line
/// through its answers' sizes and times; how long it takes to answer anything at all is paid with a part or without.
#[derive(Debug)]
pub struct BreakEven {
    sums: Mutex<Sums>,
    asked: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    count: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
    /// What a look takes that finds something.
    look_ns: f64,
}

impl Default for BreakEven {
    fn default() -> BreakEven {
        let (count, bytes, ns, bytes_squared, bytes_ns) = (0.0, 0.0, 0.0, 0.0, 0.0);
        let sums = Sums { count, bytes, ns, bytes_squared, bytes_ns, look_ns: LOOK_NS };
        BreakEven { sums: Mutex::new(sums), asked: AtomicU64::new(0) }
    }
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

    /// The cache took so long to find a part, or all.
    pub fn looked(&self, took: Duration) {
        let mut sums = self.sums.lock();
        let ns = (took.as_nanos() as f64).min(LOOKS_MAX * sums.look_ns);
        sums.look_ns = 0.9 * sums.look_ns + 0.1 * ns;
    }

    /// The smallest part to take for a question: [`BreakEven::bytes_min`], and now and then 0, so that it goes on being measured.
    pub fn least(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(MEASURED_EVERY) { 0 } else { self.bytes_min() }
    }

    /// Parts of fewer bytes cost more than they save. 0 until enough is measured, and where long answers take no longer than
    /// short ones; 512 KiB at most.
    pub fn bytes_min(&self) -> u64 {
        let sums = *self.sums.lock();
        let spread = sums.count * sums.bytes_squared - sums.bytes * sums.bytes;
        let slope = (sums.count * sums.bytes_ns - sums.bytes * sums.ns) / spread;
        let differ = spread > SPREAD_MIN * sums.count * sums.bytes_squared;
        let is_known = sums.count >= COUNT_MIN && differ && slope > 0.0;
        if is_known { ((sums.look_ns / slope) as u64).min(BYTES_MAX) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_look_costs_in_bytes_of_the_backend() {
        let even = BreakEven::default();
        assert_eq!(even.bytes_min(), 0);
        even.looked(Duration::from_micros(100));
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
        // One slow look says little, many say much, and what they said is not for ever.
        even.looked(Duration::from_secs(9));
        assert!(even.bytes_min() < 1_100, "{}", even.bytes_min());
        for _ in 0..200 {
            even.looked(Duration::from_secs(9));
        }
        assert_eq!(even.bytes_min(), BYTES_MAX);
        let taken: Vec<u64> = (0..32).map(|_| even.least()).collect();
        assert_eq!(taken.iter().filter(|&&least| least == 0).count(), 2, "{taken:?}");
        for _ in 0..200 {
            even.looked(Duration::from_micros(100));
        }
        assert!((490..=510).contains(&even.bytes_min()), "{}", even.bytes_min());
        for n in 0..500 {
            even.computed(1_000 * (n % 10), Duration::from_millis(20 - n % 10));
        }
        assert_eq!(even.bytes_min(), 0, "long answers that take less say nothing about bytes");
        let even = BreakEven::default();
        for n in 0..500 {
            even.computed(123_456_789, Duration::from_nanos(5_000_000 + n % 7));
        }
        assert_eq!(even.bytes_min(), 0, "answers of one size say nothing about bytes");
    }
}
