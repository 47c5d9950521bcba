//! Templates of alerts, and the memory of alerts, within the limits of a run.

use std::cell::RefCell;

use firn_model::{Pool, Reservation, Timestamp};
use firn_promql::VectorPoint;

use super::TestLimits;
use crate::AlertTemplates;
use crate::group::{AlertRule, Expand};

/// Expands templates until the run is ended, and reserves the memory of alerts.
#[derive(Debug)]
pub(super) struct LimitedTemplates<'a> {
    templates: AlertTemplates<'a>,
    limits: &'a TestLimits,
    /// The state of all groups.
    held: RefCell<Reservation>,
}

impl<'a> LimitedTemplates<'a> {
    pub(super) fn new(
        templates: AlertTemplates<'a>,
        limits: &'a TestLimits,
    ) -> LimitedTemplates<'a> {
        let held = RefCell::new(limits.budget.empty(Pool::Query));
        LimitedTemplates { templates, limits, held }
    }

    /// Corrects the reservation to the state of all groups after an evaluation, of `bytes`.
    pub(super) fn settle(&self, bytes: u64) {
        self.held.borrow_mut().take_exactly(bytes);
    }
}

impl Expand for LimitedTemplates<'_> {
    fn expand(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String> {
        self.limits.cancel.check().map_err(|error| error.to_string())?;
        self.templates.expand(text, rule, point, slot)
    }

    fn reserve(&self, bytes: u64) -> Result<(), String> {
        let limits = self.limits;
        let reserved = limits.cancel.check().and_then(|()| self.held.borrow_mut().grow(bytes));
        reserved.map_err(|error| error.to_string())
    }

    fn release(&self, bytes: u64) {
        self.held.borrow_mut().shrink(bytes);
    }
}
