//! Services of Consul.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::{Budget, Error, Pool, Reservation, Result};
use serde::Deserialize;

use super::api::{
    ApiHost, TargetsBuilder, each_item, host_port, named, or_default, percent_encoded, whole,
};
use super::names::check_repeated;
use super::text_bytes;
use crate::config::LabelSet;
use crate::config::discovery::ConsulDiscovery;
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// Queries of Consul, and the meaning of their answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsulTargets {
    config: ConsulDiscovery,
    host: ApiHost,
}

/// The header of an answer with the index of the next query, which waits for a change behind it.
pub const INDEX_HEADER: &str = "x-consul-index";
/// The header with the token.
pub const TOKEN_HEADER: &str = "x-consul-token";

const DATACENTER_BYTES_MAX: usize = 1 << 10;
// A name in the answer, in the table of watches, in a watch and in its queries.
const NAME_COPIES: usize = 4;

/// The index of the query after one with the index `last`, and whether its answer is new.
pub fn next_index(last: u64, header: Option<&str>) -> (u64, bool) {
    match header.and_then(|text| text.trim().parse().ok()).unwrap_or(0) {
        // Without an index each query returns at once.
        0 => (0, true),
        index if index == last => (last, false),
        // The state of the servers is another one: changes behind the old index may never come.
        index if index < last => (0, true),
        index => (index, true),
    }
}

impl ConsulTargets {
    /// Queries to the server of `config`, of a job or a set of Alertmanagers that is `place`.
    ///
    /// # Errors
    /// `Invalid` for an address with another scheme.
    pub fn new(config: ConsulDiscovery, place: &str) -> Result<ConsulTargets> {
        let (scheme, address) = match config.server.split_once("://") {
            Some((scheme, address)) => (scheme, address),
            None => (config.scheme.as_str(), config.server.as_str()),
        };
        let mut host = match scheme {
            "http" | "https" => ApiHost::http(&format!("{scheme}://{address}")),
            "unix" => ApiHost::unix(address),
            _ => {
                // A password with `://` is in front of it.
                let is_word = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
                let scheme = if is_word { scheme } else { "" };
                let expected = "expected one such as HOST:PORT, http, https or unix:///PATH";
                return Err(Error::invalid(format!(
                    "consul_sd_configs of {place}: scheme {scheme:?} of the server: {expected}"
                )));
            }
        };
        let prefix = config.path_prefix.trim_matches('/');
        if !prefix.is_empty() {
            host.base = format!("{}/{prefix}", host.base);
        }
        Ok(ConsulTargets { config, host })
    }

    /// The section of the configuration.
    pub fn config(&self) -> &ConsulDiscovery {
        &self.config
    }

    /// The server.
    pub fn host(&self) -> &ApiHost {
        &self.host
    }

    /// The shortest time between two queries of the same list.
    pub fn refresh_ms(&self) -> u64 {
        self.config.refresh_interval.as_ms().max(1)
    }

    /// Whether the catalog lists the services: not all of them are known from the configuration.
    pub fn uses_catalog(&self) -> bool {
        let ConsulDiscovery { services, tags, filter, .. } = &self.config;
        services.is_empty() || !tags.is_empty() || !filter.is_empty()
    }

    /// The query for the data centre, which is needed if the configuration has none.
    pub fn self_path(&self) -> String {
        "/v1/agent/self".to_owned()
    }

    /// The query for the services of the catalog, if they have changed since `index`.
    pub fn catalog_path(&self, index: u64, wait_ms: u64) -> String {
        let mut query = self.query(index, wait_ms);
        query.add("filter", &self.config.filter);
        format!("/v1/catalog/services{}", query.text)
    }

    /// The query for the instances of a service, if they have changed since `index`.
    pub fn service_path(&self, service: &str, index: u64, wait_ms: u64) -> String {
        let mut query = self.query(index, wait_ms);
        for tag in &self.config.tags {
            query.add("tag", tag);
        }
        query.add("filter", &self.config.health_filter);
        format!("/v1/health/service/{}{}", percent_encoded(service), query.text)
    }

    fn query(&self, index: u64, wait_ms: u64) -> Query {
        let config = &self.config;
        let mut query = Query { text: String::new() };
        query.add("dc", &config.datacenter);
        query.add("ns", &config.namespace);
        query.add("partition", &config.partition);
        if config.allow_stale {
            query.add_always("stale", "");
        }
        if index > 0 {
            query.add("index", &index.to_string());
        }
        query.add("wait", &format!("{wait_ms}ms"));
        for (name, value) in &config.node_meta {
            query.add("node-meta", &format!("{name}:{value}"));
        }
        query
    }

    /// The data centre in the answer to [`ConsulTargets::self_path`].
    ///
    /// # Errors
    /// `Invalid` for an answer without it.
    pub fn datacenter(&self, body: &[u8], budget: &Budget) -> Result<String> {
        whole(body, budget, |agent: Agent| match agent.config.datacenter {
            name if name.is_empty() => {
                Err(Error::invalid("the agent of Consul does not name its Config.Datacenter"))
            }
            name if name.len() > DATACENTER_BYTES_MAX => Err(Error::invalid(format!(
                "the agent of Consul names a data centre of {} bytes, expected at most \
                 {DATACENTER_BYTES_MAX}",
                name.len()
            ))),
            name => Ok(name),
        })
    }

    /// The services to watch in the answer to [`ConsulTargets::catalog_path`], with the memory that
    /// their names take here and in the watches.
    ///
    /// # Errors
    /// `Invalid` for a malformed answer, `Busy` without memory.
    pub fn services(
        &self,
        body: &[u8],
        budget: &Budget,
    ) -> Result<(BTreeSet<String>, Reservation)> {
        whole(body, budget, |catalog: BTreeMap<String, Option<Vec<String>>>| {
            let ConsulDiscovery { services, tags, .. } = &self.config;
            let is_wanted = |(name, found): &(String, Option<Vec<String>>)| {
                let found = found.as_deref().unwrap_or_default();
                (services.is_empty() || services.contains(name))
                    && tags.iter().all(|tag| found.contains(tag))
            };
            let names: BTreeSet<String> =
                catalog.into_iter().filter(is_wanted).map(|(name, _)| name).collect();
            names.iter().try_for_each(|name| check_repeated("the name of a service", name))?;
            let bytes = names.iter().map(|name| text_bytes(name.len(), 0));
            let bytes = bytes.fold(0, usize::saturating_add).saturating_mul(NAME_COPIES);
            let held = budget.reserve(Pool::Cache, bytes as u64)?;
            Ok((names, held))
        })
    }

    /// The instances of a service in the answer to [`ConsulTargets::service_path`].
    ///
    /// # Errors
    /// `Invalid` for a malformed answer, `Busy` without memory.
    pub fn group(
        &self,
        service: &str,
        datacenter: &str,
        body: &[u8],
        budget: &Budget,
    ) -> Result<(DiscoveredGroup, Reservation)> {
        let mut targets = TargetsBuilder::new(budget);
        each_item(body, budget, |instance: Instance| self.add(&instance, &mut targets))?;
        let labels = [("__meta_consul_service", service), ("__meta_consul_dc", datacenter)];
        targets.finish(labels.into_iter().collect::<LabelSet>())
    }

    fn add(&self, instance: &Instance, targets: &mut TargetsBuilder) -> Result<()> {
        let Instance { node, service, checks } = instance;
        // A service may be registered by another node than the one that runs it.
        let host = if service.address.is_empty() { &node.address } else { &service.address };
        let separator = &self.config.tag_separator;
        // Separators around the list: a regular expression need not know the place of a tag.
        let tags = format!("{separator}{}{separator}", service.tags.join(separator));
        let own = [
            (ADDRESS, host_port(host, service.port)),
            ("__meta_consul_address", node.address.clone()),
            ("__meta_consul_node", node.name.clone()),
            ("__meta_consul_namespace", service.namespace.clone()),
            ("__meta_consul_partition", service.partition.clone()),
            ("__meta_consul_tags", tags),
            ("__meta_consul_service_address", service.address.clone()),
            ("__meta_consul_service_port", service.port.to_string()),
            ("__meta_consul_service_id", service.id.clone()),
            ("__meta_consul_health", health(checks).to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let labels: Vec<(String, String)> = own
            .chain(named("__meta_consul_metadata_", &node.meta))
            .chain(named("__meta_consul_service_metadata_", &service.meta))
            .chain(named("__meta_consul_tagged_address_", &node.tagged_addresses))
            .collect();
        let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        targets.push(&labels.collect::<Vec<_>>(), &[])
    }
}

/// The worst state of the checks of an instance; empty if one of them is unknown.
fn health(checks: &[Check]) -> &'static str {
    const STATES: [&str; 4] = ["passing", "warning", "critical", "maintenance"];
    let rank_of = |check: &Check| {
        let is_maintenance =
            check.id == "_node_maintenance" || check.id.starts_with("_service_maintenance:");
        let state = if is_maintenance { "maintenance" } else { check.status.as_str() };
        STATES.iter().position(|known| *known == state)
    };
    let worst =
        checks.iter().try_fold(0, |worst, check| rank_of(check).map(|rank| rank.max(worst)));
    worst.and_then(|rank| STATES.get(rank)).copied().unwrap_or_default()
}

struct Query {
    text: String,
}

impl Query {
    /// Adds a parameter, unless it is empty.
    fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.add_always(name, value);
        }
    }

    fn add_always(&mut self, name: &str, value: &str) {
        self.text.push(if self.text.is_empty() { '?' } else { '&' });
        self.text += &format!("{name}={}", percent_encoded(value));
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Agent {
    #[serde(rename = "Config", deserialize_with = "or_default")]
    config: AgentConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentConfig {
    #[serde(rename = "Datacenter")]
    datacenter: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Instance {
    #[serde(rename = "Node", deserialize_with = "or_default")]
    node: ConsulNode,
    #[serde(rename = "Service", deserialize_with = "or_default")]
    service: ConsulService,
    #[serde(rename = "Checks", deserialize_with = "or_default")]
    checks: Vec<Check>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConsulNode {
    #[serde(rename = "Node")]
    name: String,
    #[serde(rename = "Address")]
    address: String,
    #[serde(rename = "TaggedAddresses", deserialize_with = "or_default")]
    tagged_addresses: BTreeMap<String, String>,
    #[serde(rename = "Meta", deserialize_with = "or_default")]
    meta: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConsulService {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Tags", deserialize_with = "or_default")]
    tags: Vec<String>,
    #[serde(rename = "Address")]
    address: String,
    #[serde(rename = "Port")]
    port: i64,
    #[serde(rename = "Meta", deserialize_with = "or_default")]
    meta: BTreeMap<String, String>,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "Partition")]
    partition: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Check {
    #[serde(rename = "CheckID")]
    id: String,
    #[serde(rename = "Status")]
    status: String,
}

#[cfg(test)]
mod tests;
