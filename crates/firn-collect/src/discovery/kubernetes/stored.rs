//! Objects with their memory, and how they are found.

use std::collections::BTreeMap;

use firn_model::{Budget, Pool, Reservation, Result};

use super::objects::{
    EndpointSlice, Endpoints, HeapBytes, Ingress, Metadata, Named, Node, Pod, Service,
};
use super::resource::{Resource, WatchSpec};
use crate::config::discovery::AttachMetadata;

/// The objects of a list, with their memory.
#[derive(Debug, Default)]
pub struct ObjectList(pub(super) BTreeMap<ObjectKey, StoredObject>);

/// Namespace and name; the namespace is empty for objects of the whole cluster.
pub(super) type ObjectKey = (String, String);

/// An object with its memory.
#[derive(Debug)]
pub struct StoredObject {
    pub(super) key: ObjectKey,
    pub(super) object: Object,
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

    /// Drops the owners and conditions that no label needs: they would be searched for each target
    /// of a pod.
    fn drop_unused(&mut self) {
        keep_first(&mut self.metadata_mut().owner_references, |owner| owner.controller);
        if let Object::Pod(pod) = self {
            keep_first(&mut pod.status.conditions, |condition| condition.kind == "Ready");
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
        object.drop_unused();
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

/// Keeps the first wanted item.
fn keep_first<T>(items: &mut Vec<T>, is_wanted: impl Fn(&T) -> bool) {
    let first = items.iter().position(is_wanted).map(|idx| items.swap_remove(idx));
    *items = first.into_iter().collect();
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

/// The objects of a watch.
#[derive(Debug)]
pub(super) struct WatchedObjects {
    pub(super) spec: WatchSpec,
    /// `None` until the first list is complete.
    pub(super) objects: Option<ObjectList>,
}

/// The objects as the builders of groups see them.
pub(super) struct Cluster<'c> {
    pub(super) attach: &'c AttachMetadata,
    pub(super) watches: &'c [WatchedObjects],
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, each target of a pod searched all of them: 100,000 conditions and 10,000 ports were
    /// a billion comparisons.
    #[test]
    fn conditions_and_owners_that_no_label_needs_are_dropped() {
        let text = r#"{
            "metadata": {"name": "p", "ownerReferences": [
                {"kind": "A", "name": "a"},
                {"kind": "ReplicaSet", "name": "r", "controller": true},
                {"kind": "Job", "name": "j", "controller": true}]},
            "status": {"conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "False"},
                {"type": "Ready", "status": "True"}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        let stored = StoredObject::new(Object::Pod(Box::new(pod)), &Budget::unlimited()).unwrap();
        let pod = Pod::of(&stored.object).unwrap();
        let names: Vec<&str> =
            pod.metadata.owner_references.iter().map(|owner| owner.name.as_str()).collect();
        assert_eq!((names, pod.metadata.owner_references.capacity()), (vec!["r"], 1));
        let states: Vec<&str> =
            pod.status.conditions.iter().map(|condition| condition.status.as_str()).collect();
        assert_eq!((states, pod.status.conditions.capacity()), (vec!["False"], 1));
    }
}
