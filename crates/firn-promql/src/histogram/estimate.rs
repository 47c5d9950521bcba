//! Estimates from buckets: quantiles, fractions, variances.

use firn_model::Histogram;

use super::buckets::{BoundedBucket, all_buckets};
use crate::functions::kahan::Sum;

/// The effect of NaN observations, which are in no bucket, on a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NanEffect {
    /// The quantile is NaN.
    Result,
    /// The quantile is higher than without them.
    Skew,
    /// No fraction includes them.
    Excluded,
}

/// The `q`-quantile: interpolated within its bucket, exponentially where buckets are exponential.
pub(crate) fn quantile(q: f64, histogram: &Histogram) -> (f64, Option<NanEffect>) {
    if q < 0.0 {
        return (f64::NEG_INFINITY, None);
    }
    if q > 1.0 {
        return (f64::INFINITY, None);
    }
    if histogram.count == 0.0 || q.is_nan() {
        return (f64::NAN, None);
    }
    let mut buckets = all_buckets(histogram);
    // Starting from the nearer end reduces rounding errors. NaN sorts above every value, so with
    // NaN observations only the lower end has its real rank.
    let has_nan = histogram.sum.is_nan();
    let forward = has_nan || q < 0.5;
    if !forward {
        buckets.reverse();
    }
    let mut rank = if forward { q } else { 1.0 - q } * histogram.count;
    let mut found = BoundedBucket {
        lower: 0.0,
        upper: 0.0,
        lower_inclusive: true,
        upper_inclusive: true,
        count: 0.0,
    };
    let mut count = 0.0;
    for bucket in buckets.into_iter().filter(|bucket| bucket.count != 0.0) {
        found = bucket;
        count += bucket.count;
        if count >= rank {
            break;
        }
    }
    if histogram.has_custom_bounds() {
        if found.lower == f64::NEG_INFINITY {
            if found.upper <= 0.0 {
                return (found.upper, None);
            }
            found.lower = 0.0;
        } else if found.upper == f64::INFINITY {
            return (found.lower, None);
        }
    } else {
        narrow_zero(histogram, &mut found);
    }
    let count = count.min(histogram.count);
    if count < rank {
        return if has_nan { (f64::NAN, Some(NanEffect::Result)) } else { (found.upper, None) };
    }
    rank = if forward { rank - (count - found.count) } else { count - rank };
    let effect = has_nan.then_some(NanEffect::Skew);
    (value_at(histogram, &found, rank / found.count), effect)
}

/// If only one side has buckets, the zero bucket is assumed to be on that side too.
fn narrow_zero(histogram: &Histogram, bucket: &mut BoundedBucket) {
    if bucket.lower < 0.0 && bucket.upper > 0.0 {
        match (histogram.negative.is_empty(), histogram.positive.is_empty()) {
            (true, false) => bucket.lower = 0.0,
            (false, true) => bucket.upper = 0.0,
            _ => {}
        }
    }
}

/// Whether observations are assumed to be distributed linearly within a bucket, and not on a
/// logarithmic scale.
pub(crate) fn is_linear(histogram: &Histogram, bucket: &BoundedBucket) -> bool {
    histogram.has_custom_bounds() || (bucket.lower <= 0.0 && bucket.upper >= 0.0)
}

/// The value below which `part` of the bucket's observations are.
fn value_at(histogram: &Histogram, bucket: &BoundedBucket, part: f64) -> f64 {
    if is_linear(histogram, bucket) {
        return bucket.lower + (bucket.upper - bucket.lower) * part;
    }
    let (lower, upper) = (bucket.lower.abs().log2(), bucket.upper.abs().log2());
    if bucket.lower > 0.0 {
        (lower + (upper - lower) * part).exp2()
    } else {
        -(upper + (lower - upper) * (1.0 - part)).exp2()
    }
}

/// The share of a bucket's observations below `value`, which is inside the bucket.
pub(crate) fn part_below(histogram: &Histogram, bucket: &BoundedBucket, value: f64) -> f64 {
    if is_linear(histogram, bucket) {
        return (value - bucket.lower) / (bucket.upper - bucket.lower);
    }
    let (lower, upper) = (bucket.lower.abs().log2(), bucket.upper.abs().log2());
    let at = value.abs().log2();
    if value > 0.0 { (at - lower) / (upper - lower) } else { 1.0 - (at - upper) / (lower - upper) }
}

/// The share of observations between `lower` and `upper`.
pub(crate) fn fraction(lower: f64, upper: f64, histogram: &Histogram) -> (f64, Option<NanEffect>) {
    if histogram.count == 0.0 || lower.is_nan() || upper.is_nan() {
        return (f64::NAN, None);
    }
    if lower >= upper {
        return (0.0, None);
    }
    let buckets = all_buckets(histogram);
    let (mut count, mut effect) = (histogram.count, None);
    if histogram.sum.is_nan() {
        let inside: f64 = buckets.iter().map(|bucket| bucket.count).sum();
        if inside < count {
            (count, effect) = (inside, Some(NanEffect::Excluded));
        }
    }
    let rank = |value| rank_of(value, histogram, &buckets).unwrap_or(count).min(count);
    ((rank(upper) - rank(lower)) / histogram.count, effect)
}

/// The number of observations below `value`; `None` above all buckets.
fn rank_of(value: f64, histogram: &Histogram, buckets: &[BoundedBucket]) -> Option<f64> {
    let mut rank = 0.0;
    for bucket in buckets {
        let mut bucket = *bucket;
        if !histogram.has_custom_bounds() {
            narrow_zero(histogram, &mut bucket);
        } else if bucket.lower == f64::NEG_INFINITY && bucket.upper > 0.0 {
            bucket.lower = 0.0;
        }
        if bucket.lower >= value {
            return Some(rank);
        }
        if bucket.upper > value {
            // All observations of an infinite bucket are assumed to be at its infinite end.
            return Some(if bucket.lower == f64::NEG_INFINITY {
                bucket.count
            } else if bucket.upper == f64::INFINITY {
                rank
            } else {
                rank + bucket.count * part_below(histogram, &bucket, value)
            });
        }
        rank += bucket.count;
    }
    None
}

/// The variance; each observation is assumed to be in the middle of its bucket.
pub(crate) fn variance(histogram: &Histogram) -> f64 {
    let mean = histogram.sum / histogram.count;
    let mut squares = Sum::default();
    for bucket in all_buckets(histogram).iter().filter(|bucket| bucket.count != 0.0) {
        let middle = if histogram.has_custom_bounds() {
            f64::midpoint(bucket.lower, bucket.upper)
        } else if bucket.lower <= 0.0 && bucket.upper >= 0.0 {
            0.0
        } else {
            (bucket.lower * bucket.upper).sqrt().copysign(bucket.upper)
        };
        let distance = middle - mean;
        squares.add(bucket.count * distance * distance);
    }
    (squares.sum + squares.rest) / histogram.count
}

#[cfg(test)]
mod tests {
    use firn_model::HistogramBucket;

    use super::*;

    fn histogram(buckets: &[(i32, f64)]) -> Histogram {
        let positive = buckets.iter().map(|&(index, count)| HistogramBucket { index, count });
        let count = buckets.iter().map(|bucket| bucket.1).sum();
        Histogram { count, sum: 5.0, positive: positive.collect(), ..Histogram::empty() }
    }

    #[test]
    fn quantiles_and_fractions_are_inverse() {
        let histogram = histogram(&[(0, 1.0), (1, 2.0), (2, 1.0)]);
        assert_eq!(quantile(0.5, &histogram).0, std::f64::consts::SQRT_2);
        for q in [0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0] {
            let (value, _) = quantile(q, &histogram);
            let (share, _) = fraction(f64::NEG_INFINITY, value, &histogram);
            assert!((share - q).abs() < 1e-12, "{q}: {value} {share}");
        }
        assert!(quantile(0.5, &Histogram::empty()).0.is_nan());
    }

    #[test]
    fn not_a_number_is_above_everything() {
        let histogram = Histogram { count: 15.0, sum: f64::NAN, ..histogram(&[(0, 12.0)]) };
        assert_eq!(quantile(0.8, &histogram), (1.0, Some(NanEffect::Skew)));
        let (value, effect) = quantile(0.81, &histogram);
        assert!(value.is_nan() && effect == Some(NanEffect::Result));
        let all = fraction(f64::NEG_INFINITY, f64::INFINITY, &histogram);
        assert_eq!(all, (0.8, Some(NanEffect::Excluded)));
    }
}
