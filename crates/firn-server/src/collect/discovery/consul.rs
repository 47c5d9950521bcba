//! Watches of Consul: of the catalog of services, and of the instances of each service.
//!
//! A watch is a query that waits on the server until its answer changes. Each watch has a task and
//! a connection; one task collects their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use firn_collect::config::Url;
use firn_collect::discovery::{ConsulTargets, INDEX_HEADER, TOKEN_HEADER, next_index};
use firn_collect::pool::DiscoveredGroup;
use firn_fetch::{Client, Connections, Response};
use firn_model::{Budget, Reservation, Secret};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::api::ApiCall;
use super::counts::DiscoveryCounts;
use super::{Run, not_read};

/// Times of watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchTimes {
    /// The server answers a query after this time if nothing has changed.
    pub(super) wait: Duration,
    /// A query that takes this much longer has failed.
    pub(super) slack: Duration,
    /// The pause after a failure, if the refresh interval is not shorter.
    pub(super) retry: Duration,
    /// The first list is complete, or as old as this.
    pub(super) first_list: Duration,
    /// The pause between two lists: many services may change at once.
    pub(super) publish: Duration,
}

impl WatchTimes {
    pub(super) const DEFAULT: WatchTimes = WatchTimes {
        wait: Duration::from_secs(120),
        slack: Duration::from_secs(15),
        retry: Duration::from_secs(15),
        first_list: Duration::from_secs(10),
        publish: Duration::from_secs(1),
    };
}

// Each has a connection to the server.
const WATCHES_MAX: usize = 4_096;
// Answers that wait for the collecting task.
const UPDATES_MAX: usize = 64;

/// An answer, or its failure.
enum Update {
    Services(BTreeSet<String>, Reservation),
    Group(String, DiscoveredGroup, Reservation),
    /// The query of a service, or of the catalog, failed.
    Failed(Option<String>, String),
}

impl Run {
    /// Watches the services of `targets`.
    pub(super) async fn consul(self, targets: ConsulTargets, mut times: WatchTimes) {
        times.retry = times.retry.min(Duration::from_millis(targets.refresh_ms()));
        let server = Url::shown(&targets.config().server);
        let api = loop {
            match self.open_api(&targets, times).await {
                Ok(api) => break api,
                Err(error) => self.failed(&format!("{server}: {error}")),
            }
            sleep(times.retry).await;
        };
        let (sender, mut updates) = mpsc::channel(UPDATES_MAX);
        let mut watches = Watches::start(Arc::new(api), sender);
        if let Err(error) = watches.start_known() {
            self.failed(&format!("{server}: {error}"));
        }
        let first_at = Instant::now() + times.first_list;
        let mut is_listed = false;
        loop {
            let update = match is_listed {
                true => updates.recv().await,
                // Without an answer the list is incomplete.
                false => timeout_at(first_at, updates.recv()).await.unwrap_or(None),
            };
            let mut next = update;
            while let Some(update) = next {
                if let Err(error) = watches.apply(update) {
                    self.failed_in_part(&format!("{server}: {error}"));
                }
                next = updates.try_recv().ok();
            }
            is_listed |= watches.are_known() || Instant::now() >= first_at;
            if is_listed {
                self.publish_copy(watches.bytes(), || watches.groups());
                sleep(times.publish).await;
            }
        }
    }

    async fn open_api(&self, targets: &ConsulTargets, times: WatchTimes) -> Result<Api, String> {
        let config = targets.config();
        let client = Client::new(&config.http, &self.shared.bodies);
        let mut api = Api {
            client: client.map_err(|error| error.to_string())?,
            datacenter: config.datacenter.clone(),
            targets: targets.clone(),
            times,
            budget: self.shared.budget.clone(),
            counts: Arc::clone(&self.shared.counts),
        };
        if api.datacenter.is_empty() {
            let response = api.get(&targets.self_path(), &mut Connections::default()).await?;
            let datacenter = targets.datacenter(&response.body, &api.budget);
            api.datacenter = datacenter.map_err(|error| response.without_secrets(error))?;
        }
        Ok(api)
    }
}

/// The tasks of watches, and the last good answer of each.
struct Watches {
    api: Arc<Api>,
    updates: mpsc::Sender<Update>,
    tasks: JoinSet<()>,
    services: BTreeMap<String, WatchedService>,
    /// Whether the services are those of the catalog or of the configuration.
    has_services: bool,
    /// The memory of their names.
    names: Option<Reservation>,
}

struct WatchedService {
    watch: AbortHandle,
    has_answered: bool,
    group: Option<(DiscoveredGroup, Reservation)>,
}

impl Watches {
    fn start(api: Arc<Api>, updates: mpsc::Sender<Update>) -> Watches {
        let (tasks, services) = (JoinSet::new(), BTreeMap::new());
        Watches { api, updates, tasks, services, has_services: false, names: None }
    }

    /// Starts the watches that the configuration names: of its services, or of the catalog.
    fn start_known(&mut self) -> Result<(), String> {
        if self.api.targets.uses_catalog() {
            let watching = watch(Arc::clone(&self.api), None, self.updates.clone());
            self.tasks.spawn(watching);
            return Ok(());
        }
        let services = self.api.targets.config().services.iter().cloned().collect();
        self.set_services(services)
    }

    /// Watches these services from now on.
    fn set_services(&mut self, names: BTreeSet<String>) -> Result<(), String> {
        let count = names.len();
        if count > WATCHES_MAX {
            return Err(format!(
                "{count} services, at most {WATCHES_MAX} are watched: select some with services, \
                 tags or filter"
            ));
        }
        self.has_services = true;
        self.services.retain(|name, service| {
            let is_kept = names.contains(name);
            if !is_kept {
                service.watch.abort();
            }
            is_kept
        });
        while self.tasks.try_join_next().is_some() {}
        for name in names {
            if !self.services.contains_key(&name) {
                let watching =
                    watch(Arc::clone(&self.api), Some(name.clone()), self.updates.clone());
                let watch = self.tasks.spawn(watching);
                self.services
                    .insert(name, WatchedService { watch, has_answered: false, group: None });
            }
        }
        Ok(())
    }

    /// An answer replaces the one before. Those of services that are not watched any more are
    /// dropped.
    fn apply(&mut self, update: Update) -> Result<(), String> {
        match update {
            Update::Services(names, held) => {
                self.set_services(names)?;
                self.names = Some(held);
                Ok(())
            }
            Update::Group(name, group, held) => {
                if let Some(service) = self.services.get_mut(&name) {
                    service.has_answered = true;
                    service.group = Some((group, held));
                }
                Ok(())
            }
            Update::Failed(None, error) => Err(format!("services: {error}")),
            Update::Failed(Some(name), error) => {
                if let Some(service) = self.services.get_mut(&name) {
                    service.has_answered = true;
                }
                Err(format!("service {name:?}: {error}"))
            }
        }
    }

    fn are_known(&self) -> bool {
        self.has_services && self.services.values().all(|service| service.has_answered)
    }

    fn found(&self) -> impl Iterator<Item = &(DiscoveredGroup, Reservation)> {
        let groups = self.services.values().filter_map(|service| service.group.as_ref());
        groups.filter(|(group, _)| !group.targets.is_empty())
    }

    fn bytes(&self) -> usize {
        let bytes = self.found().map(|(_, held)| held.bytes()).sum::<u64>();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn groups(&self) -> Vec<DiscoveredGroup> {
        self.found().map(|(group, _)| group.clone()).collect()
    }
}

/// The server, for all watches.
struct Api {
    client: Client,
    targets: ConsulTargets,
    datacenter: String,
    times: WatchTimes,
    budget: Budget,
    counts: Arc<DiscoveryCounts>,
}

impl Api {
    async fn get(&self, path: &str, connections: &mut Connections) -> Result<Response, String> {
        let token = &self.targets.config().token;
        let secrets: Vec<(HeaderName, Secret)> = match token.expose().is_empty() {
            true => Vec::new(),
            false => vec![(HeaderName::from_static(TOKEN_HEADER), token.clone())],
        };
        let timeout = self.times.wait + self.times.slack;
        let call = ApiCall { host: self.targets.host(), path, secrets, timeout };
        call.send(&self.client, connections).await
    }
}

/// Repeats the query of a service, or of the catalog, at most once in a refresh interval.
async fn watch(api: Arc<Api>, service: Option<String>, updates: mpsc::Sender<Update>) {
    let refresh = Duration::from_millis(api.targets.refresh_ms());
    let mut connections = Connections::default();
    let mut index = 0;
    loop {
        let mut next_at = Instant::now() + refresh;
        let update = match query(&api, service.as_deref(), &mut index, &mut connections).await {
            Ok(update) => update,
            Err(error) => {
                // The next query does not wait: the server may have been restored.
                index = 0;
                next_at = next_at.max(Instant::now() + api.times.retry);
                Some(Update::Failed(service.clone(), error))
            }
        };
        if let Some(update) = update
            && updates.send(update).await.is_err()
        {
            return;
        }
        sleep_until(next_at).await;
    }
}

/// Waits for an answer that is newer than `index`, or for the end of the query.
async fn query(
    api: &Arc<Api>,
    service: Option<&str>,
    index: &mut u64,
    connections: &mut Connections,
) -> Result<Option<Update>, String> {
    let wait_ms = u64::try_from(api.times.wait.as_millis()).unwrap_or(u64::MAX);
    let path = match service {
        Some(service) => api.targets.service_path(service, *index, wait_ms),
        None => api.targets.catalog_path(*index, wait_ms),
    };
    let began = Instant::now();
    let response = api.get(&path, connections).await;
    api.counts.add_consul_call(service.is_some(), began.elapsed(), response.is_ok());
    let response = response?;
    let header = response.headers.get(INDEX_HEADER).and_then(|value| value.to_str().ok());
    let (next, is_new) = next_index(*index, header);
    if !is_new {
        return Ok(None);
    }
    let (api, service) = (Arc::clone(api), service.map(str::to_owned));
    let reading = spawn_blocking(move || {
        let Api { targets, datacenter, budget, .. } = &*api;
        let read = match service {
            Some(service) => targets
                .group(&service, datacenter, &response.body, budget)
                .map(|(group, held)| Update::Group(service, group, held)),
            None => targets
                .services(&response.body, budget)
                .map(|(names, held)| Update::Services(names, held)),
        };
        read.map_err(|error| response.without_secrets(error))
    });
    let update = reading.await.map_err(|e| not_read("the answer", &e))??;
    *index = next;
    Ok(Some(update))
}

#[cfg(test)]
mod tests;
