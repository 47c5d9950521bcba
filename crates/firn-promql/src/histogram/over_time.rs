//! Functions of windows that hold more than plain floats: histograms, floats among histograms, start timestamps.

use std::sync::Arc;

use firn_model::{Histogram, Labels, MixedEntry, PointValue, ResetHint, Result, Timestamp};

use super::extended::extended_rate;
use super::running::{MeanHistogram, Met, Running, SumHistogram};
use super::{Operation, Remark, Remarks, detects_reset, same_content};
use crate::eval::select::Kernel;
use crate::eval::vector::{ABSENT, VectorSeries};
use crate::eval::window::{Frame, MixedSamples, Samples, Steps, Windows};
use crate::functions::range::RangeCall;
use crate::functions::rate::{RateKind, is_change};
use crate::syntax::{Borders, FunctionId};

/// The samples of one step, at least one.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) times: &'a [Timestamp],
    pub(super) entries: &'a [MixedEntry],
}

/// Computes one series. A window of floats alone has the value that the loop over floats gives it, unless start
/// timestamps have a say.
///
/// # Errors
/// `Invalid` for a parameter that the function refuses.
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
        let window =
            Window { times: &samples.times[window.clone()], entries: &samples.entries[window] };
        if let Some(value) = compute(call, step, window, remarks)? {
            out.set(step, value);
        }
    }
    Ok(())
}

fn compute(
    call: &RangeCall<'_>,
    step: usize,
    window: Window<'_>,
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
        F::SumOverTime | F::AvgOverTime => match window.kinds() {
            Kinds::Floats => floats_only(call, step, window)?,
            Kinds::Histograms(all) => {
                total(call.function, &all, remarks).map(|h| PointValue::Histogram(Arc::new(h)))
            }
            Kinds::Mixed => {
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
        // All others know floats only.
        _ => {
            if matches!(window.kinds(), Kinds::Mixed) {
                remarks.insert(Remark::IgnoredInRange);
            }
            floats_only(call, step, window)?
        }
    })
}

/// What a window holds.
pub(super) enum Kinds<'a> {
    Floats,
    Histograms(Vec<&'a Histogram>),
    Mixed,
}

impl<'a> Window<'a> {
    pub(super) fn kinds(&self) -> Kinds<'a> {
        let as_histogram = |entry: &'a MixedEntry| match &entry.value {
            PointValue::Histogram(histogram) => Some(&**histogram),
            PointValue::Float(_) => None,
        };
        let histograms: Vec<&Histogram> = self.entries.iter().filter_map(as_histogram).collect();
        if histograms.is_empty() {
            Kinds::Floats
        } else if histograms.len() == self.entries.len() {
            Kinds::Histograms(histograms)
        } else {
            Kinds::Mixed
        }
    }

    fn floats(&self) -> impl Iterator<Item = (Timestamp, f64)> + '_ {
        let float = |(&ts, entry): (&Timestamp, &MixedEntry)| match entry.value {
            PointValue::Float(value) => Some((ts, value)),
            PointValue::Histogram(_) => None,
        };
        self.times.iter().zip(self.entries).filter_map(float)
    }

    /// Whether the start timestamp of sample `idx`, which is not the first, says that the counter began anew after
    /// the sample before it.
    fn starts_anew(&self, idx: usize) -> bool {
        let (start, before) = (self.entries[idx].start, self.entries[idx - 1].start);
        start != 0 && start != before && start >= self.times[idx - 1] && start < self.times[idx]
    }

    fn has_overlap(&self) -> bool {
        (1..self.times.len()).any(|idx| {
            let (start, before) = (self.entries[idx].start, self.entries[idx - 1].start);
            start != 0 && start < self.times[idx - 1] && start != before
        })
    }

    fn has_starts(&self) -> bool {
        self.entries.iter().any(|entry| entry.start != 0)
    }
}

/// The floats of a window through the loop that float series take.
fn floats_only(
    call: &RangeCall<'_>,
    step: usize,
    window: Window<'_>,
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
    note_met(met, remarks);
    Some(histogram)
}

/// What an aggregation of histograms has to say.
pub(super) fn note_met(met: Met, remarks: &mut Remarks) {
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
    window: Window<'_>,
    remarks: &mut Remarks,
) -> Result<Option<PointValue>> {
    if call.borders != Borders::Plain {
        return match window.kinds() {
            Kinds::Floats => floats_only(call, step, window),
            _ => Ok(extended_rate(call, step, kind, window, remarks)
                .map(|histogram| PointValue::Histogram(Arc::new(histogram)))),
        };
    }
    let (range_start, range_end) = call.frame.bounds(step);
    match window.kinds() {
        Kinds::Mixed => {
            remarks.insert(Remark::MixedKinds);
            return Ok(None);
        }
        Kinds::Floats if !kind.is_counter || !window.has_starts() => {
            return floats_only(call, step, window);
        }
        _ => {}
    }
    // A counter that started inside of the window was 0 then.
    let (first_time, first_start) = (window.times[0], window.entries[0].start);
    let is_inside = first_start != 0 && first_start > range_start && first_start < first_time;
    let zero_time = (kind.is_counter && is_inside).then_some(first_start);
    if window.times.len() < 2 && zero_time.is_none() {
        return Ok(None);
    }
    if kind.is_counter && window.has_overlap() {
        remarks.insert(Remark::StartOverlaps);
    }
    let spread = Spread { window, zero_time, range_start, range_end };
    let divisor = if kind.per_second { call.range_seconds } else { 1.0 };
    Ok(match window.kinds() {
        Kinds::Histograms(histograms) => {
            let change = histogram_change(kind.is_counter, &histograms, window, zero_time, remarks);
            change.map(|mut change| {
                let to_zero = (kind.is_counter && histograms[0].count >= 0.0)
                    .then_some((histograms[0].count, change.count));
                change.scale(spread.factor(to_zero) / divisor);
                change.reset_hint = ResetHint::Gauge;
                PointValue::Histogram(Arc::new(change.finish()))
            })
        }
        _ => {
            let values: Vec<f64> = window.floats().map(|sample| sample.1).collect();
            let change = counter_change(&values, window, zero_time);
            let to_zero = (values[0] >= 0.0).then_some((values[0], change));
            Some(PointValue::Float(change * (spread.factor(to_zero) / divisor)))
        }
    })
}

/// Where a window's samples lie in it.
struct Spread<'a> {
    window: Window<'a>,
    /// When the counter was 0, if that is known and inside of the window.
    zero_time: Option<Timestamp>,
    range_start: Timestamp,
    range_end: Timestamp,
}

impl Spread<'_> {
    /// By how much the change between samples stands for the whole window; as [`crate::functions::rate`] does it for
    /// floats. `to_zero` is the first value and the change of what must not be extended below zero.
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

fn counter_change(values: &[f64], window: Window<'_>, zero_time: Option<Timestamp>) -> f64 {
    let last = values.len() - 1;
    let from = if zero_time.is_some() { 0.0 } else { values[0] };
    let mut change = values[last] - from;
    for idx in 1..values.len() {
        if values[idx] < values[idx - 1] || window.starts_anew(idx) {
            change += values[idx - 1];
        }
    }
    change
}

/// The change from the first histogram to the last; for a counter with what resets hide.
fn histogram_change(
    is_counter: bool,
    histograms: &[&Histogram],
    window: Window<'_>,
    zero_time: Option<Timestamp>,
    remarks: &mut Remarks,
) -> Option<Running<f64>> {
    let (first, last) = (histograms[0], histograms[histograms.len() - 1]);
    note_hints(is_counter, histograms, remarks);
    let is_reset = |idx: usize| {
        is_counter
            && (window.starts_anew(idx) || detects_reset(histograms[idx], histograms[idx - 1]))
    };
    // What lies before a reset right behind the first sample is not looked at, nor is it where the counter is known to
    // have been 0: its layout does not matter.
    let ignores_first = histograms.len() > 1 && is_reset(1);
    let from = if ignores_first { 1 } else { 0 };
    let looked_at = &histograms[from..];
    let is_custom = last.has_custom_bounds();
    if looked_at.iter().any(|histogram| histogram.has_custom_bounds() != is_custom) {
        remarks.insert(Remark::MixedSchemas);
        return None;
    }
    let mut change = Running::new(last);
    let schema = looked_at.iter().map(|histogram| histogram.schema).min().unwrap_or(last.schema);
    if !is_custom {
        change.coarsen(schema);
    }
    if !ignores_first && zero_time.is_none() {
        subtract(&mut change, first, remarks);
    } else if ignores_first && zero_time.is_some() {
        // The first sample's observations are part of the change, also if a reset hides them.
        add(&mut change, first, remarks);
    }
    for idx in from + 1..histograms.len() {
        if is_reset(idx) {
            add(&mut change, histograms[idx - 1], remarks);
        }
    }
    Some(change)
}

pub(super) fn add(change: &mut Running<f64>, histogram: &Histogram, remarks: &mut Remarks) {
    note_merged(
        change.add(histogram).map(|merged| merged.bounds_differed),
        Operation::Addition,
        remarks,
    );
}

pub(super) fn subtract(change: &mut Running<f64>, histogram: &Histogram, remarks: &mut Remarks) {
    let merged = change.subtract(histogram).map(|merged| merged.bounds_differed);
    note_merged(merged, Operation::Subtraction, remarks);
}

fn note_merged(
    bounds_differed: std::result::Result<bool, super::running::Incompatible>,
    operation: Operation,
    remarks: &mut Remarks,
) {
    match bounds_differed {
        Ok(false) => {}
        Ok(true) => {
            remarks.insert(Remark::BoundsDiffered(operation));
        }
        Err(_) => {
            remarks.insert(Remark::MixedSchemas);
        }
    }
}

/// Counters have no gauge among them; a gauge is told by its ends.
pub(super) fn note_hints(is_counter: bool, histograms: &[&Histogram], remarks: &mut Remarks) {
    let is_gauge = |histogram: &&Histogram| histogram.reset_hint == ResetHint::Gauge;
    if is_counter {
        if histograms.iter().any(is_gauge) {
            remarks.insert(Remark::NotCounter);
        }
    } else if ![histograms.first(), histograms.last()].iter().flatten().all(|h| is_gauge(h)) {
        remarks.insert(Remark::NotGauge);
    }
}

/// `irate` and `idelta`: from the last sample but one to the last.
fn instant_rate(is_rate: bool, window: Window<'_>, remarks: &mut Remarks) -> Option<PointValue> {
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
            let mut change = Running::new(after);
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

/// How often something holds between neighbours. An anchored window begins with the last sample at or before its
/// border and needs one after it.
fn count_pairs(
    call: &RangeCall<'_>,
    step: usize,
    window: Window<'_>,
    holds: fn(Window<'_>, usize) -> bool,
) -> Option<PointValue> {
    let mut first = 0;
    if call.borders == Borders::Anchored {
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

fn is_reset(window: Window<'_>, idx: usize) -> bool {
    window.starts_anew(idx)
        || match (&window.entries[idx - 1].value, &window.entries[idx].value) {
            (PointValue::Float(before), PointValue::Float(after)) => after < before,
            (PointValue::Histogram(before), PointValue::Histogram(after)) => {
                detects_reset(after, before)
            }
            _ => true,
        }
}

fn differs(window: Window<'_>, idx: usize) -> bool {
    match (&window.entries[idx - 1].value, &window.entries[idx].value) {
        (PointValue::Float(before), PointValue::Float(after)) => is_change(*before, *after),
        (PointValue::Histogram(before), PointValue::Histogram(after)) => {
            !same_content(before, after)
        }
        _ => true,
    }
}
