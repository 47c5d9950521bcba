//! Trees to multi-line text, as Prometheus formats queries: a node that does not fit into a line is
//! split and its parts are indented.

use std::fmt::{self, Write as _};

use super::print::{aggregate_head, operator, sign, subquery_grid};
use super::{Expr, Node, NodeKind};

/// A query formatted over several lines; use `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Pretty<'a>(&'a Node);

impl Expr {
    /// The query formatted by Prometheus' rules: lines of at most 100 bytes where it can be split,
    /// two spaces per level. O(length of the output).
    pub fn pretty(&self) -> Pretty<'_> {
        Pretty(&self.root)
    }
}

impl fmt::Display for Pretty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        indent(f, first_level(self.0, 0))?;
        lines(f, self.0, 0)
    }
}

const LINE_BYTES_MAX: usize = 100;

/// The indentation level of the first line of `node` at `level`.
fn first_level(node: &Node, level: usize) -> usize {
    match &node.kind {
        // As Prometheus formats it in any context: identical output has priority over indentation.
        NodeKind::Subquery(_) if fits(node) => 0,
        _ if fits(node) => level,
        // The operands are one level deeper than the operator between them.
        NodeKind::Binary(binary) => first_level(&binary.lhs, deeper(level)),
        NodeKind::Subquery(subquery) => first_level(&subquery.expr, level),
        _ => level,
    }
}

/// `node` at `level`; the first line is indented already.
fn lines(f: &mut fmt::Formatter<'_>, node: &Node, level: usize) -> fmt::Result {
    if fits(node) {
        return fmt::Display::fmt(node, f);
    }
    match &node.kind {
        NodeKind::Aggregate(aggregate) => {
            aggregate_head(f, aggregate)?;
            block(f, aggregate.param.iter().chain([&aggregate.expr]), level)
        }
        NodeKind::Call { function, args } => {
            f.write_str(function.name)?;
            block(f, args, level)
        }
        NodeKind::Paren(inner) => block(f, [&**inner], level),
        NodeKind::Binary(binary) => {
            lines(f, &binary.lhs, deeper(level))?;
            line_break(f, level)?;
            operator(f, binary)?;
            line_break(f, first_level(&binary.rhs, deeper(level)))?;
            lines(f, &binary.rhs, deeper(level))
        }
        NodeKind::Unary { negate, operand } => {
            f.write_str(sign(*negate))?;
            lines(f, operand, level)
        }
        NodeKind::Subquery(subquery) => {
            lines(f, &subquery.expr, level)?;
            subquery_grid(f, subquery)
        }
        NodeKind::Number { .. }
        | NodeKind::String(_)
        | NodeKind::Selector(_)
        | NodeKind::Matrix(_) => fmt::Display::fmt(node, f),
    }
}

/// `(`, each of `nodes` on lines of its own, `)`.
fn block<'a>(
    f: &mut fmt::Formatter<'_>,
    nodes: impl IntoIterator<Item = &'a Node>,
    level: usize,
) -> fmt::Result {
    f.write_str("(")?;
    for (idx, node) in nodes.into_iter().enumerate() {
        if idx > 0 {
            f.write_str(",")?;
        }
        line_break(f, first_level(node, deeper(level)))?;
        lines(f, node, deeper(level))?;
    }
    line_break(f, level)?;
    f.write_str(")")
}

/// The level of the parts of a node; the parser bounds the depth of a tree.
fn deeper(level: usize) -> usize {
    level.saturating_add(1)
}

fn line_break(f: &mut fmt::Formatter<'_>, level: usize) -> fmt::Result {
    f.write_char('\n')?;
    indent(f, level)
}

fn indent(f: &mut fmt::Formatter<'_>, level: usize) -> fmt::Result {
    write!(f, "{:width$}", "", width = level.saturating_mul(2))
}

fn fits(node: &Node) -> bool {
    write!(LineBudget(LINE_BYTES_MAX), "{node}").is_ok()
}

/// Accepts a limited number of bytes, so that a long text is not written in full to learn that it
/// is long.
struct LineBudget(usize);

impl fmt::Write for LineBudget {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}
