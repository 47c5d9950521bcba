//! Statistics over the values of one window, none of them empty.

use super::kahan::{Mean, Sum};

pub(crate) fn sum(values: &[f64]) -> f64 {
    let mut sum = Sum::default();
    values.iter().for_each(|&value| sum.add(value));
    sum.value()
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    let mut mean = Mean::of(values[0]);
    values[1..].iter().for_each(|&value| mean.add(value));
    mean.value()
}

pub(crate) fn variance(values: &[f64]) -> f64 {
    let mut count = 0.0;
    let (mut mean, mut squares) = (Sum::default(), Sum::default());
    for &value in values {
        count += 1.0;
        let delta = value - (mean.sum + mean.rest);
        mean.add(delta / count);
        squares.add(delta * (value - (mean.sum + mean.rest)));
    }
    (squares.sum + squares.rest) / count
}

/// The entry that `better` prefers to all before it. NaN gives way to anything.
fn best(values: &[f64], better: impl Fn(f64, f64) -> bool) -> usize {
    let mut kept = 0;
    for (idx, &value) in values.iter().enumerate() {
        if better(value, values[kept]) || values[kept].is_nan() {
            kept = idx;
        }
    }
    kept
}

pub(crate) fn max(values: &[f64]) -> f64 {
    values[best(values, |value, kept| value > kept)]
}

pub(crate) fn min(values: &[f64]) -> f64 {
    values[best(values, |value, kept| value < kept)]
}

/// The last entry with the greatest value.
pub(crate) fn last_max(values: &[f64]) -> usize {
    best(values, |value, kept| value >= kept)
}

/// The last entry with the smallest value.
pub(crate) fn last_min(values: &[f64]) -> usize {
    best(values, |value, kept| value <= kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_values_keep_their_detail() {
        assert_eq!(sum(&[1.0, 1e100, 1.0, -1e100]), 2.0);
        assert_eq!(mean(&[1.0, 1e100, 1.0, -1e100]), 0.5);
        let big = 9e307;
        assert_eq!(mean(&[-big, -big, -big]), -big);
        assert_eq!(max(&[f64::NAN, 0.0, 1.0]), 1.0);
        assert!(min(&[f64::NAN]).is_nan());
        assert!((variance(&[0.0, 8.0, 8.0, 2.0, 3.0]) - 10.56).abs() < 1e-12);
        assert_eq!(last_max(&[1.0, 2.0, 2.0, 0.0]), 2);
    }
}
