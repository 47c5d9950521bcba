//! The threads that evaluate groups, and the way of a configuration to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use firn_collect::config::{Config, Files};
use firn_model::{CancelToken, Error, Pool, QueryContext, Reservation, Result};
use firndb::Db;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use super::evaluator::GroupEvaluator;
use super::load::{LoadedRules, load};
use super::options::RuleOptions;
use super::view::ShownGroup;
use crate::collect::{Apply, ConfigPart, LoadedFile, LocalFiles};
use crate::machine::check_thread_mappings;
use crate::metrics_text::MetricsText;
use crate::net::{Stopping, stopped};
use crate::notify::{CheckedAlertmanagers, Notifier};
use crate::query_log::QueryLog;

/// Evaluates the rules of the configuration.
#[derive(Debug)]
pub(crate) struct RuleManager {
    evaluator: Arc<GroupEvaluator>,
    /// Whether a configuration was applied: only alerts of the first one are restored.
    is_configured: AtomicBool,
    is_stopped: Arc<AtomicBool>,
    threads: Mutex<RuleThreads>,
    /// The memory of the groups, beside their expressions and results.
    groups_held: Mutex<Vec<Reservation>>,
}

#[derive(Debug, Default)]
struct RuleThreads {
    /// Whether groups may be evaluated: the database is open, and the server is not stopping.
    is_open: bool,
    running: Vec<JoinHandle<()>>,
    /// The memory of rules, in the budget of the database.
    held: Option<Reservation>,
}

/// Rules and Alertmanagers that [`RuleManager::check`] has accepted.
#[derive(Debug)]
pub(crate) struct CheckedRules {
    loaded: LoadedRules,
    alertmanagers: CheckedAlertmanagers,
}

// A stop waits for the delivery of queued alerts at most this long.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);

impl RuleManager {
    /// Without rules and without threads.
    pub(crate) fn new(options: RuleOptions) -> RuleManager {
        RuleManager {
            evaluator: Arc::new(GroupEvaluator::new(options)),
            is_configured: AtomicBool::new(false),
            is_stopped: Arc::default(),
            threads: Mutex::default(),
            groups_held: Mutex::default(),
        }
    }

    /// Logs the query of each rule from now on, while `log` is open.
    pub(crate) fn log_queries(&self, log: &Arc<QueryLog>) {
        // A second call is a bug; the first log stays.
        let _ = self.evaluator.query_log.set(Arc::clone(log));
    }

    /// The memory of all rules.
    #[cfg(test)]
    pub(super) fn memory(&self) -> firn_model::BudgetUsage {
        self.evaluator.options.budget.usage()
    }

    /// Reads and checks the rule files and the section `alerting` of `config`.
    ///
    /// # Errors
    /// All mistakes of all files, as promtool prints them; files that cannot be read; memory.
    pub(crate) fn check(&self, config: &Config, files: &dyn Files) -> Result<CheckedRules> {
        let context = QueryContext::new(CancelToken::new(), self.evaluator.options.budget.clone());
        let is_restored = self.is_configured.load(Ordering::Relaxed);
        let mut loaded = load(config, files, context, &self.groups(), is_restored)?;
        let mut labels = loaded.settings.external_labels.as_ref().clone();
        labels.extend(self.evaluator.options.external_labels.clone());
        loaded.settings.external_labels = Arc::new(labels);
        Ok(CheckedRules { loaded, alertmanagers: self.notifier().check(config)? })
    }

    /// Runs `rules` from now on. Unchanged groups continue.
    pub(crate) fn apply(&self, rules: CheckedRules) {
        let LoadedRules { groups, settings, warnings, held, beside_running } = rules.loaded;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let is_restored = self.is_configured.swap(true, Ordering::Relaxed);
        self.notifier().apply(rules.alertmanagers);
        self.evaluator.set(settings);
        let now = self.evaluator.now();
        self.evaluator.table().replace(groups, is_restored, now);
        *self.groups_held.lock() = held;
        drop(beside_running);
        self.evaluator.wake();
        if let Some(db) = self.evaluator.db.get() {
            self.evaluator.keep_alerts(db);
            if let Err(error) = self.start_threads(db) {
                tracing::error!(%error, "rules are not evaluated");
            }
        }
    }

    /// Evaluates rules over `db` from now on, and sends alerts on `runtime`. `external_url` is the
    /// address of this server in alerts.
    ///
    /// # Errors
    /// `Unavailable` when a thread cannot be started.
    pub(crate) fn open(&self, db: &Arc<Db>, external_url: &str, runtime: Handle) -> Result<()> {
        self.notifier().open(runtime);
        self.attach(db, external_url);
        // They were read before there was a budget.
        for held in &mut *self.groups_held.lock() {
            let mut counted = db.budget().empty(Pool::Requests);
            counted.take(held.bytes());
            *held = counted;
        }
        if self.is_configured() {
            self.evaluator.keep_alerts(db);
        }
        self.threads.lock().is_open = true;
        self.start_threads(db)
    }

    /// Sets the database, which a test evaluates without threads.
    pub(super) fn attach(&self, db: &Arc<Db>, external_url: &str) {
        // A second call is a bug; the first values stay.
        let _ = self.evaluator.external_url.set(external_url.into());
        let now = self.evaluator.now();
        self.evaluator.table().start_at(now);
        let _ = self.evaluator.db.set(Arc::clone(db));
    }

    /// Evaluates on this thread all groups that are due. Returns their number.
    #[cfg(test)]
    pub(super) fn evaluate_due(&self) -> usize {
        std::iter::from_fn(|| self.evaluator.evaluate_next().then_some(())).count()
    }

    /// Does the work of a thread without a due group.
    #[cfg(test)]
    pub(super) fn help(&self) -> bool {
        self.evaluator.help()
    }

    /// Starts the threads once there are groups, and reserves the memory of rules.
    fn start_threads(&self, db: &Arc<Db>) -> Result<()> {
        let mut threads = self.threads.lock();
        let is_needed = threads.is_open && !self.evaluator.table().is_empty();
        if !threads.running.is_empty() || !is_needed {
            return Ok(());
        }
        let options = &self.evaluator.options;
        check_thread_mappings(options.thread_count)?;
        // Not for queries, whose part it would use up.
        let mut held = db.budget().empty(Pool::Requests);
        held.take(options.memory_bytes);
        threads.held = Some(held);
        for idx in 0..options.thread_count.max(1) {
            let (evaluator, is_stopped) =
                (Arc::clone(&self.evaluator), Arc::clone(&self.is_stopped));
            let thread = std::thread::Builder::new()
                .name(format!("firn-rules-{idx}"))
                .spawn(move || work(&evaluator, &is_stopped))
                .map_err(|e| Error::unavailable("cannot start a thread of rules").because(e))?;
            threads.running.push(thread);
        }
        Ok(())
    }

    /// Ends queries that have exceeded their time, until `stop` is true.
    pub(crate) async fn expire_queries(&self, mut stop: Stopping) {
        let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                _ = ticks.tick() => self.evaluator.watch.expire(Instant::now()),
            }
        }
    }

    /// Cancels running queries, ends the threads, and delivers the queued alerts. The state of
    /// alerts is in the database. Not to be called on a thread of the runtime.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.evaluator.watch.stop();
        self.evaluator.wake();
        let mut threads = self.threads.lock();
        threads.is_open = false;
        for thread in threads.running.drain(..) {
            // Panics are caught inside the thread.
            let _ = thread.join();
        }
        threads.held = None;
        self.notifier().stop(DELIVERY_MAX);
    }

    /// The queues of alerts.
    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.evaluator.notifier
    }

    /// Whether there is a configuration.
    pub(crate) fn is_configured(&self) -> bool {
        self.is_configured.load(Ordering::Relaxed)
    }

    /// The groups in order of files and names.
    pub(crate) fn groups(&self) -> Vec<Arc<ShownGroup>> {
        self.evaluator.table().shown()
    }

    /// The metrics under `prefix`.
    pub(crate) fn write_text(&self, prefix: &str, text: &mut MetricsText) {
        self.evaluator.counters.write_text(prefix, &self.groups(), text);
        self.notifier().write_text(prefix, text);
    }
}

impl ConfigPart for RuleManager {
    fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, files: &LocalFiles) -> Result<Apply<'p>> {
        let checked = self.check(&file.config, files)?;
        Ok(Box::new(move || self.apply(checked)))
    }
}

fn work(evaluator: &GroupEvaluator, is_stopped: &AtomicBool) {
    let is_stopped = || is_stopped.load(Ordering::Relaxed);
    let mut has_worked = false;
    while !is_stopped() {
        if evaluator.evaluate_next() || evaluator.help() {
            has_worked = true;
            continue;
        }
        if std::mem::take(&mut has_worked) {
            (evaluator.options.on_idle)();
        }
        evaluator.wait(is_stopped);
    }
}
