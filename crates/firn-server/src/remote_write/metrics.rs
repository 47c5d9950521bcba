//! The counters of a destination.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::metrics_text::{Kind, MetricsText};

/// A number that one task writes and others read.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one destination since the start.
#[derive(Debug, Default)]
pub(super) struct SenderTotals {
    /// Samples in requests, repeated ones included.
    pub(super) samples: Number,
    /// Samples that the receiver refused.
    pub(super) failed: Number,
    /// Samples in requests that were repeated.
    pub(super) retried: Number,
    /// Samples that a rule dropped, or whose series was removed.
    pub(super) dropped_series: Number,
    /// Samples that were sent just before.
    pub(super) repeated: Number,
    /// Samples beyond `sample_age_limit`.
    pub(super) dropped_old: Number,
    /// Rows that damage of the log made unreadable, or that never fit into the memory.
    pub(super) lost_rows: Number,
    /// Samples of the current window that are not decided.
    pub(super) pending: Number,
    /// Bytes of sent bodies.
    pub(super) bytes: Number,
    /// Entries of metadata in requests, and those of requests that failed.
    pub(super) metadata: Number,
    pub(super) metadata_failed: Number,
    /// Shards of the current window.
    pub(super) shards: Number,
    /// Bytes of the log that the destination has not received.
    pub(super) behind_bytes: Number,
    highest_read_ms: AtomicI64,
    highest_sent_ms: AtomicI64,
}

/// A destination and its counters, for the metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) url: &'a str,
    pub(super) totals: &'a SenderTotals,
    pub(super) shard_count_max: u64,
    pub(super) shard_count_min: u64,
    pub(super) capacity: u64,
    pub(super) samples_per_send_max: u64,
}

impl SenderTotals {
    pub(super) fn note_read(&self, ts: i64) {
        self.highest_read_ms.fetch_max(ts, Ordering::Relaxed);
    }

    pub(super) fn note_sent(&self, ts: i64) {
        self.highest_sent_ms.fetch_max(ts, Ordering::Relaxed);
    }

    fn highest_sent_s(&self) -> f64 {
        self.highest_sent_ms.load(Ordering::Relaxed) as f64 / 1e3
    }

    /// The newest sample for this destination. While it is behind the log, samples of about `now`
    /// wait for it.
    fn highest_ms(&self, now_ms: i64) -> i64 {
        let read = self.highest_read_ms.load(Ordering::Relaxed);
        let is_behind = self.pending.get() > 0 || self.behind_bytes.get() > 0;
        if is_behind && read > 0 { read.max(now_ms) } else { read }
    }
}

type MetricValue = fn(&Named<'_>) -> f64;

const FAMILIES: [(&str, Kind, &str, MetricValue); 16] = [
    ("samples_total", Kind::Counter, "Samples in requests, repeated ones included.", |to| {
        to.totals.samples.get() as f64
    }),
    ("samples_failed_total", Kind::Counter, "Samples that the receiver refused.", |to| {
        to.totals.failed.get() as f64
    }),
    ("samples_retried_total", Kind::Counter, "Samples in requests that were repeated.", |to| {
        to.totals.retried.get() as f64
    }),
    (
        "enqueue_retries_total",
        Kind::Counter,
        "Always 0: the log is read only as fast as its samples are sent.",
        |_| 0.0,
    ),
    ("samples_pending", Kind::Gauge, "Samples that are being sent.", |to| {
        to.totals.pending.get() as f64
    }),
    ("bytes_total", Kind::Counter, "Bytes of request bodies, compressed.", |to| {
        to.totals.bytes.get() as f64
    }),
    ("metadata_total", Kind::Counter, "Entries of metadata in requests.", |to| {
        to.totals.metadata.get() as f64
    }),
    ("metadata_failed_total", Kind::Counter, "Entries of metadata that were not sent.", |to| {
        to.totals.metadata_failed.get() as f64
    }),
    ("shards", Kind::Gauge, "Requests that are sent at the same time.", |to| {
        to.totals.shards.get() as f64
    }),
    ("shards_desired", Kind::Gauge, "Shards that the waiting samples need.", |to| {
        to.totals.shards.get() as f64
    }),
    ("shards_max", Kind::Gauge, "Upper bound of shards.", |to| to.shard_count_max as f64),
    ("shards_min", Kind::Gauge, "Lower bound of shards.", |to| to.shard_count_min as f64),
    ("shard_capacity", Kind::Gauge, "Samples that a shard may hold.", |to| to.capacity as f64),
    ("max_samples_per_send", Kind::Gauge, "Upper bound of samples per request.", |to| {
        to.samples_per_send_max as f64
    }),
    (
        "queue_highest_sent_timestamp_seconds",
        Kind::Gauge,
        "Newest timestamp that was sent.",
        |to| to.totals.highest_sent_s(),
    ),
    (
        "lost_rows_total",
        Kind::Counter,
        "Rows that were not sent: their log is damaged, or they take over half of the memory.",
        |to| to.totals.lost_rows.get() as f64,
    ),
];

/// The metrics under `prefix`, such as `prometheus_remote_storage`.
pub(super) fn write_text(prefix: &str, all: &[Named<'_>], now_ms: i64, text: &mut MetricsText) {
    if all.is_empty() {
        return;
    }
    let highest_ms = all.iter().map(|to| to.totals.highest_ms(now_ms)).max().unwrap_or(0);
    text.gauge(
        &format!("{prefix}_highest_timestamp_in_seconds"),
        "Newest timestamp to send.",
        highest_ms as f64 / 1e3,
    );
    let name = format!("{prefix}_queue_highest_timestamp_seconds");
    text.family(&name, Kind::Gauge, "Newest timestamp to send to a destination.");
    for to in all {
        let labels = [("remote_name", to.name), ("url", to.url)];
        text.sample(&name, &labels, to.totals.highest_ms(now_ms) as f64 / 1e3);
    }
    for (name, kind, help, value) in FAMILIES {
        let name = format!("{prefix}_{name}");
        text.family(&name, kind, help);
        for to in all {
            text.sample(&name, &[("remote_name", to.name), ("url", to.url)], value(to));
        }
    }
    let name = format!("{prefix}_samples_dropped_total");
    text.family(&name, Kind::Counter, "Samples that were not sent.");
    for to in all {
        let reasons = [
            ("dropped_series", &to.totals.dropped_series),
            ("repeated", &to.totals.repeated),
            ("too_old", &to.totals.dropped_old),
        ];
        for (reason, count) in reasons {
            let labels = [("remote_name", to.name), ("url", to.url), ("reason", reason)];
            text.sample(&name, &labels, count.get() as f64);
        }
    }
    let name = format!("{prefix}_log_behind_bytes");
    text.family(&name, Kind::Gauge, "Bytes of the log that wait for the destination.");
    for to in all {
        let labels = [("remote_name", to.name), ("url", to.url)];
        text.sample(&name, &labels, to.totals.behind_bytes.get() as f64);
    }
}
