//! The room's property tests, through its public API only.

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
