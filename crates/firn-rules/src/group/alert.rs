//! The states of the alerts of one rule.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use firn_model::{Labels, METRIC_NAME, Matcher, PointValue, Timestamp, is_stale_nan};
use firn_promql::{Expr, VectorPoint};

use super::{Expand, ResultRow};

/// The label with the name of the alert's rule.
pub const ALERT_NAME: &str = "alertname";
/// The series of an alert's state.
pub const ALERTS: &str = "ALERTS";
/// The series of the time since which an alert's condition holds, in seconds.
pub const ALERTS_FOR_STATE: &str = "ALERTS_FOR_STATE";
/// The label of [`ALERTS`] with the state.
const ALERT_STATE: &str = "alertstate";
/// A resolved alert is sent again for this long, so that a receiver that was away learns of it.
const RESOLVED_KEPT_MS: i64 = 15 * 60 * 1_000;

/// The state of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertState {
    /// It fired and its condition no longer holds.
    Inactive,
    /// Its condition holds, but not long enough.
    Pending,
    /// It fires.
    Firing,
}

impl AlertState {
    /// The name in `ALERTS` and in the API.
    pub fn text(self) -> &'static str {
        match self {
            AlertState::Inactive => "inactive",
            AlertState::Pending => "pending",
            AlertState::Firing => "firing",
        }
    }
}

/// Texts by name. Copies of an alert share them, and all alerts of a rule without templates.
pub type Texts = Arc<BTreeMap<String, String>>;

/// An alert. Its label set is its identity. All times are slots, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// The labels of the sample without its name, with the rule's labels and `alertname`.
    pub labels: Labels,
    /// The annotations of the last evaluation that selected the alert.
    pub annotations: Texts,
    /// The state.
    pub state: AlertState,
    /// The value of the last evaluation that selected the alert; 0 for a histogram.
    pub value: f64,
    /// When the condition began to hold.
    pub active_at: Timestamp,
    /// When it began to fire.
    pub fired_at: Option<Timestamp>,
    /// When it stopped firing.
    pub resolved_at: Option<Timestamp>,
    /// When it was last sent.
    pub last_sent_at: Option<Timestamp>,
    /// The end of the alert for a receiver that hears nothing more.
    pub valid_until: Option<Timestamp>,
    /// The first evaluation without the alert's sample while `keep_firing_for` holds it.
    pub keep_firing_since: Option<Timestamp>,
}

/// An alerting rule, its texts as in the file with the labels of its group.
#[derive(Clone, Debug)]
pub struct AlertRule {
    /// The name.
    pub name: String,
    /// The condition.
    pub expr: Arc<Expr>,
    /// How long the condition must hold, milliseconds.
    pub hold_ms: i64,
    /// How long the alert fires after its condition ended, milliseconds.
    pub keep_firing_ms: i64,
    /// Templates of labels.
    pub labels: BTreeMap<String, String>,
    /// Templates of annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The alerts of a rule by label set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActiveAlerts {
    alerts: BTreeMap<Labels, Alert>,
    /// Firing alerts of the process before the restart, until an evaluation selects them or the
    /// restoration ends: until then rules that this one reads may lack results.
    continued: BTreeMap<Labels, Alert>,
    /// The annotations of all alerts, if none of them is a template.
    plain: Option<Texts>,
    is_restored: bool,
}

/// The times of the restoration of alerts after a start.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// The time of the restoration.
    pub now: Timestamp,
    /// The time that a restored alert stays pending at least, milliseconds. Rules with a shorter
    /// `for` are not restored.
    pub grace_ms: i64,
}

/// The newest sample of a series of [`ALERTS_FOR_STATE`].
#[derive(Clone, Debug, PartialEq)]
pub struct ForStateSample {
    /// The labels with the name.
    pub labels: Labels,
    /// The time.
    pub ts: Timestamp,
    /// The start of the alert in seconds, or a stale marker.
    pub value: f64,
}

impl ActiveAlerts {
    /// No alerts. A rule that is new to a running group needs no restoration: `is_restored`.
    pub fn new(is_restored: bool) -> ActiveAlerts {
        ActiveAlerts { is_restored, ..ActiveAlerts::default() }
    }

    /// Applies the result of an evaluation at `slot`. Returns the samples of `ALERTS` and
    /// `ALERTS_FOR_STATE`: none before the restoration.
    ///
    /// # Errors
    /// Prometheus' text for two samples with the same labels: nothing has changed. The same for
    /// more alerts than `limit`, unless it is 0: all alerts are forgotten. Without memory for new
    /// alerts: resolved ones are forgotten.
    pub fn update(
        &mut self,
        rule: &AlertRule,
        slot: Timestamp,
        points: &[VectorPoint],
        limit: usize,
        expand: &dyn Expand,
    ) -> Result<Vec<ResultRow>, String> {
        let mut found = self.candidates(rule, slot, points, expand);
        if matches!(found, Err(Refusal::Memory(_))) && self.forget_resolved(false, expand) > 0 {
            found = self.candidates(rule, slot, points, expand);
        }
        let found = found.map_err(Refusal::into_text)?;
        let mut active_count = 0_usize;
        let mut rows = Vec::new();
        for (labels, candidate) in &found {
            match self.alerts.get_mut(labels) {
                Some(alert) if alert.state != AlertState::Inactive => {
                    alert.value = candidate.value;
                    alert.annotations = Arc::clone(&candidate.annotations);
                }
                _ => {
                    let mut alert = candidate.clone();
                    if let Some(continued) = self.continued.remove(labels) {
                        let Alert { value, annotations, .. } = alert;
                        alert = Alert { value, annotations, ..continued };
                    }
                    self.alerts.insert(labels.clone(), alert);
                }
            }
        }
        let is_restored = self.is_restored;
        self.alerts.retain(|labels, alert| {
            let kept = match found.contains_key(labels) {
                true => alert.hit(rule, slot),
                false => alert.miss(rule, slot),
            };
            if kept && alert.state != AlertState::Inactive {
                active_count = active_count.saturating_add(1);
                if is_restored {
                    rows.extend(alert.rows());
                }
            }
            kept
        });
        if limit > 0 && active_count > limit {
            self.alerts.clear();
            self.continued.clear();
            return Err(format!("exceeded limit of {limit} with {active_count} alerts"));
        }
        Ok(rows)
    }

    /// The alerts, resolved ones too, in the order of labels.
    pub fn iter(&self) -> impl Iterator<Item = &Alert> {
        self.alerts.values()
    }

    /// Forgets resolved alerts, because memory is short: receivers end them at the time that the
    /// last delivery named. With `is_sent` only those that were sent as resolved. Returns their
    /// memory, and releases it.
    pub(super) fn forget_resolved(&mut self, is_sent: bool, expand: &dyn Expand) -> u64 {
        let before = self.memory_bytes();
        self.alerts.retain(|_, alert| {
            let sent = alert.last_sent_at >= alert.resolved_at;
            alert.state != AlertState::Inactive || is_sent && !sent
        });
        let freed = before.saturating_sub(self.memory_bytes());
        expand.release(freed);
        freed
    }

    /// The memory of the alerts and of their copies in results and in views.
    pub(super) fn memory_bytes(&self) -> u64 {
        let plain = self.plain.as_ref().map_or(0, |texts| texts_bytes(texts));
        let mut last = None;
        let bytes = self.iter().chain(self.continued.values()).map(|alert| {
            // After a reload alerts share texts that are no longer those of the rule.
            let is_last = last
                .replace(&alert.annotations)
                .is_some_and(|last| Arc::ptr_eq(last, &alert.annotations));
            let texts = if is_last { 0 } else { self.own_texts_bytes(alert) };
            alert.own_bytes().saturating_add(texts)
        });
        bytes.fold(plain, u64::saturating_add)
    }

    /// The memory of annotations, unless they are those of the rule.
    fn own_texts_bytes(&self, alert: &Alert) -> u64 {
        let is_plain =
            self.plain.as_ref().is_some_and(|plain| Arc::ptr_eq(plain, &alert.annotations));
        if is_plain { 0 } else { texts_bytes(&alert.annotations) }
    }

    /// One pending alert for each sample. Labels and annotations that are known already are shared
    /// with the alert that has them; the memory of others is reserved.
    fn candidates(
        &mut self,
        rule: &AlertRule,
        slot: Timestamp,
        points: &[VectorPoint],
        expand: &dyn Expand,
    ) -> Result<BTreeMap<Labels, Alert>, Refusal> {
        self.set_plain(rule, expand)?;
        let mut reserved_bytes = 0_u64;
        let found = self.find(rule, slot, points, expand, &mut reserved_bytes);
        if found.is_err() {
            expand.release(reserved_bytes);
        }
        found
    }

    /// Prepares the annotations of a rule without templates.
    fn set_plain(&mut self, rule: &AlertRule, expand: &dyn Expand) -> Result<(), Refusal> {
        if rule.annotations.values().any(|text| is_template(text)) {
            // Alerts that still have the texts count them from now on.
            self.plain = None;
        } else if self.plain.as_deref() != Some(&rule.annotations) {
            expand.reserve(texts_bytes(&rule.annotations)).map_err(Refusal::Memory)?;
            self.plain = Some(Arc::new(rule.annotations.clone()));
        }
        Ok(())
    }

    fn find(
        &self,
        rule: &AlertRule,
        slot: Timestamp,
        points: &[VectorPoint],
        expand: &dyn Expand,
        reserved_bytes: &mut u64,
    ) -> Result<BTreeMap<Labels, Alert>, Refusal> {
        let mut found = BTreeMap::new();
        for point in points {
            let mut alert = self.pending(rule, slot, point, expand);
            let known =
                self.alerts.get(&alert.labels).or_else(|| self.continued.get(&alert.labels));
            let mut new_bytes = if known.is_some() { 0 } else { alert.own_bytes() };
            if let Some(known) = known {
                alert.labels = known.labels.clone();
            }
            match known.filter(|known| known.annotations == alert.annotations) {
                Some(known) => alert.annotations = Arc::clone(&known.annotations),
                None => new_bytes = new_bytes.saturating_add(self.own_texts_bytes(&alert)),
            }
            expand.reserve(new_bytes).map_err(Refusal::Memory)?;
            *reserved_bytes = reserved_bytes.saturating_add(new_bytes);
            if found.insert(alert.labels.clone(), alert).is_some() {
                return Err(Refusal::SameLabels);
            }
        }
        Ok(found)
    }

    /// The pending alert of a sample.
    fn pending(
        &self,
        rule: &AlertRule,
        slot: Timestamp,
        point: &VectorPoint,
        expand: &dyn Expand,
    ) -> Alert {
        let text = |template: &String| match is_template(template) {
            true => expand
                .expand(template, rule, point, slot)
                .unwrap_or_else(|error| format!("<error expanding template: {error}>")),
            false => template.clone(),
        };
        let labels = rule
            .labels
            .iter()
            .fold(point.labels.with(METRIC_NAME, ""), |labels, (name, template)| {
                labels.with(name, &text(template))
            })
            .with(ALERT_NAME, &rule.name);
        let annotations =
            || rule.annotations.iter().map(|(name, value)| (name.clone(), text(value)));
        Alert {
            labels,
            annotations: match &self.plain {
                Some(plain) => Arc::clone(plain),
                None => Arc::new(annotations().collect()),
            },
            state: AlertState::Pending,
            value: match &point.value {
                PointValue::Float(value) => *value,
                PointValue::Histogram(_) => 0.0,
            },
            active_at: slot,
            fired_at: None,
            resolved_at: None,
            last_sent_at: None,
            valid_until: None,
            keep_firing_since: None,
        }
    }

    /// The highest state.
    pub fn state(&self) -> AlertState {
        self.iter().map(|alert| alert.state).max().unwrap_or(AlertState::Inactive)
    }

    /// The alerts to send at `slot`: firing and resolved ones that were not sent within
    /// `resend_ms`, and newly resolved ones. They count as sent.
    pub fn take_due(&mut self, slot: Timestamp, interval_ms: i64, resend_ms: i64) -> Vec<Alert> {
        let mut due = Vec::new();
        for alert in self.alerts.values_mut().filter(|alert| alert.is_due(slot, resend_ms)) {
            // Two evaluations or two deliveries may fail before the alert ends.
            let valid_ms = interval_ms.max(resend_ms).saturating_mul(4);
            alert.last_sent_at = Some(slot);
            alert.valid_until = Some(slot.saturating_add(valid_ms));
            due.push(alert.clone());
        }
        due
    }

    /// Whether `ALERTS` is written.
    pub fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// Ends the restoration: from now on `ALERTS` is written. `samples` are the newest samples of
    /// [`for_state_matchers`] within the tolerated outage; none if the lookup failed.
    pub fn restore(
        &mut self,
        rule: &AlertRule,
        options: RestoreOptions,
        samples: &[ForStateSample],
    ) {
        self.is_restored = true;
        let is_long = rule.hold_ms >= options.grace_ms;
        for sample in samples.iter().filter(|sample| is_long && !is_stale_nan(sample.value)) {
            let labels = sample.labels.with(METRIC_NAME, "");
            if let Some(alert) = self.alerts.get_mut(&labels) {
                let active_at = restored_active_at(rule.hold_ms, options, sample);
                alert.active_at = match alert.state {
                    // A later time would end it.
                    AlertState::Firing => active_at.min(alert.active_at),
                    AlertState::Pending | AlertState::Inactive => active_at,
                };
            }
        }
        for (labels, alert) in mem::take(&mut self.continued) {
            self.alerts.entry(labels).or_insert(alert);
        }
    }

    /// The alerts that were sent.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Alert> {
        let is_sent = |alert: &&Alert| alert.state != AlertState::Pending;
        self.iter().filter(is_sent).chain(self.continued.values())
    }

    /// Continues alerts that the process before the restart has sent. None of their times is after
    /// `now`: a clock that was set back delays no delivery.
    pub(super) fn continue_sent(&mut self, alerts: Vec<Alert>, now: Timestamp) {
        for mut alert in alerts {
            alert.active_at = alert.active_at.min(now);
            let times = [&mut alert.fired_at, &mut alert.resolved_at, &mut alert.last_sent_at];
            for time in times.into_iter().chain([&mut alert.keep_firing_since]) {
                *time = time.map(|time| time.min(now));
            }
            let known = match alert.state {
                AlertState::Firing => &mut self.continued,
                AlertState::Pending | AlertState::Inactive => &mut self.alerts,
            };
            known.insert(alert.labels.clone(), alert);
        }
    }
}

/// The selection of the series to restore from: the name, and labels that are no templates.
pub fn for_state_matchers(rule: &AlertRule) -> Vec<Matcher> {
    let plain = rule.labels.iter().filter(|(name, value)| {
        !value.contains("{{") && !value.is_empty() && name.as_str() != ALERT_NAME
    });
    [(METRIC_NAME, ALERTS_FOR_STATE), (ALERT_NAME, rule.name.as_str())]
        .into_iter()
        .chain(plain.map(|(name, value)| (name.as_str(), value.as_str())))
        .map(|(name, value)| Matcher::equal(name, value))
        .collect()
}

/// The time since which a restored alert is active.
fn restored_active_at(hold_ms: i64, options: RestoreOptions, sample: &ForStateSample) -> Timestamp {
    let down_at = sample.ts.div_euclid(1_000).saturating_mul(1_000);
    // Seconds beyond all times saturate.
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    let active_at = (sample.value as i64).saturating_mul(1_000);
    let remaining_ms = hold_ms.saturating_sub(down_at.saturating_sub(active_at));
    if remaining_ms <= 0 {
        active_at
    } else if remaining_ms < options.grace_ms {
        options.now.saturating_add(options.grace_ms).saturating_sub(hold_ms)
    } else {
        // The outage does not count.
        active_at.saturating_add(options.now.saturating_sub(down_at))
    }
}

/// Why an evaluation changes no alerts.
enum Refusal {
    SameLabels,
    /// The text of the failure.
    Memory(String),
}

impl Refusal {
    fn into_text(self) -> String {
        match self {
            Refusal::SameLabels => {
                "vector contains metrics with the same labelset after applying alert labels"
                    .to_owned()
            }
            Refusal::Memory(text) => text,
        }
    }
}

pub(super) fn is_template(text: &str) -> bool {
    text.contains("{{")
}

// An alert in the map of its rule, half of which is empty, in the map of an evaluation, in the view
// of the API, or as a notification. These copies share all texts.
const ALERT_BYTES: u64 = 5 * size_of::<Alert>() as u64 + 192;
// Nodes of the map of annotations, per annotation, and an allocation for each text.
const TEXT_BYTES: u64 = 96;
const TEXTS_BYTES: u64 = 576;
// Labels up to this length are part of the memory of the series of the alert.
const SERIES_LABEL_BYTES: u64 = 128;

fn texts_bytes(texts: &BTreeMap<String, String>) -> u64 {
    let bytes =
        texts.iter().map(|(name, text)| (name.len() as u64).saturating_add(text.len() as u64));
    bytes.fold(TEXTS_BYTES, |sum, bytes| sum.saturating_add(bytes).saturating_add(TEXT_BYTES))
}

/// The memory of labels, and of those of two series at this evaluation and at the last one.
fn labels_bytes(labels: &Labels) -> u64 {
    let bytes = labels.as_encoded().len() as u64;
    bytes.saturating_add(bytes.saturating_sub(SERIES_LABEL_BYTES).saturating_mul(4))
}

impl Alert {
    /// The memory of the alert and of its annotations, with all copies.
    pub fn memory_bytes(&self) -> u64 {
        self.own_bytes().saturating_add(texts_bytes(&self.annotations))
    }

    /// The memory without annotations.
    fn own_bytes(&self) -> u64 {
        labels_bytes(&self.labels).saturating_add(ALERT_BYTES)
    }

    /// The evaluation at `slot` selected the alert. Always true: the alert is kept.
    fn hit(&mut self, rule: &AlertRule, slot: Timestamp) -> bool {
        self.keep_firing_since = None;
        let holds = slot.saturating_sub(self.active_at) >= rule.hold_ms;
        match self.state {
            AlertState::Pending if holds => {
                self.state = AlertState::Firing;
                self.fired_at = Some(slot);
            }
            // A reload made `for` longer.
            AlertState::Firing if !holds => self.state = AlertState::Pending,
            _ => {}
        }
        true
    }

    /// The evaluation at `slot` did not select the alert. Returns whether it is kept.
    fn miss(&mut self, rule: &AlertRule, slot: Timestamp) -> bool {
        match self.state {
            AlertState::Pending => false,
            AlertState::Firing => {
                if rule.keep_firing_ms > 0 {
                    let since = *self.keep_firing_since.get_or_insert(slot);
                    if slot.saturating_sub(since) < rule.keep_firing_ms {
                        return true;
                    }
                }
                self.state = AlertState::Inactive;
                self.resolved_at = Some(slot);
                true
            }
            AlertState::Inactive => self
                .resolved_at
                .is_some_and(|resolved| slot.saturating_sub(resolved) <= RESOLVED_KEPT_MS),
        }
    }

    fn is_due(&self, slot: Timestamp, resend_ms: i64) -> bool {
        if self.state == AlertState::Pending {
            return false;
        }
        let Some(sent) = self.last_sent_at else { return true };
        self.resolved_at.is_some_and(|resolved| resolved > sent)
            || sent.saturating_add(resend_ms) < slot
    }

    pub(super) fn rows(&self) -> [ResultRow; 2] {
        let state = self.labels.with(METRIC_NAME, ALERTS).with(ALERT_STATE, self.state.text());
        let since = self.labels.with(METRIC_NAME, ALERTS_FOR_STATE);
        let seconds = self.active_at.div_euclid(1_000) as f64;
        [
            ResultRow { labels: state, value: PointValue::Float(1.0) },
            ResultRow { labels: since, value: PointValue::Float(seconds) },
        ]
    }
}

#[cfg(test)]
mod tests;
