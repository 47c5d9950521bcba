//! Time: signed milliseconds since the Unix epoch, and closed ranges of them.

/// Milliseconds since the Unix epoch. Every `i64` is valid, including negative values and both
/// ends.
pub type Timestamp = i64;

/// A closed range of timestamps: `start <= t <= end`. Empty when `start > end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// First timestamp inside.
    pub start: Timestamp,
    /// Last timestamp inside.
    pub end: Timestamp,
}

impl TimeRange {
    /// Every timestamp.
    pub const ALL: TimeRange = TimeRange { start: i64::MIN, end: i64::MAX };
    /// No timestamp; the identity of [`TimeRange::union`].
    pub const EMPTY: TimeRange = TimeRange { start: i64::MAX, end: i64::MIN };

    /// `start <= t <= end`.
    pub fn new(start: Timestamp, end: Timestamp) -> TimeRange {
        TimeRange { start, end }
    }

    /// Just `ts`.
    pub fn at(ts: Timestamp) -> TimeRange {
        TimeRange { start: ts, end: ts }
    }

    /// Whether no timestamp is inside.
    pub fn is_empty(self) -> bool {
        self.start > self.end
    }

    /// Whether `ts` is inside.
    pub fn contains(self, ts: Timestamp) -> bool {
        self.start <= ts && ts <= self.end
    }

    /// Whether all of `other` is inside; always true if `other` is empty.
    pub fn covers(self, other: TimeRange) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Whether some timestamp is in both.
    pub fn overlaps(self, other: TimeRange) -> bool {
        !self.intersect(other).is_empty()
    }

    /// The timestamps in both.
    pub fn intersect(self, other: TimeRange) -> TimeRange {
        TimeRange { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The smallest range that covers both.
    pub fn union(self, other: TimeRange) -> TimeRange {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        TimeRange { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The smallest range that also contains `ts`.
    pub fn extend(self, ts: Timestamp) -> TimeRange {
        TimeRange { start: self.start.min(ts), end: self.end.max(ts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_are_harmless() {
        let range = TimeRange::new(5, 4);
        assert!(range.is_empty());
        assert!(!range.overlaps(TimeRange::ALL));
        assert!(TimeRange::at(0).covers(range));
        assert_eq!(TimeRange::EMPTY.extend(7), TimeRange::at(7));
        assert_eq!(TimeRange::EMPTY.union(TimeRange::at(7)), TimeRange::at(7));
        assert_eq!(TimeRange::at(i64::MIN).union(TimeRange::at(i64::MAX)), TimeRange::ALL);
    }
}
