//! Sums with compensated rounding errors.

/// A sum with its compensation: the bits of Kahan summation in Neumaier's form, as in Prometheus.
/// The form without branches is Knuth's two-sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) sum: f64,
    pub(crate) rest: f64,
}

/// Sums of numbers below this do not come near an overflow, however many there are.
pub(crate) const TAME_MAX: f64 = 1e290;

/// The total and its exact rounding error, computed without comparing the summands: six operations
/// beside the chain of sums instead of a branch that is hard to predict.
fn two_sum(sum: f64, value: f64) -> (f64, f64) {
    let total = sum + value;
    let added = total - sum;
    (total, (sum - (total - added)) + (value - added))
}

impl Sum {
    pub(crate) fn add(&mut self, value: f64) {
        let (total, lost) = two_sum(self.sum, value);
        if !lost.is_finite() {
            return self.add_far(value);
        }
        self.rest += lost;
        self.sum = total;
    }

    /// As [`Sum::add`] without a branch, for summands and sums below [`TAME_MAX`].
    pub(crate) fn add_tame(&mut self, value: f64) {
        let (total, lost) = two_sum(self.sum, value);
        self.rest += lost;
        self.sum = total;
    }

    /// As [`Sum::add`] where an operation on the way to the rounding error overflows: for sums near
    /// the largest number, infinities and NaN.
    #[cold]
    fn add_far(&mut self, value: f64) {
        let total = self.sum + value;
        if total.is_infinite() {
            self.rest = 0.0;
        } else if self.sum.abs() >= value.abs() {
            self.rest += (self.sum - total) + value;
        } else {
            self.rest += (value - total) + self.sum;
        }
        self.sum = total;
    }

    pub(crate) fn value(self) -> f64 {
        if self.sum.is_infinite() { self.sum } else { self.sum + self.rest }
    }

    /// Whether the order of the additions affects rounding only: no overflow was near.
    pub(crate) fn is_far_from_overflow(self) -> bool {
        self.sum.abs() < 1e300
    }
}

/// A mean: the sum divided by the count as long as the sum does not overflow, incremental from then
/// on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    sum: Sum,
    count: f64,
    incremental: bool,
}

impl Mean {
    /// The mean of one value.
    pub(crate) fn of(value: f64) -> Mean {
        Mean { sum: Sum { sum: value, rest: 0.0 }, count: 1.0, incremental: false }
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1.0;
        let count = self.count;
        if !self.incremental {
            let mut next = self.sum;
            next.add(value);
            if !next.sum.is_infinite() {
                self.sum = next;
                return;
            }
            self.incremental = true;
            self.sum.sum /= count - 1.0;
            self.sum.rest /= count - 1.0;
        }
        let share = (count - 1.0) / count;
        self.sum.sum *= share;
        self.sum.rest *= share;
        self.sum.add(value / count);
    }

    pub(crate) fn value(self) -> f64 {
        if self.incremental {
            self.sum.sum + self.sum.rest
        } else {
            self.sum.sum / self.count + self.sum.rest / self.count
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neumaier's form, with its comparison.
    fn compared(values: &[f64]) -> Sum {
        let mut sum = Sum::default();
        values.iter().for_each(|&value| sum.add_far(value));
        sum
    }

    #[test]
    fn rounding_errors_near_the_largest_number_are_kept() {
        let max = f64::MAX;
        for values in [
            &[-1e292, max][..],
            &[max, -1e292, -max],
            &[max, 1e291, -max],
            &[max, max, -max],
            &[1.0, 1e100, 1.0, -1e100],
            &[max, f64::NEG_INFINITY, 1.0],
        ] {
            let mut sum = Sum::default();
            values.iter().for_each(|&value| sum.add(value));
            let expected = compared(values);
            assert_eq!(
                (sum.sum.to_bits(), sum.rest.to_bits()),
                (expected.sum.to_bits(), expected.rest.to_bits()),
                "{values:?}"
            );
            assert!(!sum.value().is_nan(), "{values:?}");
        }
    }
}
