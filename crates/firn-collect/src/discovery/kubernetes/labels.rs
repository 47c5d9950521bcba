//! The labels that several roles share, and targets under construction.

use firn_model::{Reservation, Result};

use super::super::label_set_bytes;
use super::super::names::label_name;
use super::objects::{Container, ContainerPort, Metadata, Named, Node, Pod};
use super::stored::Cluster;
use crate::config::LabelSet;
use crate::config::discovery::AttachMetadata;
use crate::relabel::labels_work;

/// Labels under construction. A later value of a name replaces an earlier one.
#[derive(Clone, Debug, Default)]
pub(super) struct MetaLabels(Vec<(String, String)>);

const PREFIX: &str = "__meta_kubernetes_";

impl MetaLabels {
    /// Sets `__meta_kubernetes_` with `name`.
    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((format!("{PREFIX}{name}"), value.into()));
    }

    /// The same if there is a value.
    pub(super) fn set_some(&mut self, name: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets a label whose name has no prefix.
    pub(super) fn set_plain(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// The work of making them, as [`labels_work`].
    pub(super) fn work(&self) -> u64 {
        labels_work(self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }

    /// The labels and the annotations of an object of `kind`.
    pub(super) fn set_texts(&mut self, kind: &str, metadata: &Metadata) {
        for (part, texts) in [("label", &metadata.labels), ("annotation", &metadata.annotations)] {
            for (key, text) in texts {
                let key = label_name(key);
                self.set(&format!("{kind}_{part}_{key}"), text.as_str());
                self.set(&format!("{kind}_{part}present_{key}"), "true");
            }
        }
    }

    /// The name, the labels and the annotations of an object of `kind`.
    pub(super) fn set_object(&mut self, kind: &str, metadata: &Metadata) {
        self.set(&format!("{kind}_name"), metadata.name.as_str());
        self.set_texts(kind, metadata);
    }

    /// The labels of the namespace of an object.
    pub(super) fn set_namespace(&mut self, name: &str, cluster: &Cluster<'_>) {
        self.set("namespace", name);
        if cluster.attach.namespace
            && let Some(namespace) = cluster.get::<Named>("", name)
        {
            self.set_texts("namespace", &namespace.metadata);
        }
    }

    /// The labels of the node `name`, if they are to be attached.
    pub(super) fn set_node(&mut self, name: Option<&str>, cluster: &Cluster<'_>) {
        if cluster.attach.node
            && let Some(node) = name.and_then(|name| cluster.get::<Node>("", name))
        {
            self.set_object("node", &node.metadata);
        }
    }

    /// The labels of a pod, without its namespace.
    pub(super) fn set_pod(&mut self, pod: &Pod, cluster: &Cluster<'_>) {
        let Pod { metadata, spec, status } = pod;
        self.set_object("pod", metadata);
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
        let ready = ready.map_or("unknown", |condition| condition.status.as_str());
        self.set("pod_ready", ready.to_lowercase());
        self.set("pod_ip", status.pod_ip.as_str());
        self.set("pod_phase", status.phase.as_str());
        self.set("pod_node_name", spec.node_name.as_str());
        self.set("pod_host_ip", status.host_ip.as_str());
        self.set("pod_uid", metadata.uid.as_str());
        if let Some(controller) = metadata.controller() {
            for (name, value) in [("kind", &controller.kind), ("name", &controller.name)] {
                let value = Some(value.as_str()).filter(|value| !value.is_empty());
                self.set_some(&format!("pod_controller_{name}"), value);
            }
        }
        self.set_owners(metadata, cluster);
    }

    /// The deployment, the job and the cron job of a pod, as far as they are to be attached.
    fn set_owners(&mut self, pod: &Metadata, cluster: &Cluster<'_>) {
        let AttachMetadata { deployment, job, cronjob, .. } = *cluster.attach;
        let Some(controller) = pod.controller() else { return };
        // The controller of the pod's controller.
        let owner = |kind: &str| {
            let owned = cluster.owned(&controller.kind, &pod.namespace, &controller.name)?;
            let owner = owned.metadata.controller().filter(|owner| owner.kind == kind)?;
            Some(owner.name.as_str())
        };
        match controller.kind.as_str() {
            "ReplicaSet" if deployment => {
                self.set_some("pod_deployment_name", owner("Deployment"));
            }
            "Job" => {
                if job {
                    self.set("pod_job_name", controller.name.as_str());
                }
                if cronjob {
                    self.set_some("pod_cronjob_name", owner("CronJob"));
                }
            }
            _ => {}
        }
    }

    /// The labels of a container's port, which has `protocol`.
    pub(super) fn set_port(
        &mut self,
        (container, is_init): (&Container, bool),
        port: &ContainerPort,
        protocol: &str,
    ) {
        self.set("pod_container_name", container.name.as_str());
        self.set("pod_container_image", container.image.as_str());
        self.set("pod_container_init", is_init.to_string());
        self.set("pod_container_port_name", port.name.as_str());
        self.set("pod_container_port_number", port.container_port.to_string());
        self.set("pod_container_port_protocol", protocol);
    }
}

impl From<MetaLabels> for LabelSet {
    fn from(labels: MetaLabels) -> LabelSet {
        labels.0.into_iter().collect()
    }
}

/// The containers of a pod. `true` marks those that initialise it.
pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    let containers = pod.spec.containers.iter().map(|container| (container, false));
    containers.chain(pod.spec.init_containers.iter().map(|container| (container, true)))
}

/// The targets of an object under construction.
pub(super) struct GroupBuilder<'b> {
    pub(super) targets: Vec<LabelSet>,
    pub(super) held: &'b mut Reservation,
}

impl GroupBuilder<'_> {
    /// # Errors
    /// `Busy` without memory.
    pub(super) fn push(&mut self, target: MetaLabels) -> Result<()> {
        let target = self.charged(target)?;
        self.targets.push(target);
        Ok(())
    }

    pub(super) fn charged(&mut self, labels: MetaLabels) -> Result<LabelSet> {
        let labels = LabelSet::from(labels);
        // A growing list has up to twice its length.
        let bytes =
            label_set_bytes(&labels).saturating_add(size_of::<LabelSet>().saturating_mul(2));
        self.held.grow(bytes as u64)?;
        Ok(labels)
    }
}
