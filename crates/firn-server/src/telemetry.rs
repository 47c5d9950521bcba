//! The server's own metrics and those of its process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firn_model::Error;
use parking_lot::Mutex;

use crate::metrics_text::{Kind, MetricsText};
use crate::tally::{Protocol, Tallies, Tally};
use crate::throttle::Throttle;

/// The server's counters. Updated per request, never per sample.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    durations: Mutex<BTreeMap<String, Durations>>,
    pub(crate) tallies: Tallies,
    pub(crate) written: Written,
    pub(crate) samples_read: Counter,
    pub(crate) remote_reads: Gauge,
    pub(crate) self_scrape_failures: Counter,
    rejections: Throttle,
    failures: Throttle,
}

/// Counters of the write path.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes_compressed: Counter,
    pub(crate) bytes_unpacked: Counter,
    pub(crate) exemplars_ignored: Counter,
}

/// A number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

/// A number that rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

/// How long requests of one handler took.
#[derive(Debug, Default)]
struct Durations {
    counts: [u64; BUCKETS.len()],
    over: u64,
    seconds_sum: f64,
}

const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    pub(crate) fn rise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Once for each time that it rose.
    pub(crate) fn fall(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Telemetry {
    /// Counts a completed request. `handler` is a route, of which there are few.
    pub(crate) fn answered(&self, handler: &str, status: u16, took: Duration) {
        *self.requests.lock().entry((handler.to_owned(), status)).or_default() += 1;
        let mut durations = self.durations.lock();
        let durations = durations.entry(handler.to_owned()).or_default();
        let seconds = took.as_secs_f64();
        match BUCKETS.iter().position(|&bound| seconds <= bound) {
            Some(idx) => durations.counts[idx] += 1,
            None => durations.over += 1,
        }
        durations.seconds_sum += seconds;
    }

    /// Counts the samples of a request, and logs that some of them were rejected, with the reason
    /// of this request. An empty text is replaced by the names of the reasons.
    pub(crate) fn tally(&self, protocol: Protocol, tally: &Tally, why: &dyn fmt::Display) {
        self.tallies.add(protocol, tally);
        if let Some(samples) = self.rejections.note(tally.rejected_count(), Instant::now()) {
            let why = tally.explain(why);
            tracing::warn!("rejected {samples} samples; the last by {}: {why}", protocol.name());
        }
    }

    /// Logs that a request failed by no fault of the client.
    pub(crate) fn log_failure(&self, request: &str, error: &Error) {
        if let Some(count) = self.failures.note(1, Instant::now()) {
            tracing::error!("{count} requests failed; the last was {request}: {error}");
        }
    }

    /// Writes all of it.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        self.write_requests("firn_http_requests_total", text);
        self.write_durations(text);

        self.tallies.write_text(text);
        let written = &self.written;
        text.family(
            "firn_write_received_bytes_total",
            Kind::Counter,
            "Bytes of write requests, as received (compressed) and decompressed (decoded).",
        );
        for (stage, counter) in
            [("compressed", &written.bytes_compressed), ("decoded", &written.bytes_unpacked)]
        {
            text.sample(
                "firn_write_received_bytes_total",
                &[("stage", stage)],
                counter.get() as f64,
            );
        }
        text.counter(
            "firn_write_dropped_exemplars_total",
            "Exemplars that were accepted and dropped.",
            written.exemplars_ignored.get() as f64,
        );
        text.gauge(
            "firn_remote_read_requests",
            "Remote reads that run, send or wait.",
            self.remote_reads.get() as f64,
        );
        text.counter(
            "firn_query_read_samples_total",
            "Samples read from storage by queries and remote reads.",
            self.samples_read.get() as f64,
        );
        text.counter(
            "firn_self_scrape_errors_total",
            "Scrapes of the server by itself that could not be stored.",
            self.self_scrape_failures.get() as f64,
        );
    }

    /// Writes the numbers of requests as the metric `name`.
    pub(crate) fn write_requests(&self, name: &str, text: &mut MetricsText) {
        let help = "Completed HTTP requests by handler and status code.";
        text.family(name, Kind::Counter, help);
        for ((handler, status), count) in self.requests.lock().iter() {
            let labels = [("handler", handler.as_str()), ("code", &status.to_string())];
            text.sample(name, &labels, *count as f64);
        }
    }

    fn write_durations(&self, text: &mut MetricsText) {
        const NAME: &str = "firn_http_request_duration_seconds";
        text.family(
            NAME,
            Kind::Histogram,
            "Time from the end of the request header to the end of the response.",
        );
        for (handler, durations) in self.durations.lock().iter() {
            let mut count = 0;
            for (bound, in_bucket) in BUCKETS.iter().zip(durations.counts) {
                count += in_bucket;
                // As Prometheus 3 writes it: always with a point.
                let labels = [("handler", handler.as_str()), ("le", &format!("{bound:?}"))];
                text.sample("firn_http_request_duration_seconds_bucket", &labels, count as f64);
            }
            count += durations.over;
            let labels = [("handler", handler.as_str()), ("le", "+Inf")];
            text.sample("firn_http_request_duration_seconds_bucket", &labels, count as f64);
            let labels = [("handler", handler.as_str())];
            let sum = durations.seconds_sum;
            text.sample("firn_http_request_duration_seconds_sum", &labels, sum);
            text.sample("firn_http_request_duration_seconds_count", &labels, count as f64);
        }
    }
}

/// Writes the process metrics of the operating system, from `/proc`; unavailable ones are omitted.
pub(crate) fn write_process(text: &mut MetricsText) {
    // The kernel counts in hundredths of a second on every Linux (USER_HZ).
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, the name in parentheses, may hold blanks; fields are counted behind it.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect())
        .unwrap_or_default();
    if let (Some(user), Some(system)) = (fields.get(11), fields.get(12)) {
        text.counter(
            "process_cpu_seconds_total",
            "User and system CPU time.",
            (user + system) / TICKS_PER_SECOND,
        );
    }
    if let Some(threads) = fields.get(17) {
        text.gauge("process_threads", "Threads of the process.", *threads);
    }
    let machine = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted_s = machine.lines().find_map(|line| line.strip_prefix("btime "));
    let booted_s = booted_s.and_then(|seconds| seconds.parse::<f64>().ok());
    if let (Some(booted_s), Some(ticks)) = (booted_s, fields.get(19)) {
        text.gauge(
            "process_start_time_seconds",
            "Start time of the process since the epoch.",
            booted_s + ticks / TICKS_PER_SECOND,
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, name, help) in [
        ("VmRSS:", "process_resident_memory_bytes", "Resident memory size."),
        ("VmSize:", "process_virtual_memory_bytes", "Virtual memory size."),
    ] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        if let Some(kib) = kib {
            text.gauge(name, help, kib * 1_024.0);
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        text.gauge("process_open_fds", "Open file descriptors.", open.count() as f64);
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let files = files.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    if let Some(files) = files {
        text.gauge("process_max_fds", "Open file descriptors at most.", files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decoded::{Decoded, SpanHasher};
    use crate::wire::exposition;

    #[test]
    fn its_output_can_be_imported() {
        let telemetry = Telemetry::default();
        telemetry.answered("/api/v1/query", 200, Duration::from_millis(3));
        telemetry.answered("a\"b\\c\nd", 500, Duration::from_secs(100));
        let mut text = MetricsText::default();
        telemetry.write_text(&mut text);
        telemetry.write_requests("prometheus_http_requests_total", &mut text);
        write_process(&mut text);
        let text = text.finish();
        let line = "prometheus_http_requests_total{handler=\"/api/v1/query\",code=\"200\"} 1\n";
        assert!(text.contains(line), "{text}");
        let mut decoded = Decoded::default();
        decoded.clear(1 << 20);
        exposition::decode(text.as_bytes(), 7, 0, &SpanHasher::random(), &mut decoded).unwrap();
        assert!(text.contains(
            "firn_http_request_duration_seconds_bucket{handler=\"/api/v1/query\",le=\"0.005\"} 1\n"
        ));
        assert!(text.contains("{handler=\"a\\\"b\\\\c\\nd\",le=\"60.0\"} 0\n"), "{text}");
        for name in ["resident_memory_bytes", "start_time_seconds", "max_fds", "open_fds"] {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{name}: {text}");
        }
        assert!(decoded.samples.iter().all(|sample| sample.ts == 7));
        assert!(decoded.metadata.entries().iter().any(|(name, known)| {
            **name == *"firn_http_requests_total"
                && *known.help == *"Completed HTTP requests by handler and status code."
        }));
    }
}
