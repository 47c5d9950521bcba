//! Subqueries: an expression evaluated on a grid of its own, whose points are then the samples of windows.

use firn_model::{Labels, Result, Sample, Timestamp};

use super::Evaluator;
use super::vector::{ABSENT, VectorSeries, is_absent};
use super::window::{Frame, Samples, Scratch, Steps, Windows};
use crate::plan;
use crate::syntax::Subquery;
use crate::value::Series;

/// The points of a subquery.
pub(super) struct Grid {
    times: Vec<Timestamp>,
    series: Vec<VectorSeries>,
    windows: Windows,
}

impl Evaluator<'_> {
    /// Evaluates the inside of `subquery` wherever some step of the outside looks.
    pub(super) fn grid(&mut self, subquery: &Subquery, frame: &Frame) -> Result<Grid> {
        let steps = plan::subquery_steps(subquery, &frame.steps, self.options.subquery_step_ms);
        // Even without series the grid takes memory.
        self.meter.check(steps.count as u64)?;
        let series = match steps.count {
            0 => Vec::new(),
            _ => self.vector(&subquery.expr, &steps)?,
        };
        let times: Vec<Timestamp> = steps.times().collect();
        let mut windows = Windows::default();
        windows.compute(&times, frame);
        Ok(Grid { times, series, windows })
    }

    /// The same as `read`, over a subquery's points.
    pub(super) fn read_grid(
        &mut self,
        grid: &Grid,
        steps: &Steps,
        compute: &mut dyn FnMut(Samples<'_>, &mut [f64]) -> Result<()>,
    ) -> Result<Vec<VectorSeries>> {
        let mut found = Vec::new();
        let mut scratch = Scratch::default();
        for series in &grid.series {
            let samples = scratch.dense(&grid.times, &series.values, &grid.windows, false);
            let Some(samples) = samples else { continue };
            let mut values = vec![ABSENT; steps.count];
            compute(samples, &mut values)?;
            let computed =
                VectorSeries { labels: series.labels.clone(), drop_name: series.drop_name, values };
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
        let window = grid.windows.iter().next().unwrap_or(0..0);
        let points = |series: &VectorSeries| -> Vec<Sample> {
            let inside = grid.times[window.clone()].iter().zip(&series.values[window.clone()]);
            inside
                .filter(|(_, value)| !is_absent(**value))
                .map(|(&ts, &value)| Sample { ts, value })
                .collect()
        };
        let named = |series: &VectorSeries| {
            let labels: Labels = series.labels.clone();
            (Series::new(labels, points(series)), series.drop_name)
        };
        Ok(grid.series.iter().map(named).filter(|(series, _)| !series.floats.is_empty()).collect())
    }
}
