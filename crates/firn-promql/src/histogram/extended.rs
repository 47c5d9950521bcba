//! Histograms in anchored and smoothed windows, as [`crate::functions::extended`] for floats.

use std::sync::Arc;

use firn_model::{Histogram, PointValue, ResetHint, Timestamp};

use super::mixed_window::{MixedWindow, WindowContent, add, note_hints, subtract};
use super::{Remark, Remarks, RunningHistogram, detects_reset};
use crate::eval::window::MixedSamples;
use crate::functions::range_call::RangeCall;
use crate::functions::rate::RateKind;
use crate::syntax::BoundaryMode;

/// The change from the left to the right boundary of a window that contains histograms.
pub(super) fn extended_rate(
    call: &RangeCall<'_>,
    step: usize,
    kind: RateKind,
    window: MixedWindow<'_>,
    remarks: &mut Remarks,
) -> Option<Histogram> {
    let end = call.frame.reference(step);
    let start = end.saturating_sub(call.range_ms);
    let is_smoothed = call.boundary == BoundaryMode::Smoothed;
    let times = window.times;
    let mut last = times.len().checked_sub(1)?;
    let first = times[..last].partition_point(|&ts| ts <= start).saturating_sub(1);
    if is_smoothed {
        last = times[..last].partition_point(|&ts| ts < end);
    }
    if times[last] <= start || (is_smoothed && times[first] > end) {
        return None;
    }
    let used = MixedWindow { times: &times[first..=last], entries: &window.entries[first..=last] };
    let WindowContent::Histograms(histograms) = used.content() else {
        remarks.insert(Remark::MixedKinds);
        return None;
    };
    note_hints(kind.is_counter, &histograms, remarks);
    let is_custom = histograms[0].has_custom_bounds();
    if histograms.iter().any(|histogram| histogram.has_custom_bounds() != is_custom) {
        remarks.insert(Remark::MixedSchemas);
        return None;
    }
    let line = Line { times: used.times, histograms: &histograms, is_counter: kind.is_counter };
    let last = histograms.len() - 1;
    let cuts_left = is_smoothed && last > 0 && used.times[0] < start;
    let cuts_right = is_smoothed && last > 0 && used.times[last] > end;
    let left = if cuts_left { line.at(0, start, remarks) } else { histograms[0].clone() };
    let right = if cuts_right { line.at(last - 1, end, remarks) } else { histograms[last].clone() };
    let mut change = RunningHistogram::new(&right);
    subtract(&mut change, &left, remarks);
    if kind.is_counter {
        // The value at the left boundary is already after a reset before the second sample.
        for idx in 1 + usize::from(cuts_left)..histograms.len() {
            if detects_reset(histograms[idx], histograms[idx - 1]) {
                add(&mut change, histograms[idx - 1], remarks);
            }
        }
    }
    if kind.per_second {
        change.divide(call.range_seconds);
    }
    change.reset_hint = ResetHint::Gauge;
    Some(change.finish())
}

/// The histogram of a smoothed instant selector at `at`: interpolated between its neighbours, or
/// the last one before it.
pub(crate) fn smoothed_point(
    samples: MixedSamples<'_>,
    range: std::ops::Range<usize>,
    at: Timestamp,
    remarks: &mut Remarks,
) -> Option<PointValue> {
    let window =
        MixedWindow { times: &samples.times[range.clone()], entries: &samples.entries[range] };
    let next = window.times.partition_point(|&ts| ts < at);
    let histograms = match window.content() {
        WindowContent::Histograms(histograms) => histograms,
        WindowContent::Floats => return smoothed_float(window, next, at),
        WindowContent::Mixed => {
            remarks.insert(Remark::MixedKinds);
            return None;
        }
    };
    let is_exact = window.times.get(next) == Some(&at);
    let idx = if is_exact { next } else { next.checked_sub(1)? };
    if is_exact || next == histograms.len() {
        return Some(window.entries[idx].value.clone());
    }
    let (before, after) = (histograms[idx], histograms[next]);
    if before.has_custom_bounds() != after.has_custom_bounds() {
        remarks.insert(Remark::MixedSchemas);
        return None;
    }
    let is_counter = ![before, after].iter().any(|h| h.reset_hint == ResetHint::Gauge);
    let line = Line { times: window.times, histograms: &histograms, is_counter };
    Some(PointValue::Histogram(Arc::new(line.at(idx, at, remarks))))
}

fn smoothed_float(window: MixedWindow<'_>, next: usize, at: Timestamp) -> Option<PointValue> {
    let value = |idx: usize| match window.entries.get(idx).map(|entry| &entry.value) {
        Some(PointValue::Float(value)) => Some(*value),
        _ => None,
    };
    if window.times.get(next) == Some(&at) || next == window.times.len() {
        let idx = if next == window.times.len() { next.checked_sub(1)? } else { next };
        return value(idx).map(PointValue::Float);
    }
    let before = next.checked_sub(1)?;
    let part = part_of(window.times, before, at);
    let (from, to) = (value(before)?, value(next)?);
    Some(PointValue::Float(from + (to - from) * part))
}

/// The relative position of `at` between sample `idx` and the next.
fn part_of(times: &[Timestamp], idx: usize, at: Timestamp) -> f64 {
    let whole = times[idx + 1].saturating_sub(times[idx]) as f64;
    at.saturating_sub(times[idx]) as f64 / whole
}

/// Linear interpolation between histograms.
struct Line<'a> {
    times: &'a [Timestamp],
    histograms: &'a [&'a Histogram],
    is_counter: bool,
}

impl Line<'_> {
    /// The value at `at`, between sample `idx` and the next. A counter that was reset starts from
    /// zero.
    fn at(&self, idx: usize, at: Timestamp, remarks: &mut Remarks) -> Histogram {
        let (before, after) = (self.histograms[idx], self.histograms[idx + 1]);
        let part = part_of(self.times, idx, at);
        let mut value = RunningHistogram::new(after);
        if self.is_counter && detects_reset(after, before) {
            value.scale(part);
            return value.finish();
        }
        subtract(&mut value, before, remarks);
        value.scale(part);
        add(&mut value, before, remarks);
        value.reset_hint = before.reset_hint;
        value.finish()
    }
}
