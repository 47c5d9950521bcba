//! The targets of nodes, pods, services and ingresses.

use std::collections::{HashMap, HashSet};

use firn_model::Result;

use super::super::names::{host_port, label_name};
use super::labels::{GroupBuilder, MetaLabels, containers};
use super::objects::{ContainerStatus, Ingress, Node, Pod, Service};
use super::stored::Cluster;
use crate::targets::ADDRESS;

/// One target for each node: its kubelet.
pub(super) fn build_node(node: &Node, group: &mut GroupBuilder<'_>) -> Result<MetaLabels> {
    // In the order of preference.
    const ADDRESS_KINDS: [&str; 6] =
        ["InternalIP", "InternalDNS", "ExternalIP", "ExternalDNS", "LegacyHostIP", "Hostname"];
    let mut labels = MetaLabels::default();
    labels.set("node_provider_id", node.spec.provider_id.as_str());
    for condition in &node.status.conditions {
        let kind = label_name(&condition.kind).to_lowercase();
        labels.set(&format!("node_condition_{kind}"), condition.status.to_lowercase());
    }
    labels.set_object("node", &node.metadata);
    let addresses = &node.status.addresses;
    let address_of = |kind: &&str| addresses.iter().find(|address| address.kind == **kind);
    let Some(address) = ADDRESS_KINDS.iter().find_map(address_of) else { return Ok(labels) };
    let mut target = MetaLabels::default();
    let port = node.status.daemon_endpoints.kubelet_endpoint.port;
    target.set_plain(ADDRESS, host_port(&address.address, port));
    target.set_plain("instance", node.metadata.name.as_str());
    // The first address of a kind counts.
    for address in addresses.iter().rev() {
        let kind = label_name(&address.kind);
        target.set(&format!("node_address_{kind}"), address.address.as_str());
    }
    group.push(target)?;
    Ok(labels)
}

/// One target for each port of each container, and for each container without ports. None for a
/// pod that has no address yet.
pub(super) fn build_pod(
    pod: &Pod,
    cluster: &Cluster<'_>,
    group: &mut GroupBuilder<'_>,
) -> Result<MetaLabels> {
    let mut labels = MetaLabels::default();
    let Pod { metadata, spec, status } = pod;
    if status.pod_ip.is_empty() {
        return Ok(labels);
    }
    labels.set_pod(pod, cluster);
    labels.set_namespace(&metadata.namespace, cluster);
    labels.set_node(Some(&spec.node_name), cluster);
    let ids = container_ids(&status.container_statuses);
    let init_ids = container_ids(&status.init_container_statuses);
    for (container, is_init) in containers(pod) {
        let ids = if is_init { &init_ids } else { &ids };
        let id = ids.get(container.name.as_str()).copied().unwrap_or_default();
        let mut target = MetaLabels::default();
        target.set("pod_container_id", id);
        for port in &container.ports {
            let mut target = target.clone();
            target.set_plain(ADDRESS, host_port(&status.pod_ip, port.container_port));
            target.set_port((container, is_init), port, &port.protocol);
            group.push(target)?;
        }
        if container.ports.is_empty() {
            target.set_plain(ADDRESS, status.pod_ip.as_str());
            target.set("pod_container_name", container.name.as_str());
            target.set("pod_container_image", container.image.as_str());
            target.set("pod_container_init", is_init.to_string());
            group.push(target)?;
        }
    }
    Ok(labels)
}

/// The identifiers of containers by name. Of statuses with the same name the first one counts.
fn container_ids(statuses: &[ContainerStatus]) -> HashMap<&str, &str> {
    let ids = statuses.iter().rev();
    ids.map(|status| (status.name.as_str(), status.container_id.as_str())).collect()
}

/// The labels of a service without those of a port.
pub(super) fn set_service(labels: &mut MetaLabels, service: &Service, cluster: &Cluster<'_>) {
    labels.set_object("service", &service.metadata);
    labels.set_namespace(&service.metadata.namespace, cluster);
}

/// One target for each port of a service.
pub(super) fn build_service(
    service: &Service,
    cluster: &Cluster<'_>,
    group: &mut GroupBuilder<'_>,
) -> Result<MetaLabels> {
    let Service { metadata, spec } = service;
    let mut labels = MetaLabels::default();
    set_service(&mut labels, service, cluster);
    let host = format!("{}.{}.svc", metadata.name, metadata.namespace);
    for port in &spec.ports {
        let mut target = MetaLabels::default();
        target.set_plain(ADDRESS, host_port(&host, port.port));
        target.set("service_port_name", port.name.as_str());
        target.set("service_port_number", port.port.to_string());
        target.set("service_port_protocol", port.protocol.as_str());
        target.set("service_type", spec.kind.as_str());
        match spec.kind.as_str() {
            "ExternalName" => target.set("service_external_name", spec.external_name.as_str()),
            _ => target.set("service_cluster_ip", spec.cluster_ip.as_str()),
        }
        if spec.kind == "LoadBalancer" {
            target.set("service_loadbalancer_ip", spec.load_balancer_ip.as_str());
        }
        group.push(target)?;
    }
    Ok(labels)
}

/// One target for each path of each rule of an ingress.
pub(super) fn build_ingress(
    ingress: &Ingress,
    cluster: &Cluster<'_>,
    group: &mut GroupBuilder<'_>,
) -> Result<MetaLabels> {
    let Ingress { metadata, spec } = ingress;
    let mut labels = MetaLabels::default();
    labels.set_object("ingress", metadata);
    labels.set_namespace(&metadata.namespace, cluster);
    labels.set_some("ingress_class_name", spec.ingress_class_name.as_deref());
    let tls: HashSet<&str> =
        spec.tls.iter().flat_map(|tls| &tls.hosts).map(String::as_str).collect();
    for rule in &spec.rules {
        let is_tls = has_host(&tls, &rule.host);
        let paths = match &rule.http {
            Some(http) => http.paths.iter().map(|path| path.path.as_str()).collect(),
            None => vec!["/"],
        };
        for path in paths {
            let mut target = MetaLabels::default();
            target.set_plain(ADDRESS, rule.host.as_str());
            target.set("ingress_scheme", if is_tls { "https" } else { "http" });
            target.set("ingress_host", rule.host.as_str());
            target.set("ingress_path", if path.is_empty() { "/" } else { path });
            group.push(target)?;
        }
    }
    Ok(labels)
}

/// Whether `patterns` contain `host`, or it with `*` in place of its first part.
fn has_host(patterns: &HashSet<&str>, host: &str) -> bool {
    let is_in = |(_, domain): (&str, &str)| patterns.contains(format!("*.{domain}").as_str());
    patterns.contains(host) || host.split_once('.').is_some_and(is_in)
}
