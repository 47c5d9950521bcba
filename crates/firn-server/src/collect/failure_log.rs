//! The logs of failed scrapes, `scrape_failure_log_file`: a JSON line for each scrape that ended
//! without a body, as in Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_collect::config::{ScrapeConfig, Url};
use firn_collect::scrape::TargetScraper;
use firn_model::excerpt_within;
use parking_lot::Mutex;

use crate::access::line_log::{ForbiddenFiles, LineLog};
use crate::clock::clock_ms;
use crate::metrics_text::MetricsText;
use crate::wire::json::push_string;
use crate::wire::number::rfc3339;

/// Longer texts are cut.
const TEXT_BYTES_MAX: usize = 4_096;

/// The open logs by path.
#[derive(Debug, Default)]
pub(super) struct FailureLogs(Mutex<BTreeMap<String, LineLog>>);

// Each has a thread and up to 8 MiB of lines that wait for its device.
const LOGS_MAX: usize = 4;

impl FailureLogs {
    /// Opens the logs of `jobs`; those that are open are opened again, because another program may
    /// have moved them away. A log that cannot be opened is an error in the server's log.
    pub(super) fn set(&self, jobs: &[Arc<ScrapeConfig>], forbidden: &ForbiddenFiles) {
        let paths = jobs.iter().map(|job| &job.scrape_failure_log_file);
        let mut wanted: BTreeSet<&str> =
            paths.filter(|path| !path.is_empty()).map(|path| path.as_str()).collect();
        while wanted.len() > LOGS_MAX {
            let path = wanted.pop_last();
            tracing::error!(path, "scrape_failure_log_file: at most {LOGS_MAX} files are written");
        }
        let (unused, missing) = {
            let mut logs = self.0.lock();
            let unused: Vec<LineLog> = logs
                .extract_if(.., |path, _| !wanted.contains(path.as_str()))
                .map(|p| p.1)
                .collect();
            logs.values().for_each(|log| log.reopen(forbidden.inputs.clone()));
            wanted.retain(|path| !logs.contains_key(*path));
            (unused, wanted)
        };
        // A device that hangs delays only this thread.
        drop(unused);
        for path in missing {
            match LineLog::open(path.as_ref(), "scrape_failure_log_file", forbidden.clone()) {
                Ok(log) => drop(self.0.lock().insert(path.to_owned(), log)),
                Err(error) => tracing::error!(%error, "failed scrapes are not logged"),
            }
        }
    }

    /// Adds a line if the last scrape of a target ended without a body.
    pub(super) fn add(&self, scraper: &TargetScraper) {
        let (job, status) = (scraper.job(), scraper.status());
        let Some(error) = status.error.as_ref().filter(|_| status.has_no_body) else { return };
        if let Some(log) = self.0.lock().get(job.scrape_failure_log_file.as_str()) {
            log.push(line(error, &job.job_name, &Url::shown(&scraper.target().url(job))));
        }
    }

    /// Writes the number of lost lines, if there is a log.
    pub(super) fn write_text(&self, text: &mut MetricsText) {
        let logs = self.0.lock();
        if !logs.is_empty() {
            let name = "firn_scrape_failure_log_dropped_lines_total";
            let help = "Lines of scrape_failure_log_file that were lost because a device was slow \
                        or failed.";
            text.counter(name, help, logs.values().map(|log| log.counts().1 as f64).sum());
        }
    }
}

/// The fields of Prometheus, in its order.
fn line(error: &str, job: &str, target: &str) -> Vec<u8> {
    // A discovery names the target, and a target repeats its texts in errors.
    let cut = |text| excerpt_within(text, TEXT_BYTES_MAX);
    let mut line = Vec::new();
    for (name, value) in [
        ("{\"time\":", &*rfc3339(clock_ms())),
        (",\"level\":", "ERROR"),
        (",\"msg\":", &*cut(error)),
        (",\"job_name\":", job),
        (",\"target\":", &*cut(target)),
    ] {
        line.extend_from_slice(name.as_bytes());
        push_string(value, &mut line);
    }
    line.push(b'}');
    line
}
