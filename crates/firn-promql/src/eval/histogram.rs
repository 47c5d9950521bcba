//! Quantiles and fractions of native and classic histograms. Series that differ only in `le` are
//! the buckets of one classic histogram.

use std::collections::HashMap;

use firn_model::{Histogram, Labels, Result};

use super::evaluator::Evaluator;
use super::meter::Meter;
use super::series::{OutputSeries, drop_empty};
use super::vector::{ABSENT, VectorSeries, is_absent};
use super::window::Steps;
use crate::functions::classic::{self, Bucket};
use crate::histogram;
use crate::syntax::{Node, Span, format_g, parse_float};

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
        let groups = self.bucket_groups(&series, args[1].span)?;
        let mut found: Vec<VectorSeries> = Vec::new();
        for group in &groups {
            self.meter.check_canceled()?;
            self.meter.reserve_series(0, steps.count)?;
            found.push(self.group_quantile(group, &series, &quantiles, args[1].span, steps)?);
        }
        self.finish(found)
    }

    /// `histogram_quantiles(v, "label", q...)`: each quantile as a series with its own label.
    pub(super) fn histogram_quantiles(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let series = self.vector(&args[0], steps)?;
        let name = String::from_utf8_lossy(super::labels::text(args, 1)?).into_owned();
        self.check_label_name("histogram_quantiles", &name)?;
        let mut all = Vec::new();
        for arg in &args[2..] {
            let quantiles = self.scalar(arg, steps)?;
            self.note_quantiles(&quantiles, arg.span);
            all.push(quantiles);
        }
        let groups = self.bucket_groups(&series, args[0].span)?;
        let mut output = OutputSeries::default();
        // The column of one group.
        self.meter.reserve_items(steps.count, 8)?;
        for quantiles in &all {
            for group in &groups {
                self.meter.check_canceled()?;
                let column = self.group_quantile(group, &series, quantiles, args[0].span, steps)?;
                for (step, &value) in column.values.iter().enumerate() {
                    if is_absent(value) {
                        continue;
                    }
                    let labels = column.labels.with(&name, &open_metrics(quantiles[step]));
                    let slot = output.slot(&labels, false, steps.count, &mut self.meter)?;
                    output.put(slot, step, value)?;
                }
            }
        }
        let mut found = output.finish(&self.meter)?;
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
        let span = args[2].span;
        let groups = self.bucket_groups(&series, span)?;
        let mut found: Vec<VectorSeries> = Vec::new();
        for group in &groups {
            self.meter.check_canceled()?;
            self.meter.reserve_series(0, steps.count)?;
            let name = group.labels.metric_name();
            let (notes, meter) = (&mut self.notes, &self.meter);
            found.push(group.column(&series, steps, meter, |step, histogram| match histogram {
                StepHistogram::Classic(buckets) => {
                    classic::fraction(lower[step], upper[step], buckets)
                }
                StepHistogram::Native(histogram) => {
                    let (value, effect) = histogram::fraction(lower[step], upper[step], histogram);
                    effect.into_iter().for_each(|e| notes.nan_observations(span, name, e));
                    value
                }
            })?);
        }
        self.finish(found)
    }

    /// Drops series without a value, and metric names.
    fn finish(&mut self, mut found: Vec<VectorSeries>) -> Result<Vec<VectorSeries>> {
        drop_empty(&mut found, &self.meter)?;
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
    ) -> Result<VectorSeries> {
        let name = match self.options.delayed_name_removal {
            true => group.labels.metric_name().to_owned(),
            false => String::new(),
        };
        let (notes, meter) = (&mut self.notes, &self.meter);
        group.column(series, steps, meter, |step, histogram| match histogram {
            StepHistogram::Classic(buckets) => {
                let (value, forced) = classic::quantile(quantiles[step], buckets, steps.at(step));
                if let Some(forced) = forced {
                    notes.forced_monotonic(span, &name, forced);
                }
                value
            }
            StepHistogram::Native(histogram) => {
                let (value, effect) = histogram::quantile(quantiles[step], histogram);
                let name = group.labels.metric_name();
                effect.into_iter().for_each(|e| notes.nan_observations(span, name, e));
                value
            }
        })
    }

    /// Groups series into histograms. Series that differ only in `le` form one classic histogram; a
    /// native histogram forms its own. If both have the same labels at a step, neither has a value
    /// there.
    fn bucket_groups(&mut self, series: &[VectorSeries], span: Span) -> Result<Vec<BucketGroup>> {
        let mut groups: Vec<BucketGroup> = Vec::new();
        let mut by_labels: HashMap<Labels, usize> = HashMap::new();
        for (idx, one) in series.iter().enumerate() {
            if one.values.iter().all(|value| is_absent(*value)) {
                continue;
            }
            self.meter.check_canceled()?;
            // A bound in a list of at least four, and possibly a group.
            self.meter.reserve_items(4, size_of::<(f64, usize)>())?;
            self.meter.reserve_items(2, size_of::<BucketGroup>())?;
            self.meter.reserve_labels(one.labels.as_encoded().len())?;
            self.meter.reserve_entries(1)?;
            let bound = one.labels.get("le").unwrap_or("");
            let Some(upper) = parse_float(bound).ok().filter(|upper| !upper.is_nan()) else {
                let name = match self.options.delayed_name_removal {
                    true => one.labels.metric_name(),
                    false => "",
                };
                self.notes.bad_bucket(span, name, bound);
                continue;
            };
            let labels = one.labels.filter(|name| name != "le");
            let group = *by_labels.entry(labels).or_insert_with_key(|labels| {
                groups.push(BucketGroup::new(labels.clone()));
                groups.len() - 1
            });
            groups[group].bounds.push((upper, idx));
        }
        // Buckets with one bound, such as `1` and `1.0`, are summed in an order that is independent
        // of the order of series.
        for group in &mut groups {
            let labels = |bucket: &(f64, usize)| &series[bucket.1].labels;
            self.meter.sort_by(&mut group.bounds, |a, b| {
                a.0.total_cmp(&b.0).then_with(|| labels(a).cmp(labels(b)))
            })?;
        }
        for (idx, one) in series.iter().enumerate().filter(|(_, one)| one.has_histograms()) {
            self.meter.check_canceled()?;
            self.meter.reserve_items(2, size_of::<BucketGroup>())?;
            self.meter.reserve_entries(1)?;
            let group = *by_labels.entry(one.labels.clone()).or_insert_with_key(|labels| {
                groups.push(BucketGroup::new(labels.clone()));
                groups.len() - 1
            });
            groups[group].native = Some(idx);
            let bounds = &groups[group].bounds;
            let both = |step: usize| {
                one.histogram(step).is_some()
                    && bounds.iter().any(|&(_, idx)| !is_absent(series[idx].values[step]))
            };
            if (0..one.values.len()).any(both) {
                let name = match self.options.delayed_name_removal {
                    true => one.labels.metric_name(),
                    false => "",
                };
                self.notes.mixed_histograms(span, name);
            }
        }
        Ok(groups)
    }
}

/// The series of one histogram.
struct BucketGroup {
    labels: Labels,
    /// Upper bound and index of each classic bucket's series.
    bounds: Vec<(f64, usize)>,
    /// The index of the series of native histograms.
    native: Option<usize>,
}

/// A histogram at one step.
enum StepHistogram<'a> {
    Classic(&'a mut Vec<Bucket>),
    Native(&'a Histogram),
}

impl BucketGroup {
    fn new(labels: Labels) -> BucketGroup {
        BucketGroup { labels, bounds: Vec::new(), native: None }
    }

    /// Applies `compute` to the histogram of each step.
    ///
    /// # Errors
    /// As [`Meter::check_canceled`].
    fn column(
        &self,
        series: &[VectorSeries],
        steps: &Steps,
        meter: &Meter,
        mut compute: impl FnMut(usize, StepHistogram<'_>) -> f64,
    ) -> Result<VectorSeries> {
        let mut buckets = Vec::with_capacity(self.bounds.len());
        let mut values = vec![ABSENT; steps.count];
        for (step, value) in values.iter_mut().enumerate() {
            meter.check_canceled()?;
            buckets.clear();
            for &(upper, idx) in &self.bounds {
                let count = series[idx].values[step];
                if !is_absent(count) {
                    buckets.push(Bucket { upper, count });
                }
            }
            match self.native.and_then(|idx| series[idx].histogram(step)) {
                Some(_) if !buckets.is_empty() => {}
                Some(histogram) => *value = compute(step, StepHistogram::Native(histogram)),
                None if buckets.is_empty() => {}
                None => *value = compute(step, StepHistogram::Classic(&mut buckets)),
            }
        }
        Ok(VectorSeries::floats(self.labels.clone(), false, values))
    }
}

/// A number formatted as an OpenMetrics label value: always with a point or an exponent.
fn open_metrics(value: f64) -> String {
    let text = format_g(value);
    if value.is_finite() && !text.contains(['e', '.']) { format!("{text}.0") } else { text }
}
