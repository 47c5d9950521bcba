//! Bench: whole programs side by side in one run, because machines are noisy and ratios are not.
//!
//! **Owns** the data ([`load`], [`devops`], [`fleet`]), the queries ([`pattern`]) and whether answers agree ([`agree`]), the
//! programs under test ([`server`]) and how they are spoken to ([`client`]), the report of aims ([`report`]); for the index its label sets
//! and what it is compared with ([`index`]); for the log its devices, transactions and the log that others have ([`log`]); for the
//! head queries beside a flush ([`flush_latency`]), near and far from the disk ([`far_disk`]), and what a group in columns costs ([`static_form`]); for the tree its samples and the trees of others ([`tree`]);
//! for the cache its queries, a dashboard and the cache of fixed chunks ([`cache`]).
//! **Never** is part of the product.

#![deny(unsafe_code)]

pub mod agree;
pub mod cache;
pub mod client;
pub mod devops;
pub mod far_disk;
pub mod fleet;
pub mod flush_latency;
pub mod index;
pub mod load;
pub mod log;
pub mod pattern;
mod remote_write;
pub mod report;
pub mod server;
pub mod static_form;
pub mod tree;
