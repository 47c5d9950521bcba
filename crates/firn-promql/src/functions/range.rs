//! Functions of windows: which loop runs for which function.

use firn_model::{Error, Result, Timestamp};

use super::rate::{RateKind, count_pairs, extrapolated, instant, is_change};
use super::{extended, over_time, quantile, regression};
use crate::eval::select::Kernel;
use crate::eval::vector::VectorSeries;
use crate::eval::window::{Frame, MixedSamples, Samples};
use crate::histogram::{self, Remarks};
use crate::syntax::{Borders, FunctionId};

/// A call of a window function: everything but the samples.
#[derive(Debug)]
pub(crate) struct RangeCall<'a> {
    pub(crate) function: FunctionId,
    pub(crate) frame: Frame,
    pub(crate) borders: Borders,
    /// The window's length as written.
    pub(crate) range_ms: i64,
    pub(crate) range_seconds: f64,
    /// The scalar arguments, one value per step.
    pub(crate) params: &'a [Vec<f64>],
}

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
            F::AvgOverTime => each(samples, out, |w| Some(over_time::mean(w.values))),
            F::SumOverTime => each(samples, out, |w| Some(over_time::sum(w.values))),
            F::MinOverTime => each(samples, out, |w| Some(over_time::min(w.values))),
            F::MaxOverTime => each(samples, out, |w| Some(over_time::max(w.values))),
            F::CountOverTime => each(samples, out, |w| Some(w.values.len() as f64)),
            F::LastOverTime => each(samples, out, |w| w.values.last().copied()),
            F::FirstOverTime => each(samples, out, |w| w.values.first().copied()),
            F::PresentOverTime | F::AbsentOverTime => each(samples, out, |_| Some(1.0)),
            F::StdvarOverTime => each(samples, out, |w| Some(over_time::variance(w.values))),
            F::StddevOverTime => {
                each(samples, out, |w| Some(over_time::variance(w.values).sqrt()));
            }
            F::MadOverTime => {
                let mut scratch = Vec::new();
                each(samples, out, |w| {
                    Some(quantile::median_deviation(copy(&mut scratch, w.values)))
                });
            }
            F::QuantileOverTime => {
                let mut scratch = Vec::new();
                each(samples, out, |w| {
                    let q = self.param(0, w.step);
                    Some(quantile::quantile(q, copy(&mut scratch, w.values)))
                });
            }
            F::TsOfFirstOverTime => each(samples, out, |w| w.times.first().map(seconds)),
            F::TsOfLastOverTime => each(samples, out, |w| w.times.last().map(seconds)),
            F::TsOfMaxOverTime => {
                each(samples, out, |w| w.times.get(over_time::last_max(w.values)).map(seconds));
            }
            F::TsOfMinOverTime => {
                each(samples, out, |w| w.times.get(over_time::last_min(w.values)).map(seconds));
            }
            F::Deriv => each(samples, out, |w| {
                // The first sample's time keeps the numbers small.
                let two = w.values.len() > 1;
                two.then(|| regression::line(w.times, w.values, w.times[0]).0)
            }),
            F::PredictLinear => each(samples, out, |w| {
                let two = w.values.len() > 1;
                two.then(|| {
                    let now = self.frame.steps.at(w.step);
                    let (slope, value) = regression::line(w.times, w.values, now);
                    slope * self.param(0, w.step) + value
                })
            }),
            F::DoubleExponentialSmoothing => return self.smooth(samples, out),
            _ => return Err(Error::internal("not a function of windows")),
        }
        Ok(())
    }
}

impl RangeCall<'_> {
    pub(crate) fn param(&self, idx: usize, step: usize) -> f64 {
        self.params.get(idx).and_then(|values| values.get(step)).copied().unwrap_or(f64::NAN)
    }

    fn rate(&self, kind: RateKind, samples: Samples<'_>, out: &mut [f64]) {
        if self.borders == Borders::Plain {
            extrapolated(kind, samples, &self.frame, self.range_seconds, out);
        } else {
            let is_smoothed = self.borders == Borders::Smoothed;
            let range = (self.range_ms, self.range_seconds);
            extended::rate(kind, is_smoothed, samples, &self.frame, range, out);
        }
    }

    fn pairs(&self, samples: Samples<'_>, differs: impl Fn(f64, f64) -> bool, out: &mut [f64]) {
        let border = |step| self.frame.reference(step).saturating_sub(self.range_ms);
        let border: Option<&dyn Fn(usize) -> Timestamp> =
            if self.borders == Borders::Anchored { Some(&border) } else { None };
        count_pairs(samples, border, differs, out);
    }

    fn smooth(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        let mut refused = None;
        each(samples, out, |w| {
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
        });
        refused.map_or(Ok(()), |what| Err(Error::invalid(what)))
    }
}

/// The samples that one step looks at; at least one.
struct Window<'a> {
    step: usize,
    times: &'a [Timestamp],
    values: &'a [f64],
}

/// Runs `compute` over every window that is not empty.
fn each(samples: Samples<'_>, out: &mut [f64], mut compute: impl FnMut(Window<'_>) -> Option<f64>) {
    for (step, (window, out)) in samples.windows.iter().zip(out).enumerate() {
        if window.is_empty() {
            continue;
        }
        let (times, values) = (&samples.times[window.clone()], &samples.values[window]);
        if let Some(value) = compute(Window { step, times, values }) {
            *out = value;
        }
    }
}

fn copy<'a>(scratch: &'a mut Vec<f64>, values: &[f64]) -> &'a mut [f64] {
    scratch.clear();
    scratch.extend_from_slice(values);
    scratch
}

fn seconds(ts: &Timestamp) -> f64 {
    *ts as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::eval::vector::{ABSENT, is_absent};
    use crate::eval::window::{Steps, Windows};

    const RANGE_FUNCTIONS: [FunctionId; 14] = [
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
        FunctionId::StdvarOverTime,
        FunctionId::TsOfMaxOverTime,
        FunctionId::Deriv,
        FunctionId::LastOverTime,
    ];

    fn run(function: FunctionId, frame: Frame, times: &[i64], values: &[f64]) -> Vec<f64> {
        let mut windows = Windows::default();
        windows.compute(times, &frame);
        let call = RangeCall {
            function,
            frame,
            borders: Borders::Plain,
            range_ms: frame.before,
            range_seconds: frame.before as f64 / 1000.0,
            params: &[],
        };
        let mut out = vec![ABSENT; frame.steps.count];
        call.floats(Samples { times, values, windows: &windows }, &mut out).unwrap();
        out
    }

    proptest! {
        /// A step of a range query has the bits of an instant query over just the samples of its window.
        #[test]
        fn each_step_has_the_bits_of_its_window_alone(
            gaps in prop::collection::vec(1i64..30_000, 1..60),
            raw in prop::collection::vec(-5.0..50.0f64, 60),
            start in -50_000i64..400_000, step in 1i64..90_000, count in 1usize..12,
            before in 1i64..300_000,
        ) {
            let times: Vec<i64> =
                gaps.iter().scan(0, |ts, gap| { *ts += gap; Some(*ts) }).collect();
            let values = &raw[..times.len()];
            let steps = Steps { start, step, count };
            let frame = Frame { steps, at: None, offset: 0, before, after: 0 };
            for function in RANGE_FUNCTIONS {
                let together = run(function, frame, &times, values);
                for (idx, value) in together.iter().enumerate() {
                    let one = Frame { steps: Steps::one(steps.at(idx)), ..frame };
                    let (after, through) = one.bounds(0);
                    let inside = times.partition_point(|&ts| ts <= after)
                        ..times.partition_point(|&ts| ts <= through);
                    let alone = run(function, one, &times[inside.clone()], &values[inside]);
                    prop_assert_eq!(value.to_bits(), alone[0].to_bits(), "{:?}", function);
                    prop_assert_eq!(is_absent(*value), is_absent(alone[0]));
                }
            }
        }
    }
}
