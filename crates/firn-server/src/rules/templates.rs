//! Templates of alerts, counted and within the memory of rules.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{Budget, Pool, Reservation, Timestamp};
use firn_promql::VectorPoint;
use firn_rules::AlertTemplates;
use firn_rules::group::{AlertRule, Expand};
use firn_rules::template::BYTES_MAX;

/// Counts of expansions.
#[derive(Debug, Default)]
pub(super) struct TemplateCounters {
    pub(super) expansions: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// Expands the templates of one evaluation.
#[derive(Debug)]
pub(super) struct BoundedTemplates<'a> {
    templates: &'a AlertTemplates<'a>,
    counters: &'a TemplateCounters,
    budget: &'a Budget,
    /// The memory of all expanded texts and of the alerts with them.
    held: RefCell<Reservation>,
}

// Regular expressions that one expansion may compile.
const REGEX_BYTES_MAX: u64 = 32 << 20;
/// An alert in its group and in the view of the API; before, in the result and as a notification.
pub(super) const ALERT_COPIES: u64 = 2;

impl<'a> BoundedTemplates<'a> {
    pub(super) fn new(
        templates: &'a AlertTemplates<'a>,
        counters: &'a TemplateCounters,
        budget: &'a Budget,
    ) -> BoundedTemplates<'a> {
        let held = RefCell::new(budget.empty(Pool::Query));
        BoundedTemplates { templates, counters, budget, held }
    }

    fn expand_within(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String> {
        let has_regex = text.contains("match") || text.contains("reReplaceAll");
        let bytes = BYTES_MAX as u64 + if has_regex { REGEX_BYTES_MAX } else { 0 };
        let _working = self.budget.reserve(Pool::Query, bytes).map_err(no_memory)?;
        let expanded = self.templates.expand(text, rule, point, slot)?;
        self.held.borrow_mut().grow(expanded.len() as u64).map_err(no_memory)?;
        Ok(expanded)
    }
}

fn no_memory(error: firn_model::Error) -> String {
    format!("no memory (--rule-memory): {error}")
}

impl Expand for BoundedTemplates<'_> {
    fn expand(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String> {
        self.counters.expansions.fetch_add(1, Ordering::Relaxed);
        let expanded = self.expand_within(text, rule, point, slot);
        if let Err(error) = &expanded {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(alert = rule.name, %error, "a template failed");
        }
        expanded
    }

    fn reserve(&self, bytes: u64) -> Result<(), String> {
        let bytes = bytes.saturating_mul(ALERT_COPIES);
        self.held.borrow_mut().grow(bytes).map_err(no_memory)
    }
}
