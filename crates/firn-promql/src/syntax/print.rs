//! Trees to text, in the form that Prometheus prints them: one line, matchers sorted.

use std::fmt::{self, Write as _};

use firn_model::{METRIC_NAME, MatchOp, Matcher};

use super::{
    Aggregate, At, Binary, BoundaryMode, Cardinality, DurationExpr, Expr, Length, Matching, Node,
    NodeKind, Selector, Subquery, format_duration, format_f, go_quote,
};

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            NodeKind::Number { value, is_duration } => number(f, *value, *is_duration),
            NodeKind::String(bytes) => f.write_str(&go_quote(bytes)),
            NodeKind::Selector(selector) => {
                series(f, selector)?;
                with_offset(f, &selector.offset, |f| {
                    at(f, selector.at)?;
                    boundary(f, selector.boundary)
                })
            }
            NodeKind::Matrix(matrix) => {
                let selector = &matrix.selector;
                series(f, selector)?;
                write!(f, "[{}]", matrix.range)?;
                with_offset(f, &selector.offset, |f| {
                    boundary(f, selector.boundary)?;
                    at(f, selector.at)
                })
            }
            NodeKind::Subquery(subquery) => {
                subquery.expr.fmt(f)?;
                subquery_grid(f, subquery)
            }
            NodeKind::Paren(inner) => write!(f, "({inner})"),
            NodeKind::Unary { negate, operand } => write!(f, "{}{operand}", sign(*negate)),
            NodeKind::Binary(binary) => {
                write!(f, "{} ", binary.lhs)?;
                operator(f, binary)?;
                write!(f, " {}", binary.rhs)
            }
            NodeKind::Aggregate(aggregate) => {
                aggregate_head(f, aggregate)?;
                f.write_str("(")?;
                if let Some(param) = &aggregate.param {
                    write!(f, "{param}, ")?;
                }
                write!(f, "{})", aggregate.expr)
            }
            NodeKind::Call { function, args } => {
                write!(f, "{}(", function.name)?;
                for (idx, arg) in args.iter().enumerate() {
                    write!(f, "{}{arg}", if idx == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A duration has whole milliseconds; a number of seconds has any fraction.
            Length::Fixed(nanos) if *nanos != 0 && self.ms() == 0 => {
                f.write_str(&format_f(self.seconds()))
            }
            Length::Fixed(_) if self.ms() < 0 => {
                write!(f, "-{}", format_duration(self.ms().saturating_neg()))
            }
            Length::Fixed(_) => f.write_str(&format_duration(self.ms())),
            Length::Computed(expr) => expr.fmt(f),
        }
    }
}

impl fmt::Display for DurationExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DurationExpr::Number { value, is_duration } => number(f, *value, *is_duration),
            DurationExpr::Step => f.write_str("step()"),
            DurationExpr::Range => f.write_str("range()"),
            DurationExpr::Negate(inner) => write!(f, "-{inner}"),
            DurationExpr::Paren(inner) => write!(f, "({inner})"),
            DurationExpr::Binary { op, lhs, rhs } => write!(f, "{lhs} {} {rhs}", op.text()),
            DurationExpr::Choice { greater, lhs, rhs } => {
                write!(f, "{}({lhs}, {rhs})", if *greater { "max_of" } else { "min_of" })
            }
        }
    }
}

fn number(f: &mut fmt::Formatter<'_>, value: f64, is_duration: bool) -> fmt::Result {
    if is_duration {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
        let ms = (value.abs() * 1000.0).round() as i64;
        return write!(f, "{sign}{}", format_duration(ms));
    }
    f.write_str(&format_f(value))
}

/// `name{a="1",b=~"2"}`.
fn series(f: &mut fmt::Formatter<'_>, selector: &Selector) -> fmt::Result {
    let name = selector.name.as_deref();
    f.write_str(name.unwrap_or(""))?;
    let is_name = |matcher: &Matcher| {
        matcher.name() == METRIC_NAME
            && matcher.op() == MatchOp::Equal
            && Some(matcher.value()) == name
    };
    let mut texts: Vec<String> =
        selector.matchers.iter().filter(|m| !is_name(m)).map(matcher_text).collect();
    if texts.is_empty() && name.is_some() {
        return Ok(());
    }
    texts.sort();
    write!(f, "{{{}}}", texts.join(","))
}

fn matcher_text(matcher: &Matcher) -> String {
    let op = match matcher.op() {
        MatchOp::Equal => "=",
        MatchOp::NotEqual => "!=",
        MatchOp::Regex => "=~",
        MatchOp::NotRegex => "!~",
    };
    format!("{}{op}{}", label_text(matcher.name()), go_quote(matcher.value().as_bytes()))
}

/// A label name, quoted unless it is a plain identifier.
fn label_text(name: &str) -> String {
    let mut bytes = name.bytes();
    let starts_well = bytes.next().is_some_and(|b| b == b'_' || b.is_ascii_alphabetic());
    if starts_well && bytes.all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
        name.to_owned()
    } else {
        go_quote(name.as_bytes())
    }
}

fn label_list(labels: &[String]) -> String {
    labels.iter().map(|label| label_text(label)).collect::<Vec<_>>().join(", ")
}

fn at(f: &mut fmt::Formatter<'_>, at: Option<At>) -> fmt::Result {
    match at {
        None => Ok(()),
        Some(At::Start) => f.write_str(" @ start()"),
        Some(At::End) => f.write_str(" @ end()"),
        Some(At::Time(ms)) => {
            let (sign, ms) = (if ms < 0 { "-" } else { "" }, ms.unsigned_abs());
            write!(f, " @ {sign}{}.{:03}", ms / 1000, ms % 1000)
        }
    }
}

fn boundary(f: &mut fmt::Formatter<'_>, boundary: BoundaryMode) -> fmt::Result {
    f.write_str(match boundary {
        BoundaryMode::Plain => "",
        BoundaryMode::Anchored => " anchored",
        BoundaryMode::Smoothed => " smoothed",
    })
}

/// The offset behind the other modifiers, as Prometheus prints it. A computed one comes first: it
/// would take an operator that follows it for arithmetic of the offset.
fn with_offset<'f>(
    f: &mut fmt::Formatter<'f>,
    offset: &Length,
    others: impl FnOnce(&mut fmt::Formatter<'f>) -> fmt::Result,
) -> fmt::Result {
    match offset {
        Length::Computed(_) => {
            write!(f, " offset {offset}")?;
            others(f)
        }
        Length::Fixed(0) => others(f),
        Length::Fixed(_) => {
            others(f)?;
            write!(f, " offset {offset}")
        }
    }
}

/// `[1h:1m] @ 100 offset 5m`: the suffix after the expression of a subquery.
pub(super) fn subquery_grid(f: &mut fmt::Formatter<'_>, subquery: &Subquery) -> fmt::Result {
    write!(f, "[{}:", subquery.range)?;
    if !subquery.step.is_zero() {
        fmt::Display::fmt(&subquery.step, f)?;
    }
    f.write_str("]")?;
    with_offset(f, &subquery.offset, |f| at(f, subquery.at))
}

pub(super) fn sign(negate: bool) -> &'static str {
    if negate { "-" } else { "+" }
}

/// `+ bool on (a) group_left (b)`: the operator between two operands.
pub(super) fn operator(f: &mut fmt::Formatter<'_>, binary: &Binary) -> fmt::Result {
    f.write_str(binary.op.text())?;
    if binary.return_bool {
        f.write_str(" bool")?;
    }
    f.write_str(&matching(&binary.matching))
}

fn matching(matching: &Matching) -> String {
    let mut out = String::new();
    let grouped = match matching.cardinality {
        Cardinality::ManyToOne => Some("group_left"),
        Cardinality::OneToMany => Some("group_right"),
        Cardinality::OneToOne | Cardinality::ManyToMany => None,
    };
    if !matching.labels.is_empty() || matching.on || grouped.is_some() {
        let word = if matching.on { "on" } else { "ignoring" };
        let _ = write!(out, " {word} ({})", label_list(&matching.labels));
    }
    if let Some(word) = grouped {
        let _ = write!(out, " {word} ({})", label_list(&matching.include));
    }
    match (matching.fill_left, matching.fill_right) {
        (Some(left), Some(right)) if left.to_bits() == right.to_bits() => {
            let _ = write!(out, " fill ({})", format_f(left));
        }
        (left, right) => {
            for (word, value) in [("fill_left", left), ("fill_right", right)] {
                if let Some(value) = value {
                    let _ = write!(out, " {word} ({})", format_f(value));
                }
            }
        }
    }
    out
}

/// `sum by (a) `: the prefix before the parentheses of an aggregation.
pub(super) fn aggregate_head(f: &mut fmt::Formatter<'_>, aggregate: &Aggregate) -> fmt::Result {
    f.write_str(aggregate.op.text())?;
    let labels = label_list(&aggregate.grouping);
    if aggregate.without {
        write!(f, " without ({labels}) ")?;
    } else if !aggregate.grouping.is_empty() {
        write!(f, " by ({labels}) ")?;
    }
    Ok(())
}
