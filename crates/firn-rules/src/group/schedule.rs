//! The times at which a group is evaluated.

use firn_model::Timestamp;
use xxhash_rust::xxh64::xxh64;

/// The slots of a group: `k * interval + offset` on epoch time. The offset is a hash of the group's
/// file and name, so slots survive restarts and groups spread over the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    interval_ms: i64,
    offset_ms: i64,
}

/// A slot whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSlot {
    /// The time of the evaluation.
    pub slot: Timestamp,
    /// Number of earlier slots that passed without an evaluation. They are not caught up.
    pub missed_count: u64,
}

impl Schedule {
    /// The slots of the group `name` of `file`. An interval below 1 ms counts as 1 ms.
    pub fn new(file: &str, name: &str, interval_ms: i64) -> Schedule {
        let interval_ms = interval_ms.max(1);
        let interval_nanos = u64::try_from(interval_ms).unwrap_or(1).saturating_mul(1_000_000);
        let offset_nanos = group_key(file, name).checked_rem(interval_nanos);
        let offset_ms = i64::try_from(offset_nanos.unwrap_or(0) / 1_000_000).unwrap_or(0);
        Schedule { interval_ms, offset_ms }
    }

    /// Milliseconds between two slots, at least 1.
    pub fn interval_ms(&self) -> i64 {
        self.interval_ms
    }

    /// The last slot at or before `now`.
    pub fn at_or_before(&self, now: Timestamp) -> Timestamp {
        let shifted = now.saturating_sub(self.offset_ms);
        let since = shifted.checked_rem_euclid(self.interval_ms).unwrap_or(0);
        now.saturating_sub(since)
    }

    /// The first slot of a group that starts at `now`.
    pub fn first_after(&self, now: Timestamp) -> Timestamp {
        self.at_or_before(now).saturating_add(self.interval_ms)
    }

    /// The slot to evaluate at `now` after the slot `last`: the newest one that has passed, or
    /// `None` before the next one.
    pub fn due(&self, last: Timestamp, now: Timestamp) -> Option<DueSlot> {
        let passed = now.saturating_sub(last).checked_div(self.interval_ms).unwrap_or(0);
        if passed < 1 {
            return None;
        }
        let slot = last.saturating_add(passed.saturating_mul(self.interval_ms));
        Some(DueSlot { slot, missed_count: u64::try_from(passed.saturating_sub(1)).unwrap_or(0) })
    }
}

/// The hash of the group `name` of `file`, the same in each process.
pub(super) fn group_key(file: &str, name: &str) -> u64 {
    xxh64(&encoded_key(file, name), 0)
}

/// The labels `file` and `name` as Prometheus encodes them in memory: each text after its length in
/// one byte, or in three bytes after 255.
fn encoded_key(file: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::new();
    for text in ["file", file, "name", name] {
        match u8::try_from(text.len()) {
            Ok(len @ 0..=254) => key.push(len),
            _ => {
                let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
                let [low, middle, high, _] = len.to_le_bytes();
                key.extend([255, low, middle, high]);
            }
        }
        key.extend(text.as_bytes());
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn missed_slots_are_counted_and_skipped() {
        let schedule = Schedule::new("a.yml", "g", 10_000);
        let first = schedule.first_after(1_000_000);
        assert!(first > 1_000_000 && first <= 1_010_000);
        assert_eq!(schedule.due(first, first + 9_999), None);
        let due = |slot, missed_count| Some(DueSlot { slot, missed_count });
        assert_eq!(schedule.due(first, first + 10_000), due(first + 10_000, 0));
        assert_eq!(schedule.due(first, first + 39_999), due(first + 30_000, 2));
        assert_eq!(schedule.due(first, first - 5), None);
    }

    #[test]
    fn groups_of_one_interval_are_spread() {
        let offset = |name: &str| Schedule::new("a.yml", name, 60_000).offset_ms;
        let offsets: std::collections::BTreeSet<i64> =
            (0..100).map(|idx| offset(&format!("group {idx}"))).collect();
        assert!(offsets.len() > 90, "{offsets:?}");
        let long = "n".repeat(300);
        assert_ne!(offset(&long), offset(&format!("{long}n")));
    }

    proptest! {
        #[test]
        fn slots_are_an_interval_apart(name in ".{0,9}", interval in 1..90_000_i64, now: i32) {
            let (schedule, now) = (Schedule::new("f", &name, interval), i64::from(now));
            let slot = schedule.at_or_before(now);
            prop_assert!(slot <= now && now - slot < interval);
            prop_assert_eq!(schedule.at_or_before(slot), slot);
            prop_assert_eq!(schedule.first_after(slot), slot + interval);
            prop_assert_eq!(schedule.at_or_before(slot - 1), slot - interval);
        }

        #[test]
        fn no_time_overflows(interval: i64, last: i64, now: i64) {
            let schedule = Schedule::new("f", "g", interval);
            schedule.first_after(now);
            schedule.due(last, now);
        }
    }
}
