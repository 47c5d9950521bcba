//! The memory of a query: counted in samples against the query's limit and in bytes against the
//! budget.
//!
//! Everything whose size the data or the query decides is reserved before it is allocated: a column
//! per series and step, a label set per series, an entry per group. `tests/promql/memory.rs` checks
//! every function and operator with an allocator that counts.

use std::cmp::Ordering;

use firn_model::{CancelToken, Error, Pool, QueryContext, Reservation, Result, Sample};

use super::tally::SampleStats;
use super::vector::{Evaluated, VectorSeries};
use crate::value::Series;

/// The memory of a series beside its labels and points: its entry in a list that may have grown to
/// twice its length, and the overhead of two allocations.
const SERIES_BYTES: usize = 2 * size_of::<VectorSeries>() + 32;
/// The memory of an entry of a map by labels, which may be half empty.
const MAP_ENTRY_BYTES: usize = 64;
/// Reserved ahead of need: an evaluation reserves many small items, and the counters of the budget
/// are shared by all threads.
const AHEAD_BYTES: u64 = 16 << 10;
/// The memory of a label set beside its text: the two counts of an `Arc`.
const LABELS_BYTES: usize = 16;
/// Points that a loop computes between two checks for cancellation: 0.1 ms of a power or a date.
pub(crate) const POINTS_PER_CHECK: usize = 8 << 10;
/// Parts of one label that are made between two checks: a millisecond if each has 4 KiB.
pub(super) const PARTS_PER_CHECK: usize = 1 << 10;
/// Items that are sorted between two checks: some 20 ms if they are compared by labels.
const SORTED_PER_CHECK: usize = 32 << 10;

/// Counts held samples and bytes; [`Meter::mark`] and [`Meter::settle`] bracket the evaluation of a
/// node.
#[derive(Debug)]
pub(crate) struct Meter {
    samples_max: u64,
    held: u64,
    held_bytes: u64,
    /// Of `held_bytes` and some bytes ahead.
    reservation: Reservation,
    cancel: CancelToken,
    /// Calls of [`Meter::check_canceled`].
    #[cfg(test)]
    checks: std::cell::Cell<u64>,
    /// Samples read from storage.
    pub(crate) read: u64,
    /// The largest number of samples held at one time.
    pub(crate) peak: u64,
    /// The samples of each step of the current grid, if statistics are requested.
    pub(crate) samples: Option<SampleStats>,
}

/// The amounts held when [`Meter::mark`] was called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterMark {
    held: u64,
    held_bytes: u64,
}

impl Meter {
    pub(crate) fn new(samples_max: u64, context: &QueryContext) -> Meter {
        let reservation = context.budget.empty(Pool::Query);
        let cancel = context.cancel.clone();
        Meter {
            samples_max,
            held: 0,
            held_bytes: 0,
            reservation,
            cancel,
            #[cfg(test)]
            checks: std::cell::Cell::default(),
            read: 0,
            peak: 0,
            samples: None,
        }
    }

    pub(crate) fn mark(&self) -> MeterMark {
        MeterMark { held: self.held, held_bytes: self.held_bytes }
    }

    /// Checks that `samples` more are within the limit, without holding them.
    ///
    /// # Errors
    /// `TooLarge` over the limit.
    pub(crate) fn check(&mut self, samples: u64) -> Result<()> {
        let wanted = self.held.saturating_add(samples);
        self.peak = self.peak.max(wanted);
        if wanted > self.samples_max {
            return Err(Error::too_large(
                "query processing would load too many samples into memory in query execution",
            ));
        }
        Ok(())
    }

    /// Counts a series as held.
    ///
    /// # Errors
    /// `TooLarge` over the query's limit, `Busy` when the memory budget is used up.
    pub(crate) fn hold(&mut self, series: &VectorSeries) -> Result<()> {
        let samples = series.point_count() as u64;
        self.check(samples)?;
        self.held += samples;
        self.reserve(bytes_of(series))
    }

    /// Counts memory that the evaluation of the current node is about to take.
    ///
    /// # Errors
    /// `TooLarge` over the query's part of the budget, `Busy` when all of it is used up.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        let wanted = self.held_bytes.saturating_add(bytes);
        self.reservation.cover_ahead(wanted, AHEAD_BYTES)?;
        self.held_bytes = wanted;
        Ok(())
    }

    /// Reserves `count` items of `item_bytes` each.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn reserve_items(&mut self, count: usize, item_bytes: usize) -> Result<()> {
        self.reserve((count as u64).saturating_mul(item_bytes as u64))
    }

    /// Reserves a series with `label_bytes` of labels and `step_count` floats.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn reserve_series(&mut self, label_bytes: usize, step_count: usize) -> Result<()> {
        let labels = (SERIES_BYTES + label_bytes) as u64;
        self.reserve((step_count as u64).saturating_mul(8).saturating_add(labels))
    }

    /// Reserves a series of a resulting matrix.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn reserve_matrix(&mut self, label_bytes: usize, point_count: usize) -> Result<()> {
        self.reserve(matrix_bytes(label_bytes, point_count))
    }

    /// Reserves a label set with `label_bytes` of text.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn reserve_labels(&mut self, label_bytes: usize) -> Result<()> {
        self.reserve((label_bytes + LABELS_BYTES) as u64)
    }

    /// Reserves `count` entries of a map by labels that exist already.
    ///
    /// # Errors
    /// As [`Meter::reserve`].
    pub(crate) fn reserve_entries(&mut self, count: usize) -> Result<()> {
        self.reserve_items(count, MAP_ENTRY_BYTES)
    }

    /// Fails once the query was cancelled. Called once per series by each loop over series: their
    /// number has no other bound than memory. Loops that take long for a point call it more often,
    /// because a subquery may have millions of steps.
    ///
    /// # Errors
    /// `Timeout` or `Canceled`.
    pub(crate) fn check_canceled(&self) -> Result<()> {
        #[cfg(test)]
        self.checks.set(self.checks.get() + 1);
        self.cancel.check()
    }

    /// As [`Meter::check_canceled`], for part `idx` of a label: a query of a megabyte has hundreds
    /// of thousands of them.
    ///
    /// # Errors
    /// `Timeout` or `Canceled`.
    pub(super) fn check_canceled_at(&self, idx: usize) -> Result<()> {
        match (idx + 1) % PARTS_PER_CHECK {
            0 => self.check_canceled(),
            _ => Ok(()),
        }
    }

    /// The number of checks for cancellation so far.
    #[cfg(test)]
    pub(crate) fn check_count(&self) -> u64 {
        self.checks.get()
    }

    /// As `Vec::retain_mut`, for series or lists of similar length.
    ///
    /// # Errors
    /// As [`Meter::check_canceled`].
    pub(crate) fn retain<T>(
        &self,
        items: &mut Vec<T>,
        mut keep: impl FnMut(&mut T) -> bool,
    ) -> Result<()> {
        let mut checked = Ok(());
        items.retain_mut(|item| {
            if checked.is_ok() {
                checked = self.check_canceled();
            }
            checked.is_err() || keep(item)
        });
        checked
    }

    /// Sorts a list of any length; equal items keep their order. The memory of long ones is
    /// reserved.
    ///
    /// # Errors
    /// As [`Meter::check_canceled`] and [`Meter::reserve`].
    pub(crate) fn sort_by<T>(
        &mut self,
        items: &mut Vec<T>,
        mut compare: impl FnMut(&T, &T) -> Ordering,
    ) -> Result<()> {
        if items.len() <= SORTED_PER_CHECK {
            items.sort_by(compare);
            return self.check_canceled();
        }
        self.reserve_items(items.len(), 2 * size_of::<T>())?;
        let mut rest = std::mem::take(items).into_iter();
        let mut runs = Vec::new();
        while rest.len() > 0 {
            self.check_canceled()?;
            let mut run: Vec<T> = rest.by_ref().take(SORTED_PER_CHECK).collect();
            run.sort_by(&mut compare);
            runs.push(run);
        }
        drop(rest);
        while runs.len() > 1 {
            let mut pairs = runs.into_iter();
            runs = Vec::new();
            while let Some(first) = pairs.next() {
                runs.push(match pairs.next() {
                    Some(second) => self.merge(first, second, &mut compare)?,
                    None => first,
                });
            }
        }
        *items = runs.pop().unwrap_or_default();
        Ok(())
    }

    /// Merges two sorted lists.
    fn merge<T>(
        &self,
        first: Vec<T>,
        second: Vec<T>,
        compare: &mut impl FnMut(&T, &T) -> Ordering,
    ) -> Result<Vec<T>> {
        let mut merged = Vec::with_capacity(first.len() + second.len());
        let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
        while let (Some(a), Some(b)) = (first.peek(), second.peek()) {
            if merged.len() % SORTED_PER_CHECK == 0 {
                self.check_canceled()?;
            }
            let next = if compare(a, b).is_le() { first.next() } else { second.next() };
            merged.extend(next);
        }
        merged.extend(first);
        merged.extend(second);
        Ok(merged)
    }

    /// Starts counting for a grid of `step_count` steps, if statistics are requested. Returns the
    /// previous counts: the caller puts them back into [`Meter::samples`] and adds the new counts.
    pub(crate) fn count_steps(&mut self, step_count: usize) -> Option<SampleStats> {
        let inside = self.samples.is_some().then(|| SampleStats::new(step_count));
        std::mem::replace(&mut self.samples, inside)
    }

    /// Releases everything held since `mark` except `result`.
    ///
    /// # Errors
    /// As [`Meter::hold`].
    pub(crate) fn settle(&mut self, mark: MeterMark, result: &Evaluated) -> Result<()> {
        self.held = mark.held;
        let mut samples = 0;
        let bytes = match result {
            Evaluated::Vector(series) => {
                let mut bytes = 0;
                for one in series {
                    self.check_canceled()?;
                    samples += one.point_count() as u64;
                    bytes += bytes_of(one);
                }
                bytes
            }
            Evaluated::Scalar(values) => size_of_val(&values[..]) as u64,
            Evaluated::Text(bytes) => bytes.len() as u64,
        };
        match result {
            Evaluated::Scalar(values) => self.check(values.len() as u64)?,
            _ => self.check(samples)?,
        }
        self.held += samples;
        self.keep(mark, bytes)
    }

    /// Keeps `bytes` of everything reserved since `mark`.
    ///
    /// # Errors
    /// As [`Meter::reserve`], if fewer were reserved.
    pub(crate) fn keep(&mut self, mark: MeterMark, bytes: u64) -> Result<()> {
        let since = self.held_bytes.saturating_sub(mark.held_bytes);
        if bytes > since {
            return self.reserve(bytes - since);
        }
        self.held_bytes = mark.held_bytes.saturating_add(bytes);
        let surplus = self.reservation.bytes().saturating_sub(self.held_bytes);
        if surplus > 2 * AHEAD_BYTES {
            self.reservation.shrink(surplus - AHEAD_BYTES);
        }
        Ok(())
    }

    /// The reservation of everything that is still held.
    pub(crate) fn into_reservation(mut self) -> Reservation {
        self.reservation.shrink_to(self.held_bytes);
        self.reservation
    }
}

/// The memory of a series of a matrix.
pub(crate) fn matrix_bytes(label_bytes: usize, point_count: usize) -> u64 {
    // The list of series may have grown to twice its length.
    let series = (2 * size_of::<Series>() + 32 + label_bytes) as u64;
    (point_count as u64).saturating_mul(size_of::<Sample>() as u64).saturating_add(series)
}

/// The memory of a series.
pub(crate) fn bytes_of(series: &VectorSeries) -> u64 {
    let histograms: usize = series.histograms.iter().flatten().map(|h| h.heap_bytes()).sum();
    let places = series.histograms.len() * size_of::<usize>() + histograms;
    let labels = SERIES_BYTES + series.labels.as_encoded().len();
    (series.values.len() * 8 + labels + places) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_sorted_as_short_ones() {
        let mut meter = Meter::new(u64::MAX, &QueryContext::unbounded());
        for len in [0, 1, SORTED_PER_CHECK, SORTED_PER_CHECK + 1, 5 * SORTED_PER_CHECK + 7] {
            let keys = (0..len as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50);
            let mut items: Vec<(u64, usize)> = keys.zip(0..).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            meter.sort_by(&mut items, |a, b| a.0.cmp(&b.0)).unwrap();
            assert!(items == expected, "{len}");
        }
    }

    #[test]
    fn sorting_a_long_list_ends_when_the_query_is_cancelled() {
        let context = QueryContext::unbounded();
        let mut meter = Meter::new(u64::MAX, &context);
        let mut compared = 0_u64;
        let mut items: Vec<usize> = (0..1 << 20).rev().collect();
        let sorted = meter.sort_by(&mut items, |a, b| {
            compared += 1;
            context.cancel.cancel();
            a.cmp(b)
        });
        assert!(sorted.is_err());
        assert!(compared <= (SORTED_PER_CHECK * 17) as u64, "{compared}");
    }
}
