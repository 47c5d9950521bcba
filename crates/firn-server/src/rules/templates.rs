//! Templates of alerts, counted, and alerts within the memory of rules.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{Budget, Pool, Reservation, Timestamp};
use firn_promql::VectorPoint;
use firn_rules::AlertTemplates;
use firn_rules::group::{AlertRule, Expand};

/// Counts of expansions.
#[derive(Debug, Default)]
pub(super) struct TemplateCounters {
    pub(super) expansions: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// Expands the templates of one evaluation, and reserves the memory of its alerts.
#[derive(Debug)]
pub(super) struct BoundedTemplates<'a> {
    templates: &'a AlertTemplates<'a>,
    counters: &'a TemplateCounters,
    budget: &'a Budget,
    memory: RefCell<AlertMemory>,
}

#[derive(Debug)]
struct AlertMemory {
    /// The reservation of the alerts of a group, which the evaluation before has left.
    held: Reservation,
    /// How much of it alerts use.
    used_bytes: u64,
    /// The texts of the alert that is made.
    texts: Reservation,
    /// Why one of them is missing: there is no memory.
    refusal: Option<String>,
}

impl<'a> BoundedTemplates<'a> {
    pub(super) fn new(
        templates: &'a AlertTemplates<'a>,
        counters: &'a TemplateCounters,
        budget: &'a Budget,
        (mut held, alert_bytes): (Reservation, u64),
    ) -> BoundedTemplates<'a> {
        held.take_exactly(alert_bytes);
        let texts = budget.empty(Pool::Query);
        let memory =
            RefCell::new(AlertMemory { held, used_bytes: alert_bytes, texts, refusal: None });
        BoundedTemplates { templates, counters, budget, memory }
    }

    /// The reservation of the alerts. [`Reservation::take_exactly`] prepares it for the next
    /// evaluation.
    pub(super) fn finish(self) -> Reservation {
        self.memory.into_inner().held
    }

    fn expand_within(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String> {
        let working = RefCell::new(self.budget.empty(Pool::Query));
        let reserve = |bytes: usize| {
            let held = &mut *working.borrow_mut();
            held.cover(bytes as u64).map_err(|error| self.refuse(&error))?;
            held.shrink_to(bytes as u64);
            Ok(())
        };
        let expanded = self.templates.expand_within(text, rule, (point, slot), &reserve)?;
        let held = self.memory.borrow_mut().texts.grow(expanded.len() as u64);
        held.map_err(|error| self.refuse(&error))?;
        Ok(expanded)
    }

    /// The rule fails: an alert has the right texts, or there is none.
    fn refuse(&self, error: &firn_model::Error) -> String {
        let text = no_memory(error);
        self.memory.borrow_mut().refusal = Some(text.clone());
        text
    }
}

fn no_memory(error: &firn_model::Error) -> String {
    format!("no memory: {error}")
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
        let memory = &mut *self.memory.borrow_mut();
        // The alert contains its texts.
        memory.texts.shrink(memory.texts.bytes());
        if let Some(refusal) = memory.refusal.take() {
            return Err(refusal);
        }
        let used_bytes = memory.used_bytes.saturating_add(bytes);
        memory.held.cover(used_bytes).map_err(|error| no_memory(&error))?;
        memory.used_bytes = used_bytes;
        Ok(())
    }

    fn release(&self, bytes: u64) {
        let memory = &mut *self.memory.borrow_mut();
        memory.used_bytes = memory.used_bytes.saturating_sub(bytes);
        // The queries of the next rules may need it.
        memory.held.shrink_to(memory.used_bytes);
    }

    fn is_short_of_memory(&self) -> bool {
        let usage = self.budget.usage();
        usage.used_bytes > usage.limit_bytes / 2
    }
}
