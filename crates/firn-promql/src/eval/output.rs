//! Converts columns to results.

use std::collections::{HashMap, HashSet};

use firn_model::{Labels, Result, Sample};

use super::evaluator::Evaluator;
use super::meter::{Meter, matrix_bytes};
use super::series::merge_same_labels;
use super::vector::{Evaluated, VectorSeries, is_absent, is_metadata_label, same_labels_error};
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
        let mark = self.meter.mark();
        match self.node(root, steps)? {
            Evaluated::Text(value) => Ok(Value::String { ts, value }),
            Evaluated::Scalar(values) if is_range => {
                self.meter.reserve_matrix(0, values.len())?;
                let series = VectorSeries::floats(Labels::empty(), false, values);
                Ok(Value::Matrix(vec![to_series(series, steps)]))
            }
            Evaluated::Scalar(values) => {
                Ok(Value::Scalar { ts, value: values.first().copied().unwrap_or(f64::NAN) })
            }
            Evaluated::Vector(series) => {
                let series = drop_marked_names(series, &mut self.meter)?;
                let label_bytes: usize =
                    series.iter().map(|one| one.labels.as_encoded().len()).sum();
                if is_range {
                    let mut held = 0;
                    for one in &series {
                        self.meter.check_canceled()?;
                        held += matrix_bytes(one.labels.as_encoded().len(), one.point_count());
                    }
                    self.meter.reserve(held)?;
                    let mut matrix: Vec<Series> = Vec::with_capacity(series.len());
                    for one in series {
                        self.meter.check_canceled()?;
                        matrix.push(to_series(one, steps));
                    }
                    self.sort_by_labels(&mut matrix)?;
                    self.meter.keep(mark, held)?;
                    return Ok(Value::Matrix(matrix));
                }
                self.meter.reserve_items(series.len(), size_of::<VectorPoint>())?;
                let held = series.len() * (size_of::<VectorPoint>() + 16) + label_bytes;
                let histograms = series.iter().flat_map(|one| &one.histograms).flatten();
                let histograms: usize = histograms.map(|h| h.heap_bytes()).sum();
                let mut points = Vec::with_capacity(series.len());
                for one in series {
                    self.meter.check_canceled()?;
                    let Some(value) = one.point(0) else { continue };
                    points.push(VectorPoint { labels: one.labels, ts, value });
                }
                self.meter.keep(mark, (held + histograms) as u64)?;
                Ok(Value::Vector(points))
            }
        }
    }

    fn matrix(&mut self, root: &Node, steps: &Steps) -> Result<Value> {
        let mut matrix = match &root.unparen().kind {
            NodeKind::Matrix(matrix) => self.raw(matrix, steps)?,
            NodeKind::Subquery(subquery) => {
                let all = self.raw_grid(subquery, steps)?;
                self.meter.reserve_entries(all.len())?;
                unite(all, &self.meter)?
            }
            _ => Vec::new(),
        };
        self.sort_by_labels(&mut matrix)?;
        Ok(Value::Matrix(matrix))
    }

    fn sort_by_labels(&mut self, matrix: &mut Vec<Series>) -> Result<()> {
        let (stats, meter) = (&self.context.stats, &mut self.meter);
        stats.timed(&stats.sort_ns, || meter.sort_by(matrix, |a, b| a.labels.cmp(&b.labels)))
    }
}

fn to_series(series: VectorSeries, steps: &Steps) -> Series {
    let points = series.values.iter().enumerate().filter(|(_, value)| !is_absent(**value));
    let mut floats = Vec::with_capacity(points.clone().count());
    floats.extend(points.map(|(step, &value)| Sample { ts: steps.at(step), value }));
    let points = series.histograms.into_iter().enumerate();
    let placed = |(step, histogram): (usize, Option<_>)| {
        Some(HistogramPoint { ts: steps.at(step), histogram: histogram? })
    };
    Series { histograms: points.filter_map(placed).collect(), ..Series::new(series.labels, floats) }
}

/// The last step of delayed name removal: marked names are dropped, and series with equal labels
/// are merged.
fn drop_marked_names(
    mut series: Vec<VectorSeries>,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    let mut changed = false;
    for one in series.iter_mut().filter(|series| series.drop_name) {
        meter.check_canceled()?;
        one.labels = one.labels.filter(|name| !is_metadata_label(name));
        one.drop_name = false;
        changed = true;
    }
    if changed { merge_same_labels(series, meter) } else { Ok(series) }
}

/// The same for series with points at times of their own.
///
/// # Errors
/// `Invalid` if two of them have a point at the same time, and as [`Meter::check_canceled`].
fn unite(all: Vec<(Series, bool)>, meter: &Meter) -> Result<Vec<Series>> {
    let mut by_labels: HashMap<Labels, usize> = HashMap::new();
    let mut united: Vec<Series> = Vec::new();
    for (mut series, drop_name) in all {
        meter.check_canceled()?;
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
