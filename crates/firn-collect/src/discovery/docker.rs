//! Containers of Docker, and the parts of its API that Docker Swarm shares.

use std::collections::BTreeMap;

use firn_model::{Budget, Error, Pool, Reservation, Result};
use serde::Deserialize;

use super::api::{
    ApiHost, Label, LabelTable, TargetsBuilder, each_item, host_port, named, or_default,
    percent_encoded,
};
use super::text_bytes;
use crate::config::discovery::{DockerDiscovery, SwarmFilter};
use crate::config::{LabelSet, Url};
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// Requests for the containers of a Docker daemon, and the meaning of its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct DockerTargets {
    config: DockerDiscovery,
    host: ApiHost,
}

/// The request for the version of a daemon: the answer names it in [`VERSION_HEADER`].
pub const VERSION_PATH: &str = "/_ping";
/// The header of [`VERSION_PATH`].
pub const VERSION_HEADER: &str = "api-version";
// A daemon that does not name its version is older than this one.
const OLDEST_VERSION: &str = "1.24";

/// The folder of a daemon's API. Requests without a version are deprecated, and a daemon refuses
/// versions that are much older or newer than its own.
pub fn version_folder(version: Option<&str>) -> String {
    let is_number = |text: &str| {
        (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_version = |text: &&str| {
        text.split_once('.').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
    };
    format!("/v{}", version.map(str::trim).filter(is_version).unwrap_or(OLDEST_VERSION))
}

/// The daemon at `url`.
///
/// # Errors
/// `Invalid` for another scheme.
pub(super) fn daemon(url: &Url, key: &str, place: &str) -> Result<ApiHost> {
    let rest = url.as_str().split_once("://").map_or("", |(_, rest)| rest);
    match url.scheme() {
        "unix" if rest.starts_with('/') => Ok(ApiHost::unix(rest)),
        "tcp" if !url.host().is_empty() => Ok(ApiHost::http(&format!("http://{rest}"))),
        "http" | "https" if !url.host().is_empty() => Ok(ApiHost::http(url.as_str())),
        _ => Err(Error::invalid(format!(
            "{key} of {place}: host {url}: expected an address such as \
             unix:///var/run/docker.sock, tcp://HOST:PORT, http://HOST:PORT or https://HOST:PORT"
        ))),
    }
}

/// `path` with a query for `filters`.
pub(super) fn filtered(path: &str, filters: &[SwarmFilter]) -> String {
    let mut wanted: BTreeMap<&str, BTreeMap<&str, bool>> = BTreeMap::new();
    for filter in filters {
        let values = filter.values.iter().map(|value| (value.as_str(), true));
        wanted.entry(&filter.name).or_default().extend(values);
    }
    wanted.retain(|_, values| !values.is_empty());
    if wanted.is_empty() {
        return path.to_owned();
    }
    let json = serde_json::json!(wanted).to_string();
    format!("{path}?filters={}", percent_encoded(&json))
}

/// The labels of networks by their id; their names begin with `prefix`.
pub(super) fn network_labels(body: &[u8], prefix: &str, budget: &Budget) -> Result<LabelTable> {
    let mut networks = LabelTable::new(budget);
    each_item(body, budget, |network: Network| {
        let own = [
            ("id", network.id.clone()),
            ("name", network.name),
            ("scope", network.scope),
            ("internal", network.internal.to_string()),
            ("ingress", network.ingress.to_string()),
        ];
        let own = own.into_iter().map(|(name, value)| (format!("{prefix}network_{name}"), value));
        let prefix = format!("{prefix}network_label_");
        let labels: LabelSet = own.chain(named(&prefix, &network.labels)).collect();
        networks.insert(network.id, labels)
    })?;
    Ok(networks)
}

impl DockerTargets {
    /// Requests to the daemon of `config`, of a job or a set of Alertmanagers that is `place`.
    ///
    /// # Errors
    /// `Invalid` for an address with another scheme.
    pub fn new(config: DockerDiscovery, place: &str) -> Result<DockerTargets> {
        let host = daemon(&config.host, "docker_sd_configs", place)?;
        Ok(DockerTargets { config, host })
    }

    /// The section of the configuration.
    pub fn config(&self) -> &DockerDiscovery {
        &self.config
    }

    /// The daemon.
    pub fn host(&self) -> &ApiHost {
        &self.host
    }

    /// The requests of a refresh, behind [`version_folder`].
    pub fn paths(&self) -> Vec<String> {
        vec![filtered("/containers/json", &self.config.filters), "/networks".to_owned()]
    }

    /// The targets in the answers to [`DockerTargets::paths`].
    ///
    /// # Errors
    /// `Invalid` for a malformed answer, `Busy` without memory.
    pub fn group(
        &self,
        bodies: &[&[u8]],
        budget: &Budget,
    ) -> Result<(DiscoveredGroup, Reservation)> {
        let [containers, networks] = bodies else {
            return Err(Error::invalid("expected the answers to two requests"));
        };
        let networks = network_labels(networks, "__meta_docker_", budget)?;
        let endpoints = Endpoints::read(containers, budget)?;
        let mut targets = TargetsBuilder::new(budget);
        each_item(containers, budget, |container: Container| {
            self.add_container(&container, &networks, &endpoints, &mut targets)
        })?;
        targets.finish(LabelSet::default())
    }

    fn add_container(
        &self,
        container: &Container,
        networks: &LabelTable,
        endpoints: &Endpoints,
        targets: &mut TargetsBuilder,
    ) -> Result<()> {
        let Some(name) = container.names.first() else { return Ok(()) };
        let mode = container.host_config.network_mode.as_str();
        let own: Vec<(String, String)> =
            named("__meta_docker_container_label_", &container.labels).collect();
        let common = [
            ("__meta_docker_container_id", container.id.as_str()),
            ("__meta_docker_container_name", name),
            ("__meta_docker_container_image", &container.image),
            ("__meta_docker_container_image_id", &container.image_id),
            ("__meta_docker_container_network_mode", mode),
        ];
        // Once for all networks: a container may have very many of both.
        let ports: Vec<&ContainerPort> =
            container.ports.iter().filter(|port| port.kind == "tcp").collect();
        let first_only = if self.config.match_first_network { 1 } else { usize::MAX };
        let found = endpoints.of(&container.network_settings.networks, mode);
        for endpoint in found.values().flatten().take(first_only) {
            let ip = endpoint.ip();
            let shared: Vec<Label<'_>> = common
                .into_iter()
                .chain(own.iter().map(|(name, value)| (name.as_str(), value.as_str())))
                .chain([("__meta_docker_network_ip", ip)])
                .chain(networks.of(&endpoint.network_id))
                .collect();
            for port in &ports {
                self.add_port(ip, port, &shared, targets)?;
            }
            if ports.is_empty() {
                // A container in the network of its host lists no ports.
                let address = match mode {
                    "host" => self.config.host_networking_host.clone(),
                    _ => host_port(ip, self.config.port),
                };
                targets.push(&shared, &[(ADDRESS, &address)])?;
            }
        }
        Ok(())
    }

    fn add_port(
        &self,
        ip: &str,
        port: &ContainerPort,
        shared: &[Label<'_>],
        targets: &mut TargetsBuilder,
    ) -> Result<()> {
        let address = host_port(ip, port.private_port);
        let (private, public) = (port.private_port.to_string(), port.public_port.to_string());
        let is_public = port.public_port > 0;
        let labels = [
            (ADDRESS, address.as_str()),
            ("__meta_docker_port_private", &private),
            ("__meta_docker_port_public", if is_public { &public } else { "" }),
            ("__meta_docker_port_public_ip", if is_public { &port.ip } else { "" }),
        ];
        targets.push(shared, &labels)
    }
}

type Networks = BTreeMap<String, Option<ContainerEndpoint>>;

/// The networks of all containers: a container may use those of another one.
struct Endpoints {
    by_container: BTreeMap<String, (String, Networks)>,
    _held: Reservation,
}

// A chain of containers that use the networks of the next one. It may be a ring.
const SHARED_NETWORKS_MAX: usize = 16;

impl Endpoints {
    fn read(body: &[u8], budget: &Budget) -> Result<Endpoints> {
        let mut held = budget.empty(Pool::Requests);
        let mut bytes: usize = 0;
        let mut by_container = BTreeMap::new();
        each_item(body, budget, |container: Container| {
            let networks = container.network_settings.networks;
            let mode = container.host_config.network_mode;
            bytes = bytes
                .saturating_add(text_bytes(container.id.len(), mode.len()))
                .saturating_add(networks_bytes(&networks));
            held.cover(bytes as u64)?;
            by_container.insert(container.id, (mode, networks));
            Ok(())
        })?;
        Ok(Endpoints { by_container, _held: held })
    }

    /// The networks of a container: its own ones, or those of the container that its mode names.
    fn of<'n>(&'n self, own: &'n Networks, mode: &'n str) -> &'n Networks {
        let (mut networks, mut mode) = (own, mode);
        for _ in 0..SHARED_NETWORKS_MAX {
            let shared = mode.strip_prefix("container:").filter(|_| networks.is_empty());
            let Some(other) = shared.and_then(|id| self.by_container.get(id)) else { break };
            (mode, networks) = (&other.0, &other.1);
        }
        networks
    }
}

// A node of the map with room for eleven networks.
const NETWORK_BYTES: usize = 256;
const NETWORKS_NODE_BYTES: usize = 1_200;

fn networks_bytes(networks: &Networks) -> usize {
    networks.iter().fold(NETWORKS_NODE_BYTES, |sum, (name, endpoint)| {
        let endpoint = endpoint.as_ref().map_or(0, |endpoint| {
            let addresses = text_bytes(endpoint.ip_address.len(), endpoint.ipv6_address.len());
            addresses.saturating_add(text_bytes(endpoint.network_id.len(), 0))
        });
        sum.saturating_add(NETWORK_BYTES).saturating_add(text_bytes(name.len(), endpoint))
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Scope")]
    scope: String,
    #[serde(rename = "Internal")]
    internal: bool,
    #[serde(rename = "Ingress")]
    ingress: bool,
    #[serde(rename = "Labels", deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names", deserialize_with = "or_default")]
    names: Vec<String>,
    #[serde(rename = "Image")]
    image: String,
    #[serde(rename = "ImageID")]
    image_id: String,
    #[serde(rename = "Ports", deserialize_with = "or_default")]
    ports: Vec<ContainerPort>,
    #[serde(rename = "Labels", deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(rename = "HostConfig", deserialize_with = "or_default")]
    host_config: HostConfig,
    #[serde(rename = "NetworkSettings", deserialize_with = "or_default")]
    network_settings: NetworkSettings,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerPort {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "PrivatePort")]
    private_port: u16,
    #[serde(rename = "PublicPort")]
    public_port: u16,
    #[serde(rename = "Type")]
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostConfig {
    #[serde(rename = "NetworkMode")]
    network_mode: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetworkSettings {
    #[serde(rename = "Networks", deserialize_with = "or_default")]
    networks: Networks,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerEndpoint {
    #[serde(rename = "NetworkID")]
    network_id: String,
    #[serde(rename = "IPAddress")]
    ip_address: String,
    #[serde(rename = "GlobalIPv6Address")]
    ipv6_address: String,
}

impl ContainerEndpoint {
    /// The address; that of IPv6 in a network without IPv4.
    fn ip(&self) -> &str {
        if self.ip_address.is_empty() { &self.ipv6_address } else { &self.ip_address }
    }
}

#[cfg(test)]
mod tests;
