//! The alerts that wait for one Alertmanager.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firn_model::{Budget, Pool, Reservation};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// One Alertmanager: its queue and its counters.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) url: String,
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
    /// JSON objects.
    alerts: VecDeque<Arc<[u8]>>,
    len_max: usize,
    held: Reservation,
    is_closed: bool,
}

// An element beside its bytes.
const ALERT_BYTES: u64 = 48;

impl Destination {
    pub(super) fn new(url: String, len_max: usize, budget: &Budget) -> Destination {
        let held = budget.empty(Pool::Requests);
        let queue = AlertQueue { alerts: VecDeque::new(), len_max, held, is_closed: false };
        Destination {
            url,
            queue: Mutex::new(queue),
            changed: Notify::new(),
            sent: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            latency: Mutex::default(),
        }
    }

    /// Adds alerts. Without room or memory the oldest ones are dropped.
    pub(super) fn push(&self, alerts: impl IntoIterator<Item = Arc<[u8]>>) {
        let mut queue = self.queue.lock();
        for alert in alerts {
            if queue.is_closed {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let bytes = alert.len() as u64 + ALERT_BYTES;
            while queue.alerts.len() >= queue.len_max {
                queue.pop();
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            let has_memory = loop {
                if queue.held.grow(bytes).is_ok() {
                    break true;
                }
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if queue.pop().is_none() {
                    // Others use the memory: this alert is the one that is lost.
                    break false;
                }
            };
            if has_memory {
                queue.alerts.push_back(alert);
            }
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Waits for alerts and takes up to `len_max` of them as a JSON array, with their number.
    /// `None` once the queue is closed and empty.
    pub(super) async fn next_batch(&self, len_max: usize) -> Option<(Vec<u8>, usize)> {
        loop {
            let changed = self.changed.notified();
            {
                let mut queue = self.queue.lock();
                if !queue.alerts.is_empty() {
                    return Some(queue.take_batch(len_max));
                }
                if queue.is_closed {
                    return None;
                }
            }
            changed.await;
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
        while queue.pop().is_some() {}
        self.dropped.fetch_add(count, Ordering::Relaxed);
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
            self.dropped.fetch_add(count, Ordering::Relaxed);
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
    fn pop(&mut self) -> Option<Arc<[u8]>> {
        let alert = self.alerts.pop_front()?;
        self.held.shrink(alert.len() as u64 + ALERT_BYTES);
        Some(alert)
    }

    fn take_batch(&mut self, len_max: usize) -> (Vec<u8>, usize) {
        let count = self.alerts.len().min(len_max);
        let mut body = vec![b'['];
        for idx in 0..count {
            let Some(alert) = self.pop() else { break };
            if idx > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&alert);
        }
        body.push(b']');
        (body, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alerts(texts: &[&str]) -> Vec<Arc<[u8]>> {
        texts.iter().map(|text| Arc::from(text.as_bytes())).collect()
    }

    async fn batch(destination: &Destination) -> Option<(String, usize)> {
        let (body, count) = destination.next_batch(2).await?;
        Some((String::from_utf8(body).unwrap(), count))
    }

    #[tokio::test]
    async fn a_full_queue_loses_its_oldest_alerts() {
        let destination = Destination::new("u".to_owned(), 3, &Budget::unlimited());
        destination.push(alerts(&["1", "2", "3", "4"]));
        assert_eq!((destination.len(), destination.dropped.load(Ordering::Relaxed)), (3, 1));
        assert_eq!(batch(&destination).await, Some(("[2,3]".to_owned(), 2)));
        destination.close();
        destination.push(alerts(&["5"]));
        assert_eq!(batch(&destination).await, Some(("[4]".to_owned(), 1)));
        assert_eq!(batch(&destination).await, None);
        assert_eq!(destination.dropped.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_queue_without_memory_loses_its_oldest_alerts() {
        let budget = Budget::unlimited().part(200);
        let destination = Destination::new("u".to_owned(), 100, &budget);
        destination.push(alerts(&["1", "2", "3", "4", "5"]));
        assert_eq!((destination.len(), destination.dropped.load(Ordering::Relaxed)), (4, 1));
        assert_eq!(batch(&destination).await, Some(("[2,3]".to_owned(), 2)));
        destination.push(alerts(&["x".repeat(300).as_str()]));
        assert_eq!((destination.len(), destination.dropped.load(Ordering::Relaxed)), (0, 4));
        assert_eq!(budget.usage().used_bytes, 0);
    }

    /// Before, the alerts behind the first one without memory were neither queued nor counted.
    #[tokio::test]
    async fn each_alert_without_memory_is_counted() {
        let budget = Budget::unlimited().part(200);
        let destination = Destination::new("u".to_owned(), 100, &budget);
        let large = "x".repeat(300);
        destination.push(alerts(&[&large, "1", &large, &large, "2"]));
        assert_eq!(batch(&destination).await, Some(("[2]".to_owned(), 1)));
        assert_eq!(destination.dropped.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn a_sender_waits_for_alerts() {
        let destination = Arc::new(Destination::new("u".to_owned(), 9, &Budget::unlimited()));
        let receiver = Arc::clone(&destination);
        let received = tokio::spawn(async move { batch(&receiver).await });
        tokio::task::yield_now().await;
        destination.push(alerts(&["1"]));
        assert_eq!(received.await.unwrap(), Some(("[1]".to_owned(), 1)));
    }
}
