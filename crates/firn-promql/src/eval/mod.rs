//! Evaluation over all steps and all series at once.
//!
//! A node evaluates to columns (`vector`, and lists of them: `series`), which are read through
//! windows (`window`, `scan`, `kernel`, `select`). Reading order after those: `evaluator`, this
//! file (the nodes), `call`, `histogram`, `labels`, `template`, `info`, `aggregate`,
//! `aggregate_mixed` (with histograms), `binary`, `subquery`, `output`. Beside them: `meter`
//! (limits), `tally` (statistics), `detail` and `totals` (histograms read without buckets) and
//! `notes` (annotations).

pub(crate) mod aggregate;
mod aggregate_mixed;
pub(crate) mod binary;
mod call;
#[cfg(test)]
mod cancellation;
mod detail;
mod evaluator;
mod fold;
mod histogram;
mod info;
pub(crate) mod kernel;
mod labels;
mod meter;
pub(crate) mod notes;
mod output;
mod scan;
mod select;
mod series;
mod subquery;
pub(crate) mod tally;
mod template;
mod top;
mod totals;
pub(crate) mod vector;
pub(crate) mod window;

use std::collections::BTreeSet;
use std::sync::Arc;

use firn_model::{Error, Grouping, QueryContext, Result, Select};

use crate::histogram::{Remark, scaled};
use crate::parts::PartResult;
use crate::plan;
use crate::syntax::{Aggregate, AggregateOp, Binary, Expr, Node, NodeKind, Span, ValueType};
use crate::value::{HeldMemory, QueryOutput};
use crate::{EvalOptions, syntax};

use aggregate::Groups;
use aggregate_mixed::{AggregateNotes, reduce_mixed};
use binary::{PointNote, PointNotes, VectorOperation};
use detail::HistogramDetail;
use evaluator::Evaluator;
use fold::Fold;
use meter::{Meter, POINTS_PER_CHECK};
use notes::Notes;
use tally::SampleStats;
use vector::{ABSENT, Evaluated, VectorSeries, is_absent};
use window::Steps;

/// The statistics of one step.
const STEP_STATS_BYTES: usize = 16;

/// Evaluates `expr` over one frozen view of storage.
///
/// # Errors
/// `Invalid` when the query cannot be evaluated (API: `execution`), `TooLarge` over the sample
/// limit, `Timeout`, `Canceled`, `Busy` over the memory budget, and errors of storage.
pub fn eval(
    expr: &Expr,
    select: &dyn Select,
    options: &EvalOptions,
    context: &QueryContext,
) -> Result<QueryOutput> {
    eval_with_parts(expr, &[], select, options, context)
}

/// Like [`eval()`], with the results of some of the expression's [`crate::parts`] at the steps of
/// `options`.
///
/// # Errors
/// As [`eval()`].
pub fn eval_with_parts(
    expr: &Expr,
    part_results: &[PartResult],
    select: &dyn Select,
    options: &EvalOptions,
    context: &QueryContext,
) -> Result<QueryOutput> {
    expr.compile(context)?;
    if let Some(step_ms) = options.step_ms {
        plan::check_range(expr)?;
        if step_ms <= 0 {
            return Err(Error::invalid("the step of a range query must be above 0"));
        }
    }
    let steps = options.steps();
    let mut meter = Meter::new(options.samples_max, context);
    meter.check(steps.count as u64)?;
    if options.counts_samples {
        meter.reserve_items(steps.count, STEP_STATS_BYTES)?;
        meter.samples = Some(SampleStats::new(steps.count));
    }
    // The tree exists twice: as parsed, and resolved.
    meter.reserve_items(expr.root.heap_bytes(), 2)?;
    let root = plan::resolve(&expr.root, options)?;
    let (notes, remarks) = (Notes::default(), BTreeSet::new());
    let detail = HistogramDetail::default();
    let part_results = part_results.iter().map(|result| (result.span, result)).collect();
    let mut evaluator =
        Evaluator { part_results, select, context, options, meter, notes, remarks, detail };
    let value = evaluator.output(&root, &steps)?;
    let mut meter = evaluator.meter;
    Ok(QueryOutput {
        value,
        annotations: evaluator.notes.finish(expr),
        samples_read: meter.read,
        samples_peak: meter.peak,
        samples: meter.samples.take(),
        held: HeldMemory::new(meter.into_reservation()),
    })
}

impl<'a> Evaluator<'a> {
    /// The value of `node` at all steps; evaluated once if it is the same at each.
    fn node(&mut self, node: &Node, steps: &Steps) -> Result<Evaluated> {
        self.context.cancel.check()?;
        let mark = self.meter.mark();
        let part_result = self.part_result(node);
        if node.value_type() == ValueType::Scalar {
            self.meter.reserve_items(steps.count, 8)?;
        }
        let result = if let Some(part_result) = part_result {
            for labels in part_result.labels() {
                self.meter.reserve_series(labels.as_encoded().len(), steps.count)?;
            }
            Evaluated::Vector(part_result.columns(steps))
        } else if steps.count > 1 && plan::is_step_invariant(node) {
            let one =
                self.once(|evaluator| evaluator.node_at_steps(node, &Steps::one(steps.start)))?;
            self.broadcast(one, steps.count)?
        } else {
            self.node_at_steps(node, steps)?
        };
        // Check again on the way up: a deep expression enters every node before it computes any.
        self.context.cancel.check()?;
        self.meter.settle(mark, &result)?;
        Ok(result)
    }

    fn part_result(&self, node: &Node) -> Option<&'a PartResult> {
        self.part_results.get(&node.span).copied()
    }

    /// Evaluates an expression with the same value at all steps of the grid.
    fn once<T>(&mut self, evaluate: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outside = self.meter.count_steps(1);
        let result = evaluate(self)?;
        let inside = std::mem::replace(&mut self.meter.samples, outside);
        if let (Some(samples), Some(inside)) = (&mut self.meter.samples, inside) {
            samples.add_to_each_step(&inside);
        }
        Ok(result)
    }

    fn node_at_steps(&mut self, node: &Node, steps: &Steps) -> Result<Evaluated> {
        match &node.kind {
            NodeKind::Number { value, .. } => Ok(Evaluated::Scalar(vec![*value; steps.count])),
            NodeKind::String(bytes) => Ok(Evaluated::Text(bytes.clone())),
            NodeKind::Selector(selector) => {
                let series = self.instant(selector, steps, &Grouping::Series)?;
                self.note_remarks(node.span, None);
                Ok(Evaluated::Vector(series))
            }
            NodeKind::Paren(inner) => self.node(inner, steps),
            NodeKind::Unary { negate, operand } => self.unary(*negate, operand, steps),
            NodeKind::Binary(binary) => self.binary(node.span, binary, steps),
            NodeKind::Aggregate(aggregate) => {
                Ok(Evaluated::Vector(self.aggregate(aggregate, steps)?))
            }
            NodeKind::Call { function, args } => {
                let detail = self.detail.below(function.id);
                let outer = std::mem::replace(&mut self.detail, detail);
                let result = self.call(node.span, function.id, args, steps);
                self.detail = outer;
                result
            }
            NodeKind::Matrix(_) | NodeKind::Subquery(_) => {
                Err(Error::internal("a range vector is not the argument of a function"))
            }
        }
    }

    fn vector(&mut self, node: &Node, steps: &Steps) -> Result<Vec<VectorSeries>> {
        match self.node(node, steps)? {
            Evaluated::Vector(series) => Ok(series),
            _ => Err(Error::internal("an operand that is no vector passed the type check")),
        }
    }

    fn scalar(&mut self, node: &Node, steps: &Steps) -> Result<Vec<f64>> {
        match self.node(node, steps)? {
            Evaluated::Scalar(values) => Ok(values),
            _ => Err(Error::internal("an operand that is no scalar passed the type check")),
        }
    }

    fn unary(&mut self, negate: bool, operand: &Node, steps: &Steps) -> Result<Evaluated> {
        let mut result = self.node(operand, steps)?;
        if !negate {
            return Ok(result);
        }
        match &mut result {
            Evaluated::Scalar(values) => values.iter_mut().for_each(|value| *value = -*value),
            Evaluated::Vector(series) => {
                map_points(series, |value| -value, &self.meter)?;
                for point in series.iter_mut().flat_map(|series| &mut series.histograms) {
                    self.meter.check_canceled()?;
                    *point = point.take().map(|h| Arc::new(scaled(&h, -1.0)));
                }
                self.drop_names(series)?;
            }
            Evaluated::Text(_) => {}
        }
        Ok(result)
    }

    fn binary(&mut self, span: Span, binary: &Binary, steps: &Steps) -> Result<Evaluated> {
        let op = binary.op;
        let outer = std::mem::take(&mut self.detail);
        let (lhs, rhs) = (self.node(&binary.lhs, steps), self.node(&binary.rhs, steps));
        self.detail = outer;
        let (lhs, rhs) = (lhs?, rhs?);
        let renames = op.is_arithmetic() || binary.return_bool;
        let (mut series, scalar, swapped) = match (lhs, rhs) {
            (Evaluated::Scalar(lhs), Evaluated::Scalar(rhs)) => {
                return Ok(Evaluated::Scalar(binary::scalars(op, &lhs, &rhs)?));
            }
            (Evaluated::Vector(lhs), Evaluated::Vector(rhs)) => {
                return Ok(Evaluated::Vector(self.vectors(span, binary, lhs, rhs, steps)?));
            }
            (Evaluated::Vector(series), Evaluated::Scalar(scalar)) => (series, scalar, false),
            (Evaluated::Scalar(scalar), Evaluated::Vector(series)) => (series, scalar, true),
            _ => return Err(Error::internal("a string operand passed the type check")),
        };
        let mut found = PointNotes::new();
        let (return_bool, meter) = (binary.return_bool, &self.meter);
        binary::with_scalar(op, &mut series, &scalar, swapped, return_bool, &mut found, meter)?;
        self.note_points(span, op, found);
        if renames {
            self.drop_names(&mut series)?;
        }
        Ok(Evaluated::Vector(series))
    }

    fn vectors(
        &mut self,
        span: Span,
        binary: &Binary,
        lhs: Vec<VectorSeries>,
        rhs: Vec<VectorSeries>,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        if binary.op.is_set() {
            let (matching, meter) = (&binary.matching, &mut self.meter);
            return binary::sets(binary.op, lhs, rhs, matching, steps.count, meter);
        }
        let operation = VectorOperation {
            op: binary.op,
            matching: &binary.matching,
            return_bool: binary.return_bool,
            step_count: steps.count,
            delayed_names: self.options.delayed_name_removal,
        };
        let mut found = PointNotes::new();
        let result = operation.run(lhs, rhs, &mut found, &mut self.meter);
        self.note_points(span, binary.op, found);
        result
    }

    fn note_points(&mut self, span: Span, op: syntax::BinaryOp, found: PointNotes) {
        for note in found {
            match note {
                PointNote::Types(lhs, rhs) => self.notes.info(
                    span,
                    format!(
                        "incompatible sample types encountered for binary operator \"{op}\": \
                         {lhs} {op} {rhs}",
                        op = op.text()
                    ),
                ),
                PointNote::Layout => {
                    let text = "incompatible bucket layout encountered for binary operator";
                    self.notes.warn(span, format!("{text} {}", op.text()));
                }
                PointNote::Remark(remark) => self.notes.remark(span, "", remark),
            }
        }
    }

    /// Adds the remarks of the windows just read. `pushed_name` is the metric if series were read
    /// by their groups.
    fn note_remarks(&mut self, span: Span, pushed_name: Option<&str>) {
        for (name, remark) in std::mem::take(&mut self.remarks) {
            self.notes.remark(span, pushed_name.unwrap_or(&name), remark);
        }
    }

    fn aggregate(&mut self, aggregate: &Aggregate, steps: &Steps) -> Result<Vec<VectorSeries>> {
        let op = aggregate.op;
        let (grouping, without) = (&aggregate.grouping, aggregate.without);
        if op == AggregateOp::CountValues {
            let name = match aggregate.param.as_ref().map(|param| &param.kind) {
                Some(NodeKind::String(name)) => aggregate::value_label(name)?,
                _ => return Err(Error::internal("count_values without a label's name")),
            };
            self.check_label_name("count_values", name)?;
            let series = self.vector(&aggregate.expr, steps)?;
            let meter = &mut self.meter;
            return aggregate::count_values(name, &series, grouping, without, steps.count, meter);
        }
        let mut param = Vec::new();
        if let Some(node) = &aggregate.param {
            param = self.scalar(node, steps)?;
            self.note_param(op, &param, node.span);
        }
        let pushed = match self.part_result(&aggregate.expr) {
            Some(_) => None,
            None => plan::pushdown(aggregate, self.options.delayed_name_removal),
        };
        if let Some(grouping) = pushed.as_ref().filter(|_| Fold::can(op))
            && let Some(series) = self.folded(op, &aggregate.expr, steps, grouping)?
        {
            return Ok(series);
        }
        let name = plan::metric_below(&aggregate.expr);
        let (read, samples) = (self.meter.read, self.meter.samples.clone());
        let mut series = match &pushed {
            Some(grouping) => self.grouped(&aggregate.expr, steps, grouping)?,
            None => self.vector(&aggregate.expr, steps)?,
        };
        let mut is_keyed = pushed.is_some();
        if is_keyed && name.is_none() && series.iter().any(|s| !s.histograms.is_empty()) {
            // Remarks on histograms name their metric, which groups do not contain.
            (self.meter.read, self.meter.samples) = (read, samples);
            series = self.vector(&aggregate.expr, steps)?;
            is_keyed = false;
        }
        let span = aggregate.expr.span;
        if op.selects_series() {
            let is_limit = matches!(op, AggregateOp::Limitk | AggregateOp::LimitRatio);
            if !is_limit && aggregate_mixed::ignore(&mut series, &self.meter)? {
                self.notes.ignored_histogram(span, op.text());
            }
            let groups = Groups::new(&series, grouping, without, is_keyed, &mut self.meter)?;
            return aggregate::select(op, &param, series, &groups, &mut self.meter);
        }
        let groups = Groups::new(&series, grouping, without, is_keyed, &mut self.meter)?;
        if series.iter().all(|series| series.histograms.is_empty()) {
            return aggregate::reduce(op, &param, &series, groups, steps.count, &mut self.meter);
        }
        let mut found = AggregateNotes::default();
        let meter = &mut self.meter;
        let result = reduce_mixed(op, &param, series, groups, steps.count, &mut found, meter)?;
        self.note_aggregate(aggregate, name.filter(|_| is_keyed), found);
        Ok(result)
    }

    fn note_aggregate(&mut self, aggregate: &Aggregate, name: Option<&str>, found: AggregateNotes) {
        let span = aggregate.expr.span;
        if found.ignored {
            self.notes.ignored_histogram(span, aggregate.op.text());
        }
        if found.mixed_kinds {
            let text = "encountered a mix of histograms and floats for aggregation";
            self.notes.warn(span, text);
        }
        for misfit in &found.misfits {
            self.notes.remark(span, name.unwrap_or(misfit), Remark::MixedSchemas);
        }
        for remark in found.remarks {
            self.notes.remark(span, "", remark);
        }
    }

    /// An aggregation of a selector, or of a window function of a selector, that does not keep the
    /// members' columns. `None` if some members are not floats.
    fn folded(
        &mut self,
        op: AggregateOp,
        node: &Node,
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Option<Vec<VectorSeries>>> {
        match &node.kind {
            NodeKind::Selector(selector) => {
                let frame = plan::instant_frame(selector, steps, self.options.lookback_ms);
                let matchers = &selector.matchers;
                self.read_folded(matchers, &frame, grouping, true, &kernel::Newest, op)
            }
            NodeKind::Call { function, args } => {
                self.folded_call(op, function.id, args, steps, grouping)
            }
            _ => Err(Error::internal("a grouping was pushed below neither a selector nor a call")),
        }
    }

    /// A selector, or a window function of a selector; the series have only the labels of their
    /// group.
    fn grouped(
        &mut self,
        node: &Node,
        steps: &Steps,
        grouping: &Grouping,
    ) -> Result<Vec<VectorSeries>> {
        if steps.count > 1 && plan::is_step_invariant(node) {
            let one = Steps::one(steps.start);
            let once = self.once(|evaluator| evaluator.grouped(node, &one, grouping))?;
            return match self.broadcast(Evaluated::Vector(once), steps.count)? {
                Evaluated::Vector(series) => Ok(series),
                _ => Err(Error::internal("repeating a vector did not return a vector")),
            };
        }
        match &node.kind {
            NodeKind::Selector(selector) => {
                let series = self.instant(selector, steps, grouping)?;
                self.note_remarks(node.span, plan::fixed_name(&selector.matchers));
                Ok(series)
            }
            NodeKind::Call { function, args } => {
                let detail = self.detail.below(function.id);
                let outer = std::mem::replace(&mut self.detail, detail);
                let result = self.range_call(function.id, args, steps, grouping);
                self.detail = outer;
                result
            }
            _ => Err(Error::internal("a grouping was pushed below neither a selector nor a call")),
        }
    }

    fn note_param(&mut self, op: AggregateOp, param: &[f64], span: Span) {
        let max = param.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = param.iter().copied().fold(f64::INFINITY, f64::min);
        match op {
            AggregateOp::Quantile => {
                if param.iter().any(|value| value.is_nan()) {
                    self.notes.invalid_quantile(span, f64::NAN);
                }
                if max > 1.0 {
                    self.notes.invalid_quantile(span, max);
                }
                if min < 0.0 {
                    self.notes.invalid_quantile(span, min);
                }
            }
            AggregateOp::LimitRatio => {
                if max > 1.0 {
                    self.notes.invalid_ratio(span, max, 1.0);
                }
                if min < -1.0 {
                    self.notes.invalid_ratio(span, min, -1.0);
                }
            }
            _ => {}
        }
    }

    /// Marks the series as no longer being the metric, or drops the name at once.
    ///
    /// # Errors
    /// `Invalid` if two series then have one label set at one step.
    fn drop_names(&mut self, series: &mut Vec<VectorSeries>) -> Result<()> {
        if self.options.delayed_name_removal {
            series.iter_mut().for_each(|series| series.drop_name = true);
            return Ok(());
        }
        if series::strip_names(series, &self.meter)? {
            *series = series::merge_same_labels(std::mem::take(series), &mut self.meter)?;
        }
        Ok(())
    }

    /// Repeats the value of one step for `count` steps. The copies are counted and reserved first:
    /// they may take thousands of times the memory of the step.
    fn broadcast(&mut self, one: Evaluated, count: usize) -> Result<Evaluated> {
        if let Evaluated::Vector(series) = &one {
            let points: usize = series.iter().map(VectorSeries::point_count).sum();
            self.meter.check((points as u64).saturating_mul(count as u64))?;
            let columns = |one: &VectorSeries| 1 + usize::from(!one.histograms.is_empty());
            let column_count = series.iter().map(columns).sum::<usize>();
            self.meter.reserve_items(count, column_count.saturating_mul(8))?;
        }
        broadcast(one, count, &self.meter)
    }
}

/// Applies `map` to every point.
///
/// # Errors
/// As [`Meter::check_canceled`].
fn map_points(series: &mut [VectorSeries], map: impl Fn(f64) -> f64, meter: &Meter) -> Result<()> {
    for values in series.iter_mut().flat_map(|one| one.values.chunks_mut(POINTS_PER_CHECK)) {
        meter.check_canceled()?;
        for value in values.iter_mut().filter(|value| !is_absent(**value)) {
            *value = map(*value);
        }
    }
    Ok(())
}

/// Repeats the value of one step for `count` steps.
///
/// # Errors
/// As [`Meter::check_canceled`].
fn broadcast(one: Evaluated, count: usize, meter: &Meter) -> Result<Evaluated> {
    Ok(match one {
        Evaluated::Scalar(values) => {
            Evaluated::Scalar(vec![values.first().copied().unwrap_or(ABSENT); count])
        }
        Evaluated::Vector(mut series) => {
            for series in &mut series {
                meter.check_canceled()?;
                series.values = vec![series.values.first().copied().unwrap_or(ABSENT); count];
                if let Some(histogram) = series.histograms.first().cloned() {
                    series.histograms = vec![histogram; count];
                }
            }
            Evaluated::Vector(series)
        }
        text @ Evaluated::Text(_) => text,
    })
}
