//! Cache: time ranges of answers, kept beside the engine, on flash.
//!
//! **Owns** the cache itself ([`Store`]: points by key and time in slabs on a file, with an index in memory and a
//! policy for what goes), the result cache over it ([`ResultCache`]: answers of range queries that are exact under
//! late data, by the protocol of [`firn_model::Change`]) and the cache for other programs ([`SharedCache`]: what they set
//! and delete holds over a crash). Source: "TSCache: An Efficient Flash-based Caching Scheme
//! for Time-series Data Workloads".
//!
//! **Never** knows the engine; sees it only as `Change`. **Never** answers with what may be stale, never
//! makes a writer wait for its device, never fails a query: what it cannot keep or read is not there.
//!
//! **Invariants**: a cached answer equals the computed one, bit for bit (9); a damaged slab costs itself only (5);
//! memory is drawn from the budget, flash from a fixed number of places (8).
//!
//! Reading order: `slab` (the format; docs/formats/cache.md), `device`, `key_index`, `policy`, `store`, `background`, then `answer`,
//! `dependency`, `selectors`, `changes`, `hot`, `shares`, `result` (with its model); `shared`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test bounds its waiting"))]

mod answer;
mod background;
mod changes;
mod dependency;
mod device;
mod hot;
mod key_index;
mod planted;
mod policy;
mod result;
mod selectors;
mod shared;
mod shares;
mod slab;
mod store;
mod sync;

#[cfg(test)]
mod result_model;
#[cfg(test)]
mod result_tests;

pub use answer::{Answer, AnswerSeries};
pub use background::{Background, Wake};
pub use dependency::{Dependency, Grid, Span};
#[doc(hidden)]
pub use planted::Planted;
pub use policy::{PolicyKind, PolicyStats};
pub use result::{CachedAnswer, ResultCache, ResultOptions, ResultQuery, ResultStats, Session};
pub use shared::SharedCache;
pub use store::{
    CachedRange, DeclineReason, Fill, KeySummary, Lookup, OwnerHistory, Point, PointRef, Store,
    StoreOptions, StoreStats,
};
