//! Parts of an expression that other expressions may share. A cache of answers can keep the result
//! of a part.

use std::sync::Arc;

use firn_model::Labels;

use crate::eval::vector::{ABSENT, VectorSeries};
use crate::eval::window::Steps;
use crate::plan::is_step_invariant;
use crate::syntax::{AggregateOp, Expr, Node, NodeKind, Span};
use crate::value::{HeldMemory, Series, Value, VectorPoint};

/// The result of one of [`parts`] at every step of the whole expression.
#[derive(Clone, Debug)]
pub struct PartResult {
    /// The position of the part in the whole expression.
    pub span: Span,
    /// Its value: a matrix of floats for a range query, a vector for an instant query.
    pub value: Arc<Value>,
    /// The memory of the value.
    pub held: HeldMemory,
}

/// The topmost aggregations of `expr` below operators and functions, each as an expression of its
/// own with positions in the whole: `sum by (le) (rate(a[5m]))` of `histogram_quantile(0.9, sum by
/// (le) (rate(a[5m])))`.
///
/// With their results, [`crate::eval_with_parts`] returns the same bits as [`crate::eval()`]:
/// operators and functions do not depend on the order of series, in contrast to aggregations.
pub fn parts(expr: &Expr) -> Vec<Expr> {
    let mut found = Vec::new();
    if !matches!(expr.root.unparen().kind, NodeKind::Aggregate(_)) {
        collect(&expr.root, &mut found);
    }
    found.into_iter().map(|node| expr.part(node)).collect()
}

fn collect<'a>(node: &'a Node, found: &mut Vec<&'a Node>) {
    match &node.kind {
        NodeKind::Paren(operand) | NodeKind::Unary { operand, .. } => collect(operand, found),
        NodeKind::Binary(binary) => {
            collect(&binary.lhs, found);
            collect(&binary.rhs, found);
        }
        NodeKind::Call { args, .. } => args.iter().for_each(|arg| collect(arg, found)),
        NodeKind::Aggregate(aggregate) => {
            let by_order = matches!(aggregate.op, AggregateOp::Limitk | AggregateOp::LimitRatio);
            // An expression with the same value at each step is evaluated at one step only.
            if !by_order && !is_step_invariant(node) {
                found.push(node);
            }
        }
        NodeKind::Number { .. }
        | NodeKind::String(_)
        | NodeKind::Selector(_)
        | NodeKind::Matrix(_)
        | NodeKind::Subquery(_) => {}
    }
}

impl PartResult {
    /// The labels of its series.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &Labels> {
        let (matrix, vector) = self.series();
        matrix.iter().map(|one| &one.labels).chain(vector.iter().map(|point| &point.labels))
    }

    /// The series as columns over `steps`.
    pub(crate) fn columns(&self, steps: &Steps) -> Vec<VectorSeries> {
        let (matrix, vector) = self.series();
        let column = |labels: &Labels| {
            VectorSeries::floats(labels.clone(), false, vec![ABSENT; steps.count])
        };
        let of_range = |one: &Series| {
            let mut column = column(&one.labels);
            for sample in &one.floats {
                let step = usize::try_from((sample.ts - steps.start) / steps.step);
                if let Some(value) = step.ok().and_then(|step| column.values.get_mut(step)) {
                    *value = sample.value;
                }
            }
            column
        };
        let of_instant = |point: &VectorPoint| {
            let mut column = column(&point.labels);
            if steps.count > 0 {
                column.set(0, point.value.clone());
            }
            column
        };
        matrix.iter().map(of_range).chain(vector.iter().map(of_instant)).collect()
    }

    fn series(&self) -> (&[Series], &[VectorPoint]) {
        match &*self.value {
            Value::Matrix(series) => (series, &[]),
            Value::Vector(points) => (&[], points),
            Value::Scalar { .. } | Value::String { .. } => (&[], &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Labels, QueryContext};
    use firn_promqltest::MemorySelect;

    use super::*;
    use crate::{EvalOptions, QueryOutput, eval, eval_with_parts, parse};

    fn texts(text: &str) -> Vec<String> {
        parts(&parse(text).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parts_are_the_topmost_aggregations_below_operators_and_functions() {
        assert_eq!(texts("sum(a) / (-sum by (x) (b))"), ["sum(a)", "sum by (x) (b)"]);
        let quantile = "histogram_quantile(0.9, sum by (le) (rate(a[5m])))";
        assert_eq!(texts(quantile), ["sum by (le) (rate(a[5m]))"]);
        assert_eq!(texts("clamp_max(max(sum by (x) (a)), 5) > 3"), ["max(sum by (x) (a))"]);
        for text in [
            "sum(a)",
            "(sum(a))",
            "a + b",
            "1 + 2",
            "max_over_time(sum(a)[5m:1m])",
            "1 + sum(a @ 5)",
            "1 + limitk(1, a)",
        ] {
            assert!(texts(text).is_empty(), "{text}");
        }
    }

    /// Three spellings of one bound are summed, and the sum of three floats depends on their order.
    #[test]
    fn buckets_of_one_bound_are_added_in_one_order() {
        let mut store = MemorySelect::new();
        let spellings = ["1e0", "1.0", "1", "2", "+Inf"];
        for (number, le) in spellings.into_iter().enumerate() {
            let pairs = [("__name__", "a_bucket"), ("le", le), ("instance", "x")];
            let labels = Labels::from_pairs(pairs).unwrap();
            let value = [1e16, 1.0, -1e16, 3.0, 7.0][number];
            store.push(&labels, 0, value);
        }
        let (options, context) = (EvalOptions::range(0, 30_000, 30_000), QueryContext::unbounded());
        let expr = parse("histogram_quantile(0.3, sum by (le) (a_bucket))").unwrap();
        let part = parts(&expr).remove(0);
        let Value::Matrix(mut series) = eval(&part, &store, &options, &context).unwrap().value
        else {
            unreachable!("a range query returns a matrix")
        };
        let text = |series: &[Series]| {
            let value = Arc::new(Value::Matrix(series.to_vec()));
            let held = HeldMemory::default();
            let results = PartResult { span: part.root.span, value, held };
            let output = eval_with_parts(&expr, &[results], &store, &options, &context).unwrap();
            format!("{:?}", output.value)
        };
        let computed = format!("{:?}", eval(&expr, &store, &options, &context).unwrap().value);
        for _ in 0..series.len() {
            series.rotate_left(1);
            assert_eq!(text(&series), computed);
            series.reverse();
            assert_eq!(text(&series), computed);
        }
    }

    #[test]
    fn an_expression_with_part_results_has_the_same_value() {
        let mut store = MemorySelect::new();
        for host in 0..5 {
            for le in ["0.1", "1", "+Inf"] {
                let host = host.to_string();
                let pairs = [("__name__", "a_bucket"), ("le", le), ("host", &*host)];
                let labels = Labels::from_pairs(pairs).unwrap();
                let rise = le.len() as f64 * 0.3 + host.len() as f64 / 7.0;
                // Some hosts start late.
                let first = if host == "3" { 40 } else { 0 };
                (first..90).for_each(|n| store.push(&labels, n * 15_000, n as f64 * rise));
            }
        }
        let options = EvalOptions::range(0, 1_350_000, 30_000);
        let context = QueryContext::unbounded();
        for text in [
            "histogram_quantile(0.9, sum by (le) (rate(a_bucket[2m])))",
            "sum by (host) (rate(a_bucket[1m])) / on () group_left () sum(rate(a_bucket[5m]))",
            "-avg(a_bucket) > 3 or count(a_bucket) unless on () (max(a_bucket) < 8)",
            "topk(1, a_bucket) * 2",
            "absent(sum(a_bucket)) or clamp_max(sum(a_bucket), 9)",
            "scalar(sum(a_bucket)) + 1",
        ] {
            let expr = parse(text).unwrap();
            let parts = parts(&expr);
            let results = parts.iter().map(|part| {
                let QueryOutput { value, held, .. } =
                    eval(part, &store, &options, &context).unwrap();
                PartResult { span: part.root.span, value: Arc::new(value), held }
            });
            let results: Vec<PartResult> = results.collect();
            assert!(!results.is_empty(), "{text}");
            let nothing = MemorySelect::new();
            let with = eval_with_parts(&expr, &results, &nothing, &options, &context);
            let without = eval(&expr, &store, &options, &context).unwrap();
            if text.contains("or count") {
                // One part is computed.
                let some = &results[..1];
                let with = eval_with_parts(&expr, some, &store, &options, &context).unwrap();
                assert_eq!(with.value, without.value, "{text}");
            }
            assert_eq!(with.unwrap().value, without.value, "{text}");
        }
    }
}
