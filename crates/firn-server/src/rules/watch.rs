//! The time limit of queries that run on threads of rules.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use firn_model::CancelToken;
use parking_lot::Mutex;

/// The running queries of rules with their time limits.
#[derive(Debug, Default)]
pub(super) struct QueryWatch {
    queries: Mutex<WatchedQueries>,
}

#[derive(Debug, Default)]
struct WatchedQueries {
    running: BTreeMap<u64, (Instant, CancelToken)>,
    next_id: u64,
    is_stopped: bool,
}

/// A query that is watched until this is dropped.
#[derive(Debug)]
pub(super) struct WatchedQuery<'w> {
    watch: &'w QueryWatch,
    id: u64,
}

impl QueryWatch {
    /// Watches the query of `cancel`. A stopped watch cancels it at once.
    pub(super) fn watch(&self, cancel: &CancelToken, timeout: Duration) -> WatchedQuery<'_> {
        let mut queries = self.queries.lock();
        if queries.is_stopped {
            cancel.cancel();
        }
        let id = queries.next_id;
        queries.next_id = id.wrapping_add(1);
        let now = Instant::now();
        // A time limit beyond the clock's range never expires.
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        queries.running.insert(id, (deadline, cancel.clone()));
        WatchedQuery { watch: self, id }
    }

    /// Times out the queries whose limit has passed at `now`.
    pub(super) fn expire(&self, now: Instant) {
        let queries = self.queries.lock();
        for (deadline, cancel) in queries.running.values() {
            if *deadline <= now {
                cancel.time_out();
            }
        }
    }

    /// Cancels all queries, later ones too.
    pub(super) fn stop(&self) {
        let mut queries = self.queries.lock();
        queries.is_stopped = true;
        queries.running.values().for_each(|(_, cancel)| cancel.cancel());
    }
}

impl Drop for WatchedQuery<'_> {
    fn drop(&mut self) {
        self.watch.queries.lock().running.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_end_at_their_limit_and_at_the_stop() {
        let watch = QueryWatch::default();
        let [slow, quick, later] = [(); 3].map(|()| CancelToken::new());
        let _slow = watch.watch(&slow, Duration::from_secs(100));
        drop(watch.watch(&quick, Duration::ZERO));
        watch.expire(Instant::now());
        assert!(slow.check().is_ok() && quick.check().is_ok(), "an ended query has no limit");
        let _quick = watch.watch(&quick, Duration::ZERO);
        watch.expire(Instant::now());
        assert!(slow.check().is_ok() && quick.check().is_err());
        watch.stop();
        assert!(slow.check().is_err());
        let _later = watch.watch(&later, Duration::MAX);
        assert!(later.check().is_err());
    }
}
