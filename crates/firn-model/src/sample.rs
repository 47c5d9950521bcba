//! Samples: one timestamp, one value.

use crate::Timestamp;

/// The bits of Prometheus' staleness marker: a NaN that ends a series.
pub const STALE_NAN_BITS: u64 = 0x7ff0_0000_0000_0002;

/// Prometheus' staleness marker.
pub const STALE_NAN: f64 = f64::from_bits(STALE_NAN_BITS);

/// Whether `value` is the staleness marker, by its bits; an ordinary NaN is not.
pub fn is_stale_nan(value: f64) -> bool {
    value.to_bits() == STALE_NAN_BITS
}

/// One value of one series. Compared by bits, so NaN payloads and -0.0 are distinct.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Timestamp in milliseconds.
    pub ts: Timestamp,
    /// The value.
    pub value: f64,
}

impl PartialEq for Sample {
    fn eq(&self, other: &Sample) -> bool {
        self.ts == other.ts && self.value.to_bits() == other.value.to_bits()
    }
}

impl Eq for Sample {}
