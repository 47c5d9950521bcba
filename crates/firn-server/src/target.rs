//! The only scrape target: the server itself.

use std::net::SocketAddr;
use std::time::Duration;

use firn_model::Timestamp;
use parking_lot::Mutex;

use crate::metadata::MetadataStore;

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
        Target { address, job, interval, metadata, last }
    }

    /// How long a scrape may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.interval.min(TIMEOUT_MAX)
    }

    /// A scrape is over.
    pub(crate) fn scraped(&self, scrape: Scrape) {
        *self.last.lock() = Some(scrape);
    }

    /// The last scrape.
    pub(crate) fn last(&self) -> Option<Scrape> {
        self.last.lock().clone()
    }
}
