//! Lists of series under computation: stripped of names, merged, or collected step by step, within
//! the memory of the query.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Histogram, Labels, PointValue, Result};

use super::meter::Meter;
use super::vector::{ABSENT, VectorSeries, is_absent, is_metadata_label, same_labels_error};

/// Drops histograms, for functions that support floats only.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(crate) fn keep_floats(series: &mut Vec<VectorSeries>, meter: &Meter) -> Result<()> {
    if series.iter().all(|series| series.histograms.is_empty()) {
        return Ok(());
    }
    meter.retain(series, |series| {
        series.histograms = Vec::new();
        !series.is_empty()
    })
}

/// Drops series without a point.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(crate) fn drop_empty(series: &mut Vec<VectorSeries>, meter: &Meter) -> Result<()> {
    meter.retain(series, |series| !series.is_empty())
}

/// Drops the name and its companions from all series. Returns whether two of them may now have
/// equal labels: not if all of them had one name and no companions.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(crate) fn strip_names(series: &mut [VectorSeries], meter: &Meter) -> Result<bool> {
    let mut first_name: Option<String> = None;
    let mut may_collide = false;
    for one in series {
        meter.check_canceled()?;
        let name = one.labels.metric_name();
        match &first_name {
            None => first_name = Some(name.to_owned()),
            Some(first) => may_collide |= first != name,
        }
        let mut names = one.labels.iter_bytes().map(|(name, _)| name);
        may_collide |= names.any(|name| name == b"__type__" || name == b"__unit__");
        one.labels = one.labels.filter(|name| !is_metadata_label(name));
    }
    Ok(may_collide)
}

/// Merges series with equal labels, in the order of first appearance.
///
/// # Errors
/// `Invalid` if two of them have a point at the same step, and as [`Meter::reserve`].
pub(crate) fn merge_same_labels(
    series: Vec<VectorSeries>,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    meter.reserve_entries(series.len())?;
    meter.reserve_items(series.len(), 2 * size_of::<VectorSeries>())?;
    let mut merged: Vec<VectorSeries> = Vec::new();
    let mut by_labels: HashMap<Labels, usize> = HashMap::with_capacity(series.len());
    for one in series {
        meter.check_canceled()?;
        match by_labels.get(&one.labels) {
            None => {
                by_labels.insert(one.labels.clone(), merged.len());
                merged.push(one);
            }
            Some(&idx) => merged[idx].unite(one)?,
        }
    }
    Ok(merged)
}

/// Series under construction whose labels may differ from step to step.
#[derive(Debug, Default)]
pub(crate) struct OutputSeries {
    pub(crate) series: Vec<VectorSeries>,
    by_labels: HashMap<Labels, usize>,
}

impl OutputSeries {
    /// The slot of the series with `labels`; a new series has `step_count` empty steps, which are
    /// reserved before they are allocated.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn slot(
        &mut self,
        labels: &Labels,
        drop_name: bool,
        step_count: usize,
        meter: &mut Meter,
    ) -> Result<usize> {
        if let Some(&idx) = self.by_labels.get(labels) {
            return Ok(idx);
        }
        meter.reserve_series(labels.as_encoded().len(), step_count)?;
        meter.reserve_entries(1)?;
        let idx = self.series.len();
        self.by_labels.insert(labels.clone(), idx);
        let values = vec![ABSENT; step_count];
        self.series.push(VectorSeries::floats(labels.clone(), drop_name, values));
        Ok(idx)
    }

    /// Sets one point.
    ///
    /// # Errors
    /// `Invalid` if there is one already.
    pub(crate) fn put(&mut self, slot: usize, step: usize, value: f64) -> Result<()> {
        let series = &mut self.series[slot];
        if series.has_point(step) {
            return Err(same_labels_error());
        }
        series.values[step] = value;
        Ok(())
    }

    /// Sets one point to a histogram.
    ///
    /// # Errors
    /// `Invalid` if there is one already.
    pub(crate) fn put_histogram(
        &mut self,
        slot: usize,
        step: usize,
        histogram: Arc<Histogram>,
    ) -> Result<()> {
        let series = &mut self.series[slot];
        if series.has_point(step) {
            return Err(same_labels_error());
        }
        series.set_histogram(step, histogram);
        Ok(())
    }

    /// Sets one point of either kind.
    ///
    /// # Errors
    /// `Invalid` if there is one already.
    pub(crate) fn put_point(&mut self, slot: usize, step: usize, value: PointValue) -> Result<()> {
        match value {
            PointValue::Float(value) => self.put(slot, step, value),
            PointValue::Histogram(histogram) => self.put_histogram(slot, step, histogram),
        }
    }

    /// Copies the point that `series` has at `step`, if any.
    ///
    /// # Errors
    /// `Invalid` if there is one already.
    pub(crate) fn copy(&mut self, slot: usize, step: usize, series: &VectorSeries) -> Result<()> {
        match series.histogram(step) {
            Some(histogram) => self.put_histogram(slot, step, Arc::clone(histogram)),
            None if is_absent(series.values[step]) => Ok(()),
            None => self.put(slot, step, series.values[step]),
        }
    }

    /// The series with at least one point.
    ///
    /// # Errors
    /// As [`Meter::check_canceled`].
    pub(crate) fn finish(mut self, meter: &Meter) -> Result<Vec<VectorSeries>> {
        drop_empty(&mut self.series, meter)?;
        Ok(self.series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_unite_unless_they_overlap() {
        let merge_same_labels = |series| {
            let mut meter = Meter::new(u64::MAX, &firn_model::QueryContext::unbounded());
            merge_same_labels(series, &mut meter)
        };
        let one = |values: &[f64]| VectorSeries::floats(Labels::empty(), false, values.to_vec());
        let merged = merge_same_labels(vec![one(&[1.0, ABSENT]), one(&[ABSENT, 2.0])]).unwrap();
        assert_eq!(merged.len(), 1);
        assert_eq!(merged[0].values, [1.0, 2.0]);
        assert!(merge_same_labels(vec![one(&[1.0]), one(&[2.0])]).is_err());
        let mut histogram = one(&[ABSENT, 2.0]);
        histogram.set_histogram(0, Arc::new(Histogram::empty()));
        assert!(histogram.has_point(0) && histogram.point_count() > 1);
        let merged = merge_same_labels(vec![one(&[ABSENT, ABSENT]), histogram.clone()]).unwrap();
        assert!(merged[0].histogram(0).is_some() && merged[0].values[1] == 2.0);
        assert!(merge_same_labels(vec![one(&[1.0, ABSENT]), histogram]).is_err());
    }
}
