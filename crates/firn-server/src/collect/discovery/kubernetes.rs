//! The watches of a Kubernetes cluster: one task lists and watches each kind of objects, and the
//! task of the discovery makes targets of all that they find.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use firn_collect::config::discovery::KubernetesDiscovery;
use firn_collect::discovery::{
    ClusterAccess, ClusterState, ObjectList, StoredObject, WatchEvent, WatchSpec, refusal,
};
use firn_fetch::{Client, Connections, FetchError, Request, Watched};
use firn_model::Budget;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until};

use super::{ANSWER_BYTES_MAX, LocalFiles, Run, USER_AGENT, not_read};

#[cfg(test)]
mod tests;

/// The times of a discovery.
#[derive(Clone, Copy, Debug)]
struct Pacing {
    /// The pause after a failure, which doubles from one to the next.
    retry_min: Duration,
    retry_max: Duration,
    /// The shortest time between two lists of targets.
    publish_min: Duration,
    /// A watch without a line for this time is requested again: its connection may be dead.
    idle_max: Duration,
}

/// Those of Prometheus: targets change at most every 5 s. Servers send a bookmark about once a
/// minute.
const PACING: Pacing = Pacing {
    retry_min: Duration::from_secs(1),
    retry_max: Duration::from_secs(30),
    publish_min: Duration::from_secs(5),
    idle_max: Duration::from_secs(150),
};

// The server ends a watch after this time, so that the load moves between servers.
const WATCH_SECONDS: u64 = 300;
// A watch that lives for this time was no failure.
const GOOD_WATCH: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest event. The server refuses objects above 3 MiB.
const LINE_BYTES_MAX: u64 = 8 << 20;
// Pages of a list: five million objects.
const PAGES_MAX: usize = 10_000;
// Changes that wait for the discovery's task.
const CHANGES_MAX: usize = 64;

/// News of the watch `0`.
enum WatchChange {
    Listed(usize, ObjectList),
    Set(usize, StoredObject),
    Removed(usize, StoredObject),
    Failed(String),
}

/// The end of a watch.
#[derive(Debug)]
enum WatchEnd {
    /// The server has ended it, or is silent: watch again. Whether there was a line.
    Ended { had_lines: bool },
    /// Changes were missed: list again.
    Stale(Option<String>),
    /// The request failed: repeat it.
    Failed(String),
}

/// The server of a cluster.
#[derive(Debug)]
struct ApiServer {
    address: String,
    client: Client,
    budget: Budget,
}

/// The task of a watch.
struct Watcher {
    idx: usize,
    spec: WatchSpec,
    server: Arc<ApiServer>,
    changes: mpsc::Sender<WatchChange>,
    pacing: Pacing,
}

impl Run {
    /// Watches a cluster, and publishes its targets once all lists are complete.
    pub(super) async fn kubernetes(self, config: KubernetesDiscovery) {
        self.watch_cluster(config, PACING).await;
    }

    async fn watch_cluster(self, config: KubernetesDiscovery, pacing: Pacing) {
        let (server, own_namespace) = loop {
            match self.api_server(&config).await {
                Ok(found) => break found,
                Err(error) => self.failed(&error),
            }
            sleep(pacing.retry_max).await;
        };
        let specs = WatchSpec::all_of(&config, own_namespace.as_deref());
        let (changes, mut received) = mpsc::channel(CHANGES_MAX);
        // Dropped with this task, which ends the watches.
        let mut watchers = JoinSet::new();
        for (idx, spec) in specs.iter().cloned().enumerate() {
            let (server, changes) = (Arc::clone(&server), changes.clone());
            watchers.spawn(Watcher { idx, spec, server, changes, pacing }.run());
        }
        drop(changes);
        let mut state = ClusterState::new(&config, specs);
        let mut publish_at = Instant::now();
        let mut is_changed = false;
        loop {
            tokio::select! {
                change = received.recv() => match change {
                    Some(WatchChange::Failed(error)) => {
                        self.shared.counts.kubernetes_failures.add(1);
                        self.failed(&error);
                    }
                    Some(change) => {
                        self.apply(&mut state, change);
                        is_changed = true;
                    }
                    None => return,
                },
                () = sleep_until(publish_at), if is_changed && state.is_complete() => {
                    let budget = self.shared.budget.clone();
                    let building = spawn_blocking(move || {
                        let groups = state.groups(&budget);
                        (state, groups)
                    });
                    let Ok((returned, groups)) = building.await else { return };
                    state = returned;
                    is_changed = groups.is_err();
                    match groups {
                        Ok((groups, held)) => self.publish(groups, held),
                        Err(error) => self.failed(&error.to_string()),
                    }
                    publish_at = Instant::now() + pacing.publish_min;
                }
            }
        }
    }

    fn apply(&self, state: &mut ClusterState, change: WatchChange) {
        let (idx, events) = match change {
            WatchChange::Listed(idx, list) => (idx, state.set_list(idx, list)),
            WatchChange::Set(idx, object) => (idx, state.set_object(idx, object)),
            WatchChange::Removed(idx, object) => (idx, state.remove_object(idx, &object)),
            WatchChange::Failed(_) => return,
        };
        if let Some(resource) = state.resource(idx) {
            self.shared.counts.add_events(resource, events);
        }
    }

    async fn api_server(
        &self,
        config: &KubernetesDiscovery,
    ) -> Result<(Arc<ApiServer>, Option<String>), String> {
        let files = LocalFiles { budget: self.shared.budget.clone() };
        let config = config.clone();
        let reading = spawn_blocking(move || {
            ClusterAccess::of(&config, &|name| std::env::var(name).ok(), &files)
        });
        let access = reading.await.map_err(|e| not_read("the configuration", &e))?;
        let access = access.map_err(|error| error.to_string())?;
        let client = Client::new(&access.http, &self.shared.bodies);
        let client = client.map_err(|error| error.to_string())?;
        let budget = self.shared.budget.clone();
        let server = ApiServer { address: access.server, client, budget };
        Ok((Arc::new(server), access.own_namespace))
    }
}

/// Pauses between attempts.
struct Backoff {
    pacing: Pacing,
    next: Duration,
}

impl Backoff {
    fn new(pacing: Pacing) -> Backoff {
        Backoff { pacing, next: pacing.retry_min }
    }

    fn reset(&mut self) {
        self.next = self.pacing.retry_min;
    }

    async fn pause(&mut self) {
        sleep(self.next).await;
        self.next = self.next.saturating_mul(2).min(self.pacing.retry_max);
    }
}

impl Watcher {
    /// Lists the objects and watches them from then on. Ends with the discovery.
    async fn run(self) {
        let mut backoff = Backoff::new(self.pacing);
        let mut connections = Connections::default();
        loop {
            let listed = self.list(&mut connections).await;
            let sent = match listed {
                Ok((list, version)) => {
                    let sent = self.changes.send(WatchChange::Listed(self.idx, list)).await;
                    match sent {
                        Ok(()) => self.watch_from(version, &mut backoff).await,
                        Err(_) => None,
                    }
                }
                Err(error) => self.report(error).await,
            };
            if sent.is_none() {
                return;
            }
            backoff.pause().await;
        }
    }

    /// `None` after the end of the discovery.
    async fn report(&self, error: String) -> Option<()> {
        let resource = self.spec.resource;
        let error = format!("{}: {resource:?}: {error}", self.server.address);
        let error = firn_model::redacted(&error).into_owned();
        self.changes.send(WatchChange::Failed(error)).await.ok()
    }

    /// Watches until the objects have to be listed again. `None` after the end of the discovery.
    async fn watch_from(&self, mut version: String, backoff: &mut Backoff) -> Option<()> {
        loop {
            let started = Instant::now();
            let end = self.watch(&mut version).await?;
            let is_good = matches!(end, WatchEnd::Ended { had_lines: true });
            if is_good || started.elapsed() >= GOOD_WATCH {
                backoff.reset();
            }
            match end {
                WatchEnd::Ended { .. } => {}
                WatchEnd::Stale(None) => return Some(()),
                WatchEnd::Stale(Some(error)) => return self.report(error).await,
                WatchEnd::Failed(error) => self.report(error).await?,
            }
            backoff.pause().await;
        }
    }

    fn request(&self, path: &str, body_bytes_max: u64) -> Request {
        let headers = [("user-agent", USER_AGENT), ("accept", "application/json")];
        let header =
            |(name, text): (&'static str, &str)| (HeaderName::from_static(name), text.to_owned());
        Request {
            url: format!("{}{path}", self.server.address),
            unix_socket: None,
            headers: headers.into_iter().map(header).collect(),
            authorization: None,
            secrets: Vec::new(),
            content: None,
            body_bytes_max,
            timeout: ANSWER_TIMEOUT,
        }
    }

    /// All objects and their version, page by page.
    async fn list(&self, connections: &mut Connections) -> Result<(ObjectList, String), String> {
        let mut list = ObjectList::default();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let mut request = self.request(&self.spec.list_path(&next), ANSWER_BYTES_MAX);
            request.headers.push((HeaderName::from_static("accept-encoding"), "gzip".to_owned()));
            let response = self.server.client.send(&request, connections).await;
            let response = response.map_err(|error| error.to_string())?;
            if response.status != 200 {
                let refusal = refusal(&response.status_text(), &response.body);
                return Err(response.without_secrets(refusal));
            }
            let (resource, budget) = (self.spec.resource, self.server.budget.clone());
            let reading = spawn_blocking(move || {
                let end = list.add_page(resource, &response.body, &budget);
                (list, end.map_err(|error| response.without_secrets(error)))
            });
            let read = reading.await.map_err(|e| not_read("the list", &e))?;
            list = read.0;
            let end = read.1?;
            if !end.next.is_empty() {
                next = end.next;
            } else if end.version.is_empty() {
                return Err("the list has no resourceVersion".to_owned());
            } else {
                return Ok((list, end.version));
            }
        }
        Err(format!("the list has over {PAGES_MAX} pages"))
    }

    /// Sends all changes since `version`, which advances with them. `None` after the end of the
    /// discovery.
    async fn watch(&self, version: &mut String) -> Option<WatchEnd> {
        let path = self.spec.watch_path(version, WATCH_SECONDS);
        let request = self.request(&path, LINE_BYTES_MAX);
        let mut lines = match self.server.client.watch(&request).await {
            Ok(Watched::Lines(lines)) => lines,
            Ok(Watched::Refused(response)) => {
                let refusal = refusal(&response.status_text(), &response.body);
                let error = response.without_secrets(refusal);
                let is_gone = response.status == 410;
                return Some(if is_gone { WatchEnd::Stale(None) } else { WatchEnd::Failed(error) });
            }
            Err(error) => return Some(WatchEnd::Failed(error.to_string())),
        };
        let mut had_lines = false;
        loop {
            let line = match lines.next(self.pacing.idle_max).await {
                Ok(Some(line)) => line,
                // Servers and balancers end connections at any time.
                Ok(None) | Err(FetchError::Timeout | FetchError::Transport(_)) => {
                    return Some(WatchEnd::Ended { had_lines });
                }
                Err(error) => return Some(WatchEnd::Stale(Some(error.to_string()))),
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let (resource, budget) = (self.spec.resource, &self.server.budget);
            let (event, event_version) = match WatchEvent::parse(resource, line, budget) {
                Ok(read) => read,
                Err(error) => return Some(WatchEnd::Stale(Some(lines.without_secrets(error)))),
            };
            let change = match event {
                WatchEvent::Set(object) => Some(WatchChange::Set(self.idx, object)),
                WatchEvent::Removed(object) => Some(WatchChange::Removed(self.idx, object)),
                WatchEvent::Bookmark | WatchEvent::Other => None,
                WatchEvent::Gone => return Some(WatchEnd::Stale(None)),
            };
            had_lines = true;
            if let Some(change) = change {
                self.changes.send(change).await.ok()?;
            }
            if !event_version.is_empty() {
                *version = event_version;
            }
        }
    }
}
