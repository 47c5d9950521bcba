//! Statistics over the values of one window, which is never empty, from the window's partial
//! aggregate.
//!
//! If a partial sum came near an overflow, the order of the additions decides whether the result is
//! finite; if large values cancel each other, it decides all digits. Such a window is added again
//! from its first sample to its last, as in Prometheus. Values of one sign do not cancel, so
//! [`has_both_signs`] selects the cheaper kind of partial sum for most columns.

use super::kahan::{Mean, Sum};
use super::partial::{OrderedSum, VariancePartial};

/// A partial sum of a window that knows whether the order of its additions matters.
pub(crate) trait WindowSum {
    fn sum(&self) -> Sum;
    fn depends_on_order(&self, count: usize) -> bool;
}

/// Whether some values are positive and some negative.
pub(crate) fn has_both_signs(values: &[f64]) -> bool {
    let signs = |(above, below): (bool, bool), value: &f64| {
        (above | (*value > 0.0), below | (*value < 0.0))
    };
    let mut both = (false, false);
    for block in values.chunks(256) {
        both = block.iter().fold(both, signs);
        if both == (true, true) {
            return true;
        }
    }
    false
}

/// The sum of values of one sign.
impl WindowSum for Sum {
    fn sum(&self) -> Sum {
        *self
    }

    fn depends_on_order(&self, _: usize) -> bool {
        // Only a NaN among the values makes this sum NaN.
        !self.is_far_from_overflow() && !self.sum.is_nan()
    }
}

/// The sum of any values. For values of one sign it decides as the other.
impl WindowSum for OrderedSum {
    fn sum(&self) -> Sum {
        self.sum
    }

    fn depends_on_order(&self, count: usize) -> bool {
        let may_overflow = self.peak * count as f64 >= 1e300;
        let size = (self.sum.sum + self.sum.rest).abs();
        if size.is_nan() {
            // A NaN among the values, or infinities of both signs, which may be overflows.
            return may_overflow;
        }
        let cancels = self.is_rounded && size < self.peak * 1e-9;
        !self.sum.is_far_from_overflow() || cancels || (may_overflow && size < self.peak * 0.5)
    }
}

pub(crate) fn sum<S: WindowSum>(all: S, values: &[f64]) -> f64 {
    if !all.depends_on_order(values.len()) {
        return plain_nan(all.sum().value());
    }
    let mut sum = Sum::default();
    values.iter().for_each(|&value| sum.add(value));
    plain_nan(sum.value())
}

pub(crate) fn mean<S: WindowSum>(all: S, values: &[f64]) -> f64 {
    if !all.depends_on_order(values.len()) {
        let (count, all) = (values.len() as f64, all.sum());
        return plain_nan(all.sum / count + all.rest / count);
    }
    let mut mean = Mean::of(values[0]);
    values[1..].iter().for_each(|&value| mean.add(value));
    plain_nan(mean.value())
}

/// One NaN for all: its sign and payload depend on the order of the additions.
fn plain_nan(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
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
        let check_sum = |values: &[f64]| sum(all::<OrderedSum>(values), values);
        let check_mean = |values: &[f64]| mean(all::<OrderedSum>(values), values);
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

    /// Found by comparing with Prometheus 3.15. A window is cut at a time that has nothing to do
    /// with its values, so each cut must have the result of adding from the first to the last.
    #[test]
    fn no_cut_of_a_window_changes_an_overflow_or_a_cancellation() {
        let (max, inf) = (f64::MAX, f64::INFINITY);
        let cases: [(&[f64], f64, f64); 10] = [
            (&[1e308, 1e308, -1e308, -1e308], inf, 0.0),
            (&[-1e308, -1e308, 1e308, 1e308], -inf, 0.0),
            (&[1e308, -1e308, 1e308, -1e308, 3.0, 3.0], 6.0, 1.0),
            (&[max, max, -max], inf, max / 3.0),
            (&[-1e292, max, -max], -1e292, -1e292 / 3.0),
            (&[1e100, 1e50, 1.0, -1e100, -1e50], 0.0, 0.0),
            (&[1.0, 1e100, 1.0, -1e100], 2.0, 0.5),
            (&[inf, -1e308, -1e308], inf, inf),
            (&[5e-324, -5e-324, 5e-324], 5e-324, 0.0),
            (&[1.7e308; 7], inf, 1.7e308),
        ];
        for (values, sum_expected, mean_expected) in cases {
            for cut in 0..=values.len() {
                let (before, after) = values.split_at(cut);
                let before = before.iter().rev().map(|&value| OrderedSum::of(0, value));
                let before = before.reduce(|later, earlier| earlier.unite(later));
                let after = (!after.is_empty()).then(|| all::<OrderedSum>(after));
                let both = match (before, after) {
                    (Some(before), Some(after)) => before.unite(after),
                    (one, other) => one.or(other).unwrap(),
                };
                let near = |got: f64, expected: f64| {
                    got == expected || (got - expected).abs() < 1e-14 * expected.abs()
                };
                let (sum, mean) = (sum(both, values), mean(both, values));
                assert!(near(sum, sum_expected), "{values:?} at {cut}: sum {sum}");
                let is_mean = near(mean, mean_expected)
                    // The rounding error of an incremental mean of numbers that cancel.
                    || (mean_expected == 0.0 && mean.abs() < 1e293);
                assert!(is_mean, "{values:?} at {cut}: mean {mean}");
            }
        }
    }
}
