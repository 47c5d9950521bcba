//! Window functions: selects the loop for each function.

use firn_model::{Error, Result, Timestamp};

use super::kahan::Sum;
use super::partial::{Extreme, OrderedSum, Partial};
use super::quantile::{SortedWindow, WorkCheck};
use super::range_call::{CancelCheck, RangeCall};
use super::rate::{RateKind, count_pairs, extrapolated, instant, is_change};
use super::{extended, over_time, partial, quantile, regression};
use crate::eval::kernel::Kernel;
use crate::eval::vector::VectorSeries;
use crate::eval::window::{MixedSamples, Samples};
use crate::histogram::{self, Remarks};
use crate::syntax::{BoundaryMode, FunctionId};

impl Kernel for RangeCall<'_> {
    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()> {
        histogram::range_call(self, samples, out, remarks)
    }

    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        use FunctionId as F;
        let rate = |is_counter, per_second| RateKind { is_counter, per_second };
        match self.function {
            F::Rate => self.rate(rate(true, true), samples, out),
            F::Increase => self.rate(rate(true, false), samples, out),
            F::Delta => self.rate(rate(false, false), samples, out),
            F::Irate => instant(true, samples, out),
            F::Idelta => instant(false, samples, out),
            F::Resets => self.pairs(samples, |before, after| after < before, out),
            F::Changes => self.pairs(samples, is_change, out),
            F::AvgOverTime if over_time::has_both_signs(samples.values) => {
                self.aggregated(samples, out, over_time::mean::<OrderedSum>)?;
            }
            F::AvgOverTime => self.aggregated(samples, out, over_time::mean::<Sum>)?,
            F::SumOverTime if over_time::has_both_signs(samples.values) => {
                self.aggregated(samples, out, over_time::sum::<OrderedSum>)?;
            }
            F::SumOverTime => self.aggregated(samples, out, over_time::sum::<Sum>)?,
            F::StdvarOverTime => self.aggregated(samples, out, over_time::variance)?,
            F::StddevOverTime => self
                .aggregated(samples, out, |all, values| over_time::variance(all, values).sqrt())?,
            F::MinOverTime => {
                self.aggregated(samples, out, |all: Extreme<false, false>, _| all.value)?;
            }
            F::MaxOverTime => {
                self.aggregated(samples, out, |all: Extreme<true, false>, _| all.value)?;
            }
            F::TsOfMinOverTime => {
                let time =
                    |all: Extreme<false, true>, _: &[f64]| seconds(&samples.times[all.entry]);
                self.aggregated(samples, out, time)?;
            }
            F::TsOfMaxOverTime => {
                let time = |all: Extreme<true, true>, _: &[f64]| seconds(&samples.times[all.entry]);
                self.aggregated(samples, out, time)?;
            }
            F::CountOverTime => each(samples, out, |w| Some(w.values.len() as f64)),
            F::LastOverTime => each(samples, out, |w| w.values.last().copied()),
            F::FirstOverTime => each(samples, out, |w| w.values.first().copied()),
            F::PresentOverTime | F::AbsentOverTime => each(samples, out, |_| Some(1.0)),
            F::TsOfFirstOverTime => each(samples, out, |w| w.times.first().map(seconds)),
            F::TsOfLastOverTime => each(samples, out, |w| w.times.last().map(seconds)),
            F::MadOverTime => {
                let mut scratch = Vec::new();
                self.sorted(samples, out, |_, values, check| {
                    quantile::median_deviation(values, &mut scratch, check)
                })?;
            }
            F::QuantileOverTime => self.sorted(samples, out, |step, values, _| {
                Ok(quantile::quantile_of_sorted(self.param(0, step), values))
            })?,
            F::Deriv => self.walked(samples, out, |w| {
                // Times relative to the first sample keep the numbers small.
                let two = w.values.len() > 1;
                two.then(|| regression::line(w.times, w.values, w.times[0]).0)
            })?,
            F::PredictLinear => self.walked(samples, out, |w| {
                let two = w.values.len() > 1;
                two.then(|| {
                    let now = self.frame.steps.at(w.step);
                    let (slope, value) = regression::line(w.times, w.values, now);
                    slope * self.param(0, w.step) + value
                })
            })?,
            F::DoubleExponentialSmoothing => return self.smooth(samples, out),
            _ => return Err(Error::internal("not a function of windows")),
        }
        Ok(())
    }
}

impl RangeCall<'_> {
    fn rate(&self, kind: RateKind, samples: Samples<'_>, out: &mut [f64]) {
        if self.boundary == BoundaryMode::Plain {
            extrapolated(kind, samples, &self.frame, self.range_seconds, out);
        } else {
            let is_smoothed = self.boundary == BoundaryMode::Smoothed;
            let range = (self.range_ms, self.range_seconds);
            extended::rate(kind, is_smoothed, samples, &self.frame, range, out);
        }
    }

    fn pairs(&self, samples: Samples<'_>, differs: impl Fn(f64, f64) -> bool, out: &mut [f64]) {
        let border = |step| self.frame.reference(step).saturating_sub(self.range_ms);
        let border: Option<&dyn Fn(usize) -> Timestamp> =
            if self.boundary == BoundaryMode::Anchored { Some(&border) } else { None };
        count_pairs(samples, border, differs, out);
    }

    fn smooth(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        let mut refused = None;
        self.walked(samples, out, |w| {
            let (smoothing, trending) = (self.param(0, w.step), self.param(1, w.step));
            for (name, factor, short) in [("smoothing", smoothing, "sf"), ("trend", trending, "tf")]
            {
                if factor <= 0.0 || factor >= 1.0 {
                    refused.get_or_insert_with(|| {
                        format!(
                            "invalid {name} factor. Expected: 0 < {short} < 1, got: {factor:.6}"
                        )
                    });
                    return None;
                }
            }
            (w.values.len() > 1).then(|| regression::smooth(w.values, smoothing, trending))
        })?;
        refused.map_or(Ok(()), |what| Err(Error::invalid(what)))
    }

    /// Aggregates every window from partial aggregates; `finish` may visit the samples.
    fn aggregated<P: Partial>(
        &self,
        samples: Samples<'_>,
        out: &mut [f64],
        finish: impl Fn(P, &[f64]) -> f64,
    ) -> Result<()> {
        partial::each(samples, &self.frame, CancelCheck::new(self.cancel), out, finish)
    }

    /// As [`each`], for a `compute` that visits every sample of its window.
    fn walked(
        &self,
        samples: Samples<'_>,
        out: &mut [f64],
        mut compute: impl FnMut(FloatWindow<'_>) -> Option<f64>,
    ) -> Result<()> {
        let mut check = CancelCheck::new(self.cancel);
        let mut stopped = Ok(());
        each(samples, out, |w| {
            if stopped.is_ok() {
                stopped = check.step(w.values.len());
            }
            if stopped.is_ok() { compute(w) } else { None }
        });
        stopped
    }

    /// Runs `compute` over the sorted values of every window that is not empty.
    fn sorted(
        &self,
        samples: Samples<'_>,
        out: &mut [f64],
        mut compute: impl FnMut(usize, &[f64], &mut WorkCheck<'_>) -> Result<f64>,
    ) -> Result<()> {
        let mut cancel = CancelCheck::new(self.cancel);
        let mut check = |count| cancel.step(count);
        let mut moving = SortedWindow::default();
        for (step, (window, out)) in samples.windows.iter().zip(out).enumerate() {
            if !window.is_empty() {
                check(window.len())?;
                let values = moving.move_to(samples.values, window, &mut check)?;
                *out = compute(step, values, &mut check)?;
            }
        }
        Ok(())
    }
}

/// The samples in the window of one step; at least one.
struct FloatWindow<'a> {
    step: usize,
    times: &'a [Timestamp],
    values: &'a [f64],
}

/// Runs `compute` over every window that is not empty.
fn each(
    samples: Samples<'_>,
    out: &mut [f64],
    mut compute: impl FnMut(FloatWindow<'_>) -> Option<f64>,
) {
    for (step, (window, out)) in samples.windows.iter().zip(out).enumerate() {
        if window.is_empty() {
            continue;
        }
        let (times, values) = (&samples.times[window.clone()], &samples.values[window]);
        if let Some(value) = compute(FloatWindow { step, times, values }) {
            *out = value;
        }
    }
}

fn seconds(ts: &Timestamp) -> f64 {
    *ts as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use firn_model::CancelToken;
    use proptest::prelude::*;

    use super::*;
    use crate::eval::vector::{ABSENT, is_absent};
    use crate::eval::window::{Frame, Steps, Windows};

    const RANGE_FUNCTIONS: [FunctionId; 27] = [
        FunctionId::Rate,
        FunctionId::Increase,
        FunctionId::Delta,
        FunctionId::Irate,
        FunctionId::Idelta,
        FunctionId::Resets,
        FunctionId::Changes,
        FunctionId::AvgOverTime,
        FunctionId::SumOverTime,
        FunctionId::MinOverTime,
        FunctionId::MaxOverTime,
        FunctionId::CountOverTime,
        FunctionId::LastOverTime,
        FunctionId::FirstOverTime,
        FunctionId::PresentOverTime,
        FunctionId::AbsentOverTime,
        FunctionId::StdvarOverTime,
        FunctionId::StddevOverTime,
        FunctionId::MadOverTime,
        FunctionId::QuantileOverTime,
        FunctionId::TsOfFirstOverTime,
        FunctionId::TsOfLastOverTime,
        FunctionId::TsOfMaxOverTime,
        FunctionId::TsOfMinOverTime,
        FunctionId::Deriv,
        FunctionId::PredictLinear,
        FunctionId::DoubleExponentialSmoothing,
    ];

    fn run(function: FunctionId, frame: Frame, times: &[i64], values: &[f64]) -> Vec<f64> {
        let mut windows = Windows::default();
        windows.compute(times, &frame);
        let params = [vec![0.3; frame.steps.count], vec![0.6; frame.steps.count]];
        let call = RangeCall {
            function,
            frame,
            boundary: BoundaryMode::Plain,
            range_ms: frame.before,
            range_seconds: frame.before as f64 / 1000.0,
            params: &params,
            cancel: &CancelToken::new(),
        };
        let mut out = vec![ABSENT; frame.steps.count];
        call.floats(Samples { times, values, windows: &windows }, &mut out).unwrap();
        out
    }

    /// Counters and gauges with resets, repeats, infinities, NaN and numbers that cancel each
    /// other.
    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            20 => -5.0..50.0f64,
            6 => (0u8..5).prop_map(f64::from),
            1 => prop::sample::select(vec![
                f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e100, -1e100, 1.7e308, -0.0, 5e-324,
                -1e308, f64::MAX, f64::MIN, 1e50, -1e50,
            ]),
        ]
    }

    /// The result of a walk over the window, for functions with partial aggregates that have other
    /// bits.
    fn walked(function: FunctionId, values: &[f64]) -> Option<f64> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let square = |value: &f64| (value - mean) * (value - mean);
        match function {
            FunctionId::SumOverTime => Some(values.iter().sum()),
            FunctionId::AvgOverTime => Some(mean),
            FunctionId::StdvarOverTime => Some(values.iter().map(square).sum::<f64>() / count),
            FunctionId::MaxOverTime => Some(values.iter().copied().fold(f64::NAN, f64::max)),
            FunctionId::MinOverTime => Some(values.iter().copied().fold(f64::NAN, f64::min)),
            _ => None,
        }
    }

    proptest! {
        /// A step of a range query has the bits of an instant query over the samples of its window
        /// alone.
        #[test]
        fn each_step_has_the_bits_of_its_window_alone(
            gaps in prop::collection::vec(1i64..30_000, 1..60),
            wild in prop::collection::vec(value(), 60),
            tame in prop::collection::vec(-5.0..50.0f64, 60),
            is_tame in any::<bool>(),
            start in -500_000i64..900_000, step in 1i64..90_000, count in 1usize..24,
            before in 1i64..300_000,
        ) {
            let times: Vec<i64> =
                gaps.iter().scan(-400_000, |ts, gap| { *ts += gap; Some(*ts) }).collect();
            let values = if is_tame { &tame[..times.len()] } else { &wild[..times.len()] };
            let steps = Steps { start, step, count };
            let frame = Frame { steps, at: None, offset: 0, before, after: 0 };
            for function in RANGE_FUNCTIONS {
                let together = run(function, frame, &times, values);
                for (idx, value) in together.iter().enumerate() {
                    let one = Frame { steps: Steps::one(steps.at(idx)), ..frame };
                    let (after, through) = one.bounds(0);
                    let inside = times.partition_point(|&ts| ts <= after)
                        ..times.partition_point(|&ts| ts <= through);
                    let values = &values[inside.clone()];
                    let alone = run(function, one, &times[inside], values);
                    prop_assert_eq!(value.to_bits(), alone[0].to_bits(), "{:?}", function);
                    let needed = if needs_two(function) { 2 } else { 1 };
                    prop_assert_eq!(is_absent(*value), values.len() < needed, "{:?}", function);
                    if let Some(walked) = walked(function, values)
                        && is_tame && !values.is_empty()
                    {
                        let near = (value - walked).abs() <= 1e-12 * walked.abs().max(1.0);
                        prop_assert!(near, "{:?}: {} for {}", function, value, walked);
                    }
                }
            }
        }
    }

    fn needs_two(function: FunctionId) -> bool {
        use FunctionId as F;
        matches!(
            function,
            F::Rate
                | F::Increase
                | F::Delta
                | F::Irate
                | F::Idelta
                | F::Deriv
                | F::PredictLinear
                | F::DoubleExponentialSmoothing
        )
    }
}
