//! Sums with compensated rounding errors.

/// A sum with its compensation: the bits of Kahan summation in Neumaier's form, as in Prometheus.
/// The form without branches is Knuth's two-sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) sum: f64,
    pub(crate) rest: f64,
}

impl Sum {
    pub(crate) fn add(&mut self, value: f64) {
        let total = self.sum + value;
        // The exact rounding error of the total, computed without comparing the summands: six
        // operations beside the chain of sums instead of a branch that is hard to predict.
        let added = total - self.sum;
        let lost = (self.sum - (total - added)) + (value - added);
        self.rest = if total.is_infinite() { 0.0 } else { self.rest + lost };
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
