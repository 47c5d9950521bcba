//! The rules of rule files, with Prometheus' texts.

use std::collections::BTreeSet;
use std::sync::Arc;

use firn_model::{Budget, Error, METRIC_NAME, QueryContext, RegexAllowance, Reservation, one_line};
use firn_promql::{Expr, prepare, tree_bytes};
use firn_yaml::{Millis, Placed};

use super::section::{FileText, GroupText, LabelTexts, RuleText};
use super::size::map_bytes;
use super::{FileGroup, ReadOptions, RuleNames};
use crate::group::{AlertRule, RecordingRule, Rule};
use crate::template::Template;

/// The groups of `file`, or all mistakes in them, or one `Busy` without memory. `held` is the
/// memory of `file`, to which that of copies is added.
pub(super) fn check(
    file: FileText,
    options: &ReadOptions,
    held: &mut Reservation,
) -> Result<Vec<FileGroup>, Vec<Error>> {
    let mut mistakes = Vec::new();
    let mut names = BTreeSet::new();
    let mut groups = Vec::with_capacity(file.groups.0.len());
    for group in file.groups.0 {
        let place = place(&group);
        let group = group.value;
        if group.name.is_empty() {
            mistakes.push(format!("{place}: Groupname must not be empty"));
        }
        if !names.insert(group.name.clone()) {
            let name = &group.name;
            mistakes.push(format!("{place}: groupname: \"{name}\" is repeated in the same file"));
        }
        mistakes.extend(label_mistakes(&group.labels, options.names));
        // Each rule has a copy of the labels of its group.
        let copies = map_bytes(&group.labels.texts).saturating_mul(group.rules.0.len());
        held.grow(copies as u64).map_err(|error| vec![error])?;
        let checked = checked_group(group, options, &mut mistakes);
        groups.push(checked.map_err(|error| vec![error])?);
    }
    // They repeat names of the file.
    let lines = mistakes.iter().map(|mistake| Error::invalid(one_line(mistake)));
    if mistakes.is_empty() { Ok(groups) } else { Err(lines.collect()) }
}

/// The group without its wrong rules.
fn checked_group(
    group: GroupText,
    options: &ReadOptions,
    mistakes: &mut Vec<String>,
) -> Result<FileGroup, Error> {
    let mut rules = Vec::with_capacity(group.rules.0.len());
    for (idx, rule) in group.rules.0.into_iter().enumerate() {
        let mut found = Vec::new();
        let expr = check_rule(&rule, options, &mut found)?;
        let name = if rule.alert.value.is_empty() { &rule.record } else { &rule.alert };
        mistakes.extend(found.into_iter().map(|(place, text)| {
            let (group, name) = (quoted(&group.name), quoted(&name.value));
            let number = idx.saturating_add(1);
            format!("{place}group {group}, rule {number}, {name}: {text}")
        }));
        rules.extend(expr.map(|expr| into_rule(rule, expr, &group.labels.texts)));
    }
    Ok(FileGroup {
        name: group.name,
        interval_ms: Some(group.interval).filter(|interval| interval.as_ms() > 0).map(ms),
        query_offset_ms: group.query_offset.map(ms),
        limit: usize::try_from(group.limit).unwrap_or(0),
        labels: group.labels.texts,
        rules,
    })
}

/// The expression, unless it is wrong. Mistakes have their place in front of them.
///
/// # Errors
/// `Busy` without memory for the expression beside others.
fn check_rule(
    rule: &RuleText,
    options: &ReadOptions,
    mistakes: &mut Vec<(String, String)>,
) -> Result<Option<Arc<Expr>>, Error> {
    let (record, alert) = (&rule.record.value, &rule.alert.value);
    let at_expr = format!("{}: ", place(&rule.expr));
    let names = match (record.is_empty(), alert.is_empty()) {
        (false, false) => Some("only one of 'record' and 'alert' must be set"),
        (true, true) => Some("one of 'record' or 'alert' must be set"),
        _ => None,
    };
    if let Some(text) = names {
        let both = format!("{}: {}: ", place(&rule.record), place(&rule.alert));
        mistakes.push((both, text.to_owned()));
    }
    let mut expr = None;
    if rule.expr.value.is_empty() {
        mistakes.push((at_expr, "field 'expr' must be set in rule".to_owned()));
    } else if let Some(running) = options.running.take(&rule.expr.value) {
        expr = Some(running);
    } else {
        // The limit on regular expressions is one of a query, not of a file.
        let regexes = RegexAllowance::default();
        let context = QueryContext { regexes, ..options.context.clone() };
        let budget = &options.context.budget;
        let refusals = || budget.usage().refused.iter().sum::<u64>();
        let before = refusals();
        match prepare(&rule.expr.value, &context) {
            Ok(parsed) => expr = Some(Arc::new(parsed)),
            // Others have the memory: it is no mistake of the file.
            Err(_)
                if refusals() > before
                    && tree_bytes(&rule.expr.value) <= budget.usage().limit_bytes / 2 =>
            {
                // The error itself advises to shorten the expression.
                return Err(no_memory_for_expressions(budget));
            }
            Err(error) => {
                mistakes.push((at_expr, format!("could not parse expression: {error}")));
            }
        }
    }
    if !record.is_empty() {
        let texts = recording_mistakes(rule, options.names);
        mistakes.extend(texts.into_iter().map(|text| (format!("{}: ", place(&rule.record)), text)));
    }
    let mut without_place = |text: String| mistakes.push((String::new(), text));
    label_mistakes(&rule.labels, options.names).for_each(&mut without_place);
    let names = rule.annotations.texts.keys().filter(|name| !options.names.is_annotation(name));
    for name in names.chain(&rule.annotations.wrong_names) {
        without_place(format!("invalid annotation name: {name}"));
    }
    if !alert.is_empty() {
        let labels = rule.labels.texts.iter().map(|text| ("label", text));
        let annotations = rule.annotations.texts.iter().map(|text| ("annotation", text));
        for (kind, (name, text)) in labels.chain(annotations) {
            if let Err(error) = Template::parse_alert(alert, text) {
                without_place(format!("{kind} {}: {error}", quoted(name)));
            }
        }
    }
    Ok(expr)
}

fn label_mistakes(labels: &LabelTexts, names: RuleNames) -> impl Iterator<Item = String> {
    let wrong_names = labels.texts.keys().filter(move |name| !names.is_label(name));
    let wrong_names = wrong_names.chain(&labels.wrong_names);
    let wrong_names = wrong_names.map(|name| format!("invalid label name: {name}"));
    let wrong_values = labels.wrong_values.iter();
    wrong_names.chain(wrong_values.map(|value| format!("invalid label value: {value}")))
}

/// The error if the expressions of rules exceed `budget`.
pub fn no_memory_for_expressions(budget: &Budget) -> Error {
    let remedy = budget.remedy("load fewer rules");
    Error::busy(1_000, format!("no memory is left for the expressions of rules: {remedy}"))
}

fn recording_mistakes(rule: &RuleText, names: RuleNames) -> Vec<String> {
    let name = &rule.record.value;
    let wrong_key = |key: &str| format!("invalid field '{key}' in recording rule");
    let mistakes = [
        (!rule.annotations.is_empty(), wrong_key("annotations")),
        (rule.hold != Millis::default(), wrong_key("for")),
        (rule.keep_firing_for != Millis::default(), wrong_key("keep_firing_for")),
        (!names.is_metric(name), format!("invalid recording rule name: {name}")),
        (
            name.contains(['{', '}']),
            format!("braces present in the recording rule name; should it be in expr?: {name}"),
        ),
    ];
    mistakes.into_iter().filter(|mistake| mistake.0).map(|mistake| mistake.1).collect()
}

/// The labels of the group are those of its rules, unless a rule has its own.
fn into_rule(
    rule: RuleText,
    expr: Arc<Expr>,
    group_labels: &std::collections::BTreeMap<String, String>,
) -> Rule {
    let mut labels = group_labels.clone();
    labels.extend(rule.labels.texts);
    if rule.alert.value.is_empty() {
        return Rule::Recording(RecordingRule { name: rule.record.value, expr, labels });
    }
    Rule::Alerting(AlertRule {
        name: rule.alert.value,
        expr,
        hold_ms: ms(rule.hold),
        keep_firing_ms: ms(rule.keep_firing_for),
        labels,
        annotations: rule.annotations.texts,
    })
}

impl RuleNames {
    fn is_label(self, name: &str) -> bool {
        self.is_annotation(name) && name != METRIC_NAME
    }

    fn is_annotation(self, name: &str) -> bool {
        !name.is_empty() && (self == RuleNames::Utf8 || is_word(name, "_"))
    }

    fn is_metric(self, name: &str) -> bool {
        !name.is_empty() && (self == RuleNames::Utf8 || is_word(name, "_:"))
    }
}

fn is_word(name: &str, marks: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
}

fn ms(duration: Millis) -> i64 {
    i64::try_from(duration.as_ms()).unwrap_or(i64::MAX)
}

fn place<T>(value: &Placed<T>) -> String {
    format!("{}:{}", value.line, value.column)
}

fn quoted(text: &str) -> String {
    firn_yaml::quoted(text.as_bytes())
}
