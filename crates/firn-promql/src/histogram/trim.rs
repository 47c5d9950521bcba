//! `histogram </ value` and `histogram >/ value`: the observations below or above a value.

use firn_model::{Histogram, HistogramBucket};

use super::buckets::{BoundedBucket, negative_bucket, positive_bucket, zero_bucket};
use super::estimate::{is_linear, part_below};

/// The remaining count of a bucket, and the assumed value of its observations.
struct TrimmedBucket {
    count: f64,
    middle: f64,
}

/// `histogram` without the observations above `limit`, or with `keeps_upper` without those below.
/// If any are removed, count and sum are estimated again from the rest.
pub(crate) fn trim(histogram: &Histogram, limit: f64, keeps_upper: bool) -> Histogram {
    let cut = TrimRule { histogram, limit, keeps_upper };
    let (mut count, mut sum) = (0.0, 0.0);
    let mut is_same = true;
    let mut keep = |bucket: BoundedBucket| {
        let trimmed = if bucket.count == 0.0 { None } else { cut.trimmed(bucket) };
        let trimmed = trimmed.unwrap_or(TrimmedBucket { count: 0.0, middle: 0.0 });
        is_same &= trimmed.count == bucket.count;
        count += trimmed.count;
        sum += trimmed.count * trimmed.middle;
        trimmed.count
    };
    let mut side = |buckets: &[HistogramBucket],
                    place: fn(&Histogram, &HistogramBucket) -> BoundedBucket| {
        let one = |bucket: &HistogramBucket| HistogramBucket {
            index: bucket.index,
            count: keep(place(histogram, bucket)),
        };
        let trimmed = buckets.iter().map(one);
        trimmed.filter(|bucket| bucket.count != 0.0).collect::<Vec<_>>()
    };
    let positive = side(&histogram.positive, positive_bucket);
    let negative = side(&histogram.negative, negative_bucket);
    let mut zero = zero_bucket(histogram);
    match (histogram.negative.is_empty(), histogram.positive.is_empty()) {
        (true, false) => zero.lower = 0.0,
        (false, true) => zero.upper = 0.0,
        _ => {}
    }
    let zero_count = if zero.count > 0.0 { keep(zero) } else { zero.count };
    if is_same {
        return histogram.clone();
    }
    Histogram { count, sum, zero_count, positive, negative, ..histogram.clone() }
}

struct TrimRule<'a> {
    histogram: &'a Histogram,
    limit: f64,
    keeps_upper: bool,
}

impl TrimRule<'_> {
    fn trimmed(&self, mut bucket: BoundedBucket) -> Option<TrimmedBucket> {
        let limit = self.limit;
        let is_linear = is_linear(self.histogram, &bucket);
        let whole = if self.keeps_upper { bucket.lower >= limit } else { bucket.upper <= limit };
        if whole {
            return Some(TrimmedBucket { count: bucket.count, middle: middle(&bucket, is_linear) });
        }
        let nothing = if self.keeps_upper { bucket.upper <= limit } else { bucket.lower >= limit };
        // A limit of NaN also removes everything.
        if nothing || limit.is_nan() {
            return None;
        }
        match (bucket.lower == f64::NEG_INFINITY, bucket.upper == f64::INFINITY) {
            (true, true) => return None,
            // The distribution inside the bucket is unknown: its observations stay on the side
            // without an end.
            (false, true) => {
                return self
                    .keeps_upper
                    .then_some(TrimmedBucket { count: bucket.count, middle: limit });
            }
            (true, false) if bucket.upper <= 0.0 => {
                return (!self.keeps_upper)
                    .then_some(TrimmedBucket { count: bucket.count, middle: limit });
            }
            // The first bucket is assumed to start at 0 if it can.
            (true, false) if limit < 0.0 => return None,
            (true, false) => bucket.lower = 0.0,
            (false, false) => {}
        }
        let below = part_below(self.histogram, &bucket, limit);
        let part = if self.keeps_upper {
            bucket.lower = limit;
            1.0 - below
        } else {
            bucket.upper = limit;
            below
        };
        Some(TrimmedBucket { count: bucket.count * part, middle: middle(&bucket, is_linear) })
    }
}

/// The assumed value of the observations in a bucket.
fn middle(bucket: &BoundedBucket, is_linear: bool) -> f64 {
    let (lower, upper) = (bucket.lower, bucket.upper);
    match (lower == f64::NEG_INFINITY, upper == f64::INFINITY) {
        (true, true) => 0.0,
        (true, false) if upper > 0.0 => upper / 2.0,
        (true, false) => upper,
        (false, true) => lower,
        (false, false) if is_linear => f64::midpoint(lower, upper),
        // Roots first: the product may overflow.
        (false, false) => (lower.abs().sqrt() * upper.abs().sqrt()).copysign(upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_observations_are_counted_again() {
        let positive = vec![HistogramBucket { index: 1, count: 4.0 }];
        let whole = Histogram { count: 4.0, sum: 7.5, positive, ..Histogram::empty() };
        assert_eq!(trim(&whole, 2.0, false), whole);
        assert_eq!(trim(&whole, 1.0, true), whole);
        let lower = trim(&whole, std::f64::consts::SQRT_2, false);
        assert!((lower.count - 2.0).abs() < 1e-12);
        assert!((lower.sum - 2.0 * 2f64.powf(0.25)).abs() < 1e-12);
        assert_eq!(trim(&whole, f64::NAN, false).count, 0.0);
    }

    #[test]
    fn endless_buckets_stay_on_their_side() {
        let histogram = Histogram {
            schema: Histogram::CUSTOM_SCHEMA,
            count: 3.0,
            custom_bounds: [-5.0].into(),
            positive: vec![
                HistogramBucket { index: 0, count: 1.0 },
                HistogramBucket { index: 1, count: 2.0 },
            ],
            ..Histogram::empty()
        };
        let got = |limit, keeps_upper| {
            let trimmed = trim(&histogram, limit, keeps_upper);
            (trimmed.count, trimmed.sum)
        };
        assert_eq!(got(-10.0, false), (1.0, -10.0));
        assert_eq!(got(-10.0, true), (2.0, -10.0));
        assert_eq!(got(10.0, true), (2.0, 20.0));
        assert_eq!(got(10.0, false), (1.0, -5.0));
    }
}
