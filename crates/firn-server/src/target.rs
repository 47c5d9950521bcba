//! The target of the server's scrape of itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firn_model::Timestamp;
use parking_lot::Mutex;

use crate::metadata::MetadataStore;
use crate::throttle::Throttle;

/// A target and the outcome of its last scrape.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its listen address: label `instance` of its series.
    pub(crate) address: SocketAddr,
    /// Label `job` of its series, and the name of its scrape pool.
    pub(crate) job: String,
    /// Time between two scrapes.
    pub(crate) interval: Duration,
    /// The metadata of its last scrape.
    pub(crate) metadata: MetadataStore,
    /// Failed scrapes, for the log.
    failures: Throttle,
    last: Mutex<Option<Scrape>>,
}

/// One scrape.
#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    /// When it began.
    pub(crate) ts: Timestamp,
    pub(crate) took: Duration,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

// Prometheus' default; a scrape is not longer than its interval either.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

// The server has some hundred metrics.
const METADATA_BYTES_MAX: u64 = 1 << 20;

impl Target {
    /// A target that was not scraped yet.
    pub(crate) fn new(address: SocketAddr, job: String, interval: Duration) -> Target {
        let (metadata, last) = (MetadataStore::new(METADATA_BYTES_MAX), Mutex::new(None));
        Target { address, job, interval, metadata, failures: Throttle::default(), last }
    }

    /// How long a scrape may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.interval.min(TIMEOUT_MAX)
    }

    /// A scrape is over. Returns the error and the number of failures since the previous line of
    /// the log, if a line is due.
    pub(crate) fn scraped(&self, scrape: Scrape) -> Option<(String, u64)> {
        let error = scrape.error.clone();
        *self.last.lock() = Some(scrape);
        let error = error?;
        self.failures.note(1, Instant::now()).map(|count| (error, count))
    }

    /// The last scrape.
    pub(crate) fn last(&self) -> Option<Scrape> {
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, each was a line: with a short interval and little memory, 150 per second.
    #[test]
    fn failed_scrapes_are_one_line_a_minute() {
        let target =
            Target::new(([127, 0, 0, 1], 9420).into(), "job".into(), Duration::from_millis(100));
        let scraped = |error: Option<&str>| {
            target.scraped(Scrape { ts: 1, took: Duration::ZERO, error: error.map(str::to_owned) })
        };
        assert_eq!(scraped(None), None);
        assert_eq!(scraped(Some("no memory")), Some(("no memory".to_owned(), 1)));
        for _ in 0..1_000 {
            assert_eq!(scraped(Some("no memory")), None);
        }
        assert_eq!(target.last().and_then(|last| last.error).as_deref(), Some("no memory"));
    }
}
