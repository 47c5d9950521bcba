//! Changes of selectors in a tree, for programs that rewrite queries.

use super::{Expr, Node, NodeKind, Selector};

impl Expr {
    /// Calls `edit` for each selector. The result is to be printed, not evaluated: the positions
    /// and patterns of the text before are kept. O(nodes).
    pub fn edit_selectors(&mut self, edit: &mut dyn FnMut(&mut Selector)) {
        edit_node(&mut self.root, edit);
    }
}

fn edit_node(node: &mut Node, edit: &mut dyn FnMut(&mut Selector)) {
    match &mut node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => {}
        NodeKind::Selector(selector) => edit(selector),
        NodeKind::Matrix(matrix) => edit(&mut matrix.selector),
        NodeKind::Subquery(subquery) => edit_node(&mut subquery.expr, edit),
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => edit_node(inner, edit),
        NodeKind::Binary(binary) => {
            edit_node(&mut binary.lhs, edit);
            edit_node(&mut binary.rhs, edit);
        }
        NodeKind::Aggregate(aggregate) => {
            aggregate.param.iter_mut().for_each(|param| edit_node(param, edit));
            edit_node(&mut aggregate.expr, edit);
        }
        NodeKind::Call { args, .. } => args.iter_mut().for_each(|arg| edit_node(arg, edit)),
    }
}

#[cfg(test)]
mod tests {
    use firn_model::Matcher;

    use crate::parse;

    #[test]
    fn each_selector_is_edited() {
        for (text, expected) in [
            ("topk(scalar(a), -(b))", "topk(scalar(a{y=\"2\"}), -(b{y=\"2\"}))"),
            ("sum by (x) (rate(a[5m])) / 2", "sum by (x) (rate(a{y=\"2\"}[5m])) / 2"),
            ("max_over_time(a[5m:1m])", "max_over_time(a{y=\"2\"}[5m:1m])"),
            ("{x=\"1\"} + time()", "{x=\"1\",y=\"2\"} + time()"),
        ] {
            let mut expr = parse(text).unwrap();
            expr.edit_selectors(&mut |selector| selector.matchers.push(Matcher::equal("y", "2")));
            assert_eq!(expr.to_string(), expected);
        }
    }
}
