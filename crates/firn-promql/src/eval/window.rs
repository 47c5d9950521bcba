//! Steps, and the samples of a time column in each step's window.
//!
//! Bounds are computed once per time column. Members that lack some of its entries map the same
//! bounds through a count of the entries they have.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use firn_model::{
    Column, ColumnValues, Histogram, MixedEntry, PointValue, ResetHint, TimeRange, Timestamp,
};

use super::vector::{VectorSeries, has_absent, histogram_points, is_absent};
use crate::functions::extrapolation::Extrapolation;

/// The evaluation times: `start`, `start + step`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) start: Timestamp,
    /// Milliseconds, above 0.
    pub(crate) step: i64,
    pub(crate) count: usize,
}

impl Steps {
    /// One evaluation.
    pub(crate) fn one(ts: Timestamp) -> Steps {
        Steps { start: ts, step: 1, count: 1 }
    }

    /// From `start` to `end` at most; none if `end` comes first.
    pub(crate) fn between(start: Timestamp, end: Timestamp, step: i64) -> Steps {
        let span = i128::from(end) - i128::from(start);
        let count = if span < 0 { 0 } else { span / i128::from(step.max(1)) + 1 };
        Steps { start, step: step.max(1), count: usize::try_from(count).unwrap_or(usize::MAX) }
    }

    /// The time of step `idx`.
    pub(crate) fn at(&self, idx: usize) -> Timestamp {
        let offset = i64::try_from(idx).unwrap_or(i64::MAX).saturating_mul(self.step);
        self.start.saturating_add(offset)
    }

    pub(crate) fn times(&self) -> impl Iterator<Item = Timestamp> + '_ {
        (0..self.count).map(|idx| self.at(idx))
    }
}

/// The window of each step: left-open, right-closed, around a reference time that is the step's own
/// or fixed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) steps: Steps,
    /// The time in `@`.
    pub(crate) at: Option<Timestamp>,
    /// The offset, milliseconds.
    pub(crate) offset: i64,
    /// The length of the window before the reference time.
    pub(crate) before: i64,
    /// The length of the window after the reference time; 0 except for smoothed selectors.
    pub(crate) after: i64,
}

impl Frame {
    /// The reference time of step `idx`.
    pub(crate) fn reference(&self, idx: usize) -> Timestamp {
        self.at.unwrap_or_else(|| self.steps.at(idx)).saturating_sub(self.offset)
    }

    /// Start (exclusive) and end (inclusive) of step `idx`'s window.
    pub(crate) fn bounds(&self, idx: usize) -> (Timestamp, Timestamp) {
        let reference = self.reference(idx);
        (reference.saturating_sub(self.before), reference.saturating_add(self.after))
    }

    /// The range from the first to the last sample that any step may read.
    pub(crate) fn range(&self) -> TimeRange {
        if self.steps.count == 0 {
            return TimeRange::EMPTY;
        }
        let start = self.bounds(0).0.saturating_add(1);
        TimeRange::new(start, self.bounds(self.steps.count - 1).1)
    }
}

/// The memory of [`Windows`] per step.
pub(crate) const WINDOWS_STEP_BYTES: usize =
    size_of::<(u32, u32)>() + size_of::<Extrapolation>() + size_of::<u32>();

/// The entries of one time column in each step's window. Used by one call of one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Windows {
    /// `(first, end)` per step.
    bounds: Vec<(u32, u32)>,
    /// The extrapolation of each window, once a rate has requested it.
    extrapolations: OnceCell<Vec<Extrapolation>>,
    /// The block boundary that splits each window, once a partial aggregate has requested it.
    splits: OnceCell<Vec<u32>>,
    /// The number of entries in the longest window, once requested.
    longest: OnceCell<usize>,
}

impl Windows {
    /// The bounds of all steps over `times`, which strictly rise. O(times + steps).
    pub(crate) fn compute(&mut self, times: &[Timestamp], frame: &Frame) {
        self.clear();
        self.bounds.reserve_exact(frame.steps.count);
        let (mut first, mut end) = (0, 0);
        for idx in 0..frame.steps.count {
            let (after, through) = frame.bounds(idx);
            while times.get(first).is_some_and(|&ts| ts <= after) {
                first += 1;
            }
            end = end.max(first);
            while times.get(end).is_some_and(|&ts| ts <= through) {
                end += 1;
            }
            self.bounds.push((first as u32, end as u32));
            if frame.at.is_some() {
                self.bounds.resize(frame.steps.count, (first as u32, end as u32));
                return;
            }
        }
    }

    fn clear(&mut self) {
        self.bounds.clear();
        self.extrapolations.take();
        self.splits.take();
        self.longest.take();
    }

    /// The extrapolation of every window: computed by the first caller, reused by members that
    /// share the times.
    pub(crate) fn extrapolations(
        &self,
        extrapolation: impl Fn(usize, Range<usize>) -> Extrapolation,
    ) -> &[Extrapolation] {
        self.extrapolations.get_or_init(|| {
            self.iter().enumerate().map(|(step, w)| extrapolation(step, w)).collect()
        })
    }

    /// Per window its first entry after the block boundary inside it; the window's end if there is
    /// none.
    ///
    /// Blocks are `(k * length, (k + 1) * length]` with the windows' own length, so a window
    /// crosses at most one boundary. The boundary depends only on the window's time, not on the
    /// query's start or step.
    pub(crate) fn splits(&self, times: &[Timestamp], frame: &Frame) -> &[u32] {
        self.splits.get_or_init(|| {
            let length = frame.before.saturating_add(frame.after).max(1);
            let split = |(step, window): (usize, Range<usize>)| {
                let last = frame.bounds(step).1.saturating_sub(1);
                let border = last.div_euclid(length).saturating_mul(length);
                let before = times[window.clone()].partition_point(|&ts| ts <= border);
                (window.start + before) as u32
            };
            self.iter().enumerate().map(split).collect()
        })
    }

    /// The entries of each step.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.bounds.iter().map(|&(first, end)| first as usize..end as usize)
    }

    /// The number of entries in the longest window.
    pub(crate) fn longest(&self) -> usize {
        *self.longest.get_or_init(|| self.iter().map(|window| window.len()).max().unwrap_or(0))
    }
}

/// One member's samples with the windows over them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<'a> {
    pub(crate) times: &'a [Timestamp],
    pub(crate) values: &'a [f64],
    pub(crate) windows: &'a Windows,
}

/// One member's entries with the windows over them, for samples that are not all plain floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixedSamples<'a> {
    pub(crate) times: &'a [Timestamp],
    pub(crate) entries: &'a [MixedEntry],
    pub(crate) windows: &'a Windows,
}

/// One member's data. Loops over floats never meet another type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemberSamples<'a> {
    Floats(Samples<'a>),
    Mixed(MixedSamples<'a>),
}

impl MemberSamples<'_> {
    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        match self {
            MemberSamples::Floats(samples) => samples.times.len(),
            MemberSamples::Mixed(samples) => samples.times.len(),
        }
    }

    /// The windows.
    pub(crate) fn windows(&self) -> &Windows {
        match self {
            MemberSamples::Floats(samples) => samples.windows,
            MemberSamples::Mixed(samples) => samples.windows,
        }
    }

    /// The weight of some entries under the sample limit.
    pub(crate) fn weight(&self, entries: Range<usize>) -> usize {
        match self {
            MemberSamples::Floats(_) => entries.len(),
            MemberSamples::Mixed(samples) => {
                let weight = |entry: &MixedEntry| match &entry.value {
                    PointValue::Float(_) => 1,
                    PointValue::Histogram(histogram) => histogram_points(histogram),
                };
                samples.entries[entries].iter().map(weight).sum()
            }
        }
    }

    /// The memory that a window function may take beside its result: some partial aggregates for
    /// the samples of a window, and a count for each sample.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        const WINDOW_SAMPLE_BYTES: usize = 56;
        const SAMPLE_BYTES: usize = 12;
        let window = self.windows().longest().saturating_mul(WINDOW_SAMPLE_BYTES);
        window.saturating_add(self.len().saturating_mul(SAMPLE_BYTES)) as u64
    }

    /// The weight of the longest window under the sample limit.
    pub(crate) fn longest(&self) -> usize {
        match self {
            MemberSamples::Floats(samples) => samples.windows.longest(),
            MemberSamples::Mixed(samples) => {
                samples.windows.iter().map(|window| self.weight(window)).max().unwrap_or(0)
            }
        }
    }
}

/// Buffers for members that lack entries of their time column.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    times: Vec<Timestamp>,
    values: Vec<f64>,
    entries: Vec<MixedEntry>,
    /// For each entry `i`, the number of entries before it that the member has.
    rank: Vec<u32>,
    windows: Windows,
}

impl Scratch {
    /// A column's samples; stale markers are dropped unless `keep_stale`. `None` for an unknown
    /// type of values.
    pub(crate) fn read<'a>(
        &'a mut self,
        times: &'a [Timestamp],
        column: &'a Column,
        windows: &'a Windows,
        keep_stale: bool,
    ) -> Option<MemberSamples<'a>> {
        let presence = column.presence.as_ref().filter(|presence| !presence.is_full());
        match (&column.values, presence) {
            (ColumnValues::F64(values), Some(presence)) => {
                let entries = presence.iter().zip(values.iter().copied());
                self.pick(times, entries, windows, keep_stale).map(MemberSamples::Floats)
            }
            (ColumnValues::F64(values), None) => {
                self.dense(times, values, windows, keep_stale).map(MemberSamples::Floats)
            }
            (ColumnValues::Mixed(entries), Some(presence)) => {
                let entries = presence.iter().zip(entries.iter().cloned());
                self.pick_mixed(times, entries, windows, keep_stale).map(MemberSamples::Mixed)
            }
            (ColumnValues::Mixed(entries), None) => {
                let entries = entries.iter().cloned().enumerate();
                self.pick_mixed(times, entries, windows, keep_stale).map(MemberSamples::Mixed)
            }
            _ => None,
        }
    }

    /// The points of a series that was computed at each of `times`.
    pub(crate) fn read_series<'a>(
        &'a mut self,
        times: &'a [Timestamp],
        series: &'a VectorSeries,
        windows: &'a Windows,
    ) -> Option<MemberSamples<'a>> {
        if series.histograms.is_empty() {
            return self.dense(times, &series.values, windows, false).map(MemberSamples::Floats);
        }
        let points = series.values.iter().enumerate().map(|(step, &value)| {
            let value = match series.histogram(step) {
                Some(histogram) => PointValue::Histogram(without_hint(histogram)),
                None => PointValue::Float(value),
            };
            (step, MixedEntry { start: 0, value })
        });
        self.pick_mixed(times, points, windows, false).map(MemberSamples::Mixed)
    }

    /// The same for a column with a value, possibly absent, at each of `times`.
    fn dense<'a>(
        &'a mut self,
        times: &'a [Timestamp],
        values: &'a [f64],
        windows: &'a Windows,
        keep_stale: bool,
    ) -> Option<Samples<'a>> {
        if keep_stale || !has_absent(values) {
            return Some(Samples { times, values, windows });
        }
        self.pick(times, values.iter().copied().enumerate(), windows, false)
    }

    fn pick<'a>(
        &'a mut self,
        times: &[Timestamp],
        entries: impl Iterator<Item = (usize, f64)>,
        windows: &Windows,
        keep_stale: bool,
    ) -> Option<Samples<'a>> {
        self.times.clear();
        self.values.clear();
        self.rank.clear();
        for (idx, value) in entries {
            if !keep_stale && is_absent(value) {
                continue;
            }
            let ts = *times.get(idx)?;
            self.rank.resize(idx + 1, self.times.len() as u32);
            self.times.push(ts);
            self.values.push(value);
        }
        self.map_windows(times, windows);
        Some(Samples { times: &self.times, values: &self.values, windows: &self.windows })
    }

    fn pick_mixed<'a>(
        &'a mut self,
        times: &[Timestamp],
        entries: impl Iterator<Item = (usize, MixedEntry)>,
        windows: &Windows,
        keep_stale: bool,
    ) -> Option<MixedSamples<'a>> {
        self.times.clear();
        self.entries.clear();
        self.rank.clear();
        for (idx, entry) in entries {
            if !keep_stale && is_stale(&entry.value) {
                continue;
            }
            let ts = *times.get(idx)?;
            self.rank.resize(idx + 1, self.times.len() as u32);
            self.times.push(ts);
            self.entries.push(entry);
        }
        self.map_windows(times, windows);
        Some(MixedSamples { times: &self.times, entries: &self.entries, windows: &self.windows })
    }

    /// Maps windows over `times` to the selected entries.
    fn map_windows(&mut self, times: &[Timestamp], windows: &Windows) {
        self.rank.resize(times.len() + 1, self.times.len() as u32);
        let rank = &self.rank;
        let map = |&(first, end): &(u32, u32)| (rank[first as usize], rank[end as usize]);
        self.windows.clear();
        self.windows.bounds.extend(windows.bounds.iter().map(map));
    }
}

/// Removes a reset hint: the neighbours may not be the ones that the hint compares, because a
/// subquery may skip samples.
fn without_hint(histogram: &Arc<Histogram>) -> Arc<Histogram> {
    match histogram.reset_hint {
        ResetHint::Unknown | ResetHint::Gauge => Arc::clone(histogram),
        ResetHint::Reset | ResetHint::NoReset => {
            Arc::new(Histogram { reset_hint: ResetHint::Unknown, ..Histogram::clone(histogram) })
        }
    }
}

/// Whether a point ends its series: the stale marker itself, or a histogram with it as its sum.
pub(crate) fn is_stale(value: &PointValue) -> bool {
    match value {
        PointValue::Float(value) => is_absent(*value),
        PointValue::Histogram(histogram) => is_absent(histogram.sum),
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Presence, Slot};
    use proptest::prelude::*;

    use super::*;

    fn frame(steps: Steps, before: i64) -> Frame {
        Frame { steps, at: None, offset: 0, before, after: 0 }
    }

    #[test]
    fn windows_are_open_on_the_left() {
        let mut windows = Windows::default();
        let steps = Steps { start: 20, step: 10, count: 3 };
        windows.compute(&[0, 10, 20, 30], &frame(steps, 10));
        let got: Vec<_> = windows.iter().collect();
        assert_eq!(got, [2..3, 3..4, 4..4]);
        assert_eq!(frame(steps, 10).range(), TimeRange::new(11, 40));
    }

    proptest! {
        /// A member with holes gets the windows that its own time column would have.
        #[test]
        fn mapped_windows_equal_computed_ones(
            gaps in prop::collection::vec(1i64..20, 0..40),
            present in prop::collection::vec(any::<bool>(), 40),
            start in -50i64..200, step in 1i64..40, count in 1usize..12, before in 0i64..100,
        ) {
            let times: Vec<i64> =
                gaps.iter().scan(0, |ts, gap| { *ts += gap; Some(*ts) }).collect();
            let frame = frame(Steps { start, step, count }, before);
            let mut presence = Presence::new();
            (0..times.len()).for_each(|idx| presence.push(present[idx]));
            let own: Vec<i64> = presence.iter().map(|idx| times[idx]).collect();
            let values = own.iter().map(|&ts| ts as f64).collect();
            let column = Column {
                slot: Slot(0), key: 0, time_idx: 0,
                presence: Some(presence), values: ColumnValues::F64(values),
            };
            let (mut windows, mut expected) = (Windows::default(), Windows::default());
            windows.compute(&times, &frame);
            expected.compute(&own, &frame);
            let mut scratch = Scratch::default();
            let member = scratch.read(&times, &column, &windows, false);
            let Some(MemberSamples::Floats(samples)) = member else {
                unreachable!("a column of floats")
            };
            prop_assert_eq!(&samples.windows.bounds, &expected.bounds);
            prop_assert_eq!(samples.times, &own[..]);
        }
    }
}
