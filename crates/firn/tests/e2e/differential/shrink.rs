//! The smallest expression that still shows a difference.

use firn_promql::{Expr, Node, NodeKind, parse};

/// Queries that one reduction may run.
const TRIES_MAX: usize = 300;

/// Reduces `text` as long as it still `differs`: to a part of it, or by a part in place of a larger
/// one.
pub(super) fn shrink(text: &str, differs: impl Fn(&str) -> bool) -> String {
    let mut best = text.to_owned();
    let mut tries = 0;
    'smaller: loop {
        let Ok(expr) = parse(&best) else { return best };
        let mut candidates = candidates(&expr);
        candidates.retain(|candidate| candidate.len() < best.len());
        candidates.sort_by_key(String::len);
        candidates.dedup();
        for candidate in candidates {
            tries += 1;
            if tries > TRIES_MAX {
                return best;
            }
            if parse(&candidate).is_ok() && differs(&candidate) {
                best = candidate;
                continue 'smaller;
            }
        }
        return best;
    }
}

fn candidates(expr: &Expr) -> Vec<String> {
    let mut nodes = Vec::new();
    collect(&expr.root, &mut nodes);
    let text = expr.text();
    let part = |node: &Node| &text[node.span.start as usize..node.span.end as usize];
    let mut found: Vec<String> = nodes.iter().map(|node| part(node).to_owned()).collect();
    for outer in &nodes {
        let mut below = Vec::new();
        children(outer).into_iter().for_each(|child| collect(child, &mut below));
        for inner in below.iter().filter(|inner| inner.value_type() == outer.value_type()) {
            let (start, end) = (outer.span.start as usize, outer.span.end as usize);
            found.push(format!("{}{}{}", &text[..start], part(inner), &text[end..]));
            found.push(format!("{}({}){}", &text[..start], part(inner), &text[end..]));
        }
    }
    found
}

fn collect<'a>(node: &'a Node, found: &mut Vec<&'a Node>) {
    found.push(node);
    children(node).into_iter().for_each(|child| collect(child, found));
}

fn children(node: &Node) -> Vec<&Node> {
    match &node.kind {
        NodeKind::Number { .. }
        | NodeKind::String(_)
        | NodeKind::Selector(_)
        | NodeKind::Matrix(_) => Vec::new(),
        NodeKind::Subquery(subquery) => vec![&subquery.expr],
        NodeKind::Paren(inner) => vec![inner],
        NodeKind::Unary { operand, .. } => vec![operand],
        NodeKind::Binary(binary) => vec![&binary.lhs, &binary.rhs],
        NodeKind::Aggregate(aggregate) => aggregate.param.iter().chain([&aggregate.expr]).collect(),
        NodeKind::Call { args, .. } => args.iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irrelevant_parts_are_removed() {
        let text = "sum by (a) (abs(rate(x[5m])) + on (a) (-(y{b=\"c\"} offset 5m))) > bool time()";
        assert_eq!(shrink(text, |text| text.contains("rate")), "rate(x[5m])");
        assert_eq!(
            shrink(text, |text| text.contains("sum") && text.contains("y{")),
            "sum by (a) (y{b=\"c\"} offset 5m)"
        );
        assert_eq!(shrink(text, |_| false), text);
    }
}
