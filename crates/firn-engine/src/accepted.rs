//! The timestamps that a write accepts.
//!
//! A refused timestamp is a mistake of the sender: a wrong clock, data that the retention would
//! drop at once, or another unit. Milliseconds are expected; seconds would silently be January
//! 1970.

use std::fmt;

use firn_model::{TimeRange, Timestamp};

/// The timestamps that a write accepts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedTimes {
    /// The end of the retention, or of [`PAST_MS_MAX`].
    earliest: Timestamp,
    has_retention: bool,
    latest: Timestamp,
    /// Times of the last years in seconds. As milliseconds they are some days of January 1970.
    seconds: TimeRange,
    /// From here to `latest` everything is accepted.
    certain: Timestamp,
}

/// The reason for which a timestamp is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeRefusal {
    /// It is too far after the clock.
    TooFarAhead,
    /// The retention has dropped data of this age, or it is over 100 years old.
    TooOld,
    /// It is in January 1970, and recent if it is read as seconds.
    InSeconds,
}

/// A refused timestamp and the reason, as a message.
#[derive(Clone, Copy, Debug)]
pub struct RefusedTime {
    ts: Timestamp,
    refusal: TimeRefusal,
    times: AcceptedTimes,
}

// Before this time, such as on a machine whose clock was never set, seconds near the clock are too
// close to 0, where tests and tools write.
const CLOCK_IS_SET_MS: Timestamp = 1_000_000_000_000;
/// Without a retention, data may be 100 years old. Each sample could otherwise begin a partition,
/// and with it a table, of its own: this bounds their number to 6,900.
const PAST_MS_MAX: i64 = 100 * 366 * 86_400_000;
// Older data in seconds is not recognised.
const YEARS_IN_SECONDS: i64 = 10 * 366 * 86_400;

impl AcceptedTimes {
    /// Times from `retention_ms` before `now` (`None`: [`PAST_MS_MAX`]) to `future_ms_max` after
    /// it.
    pub(crate) fn new(now: Timestamp, retention_ms: Option<i64>, future_ms_max: i64) -> Self {
        let earliest = now.saturating_sub(retention_ms.unwrap_or(PAST_MS_MAX));
        let latest = now.saturating_add(future_ms_max);
        let seconds = match now > CLOCK_IS_SET_MS {
            true => {
                let ahead_s = future_ms_max.clamp(0, 86_400_000) / 1_000;
                TimeRange::new(now / 1_000 - YEARS_IN_SECONDS, now / 1_000 + ahead_s)
            }
            false => TimeRange::EMPTY,
        };
        let after_seconds = if seconds.is_empty() { Timestamp::MIN } else { seconds.end + 1 };
        let has_retention = retention_ms.is_some();
        let certain = earliest.max(after_seconds);
        AcceptedTimes { earliest, has_retention, latest, seconds, certain }
    }

    /// The largest accepted timestamp.
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    /// Whether a write accepts `ts`. Two comparisons for a recent timestamp.
    #[inline]
    pub fn contains(&self, ts: Timestamp) -> bool {
        (ts >= self.certain && ts <= self.latest) || self.refusal(ts).is_none()
    }

    /// The reason to refuse `ts`, if there is one.
    #[inline]
    pub fn refusal(&self, ts: Timestamp) -> Option<TimeRefusal> {
        if ts >= self.certain && ts <= self.latest {
            return None;
        }
        match ts {
            _ if ts > self.latest => Some(TimeRefusal::TooFarAhead),
            _ if self.seconds.contains(ts) => Some(TimeRefusal::InSeconds),
            _ if ts < self.earliest => Some(TimeRefusal::TooOld),
            _ => None,
        }
    }

    /// The message for a refused timestamp.
    pub fn explain(&self, ts: Timestamp, refusal: TimeRefusal) -> RefusedTime {
        RefusedTime { ts, refusal, times: *self }
    }
}

impl fmt::Display for RefusedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedTime { ts, refusal, times } = self;
        write!(f, "out of bounds: timestamp {ts} is ")?;
        match refusal {
            TimeRefusal::TooFarAhead => {
                f.write_str("too far in the future")?;
                // The same years as those of `seconds`.
                let is_recent = |ts: Timestamp| times.seconds.contains(ts / 1_000);
                let units = [(1_000, "microseconds"), (1_000_000, "nanoseconds")];
                match units.into_iter().find(|(divisor, _)| is_recent(ts / divisor)) {
                    Some((_, unit)) => write!(f, "; it looks like {unit}, send milliseconds"),
                    None => Ok(()),
                }
            }
            TimeRefusal::TooOld if !times.has_retention => {
                write!(f, "over 100 years old; times before {} are not stored", times.earliest)
            }
            TimeRefusal::TooOld => write!(
                f,
                "older than the retention, which begins at {}: it would be dropped at once",
                times.earliest
            ),
            TimeRefusal::InSeconds => {
                f.write_str("in January 1970; it looks like seconds, send milliseconds")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = 1_767_225_600_000;
    const DAY_MS: i64 = 86_400_000;

    fn check(times: AcceptedTimes, ts: Timestamp, expected: Option<(TimeRefusal, &str)>) {
        let refusal = times.refusal(ts);
        assert_eq!(refusal, expected.map(|expected| expected.0), "{ts}");
        assert_eq!(times.contains(ts), refusal.is_none(), "{ts}");
        if let Some((refusal, text)) = expected {
            let message = times.explain(ts, refusal).to_string();
            assert!(message.contains(text) && message.contains(&ts.to_string()), "{message}");
        }
    }

    #[test]
    fn old_future_and_wrong_units_are_refused_with_the_reason() {
        use TimeRefusal::*;
        let forever = AcceptedTimes::new(NOW, None, 600_000);
        let day = AcceptedTimes::new(NOW, Some(DAY_MS), 600_000);
        for times in [forever, day] {
            check(times, NOW, None);
            check(times, NOW + 600_000, None);
            check(times, NOW + 600_001, Some((TooFarAhead, "is too far in the future")));
            check(times, NOW / 1_000, Some((InSeconds, "looks like seconds, send milliseconds")));
            check(times, NOW / 1_000 + 600, Some((InSeconds, "January 1970")));
            check(times, NOW / 1_000 - 9 * 365 * 86_400, Some((InSeconds, "seconds")));
            check(times, NOW * 1_000, Some((TooFarAhead, "looks like microseconds")));
            check(times, NOW * 1_000_000, Some((TooFarAhead, "looks like nanoseconds")));
            check(times, i64::MAX, Some((TooFarAhead, "is too far in the future")));
        }
        let ahead = forever.explain(NOW + 600_001, TooFarAhead).to_string();
        assert!(ahead.ends_with("too far in the future"), "{ahead}");
        check(day, NOW - DAY_MS, None);
        check(day, NOW - DAY_MS - 1, Some((TooOld, "older than the retention")));
        check(day, 0, Some((TooOld, &(NOW - DAY_MS).to_string())));
        check(day, i64::MIN, Some((TooOld, "older than the retention")));
        for ts in [NOW - DAY_MS - 1, 1_000, 0, -1, NOW - PAST_MS_MAX, NOW / 1_000 + 601] {
            check(forever, ts, None);
        }
        for ts in [NOW - PAST_MS_MAX - 1, i64::MIN] {
            check(forever, ts, Some((TooOld, "over 100 years old")));
        }
    }

    #[test]
    fn a_clock_that_was_never_set_refuses_no_small_number() {
        for ts in [0, 1_000, 100_000_000] {
            check(AcceptedTimes::new(1_000, None, i64::MAX), ts, None);
            check(AcceptedTimes::new(1_000_000_000, None, i64::MAX), ts, None);
        }
        check(AcceptedTimes::new(NOW, None, i64::MAX), i64::MAX, None);
        check(AcceptedTimes::new(i64::MAX, Some(i64::MAX), i64::MAX), i64::MAX, None);
    }
}
