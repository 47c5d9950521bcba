//! The known objects of a cluster.

use std::collections::BTreeMap;

use firn_model::{Budget, Pool, Reservation, Result};

use super::objects::{
    EndpointSlice, Endpoints, HeapBytes, Ingress, Metadata, Named, Node, Pod, Service,
};
use super::watch::{Resource, WatchSpec};
use super::{build_endpoint_slice, build_endpoints, build_ingress, build_node, build_pod};
use super::{build_service, labels::MetaLabels};
use crate::config::LabelSet;
use crate::config::discovery::{AttachMetadata, KubernetesDiscovery, KubernetesRole};
use crate::pool::DiscoveredGroup;

/// The objects that the watches of a discovery have found, and the targets that they are.
#[derive(Debug)]
pub struct ClusterState {
    role: KubernetesRole,
    attach: AttachMetadata,
    watches: Vec<WatchedObjects>,
}

#[derive(Debug)]
struct WatchedObjects {
    spec: WatchSpec,
    /// `None` until the first list is complete.
    objects: Option<ObjectList>,
}

/// Numbers of changes, as a client with a cache counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectEvents {
    /// New objects.
    pub added: u64,
    /// Objects that replace others.
    pub updated: u64,
    /// Removed objects.
    pub removed: u64,
}

/// The objects of a list, with their memory.
#[derive(Debug, Default)]
pub struct ObjectList(BTreeMap<ObjectKey, StoredObject>);

/// Namespace and name; the namespace is empty for objects of the whole cluster.
pub(super) type ObjectKey = (String, String);

/// An object with its memory.
#[derive(Debug)]
pub struct StoredObject {
    pub(super) key: ObjectKey,
    object: Object,
    _held: Reservation,
}

#[derive(Debug)]
pub(super) enum Object {
    Pod(Box<Pod>),
    Node(Box<Node>),
    Service(Box<Service>),
    Endpoints(Box<Endpoints>),
    EndpointSlice(Box<EndpointSlice>),
    Ingress(Box<Ingress>),
    Named(Box<Named>),
}

/// A kind of object that others refer to.
pub(super) trait Kind {
    const RESOURCE: Resource;
    fn of(object: &Object) -> Option<&Self>;
}

macro_rules! kind {
    ($name:ident, $resource:ident) => {
        impl Kind for $name {
            const RESOURCE: Resource = Resource::$resource;
            fn of(object: &Object) -> Option<&$name> {
                match object {
                    Object::$name(object) => Some(object),
                    _ => None,
                }
            }
        }
    };
}
kind!(Pod, Pods);
kind!(Node, Nodes);
kind!(Service, Services);
kind!(Named, Namespaces);

impl Object {
    pub(super) fn metadata_mut(&mut self) -> &mut Metadata {
        match self {
            Object::Pod(pod) => &mut pod.metadata,
            Object::Node(node) => &mut node.metadata,
            Object::Service(service) => &mut service.metadata,
            Object::Endpoints(endpoints) => &mut endpoints.metadata,
            Object::EndpointSlice(slice) => &mut slice.metadata,
            Object::Ingress(ingress) => &mut ingress.metadata,
            Object::Named(named) => &mut named.metadata,
        }
    }

    fn heap_bytes(&self) -> usize {
        fn of<T: HeapBytes>(object: &T) -> usize {
            object.heap_bytes().saturating_add(size_of::<T>())
        }
        match self {
            Object::Pod(pod) => of(&**pod),
            Object::Node(node) => of(&**node),
            Object::Service(service) => of(&**service),
            Object::Endpoints(endpoints) => of(&**endpoints),
            Object::EndpointSlice(slice) => of(&**slice),
            Object::Ingress(ingress) => of(&**ingress),
            Object::Named(named) => of(&**named),
        }
    }
}

impl StoredObject {
    /// # Errors
    /// `Busy` without memory.
    pub(super) fn new(mut object: Object, budget: &Budget) -> Result<StoredObject> {
        let metadata = object.metadata_mut();
        let key = (metadata.namespace.clone(), metadata.name.clone());
        // The key twice, and a part of a node of the map, which is at least half full.
        let key_bytes = key.0.heap_bytes().saturating_add(key.1.heap_bytes());
        let own_bytes = size_of::<StoredObject>().saturating_add(size_of::<ObjectKey>());
        let bytes = object
            .heap_bytes()
            .saturating_add(key_bytes.saturating_mul(2))
            .saturating_add(own_bytes.saturating_mul(3));
        let held = budget.reserve(Pool::Cache, bytes as u64)?;
        Ok(StoredObject { key, object, _held: held })
    }
}

impl ObjectList {
    /// Returns whether the object replaces another one.
    pub(super) fn insert(&mut self, object: StoredObject) -> bool {
        self.0.insert(object.key.clone(), object).is_some()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The objects as the builders of groups see them.
pub(super) struct Cluster<'c> {
    pub(super) attach: &'c AttachMetadata,
    watches: &'c [WatchedObjects],
}

impl Cluster<'_> {
    /// An object by its namespace and name.
    pub(super) fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<&K> {
        self.find(K::RESOURCE, namespace, name).and_then(K::of)
    }

    /// The controller of a pod, which is a replica set or a job.
    pub(super) fn owned(&self, kind: &str, namespace: &str, name: &str) -> Option<&Named> {
        let resource = match kind {
            "ReplicaSet" => Resource::ReplicaSets,
            "Job" => Resource::Jobs,
            _ => return None,
        };
        self.find(resource, namespace, name).and_then(Named::of)
    }

    fn find(&self, resource: Resource, namespace: &str, name: &str) -> Option<&Object> {
        let key = (namespace.to_owned(), name.to_owned());
        let covers = |watched: &&WatchedObjects| {
            let namespaces = watched.spec.namespace.as_deref();
            watched.spec.resource == resource
                && (namespaces.is_none() || namespaces == Some(namespace))
        };
        let watched = self.watches.iter().filter(covers);
        let objects = watched.filter_map(|watched| watched.objects.as_ref());
        objects.filter_map(|list| list.0.get(&key)).map(|stored| &stored.object).next()
    }
}

/// The targets of an object under construction.
pub(super) struct GroupBuilder<'b> {
    targets: Vec<LabelSet>,
    held: &'b mut Reservation,
}

impl GroupBuilder<'_> {
    /// # Errors
    /// `Busy` without memory.
    pub(super) fn push(&mut self, target: MetaLabels) -> Result<()> {
        let target = self.charged(target)?;
        self.targets.push(target);
        Ok(())
    }

    fn charged(&mut self, labels: MetaLabels) -> Result<LabelSet> {
        let labels = LabelSet::from(labels);
        // A growing list has up to twice its length.
        let bytes = super::super::label_set_bytes(&labels)
            .saturating_add(size_of::<LabelSet>().saturating_mul(2));
        self.held.grow(bytes as u64)?;
        Ok(labels)
    }
}

impl ClusterState {
    /// No objects yet of the watches `specs`.
    pub fn new(config: &KubernetesDiscovery, specs: Vec<WatchSpec>) -> ClusterState {
        let watched = |spec| WatchedObjects { spec, objects: None };
        ClusterState {
            role: config.role,
            attach: config.attach_metadata.clone(),
            watches: specs.into_iter().map(watched).collect(),
        }
    }

    /// Replaces the objects of the watch `idx`. Objects that were there before count as updated.
    pub fn set_list(&mut self, idx: usize, list: ObjectList) -> ObjectEvents {
        let Some(watched) = self.watches.get_mut(idx) else { return ObjectEvents::default() };
        let old = watched.objects.replace(list);
        let new = watched.objects.as_ref().map(|list| &list.0);
        let (old_count, new_count) =
            (old.as_ref().map_or(0, ObjectList::len), new.map_or(0, BTreeMap::len));
        let is_kept = |key: &&ObjectKey| new.is_some_and(|new| new.contains_key(*key));
        let kept = old.iter().flat_map(|old| old.0.keys()).filter(is_kept).count();
        ObjectEvents {
            added: new_count.saturating_sub(kept) as u64,
            updated: kept as u64,
            removed: old_count.saturating_sub(kept) as u64,
        }
    }

    /// An object of the watch `idx` was added or changed.
    pub fn set_object(&mut self, idx: usize, object: StoredObject) -> ObjectEvents {
        let watched = self.watches.get_mut(idx);
        let Some(objects) = watched.and_then(|watched| watched.objects.as_mut()) else {
            return ObjectEvents::default();
        };
        let is_known = objects.insert(object);
        ObjectEvents { added: u64::from(!is_known), updated: u64::from(is_known), removed: 0 }
    }

    /// An object of the watch `idx` was removed.
    pub fn remove_object(&mut self, idx: usize, object: &StoredObject) -> ObjectEvents {
        let watched = self.watches.get_mut(idx);
        let objects = watched.and_then(|watched| watched.objects.as_mut());
        let removed = objects.and_then(|objects| objects.0.remove(&object.key));
        ObjectEvents { removed: u64::from(removed.is_some()), ..ObjectEvents::default() }
    }

    /// The kind of objects of the watch `idx`.
    pub fn resource(&self, idx: usize) -> Option<Resource> {
        self.watches.get(idx).map(|watched| watched.spec.resource)
    }

    /// Whether each watch has a list.
    pub fn is_complete(&self) -> bool {
        self.watches.iter().all(|watched| watched.objects.is_some())
    }

    /// The groups of all objects with their memory.
    ///
    /// # Errors
    /// `Busy` without memory.
    pub fn groups(&self, budget: &Budget) -> Result<(Vec<DiscoveredGroup>, Reservation)> {
        let mut held = budget.empty(Pool::Cache);
        let mut groups = Vec::new();
        let cluster = Cluster { attach: &self.attach, watches: &self.watches };
        let resource = Resource::of_role(self.role);
        let watched = self.watches.iter().filter(|watched| watched.spec.resource == resource);
        let objects = watched.filter_map(|watched| watched.objects.as_ref());
        for stored in objects.flat_map(|list| list.0.values()) {
            let mut group = GroupBuilder { targets: Vec::new(), held: &mut held };
            let labels = match &stored.object {
                Object::Pod(pod) => build_pod(pod, &cluster, &mut group)?,
                Object::Node(node) => build_node(node, &mut group)?,
                Object::Service(service) => build_service(service, &cluster, &mut group)?,
                Object::Endpoints(endpoints) => build_endpoints(endpoints, &cluster, &mut group)?,
                Object::EndpointSlice(slice) => build_endpoint_slice(slice, &cluster, &mut group)?,
                Object::Ingress(ingress) => build_ingress(ingress, &cluster, &mut group)?,
                Object::Named(_) => continue,
            };
            if group.targets.is_empty() {
                continue;
            }
            let labels = group.charged(labels)?;
            groups.push(DiscoveredGroup { targets: group.targets, labels });
        }
        Ok((groups, held))
    }
}
