//! Aggregations of points that include histograms.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Histogram, Labels, Result};

use super::aggregate::{Groups, reduce};
use super::meter::Meter;
use super::series::{drop_empty, keep_floats};
use super::vector::{ABSENT, VectorSeries, is_absent};
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
    meter.reserve_items(series.len(), 3 * size_of::<usize>())?;
    for labels in &groups.labels {
        // A column of floats and one of histograms.
        meter.reserve_series(labels.as_encoded().len(), step_count.saturating_mul(2))?;
        meter.reserve_entries(1)?;
    }
    let (labels, of, lists) = (groups.labels.clone(), groups.of.clone(), groups.lists());
    let floats = reduce(op, param, &series, groups, step_count, meter)?;
    if series.iter().all(|series| series.histograms.is_empty()) {
        return Ok(floats);
    }
    let mut floats: HashMap<Labels, VectorSeries> =
        floats.into_iter().map(|series| (series.labels.clone(), series)).collect();
    let mut results: Vec<VectorSeries> = Vec::with_capacity(labels.len());
    for labels in labels {
        meter.check_canceled()?;
        let found = floats.remove(&labels);
        let empty = || VectorSeries::floats(labels, false, vec![ABSENT; step_count]);
        results.push(found.unwrap_or_else(empty));
    }
    for (one, &group) in series.iter().zip(&of) {
        results[group].drop_name |= one.drop_name;
    }
    match op {
        AggregateOp::Sum | AggregateOp::Avg => {
            let is_sum = op == AggregateOp::Sum;
            for (members, result) in lists.iter().zip(&mut results) {
                let members: Vec<&VectorSeries> = members.iter().map(|&idx| &series[idx]).collect();
                total_group(is_sum, &members, result, notes, meter)?;
            }
        }
        AggregateOp::Count | AggregateOp::Group => {
            for (one, &group) in series.iter().zip(&of) {
                meter.check_canceled()?;
                for step in (0..step_count).filter(|&step| one.histogram(step).is_some()) {
                    let value = &mut results[group].values[step];
                    let more = op == AggregateOp::Count && !is_absent(*value);
                    *value = if more { *value + 1.0 } else { 1.0 };
                }
            }
        }
        _ => notes.ignored |= ignore(&mut series, meter)?,
    }
    drop_empty(&mut results, meter)?;
    Ok(results)
}

/// Removes histograms; returns whether there was one.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(crate) fn ignore(series: &mut Vec<VectorSeries>, meter: &Meter) -> Result<bool> {
    let any = series.iter().any(VectorSeries::has_histograms);
    keep_floats(series, meter)?;
    Ok(any)
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
    meter: &Meter,
) -> Result<()> {
    for step in 0..result.values.len() {
        meter.check_canceled()?;
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
        if let Some(histogram) = total_step(is_sum, &found, notes, meter)? {
            result.set_histogram(step, Arc::new(histogram));
        }
    }
    Ok(())
}

fn total_step(
    is_sum: bool,
    found: &[(&VectorSeries, &Arc<Histogram>)],
    notes: &mut AggregateNotes,
    meter: &Meter,
) -> Result<Option<Histogram>> {
    let Some(((_, first), rest)) = found.split_first() else { return Ok(None) };
    let mut total = match is_sum {
        true => Total::Sum(SumHistogram::of(first)),
        false => Total::Mean(MeanHistogram::of(first)),
    };
    for (series, histogram) in rest {
        meter.check_canceled()?;
        let added = match &mut total {
            Total::Sum(sum) => sum.add(histogram),
            Total::Mean(mean) => mean.add(histogram),
        };
        if added.is_err() {
            notes.misfits.push(series.labels.metric_name().to_owned());
            return Ok(None);
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
    Ok(Some(histogram))
}
