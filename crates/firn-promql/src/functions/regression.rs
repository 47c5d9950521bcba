//! Least squares and smoothing over a window.

use firn_model::Timestamp;

use super::kahan::Sum;

/// The slope per second, and the value at `origin`, of the line through the samples.
pub(crate) fn line(times: &[Timestamp], values: &[f64], origin: Timestamp) -> (f64, f64) {
    let (mut sum_x, mut sum_y) = (Sum::default(), Sum::default());
    let (mut sum_xy, mut sum_x2) = (Sum::default(), Sum::default());
    let first = values.first().copied().unwrap_or(f64::NAN);
    let mut is_constant = true;
    for (&ts, &y) in times.iter().zip(values) {
        is_constant &= y == first;
        let x = ts.saturating_sub(origin) as f64 / 1e3;
        sum_x.add(x);
        sum_y.add(y);
        sum_xy.add(x * y);
        sum_x2.add(x * x);
    }
    if is_constant {
        return if first.is_infinite() { (f64::NAN, f64::NAN) } else { (0.0, first) };
    }
    let count = values.len() as f64;
    let total = |sum: Sum| sum.sum + sum.rest;
    let (sum_x, sum_y) = (total(sum_x), total(sum_y));
    let covariance = total(sum_xy) - sum_x * sum_y / count;
    let variance = total(sum_x2) - sum_x * sum_x / count;
    let slope = covariance / variance;
    (slope, sum_y / count - slope * sum_x / count)
}

/// Double exponential smoothing of at least two values. Both factors are between 0 and 1.
pub(crate) fn smooth(values: &[f64], smoothing: f64, trending: f64) -> f64 {
    let mut before = 0.0;
    let mut smoothed = values[0];
    let mut trend = values[1] - values[0];
    for (idx, &value) in values.iter().enumerate().skip(1) {
        let scaled = smoothing * value;
        if idx > 1 {
            trend = trending * (smoothed - before) + (1.0 - trending) * trend;
        }
        let carried = (1.0 - smoothing) * (smoothed + trend);
        (before, smoothed) = (smoothed, scaled + carried);
    }
    smoothed
}
