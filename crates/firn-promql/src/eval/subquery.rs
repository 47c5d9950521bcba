//! Subqueries: an expression evaluated on a grid of its own, whose points are then the samples of windows.

use firn_model::{Result, Timestamp};

use super::Evaluator;
use super::select::{Kernel, push_point};
use super::tally::SampleStats;
use super::totals::Needs;
use super::vector::{ABSENT, VectorSeries};
use super::window::{Frame, Reading, Scratch, Steps, Windows};
use crate::histogram::Remarks;
use crate::plan;
use crate::syntax::Subquery;
use crate::value::Series;

/// The points of a subquery.
pub(super) struct Grid {
    times: Vec<Timestamp>,
    series: Vec<VectorSeries>,
    windows: Windows,
    /// What its evaluation looked at.
    inside: Option<SampleStats>,
}

impl Evaluator<'_> {
    /// Evaluates the inside of `subquery` wherever some step of the outside looks.
    pub(super) fn grid(&mut self, subquery: &Subquery, frame: &Frame) -> Result<Grid> {
        let steps = plan::subquery_steps(subquery, &frame.steps, self.options.subquery_step_ms);
        // Even without series the grid takes memory.
        self.meter.check(steps.count as u64)?;
        let outside = self.meter.count_steps(steps.count);
        let series = match steps.count {
            0 => Vec::new(),
            _ => {
                let outer = std::mem::replace(&mut self.needs, Needs::WholeBelow);
                let series = self.vector(&subquery.expr, &steps);
                self.needs = outer;
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
        Ok(Grid { times, series, windows, inside })
    }

    /// The same as `read`, over a subquery's points.
    pub(super) fn read_grid(
        &mut self,
        grid: &Grid,
        steps: &Steps,
        kernel: &dyn Kernel,
    ) -> Result<Vec<VectorSeries>> {
        let mut found = Vec::new();
        let mut scratch = Scratch::default();
        for series in &grid.series {
            let reading = scratch.read_series(&grid.times, series, &grid.windows);
            let Some(reading) = reading else { continue };
            let values = vec![ABSENT; steps.count];
            let mut computed =
                VectorSeries::floats(series.labels.clone(), series.drop_name, values);
            match reading {
                Reading::Floats(samples) => kernel.floats(samples, &mut computed.values)?,
                Reading::Mixed(samples) => {
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

    /// A subquery as a result of its own: its points with their labels and whether the name goes.
    pub(super) fn raw_grid(
        &mut self,
        subquery: &Subquery,
        steps: &Steps,
    ) -> Result<Vec<(Series, bool)>> {
        let frame = plan::subquery_frame(subquery, steps);
        let grid = self.grid(subquery, &frame)?;
        if let (Some(samples), Some(inside)) = (&mut self.meter.samples, &grid.inside) {
            // No window function looks at the points, so what made them counts.
            samples.queryable_per_step.iter_mut().take(1).for_each(|n| *n += inside.queryable());
        }
        let window = grid.windows.iter().next().unwrap_or(0..0);
        let named = |series: &VectorSeries| {
            let mut points = Series::new(series.labels.clone(), Vec::new());
            for (idx, &ts) in window.clone().zip(&grid.times[window.clone()]) {
                if let Some(value) = series.point(idx) {
                    push_point(&mut points, ts, &value);
                }
            }
            (points, series.drop_name)
        };
        Ok(grid.series.iter().map(named).filter(|(series, _)| !series.is_empty()).collect())
    }
}
