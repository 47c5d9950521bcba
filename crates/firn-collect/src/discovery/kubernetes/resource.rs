//! The lists of objects that are watched, and their addresses.

use super::super::names::escaped;
use crate::config::discovery::{KubernetesDiscovery, KubernetesRole};

/// A kind of object in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Services.
    Services,
    /// Endpoints.
    Endpoints,
    /// Endpoint slices.
    EndpointSlices,
    /// Ingresses.
    Ingresses,
    /// Namespaces.
    Namespaces,
    /// Replica sets, which belong to deployments.
    ReplicaSets,
    /// Jobs, which may belong to cron jobs.
    Jobs,
}

/// A list of objects that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// The objects.
    pub resource: Resource,
    /// Their namespace; `None` for all and for objects of the cluster.
    pub namespace: Option<String>,
    label_selector: String,
    field_selector: String,
}

const PAGE_OBJECTS: usize = 500;

impl Resource {
    /// The objects that are the targets of a role.
    pub(super) fn of_role(role: KubernetesRole) -> Resource {
        match role {
            KubernetesRole::Pod | KubernetesRole::Unset => Resource::Pods,
            KubernetesRole::Node => Resource::Nodes,
            KubernetesRole::Service => Resource::Services,
            KubernetesRole::Endpoints => Resource::Endpoints,
            KubernetesRole::EndpointSlice => Resource::EndpointSlices,
            KubernetesRole::Ingress => Resource::Ingresses,
        }
    }

    /// The path of the group and the name in it.
    fn path(self) -> (&'static str, &'static str) {
        match self {
            Resource::Pods => ("/api/v1", "pods"),
            Resource::Nodes => ("/api/v1", "nodes"),
            Resource::Services => ("/api/v1", "services"),
            Resource::Endpoints => ("/api/v1", "endpoints"),
            Resource::Namespaces => ("/api/v1", "namespaces"),
            Resource::EndpointSlices => ("/apis/discovery.k8s.io/v1", "endpointslices"),
            Resource::Ingresses => ("/apis/networking.k8s.io/v1", "ingresses"),
            Resource::ReplicaSets => ("/apis/apps/v1", "replicasets"),
            Resource::Jobs => ("/apis/batch/v1", "jobs"),
        }
    }

    fn is_of_cluster(self) -> bool {
        matches!(self, Resource::Nodes | Resource::Namespaces)
    }
}

impl WatchSpec {
    /// The watches of a discovery. `own_namespace` is that of the pod which the server runs in, if
    /// the configuration refers to it.
    pub fn all_of(config: &KubernetesDiscovery, own_namespace: Option<&str>) -> Vec<WatchSpec> {
        let mut namespaces: Vec<&str> =
            config.namespaces.names.iter().map(String::as_str).chain(own_namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let is_all = namespaces.is_empty() || namespaces.contains(&"");
        let namespaces: Vec<Option<&str>> = match is_all {
            true => vec![None],
            false => namespaces.into_iter().map(Some).collect(),
        };
        let attach = &config.attach_metadata;
        let mut resources = vec![Resource::of_role(config.role)];
        let has_pods = match config.role {
            KubernetesRole::Endpoints | KubernetesRole::EndpointSlice => {
                resources.extend([Resource::Services, Resource::Pods]);
                true
            }
            role => role == KubernetesRole::Pod,
        };
        let is_node = config.role == KubernetesRole::Node;
        let more = [
            (Resource::Nodes, has_pods && attach.node),
            (Resource::Namespaces, !is_node && attach.namespace),
            (Resource::ReplicaSets, has_pods && attach.deployment),
            (Resource::Jobs, has_pods && attach.cronjob),
        ];
        resources
            .extend(more.into_iter().filter_map(|(resource, is_used)| is_used.then_some(resource)));
        let mut specs = Vec::new();
        for resource in resources {
            let selector =
                config.selectors.iter().find(|one| Resource::of_role(one.role) == resource);
            let of_cluster: &[Option<&str>] = &[None];
            for namespace in if resource.is_of_cluster() { of_cluster } else { &namespaces } {
                specs.push(WatchSpec {
                    resource,
                    namespace: namespace.map(str::to_owned),
                    label_selector: selector.map_or_else(String::new, |one| one.label.clone()),
                    field_selector: selector.map_or_else(String::new, |one| one.field.clone()),
                });
            }
        }
        specs
    }

    /// The path of a page of the list. `next` is the token of the previous page.
    pub fn list_path(&self, next: &str) -> String {
        let limit = PAGE_OBJECTS.to_string();
        self.path(&[("limit", &limit), ("continue", next)])
    }

    /// The path of the changes since `version`. The server ends the answer after `seconds`.
    pub fn watch_path(&self, version: &str, seconds: u64) -> String {
        self.path(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds.to_string()),
        ])
    }

    fn path(&self, parameters: &[(&str, &str)]) -> String {
        let (group, name) = self.resource.path();
        let namespace = self.namespace.iter();
        let namespace =
            namespace.map(|name| format!("/namespaces/{}", escaped(name))).collect::<String>();
        let selectors = [
            ("labelSelector", self.label_selector.as_str()),
            ("fieldSelector", self.field_selector.as_str()),
        ];
        let parameters = parameters.iter().copied().chain(selectors);
        let parameters: Vec<String> = parameters
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", escaped(value)))
            .collect();
        format!("{group}{namespace}/{name}?{}", parameters.join("&"))
    }
}
