//! Refreshes of Docker and Docker Swarm: the lists of a daemon, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_collect::config::{HttpClient, Url};
use firn_collect::discovery::{
    ApiHost, DockerTargets, SwarmTargets, VERSION_HEADER, VERSION_PATH, version_folder,
};
use firn_collect::pool::DiscoveredGroup;
use firn_fetch::{Client, Connections, Response};
use firn_model::{Budget, Reservation};
use tokio::task::spawn_blocking;

use super::api::ApiCall;
use super::{Run, not_read};

/// The lists of a daemon.
#[derive(Debug)]
pub(super) enum Daemon {
    Docker(DockerTargets),
    Swarm(SwarmTargets),
}

/// The connection to a daemon, and the folder of its version.
struct Session {
    client: Client,
    connections: Connections,
    folder: String,
}

impl Daemon {
    fn address(&self) -> &Url {
        match self {
            Daemon::Docker(targets) => &targets.config().host,
            Daemon::Swarm(targets) => &targets.config().host,
        }
    }

    fn host(&self) -> &ApiHost {
        match self {
            Daemon::Docker(targets) => targets.host(),
            Daemon::Swarm(targets) => targets.host(),
        }
    }

    fn http(&self) -> &HttpClient {
        match self {
            Daemon::Docker(targets) => &targets.config().http,
            Daemon::Swarm(targets) => &targets.config().http,
        }
    }

    /// The time between two refreshes, which is also the time limit of a request.
    fn refresh(&self) -> Duration {
        let interval = match self {
            Daemon::Docker(targets) => targets.config().refresh_interval,
            Daemon::Swarm(targets) => targets.config().refresh_interval,
        };
        Duration::from_millis(interval.as_ms().max(1))
    }

    fn paths(&self) -> Vec<String> {
        match self {
            Daemon::Docker(targets) => targets.paths(),
            Daemon::Swarm(targets) => targets.paths(),
        }
    }

    fn group(
        &self,
        bodies: &[&[u8]],
        budget: &Budget,
    ) -> firn_model::Result<(DiscoveredGroup, Reservation)> {
        match self {
            Daemon::Docker(targets) => targets.group(bodies, budget),
            Daemon::Swarm(targets) => targets.group(bodies, budget),
        }
    }

    async fn get(
        &self,
        path: &str,
        client: &Client,
        connections: &mut Connections,
    ) -> Result<Response, String> {
        let timeout = self.refresh();
        let call = ApiCall { host: self.host(), path, secrets: Vec::new(), timeout };
        call.send(client, connections).await
    }
}

impl Run {
    /// Requests the lists of a daemon each refresh interval.
    pub(super) async fn daemon(self, daemon: Daemon) {
        let daemon = Arc::new(daemon);
        let mut session = None;
        loop {
            let start = Instant::now();
            match self.refresh_daemon(&daemon, &mut session).await {
                Ok((group, held)) => self.publish(vec![group], held),
                Err(error) => {
                    // The daemon may be another version when it returns.
                    session = None;
                    self.failed(&format!("{}: {error}", daemon.address()));
                }
            }
            self.refreshed(start);
            tokio::time::sleep(daemon.refresh()).await;
        }
    }

    async fn refresh_daemon(
        &self,
        daemon: &Arc<Daemon>,
        session: &mut Option<Session>,
    ) -> Result<(DiscoveredGroup, Reservation), String> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.open_session(daemon).await?),
        };
        let mut responses = Vec::new();
        for path in daemon.paths() {
            let path = format!("{}{path}", session.folder);
            responses.push(daemon.get(&path, &session.client, &mut session.connections).await?);
        }
        let (daemon, budget) = (Arc::clone(daemon), self.shared.budget.clone());
        let reading = spawn_blocking(move || {
            let bodies: Vec<&[u8]> = responses.iter().map(|response| &response.body[..]).collect();
            daemon.group(&bodies, &budget).map_err(|error| {
                let text = error.to_string();
                responses.iter().fold(text, |text, response| response.without_secrets(text))
            })
        });
        reading.await.map_err(|e| not_read("the lists", &e))?
    }

    async fn open_session(&self, daemon: &Daemon) -> Result<Session, String> {
        let client = Client::new(daemon.http(), &self.shared.bodies);
        let client = client.map_err(|error| error.to_string())?;
        let mut connections = Connections::default();
        let response = daemon.get(VERSION_PATH, &client, &mut connections).await?;
        let version = response.headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok());
        Ok(Session { client, connections, folder: version_folder(version) })
    }
}

#[cfg(test)]
mod tests;
