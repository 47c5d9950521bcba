//! The only source of randomness: SplitMix64, small, seeded, the same on every machine.

/// A stream of random numbers from a seed. Source: Steele, Lea, Flood, OOPSLA 2014 (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product is uniform enough for tests (bias under 2^-32 for small
        // ends).
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number in `start..=end`.
    ///
    /// # Panics
    /// If `start > end`.
    pub fn between(&mut self, start: i64, end: i64) -> i64 {
        assert!(start <= end, "between({start}, {end})");
        let width = end.wrapping_sub(start) as u64;
        let offset = if width == u64::MAX { self.next_u64() } else { self.below(width + 1) };
        start.wrapping_add(offset as i64)
    }

    /// True with `probability` (0 never, 1 always).
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: every f64 in [0, 1) of that grid is exact.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A random element of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// An independent stream, so that draws of one consumer do not shift those of another.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_fixed_and_stays_in_bounds() {
        // The reference values of SplitMix64 for seed 0.
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        for _ in 0..1_000 {
            assert!(rng.below(7) < 7);
            assert!((-3..=3).contains(&rng.between(-3, 3)));
            assert!(!rng.chance(0.0) && rng.chance(1.0));
        }
        assert_eq!(rng.below(0), 0);
        rng.between(i64::MIN, i64::MAX);
    }
}
