//! Values: a number that changes from sample to sample, the same every time.

/// The way in which a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A walk between 0 and 100 in whole numbers; a third of the steps is 0.
    Level,
    /// A walk with two decimals, as a sensor sends it.
    Decimal,
    /// A whole number that rises, often by nothing, and restarts about every 5,000 samples.
    Count,
    /// Seconds with nine decimals that rise at every sample.
    Seconds,
    /// Bytes in pages of 4 KiB.
    Pages,
    /// A value that hardly ever changes: a limit, a version.
    Constant,
    /// A random fraction, all 52 bits of it.
    Fraction,
}

/// The current value of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    walk: Walk,
    random: u64,
    value: f64,
}

impl Value {
    /// The value before the first sample.
    pub(crate) fn new(walk: Walk, seed: u64) -> Value {
        let value = match walk {
            Walk::Level => (seed % 101) as f64,
            Walk::Decimal => (seed % 10_000) as f64 / 100.0,
            Walk::Count => (seed % 1_000_000) as f64,
            Walk::Seconds => (seed % 10_000_000) as f64 / 1e3,
            Walk::Pages => (seed % 1_000_000 * 4_096) as f64,
            Walk::Constant => (seed % 64) as f64,
            Walk::Fraction => 0.5,
        };
        // Xorshift stays at 0.
        Value { walk, random: seed | 1, value }
    }

    /// The value of the next sample.
    pub(crate) fn next(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let draw = self.random >> 16;
        let step = [0, 0, 0, 1, -1, 2, -2, 3, -3][(draw % 9) as usize];
        self.value = match self.walk {
            Walk::Level => (self.value + f64::from(step)).clamp(0.0, 100.0),
            Walk::Decimal => ((self.value * 100.0).round() + f64::from(step * 7)) / 100.0,
            Walk::Count if draw.is_multiple_of(5_003) => 0.0,
            Walk::Count if draw.is_multiple_of(3) => self.value,
            Walk::Count => self.value + (draw / 64 % 1_500) as f64,
            Walk::Seconds => self.value + (draw / 64 % 15_000_000_000) as f64 / 1e9,
            Walk::Pages => (self.value + f64::from(step * 64) * 4_096.0).max(0.0),
            Walk::Constant if draw.is_multiple_of(4_001) => self.value + 1.0,
            Walk::Constant => self.value,
            Walk::Fraction => (self.random >> 12) as f64 / (1_u64 << 52) as f64,
        };
        self.value
    }
}
