//! The known objects of a cluster.

use std::collections::BTreeMap;

use firn_model::{Budget, Error, Pool, Reservation, Result};

use super::endpoints::{build_endpoint_slice, build_endpoints};
use super::labels::GroupBuilder;
use super::resource::{Resource, WatchSpec};
use super::roles::{build_ingress, build_node, build_pod, build_service};
use super::stored::{Cluster, Object, ObjectKey, ObjectList, StoredObject, WatchedObjects};
use crate::config::discovery::{AttachMetadata, KubernetesDiscovery, KubernetesRole};
use crate::pool::DiscoveredGroup;

/// The objects that the watches of a discovery have found, and the targets that they are.
#[derive(Debug)]
pub struct ClusterState {
    role: KubernetesRole,
    attach: AttachMetadata,
    watches: Vec<WatchedObjects>,
}

// Labels of objects without targets take no memory for long, so this bounds the work on them, in
// bytes: some tenths of a second for each list of targets. A namespace may have megabytes, and each
// of its pods has them too.
const UNUSED_WORK_MAX: u64 = if cfg!(test) { 4 << 20 } else { 256 << 20 };

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
    /// `Busy` without memory; `TooLarge` for too many labels of objects without targets.
    pub fn groups(&self, budget: &Budget) -> Result<(Vec<DiscoveredGroup>, Reservation)> {
        let mut held = budget.empty(Pool::Cache);
        let mut groups = Vec::new();
        let mut unused_work = 0u64;
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
                unused_work = unused_work.saturating_add(labels.work());
                if unused_work > UNUSED_WORK_MAX {
                    return Err(Error::too_large(
                        "objects without targets have too many labels with those of their \
                         namespaces and nodes: list fewer of them",
                    ));
                }
                continue;
            }
            let labels = group.charged(labels)?;
            groups.push(DiscoveredGroup { targets: group.targets, labels });
        }
        Ok((groups, held))
    }
}
