//! `rate`, `increase`, `delta`, `irate`, `idelta`, `resets`, `changes`.
//!
//! Resets and changes of a column are found once; the cost of a window is the number of them inside
//! it, not its length. Additions have the order of a walk over the window, so the result has the
//! bits of evaluating that window alone.

use firn_model::Timestamp;

use super::extrapolation::{Extrapolation, millis};
use crate::eval::window::{Frame, Samples};

/// The kind of a rate.
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
    let extrapolations = windows.extrapolations(|step, window| {
        let (start, end) = frame.bounds(step);
        let divisor = if kind.per_second { range_seconds } else { 1.0 };
        Extrapolation::new(&times[window], start, end, divisor)
    });
    let resets = if kind.is_counter { falls(values) } else { Vec::new() };
    let (mut resets_first, mut resets_end) = (0, 0);
    for ((window, extrapolation), out) in windows.iter().zip(extrapolations).zip(out) {
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
        *out = increase * extrapolation.factor_of(increase, counter_start);
    }
}

/// The entries that are smaller than the previous one. Usually there are none, which is determined
/// without a branch per value.
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

/// The number of neighbours in each window for which `differs(before, after)` holds. With `border`
/// (the window's start per step) the window begins with the last sample at or before it, and needs
/// one after it.
pub(crate) fn count_pairs(
    samples: Samples<'_>,
    border: Option<&dyn Fn(usize) -> Timestamp>,
    differs: impl Fn(f64, f64) -> bool,
    out: &mut [f64],
) {
    let Samples { times, values, windows } = samples;
    // before[i]: the number of pairs that end at an entry below i.
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

/// The first entry to count: that of the window, or the one that anchors it at `border`.
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

/// Whether a value changed; NaN to NaN is no change.
pub(crate) fn is_change(before: f64, after: f64) -> bool {
    before != after && !(before.is_nan() && after.is_nan())
}
