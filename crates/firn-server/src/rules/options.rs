//! The settings of rules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Budget, Timestamp};
use firndb::QueryOptions;

/// Settings of the evaluation of rules.
#[derive(Clone)]
pub(crate) struct RuleOptions {
    /// Groups, and rules of a group that do not read each other's results, that are evaluated at
    /// the same time.
    pub(crate) thread_count: usize,
    /// Memory of all rules and their notifications, which nothing else uses while there are rules.
    pub(crate) budget: Budget,
    pub(crate) memory_bytes: u64,
    pub(crate) query: QueryOptions,
    /// The time limit of one query.
    pub(crate) timeout: Duration,
    /// The age of the oldest state of an alert that a start restores.
    pub(crate) outage_ms: i64,
    /// The time that a restored alert stays pending at least.
    pub(crate) grace_ms: i64,
    /// The time between two deliveries of an alert.
    pub(crate) resend_ms: i64,
    /// Alerts that wait for one Alertmanager.
    pub(crate) queue_len_max: usize,
    /// The labels of this server, which replace those of the configuration.
    pub(crate) external_labels: BTreeMap<String, String>,
    /// Called by a thread without work.
    pub(crate) on_idle: fn(),
    /// The current time.
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for RuleOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleOptions")
            .field("thread_count", &self.thread_count)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}

/// Limits of queries of rules.
#[derive(Clone, Debug)]
pub(super) struct RuleLimits {
    pub(super) query: QueryOptions,
    pub(super) timeout: Duration,
    /// The memory of all rules together.
    pub(super) budget: Budget,
}
