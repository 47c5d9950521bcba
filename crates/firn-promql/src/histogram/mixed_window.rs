//! A window of samples that are not all plain floats, and sums of the histograms in it.

use firn_model::{Histogram, MixedEntry, PointValue, ResetHint, Timestamp};

use super::running::{Incompatible, RunningHistogram};
use super::{Operation, Remark, Remarks};

/// The samples in the window of one step; at least one.
#[derive(Clone, Copy)]
pub(super) struct MixedWindow<'a> {
    pub(super) times: &'a [Timestamp],
    pub(super) entries: &'a [MixedEntry],
}

/// The kinds of samples in a window.
pub(super) enum WindowContent<'a> {
    Floats,
    Histograms(Vec<&'a Histogram>),
    Mixed,
}

impl<'a> MixedWindow<'a> {
    pub(super) fn content(&self) -> WindowContent<'a> {
        let as_histogram = |entry: &'a MixedEntry| match &entry.value {
            PointValue::Histogram(histogram) => Some(&**histogram),
            PointValue::Float(_) => None,
        };
        let histograms: Vec<&Histogram> = self.entries.iter().filter_map(as_histogram).collect();
        if histograms.is_empty() {
            WindowContent::Floats
        } else if histograms.len() == self.entries.len() {
            WindowContent::Histograms(histograms)
        } else {
            WindowContent::Mixed
        }
    }

    pub(super) fn floats(&self) -> impl Iterator<Item = (Timestamp, f64)> + '_ {
        let float = |(&ts, entry): (&Timestamp, &MixedEntry)| match entry.value {
            PointValue::Float(value) => Some((ts, value)),
            PointValue::Histogram(_) => None,
        };
        self.times.iter().zip(self.entries).filter_map(float)
    }

    /// Whether the start timestamp of sample `idx`, which is not the first, shows that the counter
    /// restarted after the previous sample.
    ///
    /// A start at the previous sample is a restart only if that sample's own start is known: a
    /// series of unknown start repeats the time of its first sample. 0, the sample's own time and
    /// later times are unknown.
    pub(super) fn starts_anew(&self, idx: usize) -> bool {
        let (start, before) = (self.entries[idx].start, self.entries[idx - 1].start);
        let (time, time_before) = (self.times[idx], self.times[idx - 1]);
        if start == 0 || start == before || start >= time {
            return false;
        }
        start > time_before || (start == time_before && before != 0 && before < time_before)
    }

    pub(super) fn has_overlap(&self) -> bool {
        (1..self.times.len()).any(|idx| {
            let (start, before) = (self.entries[idx].start, self.entries[idx - 1].start);
            start != 0 && start < self.times[idx - 1] && start != before
        })
    }

    pub(super) fn has_starts(&self) -> bool {
        self.entries.iter().any(|entry| entry.start != 0)
    }
}

pub(super) fn add(
    change: &mut RunningHistogram<f64>,
    histogram: &Histogram,
    remarks: &mut Remarks,
) {
    note_merged(
        change.add(histogram).map(|merged| merged.bounds_differed),
        Operation::Addition,
        remarks,
    );
}

pub(super) fn subtract(
    change: &mut RunningHistogram<f64>,
    histogram: &Histogram,
    remarks: &mut Remarks,
) {
    let merged = change.subtract(histogram).map(|merged| merged.bounds_differed);
    note_merged(merged, Operation::Subtraction, remarks);
}

fn note_merged(
    bounds_differed: Result<bool, Incompatible>,
    operation: Operation,
    remarks: &mut Remarks,
) {
    match bounds_differed {
        Ok(false) => {}
        Ok(true) => {
            remarks.insert(Remark::BoundsDiffered(operation));
        }
        Err(_) => {
            remarks.insert(Remark::MixedSchemas);
        }
    }
}

/// A counter must contain no gauge histogram; a gauge is recognised by its first and last
/// histogram.
pub(super) fn note_hints(is_counter: bool, histograms: &[&Histogram], remarks: &mut Remarks) {
    let is_gauge = |histogram: &&Histogram| histogram.reset_hint == ResetHint::Gauge;
    if is_counter {
        if histograms.iter().any(is_gauge) {
            remarks.insert(Remark::NotCounter);
        }
    } else if ![histograms.first(), histograms.last()].iter().flatten().all(|h| is_gauge(h)) {
        remarks.insert(Remark::NotGauge);
    }
}
