//! Aggregations: series are assigned to groups, then one loop over the steps per series.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Error, Labels, METRIC_NAME, Result};

use super::fold::Fold;
use super::meter::{Meter, POINTS_PER_CHECK};
use super::series::drop_empty;
use super::top;
use super::vector::{ABSENT, VectorSeries, is_absent};
use crate::functions::quantile::quantile;
use crate::histogram;
use crate::syntax::{AggregateOp, format_f};

/// The groups of a list of series, in the order of their first series.
pub(crate) struct Groups {
    pub(crate) labels: Vec<Labels>,
    /// The group of each series.
    pub(crate) of: Vec<usize>,
}

impl Groups {
    /// Groups by the labels in `grouping`, or by all other labels with `without`. With
    /// `already_keyed`, the series' labels are group labels already because storage grouped them.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn new(
        series: &[VectorSeries],
        grouping: &[String],
        without: bool,
        already_keyed: bool,
        meter: &mut Meter,
    ) -> Result<Groups> {
        // The group of each series, twice: by series and by group.
        meter.reserve_items(series.len(), 2 * size_of::<usize>())?;
        if grouping.is_empty() && !without && !series.is_empty() {
            return Ok(Groups { labels: vec![Labels::empty()], of: vec![0; series.len()] });
        }
        let mut groups = Groups { labels: Vec::new(), of: Vec::with_capacity(series.len()) };
        let mut by_labels: HashMap<Labels, usize> = HashMap::new();
        for one in series {
            meter.check_canceled()?;
            let key = match already_keyed {
                true => one.labels.clone(),
                false => group_labels(&one.labels, grouping, without),
            };
            let known = by_labels.get(&key).copied();
            if known.is_none() {
                meter.reserve_labels(key.as_encoded().len())?;
                meter.reserve_entries(2)?;
                by_labels.insert(key.clone(), groups.labels.len());
                groups.labels.push(key);
            }
            groups.of.push(known.unwrap_or(groups.labels.len() - 1));
        }
        Ok(groups)
    }

    /// The members of every group.
    pub(super) fn lists(&self) -> Vec<Vec<usize>> {
        let mut lists = vec![Vec::new(); self.labels.len()];
        for (idx, &group) in self.of.iter().enumerate() {
            lists[group].push(idx);
        }
        lists
    }
}

/// The labels of the group of a series.
fn group_labels(labels: &Labels, grouping: &[String], without: bool) -> Labels {
    let named = |name: &str| grouping.iter().any(|label| label == name);
    if without {
        labels.filter(|name| name != METRIC_NAME && !named(name))
    } else {
        labels.filter(named)
    }
}

/// `sum`, `avg`, `count`, `min`, `max`, `group`, `stddev`, `stdvar`, `quantile`: one series per
/// group.
///
/// # Errors
/// As [`Meter::reserve`].
pub(crate) fn reduce(
    op: AggregateOp,
    param: &[f64],
    series: &[VectorSeries],
    groups: Groups,
    step_count: usize,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    for labels in &groups.labels {
        meter.reserve_series(labels.as_encoded().len(), step_count)?;
    }
    let columns = match op {
        AggregateOp::Quantile => {
            // The values of one step.
            meter.reserve_items(series.len(), 8)?;
            quantiles(param, series, &groups, step_count, meter)?
        }
        op if Fold::can(op) => {
            let mut fold = Fold::new(op, step_count);
            meter.reserve((groups.labels.len() as u64).saturating_mul(fold.group_bytes()))?;
            groups.labels.iter().for_each(|_| fold.open_group());
            for (one, &group) in series.iter().zip(&groups.of) {
                meter.check_canceled()?;
                fold.add(group, &one.values);
            }
            fold.finish(meter)?
        }
        _ => Vec::new(),
    };
    let mut drops = vec![false; groups.labels.len()];
    for (one, &group) in series.iter().zip(&groups.of) {
        drops[group] |= one.drop_name;
    }
    let named = groups.labels.into_iter().zip(drops).zip(columns);
    let series =
        named.map(|((labels, drop_name), values)| VectorSeries::floats(labels, drop_name, values));
    let mut series = series.collect();
    drop_empty(&mut series, meter)?;
    Ok(series)
}

fn quantiles(
    param: &[f64],
    series: &[VectorSeries],
    groups: &Groups,
    step_count: usize,
    meter: &Meter,
) -> Result<Vec<Vec<f64>>> {
    let mut scratch = Vec::new();
    let lists = groups.lists();
    let mut column = |members: &Vec<usize>| {
        let mut values = vec![ABSENT; step_count];
        for (step, value) in values.iter_mut().enumerate() {
            scratch.clear();
            for members in members.chunks(POINTS_PER_CHECK) {
                meter.check_canceled()?;
                let all = members.iter().map(|&idx| series[idx].values[step]);
                scratch.extend(all.filter(|value| !is_absent(*value)));
            }
            if !scratch.is_empty() {
                let mut check = |_| meter.check_canceled();
                *value = quantile(param[step], &mut scratch, &mut check)?;
            }
        }
        Ok(values)
    };
    lists.iter().map(&mut column).collect()
}

/// `topk`, `bottomk`, `limitk`, `limit_ratio`: the input series with the selected points.
///
/// In an instant query, `topk` and `bottomk` return the series of a group in the order of their
/// values.
///
/// `limitk` selects the first series in the order of labels, which Prometheus has wherever a query
/// reads more than its newest block. The order in which series were created is not kept by a
/// restart, and not known for series of different shards.
///
/// # Errors
/// `Invalid` for a parameter that is not a count, and as [`Meter::reserve`].
pub(crate) fn select(
    op: AggregateOp,
    param: &[f64],
    series: Vec<VectorSeries>,
    groups: &Groups,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    if !check_param(op, param)? {
        return Ok(Vec::new());
    }
    // The lists of groups, the list of selected series and their order.
    meter.reserve_items(series.len(), 2 * size_of::<VectorSeries>() + 4 * size_of::<usize>())?;
    if let AggregateOp::Topk | AggregateOp::Bottomk = op {
        // Counts are truncated; values below 1 select nothing.
        let counts: Vec<usize> =
            param.iter().map(|&limit| (limit as i64).max(0) as usize).collect();
        let lists = groups.lists();
        top::reserve(&counts, &lists, meter)?;
        return top::select(op == AggregateOp::Topk, &counts, series, &lists, meter);
    }
    for one in &series {
        meter.reserve_items(one.values.len(), if one.histograms.is_empty() { 8 } else { 16 })?;
    }
    let nothing = |series: &VectorSeries| {
        VectorSeries::floats(Labels::empty(), false, vec![ABSENT; series.values.len()])
    };
    let mut kept: Vec<VectorSeries> = Vec::with_capacity(series.len());
    for one in &series {
        meter.check_canceled()?;
        kept.push(nothing(one));
    }
    let mut order = Vec::new();
    for mut members in groups.lists() {
        if op == AggregateOp::Limitk {
            meter.sort_by(&mut members, |&a, &b| series[a].labels.cmp(&series[b].labels))?;
        }
        for (step, &limit) in param.iter().enumerate() {
            meter.check_canceled()?;
            let mut present: Vec<usize> = Vec::new();
            for members in members.chunks(POINTS_PER_CHECK) {
                meter.check_canceled()?;
                let all = members.iter().copied();
                present.extend(all.filter(|&idx| series[idx].has_point(step)));
            }
            match op {
                AggregateOp::LimitRatio => {
                    meter.retain(&mut present, |idx| in_ratio(&series[*idx].labels, limit))?;
                }
                _ => {
                    // Counts are truncated; values below 1 select nothing.
                    let count = (limit as i64).clamp(0, present.len() as i64) as usize;
                    present.truncate(count);
                }
            }
            for &idx in &present {
                match series[idx].histogram(step) {
                    Some(histogram) => kept[idx].set_histogram(step, Arc::clone(histogram)),
                    None => kept[idx].values[step] = series[idx].values[step],
                }
            }
            if param.len() == 1 {
                order.extend_from_slice(&present);
            }
        }
    }
    let mut rest: Vec<Option<VectorSeries>> = series
        .into_iter()
        .zip(kept)
        .map(|(series, kept)| {
            let VectorSeries { values, histograms, .. } = kept;
            Some(VectorSeries { values, histograms, ..series })
        })
        .collect();
    let ordered: Vec<VectorSeries> = order.iter().filter_map(|&idx| rest[idx].take()).collect();
    let others = rest.into_iter().flatten().filter(|series| !series.is_empty());
    Ok(ordered.into_iter().chain(others).collect())
}

/// Whether any point can be selected.
fn check_param(op: AggregateOp, param: &[f64]) -> Result<bool> {
    let max = param.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = param.iter().copied().fold(f64::INFINITY, f64::min);
    let has_nan = param.iter().any(|value| value.is_nan());
    if op == AggregateOp::LimitRatio {
        if !has_nan && max == 0.0 && min == 0.0 {
            return Ok(false);
        }
        return if has_nan { Err(Error::invalid("Ratio value is NaN")) } else { Ok(true) };
    }
    if has_nan {
        return Err(Error::invalid("Parameter value is NaN"));
    }
    if max < 1.0 {
        return Ok(false);
    }
    if min <= i64::MIN as f64 {
        let min = crate::syntax::format_g(min);
        return Err(Error::invalid(format!("Scalar value {min} underflows int64")));
    }
    if max >= i64::MAX as f64 {
        let max = crate::syntax::format_g(max);
        return Err(Error::invalid(format!("Scalar value {max} overflows int64")));
    }
    Ok(true)
}

/// Whether a series is in the share `ratio` of all series. A negative ratio `-r` selects the
/// complement of the share `1 - r`. The hash is Prometheus', so that both select the same series.
fn in_ratio(labels: &Labels, ratio: f64) -> bool {
    let place = label_hash(labels) as f64 / u64::MAX as f64;
    let ratio = ratio.clamp(-1.0, 1.0);
    if ratio > 0.0 { place < ratio } else { ratio < 0.0 && place >= 1.0 + ratio }
}

/// XXH64 over length-prefixed names and values, as Prometheus hashes labels.
fn label_hash(labels: &Labels) -> u64 {
    let mut bytes = Vec::with_capacity(labels.as_encoded().len() + 8);
    for (name, value) in labels {
        for text in [name, value] {
            match text.len() {
                len if len < 255 => bytes.push(len as u8),
                len => bytes.extend([255, len as u8, (len >> 8) as u8, (len >> 16) as u8]),
            }
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    xxhash_rust::xxh64::xxh64(&bytes, 0)
}

/// The label in which `count_values` stores the values.
///
/// # Errors
/// `Invalid` if `name` is not a label name.
pub(crate) fn value_label(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).ok_or_else(|| {
        Error::invalid(format!("invalid label name {}", crate::syntax::go_quote(name)))
    })
}

/// `count_values`: the number of occurrences of each value, with the value as the label `name`.
///
/// # Errors
/// As [`Meter::reserve`]: each value takes a series with a column of its own.
pub(crate) fn count_values(
    name: &str,
    series: &[VectorSeries],
    grouping: &[String],
    without: bool,
    step_count: usize,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    // The value's label is a group label even if `by` does not name it.
    let mut grouping = grouping.to_vec();
    if !without {
        grouping.push(name.to_owned());
    }
    let mut output = super::series::OutputSeries::default();
    for one in series {
        meter.check_canceled()?;
        let mut last: Option<(u64, usize)> = None;
        for (step, &value) in one.values.iter().enumerate() {
            if is_absent(value) {
                continue;
            }
            let slot = match last {
                Some((bits, slot)) if bits == value.to_bits() => slot,
                _ => {
                    meter.check_canceled()?;
                    let labels = one.labels.with(name, &format_f(value));
                    let labels = group_labels(&labels, &grouping, without);
                    output.slot(&labels, false, step_count, meter)?
                }
            };
            last = Some((value.to_bits(), slot));
            let count = &mut output.series[slot].values[step];
            *count = if is_absent(*count) { 1.0 } else { *count + 1.0 };
        }
        let histograms = one.histograms.iter().enumerate();
        for (step, histogram) in histograms.filter_map(|(step, h)| Some((step, h.as_ref()?))) {
            meter.check_canceled()?;
            let labels = one.labels.with(name, &histogram::text(histogram));
            let labels = group_labels(&labels, &grouping, without);
            let slot = output.slot(&labels, false, step_count, meter)?;
            let count = &mut output.series[slot].values[step];
            *count = if is_absent(*count) { 1.0 } else { *count + 1.0 };
        }
    }
    // `topk` around it keeps ties in order, which must not depend on the values of other steps.
    let mut output = output.finish(meter)?;
    meter.sort_by(&mut output, |a, b| a.labels.cmp(&b.labels))?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;

    use super::*;

    fn meter() -> Meter {
        Meter::new(u64::MAX, &QueryContext::unbounded())
    }

    fn series(name: &str, values: &[f64]) -> VectorSeries {
        let labels = Labels::from_pairs([("name", name)]).unwrap();
        VectorSeries::floats(labels, false, values.to_vec())
    }

    #[test]
    fn hashes_are_those_of_prometheus() {
        // The same encoding hashed by another implementation: XXH64 of "\x04name\x01a" with seed 0.
        let labels = Labels::from_pairs([("name", "a")]).unwrap();
        assert_eq!(label_hash(&labels), xxhash_rust::xxh64::xxh64(b"\x04name\x01a", 0));
        assert!(in_ratio(&labels, 1.0) && in_ratio(&labels, -1.0) && !in_ratio(&labels, 0.0));
        assert_ne!(in_ratio(&labels, 0.3), in_ratio(&labels, -0.7));
    }

    #[test]
    fn counted_values_have_one_order_at_every_step() {
        let input = [series("a", &[64.0, 32.0]), series("b", &[32.0, 64.0])];
        let counted = count_values("value", &input, &[], false, 2, &mut meter()).unwrap();
        let values: Vec<_> = counted.iter().map(|one| one.labels.get("value")).collect();
        assert_eq!(values, [Some("32"), Some("64")]);
    }

    #[test]
    fn topk_puts_nan_last_and_keeps_ties_in_order() {
        let all = vec![series("a", &[f64::NAN]), series("b", &[1.0]), series("c", &[2.0])];
        let groups = Groups::new(&all, &[], false, false, &mut meter()).unwrap();
        let got = select(AggregateOp::Topk, &[2.0], all, &groups, &mut meter()).unwrap();
        let names: Vec<_> = got.iter().map(|s| s.labels.get("name").unwrap()).collect();
        assert_eq!(names, ["c", "b"]);
    }

    /// The order in which storage returns series depends on its shards.
    #[test]
    fn limitk_keeps_the_first_labels_whatever_the_order_of_series() {
        let absent = ABSENT;
        let mut all =
            vec![series("c", &[1.0, 4.0]), series("a", &[absent, 2.0]), series("b", &[3.0, 3.0])];
        for _ in 0..3 {
            all.rotate_left(1);
            let groups = Groups::new(&all, &[], false, false, &mut meter()).unwrap();
            let select = |param: &[f64]| {
                select(AggregateOp::Limitk, param, all.clone(), &groups, &mut meter()).unwrap()
            };
            let mut kept = select(&[1.0, 2.0]);
            kept.sort_by(|a, b| a.labels.cmp(&b.labels));
            let points: Vec<_> = kept
                .iter()
                .map(|s| (s.labels.get("name").unwrap(), s.has_point(0), s.has_point(1)))
                .collect();
            assert_eq!(points, [("a", false, true), ("b", true, true)]);
        }
    }
}
