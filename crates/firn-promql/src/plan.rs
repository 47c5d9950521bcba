//! Analysis of a query before any data is read.
//!
//! [`resolve`] replaces computed durations and `start()`, `end()`, `step()`, `range()` by numbers.
//! [`is_step_invariant`] finds expressions that need one evaluation only. [`pushdown`] finds the
//! labels that an aggregation above a selector needs, if storage may return groups and the result
//! stays exactly the same. [`selections`] lists the selections that the query will read.

use firn_model::{Error, Grouping, METRIC_NAME, MatchOp, Matcher, Result, Selection};

use crate::EvalOptions;
use crate::eval::window::{Frame, Steps};
use crate::syntax::{
    Aggregate, At, Binary, BoundaryMode, Expr, FunctionId, Length, MatrixSelector, Node, NodeKind,
    Selector, Subquery, ValueType,
};

/// The selections that a query reads: one per selector in its text, with the exact range that its
/// steps, windows, offsets, `@` and subqueries reach. The second argument of `info()` is not among
/// them: its series depend on the first argument.
///
/// # Errors
/// `Invalid` for a duration expression without a usable value.
pub fn selections(expr: &Expr, options: &EvalOptions) -> Result<Vec<Selection>> {
    let root = resolve(&expr.root, options)?;
    let mut found = Vec::new();
    collect(&root, &options.steps(), options, &mut found);
    Ok(found)
}

fn collect(node: &Node, steps: &Steps, options: &EvalOptions, found: &mut Vec<Selection>) {
    match &node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => {}
        NodeKind::Selector(selector) => {
            let frame = instant_frame(selector, steps, options.lookback_ms);
            found.push(selection(selector, &frame));
        }
        NodeKind::Matrix(matrix) => {
            let frame = range_frame(matrix, steps, options.lookback_ms);
            found.push(selection(&matrix.selector, &frame));
        }
        NodeKind::Subquery(subquery) => {
            let inner = subquery_steps(subquery, steps, options.subquery_step_ms);
            collect(&subquery.expr, &inner, options, found);
        }
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => {
            collect(inner, steps, options, found);
        }
        NodeKind::Binary(binary) => {
            collect(&binary.lhs, steps, options, found);
            collect(&binary.rhs, steps, options, found);
        }
        NodeKind::Aggregate(aggregate) => {
            aggregate.param.iter().for_each(|param| collect(param, steps, options, found));
            collect(&aggregate.expr, steps, options, found);
        }
        NodeKind::Call { function, args } => {
            let read = if function.id == FunctionId::Info { 1 } else { args.len() };
            args.iter().take(read).for_each(|arg| collect(arg, steps, options, found));
        }
    }
}

fn selection(selector: &Selector, frame: &Frame) -> Selection {
    Selection {
        matchers: selector.matchers.clone(),
        range: frame.range(),
        grouping: Grouping::Series,
    }
}

/// The windows of an instant selector: the lookback before each step.
pub(crate) fn instant_frame(selector: &Selector, steps: &Steps, lookback_ms: i64) -> Frame {
    let after = if selector.boundary == BoundaryMode::Smoothed { lookback_ms } else { 0 };
    Frame {
        steps: *steps,
        at: fixed_time(selector.at),
        offset: selector.offset.ms(),
        before: lookback_ms,
        after,
    }
}

/// The windows of a range selector. Anchored and smoothed ones also read samples beyond their
/// boundaries.
pub(crate) fn range_frame(matrix: &MatrixSelector, steps: &Steps, lookback_ms: i64) -> Frame {
    let (before, after) = match matrix.selector.boundary {
        BoundaryMode::Plain => (0, 0),
        BoundaryMode::Anchored => (lookback_ms, 0),
        BoundaryMode::Smoothed => (lookback_ms, lookback_ms),
    };
    Frame {
        steps: *steps,
        at: fixed_time(matrix.selector.at),
        offset: matrix.selector.offset.ms(),
        before: matrix.range.ms().saturating_add(before),
        after,
    }
}

/// The windows of a subquery over its inner evaluations.
pub(crate) fn subquery_frame(subquery: &Subquery, steps: &Steps) -> Frame {
    Frame {
        steps: *steps,
        at: fixed_time(subquery.at),
        offset: subquery.offset.ms(),
        before: subquery.range.ms(),
        after: 0,
    }
}

/// The inner evaluations of a subquery: the multiples of its step inside the union of its windows.
pub(crate) fn subquery_steps(subquery: &Subquery, steps: &Steps, step_ms_default: i64) -> Steps {
    let step = match subquery.step.ms() {
        0 => step_ms_default.max(1),
        step => step,
    };
    let range = subquery_frame(subquery, steps).range();
    if range.is_empty() {
        return Steps { start: 0, step, count: 0 };
    }
    // The first multiple of the step inside the range, rounded up even below zero. Beyond the last
    // representable time there is none.
    let is_between = range.start.rem_euclid(step) != 0;
    let multiple = range.start.div_euclid(step) + i64::from(is_between);
    match multiple.checked_mul(step) {
        Some(start) => Steps::between(start, range.end, step),
        None => Steps { start: 0, step, count: 0 },
    }
}

pub(crate) fn fixed_time(at: Option<At>) -> Option<i64> {
    match at {
        Some(At::Time(ts)) => Some(ts),
        // `resolve` has replaced these.
        Some(At::Start | At::End) | None => None,
    }
}

/// The tree with everything replaced that depends only on the query's start, end and step, and
/// without parentheses around arguments.
///
/// # Errors
/// `Invalid` for a duration expression without a usable value.
pub(crate) fn resolve(node: &Node, options: &EvalOptions) -> Result<Node> {
    let inner = |node: &Node| resolve(node, options);
    let kind = match &node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => node.kind.clone(),
        NodeKind::Selector(selector) => {
            NodeKind::Selector(Box::new(resolve_selector(selector, options)?))
        }
        NodeKind::Matrix(matrix) => NodeKind::Matrix(Box::new(MatrixSelector {
            selector: resolve_selector(&matrix.selector, options)?,
            range: length(&matrix.range, options, false)?,
        })),
        NodeKind::Subquery(subquery) => NodeKind::Subquery(Box::new(Subquery {
            expr: inner(&subquery.expr)?,
            range: length(&subquery.range, options, false)?,
            step: length(&subquery.step, options, false)?,
            offset: length(&subquery.offset, options, true)?,
            at: time(subquery.at, options),
        })),
        NodeKind::Paren(operand) => NodeKind::Paren(Box::new(inner(operand)?)),
        NodeKind::Unary { negate, operand } => {
            NodeKind::Unary { negate: *negate, operand: Box::new(inner(operand)?) }
        }
        NodeKind::Binary(binary) => NodeKind::Binary(Box::new(Binary {
            lhs: inner(&binary.lhs)?,
            rhs: inner(&binary.rhs)?,
            ..Binary::clone(binary)
        })),
        NodeKind::Aggregate(aggregate) => NodeKind::Aggregate(Box::new(Aggregate {
            expr: inner(aggregate.expr.unparen())?,
            param: aggregate.param.as_ref().map(|param| inner(param.unparen())).transpose()?,
            op: aggregate.op,
            grouping: aggregate.grouping.clone(),
            without: aggregate.without,
        })),
        NodeKind::Call { function, args } => match query_number(function.id, options) {
            Some(value) => NodeKind::Number { value, is_duration: false },
            None => {
                let args = args.iter().map(|arg| inner(arg.unparen())).collect::<Result<_>>()?;
                NodeKind::Call { function, args }
            }
        },
    };
    Ok(Node { span: node.span, kind })
}

fn resolve_selector(selector: &Selector, options: &EvalOptions) -> Result<Selector> {
    Ok(Selector {
        offset: length(&selector.offset, options, true)?,
        at: time(selector.at, options),
        ..selector.clone()
    })
}

fn time(at: Option<At>, options: &EvalOptions) -> Option<At> {
    at.map(|at| match at {
        At::Time(_) => at,
        At::Start => At::Time(options.start),
        At::End => At::Time(options.end_or_start()),
    })
}

fn length(length: &Length, options: &EvalOptions, may_be_negative: bool) -> Result<Length> {
    let Length::Computed(expr) = length else { return Ok(length.clone()) };
    let (step, range) = options.step_and_range_seconds();
    let seconds = expr.seconds(step, range).map_err(Error::invalid)?;
    if !may_be_negative && (seconds <= 0.0 || seconds.is_nan()) {
        return Err(Error::invalid("duration must be greater than 0"));
    }
    let ms = seconds * 1000.0;
    if ms.is_nan() || ms.abs() >= (i64::MAX / 1_000_000) as f64 {
        return Err(Error::invalid("duration is out of range"));
    }
    Ok(Length::Fixed(ms as i64 * 1_000_000))
}

/// The value, in seconds, of functions that describe the query itself.
fn query_number(function: FunctionId, options: &EvalOptions) -> Option<f64> {
    let (step, range) = options.step_and_range_seconds();
    match function {
        FunctionId::Start => Some(options.start as f64 / 1000.0),
        FunctionId::End => Some(options.end_or_start() as f64 / 1000.0),
        // As in Prometheus, unlike in durations.
        FunctionId::Step if options.start == options.end_or_start() => Some(0.0),
        FunctionId::Step => Some(step),
        FunctionId::Range => Some(range),
        _ => None,
    }
}

/// Whether a resolved node has the same value at every step.
pub(crate) fn is_step_invariant(node: &Node) -> bool {
    match &node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => true,
        NodeKind::Selector(selector) => selector.at.is_some(),
        NodeKind::Matrix(matrix) => matrix.selector.at.is_some(),
        NodeKind::Subquery(subquery) => subquery.at.is_some(),
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => is_step_invariant(inner),
        NodeKind::Binary(binary) => {
            is_step_invariant(&binary.lhs) && is_step_invariant(&binary.rhs)
        }
        NodeKind::Aggregate(aggregate) => {
            is_step_invariant(&aggregate.expr)
                && aggregate.param.as_ref().is_none_or(is_step_invariant)
        }
        NodeKind::Call { function, args } => {
            let args = if function.id == FunctionId::Info { &args[..1] } else { &args[..] };
            !depends_on_time(function.id) && args.iter().all(is_step_invariant)
        }
    }
}

/// Functions with values that may differ between steps even if their arguments do not.
fn depends_on_time(function: FunctionId) -> bool {
    use FunctionId as F;
    matches!(
        function,
        F::DaysInMonth
            | F::DayOfMonth
            | F::DayOfWeek
            | F::DayOfYear
            | F::Hour
            | F::Minute
            | F::Month
            | F::Year
            | F::PredictLinear
            | F::Time
            | F::Timestamp
    )
}

/// The grouping that storage may apply below an aggregation without changing the result.
///
/// Only for aggregations that need nothing but the group, over a selector or over a window function
/// of a selector. If such a function drops the name at once, two series could collide, which is an
/// error. So the selector must name one metric, and labels that are dropped with the name must not
/// be in the key.
pub(crate) fn pushdown(aggregate: &Aggregate, delayed_names: bool) -> Option<Grouping> {
    use crate::syntax::AggregateOp as Op;
    if aggregate.op.selects_series() || aggregate.op == Op::CountValues {
        return None;
    }
    let drops_names = match &aggregate.expr.kind {
        NodeKind::Selector(selector) => {
            (selector.boundary == BoundaryMode::Plain).then_some(())?;
            false
        }
        NodeKind::Call { function, args } => {
            let matrix = args.iter().find_map(|arg| match &arg.kind {
                NodeKind::Matrix(matrix) => Some(matrix),
                _ => None,
            })?;
            (function.id != FunctionId::AbsentOverTime).then_some(())?;
            fixed_name(&matrix.selector.matchers)?;
            !keeps_name(function.id)
        }
        _ => return None,
    };
    let mut names = aggregate.grouping.clone();
    if drops_names && !delayed_names {
        let reserved = [METRIC_NAME, "__type__", "__unit__"];
        if aggregate.without {
            names.extend(reserved.map(str::to_owned));
        } else {
            names.retain(|name| !reserved.contains(&name.as_str()));
        }
    }
    Some(if aggregate.without { Grouping::Without(names) } else { Grouping::By(names) })
}

/// Whether the result of a window function keeps the metric's name.
pub(crate) fn keeps_name(function: FunctionId) -> bool {
    matches!(function, FunctionId::LastOverTime | FunctionId::FirstOverTime)
}

/// The metric of the first selector at or below `node`, if its matchers allow only one.
pub(crate) fn metric_below(node: &Node) -> Option<&str> {
    match &node.kind {
        NodeKind::Selector(selector) => fixed_name(&selector.matchers),
        NodeKind::Matrix(matrix) => fixed_name(&matrix.selector.matchers),
        NodeKind::Call { args, .. } => args.iter().find_map(metric_below),
        _ => None,
    }
}

/// The metric's name, if the matchers allow only one.
pub(crate) fn fixed_name(matchers: &[Matcher]) -> Option<&str> {
    let is_name = |matcher: &&Matcher| {
        matcher.name() == METRIC_NAME
            && matcher.op() == MatchOp::Equal
            && !matcher.value().is_empty()
    };
    matchers.iter().find(is_name).map(Matcher::value)
}

/// Checks that `expr` is valid for a range query: a scalar or an instant vector. [`crate::eval()`]
/// checks it too; call this first to distinguish an invalid request from a failed evaluation.
///
/// # Errors
/// `Invalid` with Prometheus' message.
pub fn check_range(expr: &Expr) -> Result<()> {
    let value_type = expr.value_type();
    match value_type {
        ValueType::Scalar | ValueType::Vector => Ok(()),
        ValueType::String | ValueType::Matrix => Err(Error::invalid(format!(
            "invalid expression type \"{}\" for range query, must be Scalar or instant Vector",
            value_type.documented()
        ))),
    }
}
