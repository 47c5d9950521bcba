//! Function calls: their arguments and the labels of their results.

use std::collections::{BTreeSet, HashSet};

use firn_model::{Error, Grouping, Histogram, Labels, METRIC_NAME, MatchOp, Matcher, Result};

use super::meter::{Meter, POINTS_PER_CHECK};
use super::series::{drop_empty, keep_floats, strip_names};
use super::vector::{ABSENT, Evaluated, VectorSeries, is_absent, same_labels_error};
use super::window::Steps;
use super::{Evaluator, map_points};
use crate::functions::calendar::date_part;
use crate::functions::math;
use crate::functions::range_call::RangeCall;
use crate::histogram;
use crate::plan;
use crate::syntax::{AggregateOp, BoundaryMode, FunctionId, MatrixSelector, Node, NodeKind, Span};

impl<'a> Evaluator<'a> {
    pub(super) fn call(
        &mut self,
        span: Span,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Evaluated> {
        use FunctionId as F;
        let vector = match function {
            F::Time => return Ok(Evaluated::Scalar(step_seconds(steps))),
            F::Pi => return Ok(Evaluated::Scalar(vec![std::f64::consts::PI; steps.count])),
            F::MinOf | F::MaxOf => {
                let (a, b) = (self.scalar(&args[0], steps)?, self.scalar(&args[1], steps)?);
                let pick = if function == F::MinOf { math::min } else { math::max };
                let picked = a.iter().zip(&b).map(|(a, b)| pick(*a, *b)).collect();
                return Ok(Evaluated::Scalar(picked));
            }
            F::Scalar => {
                let series = self.vector(&args[0], steps)?;
                return Ok(Evaluated::Scalar(only_values(&series, steps.count, &self.meter)?));
            }
            F::Vector => {
                let values = self.scalar(&args[0], steps)?;
                vec![VectorSeries::floats(Labels::empty(), false, values)]
            }
            F::Absent => {
                let series = self.vector(&args[0], steps)?;
                self.meter.reserve_series(args[0].heap_bytes(), steps.count)?;
                absent(&series, &args[0], steps.count, &self.meter)?
            }
            F::Timestamp => self.timestamp(&args[0], steps)?,
            F::Sort | F::SortDesc | F::SortByLabel | F::SortByLabelDesc => {
                self.sort(span, function, args, steps)?
            }
            F::LabelReplace => self.label_replace(args, steps)?,
            F::LabelJoin => self.label_join(args, steps)?,
            F::Info => self.info(args, steps)?,
            F::Clamp | F::ClampMin | F::ClampMax | F::Round => {
                self.with_bounds(function, args, steps)?
            }
            F::HistogramQuantile => self.histogram_quantile(args, steps)?,
            F::HistogramQuantiles => self.histogram_quantiles(args, steps)?,
            F::HistogramFraction => self.histogram_fraction(args, steps)?,
            F::HistogramAvg => self.of_histograms(args, steps, |h| h.sum / h.count)?,
            F::HistogramCount => self.of_histograms(args, steps, |h| h.count)?,
            F::HistogramSum => self.of_histograms(args, steps, |h| h.sum)?,
            F::HistogramStdvar => self.of_histograms(args, steps, histogram::variance)?,
            F::HistogramStddev => {
                self.of_histograms(args, steps, |h| histogram::variance(h).sqrt())?
            }
            F::StartTimestamp => self.start_timestamp(&args[0], steps)?,
            F::DayOfMonth
            | F::DayOfWeek
            | F::DayOfYear
            | F::DaysInMonth
            | F::Hour
            | F::Minute
            | F::Month
            | F::Year => self.date(function, args.first(), steps)?,
            _ => match math::of_one_number(function) {
                Some(map) => {
                    let mut series = self.vector(&args[0], steps)?;
                    keep_floats(&mut series, &self.meter)?;
                    map_points(&mut series, map, &self.meter)?;
                    self.drop_names(&mut series)?;
                    series
                }
                None => self.range_call(function, args, steps, &Grouping::Series)?,
            },
        };
        Ok(Evaluated::Vector(vector))
    }

    /// Only samples have start timestamps; computed points have none.
    fn start_timestamp(&mut self, arg: &Node, steps: &Steps) -> Result<Vec<VectorSeries>> {
        let (NodeKind::Selector(selector), true) = (&arg.kind, self.options.start_timestamps)
        else {
            self.vector(arg, steps)?;
            return Ok(Vec::new());
        };
        let mut series = self.sample_starts(selector, steps)?;
        self.drop_names(&mut series)?;
        Ok(series)
    }

    /// A number computed from each histogram; floats are dropped.
    fn of_histograms(
        &mut self,
        args: &[Node],
        steps: &Steps,
        number: impl Fn(&Histogram) -> f64,
    ) -> Result<Vec<VectorSeries>> {
        let mut series = self.vector(&args[0], steps)?;
        self.meter.retain(&mut series, |series| series.has_histograms())?;
        self.meter.reserve_items(steps.count, 8)?;
        for one in &mut series {
            let histograms = std::mem::take(&mut one.histograms);
            let mut numbers = Vec::with_capacity(histograms.len());
            for histogram in &histograms {
                self.meter.check_canceled()?;
                numbers.push(histogram.as_ref().map_or(ABSENT, |h| number(h)));
            }
            one.values = numbers;
        }
        self.drop_names(&mut series)?;
        Ok(series)
    }

    fn timestamp(&mut self, arg: &Node, steps: &Steps) -> Result<Vec<VectorSeries>> {
        let mut series = if let NodeKind::Selector(selector) = &arg.kind {
            self.sample_times(selector, steps)?
        } else {
            let mut series = self.vector(arg, steps)?;
            self.meter.reserve_items(steps.count, 8)?;
            let times = step_seconds(steps);
            for series in &mut series {
                self.meter.check_canceled()?;
                for (step, &time) in times.iter().enumerate() {
                    if series.has_point(step) {
                        series.values[step] = time;
                    }
                }
                series.histograms = Vec::new();
            }
            series
        };
        self.drop_names(&mut series)?;
        Ok(series)
    }

    fn date(
        &mut self,
        function: FunctionId,
        arg: Option<&Node>,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let Some(arg) = arg else {
            self.meter.reserve_series(0, steps.count)?;
            // Whole seconds, truncated towards zero as in Prometheus.
            let values = steps.times().map(|ts| date_part(function, (ts / 1000) as f64)).collect();
            return Ok(vec![VectorSeries::floats(Labels::empty(), false, values)]);
        };
        let mut series = self.vector(arg, steps)?;
        keep_floats(&mut series, &self.meter)?;
        map_points(&mut series, |value| date_part(function, value), &self.meter)?;
        self.drop_names(&mut series)?;
        Ok(series)
    }

    /// `clamp`, `clamp_min`, `clamp_max` and `round`: a vector and scalars that may differ between
    /// steps.
    fn with_bounds(
        &mut self,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let mut series = self.vector(&args[0], steps)?;
        keep_floats(&mut series, &self.meter)?;
        let numbers =
            args[1..].iter().map(|arg| self.scalar(arg, steps)).collect::<Result<Vec<_>>>()?;
        let number = |idx: usize, step: usize| numbers.get(idx).map(|values| values[step]);
        for series in &mut series {
            for (step, value) in series.values.iter_mut().enumerate() {
                if step % POINTS_PER_CHECK == 0 {
                    self.meter.check_canceled()?;
                }
                if is_absent(*value) {
                    continue;
                }
                if function == FunctionId::Round {
                    *value = math::round(*value, number(0, step).unwrap_or(1.0));
                    continue;
                }
                let (low, high) = match function {
                    FunctionId::ClampMin => (number(0, step), None),
                    FunctionId::ClampMax => (None, number(0, step)),
                    _ => (number(0, step), number(1, step)),
                };
                let low = low.unwrap_or(f64::NEG_INFINITY);
                let high = high.unwrap_or(f64::INFINITY);
                *value = if high < low { ABSENT } else { math::clamp(*value, low, high) };
            }
        }
        drop_empty(&mut series, &self.meter)?;
        self.drop_names(&mut series)?;
        Ok(series)
    }

    /// A window function over a range selector or a subquery.
    pub(super) fn range_call(
        &mut self,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Vec<VectorSeries>> {
        let window = window_of(args)?;
        let params = self.params(args, steps)?;
        let mut series = match &window.kind {
            NodeKind::Matrix(matrix) => {
                let call = self.call_on_selector(function, matrix, &params, steps)?;
                let matchers = &matrix.selector.matchers;
                self.read(matchers, &call.frame, grouping, false, &call)?
            }
            NodeKind::Subquery(subquery) => {
                let call = RangeCall {
                    function,
                    frame: plan::subquery_frame(subquery, steps),
                    boundary: BoundaryMode::Plain,
                    range_ms: subquery.range.ms(),
                    range_seconds: subquery.range.seconds(),
                    params: &params,
                    cancel: &self.context.cancel,
                };
                let grid = self.grid(subquery, &call.frame)?;
                self.read_grid(&grid, steps, &call)?
            }
            _ => return Err(Error::internal("a window is no selector and no subquery")),
        };
        if function == FunctionId::AbsentOverTime {
            self.remarks.clear();
            self.meter.reserve_series(window.heap_bytes(), steps.count)?;
            return absent(&series, window, steps.count, &self.meter);
        }
        let pushed_name = match (&window.kind, grouping) {
            (NodeKind::Matrix(_), Grouping::Series) | (NodeKind::Subquery(_), _) => None,
            (NodeKind::Matrix(matrix), _) => plan::fixed_name(&matrix.selector.matchers),
            _ => None,
        };
        self.note_remarks(window.span, pushed_name);
        self.note_range_call(function, args, &params, &series, pushed_name)?;
        if plan::keeps_name(function) {
            return Ok(series);
        }
        if self.options.delayed_name_removal {
            series.iter_mut().for_each(|series| series.drop_name = true);
        } else if *grouping == Grouping::Series && strip_names(&mut series, &self.meter)? {
            // In contrast to other functions, these do not merge series with equal labels and
            // disjoint steps.
            self.meter.reserve_entries(series.len())?;
            let mut seen = HashSet::new();
            for one in &series {
                self.meter.check_canceled()?;
                if !seen.insert(one.labels.clone()) {
                    return Err(same_labels_error());
                }
            }
        }
        Ok(series)
    }

    /// An aggregation of a window function over a range selector that does not keep the members'
    /// columns. `None` if some members are not floats.
    pub(super) fn folded_call(
        &mut self,
        op: AggregateOp,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Option<Vec<VectorSeries>>> {
        let NodeKind::Matrix(matrix) = &window_of(args)?.kind else {
            return Err(Error::internal("a grouping was pushed below a subquery"));
        };
        let params = self.params(args, steps)?;
        let call = self.call_on_selector(function, matrix, &params, steps)?;
        let matchers = &matrix.selector.matchers;
        let Some(mut series) =
            self.read_folded(matchers, &call.frame, grouping, false, &call, op)?
        else {
            return Ok(None);
        };
        // A group has a point at each step at which one of its members has a point.
        self.note_range_call(function, args, &params, &series, plan::fixed_name(matchers))?;
        let marks = self.options.delayed_name_removal && !plan::keeps_name(function);
        series.iter_mut().for_each(|series| series.drop_name = marks);
        Ok(Some(series))
    }

    /// The scalar arguments of a window function.
    fn params(&mut self, args: &[Node], steps: &Steps) -> Result<Vec<Vec<f64>>> {
        let scalars = args.iter().filter(|arg| !is_window(arg));
        scalars.map(|arg| self.scalar(arg, steps)).collect()
    }

    fn call_on_selector<'p>(
        &self,
        function: FunctionId,
        matrix: &MatrixSelector,
        params: &'p [Vec<f64>],
        steps: &Steps,
    ) -> Result<RangeCall<'p>>
    where
        'a: 'p,
    {
        check_boundary(function, matrix.selector.boundary)?;
        Ok(RangeCall {
            function,
            frame: plan::range_frame(matrix, steps, self.options.lookback_ms),
            boundary: matrix.selector.boundary,
            range_ms: matrix.range.ms(),
            range_seconds: matrix.range.seconds(),
            params,
            cancel: &self.context.cancel,
        })
    }

    fn note_range_call(
        &mut self,
        function: FunctionId,
        args: &[Node],
        params: &[Vec<f64>],
        series: &[VectorSeries],
        pushed_name: Option<&str>,
    ) -> Result<()> {
        match function {
            FunctionId::Rate | FunctionId::Increase => {
                let is_float = |series: &&VectorSeries| {
                    series.histograms.is_empty() || !series.values.iter().all(|v| is_absent(*v))
                };
                let mut names: BTreeSet<&str> = BTreeSet::new();
                for one in series.iter().filter(is_float) {
                    self.meter.check_canceled()?;
                    names.insert(pushed_name.unwrap_or(one.labels.metric_name()));
                    if pushed_name.is_some() {
                        break;
                    }
                }
                let counts = ["_total", "_sum", "_count", "_bucket"];
                for name in names {
                    if !name.is_empty() && !counts.iter().any(|suffix| name.ends_with(suffix)) {
                        self.notes.no_counter(args[0].span, name);
                    }
                }
            }
            FunctionId::QuantileOverTime => {
                for (step, &q) in params.first().into_iter().flatten().enumerate() {
                    self.meter.check_canceled()?;
                    let used = || series.iter().any(|series| !is_absent(series.values[step]));
                    if !(0.0..=1.0).contains(&q) && used() {
                        self.notes.invalid_quantile(args[0].span, q);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn is_window(arg: &Node) -> bool {
    matches!(arg.kind, NodeKind::Matrix(_) | NodeKind::Subquery(_))
}

/// The argument of a window function that has the windows.
fn window_of(args: &[Node]) -> Result<&Node> {
    let window = args.iter().find(|arg| is_window(arg));
    window.ok_or_else(|| Error::internal("a window function without a window"))
}

/// The evaluation times in seconds.
fn step_seconds(steps: &Steps) -> Vec<f64> {
    steps.times().map(|ts| ts as f64 / 1000.0).collect()
}

/// The value of the only series at each step; NaN if there is none or more than one.
///
/// # Errors
/// As [`Meter::check_canceled`].
fn only_values(series: &[VectorSeries], step_count: usize, meter: &Meter) -> Result<Vec<f64>> {
    let mut values = vec![ABSENT; step_count];
    let mut is_many = vec![false; step_count];
    for series in series {
        meter.check_canceled()?;
        for (step, &value) in series.values.iter().enumerate() {
            if !is_absent(value) {
                is_many[step] |= !is_absent(values[step]);
                values[step] = value;
            }
        }
    }
    let one = |(value, is_many): (f64, bool)| {
        if is_many || is_absent(value) { f64::NAN } else { value }
    };
    Ok(values.into_iter().zip(is_many).map(one).collect())
}

/// A series of ones for the steps at which `series` has no point.
///
/// # Errors
/// As [`Meter::check_canceled`].
fn absent(
    series: &[VectorSeries],
    arg: &Node,
    step_count: usize,
    meter: &Meter,
) -> Result<Vec<VectorSeries>> {
    let mut values = vec![1.0; step_count];
    for series in series {
        meter.check_canceled()?;
        for (step, value) in values.iter_mut().enumerate() {
            if series.has_point(step) {
                *value = ABSENT;
            }
        }
    }
    let labels = absent_labels(arg);
    let found = VectorSeries::floats(labels, false, values);
    Ok(if found.is_empty() { Vec::new() } else { vec![found] })
}

/// The labels that the selector requires to equal a value. The order matters, as in Prometheus:
/// `a!="b",a="c"` yields `a`, but a label with another matcher after its first `=` is left out.
fn absent_labels(arg: &Node) -> Labels {
    let matchers: &[Matcher] = match &arg.unparen().kind {
        NodeKind::Selector(selector) => &selector.matchers,
        NodeKind::Matrix(matrix) => &matrix.selector.matchers,
        _ => &[],
    };
    let mut labels = Labels::empty();
    let mut given: Vec<&str> = Vec::new();
    for matcher in matchers.iter().filter(|matcher| matcher.name() != METRIC_NAME) {
        let is_first = matcher.op() == MatchOp::Equal && !given.contains(&matcher.name());
        if is_first {
            given.push(matcher.name());
        }
        labels = labels.with(matcher.name(), if is_first { matcher.value() } else { "" });
    }
    labels
}

/// Anchored and smoothed windows contain samples from outside their range; only some functions
/// support them.
fn check_boundary(function: FunctionId, boundary: BoundaryMode) -> Result<()> {
    use FunctionId as F;
    let smoothed = matches!(function, F::Delta | F::Increase | F::Rate);
    let anchored = smoothed || matches!(function, F::Changes | F::Resets);
    let (allowed, name, list) = match boundary {
        BoundaryMode::Plain => return Ok(()),
        BoundaryMode::Anchored => (anchored, "anchored", "changes, delta, increase, rate, resets"),
        BoundaryMode::Smoothed => (smoothed, "smoothed", "delta, increase, rate"),
    };
    if allowed {
        return Ok(());
    }
    let function = function.name();
    let what = format!("{name} modifier can only be used with: {list} - not with {function}");
    Err(Error::invalid(what))
}
