//! Subqueries: an expression evaluated on a grid of its own; the resulting points are the samples
//! of windows.

use firn_model::{Result, Timestamp};

use super::detail::HistogramDetail;
use super::evaluator::Evaluator;
use super::kernel::Kernel;
use super::select::push_point;
use super::tally::SampleStats;
use super::vector::{ABSENT, VectorSeries, is_absent};
use super::window::{Frame, MemberSamples, Scratch, Steps, WINDOWS_STEP_BYTES, Windows};
use crate::histogram::Remarks;
use crate::plan;
use crate::syntax::Subquery;
use crate::value::Series;

/// The memory of a point of the grid: its time, its statistics, and a copy of one series' points.
const GRID_POINT_BYTES: usize = 8 + 16 + 28;

/// The points of a subquery.
pub(super) struct SubqueryPoints {
    times: Vec<Timestamp>,
    series: Vec<VectorSeries>,
    windows: Windows,
    /// The statistics of the inner evaluation.
    inside: Option<SampleStats>,
}

impl Evaluator<'_> {
    /// Evaluates the inner expression of `subquery` at every time that an outer step reads.
    pub(super) fn grid(&mut self, subquery: &Subquery, frame: &Frame) -> Result<SubqueryPoints> {
        let steps = plan::subquery_steps(subquery, &frame.steps, self.options.subquery_step_ms);
        // The grid takes memory even without series.
        self.meter.check(steps.count as u64)?;
        self.meter.reserve_items(steps.count, GRID_POINT_BYTES)?;
        self.meter.reserve_items(frame.steps.count, WINDOWS_STEP_BYTES)?;
        let outside = self.meter.count_steps(steps.count);
        let series = match steps.count {
            0 => Vec::new(),
            _ => {
                let outer = std::mem::replace(&mut self.detail, HistogramDetail::WholeBelow);
                let series = self.vector(&subquery.expr, &steps);
                self.detail = outer;
                series?
            }
        };
        let inside = std::mem::replace(&mut self.meter.samples, outside);
        if let (Some(samples), Some(inside)) = (&mut self.meter.samples, &inside) {
            samples.add_read(inside, &steps, &frame.steps, frame.offset);
        }
        let times: Vec<Timestamp> = steps.times().collect();
        let mut windows = Windows::default();
        windows.compute(&times, frame);
        Ok(SubqueryPoints { times, series, windows, inside })
    }

    /// Like `read`, over a subquery's points.
    pub(super) fn read_grid(
        &mut self,
        grid: &SubqueryPoints,
        steps: &Steps,
        kernel: &dyn Kernel,
    ) -> Result<Vec<VectorSeries>> {
        let mut found = Vec::new();
        let mut scratch = Scratch::default();
        // The column of one series, and the scratch memory of a window function for it.
        self.meter.reserve_items(steps.count, 8)?;
        self.meter.reserve_items(grid.windows.longest(), 56)?;
        self.meter.reserve_items(grid.times.len(), 12)?;
        for series in &grid.series {
            self.meter.check_canceled()?;
            let reading = scratch.read_series(&grid.times, series, &grid.windows);
            let Some(reading) = reading else { continue };
            let values = vec![ABSENT; steps.count];
            let mut computed =
                VectorSeries::floats(series.labels.clone(), series.drop_name, values);
            match reading {
                MemberSamples::Floats(samples) => kernel.floats(samples, &mut computed.values)?,
                MemberSamples::Mixed(samples) => {
                    let mut found = Remarks::default();
                    kernel.mixed(samples, &mut computed, &mut found)?;
                    let name = series.labels.metric_name();
                    self.remarks.extend(found.into_iter().map(|remark| (name.to_owned(), remark)));
                }
            }
            if let Some(stats) = &mut self.meter.samples {
                stats.grid_windows(reading);
            }
            if !computed.is_empty() {
                self.meter.hold(&computed)?;
                found.push(computed);
            }
        }
        Ok(found)
    }

    /// A subquery as the result of a query: its points with their labels and whether the name is
    /// dropped.
    pub(super) fn raw_grid(
        &mut self,
        subquery: &Subquery,
        steps: &Steps,
    ) -> Result<Vec<(Series, bool)>> {
        let frame = plan::subquery_frame(subquery, steps);
        let grid = self.grid(subquery, &frame)?;
        if let (Some(samples), Some(inside)) = (&mut self.meter.samples, &grid.inside) {
            // No window function reads the points, so the samples of the inner evaluation count.
            samples.queryable_per_step.iter_mut().take(1).for_each(|n| *n += inside.queryable());
        }
        let window = grid.windows.iter().next().unwrap_or(0..0);
        for series in &grid.series {
            let points = series.values[window.clone()].iter();
            let floats = points.filter(|value| !is_absent(**value)).count();
            let histograms = series.histograms.get(window.clone()).unwrap_or_default();
            self.meter.reserve_matrix(0, floats + histograms.iter().flatten().count())?;
        }
        let named = |series: &VectorSeries| {
            let floats = series.values[window.clone()].iter().filter(|value| !is_absent(**value));
            let floats = Vec::with_capacity(floats.count());
            let mut points = Series::new(series.labels.clone(), floats);
            for (idx, &ts) in window.clone().zip(&grid.times[window.clone()]) {
                if let Some(value) = series.point(idx) {
                    push_point(&mut points, ts, &value);
                }
            }
            (points, series.drop_name)
        };
        let mut found = Vec::with_capacity(grid.series.len());
        for series in &grid.series {
            self.meter.check_canceled()?;
            found.extend(Some(named(series)).filter(|(series, _)| !series.is_empty()));
        }
        Ok(found)
    }
}
