//! The time by which retention drops data.
//!
//! A wall clock may jump ahead by years: a wrong time server, a restored virtual machine. Retention
//! would then drop everything, for good. So a jump ahead counts only once it has lasted for a day
//! of monotonic time. A step back counts at once, because it only keeps data longer.
//!
//! The same holds over restarts: the tables show when the database was in use. Times after a gap of
//! more than a day are those of a jump, unless they span a day themselves. Times of samples only
//! close gaps between times of writing: a table that was merged has the oldest of these, and old
//! samples may be imported.

use firn_env::Clock;
use firn_model::{TimeRange, Timestamp};
use parking_lot::Mutex;

/// Differences between both clocks up to this are no jump: leap seconds, slewing, short suspends.
const JUMP_MS_MIN: i64 = 60 * 60_000;
/// A jump counts once it has lasted this long. Also the longest time for which the database is
/// assumed to have been closed before a start.
const HOLD_MS: i64 = 24 * 60 * 60_000;

/// Wall time without recent jumps ahead.
#[derive(Debug, Default)]
pub(crate) struct RetentionClock(Mutex<Option<ClockState>>);

#[derive(Clone, Copy, Debug)]
struct ClockState {
    /// The trusted wall time at `mono_ms`.
    wall_ms: Timestamp,
    mono_ms: i64,
    /// The monotonic time at which a jump that still lasts was seen first.
    jumped_ms: Option<i64>,
}

impl RetentionClock {
    /// The wall time, or while it is ahead after a jump, the time that it would have without the
    /// jump. `tables` returns the time of writing and the timestamps of each table at the start.
    pub(crate) fn now_ms(
        &self,
        clock: &dyn Clock,
        tables: impl FnOnce() -> Vec<(Timestamp, TimeRange)>,
    ) -> Timestamp {
        let wall_ms = clock.now_ms();
        let mono_ms = i64::try_from(clock.monotonic_ns() / 1_000_000).unwrap_or(i64::MAX);
        let mut state = self.0.lock();
        let known = state.get_or_insert_with(|| {
            let last_ms = last_use(&tables()).unwrap_or(wall_ms);
            // The clock may have jumped over a part of a longer time.
            let is_jump = wall_ms.saturating_sub(last_ms) > HOLD_MS;
            ClockState {
                wall_ms: if is_jump { last_ms } else { wall_ms },
                mono_ms,
                jumped_ms: None,
            }
        });
        let expected_ms = known.wall_ms.saturating_add(mono_ms.saturating_sub(known.mono_ms));
        let ahead_ms = wall_ms.saturating_sub(expected_ms);
        let jumped_ms = *known.jumped_ms.get_or_insert(mono_ms);
        if ahead_ms <= JUMP_MS_MIN || mono_ms.saturating_sub(jumped_ms) >= HOLD_MS {
            *known = ClockState { wall_ms, mono_ms, jumped_ms: None };
            return wall_ms;
        }
        if jumped_ms == mono_ms {
            tracing::warn!(
                "the clock is {} h ahead of the expected time; retention ignores that for {} h",
                ahead_ms / 3_600_000,
                HOLD_MS / 3_600_000
            );
        }
        expected_ms
    }
}

/// Times without a gap of more than a day.
#[derive(Clone, Copy, Debug)]
struct Period {
    start: Timestamp,
    end: Timestamp,
    /// A table was written in it.
    is_of_use: bool,
}

/// The newest time of use that is not part of a jump; `None` without any.
fn last_use(tables: &[(Timestamp, TimeRange)]) -> Option<Timestamp> {
    let mut times: Vec<Period> = Vec::with_capacity(2 * tables.len());
    for &(written_ms, samples) in tables {
        times.push(Period { start: written_ms, end: written_ms, is_of_use: true });
        times.push(Period { start: samples.start, end: samples.end, is_of_use: false });
    }
    times.sort_unstable_by_key(|period| period.start);
    let mut periods: Vec<Period> = Vec::new();
    for time in times {
        match periods.last_mut() {
            Some(last) if time.start <= last.end.saturating_add(HOLD_MS) => {
                last.end = last.end.max(time.end);
                last.is_of_use |= time.is_of_use;
            }
            _ => periods.push(time),
        }
    }
    let mut of_use = periods.into_iter().filter(|period| period.is_of_use);
    let first = of_use.next()?;
    let is_long = |period: &Period| period.end.saturating_sub(period.start) >= HOLD_MS;
    Some(of_use.rfind(is_long).unwrap_or(first).end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firn_sim::SimClock;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    /// Hours after the start of the clock by which retention drops.
    fn hours(held: &RetentionClock, clock: &SimClock) -> i64 {
        (held.now_ms(clock, Vec::new) - SimClock::START_MS) / HOUR_MS
    }

    #[test]
    fn a_jump_ahead_counts_after_a_day_and_a_step_back_at_once() {
        let (clock, held) = (SimClock::default(), RetentionClock::default());
        let pass = |hours: u64| clock.advance(Duration::from_secs(3_600 * hours));
        let jump = |hours: i64| clock.set_now_ms(clock.now_ms() + hours * HOUR_MS);
        assert_eq!(hours(&held, &clock), 0);
        pass(5);
        assert_eq!(hours(&held, &clock), 5);
        jump(10_000);
        assert_eq!(hours(&held, &clock), 5);
        pass(2);
        assert_eq!(hours(&held, &clock), 7);
        jump(-10_000);
        assert_eq!(hours(&held, &clock), 7, "the jump is over");
        jump(20_000);
        pass(23);
        assert_eq!(hours(&held, &clock), 30);
        pass(1);
        jump(-20_000);
        assert_eq!(hours(&held, &clock), 31, "a step back");
        jump(30_000);
        assert_eq!(hours(&held, &clock), 31);
        pass(23);
        assert_eq!(hours(&held, &clock), 54);
        pass(1);
        assert_eq!(hours(&held, &clock), 30_055, "it has lasted for a day");
        pass(100);
        assert_eq!(hours(&held, &clock), 30_155);
    }

    #[test]
    fn a_start_long_after_the_last_write_waits_for_a_day() {
        let clock = SimClock::default();
        let ago = |hours: i64| {
            let held = RetentionClock::default();
            let used_ms = SimClock::START_MS - hours * HOUR_MS;
            let now_ms = held.now_ms(&clock, || vec![(used_ms, TimeRange::new(used_ms, used_ms))]);
            (now_ms - SimClock::START_MS) / HOUR_MS
        };
        assert_eq!(ago(0), 0);
        assert_eq!(ago(24), 0);
        assert_eq!(ago(25), -25);
        assert_eq!(ago(1_000), -1_000);
        assert_eq!(ago(-1_000), 0, "an earlier clock was ahead");
    }

    /// The clock was ahead for some hours and several starts, and tables were written meanwhile.
    #[test]
    fn times_behind_a_jump_count_once_they_span_a_day() {
        // The hour of writing, and the first and last hour of the samples.
        let last = |hours: &[(i64, i64, i64)]| {
            let table = |&(written, start, end): &(i64, i64, i64)| {
                (written * HOUR_MS, TimeRange::new(start * HOUR_MS, end * HOUR_MS))
            };
            let tables: Vec<_> = hours.iter().map(table).collect();
            last_use(&tables).map(|ms| ms / HOUR_MS)
        };
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[(5, 5, 5)]), Some(5));
        assert_eq!(last(&[(5, -900, -900)]), Some(5), "an import");
        assert_eq!(
            last(&[(720, 720, 722), (723, 1, 1), (3, 0, 3), (20, 20, 21)]),
            Some(21),
            "a jump"
        );
        assert_eq!(last(&[(720, 720, 744), (3, 0, 3), (20, 20, 21)]), Some(744), "it has lasted");
        assert_eq!(last(&[(745, 720, 745), (3, 0, 3), (2_001, 2_000, 2_001)]), Some(745), "again");
        assert_eq!(last(&[(0, 0, 100), (120, 120, 120), (141, 140, 141)]), Some(141), "merged");
    }
}
