//! One test: evaluations, expected alerts, expected samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{KeptMemory, Labels, METRIC_NAME, PointValue, Timestamp, excerpt, one_line};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{Expr, HistogramPoint, Value, VectorPoint, format_f, prepare};
use firn_yaml::{Millis, UnknownKeys, go_duration};

use super::section::{AlertTest, CaseText, ExpectedSample, ExprTest};
use super::storage::{Input, SampleStorage};
use super::templates::LimitedTemplates;
use super::text::{
    AlertTexts, alerts_diff, alerts_text, histogram_text, labels_text, samples_text,
};
use super::{Failures, INTERVAL_MS_DEFAULT, RuleSource, RunTests, TestFile, TestLimits};
use crate::AlertTemplates;
use crate::file::{ReadOptions, RuleFile};
use crate::group::{AlertState, Group, Rule, RunOptions};

const RUN: RunOptions = RunOptions { query_offset_ms: 0, resend_ms: 60_000 };

/// The maximum number of evaluations of rules and of comparisons of alerts in a test: a week in
/// steps of a second with 16 rules. An evaluation takes some microseconds at least.
const EVALUATIONS_MAX: u64 = 10_000_000;

/// Runs `test` and adds its failures. Returns all samples, if `options` demand them.
pub(super) fn run(
    file: &TestFile,
    test: &CaseText,
    rules: &[RuleSource<'_>],
    options: &RunTests,
    failures: &mut Failures,
) -> Option<String> {
    if !failures.has_room() {
        failures.texts.push("    the test did not run: the failures are too many".to_owned());
        return None;
    }
    if options.limits.cancel.check().is_err() {
        failures.push("    the test did not run: the time of its file is over".to_owned());
        return None;
    }
    let eval_ms = match ms(file.text.evaluation_interval) {
        0 => INTERVAL_MS_DEFAULT,
        eval_ms => eval_ms,
    };
    let sample_ms = if ms(test.interval) > 0 { ms(test.interval) } else { eval_ms };
    let prepared = Input::parse(&test.input_series, test.start.0, sample_ms, &options.limits)
        .map_err(|error| vec![one_line(&error).into_owned()])
        .and_then(|input| Ok((input, groups(file, rules, sample_ms, options)?)));
    let (input, groups) = match prepared {
        Ok(prepared) => prepared,
        Err(errors) => {
            errors.into_iter().all(|error| failures.push(error));
            return None;
        }
    };
    let limits = &options.limits;
    let storage = SampleStorage::new(eval_ms, limits);
    let mut running = Running { test, eval_ms, storage, input, groups, limits };
    if let Err(error) = running.check_evaluations(&file.path) {
        failures.push(error);
        return None;
    }
    let unnamed = test.alert_tests.iter().find(|alert| alert.alert_name.is_empty());
    if let Some(alert) = unnamed {
        let name = match test.name.as_str() {
            "" => String::new(),
            name => format!(" (in TestGroup {})", one_line(name)),
        };
        let time = alert.eval_time;
        failures.push(format!(
            "an item under alert_rule_test misses required attribute alertname at eval_time \
             {time}{name}"
        ));
        return None;
    }
    if !running.evaluate(options, failures) {
        return None;
    }
    for expected in &test.expr_tests {
        let compared = running.compare_samples(expected, file.text.fuzzy_compare);
        if compared.is_err_and(|failure| !failures.push(failure)) {
            return None;
        }
    }
    options.has_samples.then(|| running.all_samples())
}

/// The groups of all files in the order of evaluation, or the mistakes in the files.
fn groups(
    file: &TestFile,
    rules: &[RuleSource<'_>],
    interval_ms: i64,
    options: &RunTests,
) -> Result<Groups, Vec<String>> {
    let unknown = if options.ignores_unknown { UnknownKeys::Ignored } else { UnknownKeys::Refused };
    let budget = &options.limits.budget;
    let options =
        ReadOptions { unknown, context: options.limits.context(), ..ReadOptions::default() };
    let mut groups = Vec::new();
    for rule_text in rules {
        let read = RuleFile::parse_within(rule_text.text, &options, budget);
        let (parsed, held) = read.map_err(|mistakes| {
            let place = |mistake| format!("{}: {mistake}", one_line(rule_text.path));
            mistakes.into_iter().map(place).collect::<Vec<_>>()
        })?;
        options.context.kept.add(held);
        let group = |group: crate::file::FileGroup| {
            let position = file.order.get(&group.name).copied().unwrap_or(0);
            // Alerts count as restored, so that `ALERTS` is written.
            (position, group.into_group(rule_text.path, interval_ms, true))
        };
        groups.extend(parsed.groups.into_iter().map(group));
    }
    groups.sort_by_key(|(position, _)| *position);
    let groups = groups.into_iter().map(|(_, group)| group).collect();
    Ok(Groups { groups, _held: options.context.kept })
}

/// The groups of a test, and the memory of their files.
struct Groups {
    groups: Vec<Group>,
    _held: KeptMemory,
}

struct Running<'a> {
    test: &'a CaseText,
    eval_ms: i64,
    storage: SampleStorage<'a>,
    input: Input,
    groups: Groups,
    limits: &'a TestLimits,
}

impl Running<'_> {
    /// Fails if the test has more work than is allowed. `path` names its file.
    fn check_evaluations(&self, path: &str) -> Result<(), String> {
        let end_ms = u64::try_from(self.end_ms()).unwrap_or(0);
        let times = end_ms.checked_div(self.eval_ms.unsigned_abs()).unwrap_or(0).saturating_add(1);
        let rules: usize = self.groups.groups.iter().map(|group| group.rules().len()).sum();
        let rules = (rules as u64).max(1);
        let comparisons = self.test.alert_tests.len() as u64;
        let evaluations = times.saturating_add(comparisons).saturating_mul(rules);
        if evaluations <= EVALUATIONS_MAX {
            return Ok(());
        }
        let (path, test) = (one_line(path), excerpt(&self.test.name));
        Err(format!(
            "{path}: test {test:?} has {evaluations} evaluations of rules ({times} times up to the \
             last eval_time), at most {EVALUATIONS_MAX} are run: use a longer evaluation_interval"
        ))
    }

    /// Evaluates all groups from the start to the last time of the test and compares alerts in
    /// between. `false` after the failure of a rule.
    fn evaluate(&mut self, options: &RunTests, failures: &mut Failures) -> bool {
        let start = self.test.start.0;
        let end_ms = self.end_ms();
        let mut elapsed_ms = 0_i64;
        let (storage, limits) = (&self.storage, self.limits);
        let query =
            |text: &str, ts: Timestamp| storage.query(&prepare(text, &limits.context())?, ts);
        let templates = AlertTemplates {
            external_labels: Arc::new(self.test.external_labels.clone()),
            external_url: Arc::from(self.test.external_url.as_str()),
            query: &query,
        };
        let templates = LimitedTemplates::new(templates, limits);
        let groups = self.groups.groups.iter();
        let mut state_bytes = groups.map(Group::state_bytes).fold(0, u64::saturating_add);
        let mut alert_tests: Vec<&AlertTest> = self.test.alert_tests.iter().collect();
        alert_tests.sort_by_key(|alert| alert.eval_time);
        let mut alert_tests = alert_tests.into_iter().peekable();
        while elapsed_ms <= end_ms {
            let ts = start.saturating_add(elapsed_ms);
            let loaded = limits.cancel.check().and_then(|()| storage.load(&mut self.input, ts));
            if let Err(error) = loaded {
                let error = error.to_string();
                failures.push(format!("    time: {}, err: {}", go_duration(ts), one_line(&error)));
                return false;
            }
            let mut errors = Vec::new();
            for group in &mut self.groups.groups {
                state_bytes = state_bytes.saturating_sub(group.state_bytes());
                group.evaluate(ts, &RUN, storage, &templates);
                state_bytes = state_bytes.saturating_add(group.state_bytes());
                templates.settle(state_bytes);
                errors.extend(group.rules().iter().filter_map(|running| {
                    let error = running.last_error.as_ref()?;
                    let (name, time) = (one_line(running.rule.name()), go_duration(ts));
                    let error = one_line(error);
                    Some(format!("    rule: {name}, time: {time}, err: {error}"))
                }));
            }
            if !errors.is_empty() {
                errors.into_iter().all(|error| failures.push(error));
                return false;
            }
            let next_ms = elapsed_ms.saturating_add(self.eval_ms);
            while let Some(alert) = alert_tests.next_if(|alert| ms(alert.eval_time) < next_ms) {
                let failure = self.compare_alerts(alert, options);
                if failure.is_some_and(|failure| !failures.push(failure)) {
                    return false;
                }
            }
            if next_ms == elapsed_ms {
                break;
            }
            elapsed_ms = next_ms;
        }
        true
    }

    /// The last time of the test, milliseconds after its start.
    fn end_ms(&self) -> i64 {
        let alerts = self.test.alert_tests.iter().map(|alert| alert.eval_time);
        let exprs = self.test.expr_tests.iter().map(|expr| expr.eval_time);
        alerts.chain(exprs).max().map_or(0, ms)
    }

    /// The difference, if the firing alerts are not those expected.
    fn compare_alerts(&self, test: &AlertTest, options: &RunTests) -> Option<String> {
        let mut got: Vec<AlertTexts> = Vec::new();
        for running in self.groups.groups.iter().flat_map(Group::rules) {
            let is_meant =
                matches!(&*running.rule, Rule::Alerting(rule) if rule.name == test.alert_name);
            let firing = running.alerts.iter().filter(|alert| alert.state == AlertState::Firing);
            if is_meant {
                got.extend(firing.map(|alert| (map(&alert.labels), (*alert.annotations).clone())));
            }
        }
        let expected = test.expected.iter().map(|alert| {
            let mut labels = alert.labels.clone();
            labels.insert(crate::group::ALERT_NAME.to_owned(), test.alert_name.clone());
            (labels, alert.annotations.clone())
        });
        let mut expected: Vec<AlertTexts> = expected.collect();
        got.sort();
        expected.sort();
        if got == expected {
            return None;
        }
        let name = match self.test.name.as_str() {
            "" => String::new(),
            name => format!("    name: {},\n", one_line(name)),
        };
        let head = format!(
            "{name}    alertname: {}, time: {}, \n        ",
            one_line(&test.alert_name),
            test.eval_time
        );
        Some(match options.has_diff {
            true => format!("{head}diff: {}", alerts_diff(&expected, &got)),
            false => {
                format!("{head}exp:{}, \n        got:{}", alerts_text(&expected), alerts_text(&got))
            }
        })
    }

    fn compare_samples(&self, test: &ExprTest, is_fuzzy: bool) -> Result<(), String> {
        let head = || {
            let expr = firn_yaml::quoted(test.expr.as_bytes());
            format!("    expr: {expr}, time: {},", test.eval_time)
        };
        let ts = self.test.start.0.saturating_add(ms(test.eval_time));
        let points =
            self.query(&test.expr, ts).map_err(|e| format!("{} err: {}", head(), one_line(&e)))?;
        let mut got: Vec<(Labels, PointValue)> =
            points.into_iter().map(|point| (point.labels, point.value)).collect();
        let mut expected = Vec::new();
        for sample in &test.expected {
            let parsed = expected_sample(&sample.labels, sample.value, &sample.histogram);
            expected.push(parsed.map_err(|error| {
                let labels = firn_yaml::quoted(sample.labels.as_bytes());
                format!("{} err: labels {labels}: {}", head(), one_line(&error))
            })?);
        }
        got.sort_by(|a, b| pairs(&a.0).cmp(pairs(&b.0)));
        expected.sort_by(|a, b| pairs(&a.0).cmp(pairs(&b.0)));
        // A histogram has no value beside it.
        let has_both =
            |sample: &ExpectedSample| !sample.histogram.is_empty() && sample.value != 0.0;
        let is_equal = got.len() == expected.len()
            && !test.expected.iter().any(has_both)
            && got.iter().zip(&expected).all(|(got, expected)| {
                got.0 == expected.0 && is_same(&got.1, &expected.1, is_fuzzy)
            });
        if is_equal {
            return Ok(());
        }
        let (expected, got) = (samples_text(&expected), samples_text(&got));
        Err(format!("{}\n        exp: {expected}\n        got: {got}", head()))
    }

    fn query(&self, expr: &str, ts: Timestamp) -> Result<Vec<VectorPoint>, String> {
        match self.storage.query(&self.parse(expr)?, ts).map_err(|error| error.to_string())? {
            Value::Vector(points) => Ok(points),
            Value::Scalar { ts, value } => Ok(vec![VectorPoint {
                labels: Labels::empty(),
                ts,
                value: PointValue::Float(value),
            }]),
            Value::String { .. } | Value::Matrix(_) => {
                Err("rule result is not a vector or scalar".to_owned())
            }
        }
    }

    /// All samples of input and rules, as promtool prints them. It leaves out those at the start.
    fn all_samples(&self) -> String {
        // The end is rounded up to a second. A range is in whole seconds and open on the left.
        let end_ms = self.end_ms().saturating_div(1_000).saturating_add(1).saturating_mul(1_000);
        let ts = self.test.start.0.saturating_add(end_ms);
        let expr = format!("{{__name__=~\".+\"}}[{}ms]", end_ms.saturating_add(1_000));
        let value = self
            .parse(&expr)
            .and_then(|expr| self.storage.query(&expr, ts).map_err(|error| error.to_string()));
        let mut all = match value {
            Ok(Value::Matrix(all)) => all,
            Ok(_) => Vec::new(),
            Err(error) => {
                let expr = firn_yaml::quoted(expr.as_bytes());
                return format!("DEBUG: Failed query exec, expr: {expr}, err: {error}");
            }
        };
        all.sort_by(|a, b| pairs(&a.labels).cmp(pairs(&b.labels)));
        let mut lines = vec![format!(
            "DEBUG: Dump of all data (input_series and rules) at {}:",
            go_duration(end_ms)
        )];
        for series in &all {
            lines.push(format!("{} =>", labels_text(series.labels.iter())));
            let floats = series.floats.iter().map(|at| (at.ts, format_f(at.value)));
            let histogram =
                |at: &HistogramPoint| (at.ts, firn_promql::histogram_text(&at.histogram));
            let points = floats.chain(series.histograms.iter().map(histogram));
            lines.extend(points.map(|(ts, value)| format!("{value} @[{ts}]")));
        }
        // Without series, promtool prints an empty line.
        if all.is_empty() {
            lines.push(String::new());
        }
        lines.join("\n")
    }

    fn parse(&self, expr: &str) -> Result<Expr, String> {
        prepare(expr, &self.limits.context()).map_err(|error| error.to_string())
    }
}

fn expected_sample(
    labels: &str,
    value: f64,
    histogram: &str,
) -> Result<(Labels, PointValue), String> {
    let labels = match labels.trim() {
        "" => Labels::empty(),
        labels => SeriesLine::parse_labels(labels)?,
    };
    if histogram.is_empty() {
        return Ok((labels, PointValue::Float(value)));
    }
    let line = SeriesLine::parse(&format!("{{}} {histogram}"))?;
    match <[SeriesItem; 1]>::try_from(line.items) {
        Ok([SeriesItem::Histogram(written)]) => {
            Ok((labels, PointValue::Histogram(written.histogram)))
        }
        Ok([_]) => Err("expected histogram, got a float".to_owned()),
        Err(items) => Err(format!("expected 1 value, got {}", items.len())),
    }
}

/// Floats are equal exactly, or up to one step in either direction with `is_fuzzy`; NaN never is.
fn is_same(got: &PointValue, expected: &PointValue, is_fuzzy: bool) -> bool {
    match (got, expected) {
        (PointValue::Float(got), PointValue::Float(expected)) => {
            got == expected
                || is_fuzzy && (got.next_up() == *expected || got.next_down() == *expected)
        }
        (PointValue::Histogram(got), PointValue::Histogram(expected)) => {
            histogram_text(got) == histogram_text(expected)
        }
        _ => false,
    }
}

fn pairs(labels: &Labels) -> impl Iterator<Item = (&str, &str)> {
    labels.iter()
}

fn map(labels: &Labels) -> BTreeMap<String, String> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    labels.iter().filter(|pair| pair.0 != METRIC_NAME).map(owned).collect()
}

fn ms(duration: Millis) -> i64 {
    i64::try_from(duration.as_ms()).unwrap_or(i64::MAX)
}
