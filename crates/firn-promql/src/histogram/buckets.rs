//! The bounds of buckets.

use firn_model::{Histogram, HistogramBucket};

/// A bucket of a native histogram with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedBucket {
    /// The lower bound; infinite for the first bucket with custom bounds.
    pub lower: f64,
    /// The upper bound; infinite for the last bucket with custom bounds.
    pub upper: f64,
    /// Whether `lower` is inside the bucket.
    pub lower_inclusive: bool,
    /// Whether `upper` is inside the bucket.
    pub upper_inclusive: bool,
    /// The number of its own observations.
    pub count: f64,
}

/// All stored buckets, smallest values first; the zero bucket only if it has observations.
/// O(buckets).
pub fn all_buckets(histogram: &Histogram) -> Vec<BoundedBucket> {
    let negative = histogram.negative.iter().rev().map(|bucket| negative_bucket(histogram, bucket));
    let zero = (histogram.zero_count > 0.0).then(|| zero_bucket(histogram));
    let positive = histogram.positive.iter().map(|bucket| positive_bucket(histogram, bucket));
    negative.chain(zero).chain(positive).collect()
}

/// A bucket of positive observations, or one with custom bounds.
pub(crate) fn positive_bucket(histogram: &Histogram, bucket: &HistogramBucket) -> BoundedBucket {
    let (index, count) = (bucket.index, bucket.count);
    if histogram.has_custom_bounds() {
        let bounds = &histogram.custom_bounds;
        let bound = |idx: usize| bounds.get(idx).copied().unwrap_or(f64::INFINITY);
        let idx = usize::try_from(index).unwrap_or(0);
        let lower = if idx == 0 { f64::NEG_INFINITY } else { bound(idx - 1) };
        let (lower_inclusive, upper_inclusive) = (idx == 0, true);
        return BoundedBucket { lower, upper: bound(idx), lower_inclusive, upper_inclusive, count };
    }
    let (lower, upper) = exponential_bounds(histogram.schema, index);
    BoundedBucket { lower, upper, lower_inclusive: false, upper_inclusive: true, count }
}

/// A bucket of negative observations: the positive one mirrored.
pub(crate) fn negative_bucket(histogram: &Histogram, bucket: &HistogramBucket) -> BoundedBucket {
    let (lower, upper) = exponential_bounds(histogram.schema, bucket.index);
    let (lower_inclusive, upper_inclusive) = (true, false);
    let count = bucket.count;
    BoundedBucket { lower: -upper, upper: -lower, lower_inclusive, upper_inclusive, count }
}

/// The bucket around zero.
pub(crate) fn zero_bucket(histogram: &Histogram) -> BoundedBucket {
    BoundedBucket {
        lower: -histogram.zero_threshold,
        upper: histogram.zero_threshold,
        lower_inclusive: true,
        upper_inclusive: true,
        count: histogram.zero_count,
    }
}

/// Lower and upper bound of a positive bucket.
pub(crate) fn exponential_bounds(schema: i32, index: i32) -> (f64, f64) {
    (upper_bound(schema, index.saturating_sub(1)), upper_bound(schema, index))
}

/// `2^(index * 2^-schema)`. The bucket above the greatest double contains only infinity, so the one
/// below it ends at that double.
fn upper_bound(schema: i32, index: i32) -> f64 {
    let steps_per_doubling = 2f64.powi(schema.clamp(0, 30));
    let doublings = f64::from(index) * 2f64.powi((-schema).clamp(0, 30));
    if doublings == 1024.0 * steps_per_doubling {
        return f64::MAX;
    }
    // Powers of two are exact; the part below one doubling is rounded once.
    let whole = (doublings / steps_per_doubling).floor();
    let part = doublings - whole * steps_per_doubling;
    (part / steps_per_doubling).exp2() * whole.exp2()
}

/// The bucket of a coarser schema that contains bucket `index`; `levels` is the difference of the
/// schemas.
pub(crate) fn coarser_index(index: i32, levels: i32) -> i32 {
    (index.saturating_sub(1) >> levels.clamp(0, 31)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_powers() {
        assert_eq!(exponential_bounds(0, 1), (1.0, 2.0));
        assert_eq!(exponential_bounds(-1, 0), (0.25, 1.0));
        assert_eq!(exponential_bounds(-4, 1), (1.0, 65_536.0));
        assert_eq!(exponential_bounds(1, 1), (1.0, std::f64::consts::SQRT_2));
        assert_eq!(exponential_bounds(0, 1024), (2f64.powi(1023), f64::MAX));
        assert_eq!(exponential_bounds(0, 1025), (f64::MAX, f64::INFINITY));
        assert_eq!(exponential_bounds(0, -1073).0, f64::from_bits(1));
        assert_eq!(exponential_bounds(8, 2048).1, 256.0);
        assert_eq!([-2, -1, 0, 1, 2, 3].map(|index| coarser_index(index, 1)), [-1, 0, 0, 1, 1, 2]);
    }

    #[test]
    fn custom_buckets_end_at_infinity() {
        let histogram = Histogram {
            schema: Histogram::CUSTOM_SCHEMA,
            custom_bounds: [5.0, 10.0].into(),
            positive: (0..3).map(|index| HistogramBucket { index, count: 1.0 }).collect(),
            ..Histogram::empty()
        };
        let bounds: Vec<_> = all_buckets(&histogram).iter().map(|b| (b.lower, b.upper)).collect();
        assert_eq!(bounds, [(f64::NEG_INFINITY, 5.0), (5.0, 10.0), (10.0, f64::INFINITY)]);
    }
}
