//! Identical concurrent requests become one request to the origin.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Requests in flight, with their responses once they have arrived.
#[derive(Debug)]
pub(crate) struct Flights<K, V>(Mutex<HashMap<K, Arc<OnceCell<V>>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Flights<K, V> {
        Flights(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Flights<K, V> {
    /// The response to `question`: of an identical request in flight, or of `fetch`. The flag is
    /// true if `fetch` supplied it. If the fetching client disconnects, the next waiter fetches.
    pub(crate) async fn join(&self, question: K, fetch: impl Future<Output = V>) -> (V, bool) {
        let cell = Arc::clone(self.0.lock().entry(question.clone()).or_default());
        let _landing = Landing { flights: self, question: &question, cell: &cell };
        let mut is_own = false;
        let fetched = async {
            is_own = true;
            let answer = fetch.await;
            // Later requests fetch again.
            self.land(&question, &cell);
            answer
        };
        let answer = cell.get_or_init(|| fetched).await.clone();
        (answer, is_own)
    }

    fn land(&self, question: &K, cell: &Arc<OnceCell<V>>) {
        let mut flights = self.0.lock();
        if flights.get(question).is_some_and(|known| Arc::ptr_eq(known, cell)) {
            flights.remove(question);
        }
    }
}

/// The last one to leave removes the flight from the list, because the fetching client may have
/// disconnected without a response.
struct Landing<'a, K: Eq + Hash + Clone, V: Clone> {
    flights: &'a Flights<K, V>,
    question: &'a K,
    cell: &'a Arc<OnceCell<V>>,
}

impl<K: Eq + Hash + Clone, V: Clone> Drop for Landing<'_, K, V> {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock();
        // One reference is this one's, one is the list's; no other can be added under the lock.
        let is_last = Arc::strong_count(self.cell) <= 2;
        let is_listed =
            flights.get(self.question).is_some_and(|known| Arc::ptr_eq(known, self.cell));
        if is_last && is_listed {
            flights.remove(self.question);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn identical_concurrent_requests_are_fetched_once() {
        let flights = Flights::<u32, u32>::default();
        let (asked, go) = (AtomicU32::new(0), Notify::new());
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            7
        };
        let (first, second, ()) =
            tokio::join!(flights.join(1, ask()), flights.join(1, ask()), async {
                go.notify_one();
            });
        assert_eq!((first, second), ((7, true), (7, false)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        go.notify_one();
        assert_eq!(flights.join(1, ask()).await, (7, true));
        assert!(flights.0.lock().is_empty());
    }

    #[tokio::test]
    async fn if_the_fetching_client_disconnects_the_next_one_fetches() {
        let flights = Flights::<u32, u32>::default();
        let never = flights.join(1, std::future::pending());
        let waiting = flights.join(1, async { 8 });
        let gone = async {
            tokio::select! {
                biased;
                _ = never => {}
                () = tokio::task::yield_now() => {}
            }
        };
        let ((), answer) = tokio::join!(gone, waiting);
        assert_eq!(answer, (8, true));
        assert!(flights.0.lock().is_empty());
        tokio::select! {
            biased;
            _ = flights.join(2, std::future::pending()) => {}
            () = tokio::task::yield_now() => {}
        }
        assert!(flights.0.lock().is_empty(), "no waiter is left");
    }
}
