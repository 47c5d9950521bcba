//! Aggregations of points that include histograms.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Histogram, Labels, Result};

use super::aggregate::{Groups, reduce};
use super::meter::Meter;
use super::vector::{ABSENT, VectorSeries, is_absent, keep_floats};
use crate::histogram::{MeanHistogram, Operation, Remark, Remarks, SumHistogram};
use crate::syntax::AggregateOp;

/// The annotations of an aggregation.
#[derive(Debug, Default)]
pub(crate) struct AggregateNotes {
    /// Histograms were left out.
    pub(crate) ignored: bool,
    /// A group contained floats and histograms at one step.
    pub(crate) mixed_kinds: bool,
    pub(crate) remarks: Remarks,
    /// The metrics with histograms that were incompatible with the previous ones of their group.
    pub(crate) misfits: Vec<String>,
}

/// Like [`reduce`] for series that may contain histograms.
///
/// # Errors
/// As [`Meter::reserve`].
pub(crate) fn reduce_mixed(
    op: AggregateOp,
    param: &[f64],
    mut series: Vec<VectorSeries>,
    groups: Groups,
    step_count: usize,
    notes: &mut AggregateNotes,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    meter.reserve_items(series.len(), size_of::<usize>())?;
    for labels in &groups.labels {
        // A column of floats and one of histograms.
        meter.reserve_series(labels.as_encoded().len(), step_count.saturating_mul(2))?;
        meter.reserve_entries(1)?;
    }
    let (labels, of) = (groups.labels.clone(), groups.of.clone());
    let floats = reduce(op, param, &series, groups, step_count, meter)?;
    if series.iter().all(|series| series.histograms.is_empty()) {
        return Ok(floats);
    }
    let mut floats: HashMap<Labels, VectorSeries> =
        floats.into_iter().map(|series| (series.labels.clone(), series)).collect();
    let mut results: Vec<VectorSeries> = labels
        .into_iter()
        .map(|labels| {
            let empty = || VectorSeries::floats(labels.clone(), false, vec![ABSENT; step_count]);
            floats.remove(&labels).unwrap_or_else(empty)
        })
        .collect();
    for (one, &group) in series.iter().zip(&of) {
        results[group].drop_name |= one.drop_name;
    }
    match op {
        AggregateOp::Sum | AggregateOp::Avg => {
            let is_sum = op == AggregateOp::Sum;
            for (group, result) in results.iter_mut().enumerate() {
                let members = series.iter().zip(&of).filter(|(_, of)| **of == group);
                let members: Vec<&VectorSeries> = members.map(|(series, _)| series).collect();
                total_group(is_sum, &members, result, notes);
            }
        }
        AggregateOp::Count | AggregateOp::Group => {
            for (one, &group) in series.iter().zip(&of) {
                for step in (0..step_count).filter(|&step| one.histogram(step).is_some()) {
                    let value = &mut results[group].values[step];
                    let more = op == AggregateOp::Count && !is_absent(*value);
                    *value = if more { *value + 1.0 } else { 1.0 };
                }
            }
        }
        _ => notes.ignored |= ignore(&mut series),
    }
    results.retain(|series| !series.is_empty());
    Ok(results)
}

/// Removes histograms; returns whether there was one.
pub(crate) fn ignore(series: &mut Vec<VectorSeries>) -> bool {
    let any = series.iter().any(VectorSeries::has_histograms);
    keep_floats(series);
    any
}

enum Total {
    Sum(SumHistogram),
    Mean(MeanHistogram),
}

/// The sum of one group's histograms per step; a float among them makes the step invalid.
fn total_group(
    is_sum: bool,
    members: &[&VectorSeries],
    result: &mut VectorSeries,
    notes: &mut AggregateNotes,
) {
    for step in 0..result.values.len() {
        let found = members.iter().filter_map(|member| Some((*member, member.histogram(step)?)));
        let found: Vec<(&VectorSeries, &Arc<Histogram>)> = found.collect();
        if found.is_empty() {
            continue;
        }
        if !is_absent(result.values[step]) {
            result.remove(step);
            notes.mixed_kinds = true;
            continue;
        }
        if let Some(histogram) = total_step(is_sum, &found, notes) {
            result.set_histogram(step, Arc::new(histogram));
        }
    }
}

fn total_step(
    is_sum: bool,
    found: &[(&VectorSeries, &Arc<Histogram>)],
    notes: &mut AggregateNotes,
) -> Option<Histogram> {
    let ((_, first), rest) = found.split_first()?;
    let mut total = match is_sum {
        true => Total::Sum(SumHistogram::of(first)),
        false => Total::Mean(MeanHistogram::of(first)),
    };
    for (series, histogram) in rest {
        let added = match &mut total {
            Total::Sum(sum) => sum.add(histogram),
            Total::Mean(mean) => mean.add(histogram),
        };
        if added.is_err() {
            notes.misfits.push(series.labels.metric_name().to_owned());
            return None;
        }
    }
    let (histogram, met) = match total {
        Total::Sum(sum) => sum.finish(),
        Total::Mean(mean) => mean.finish(),
    };
    if met.resets_conflict() {
        notes.remarks.insert(Remark::ResetsConflict(Operation::Aggregation));
    }
    if met.bounds_differed {
        notes.remarks.insert(Remark::BoundsDiffered(Operation::Aggregation));
    }
    Some(histogram)
}
