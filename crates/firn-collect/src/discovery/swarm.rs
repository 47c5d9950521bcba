//! Services, tasks and nodes of Docker Swarm.

mod objects;

use std::collections::BTreeMap;
use std::net::IpAddr;

use firn_model::{Budget, Error, Pool, Reservation, Result, excerpt_within};

use self::objects::{ServicePort, SwarmNode, SwarmService, Task};
use super::api::{ApiHost, Label, LabelTable, TargetsBuilder, each_item, host_port};
use super::docker::{daemon, filtered, network_labels};
use super::text_bytes;
use crate::config::LabelSet;
use crate::config::discovery::SwarmDiscovery;
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// Requests for the objects of a swarm, and the meaning of its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct SwarmTargets {
    config: SwarmDiscovery,
    host: ApiHost,
}

const PREFIX: &str = "__meta_dockerswarm_";
const NODE_ADDRESS: &str = "__meta_dockerswarm_node_address";

impl SwarmTargets {
    /// Requests to the manager of `config`, of a job or a set of Alertmanagers that is `place`.
    ///
    /// # Errors
    /// `Invalid` for an address with another scheme.
    pub fn new(config: SwarmDiscovery, place: &str) -> Result<SwarmTargets> {
        let host = daemon(&config.host, "dockerswarm_sd_configs", place)?;
        Ok(SwarmTargets { config, host })
    }

    /// The section of the configuration.
    pub fn config(&self) -> &SwarmDiscovery {
        &self.config
    }

    /// The manager.
    pub fn host(&self) -> &ApiHost {
        &self.host
    }

    /// The requests of a refresh, behind [`super::version_folder`]. The filters select objects of
    /// the role, not those that they refer to.
    pub fn paths(&self) -> Vec<String> {
        let role = filtered(&format!("/{}", self.config.role), &self.config.filters);
        let others: &[&str] = match self.config.role.as_str() {
            "nodes" => &[],
            "tasks" => &["/networks", "/services", "/nodes"],
            _ => &["/networks"],
        };
        std::iter::once(role).chain(others.iter().map(|path| (*path).to_owned())).collect()
    }

    /// The targets in the answers to [`SwarmTargets::paths`].
    ///
    /// # Errors
    /// `Invalid` for a malformed answer, `Busy` without memory.
    pub fn group(
        &self,
        bodies: &[&[u8]],
        budget: &Budget,
    ) -> Result<(DiscoveredGroup, Reservation)> {
        let mut targets = TargetsBuilder::new(budget);
        match bodies {
            [nodes] => {
                each_item(nodes, budget, |node: SwarmNode| self.add_node(&node, &mut targets))?
            }
            [services, networks] => {
                let networks = network_labels(networks, PREFIX, budget)?;
                each_item(services, budget, |service: SwarmService| {
                    self.add_service(&service, &networks, &mut targets)
                })?;
            }
            [tasks, networks, services, nodes] => {
                let swarm = Swarm {
                    networks: network_labels(networks, PREFIX, budget)?,
                    services: ServiceTable::read(services, budget)?,
                    nodes: node_labels(nodes, budget)?,
                };
                each_item(tasks, budget, |task: Task| self.add_task(&task, &swarm, &mut targets))?;
            }
            _ => return Err(Error::invalid("expected the answers to all requests")),
        }
        targets.finish(LabelSet::default())
    }

    fn add_node(&self, node: &SwarmNode, targets: &mut TargetsBuilder) -> Result<()> {
        let mut labels = node.labels();
        let engine = node.description.engine.version.clone();
        labels.push((format!("{PREFIX}node_engine_version"), engine));
        if let Some(manager) = &node.manager_status {
            labels.extend([
                (format!("{PREFIX}node_manager_leader"), manager.leader.to_string()),
                (format!("{PREFIX}node_manager_reachability"), manager.reachability.clone()),
                (format!("{PREFIX}node_manager_address"), manager.address.clone()),
            ]);
        }
        let address = host_port(&node.status.address, self.config.port);
        targets.push(&pairs(&labels).collect::<Vec<_>>(), &[(ADDRESS, &address)])
    }

    fn add_service(
        &self,
        service: &SwarmService,
        networks: &LabelTable,
        targets: &mut TargetsBuilder,
    ) -> Result<()> {
        let mut own = service.labels();
        let container = &service.spec.task_template.container_spec;
        own.extend([
            (format!("{PREFIX}service_task_container_hostname"), container.hostname.clone()),
            (format!("{PREFIX}service_task_container_image"), container.image.clone()),
            (format!("{PREFIX}service_updating_status"), service.update_status.state.clone()),
        ]);
        let ports = tcp_ports(&service.endpoint.ports);
        for virtual_ip in &service.endpoint.virtual_ips {
            let ip = ip_of(&virtual_ip.address)?;
            let shared: Vec<Label<'_>> =
                pairs(&own).chain(networks.of(&virtual_ip.network_id)).collect();
            for (address, port) in addresses(&ip, &ports, self.config.port) {
                let (name, mode) = port.map_or(("", ""), |port| (&*port.name, &*port.publish_mode));
                let labels = [
                    ("__meta_dockerswarm_service_endpoint_port_name", name),
                    ("__meta_dockerswarm_service_endpoint_port_publish_mode", mode),
                    (ADDRESS, address.as_str()),
                ];
                targets.push(&shared, &labels)?;
            }
        }
        Ok(())
    }

    fn add_task(&self, task: &Task, swarm: &Swarm, targets: &mut TargetsBuilder) -> Result<()> {
        const MODE: &str = "__meta_dockerswarm_task_port_publish_mode";
        let published = || task.status.port_status.ports.iter().filter(|port| port.is_tcp());
        let attachments = || task.attachments.iter().filter(|one| !one.addresses.is_empty());
        // Without a target, no memory bounds the work on the labels of its service and its node.
        if published().next().is_none() && attachments().next().is_none() {
            return Ok(());
        }
        let own = task.labels();
        let shared = pairs(&own)
            .chain(swarm.services.labels.of(&task.service_id))
            .chain(swarm.nodes.of(&task.node_id));
        let shared: Vec<Label<'_>> = shared.collect();
        let node_address = swarm.nodes.value(&task.node_id, NODE_ADDRESS);
        for port in published() {
            let address = host_port(node_address, port.published_port);
            targets.push(&shared, &[(MODE, &port.publish_mode), (ADDRESS, &address)])?;
        }
        let ports = swarm.services.ports.get(&task.service_id).map_or(&[][..], Vec::as_slice);
        let ports = if task.attachments.is_empty() { Vec::new() } else { tcp_ports(ports) };
        for attachment in attachments() {
            let networks = swarm.networks.of(&attachment.network.id);
            let shared: Vec<Label<'_>> = shared.iter().copied().chain(networks).collect();
            for address in &attachment.addresses {
                for (address, port) in addresses(&ip_of(address)?, &ports, self.config.port) {
                    let mode = port.map_or("", |port| &port.publish_mode);
                    targets.push(&shared, &[(MODE, mode), (ADDRESS, &address)])?;
                }
            }
        }
        Ok(())
    }
}

fn tcp_ports(ports: &[ServicePort]) -> Vec<&ServicePort> {
    ports.iter().filter(|port| port.is_tcp()).collect()
}

/// An address for each port of TCP, or one without such a port for the port of the configuration.
fn addresses<'p>(
    ip: &str,
    tcp: &[&'p ServicePort],
    default_port: i64,
) -> impl Iterator<Item = (String, Option<&'p ServicePort>)> {
    let without_port = tcp.is_empty().then(|| (host_port(ip, default_port), None));
    let with_port = tcp.iter().map(move |port| (host_port(ip, port.published_port), Some(*port)));
    with_port.chain(without_port)
}

/// The address in `text`, such as `10.0.0.2/24`.
fn ip_of(text: &str) -> Result<String> {
    let parsed = text.split_once('/').and_then(|(ip, bits)| {
        let ip: IpAddr = ip.parse().ok()?;
        let bits_max = if ip.is_ipv4() { 32 } else { 128 };
        bits.parse::<u8>().ok().filter(|bits| *bits <= bits_max).map(|_| ip.to_string())
    });
    parsed.ok_or_else(|| {
        let text = excerpt_within(text, 100);
        Error::invalid(format!("error while parsing address {text:?}: expected IP/BITS"))
    })
}

fn pairs(labels: &[(String, String)]) -> impl Iterator<Item = Label<'_>> {
    labels.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// Objects that tasks refer to.
struct Swarm {
    networks: LabelTable,
    services: ServiceTable,
    nodes: LabelTable,
}

struct ServiceTable {
    labels: LabelTable,
    ports: BTreeMap<String, Vec<ServicePort>>,
    _ports_held: Reservation,
}

impl ServiceTable {
    fn read(body: &[u8], budget: &Budget) -> Result<ServiceTable> {
        let mut labels = LabelTable::new(budget);
        let mut ports = BTreeMap::new();
        let mut held = budget.empty(Pool::Requests);
        let mut bytes: usize = 0;
        each_item(body, budget, |service: SwarmService| {
            labels.insert(service.id.clone(), service.labels().into_iter().collect())?;
            let mut own = service.endpoint.ports;
            // Tasks look at all ports that are kept.
            own.retain(ServicePort::is_tcp);
            bytes = bytes.saturating_add(ports_bytes(&service.id, &own));
            held.cover(bytes as u64)?;
            ports.insert(service.id, own);
            Ok(())
        })?;
        Ok(ServiceTable { labels, ports, _ports_held: held })
    }
}

// A node of the map with room for eleven services, of which it has at least five.
const PORTS_BYTES: usize = 128;

fn ports_bytes(id: &str, ports: &[ServicePort]) -> usize {
    ports.iter().fold(text_bytes(id.len(), PORTS_BYTES), |sum, port| {
        let texts = text_bytes(port.name.len(), port.publish_mode.len());
        // The list may have grown to twice its length.
        let own = size_of::<ServicePort>().saturating_mul(2).saturating_add(port.protocol.len());
        sum.saturating_add(texts).saturating_add(own)
    })
}

fn node_labels(body: &[u8], budget: &Budget) -> Result<LabelTable> {
    let mut nodes = LabelTable::new(budget);
    each_item(body, budget, |node: SwarmNode| {
        let labels = node.labels().into_iter().collect();
        nodes.insert(node.id, labels)
    })?;
    Ok(nodes)
}

#[cfg(test)]
mod tests;
