//! The log against simulated devices: crashes at any operation, failing operations, damage, threads.

#[path = "log/crash.rs"]
mod crash;
#[path = "log/damage.rs"]
mod damage;
#[path = "log/edges.rs"]
mod edges;
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
