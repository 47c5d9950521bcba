//! Bench: whole programs side by side in one run, because machines are noisy and ratios are not.
//!
//! **Owns** the data ([`load`], [`devops`], [`fleet`]), the queries ([`pattern`]) and the
//! comparison of answers ([`agree`]), the programs under test ([`server`]), a client for them
//! ([`client`]) and turns of several ([`contest`]), and the report of aims ([`report`]). Label
//! shapes of many senders, with queries to each, are in [`fresh`].
//!
//! Per room: label sets and baselines of the index ([`index`]); devices, transactions and a central
//! log ([`log`]); queries beside a flush ([`flush_latency`]), on a near and a far disk
//! ([`far_disk`]), and the static form of a group ([`static_form`]); samples and competing trees
//! ([`tree`]); queries, a dashboard and a cache of fixed chunks ([`cache`]).
//!
//! **Never** is part of the product.
//!
//! Terms: `docs/glossary.md`.

#![deny(unsafe_code)]

pub mod agree;
pub mod cache;
pub mod client;
pub mod collect;
pub mod contest;
pub mod devops;
pub mod far_disk;
pub mod fleet;
pub mod flush_latency;
pub mod fresh;
pub mod index;
pub mod load;
pub mod log;
pub mod pattern;
mod remote_write;
pub mod report;
pub mod server;
pub mod static_form;
pub mod tree;
