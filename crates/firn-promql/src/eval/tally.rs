//! The number of samples that each step of a query reads: Prometheus' query statistics. Counted on
//! request only.

use super::vector::{VectorSeries, histogram_points, is_absent};
use super::window::{MemberSamples, Steps};

/// The samples that a query reads, counted as in Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleStats {
    /// For each step the samples of its whole windows, as an instant query would read them.
    pub queryable_per_step: Vec<u64>,
    /// For each step the samples that no earlier step has read.
    pub read_per_step: Vec<u64>,
}

impl SampleStats {
    /// No sample at each of `step_count` steps.
    pub fn new(step_count: usize) -> SampleStats {
        SampleStats { queryable_per_step: vec![0; step_count], read_per_step: vec![0; step_count] }
    }

    /// The sum over all steps.
    pub fn queryable(&self) -> u64 {
        self.queryable_per_step.iter().sum()
    }

    /// The sum over all steps.
    pub fn read(&self) -> u64 {
        self.read_per_step.iter().sum()
    }

    /// Adds one sample for each step with a point.
    pub(crate) fn points(&mut self, series: &VectorSeries) {
        let steps = self.queryable_per_step.iter_mut().zip(&mut self.read_per_step);
        for (step, (queryable, read)) in steps.enumerate() {
            let point = match series.histogram(step) {
                Some(histogram) => histogram_points(histogram) as u64,
                None => u64::from(series.has_point(step)),
            };
            *queryable += point;
            *read += point;
        }
    }

    /// The same for floats, one value per step.
    pub(crate) fn float_points(&mut self, values: &[f64]) {
        let steps = self.queryable_per_step.iter_mut().zip(&mut self.read_per_step);
        for ((queryable, read), value) in steps.zip(values) {
            let point = u64::from(!is_absent(*value));
            *queryable += point;
            *read += point;
        }
    }

    /// Adds the counts of another thread at the same steps.
    pub(crate) fn add(&mut self, other: &SampleStats) {
        self.add_from(0, other);
    }

    /// Adds the counts of `other`, whose first step is step `first` of these.
    pub fn add_from(&mut self, first: usize, other: &SampleStats) {
        let add = |(sum, more): (&mut u64, &u64)| *sum += more;
        let queryable = self.queryable_per_step.iter_mut().skip(first);
        queryable.zip(&other.queryable_per_step).for_each(add);
        let read = self.read_per_step.iter_mut().skip(first);
        read.zip(&other.read_per_step).for_each(add);
    }

    /// Adds the samples of each step's window.
    pub(crate) fn windows(&mut self, reading: MemberSamples<'_>) {
        let mut seen_end = 0;
        let steps = self.queryable_per_step.iter_mut().zip(&mut self.read_per_step);
        for ((queryable, read), window) in steps.zip(reading.windows().iter()) {
            let new = window.start.max(seen_end)..window.end.max(seen_end);
            seen_end = new.end;
            *queryable += reading.weight(window) as u64;
            *read += reading.weight(new) as u64;
        }
    }

    /// Adds the points of a subquery's grid in each step's window. They have been read already.
    pub(crate) fn grid_windows(&mut self, reading: MemberSamples<'_>) {
        for (queryable, window) in self.queryable_per_step.iter_mut().zip(reading.windows().iter())
        {
            *queryable += reading.weight(window) as u64;
        }
    }

    /// Adds the counts of an expression with the same value at each step: its samples are read at
    /// the first.
    pub(crate) fn add_to_each_step(&mut self, once: &SampleStats) {
        let samples = once.queryable();
        self.queryable_per_step.iter_mut().for_each(|step| *step += samples);
        if let Some(first) = self.read_per_step.first_mut() {
            *first += once.read();
        }
    }

    /// Adds the samples that a subquery read, at the first step with a window that can reach them.
    /// `offset_ms` is the subquery's.
    pub(crate) fn add_read(
        &mut self,
        inside: &SampleStats,
        inside_steps: &Steps,
        steps: &Steps,
        offset_ms: i64,
    ) {
        let Some(last) = self.read_per_step.len().checked_sub(1) else { return };
        for (ts, read) in inside_steps.times().zip(&inside.read_per_step) {
            let after = i128::from(ts) + i128::from(offset_ms) - i128::from(steps.start);
            // Rounded up: a point between two steps is in the window of the later one.
            let step = (after.max(0) + i128::from(steps.step) - 1) / i128::from(steps.step);
            self.read_per_step[usize::try_from(step).unwrap_or(last).min(last)] += read;
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_model::Labels;

    use super::*;
    use crate::eval::vector::ABSENT;
    use crate::eval::window::{Frame, Samples, Windows};

    #[test]
    fn windows_count_whole_and_reads_once() {
        let steps = Steps { start: 20, step: 10, count: 3 };
        let frame = Frame { steps, at: None, offset: 0, before: 20, after: 0 };
        let times = [5, 10, 15, 20, 25];
        let mut windows = Windows::default();
        windows.compute(&times, &frame);
        let mut stats = SampleStats::new(3);
        stats.windows(MemberSamples::Floats(Samples {
            times: &times,
            values: &[1.0; 5],
            windows: &windows,
        }));
        assert_eq!(stats.queryable_per_step, [4, 3, 1]);
        assert_eq!(stats.read_per_step, [4, 1, 0]);
        let series = |values: &[f64]| VectorSeries::floats(Labels::empty(), false, values.to_vec());
        stats.points(&series(&[1.0, ABSENT, 2.0]));
        assert_eq!((stats.queryable(), stats.read()), (10, 7));
        let mut inside = SampleStats::new(4);
        inside.points(&series(&[1.0; 4]));
        let inside_steps = Steps { start: 12, step: 6, count: 4 };
        stats.add_read(&inside, &inside_steps, &steps, 0);
        assert_eq!(stats.read_per_step, [7, 3, 1], "12 and 18 at 20, 24 and 30 at 30");
        stats.add_to_each_step(&inside);
        assert_eq!((stats.queryable(), stats.read()), (22, 15));
    }
}
