//! The objects of a swarm, with the parts of them that discoveries use.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::api::{named, or_default};
use super::PREFIX;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SwarmNode {
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "Spec", deserialize_with = "or_default")]
    pub(super) spec: NodeSpec,
    #[serde(rename = "Description", deserialize_with = "or_default")]
    pub(super) description: NodeDescription,
    #[serde(rename = "Status", deserialize_with = "or_default")]
    pub(super) status: NodeStatus,
    #[serde(rename = "ManagerStatus")]
    pub(super) manager_status: Option<ManagerStatus>,
}

impl SwarmNode {
    /// The labels that tasks of the node have, too.
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let platform = &self.description.platform;
        let own = [
            ("id", &self.id),
            ("role", &self.spec.role),
            ("address", &self.status.address),
            ("availability", &self.spec.availability),
            ("hostname", &self.description.hostname),
            ("platform_architecture", &platform.architecture),
            ("platform_os", &platform.os),
            ("status", &self.status.state),
        ];
        let own =
            own.into_iter().map(|(name, value)| (format!("{PREFIX}node_{name}"), value.clone()));
        own.chain(named(&format!("{PREFIX}node_label_"), &self.spec.labels)).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(rename = "Role")]
    pub(super) role: String,
    #[serde(rename = "Availability")]
    pub(super) availability: String,
    #[serde(rename = "Labels", deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeDescription {
    #[serde(rename = "Hostname")]
    pub(super) hostname: String,
    #[serde(rename = "Platform", deserialize_with = "or_default")]
    pub(super) platform: Platform,
    #[serde(rename = "Engine", deserialize_with = "or_default")]
    pub(super) engine: Engine,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Platform {
    #[serde(rename = "Architecture")]
    pub(super) architecture: String,
    #[serde(rename = "OS")]
    pub(super) os: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Engine {
    #[serde(rename = "EngineVersion")]
    pub(super) version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    #[serde(rename = "State")]
    pub(super) state: String,
    #[serde(rename = "Addr")]
    pub(super) address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ManagerStatus {
    #[serde(rename = "Leader")]
    pub(super) leader: bool,
    #[serde(rename = "Reachability")]
    pub(super) reachability: String,
    #[serde(rename = "Addr")]
    pub(super) address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SwarmService {
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "Spec", deserialize_with = "or_default")]
    pub(super) spec: ServiceSpec,
    #[serde(rename = "Endpoint", deserialize_with = "or_default")]
    pub(super) endpoint: ServiceEndpoint,
    #[serde(rename = "UpdateStatus", deserialize_with = "or_default")]
    pub(super) update_status: UpdateStatus,
}

impl SwarmService {
    /// The labels that tasks of the service have, too.
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let mode = match &self.spec.mode {
            ServiceMode { global: Some(_), .. } => "global",
            ServiceMode { replicated: Some(_), .. } => "replicated",
            _ => "",
        };
        let own = [
            (format!("{PREFIX}service_id"), self.id.clone()),
            (format!("{PREFIX}service_name"), self.spec.name.clone()),
            (format!("{PREFIX}service_mode"), mode.to_owned()),
        ];
        let labels = named("__meta_dockerswarm_service_label_", &self.spec.labels);
        own.into_iter().chain(labels).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceSpec {
    #[serde(rename = "Name")]
    pub(super) name: String,
    #[serde(rename = "Labels", deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(rename = "Mode", deserialize_with = "or_default")]
    pub(super) mode: ServiceMode,
    #[serde(rename = "TaskTemplate", deserialize_with = "or_default")]
    pub(super) task_template: TaskSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceMode {
    #[serde(rename = "Global")]
    pub(super) global: Option<IgnoredAny>,
    #[serde(rename = "Replicated")]
    pub(super) replicated: Option<IgnoredAny>,
}

/// Without a container for a plugin.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TaskSpec {
    #[serde(rename = "ContainerSpec", deserialize_with = "or_default")]
    pub(super) container_spec: ContainerSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerSpec {
    #[serde(rename = "Hostname")]
    pub(super) hostname: String,
    #[serde(rename = "Image")]
    pub(super) image: String,
    #[serde(rename = "Labels", deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceEndpoint {
    #[serde(rename = "Ports", deserialize_with = "or_default")]
    pub(super) ports: Vec<ServicePort>,
    #[serde(rename = "VirtualIPs", deserialize_with = "or_default")]
    pub(super) virtual_ips: Vec<VirtualIp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ServicePort {
    #[serde(rename = "Name")]
    pub(super) name: String,
    #[serde(rename = "Protocol")]
    pub(super) protocol: String,
    #[serde(rename = "PublishedPort")]
    pub(super) published_port: u32,
    #[serde(rename = "PublishMode")]
    pub(super) publish_mode: String,
}

impl ServicePort {
    pub(super) fn is_tcp(&self) -> bool {
        self.protocol == "tcp"
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct VirtualIp {
    #[serde(rename = "NetworkID")]
    pub(super) network_id: String,
    #[serde(rename = "Addr")]
    pub(super) address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct UpdateStatus {
    #[serde(rename = "State")]
    pub(super) state: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Task {
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "ServiceID")]
    pub(super) service_id: String,
    #[serde(rename = "NodeID")]
    pub(super) node_id: String,
    #[serde(rename = "Slot")]
    pub(super) slot: i64,
    #[serde(rename = "DesiredState")]
    pub(super) desired_state: String,
    #[serde(rename = "Spec", deserialize_with = "or_default")]
    pub(super) spec: TaskSpec,
    #[serde(rename = "Status", deserialize_with = "or_default")]
    pub(super) status: TaskStatus,
    #[serde(rename = "NetworksAttachments", deserialize_with = "or_default")]
    pub(super) attachments: Vec<Attachment>,
}

impl Task {
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let own = [
            ("id", self.id.clone()),
            ("desired_state", self.desired_state.clone()),
            ("state", self.status.state.clone()),
            ("slot", self.slot.to_string()),
            ("container_id", self.status.container_status.id.clone()),
        ];
        let own = own.into_iter().map(|(name, value)| (format!("{PREFIX}task_{name}"), value));
        let labels = &self.spec.container_spec.labels;
        own.chain(named("__meta_dockerswarm_container_label_", labels)).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TaskStatus {
    #[serde(rename = "State")]
    pub(super) state: String,
    #[serde(rename = "ContainerStatus", deserialize_with = "or_default")]
    pub(super) container_status: ContainerStatus,
    #[serde(rename = "PortStatus", deserialize_with = "or_default")]
    pub(super) port_status: PortStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    #[serde(rename = "ContainerID")]
    pub(super) id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PortStatus {
    #[serde(rename = "Ports", deserialize_with = "or_default")]
    pub(super) ports: Vec<ServicePort>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Attachment {
    #[serde(rename = "Network", deserialize_with = "or_default")]
    pub(super) network: AttachedNetwork,
    #[serde(rename = "Addresses", deserialize_with = "or_default")]
    pub(super) addresses: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AttachedNetwork {
    #[serde(rename = "ID")]
    pub(super) id: String,
}
