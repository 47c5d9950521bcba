//! The alerts that wait for Alertmanagers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use firn_collect::config::Url;
use firn_model::{Budget, Pool, Reservation};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// One Alertmanager: its queue and its counters.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) url: String,
    /// `url` without a password.
    pub(super) shown_url: String,
    queue: Mutex<AlertQueue>,
    changed: Notify,
    /// Alerts in requests, failed ones too.
    pub(super) sent: AtomicU64,
    /// Alerts in failed requests.
    pub(super) errors: AtomicU64,
    /// Alerts that were not delivered: the queue was full, or the request failed.
    pub(super) dropped: AtomicU64,
    latency: Mutex<(u64, f64)>,
}

#[derive(Debug)]
struct AlertQueue {
    alerts: VecDeque<Arc<QueuedAlert>>,
    len_max: usize,
    is_closed: bool,
}

/// An alert, which several queues may contain.
#[derive(Debug)]
pub(super) struct QueuedAlert {
    /// A JSON object.
    json: Box<[u8]>,
    _held: Reservation,
}

/// Alerts of one request.
#[derive(Debug)]
pub(super) struct AlertBatch {
    /// A JSON array.
    pub(super) body: Bytes,
    /// The number of its alerts.
    pub(super) count: usize,
    /// The memory of the body.
    pub(super) held: Reservation,
}

// An alert beside its bytes and its places.
const ALERT_BYTES: u64 = 128;
// The place of an alert in a queue, which may have twice the room that it needs.
const PLACE_BYTES: u64 = 16;
// A queue with less room than this keeps it.
const ROOM_MIN: usize = 64;
// A body that has no memory is tried this often.
const MEMORY_POLL: Duration = Duration::from_millis(100);

impl QueuedAlert {
    /// Reserves the memory of an alert. Without memory the longest of the queues `all` lose their
    /// oldest alerts, which are those of Alertmanagers that do not answer: usually the same alert,
    /// whose memory is free once none has it. `None` if they are all empty, or if the alert is
    /// larger than the memory of the queues.
    pub(super) fn reserve(
        json: Vec<u8>,
        all: &[&Destination],
        budget: &Budget,
    ) -> Option<Arc<QueuedAlert>> {
        let bytes = json.len() as u64 + ALERT_BYTES + PLACE_BYTES * all.len() as u64;
        if bytes > budget.usage().limit_bytes {
            return None;
        }
        loop {
            if let Ok(held) = budget.reserve(Pool::Requests, bytes) {
                let json = json.into_boxed_slice();
                return Some(Arc::new(QueuedAlert { json, _held: held }));
            }
            if !lose_oldest(all) {
                return None;
            }
        }
    }
}

/// The longest queues lose their oldest alerts. Returns whether there was one.
fn lose_oldest(all: &[&Destination]) -> bool {
    let len_max = all.iter().map(|destination| destination.len()).max().unwrap_or(0);
    if len_max > 0 {
        all.iter().for_each(|destination| destination.lose_oldest(len_max));
    }
    len_max > 0
}

impl Destination {
    pub(super) fn new(url: String, len_max: usize) -> Destination {
        let queue = AlertQueue { alerts: VecDeque::new(), len_max, is_closed: false };
        Destination {
            shown_url: Url::shown(&url),
            url,
            queue: Mutex::new(queue),
            changed: Notify::new(),
            sent: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            latency: Mutex::default(),
        }
    }

    /// Adds alerts. Without room the oldest ones are dropped.
    pub(super) fn push(&self, alerts: impl IntoIterator<Item = Arc<QueuedAlert>>) {
        let mut queue = self.queue.lock();
        for alert in alerts {
            if queue.is_closed {
                self.lose(1);
                continue;
            }
            while queue.alerts.len() >= queue.len_max {
                queue.pop();
                self.lose(1);
            }
            queue.alerts.push_back(alert);
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Drops the oldest of at least `len_min` alerts.
    fn lose_oldest(&self, len_min: usize) {
        let mut queue = self.queue.lock();
        let lost = if queue.alerts.len() >= len_min { queue.pop() } else { None };
        drop(queue);
        self.lose(u64::from(lost.is_some()));
    }

    /// Counts alerts that are not delivered.
    pub(super) fn lose(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits for alerts and takes up to `len_max` of them, as many as `bodies` has memory for.
    /// Waits for memory while other bodies use it. `None` once the queue is closed and empty.
    pub(super) async fn next_batch(&self, len_max: usize, bodies: &Budget) -> Option<AlertBatch> {
        loop {
            let changed = self.changed.notified();
            let has_alerts = {
                let mut queue = self.queue.lock();
                if let Some(batch) = queue.take_batch(len_max, bodies) {
                    return Some(batch);
                }
                if queue.is_closed && queue.alerts.is_empty() {
                    return None;
                }
                !queue.alerts.is_empty()
            };
            match has_alerts {
                true => tokio::time::sleep(MEMORY_POLL).await,
                false => changed.await,
            }
        }
    }

    /// Takes no more alerts; those in the queue are still sent.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// The end of the Alertmanager: the alerts in the queue are dropped.
    pub(super) fn drop_all(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let count = queue.alerts.len() as u64;
        queue.alerts.clear();
        self.lose(count);
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().alerts.len()
    }

    /// Counts a request with `count` alerts.
    pub(super) fn answered(&self, count: usize, took: Duration, is_delivered: bool) {
        let count = count as u64;
        self.sent.fetch_add(count, Ordering::Relaxed);
        if !is_delivered {
            self.errors.fetch_add(count, Ordering::Relaxed);
            self.lose(count);
        }
        let mut latency = self.latency.lock();
        latency.0 = latency.0.saturating_add(1);
        latency.1 += took.as_secs_f64();
    }

    /// Number and seconds of all requests.
    pub(super) fn latency(&self) -> (u64, f64) {
        *self.latency.lock()
    }
}

impl AlertQueue {
    fn pop(&mut self) -> Option<Arc<QueuedAlert>> {
        self.alerts.pop_front()
    }

    /// The oldest alerts; `None` without one, or without memory for one.
    fn take_batch(&mut self, len_max: usize, bodies: &Budget) -> Option<AlertBatch> {
        let mut count = self.alerts.len().min(len_max);
        let (len, held) = loop {
            if count == 0 {
                return None;
            }
            // Each has a comma or a bracket, and there is one bracket more.
            let lens = self.alerts.iter().take(count).map(|alert| alert.json.len() + 1);
            let len = lens.sum::<usize>() + 1;
            match bodies.reserve(Pool::Requests, len as u64) {
                Ok(held) => break (len, held),
                Err(_) => count /= 2,
            }
        };
        let mut body = Vec::with_capacity(len);
        for idx in 0..count {
            let Some(alert) = self.pop() else { break };
            body.push(if idx == 0 { b'[' } else { b',' });
            body.extend_from_slice(&alert.json);
        }
        body.push(b']');
        if self.alerts.capacity() > ROOM_MIN.max(4 * self.alerts.len()) {
            self.alerts.shrink_to(2 * self.alerts.len());
        }
        Some(AlertBatch { body: body.into(), count, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues alerts, as many as `budget` has memory for.
    fn push(to: &[&Destination], texts: &[&str], budget: &Budget) {
        for text in texts {
            let alert = QueuedAlert::reserve(text.as_bytes().to_vec(), to, budget);
            for destination in to {
                match &alert {
                    Some(alert) => destination.push([Arc::clone(alert)]),
                    None => destination.lose(1),
                }
            }
        }
    }

    fn lost(destination: &Destination) -> u64 {
        destination.dropped.load(Ordering::Relaxed)
    }

    async fn batch(destination: &Destination) -> Option<(String, usize)> {
        let batch = destination.next_batch(2, &Budget::unlimited()).await?;
        Some((String::from_utf8(batch.body.to_vec()).unwrap(), batch.count))
    }

    #[tokio::test]
    async fn a_full_queue_loses_its_oldest_alerts() {
        let destination = Destination::new("u".to_owned(), 3);
        let budget = Budget::unlimited();
        push(&[&destination], &["1", "2", "3", "4"], &budget);
        assert_eq!((destination.len(), lost(&destination)), (3, 1));
        assert_eq!(batch(&destination).await, Some(("[2,3]".to_owned(), 2)));
        destination.close();
        push(&[&destination], &["5"], &budget);
        assert_eq!(batch(&destination).await, Some(("[4]".to_owned(), 1)));
        assert_eq!(batch(&destination).await, None);
        assert_eq!(lost(&destination), 2);
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[tokio::test]
    async fn a_queue_without_memory_loses_its_oldest_alerts() {
        let budget = Budget::unlimited().part(4 * (ALERT_BYTES + PLACE_BYTES + 1));
        let destination = Destination::new("u".to_owned(), 100);
        push(&[&destination], &["1", "2", "3", "4", "5"], &budget);
        assert_eq!((destination.len(), lost(&destination)), (4, 1));
        assert_eq!(batch(&destination).await, Some(("[2,3]".to_owned(), 2)));
        assert_eq!(batch(&destination).await, Some(("[4,5]".to_owned(), 2)));
        assert_eq!(budget.usage().used_bytes, 0);
    }

    /// Before, a queue kept the room of its longest time for ever.
    #[tokio::test]
    async fn a_queue_that_was_sent_keeps_little_room() {
        let destination = Destination::new("u".to_owned(), 9_999);
        push(&[&destination], &["1"; 5_000], &Budget::unlimited());
        while destination.len() > 1 {
            batch(&destination).await;
            let queue = destination.queue.lock();
            let room = queue.alerts.capacity();
            assert!(room <= ROOM_MIN.max(4 * queue.alerts.len()), "{room}");
        }
    }

    /// Alerts that never fit take the place of no other one.
    #[tokio::test]
    async fn each_alert_without_memory_is_counted() {
        let budget = Budget::unlimited().part(2 * (ALERT_BYTES + PLACE_BYTES + 1));
        let destination = Destination::new("u".to_owned(), 100);
        let large = "x".repeat(300);
        push(&[&destination], &[&large, "1", &large, &large, "2"], &budget);
        assert_eq!(batch(&destination).await, Some(("[1,2]".to_owned(), 2)));
        assert_eq!(lost(&destination), 3);
    }

    /// Before, each queue reserved alerts of its own, so that the queue of an Alertmanager that
    /// does not answer left no memory for the others.
    #[tokio::test]
    async fn an_alertmanager_that_does_not_answer_leaves_memory_for_others() {
        let budget = Budget::unlimited().part(3 * (ALERT_BYTES + 2 * PLACE_BYTES + 1));
        let (silent, good) =
            (Destination::new("s".to_owned(), 9), Destination::new("g".to_owned(), 9));
        for pair in [["1", "2"], ["3", "4"], ["5", "6"]] {
            push(&[&silent, &good], &pair, &budget);
            assert_eq!(batch(&good).await, Some((format!("[{},{}]", pair[0], pair[1]), 2)));
        }
        assert_eq!((lost(&good), lost(&silent), silent.len()), (0, 3, 3));
        assert_eq!(batch(&silent).await, Some(("[4,5]".to_owned(), 2)));
    }

    /// Before, each queue lost its alert after a search for the longest one: with 25,000
    /// Alertmanagers that do not answer, one more alert took minutes.
    #[test]
    fn the_longest_queues_lose_an_alert_at_once() {
        let bytes = ALERT_BYTES + 3 * PLACE_BYTES + 1;
        let budget = Budget::unlimited().part(3 * bytes);
        let all: Vec<Destination> =
            (0..3).map(|idx| Destination::new(idx.to_string(), 9)).collect();
        let all: Vec<&Destination> = all.iter().collect();
        push(&all, &["1", "2", "3"], &budget);
        assert!(lose_oldest(&all));
        assert_eq!(budget.usage().used_bytes, 2 * bytes, "no queue has the alert");
        all[0].queue.lock().pop();
        assert!(lose_oldest(&all));
        let lens = || all.iter().map(|to| to.len()).collect::<Vec<_>>();
        let losses = || all.iter().map(|to| lost(to)).collect::<Vec<_>>();
        assert_eq!((lens(), losses()), (vec![1, 1, 1], vec![1, 2, 2]));
        push(&all, &["4", "5", "6"], &budget);
        assert_eq!((lens(), losses()), (vec![3, 3, 3], vec![2, 3, 3]));
        all.iter().for_each(|to| to.drop_all());
        assert!(!lose_oldest(&all));
    }

    /// Before, a body left the budget with its alerts: those of Alertmanagers that did not answer
    /// were not bounded together.
    #[tokio::test(start_paused = true)]
    async fn bodies_are_as_large_as_their_memory_and_wait_for_it() {
        let bodies = Budget::unlimited().part(40);
        let all: Vec<Destination> =
            (0..3).map(|idx| Destination::new(idx.to_string(), 99)).collect();
        let texts: Vec<String> = (10..90).map(|idx| format!("{idx}12345")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        push(&all.iter().collect::<Vec<_>>(), &texts, &Budget::unlimited());
        let mut held = Vec::new();
        for destination in &all[..2] {
            let batch = destination.next_batch(256, &bodies).await.unwrap();
            assert!(batch.body.len() as u64 <= batch.held.bytes());
            held.push(batch);
        }
        let counts: Vec<usize> = held.iter().map(|batch| batch.count).collect();
        assert_eq!((counts, &*held[1].body), (vec![2, 2], &b"[1012345,1112345]"[..]));
        assert!(bodies.usage().used_bytes <= 40);
        let waiting = all[2].next_batch(256, &bodies);
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err());
        assert_eq!((all[2].len(), lost(&all[2])), (80, 0));
        held.clear();
        assert_eq!(all[2].next_batch(256, &bodies).await.unwrap().count, 2);
        assert_eq!(bodies.usage().used_bytes, 0);
    }

    #[tokio::test]
    async fn a_sender_waits_for_alerts() {
        let destination = Arc::new(Destination::new("u".to_owned(), 9));
        let receiver = Arc::clone(&destination);
        let received = tokio::spawn(async move { batch(&receiver).await });
        tokio::task::yield_now().await;
        push(&[&destination], &["1"], &Budget::unlimited());
        assert_eq!(received.await.unwrap(), Some(("[1]".to_owned(), 1)));
    }
}
