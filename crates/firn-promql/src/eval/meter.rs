//! What a query holds in memory: counted in samples against its own limit, in bytes against the budget.

use firn_model::{Error, Pool, QueryContext, Reservation, Result};

use super::tally::SampleStats;
use super::vector::{Evaluated, VectorSeries};

/// Counts what is held; [`Meter::mark`] and [`Meter::settle`] bracket the evaluation of a node.
#[derive(Debug)]
pub(crate) struct Meter {
    samples_max: u64,
    held: u64,
    held_bytes: u64,
    reservation: Reservation,
    /// Samples that came from storage.
    pub(crate) read: u64,
    /// The most samples that were held at one time.
    pub(crate) peak: u64,
    /// What the steps of the grid under evaluation look at, if somebody asked.
    pub(crate) samples: Option<SampleStats>,
}

/// What was held at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    held: u64,
    held_bytes: u64,
}

impl Meter {
    pub(crate) fn new(samples_max: u64, context: &QueryContext) -> Meter {
        let reservation = context.budget.empty(Pool::Query);
        Meter { samples_max, held: 0, held_bytes: 0, reservation, read: 0, peak: 0, samples: None }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { held: self.held, held_bytes: self.held_bytes }
    }

    /// Whether `samples` more would still be allowed; holds nothing.
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

    /// Counts for a grid of `step_count` steps from here on, if anybody counts; gives back what was counted so
    /// far, which is to be put back into [`Meter::samples`] with the new counts added.
    pub(crate) fn count_steps(&mut self, step_count: usize) -> Option<SampleStats> {
        let inside = self.samples.is_some().then(|| SampleStats::new(step_count));
        std::mem::replace(&mut self.samples, inside)
    }

    /// Since `mark` everything but `result` was given up.
    ///
    /// # Errors
    /// As [`Meter::hold`].
    pub(crate) fn settle(&mut self, mark: Mark, result: &Evaluated) -> Result<()> {
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
