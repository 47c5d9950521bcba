//! Statistics over the values of one window, which is never empty, from the window's partial
//! aggregate.
//!
//! If a partial sum came near an overflow, the order of the additions decides whether the result is
//! finite. Such a window is added again from its first sample to its last, as in Prometheus.

use super::kahan::{Mean, Sum};
use super::partial::VariancePartial;

pub(crate) fn sum(all: Sum, values: &[f64]) -> f64 {
    if all.is_far_from_overflow() || all.sum.is_nan() {
        return all.value();
    }
    let mut sum = Sum::default();
    values.iter().for_each(|&value| sum.add(value));
    sum.value()
}

pub(crate) fn mean(all: Sum, values: &[f64]) -> f64 {
    if all.is_far_from_overflow() || all.sum.is_nan() {
        let count = values.len() as f64;
        return all.sum / count + all.rest / count;
    }
    let mut mean = Mean::of(values[0]);
    values[1..].iter().for_each(|&value| mean.add(value));
    mean.value()
}

pub(crate) fn variance(all: VariancePartial, values: &[f64]) -> f64 {
    all.variance().unwrap_or_else(|| {
        let mut count = 0.0;
        let (mut mean, mut squares) = (Sum::default(), Sum::default());
        for &value in values {
            count += 1.0;
            let delta = value - (mean.sum + mean.rest);
            mean.add(delta / count);
            squares.add(delta * (value - (mean.sum + mean.rest)));
        }
        (squares.sum + squares.rest) / count
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::partial::Partial;

    fn all<P: Partial>(values: &[f64]) -> P {
        let each = values.iter().enumerate().map(|(entry, &value)| P::of(entry, value));
        each.reduce(P::unite).unwrap()
    }

    #[test]
    fn extreme_values_keep_their_detail() {
        let check_sum = |values: &[f64]| sum(all(values), values);
        let check_mean = |values: &[f64]| mean(all(values), values);
        assert_eq!(check_sum(&[1.0, 1e100, 1.0, -1e100]), 2.0);
        assert_eq!(check_mean(&[1.0, 1e100, 1.0, -1e100]), 0.5);
        assert_eq!(check_sum(&[f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(check_sum(&[f64::INFINITY, f64::NEG_INFINITY, 1.0]).is_nan());
        let big = 9e307;
        assert_eq!(check_mean(&[-big, -big, -big]), -big);
        let values = [0.0, 8.0, 8.0, 2.0, 3.0];
        assert!((variance(all(&values), &values) - 10.56).abs() < 1e-12);
        assert!(variance(all(&[f64::INFINITY]), &[f64::INFINITY]).is_nan());
        assert_eq!(variance(all(&[7.5; 3]), &[7.5; 3]), 0.0);
    }
}
