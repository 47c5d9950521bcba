//! The state of groups and rules that the API and metrics show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firn_model::Timestamp;
use firn_rules::group::{Alert, AlertState, Group, Rule, RuleHealth, RunningRule};
use parking_lot::Mutex;

/// A group: its texts, and the outcome of its last evaluation.
#[derive(Debug)]
pub(crate) struct ShownGroup {
    pub(crate) file: String,
    pub(crate) name: String,
    pub(crate) interval_ms: i64,
    pub(crate) query_offset_ms: Option<i64>,
    pub(crate) limit: usize,
    /// Those of the running group.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// Names the file of its alerts.
    pub(super) alerts_key: u64,
    pub(super) counters: Arc<GroupCounters>,
    latest: Mutex<Arc<LastEvaluation>>,
}

/// The outcome of a group's last evaluation.
#[derive(Debug, Default)]
pub(crate) struct LastEvaluation {
    /// When it began; `None` before the first one.
    pub(crate) began: Option<Timestamp>,
    pub(crate) took: Duration,
    /// One per rule.
    pub(crate) rules: Vec<RuleOutcome>,
    pub(crate) sample_count: usize,
}

/// The outcome of a rule's last evaluation.
#[derive(Debug)]
pub(crate) struct RuleOutcome {
    pub(crate) health: RuleHealth,
    pub(crate) last_error: Option<Arc<str>>,
    pub(crate) state: AlertState,
    /// Pending and firing alerts, by labels.
    pub(crate) alerts: Vec<Alert>,
    pub(crate) took: Duration,
}

/// Counters of a group. A reload that changes the group keeps them.
#[derive(Debug, Default)]
pub(super) struct GroupCounters {
    pub(super) evaluations: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Slots that passed, missed ones too.
    pub(super) iterations: AtomicU64,
    pub(super) missed: AtomicU64,
    /// Duration of the last restoration of alerts, in nanoseconds.
    pub(super) restore_ns: AtomicU64,
}

impl ShownGroup {
    /// The group before its first evaluation. `counters` are those of the group that it replaces.
    pub(super) fn new(group: &Group, counters: Arc<GroupCounters>) -> ShownGroup {
        let options = group.options();
        ShownGroup {
            file: options.file.clone(),
            name: options.name.clone(),
            interval_ms: options.interval_ms,
            query_offset_ms: options.query_offset_ms,
            limit: options.limit,
            rules: group.rules().iter().map(|running| Arc::clone(&running.rule)).collect(),
            alerts_key: group.key(),
            counters,
            latest: Mutex::default(),
        }
    }

    /// Whether a reload to `other` changes nothing.
    pub(super) fn is_same(&self, other: &ShownGroup) -> bool {
        self.file == other.file
            && self.name == other.name
            && self.interval_ms == other.interval_ms
            && self.query_offset_ms == other.query_offset_ms
            && self.limit == other.limit
            && self.rules.len() == other.rules.len()
            && self.rules.iter().zip(&other.rules).all(|(a, b)| a.is_same(b))
    }

    /// The last evaluation.
    pub(crate) fn latest(&self) -> Arc<LastEvaluation> {
        Arc::clone(&self.latest.lock())
    }

    pub(super) fn publish(&self, evaluation: LastEvaluation) {
        *self.latest.lock() = Arc::new(evaluation);
    }

    /// The name in metrics.
    pub(super) fn key(&self) -> String {
        format!("{};{}", self.file, self.name)
    }
}

impl RuleOutcome {
    pub(super) fn new(running: &RunningRule, took: Duration) -> RuleOutcome {
        let is_active = |alert: &&Alert| alert.state != AlertState::Inactive;
        let active = || running.alerts.iter().filter(is_active);
        let mut alerts = Vec::with_capacity(active().count());
        alerts.extend(active().cloned());
        RuleOutcome {
            health: running.health,
            last_error: running.last_error.clone(),
            state: running.alerts.state(),
            alerts,
            took,
        }
    }
}

impl GroupCounters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}
