//! Selectors: the members of a selection are computed one by one, or folded into the groups of an
//! aggregation.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firn_model::{
    Error, Grouping, Labels, Matcher, MixedEntry, PointValue, Result, Sample, Timestamp,
};

use super::detail::HistogramDetail;
use super::evaluator::Evaluator;
use super::fold::Fold;
use super::kernel::{Kernel, Newest, NewestStarts, NewestTimes, SmoothedValues};
use super::meter::Meter;
use super::scan::{Scan, Sink};
use super::totals::TotalsOnly;
use super::vector::{VectorSeries, is_absent};
use super::window::{Frame, MemberSamples, Steps};
use crate::functions::extended;
use crate::histogram::{Remark, Remarks};
use crate::plan;
use crate::syntax::{AggregateOp, BoundaryMode, MatrixSelector, Selector};
use crate::value::{HistogramPoint, Series};

impl Evaluator<'_> {
    /// An instant selector: the newest sample within the lookback at each step.
    pub(super) fn instant(
        &mut self,
        selector: &Selector,
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Vec<VectorSeries>> {
        let frame = plan::instant_frame(selector, steps, self.options.lookback_ms);
        // A stale marker ends a series, so the kernel must see it; smoothed selectors ignore it.
        if selector.boundary == BoundaryMode::Smoothed {
            let kernel = SmoothedValues { frame };
            return self.read(&selector.matchers, &frame, grouping, false, &kernel);
        }
        self.read(&selector.matchers, &frame, grouping, true, &Newest)
    }

    /// The times, in seconds, of the samples that an instant selector returns.
    pub(super) fn sample_times(
        &mut self,
        selector: &Selector,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let plain = Selector { boundary: BoundaryMode::Plain, ..selector.clone() };
        let frame = plan::instant_frame(&plain, steps, self.options.lookback_ms);
        let kernel = NewestTimes { per_unit_ms: 1000.0 };
        self.read(&selector.matchers, &frame, &Grouping::Series, true, &kernel)
    }

    /// The start timestamps, in seconds, of the samples that an instant selector returns.
    pub(super) fn sample_starts(
        &mut self,
        selector: &Selector,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let plain = Selector { boundary: BoundaryMode::Plain, ..selector.clone() };
        let frame = plan::instant_frame(&plain, steps, self.options.lookback_ms);
        self.read(&selector.matchers, &frame, &Grouping::Series, true, &NewestStarts)
    }

    /// A range selector as the result of a query: the samples themselves.
    pub(super) fn raw(&mut self, matrix: &MatrixSelector, steps: &Steps) -> Result<Vec<Series>> {
        let selector = &matrix.selector;
        let frame = plan::range_frame(matrix, steps, self.options.lookback_ms);
        let mut found = Vec::new();
        let mut held = 0;
        let (selected, context) = (&selector.matchers, self.context);
        let start = frame.reference(0).saturating_sub(matrix.range.ms());
        let with_end_values = |times: &[Timestamp], values: &[f64]| -> Vec<Sample> {
            let is_smoothed = selector.boundary == BoundaryMode::Smoothed;
            let end = frame.reference(0);
            let pairs = extended::with_end_values(times, values, start, end, is_smoothed);
            pairs.into_iter().map(|(ts, value)| Sample { ts, value }).collect()
        };
        let meter = &mut self.meter;
        let scan = Scan::open(self.select, selected, &frame, &Grouping::Series, false, context)?;
        scan.each(&mut |key, reading| {
            meter.read += reading.len() as u64;
            if let Some(stats) = &mut meter.samples {
                stats.windows(reading);
            }
            let mut series = Series::new(scan.label(key)?.clone(), Vec::new());
            held += reading.longest() as u64;
            meter.check(held)?;
            // Two more at the boundaries of an extended window.
            let label_bytes = series.labels.as_encoded().len();
            meter.reserve_matrix(label_bytes, reading.windows().longest() + 2)?;
            match reading {
                MemberSamples::Floats(samples) => {
                    let Some(window) = samples.windows.iter().next() else { return Ok(()) };
                    let times = &samples.times[window.clone()];
                    let values = &samples.values[window];
                    series.floats = if selector.boundary == BoundaryMode::Plain {
                        let pairs = times.iter().zip(values);
                        pairs.map(|(&ts, &value)| Sample { ts, value }).collect()
                    } else {
                        with_end_values(times, values)
                    };
                }
                MemberSamples::Mixed(samples) => {
                    let Some(window) = samples.windows.iter().next() else { return Ok(()) };
                    let is_plain = selector.boundary == BoundaryMode::Plain;
                    meter.reserve_items(if is_plain { 0 } else { window.len() }, 8)?;
                    if !is_plain && let Some(floats) = floats_of(&samples.entries[window.clone()]) {
                        series.floats = with_end_values(&samples.times[window], &floats);
                        if !series.is_empty() {
                            found.push(series);
                        }
                        return Ok(());
                    }
                    // Samples beyond the boundaries of an extended window are not part of the
                    // result.
                    let is_inside = |ts| is_plain || (ts > start && ts <= frame.reference(0));
                    for idx in window.filter(|&idx| is_inside(samples.times[idx])) {
                        push_point(&mut series, samples.times[idx], &samples.entries[idx].value);
                    }
                }
            }
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
        let kernel = if self.detail == HistogramDetail::Totals { &totals } else { kernel };
        let mut stats = self.meter.samples.take();
        let (meter, remarks) = (&mut self.meter, &mut self.remarks);
        let mut sink = SeriesSink { scan: &scan, meter, remarks, found: Vec::new() };
        scan.run(kernel, &mut sink, &mut stats)?;
        let found = sink.found;
        self.meter.samples = stats;
        Ok(found)
    }

    /// Reads a selection and folds the members' columns into one per group, without keeping them.
    /// `None` if some member is not of floats alone; the caller then uses [`Evaluator::read`].
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
        let columns = sink.labels.into_iter().zip(sink.fold.finish(sink.meter)?);
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
    /// The group of a key, once it is known. Storage may distinguish more keys than there are
    /// groups.
    group_of: Vec<Option<u32>>,
    groups: HashMap<Labels, u32>,
    labels: Vec<Labels>,
    fold: Fold,
    met_others: bool,
}

impl FoldSink<'_> {
    fn group(&mut self, key: u32) -> Result<usize> {
        let unknown = || Error::internal("a column names an unknown key");
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
        Err(Error::internal("a fold received a member that is not all floats"))
    }
}

/// The values of entries that are all floats.
fn floats_of(entries: &[MixedEntry]) -> Option<Vec<f64>> {
    let float = |entry: &MixedEntry| match entry.value {
        PointValue::Float(value) => Some(value),
        PointValue::Histogram(_) => None,
    };
    entries.iter().map(float).collect()
}

/// Appends a point to a series of a matrix.
pub(super) fn push_point(series: &mut Series, ts: Timestamp, value: &PointValue) {
    match value {
        PointValue::Float(value) => series.floats.push(Sample { ts, value: *value }),
        PointValue::Histogram(histogram) => {
            let histogram = Arc::clone(histogram);
            series.histograms.push(HistogramPoint { ts, histogram });
        }
    }
}
