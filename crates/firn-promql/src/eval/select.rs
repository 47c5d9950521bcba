//! Reading: selections batch by batch, each member's column through the windows of its time column.

use std::ops::Range;
use std::sync::Arc;

use firn_model::{
    ColumnBatch, Grouping, Labels, Matcher, PointValue, Result, Sample, Selection, Timestamp,
};

use super::Evaluator;
use super::vector::{ABSENT, VectorSeries, is_absent};
use super::window::{Frame, MixedSamples, Reading, Samples, Scratch, Steps, Windows, is_stale};
use crate::functions::extended;
use crate::histogram::Remarks;
use crate::plan;
use crate::syntax::{Borders, MatrixSelector, Selector};
use crate::value::{HistogramPoint, Series};

/// Groups per read at first. Reads grow while they bring few samples, so that cold storage is asked for much
/// at once and wide groups do not fill the memory.
const GROUPS_FIRST: usize = 64;
const GROUPS_MAX: usize = 4_096;
/// A read of more than this makes the next one smaller: 2 MiB of values.
const SAMPLES_WANTED: usize = 1 << 18;

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

    /// A range selector as a result of its own: the samples themselves.
    pub(super) fn raw(&mut self, matrix: &MatrixSelector, steps: &Steps) -> Result<Vec<Series>> {
        let selector = &matrix.selector;
        let frame = plan::range_frame(matrix, steps, self.options.lookback_ms);
        let mut found = Vec::new();
        let mut held = 0;
        let (selected, context) = (&selector.matchers, self.context);
        let start = frame.reference(0).saturating_sub(matrix.range.ms());
        let meter = &mut self.meter;
        let mut reader = Reader::open(self.select, selected, &frame, &Grouping::Series, context)?;
        while let Some(batch) = reader.next_batch()? {
            context.cancel.check()?;
            reader.each_column(&batch, &frame, false, &mut |labels, reading| {
                meter.read += reading.len() as u64;
                if let Some(stats) = &mut meter.samples {
                    stats.windows(reading);
                }
                let mut series = Series::new(labels.clone(), Vec::new());
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
                        for idx in window {
                            push_point(
                                &mut series,
                                samples.times[idx],
                                &samples.entries[idx].value,
                            );
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
        }
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
        let mut found = Vec::new();
        if frame.range().is_empty() {
            return Ok(found);
        }
        let context = self.context;
        let (meter, remarks) = (&mut self.meter, &mut self.remarks);
        let mut spare: Vec<f64> = Vec::new();
        let mut reader = Reader::open(self.select, matchers, frame, grouping, context)?;
        while let Some(batch) = reader.next_batch()? {
            context.cancel.check()?;
            reader.each_column(&batch, frame, keep_stale, &mut |labels, reading| {
                meter.read += reading.len() as u64;
                meter.check(reading.longest() as u64)?;
                let mut values = std::mem::take(&mut spare);
                values.clear();
                values.resize(frame.steps.count, ABSENT);
                let mut series = VectorSeries::floats(labels.clone(), false, values);
                match reading {
                    Reading::Floats(samples) => kernel.floats(samples, &mut series.values)?,
                    Reading::Mixed(samples) => {
                        let mut found = Remarks::default();
                        kernel.mixed(samples, &mut series, &mut found)?;
                        let name = labels.metric_name();
                        remarks.extend(found.into_iter().map(|remark| (name.to_owned(), remark)));
                    }
                }
                if let Some(stats) = &mut meter.samples {
                    match kernel.looks_at_windows() {
                        true => stats.windows(reading),
                        false => stats.points(&series),
                    }
                }
                if series.is_empty() {
                    spare = series.values;
                } else {
                    meter.hold(&series)?;
                    found.push(series);
                }
                Ok(())
            })?;
        }
        Ok(found)
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
struct Newest;

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
        Newest.mixed(samples, out, remarks)
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

/// Walks over the groups of a selection.
struct Reader {
    selected: Box<dyn firn_model::Selected>,
    next: usize,
    groups_per_read: usize,
    queue: std::vec::IntoIter<ColumnBatch>,
    /// Windows over the time columns of the last batch; series scraped together often share theirs.
    windows: Vec<(Arc<[Timestamp]>, Windows)>,
    scratch: Scratch,
}

impl Reader {
    fn open(
        select: &dyn firn_model::Select,
        matchers: &[Matcher],
        frame: &Frame,
        grouping: &Grouping,
        context: &firn_model::QueryContext,
    ) -> Result<Reader> {
        let selection = Selection {
            matchers: matchers.to_vec(),
            range: frame.range(),
            grouping: grouping.clone(),
        };
        Ok(Reader {
            selected: select.select(&selection, context)?,
            next: 0,
            groups_per_read: GROUPS_FIRST,
            queue: Vec::new().into_iter(),
            windows: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    fn next_batch(&mut self) -> Result<Option<ColumnBatch>> {
        loop {
            if let Some(batch) = self.queue.next() {
                return Ok(Some(batch));
            }
            let groups = self.next_groups();
            if groups.is_empty() {
                return Ok(None);
            }
            let batches = self.selected.read(groups)?;
            let values: usize =
                batches.iter().flat_map(|batch| &batch.columns).map(|c| c.values.len()).sum();
            self.groups_per_read = if values > SAMPLES_WANTED {
                (self.groups_per_read / 2).max(1)
            } else {
                (self.groups_per_read * 2).min(GROUPS_MAX)
            };
            self.queue = batches.into_iter();
        }
    }

    fn next_groups(&mut self) -> Range<usize> {
        let start = self.next;
        self.next = (start + self.groups_per_read).min(self.selected.group_count());
        start..self.next
    }

    /// Calls `each` with the key and the samples of every member of `batch`.
    fn each_column(
        &mut self,
        batch: &ColumnBatch,
        frame: &Frame,
        keep_stale: bool,
        each: &mut dyn FnMut(&Labels, Reading<'_>) -> Result<()>,
    ) -> Result<()> {
        for (idx, times) in batch.times.iter().enumerate() {
            match self.windows.get_mut(idx) {
                Some((known, _)) if Arc::ptr_eq(known, times) || known == times => {}
                Some((known, windows)) => {
                    *known = Arc::clone(times);
                    windows.compute(times, frame);
                }
                None => {
                    let mut windows = Windows::default();
                    windows.compute(times, frame);
                    self.windows.push((Arc::clone(times), windows));
                }
            }
        }
        let no_key = || firn_model::Error::internal("a column names a key that is not there");
        for column in &batch.columns {
            let labels = self.selected.keys().get(column.key as usize).ok_or_else(no_key)?;
            let (times, windows) = self
                .windows
                .get(column.time_idx as usize)
                .filter(|_| (column.time_idx as usize) < batch.times.len())
                .ok_or_else(|| firn_model::Error::internal("a column without its times"))?;
            if let Some(reading) = self.scratch.read(times, column, windows, keep_stale) {
                each(labels, reading)?;
            }
        }
        Ok(())
    }
}
