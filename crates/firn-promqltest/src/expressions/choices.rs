//! The source of the generator's decisions: a seed, or the bytes of a fuzzer.

/// A stream of decisions. The same seed or bytes yield the same decisions on every machine.
#[derive(Clone, Debug)]
pub struct DecisionSource {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    Seed(u64),
    /// One byte per decision, two for more than 256 options. After the last byte every decision is
    /// 0, the first option.
    Bytes { bytes: Vec<u8>, at: usize },
}

impl DecisionSource {
    /// An endless stream from `seed`.
    pub fn seeded(seed: u64) -> DecisionSource {
        DecisionSource { source: Source::Seed(seed) }
    }

    /// A stream in which each byte is a decision, so that a small mutation by a fuzzer is a small
    /// change of the expression.
    pub fn from_bytes(bytes: &[u8]) -> DecisionSource {
        DecisionSource { source: Source::Bytes { bytes: bytes.to_vec(), at: 0 } }
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        match &mut self.source {
            Source::Seed(state) => ((u128::from(split_mix(state)) * end as u128) >> 64) as usize,
            Source::Bytes { bytes, at } => {
                let mut next = || {
                    *at += 1;
                    usize::from(bytes.get(*at - 1).copied().unwrap_or(0))
                };
                let drawn = if end > 256 { next() << 8 | next() } else { next() };
                drawn % end.max(1)
            }
        }
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: usize) -> bool {
        // An exhausted source yields the first option, which must be "no".
        self.below(count) + 1 == count
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// A number in [0, 1), in steps of 2^-16.
    pub fn fraction(&mut self) -> f64 {
        self.below(1 << 16) as f64 / f64::from(1 << 16)
    }

    /// A number in [-1, 1) with all digits of a double.
    pub fn real(&mut self) -> f64 {
        let high = self.below(1 << 16) as f64;
        let middle = self.below(1 << 16) as f64;
        let low = self.below(1 << 16) as f64;
        ((low / 65_536.0 + middle) / 65_536.0 + high) / 32_768.0 - 1.0
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_stay_in_bounds_and_bytes_run_out_into_the_first_way() {
        let mut seeded = DecisionSource::seeded(7);
        let mut bytes = DecisionSource::from_bytes(&[3, 0xff, 0xff, 9]);
        for _ in 0..1_000 {
            assert!(seeded.below(7) < 7);
            assert!((-1.0..1.0).contains(&seeded.real()));
        }
        assert_eq!((bytes.below(10), bytes.below(1_000), bytes.below(5)), (3, 0xffff % 1_000, 4));
        assert_eq!((bytes.below(10), bytes.one_in(3), seeded.below(0)), (0, false, 0));
    }
}
