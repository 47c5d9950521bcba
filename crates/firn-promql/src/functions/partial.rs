//! Windows that overlap, in work proportional to the samples: partial aggregates up to absolute block borders.
//!
//! Blocks are as long as the windows, so a window consists of the end of one block and the beginning of the next.
//! What a window aggregates is *defined* as: the samples before the border, added from the border backwards; those
//! behind it, added forwards; both united. The border depends on the window's time alone, so a step of a range query has
//! the bits of an instant query. A window then costs one union, because neighbours share the work: each sample is added once
//! backwards and once forwards, whatever the number of windows that hold it, and nothing is ever subtracted. Source of
//! the trick: van Herk and Gil-Werman, for running maxima.

use super::kahan::Sum;
use crate::eval::window::{Frame, Samples};

/// What a function remembers of some neighbouring samples.
pub(crate) trait Partial: Copy {
    /// Of one sample: its entry and value.
    fn of(entry: usize, value: f64) -> Self;
    /// Of these samples and those that follow them.
    fn unite(self, later: Self) -> Self;
}

/// Aggregates every window that is not empty; `finish` makes a value of its partial and its entries.
pub(crate) fn each<P: Partial>(
    samples: Samples<'_>,
    frame: &Frame,
    out: &mut [f64],
    finish: impl Fn(P, &[f64]) -> f64,
) {
    let Samples { times, values, windows } = samples;
    let splits = windows.splits(times, frame);
    // The border of the last window, what lies before it (the nearest entry first) and behind it up to `end`.
    let mut split = usize::MAX;
    let mut before: Vec<P> = Vec::new();
    let mut behind: Option<P> = None;
    let mut end = 0;
    for ((window, &border), out) in windows.iter().zip(splits).zip(out) {
        if window.is_empty() {
            continue;
        }
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
}

impl Partial for Sum {
    fn of(_: usize, value: f64) -> Sum {
        // Minus zero alone stays what it is; in a sum it is zero.
        Sum { sum: 0.0 + value, rest: 0.0 }
    }

    fn unite(mut self, later: Sum) -> Sum {
        self.add(later.sum);
        self.rest += later.rest;
        self
    }
}

/// The greatest or the smallest value; of equal ones the first or the last. NaN gives way to anything.
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

/// Count, mean and squared distances from it. Source: Chan, Golub and LeVeque's way to unite them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    count: f64,
    mean: Sum,
    squares: Sum,
}

impl Spread {
    /// The variance, if no step of the way overflowed or met an infinity or NaN.
    pub(crate) fn variance(&self) -> Option<f64> {
        let squares = self.squares.sum + self.squares.rest;
        squares.is_finite().then_some(squares / self.count)
    }
}

impl Partial for Spread {
    fn of(_: usize, value: f64) -> Spread {
        // An infinity's distance from itself is no number, and NaN has none.
        let squares = Sum { sum: if value.is_finite() { 0.0 } else { f64::NAN }, rest: 0.0 };
        Spread { count: 1.0, mean: Sum { sum: value, rest: 0.0 }, squares }
    }

    fn unite(self, later: Spread) -> Spread {
        let count = self.count + later.count;
        let delta = (later.mean.sum - self.mean.sum) + (later.mean.rest - self.mean.rest);
        let mut mean = self.mean;
        mean.add(delta * (later.count / count));
        let mut squares = self.squares.unite(later.squares);
        squares.add(delta * delta * (self.count * later.count / count));
        Spread { count, mean, squares }
    }
}
