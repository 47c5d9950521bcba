//! Cache: time ranges of answers, kept beside the engine.
//!
//! **Owns** the protocol by which a cached answer stays exact: it is told of every
//! [`firn_model::Change`] before the change is visible, and an answer that was computed from a
//! snapshot with number N may be kept only where no change after N touched it. Slabs, extents and
//! policy (TSCache, "TSCache: An Efficient Flash-based Caching Scheme for Time-series Data
//! Workloads") come into this room behind the same seam.
//!
//! **Never** knows the engine; sees it only as `Change`. **Never** answers with what may be stale.
//!
//! Reading order: `changes`.

#![forbid(unsafe_code)]

mod changes;

pub use changes::{ChangeLog, Touched};
