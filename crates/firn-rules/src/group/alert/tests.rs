//! The states of alerts: tables, and a model of one alert that looks at its whole history.

use std::cell::Cell;

use firn_model::{QueryContext, STALE_NAN};
use firn_promql::prepare;
use proptest::prelude::*;

use super::*;

const MINUTE: i64 = 60_000;

/// Templates whose text after `{{` is the name of a label, or `fail`.
struct LabelExpand;

impl Expand for LabelExpand {
    fn expand(
        &self,
        text: &str,
        _: &AlertRule,
        point: &VectorPoint,
        _: Timestamp,
    ) -> Result<String, String> {
        let name = text.trim_matches(['{', '}']);
        match name {
            "fail" => Err("no such thing".to_owned()),
            _ => Ok(point.labels.get(name).unwrap_or("").to_owned()),
        }
    }
}

fn rule(hold_ms: i64, keep_firing_ms: i64) -> AlertRule {
    AlertRule {
        name: "A".to_owned(),
        expr: prepare("up == 0", &QueryContext::unbounded()).unwrap().into(),
        hold_ms,
        keep_firing_ms,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn point(pairs: &[(&str, &str)], value: f64) -> VectorPoint {
    let labels = Labels::from_pairs(pairs.iter().copied()).unwrap();
    VectorPoint { labels, ts: 0, value: PointValue::Float(value) }
}

fn rows(alerts: &mut ActiveAlerts, rule: &AlertRule, slot: i64, is_hit: bool) -> Vec<String> {
    let points =
        if is_hit { vec![point(&[("__name__", "up"), ("job", "a")], 0.0)] } else { vec![] };
    let rows = alerts.update(rule, slot, &points, 0, &LabelExpand).unwrap();
    rows.iter().map(|row| format!("{} {:?}", row.labels, row.value)).collect()
}

#[test]
fn an_alert_is_pending_then_fires_then_is_kept_then_resolved() {
    let rule = rule(2 * MINUTE, 3 * MINUTE);
    let mut alerts = ActiveAlerts::new(true);
    let series = |state: &str, since: f64| {
        vec![
            format!("ALERTS{{alertname=\"A\",alertstate=\"{state}\",job=\"a\"}} Float(1.0)"),
            format!("ALERTS_FOR_STATE{{alertname=\"A\",job=\"a\"}} Float({since:?})"),
        ]
    };
    for (minute, is_hit, expected) in [
        (1, true, series("pending", 60.0)),
        (2, true, series("pending", 60.0)),
        (3, true, series("firing", 60.0)),
        (4, false, series("firing", 60.0)),
        (6, false, series("firing", 60.0)),
        (7, false, vec![]),
        (8, true, series("pending", 480.0)),
        (9, false, vec![]),
    ] {
        assert_eq!(rows(&mut alerts, &rule, minute * MINUTE, is_hit), expected, "{minute}");
    }
    assert_eq!(alerts.iter().count(), 0);
}

#[test]
fn a_resolved_alert_is_kept_for_a_quarter_of_an_hour() {
    let rule = rule(0, 0);
    let mut alerts = ActiveAlerts::new(true);
    rows(&mut alerts, &rule, 0, true);
    for minute in 1..=16 {
        rows(&mut alerts, &rule, minute * MINUTE, false);
        assert_eq!(alerts.state(), AlertState::Inactive);
        assert_eq!(alerts.iter().count(), 1, "{minute}");
    }
    rows(&mut alerts, &rule, 17 * MINUTE, false);
    assert_eq!(alerts.iter().count(), 0);
}

#[test]
fn alerts_are_sent_when_they_fire_and_when_they_end() {
    let rule = rule(MINUTE, 0);
    let mut alerts = ActiveAlerts::new(true);
    let mut sent = |second: i64, is_hit: bool| -> Vec<(AlertState, i64)> {
        rows(&mut alerts, &rule, second * 1_000, is_hit);
        let due = alerts.take_due(second * 1_000, 30_000, MINUTE);
        due.iter().map(|alert| (alert.state, alert.valid_until.unwrap() / 1_000)).collect()
    };
    assert_eq!(sent(0, true), []);
    assert_eq!(sent(60, true), [(AlertState::Firing, 300)]);
    assert_eq!(sent(90, true), []);
    assert_eq!(sent(120, true), [], "a minute after the last delivery, not more");
    assert_eq!(sent(150, true), [(AlertState::Firing, 390)]);
    assert_eq!(sent(180, false), [(AlertState::Inactive, 420)]);
    assert_eq!(sent(210, false), []);
    assert_eq!(sent(270, false), [(AlertState::Inactive, 510)]);
}

#[test]
fn labels_are_expanded_and_empty_ones_removed() {
    let mut rule = rule(0, 0);
    rule.labels =
        texts(&[("team", "{{job}}"), ("zone", ""), ("odd", "{{none}}"), ("x", "{{fail}}")]);
    rule.annotations = texts(&[("note", "{{zone}}"), ("plain", "text")]);
    let mut alerts = ActiveAlerts::new(true);
    let points = [point(&[("__name__", "up"), ("job", "a"), ("zone", "z")], 7.0)];
    alerts.update(&rule, 0, &points, 0, &LabelExpand).unwrap();
    let alert = alerts.iter().next().unwrap();
    assert_eq!(
        alert.labels.to_string(),
        "{alertname=\"A\",job=\"a\",team=\"a\",x=\"<error expanding template: no such thing>\"}"
    );
    assert_eq!(*alert.annotations, texts(&[("note", "z"), ("plain", "text")]));
    assert_eq!(alert.value, 7.0);
}

#[test]
fn equal_label_sets_fail_and_change_nothing() {
    let mut rule = rule(0, 0);
    let mut alerts = ActiveAlerts::new(true);
    rows(&mut alerts, &rule, 0, true);
    let before = alerts.clone();
    rule.labels = texts(&[("job", "same")]);
    let points = [point(&[("job", "a")], 1.0), point(&[("job", "b")], 1.0)];
    let error = alerts.update(&rule, MINUTE, &points, 0, &LabelExpand).unwrap_err();
    assert_eq!(error, "vector contains metrics with the same labelset after applying alert labels");
    assert_eq!(alerts, before);
}

#[test]
fn a_rule_over_its_limit_forgets_its_alerts() {
    let rule = rule(0, 0);
    let mut alerts = ActiveAlerts::new(true);
    let points = [point(&[("job", "a")], 1.0), point(&[("job", "b")], 1.0)];
    alerts.update(&rule, 0, &points, 2, &LabelExpand).unwrap();
    let error = alerts.update(&rule, MINUTE, &points, 1, &LabelExpand).unwrap_err();
    assert_eq!(error, "exceeded limit of 1 with 2 alerts");
    assert_eq!(alerts.iter().count(), 0);
}

#[test]
fn restored_alerts_do_not_count_the_outage() {
    let rule = rule(30 * MINUTE, 0);
    let options = RestoreOptions { now: 100 * MINUTE, grace_ms: 10 * MINUTE };
    let check = |sample_minute: i64, value: f64, expected_minute: i64| {
        let mut alerts = ActiveAlerts::new(false);
        assert!(rows(&mut alerts, &rule, 99 * MINUTE, true).is_empty(), "written before restored");
        let labels =
            Labels::from_pairs([("__name__", ALERTS_FOR_STATE), ("alertname", "A"), ("job", "a")]);
        let sample = ForStateSample { labels: labels.unwrap(), ts: sample_minute * MINUTE, value };
        alerts.restore(&rule, options, &[sample]);
        assert!(alerts.is_restored());
        let active_at = alerts.iter().next().unwrap().active_at;
        assert_eq!(active_at, expected_minute * MINUTE, "{sample_minute} {value}");
    };
    // Pending for 5 minutes when the process ended, 20 minutes ago.
    check(80, 75.0 * 60.0, 95);
    // Pending for 25 minutes: fires after the grace period.
    check(80, 55.0 * 60.0, 80);
    // It fired.
    check(80, 40.0 * 60.0, 40);
    check(80, STALE_NAN, 99);
}

#[test]
fn short_rules_and_other_label_sets_are_not_restored() {
    let options = RestoreOptions { now: 100 * MINUTE, grace_ms: 10 * MINUTE };
    for (hold_ms, job) in [(MINUTE, "a"), (30 * MINUTE, "b")] {
        let rule = rule(hold_ms, 0);
        let mut alerts = ActiveAlerts::new(false);
        rows(&mut alerts, &rule, 99 * MINUTE, true);
        let labels = Labels::from_pairs([("alertname", "A"), ("job", job)]).unwrap();
        alerts.restore(&rule, options, &[ForStateSample { labels, ts: 0, value: 0.0 }]);
        assert!(alerts.is_restored());
        assert_eq!(alerts.iter().next().unwrap().active_at, 99 * MINUTE);
    }
}

#[test]
fn restored_series_are_selected_by_plain_labels() {
    let mut rule = rule(0, 0);
    rule.labels = texts(&[("team", "x"), ("zone", "{{zone}}"), ("gone", "")]);
    let matchers: Vec<String> = for_state_matchers(&rule).iter().map(ToString::to_string).collect();
    assert_eq!(matchers, ["__name__=\"ALERTS_FOR_STATE\"", "alertname=\"A\"", "team=\"x\""]);
}

/// Memory of the given number of bytes, and the bytes that alerts have reserved.
struct LimitedMemory {
    limit: u64,
    used: Cell<u64>,
}

impl Expand for LimitedMemory {
    fn expand(&self, text: &str, _: &AlertRule, _: &VectorPoint, _: i64) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn reserve(&self, bytes: u64) -> Result<(), String> {
        let used = self.used.get() + bytes;
        if used > self.limit {
            return Err("no memory".to_owned());
        }
        self.used.set(used);
        Ok(())
    }

    fn release(&self, bytes: u64) {
        self.used.set(self.used.get().checked_sub(bytes).expect("reserved before"));
    }
}

/// Evaluates a rule with `count` alerts whose labels contain `version`, with `limit` bytes. Returns
/// the bytes that the evaluation had reserved in the end.
fn update_within(
    alerts: &mut ActiveAlerts,
    rule: &AlertRule,
    (slot, version, count): (i64, i64, i64),
    limit: u64,
) -> Result<u64, String> {
    let memory = LimitedMemory { limit, used: Cell::new(alerts.memory_bytes()) };
    let point = |n: i64| point(&[("n", &n.to_string()), ("version", &version.to_string())], 1.0);
    let points: Vec<VectorPoint> = (0..count).map(point).collect();
    alerts.update(rule, slot, &points, 0, &memory)?;
    alerts.take_due(slot, MINUTE, MINUTE);
    Ok(memory.used.get())
}

const TEXT: usize = 10_000;

fn rule_with_text(text: &str) -> AlertRule {
    AlertRule { annotations: texts(&[("text", text)]), ..rule(0, 0) }
}

#[test]
fn alerts_of_a_rule_share_a_text_that_is_no_template() {
    let plain = rule_with_text(&"x".repeat(TEXT));
    let mut alerts = ActiveAlerts::new(true);
    for slot in 0..3 {
        let used = update_within(&mut alerts, &plain, (slot, 0, 50), 100_000).unwrap();
        assert_eq!(used, alerts.memory_bytes(), "{slot}: nothing is reserved twice");
    }
    // A reload with another text: both texts exist until the alerts have the new one.
    let other = rule_with_text(&"y".repeat(TEXT));
    let used = update_within(&mut alerts, &other, (3, 0, 50), 110_000).unwrap();
    assert!(used <= alerts.memory_bytes() + 11_000, "{used}");
    assert!(alerts.iter().all(|alert| alert.annotations["text"].starts_with('y')));
}

#[test]
fn texts_of_templates_are_reserved_once_while_they_do_not_change() {
    let rule = rule_with_text(&"{{x}}".repeat(TEXT / 5));
    let mut alerts = ActiveAlerts::new(true);
    let needed = update_within(&mut alerts, &rule, (0, 0, 50), u64::MAX).unwrap();
    assert!(needed > 50 * TEXT as u64, "{needed}");
    assert_eq!(update_within(&mut alerts, &rule, (1, 0, 50), needed), Ok(needed));
    let mut refused = ActiveAlerts::new(true);
    let error = update_within(&mut refused, &rule, (0, 0, 50), needed - 1);
    assert_eq!(error, Err("no memory".to_owned()));
    assert_eq!(refused.iter().count(), 0);
}

/// Such a rule had 15 minutes of alerts before.
#[test]
fn a_rule_whose_labels_change_at_each_evaluation_is_bounded() {
    let rule = rule_with_text("{{x}}");
    let mut alerts = ActiveAlerts::new(true);
    let one = update_within(&mut alerts, &rule, (0, 0, 50), u64::MAX).unwrap();
    let mut resolved = 0;
    for slot in 1..100 {
        let used = update_within(&mut alerts, &rule, (slot, slot, 50), 5 * one).unwrap();
        assert!(used <= 5 * one && alerts.memory_bytes() <= used, "{slot}: {used} of {one}");
        assert_eq!(alerts.state(), AlertState::Firing);
        resolved = resolved.max(alerts.iter().count());
    }
    assert!(resolved > 150, "resolved alerts are kept while there is memory: {resolved}");
}

#[test]
fn resolved_alerts_that_were_sent_are_forgotten_first() {
    let rule = rule_with_text("text");
    let mut alerts = ActiveAlerts::new(true);
    for version in 0..3 {
        update_within(&mut alerts, &rule, (version, version, 10), u64::MAX).unwrap();
    }
    // The second ten are resolved and not sent yet.
    let unlimited = LimitedMemory { limit: u64::MAX, used: Cell::new(alerts.memory_bytes()) };
    alerts.update(&rule, 3, &[], 0, &unlimited).unwrap();
    assert_eq!(alerts.iter().count(), 30);
    assert!(alerts.forget_resolved(true, &unlimited) > 0);
    assert_eq!(alerts.iter().count(), 10);
    assert_eq!(unlimited.used.get(), alerts.memory_bytes());
    assert_eq!(alerts.take_due(3, MINUTE, MINUTE).len(), 10, "receivers learn of the end");
}

/// State and start of one alert after all of `history`: slots in minutes, and whether the slot
/// selected the alert. An episode begins with a hit while no alert is active.
fn modelled(history: &[(i64, bool)], hold: i64, keep: i64) -> Option<(AlertState, i64)> {
    let mut rest = history;
    let mut last = None;
    while let Some(start) = rest.iter().position(|(_, is_hit)| *is_hit) {
        let episode = &rest[start..];
        let active_at = episode[0].0;
        let fires = |slots: &[(i64, bool)]| {
            slots.iter().any(|(at, is_hit)| *is_hit && at - active_at >= hold)
        };
        let first_miss_of_run = |idx: usize| {
            let run = episode[..=idx].iter().rposition(|(_, is_hit)| *is_hit).unwrap_or(0) + 1;
            episode[run].0
        };
        let ends = |idx: &usize| {
            let (at, is_hit) = episode[*idx];
            !(is_hit || fires(&episode[..*idx]) && at - first_miss_of_run(*idx) < keep)
        };
        match (1..episode.len()).find(ends) {
            Some(end) => {
                let resolved = episode[end].0;
                last = fires(&episode[..end]).then_some((AlertState::Inactive, resolved));
                rest = &episode[end + 1..];
            }
            None => {
                let state = if fires(episode) { AlertState::Firing } else { AlertState::Pending };
                return Some((state, active_at));
            }
        }
    }
    let now = history.last()?.0;
    last.filter(|(_, resolved)| now - resolved <= 15)
}

proptest! {
    #[test]
    fn states_agree_with_the_history(
        steps in prop::collection::vec((1..6_i64, prop::bool::weighted(0.6)), 0..40),
        hold in 0..8_i64,
        keep in 0..8_i64,
    ) {
        let rule = rule(hold * MINUTE, keep * MINUTE);
        let mut alerts = ActiveAlerts::new(true);
        let mut history = Vec::new();
        let mut minute = 0;
        for (step, is_hit) in steps {
            minute += step;
            history.push((minute, is_hit));
            let written = rows(&mut alerts, &rule, minute * MINUTE, is_hit);
            let state = alerts.iter().next().map(|alert| match alert.state {
                AlertState::Inactive => (alert.state, alert.resolved_at.unwrap() / MINUTE),
                _ => (alert.state, alert.active_at / MINUTE),
            });
            prop_assert_eq!(state, modelled(&history, hold, keep), "{:?}", history);
            let is_active = state.is_some_and(|(state, _)| state != AlertState::Inactive);
            prop_assert_eq!(written.len(), if is_active { 2 } else { 0 });
        }
    }

    #[test]
    fn a_longer_hold_makes_firing_alerts_pending(first in 0..5_i64, longer in 1..5_i64) {
        let mut alerts = ActiveAlerts::new(true);
        rows(&mut alerts, &rule(0, 0), 0, true);
        rows(&mut alerts, &rule(0, 0), first * MINUTE, true);
        prop_assert_eq!(alerts.state(), AlertState::Firing);
        rows(&mut alerts, &rule((first + longer) * MINUTE, 0), first * MINUTE, true);
        prop_assert_eq!(alerts.state(), AlertState::Pending);
    }
}
