//! The evaluation of due groups. Any thread may call it; the threads of rules do.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use firn_model::{Budget, PointValue, Pool, STALE_NAN, Timestamp};
use firn_promql::Value;
use firn_rules::AlertTemplates;
use firn_rules::group::{Alert, Evaluation, Group, RestoreOptions, ResultRow, RunOptions, Storage};
use firndb::{Db, QueryOptions};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::load::EvaluationSettings;
use super::metrics::RuleCounters;
use super::options::{RuleLimits, RuleOptions};
use super::saved;
use super::stage::StageQueries;
use super::storage::{RuleStorage, SeriesCache};
use super::table::{DueGroup, EndedSeries, GroupTable, GroupWork};
use super::templates::BoundedTemplates;
use super::view::{LastEvaluation, RuleOutcome, ShownGroup};
use super::watch::QueryWatch;
use crate::http::query_log::rule_line;
use crate::notify::{Notification, Notifier, NotifyOptions, link};
use crate::query_log::QueryLog;
use crate::throttle::Throttle;

/// The groups and all that their evaluation needs.
pub(super) struct GroupEvaluator {
    pub(super) options: RuleOptions,
    /// Memory of evaluations, alerts and notifications: that of rules without the part for their
    /// expressions.
    budget: Budget,
    pub(super) counters: RuleCounters,
    pub(super) watch: QueryWatch,
    pub(super) db: OnceLock<Arc<Db>>,
    /// The address of this server in alerts.
    pub(super) external_url: OnceLock<Arc<str>>,
    pub(super) notifier: Arc<Notifier>,
    /// The log of the queries of rules, while it is open.
    pub(super) query_log: OnceLock<Arc<QueryLog>>,
    settings: Mutex<Arc<EvaluationSettings>>,
    table: Mutex<GroupTable>,
    /// Queries of running evaluations, for threads without a due group. Locked after `table`.
    stages: Mutex<Vec<Arc<StageQueries>>>,
    /// Files of alerts that could not be written.
    failed_saves: Throttle,
    /// Notified when the table changes.
    changed: Condvar,
}

impl fmt::Debug for GroupEvaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupEvaluator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl GroupEvaluator {
    pub(super) fn new(options: RuleOptions) -> GroupEvaluator {
        // Results that fill the memory leave room for the rules that replace them.
        let budget = options.budget.part(options.memory_bytes / 8 * 7);
        let notifier = Arc::new(Notifier::new(NotifyOptions {
            queue_len_max: options.queue_len_max,
            budget: budget.clone(),
            // Alerts that are not delivered leave the rules most of their memory.
            queue_bytes_max: options.memory_bytes / 4,
        }));
        GroupEvaluator {
            options,
            budget,
            external_url: OnceLock::new(),
            counters: RuleCounters::default(),
            watch: QueryWatch::default(),
            db: OnceLock::new(),
            notifier,
            query_log: OnceLock::new(),
            settings: Mutex::default(),
            table: Mutex::default(),
            stages: Mutex::default(),
            failed_saves: Throttle::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, GroupTable> {
        self.table.lock()
    }

    /// Offers the queries of `stage` to threads without a due group.
    fn share(&self, stage: &Arc<StageQueries>) {
        if self.options.thread_count < 2 {
            return;
        }
        {
            let mut stages = self.stages.lock();
            stages.retain(|stage| stage.has_next());
            stages.push(Arc::clone(stage));
        }
        self.wake();
    }

    /// Evaluates a query of a group that another thread evaluates. Returns whether there was one.
    pub(super) fn help(&self) -> bool {
        let Some(db) = self.db.get() else { return false };
        let stage = {
            let mut stages = self.stages.lock();
            stages.retain(|stage| stage.has_next());
            stages.first().map(Arc::clone)
        };
        stage.is_some_and(|stage| stage.evaluate_next(db, &self.watch))
    }

    /// Waits until the table changes, a group is due, or a query is shared; not at all once
    /// `is_stopped`.
    pub(super) fn wait(&self, is_stopped: impl Fn() -> bool) {
        // The clock may be set meanwhile.
        const WAIT_MAX_MS: i64 = 1_000;
        let mut table = self.table.lock();
        if is_stopped() || self.stages.lock().iter().any(|stage| stage.has_next()) {
            return;
        }
        match table.next_at() {
            Some(at) => {
                let ms = at.saturating_sub(self.now()).clamp(0, WAIT_MAX_MS);
                let at_most = Duration::from_millis(ms.unsigned_abs());
                let _ = self.changed.wait_for(&mut table, at_most);
            }
            None => self.changed.wait(&mut table),
        }
    }

    /// Wakes all threads that wait.
    pub(super) fn wake(&self) {
        // Under the lock, so that no thread is between its check and its wait.
        let _table = self.table.lock();
        self.changed.notify_all();
    }

    pub(super) fn set(&self, settings: EvaluationSettings) {
        *self.settings.lock() = Arc::new(settings);
    }

    /// Evaluates the group whose slot passed first, if there is one. Returns whether there was
    /// work.
    pub(super) fn evaluate_next(&self) -> bool {
        let Some(db) = self.db.get() else { return false };
        let (now, ended, due) = {
            let mut table = self.table.lock();
            // Read in the order of the calls: the table sees a clock that was set back.
            let now = self.now();
            (now, table.take_ended(now), table.take_due(now))
        };
        // A panic would lose the group that is due, and the thread.
        let marked = AssertUnwindSafe(|| ended.iter().for_each(|ended| self.mark_ended(db, ended)));
        if catch_unwind(marked).is_err() {
            tracing::error!("writing stale markers panicked, which is a bug");
        }
        let has_work = !ended.is_empty() || due.is_some();
        if let Some(mut due) = due {
            let settings = Arc::clone(&self.settings.lock());
            let evaluated = AssertUnwindSafe(|| self.evaluate(db, &settings, &mut due, now));
            if catch_unwind(evaluated).is_err() {
                tracing::error!(group = due.shown.key(), "an evaluation panicked, which is a bug");
            }
            self.table.lock().finish(due.id, due.work, self.now().max(now));
            self.changed.notify_all();
        }
        has_work
    }

    fn evaluate(&self, db: &Db, settings: &EvaluationSettings, due: &mut DueGroup, now: Timestamp) {
        let began = Instant::now();
        let slot = due.slot;
        let limits = self.limits(settings);
        let run = RunOptions {
            query_offset_ms: settings.query_offset_ms,
            resend_ms: self.options.resend_ms,
        };
        if due.work.is_first() {
            self.load_alerts(db, &mut due.work.group, &due.shown);
        }
        let GroupWork { group, cache, held, until_restored } = &mut *due.work;
        let empty = || limits.budget.empty(Pool::Query);
        let (series, alerts) = held.take().unwrap_or_else(|| (empty(), empty()));
        let share = |stage: &Arc<StageQueries>| self.share(stage);
        let storage = RuleStorage::new(db, &limits, &self.watch, &share, (cache, series));
        let query = |text: &str, ts: Timestamp| -> firn_model::Result<Value> {
            storage.query_text(text, ts)
        };
        let templates = AlertTemplates {
            external_labels: Arc::clone(&settings.external_labels),
            external_url: self.external_url(),
            query: &query,
        };
        let alerts = (alerts, group.state_bytes());
        let counters = &self.counters.templates;
        let bounded = BoundedTemplates::new(&templates, counters, &limits.budget, alerts);
        let mut evaluation = group.evaluate(slot, &run, &storage, &bounded);
        if !evaluation.alerts.is_empty() {
            self.save_alerts(db, group, slot);
            self.notify(settings, &due.shown, mem::take(&mut evaluation.alerts));
        }

        let mut alerts = bounded.finish();
        let (rule_times, series) = storage.finish();
        let mut took_of = rule_times.into_iter();
        let outcome = |running| RuleOutcome::new(running, took_of.next().unwrap_or_default());
        let rules: Vec<RuleOutcome> = group.rules().iter().map(outcome).collect();
        self.count(&due.shown, &evaluation, &rules, began);
        let offset_ms = due.shown.query_offset_ms.unwrap_or(settings.query_offset_ms);
        self.log_queries(&due.shown, &rules, slot.saturating_sub(offset_ms));
        let sample_count = evaluation.sample_count;
        let took = began.elapsed();
        due.shown.publish(LastEvaluation { began: Some(now), took, rules, sample_count });
        // Now, because the view before had texts that no alert has any more.
        alerts.take_exactly(group.state_bytes());
        *held = Some((series, alerts));

        if *until_restored > 0 {
            *until_restored = until_restored.saturating_sub(1);
            if *until_restored == 0 {
                self.restore(db, &limits, &mut due.work, &due.shown);
            }
        }
    }

    fn external_url(&self) -> Arc<str> {
        self.external_url.get().map_or_else(|| Arc::from(""), Arc::clone)
    }

    fn limits(&self, settings: &EvaluationSettings) -> RuleLimits {
        RuleLimits {
            query: QueryOptions {
                subquery_step_ms: settings.subquery_step_ms,
                ..self.options.query
            },
            timeout: self.options.timeout,
            budget: self.budget.clone(),
        }
    }

    /// Restores the alerts of a group after the start of the process.
    fn restore(&self, db: &Db, limits: &RuleLimits, work: &mut GroupWork, shown: &ShownGroup) {
        let began = Instant::now();
        let mut cache = SeriesCache::default();
        let held = limits.budget.empty(Pool::Query);
        let storage = RuleStorage::new(db, limits, &self.watch, &|_| (), (&mut cache, held));
        let options = RestoreOptions { now: self.now(), grace_ms: self.options.grace_ms };
        work.group.restore(options, self.options.outage_ms, &storage);
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shown.counters.restore_ns.store(nanos, Ordering::Relaxed);
    }

    fn load_alerts(&self, db: &Db, group: &mut Group, shown: &ShownGroup) {
        let (now, options) = (self.now(), &self.options);
        // A firing alert is saved at least as often as it is sent.
        let age_ms_max = options.outage_ms.saturating_add(options.resend_ms);
        let times = (now.saturating_sub(age_ms_max), now);
        if let Err(error) = saved::load(db, group, times, &self.budget) {
            self.counters.failed_loads.fetch_add(1, Ordering::Relaxed);
            let group = shown.key();
            tracing::warn!(group, %error, "saved alerts are not continued");
        }
    }

    fn save_alerts(&self, db: &Db, group: &Group, slot: Timestamp) {
        let Err(error) = saved::save(db, group, slot, &self.budget) else { return };
        self.counters.failed_saves.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.failed_saves.note(1, Instant::now()) {
            tracing::warn!(count, %error, "alerts are sent but not saved");
        }
    }

    /// Removes the saved alerts of groups that are not configured.
    pub(super) fn keep_alerts(&self, db: &Db) {
        let keys = self.table.lock().alerts_keys();
        if let Err(error) = db.keep_alerts(&keys) {
            tracing::warn!(%error, "alerts of removed groups stay on disk");
        }
    }

    fn notify(
        &self,
        settings: &EvaluationSettings,
        shown: &ShownGroup,
        alerts: Vec<(usize, Alert)>,
    ) {
        let external_url = self.external_url();
        // Alerts of a rule follow each other and share its link.
        let mut last: Option<(usize, Arc<str>)> = None;
        let notification = |(idx, alert): (usize, Alert)| {
            let known = last.take().filter(|(rule, _)| *rule == idx);
            let link = match known {
                Some((_, link)) => link,
                None => link(&shown.rules.get(idx)?.expr().to_string(), &external_url).into(),
            };
            last = Some((idx, Arc::clone(&link)));
            Some(Notification::new(alert, link))
        };
        let notifications = alerts.into_iter().filter_map(notification);
        self.notifier.send(&settings.external_labels, notifications);
    }

    fn count(
        &self,
        shown: &ShownGroup,
        evaluation: &Evaluation,
        rules: &[RuleOutcome],
        began: Instant,
    ) {
        shown.counters.evaluated(rules.len(), evaluation.failure_count);
        self.counters.groups.add(began.elapsed());
        for (rule, outcome) in shown.rules.iter().zip(rules) {
            self.counters.rules.add(outcome.took);
            if let Some(error) = &outcome.last_error {
                let group = shown.key();
                tracing::debug!(group, rule = rule.name(), %error, "a rule failed");
            }
        }
        let took = began.elapsed().as_millis();
        if took > u128::from(shown.interval_ms.unsigned_abs()) {
            let group = shown.key();
            tracing::warn!(group, took_ms = took, "an evaluation took longer than its interval");
        }
    }

    /// Logs the queries of the rules, which ran at `ts`.
    fn log_queries(&self, shown: &ShownGroup, rules: &[RuleOutcome], ts: Timestamp) {
        let Some(log) = self.query_log.get().filter(|log| log.is_on()) else { return };
        for (rule, outcome) in shown.rules.iter().zip(rules) {
            let (group, times) = ((&*shown.file, &*shown.name), (ts, outcome.took));
            let error = outcome.last_error.as_deref();
            log.push(|| rule_line(&rule.expr().to_string(), group, times, error));
        }
    }

    /// Writes the stale markers of a group that a reload removed. Only the log reports a failure,
    /// because the group is no longer listed.
    fn mark_ended(&self, db: &Db, ended: &EndedSeries) {
        let row = |labels: &firn_model::Labels| ResultRow {
            labels: labels.clone(),
            value: PointValue::Float(STALE_NAN),
        };
        let rows: Vec<ResultRow> = ended.series.iter().map(row).collect();
        if rows.is_empty() {
            return;
        }
        let settings = Arc::clone(&self.settings.lock());
        let (limits, mut cache) = (self.limits(&settings), SeriesCache::default());
        let held = limits.budget.empty(Pool::Query);
        let storage = RuleStorage::new(db, &limits, &self.watch, &|_| (), (&mut cache, held));
        if let Err(error) = storage.write(ended.ts, &rows) {
            tracing::warn!(%error, "series of removed rules have no stale marker");
        }
    }
}
