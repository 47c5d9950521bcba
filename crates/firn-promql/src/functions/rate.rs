//! `rate`, `increase`, `delta`, `irate`, `idelta`, `resets`, `changes`.
//!
//! Resets and changes of a column are found once; a window then costs what it has of them, not its length.
//! The additions happen in the order in which a walk over the window would do them, so the result has the
//! bits of evaluating that window alone.

use firn_model::Timestamp;

use crate::eval::window::{Frame, Samples};

/// What kind of rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateKind {
    /// Whether a falling value is a reset.
    pub(crate) is_counter: bool,
    /// Whether the result is per second.
    pub(crate) per_second: bool,
}

/// The extrapolated rate of each window. `range_seconds` is the window's length as written.
pub(crate) fn extrapolated(
    kind: RateKind,
    samples: Samples<'_>,
    frame: &Frame,
    range_seconds: f64,
    out: &mut [f64],
) {
    let Samples { times, values, windows } = samples;
    let spreads = windows.spreads(|step, window| {
        let (start, end) = frame.bounds(step);
        let divisor = if kind.per_second { range_seconds } else { 1.0 };
        Spread::new(&times[window], start, end, divisor)
    });
    let resets = if kind.is_counter { falls(values) } else { Vec::new() };
    let (mut resets_first, mut resets_end) = (0, 0);
    for ((window, spread), out) in windows.iter().zip(spreads).zip(out) {
        if window.len() < 2 {
            continue;
        }
        let (first, last) = (window.start, window.end - 1);
        let mut increase = values[last] - values[first];
        if !resets.is_empty() {
            while resets.get(resets_first).is_some_and(|&idx| idx <= first) {
                resets_first += 1;
            }
            while resets.get(resets_end).is_some_and(|&idx| idx <= last) {
                resets_end += 1;
            }
            for &idx in resets.get(resets_first..resets_end).unwrap_or(&[]) {
                increase += values[idx - 1];
            }
        }
        let counter_start = kind.is_counter.then_some(values[first]);
        *out = increase * spread.factor_of(increase, counter_start);
    }
}

/// Where a window's samples lie in it, in seconds. The same for all members that share the times, so it is worked
/// out once for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// From the border that the increase is extended to, to the first sample.
    to_start: f64,
    to_end: f64,
    /// From the first sample to the last.
    sampled: f64,
    /// What per-second rates are divided by, else 1.
    divisor: f64,
    /// The increase of a series that needs no care at zero is multiplied by this.
    factor: f64,
}

impl Spread {
    /// By how much the increase between samples stands for the window from `start` to `end`: up to its borders
    /// where samples are near (within 1.1 times their average distance), else half a distance further.
    fn new(times: &[Timestamp], start: Timestamp, end: Timestamp, divisor: f64) -> Spread {
        let [first, .., last] = *times else {
            return Spread { to_start: 0.0, to_end: 0.0, sampled: 0.0, divisor, factor: f64::NAN };
        };
        let sampled = millis(last, first);
        let gap = sampled / (times.len() - 1) as f64;
        let near = gap * 1.1;
        let to_border = |seconds: f64| if seconds >= near { gap / 2.0 } else { seconds };
        let (to_start, to_end) = (to_border(millis(first, start)), to_border(millis(end, last)));
        let mut spread = Spread { to_start, to_end, sampled, divisor, factor: 0.0 };
        spread.factor = spread.factor_from(to_start);
        spread
    }

    fn factor_from(&self, to_start: f64) -> f64 {
        (self.sampled + to_start + self.to_end) / self.sampled / self.divisor
    }

    /// The factor for one series. A counter is not extended to where it would have been negative.
    fn factor_of(&self, increase: f64, counter_start: Option<f64>) -> f64 {
        if let Some(value) = counter_start
            && increase > 0.0
            && value >= 0.0
        {
            let to_zero = self.sampled * (value / increase);
            if to_zero < self.to_start {
                return self.factor_from(to_zero);
            }
        }
        self.factor
    }
}

/// Seconds from `from` to `to`.
fn millis(to: Timestamp, from: Timestamp) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

/// The entries that are smaller than the one before. Mostly none, which is found out without a branch per value.
fn falls(values: &[f64]) -> Vec<usize> {
    let Some(after) = values.get(1..) else { return Vec::new() };
    let any = after.iter().zip(values).fold(false, |any, (after, before)| any | (after < before));
    if !any {
        return Vec::new();
    }
    let fell = |(idx, pair): (usize, &[f64])| (pair[1] < pair[0]).then_some(idx + 1);
    values.windows(2).enumerate().filter_map(fell).collect()
}

/// The rate or the difference between the last two samples of each window.
pub(crate) fn instant(is_rate: bool, samples: Samples<'_>, out: &mut [f64]) {
    let Samples { times, values, windows } = samples;
    for (window, out) in windows.iter().zip(out) {
        if window.len() < 2 {
            continue;
        }
        let last = window.end - 1;
        let (before, after) = (values[last - 1], values[last]);
        let is_reset = is_rate && after < before;
        let change = if is_reset { after } else { after - before };
        *out = if is_rate { change / millis(times[last], times[last - 1]) } else { change };
    }
}

/// How often `differs(before, after)` holds between neighbours of each window. With `border` (the window's
/// start per step) the window begins with the last sample at or before it, and needs one after it.
pub(crate) fn count_pairs(
    samples: Samples<'_>,
    border: Option<&dyn Fn(usize) -> Timestamp>,
    differs: impl Fn(f64, f64) -> bool,
    out: &mut [f64],
) {
    let Samples { times, values, windows } = samples;
    // before[i]: pairs that end at an entry below i.
    let mut before = Vec::with_capacity(values.len() + 1);
    before.extend([0u32, 0]);
    let mut count = 0;
    for pair in values.windows(2) {
        count += u32::from(differs(pair[0], pair[1]));
        before.push(count);
    }
    for (step, (window, out)) in windows.iter().zip(out).enumerate() {
        let Some(first) = first_in(times, window.clone(), border.map(|border| border(step))) else {
            continue;
        };
        *out = f64::from(before[window.end] - before[first + 1]);
    }
}

/// The first entry that counts: of the window, or the one that anchors it at `border`.
fn first_in(
    times: &[Timestamp],
    window: std::ops::Range<usize>,
    border: Option<Timestamp>,
) -> Option<usize> {
    if window.is_empty() {
        return None;
    }
    let Some(border) = border else { return Some(window.start) };
    let inside = times[window.clone()].partition_point(|&ts| ts <= border);
    (inside < window.len()).then(|| window.start + inside.saturating_sub(1))
}

/// Whether a value changed; NaN to NaN is none.
pub(crate) fn is_change(before: f64, after: f64) -> bool {
    before != after && !(before.is_nan() && after.is_nan())
}
