//! The samples that a destination was sent last. A receiver that sends them back, such as a server
//! that writes to this one, would else receive each of them again and again: the log does not know
//! the origin of a sample.

use std::hash::{BuildHasher, RandomState};

use firn_model::{Budget, Pool, Reservation};
use firndb::LoggedSample;

/// A table of marks. A sample has one place, by its series and time, and a later sample may take
/// it: then the former one is sent again if it returns.
#[derive(Debug)]
pub(super) struct SentSamples {
    /// 0 for none.
    marks: Vec<u64>,
    hasher: RandomState,
    _held: Reservation,
}

/// Spreads the bits of values; odd, so that different values have different products.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl SentSamples {
    /// A table of at most `bytes`; an empty one without memory.
    pub(super) fn new(budget: &Budget, bytes: u64) -> SentSamples {
        let count = (bytes / size_of::<u64>() as u64 + 1).next_power_of_two() / 2;
        let held = budget.reserve(Pool::Requests, count.saturating_mul(size_of::<u64>() as u64));
        let (count, held) = match held {
            Ok(held) => (usize::try_from(count).unwrap_or(0), held),
            Err(_) => (0, budget.empty(Pool::Requests)),
        };
        SentSamples { marks: vec![0; count], hasher: RandomState::new(), _held: held }
    }

    /// Whether this very sample was sent, and no other value of its series and time since. If not,
    /// that one is forgotten: the sample is sent next.
    pub(super) fn forget_unless_repeated(&mut self, sample: &LoggedSample) -> bool {
        let mark = self.mark(sample);
        let Some(place) = self.place(sample) else { return false };
        let is_repeated = *place == mark;
        if !is_repeated {
            *place = 0;
        }
        is_repeated
    }

    /// Notes that the sample was sent.
    pub(super) fn note(&mut self, sample: &LoggedSample) {
        let mark = self.mark(sample);
        if let Some(place) = self.place(sample) {
            *place = mark;
        }
    }

    fn place(&mut self, sample: &LoggedSample) -> Option<&mut u64> {
        let last = self.marks.len().checked_sub(1)?;
        let key = self.key(sample);
        self.marks.get_mut(usize::try_from(key).unwrap_or(usize::MAX) & last)
    }

    /// Equal for equal samples, and by chance for one of 2^64 others. Clients do not know the key.
    fn mark(&self, sample: &LoggedSample) -> u64 {
        self.key(sample) ^ sample.value.to_bits().wrapping_mul(SPREAD)
    }

    fn key(&self, sample: &LoggedSample) -> u64 {
        self.hasher.hash_one((sample.series.group.0, sample.series.slot.0, sample.ts))
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{GroupId, SeriesRef, Slot};

    use super::*;

    fn sample(slot: u32, ts: i64, value: f64) -> LoggedSample {
        LoggedSample { series: SeriesRef { group: GroupId(1), slot: Slot(slot) }, ts, value }
    }

    #[test]
    fn only_the_last_value_of_a_time_is_repeated() {
        let mut sent = SentSamples::new(&Budget::unlimited(), 1 << 16);
        assert_eq!(sent.marks.len(), 1 << 13);
        let (one, two) = (sample(1, 5, 1.0), sample(1, 5, 2.0));
        assert!(!sent.forget_unless_repeated(&one));
        sent.note(&one);
        assert!(sent.forget_unless_repeated(&one) && sent.forget_unless_repeated(&one));
        assert!(
            !sent.forget_unless_repeated(&sample(2, 5, 1.0))
                && !sent.forget_unless_repeated(&sample(1, 6, 1.0))
        );
        // An update and its reversal, before the end of a window and after it.
        assert!(!sent.forget_unless_repeated(&two) && !sent.forget_unless_repeated(&one));
        sent.note(&two);
        sent.note(&one);
        assert!(!sent.forget_unless_repeated(&two));
        sent.note(&two);
        assert!(!sent.forget_unless_repeated(&one));
        // Bit for bit.
        sent.note(&sample(1, 7, 0.0));
        assert!(!sent.forget_unless_repeated(&sample(1, 7, -0.0)));
    }

    #[test]
    fn a_table_is_within_its_memory() {
        for bytes in [0, 7, 8, 100, 4_095, 4_096, 512 << 10] {
            let budget = Budget::new(1 << 20);
            let sent = SentSamples::new(&budget, bytes);
            assert!(budget.usage().used_bytes <= bytes, "{bytes}");
            assert_eq!(budget.usage().used_bytes, sent.marks.len() as u64 * 8);
            assert!(
                bytes < 8 || budget.usage().used_bytes > (bytes / 2).saturating_sub(8),
                "{bytes}"
            );
        }
        let mut none = SentSamples::new(&Budget::new(10), 1 << 16);
        none.note(&sample(1, 1, 1.0));
        assert!(!none.forget_unless_repeated(&sample(1, 1, 1.0)));
    }
}
