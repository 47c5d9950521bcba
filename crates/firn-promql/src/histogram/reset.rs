//! Detection of counter resets between two histograms.

use firn_model::{Histogram, ResetHint};

use super::running::{RunningHistogram, common_bounds, same_bounds};

/// Whether there was a counter reset between `previous` and `current`: by the hint, otherwise
/// because a count fell or the layout changed in a way that a counter cannot.
pub(crate) fn detects_reset(current: &Histogram, previous: &Histogram) -> bool {
    match current.reset_hint {
        ResetHint::Reset => return true,
        ResetHint::NoReset => return false,
        ResetHint::Unknown | ResetHint::Gauge => {}
    }
    if current.count < previous.count || current.has_custom_bounds() != previous.has_custom_bounds()
    {
        return true;
    }
    let mut now: RunningHistogram<f64> = RunningHistogram::new(current);
    let mut before: RunningHistogram<f64> = RunningHistogram::new(previous);
    if current.has_custom_bounds() {
        if !same_bounds(&current.custom_bounds, &previous.custom_bounds) {
            let both = common_bounds(&current.custom_bounds, &previous.custom_bounds);
            now.rebound(&both);
            before.rebound(&both);
        }
    } else {
        // Adding observations never increases the resolution or narrows the zero bucket.
        if current.schema > previous.schema || current.zero_threshold < previous.zero_threshold {
            return true;
        }
        before.widen_zero(current.zero_threshold);
        if before.zero().0 != current.zero_threshold || now.zero().1 < before.zero().1 {
            return true;
        }
        before.coarsen(current.schema);
    }
    let [now, before] = [now.bucket_lists(), before.bucket_lists()];
    now.into_iter().zip(before).any(|(now, before)| some_fell(now, before))
}

fn some_fell(now: &[(i32, f64)], before: &[(i32, f64)]) -> bool {
    before.iter().any(|&(index, count)| match now.binary_search_by_key(&index, |bucket| bucket.0) {
        Ok(idx) => now[idx].1 < count,
        Err(_) => count != 0.0,
    })
}

/// Whether two histograms have the same content, regardless of hints and empty buckets.
pub(crate) fn same_content(a: &Histogram, b: &Histogram) -> bool {
    let plain = |histogram: &Histogram| {
        let running: RunningHistogram<f64> = RunningHistogram::new(histogram);
        Histogram { reset_hint: ResetHint::Unknown, ..running.finish() }
    };
    plain(a) == plain(b)
}

#[cfg(test)]
mod tests {
    use firn_model::HistogramBucket;

    use super::*;

    fn histogram(schema: i32, count: f64, buckets: &[(i32, f64)]) -> Histogram {
        let positive = buckets.iter().map(|&(index, count)| HistogramBucket { index, count });
        Histogram { schema, count, positive: positive.collect(), ..Histogram::empty() }
    }

    #[test]
    fn counters_only_grow() {
        let one = histogram(0, 3.0, &[(0, 1.0), (1, 2.0)]);
        assert!(!detects_reset(&one, &one));
        assert!(!detects_reset(&histogram(0, 4.0, &[(0, 1.0), (1, 2.0), (2, 1.0)]), &one));
        assert!(detects_reset(&histogram(0, 4.0, &[(0, 4.0)]), &one));
        assert!(detects_reset(&histogram(0, 2.0, &[(0, 1.0), (1, 2.0)]), &one));
        // A coarser schema may continue the counter, a finer one is another counter.
        assert!(!detects_reset(&histogram(-1, 3.0, &[(0, 1.0), (1, 2.0)]), &one));
        assert!(detects_reset(&histogram(1, 9.0, &[(0, 9.0), (2, 9.0)]), &one));
        assert!(!detects_reset(&one, &histogram(0, 3.0, &[(0, 1.0), (1, 2.0), (7, 0.0)])));
        let hinted = Histogram { reset_hint: ResetHint::Reset, ..one.clone() };
        assert!(detects_reset(&hinted, &one));
        assert!(same_content(&hinted, &histogram(0, 3.0, &[(0, 1.0), (1, 2.0), (7, 0.0)])));
    }
}
