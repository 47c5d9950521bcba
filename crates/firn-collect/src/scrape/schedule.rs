//! The times at which a target is scraped.

use firn_model::Timestamp;

use crate::config::{LabelSet, Millis};

/// A grid of times: every interval, at a phase of the target's own. The phase is the same after a
/// restart, and spreads the targets of a job over the interval.
///
/// Waiting is the caller's part. It may be late, and its clock may jump: the grid stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    interval_ms: i64,
    phase_ms: i64,
    next_at: Timestamp,
}

// A scrape that starts so late still has the time of the grid, so that the differences of times
// compress well.
const TOLERANCE_MS_MAX: i64 = 2;
const TOLERANCE_PER_INTERVAL: i64 = 100;

impl Schedule {
    /// A schedule that begins after `now`. `hash` is that of the target, `seed` that of the server.
    pub fn new(interval: Millis, hash: u64, seed: u64, now: Timestamp) -> Schedule {
        let interval_ms = i64::try_from(interval.as_ms()).unwrap_or(i64::MAX).max(1);
        let phase = (hash ^ seed).checked_rem(interval_ms.unsigned_abs()).unwrap_or(0);
        let phase_ms = i64::try_from(phase).unwrap_or(0);
        let mut schedule = Schedule { interval_ms, phase_ms, next_at: 0 };
        schedule.next_at = schedule.grid_before(now).saturating_add(interval_ms);
        schedule
    }

    /// The time of the next scrape.
    pub fn next_at(&self) -> Timestamp {
        self.next_at
    }

    /// The time between two scrapes.
    pub fn interval_ms(&self) -> i64 {
        self.interval_ms
    }

    /// A scrape starts at `now`. Returns the time of its samples: that of the grid, or `now` if it
    /// is late. Scrapes that were missed meanwhile are left out.
    pub fn start(&mut self, now: Timestamp) -> Timestamp {
        let tolerance = TOLERANCE_MS_MAX.min(self.interval_ms / TOLERANCE_PER_INTERVAL);
        let late = now.saturating_sub(self.next_at);
        let mut planned = self.next_at;
        if late < tolerance.saturating_neg() || late >= self.interval_ms {
            // The clock has jumped, or scrapes were missed.
            planned = self.grid_before(now);
        }
        self.next_at = planned.saturating_add(self.interval_ms);
        match now.saturating_sub(planned) <= tolerance {
            true => planned,
            false => now,
        }
    }

    /// Plans the next scrape again if it is over an interval away: the clock was set back.
    pub fn follow_clock(&mut self, now: Timestamp) {
        let next_at = self.grid_before(now).saturating_add(self.interval_ms);
        self.next_at = self.next_at.min(next_at);
    }

    /// The last time of the grid that is not after `now`.
    fn grid_before(&self, now: Timestamp) -> Timestamp {
        let behind = now.saturating_sub(self.phase_ms).rem_euclid(self.interval_ms);
        now.saturating_sub(behind)
    }
}

/// The seed of a server's phases: two servers that scrape the same targets differ in their name or
/// their external labels.
pub fn phase_seed(host_name: &str, external_labels: &LabelSet) -> u64 {
    let mut text = host_name.to_owned();
    for (name, value) in external_labels.iter() {
        for part in [name, value] {
            text.push('\0');
            text.push_str(part);
        }
    }
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(now: Timestamp) -> Schedule {
        // Phase 3 of 15 s.
        Schedule::new(Millis::seconds(15), 3_000 ^ 7, 7, now)
    }

    // Item 26: the phase is on epoch time.
    #[test]
    fn the_phase_does_not_depend_on_the_start() {
        for (now, want) in [
            (0, 3_000),
            (2_999, 3_000),
            (3_000, 18_000),
            (1_000_000, 1_008_000),
            (-1, 3_000),
            (-12_001, -12_000),
        ] {
            assert_eq!(schedule(now).next_at(), want, "{now}");
        }
    }

    // Item 27: the time of the grid if late by at most 2 ms and 1% of the interval, else the start.
    #[test]
    fn samples_of_a_slightly_late_scrape_have_the_time_of_the_grid() {
        for (now, want) in [(3_000, 3_000), (3_002, 3_000), (3_003, 3_003), (2_999, 3_000)] {
            let mut schedule = schedule(0);
            assert_eq!(schedule.start(now), want);
            assert_eq!(schedule.next_at(), 18_000);
        }
        let mut short = Schedule::new("100ms".parse().unwrap(), 0, 0, 0);
        assert_eq!((short.start(101), short.start(202)), (101 - 1, 202));
    }

    #[test]
    fn a_clock_that_was_set_back_delays_a_scrape_by_an_interval_at_most() {
        for (now, want) in [(i64::MIN, None), (-1, None), (0, Some(3_000)), (20_000, Some(33_000))]
        {
            let mut far = schedule(1_000_000_000);
            far.follow_clock(now);
            assert!(far.next_at() > now && far.next_at().saturating_sub(now) <= 15_000);
            assert!(want.is_none_or(|want| far.next_at() == want), "{now}");
        }
        let mut usual = schedule(0);
        usual.follow_clock(2_999);
        assert_eq!(usual.next_at(), 3_000);
    }

    #[test]
    fn missed_scrapes_are_left_out_and_the_grid_stays() {
        let mut late = schedule(0);
        assert_eq!(late.start(50_000), 50_000);
        assert_eq!(late.next_at(), 63_000);
        // The clock was set back by an hour, then forward.
        let mut jumping = schedule(4_000_000);
        assert_eq!(jumping.start(400_000), 400_000);
        assert_eq!(jumping.next_at(), 408_000);
        assert_eq!(jumping.start(4_000_000), 4_000_000);
        assert_eq!(jumping.next_at(), 4_008_000);
        let mut ends = schedule(i64::MAX);
        ends.start(i64::MIN);
        ends.start(i64::MAX);
    }

    // Item 26: two servers of a pair scrape at different times.
    #[test]
    fn the_seed_is_that_of_host_and_external_labels() {
        let labels = |value: &str| [("replica", value)].into_iter().collect::<LabelSet>();
        assert_eq!(phase_seed("h", &labels("a")), phase_seed("h", &labels("a")));
        assert_ne!(phase_seed("h", &labels("a")), phase_seed("h", &labels("b")));
        assert_ne!(phase_seed("h", &labels("a")), phase_seed("g", &labels("a")));
    }
}
