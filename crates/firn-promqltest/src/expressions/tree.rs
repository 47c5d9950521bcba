//! Trees without positions, so that two texts of one expression compare equal.

use firn_promql::{Expr, Node, NodeKind, Selector};

/// The tree of `expr` as text, without positions and with the matchers of each selector sorted, as
/// printing sorts them. Two expressions have the same text exactly if they have the same meaning,
/// parentheses included.
pub fn tree(expr: &Expr) -> String {
    let mut root = expr.root.clone();
    sort_matchers(&mut root);
    let text = format!("{root:?}");
    let mut pieces = text.split("span: Span { ");
    let mut out = pieces.next().unwrap_or("").to_owned();
    for piece in pieces {
        out.push_str(piece.split_once(" }, ").map_or("", |(_, rest)| rest));
    }
    out
}

fn sort_matchers(node: &mut Node) {
    match &mut node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => {}
        NodeKind::Selector(selector) => sort(selector),
        NodeKind::Matrix(matrix) => sort(&mut matrix.selector),
        NodeKind::Subquery(subquery) => sort_matchers(&mut subquery.expr),
        NodeKind::Paren(inner) => sort_matchers(inner),
        NodeKind::Unary { operand, .. } => sort_matchers(operand),
        NodeKind::Binary(binary) => {
            sort_matchers(&mut binary.lhs);
            sort_matchers(&mut binary.rhs);
        }
        NodeKind::Aggregate(aggregate) => {
            aggregate.param.iter_mut().for_each(sort_matchers);
            sort_matchers(&mut aggregate.expr);
        }
        NodeKind::Call { args, .. } => args.iter_mut().for_each(sort_matchers),
    }
}

fn sort(selector: &mut Selector) {
    selector.matchers.sort_by_key(|matcher| format!("{matcher:?}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_promql::parse;

    #[test]
    fn only_differences_without_meaning_are_ignored() {
        let same = |a: &str, b: &str| tree(&parse(a).unwrap()) == tree(&parse(b).unwrap());
        assert!(same("sum(x{b='1',a=~\"2\"})", "sum( x{a=~\"2\", b=\"1\"} )"));
        assert!(same("rate(x[60s])", "rate(x[1m])"));
        assert!(!same("a - b - c", "a - (b - c)"));
        assert!(!same("a + b", "(a) + b"));
        assert!(!same("sum(x)", "sum by (a) (x)"));
    }
}
