//! Targets of a Kubernetes cluster.
//!
//! The caller lists and watches the objects of each [`WatchSpec`] and applies the answers to a
//! [`ClusterState`], which makes groups of targets of them.

mod access;
mod cluster;
mod endpoints;
mod labels;
mod objects;
mod roles;
mod watch;

#[cfg(test)]
mod tests;

pub use access::ClusterAccess;
pub use cluster::{ClusterState, ObjectEvents, ObjectList, StoredObject};
pub use watch::{PageEnd, Resource, WatchEvent, WatchSpec, refusal};

use endpoints::{build_endpoint_slice, build_endpoints};
use roles::{build_ingress, build_node, build_pod, build_service};
