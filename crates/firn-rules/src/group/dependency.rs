//! Which rules of a group read results of earlier ones, and which may run at the same time.

use std::iter;
use std::ops::Range;

use firn_model::{METRIC_NAME, Matcher};
use firn_promql::{Expr, Node, NodeKind, Selector};

use super::alert::{ALERT_NAME, ALERTS, ALERTS_FOR_STATE};

/// The result and the expression of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleShape<'a> {
    /// The name of the recorded metric or of the alert.
    pub name: &'a str,
    /// Whether the rule is an alert: its series are `ALERTS` and `ALERTS_FOR_STATE`.
    pub is_alert: bool,
    /// The expression, compiled.
    pub expr: &'a Expr,
}

/// The position of a rule among the others of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLinks {
    /// Whether no later rule reads the rule's result.
    pub no_dependents: bool,
    /// Whether the rule reads no result of an earlier rule.
    pub no_dependencies: bool,
    /// The last earlier rule that the rule reads.
    pub newest_dependency: Option<usize>,
}

/// The links of each rule. A selector without a matcher on the name may read anything: then each
/// rule has dependencies and dependents. O(rules * selectors).
pub fn rule_links(rules: &[RuleShape<'_>]) -> Vec<RuleLinks> {
    let alone = RuleLinks { no_dependents: true, no_dependencies: true, newest_dependency: None };
    let mut links = vec![alone; rules.len()];
    if rules.len() < 2 {
        return links;
    }
    for (idx, rule) in rules.iter().enumerate() {
        let mut selectors = Vec::new();
        collect(&rule.expr.root, &mut selectors);
        let (earlier, rest) = links.split_at_mut(idx);
        let Some(own) = rest.first_mut() else { break };
        for selector in selectors {
            let Some(name) = matcher_on(selector, METRIC_NAME) else {
                return all_linked(rules.len());
            };
            for (source_idx, source) in rules.iter().enumerate().take(idx) {
                if reads(selector, name, source)
                    && let Some(source_links) = earlier.get_mut(source_idx)
                {
                    source_links.no_dependents = false;
                    own.no_dependencies = false;
                    own.newest_dependency = own.newest_dependency.max(Some(source_idx));
                }
            }
        }
    }
    links
}

/// Each rule reads the one before it.
fn all_linked(count: usize) -> Vec<RuleLinks> {
    let links = |idx: usize| RuleLinks {
        no_dependents: false,
        no_dependencies: false,
        newest_dependency: idx.checked_sub(1),
    };
    (0..count).map(links).collect()
}

/// More rules would need memory for all their results at one time.
const STAGE_RULES_MAX: usize = 1_000;

/// The stages of a group. A stage ends before the next rule that reads a result of the stage, or
/// after [`STAGE_RULES_MAX`] rules. Rules of a stage may run at the same time: each reads the same
/// samples as in order.
pub(super) fn stages(links: &[RuleLinks]) -> impl Iterator<Item = Range<usize>> {
    let stage = |first: usize| {
        let end_max = links.len().min(first.saturating_add(STAGE_RULES_MAX));
        let next = links.iter().enumerate().take(end_max).skip(first.saturating_add(1));
        let mut readers = next.filter(|(_, links)| links.newest_dependency >= Some(first));
        first..readers.next().map_or(end_max, |(idx, _)| idx)
    };
    let first = (!links.is_empty()).then(|| stage(0));
    iter::successors(first, move |last| (last.end < links.len()).then(|| stage(last.end)))
}

/// The order of a concurrent evaluation: rules of one batch may run at the same time, batches run
/// one after the other. First the rules without dependencies, then each rule with dependencies and
/// dependents alone, then the remaining ones.
pub fn batches(links: &[RuleLinks]) -> Vec<Vec<usize>> {
    let indexes = |test: &dyn Fn(&RuleLinks) -> bool| -> Vec<usize> {
        links.iter().enumerate().filter(|(_, links)| test(links)).map(|(idx, _)| idx).collect()
    };
    let middle = indexes(&|links| !links.no_dependencies && !links.no_dependents);
    let mut batches = vec![indexes(&|links| links.no_dependencies)];
    batches.extend(middle.into_iter().map(|idx| vec![idx]));
    batches.push(indexes(&|links| !links.no_dependencies && links.no_dependents));
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// Whether `selector`, whose matcher on the name is `name`, may select results of `source`.
fn reads(selector: &Selector, name: &Matcher, source: &RuleShape<'_>) -> bool {
    if !source.is_alert {
        return name.matches(source.name);
    }
    (name.matches(ALERTS) || name.matches(ALERTS_FOR_STATE))
        && matcher_on(selector, ALERT_NAME).is_none_or(|alert| alert.matches(source.name))
}

fn matcher_on<'a>(selector: &'a Selector, label: &str) -> Option<&'a Matcher> {
    selector.matchers.iter().find(|matcher| matcher.name() == label)
}

fn collect<'a>(node: &'a Node, selectors: &mut Vec<&'a Selector>) {
    match &node.kind {
        NodeKind::Number { .. } | NodeKind::String(_) => {}
        NodeKind::Selector(selector) => selectors.push(selector),
        NodeKind::Matrix(matrix) => selectors.push(&matrix.selector),
        NodeKind::Subquery(subquery) => collect(&subquery.expr, selectors),
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => {
            collect(inner, selectors);
        }
        NodeKind::Binary(binary) => {
            collect(&binary.lhs, selectors);
            collect(&binary.rhs, selectors);
        }
        NodeKind::Aggregate(aggregate) => {
            aggregate.param.iter().for_each(|param| collect(param, selectors));
            collect(&aggregate.expr, selectors);
        }
        NodeKind::Call { args, .. } => args.iter().for_each(|arg| collect(arg, selectors)),
    }
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;
    use firn_promql::prepare;

    use super::*;

    /// Rules as `name = expression`, alerts as `!name = expression`.
    fn links(rules: &[&str]) -> Vec<RuleLinks> {
        let parsed: Vec<(&str, Expr)> = rules
            .iter()
            .map(|rule| {
                let (name, expr) = rule.split_once(" = ").unwrap();
                (name, prepare(expr, &QueryContext::unbounded()).unwrap())
            })
            .collect();
        let shapes: Vec<RuleShape<'_>> = parsed
            .iter()
            .map(|(name, expr)| RuleShape {
                name: name.trim_start_matches('!'),
                is_alert: name.starts_with('!'),
                expr,
            })
            .collect();
        rule_links(&shapes)
    }

    fn check(rules: &[&str], expected: &[&[usize]]) {
        assert_eq!(batches(&links(rules)), expected, "{rules:?}");
    }

    /// `stages` are the first rules of all stages.
    fn check_stages(rules: &[&str], stages: &[usize]) {
        let links = links(rules);
        let found: Vec<Range<usize>> = super::stages(&links).collect();
        assert_eq!(found.iter().map(|stage| stage.start).collect::<Vec<_>>(), stages, "{rules:?}");
        assert_eq!(found.last().map_or(0, |stage| stage.end), rules.len(), "{rules:?}");
    }

    #[test]
    fn a_stage_ends_before_a_reader_of_its_results() {
        check_stages(&[], &[]);
        check_stages(&["a = x", "b = sum(y)", "!c = z > 1"], &[0]);
        check_stages(&["a = x", "b = a", "c = a + 1", "d = a > 1", "e = c"], &[0, 1, 4]);
        check_stages(&["a = x", "b = y", "c = a", "d = x"], &[0, 2]);
        // The second rule reads the result of the last evaluation.
        check_stages(&["a = b", "b = x"], &[0]);
        check_stages(&["a = x", "!b = x", "c = ALERTS", "d = a"], &[0, 2]);
        check_stages(&["a = x", "b = {job=\"x\"}", "c = y"], &[0, 1, 2]);
        check_stages(&vec!["a = x"; 2 * STAGE_RULES_MAX + 1], &[0, 1_000, 2_000]);
    }

    #[test]
    fn independent_rules_are_one_batch() {
        check(&[], &[]);
        check(&["a = {x=\"1\"}"], &[&[0]]);
        check(&["a = x", "b = sum(y)", "!c = z > 1"], &[&[0, 1, 2]]);
    }

    #[test]
    fn readers_follow_the_rules_that_they_read() {
        check(&["a = x", "b = rate(a[5m])", "c = b + 1", "d = y"], &[&[0, 3], &[1], &[2]]);
        check(
            &["a = x", "b = max_over_time(a[1h:5m])", "c = topk(scalar(a), y)"],
            &[&[0], &[1, 2]],
        );
        check(
            &["a = x", "b = {__name__=~\"a|z\"}", "c = {__name__!=\"a\",x=\"1\"}"],
            &[&[0], &[1], &[2]],
        );
    }

    #[test]
    fn a_rule_depends_on_earlier_ones_only() {
        check(&["b = a", "a = x"], &[&[0, 1]]);
        check(&["a = a + 1", "b = x"], &[&[0, 1]]);
    }

    #[test]
    fn alerts_are_read_through_their_series() {
        check(&["!a = x", "b = count(ALERTS{alertname=\"a\"})"], &[&[0], &[1]]);
        check(&["!a = x", "b = count(ALERTS{alertname=\"c\"})"], &[&[0, 1]]);
        check(&["!a = x", "b = ALERTS_FOR_STATE"], &[&[0], &[1]]);
        check(&["!a = x", "b = a"], &[&[0, 1]]);
        check(&["a = x", "b = ALERTS"], &[&[0, 1]]);
    }

    #[test]
    fn a_selector_of_any_name_makes_the_group_sequential() {
        check(&["a = x", "b = {job=\"x\"}", "c = y"], &[&[0], &[1], &[2]]);
    }
}
