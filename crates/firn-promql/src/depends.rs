//! The samples that each step of a range query depends on. A cache of answers uses them to find the
//! answers that a change invalidates.

use firn_model::{Matcher, TimeRange};

use crate::eval::window::{Frame, Steps};
use crate::plan::{fixed_name, fixed_time, instant_frame, range_frame, subquery_frame};
use crate::syntax::{AggregateOp, At, Expr, FunctionId, Length, Node, NodeKind, Selector};

/// The samples that a step reads through one selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependency {
    /// The matchers of the series.
    pub matchers: Vec<Matcher>,
    /// The times of the samples.
    pub reach: Reach,
}

/// The longest expressions of dashboards have some dozens of selectors; one of a stranger may have
/// 50,000.
const DEPENDENCIES_MAX: usize = 64;

/// A time range relative to a step, or a fixed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At most the samples from `step + first_ms` to `step + last_ms`, both inclusive.
    Relative {
        /// The first sample; usually negative.
        first_ms: i64,
        /// The last sample; positive for a negative offset.
        last_ms: i64,
    },
    /// At most these samples at every step.
    Fixed(TimeRange),
}

/// The samples that any step of `expr` depends on. `None` if a step's value may depend on anything
/// else: on the other steps, on the query's start or end, or on the order of series in storage.
///
/// `None` for `start()`, `end()`, `range()` and durations computed from them, `info()`, `limitk`
/// and `limit_ratio`. Also for expressions that can produce one label set from two series at
/// different steps, which is an error over the whole range only: selectors without a fixed metric
/// name, `label_replace`, `label_join`. Also for more than 64 selectors: a cache does work for
/// each of them at every change.
pub fn dependencies(expr: &Expr, lookback_ms: i64) -> Option<Vec<Dependency>> {
    let mut found = Vec::new();
    collect(&expr.root, Reach::Relative { first_ms: 0, last_ms: 0 }, lookback_ms, &mut found)?;
    Some(found)
}

/// Whether `node` reads samples, and depends on nothing else than them and the time: see
/// [`dependencies`].
pub(crate) fn depends_on_samples_alone(node: &Node) -> bool {
    let mut found = Vec::new();
    let step = Reach::Relative { first_ms: 0, last_ms: 0 };
    // The length of the lookback changes the reach alone.
    collect(node, step, 0, &mut found).is_some() && !found.is_empty()
}

fn collect(node: &Node, times: Reach, lookback_ms: i64, found: &mut Vec<Dependency>) -> Option<()> {
    let mut inner = |node: &Node| collect(node, times, lookback_ms, found);
    match &node.kind {
        NodeKind::Number { value, is_duration: true } => is_whole(value * 1_000.0).then_some(()),
        NodeKind::Number { .. } | NodeKind::String(_) => Some(()),
        NodeKind::Selector(selector) => {
            let frame = instant_frame(selector, &AT_ZERO, lookback_ms);
            add(dependency(selector, &frame, times)?, found)
        }
        NodeKind::Matrix(matrix) => {
            check_length(&matrix.range)?;
            let frame = range_frame(matrix, &AT_ZERO, lookback_ms);
            add(dependency(&matrix.selector, &frame, times)?, found)
        }
        NodeKind::Subquery(subquery) => {
            check_length(&subquery.range)?;
            check_length(&subquery.step)?;
            check_length(&subquery.offset)?;
            check_at(subquery.at)?;
            let times = reach(&subquery_frame(subquery, &AT_ZERO), times);
            collect(&subquery.expr, times, lookback_ms, found)
        }
        NodeKind::Paren(operand) | NodeKind::Unary { operand, .. } => inner(operand),
        NodeKind::Binary(binary) => {
            inner(&binary.lhs)?;
            inner(&binary.rhs)
        }
        NodeKind::Aggregate(aggregate) => {
            let by_order = matches!(aggregate.op, AggregateOp::Limitk | AggregateOp::LimitRatio);
            (!by_order).then_some(())?;
            aggregate.param.iter().try_for_each(&mut inner)?;
            inner(&aggregate.expr)
        }
        NodeKind::Call { function, args } => {
            use FunctionId as F;
            let by_query = matches!(function.id, F::Start | F::End | F::Range | F::Step | F::Info);
            let renames = matches!(function.id, F::LabelReplace | F::LabelJoin);
            (!by_query && !renames).then_some(())?;
            args.iter().try_for_each(inner)
        }
    }
}

fn add(dependency: Dependency, found: &mut Vec<Dependency>) -> Option<()> {
    (found.len() < DEPENDENCIES_MAX).then(|| found.push(dependency))
}

/// One evaluation at 0: the range of a frame over it is relative to a step.
const AT_ZERO: Steps = Steps { start: 0, step: 1, count: 1 };

fn dependency(selector: &Selector, frame: &Frame, times: Reach) -> Option<Dependency> {
    check_length(&selector.offset)?;
    check_at(selector.at)?;
    fixed_name(&selector.matchers)?;
    Some(Dependency { matchers: selector.matchers.clone(), reach: reach(frame, times) })
}

/// The samples that evaluations at `times` reach through `frame`, a frame of one evaluation at 0.
fn reach(frame: &Frame, times: Reach) -> Reach {
    let own = frame.range();
    match times {
        _ if frame.at.is_some() => Reach::Fixed(own),
        Reach::Relative { first_ms, last_ms } => Reach::Relative {
            first_ms: first_ms.saturating_add(own.start),
            last_ms: last_ms.saturating_add(own.end),
        },
        Reach::Fixed(range) => Reach::Fixed(TimeRange {
            start: range.start.saturating_add(own.start),
            end: range.end.saturating_add(own.end),
        }),
    }
}

/// Only whole milliseconds: the normal form, which identifies an expression, shows no more.
fn check_length(length: &Length) -> Option<()> {
    matches!(length, Length::Fixed(nanos) if nanos % 1_000_000 == 0).then_some(())
}

fn is_whole(value: f64) -> bool {
    value.fract() == 0.0
}

fn check_at(at: Option<At>) -> Option<()> {
    (at.is_none() || fixed_time(at).is_some()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn f(text: &str) -> Option<Vec<Reach>> {
        let found = dependencies(&parse(text).unwrap(), 300_000)?;
        Some(found.into_iter().map(|one| one.reach).collect())
    }

    fn relative(first_s: i64, last_s: i64) -> Reach {
        // Windows are open on the left.
        Reach::Relative { first_ms: first_s * 1_000 + 1, last_ms: last_s * 1_000 }
    }

    #[test]
    fn a_step_reaches_its_window_offset_and_lookback() {
        assert_eq!(f("up"), Some(vec![relative(-300, 0)]));
        assert_eq!(f("rate(up[1m] offset 1h)"), Some(vec![relative(-3_660, -3_600)]));
        assert_eq!(f("up offset -1m"), Some(vec![relative(-240, 60)]));
        assert_eq!(f("1 + time()"), Some(vec![]));
        let both = [relative(-300, 0), relative(-60, 0)];
        assert_eq!(f("sum by (x) (up) / on () group_left (x) (rate(a[1m]))"), Some(both.into()));
        let fixed = Reach::Fixed(TimeRange::new(700_001, 1_000_000));
        assert_eq!(f("-(up @ 1000)"), Some(vec![fixed]));
        let inner = Reach::Relative { first_ms: -3_600_000 - 300_000 + 2, last_ms: 0 };
        assert_eq!(f("max_over_time(up[1h:5m])"), Some(vec![inner]));
    }

    /// Each dependency of a kept result had a list of groups: those of 2,048 selectors of a metric
    /// with 8,000 series took 250 MB of a server with `--memory 128MiB`.
    #[test]
    fn an_expression_with_many_selectors_is_refused() {
        let sum = |count: usize| vec!["count(up)"; count].join(" + ");
        assert_eq!(f(&sum(DEPENDENCIES_MAX)).unwrap().len(), DEPENDENCIES_MAX);
        assert_eq!(f(&sum(DEPENDENCIES_MAX + 1)), None);
    }

    #[test]
    fn expressions_that_read_beyond_their_step_are_refused() {
        for text in [
            "up @ start()",
            "up @ end()",
            "{job=\"a\"}",
            "label_replace(up, \"a\", \"\", \"\", \"\")",
            "limitk(1, up)",
            "up * range()",
            "up * step()",
            "start() + up",
            "up[5m:step()]",
            "info(up)",
        ] {
            assert_eq!(dependencies(&parse(text).unwrap(), 1), None, "{text}");
        }
    }
}
