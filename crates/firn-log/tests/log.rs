//! The log on simulated devices: crashes at any operation, failing operations, damage, threads.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "also runs on a real disk")]

#[path = "log/crash.rs"]
mod crash;
#[path = "log/damage.rs"]
mod damage;
#[path = "log/edges.rs"]
mod edges;
#[path = "log/follow.rs"]
mod follow;
#[path = "log/memory.rs"]
mod memory;
#[path = "log/policy.rs"]
mod policy;
#[path = "log/reader.rs"]
mod reader;
#[path = "log/threads.rs"]
mod threads;
#[path = "log/world.rs"]
mod world;
