//! The targets of endpoints and endpoint slices: the addresses of a service, and further ports of
//! the pods behind them.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::Result;

use super::super::names::{host_port, label_name};
use super::cluster::{Cluster, GroupBuilder};
use super::labels::{MetaLabels, containers};
use super::objects::{
    Address, EndpointSlice, Endpoints, ObjectReference, Pod, Service, ServicePort, SliceEndpoint,
    SlicePort,
};
use super::roles::set_service;
use crate::targets::ADDRESS;

/// The label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The pods that addresses refer to, and their ports that are targets.
#[derive(Default)]
struct SeenPods<'c>(BTreeMap<(&'c str, &'c str), (&'c Pod, BTreeSet<u32>)>);

impl<'c> SeenPods<'c> {
    /// The pod behind an address with `port`.
    fn see(
        &mut self,
        reference: Option<&ObjectReference>,
        port: Option<u32>,
        cluster: &'c Cluster<'_>,
    ) -> Option<&'c Pod> {
        let reference = reference.filter(|reference| reference.kind == "Pod")?;
        let pod = cluster.get::<Pod>(&reference.namespace, &reference.name)?;
        let key = (pod.metadata.namespace.as_str(), pod.metadata.name.as_str());
        let (_, ports) = self.0.entry(key).or_insert((pod, BTreeSet::new()));
        ports.extend(port);
        Some(pod)
    }

    /// Targets for the other ports of all pods.
    fn push_rest(&self, cluster: &Cluster<'_>, group: &mut GroupBuilder<'_>) -> Result<()> {
        let pods = self.0.values().filter(|(pod, _)| !pod.status.pod_ip.is_empty());
        for (pod, seen) in pods {
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

/// The labels of `pod` and of its containers with `port`. The protocol is that of the container
/// unless there is one of the endpoint.
fn set_pod_port(
    target: &mut MetaLabels,
    pod: &Pod,
    port: Option<u32>,
    protocol: Option<&str>,
    cluster: &Cluster<'_>,
) {
    target.set_pod(pod, cluster);
    for (container, is_init) in containers(pod) {
        let same = container.ports.iter().find(|known| Some(known.container_port) == port);
        if let Some(known) = same {
            let protocol = protocol.unwrap_or(&known.protocol);
            target.set_port((container, is_init), known, protocol);
        }
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
                if let Some(pod) = seen.see(reference, Some(port.port), cluster) {
                    let protocol = Some(port.protocol.as_str());
                    set_pod_port(&mut target, pod, Some(port.port), protocol, cluster);
                }
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
    for endpoint in &slice.endpoints {
        for port in &slice.ports {
            let mut target = endpoint_labels(endpoint, port, cluster);
            if let Some(pod) = seen.see(endpoint.target_ref.as_ref(), port.port, cluster) {
                set_pod_port(&mut target, pod, port.port, None, cluster);
            }
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
