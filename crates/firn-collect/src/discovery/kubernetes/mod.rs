//! Targets of a Kubernetes cluster.
//!
//! The caller lists and watches the objects of each [`WatchSpec`] and applies the answers to a
//! [`ClusterState`], which makes groups of targets of them.

mod access;
mod cluster;
mod endpoints;
mod labels;
mod objects;
mod resource;
mod roles;
mod stored;
mod watch;

#[cfg(test)]
mod tests;

pub use access::ClusterAccess;
pub use cluster::{ClusterState, ObjectEvents};
pub use resource::{Resource, WatchSpec};
pub use stored::{ObjectList, StoredObject};
pub use watch::{PageEnd, WatchEvent, refusal};
