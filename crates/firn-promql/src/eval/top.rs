//! `topk` and `bottomk`: the first points of each group at each step, kept while the series are
//! visited.

use std::cmp::Ordering;

use firn_model::Result;

use super::meter::Meter;
use super::series::drop_empty;
use super::vector::{ABSENT, VectorSeries, is_absent};

/// Up to this number the points are kept sorted by insertion; more are sorted at the end.
const KEPT_IN_ORDER_MAX: usize = 128;

/// Reserves the lists of the best points that [`select`] keeps, one per step.
///
/// # Errors
/// As [`Meter::reserve`].
pub(super) fn reserve(counts: &[usize], groups: &[Vec<usize>], meter: &mut Meter) -> Result<()> {
    let members_max = groups.iter().map(Vec::len).max().unwrap_or(0);
    for &count in counts {
        let kept = if count > KEPT_IN_ORDER_MAX { members_max } else { count.min(members_max) };
        // A list may grow to twice its length, and sorting copies it.
        meter.reserve_items(2 * kept + 2, 2 * size_of::<(f64, usize)>())?;
    }
    Ok(())
}

/// Selects points. `counts` is the number of points per group at each step; `groups` lists the
/// members of each group.
///
/// A series without selected points is dropped. In an instant query the series of a group are
/// returned in the order of their values, otherwise in their original order.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(super) fn select(
    greatest_first: bool,
    counts: &[usize],
    mut series: Vec<VectorSeries>,
    groups: &[Vec<usize>],
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    let mut best: Vec<Vec<(f64, usize)>> = vec![Vec::new(); counts.len()];
    let mut order = Vec::new();
    for members in groups {
        best.iter_mut().for_each(Vec::clear);
        for &idx in members {
            meter.check_canceled()?;
            let steps = best.iter_mut().zip(counts).zip(&series[idx].values);
            for ((best, &count), &value) in steps {
                if !is_absent(value) && count > 0 {
                    offer(best, count, greatest_first, (value, idx));
                }
            }
        }
        for &idx in members {
            meter.check_canceled()?;
            series[idx].values.fill(ABSENT);
            series[idx].histograms.clear();
        }
        for (step, best) in best.iter_mut().enumerate() {
            if counts[step] > KEPT_IN_ORDER_MAX {
                // Stable, so that the first of equal values are selected.
                meter.sort_by(best, |a, b| nan_last(greatest_first, a.0, b.0))?;
                best.truncate(counts[step]);
            }
            best.iter().for_each(|&(value, idx)| series[idx].values[step] = value);
        }
        if let [only] = &best[..] {
            order.extend(only.iter().map(|&(_, idx)| idx));
        }
    }
    if counts.len() == 1 {
        let mut series: Vec<Option<VectorSeries>> = series.into_iter().map(Some).collect();
        return Ok(order.iter().filter_map(|&idx| series[idx].take()).collect());
    }
    drop_empty(&mut series, meter)?;
    Ok(series)
}

/// Inserts a value into the best `count`, if it is one of them.
fn offer(best: &mut Vec<(f64, usize)>, count: usize, greatest_first: bool, new: (f64, usize)) {
    if count > KEPT_IN_ORDER_MAX {
        best.push(new);
        return;
    }
    let is_better = |kept: &(f64, usize)| nan_last(greatest_first, new.0, kept.0).is_lt();
    if best.len() == count {
        // Most values return here.
        if !best.last().is_some_and(is_better) {
            return;
        }
        best.pop();
    }
    let place = best.partition_point(|kept| !is_better(kept));
    best.insert(place, new);
}

/// Greatest (or smallest) first, NaN last either way.
fn nan_last(greatest_first: bool, a: f64, b: f64) -> Ordering {
    let by_value = if greatest_first { b.partial_cmp(&a) } else { a.partial_cmp(&b) };
    by_value.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use firn_model::{Labels, QueryContext};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The result equals that of sorting all values of a group and step.
        #[test]
        fn the_best_are_those_that_sorting_puts_first(
            values in prop::collection::vec(
                prop::collection::vec(
                    prop_oneof![
                        5 => (0u8..6).prop_map(f64::from),
                        1 => Just(f64::NAN),
                        1 => Just(ABSENT),
                        1 => Just(f64::NEG_INFINITY),
                    ],
                    3,
                ),
                0..40,
            ),
            count in prop_oneof![0usize..6, 130usize..140],
            greatest_first in any::<bool>(),
        ) {
            let groups = [0, 1].map(|group| (group..values.len()).step_by(2).collect::<Vec<_>>());
            let all = values.iter().enumerate().map(|(idx, values)| {
                let labels = Labels::from_pairs([("i", format!("{idx:02}").as_str())]).unwrap();
                VectorSeries::floats(labels, false, values.clone())
            });
            let mut meter = Meter::new(u64::MAX, &QueryContext::unbounded());
            let all = all.collect();
            let kept = select(greatest_first, &[count; 3], all, &groups, &mut meter).unwrap();
            let mut expected = vec![vec![ABSENT; 3]; values.len()];
            for (group, step) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                let mut present: Vec<usize> = (0..values.len())
                    .filter(|&idx| idx % 2 == group && !is_absent(values[idx][step]))
                    .collect();
                present.sort_by(|a, b| {
                    nan_last(greatest_first, values[*a][step], values[*b][step])
                });
                present.iter().take(count).for_each(|&idx| {
                    expected[idx][step] = values[idx][step];
                });
            }
            let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let expected: Vec<_> = expected.iter().enumerate()
                .filter(|(_, values)| values.iter().any(|value| !is_absent(*value)))
                .map(|(idx, values)| (format!("{idx:02}"), bits(values)))
                .collect();
            let kept: Vec<_> = kept.iter()
                .map(|one| (one.labels.get("i").unwrap().to_owned(), bits(&one.values)))
                .collect();
            prop_assert_eq!(kept, expected);
        }
    }
}
