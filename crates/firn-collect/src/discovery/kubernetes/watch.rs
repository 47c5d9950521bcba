//! Lists and watches: their addresses and their answers.

use std::fmt;

use firn_model::{Budget, Error, Pool, Result, excerpt};
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::super::names::escaped;
use super::cluster::{Object, ObjectList, StoredObject};
use super::objects::parsed_bytes;
use crate::config::discovery::{KubernetesDiscovery, KubernetesRole};
use crate::json::{JsonCounts, from_json, json_error};

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

/// The rest of a page of a list.
#[derive(Debug, Default)]
pub struct PageEnd {
    /// The token of the next page; empty at the end of the list.
    pub next: String,
    /// The version of the list, from which it is watched.
    pub version: String,
}

/// A line of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// An object was added or changed.
    Set(StoredObject),
    /// An object was removed.
    Removed(StoredObject),
    /// Only the version advances.
    Bookmark,
    /// The version is too old: list again.
    Gone,
    /// Another kind, which has no meaning for targets.
    Other,
}

// Objects of a page. A server that knows no pages sends more.
const PAGE_OBJECTS: usize = 500;
const PAGE_OBJECTS_MAX: usize = 200_000;

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

    fn read(self, text: &str) -> Result<Object> {
        fn read<T: DeserializeOwned>(text: &str) -> Result<Box<T>> {
            from_json(text.as_bytes()).map(Box::new).map_err(json_error)
        }
        Ok(match self {
            Resource::Pods => Object::Pod(read(text)?),
            Resource::Nodes => Object::Node(read(text)?),
            Resource::Services => Object::Service(read(text)?),
            Resource::Endpoints => Object::Endpoints(read(text)?),
            Resource::EndpointSlices => Object::EndpointSlice(read(text)?),
            Resource::Ingresses => Object::Ingress(read(text)?),
            Resource::Namespaces | Resource::ReplicaSets | Resource::Jobs => {
                Object::Named(read(text)?)
            }
        })
    }

    /// The object of `text` with its version.
    fn object(self, text: &str, budget: &Budget) -> Result<(StoredObject, String)> {
        let _held = budget.reserve(Pool::Requests, parsed_bytes(text) as u64)?;
        let mut object = self.read(text)?;
        let metadata = object.metadata_mut();
        let version = std::mem::take(&mut metadata.resource_version);
        if metadata.name.is_empty() {
            return Err(Error::invalid("an object of the answer has no name"));
        }
        Ok((StoredObject::new(object, budget)?, version))
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

#[derive(Deserialize)]
struct Page<'p> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow)]
    items: RawItems<'p>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// The texts of the objects of a page: bounded, because each takes more memory than its text has.
struct RawItems<'p>(Vec<&'p RawValue>);

impl<'de: 'p, 'p> Deserialize<'de> for RawItems<'p> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawItems<'p>, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = RawItems<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {PAGE_OBJECTS_MAX} objects")
            }

            fn visit_unit<E>(self) -> Result<RawItems<'de>, E> {
                Ok(RawItems(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawItems<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() >= PAGE_OBJECTS_MAX {
                        return Err(serde::de::Error::invalid_length(items.len(), &self));
                    }
                    items.push(item);
                }
                Ok(RawItems(items))
            }
        }
        deserializer.deserialize_any(Items)
    }
}

impl ObjectList {
    /// Adds the objects of a page, the body of an answer to [`WatchSpec::list_path`].
    ///
    /// # Errors
    /// `Invalid` for a body that is no list of objects, `Busy` without memory.
    pub fn add_page(
        &mut self,
        resource: Resource,
        body: &[u8],
        budget: &Budget,
    ) -> Result<PageEnd> {
        let commas = body.iter().filter(|byte| **byte == b',').count();
        let items_bytes = (commas.min(PAGE_OBJECTS_MAX) as u64).saturating_mul(ITEM_BYTES);
        let error_bytes = JsonCounts::of(body).error_bytes() as u64;
        let _held = budget.reserve(Pool::Requests, items_bytes.saturating_add(error_bytes))?;
        let page: Page<'_> = from_json(body).map_err(json_error)?;
        for item in &page.items.0 {
            let (object, _) = resource.object(item.get(), budget)?;
            self.insert(object);
        }
        let next = page.metadata.next.unwrap_or_default();
        if !next.is_empty() && page.items.0.is_empty() {
            return Err(Error::invalid("a page of the list is empty and not the last one"));
        }
        Ok(PageEnd { next, version: page.metadata.resource_version })
    }
}

// A pointer to the text of an object, in a list that is copied to twice its length.
const ITEM_BYTES: u64 = 3 * size_of::<&RawValue>() as u64;

#[derive(Deserialize)]
struct Event<'e> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'e RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: PageMetadata,
}

/// A refusal of the API.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

impl WatchEvent {
    /// Reads a line of an answer to [`WatchSpec::watch_path`]. Also returns the version that the
    /// object has, which may be empty.
    ///
    /// # Errors
    /// `Invalid` for a line that is no event, `Unavailable` for an error of the server, `Busy`
    /// without memory.
    pub fn parse(resource: Resource, line: &[u8], budget: &Budget) -> Result<(WatchEvent, String)> {
        // The texts of the line, beside the object.
        let _held = budget.reserve(Pool::Requests, line.len() as u64)?;
        let event: Event<'_> = from_json(line).map_err(json_error)?;
        let text = event.object.get();
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let (object, version) = resource.object(text, budget)?;
                let event = match event.kind.as_str() {
                    "DELETED" => WatchEvent::Removed(object),
                    _ => WatchEvent::Set(object),
                };
                Ok((event, version))
            }
            "BOOKMARK" => {
                let bookmark: Bookmark = from_json(text.as_bytes()).map_err(json_error)?;
                Ok((WatchEvent::Bookmark, bookmark.metadata.resource_version))
            }
            "ERROR" => {
                let status: Status = from_json(text.as_bytes()).map_err(json_error)?;
                match status.code {
                    410 => Ok((WatchEvent::Gone, String::new())),
                    code => {
                        let message = excerpt(&status.message);
                        Err(Error::unavailable(format!("the watch failed: {code} {message}")))
                    }
                }
            }
            _ => Ok((WatchEvent::Other, String::new())),
        }
    }
}

/// The reason of an answer with a status other than 200: that of the API if the body has one.
pub fn refusal(status: &str, body: &[u8]) -> String {
    let reason = from_json::<Status>(body).unwrap_or_default();
    match reason.message.as_str() {
        "" => format!("server returned HTTP status {status}"),
        message => format!("server returned HTTP status {status}: {}", excerpt(message)),
    }
}
