//! Cache: keeps points and answers of queries by key and time range, on flash.
//!
//! **Owns** the cache itself ([`Store`]: points by key and time in slabs of a file, with an index
//! in memory and an eviction policy), the result cache ([`ResultCache`]: answers of range queries
//! that stay exact under late data, by the protocol of [`firn_model::Change`]) and the cache for
//! other programs ([`SharedCache`]: sets and deletes that survive a crash of the process). Source:
//! "TSCache: An Efficient Flash-based Caching Scheme for Time-series Data Workloads" (VLDB 2021).
//!
//! **Never** knows the engine; sees it only as `Change`. **Never** returns an answer that may be
//! stale, makes a writer wait for its device, or fails a query: points that cannot be kept or read
//! are missing.
//!
//! **Path through**: a set fills the open slab of its field; a full slab is sealed and
//! [`Store::work`] writes it to a slot. A lookup finds segments in the index and reads the blocks
//! of their slabs. The result cache encodes one point per step and trims the ranges that a change
//! touches.
//!
//! **Invariants**: a cached answer equals the computed one, bit for bit (9); a damaged slab costs
//! only itself (5); memory is reserved from the budget, and the file has a fixed number of slots
//! (8).
//!
//! Reading order: `slab` (the format; docs/formats/cache.md), `device`, `key_index`, `policy`,
//! `store`, `background`, then `answer`, `dependency`, `selectors`, `changes`, `inbox`, `hot`,
//! `known`, `shares`, `result` (with its model), `lock`; `shared`. Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test bounds its waiting"))]

mod answer;
mod background;
mod changes;
mod dependency;
mod device;
mod hot;
mod inbox;
mod key_index;
mod known;
mod lock;
mod mutant;
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
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use mutant::Mutant;
pub use policy::{EvictionPolicy, PolicyStats, SlabId};
pub use result::{
    CachedAnswer, CachedText, QueryRange, ResultCache, ResultOptions, ResultQuery, ResultStats,
    Session, TextTicket,
};
pub use shared::SharedCache;
pub use store::{
    CachedRange, DeclineReason, Fill, KeySummary, Lookup, OwnerHistory, Point, PointRef, Store,
    StoreOptions, StoreStats,
};
