//! Classic histograms: buckets with upper bounds and cumulative counts.

use crate::eval::notes::MonotonicityFix;

/// A bucket: the count of all observations up to `upper`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) upper: f64,
    pub(crate) count: f64,
}

/// Counts with a smaller relative difference are equal.
const NOISE: f64 = 1e-12;

/// The `q`-quantile, linear within a bucket, and the correction of falling counts, if any.
///
/// NaN without a `+Inf` bucket, with fewer than two buckets or without observations. `buckets`
/// contains at least one bucket.
pub(crate) fn quantile(
    q: f64,
    buckets: &mut Vec<Bucket>,
    ts: i64,
) -> (f64, Option<MonotonicityFix>) {
    if q.is_nan() {
        return (f64::NAN, None);
    }
    if !(0.0..=1.0).contains(&q) {
        return (if q < 0.0 { f64::NEG_INFINITY } else { f64::INFINITY }, None);
    }
    if !prepare(buckets) {
        return (f64::NAN, None);
    }
    let forced = make_monotonic(buckets, ts);
    let top = buckets.len() - 1;
    let observations = buckets[top].count;
    if top == 0 || observations == 0.0 {
        return (f64::NAN, forced);
    }
    let mut rank = q * observations;
    let idx = buckets[..top].iter().position(|bucket| bucket.count >= rank).unwrap_or(top);
    if idx == top {
        return (buckets[top - 1].upper, forced);
    }
    let bucket = buckets[idx];
    if idx == 0 && bucket.upper <= 0.0 {
        return (bucket.upper, forced);
    }
    let (mut start, mut count) = (0.0, bucket.count);
    if idx > 0 {
        start = buckets[idx - 1].upper;
        count -= buckets[idx - 1].count;
        rank -= buckets[idx - 1].count;
    }
    (start + (bucket.upper - start) * (rank / count), forced)
}

/// The share of observations between `lower` and `upper`, linear within a bucket.
pub(crate) fn fraction(lower: f64, upper: f64, buckets: &mut Vec<Bucket>) -> f64 {
    if !prepare(buckets) {
        return f64::NAN;
    }
    let total = buckets[buckets.len() - 1].count;
    if total == 0.0 || total.is_nan() || lower.is_nan() || upper.is_nan() {
        return f64::NAN;
    }
    if lower >= upper {
        return 0.0;
    }
    (rank_of(upper, buckets, total) - rank_of(lower, buckets, total)) / total
}

/// The number of observations up to `value`.
fn rank_of(value: f64, buckets: &[Bucket], total: f64) -> f64 {
    let mut rank: f64 = 0.0;
    let mut start = if buckets[0].upper <= 0.0 { f64::NEG_INFINITY } else { 0.0 };
    for bucket in buckets {
        if start >= value {
            return rank.min(total);
        }
        if bucket.upper > value {
            let inside = if start == f64::NEG_INFINITY {
                bucket.count
            } else {
                rank + (bucket.count - rank) * (value - start) / (bucket.upper - start)
            };
            return inside.min(total);
        }
        rank = bucket.count;
        start = bucket.upper;
    }
    total
}

/// Sorts the buckets and merges those with the same bound; returns whether the last one is `+Inf`.
fn prepare(buckets: &mut Vec<Bucket>) -> bool {
    buckets.sort_by(|a, b| a.upper.total_cmp(&b.upper));
    buckets.dedup_by(|next, kept| {
        let same = next.upper == kept.upper;
        if same {
            kept.count += next.count;
        }
        same
    });
    buckets.last().is_some_and(|bucket| bucket.upper == f64::INFINITY)
}

/// Raises counts that are below their predecessor; reports corrections beyond rounding noise.
fn make_monotonic(buckets: &mut [Bucket], ts: i64) -> Option<MonotonicityFix> {
    let mut forced: Option<MonotonicityFix> = None;
    let mut before = buckets[0].count;
    for bucket in &mut buckets[1..] {
        let count = bucket.count;
        if count == before {
            continue;
        }
        if is_noise(before, count) {
            bucket.count = before;
        } else if count < before {
            bucket.count = before;
            let all = forced.get_or_insert(MonotonicityFix {
                ts_min: ts,
                ts_max: ts,
                bucket_min: f64::INFINITY,
                bucket_max: f64::NEG_INFINITY,
                diff_max: 0.0,
                count: 1,
            });
            all.bucket_min = all.bucket_min.min(bucket.upper);
            all.bucket_max = all.bucket_max.max(bucket.upper);
            all.diff_max = all.diff_max.max(before - count);
        } else {
            before = count;
        }
    }
    forced
}

fn is_noise(a: f64, b: f64) -> bool {
    if a.is_nan() && b.is_nan() {
        return true;
    }
    let (sum, difference) = (a.abs() + b.abs(), (a - b).abs());
    if a == 0.0 || b == 0.0 || sum < f64::MIN_POSITIVE {
        return difference < NOISE * f64::MIN_POSITIVE;
    }
    difference / sum.min(f64::MAX) < NOISE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(pairs: &[(f64, f64)]) -> Vec<Bucket> {
        pairs.iter().map(|&(upper, count)| Bucket { upper, count }).collect()
    }

    #[test]
    fn quantiles_interpolate_within_a_bucket() {
        let inf = f64::INFINITY;
        let f = |q, pairs: &[(f64, f64)]| quantile(q, &mut buckets(pairs), 0).0;
        assert_eq!(f(0.5, &[(1.0, 10.0), (2.0, 20.0), (inf, 20.0)]), 1.0);
        assert_eq!(f(0.75, &[(2.0, 20.0), (1.0, 10.0), (inf, 20.0)]), 1.5);
        assert_eq!(f(0.99, &[(1.0, 10.0), (inf, 20.0)]), 1.0);
        assert!(f(0.5, &[(1.0, 10.0)]).is_nan());
        assert!(f(0.5, &[(inf, 0.0)]).is_nan());
        let (_, forced) = quantile(0.5, &mut buckets(&[(1.0, 10.0), (2.0, 5.0), (inf, 20.0)]), 7);
        assert_eq!(forced.map(|all| (all.bucket_min, all.diff_max)), Some((2.0, 5.0)));
    }

    #[test]
    fn fractions_are_ranks_apart() {
        let inf = f64::INFINITY;
        let f = |lower, upper| {
            fraction(lower, upper, &mut buckets(&[(1.0, 10.0), (2.0, 20.0), (inf, 40.0)]))
        };
        assert_eq!(f(0.0, 1.5), 0.375);
        assert_eq!(f(-inf, inf), 1.0);
        assert_eq!(f(2.0, 1.0), 0.0);
    }
}
