//! The size from which a cached part is worth reading, measured for the database that computes the
//! rest.

use std::time::Duration;

/// The largest minimum: the paper's value for its own database.
const BYTES_MAX: u64 = 512 << 10;
/// The weight that older measurements keep at each new one.
const FADING: f64 = 0.98;
/// Measurements are used once their weights add up to this.
const COUNT_MIN: f64 = 8.0;
/// Sizes that differ by less of their sum of squares than this, a tenth of themselves, count as
/// equal.
const SPREAD_MIN: f64 = 0.01;
/// The assumed time of a lookup before enough were measured: a read from flash.
const LOOKUP_NS: f64 = 100_000.0;
/// A lookup counts at most this many times the expected duration: longer ones show a busy machine.
const SLOW_LOOKUP_MAX: f64 = 10.0;
/// One lookup of this many accepts every part, so that small parts are measured too.
const MEASURED_EVERY: u64 = 16;

/// The break-even size of one database (TSCache 3.3).
///
/// A part saves the database its bytes and costs a lookup. The cost of a byte is the slope of the
/// line through sizes and durations of the database's answers; the fixed time of an answer is paid
/// with or without a part. The cost of a lookup is where the line through the lookups starts: the
/// additional time of larger parts is for bytes that are saved.
///
/// ```
/// use std::time::Duration;
/// let mut even = firn_cache_client::BreakEven::default();
/// assert_eq!(even.bytes_min(), 0, "nothing is measured yet");
/// for n in 0..100_u64 {
///     let bytes = 1_000 * (n % 10);
///     // The database takes 5 ms and 50 ns per byte, a lookup 100 us.
///     even.record_computed(bytes, Duration::from_nanos(5_000_000 + 50 * bytes));
///     even.record_lookup(bytes, Duration::from_micros(100));
/// }
/// assert!((1_900..2_100).contains(&even.bytes_min()));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BreakEven {
    database: Line,
    lookups: Line,
    lookup_count: u64,
}

/// The line through measured sizes and durations, of which old ones fade.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    count: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
}

impl BreakEven {
    /// Records that the database took `took` for an answer of `bytes`.
    pub fn record_computed(&mut self, bytes: u64, took: Duration) {
        self.database.add(bytes as f64, took.as_nanos() as f64);
    }

    /// Records that a lookup took `took` and returned `bytes`.
    pub fn record_lookup(&mut self, bytes: u64, took: Duration) {
        let (start_ns, slope) = self.lookup();
        let expected_ns = start_ns + slope * bytes as f64;
        self.lookups.add(bytes as f64, (took.as_nanos() as f64).min(SLOW_LOOKUP_MAX * expected_ns));
    }

    /// The smallest part to accept in the next lookup: [`BreakEven::bytes_min`], and now and then
    /// 0, so that small parts are still measured.
    pub fn next_bytes_min(&mut self) -> u64 {
        let number = self.lookup_count;
        self.lookup_count = self.lookup_count.saturating_add(1);
        if number.is_multiple_of(MEASURED_EVERY) { 0 } else { self.bytes_min() }
    }

    /// Parts with fewer bytes cost more than they save. 0 until enough is measured, and where long
    /// answers take no longer than short ones; at most 512 KiB.
    pub fn bytes_min(&self) -> u64 {
        let ((_, slope), (look_ns, _)) = (self.database.start_and_slope(), self.lookup());
        let is_known = self.database.count >= COUNT_MIN && slope > 0.0;
        #[expect(clippy::cast_possible_truncation, reason = "a cast from `f64` saturates")]
        let bytes = (look_ns / slope) as u64;
        if is_known { bytes.min(BYTES_MAX) } else { 0 }
    }
}

impl BreakEven {
    /// The fixed duration of a lookup, and the duration per byte.
    fn lookup(&self) -> (f64, f64) {
        let is_known = self.lookups.count >= COUNT_MIN;
        if is_known { self.lookups.start_and_slope() } else { (LOOKUP_NS, 0.0) }
    }
}

impl Line {
    fn add(&mut self, bytes: f64, ns: f64) {
        *self = Line {
            count: self.count * FADING + 1.0,
            bytes: self.bytes * FADING + bytes,
            ns: self.ns * FADING + ns,
            bytes_squared: self.bytes_squared * FADING + bytes * bytes,
            bytes_ns: self.bytes_ns * FADING + bytes * ns,
        };
    }

    /// The duration at size 0, and per byte; the mean and 0 if larger sizes do not take longer.
    fn start_and_slope(&self) -> (f64, f64) {
        let spread = self.count * self.bytes_squared - self.bytes * self.bytes;
        let mean_ns = self.ns / self.count.max(1.0);
        if spread <= SPREAD_MIN * self.count * self.bytes_squared {
            return (mean_ns, 0.0);
        }
        let slope = (self.count * self.bytes_ns - self.bytes * self.ns) / spread;
        if slope <= 0.0 {
            return (mean_ns, 0.0);
        }
        ((mean_ns - slope * self.bytes / self.count.max(1.0)).max(0.0), slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(even: &mut BreakEven, bytes: impl Fn(u64) -> u64, ns_per_byte: u64) {
        for n in 0..500 {
            let bytes = bytes(n);
            even.record_lookup(bytes, Duration::from_nanos(100_000 + bytes * ns_per_byte));
        }
    }

    fn answers(even: &mut BreakEven, ns_per_byte: u64) {
        for n in 0..500 {
            let bytes = 1_000 * (n % 10);
            even.record_computed(bytes, Duration::from_nanos(5_000_000 + bytes * ns_per_byte));
        }
    }

    #[test]
    fn the_minimum_is_the_cost_of_a_lookup_in_bytes_of_the_database() {
        let mut even = BreakEven::default();
        assert_eq!(even.bytes_min(), 0);
        looks(&mut even, |_| 1_000, 0);
        answers(&mut even, 50);
        assert!((1_990..=2_010).contains(&even.bytes_min()), "{}", even.bytes_min());
        // Another database, or a busier one.
        answers(&mut even, 200);
        assert!((490..=510).contains(&even.bytes_min()), "{}", even.bytes_min());
        // One slow lookup has little weight, many have more, and all of them fade.
        even.record_lookup(1_000, Duration::from_secs(9));
        assert!(even.bytes_min() < 1_100, "{}", even.bytes_min());
        for _ in 0..200 {
            even.record_lookup(1_000, Duration::from_secs(9));
        }
        assert_eq!(even.bytes_min(), BYTES_MAX);
        let taken: Vec<u64> = (0..32).map(|_| even.next_bytes_min()).collect();
        assert_eq!(taken.iter().filter(|&&least| least == 0).count(), 2, "{taken:?}");
        looks(&mut even, |_| 1_000, 0);
        looks(&mut even, |_| 1_000, 0);
        assert!((490..=510).contains(&even.bytes_min()), "{}", even.bytes_min());
        for n in 0..500 {
            even.record_computed(1_000 * (n % 10), Duration::from_millis(20 - n % 10));
        }
        assert_eq!(even.bytes_min(), 0, "no slope if long answers take less");
        let mut even = BreakEven::default();
        for n in 0..500 {
            even.record_computed(123_456_789, Duration::from_nanos(5_000_000 + n % 7));
        }
        assert_eq!(even.bytes_min(), 0, "no slope if all answers have one size");
    }

    /// A hit of megabytes takes long because it is large: a part of a kilobyte still pays.
    #[test]
    fn large_hits_do_not_make_small_parts_expensive() {
        let mut even = BreakEven::default();
        answers(&mut even, 50);
        looks(&mut even, |n| 1_000 + 400_000 * (n % 9), 10);
        assert!((1_900..=2_100).contains(&even.bytes_min()), "{}", even.bytes_min());
    }
}
