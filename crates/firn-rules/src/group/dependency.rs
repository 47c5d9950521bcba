//! Which rules of a group read results of earlier ones, and which may run at the same time.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;

use firn_model::{METRIC_NAME, MatchOp, Matcher};
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

/// Names that all patterns of a group are compared with, at most: 0.1 s.
const NAMES_COMPARED_MAX: usize = 1 << 20;

/// The links of each rule. A selector without a matcher on the name may read anything: then each
/// rule has dependencies and dependents. So it is in a group with very many rules and patterns,
/// such as 1,500 of both. O(rules + selectors), and O(rules) for each pattern.
pub fn rule_links(rules: &[RuleShape<'_>]) -> Vec<RuleLinks> {
    let alone = RuleLinks { no_dependents: true, no_dependencies: true, newest_dependency: None };
    let mut links = vec![alone; rules.len()];
    if rules.len() < 2 {
        return links;
    }
    let (mut recordings, mut alerts) = (Sources::default(), Sources::default());
    let mut compared = 0;
    for (idx, rule) in rules.iter().enumerate() {
        let mut selectors = Vec::new();
        collect(&rule.expr.root, &mut selectors);
        let mut newest = None;
        for selector in selectors {
            let Some(name) = matcher_on(selector, METRIC_NAME) else {
                return all_linked(rules.len());
            };
            newest = newest.max(recordings.read(Some(name), &mut links, &mut compared));
            if name.matches(ALERTS) || name.matches(ALERTS_FOR_STATE) {
                let alert = matcher_on(selector, ALERT_NAME);
                newest = newest.max(alerts.read(alert, &mut links, &mut compared));
            }
            if compared > NAMES_COMPARED_MAX {
                return all_linked(rules.len());
            }
        }
        if let Some(own) = links.get_mut(idx) {
            own.no_dependencies = newest.is_none();
            own.newest_dependency = newest;
        }
        let sources = if rule.is_alert { &mut alerts } else { &mut recordings };
        sources.add(rule.name, idx);
    }
    links
}

/// Earlier rules of a kind.
#[derive(Default)]
struct Sources<'a> {
    all: SourceRules,
    by_name: HashMap<&'a str, SourceRules>,
}

/// Earlier rules that are read together.
#[derive(Default)]
struct SourceRules {
    rules: Vec<usize>,
    /// The first of them are known to have dependents.
    read_count: usize,
}

impl<'a> Sources<'a> {
    fn add(&mut self, name: &'a str, idx: usize) {
        self.all.rules.push(idx);
        self.by_name.entry(name).or_default().rules.push(idx);
    }

    /// Records that a rule reads those with a name that passes `name`, and returns the last of
    /// them. Adds the number of compared names to `compared`.
    fn read(
        &mut self,
        name: Option<&Matcher>,
        links: &mut [RuleLinks],
        compared: &mut usize,
    ) -> Option<usize> {
        let Some(name) = name else { return self.all.read(links) };
        if name.op() == MatchOp::Equal {
            return self.by_name.get_mut(name.value())?.read(links);
        }
        *compared = compared.saturating_add(self.by_name.len());
        if *compared > NAMES_COMPARED_MAX {
            return None;
        }
        let passed = self.by_name.iter_mut().filter(|(known, _)| name.matches(known));
        passed.filter_map(|(_, rules)| rules.read(links)).max()
    }
}

impl SourceRules {
    fn read(&mut self, links: &mut [RuleLinks]) -> Option<usize> {
        for &idx in self.rules.iter().skip(self.read_count) {
            if let Some(links) = links.get_mut(idx) {
                links.no_dependents = false;
            }
        }
        self.read_count = self.rules.len();
        self.rules.last().copied()
    }
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
        check(
            &["!a = x", "!c = x", "b = {__name__=~\"A.*\",alertname=~\"c|d\"}"],
            &[&[0, 1], &[2]],
        );
    }

    /// Before, each selector was compared with each earlier rule: 3 * 10^9 comparisons here, and
    /// more for patterns, at each start and reload.
    #[test]
    fn groups_of_very_many_rules_are_linked_in_linear_time() {
        const COUNT: usize = 80_000;
        let expr = |text: &str| prepare(text, &QueryContext::unbounded()).unwrap();
        let names: Vec<String> = (0..COUNT).map(|idx| format!("r{idx}")).collect();
        let of = |expr: &Expr| {
            let shapes = names.iter().map(|name| RuleShape { name, is_alert: false, expr });
            rule_links(&shapes.collect::<Vec<_>>())
        };
        let links = of(&expr("r7 + r70000"));
        assert_eq!(links[COUNT - 1].newest_dependency, Some(70_000));
        assert_eq!(links[8].newest_dependency, Some(7));
        assert!(links[7].no_dependencies && !links[7].no_dependents && links[8].no_dependents);
        // More patterns than can be compared: the group is sequential.
        assert_eq!(of(&expr("{__name__=~'.*7'}")), all_linked(COUNT));
    }

    #[test]
    fn a_selector_of_any_name_makes_the_group_sequential() {
        check(&["a = x", "b = {job=\"x\"}", "c = y"], &[&[0], &[1], &[2]]);
    }
}
