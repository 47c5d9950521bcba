//! Overlapping windows in work proportional to the samples: partial aggregates up to absolute block
//! boundaries.
//!
//! Blocks are as long as the windows, so a window consists of the end of one block and the
//! beginning of the next. The aggregate of a window is *defined* as: the samples before the
//! boundary, added from the boundary backwards; the samples after it, added forwards; both merged.
//! The boundary depends only on the window's time, so a step of a range query has the bits of an
//! instant query.
//!
//! A window then costs one merge, because neighbours share the work: each sample is added once
//! backwards and once forwards, for any number of windows that contain it, and nothing is ever
//! subtracted. Source: the algorithm of van Herk and of Gil and Werman for running maxima.

use firn_model::Result;

use super::kahan::Sum;
use super::range_call::CancelCheck;
use crate::eval::window::{Frame, Samples};

/// The aggregate of a run of neighbouring samples.
pub(crate) trait Partial: Copy {
    /// The aggregate of one sample: its entry and value.
    fn of(entry: usize, value: f64) -> Self;
    /// The aggregate of these samples and the samples that follow them.
    fn unite(self, later: Self) -> Self;
}

/// Aggregates every window that is not empty; `finish` computes a value from its partial aggregate
/// and its values.
///
/// # Errors
/// `Timeout` or `Canceled`.
pub(crate) fn each<P: Partial>(
    samples: Samples<'_>,
    frame: &Frame,
    mut check: CancelCheck<'_>,
    out: &mut [f64],
    finish: impl Fn(P, &[f64]) -> f64,
) -> Result<()> {
    let Samples { times, values, windows } = samples;
    let splits = windows.splits(times, frame);
    // The boundary of the last window, the aggregates before it (the nearest entry first) and the
    // aggregate after it up to `end`.
    let mut split = usize::MAX;
    let mut before: Vec<P> = Vec::new();
    let mut behind: Option<P> = None;
    let mut end = 0;
    for ((window, &border), out) in windows.iter().zip(splits).zip(out) {
        if window.is_empty() {
            continue;
        }
        check.step(window.len())?;
        if split != border as usize {
            split = border as usize;
            before.clear();
            let mut all: Option<P> = None;
            for entry in (window.start..split).rev() {
                let one = P::of(entry, values[entry]);
                let sum = all.map_or(one, |later| one.unite(later));
                before.push(sum);
                all = Some(sum);
            }
            (behind, end) = (None, split);
        }
        for (entry, &value) in values.iter().enumerate().take(window.end).skip(end) {
            let one = P::of(entry, value);
            behind = Some(behind.map_or(one, |earlier| earlier.unite(one)));
        }
        end = window.end;
        let first = split.checked_sub(window.start + 1).and_then(|idx| before.get(idx)).copied();
        let all = match (first, behind) {
            (Some(first), Some(behind)) => first.unite(behind),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => continue,
        };
        *out = finish(all, &values[window]);
    }
    Ok(())
}

impl Partial for Sum {
    fn of(_: usize, value: f64) -> Sum {
        // Minus zero alone stays minus zero; in a sum it is zero.
        Sum { sum: 0.0 + value, rest: 0.0 }
    }

    fn unite(mut self, later: Sum) -> Sum {
        self.add(later.sum);
        self.rest += later.rest;
        self
    }
}

/// A sum with the sizes that decide whether the order of its additions matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedSum {
    pub(crate) sum: Sum,
    /// The greatest absolute value, NaN aside.
    pub(crate) peak: f64,
    /// Whether some addition was rounded.
    pub(crate) is_rounded: bool,
}

impl Partial for OrderedSum {
    fn of(entry: usize, value: f64) -> OrderedSum {
        OrderedSum { sum: Sum::of(entry, value), peak: value.abs(), is_rounded: false }
    }

    fn unite(self, later: OrderedSum) -> OrderedSum {
        let mut sum = self.sum;
        sum.add(later.sum.sum);
        let is_rounded = self.is_rounded | later.is_rounded | (sum.rest != self.sum.rest);
        sum.rest += later.sum.rest;
        OrderedSum { sum, peak: self.peak.max(later.peak), is_rounded }
    }
}

/// The greatest or the smallest value; of equal ones the first or the last. Any value replaces NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extreme<const GREATEST: bool, const LAST: bool> {
    pub(crate) entry: usize,
    pub(crate) value: f64,
}

impl<const GREATEST: bool, const LAST: bool> Partial for Extreme<GREATEST, LAST> {
    fn of(entry: usize, value: f64) -> Self {
        Extreme { entry, value }
    }

    fn unite(self, later: Self) -> Self {
        let is_better = match GREATEST {
            true => later.value > self.value,
            false => later.value < self.value,
        };
        let wins = is_better || (LAST && later.value == self.value) || self.value.is_nan();
        if wins { later } else { self }
    }
}

/// Count, mean and squared distances from the mean. Merged by the algorithm of Chan, Golub and
/// LeVeque.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariancePartial {
    count: f64,
    mean: Sum,
    squares: Sum,
}

impl VariancePartial {
    /// The variance. `None` if the order of the additions matters: if a step came near an overflow
    /// or met an infinity or NaN, or if the values differ by little more than their rounding
    /// errors.
    pub(crate) fn variance(&self) -> Option<f64> {
        let squares = self.squares.sum + self.squares.rest;
        let noise = self.mean.sum * 1e-12;
        let is_noise = squares != 0.0 && squares < self.count * noise * noise;
        (squares < 1e300 && !is_noise).then_some(squares / self.count)
    }
}

impl Partial for VariancePartial {
    fn of(_: usize, value: f64) -> VariancePartial {
        // An infinity minus itself is NaN, and NaN has no distance.
        let squares = Sum { sum: if value.is_finite() { 0.0 } else { f64::NAN }, rest: 0.0 };
        VariancePartial { count: 1.0, mean: Sum { sum: value, rest: 0.0 }, squares }
    }

    fn unite(self, later: VariancePartial) -> VariancePartial {
        let count = self.count + later.count;
        let delta = (later.mean.sum - self.mean.sum) + (later.mean.rest - self.mean.rest);
        let mut mean = self.mean;
        mean.add(delta * (later.count / count));
        let mut squares = self.squares.unite(later.squares);
        squares.add(delta * delta * (self.count * later.count / count));
        VariancePartial { count, mean, squares }
    }
}
