//! Metrics of rules, under this server's prefix and under that of Prometheus, whose dashboards and
//! alerts read the same names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::templates::TemplateCounters;
use super::view::ShownGroup;
use crate::duration_summary::{DurationSummary, write_durations};
use crate::metrics_text::{Kind, MetricsText};

/// Counters of all groups together.
#[derive(Debug, Default)]
pub(super) struct RuleCounters {
    /// Files of alerts that could not be written or read.
    pub(super) failed_saves: AtomicU64,
    pub(super) failed_loads: AtomicU64,
    pub(super) templates: TemplateCounters,
    /// Evaluations of rules.
    pub(super) rules: Times,
    /// Evaluations of groups.
    pub(super) groups: Times,
}

/// Durations of some events.
#[derive(Debug)]
pub(super) struct Times(Mutex<DurationSummary>);

// 16 KiB.
const TIMES_KEPT: usize = 1_024;

impl Default for Times {
    fn default() -> Times {
        Times(Mutex::new(DurationSummary::new(TIMES_KEPT, Instant::now())))
    }
}

impl Times {
    pub(super) fn add(&self, took: Duration) {
        self.0.lock().add(took, Instant::now());
    }
}

impl RuleCounters {
    /// Writes all metrics with names that begin with `prefix`.
    pub(super) fn write_text(
        &self,
        prefix: &str,
        groups: &[Arc<ShownGroup>],
        text: &mut MetricsText,
    ) {
        let expansions = self.templates.expansions.load(Ordering::Relaxed);
        text.counter(
            &format!("{prefix}_template_text_expansions_total"),
            "Templates of labels and annotations that were expanded.",
            expansions as f64,
        );
        text.counter(
            &format!("{prefix}_template_text_expansion_failures_total"),
            "Templates of labels and annotations that failed.",
            self.templates.failures.load(Ordering::Relaxed) as f64,
        );
        text.counter(
            &format!("{prefix}_rule_alert_save_failures_total"),
            "Deliveries of alerts that were not saved: a restart may repeat them.",
            self.failed_saves.load(Ordering::Relaxed) as f64,
        );
        text.counter(
            &format!("{prefix}_rule_alert_load_failures_total"),
            "Groups whose saved alerts were not loaded at the start.",
            self.failed_loads.load(Ordering::Relaxed) as f64,
        );
        for (name, help, times) in [
            ("rule_evaluation_duration", "Durations of evaluations of rules.", &self.rules),
            ("rule_group_duration", "Durations of evaluations of groups.", &self.groups),
        ] {
            let (name, mut times) = (format!("{prefix}_{name}"), times.0.lock());
            write_durations((&name, help), &mut [(None, &mut *times)], Instant::now(), text);
        }
        if groups.is_empty() {
            return;
        }
        for (name, kind, help, value) in FAMILIES {
            let name = format!("{prefix}_rule_{name}");
            text.family(&name, kind, help);
            for group in groups {
                text.sample(&name, &[("rule_group", &group.key())], value(group));
            }
        }
    }
}

type RuleFamily = (&'static str, Kind, &'static str, fn(&ShownGroup) -> f64);

const FAMILIES: [RuleFamily; 11] = [
    ("evaluations_total", Kind::Counter, "Evaluations of rules by group.", |group| {
        group.counters.evaluations.load(Ordering::Relaxed) as f64
    }),
    ("evaluation_failures_total", Kind::Counter, "Evaluations of rules that failed.", |group| {
        group.counters.failures.load(Ordering::Relaxed) as f64
    }),
    ("group_iterations_total", Kind::Counter, "Slots of groups, missed ones included.", |group| {
        group.counters.iterations.load(Ordering::Relaxed) as f64
    }),
    (
        "group_iterations_missed_total",
        Kind::Counter,
        "Slots of groups that passed while the previous evaluation ran.",
        |group| group.counters.missed.load(Ordering::Relaxed) as f64,
    ),
    ("group_interval_seconds", Kind::Gauge, "Time between two slots of a group.", |group| {
        group.interval_ms as f64 / 1e3
    }),
    (
        "group_last_evaluation_timestamp_seconds",
        Kind::Gauge,
        "Time of the last evaluation of a group.",
        |group| group.latest().began.map_or(0.0, |began| began as f64 / 1e3),
    ),
    (
        "group_last_duration_seconds",
        Kind::Gauge,
        "Duration of the last evaluation of a group.",
        |group| group.latest().took.as_secs_f64(),
    ),
    (
        "group_last_rule_duration_sum_seconds",
        Kind::Gauge,
        "Sum of the durations of all rules in the last evaluation of a group.",
        |group| group.latest().rules.iter().map(|rule| rule.took.as_secs_f64()).sum(),
    ),
    (
        "group_last_restore_duration_seconds",
        Kind::Gauge,
        "Duration of the last restoration of alerts of a group.",
        |group| group.counters.restore_ns.load(Ordering::Relaxed) as f64 / 1e9,
    ),
    ("group_rules", Kind::Gauge, "Rules of a group.", |group| group.rules.len() as f64),
    (
        "group_last_evaluation_samples",
        Kind::Gauge,
        "Samples that the last evaluation of a group returned.",
        |group| group.latest().sample_count as f64,
    ),
];
