//! Query trees as JSON, in the shape of Prometheus' `parse_query`: every key is present.

use firn_model::{MatchOp, Matcher};
use firn_promql::{
    Aggregate, At, Binary, BoundaryMode, Cardinality, Function, Node, NodeKind, Selector, Subquery,
    ValueType,
};

use crate::wire::json::{push_array, push_string};
use crate::wire::number::push_i64;

/// Appends the tree below `node`: at most 256 bytes per byte of the query, as deep as the tree.
pub fn push_tree(node: &Node, out: &mut Vec<u8>) {
    match &node.kind {
        NodeKind::Number { value, .. } => {
            Object::of("numberLiteral", out).text("val", &plain_number(*value));
        }
        NodeKind::String(bytes) => {
            Object::of("stringLiteral", out).text("val", &String::from_utf8_lossy(bytes));
        }
        NodeKind::Selector(selector) => {
            selector_fields(selector, Object::open(out)).text("type", "vectorSelector");
        }
        NodeKind::Matrix(matrix) => {
            selector_fields(&matrix.selector, Object::open(out))
                .number("range", matrix.range.ms())
                .text("type", "matrixSelector");
        }
        NodeKind::Subquery(subquery) => push_subquery(subquery, out),
        NodeKind::Paren(inner) => {
            Object::of("parenExpr", out).with("expr", |out| push_tree(inner, out));
        }
        NodeKind::Unary { negate, operand } => {
            Object::of("unaryExpr", out)
                .with("expr", |out| push_tree(operand, out))
                .text("op", if *negate { "-" } else { "+" });
        }
        NodeKind::Binary(binary) => push_binary(binary, out),
        NodeKind::Aggregate(aggregate) => push_aggregate(aggregate, out),
        NodeKind::Call { function, args } => {
            Object::of("call", out)
                .with("args", |out| push_array(args, out, push_tree))
                .with("func", |out| push_function(function, out));
        }
    }
}

fn push_subquery(subquery: &Subquery, out: &mut Vec<u8>) {
    let object = Object::of("subquery", out)
        .with("expr", |out| push_tree(&subquery.expr, out))
        .number("offset", subquery.offset.ms())
        .number("range", subquery.range.ms())
        .number("step", subquery.step.ms());
    time_fields(subquery.at, object);
}

fn push_binary(binary: &Binary, out: &mut Vec<u8>) {
    let is_vector = |node: &Node| node.value_type() == ValueType::Vector;
    let matches = is_vector(&binary.lhs) && is_vector(&binary.rhs);
    Object::of("binaryExpr", out)
        .flag("bool", binary.return_bool)
        .with("lhs", |out| push_tree(&binary.lhs, out))
        .with("matching", |out| match matches {
            true => push_matching(binary, out),
            false => push_null(out),
        })
        .text("op", binary.op.text())
        .with("rhs", |out| push_tree(&binary.rhs, out));
}

fn push_matching(binary: &Binary, out: &mut Vec<u8>) {
    let matching = &binary.matching;
    let card = match matching.cardinality {
        _ if binary.op.is_set() => "many-to-many",
        Cardinality::OneToOne => "one-to-one",
        Cardinality::ManyToOne => "many-to-one",
        Cardinality::OneToMany => "one-to-many",
        Cardinality::ManyToMany => "many-to-many",
    };
    Object::open(out)
        .text("card", card)
        .with("fillValues", |out| {
            Object::open(out)
                .with("lhs", |out| push_fill(matching.fill_left, out))
                .with("rhs", |out| push_fill(matching.fill_right, out));
        })
        .with("include", |out| push_names(&matching.include, out))
        .with("labels", |out| push_names(&matching.labels, out))
        .flag("on", matching.on);
}

fn push_aggregate(aggregate: &Aggregate, out: &mut Vec<u8>) {
    Object::of("aggregation", out)
        .with("expr", |out| push_tree(&aggregate.expr, out))
        .with("grouping", |out| push_names(&aggregate.grouping, out))
        .text("op", aggregate.op.text())
        .with("param", |out| match &aggregate.param {
            Some(param) => push_tree(param, out),
            None => push_null(out),
        })
        .flag("without", aggregate.without);
}

fn push_function(function: &Function, out: &mut Vec<u8>) {
    let push_type = |kind: &ValueType, out: &mut Vec<u8>| push_string(kind.api_name(), out);
    Object::open(out)
        .with("argTypes", |out| push_array(function.args, out, push_type))
        .text("name", function.name)
        .text("returnType", function.returns.api_name())
        .number("variadic", function.variadic.into());
}

/// The fields that both kinds of selectors share.
fn selector_fields<'a>(selector: &Selector, object: Object<'a>) -> Object<'a> {
    let object = object
        .flag("anchored", selector.boundary == BoundaryMode::Anchored)
        .with("matchers", |out| push_array(&selector.matchers, out, push_matcher))
        .text("name", selector.name.as_deref().unwrap_or(""))
        .number("offset", selector.offset.ms())
        .flag("smoothed", selector.boundary == BoundaryMode::Smoothed);
    time_fields(selector.at, object)
}

fn time_fields(at: Option<At>, object: Object<'_>) -> Object<'_> {
    let word = match at {
        Some(At::Start) => Some("start"),
        Some(At::End) => Some("end"),
        Some(At::Time(_)) | None => None,
    };
    object
        .with("startOrEnd", |out| match word {
            Some(word) => push_string(word, out),
            None => push_null(out),
        })
        .with("timestamp", |out| match at {
            Some(At::Time(ms)) => push_i64(ms, out),
            _ => push_null(out),
        })
}

fn push_matcher(matcher: &Matcher, out: &mut Vec<u8>) {
    let op = match matcher.op() {
        MatchOp::Equal => "=",
        MatchOp::NotEqual => "!=",
        MatchOp::Regex => "=~",
        MatchOp::NotRegex => "!~",
    };
    Object::open(out).text("name", matcher.name()).text("type", op).text("value", matcher.value());
}

fn push_names(names: &[String], out: &mut Vec<u8>) {
    push_array(names, out, |name, out| push_string(name, out));
}

fn push_null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

fn push_fill(value: Option<f64>, out: &mut Vec<u8>) {
    match value {
        None => push_null(out),
        Some(value) if value.is_finite() => out.extend_from_slice(plain_number(value).as_bytes()),
        // JSON has no number for these.
        Some(value) => push_string(&plain_number(value), out),
    }
}

/// Go's `FormatFloat(v, 'f', -1, 64)`: never an exponent.
fn plain_number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    value.to_string()
}

/// A JSON object that is being written; closed when it is dropped.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
    fn open(out: &'a mut Vec<u8>) -> Object<'a> {
        out.push(b'{');
        Object { out, is_empty: true }
    }

    /// With its `type`.
    fn of(kind: &str, out: &'a mut Vec<u8>) -> Object<'a> {
        Object::open(out).text("type", kind)
    }

    fn with(mut self, key: &str, push: impl FnOnce(&mut Vec<u8>)) -> Object<'a> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        push_string(key, self.out);
        self.out.push(b':');
        push(self.out);
        self
    }

    fn text(self, key: &str, value: &str) -> Object<'a> {
        self.with(key, |out| push_string(value, out))
    }

    fn number(self, key: &str, value: i64) -> Object<'a> {
        self.with(key, |out| push_i64(value, out))
    }

    fn flag(self, key: &str, value: bool) -> Object<'a> {
        self.with(key, |out| out.extend_from_slice(if value { b"true" } else { b"false" }))
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}
