//! The targets of endpoints and endpoint slices: the addresses of a service, and further ports of
//! the pods behind them.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::Result;

use super::super::names::{host_port, label_name};
use super::labels::{GroupBuilder, MetaLabels, containers};
use super::objects::{
    Address, Container, ContainerPort, EndpointSlice, Endpoints, ObjectReference, Pod, Service,
    ServicePort, SliceEndpoint, SlicePort,
};
use super::roles::set_service;
use super::stored::Cluster;
use crate::targets::ADDRESS;

/// The label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A container, whether it initialises its pod, and one of its ports.
type PortOf<'c> = (&'c Container, bool, &'c ContainerPort);

/// A pod that addresses refer to.
struct SeenPod<'c> {
    pod: &'c Pod,
    /// The first port with each number in the last container that has one. A map, because each
    /// address looks for its port.
    by_number: BTreeMap<u32, PortOf<'c>>,
    /// Its ports that are targets.
    seen: BTreeSet<u32>,
}

impl<'c> SeenPod<'c> {
    fn new(pod: &'c Pod) -> SeenPod<'c> {
        let mut by_number = BTreeMap::new();
        for (container, is_init) in containers(pod) {
            let ports = container.ports.iter().rev();
            by_number.extend(ports.map(|port| (port.container_port, (container, is_init, port))));
        }
        SeenPod { pod, by_number, seen: BTreeSet::new() }
    }
}

/// The pods that addresses refer to, by namespace and name.
#[derive(Default)]
struct SeenPods<'c>(BTreeMap<(&'c str, &'c str), SeenPod<'c>>);

impl<'c> SeenPods<'c> {
    /// Sets the labels of the pod behind an address with `port`, and those of the container with
    /// this port. The protocol is that of the container unless there is one of the endpoint.
    fn set_pod(
        &mut self,
        target: &mut MetaLabels,
        reference: Option<&ObjectReference>,
        (port, protocol): (Option<u32>, Option<&str>),
        cluster: &'c Cluster<'_>,
    ) {
        let Some(reference) = reference.filter(|reference| reference.kind == "Pod") else { return };
        let Some(pod) = cluster.get::<Pod>(&reference.namespace, &reference.name) else { return };
        let key = (pod.metadata.namespace.as_str(), pod.metadata.name.as_str());
        let pod = self.0.entry(key).or_insert_with(|| SeenPod::new(pod));
        pod.seen.extend(port);
        target.set_pod(pod.pod, cluster);
        if let Some((container, is_init, known)) = port.and_then(|port| pod.by_number.get(&port)) {
            let protocol = protocol.unwrap_or(&known.protocol);
            target.set_port((container, *is_init), known, protocol);
        }
    }

    /// Targets for the other ports of all pods.
    fn push_rest(&self, cluster: &Cluster<'_>, group: &mut GroupBuilder<'_>) -> Result<()> {
        let pods = self.0.values().filter(|pod| !pod.pod.status.pod_ip.is_empty());
        for SeenPod { pod, seen, .. } in pods {
            for (container, is_init) in containers(pod) {
                let rest = container.ports.iter();
                for port in rest.filter(|port| !seen.contains(&port.container_port)) {
                    let mut target = MetaLabels::default();
                    let address = host_port(&pod.status.pod_ip, port.container_port);
                    target.set_plain(ADDRESS, address);
                    target.set_port((container, is_init), port, &port.protocol);
                    target.set_pod(pod, cluster);
                    group.push(target)?;
                }
            }
        }
        Ok(())
    }
}

/// One target for each address and port, and for each further port of the pods behind them.
pub(super) fn build_endpoints(
    endpoints: &Endpoints,
    cluster: &Cluster<'_>,
    group: &mut GroupBuilder<'_>,
) -> Result<MetaLabels> {
    let metadata = &endpoints.metadata;
    let mut labels = MetaLabels::default();
    labels.set_namespace(&metadata.namespace, cluster);
    if let Some(service) = cluster.get::<Service>(&metadata.namespace, &metadata.name) {
        set_service(&mut labels, service, cluster);
    }
    labels.set_object("endpoints", metadata);
    let mut seen = SeenPods::default();
    for subset in &endpoints.subsets {
        for port in &subset.ports {
            let ready = subset.addresses.iter().map(|address| (address, "true"));
            let others = subset.not_ready_addresses.iter().map(|address| (address, "false"));
            for (address, is_ready) in ready.chain(others) {
                let mut target = address_labels(address, port, cluster);
                target.set("endpoint_ready", is_ready);
                let reference = address.target_ref.as_ref();
                let number_and_protocol = (Some(port.port), Some(port.protocol.as_str()));
                seen.set_pod(&mut target, reference, number_and_protocol, cluster);
                group.push(target)?;
            }
        }
    }
    seen.push_rest(cluster, group)?;
    Ok(labels)
}

fn address_labels(address: &Address, port: &ServicePort, cluster: &Cluster<'_>) -> MetaLabels {
    let mut target = MetaLabels::default();
    target.set_plain(ADDRESS, host_port(&address.ip, port.port));
    target.set("endpoint_port_name", port.name.as_str());
    target.set("endpoint_port_protocol", port.protocol.as_str());
    let reference = address.target_ref.as_ref();
    if let Some(reference) = reference {
        target.set("endpoint_address_target_kind", reference.kind.as_str());
        target.set("endpoint_address_target_name", reference.name.as_str());
    }
    target.set_some("endpoint_node_name", address.node_name.as_deref());
    let hostname = Some(address.hostname.as_str()).filter(|hostname| !hostname.is_empty());
    target.set_some("endpoint_hostname", hostname);
    target.set_node(address.node_name.as_deref().or(node_of(reference)), cluster);
    target
}

/// The name of a node that is referred to.
fn node_of(reference: Option<&ObjectReference>) -> Option<&str> {
    reference.filter(|reference| reference.kind == "Node").map(|node| node.name.as_str())
}

/// As [`build_endpoints`]. A slice of the second address family of its service has no targets: they
/// are those of the first one.
pub(super) fn build_endpoint_slice(
    slice: &EndpointSlice,
    cluster: &Cluster<'_>,
    group: &mut GroupBuilder<'_>,
) -> Result<MetaLabels> {
    let metadata = &slice.metadata;
    let mut labels = MetaLabels::default();
    labels.set_namespace(&metadata.namespace, cluster);
    labels.set("endpointslice_address_type", slice.address_type.as_str());
    labels.set_object("endpointslice", metadata);
    let service_name = metadata.labels.get(SERVICE_NAME);
    let service = service_name.and_then(|name| cluster.get::<Service>(&metadata.namespace, name));
    if let Some(service) = service {
        if is_second_family(slice, service) {
            return Ok(labels);
        }
        set_service(&mut labels, service, cluster);
    }
    let mut seen = SeenPods::default();
    // One without addresses has no target, so no memory would bound the work on its ports.
    let endpoints = slice.endpoints.iter().filter(|endpoint| !endpoint.addresses.is_empty());
    for endpoint in endpoints {
        for port in &slice.ports {
            let mut target = endpoint_labels(endpoint, port, cluster);
            let reference = endpoint.target_ref.as_ref();
            seen.set_pod(&mut target, reference, (port.port, None), cluster);
            for address in &endpoint.addresses {
                let mut target = target.clone();
                let address = match port.port {
                    Some(port) => host_port(address, port),
                    None => address.clone(),
                };
                target.set_plain(ADDRESS, address);
                group.push(target)?;
            }
        }
    }
    seen.push_rest(cluster, group)?;
    Ok(labels)
}

fn is_second_family(slice: &EndpointSlice, service: &Service) -> bool {
    let is_dual =
        matches!(service.spec.ip_family_policy.as_str(), "PreferDualStack" | "RequireDualStack");
    let is_ip = matches!(slice.address_type.as_str(), "IPv4" | "IPv6");
    let first = service.spec.ip_families.first();
    is_dual && is_ip && first.is_some_and(|first| *first != slice.address_type)
}

fn endpoint_labels(
    endpoint: &SliceEndpoint,
    port: &SlicePort,
    cluster: &Cluster<'_>,
) -> MetaLabels {
    let mut target = MetaLabels::default();
    target.set_some("endpointslice_port_name", port.name.as_deref());
    target.set_some("endpointslice_port_protocol", port.protocol.as_deref());
    target.set_some("endpointslice_port", port.port.map(|port| port.to_string()));
    target.set_some("endpointslice_port_app_protocol", port.app_protocol.as_deref());
    let conditions = &endpoint.conditions;
    for (name, condition) in [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ] {
        let name = format!("endpointslice_endpoint_conditions_{name}");
        target.set_some(&name, condition.map(|condition| condition.to_string()));
    }
    target.set_some("endpointslice_endpoint_hostname", endpoint.hostname.as_deref());
    let reference = endpoint.target_ref.as_ref();
    if let Some(reference) = reference {
        target.set("endpointslice_address_target_kind", reference.kind.as_str());
        target.set("endpointslice_address_target_name", reference.name.as_str());
    }
    target.set_some("endpointslice_endpoint_node_name", endpoint.node_name.as_deref());
    target.set_some("endpointslice_endpoint_zone", endpoint.zone.as_deref());
    for (key, text) in &endpoint.deprecated_topology {
        let key = label_name(key);
        target.set(&format!("endpointslice_endpoint_topology_{key}"), text.as_str());
        target.set(&format!("endpointslice_endpoint_topology_present_{key}"), "true");
    }
    target.set_node(node_of(reference).or(endpoint.node_name.as_deref()), cluster);
    target
}
