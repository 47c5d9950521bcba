//! Time columns: strictly rising timestamps. Regular ones cost some bytes in total, ones with
//! jitter the bits of their distance from a line.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::ops::Range;

use firn_model::{Error, Result, TimeRange, Timestamp};

use crate::columns::{Times, entries_in};
use crate::effort::Effort;
use crate::integers::{ColumnKind, decode_integers, encode_integers, take_equidistant};
use crate::varint::corrupt;

/// Appends `times` (at least one, strictly rising) relative to `base`, which must not exceed the
/// first.
pub(crate) fn encode_times(base: Timestamp, times: &[Timestamp], out: &mut Vec<u8>) {
    // A distance over 2^63 wraps in both directions.
    let distances: Vec<i64> = times.iter().map(|ts| ts.wrapping_sub(base)).collect();
    encode_integers(&distances, ColumnKind::Times, Effort::Fast, out);
}

/// A decoded time column.
#[derive(Debug)]
pub(crate) enum TimeColumn {
    /// Equidistant timestamps, each computed when it is needed.
    Regular(RegularTimes),
    Listed(Vec<Timestamp>),
}

/// Equidistant timestamps.
#[derive(Debug)]
pub(crate) struct RegularTimes {
    start: Timestamp,
    /// 0 if there is only one timestamp.
    step: u64,
    count: usize,
}

impl TimeColumn {
    /// Takes `count` timestamps from the front of `input` and checks that they rise (invariant 4).
    pub(crate) fn take(base: Timestamp, count: usize, input: &mut &[u8]) -> Result<TimeColumn> {
        if let Some((first, step)) = take_equidistant(input) {
            let start = base.wrapping_add(first as i64);
            return RegularTimes::of_steps(start, step, count).map(TimeColumn::Regular);
        }
        let distances = decode_integers(input, count)?;
        let times: Vec<Timestamp> =
            distances.into_iter().map(|distance| base.wrapping_add(distance as i64)).collect();
        if !times.is_sorted_by(|a, b| a < b) {
            return Err(not_rising());
        }
        Ok(TimeColumn::Listed(times))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            TimeColumn::Regular(line) => line.count,
            TimeColumn::Listed(times) => times.len(),
        }
    }

    pub(crate) fn get(&self, idx: usize) -> Option<Timestamp> {
        match self {
            TimeColumn::Regular(line) => (idx < line.count).then(|| line.at(idx)),
            TimeColumn::Listed(times) => times.get(idx).copied(),
        }
    }

    /// The entries in `range`.
    pub(crate) fn entries_in(&self, range: TimeRange) -> Range<usize> {
        match self {
            TimeColumn::Regular(line) => line.entries_in(range),
            TimeColumn::Listed(times) => entries_in(times, range),
        }
    }

    /// The timestamps of `entries`.
    pub(crate) fn slice(&self, entries: Range<usize>) -> Times {
        match self {
            TimeColumn::Regular(line) => entries.map(|idx| line.at(idx)).collect(),
            TimeColumn::Listed(times) => times.get(entries).unwrap_or_default().into(),
        }
    }

    /// Appends the timestamps of `entries` to `out`.
    pub(crate) fn append_to(&self, entries: Range<usize>, out: &mut Vec<Timestamp>) {
        match self {
            TimeColumn::Regular(line) => out.extend(entries.map(|idx| line.at(idx))),
            TimeColumn::Listed(times) => {
                out.extend_from_slice(times.get(entries).unwrap_or_default())
            }
        }
    }
}

impl RegularTimes {
    /// `count` timestamps from the start of `range` to its end.
    pub(crate) fn between(range: TimeRange, count: usize) -> Result<RegularTimes> {
        let span = range.end.wrapping_sub(range.start) as u64;
        let steps = (count as u64).saturating_sub(1);
        let fits = if steps == 0 { span == 0 } else { span >= steps && span.is_multiple_of(steps) };
        if !fits {
            return Err(corrupt(format!("{count} regular timestamps in {span} ms")));
        }
        Ok(RegularTimes { start: range.start, step: span.checked_div(steps).unwrap_or(0), count })
    }

    /// `count` timestamps from `start` on, which must rise.
    fn of_steps(start: Timestamp, step: u64, count: usize) -> Result<RegularTimes> {
        let steps = (count as u64).saturating_sub(1);
        let end = step.checked_mul(steps).and_then(|span| start.checked_add_unsigned(span));
        if end.is_none() || (step == 0 && steps > 0) {
            return Err(not_rising());
        }
        Ok(RegularTimes { start, step, count })
    }

    fn at(&self, idx: usize) -> Timestamp {
        self.start.wrapping_add((idx as u64).wrapping_mul(self.step) as i64)
    }

    fn entries_in(&self, range: TimeRange) -> Range<usize> {
        let distance = |ts: Timestamp| ts.wrapping_sub(self.start) as u64;
        let step = self.step.max(1);
        let at_most = |idx: u64| usize::try_from(idx).map_or(self.count, |idx| idx.min(self.count));
        let from = match range.start <= self.start {
            true => 0,
            false => at_most(distance(range.start).div_ceil(step)),
        };
        let last_entry = distance(range.end).checked_div(step).unwrap_or(0);
        let to = match range.end < self.start {
            true => 0,
            false => at_most(last_entry.saturating_add(1)),
        };
        from..to.max(from)
    }
}

fn not_rising() -> Error {
    corrupt("timestamps of a time column do not rise")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes `times`, decodes them, and cuts them to `range`, also as a list.
    fn check(base: Timestamp, times: &[Timestamp], range: TimeRange) -> TimeColumn {
        let mut bytes = Vec::new();
        encode_times(base, times, &mut bytes);
        bytes.push(7);
        let mut input = bytes.as_slice();
        let column = TimeColumn::take(base, times.len(), &mut input).unwrap();
        assert_eq!(input, [7]);
        assert_eq!(column.len(), times.len());
        assert_eq!(column.get(times.len()), None);
        assert!((0..times.len()).map(|idx| column.get(idx)).eq(times.iter().copied().map(Some)));
        let entries = column.entries_in(range);
        // Of an empty range, only the number of entries counts.
        let kept = times.iter().copied().filter(|&ts| range.contains(ts));
        assert!(kept.eq(times[entries.clone()].iter().copied()), "{times:?} in {range:?}");
        assert_eq!(*column.slice(entries.clone()), times[entries.clone()]);
        let mut out = vec![5];
        column.append_to(entries.clone(), &mut out);
        assert_eq!(out[1..], times[entries]);
        column
    }

    #[test]
    fn equidistant_timestamps_are_not_listed() {
        for (start, step, count) in [
            (0, 15_000, 480),
            (i64::MAX - 3_000, 1_000, 4),
            (i64::MIN, i64::MAX as u64, 3),
            (i64::MIN, u64::MAX / 5, 6),
        ] {
            let at = |idx: u64| start.wrapping_add(step.wrapping_mul(idx) as i64);
            let times: Vec<Timestamp> = (0..count).map(at).collect();
            for idx in 0..count {
                let middle = TimeRange::new(at(idx), at(count - 1).saturating_sub(1));
                let column = check(start, &times, middle);
                assert!(matches!(column, TimeColumn::Regular(_)), "{times:?}");
            }
            check(start, &times, TimeRange::ALL);
        }
    }

    /// Equal steps that do not rise, or exceed 64 bits.
    #[test]
    fn steps_that_do_not_rise_are_refused() {
        let encode = |distances: &[i64]| {
            let mut bytes = Vec::new();
            encode_integers(distances, ColumnKind::Times, Effort::Fast, &mut bytes);
            bytes
        };
        for distances in [[0; 9], [8, 7, 6, 5, 4, 3, 2, 1, 0]] {
            let bytes = encode(&distances);
            assert!(TimeColumn::take(0, 9, &mut bytes.as_slice()).is_err(), "{distances:?}");
        }
        let rising: Vec<i64> = (0..9).collect();
        let bytes = encode(&rising);
        let take = |base, count| TimeColumn::take(base, count, &mut bytes.as_slice());
        assert!(take(i64::MAX - 8, 9).is_ok());
        assert!(take(i64::MAX - 7, 9).is_err());
        assert!(take(i64::MAX - 8, 10).is_err());
    }

    proptest! {
        #[test]
        fn any_rising_timestamps_round_trip(
            start in prop_oneof![any::<i64>(), Just(i64::MIN), -9i64..9],
            steps in prop::collection::vec(prop_oneof![Just(10u64), 1u64..30, any::<u64>()], 0..40),
            is_regular in any::<bool>(),
            (from, to) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            (before, after) in (-1i64..2, -1i64..2),
        ) {
            let mut times = vec![start];
            for step in &steps {
                let step = if is_regular { steps[0].max(1) } else { (*step).max(1) };
                let Some(next) = times[times.len() - 1].checked_add_unsigned(step) else { break };
                times.push(next);
            }
            let from = from.get(&times).saturating_add(before);
            let to = to.get(&times).saturating_add(after);
            check(start, &times, TimeRange::new(from, to));
        }
    }
}
