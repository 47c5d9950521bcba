//! The memory of a parsed query.

use firn_model::{HEAP_BLOCK_BYTES, Matcher, Reservation};

use super::{
    Aggregate, Binary, DurationExpr, Expr, Length, MatrixSelector, Node, NodeKind, Selector, Span,
    Subquery,
};

impl Expr {
    /// The memory of the expression, without that of compiled patterns.
    pub(super) fn heap_bytes(&self) -> u64 {
        let regexes = self
            .regexes
            .iter()
            .map(|(matcher, _)| size_of::<(Matcher, Span)>().saturating_add(matcher.heap_bytes()));
        // The blocks of the expression, its text, its list of patterns and its reservation, each
        // with two counts.
        const OWN_BYTES: usize =
            size_of::<Expr>() + size_of::<Reservation>() + 4 * (HEAP_BLOCK_BYTES + 16);
        let own = OWN_BYTES.saturating_add(self.text.len()).saturating_add(sum(regexes));
        own.saturating_add(self.root.heap_bytes()) as u64
    }
}

impl Node {
    /// The memory of the tree below this node.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.kind {
            NodeKind::Number { .. } => 0,
            NodeKind::String(bytes) => bytes.capacity().saturating_add(HEAP_BLOCK_BYTES),
            NodeKind::Selector(selector) => boxed::<Selector>(selector.heap_bytes()),
            NodeKind::Matrix(matrix) => {
                let range = matrix.range.heap_bytes();
                boxed::<MatrixSelector>(matrix.selector.heap_bytes().saturating_add(range))
            }
            NodeKind::Subquery(subquery) => {
                let lengths = [&subquery.range, &subquery.step, &subquery.offset];
                let lengths = sum(lengths.into_iter().map(Length::heap_bytes));
                boxed::<Subquery>(lengths.saturating_add(subquery.expr.heap_bytes()))
            }
            NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => {
                boxed::<Node>(inner.heap_bytes())
            }
            NodeKind::Binary(binary) => {
                let operands = [&binary.lhs, &binary.rhs];
                let operands = sum(operands.into_iter().map(Node::heap_bytes));
                let names = [&binary.matching.labels, &binary.matching.include];
                boxed::<Binary>(sum(names.into_iter().map(names_bytes)).saturating_add(operands))
            }
            NodeKind::Aggregate(aggregate) => {
                let operands = aggregate.param.iter().chain([&aggregate.expr]);
                let operands = sum(operands.map(Node::heap_bytes));
                boxed::<Aggregate>(names_bytes(&aggregate.grouping).saturating_add(operands))
            }
            NodeKind::Call { args, .. } => {
                list_bytes(args).saturating_add(sum(args.iter().map(Node::heap_bytes)))
            }
        }
    }
}

impl Selector {
    fn heap_bytes(&self) -> usize {
        let name =
            self.name.as_ref().map_or(0, |name| name.capacity().saturating_add(HEAP_BLOCK_BYTES));
        let matchers = matchers_bytes(&self.matchers);
        name.saturating_add(matchers).saturating_add(self.offset.heap_bytes())
    }
}

impl Length {
    fn heap_bytes(&self) -> usize {
        match self {
            Length::Fixed(_) => 0,
            Length::Computed(expr) => boxed::<DurationExpr>(expr.heap_bytes()),
        }
    }
}

impl DurationExpr {
    fn heap_bytes(&self) -> usize {
        match self {
            DurationExpr::Number { .. } | DurationExpr::Step | DurationExpr::Range => 0,
            DurationExpr::Negate(inner) | DurationExpr::Paren(inner) => {
                boxed::<DurationExpr>(inner.heap_bytes())
            }
            DurationExpr::Binary { lhs, rhs, .. } | DurationExpr::Choice { lhs, rhs, .. } => {
                let operands = [lhs, rhs].into_iter();
                sum(operands.map(|operand| boxed::<DurationExpr>(operand.heap_bytes())))
            }
        }
    }
}

/// The memory of a list of matchers, without that of compiled patterns.
pub(crate) fn matchers_bytes(matchers: &Vec<Matcher>) -> usize {
    list_bytes(matchers).saturating_add(sum(matchers.iter().map(Matcher::heap_bytes)))
}

fn names_bytes(names: &Vec<String>) -> usize {
    let texts = names.iter().map(|name| name.capacity().saturating_add(HEAP_BLOCK_BYTES));
    list_bytes(names).saturating_add(sum(texts))
}

/// The memory of a box, with that below its contents.
fn boxed<T>(below: usize) -> usize {
    size_of::<T>().saturating_add(HEAP_BLOCK_BYTES).saturating_add(below)
}

/// The memory of a list, without that below its elements.
fn list_bytes<T>(list: &Vec<T>) -> usize {
    match list.capacity() {
        0 => 0,
        capacity => capacity.saturating_mul(size_of::<T>()).saturating_add(HEAP_BLOCK_BYTES),
    }
}

fn sum(sizes: impl Iterator<Item = usize>) -> usize {
    sizes.fold(0, usize::saturating_add)
}
