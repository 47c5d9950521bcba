//! Converts columns to results.

use std::collections::{HashMap, HashSet};

use firn_model::{Labels, Result, Sample};

use super::evaluator::Evaluator;
use super::vector::{
    Evaluated, VectorSeries, is_absent, is_metadata_label, merge_same_labels, same_labels_error,
};
use super::window::Steps;
use crate::syntax::{Node, NodeKind, ValueType};
use crate::value::{HistogramPoint, Series, Value, VectorPoint};

impl Evaluator<'_> {
    /// Evaluates the root. An instant query returns the type of its expression, a range query a
    /// matrix.
    pub(super) fn output(&mut self, root: &Node, steps: &Steps) -> Result<Value> {
        let is_range = self.options.step_ms.is_some();
        if root.value_type() == ValueType::Matrix {
            return self.matrix(root, steps);
        }
        if steps.count == 0 {
            return Ok(Value::Matrix(Vec::new()));
        }
        let ts = steps.start;
        match self.node(root, steps)? {
            Evaluated::Text(value) => Ok(Value::String { ts, value }),
            Evaluated::Scalar(values) if is_range => {
                let series = VectorSeries::floats(Labels::empty(), false, values);
                Ok(Value::Matrix(vec![to_series(series, steps)]))
            }
            Evaluated::Scalar(values) => {
                Ok(Value::Scalar { ts, value: values.first().copied().unwrap_or(f64::NAN) })
            }
            Evaluated::Vector(series) => {
                let series = drop_marked_names(series)?;
                if is_range {
                    let mut matrix: Vec<Series> =
                        series.into_iter().map(|series| to_series(series, steps)).collect();
                    self.sort_by_labels(&mut matrix);
                    return Ok(Value::Matrix(matrix));
                }
                let point = |series: VectorSeries| {
                    let value = series.point(0)?;
                    Some(VectorPoint { labels: series.labels, ts, value })
                };
                Ok(Value::Vector(series.into_iter().filter_map(point).collect()))
            }
        }
    }

    fn matrix(&mut self, root: &Node, steps: &Steps) -> Result<Value> {
        let mut matrix = match &root.unparen().kind {
            NodeKind::Matrix(matrix) => self.raw(matrix, steps)?,
            NodeKind::Subquery(subquery) => {
                let all = self.raw_grid(subquery, steps)?;
                unite(all)?
            }
            _ => Vec::new(),
        };
        self.sort_by_labels(&mut matrix);
        Ok(Value::Matrix(matrix))
    }

    fn sort_by_labels(&self, matrix: &mut [Series]) {
        let stats = &self.context.stats;
        stats.timed(&stats.sort_ns, || matrix.sort_by(|a, b| a.labels.cmp(&b.labels)));
    }
}

fn to_series(series: VectorSeries, steps: &Steps) -> Series {
    let points = series.values.iter().enumerate().filter(|(_, value)| !is_absent(**value));
    let floats = points.map(|(step, &value)| Sample { ts: steps.at(step), value }).collect();
    let points = series.histograms.into_iter().enumerate();
    let placed = |(step, histogram): (usize, Option<_>)| {
        Some(HistogramPoint { ts: steps.at(step), histogram: histogram? })
    };
    Series { histograms: points.filter_map(placed).collect(), ..Series::new(series.labels, floats) }
}

/// The last step of delayed name removal: marked names are dropped, and series with equal labels
/// are merged.
fn drop_marked_names(mut series: Vec<VectorSeries>) -> Result<Vec<VectorSeries>> {
    let mut changed = false;
    for one in series.iter_mut().filter(|series| series.drop_name) {
        one.labels = one.labels.filter(|name| !is_metadata_label(name));
        one.drop_name = false;
        changed = true;
    }
    if changed { merge_same_labels(series) } else { Ok(series) }
}

/// The same for series with points at times of their own.
fn unite(all: Vec<(Series, bool)>) -> Result<Vec<Series>> {
    let mut by_labels: HashMap<Labels, usize> = HashMap::new();
    let mut united: Vec<Series> = Vec::new();
    for (mut series, drop_name) in all {
        if drop_name {
            series.labels = series.labels.filter(|name| !is_metadata_label(name));
        }
        match by_labels.get(&series.labels) {
            None => {
                by_labels.insert(series.labels.clone(), united.len());
                united.push(series);
            }
            Some(&idx) => {
                let kept = &mut united[idx];
                kept.floats.extend(series.floats);
                kept.floats.sort_by_key(|sample| sample.ts);
                kept.histograms.extend(series.histograms);
                kept.histograms.sort_by_key(|point| point.ts);
                let floats = kept.floats.iter().map(|sample| sample.ts);
                let mut seen = HashSet::new();
                if !floats
                    .chain(kept.histograms.iter().map(|point| point.ts))
                    .all(|ts| seen.insert(ts))
                {
                    return Err(same_labels_error());
                }
            }
        }
    }
    Ok(united)
}
