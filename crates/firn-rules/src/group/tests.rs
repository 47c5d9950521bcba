//! Groups over storage in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use firn_model::{ErrorKind, QueryContext, is_stale_nan};
use firn_promql::{EvalOptions, eval_with_parts, prepare};
use firn_promqltest::MemorySelect;

use super::*;

const MINUTE: i64 = 60_000;
const RUN: RunOptions = RunOptions { query_offset_ms: 0, resend_ms: MINUTE };

/// Samples in memory, and a list of the rows that rules wrote.
#[derive(Default)]
struct TestStorage {
    select: RefCell<MemorySelect>,
    written: RefCell<Vec<String>>,
    write_count: Cell<usize>,
    /// The number of rules of each stage.
    stages: RefCell<Vec<usize>>,
    /// Rows of these names are rejected.
    rejected: Vec<&'static str>,
    is_down: bool,
}

impl TestStorage {
    fn push(&self, labels: &[(&str, &str)], ts: Timestamp, value: f64) {
        let labels = Labels::from_pairs(labels.iter().copied()).unwrap();
        self.select.borrow_mut().push(&labels, ts, value);
    }

    fn take_written(&self) -> Vec<String> {
        self.written.take()
    }
}

impl Storage for TestStorage {
    fn query_all(&self, exprs: &Arc<SharedExprs>, ts: Timestamp) -> Vec<Result<Value>> {
        self.stages.borrow_mut().push(exprs.len());
        let (select, context) = (self.select.borrow(), QueryContext::unbounded());
        let options = EvalOptions::instant(ts);
        let outputs = exprs.evaluate_all(&mut |expr, parts| {
            eval_with_parts(expr, parts, &*select, &options, &context)
        });
        outputs.into_iter().map(|output| Ok(output?.value)).collect()
    }

    fn write(&self, ts: Timestamp, rows: &[ResultRow]) -> Result<Vec<Option<Error>>> {
        self.write_count.set(self.write_count.get() + 1);
        if self.is_down {
            return Err(Error::new(ErrorKind::Unavailable, "storage is down"));
        }
        let write = |row: &ResultRow| {
            if self.rejected.contains(&row.labels.metric_name()) {
                return Some(Error::invalid("duplicate sample"));
            }
            let PointValue::Float(value) = row.value else { return None };
            let shown = if is_stale_nan(value) { "stale".to_owned() } else { value.to_string() };
            self.written.borrow_mut().push(format!("{} {shown} @{}", row.labels, ts / MINUTE));
            self.select.borrow_mut().push(&row.labels, ts, value);
            None
        };
        Ok(rows.iter().map(write).collect())
    }

    fn newest(&self, _: &[Matcher], _: TimeRange) -> Result<Vec<ForStateSample>> {
        Err(Error::new(ErrorKind::Unavailable, "storage is down"))
    }
}

struct NoTemplates;

impl Expand for NoTemplates {
    fn expand(
        &self,
        _: &str,
        _: &AlertRule,
        _: &VectorPoint,
        _: Timestamp,
    ) -> Result<String, String> {
        unreachable!("no rule here has a template")
    }
}

/// `name = expression`, an alert as `!name = expression`.
fn rule(text: &str) -> Rule {
    let (name, expr) = text.split_once(" = ").unwrap();
    let expr = prepare(expr, &QueryContext::unbounded()).unwrap().into();
    match name.strip_prefix('!') {
        None => {
            Rule::Recording(RecordingRule { name: name.to_owned(), expr, labels: BTreeMap::new() })
        }
        Some(name) => Rule::Alerting(AlertRule {
            name: name.to_owned(),
            expr,
            hold_ms: 0,
            keep_firing_ms: 0,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }),
    }
}

fn group(rules: &[&str]) -> Group {
    let options = GroupOptions {
        file: "a.yml".to_owned(),
        name: "g".to_owned(),
        interval_ms: MINUTE,
        query_offset_ms: None,
        limit: 0,
    };
    Group::new(options, rules.iter().map(|text| rule(text)).collect(), true)
}

fn evaluate(group: &mut Group, minute: i64, storage: &TestStorage) -> Vec<String> {
    group.evaluate(minute * MINUTE, &RUN, storage, &NoTemplates);
    storage.take_written()
}

fn errors(group: &Group) -> Vec<Option<&str>> {
    group.rules().iter().map(|running| running.last_error.as_deref()).collect()
}

#[test]
fn each_rule_sees_the_results_of_the_previous_ones() {
    let storage = TestStorage::default();
    let mut group = group(&["a = vector(2)", "b = a * 3", "!C = b > 5", "d = count(ALERTS)"]);
    assert_eq!(
        evaluate(&mut group, 1, &storage),
        [
            "a 2 @1",
            "b 6 @1",
            "ALERTS{alertname=\"C\",alertstate=\"firing\"} 1 @1",
            "ALERTS_FOR_STATE{alertname=\"C\"} 60 @1",
            "d 1 @1",
        ]
    );
    assert!(group.rules().iter().all(|running| running.health == RuleHealth::Good));
}

#[test]
fn rules_that_do_not_depend_on_each_other_share_a_write() {
    let storage = TestStorage::default();
    let mut apart = group(&["a = vector(1)", "b = vector(2)", "!C = vector(3)", "d = vector(4)"]);
    assert_eq!(evaluate(&mut apart, 1, &storage).len(), 5);
    assert_eq!((storage.write_count.take(), storage.stages.take()), (1, vec![4]));
    let mut linked = group(&["a = vector(1)", "b = vector(2)", "c = b", "d = c + a"]);
    assert_eq!(evaluate(&mut linked, 2, &storage), ["a 1 @2", "b 2 @2", "c 2 @2", "d 3 @2"]);
    assert_eq!((storage.write_count.take(), storage.stages.take()), (3, vec![2, 1, 1]));
    // Readers of results that are written already share a stage.
    let mut readers = group(&["a = vector(1)", "b = a", "c = a * 2", "d = b + c", "e = a"]);
    let rows = ["a 1 @3", "b 1 @3", "c 2 @3", "d 3 @3", "e 1 @3"];
    assert_eq!(evaluate(&mut readers, 3, &storage), rows);
    assert_eq!((storage.write_count.take(), storage.stages.take()), (3, vec![1, 2, 2]));
}

/// The rows of several rules are in one write; each error belongs to its rule.
#[test]
fn errors_of_a_shared_write_are_those_of_their_rules() {
    let mut storage = TestStorage { rejected: vec!["b", "d"], ..TestStorage::default() };
    let mut group =
        group(&["a = vector(1)", "b = vector(2)", "c = \"\"", "d = x", "e = vector(5)"]);
    storage.push(&[("__name__", "x"), ("job", "1")], MINUTE, 1.0);
    storage.push(&[("__name__", "x"), ("job", "2")], MINUTE, 1.0);
    assert_eq!(evaluate(&mut group, 1, &storage), ["a 1 @1", "e 5 @1"]);
    let no_vector = Some("rule result is not a vector or scalar");
    let twice = Some("duplicate sample");
    assert_eq!(errors(&group), [None, twice, no_vector, twice, None]);
    assert_eq!(group.series().map(Labels::metric_name).collect::<Vec<_>>(), ["a", "e"]);
    storage.rejected.clear();
    evaluate(&mut group, 2, &storage);
    assert_eq!(errors(&group), [None, None, no_vector, None, None]);
}

#[test]
fn missing_series_get_a_marker_once() {
    let storage = TestStorage::default();
    storage.push(&[("__name__", "x"), ("job", "a")], MINUTE, 1.0);
    storage.push(&[("__name__", "x"), ("job", "b")], MINUTE, 1.0);
    storage.push(&[("__name__", "x"), ("job", "b")], 2 * MINUTE, STALE_NAN);
    let mut group = group(&["r = x + 1"]);
    assert_eq!(evaluate(&mut group, 1, &storage), ["r{job=\"a\"} 2 @1", "r{job=\"b\"} 2 @1"]);
    assert_eq!(evaluate(&mut group, 2, &storage), ["r{job=\"a\"} 2 @2", "r{job=\"b\"} stale @2"]);
    assert_eq!(evaluate(&mut group, 3, &storage), ["r{job=\"a\"} 2 @3"]);
}

#[test]
fn a_pending_series_ends_when_the_alert_fires() {
    let storage = TestStorage::default();
    let mut group = group(&["!A = vector(1)"]);
    let Rule::Alerting(alert) = Arc::make_mut(&mut group.rules[0].rule) else { panic!("an alert") };
    alert.hold_ms = MINUTE;
    evaluate(&mut group, 1, &storage);
    assert_eq!(
        evaluate(&mut group, 2, &storage),
        [
            "ALERTS{alertname=\"A\",alertstate=\"firing\"} 1 @2",
            "ALERTS_FOR_STATE{alertname=\"A\"} 60 @2",
            "ALERTS{alertname=\"A\",alertstate=\"pending\"} stale @2",
        ]
    );
}

#[test]
fn a_failed_rule_writes_nothing_and_others_run() {
    let mut storage = TestStorage::default();
    storage.push(&[("__name__", "x"), ("job", "a")], MINUTE, 1.0);
    let mut group = group(&["r = x", "s = vector(1)", "t = \"text\"", "u = x[5m]"]);
    assert_eq!(evaluate(&mut group, 1, &storage), ["r{job=\"a\"} 1 @1", "s 1 @1"]);
    let no_vector = Some("rule result is not a vector or scalar");
    assert_eq!(errors(&group), [None, None, no_vector, no_vector]);
    // The rule fails at one slot; the marker is written at the next good one.
    storage.push(&[("__name__", "x"), ("job", "a")], 2 * MINUTE, STALE_NAN);
    storage.is_down = true;
    assert_eq!(evaluate(&mut group, 2, &storage), [""; 0]);
    assert_eq!(group.rules()[0].health, RuleHealth::Bad);
    storage.is_down = false;
    assert_eq!(evaluate(&mut group, 3, &storage), ["r{job=\"a\"} stale @3", "s 1 @3"]);
}

#[test]
fn rejected_rows_are_errors_and_the_rest_is_written() {
    let storage = TestStorage { rejected: vec!["a"], ..TestStorage::default() };
    let mut group = group(&["a = vector(1)", "b = vector(2)"]);
    assert_eq!(evaluate(&mut group, 1, &storage), ["b 2 @1"]);
    assert_eq!(errors(&group), [Some("duplicate sample"), None]);
    assert!(group.into_series().iter().all(|labels| labels.metric_name() == "b"));
}

#[test]
fn limits_and_equal_label_sets_fail_the_rule() {
    let storage = TestStorage::default();
    for job in ["a", "b"] {
        storage.push(&[("__name__", "x"), ("job", job)], MINUTE, 1.0);
    }
    let mut group = group(&["r = x", "s = x"]);
    group.options.limit = 1;
    let Rule::Recording(recording) = Arc::make_mut(&mut group.rules[1].rule) else {
        panic!("a recording")
    };
    recording.labels.insert("job".to_owned(), String::new());
    assert_eq!(evaluate(&mut group, 1, &storage), [""; 0]);
    let same = "vector contains metrics with the same labelset after applying rule labels";
    assert_eq!(errors(&group), [Some("exceeded limit of 1 with 2 series"), Some(same)]);
}

#[test]
fn results_have_the_time_of_the_query() {
    let storage = TestStorage::default();
    let mut group = group(&["r = time()", "!A = vector(1)"]);
    group.options.query_offset_ms = Some(2 * MINUTE);
    let evaluation = group.evaluate(5 * MINUTE, &RUN, &storage, &NoTemplates);
    assert_eq!(
        storage.take_written(),
        [
            "r 180 @3",
            "ALERTS{alertname=\"A\",alertstate=\"firing\"} 1 @3",
            "ALERTS_FOR_STATE{alertname=\"A\"} 300 @3",
        ]
    );
    let (idx, alert) = &evaluation.alerts[0];
    assert_eq!((*idx, alert.fired_at), (1, Some(5 * MINUTE)));
    assert_eq!((evaluation.sample_count, evaluation.failure_count), (3, 0));
}

#[test]
fn a_reload_keeps_the_state_of_equal_rules() {
    let storage = TestStorage::default();
    let mut old = group(&["a = vector(1)", "b = vector(2)", "!C = vector(3)"]);
    evaluate(&mut old, 1, &storage);
    let mut new = group(&["!C = vector(4)", "a = vector(1)"]);
    let is_same = |a: &RunningRule, b: &RunningRule| a.rule.is_same(&b.rule);
    assert!(is_same(&old.rules[0], &new.rules[1]) && !is_same(&old.rules[2], &new.rules[0]));
    new.take_over(old);
    assert_eq!(
        evaluate(&mut new, 2, &storage),
        [
            "ALERTS{alertname=\"C\",alertstate=\"firing\"} 1 @2",
            "ALERTS_FOR_STATE{alertname=\"C\"} 60 @2",
            "a 1 @2",
            "b stale @2",
        ]
    );
    assert_eq!(evaluate(&mut new, 3, &storage).len(), 3, "the marker is written once");
    assert_eq!(new.into_series().len(), 3);
}

#[test]
fn a_failed_lookup_ends_the_restoration() {
    let storage = TestStorage::default();
    let mut group = group(&["!A = vector(1)"]);
    group.rules[0].alerts = ActiveAlerts::new(false);
    assert_eq!(evaluate(&mut group, 1, &storage), [""; 0]);
    group.restore(RestoreOptions { now: 90_000, grace_ms: 0 }, MINUTE, &storage);
    assert_eq!(evaluate(&mut group, 2, &storage).len(), 2);
}

/// An alert that ends while the process is down, or before the restoration: its series end at the
/// first evaluation that writes series of alerts.
#[test]
fn series_of_alerts_that_end_with_a_restart_get_a_marker() {
    let storage = TestStorage::default();
    for job in ["a", "b"] {
        storage.push(&[("__name__", "x"), ("job", job)], MINUTE, 1.0);
    }
    let mut old = group(&["!A = x"]);
    assert_eq!(evaluate(&mut old, 1, &storage).len(), 4);
    let saved = old.sent_alerts().map(|(rule, alerts)| SavedAlerts {
        name: rule.name.clone(),
        labels: rule.labels.clone(),
        alerts: alerts.cloned().collect(),
    });
    let mut new = group(&["!A = x"]);
    new.rules[0].alerts = ActiveAlerts::new(false);
    new.continue_alerts(saved.collect(), MINUTE);
    storage.push(&[("__name__", "x"), ("job", "b")], 2 * MINUTE, STALE_NAN);
    assert_eq!(evaluate(&mut new, 2, &storage), [""; 0]);
    assert_eq!(evaluate(&mut new, 3, &storage), [""; 0]);
    new.restore(RestoreOptions { now: 3 * MINUTE, grace_ms: MINUTE }, MINUTE, &storage);
    assert_eq!(
        evaluate(&mut new, 4, &storage),
        [
            "ALERTS{alertname=\"A\",alertstate=\"firing\",job=\"a\"} 1 @4",
            "ALERTS_FOR_STATE{alertname=\"A\",job=\"a\"} 60 @4",
            "ALERTS{alertname=\"A\",alertstate=\"firing\",job=\"b\"} stale @4",
            "ALERTS_FOR_STATE{alertname=\"A\",job=\"b\"} stale @4",
        ]
    );
    assert_eq!(evaluate(&mut new, 5, &storage).len(), 2);
}

/// Before, a query of a template saw the results of the last evaluation.
#[test]
fn a_stage_ends_before_a_template_with_a_query() {
    let mut alert = rule("!c = y");
    let Rule::Alerting(with_query) = &mut alert else { panic!() };
    with_query.annotations.insert("text".to_owned(), "{{ query \"b\" | first }}".to_owned());
    let options = group(&[]).options().clone();
    let rules = vec![rule("a = x"), rule("b = x"), alert, rule("d = x")];
    let mut group = Group::new(options, rules, true);
    let storage = TestStorage::default();
    evaluate(&mut group, 1, &storage);
    assert_eq!(storage.stages.take(), [2, 2]);
}
