//! Counts of scrapes, under this server's names and those that Prometheus' dashboards and alerts
//! use.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use firn_collect::pool::{ScrapePools, SyncReport};
use firn_collect::scrape::TargetScraper;
use firn_fetch::Purpose;
use firn_model::Result;
use firn_yaml::go_duration;
use parking_lot::Mutex;

use super::families::Families;
use crate::duration_summary::{DurationSummary, write_durations};
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;
use crate::throttle::EventCount;

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct ScrapeTotals {
    good: Counter,
    failed: Counter,
    not_written: Counter,
    over_sample_limit: Counter,
    over_body_limit: Counter,
    over_label_limits: Counter,
    over_target_limit: Counter,
    repeated: Counter,
    out_of_bounds: Counter,
    clients_failed: Counter,
    /// By interval in milliseconds: the times between two scrapes of a target.
    interval_lengths: Mutex<BTreeMap<i64, DurationSummary>>,
    /// By job.
    syncs: Mutex<BTreeMap<String, JobSyncs>>,
}

/// The lists of targets of a job.
#[derive(Debug)]
struct JobSyncs {
    /// Targets that cannot be scraped, and lists that could not be used.
    failed_count: u64,
    failure_lines: EventCount,
    lengths: DurationSummary,
}

// Other intervals are not part of the metrics: each takes 4 KiB, and each target may have its own.
const INTERVALS_MAX: usize = 64;
const SCRAPES_KEPT: usize = 256;
// Lists seldom change: this is 512 bytes for each job.
const SYNCS_KEPT: usize = 32;

impl ScrapeTotals {
    /// A scrape begins.
    pub(super) fn begun(&self, scraper: &mut TargetScraper, now: Instant) {
        let Some(length) = scraper.begin(now) else { return };
        let mut lengths = self.interval_lengths.lock();
        let interval_ms = scraper.interval_ms();
        if lengths.len() < INTERVALS_MAX || lengths.contains_key(&interval_ms) {
            let none = || DurationSummary::new(SCRAPES_KEPT, now);
            lengths.entry(interval_ms).or_insert_with(none).add(length, now);
        }
    }

    /// The list of a job was set, which took `length`.
    pub(super) fn synced(&self, job: &str, report: &Result<SyncReport>, length: Duration) {
        let exceeds_limit = report.as_ref().is_ok_and(|report| report.exceeds_limit);
        self.over_target_limit.add(u64::from(exceeds_limit));
        let failed_count = report.as_ref().map_or(1, |report| report.failed_count as u64);
        let now = Instant::now();
        let is_due = {
            let mut jobs = self.syncs.lock();
            let syncs = jobs.entry(job.to_owned()).or_insert_with(|| JobSyncs {
                failed_count: 0,
                failure_lines: EventCount::default(),
                lengths: DurationSummary::new(SYNCS_KEPT, now),
            });
            syncs.lengths.add(length, now);
            syncs.failed_count += failed_count;
            let count = failed_count + u64::from(exceeds_limit);
            count > 0 && syncs.failure_lines.note(count, now).is_some()
        };
        match report {
            _ if !is_due => {}
            Ok(report) => {
                if exceeds_limit {
                    tracing::warn!(job, targets = report.active_count, "target_limit exceeded");
                }
                for error in &report.errors {
                    tracing::warn!(job, error, "a target cannot be scraped");
                }
            }
            Err(error) => {
                tracing::error!(
                    job,
                    %error,
                    "a list of targets was refused: the previous one stays, and it is read again \
                     each minute"
                );
            }
        }
    }

    /// Forgets the lists of all other jobs.
    pub(super) fn retain_jobs(&self, is_job: impl Fn(&String) -> bool) {
        self.syncs.lock().retain(|name, _| is_job(name));
    }

    /// The client of a job could not be made.
    pub(super) fn client_failed(&self, job: &str, error: &str) {
        self.clients_failed.add(1);
        tracing::error!(job, error, "the targets of a job cannot be reached");
    }

    /// A scrape or the end of a target is over.
    pub(super) fn finished(&self, scraper: &TargetScraper, written: &Result<()>) {
        let status = scraper.status();
        match (written, &status.error) {
            (Err(_), _) => self.not_written.add(1),
            (Ok(()), Some(_)) => self.failed.add(1),
            (Ok(()), None) => self.good.add(1),
        }
        self.over_sample_limit.add(u64::from(status.exceeded_sample_limit));
        self.over_body_limit.add(u64::from(status.exceeded_body_limit));
        let is_over = status.error.as_ref().is_some_and(|text| text.contains("_limit exceeded (m"));
        self.over_label_limits.add(u64::from(is_over));
        self.repeated.add(status.counts.repeated);
        self.out_of_bounds.add(status.out_of_bounds);
    }

    /// Samples of scrapes that were written together are left out because of their times.
    pub(super) fn out_of_bounds(&self, sample_count: u64) {
        self.out_of_bounds.add(sample_count);
    }

    pub(super) fn write_text(
        &self,
        pools: &ScrapePools,
        families: &Families,
        text: &mut MetricsText,
    ) {
        let name = "firn_target_scrapes_total";
        let help = "Scrapes of targets: answered and stored, failed, and not stored.";
        text.family(name, Kind::Counter, help);
        for (result, counter) in
            [("ok", &self.good), ("failed", &self.failed), ("not_stored", &self.not_written)]
        {
            text.sample(name, &[("result", result)], counter.get() as f64);
        }
        let name = "firn_target_scrape_pool_list_refused";
        let help = "Whether the last list of targets of a job was refused, so that an earlier one \
                    is used.";
        text.family(name, Kind::Gauge, help);
        for (job, pool) in pools.pools() {
            text.sample(name, &[("scrape_job", job)], f64::from(pool.refused().is_some()));
        }
        for prefix in ["firn", "prometheus"] {
            self.write_shared(prefix, pools, text);
            let name = format!("{prefix}_target_metadata_cache_entries");
            text.family(&name, Kind::Gauge, "Metrics of the targets of a job with type or help.");
            for (job, pool) in pools.pools() {
                let targets = pools.targets(pool);
                let count: usize = targets.map(|target| families.of(target.id).len()).sum();
                text.sample(&name, &[("scrape_job", job)], count as f64);
            }
            let name = format!("{prefix}_target_metadata_cache_bytes");
            let help = "Bytes of the types, help texts and units of the targets of a job; equal \
                        ones of several targets are stored once.";
            text.family(&name, Kind::Gauge, help);
            for (job, pool) in pools.pools() {
                let targets = pools.targets(pool);
                let bytes: usize = targets.map(|target| families.text_bytes(target.id)).sum();
                text.sample(&name, &[("scrape_job", job)], bytes as f64);
            }
        }
    }

    fn write_shared(&self, prefix: &str, pools: &ScrapePools, text: &mut MetricsText) {
        for (name, help, counter) in [
            (
                "target_scrapes_exceeded_sample_limit_total",
                "Scrapes that failed because of sample_limit.",
                &self.over_sample_limit,
            ),
            (
                "target_scrapes_exceeded_body_size_limit_total",
                "Scrapes that failed because of body_size_limit.",
                &self.over_body_limit,
            ),
            (
                "target_scrape_pool_exceeded_label_limits_total",
                "Scrapes that failed because of a limit on labels.",
                &self.over_label_limits,
            ),
            (
                "target_scrape_pool_exceeded_target_limit_total",
                "Lists of targets that were longer than target_limit.",
                &self.over_target_limit,
            ),
            (
                "target_scrapes_sample_duplicate_timestamp_total",
                "Samples of a series and time that an earlier line of the body has.",
                &self.repeated,
            ),
            (
                "target_scrapes_sample_out_of_bounds_total",
                "Samples with times that are not stored.",
                &self.out_of_bounds,
            ),
            (
                "target_scrapes_sample_out_of_order_total",
                "Always 0: samples that are older than the last one are stored.",
                &Counter::default(),
            ),
            (
                "target_scrape_pools_failed_total",
                "Jobs whose client could not be made, for example without its certificate.",
                &self.clients_failed,
            ),
        ] {
            text.counter(&format!("{prefix}_{name}"), help, counter.get() as f64);
        }
        let name = format!("{prefix}_target_scrape_pool_targets");
        text.family(&name, Kind::Gauge, "Targets of a job that are scraped.");
        for (job, pool) in pools.pools() {
            let count = pool.report().active_count as f64;
            text.sample(&name, &[("scrape_job", job)], count);
        }
        let name = format!("{prefix}_target_scrape_pool_target_limit");
        let help = "Upper bound of targets of a job (target_limit); 0 means no limit.";
        text.family(&name, Kind::Gauge, help);
        for (job, pool) in pools.pools() {
            text.sample(&name, &[("scrape_job", job)], pool.job().target_limit as f64);
        }
        let name = format!("{prefix}_target_sync_failed_total");
        text.family(&name, Kind::Counter, "Targets that cannot be scraped, and refused lists.");
        let mut syncs = self.syncs.lock();
        for (job, syncs) in syncs.iter() {
            text.sample(&name, &[("scrape_job", job.as_str())], syncs.failed_count as f64);
        }
        let name = format!("{prefix}_target_scrape_pool_sync_total");
        text.family(&name, Kind::Counter, "Lists of targets of a job that were set.");
        for (job, syncs) in syncs.iter() {
            text.sample(&name, &[("scrape_job", job.as_str())], syncs.lengths.count() as f64);
        }
        let now = Instant::now();
        let lengths = syncs
            .iter_mut()
            .map(|(job, syncs)| (Some(("scrape_job", job.as_str())), &mut syncs.lengths));
        let name = format!("{prefix}_target_sync_length");
        let help = "Times that setting the list of targets of a job took.";
        write_durations((&name, help), &mut lengths.collect::<Vec<_>>(), now, text);
        drop(syncs);
        let mut intervals = self.interval_lengths.lock();
        let names: Vec<String> = intervals.keys().map(|ms| go_duration(*ms)).collect();
        let labels = names.iter().map(|name| Some(("interval", name.as_str())));
        let lengths = labels.zip(intervals.values_mut());
        let name = format!("{prefix}_target_interval_length");
        let help = "Times between the beginnings of two scrapes of a target.";
        write_durations((&name, help), &mut lengths.collect::<Vec<_>>(), now, text);
    }
}

/// Writes the numbers of connections to other servers.
pub(super) fn write_outgoing(text: &mut MetricsText) {
    for (name, help, count) in [
        (
            "firn_outgoing_connections",
            "Open connections to other servers, by purpose.",
            Purpose::connections_open as fn(Purpose) -> usize,
        ),
        (
            "firn_outgoing_connections_max",
            "Connections to other servers that may be open, by purpose.",
            Purpose::connections_max,
        ),
    ] {
        text.family(name, Kind::Gauge, help);
        for purpose in Purpose::ALL {
            text.sample(name, &[("purpose", purpose.label())], count(purpose) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::lines_of;

    /// Before, a list that changes each millisecond filled the log.
    #[test]
    fn failures_of_lists_are_logged_once_a_minute_for_each_job() {
        let totals = ScrapeTotals::default();
        let failed = Ok(SyncReport {
            failed_count: 2,
            errors: vec!["first".to_owned(), "second".to_owned()],
            ..SyncReport::default()
        });
        let lines = lines_of(|| {
            for _ in 0..1_000 {
                for job in ["a", "b"] {
                    totals.synced(job, &Ok(SyncReport::default()), Duration::ZERO);
                    totals.synced(job, &failed, Duration::ZERO);
                }
            }
        });
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].contains("first"), "{lines:?}");
        assert_eq!(totals.syncs.lock()["a"].failed_count, 2_000);
    }
}
