//! The memory of a query: counted in samples against the query's limit and in bytes against the
//! budget.

use firn_model::{Error, Pool, QueryContext, Reservation, Result};

use super::tally::SampleStats;
use super::vector::{Evaluated, VectorSeries};

/// Counts held samples and bytes; [`Meter::mark`] and [`Meter::settle`] bracket the evaluation of a
/// node.
#[derive(Debug)]
pub(crate) struct Meter {
    samples_max: u64,
    held: u64,
    held_bytes: u64,
    reservation: Reservation,
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
        Meter { samples_max, held: 0, held_bytes: 0, reservation, read: 0, peak: 0, samples: None }
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
        let histograms: usize = series.histograms.iter().flatten().map(|h| h.heap_bytes()).sum();
        let places = series.histograms.len() * size_of::<usize>() + histograms;
        let bytes = series.values.len() * 8 + series.labels.as_encoded().len() + places;
        let bytes = bytes as u64;
        self.held += samples;
        self.reserve(bytes)
    }

    /// Counts memory of the node that is evaluated now.
    ///
    /// # Errors
    /// `TooLarge` over the query's part of the budget, `Busy` when all of it is used up.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.reservation.grow(bytes)?;
        self.held_bytes += bytes;
        Ok(())
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
        self.reservation.shrink(self.held_bytes - mark.held_bytes);
        self.held = mark.held;
        self.held_bytes = mark.held_bytes;
        match result {
            Evaluated::Vector(series) => series.iter().try_for_each(|series| self.hold(series)),
            Evaluated::Scalar(values) => self.check(values.len() as u64),
            Evaluated::Text(_) => Ok(()),
        }
    }
}
