//! Type checks of a parsed tree, in Prometheus' order, so that the same error is reported first.

use firn_model::METRIC_NAME;

use super::error::ParseError;
use super::{
    Aggregate, AggregateOp, Binary, Cardinality, Function, FunctionId, Node, NodeKind, Selector,
    Span, go_quote,
};
use crate::syntax::ValueType;

/// Checks `root` and everything below it. A matcher that is not compiled yet counts as one that an
/// absent label does not pass, so a second check follows the compilation.
///
/// # Errors
/// The first error in Prometheus' order.
pub(super) fn check(text: &str, root: &Node) -> Result<(), ParseError> {
    Checker { text }.node(root).map(|_| ())
}

struct Checker<'a> {
    text: &'a str,
}

type Checked<T = ()> = Result<T, ParseError>;

impl Checker<'_> {
    fn fail<T>(&self, span: Span, what: impl Into<String>) -> Checked<T> {
        Err(ParseError::at(self.text, span, what))
    }

    /// Checks `node` and returns its type.
    fn node(&self, node: &Node) -> Checked<ValueType> {
        match &node.kind {
            NodeKind::Number { .. } | NodeKind::String(_) => {}
            NodeKind::Selector(selector) => self.selector(node.span, selector)?,
            NodeKind::Matrix(matrix) => self.selector(node.span, &matrix.selector)?,
            NodeKind::Subquery(subquery) => {
                let got = self.node(&subquery.expr)?;
                if got != ValueType::Vector {
                    let what = format!(
                        "subquery is only allowed on instant vector, got {} instead",
                        got.api_name()
                    );
                    return self.fail(node.span, what);
                }
            }
            NodeKind::Paren(inner) => return self.node(inner),
            NodeKind::Unary { operand, .. } => {
                let got = self.node(operand)?;
                if !matches!(got, ValueType::Scalar | ValueType::Vector) {
                    let what = format!(
                        "unary expression only allowed on expressions of type scalar or \
                         instant vector, got {}",
                        go_quote(got.documented().as_bytes())
                    );
                    return self.fail(node.span, what);
                }
            }
            NodeKind::Binary(binary) => return self.binary(node.span, binary),
            NodeKind::Aggregate(aggregate) => self.aggregate(aggregate)?,
            NodeKind::Call { function, args } => self.call(node.span, function, args)?,
        }
        Ok(node.value_type())
    }

    fn expect(&self, node: &Node, want: ValueType, context: &str) -> Checked {
        let got = self.node(node)?;
        if got == want {
            return Ok(());
        }
        let (want, got) = (want.documented(), got.documented());
        self.fail(node.span, format!("expected type {want} in {context}, got {got}"))
    }

    fn aggregate(&self, aggregate: &Aggregate) -> Checked {
        self.expect(&aggregate.expr, ValueType::Vector, "aggregation expression")?;
        let Some(param) = &aggregate.param else { return Ok(()) };
        let want = match aggregate.op {
            AggregateOp::CountValues => ValueType::String,
            _ => ValueType::Scalar,
        };
        self.expect(param, want, "aggregation parameter")
    }

    fn binary(&self, span: Span, binary: &Binary) -> Checked<ValueType> {
        let (lhs, rhs) = (self.node(&binary.lhs)?, self.node(&binary.rhs)?);
        let (op, matching) = (binary.op, &binary.matching);
        let op_span = || self.operator_span(binary);
        if binary.return_bool && !op.is_comparison() {
            return self.fail(op_span(), "bool modifier can only be used on comparison operators");
        }
        let scalars = lhs == ValueType::Scalar && rhs == ValueType::Scalar;
        if op.is_comparison() && !binary.return_bool && scalars {
            return self.fail(op_span(), "comparisons between scalars must use BOOL modifier");
        }
        if matching.on
            && let Some(label) = matching.labels.iter().find(|l| matching.include.contains(l))
        {
            let label = go_quote(label.as_bytes());
            let what = format!("label {label} must not occur in ON and GROUP clause at once");
            return self.fail(op_span(), what);
        }
        for (got, side) in [(lhs, &binary.lhs), (rhs, &binary.rhs)] {
            if !matches!(got, ValueType::Scalar | ValueType::Vector) {
                let what = "binary expression must contain only scalar and instant vector types";
                return self.fail(side.span, what);
            }
        }
        let has_fill = matching.fill_left.is_some() || matching.fill_right.is_some();
        let vectors = lhs == ValueType::Vector && rhs == ValueType::Vector;
        let op_text = go_quote(op.text().as_bytes());
        if !vectors {
            if !matching.labels.is_empty() {
                return self.fail(span, "vector matching only allowed between instant vectors");
            }
            if has_fill {
                let what = "filling in missing series only allowed between instant vectors";
                return self.fail(span, what);
            }
            if op.is_set() {
                let what =
                    format!("set operator {op_text} not allowed in binary scalar expression");
                return self.fail(span, what);
            }
        } else if op.is_set() {
            if matching.cardinality != Cardinality::OneToOne {
                return self.fail(span, format!("no grouping allowed for {op_text} operation"));
            }
            if has_fill {
                let what = "filling in missing series not allowed for set operators";
                return self.fail(span, what);
            }
        }
        Ok(if scalars { ValueType::Scalar } else { ValueType::Vector })
    }

    /// The operator with its modifiers, between the operands.
    fn operator_span(&self, binary: &Binary) -> Span {
        let (from, to) = (binary.lhs.span.end as usize, binary.rhs.span.start as usize);
        let between = self.text.get(from..to).unwrap_or("");
        let blank_bytes = between.len().saturating_sub(between.trim_start().len());
        let start = from.saturating_add(blank_bytes);
        Span::new(start, from.saturating_add(between.trim_end().len()).max(start))
    }

    fn call(&self, span: Span, function: &Function, args: &[Node]) -> Checked {
        let quoted = go_quote(function.name.as_bytes());
        let (known, got) = (function.args.len(), args.len());
        if function.variadic == 0 {
            if known != got {
                let what = format!("expected {known} argument(s) in call to {quoted}, got {got}");
                return self.fail(span, what);
            }
        } else {
            let least = known.saturating_sub(1);
            if got < least {
                let what =
                    format!("expected at least {least} argument(s) in call to {quoted}, got {got}");
                return self.fail(span, what);
            }
            let most =
                least.saturating_add(usize::try_from(function.variadic).unwrap_or(usize::MAX));
            if got > most {
                let what =
                    format!("expected at most {most} argument(s) in call to {quoted}, got {got}");
                return self.fail(span, what);
            }
        }
        if function.id == FunctionId::Info
            && let Some(labels) = args.get(1)
        {
            self.info_labels(span, labels)?;
        }
        for (idx, arg) in args.iter().enumerate() {
            let Some(&want) = function.args.get(idx).or(function.args.last()) else { break };
            if function.id == FunctionId::Info && idx == 1 {
                continue;
            }
            let got = self.node(arg)?;
            if got != want {
                let (want, got) = (want.documented(), got.documented());
                let what = format!("expected type {want} in call to function {quoted}, got {got}");
                return self.fail(arg.span, what);
            }
        }
        Ok(())
    }

    /// The second argument of `info` consists of matchers only; all of them may match the empty
    /// label.
    fn info_labels(&self, span: Span, labels: &Node) -> Checked {
        if labels.value_type() != ValueType::Vector {
            let got = labels.value_type().documented();
            let what =
                format!("expected type instant vector in call to function \"info\", got {got}");
            return self.fail(span, what);
        }
        match &labels.kind {
            NodeKind::Selector(selector) if selector.name.is_none() => Ok(()),
            NodeKind::Selector(_) => {
                let what = "expected label selectors only, got vector selector instead";
                self.fail(labels.span, what)
            }
            _ => self.fail(labels.span, "expected label selectors only"),
        }
    }

    fn selector(&self, span: Span, selector: &Selector) -> Checked {
        if let Some(name) = &selector.name {
            let others = selector.matchers.split_last().map_or(&[][..], |(_, others)| others);
            if let Some(other) = others.iter().find(|matcher| matcher.name() == METRIC_NAME) {
                let (name, other) = (go_quote(name.as_bytes()), go_quote(other.value().as_bytes()));
                let what = format!("metric name must not be set twice: {name} or {other}");
                return self.fail(span, what);
            }
            return Ok(());
        }
        if selector.matchers.iter().all(|one| !one.needs_compiling() && one.matches_absent()) {
            let what = "vector selector must contain at least one non-empty matcher";
            return self.fail(span, what);
        }
        Ok(())
    }
}
