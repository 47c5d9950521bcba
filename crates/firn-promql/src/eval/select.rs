//! Selectors: what becomes of the members of a selection, one by one or folded into the groups of an aggregation.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firn_model::{Error, Grouping, Labels, Matcher, PointValue, Result, Sample, Timestamp};

use super::Evaluator;
use super::fold::Fold;
use super::meter::Meter;
use super::scan::{Scan, Sink};
use super::totals::{Needs, TotalsOnly};
use super::vector::{VectorSeries, is_absent};
use super::window::{Frame, MixedSamples, Reading, Samples, Steps, is_stale};
use crate::functions::extended;
use crate::histogram::{self, Remark, Remarks};
use crate::plan;
use crate::syntax::{AggregateOp, Borders, MatrixSelector, Selector};
use crate::value::{HistogramPoint, Series};

impl Evaluator<'_> {
    /// An instant selector: at each step the newest sample within the lookback.
    pub(super) fn instant(
        &mut self,
        selector: &Selector,
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Vec<VectorSeries>> {
        let frame = plan::instant_frame(selector, steps, self.options.lookback_ms);
        // A stale marker ends a series, so it must be seen; between smoothed samples it counts as nothing.
        if selector.borders == Borders::Smoothed {
            let kernel = SmoothedValues { frame };
            return self.read(&selector.matchers, &frame, grouping, false, &kernel);
        }
        self.read(&selector.matchers, &frame, grouping, true, &Newest)
    }

    /// The times, in seconds, of the samples that an instant selector gives.
    pub(super) fn sample_times(
        &mut self,
        selector: &Selector,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let plain = Selector { borders: Borders::Plain, ..selector.clone() };
        let frame = plan::instant_frame(&plain, steps, self.options.lookback_ms);
        let kernel = NewestTimes { per_unit_ms: 1000.0 };
        self.read(&selector.matchers, &frame, &Grouping::Series, true, &kernel)
    }

    /// The start timestamps, in seconds, of the samples that an instant selector gives.
    pub(super) fn sample_starts(
        &mut self,
        selector: &Selector,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let plain = Selector { borders: Borders::Plain, ..selector.clone() };
        let frame = plan::instant_frame(&plain, steps, self.options.lookback_ms);
        self.read(&selector.matchers, &frame, &Grouping::Series, true, &NewestStarts)
    }

    /// A range selector as a result of its own: the samples themselves.
    pub(super) fn raw(&mut self, matrix: &MatrixSelector, steps: &Steps) -> Result<Vec<Series>> {
        let selector = &matrix.selector;
        let frame = plan::range_frame(matrix, steps, self.options.lookback_ms);
        let mut found = Vec::new();
        let mut held = 0;
        let (selected, context) = (&selector.matchers, self.context);
        let start = frame.reference(0).saturating_sub(matrix.range.ms());
        let meter = &mut self.meter;
        let scan = Scan::open(self.select, selected, &frame, &Grouping::Series, false, context)?;
        scan.each(&mut |key, reading| {
            meter.read += reading.len() as u64;
            if let Some(stats) = &mut meter.samples {
                stats.windows(reading);
            }
            let mut series = Series::new(scan.label(key)?.clone(), Vec::new());
            match reading {
                Reading::Floats(samples) => {
                    let Some(window) = samples.windows.iter().next() else { return Ok(()) };
                    let times = &samples.times[window.clone()];
                    let values = &samples.values[window];
                    series.floats = if selector.borders == Borders::Plain {
                        let pairs = times.iter().zip(values);
                        pairs.map(|(&ts, &value)| Sample { ts, value }).collect()
                    } else {
                        let is_smoothed = selector.borders == Borders::Smoothed;
                        let end = frame.reference(0);
                        let pairs = extended::bordered(times, values, start, end, is_smoothed);
                        pairs.into_iter().map(|(ts, value)| Sample { ts, value }).collect()
                    };
                }
                Reading::Mixed(samples) => {
                    let Some(window) = samples.windows.iter().next() else { return Ok(()) };
                    // What an extended window reaches for beyond its borders is not shown.
                    let is_plain = selector.borders == Borders::Plain;
                    let is_inside = |ts| is_plain || (ts > start && ts <= frame.reference(0));
                    for idx in window.filter(|&idx| is_inside(samples.times[idx])) {
                        push_point(&mut series, samples.times[idx], &samples.entries[idx].value);
                    }
                }
            }
            held += reading.longest() as u64;
            meter.check(held)?;
            if !series.is_empty() {
                found.push(series);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads a selection and computes one column per member; members without a point are left out.
    pub(super) fn read(
        &mut self,
        matchers: &[Matcher],
        frame: &Frame,
        grouping: &Grouping,
        keep_stale: bool,
        kernel: &dyn Kernel,
    ) -> Result<Vec<VectorSeries>> {
        if frame.range().is_empty() {
            return Ok(Vec::new());
        }
        let context = self.context;
        let scan = Scan::open(self.select, matchers, frame, grouping, keep_stale, context)?;
        let totals = TotalsOnly { kernel };
        let kernel = if self.needs == Needs::Totals { &totals } else { kernel };
        let mut stats = self.meter.samples.take();
        let (meter, remarks) = (&mut self.meter, &mut self.remarks);
        let mut sink = SeriesSink { scan: &scan, meter, remarks, found: Vec::new() };
        scan.run(kernel, &mut sink, &mut stats)?;
        let found = sink.found;
        self.meter.samples = stats;
        Ok(found)
    }

    /// Reads a selection and folds the members' columns into one per group, without keeping them. `None` if some
    /// member is not of floats alone: what becomes of it is for [`Evaluator::read`] and its like.
    pub(super) fn read_folded(
        &mut self,
        matchers: &[Matcher],
        frame: &Frame,
        grouping: &Grouping,
        keep_stale: bool,
        kernel: &dyn Kernel,
        op: AggregateOp,
    ) -> Result<Option<Vec<VectorSeries>>> {
        if frame.range().is_empty() {
            return Ok(Some(Vec::new()));
        }
        let context = self.context;
        let scan = Scan::open(self.select, matchers, frame, grouping, keep_stale, context)?;
        let read_before = self.meter.read;
        let mut stats = self.meter.samples.clone();
        let mut sink = FoldSink {
            keys: scan.keys(),
            meter: &mut self.meter,
            group_of: vec![None; scan.keys().len()],
            groups: HashMap::new(),
            labels: Vec::new(),
            fold: Fold::new(op, frame.steps.count),
            met_others: false,
        };
        let done = scan.run(kernel, &mut sink, &mut stats);
        if sink.met_others {
            self.meter.read = read_before;
            return Ok(None);
        }
        done?;
        let columns = sink.labels.into_iter().zip(sink.fold.finish());
        let series = columns.map(|(labels, values)| VectorSeries::floats(labels, false, values));
        let series = series.collect();
        self.meter.samples = stats;
        Ok(Some(series))
    }
}

/// Keeps every member that has a point.
struct SeriesSink<'a> {
    scan: &'a Scan<'a>,
    meter: &'a mut Meter,
    remarks: &'a mut BTreeSet<(String, Remark)>,
    found: Vec<VectorSeries>,
}

impl SeriesSink<'_> {
    fn keep(&mut self, series: VectorSeries) -> Result<()> {
        self.meter.hold(&series)?;
        self.found.push(series);
        Ok(())
    }
}

impl Sink for SeriesSink<'_> {
    fn count(&mut self, samples: u64, longest: u64) -> Result<()> {
        self.meter.read += samples;
        self.meter.check(longest)
    }

    fn floats(&mut self, key: u32, values: &[f64]) -> Result<()> {
        if values.iter().all(|value| is_absent(*value)) {
            return Ok(());
        }
        self.keep(VectorSeries::floats(self.scan.label(key)?.clone(), false, values.to_vec()))
    }

    fn mixed(&mut self, _: u32, series: VectorSeries, remarks: Remarks) -> Result<()> {
        let name = series.labels.metric_name();
        self.remarks.extend(remarks.into_iter().map(|remark| (name.to_owned(), remark)));
        if series.is_empty() { Ok(()) } else { self.keep(series) }
    }
}

/// Folds the members of each group, groups in order of their first member with a point.
struct FoldSink<'a> {
    keys: &'a [Labels],
    meter: &'a mut Meter,
    /// The group of a key, once it has one. Storage may tell more keys apart than there are groups.
    group_of: Vec<Option<u32>>,
    groups: HashMap<Labels, u32>,
    labels: Vec<Labels>,
    fold: Fold,
    met_others: bool,
}

impl FoldSink<'_> {
    fn group(&mut self, key: u32) -> Result<usize> {
        let unknown = || Error::internal("a column names a key that is not there");
        let known = self.group_of.get_mut(key as usize).ok_or_else(unknown)?;
        if let Some(group) = known {
            return Ok(*group as usize);
        }
        let labels = self.keys.get(key as usize).ok_or_else(unknown)?;
        let next = self.labels.len() as u32;
        let group = *self.groups.entry(labels.clone()).or_insert(next);
        *known = Some(group);
        if group == next {
            self.meter.reserve(self.fold.group_bytes() + labels.as_encoded().len() as u64)?;
            self.labels.push(labels.clone());
            self.fold.open_group();
        }
        Ok(group as usize)
    }
}

impl Sink for FoldSink<'_> {
    fn count(&mut self, samples: u64, longest: u64) -> Result<()> {
        self.meter.read += samples;
        self.meter.check(longest)
    }

    fn floats(&mut self, key: u32, values: &[f64]) -> Result<()> {
        if values.iter().all(|value| is_absent(*value)) {
            return Ok(());
        }
        let group = self.group(key)?;
        self.fold.add(group, values);
        Ok(())
    }

    fn mixed(&mut self, _: u32, _: VectorSeries, _: Remarks) -> Result<()> {
        self.met_others = true;
        Err(Error::internal("a member is not of floats alone"))
    }
}

/// What becomes of the windows of a series. There is one loop for plain floats, which most series are, and another
/// one for everything else, so that the first need not ask at each sample what it is.
pub(crate) trait Kernel: Sync {
    /// Computes one value per window; `out` comes in with all steps absent.
    ///
    /// # Errors
    /// `Invalid` for a parameter that the function refuses.
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()>;

    /// The same where histograms or start timestamps are among the samples; `out` has no point yet.
    ///
    /// # Errors
    /// As [`Kernel::floats`].
    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()>;

    /// Whether all samples of a window count for its step, and not only the point that comes out of it.
    fn looks_at_windows(&self) -> bool {
        true
    }
}

/// The newest sample of each window.
pub(super) struct Newest;

impl Kernel for Newest {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(out) {
            if let Some(last) = window.last() {
                // A stale marker has the bits of an absent point, which is what it means here.
                *out = samples.values[last];
            }
        }
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (step, window) in samples.windows.iter().enumerate() {
            let Some(entry) = window.last().map(|last| &samples.entries[last]) else { continue };
            match &entry.value {
                PointValue::Float(value) => out.values[step] = *value,
                stale if is_stale(stale) => {}
                PointValue::Histogram(histogram) => out.set_histogram(step, Arc::clone(histogram)),
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The value of each window at its reference time.
struct SmoothedValues {
    frame: Frame,
}

impl Kernel for SmoothedValues {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        extended::smoothed_values(samples, &self.frame, out);
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()> {
        for (step, window) in samples.windows.iter().enumerate() {
            let at = self.frame.reference(step);
            if let Some(value) = histogram::smoothed_point(samples, window, at, remarks) {
                out.set(step, value);
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The time of the newest sample of each window.
pub(super) struct NewestTimes {
    /// 1 for milliseconds, 1000 for seconds.
    pub(super) per_unit_ms: f64,
}

impl Kernel for NewestTimes {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(out) {
            if let Some(last) = window.last()
                && !is_absent(samples.values[last])
            {
                *out = samples.times[last] as f64 / self.per_unit_ms;
            }
        }
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(&mut out.values) {
            if let Some(last) = window.last()
                && !is_stale(&samples.entries[last].value)
            {
                *out = samples.times[last] as f64 / self.per_unit_ms;
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The start timestamp, in seconds, of the newest sample of each window, where it has one.
struct NewestStarts;

impl Kernel for NewestStarts {
    fn floats(&self, _: Samples<'_>, _: &mut [f64]) -> Result<()> {
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(&mut out.values) {
            let newest = window.last().map(|last| &samples.entries[last]);
            if let Some(entry) = newest.filter(|e| e.start != 0 && !is_stale(&e.value)) {
                *out = entry.start as f64 / 1000.0;
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// Adds a point to a series of a matrix.
pub(super) fn push_point(series: &mut Series, ts: Timestamp, value: &PointValue) {
    match value {
        PointValue::Float(value) => series.floats.push(Sample { ts, value: *value }),
        PointValue::Histogram(histogram) => {
            let histogram = Arc::clone(histogram);
            series.histograms.push(HistogramPoint { ts, histogram });
        }
    }
}
