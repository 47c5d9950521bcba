//! The state of the database and of its queries under the names of Prometheus, which its dashboards
//! and alerts use. The parts that scrape, evaluate and send have theirs beside ours.

use std::time::{Duration, Instant};

use firndb::Stats;
use parking_lot::Mutex;

use crate::duration_summary::{DurationSummary, write_durations};
use crate::metrics_text::{Kind, MetricsText};

/// The time of each PromQL query of a client, by part.
#[derive(Debug)]
pub(crate) struct QueryDurations(Mutex<[DurationSummary; SLICES.len()]>);

/// The load of the threads for queries.
#[derive(Debug)]
pub(crate) struct QueryLoad<'a> {
    /// Queries that run or wait for a thread.
    pub(crate) query_count: u64,
    pub(crate) thread_count: u64,
    pub(crate) durations: &'a QueryDurations,
    /// `None` without a query log.
    pub(crate) lost_log_lines: Option<u64>,
}

const SLICES: [&str; 2] = ["inner_eval", "queue_time"];
// 4 KiB for each part.
const QUERIES_KEPT: usize = 256;

impl QueryDurations {
    /// No queries.
    pub(crate) fn new(now: Instant) -> QueryDurations {
        let none = |_| DurationSummary::new(QUERIES_KEPT, now);
        QueryDurations(Mutex::new(SLICES.map(none)))
    }

    /// A query was evaluated in `evaluated`, after it had waited for a thread.
    pub(crate) fn add(&self, evaluated: Duration, waited: Duration) {
        let now = Instant::now();
        for (durations, took) in self.0.lock().iter_mut().zip([evaluated, waited]) {
            durations.add(took, now);
        }
    }
}

/// Writes the metrics. `is_sending` is true if there is a destination of remote write.
pub(crate) fn write_text(
    queries: &QueryLoad<'_>,
    stats: &Stats,
    is_sending: bool,
    text: &mut MetricsText,
) {
    let name = "prometheus_build_info";
    text.family(name, Kind::Gauge, "Constant 1; the label names the running version of FirnDB.");
    text.sample(name, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    for (name, help, value) in [
        ("engine_queries", "Queries that run or wait for a thread.", queries.query_count),
        (
            "engine_queries_concurrent_max",
            "Queries that run at the same time at most.",
            queries.thread_count,
        ),
        (
            "engine_query_log_enabled",
            "1 if queries are logged.",
            u64::from(queries.lost_log_lines.is_some()),
        ),
        ("tsdb_head_series", "Series in the index.", stats.index.series_count),
    ] {
        text.gauge(&format!("prometheus_{name}"), help, value as f64);
    }
    let mut durations = queries.durations.0.lock();
    let mut slices: Vec<_> = SLICES
        .iter()
        .zip(durations.iter_mut())
        .map(|(slice, durations)| (Some(("slice", *slice)), durations))
        .collect();
    let name = ("prometheus_engine_query_duration", "Time of PromQL queries of clients by part.");
    write_durations(name, &mut slices, Instant::now(), text);
    drop(durations);
    let written = stats.samples_written as f64;
    let name = "prometheus_tsdb_head_samples_appended_total";
    text.family(name, Kind::Counter, "Samples written by all protocols.");
    text.sample(name, &[("type", "float")], written);
    let traffic = &stats.tree.traffic;
    for (name, help, value) in [
        (
            "engine_query_log_failures_total",
            "Lines that the query log has lost.",
            queries.lost_log_lines.unwrap_or(0),
        ),
        ("tsdb_compactions_total", "Merges of local tables.", traffic.compactions),
        (
            "tsdb_compactions_failed_total",
            "Failed background jobs; each is retried.",
            stats.maintenance_errors,
        ),
    ] {
        text.counter(&format!("prometheus_{name}"), help, value as f64);
    }
    if is_sending {
        let name = "prometheus_remote_storage_samples_in_total";
        text.counter(name, "Written samples, which are sent to each destination.", written);
    }
}
