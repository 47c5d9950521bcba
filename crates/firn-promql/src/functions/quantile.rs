//! The φ-quantile of plain values.

use std::cmp::Ordering;
use std::ops::Range;

/// The `q`-quantile of `values`, which are reordered. Between two values it is their weighted mean;
/// NaN counts as the smallest value; outside [0, 1] the result is infinite. O(values).
pub(crate) fn quantile(q: f64, values: &mut [f64]) -> f64 {
    at_rank(q, values.len(), |lower| {
        let (_, value, above) = values.select_nth_unstable_by(lower, order);
        let next = above.iter().copied().min_by(order).unwrap_or(*value);
        (*value, next)
    })
}

/// The same for sorted values.
pub(crate) fn quantile_of_sorted(q: f64, values: &[f64]) -> f64 {
    at_rank(q, values.len(), |lower| (values[lower], values[(lower + 1).min(values.len() - 1)]))
}

/// The median of the distances to the median of sorted values; NaN if any value is NaN.
pub(crate) fn median_deviation(sorted: &[f64], scratch: &mut Vec<f64>) -> f64 {
    if sorted.first().is_none_or(|value| value.is_nan()) {
        return f64::NAN;
    }
    let median = quantile_of_sorted(0.5, sorted);
    scratch.clear();
    scratch.extend(sorted.iter().map(|value| (value - median).abs()));
    quantile(0.5, scratch)
}

/// `pair` returns the value of a rank and the next one; at the end the value itself twice.
fn at_rank(q: f64, count: usize, pair: impl FnOnce(usize) -> (f64, f64)) -> f64 {
    if count == 0 || q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    let rank = q * (count - 1) as f64;
    let weight = rank - rank.floor();
    let (lower, upper) = pair(rank.floor() as usize);
    if weight == 0.0 {
        // The next value may be infinite.
        return lower;
    }
    lower * (1.0 - weight) + upper * weight
}

/// NaN first; only values with the same bits are equal.
fn order(a: &f64, b: &f64) -> Ordering {
    b.is_nan().cmp(&a.is_nan()).then(a.total_cmp(b))
}

/// The sorted values of a window, updated while the window moves: values that leave and enter are
/// found by binary search instead of sorting each window again.
#[derive(Debug, Default)]
pub(crate) struct SortedWindow {
    window: Range<usize>,
    sorted: Vec<f64>,
}

impl SortedWindow {
    /// The sorted values of `window`. Neither end of successive windows of one column may move
    /// back.
    pub(crate) fn move_to(&mut self, values: &[f64], window: Range<usize>) -> &[f64] {
        let old = std::mem::replace(&mut self.window, window.clone());
        let leaving = old.start..window.start.min(old.end);
        let coming = window.start.max(old.end)..window.end;
        // Moving a value costs some bytes of every other one; sorting costs some comparisons of
        // each.
        if old.is_empty() || (leaving.len() + coming.len()) * 8 > window.len() {
            self.sorted.clear();
            self.sorted.extend_from_slice(&values[window]);
            self.sorted.sort_unstable_by(order);
            return &self.sorted;
        }
        for value in &values[leaving] {
            if let Ok(place) = self.sorted.binary_search_by(|other| order(other, value)) {
                self.sorted.remove(place);
            }
        }
        for &value in &values[coming] {
            let place = self.sorted.partition_point(|other| order(other, &value).is_lt());
            self.sorted.insert(place, value);
        }
        &self.sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        for q in [0.0, 0.2, 0.75, 1.0] {
            for values in [&[4.0, 0.0, 1.0][..], &[0.0], &[0.0, f64::NAN, 1.0], &[1.0, -0.0, 0.0]] {
                let mut sorted = values.to_vec();
                sorted.sort_by(order);
                let by_order = quantile_of_sorted(q, &sorted);
                assert_eq!(quantile(q, &mut values.to_vec()).to_bits(), by_order.to_bits());
            }
        }
        assert_eq!(quantile(0.75, &mut [4.0, 0.0, 1.0]), 2.5);
        assert_eq!(quantile(1.0, &mut [0.0]), 0.0);
        // Found by comparing with Prometheus 3.16: an infinite neighbour made these NaN.
        let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
        assert_eq!(quantile(0.5, &mut [low, 1.0, high]), 1.0);
        assert_eq!(quantile(0.0, &mut [low, high]), low);
        assert!(quantile(0.2, &mut [0.0, f64::NAN, 1.0]).is_nan());
        let sorted = [1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 999.0];
        assert_eq!(median_deviation(&sorted, &mut Vec::new()), 1.0);
    }

    #[test]
    fn a_moving_window_stays_in_order() {
        let values: Vec<f64> = (0..400)
            .map(|idx| if idx % 37 == 5 { f64::NAN } else { f64::from(idx * 7919 % 101) - 50.0 })
            .collect();
        let mut window = SortedWindow::default();
        let mut end = 0;
        for start in (0..300).step_by(3) {
            end = (start + 64 + start % 50).max(end).min(400);
            let mut expected = values[start..end].to_vec();
            expected.sort_by(order);
            let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(window.move_to(&values, start..end)), bits(&expected), "{start}");
        }
    }
}
