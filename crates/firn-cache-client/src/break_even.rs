//! From how many bytes on a part is worth having, measured for the database that computes the rest.

use std::time::Duration;

/// More is never asked of a part: the paper's figure for its own database.
const BYTES_MAX: u64 = 512 << 10;
/// What is left of an older measurement when one more comes.
const FADING: f64 = 0.98;
/// Before so many nothing is said.
const COUNT_MIN: f64 = 8.0;
/// Sizes that differ by less of their sum of squares than this, a tenth of themselves, are one size.
const SPREAD_MIN: f64 = 0.01;
/// What a look takes before enough were measured: a read from flash.
const LOOK_NS: f64 = 100_000.0;
/// One that takes so many times what is expected of its size says that the machine was busy.
const LOOKS_MAX: f64 = 10.0;
/// Of so many questions one takes every part: what a look takes is measured on whatever came out.
const MEASURED_EVERY: u64 = 16;

/// The break-even of one database (TSCache 3.3).
///
/// A part saves the database its bytes and costs a look into the cache. What a byte costs the database is the slope of the line
/// through its answers' sizes and times; how long it takes to answer anything at all is paid with a part or without. What
/// a look costs is where the line through the looks begins: what it takes longer for more bytes it takes for bytes that are saved.
#[derive(Clone, Copy, Debug, Default)]
pub struct BreakEven {
    database: Line,
    looks: Line,
    asked: u64,
}

/// The line through sizes and times that were measured, of which old ones fade.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    count: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
}

impl BreakEven {
    /// The database took so long for an answer of so many bytes.
    pub fn record_computed(&mut self, bytes: u64, took: Duration) {
        self.database.add(bytes as f64, took.as_nanos() as f64);
    }

    /// The cache took so long to find a part, or all, of so many bytes.
    pub fn record_lookup(&mut self, bytes: u64, took: Duration) {
        let (start_ns, slope) = self.look();
        let expected_ns = start_ns + slope * bytes as f64;
        self.looks.add(bytes as f64, (took.as_nanos() as f64).min(LOOKS_MAX * expected_ns));
    }

    /// The smallest part to take for a question: [`BreakEven::bytes_min`], and now and then 0, so that it goes on being measured.
    pub fn next_bytes_min(&mut self) -> u64 {
        let number = self.asked;
        self.asked += 1;
        if number.is_multiple_of(MEASURED_EVERY) { 0 } else { self.bytes_min() }
    }

    /// Parts of fewer bytes cost more than they save. 0 until enough is measured, and where long answers take no longer than
    /// short ones; 512 KiB at most.
    pub fn bytes_min(&self) -> u64 {
        let ((_, slope), (look_ns, _)) = (self.database.start_and_slope(), self.look());
        let is_known = self.database.count >= COUNT_MIN && slope > 0.0;
        if is_known { ((look_ns / slope) as u64).min(BYTES_MAX) } else { 0 }
    }
}

impl BreakEven {
    /// What a look takes at least, and for each byte more.
    fn look(&self) -> (f64, f64) {
        let is_known = self.looks.count >= COUNT_MIN;
        if is_known { self.looks.start_and_slope() } else { (LOOK_NS, 0.0) }
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

    /// What nothing takes, and what each byte more; the mean and 0 if the sizes do not say that more bytes take longer.
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
    fn it_is_what_a_look_costs_in_bytes_of_the_database() {
        let mut even = BreakEven::default();
        assert_eq!(even.bytes_min(), 0);
        looks(&mut even, |_| 1_000, 0);
        answers(&mut even, 50);
        assert!((1_990..=2_010).contains(&even.bytes_min()), "{}", even.bytes_min());
        // Another database, or a busier one.
        answers(&mut even, 200);
        assert!((490..=510).contains(&even.bytes_min()), "{}", even.bytes_min());
        // One slow look says little, many say much, and what they said is not for ever.
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
        assert_eq!(even.bytes_min(), 0, "long answers that take less say nothing about bytes");
        let mut even = BreakEven::default();
        for n in 0..500 {
            even.record_computed(123_456_789, Duration::from_nanos(5_000_000 + n % 7));
        }
        assert_eq!(even.bytes_min(), 0, "answers of one size say nothing about bytes");
    }

    /// A hit of megabytes takes long because it is long: a part of a kilobyte is as good as before.
    #[test]
    fn long_hits_do_not_make_short_parts_dear() {
        let mut even = BreakEven::default();
        answers(&mut even, 50);
        looks(&mut even, |n| 1_000 + 400_000 * (n % 9), 10);
        assert!((1_900..=2_100).contains(&even.bytes_min()), "{}", even.bytes_min());
    }
}
