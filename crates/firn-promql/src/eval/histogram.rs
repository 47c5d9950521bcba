//! Functions of classic histograms: series that differ in `le` only are the buckets of one.

use std::collections::HashMap;

use firn_model::{Labels, Result};

use super::Evaluator;
use super::vector::{ABSENT, OutputSeries, VectorSeries, is_absent};
use super::window::Steps;
use crate::functions::classic::{self, Bucket};
use crate::syntax::{Node, Span, format_g};

impl Evaluator<'_> {
    fn note_quantiles(&mut self, quantiles: &[f64], span: Span) {
        for &q in quantiles {
            if !(0.0..=1.0).contains(&q) {
                self.notes.invalid_quantile(span, q);
            }
        }
    }

    pub(super) fn histogram_quantile(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let quantiles = self.scalar(&args[0], steps)?;
        let series = self.vector(&args[1], steps)?;
        self.note_quantiles(&quantiles, args[0].span);
        let groups = self.bucket_groups(&series, args[1].span);
        let mut found: Vec<VectorSeries> = Vec::new();
        for group in &groups {
            found.push(self.group_quantile(group, &series, &quantiles, args[1].span, steps));
        }
        self.drop_names(&mut found)?;
        Ok(found)
    }

    /// `histogram_quantiles(v, "label", q...)`: each quantile as a series with its own label.
    pub(super) fn histogram_quantiles(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let series = self.vector(&args[0], steps)?;
        let name = String::from_utf8_lossy(super::labels::text(args, 1)?).into_owned();
        let mut all = Vec::new();
        for arg in &args[2..] {
            let quantiles = self.scalar(arg, steps)?;
            self.note_quantiles(&quantiles, arg.span);
            all.push(quantiles);
        }
        let groups = self.bucket_groups(&series, args[0].span);
        let mut output = OutputSeries::default();
        for quantiles in &all {
            for group in &groups {
                let column = self.group_quantile(group, &series, quantiles, args[0].span, steps);
                for (step, &value) in column.values.iter().enumerate() {
                    if is_absent(value) {
                        continue;
                    }
                    let labels = column.labels.with(&name, &open_metrics(quantiles[step]));
                    let slot = output.slot(&labels, false, steps.count);
                    output.put(slot, step, value)?;
                }
            }
        }
        let mut found = output.finish();
        self.drop_names(&mut found)?;
        Ok(found)
    }

    pub(super) fn histogram_fraction(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let (lower, upper) = (self.scalar(&args[0], steps)?, self.scalar(&args[1], steps)?);
        let series = self.vector(&args[2], steps)?;
        let groups = self.bucket_groups(&series, args[2].span);
        let column = |group: &BucketGroup| {
            group.column(&series, steps, |step, buckets| {
                classic::fraction(lower[step], upper[step], buckets)
            })
        };
        let mut found: Vec<VectorSeries> = groups.iter().map(column).collect();
        self.drop_names(&mut found)?;
        Ok(found)
    }

    fn group_quantile(
        &mut self,
        group: &BucketGroup,
        series: &[VectorSeries],
        quantiles: &[f64],
        span: Span,
        steps: &Steps,
    ) -> VectorSeries {
        let name = match self.options.delayed_name_removal {
            true => group.labels.metric_name().to_owned(),
            false => String::new(),
        };
        let notes = &mut self.notes;
        group.column(series, steps, |step, buckets| {
            let (value, forced) = classic::quantile(quantiles[step], buckets, steps.at(step));
            if let Some(forced) = forced {
                notes.forced_monotonic(span, &name, forced);
            }
            value
        })
    }

    /// Series that differ in `le` only are one histogram.
    fn bucket_groups(&mut self, series: &[VectorSeries], span: Span) -> Vec<BucketGroup> {
        let mut groups: Vec<BucketGroup> = Vec::new();
        let mut by_labels: HashMap<Labels, usize> = HashMap::new();
        for (idx, one) in series.iter().enumerate() {
            let bound = one.labels.get("le").unwrap_or("");
            let Ok(upper) = bound.parse::<f64>() else {
                let name = match self.options.delayed_name_removal {
                    true => one.labels.metric_name(),
                    false => "",
                };
                self.notes.bad_bucket(span, name, bound);
                continue;
            };
            let labels = one.labels.filter(|name| name != "le");
            let group = *by_labels.entry(labels).or_insert_with_key(|labels| {
                groups.push(BucketGroup { labels: labels.clone(), bounds: Vec::new() });
                groups.len() - 1
            });
            groups[group].bounds.push((upper, idx));
        }
        groups
    }
}

/// The series of one classic histogram.
struct BucketGroup {
    labels: Labels,
    /// Upper bound and index of each bucket's series.
    bounds: Vec<(f64, usize)>,
}

impl BucketGroup {
    /// What `compute` makes of the buckets that are there at each step.
    fn column(
        &self,
        series: &[VectorSeries],
        steps: &Steps,
        mut compute: impl FnMut(usize, &mut Vec<Bucket>) -> f64,
    ) -> VectorSeries {
        let mut buckets = Vec::with_capacity(self.bounds.len());
        let mut values = vec![ABSENT; steps.count];
        for (step, value) in values.iter_mut().enumerate() {
            buckets.clear();
            for &(upper, idx) in &self.bounds {
                let count = series[idx].values[step];
                if !is_absent(count) {
                    buckets.push(Bucket { upper, count });
                }
            }
            if !buckets.is_empty() {
                *value = compute(step, &mut buckets);
            }
        }
        VectorSeries::floats(self.labels.clone(), false, values)
    }
}

/// A number as OpenMetrics writes label values: always with a point or an exponent.
fn open_metrics(value: f64) -> String {
    let text = format_g(value);
    if value.is_finite() && !text.contains(['e', '.']) { format!("{text}.0") } else { text }
}
