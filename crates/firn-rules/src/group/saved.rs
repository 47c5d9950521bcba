//! Alerts that were sent, for a file that a restart of the process reads.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use firn_model::Timestamp;

use super::schedule::group_key;
use super::{Alert, AlertRule, AlertState, Group, Rule, RunningRule};

/// The firing and resolved alerts of a rule that were sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedAlerts {
    /// The name of the rule.
    pub name: String,
    /// The labels of the rule with those of its group, as in the file.
    pub labels: BTreeMap<String, String>,
    /// The alerts.
    pub alerts: Vec<Alert>,
}

impl Group {
    /// The hash of file and name, the same in each process.
    pub fn key(&self) -> u64 {
        group_key(&self.options.file, &self.options.name)
    }

    /// The firing and resolved alerts of each rule that has some.
    pub fn sent_alerts(&self) -> impl Iterator<Item = (&AlertRule, impl Iterator<Item = &Alert>)> {
        self.rules.iter().filter_map(|running| {
            let Rule::Alerting(rule) = &*running.rule else { return None };
            running.alerts.sent().next()?;
            Some((rule, running.alerts.sent()))
        })
    }

    /// Continues the alerts of the process before a restart; before the first evaluation. Rules
    /// with equal names and labels take them, in order. A resolved alert is sent again as if there
    /// had been no restart. A firing one continues with the first evaluation that selects it; if
    /// none does before the restoration, the evaluation after it resolves the alert.
    pub fn continue_alerts(&mut self, mut saved: Vec<SavedAlerts>, now: Timestamp) {
        let mut rules: BTreeMap<(&str, &BTreeMap<String, String>), VecDeque<_>> = BTreeMap::new();
        for RunningRule { rule, alerts, earlier, .. } in &mut self.rules {
            if let Rule::Alerting(rule) = &**rule {
                let same = rules.entry((rule.name.as_str(), &rule.labels)).or_default();
                same.push_back((alerts, earlier));
            }
        }
        for saved in &mut saved {
            let same = rules.get_mut(&(saved.name.as_str(), &saved.labels));
            if let Some((alerts, earlier)) = same.and_then(VecDeque::pop_front) {
                let firing = saved.alerts.iter().filter(|alert| alert.state == AlertState::Firing);
                earlier.extend(firing.flat_map(Alert::rows).map(|row| row.labels));
                alerts.continue_sent(mem::take(&mut saved.alerts), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firn_model::{Labels, PointValue, QueryContext};
    use firn_promql::prepare;

    use super::*;
    use crate::group::{
        Expand, ForStateSample, GroupOptions, RestoreOptions, ResultRow, RunOptions, Storage,
    };

    const MINUTE: i64 = 60_000;

    /// Selects the jobs of a text, whatever the expression.
    struct Jobs(&'static str);

    impl Storage for Jobs {
        fn query_all(
            &self,
            exprs: &Arc<firn_promql::SharedExprs>,
            ts: Timestamp,
        ) -> Vec<firn_model::Result<firn_promql::Value>> {
            let point = |job: &str| firn_promql::VectorPoint {
                labels: Labels::from_pairs([("job", job)]).unwrap(),
                ts,
                value: PointValue::Float(7.0),
            };
            let jobs = || self.0.split_whitespace().map(point).collect();
            (0..exprs.len()).map(|_| Ok(firn_promql::Value::Vector(jobs()))).collect()
        }

        fn write(
            &self,
            _: Timestamp,
            rows: &[ResultRow],
        ) -> firn_model::Result<Vec<Option<firn_model::Error>>> {
            Ok(rows.iter().map(|_| None).collect())
        }

        fn newest(
            &self,
            _: &[firn_model::Matcher],
            _: firn_model::TimeRange,
        ) -> firn_model::Result<Vec<ForStateSample>> {
            Ok(Vec::new())
        }
    }

    impl Expand for Jobs {
        fn expand(
            &self,
            _: &str,
            _: &AlertRule,
            _: &firn_promql::VectorPoint,
            _: Timestamp,
        ) -> Result<String, String> {
            Err("no rule here has a template".to_owned())
        }
    }

    fn group(names: &[&str], hold_ms: i64, is_restored: bool) -> Group {
        let options = GroupOptions {
            file: "a.yml".to_owned(),
            name: "g".to_owned(),
            interval_ms: MINUTE,
            query_offset_ms: None,
            limit: 0,
        };
        let rule = |name: &&str| {
            Rule::Alerting(AlertRule {
                name: (*name).to_owned(),
                expr: prepare("x", &QueryContext::unbounded()).unwrap().into(),
                hold_ms,
                keep_firing_ms: 0,
                labels: BTreeMap::new(),
                annotations: BTreeMap::from([("note".to_owned(), "text".to_owned())]),
            })
        };
        Group::new(options, names.iter().map(rule).collect(), is_restored)
    }

    /// The alerts that an evaluation sends, as `name job state`.
    fn sent(group: &mut Group, minute: i64, jobs: &'static str) -> Vec<String> {
        let (jobs, run) = (Jobs(jobs), RunOptions { query_offset_ms: 0, resend_ms: 5 * MINUTE });
        let evaluation = group.evaluate(minute * MINUTE, &run, &jobs, &jobs);
        let shown = |(_, alert): &(usize, Alert)| {
            let label = |name: &str| alert.labels.get(name).unwrap_or_default();
            format!("{} {} {}", label("alertname"), label("job"), alert.state.text())
        };
        evaluation.alerts.iter().map(shown).collect()
    }

    /// The process ends, and another one continues the alerts of `old` in `new`.
    fn restart(old: &Group, mut new: Group, minute: i64) -> Group {
        let saved = old.sent_alerts().map(|(rule, alerts)| SavedAlerts {
            name: rule.name.clone(),
            labels: rule.labels.clone(),
            alerts: alerts.cloned().collect(),
        });
        new.continue_alerts(saved.collect(), minute * MINUTE);
        new
    }

    fn restore(group: &mut Group, minute: i64) {
        let options = RestoreOptions { now: minute * MINUTE, grace_ms: 10 * MINUTE };
        group.restore(options, 60 * MINUTE, &Jobs(""));
    }

    #[test]
    fn a_restart_sends_no_alert_before_it_is_due() {
        let mut old = group(&["A"], 2 * MINUTE, true);
        for minute in 0..2 {
            assert_eq!(sent(&mut old, minute, "a b"), [""; 0]);
        }
        assert_eq!(sent(&mut old, 2, "a b"), ["A a firing", "A b firing"]);
        assert_eq!(sent(&mut old, 4, "a"), ["A b inactive"]);
        let mut group = restart(&old, group(&["A"], 2 * MINUTE, false), 5);
        let fired_at = |group: &Group| {
            let alerts = group.rules()[0].alerts.iter();
            alerts.filter_map(|alert| alert.fired_at).collect::<Vec<_>>()
        };
        assert_eq!(sent(&mut group, 6, "a"), [""; 0]);
        // No clock starts again.
        assert_eq!(fired_at(&group), [2 * MINUTE; 2]);
        assert_eq!(sent(&mut group, 7, "a"), [""; 0]);
        restore(&mut group, 7);
        assert_eq!(sent(&mut group, 8, "a"), ["A a firing"]);
        assert_eq!(sent(&mut group, 10, "a"), ["A b inactive"]);
    }

    /// Before the restoration, rules that the alert reads may lack results.
    #[test]
    fn an_alert_that_is_not_selected_ends_after_the_restoration() {
        let mut old = group(&["A"], 0, true);
        assert_eq!(sent(&mut old, 1, "a b"), ["A a firing", "A b firing"]);
        let mut held = restart(&old, group(&["A"], 0, false), 20);
        assert_eq!(sent(&mut held, 20, ""), [""; 0]);
        assert_eq!(held.rules()[0].alerts.state(), AlertState::Inactive);
        // A crash meanwhile loses nothing.
        let mut group = restart(&held, group(&["A"], 0, false), 21);
        assert_eq!(sent(&mut group, 21, "b"), ["A b firing"]);
        assert_eq!(sent(&mut group, 22, "b"), [""; 0]);
        restore(&mut group, 22);
        assert_eq!(sent(&mut group, 23, "b"), ["A a inactive"]);
        let bytes = group.state_bytes();
        let alerts = group.rules()[0].alerts.iter().map(Alert::memory_bytes);
        assert!(bytes > 0 && bytes <= alerts.sum::<u64>(), "{bytes}");
    }

    #[test]
    fn rules_continue_by_name_and_labels_in_order() {
        let mut old = group(&["A", "B", "A"], 0, true);
        sent(&mut old, 1, "a");
        let mut group = restart(&old, group(&["C", "A", "A", "A"], 0, false), 2);
        // The third rule of the name and the first one are new.
        assert_eq!(sent(&mut group, 2, "a"), ["C a firing", "A a firing"]);
    }

    /// A clock that was set back, or a wrong time in the file.
    #[test]
    fn times_after_now_delay_nothing() {
        let mut old = group(&["A"], 0, true);
        sent(&mut old, 1_000, "a");
        let mut group = restart(&old, group(&["A"], 0, false), 10);
        assert_eq!(sent(&mut group, 11, "a"), [""; 0]);
        assert_eq!(sent(&mut group, 16, "a"), ["A a firing"]);
        assert_eq!(group.rules()[0].alerts.iter().next().unwrap().active_at, 10 * MINUTE);
    }
}
