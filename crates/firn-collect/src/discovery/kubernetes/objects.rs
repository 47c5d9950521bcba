//! Objects of Kubernetes with the fields that labels need.

use std::collections::BTreeMap;

use firn_model::HEAP_BLOCK_BYTES;
use serde::{Deserialize, Deserializer};

use crate::json::JsonCounts;

/// The memory of a value on the heap.
pub(super) trait HeapBytes {
    fn heap_bytes(&self) -> usize;
}

impl HeapBytes for String {
    fn heap_bytes(&self) -> usize {
        self.capacity().saturating_add(HEAP_BLOCK_BYTES)
    }
}

impl<T: HeapBytes> HeapBytes for Vec<T> {
    fn heap_bytes(&self) -> usize {
        let own = self.capacity().saturating_mul(size_of::<T>()).saturating_add(HEAP_BLOCK_BYTES);
        self.iter().map(T::heap_bytes).fold(own, usize::saturating_add)
    }
}

impl<T: HeapBytes> HeapBytes for Option<T> {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::heap_bytes)
    }
}

impl HeapBytes for BTreeMap<String, String> {
    fn heap_bytes(&self) -> usize {
        let bytes = |(name, value): (&String, &String)| {
            name.heap_bytes().saturating_add(value.heap_bytes())
        };
        super::super::set_bytes(self.len(), self.iter().map(bytes).fold(0, usize::saturating_add))
    }
}

impl HeapBytes for bool {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl HeapBytes for u32 {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The memory that reading the JSON `text` of one object takes, at most. Each object of the text
/// may be an item of a list that has just doubled and is copied; each text may be one, or an entry
/// of a map.
pub(super) fn parsed_bytes(text: &str) -> usize {
    const OBJECT_BYTES: usize = 3 * OBJECT_BYTES_MAX;
    const TEXT_BYTES: usize = 3 * size_of::<String>() + 64;
    JsonCounts::of(text.as_bytes()).bytes(TEXT_BYTES, OBJECT_BYTES, text.as_bytes())
}

// The largest item of a list.
const OBJECT_BYTES_MAX: usize = size_of::<SliceEndpoint>();

/// Declares an object: absent fields and nulls have their default, other fields are skipped.
macro_rules! object {
    ($( $(#[$doc:meta])* $name:ident {
        $( $(#[$field_doc:meta])* $field:ident: $ty:ty $(= $key:literal)?, )*
    } )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Default, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub(super) struct $name {
                $(
                    #[serde(deserialize_with = "null_is_default")]
                    $(#[$field_doc])*
                    $(#[serde(rename = $key)])?
                    pub(super) $field: $ty,
                )*
            }

            impl HeapBytes for $name {
                fn heap_bytes(&self) -> usize {
                    0usize $( .saturating_add(self.$field.heap_bytes()) )*
                }
            }
        )*
    };
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

object! {
    /// The metadata of any object.
    Metadata {
        name: String,
        namespace: String,
        uid: String,
        /// Empty once the object is stored.
        resource_version: String,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<Owner>,
    }
    /// An owner of an object.
    Owner { kind: String, name: String, controller: bool, }
    /// An object of which only the metadata counts: a namespace, a replica set, a job.
    Named { metadata: Metadata, }
    Pod { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    PodSpec { node_name: String, containers: Vec<Container>, init_containers: Vec<Container>, }
    Container { name: String, image: String, ports: Vec<ContainerPort>, }
    ContainerPort { name: String, container_port: u32, protocol: String, }
    PodStatus {
        pod_ip: String = "podIP",
        host_ip: String = "hostIP",
        phase: String,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
    }
    /// A condition of a pod or a node.
    Condition { kind: String = "type", status: String, }
    ContainerStatus { name: String, container_id: String = "containerID", }
    Service { metadata: Metadata, spec: ServiceSpec, }
    ServiceSpec {
        kind: String = "type",
        cluster_ip: String = "clusterIP",
        external_name: String,
        load_balancer_ip: String = "loadBalancerIP",
        ports: Vec<ServicePort>,
        ip_families: Vec<String>,
        ip_family_policy: String,
    }
    /// A port of a service or of endpoints.
    ServicePort { name: String, port: u32, protocol: String, }
    Node { metadata: Metadata, spec: NodeSpec, status: NodeStatus, }
    NodeSpec { provider_id: String = "providerID", }
    NodeStatus {
        addresses: Vec<NodeAddress>,
        conditions: Vec<Condition>,
        daemon_endpoints: DaemonEndpoints,
    }
    NodeAddress { kind: String = "type", address: String, }
    DaemonEndpoints { kubelet_endpoint: KubeletEndpoint, }
    KubeletEndpoint { port: u32 = "Port", }
    Endpoints { metadata: Metadata, subsets: Vec<Subset>, }
    Subset {
        addresses: Vec<Address>,
        not_ready_addresses: Vec<Address>,
        ports: Vec<ServicePort>,
    }
    Address {
        ip: String,
        hostname: String,
        node_name: Option<String>,
        target_ref: Option<ObjectReference>,
    }
    ObjectReference { kind: String, namespace: String, name: String, }
    EndpointSlice {
        metadata: Metadata,
        address_type: String,
        endpoints: Vec<SliceEndpoint>,
        ports: Vec<SlicePort>,
    }
    SliceEndpoint {
        addresses: Vec<String>,
        conditions: SliceConditions,
        hostname: Option<String>,
        node_name: Option<String>,
        zone: Option<String>,
        target_ref: Option<ObjectReference>,
        deprecated_topology: BTreeMap<String, String>,
    }
    SliceConditions { ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>, }
    SlicePort {
        name: Option<String>,
        port: Option<u32>,
        protocol: Option<String>,
        app_protocol: Option<String>,
    }
    Ingress { metadata: Metadata, spec: IngressSpec, }
    IngressSpec {
        ingress_class_name: Option<String>,
        rules: Vec<IngressRule>,
        tls: Vec<IngressTls>,
    }
    IngressRule { host: String, http: Option<IngressHttp>, }
    IngressHttp { paths: Vec<IngressPath>, }
    IngressPath { path: String, }
    IngressTls { hosts: Vec<String>, }
}

const _: () = assert!(
    size_of::<Address>() <= OBJECT_BYTES_MAX
        && size_of::<SlicePort>() <= OBJECT_BYTES_MAX
        && size_of::<Subset>() <= OBJECT_BYTES_MAX
        && size_of::<Container>() <= OBJECT_BYTES_MAX,
    "parsed_bytes counts the largest item of a list"
);

impl Metadata {
    /// The owner that controls the object.
    pub(super) fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}
