//! A remote bucket that counts requests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use firn_env::{Bucket, Fetch, ObjectInfo, PutMode, RangeRequest, plan_fetches};

/// Requests in parallel: the default of [`firn_env::RemoteOptions`].
const SIDE_BY_SIDE: usize = 32;

/// A bucket with additional latency per request; those of one call run in parallel, 32 at a time.
#[derive(Debug)]
pub struct Metered {
    below: Arc<dyn Bucket>,
    delay_ms: AtomicU64,
    in_flight: AtomicU64,
    round_trips: AtomicU64,
    gets: AtomicU64,
    get_bytes: AtomicU64,
    lists: AtomicU64,
}

/// Requests since the count started.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketTraffic {
    /// Calls that started while no other was running: those that waited for earlier ones.
    pub round_trips: u64,
    /// GET requests that an object store client would make for the requested ranges.
    pub gets: u64,
    /// Bytes that they returned.
    pub get_bytes: u64,
    /// Listings.
    pub lists: u64,
}

impl Metered {
    /// No delay yet.
    pub fn new(below: Arc<dyn Bucket>) -> Metered {
        Metered {
            below,
            delay_ms: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            get_bytes: AtomicU64::new(0),
            lists: AtomicU64::new(0),
        }
    }

    /// Sets the latency of every request from now on.
    pub fn set_delay_ms(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Relaxed);
    }

    /// Returns the requests since the last call, and resets the count.
    pub fn take(&self) -> BucketTraffic {
        BucketTraffic {
            round_trips: self.round_trips.swap(0, Relaxed),
            gets: self.gets.swap(0, Relaxed),
            get_bytes: self.get_bytes.swap(0, Relaxed),
            lists: self.lists.swap(0, Relaxed),
        }
    }

    fn wait<T>(&self, request_count: usize, answer: impl FnOnce() -> T) -> T {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            self.round_trips.fetch_add(1, Relaxed);
        }
        let turns = request_count.div_ceil(SIDE_BY_SIDE) as u64;
        std::thread::sleep(Duration::from_millis(turns * self.delay_ms.load(Relaxed)));
        let answer = answer();
        self.in_flight.fetch_sub(1, Relaxed);
        answer
    }
}

impl Bucket for Metered {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<firn_model::Result<Arc<[u8]>>> {
        let fetches: Vec<u64> = plan_fetches(requests).iter().map(Fetch::bytes).collect();
        self.gets.fetch_add(fetches.len() as u64, Relaxed);
        self.get_bytes.fetch_add(fetches.iter().sum(), Relaxed);
        self.wait(fetches.len(), || self.below.get_ranges(requests))
    }

    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> firn_model::Result<ObjectInfo> {
        self.wait(1, || self.below.put(key, bytes, mode))
    }

    fn head(&self, key: &str) -> firn_model::Result<ObjectInfo> {
        self.wait(1, || self.below.head(key))
    }

    fn list(&self, prefix: &str) -> firn_model::Result<Vec<ObjectInfo>> {
        self.lists.fetch_add(1, Relaxed);
        self.wait(1, || self.below.list(prefix))
    }

    fn delete(&self, keys: &[String]) -> firn_model::Result<()> {
        self.wait(keys.len(), || self.below.delete(keys))
    }
}
