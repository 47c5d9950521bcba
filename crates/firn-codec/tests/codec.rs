//! The room's property tests, through its public API only.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "reads recordings from files")]

#[path = "support/mod.rs"]
mod support;

#[path = "codec/chunks.rs"]
mod chunks;
#[path = "codec/merges.rs"]
mod merges;
#[path = "codec/recordings.rs"]
mod recordings;
#[path = "codec/rows.rs"]
mod rows;
