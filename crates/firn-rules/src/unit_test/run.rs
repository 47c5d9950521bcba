//! One test: evaluations, expected alerts, expected samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Labels, METRIC_NAME, PointValue, QueryContext, Timestamp, one_line};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{Expr, Value, VectorPoint, prepare};
use firn_yaml::{Millis, UnknownKeys};

use super::section::{AlertTest, CaseText, ExprTest};
use super::storage::{Input, SampleStorage};
use super::text::{
    AlertTexts, alerts_diff, alerts_text, histogram_text, labels_text, number, samples_text,
};
use super::time::go_duration;
use super::{INTERVAL_MS_DEFAULT, RuleSource, RunTests, TestFile, TestReport};
use crate::AlertTemplates;
use crate::file::{ReadOptions, RuleFile};
use crate::group::{AlertState, Group, Rule, RunOptions};

const RUN: RunOptions = RunOptions { query_offset_ms: 0, resend_ms: 60_000 };

/// Runs `test` and adds the failures to `report`.
pub(super) fn run(
    file: &TestFile,
    test: &CaseText,
    rules: &[RuleSource<'_>],
    options: &RunTests,
    report: &mut TestReport,
) {
    let eval_ms = match ms(file.text.evaluation_interval) {
        0 => INTERVAL_MS_DEFAULT,
        eval_ms => eval_ms,
    };
    let sample_ms = if ms(test.interval) > 0 { ms(test.interval) } else { eval_ms };
    let prepared = Input::parse(&test.input_series, test.start.0, sample_ms)
        .map_err(|error| vec![one_line(&error).into_owned()])
        .and_then(|input| Ok((input, groups(file, rules, sample_ms, options)?)));
    let (input, groups) = match prepared {
        Ok(prepared) => prepared,
        Err(mut errors) => return report.failures.append(&mut errors),
    };
    let mut running =
        Running { test, eval_ms, storage: SampleStorage::new(eval_ms), input, groups };
    let unnamed = test.alert_tests.iter().find(|alert| alert.alert_name.is_empty());
    if let Some(alert) = unnamed {
        let name = match test.name.as_str() {
            "" => String::new(),
            name => format!(" (in TestGroup {})", one_line(name)),
        };
        let time = alert.eval_time;
        return report.failures.push(format!(
            "an item under alert_rule_test misses required attribute alertname at eval_time \
             {time}{name}"
        ));
    }
    if !running.evaluate(options, &mut report.failures) {
        return;
    }
    for expected in &test.expr_tests {
        let compared = running.compare_samples(expected, file.text.fuzzy_compare);
        report.failures.extend(compared.err());
    }
    if options.has_samples {
        report.samples = Some(running.all_samples());
    }
}

/// The groups of all files in the order of evaluation, or the mistakes in the files.
fn groups(
    file: &TestFile,
    rules: &[RuleSource<'_>],
    interval_ms: i64,
    options: &RunTests,
) -> Result<Vec<Group>, Vec<String>> {
    let unknown = if options.ignores_unknown { UnknownKeys::Ignored } else { UnknownKeys::Refused };
    let options = ReadOptions { unknown, ..ReadOptions::default() };
    let mut groups = Vec::new();
    for rule_text in rules {
        let parsed = RuleFile::parse(rule_text.text, &options).map_err(|mistakes| {
            let place = |mistake: String| format!("{}: {mistake}", one_line(rule_text.path));
            mistakes.into_iter().map(place).collect::<Vec<_>>()
        })?;
        let group = |group: crate::file::FileGroup| {
            let position = file.order.get(&group.name).copied().unwrap_or(0);
            // Alerts count as restored, so that `ALERTS` is written.
            (position, group.into_group(rule_text.path, interval_ms, true))
        };
        groups.extend(parsed.groups.into_iter().map(group));
    }
    groups.sort_by_key(|(position, _)| *position);
    Ok(groups.into_iter().map(|(_, group)| group).collect())
}

struct Running<'a> {
    test: &'a CaseText,
    eval_ms: i64,
    storage: SampleStorage,
    input: Input,
    groups: Vec<Group>,
}

impl Running<'_> {
    /// Evaluates all groups from the start to the last time of the test and compares alerts in
    /// between. `false` after the failure of a rule.
    fn evaluate(&mut self, options: &RunTests, failures: &mut Vec<String>) -> bool {
        let start = self.test.start.0;
        let end_ms = self.end_ms();
        let mut elapsed_ms = 0_i64;
        let storage = &self.storage;
        let query = |text: &str, ts: Timestamp| {
            storage.query(&prepare(text, &QueryContext::unbounded())?, ts)
        };
        let templates = AlertTemplates {
            external_labels: Arc::new(self.test.external_labels.clone()),
            external_url: Arc::from(self.test.external_url.as_str()),
            query: &query,
        };
        while elapsed_ms <= end_ms {
            let ts = start.saturating_add(elapsed_ms);
            self.storage.load(&mut self.input, ts);
            let mut errors = Vec::new();
            for group in &mut self.groups {
                group.evaluate(ts, &RUN, &self.storage, &templates);
                errors.extend(group.rules().iter().filter_map(|running| {
                    let error = running.last_error.as_ref()?;
                    let (name, time) = (one_line(running.rule.name()), go_duration(ts));
                    let error = one_line(error);
                    Some(format!("    rule: {name}, time: {time}, err: {error}"))
                }));
            }
            if !errors.is_empty() {
                failures.append(&mut errors);
                return false;
            }
            let next_ms = elapsed_ms.saturating_add(self.eval_ms);
            let mut due: Vec<&AlertTest> = self
                .test
                .alert_tests
                .iter()
                .filter(|alert| (elapsed_ms..next_ms).contains(&ms(alert.eval_time)))
                .collect();
            due.sort_by_key(|alert| alert.eval_time);
            failures.extend(due.iter().filter_map(|alert| self.compare_alerts(alert, options)));
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
        for running in self.groups.iter().flat_map(Group::rules) {
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
        let is_equal = got.len() == expected.len()
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
        match self.storage.query(&parse(expr)?, ts).map_err(|error| error.to_string())? {
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

    /// All samples of input and rules.
    fn all_samples(&self) -> String {
        // A range is in whole seconds and open on the left.
        let seconds = self.end_ms().saturating_div(1_000).saturating_add(2);
        let ts = self.test.start.0.saturating_add(self.end_ms()).saturating_add(1_000);
        let expr = format!("{{__name__=~\".+\"}}[{seconds}s]");
        let value = parse(&expr)
            .and_then(|expr| self.storage.query(&expr, ts).map_err(|error| error.to_string()));
        let all = match value {
            Ok(Value::Matrix(all)) => all,
            Ok(_) => return String::new(),
            Err(error) => return format!("{expr}: {error}"),
        };
        let series = all.iter().map(|series| {
            let floats = series.floats.iter().map(|at| (at.ts, number(at.value)));
            let histograms = series.histograms.iter();
            let histograms = histograms.map(|at| (at.ts, histogram_text(&at.histogram)));
            let mut points: Vec<(Timestamp, String)> = floats.chain(histograms).collect();
            points.sort_by_key(|point| point.0);
            let points = points.iter().map(|(ts, value)| format!("{value} @[{ts}]"));
            let points = points.collect::<Vec<_>>().join("\n");
            format!("{} =>\n{points}", labels_text(series.labels.iter()))
        });
        series.collect::<Vec<_>>().join("\n")
    }
}

fn parse(expr: &str) -> Result<Expr, String> {
    prepare(expr, &QueryContext::unbounded()).map_err(|error| error.to_string())
}

fn expected_sample(
    labels: &str,
    value: f64,
    histogram: &str,
) -> Result<(Labels, PointValue), String> {
    let labels = match labels.trim() {
        "" => Labels::empty(),
        labels => {
            let line = SeriesLine::parse(labels)?;
            if !line.items.is_empty() {
                return Err("unexpected values behind the labels".to_owned());
            }
            line.labels
        }
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
