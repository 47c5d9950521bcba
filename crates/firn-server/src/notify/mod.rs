//! Notifications: alerts on their way to Alertmanagers.
//!
//! **Owns** a queue and a connection for each Alertmanager. **Never** decides when an alert is
//! sent: `rules` sends it again and again while it fires, and some time after it is resolved.
//!
//! **Path through**: [`Notifier::send`] adds external labels, relabels, and puts the JSON of each
//! alert into the queue of every Alertmanager; a task per Alertmanager posts batches.
//!
//! **Invariants**: queues are bounded in length and memory, and lose their oldest alerts first; a
//! request is never repeated, because the next evaluations send the alert again; an Alertmanager
//! that hangs delays no other one. Queues are not durable: `rules` saves alerts before it sends
//! them, and sends them again after a restart.
//!
//! Reading order: `notification`, `queue`, `notifier`.

mod notification;
mod notifier;
mod queue;

pub(crate) use self::notification::{Notification, link};
pub(crate) use self::notifier::{CheckedAlertmanagers, Notifier, NotifyOptions};
