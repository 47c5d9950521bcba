//! Vectors under computation: one column per series, one value per step.

use std::sync::Arc;

use firn_model::{
    Error, Histogram, HistogramBucket, Labels, METRIC_NAME, PointValue, Result, STALE_NAN,
    STALE_NAN_BITS, excerpt,
};

/// Marks a step without a point in a column.
///
/// The staleness marker is free for this use: selectors never return it, and it is a signalling
/// NaN, which no arithmetic returns.
pub(crate) const ABSENT: f64 = STALE_NAN;

/// Whether `value` is [`ABSENT`], by its bits.
pub(crate) fn is_absent(value: f64) -> bool {
    value.to_bits() == STALE_NAN_BITS
}

/// Whether some value is [`ABSENT`]; searched in blocks, without a branch per value.
pub(crate) fn has_absent(values: &[f64]) -> bool {
    let in_block = |block: &[f64]| block.iter().fold(false, |any, value| any | is_absent(*value));
    values.chunks(64).any(in_block)
}

/// The labels that are dropped when a result is no longer the metric.
pub(crate) fn is_metadata_label(name: &str) -> bool {
    matches!(name, METRIC_NAME | "__type__" | "__unit__")
}

/// The histograms of a series, one entry per step; empty if all points are floats.
pub(crate) type HistogramColumn = Vec<Option<Arc<Histogram>>>;

/// One series of a vector over all steps. A step has a float, a histogram or no point.
#[derive(Clone, Debug)]
pub(crate) struct VectorSeries {
    pub(crate) labels: Labels,
    /// Whether the name is dropped at the end (delayed name removal).
    pub(crate) drop_name: bool,
    /// One value per step, [`ABSENT`] where there is no float.
    pub(crate) values: Vec<f64>,
    /// Empty for a series of floats, which then has no cost for histograms.
    pub(crate) histograms: HistogramColumn,
}

impl VectorSeries {
    /// A series of floats.
    pub(crate) fn floats(labels: Labels, drop_name: bool, values: Vec<f64>) -> VectorSeries {
        VectorSeries { labels, drop_name, values, histograms: Vec::new() }
    }

    /// The number of points as the sample limit counts them: a histogram counts as many as would
    /// fill its memory.
    pub(crate) fn point_count(&self) -> usize {
        let floats = self.values.iter().filter(|value| !is_absent(**value)).count();
        floats + self.histograms.iter().flatten().map(|h| histogram_points(h)).sum::<usize>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.iter().all(|value| is_absent(*value)) && !self.has_histograms()
    }

    /// Whether some point is a histogram.
    pub(crate) fn has_histograms(&self) -> bool {
        self.histograms.iter().any(Option::is_some)
    }

    pub(crate) fn histogram(&self, step: usize) -> Option<&Arc<Histogram>> {
        self.histograms.get(step)?.as_ref()
    }

    /// Whether there is a point at `step`, of either kind.
    pub(crate) fn has_point(&self, step: usize) -> bool {
        !is_absent(self.values[step]) || self.histogram(step).is_some()
    }

    /// The point at `step`, of either kind.
    pub(crate) fn point(&self, step: usize) -> Option<PointValue> {
        match self.histogram(step) {
            Some(histogram) => Some(PointValue::Histogram(Arc::clone(histogram))),
            None if is_absent(self.values[step]) => None,
            None => Some(PointValue::Float(self.values[step])),
        }
    }

    /// Sets the point at `step` to a histogram.
    pub(crate) fn set_histogram(&mut self, step: usize, histogram: Arc<Histogram>) {
        if self.histograms.is_empty() {
            self.histograms = vec![None; self.values.len()];
        }
        self.values[step] = ABSENT;
        self.histograms[step] = Some(histogram);
    }

    /// Sets the point at `step` to a float or a histogram.
    pub(crate) fn set(&mut self, step: usize, value: PointValue) {
        match value {
            PointValue::Float(value) => self.values[step] = value,
            PointValue::Histogram(histogram) => self.set_histogram(step, histogram),
        }
    }

    /// Removes the point at `step`.
    pub(crate) fn remove(&mut self, step: usize) {
        self.values[step] = ABSENT;
        if let Some(histogram) = self.histograms.get_mut(step) {
            *histogram = None;
        }
    }

    /// Adds the points of `other`, whose labels are the same.
    ///
    /// # Errors
    /// `Invalid` if both have a point at one step.
    pub(crate) fn unite(&mut self, other: VectorSeries) -> Result<()> {
        for (step, value) in other.values.iter().enumerate() {
            if is_absent(*value) {
                continue;
            }
            if self.has_point(step) {
                return Err(same_labels_error());
            }
            self.values[step] = *value;
        }
        for (step, histogram) in other.histograms.into_iter().enumerate() {
            let Some(histogram) = histogram else { continue };
            if self.has_point(step) {
                return Err(same_labels_error());
            }
            self.set_histogram(step, histogram);
        }
        Ok(())
    }
}

/// The number of samples that a histogram counts as: as many as fill the memory that it occupies in
/// Prometheus, so that the same queries are refused. That is 168 bytes and 8 for its time, plus 8
/// for each bucket, run of buckets and bound.
pub(crate) fn histogram_points(histogram: &Histogram) -> usize {
    let run_count = |buckets: &[HistogramBucket]| {
        let breaks = buckets.windows(2).filter(|pair| pair[1].index != pair[0].index + 1).count();
        breaks + usize::from(!buckets.is_empty())
    };
    let (positive, negative) = (&histogram.positive, &histogram.negative);
    let numbers = positive.len() + negative.len() + histogram.custom_bounds.len();
    (176 + 8 * (numbers + run_count(positive) + run_count(negative))) / 16
}

/// The value of an expression over all steps.
#[derive(Debug)]
pub(crate) enum Evaluated {
    /// One number per step.
    Scalar(Vec<f64>),
    /// Series, in an order that is the same on every evaluation.
    Vector(Vec<VectorSeries>),
    /// A string.
    Text(Vec<u8>),
}

/// The error for two series with one label set at one time.
pub(crate) fn same_labels_error() -> Error {
    Error::invalid("vector cannot contain metrics with the same labelset")
}

/// Labels in the format of Prometheus' messages: `{__name__="a", b="c"}`; the beginning of long
/// ones.
pub(crate) fn labels_text(labels: &Labels) -> String {
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={}", crate::syntax::go_quote(value.as_bytes())))
        .collect();
    excerpt(&format!("{{{}}}", pairs.join(", "))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_survives_no_arithmetic() {
        assert!(is_absent(ABSENT));
        assert!(!is_absent(ABSENT + 0.0));
        assert!(!is_absent(f64::NAN));
    }
}
