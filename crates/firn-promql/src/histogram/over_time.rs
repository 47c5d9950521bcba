//! Window functions of samples that are not all plain floats: histograms, floats among
//! histograms, start timestamps.

use std::sync::Arc;

use firn_model::{Histogram, Labels, PointValue, ResetHint, Result, Timestamp};

use super::extended::extended_rate;
use super::mixed_window::{MixedWindow, WindowContent, add, note_hints, subtract};
use super::running::{MeanHistogram, MergeSummary, RunningHistogram, SumHistogram};
use super::{Operation, Remark, Remarks, detects_reset, same_content};
use crate::eval::kernel::Kernel;
use crate::eval::vector::{ABSENT, VectorSeries};
use crate::eval::window::{Frame, MixedSamples, Samples, Steps, Windows};
use crate::functions::range_call::RangeCall;
use crate::functions::rate::{RateKind, is_change};
use crate::syntax::{BoundaryMode, FunctionId};

/// Computes one series. A window of floats alone has the same value as in the loop over floats,
/// unless start timestamps change it.
///
/// # Errors
/// `Invalid` for an invalid parameter of the function.
pub(crate) fn range_call(
    call: &RangeCall<'_>,
    samples: MixedSamples<'_>,
    out: &mut VectorSeries,
    remarks: &mut Remarks,
) -> Result<()> {
    for (step, window) in samples.windows.iter().enumerate() {
        if window.is_empty() {
            continue;
        }
        let window = MixedWindow {
            times: &samples.times[window.clone()],
            entries: &samples.entries[window],
        };
        if let Some(value) = compute(call, step, window, remarks)? {
            out.set(step, value);
        }
    }
    Ok(())
}

fn compute(
    call: &RangeCall<'_>,
    step: usize,
    window: MixedWindow<'_>,
    remarks: &mut Remarks,
) -> Result<Option<PointValue>> {
    use FunctionId as F;
    let kind = |is_counter, per_second| RateKind { is_counter, per_second };
    let seconds = |ts: Option<&Timestamp>| ts.map(|&ts| PointValue::Float(ts as f64 / 1000.0));
    Ok(match call.function {
        F::Rate => rate(call, step, kind(true, true), window, remarks)?,
        F::Increase => rate(call, step, kind(true, false), window, remarks)?,
        F::Delta => rate(call, step, kind(false, false), window, remarks)?,
        F::Irate => instant_rate(true, window, remarks),
        F::Idelta => instant_rate(false, window, remarks),
        F::Resets => count_pairs(call, step, window, is_reset),
        F::Changes => count_pairs(call, step, window, differs),
        F::SumOverTime | F::AvgOverTime => match window.content() {
            WindowContent::Floats => floats_only(call, step, window)?,
            WindowContent::Histograms(all) => {
                total(call.function, &all, remarks).map(|h| PointValue::Histogram(Arc::new(h)))
            }
            WindowContent::Mixed => {
                remarks.insert(Remark::MixedKinds);
                None
            }
        },
        F::CountOverTime => Some(PointValue::Float(window.times.len() as f64)),
        F::PresentOverTime | F::AbsentOverTime => Some(PointValue::Float(1.0)),
        F::LastOverTime => window.entries.last().map(|entry| entry.value.clone()),
        F::FirstOverTime => window.entries.first().map(|entry| entry.value.clone()),
        F::TsOfFirstOverTime => seconds(window.times.first()),
        F::TsOfLastOverTime => seconds(window.times.last()),
        // All other functions support floats only.
        _ => {
            if matches!(window.content(), WindowContent::Mixed) {
                remarks.insert(Remark::IgnoredInRange);
            }
            floats_only(call, step, window)?
        }
    })
}

/// Evaluates the floats of a window through the loop for float series.
fn floats_only(
    call: &RangeCall<'_>,
    step: usize,
    window: MixedWindow<'_>,
) -> Result<Option<PointValue>> {
    let (times, values): (Vec<Timestamp>, Vec<f64>) = window.floats().unzip();
    if times.is_empty() {
        return Ok(None);
    }
    let params: Vec<Vec<f64>> =
        (0..call.params.len()).map(|idx| vec![call.param(idx, step)]).collect();
    let frame = Frame { steps: Steps::one(call.frame.steps.at(step)), ..call.frame };
    let alone = RangeCall { frame, params: &params, ..*call };
    let mut windows = Windows::default();
    windows.compute(&times, &frame);
    let mut one = VectorSeries::floats(Labels::empty(), false, vec![ABSENT]);
    alone.floats(Samples { times: &times, values: &values, windows: &windows }, &mut one.values)?;
    Ok(one.point(0))
}

/// Sum or mean of histograms.
fn total(
    function: FunctionId,
    histograms: &[&Histogram],
    remarks: &mut Remarks,
) -> Option<Histogram> {
    let (first, rest) = histograms.split_first()?;
    let total = if function == FunctionId::SumOverTime {
        let mut sum = SumHistogram::of(first);
        rest.iter().try_for_each(|histogram| sum.add(histogram)).map(|()| sum.finish())
    } else {
        let mut mean = MeanHistogram::of(first);
        rest.iter().try_for_each(|histogram| mean.add(histogram)).map(|()| mean.finish())
    };
    let Ok((histogram, met)) = total else {
        remarks.insert(Remark::MixedSchemas);
        return None;
    };
    note_summary(met, remarks);
    Some(histogram)
}

/// Adds the remarks of an aggregation of histograms.
pub(super) fn note_summary(met: MergeSummary, remarks: &mut Remarks) {
    if met.resets_conflict() {
        remarks.insert(Remark::ResetsConflict(Operation::Aggregation));
    }
    if met.bounds_differed {
        remarks.insert(Remark::BoundsDiffered(Operation::Aggregation));
    }
}

fn rate(
    call: &RangeCall<'_>,
    step: usize,
    kind: RateKind,
    window: MixedWindow<'_>,
    remarks: &mut Remarks,
) -> Result<Option<PointValue>> {
    if call.boundary != BoundaryMode::Plain {
        return match window.content() {
            WindowContent::Floats => floats_only(call, step, window),
            _ => Ok(extended_rate(call, step, kind, window, remarks)
                .map(|histogram| PointValue::Histogram(Arc::new(histogram)))),
        };
    }
    let (range_start, range_end) = call.frame.bounds(step);
    match window.content() {
        WindowContent::Mixed => {
            remarks.insert(Remark::MixedKinds);
            return Ok(None);
        }
        WindowContent::Floats if !kind.is_counter || !window.has_starts() => {
            return floats_only(call, step, window);
        }
        _ => {}
    }
    // A counter that started inside the window was 0 at that time.
    let (first_time, first_start) = (window.times[0], window.entries[0].start);
    let is_inside = first_start != 0 && first_start > range_start && first_start < first_time;
    let zero_time = (kind.is_counter && is_inside).then_some(first_start);
    if window.times.len() < 2 && zero_time.is_none() {
        return Ok(None);
    }
    if kind.is_counter && window.has_overlap() {
        remarks.insert(Remark::StartOverlaps);
    }
    let extrapolation = HistogramExtrapolation { window, zero_time, range_start, range_end };
    let divisor = if kind.per_second { call.range_seconds } else { 1.0 };
    Ok(match window.content() {
        WindowContent::Histograms(histograms) => {
            let change = histogram_change(kind.is_counter, &histograms, window, zero_time, remarks);
            change.map(|mut change| {
                let to_zero = (kind.is_counter && histograms[0].count >= 0.0)
                    .then_some((histograms[0].count, change.count));
                change.scale(extrapolation.factor(to_zero) / divisor);
                if histograms.len() > 1 {
                    change.reset_hint = ResetHint::Gauge;
                }
                PointValue::Histogram(Arc::new(change.finish()))
            })
        }
        _ => {
            let values: Vec<f64> = window.floats().map(|sample| sample.1).collect();
            let change = counter_change(&values, window, zero_time);
            let to_zero = (values[0] >= 0.0).then_some((values[0], change));
            Some(PointValue::Float(change * (extrapolation.factor(to_zero) / divisor)))
        }
    })
}

/// The extrapolation of a window's change to its boundaries.
struct HistogramExtrapolation<'a> {
    window: MixedWindow<'a>,
    /// The time when the counter was 0, if it is known and inside the window.
    zero_time: Option<Timestamp>,
    range_start: Timestamp,
    range_end: Timestamp,
}

impl HistogramExtrapolation<'_> {
    /// The factor from the change between samples to that of the whole window, as
    /// [`crate::functions::rate`] computes it for floats. `to_zero` is the first value and the
    /// change of a counter, which must not be extended below zero.
    fn factor(&self, to_zero: Option<(f64, f64)>) -> f64 {
        let seconds = |to: Timestamp, from: Timestamp| to.saturating_sub(from) as f64 / 1000.0;
        let (times, count) = (self.window.times, self.window.times.len());
        let (first, last) = (times[0], times[count - 1]);
        let gap = seconds(last, first) / (count.max(2) - 1) as f64;
        let near = gap * 1.1;
        let to_border = |seconds: f64| if seconds >= near { gap / 2.0 } else { seconds };
        let to_end = to_border(seconds(self.range_end, last));
        let sampled = seconds(last, self.zero_time.unwrap_or(first));
        let mut to_start = 0.0;
        if self.zero_time.is_none() {
            to_start = to_border(seconds(first, self.range_start));
            if let Some((value, change)) = to_zero
                && change > 0.0
            {
                to_start = to_start.min(sampled * (value / change));
            }
        }
        (sampled + to_start + to_end) / sampled
    }
}

fn counter_change(values: &[f64], window: MixedWindow<'_>, zero_time: Option<Timestamp>) -> f64 {
    let last = values.len() - 1;
    let mut change = values[last] - values[0];
    for idx in 1..values.len() {
        if values[idx] < values[idx - 1] || window.starts_anew(idx) {
            change += values[idx - 1];
        }
    }
    // Last, as in Prometheus: sums of large numbers depend on the order.
    if zero_time.is_some() { change + values[0] } else { change }
}

/// The change from the first histogram to the last; for a counter including the increase that
/// resets hide.
fn histogram_change(
    is_counter: bool,
    histograms: &[&Histogram],
    window: MixedWindow<'_>,
    zero_time: Option<Timestamp>,
    remarks: &mut Remarks,
) -> Option<RunningHistogram<f64>> {
    let (first, last) = (histograms[0], histograms[histograms.len() - 1]);
    // A single histogram, whose start is known, is its own change.
    if histograms.len() > 1 {
        note_hints(is_counter, histograms, remarks);
    }
    let is_reset = |idx: usize| {
        is_counter
            && (window.starts_anew(idx) || detects_reset(histograms[idx], histograms[idx - 1]))
    };
    // A reset right after the first sample hides it: it is not subtracted, and its layout is not
    // checked.
    let ignores_first = histograms.len() > 1 && is_reset(1);
    let from = if ignores_first { 1 } else { 0 };
    let looked_at = &histograms[from..];
    let is_custom = last.has_custom_bounds();
    if looked_at.iter().any(|histogram| histogram.has_custom_bounds() != is_custom) {
        remarks.insert(Remark::MixedSchemas);
        return None;
    }
    let mut change = RunningHistogram::new(last);
    let schema = looked_at.iter().map(|histogram| histogram.schema).min().unwrap_or(last.schema);
    if !is_custom {
        change.coarsen(schema);
    }
    if !ignores_first && zero_time.is_none() {
        subtract(&mut change, first, remarks);
    } else if ignores_first && zero_time.is_some() {
        // The first sample's observations are part of the change even if a reset hides them.
        add(&mut change, first, remarks);
    }
    for idx in from + 1..histograms.len() {
        if is_reset(idx) {
            add(&mut change, histograms[idx - 1], remarks);
        }
    }
    Some(change)
}

/// `irate` and `idelta`: from the second to last sample to the last.
fn instant_rate(
    is_rate: bool,
    window: MixedWindow<'_>,
    remarks: &mut Remarks,
) -> Option<PointValue> {
    let last = window.times.len().checked_sub(1).filter(|&last| last > 0)?;
    let seconds = window.times[last].saturating_sub(window.times[last - 1]) as f64 / 1000.0;
    let starts_anew = is_rate && window.starts_anew(last);
    match (&window.entries[last - 1].value, &window.entries[last].value) {
        (PointValue::Float(before), PointValue::Float(after)) => {
            let is_reset = is_rate && (after < before || starts_anew);
            let change = if is_reset { *after } else { after - before };
            Some(PointValue::Float(if is_rate { change / seconds } else { change }))
        }
        (PointValue::Histogram(before), PointValue::Histogram(after)) => {
            note_hints(is_rate, &[before, after], remarks);
            let mut change = RunningHistogram::new(after);
            if !is_rate || !(starts_anew || detects_reset(after, before)) {
                if before.has_custom_bounds() != after.has_custom_bounds() {
                    remarks.insert(Remark::MixedSchemas);
                    return None;
                }
                subtract(&mut change, before, remarks);
            }
            if is_rate {
                change.divide(seconds);
            }
            change.reset_hint = ResetHint::Gauge;
            Some(PointValue::Histogram(Arc::new(change.finish())))
        }
        _ => {
            remarks.insert(Remark::MixedKinds);
            None
        }
    }
}

/// The number of neighbours for which `holds` is true. An anchored window begins with the last
/// sample at or before its boundary and needs one after it.
fn count_pairs(
    call: &RangeCall<'_>,
    step: usize,
    window: MixedWindow<'_>,
    holds: fn(MixedWindow<'_>, usize) -> bool,
) -> Option<PointValue> {
    let mut first = 0;
    if call.boundary == BoundaryMode::Anchored {
        let border = call.frame.reference(step).saturating_sub(call.range_ms);
        let before = window.times.partition_point(|&ts| ts <= border);
        if before == window.times.len() {
            return None;
        }
        first = before.saturating_sub(1);
    }
    let count = (first + 1..window.times.len()).filter(|&idx| holds(window, idx)).count();
    Some(PointValue::Float(count as f64))
}

fn is_reset(window: MixedWindow<'_>, idx: usize) -> bool {
    window.starts_anew(idx)
        || match (&window.entries[idx - 1].value, &window.entries[idx].value) {
            (PointValue::Float(before), PointValue::Float(after)) => after < before,
            (PointValue::Histogram(before), PointValue::Histogram(after)) => {
                detects_reset(after, before)
            }
            _ => true,
        }
}

fn differs(window: MixedWindow<'_>, idx: usize) -> bool {
    match (&window.entries[idx - 1].value, &window.entries[idx].value) {
        (PointValue::Float(before), PointValue::Float(after)) => is_change(*before, *after),
        (PointValue::Histogram(before), PointValue::Histogram(after)) => {
            !same_content(before, after)
        }
        _ => true,
    }
}
