//! `rate`, `increase` and `delta` over anchored and smoothed windows, and smoothed instant values.

use firn_model::Timestamp;

use super::rate::RateKind;
use crate::eval::window::{Frame, Samples};

/// The change of each window from its left to its right boundary. `range_ms` and `range_seconds`
/// are the window's length without the lookback that the frame adds to it.
pub(crate) fn rate(
    kind: RateKind,
    is_smoothed: bool,
    samples: Samples<'_>,
    frame: &Frame,
    (range_ms, range_seconds): (i64, f64),
    out: &mut [f64],
) {
    for (step, (window, out)) in samples.windows.iter().zip(out).enumerate() {
        let reference = frame.reference(step);
        let ends = WindowEnds {
            start: reference.saturating_sub(range_ms),
            end: reference,
            is_smoothed,
            is_counter: kind.is_counter,
        };
        let (times, values) = (&samples.times[window.clone()], &samples.values[window]);
        let Some(end_values) = ends.end_values(times, values) else { continue };
        let mut change = end_values.right - end_values.left;
        if kind.is_counter {
            change += corrections(&end_values, &values[end_values.first..end_values.end]);
        }
        *out = if kind.per_second { change / range_seconds } else { change };
    }
}

/// The samples of one window with the values at its boundaries at both ends.
pub(crate) fn with_end_values(
    times: &[Timestamp],
    values: &[f64],
    start: Timestamp,
    end: Timestamp,
    is_smoothed: bool,
) -> Vec<(Timestamp, f64)> {
    let ends = WindowEnds { start, end, is_smoothed, is_counter: false };
    let Some(end_values) = ends.end_values(times, values) else { return Vec::new() };
    let inside = end_values.first..end_values.end;
    let inner = times[inside.clone()].iter().copied().zip(values[inside].iter().copied());
    std::iter::once((start, end_values.left))
        .chain(inner)
        .chain(std::iter::once((end, end_values.right)))
        .collect()
}

/// The value of each window at its reference time: interpolated between the neighbours, or the last
/// one before it.
pub(crate) fn smoothed_values(samples: Samples<'_>, frame: &Frame, out: &mut [f64]) {
    for (step, (window, out)) in samples.windows.iter().zip(out).enumerate() {
        let at = frame.reference(step);
        let (times, values) = (&samples.times[window.clone()], &samples.values[window]);
        let next = times.partition_point(|&ts| ts < at);
        if times.get(next) == Some(&at) {
            *out = values[next];
        } else if next > 0 && next < times.len() {
            *out = between(times, values, next - 1, at, false);
        } else if next > 0 {
            *out = values[next - 1];
        }
    }
}

struct WindowEnds {
    start: Timestamp,
    end: Timestamp,
    is_smoothed: bool,
    is_counter: bool,
}

/// The values at both boundaries, and the indexes of the samples strictly between them.
struct EndValues {
    left: f64,
    right: f64,
    first: usize,
    end: usize,
}

impl WindowEnds {
    fn end_values(&self, times: &[Timestamp], values: &[f64]) -> Option<EndValues> {
        let mut last = times.len().checked_sub(1)?;
        let first = times[..last].partition_point(|&ts| ts <= self.start).saturating_sub(1);
        if self.is_smoothed {
            last = times[..last].partition_point(|&ts| ts < self.end);
        }
        if times[last] <= self.start || (self.is_smoothed && times[first] > self.end) {
            return None;
        }
        let left = if self.is_smoothed && times[first] < self.start {
            between(times, values, first, self.start, self.is_counter)
        } else {
            values[first]
        };
        let right = if self.is_smoothed && last > 0 && times[last] > self.end {
            between(times, values, last - 1, self.end, self.is_counter)
        } else {
            values[last]
        };
        let first = first + usize::from(times[first] <= self.start);
        let end = last + usize::from(times[last] < self.end);
        Some(EndValues { left, right, first, end: end.max(first) })
    }
}

/// The value at `at` on the line from sample `idx` to the next. A counter that fell starts from
/// zero.
fn between(
    times: &[Timestamp],
    values: &[f64],
    idx: usize,
    at: Timestamp,
    is_counter: bool,
) -> f64 {
    let (mut before, after) = (values[idx], values[idx + 1]);
    if is_counter && after < before {
        before = 0.0;
    }
    let part = at.saturating_sub(times[idx]) as f64;
    before + (after - before) * part / times[idx + 1].saturating_sub(times[idx]) as f64
}

/// The increase that resets between the left and the right boundary hide.
fn corrections(end_values: &EndValues, values: &[f64]) -> f64 {
    let mut sum = 0.0;
    let mut before = end_values.left;
    for &value in values.iter().chain(std::iter::once(&end_values.right)) {
        if value < before {
            sum += before;
        }
        before = value;
    }
    sum
}
