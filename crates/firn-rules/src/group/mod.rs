//! The evaluation of a group: one slot, its rules in order, their results and alerts.
//!
//! [`Group::evaluate`] queries and writes through [`Storage`] and expands templates through
//! [`Expand`]. It reads no clock. Reading order: `schedule`, `dependency`, `record`, `alert`,
//! `saved`.

mod alert;
mod dependency;
mod record;
mod saved;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use firn_model::{Error, Labels, Matcher, PointValue, Result, STALE_NAN, TimeRange, Timestamp};
use firn_promql::{Expr, SharedExprs, Value, VectorPoint};

pub use alert::{
    ALERT_NAME, ALERTS, ALERTS_FOR_STATE, ActiveAlerts, Alert, AlertRule, AlertState,
    ForStateSample, RestoreOptions, Texts, for_state_matchers,
};
pub use dependency::{RuleLinks, RuleShape, batches, rule_links};
pub use record::RecordingRule;
pub use saved::SavedAlerts;
pub use schedule::{DueSlot, Schedule};

/// The database of the rules.
pub trait Storage {
    /// Evaluates the instant queries of rules that do not read each other's results. Batches of
    /// them may be evaluated in any order or at the same time. Returns the result of each query.
    fn query_all(&self, exprs: &Arc<SharedExprs>, ts: Timestamp) -> Vec<Result<Value>>;

    /// Writes rows with the time `ts`, stale markers among them. A query after the return sees
    /// them. Returns the error of each row that was rejected, such as a duplicate, in the order of
    /// `rows`. Rules that do not depend on each other share a call.
    ///
    /// # Errors
    /// Nothing was written.
    fn write(&self, ts: Timestamp, rows: &[ResultRow]) -> Result<Vec<Option<Error>>>;

    /// The result of the rule `idx` of the group was applied. For statistics.
    fn end_rule(&self, _idx: usize) {}

    /// The newest sample of each matching series in `range`.
    ///
    /// # Errors
    /// Those of the selection.
    fn newest(&self, matchers: &[Matcher], range: TimeRange) -> Result<Vec<ForStateSample>>;
}

/// Templates of labels and annotations, and the memory of the state of rules.
pub trait Expand {
    /// Expands the template `text` of `rule` for a sample of its result. Queries inside run at
    /// `slot`.
    ///
    /// # Errors
    /// The text that replaces the label's value, without the words around it.
    fn expand(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String>;

    /// Reserves the memory of new alerts, texts and labels, in bytes. At the beginning of an
    /// evaluation [`Group::state_bytes`] are reserved.
    ///
    /// # Errors
    /// The text of the rule's failure.
    fn reserve(&self, _bytes: u64) -> Result<(), String> {
        Ok(())
    }

    /// The opposite of [`Expand::reserve`].
    fn release(&self, _bytes: u64) {}

    /// Whether memory is short, so that resolved alerts are not kept after they were sent.
    fn is_short_of_memory(&self) -> bool {
        false
    }
}

/// A sample to write.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    /// The labels with the name.
    pub labels: Labels,
    /// The value.
    pub value: PointValue,
}

/// A rule.
#[derive(Clone, Debug)]
pub enum Rule {
    /// A recording rule.
    Recording(RecordingRule),
    /// An alerting rule.
    Alerting(AlertRule),
}

impl Rule {
    /// The name of the recorded metric or of the alert.
    pub fn name(&self) -> &str {
        match self {
            Rule::Recording(rule) => &rule.name,
            Rule::Alerting(rule) => &rule.name,
        }
    }

    /// The expression.
    pub fn expr(&self) -> &Arc<Expr> {
        match self {
            Rule::Recording(rule) => &rule.expr,
            Rule::Alerting(rule) => &rule.expr,
        }
    }

    /// The labels with those of the group; those of an alert are templates.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        match self {
            Rule::Recording(rule) => &rule.labels,
            Rule::Alerting(rule) => &rule.labels,
        }
    }

    /// Its shape, for [`rule_links`].
    pub fn shape(&self) -> RuleShape<'_> {
        let is_alert = matches!(self, Rule::Alerting(_));
        RuleShape { name: self.name(), is_alert, expr: self.expr() }
    }

    /// Whether a template of the rule runs queries, which may read anything.
    fn has_queries_in_templates(&self) -> bool {
        let Rule::Alerting(rule) = self else { return false };
        let mut texts = rule.labels.values().chain(rule.annotations.values());
        texts.any(|text| alert::is_template(text) && text.contains("query"))
    }

    /// Whether a reload keeps the rule: all its texts are equal.
    pub fn is_same(&self, other: &Rule) -> bool {
        // A reload uses running expressions again, so that texts are rarely compared.
        let (expr, other_expr) = (self.expr(), other.expr());
        let is_same_expr =
            Arc::ptr_eq(expr, other_expr) || expr.to_string() == other_expr.to_string();
        is_same_expr
            && self.has_identity_of(other)
            && match (self, other) {
                (Rule::Alerting(a), Rule::Alerting(b)) => {
                    a.hold_ms == b.hold_ms
                        && a.keep_firing_ms == b.keep_firing_ms
                        && a.annotations == b.annotations
                }
                _ => true,
            }
    }

    /// Whether the rule takes over the state of `other` at a reload.
    fn has_identity_of(&self, other: &Rule) -> bool {
        match (self, other) {
            (Rule::Recording(a), Rule::Recording(b)) => a.name == b.name && a.labels == b.labels,
            (Rule::Alerting(a), Rule::Alerting(b)) => a.name == b.name && a.labels == b.labels,
            _ => false,
        }
    }
}

/// The outcome of a rule's last evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleHealth {
    /// Not evaluated yet.
    #[default]
    Unknown,
    /// Evaluated and written.
    Good,
    /// Failed, or some of its rows were rejected.
    Bad,
}

impl fmt::Display for RuleHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleHealth::Unknown => "unknown",
            RuleHealth::Good => "ok",
            RuleHealth::Bad => "err",
        })
    }
}

/// A rule with its state.
#[derive(Clone, Debug)]
pub struct RunningRule {
    /// The rule, which views share.
    pub rule: Arc<Rule>,
    /// The outcome of the last evaluation.
    pub health: RuleHealth,
    /// The error of the last evaluation, which views share.
    pub last_error: Option<Arc<str>>,
    /// The alerts; empty for a recording rule.
    pub alerts: ActiveAlerts,
    /// The series of the last evaluation that succeeded.
    written: BTreeSet<Labels>,
    /// The series of alerts that fired before a restart, until the restoration.
    earlier: BTreeSet<Labels>,
}

/// The settings of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// The file.
    pub file: String,
    /// The name, unique within the file.
    pub name: String,
    /// Milliseconds between evaluations, above 0.
    pub interval_ms: i64,
    /// The group's own offset of queries, milliseconds. `None` selects the global one.
    pub query_offset_ms: Option<i64>,
    /// The maximum number of series or alerts of a rule; 0 for no maximum.
    pub limit: usize,
}

/// The settings of all groups.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The offset of the queries of groups without their own, milliseconds.
    pub query_offset_ms: i64,
    /// The minimum time between two deliveries of an alert, milliseconds.
    pub resend_ms: i64,
}

/// The outcome of one evaluation of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Number of samples that the rules returned.
    pub sample_count: usize,
    /// Number of rules that failed.
    pub failure_count: usize,
    /// The alerts to send, with the index of their rule.
    pub alerts: Vec<(usize, Alert)>,
}

/// A group that runs.
#[derive(Debug)]
pub struct Group {
    options: GroupOptions,
    rules: Vec<RunningRule>,
    /// The queries of the rules, in stages: no rule reads a result of another one of its stage.
    /// Results of a stage are in memory together.
    stages: Vec<Arc<SharedExprs>>,
    /// Series of rules that a reload removed.
    orphans: BTreeSet<Labels>,
}

impl Group {
    /// A group with `rules`. `is_restored` for a group that a reload added: only groups at the
    /// start of the process restore their alerts.
    pub fn new(options: GroupOptions, rules: Vec<Rule>, is_restored: bool) -> Group {
        let mut links = rule_links(&rules.iter().map(Rule::shape).collect::<Vec<_>>());
        for (idx, (rule, links)) in rules.iter().zip(&mut links).enumerate() {
            if rule.has_queries_in_templates() {
                links.newest_dependency = idx.checked_sub(1);
            }
        }
        let stages = dependency::stages(&links).map(|stage| {
            let rules = rules.iter().take(stage.end).skip(stage.start);
            Arc::new(SharedExprs::new(rules.map(|rule| Arc::clone(rule.expr())).collect()))
        });
        let stages = stages.collect();
        let running = |rule| RunningRule {
            rule: Arc::new(rule),
            health: RuleHealth::Unknown,
            last_error: None,
            alerts: ActiveAlerts::new(is_restored),
            written: BTreeSet::new(),
            earlier: BTreeSet::new(),
        };
        let rules = rules.into_iter().map(running).collect();
        Group { options, rules, stages, orphans: BTreeSet::new() }
    }

    /// The settings.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// The rules in the order of the file.
    pub fn rules(&self) -> &[RunningRule] {
        &self.rules
    }

    /// The slots.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(&self.options.file, &self.options.name, self.options.interval_ms)
    }

    /// Evaluates all rules in order: each sees the results of the previous ones. Results have the
    /// time `slot` minus the query offset; alerts have the time `slot`.
    ///
    /// Results are written together before the first rule that reads one of them, and at the end.
    /// The rules between are a stage: their queries share parts.
    pub fn evaluate(
        &mut self,
        slot: Timestamp,
        run: &RunOptions,
        storage: &dyn Storage,
        expand: &dyn Expand,
    ) -> Evaluation {
        let query_ts = slot.saturating_sub(self.query_offset_ms(run));
        let mut evaluation = Evaluation::default();
        let mut pending = PendingRows::default();
        if expand.is_short_of_memory() {
            for running in &mut self.rules {
                running.alerts.forget_resolved(true, expand);
            }
        }
        let mut first = 0usize;
        for stage in &self.stages {
            let values = storage.query_all(stage, query_ts);
            let rules = self.rules.iter_mut().enumerate().skip(first);
            for ((idx, running), value) in rules.zip(values) {
                let rows = running.rows(value, slot, self.options.limit, expand);
                storage.end_rule(idx);
                match rows {
                    Ok(rows) => {
                        let count = &mut evaluation.sample_count;
                        *count = count.saturating_add(rows.len());
                        let interval_ms = self.options.interval_ms;
                        let due = running.alerts.take_due(slot, interval_ms, run.resend_ms);
                        evaluation.alerts.extend(due.into_iter().map(|alert| (idx, alert)));
                        running.end_evaluation(None);
                        pending.add(idx, running, rows);
                    }
                    Err(error) => running.end_evaluation(Some(error)),
                }
            }
            pending.write(query_ts, &mut self.rules, storage);
            first = first.saturating_add(stage.len());
        }
        let is_bad = |running: &&RunningRule| running.last_error.is_some();
        evaluation.failure_count = self.rules.iter().filter(is_bad).count();
        self.mark_orphans(query_ts, storage);
        evaluation
    }

    /// Restores the alerts after the second evaluation since the start of the process.
    /// `outage_ms` is the age of the oldest sample that counts. A failed lookup restores nothing.
    pub fn restore(&mut self, options: RestoreOptions, outage_ms: i64, storage: &dyn Storage) {
        let range = TimeRange::new(options.now.saturating_sub(outage_ms), options.now);
        for running in &mut self.rules {
            let Rule::Alerting(rule) = &*running.rule else { continue };
            // The next evaluation marks those that it does not continue.
            running.written.append(&mut running.earlier);
            let samples = match rule.hold_ms < options.grace_ms {
                true => Vec::new(),
                false => storage.newest(&for_state_matchers(rule), range).unwrap_or_default(),
            };
            running.alerts.restore(rule, options, &samples);
        }
    }

    /// Takes over the alerts and series of `old`, the group of the same file and name before a
    /// reload: rules with equal names and labels continue, in order. The series of the others get
    /// stale markers at the next evaluation.
    pub fn take_over(&mut self, old: Group) {
        self.orphans.extend(old.orphans);
        let mut old_rules: Vec<Option<RunningRule>> = old.rules.into_iter().map(Some).collect();
        for running in &mut self.rules {
            let same = |old: &&mut Option<RunningRule>| {
                old.as_ref().is_some_and(|old| running.rule.has_identity_of(&old.rule))
            };
            if let Some(old) = old_rules.iter_mut().find(same).and_then(Option::take) {
                running.alerts = old.alerts;
                running.written = old.written;
                running.earlier = old.earlier;
            }
        }
        let gone = old_rules.into_iter().flatten();
        self.orphans.extend(gone.flat_map(RunningRule::into_series));
    }

    /// Ends the group. The caller writes stale markers for the series returned, two intervals
    /// later: a rule that was moved to another group may have continued them by then.
    pub fn into_series(self) -> BTreeSet<Labels> {
        let written = self.rules.into_iter().flat_map(RunningRule::into_series);
        written.chain(self.orphans).collect()
    }

    /// The series of the last evaluation of each rule that succeeded.
    pub fn series(&self) -> impl Iterator<Item = &Labels> {
        self.rules.iter().flat_map(|running| &running.written)
    }

    /// The memory of the alerts of all rules, with their copies in an [`Evaluation`] and in views,
    /// of the errors, and of the labels that recording rules add to their results.
    pub fn state_bytes(&self) -> u64 {
        self.rules.iter().map(RunningRule::state_bytes).fold(0, u64::saturating_add)
    }

    /// The memory of the parts of expressions that rules share.
    pub fn part_bytes(&self) -> u64 {
        self.stages.iter().map(|stage| stage.part_bytes()).fold(0, u64::saturating_add)
    }

    fn query_offset_ms(&self, run: &RunOptions) -> i64 {
        self.options.query_offset_ms.unwrap_or(run.query_offset_ms)
    }

    /// Markers are rejected where another rule continues the series; such errors are expected.
    fn mark_orphans(&mut self, ts: Timestamp, storage: &dyn Storage) {
        let rows: Vec<ResultRow> = self.orphans.iter().map(stale_marker).collect();
        if !rows.is_empty() && storage.write(ts, &rows).is_ok() {
            self.orphans.clear();
        }
    }
}

impl RunningRule {
    /// Makes rows of the value of the expression, and applies it to the alerts.
    fn rows(
        &mut self,
        value: Result<Value>,
        slot: Timestamp,
        limit: usize,
        expand: &dyn Expand,
    ) -> Result<Vec<ResultRow>, String> {
        let points = vector(value.map_err(|error| error.to_string())?)?;
        match &*self.rule {
            Rule::Recording(rule) => {
                let bytes = rule.added_bytes(points.len());
                expand.reserve(bytes)?;
                let rows = record::record(rule, points, limit);
                rows.inspect_err(|_| expand.release(bytes))
            }
            Rule::Alerting(rule) => self.alerts.update(rule, slot, &points, limit, expand),
        }
    }

    fn into_series(self) -> impl Iterator<Item = Labels> {
        self.written.into_iter().chain(self.earlier)
    }

    /// The outcome of the last evaluation.
    fn end_evaluation(&mut self, error: Option<String>) {
        self.health = if error.is_none() { RuleHealth::Good } else { RuleHealth::Bad };
        self.last_error = error.map(Arc::from);
    }

    fn state_bytes(&self) -> u64 {
        let error = self.last_error.as_ref().map_or(0, |text| text.len() as u64);
        let own = match &*self.rule {
            Rule::Recording(rule) => rule.added_bytes(self.written.len()),
            Rule::Alerting(_) => self.alerts.memory_bytes(),
        };
        own.saturating_add(error)
    }
}

/// Rows of rules that were evaluated and are not written yet.
#[derive(Default)]
struct PendingRows {
    rows: Vec<ResultRow>,
    rules: Vec<PendingRule>,
}

/// The rows of one rule.
struct PendingRule {
    idx: usize,
    /// The series of its result.
    labels: BTreeSet<Labels>,
    /// Number of its rows, and of its stale markers behind them.
    row_count: usize,
    marker_count: usize,
}

impl PendingRows {
    /// Adds the result of a rule, and markers for the series of its last evaluation that are
    /// missing.
    fn add(&mut self, idx: usize, running: &RunningRule, mut rows: Vec<ResultRow>) {
        for row in &mut rows {
            // One copy of the labels of a series, not one for each evaluation.
            if let Some(known) = running.written.get(&row.labels) {
                row.labels = known.clone();
            }
        }
        let labels: BTreeSet<Labels> = rows.iter().map(|row| row.labels.clone()).collect();
        let row_count = rows.len();
        self.rows.extend(rows);
        let before = self.rows.len();
        self.rows.extend(running.written.difference(&labels).map(stale_marker));
        let marker_count = self.rows.len().saturating_sub(before);
        self.rules.push(PendingRule { idx, labels, row_count, marker_count });
    }

    /// Writes all of it. The first rejected row of a rule is its error; the others are written.
    fn write(&mut self, ts: Timestamp, rules: &mut [RunningRule], storage: &dyn Storage) {
        let pending = std::mem::take(self);
        let mut errors = match pending.rows.is_empty() {
            true => Ok(Vec::new().into_iter()),
            false => storage.write(ts, &pending.rows).map(Vec::into_iter),
        };
        let mut rows = pending.rows.iter();
        for written in pending.rules {
            let Some(running) = rules.get_mut(written.idx) else { continue };
            let errors = match &mut errors {
                Ok(errors) => errors,
                Err(error) => {
                    running.end_evaluation(Some(error.to_string()));
                    continue;
                }
            };
            running.written = written.labels;
            for (row, error) in rows.by_ref().zip(errors.by_ref()).take(written.row_count) {
                let Some(error) = error else { continue };
                running.written.remove(&row.labels);
                if running.last_error.is_none() {
                    running.end_evaluation(Some(error.to_string()));
                }
            }
            // A marker is rejected where another rule continues the series.
            rows.by_ref().zip(errors.by_ref()).take(written.marker_count).for_each(drop);
        }
    }
}

fn stale_marker(labels: &Labels) -> ResultRow {
    ResultRow { labels: labels.clone(), value: PointValue::Float(STALE_NAN) }
}

/// A scalar is one sample without labels.
pub(crate) fn vector(value: Value) -> Result<Vec<VectorPoint>, String> {
    match value {
        Value::Vector(points) => Ok(points),
        Value::Scalar { ts, value } => {
            Ok(vec![VectorPoint { labels: Labels::empty(), ts, value: PointValue::Float(value) }])
        }
        Value::String { .. } | Value::Matrix(_) => {
            Err("rule result is not a vector or scalar".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
