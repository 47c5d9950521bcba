//! The thread that writes slabs, so that no set or get waits for the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use firn_model::{Error, Result};

/// How long the thread sleeps without work if nothing wakes it: some work arrives without a
/// wake-up.
const PAUSE: Duration = Duration::from_millis(250);

/// Wakes the background thread of a cache. At most one [`Background`] listens.
#[derive(Debug, Default)]
pub struct Wake(OnceLock<Thread>);

impl Wake {
    /// Wakes the thread: there is work.
    pub(crate) fn call(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// A thread that does a cache's background work until this is dropped.
#[derive(Debug)]
pub struct Background {
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread `name`, which `wake` wakes. `work` does one unit and returns whether there
    /// was any: [`Store::work`](crate::Store::work),
    /// [`ResultCache::work`](crate::ResultCache::work).
    ///
    /// # Errors
    /// `Unavailable` when the thread cannot be started.
    pub fn start(
        name: &str,
        wake: Arc<Wake>,
        work: impl Fn() -> bool + Send + 'static,
    ) -> Result<Background> {
        Background::start_pausing(name, wake, PAUSE, work)
    }

    #[expect(clippy::disallowed_methods, reason = "`firn cache` has no engine and no lanes")]
    fn start_pausing(
        name: &str,
        wake: Arc<Wake>,
        pause: Duration,
        work: impl Fn() -> bool + Send + 'static,
    ) -> Result<Background> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_closed);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                // Before the first unit of work: work that arrives from now on wakes the thread.
                let _ = wake.0.set(std::thread::current());
                while !seen.load(Ordering::Acquire) {
                    if !work() {
                        std::thread::park_timeout(pause);
                    }
                }
            })
            .map_err(|e| Error::unavailable("cannot start a cache's thread").because(e))?;
        Ok(Background { is_closed, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has printed the reason; the cache is optional.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use firn_model::{Budget, CommitSeq, TimeRange};
    use firn_sim::Sim;

    use super::*;
    use crate::store::{Fill, OwnerHistory, Point, Store, StoreOptions};

    /// A set that fills a slab wakes the idle thread: more is kept than may wait in memory.
    #[test]
    fn a_sealed_slab_is_written_without_a_pause() {
        let options =
            StoreOptions { slab_bytes: 16 << 10, waiting_slabs_max: 1, ..StoreOptions::default() };
        let (disk, budget) = (Sim::new(1).env().disk, Budget::new(8 << 20));
        let store = Store::open(disk, "points", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
        let (store, looks) = (Arc::new(store), Arc::new(AtomicU64::new(0)));
        let (worker, looked) = (Arc::clone(&store), Arc::clone(&looks));
        let work = move || {
            let is_done = worker.work();
            looked.fetch_add(u64::from(!is_done), Ordering::Release);
            is_done
        };
        let a_year = Duration::from_secs(365 * 86_400);
        let _thread = Background::start_pausing("test", store.wake(), a_year, work).unwrap();
        let begun = Instant::now();
        let wait_for = |is_there: &dyn Fn() -> bool| {
            while !is_there() {
                assert!(begun.elapsed() < Duration::from_secs(60), "no slab is written: {store:?}");
                std::thread::yield_now();
            }
        };
        wait_for(&|| looks.load(Ordering::Acquire) > 0);
        // Each set seals the slab of the previous one, which must be written first.
        let payload = vec![7; 9 << 10];
        for ts in 0..5 {
            let (range, number) = (TimeRange::at(ts), CommitSeq(0));
            let points = [Point { ts, head: None, payload: &payload }];
            let fill = Fill { key: b"k", field: 0, range, number, note: b"", points: &points };
            wait_for(&|| store.set(&fill) == range);
        }
        assert!(store.stats().slabs_written >= 4);
    }
}
