//! The Alertmanagers of the configuration, and the tasks that send to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::http::header;
use bytes::Bytes;
use firn_collect::config::{Alertmanagers, Config, RuleList, Url};
use firn_collect::discovery::{Provider, static_groups};
use firn_collect::pool::DiscoveredGroup;
use firn_collect::relabel::LabelEditor;
use firn_collect::targets::alertmanager_labels;
use firn_fetch::{Bodies, Client, Connections, Content, Purpose, Request};
use firn_model::{Budget, Error, Labels, Pool, Reservation, Result};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Notification;
use super::queue::{AlertBatch, Destination, QueuedAlert};
use crate::collect::{DiscoveryTasks, TargetList, USER_AGENT, check_alertmanagers};
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;
use crate::throttle::Throttle;

/// Settings of deliveries.
#[derive(Clone, Debug)]
pub(crate) struct NotifyOptions {
    /// Alerts that wait for one Alertmanager; beyond it the oldest are dropped.
    pub(crate) queue_len_max: usize,
    /// The memory of queues, discoveries and connections.
    pub(crate) budget: Budget,
    /// The part of it that queues, and bodies that are being sent, may use, in bytes.
    pub(crate) queue_bytes_max: u64,
}

/// Sends alerts to the Alertmanagers of the configuration.
pub(crate) struct Notifier {
    options: NotifyOptions,
    /// The memory of the queues.
    queue_budget: Budget,
    /// The memory of bodies that wait for an answer: the same, so that each alert of a queue fits.
    body_budget: Budget,
    /// The memory of Alertmanagers and their tasks: the same.
    destination_budget: Budget,
    runtime: OnceLock<Handle>,
    discovery: DiscoveryTasks,
    bodies: Bodies,
    /// It is held while lists of Alertmanagers are taken over.
    current: Mutex<Current>,
    /// The receivers of `current`. The lock is held to copy or to replace them only: alerts are
    /// relabelled, and metrics written, without it.
    receivers: Mutex<Arc<Receivers>>,
    /// Alerts that relabelling could not process.
    failed: Counter,
    relabel_failures: Throttle,
    failures: Arc<Throttle>,
    refused_lists: Throttle,
    skipped_targets: Throttle,
}

#[derive(Debug, Default)]
struct Current {
    relabel: Arc<RuleList>,
    sets: Vec<AlertmanagerSet>,
    /// The task that follows the lists of discoveries.
    follower: Option<JoinHandle<()>>,
}

/// An entry of `alerting.alertmanagers`.
#[derive(Debug)]
struct AlertmanagerSet {
    settings: Arc<Alertmanagers>,
    client: Arc<Client>,
    senders: Vec<Sender>,
    /// URLs that relabelling dropped.
    dropped: Arc<[String]>,
    /// The memory of both.
    held: Reservation,
    /// Why the last list was refused, while the Alertmanagers of an earlier one stay.
    refused: Option<Arc<str>>,
    /// The lists that were taken over last.
    synced: Vec<Arc<TargetList>>,
}

/// The receivers of alerts at one time.
#[derive(Debug, Default)]
struct Receivers {
    relabel: Arc<RuleList>,
    sets: Vec<ReceiverSet>,
}

/// Those of an [`AlertmanagerSet`].
#[derive(Debug)]
struct ReceiverSet {
    settings: Arc<Alertmanagers>,
    destinations: Vec<Arc<Destination>>,
    dropped: Arc<[String]>,
    refused: Option<Arc<str>>,
}

/// An Alertmanager with its task, once there is a runtime.
#[derive(Debug)]
struct Sender {
    destination: Arc<Destination>,
    task: Option<JoinHandle<()>>,
}

/// Alertmanagers that [`Notifier::check`] has accepted.
#[derive(Debug)]
pub(crate) struct CheckedAlertmanagers {
    relabel: RuleList,
    sets: Vec<(Alertmanagers, Client)>,
}

// Alerts of one request, as in Prometheus.
const BATCH_LEN_MAX: usize = 256;
// Alertmanager's response to a batch is empty, or a sentence.
const RESPONSE_BYTES_MAX: u64 = 64 << 10;
// An Alertmanager with its queue, its counters, its task and its places in lists, beside its URLs:
// in full and without a password, and as a key while lists are compared.
const DESTINATION_BYTES: u64 = 8 << 10;
const URLS_PER_DESTINATION: u64 = 3;
// A URL that relabelling dropped, in lists.
const DROPPED_BYTES: u64 = 64;
/// Labels of all targets of a set. An address takes a few bytes of an answer, no memory if it is
/// repeated, and the time of all labels of its group.
const LABELS_BYTES_MAX: usize = 64 << 20;
// A list that was refused is read again this often.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Notifier {
    /// Without Alertmanagers.
    pub(crate) fn new(options: NotifyOptions) -> Notifier {
        Notifier {
            discovery: DiscoveryTasks::new("notify", &options.budget),
            queue_budget: options.budget.part(options.queue_bytes_max / 2),
            body_budget: options.budget.part(options.queue_bytes_max / 2),
            destination_budget: options.budget.part(options.queue_bytes_max / 2),
            bodies: Bodies::new(&options.budget),
            options,
            runtime: OnceLock::new(),
            current: Mutex::default(),
            receivers: Mutex::default(),
            failed: Counter::default(),
            relabel_failures: Throttle::default(),
            failures: Arc::default(),
            refused_lists: Throttle::default(),
            skipped_targets: Throttle::default(),
        }
    }

    /// Checks the section `alerting`, its certificates and keys included.
    ///
    /// # Errors
    /// `Invalid` for parts that are not supported and certificates that cannot be used.
    pub(crate) fn check(&self, config: &Config) -> Result<CheckedAlertmanagers> {
        let mut sets = Vec::new();
        for settings in config.alerting.alertmanagers.iter() {
            check_alertmanagers(settings)?;
            Provider::all_of(&settings.discoveries, "alerting")?;
            let client = Client::new(&settings.http, &self.bodies)
                .map_err(|error| Error::invalid(format!("alerting: {error}")))?;
            sets.push((settings.clone(), client.with_purpose(Purpose::Alerts)));
        }
        Ok(CheckedAlertmanagers { relabel: config.alerting.alert_relabel_configs.clone(), sets })
    }

    /// Sends to `checked` from now on. An entry without a change keeps its queues.
    pub(crate) fn apply(&self, checked: CheckedAlertmanagers) {
        let mut current = self.current.lock();
        let mut previous = std::mem::take(&mut current.sets);
        current.relabel = Arc::new(checked.relabel);
        for (settings, client) in checked.sets {
            let known = previous.iter().position(|set| *set.settings == settings);
            let set = match known {
                Some(idx) => previous.swap_remove(idx),
                None => {
                    let (settings, client) = (Arc::new(settings), Arc::new(client));
                    AlertmanagerSet {
                        settings,
                        client,
                        senders: Vec::new(),
                        dropped: Arc::new([]),
                        held: self.destination_budget.empty(Pool::Requests),
                        refused: None,
                        synced: Vec::new(),
                    }
                }
            };
            current.sets.push(set);
        }
        for sender in previous.into_iter().flat_map(|set| set.senders) {
            sender.end();
        }
        self.discover(&mut current);
    }

    /// Sends from now on, on `runtime`.
    pub(crate) fn open(self: &Arc<Notifier>, runtime: Handle) {
        let mut current = self.current.lock();
        // A second call is a bug; the first runtime stays.
        let _ = self.runtime.set(runtime.clone());
        for set in &mut current.sets {
            for sender in &mut set.senders {
                sender.task = self.spawn(&sender.destination, &set.client, &set.settings);
            }
        }
        self.discover(&mut current);
        let (notifier, mut changes) = (Arc::downgrade(self), self.discovery.changes());
        current.follower = Some(runtime.spawn(async move {
            loop {
                // Other lists may have released memory for a list that was refused.
                if let Ok(Err(_)) = tokio::time::timeout(REFUSED_RETRY, changes.changed()).await {
                    return;
                }
                let Some(notifier) = notifier.upgrade() else { return };
                let following = spawn_blocking(move || {
                    notifier.follow(&mut notifier.current.lock());
                });
                if following.await.is_err() {
                    tracing::error!("a list of Alertmanagers panicked, which is a bug");
                }
            }
        }));
    }

    /// Starts the discoveries of all entries; without a runtime only static targets are known.
    fn discover(&self, current: &mut Current) {
        let Some(runtime) = self.runtime.get() else {
            for set in &mut current.sets {
                let groups = static_groups(&set.settings.discoveries.static_groups);
                self.set_targets(set, groups.iter());
            }
            self.publish(current);
            return;
        };
        let providers = |(idx, set): (usize, &AlertmanagerSet)| {
            // They were checked before.
            let providers = Provider::all_of(&set.settings.discoveries, "alerting");
            (set_name(idx), providers.unwrap_or_default())
        };
        let _context = runtime.enter();
        self.discovery.set(current.sets.iter().enumerate().map(providers));
        self.follow(current);
    }

    /// Takes the lists of all discoveries over. An entry without a list yet keeps its targets.
    fn follow(&self, current: &mut Current) {
        for (idx, set) in current.sets.iter_mut().enumerate() {
            let Some(lists) = self.discovery.lists(&set_name(idx)) else { continue };
            let is_same = set.synced.len() == lists.len()
                && set.synced.iter().zip(&lists).all(|(synced, list)| Arc::ptr_eq(synced, list));
            if is_same && set.refused.is_none() {
                continue;
            }
            self.set_targets(set, lists.iter().flat_map(|list| &list.groups));
            set.synced = lists;
        }
        self.publish(current);
    }

    /// Sends to the Alertmanagers of `current` from now on.
    fn publish(&self, current: &Current) {
        let receivers = |set: &AlertmanagerSet| ReceiverSet {
            settings: Arc::clone(&set.settings),
            destinations: set.senders.iter().map(|to| Arc::clone(&to.destination)).collect(),
            dropped: Arc::clone(&set.dropped),
            refused: set.refused.clone(),
        };
        let sets = current.sets.iter().map(receivers).collect();
        let receivers = Receivers { relabel: Arc::clone(&current.relabel), sets };
        *self.receivers.lock() = Arc::new(receivers);
    }

    fn receivers(&self) -> Arc<Receivers> {
        Arc::clone(&self.receivers.lock())
    }

    /// Queues alerts for all Alertmanagers. `external` are added to alerts without such labels. No
    /// lock is held while `notifications` are made and relabelled.
    pub(crate) fn send(
        &self,
        external: &BTreeMap<String, String>,
        notifications: impl IntoIterator<Item = Notification>,
    ) {
        let receivers = self.receivers();
        let all: Vec<&Destination> = receivers.destinations().collect();
        if all.is_empty() {
            return;
        }
        let mut editor = LabelEditor::default();
        let reserve = |json: Vec<u8>| QueuedAlert::reserve(json, &all, &self.queue_budget);
        let mut queues: Vec<Vec<Arc<QueuedAlert>>> =
            receivers.sets.iter().map(|_| Vec::new()).collect();
        for notification in notifications {
            let labels = with_external(&notification.labels, external);
            let Some(labels) = self.relabel(&receivers.relabel, &labels, &mut editor) else {
                continue;
            };
            let mut shared: Option<Option<Arc<QueuedAlert>>> = None;
            for (set, queue) in receivers.sets.iter().zip(&mut queues) {
                let own = &set.settings.alert_relabel_configs;
                let alert = if own.is_empty() {
                    shared.get_or_insert_with(|| reserve(notification.json(&labels))).clone()
                } else if let Some(labels) = self.relabel(own, &labels, &mut editor) {
                    reserve(notification.json(&labels))
                } else {
                    continue;
                };
                match alert {
                    Some(alert) => queue.push(alert),
                    None => set.destinations.iter().for_each(|to| to.lose(1)),
                }
            }
        }
        for (set, queue) in receivers.sets.iter().zip(queues) {
            for destination in &set.destinations {
                destination.push(queue.iter().cloned());
            }
        }
    }

    /// Delivers the queued alerts, for at most `at_most`, and ends. To be called once no rule is
    /// evaluated any more, and not on a thread of the runtime.
    pub(crate) fn stop(&self, at_most: Duration) {
        let Current { sets, follower, .. } = std::mem::take(&mut *self.current.lock());
        *self.receivers.lock() = Arc::default();
        if let Some(follower) = follower {
            follower.abort();
        }
        let senders: Vec<Sender> = sets.into_iter().flat_map(|set| set.senders).collect();
        senders.iter().for_each(|sender| sender.destination.close());
        let Some(runtime) = self.runtime.get() else { return };
        runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + at_most;
            for mut sender in senders {
                let Some(task) = &mut sender.task else { continue };
                if tokio::time::timeout_at(deadline, task).await.is_err() {
                    let (url, count) = (&sender.destination.shown_url, sender.destination.len());
                    tracing::warn!(url, count, "alerts were not delivered before the stop");
                    sender.end();
                }
            }
        });
    }

    /// The URLs of the Alertmanagers, and those that relabelling dropped.
    pub(crate) fn urls(&self) -> (Vec<String>, Vec<String>) {
        let receivers = self.receivers();
        let active = receivers.destinations().map(|to| to.shown_url.clone()).collect();
        let dropped = receivers.sets.iter().flat_map(|set| &*set.dropped);
        (active, dropped.cloned().collect())
    }

    /// A sentence for each list of Alertmanagers that was refused, and for each discovery whose
    /// last refresh failed.
    pub(crate) fn discovery_failures(&self) -> Vec<String> {
        let receivers = self.receivers();
        let failures = |(idx, set): (usize, &ReceiverSet)| {
            let refused = set.refused.as_ref().map(|reason| {
                format!("a list of Alertmanagers was refused, the previous one stays: {reason}")
            });
            refused.into_iter().chain(self.discovery.failures(&set_name(idx)))
        };
        receivers.sets.iter().enumerate().flat_map(failures).collect()
    }

    /// The discoveries of Alertmanagers.
    pub(crate) fn discovery(&self) -> &DiscoveryTasks {
        &self.discovery
    }

    /// The metrics under `prefix`.
    pub(crate) fn write_text(&self, prefix: &str, text: &mut MetricsText) {
        let receivers = self.receivers();
        let mut destinations: BTreeMap<&str, &Destination> = BTreeMap::new();
        for destination in receivers.destinations() {
            // Two entries may have the same Alertmanager; the metrics are those of the first.
            destinations.entry(&destination.shown_url).or_insert(destination);
        }
        text.gauge(
            &format!("{prefix}_notifications_alertmanagers_discovered"),
            "Alertmanagers that alerts are sent to.",
            destinations.len() as f64,
        );
        text.gauge(
            &format!("{prefix}_notifications_queue_capacity"),
            "Alerts that the queue of an Alertmanager may contain.",
            self.options.queue_len_max as f64,
        );
        text.counter(
            &format!("{prefix}_notifications_relabel_failures_total"),
            "Alerts that were not sent because their relabelling failed.",
            self.failed.get() as f64,
        );
        type Value = fn(&Destination) -> f64;
        let families: [(&str, Kind, &str, Value); 4] = [
            ("sent_total", Kind::Counter, "Alerts in requests, failed ones included.", |to| {
                to.sent.load(Ordering::Relaxed) as f64
            }),
            ("errors_total", Kind::Counter, "Alerts in requests that failed.", |to| {
                to.errors.load(Ordering::Relaxed) as f64
            }),
            (
                "dropped_total",
                Kind::Counter,
                "Alerts that were not delivered; the next evaluations send them again.",
                |to| to.dropped.load(Ordering::Relaxed) as f64,
            ),
            ("queue_length", Kind::Gauge, "Alerts that wait for an Alertmanager.", |to| {
                to.len() as f64
            }),
        ];
        if destinations.is_empty() {
            return;
        }
        for (name, kind, help, value) in families {
            let name = format!("{prefix}_notifications_{name}");
            text.family(&name, kind, help);
            for (url, destination) in &destinations {
                text.sample(&name, &[("alertmanager", url)], value(destination));
            }
        }
        let name = format!("{prefix}_notifications_latency_seconds");
        text.family(&name, Kind::Summary, "Durations of requests to an Alertmanager.");
        for (url, destination) in &destinations {
            let (count, seconds) = destination.latency();
            let labels = [("alertmanager", *url)];
            text.sample(&format!("{name}_sum"), &labels, seconds);
            text.sample(&format!("{name}_count"), &labels, count as f64);
        }
    }

    /// Makes `groups` the targets of `set`. Known Alertmanagers keep their queues. Without memory
    /// the previous ones stay.
    fn set_targets<'g>(
        &self,
        set: &mut AlertmanagerSet,
        groups: impl Iterator<Item = &'g DiscoveredGroup>,
    ) {
        let previous_bytes = set.held.bytes();
        let Ok(UrlList { active, dropped, bytes }) = self.list_urls(set, groups) else {
            set.held.take_exactly(previous_bytes);
            // The error has the remedy of requests.
            let budget = &self.destination_budget;
            let (max, remedy) = (budget.usage().limit_bytes, budget.remedy("list fewer"));
            let error = format!(
                "no memory is left for more Alertmanagers, which may take {max} bytes: {remedy}"
            );
            if let Some(count) = self.refused_lists.note(1, Instant::now()) {
                tracing::error!(
                    count,
                    error,
                    "a list of Alertmanagers was refused: the previous one stays"
                );
            }
            set.refused = Some(error.into());
            return;
        };
        set.held.take_exactly(bytes);
        set.refused = None;
        set.dropped = dropped.into_iter().collect();
        let senders = std::mem::take(&mut set.senders).into_iter();
        let mut known: HashMap<String, Sender> =
            senders.map(|sender| (sender.destination.url.clone(), sender)).collect();
        let (mut kept, mut added) = (Vec::new(), Vec::new());
        for url in active {
            match known.remove(&url) {
                Some(sender) => kept.push(sender),
                None => added.push(url),
            }
        }
        // New ones use the memory of those that end.
        known.into_values().for_each(Sender::end);
        for url in added {
            let destination = Arc::new(Destination::new(url, self.options.queue_len_max));
            let task = self.spawn(&destination, &set.client, &set.settings);
            kept.push(Sender { destination, task });
        }
        kept.sort_unstable_by(|a, b| a.destination.url.cmp(&b.destination.url));
        set.senders = kept;
    }

    /// The URLs of `groups`, whose memory `set` then holds.
    ///
    /// # Errors
    /// `TooLarge` without memory.
    fn list_urls<'g>(
        &self,
        set: &mut AlertmanagerSet,
        groups: impl Iterator<Item = &'g DiscoveredGroup>,
    ) -> Result<UrlList> {
        let mut editor = LabelEditor::default();
        let mut plain = Alertmanagers::clone(&set.settings);
        plain.relabel_configs = RuleList::default();
        let mut list = UrlList::default();
        let (mut skipped_count, mut first_error) = (0_u64, None);
        let mut labels_left = LABELS_BYTES_MAX;
        for group in groups {
            for target in &group.targets {
                if labels_left > 0 {
                    let texts = target.iter().chain(group.labels.iter());
                    let bytes = texts.fold(0, |sum, (name, value)| sum + name.len() + value.len());
                    labels_left = labels_left.saturating_sub(bytes);
                }
                if labels_left == 0 {
                    skipped_count = skipped_count.saturating_add(1);
                    first_error.get_or_insert_with(|| {
                        let what = "the Alertmanagers have over";
                        Error::too_large(format!("{what} {LABELS_BYTES_MAX} bytes of labels"))
                    });
                    continue;
                }
                match alertmanager_labels(&set.settings, target, &group.labels, &mut editor) {
                    Ok(Some(labels)) => list.add(url(&labels)),
                    Ok(None) => {
                        let labels =
                            alertmanager_labels(&plain, target, &group.labels, &mut editor);
                        if let Ok(Some(labels)) = labels {
                            list.add_dropped(Url::shown(&url(&labels)));
                        }
                    }
                    Err(error) => {
                        skipped_count = skipped_count.saturating_add(1);
                        first_error.get_or_insert(error);
                    }
                }
                set.held.cover(list.bytes)?;
            }
        }
        if let Some(error) = first_error
            && let Some(count) = self.skipped_targets.note(skipped_count, Instant::now())
        {
            tracing::error!(count, %error, "targets of alertmanagers are skipped");
        }
        Ok(list)
    }

    fn spawn(
        &self,
        destination: &Arc<Destination>,
        client: &Arc<Client>,
        settings: &Alertmanagers,
    ) -> Option<JoinHandle<()>> {
        let runtime = self.runtime.get()?;
        let delivery = Delivery {
            destination: Arc::clone(destination),
            client: Arc::clone(client),
            timeout: Duration::from_millis(settings.timeout.as_ms()),
            failures: Arc::clone(&self.failures),
            bodies: self.body_budget.clone(),
        };
        Some(runtime.spawn(delivery.run()))
    }

    fn relabel(
        &self,
        rules: &RuleList,
        labels: &Labels,
        editor: &mut LabelEditor,
    ) -> Option<Labels> {
        match rules.rules().relabel(labels, editor) {
            Ok(labels) => labels.filter(|labels| !labels.is_empty()),
            Err(error) => {
                self.failed.add(1);
                if let Some(count) = self.relabel_failures.note(1, Instant::now()) {
                    tracing::error!(count, %error, "alerts are not sent: their relabelling failed");
                }
                None
            }
        }
    }
}

/// The task of a [`Destination`].
struct Delivery {
    destination: Arc<Destination>,
    client: Arc<Client>,
    timeout: Duration,
    failures: Arc<Throttle>,
    bodies: Budget,
}

impl Delivery {
    /// Sends alerts until the queue is closed.
    async fn run(self) {
        let Delivery { destination, client, timeout, failures, bodies } = self;
        let mut connections = Connections::default();
        while let Some(batch) = destination.next_batch(BATCH_LEN_MAX, &bodies).await {
            let began = Instant::now();
            let AlertBatch { body, count, held } = batch;
            let posted = post(&destination.url, &client, body, timeout, &mut connections).await;
            drop(held);
            destination.answered(count, began.elapsed(), posted.is_ok());
            let Err(error) = posted else { continue };
            if let Some(count) = failures.note(count as u64, Instant::now()) {
                let url = &destination.shown_url;
                tracing::error!(count, url, error, "alerts could not be sent");
            }
        }
    }
}

/// The URLs of a list of Alertmanagers, in order.
#[derive(Default)]
struct UrlList {
    active: BTreeSet<String>,
    dropped: BTreeSet<String>,
    /// The memory of the Alertmanagers with these URLs.
    bytes: u64,
}

impl UrlList {
    fn add(&mut self, url: String) {
        let bytes = DESTINATION_BYTES + URLS_PER_DESTINATION * url.len() as u64;
        if self.active.insert(url) {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    fn add_dropped(&mut self, url: String) {
        let bytes = DROPPED_BYTES + url.len() as u64;
        if self.dropped.insert(url) {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

impl Receivers {
    fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.sets.iter().flat_map(|set| &set.destinations).map(|destination| &**destination)
    }
}

impl Sender {
    /// Ends the task; alerts that wait are dropped.
    fn end(self) {
        self.destination.drop_all();
        if let Some(task) = self.task {
            task.abort();
        }
    }
}

/// Posts a batch. Any 2xx is success.
async fn post(
    url: &str,
    client: &Client,
    body: Bytes,
    timeout: Duration,
    connections: &mut Connections,
) -> Result<(), String> {
    let media_type = "application/json".to_owned();
    let content = Content { is_put: false, is_secret: false, media_type, bytes: body };
    let request = Request {
        url: url.to_owned(),
        unix_socket: None,
        headers: vec![(header::USER_AGENT, USER_AGENT.to_owned())],
        authorization: None,
        secrets: Vec::new(),
        content: Some(content),
        body_bytes_max: RESPONSE_BYTES_MAX,
        timeout,
    };
    let response = client.send(&request, connections).await.map_err(|error| error.to_string())?;
    match response.status {
        200..300 => Ok(()),
        _ => Err(format!("bad response status {}", response.status_text())),
    }
}

/// The name of an entry in metrics of discoveries, as in Prometheus.
fn set_name(idx: usize) -> String {
    format!("config-{idx}")
}

/// The address that `labels` name.
fn url(labels: &Labels) -> String {
    let label = |name: &str| labels.get(name).unwrap_or_default();
    let path = label("__alerts_path__");
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("{}://{}{slash}{path}", label("__scheme__"), label("__address__"))
}

/// An empty label is the same as none.
fn with_external(labels: &Labels, external: &BTreeMap<String, String>) -> Labels {
    external.iter().fold(labels.clone(), |labels, (name, value)| match labels.get(name) {
        None | Some("") => labels.with(name, value),
        Some(_) => labels,
    })
}

#[cfg(test)]
mod tests;
