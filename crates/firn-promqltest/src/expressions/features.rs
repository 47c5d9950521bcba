//! The features of the language that an expression uses, determined from its parsed tree and not
//! from the generator's intention.

use std::collections::BTreeMap;

use firn_model::MatchOp;
use firn_promql::{
    At, BoundaryMode, Cardinality, Expr, Length, Matching, Node, NodeKind, Selector,
};

/// The number of occurrences of each feature.
pub type Features = BTreeMap<&'static str, u32>;

/// Counts the features of `expr`: functions, operators and aggregations by name, and modifiers
/// (`offset negative`, `@ start()`, `group_left`, `matcher =~`, `subquery`, `filter`, ...).
pub fn features(expr: &Expr) -> Features {
    let mut found = Features::new();
    node(&expr.root, &mut found);
    found
}

fn node(this: &Node, found: &mut Features) {
    let mut add = |name| *found.entry(name).or_default() += 1;
    match &this.kind {
        NodeKind::Number { is_duration, .. } => {
            if *is_duration {
                add("number as duration");
            }
        }
        NodeKind::String(_) => {}
        NodeKind::Selector(selector) => self::selector(selector, &mut add),
        NodeKind::Matrix(matrix) => {
            add("range");
            length(&matrix.range, &mut add);
            selector(&matrix.selector, &mut add);
        }
        NodeKind::Subquery(subquery) => {
            add("subquery");
            if subquery.step.is_zero() {
                add("subquery default step");
            }
            [&subquery.range, &subquery.step].into_iter().for_each(|l| length(l, &mut add));
            when(&subquery.offset, subquery.at, &mut add);
            node(&subquery.expr, found);
        }
        NodeKind::Paren(inner) => node(inner, found),
        NodeKind::Unary { negate, operand } => {
            add(if *negate { "unary -" } else { "unary +" });
            node(operand, found);
        }
        NodeKind::Binary(binary) => {
            add(binary.op.text());
            if binary.return_bool {
                add("bool");
            } else if binary.op.is_comparison() {
                add("filter");
            }
            matching(&binary.matching, &mut add);
            node(&binary.lhs, found);
            node(&binary.rhs, found);
        }
        NodeKind::Aggregate(aggregate) => {
            add(aggregate.op.text());
            match (aggregate.without, aggregate.grouping.is_empty()) {
                (true, _) => add("without"),
                (false, false) => add("by"),
                (false, true) => {}
            }
            aggregate.param.iter().for_each(|param| node(param, found));
            node(&aggregate.expr, found);
        }
        NodeKind::Call { function, args } => {
            add(function.name);
            args.iter().for_each(|arg| node(arg, found));
        }
    }
}

fn selector(selector: &Selector, add: &mut impl FnMut(&'static str)) {
    if selector.name.is_none() {
        add("selector without name");
    }
    let own = usize::from(selector.name.is_some());
    for matcher in &selector.matchers[..selector.matchers.len() - own] {
        add(match matcher.op() {
            MatchOp::Equal => "matcher =",
            MatchOp::NotEqual => "matcher !=",
            MatchOp::Regex => "matcher =~",
            MatchOp::NotRegex => "matcher !~",
        });
    }
    match selector.boundary {
        BoundaryMode::Plain => {}
        BoundaryMode::Anchored => add("anchored"),
        BoundaryMode::Smoothed => add("smoothed"),
    }
    when(&selector.offset, selector.at, add);
}

fn when(offset: &Length, at: Option<At>, add: &mut impl FnMut(&'static str)) {
    match offset.ms() {
        ms if ms > 0 => add("offset"),
        ms if ms < 0 => add("offset negative"),
        _ => {}
    }
    length(offset, add);
    match at {
        None => {}
        Some(At::Time(_)) => add("@ time"),
        Some(At::Start) => add("@ start()"),
        Some(At::End) => add("@ end()"),
    }
}

fn length(length: &Length, add: &mut impl FnMut(&'static str)) {
    if matches!(length, Length::Computed(_)) {
        add("duration expression");
    }
}

fn matching(matching: &Matching, add: &mut impl FnMut(&'static str)) {
    if matching.on {
        add("on");
    } else if !matching.labels.is_empty() {
        add("ignoring");
    }
    match matching.cardinality {
        Cardinality::ManyToOne => add("group_left"),
        Cardinality::OneToMany => add("group_right"),
        Cardinality::OneToOne | Cardinality::ManyToMany => {}
    }
    if !matching.include.is_empty() {
        add("group with labels");
    }
    match (matching.fill_left.is_some(), matching.fill_right.is_some()) {
        (true, true) => add("fill"),
        (true, false) => add("fill_left"),
        (false, true) => add("fill_right"),
        (false, false) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_features_are_counted() {
        let check = |text: &str, wanted: &[(&'static str, u32)]| {
            let expr = firn_promql::parse(text).unwrap();
            assert_eq!(features(&expr), wanted.iter().copied().collect(), "{text}");
        };
        check(
            "sum by (a) (rate(x{b!=\"c\",d=~\"e\"}[5m] offset -1m)) \
             / on (a) group_left (f) -y @ end()",
            &[
                ("sum", 1),
                ("by", 1),
                ("rate", 1),
                ("range", 1),
                ("matcher !=", 1),
                ("matcher =~", 1),
                ("offset negative", 1),
                ("/", 1),
                ("on", 1),
                ("group_left", 1),
                ("group with labels", 1),
                ("unary -", 1),
                ("@ end()", 1),
            ],
        );
        check(
            "max_over_time({x=\"1\"}[5m:]) > bool 2 unless time() < vector(1)",
            &[
                ("max_over_time", 1),
                ("subquery", 1),
                ("subquery default step", 1),
                ("selector without name", 1),
                ("matcher =", 1),
                (">", 1),
                ("bool", 1),
                ("unless", 1),
                ("time", 1),
                ("<", 1),
                ("filter", 1),
                ("vector", 1),
            ],
        );
    }
}
