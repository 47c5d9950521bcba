//! The φ-quantile of plain values.

use std::cmp::Ordering;
use std::ops::Range;

use firn_model::Result;

/// Values that are put in order between two checks for cancellation. Sorting takes 40 ns a value.
const ORDERED_PER_CHECK: usize = 1 << 20;
/// Values that enter and leave a sorted window one by one. Each moves all others, half of them on
/// average; sorting costs as much as moving them 200 times.
const MOVED_MAX: usize = 200;

/// Checks for cancellation. The argument is the number of values since the last call.
pub(crate) type WorkCheck<'c> = dyn FnMut(usize) -> Result<()> + 'c;

/// The `q`-quantile of `values`, which are reordered. Between two values it is their weighted mean;
/// NaN counts as the smallest value; outside [0, 1] the result is infinite. O(values).
///
/// # Errors
/// Those of `check`.
pub(crate) fn quantile(q: f64, values: &mut [f64], check: &mut WorkCheck<'_>) -> Result<f64> {
    let (lower, weight) = match rank(q, values.len()) {
        Ok(rank) => rank,
        Err(constant) => return Ok(constant),
    };
    select(values, lower, check)?;
    let value = values[lower];
    let next = values[lower + 1..].iter().copied().min_by(order).unwrap_or(value);
    Ok(between(value, next, weight))
}

/// The same for sorted values.
pub(crate) fn quantile_of_sorted(q: f64, values: &[f64]) -> f64 {
    match rank(q, values.len()) {
        Ok((lower, weight)) => {
            between(values[lower], values[(lower + 1).min(values.len() - 1)], weight)
        }
        Err(constant) => constant,
    }
}

/// The median of the distances to the median of sorted values; NaN if any value is NaN.
///
/// # Errors
/// Those of `check`.
pub(crate) fn median_deviation(
    sorted: &[f64],
    scratch: &mut Vec<f64>,
    check: &mut WorkCheck<'_>,
) -> Result<f64> {
    if sorted.first().is_none_or(|value| value.is_nan()) {
        return Ok(f64::NAN);
    }
    let median = quantile_of_sorted(0.5, sorted);
    scratch.clear();
    scratch.extend(sorted.iter().map(|value| (value - median).abs()));
    quantile(0.5, scratch, check)
}

/// The rank below the `q`-quantile of `count` values, and the weight of the next one. The error is
/// a result that depends on no value.
fn rank(q: f64, count: usize) -> std::result::Result<(usize, f64), f64> {
    if count == 0 || q.is_nan() {
        return Err(f64::NAN);
    }
    if q < 0.0 {
        return Err(f64::NEG_INFINITY);
    }
    if q > 1.0 {
        return Err(f64::INFINITY);
    }
    let rank = q * (count - 1) as f64;
    Ok((rank.floor() as usize, rank - rank.floor()))
}

fn between(lower: f64, upper: f64, weight: f64) -> f64 {
    if weight == 0.0 {
        // The next value may be infinite.
        return lower;
    }
    lower * (1.0 - weight) + upper * weight
}

/// Puts the value of `rank` in its place: no value before it is greater, none behind it smaller.
fn select(values: &mut [f64], rank: usize, check: &mut WorkCheck<'_>) -> Result<()> {
    let mut range = 0..values.len();
    while range.len() > ORDERED_PER_CHECK {
        let equal = partition(&mut values[range.clone()], check)?;
        let equal = range.start + equal.start..range.start + equal.end;
        if equal.contains(&rank) {
            return Ok(());
        }
        range = if rank < equal.start { range.start..equal.start } else { equal.end..range.end };
    }
    values[range.clone()].select_nth_unstable_by(rank - range.start, order);
    Ok(())
}

fn sort(mut values: &mut [f64], check: &mut WorkCheck<'_>) -> Result<()> {
    while values.len() > ORDERED_PER_CHECK {
        let equal = partition(values, check)?;
        let (below, rest) = values.split_at_mut(equal.start);
        let above = &mut rest[equal.len()..];
        // The smaller part first: the calls are at most as deep as the logarithm of the length.
        let (small, large) =
            if below.len() < above.len() { (below, above) } else { (above, below) };
        sort(small, check)?;
        values = large;
    }
    values.sort_unstable_by(order);
    Ok(())
}

/// Moves the values below a middle one before those that are equal to it, and those above it behind
/// them. Returns the places of the equal ones.
fn partition(values: &mut [f64], check: &mut WorkCheck<'_>) -> Result<Range<usize>> {
    const SAMPLE: usize = 101;
    let mut sample: [f64; SAMPLE] =
        std::array::from_fn(|idx| values[idx * (values.len() / SAMPLE)]);
    sample.sort_unstable_by(order);
    let middle = sample[SAMPLE / 2];
    let (mut below, mut at, mut above) = (0, 0, values.len());
    for done in 0..values.len() {
        if done % ORDERED_PER_CHECK == 0 {
            check(ORDERED_PER_CHECK)?;
        }
        match order(&values[at], &middle) {
            Ordering::Less => {
                values.swap(below, at);
                below += 1;
                at += 1;
            }
            Ordering::Equal => at += 1,
            Ordering::Greater => {
                above -= 1;
                values.swap(at, above);
            }
        }
    }
    Ok(below..above)
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
    ///
    /// # Errors
    /// Those of `check`.
    pub(crate) fn move_to(
        &mut self,
        values: &[f64],
        window: Range<usize>,
        check: &mut WorkCheck<'_>,
    ) -> Result<&[f64]> {
        let old = std::mem::replace(&mut self.window, window.clone());
        let leaving = old.start..window.start.min(old.end);
        let coming = window.start.max(old.end)..window.end;
        // Moving a value costs some bytes of every other one; sorting costs some comparisons of
        // each.
        let moved_max = (window.len() / 8).min(MOVED_MAX);
        if old.is_empty() || leaving.len() + coming.len() > moved_max {
            self.sorted.clear();
            self.sorted.extend_from_slice(&values[window]);
            sort(&mut self.sorted, check)?;
            return Ok(&self.sorted);
        }
        for value in &values[leaving] {
            check(self.sorted.len() / 16)?;
            if let Ok(place) = self.sorted.binary_search_by(|other| order(other, value)) {
                self.sorted.remove(place);
            }
        }
        for &value in &values[coming] {
            check(self.sorted.len() / 16)?;
            let place = self.sorted.partition_point(|other| order(other, &value).is_lt());
            self.sorted.insert(place, value);
        }
        Ok(&self.sorted)
    }
}

#[cfg(test)]
mod tests {
    use firn_model::Error;

    use super::*;

    fn unchecked(_: usize) -> Result<()> {
        Ok(())
    }

    #[test]
    fn quantiles_interpolate() {
        let quantile = |q, values: &mut [f64]| quantile(q, values, &mut unchecked).unwrap();
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
        let deviation = median_deviation(&sorted, &mut Vec::new(), &mut unchecked).unwrap();
        assert_eq!(deviation, 1.0);
    }

    /// Before, millions of values were selected from or sorted without a check for cancellation.
    #[test]
    fn long_lists_are_ordered_in_parts_and_can_be_cancelled() {
        const COUNT: usize = 3 * ORDERED_PER_CHECK + 7;
        let mixed = |idx: usize| (idx as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let lists: [Vec<f64>; 4] = [
            (0..COUNT).map(|idx| mixed(idx) as f64 - 1e6).collect(),
            (0..COUNT).map(|idx| (idx / (COUNT / 3)) as f64).collect(),
            vec![f64::NAN; COUNT],
            (0..COUNT).rev().map(|idx| idx as f64).collect(),
        ];
        let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (n, list) in lists.iter().enumerate() {
            let mut expected = list.clone();
            expected.sort_unstable_by(order);
            let (mut count, mut sorted) = (0, list.clone());
            sort(&mut sorted, &mut |_| {
                count += 1;
                Ok(())
            })
            .unwrap();
            assert!(bits(&sorted) == bits(&expected), "list {n} is not sorted");
            assert!(count >= 4, "list {n}: {count} checks");
            for q in [0.0, 0.1, 0.5, 0.99, 1.0] {
                let by_order = quantile_of_sorted(q, &expected);
                let selected = quantile(q, &mut list.clone(), &mut unchecked).unwrap();
                assert_eq!(selected.to_bits(), by_order.to_bits(), "list {n}, {q}");
            }
            let mut cancel = |_| Err(Error::invalid("cancelled"));
            assert!(quantile(0.5, &mut list.clone(), &mut cancel).is_err());
            assert!(SortedWindow::default().move_to(list, 0..COUNT, &mut cancel).is_err());
        }
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
            let moved = window.move_to(&values, start..end, &mut unchecked).unwrap();
            assert_eq!(bits(moved), bits(&expected), "{start}");
        }
    }

    /// Before, an eighth of a window could be moved one by one: hours for millions of values.
    #[test]
    fn a_long_window_is_sorted_again_if_it_moves_far() {
        const LEN: usize = 100_000;
        let values: Vec<f64> = (0..2 * LEN).map(|idx| (idx * 7919 % 100_003) as f64).collect();
        let mut work = 0;
        let mut window = SortedWindow::default();
        window.move_to(&values, 0..LEN, &mut unchecked).unwrap();
        for step in 1..=10 {
            let start = step * LEN / 20;
            let mut check = |count| {
                work += count;
                Ok(())
            };
            window.move_to(&values, start..start + LEN, &mut check).unwrap();
        }
        assert!(work <= 10 * LEN, "{work} values were moved one by one");
    }
}
