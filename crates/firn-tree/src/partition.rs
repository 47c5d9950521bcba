//! Time partitions: aligned ranges of time whose lengths are 7.5 minutes times a power of two.
//!
//! Because every partition starts at a multiple of its own length (by floor division, so also
//! before 1970), two partitions are equal, nested or disjoint, never partly overlapping. All
//! aligning of partitions of different lengths (TimeUnion 3.3, figure 12) rests on this.

use firn_model::{TimeRange, Timestamp};

/// The shortest partition: 7.5 minutes.
const LEN_MS_MIN: i64 = 450_000;
/// The longest partition is 7.5 min * 2^10 = 128 h.
const DOUBLINGS_MAX: u8 = 10;

const _: () = assert!(LEN_MS_MIN << DOUBLINGS_MAX == 128 * 3_600_000);

/// A partition's length: 7.5 minutes, doubled 0 to 10 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionLen {
    doublings: u8,
}

impl PartitionLen {
    /// The shortest.
    pub const MIN: PartitionLen = PartitionLen { doublings: 0 };

    /// The longest.
    pub const MAX: PartitionLen = PartitionLen { doublings: DOUBLINGS_MAX };

    /// The length of exactly `ms`, if there is one.
    pub fn from_ms(ms: i64) -> Option<PartitionLen> {
        (0..=DOUBLINGS_MAX)
            .map(|doublings| PartitionLen { doublings })
            .find(|len| len.as_ms() == ms)
    }

    /// The longest that is not over `ms`, at least the shortest.
    pub fn at_most(ms: i64) -> PartitionLen {
        (0..=DOUBLINGS_MAX)
            .rev()
            .map(|doublings| PartitionLen { doublings })
            .find(|len| len.as_ms() <= ms)
            .unwrap_or(PartitionLen::MIN)
    }

    /// In milliseconds.
    pub fn as_ms(self) -> i64 {
        LEN_MS_MIN << self.doublings
    }

    /// The length doubled `doublings` times (halved if negative), within the limits.
    pub(crate) fn shifted(self, doublings: i8) -> PartitionLen {
        let shifted = self.doublings.saturating_add_signed(doublings);
        PartitionLen { doublings: shifted.min(DOUBLINGS_MAX) }
    }

    /// How often the shortest was doubled: 0 to 10.
    pub(crate) fn doublings(self) -> i8 {
        self.doublings as i8
    }

    /// Half of it, `None` below the shortest.
    pub fn half(self) -> Option<PartitionLen> {
        self.doublings.checked_sub(1).map(|doublings| PartitionLen { doublings })
    }
}

/// Lengths of new partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLengths {
    /// The length in level 0 and 1.
    pub fast: PartitionLen,
    /// The length in level 2.
    pub slow: PartitionLen,
}

/// A range of time that starts at a multiple of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Start divided by length: -1 is the one that ends just before 1970.
    idx: i64,
    len: PartitionLen,
}

impl Partition {
    /// The partition of `len` that holds `ts`. Every timestamp has one.
    pub fn of(ts: Timestamp, len: PartitionLen) -> Partition {
        Partition { idx: ts.div_euclid(len.as_ms()), len }
    }

    /// Its length.
    pub fn len(self) -> PartitionLen {
        self.len
    }

    /// Its timestamps. The first and the last partition of all time are cut at the ends of `i64`.
    pub fn range(self) -> TimeRange {
        let len_ms = i128::from(self.len.as_ms());
        let start = i128::from(self.idx) * len_ms;
        let clamp = |ts: i128| ts.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        TimeRange::new(clamp(start), clamp(start + len_ms - 1))
    }

    /// The smallest partition that holds all of `range`, if one of the longest does.
    pub fn enclosing(range: TimeRange, at_least: PartitionLen) -> Option<Partition> {
        (at_least.doublings..=DOUBLINGS_MAX)
            .map(|doublings| Partition::of(range.start, PartitionLen { doublings }))
            .find(|partition| partition.range().covers(range))
    }

    /// The two halves, the earlier first; `None` of the shortest.
    pub(crate) fn halves(self) -> Option<[Partition; 2]> {
        let len = self.len.half()?;
        let first = self.idx.checked_mul(2)?;
        Some([Partition { idx: first, len }, Partition { idx: first + 1, len }])
    }

    /// Position and doublings, as they are stored.
    pub(crate) fn to_parts(self) -> (i64, u8) {
        (self.idx, self.len.doublings)
    }

    /// The inverse of [`Partition::to_parts`]; `None` if no partition has these values.
    pub(crate) fn from_parts(idx: i64, doublings: u8) -> Option<Partition> {
        let len = PartitionLen { doublings };
        let in_time = |len: PartitionLen| {
            (i64::MIN.div_euclid(len.as_ms())..=i64::MAX.div_euclid(len.as_ms())).contains(&idx)
        };
        (doublings <= DOUBLINGS_MAX && in_time(len)).then_some(Partition { idx, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timestamp_has_one_partition_by_floor_division() {
        let half_hour = PartitionLen::from_ms(1_800_000).unwrap();
        let f = |ts| Partition::of(ts, half_hour).range();
        assert_eq!(f(0), TimeRange::new(0, 1_799_999));
        assert_eq!(f(-1), TimeRange::new(-1_800_000, -1));
        assert_eq!(f(-1_800_000), f(-1));
        assert_eq!(f(i64::MIN).start, i64::MIN);
        assert_eq!(f(i64::MAX).end, i64::MAX);
        for ts in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX] {
            for doublings in 0..=DOUBLINGS_MAX {
                let partition = Partition::of(ts, PartitionLen { doublings });
                assert!(partition.range().contains(ts));
                let (idx, doublings) = partition.to_parts();
                assert_eq!(Partition::from_parts(idx, doublings), Some(partition));
            }
        }
        assert_eq!(Partition::from_parts(i64::MAX, 0), None);
        assert_eq!(Partition::from_parts(0, DOUBLINGS_MAX + 1), None);
    }

    #[test]
    fn partitions_nest() {
        let mut ts = i64::MIN;
        for step in 0..2_000i64 {
            ts = ts.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
            for doublings in 1..=DOUBLINGS_MAX {
                let outer = Partition::of(ts, PartitionLen { doublings });
                let inner = Partition::of(ts, outer.len().half().unwrap());
                assert!(outer.range().covers(inner.range()));
                assert_eq!(Partition::enclosing(inner.range(), outer.len()), Some(outer));
            }
        }
    }

    #[test]
    fn lengths_are_halved_and_found() {
        assert_eq!(PartitionLen::from_ms(1_000), None);
        assert_eq!(PartitionLen::at_most(1_000), PartitionLen::MIN);
        assert_eq!(PartitionLen::at_most(i64::MAX).as_ms(), 460_800_000);
        assert_eq!(PartitionLen::MIN.half(), None);
        let f = |ms, doublings| PartitionLen::at_most(ms).shifted(doublings).as_ms();
        assert_eq!([f(1_800_000, 1), f(1_800_000, -1)], [3_600_000, 900_000]);
        assert_eq!([f(1_800_000, i8::MAX), f(1_800_000, i8::MIN)], [460_800_000, 450_000]);
        let [first, second] = Partition::of(-1, PartitionLen::at_most(900_000)).halves().unwrap();
        assert_eq!([first.range().start, second.range().start], [-900_000, -450_000]);
        assert_eq!(first.halves(), None);
    }
}
