//! Hostile: attacks on a running server, and the proof after each that it withstood them.
//!
//! **Owns** the tables of attacks (`families`), one file per family; a raw client that sends any
//! bytes (`client`, `dial`, `wire`); the server under attack with its limits (`target`, `server`),
//! the measurements during an attack (`watch`), the data that must survive (`canary`), and free
//! addresses of servers (`address`), which the end-to-end tests use too.
//!
//! **Never** is part of the product, and uses none of its code: a shared mistake would hide itself.
//!
//! Every attack is data: a name, an action, and the expected responses (`attack`). The engine
//! (`engine`) carries it out and checks in addition that the process lives, that its memory
//! stays within the limit plus 10 %, that `/-/healthy` responds within 100 ms, and that all
//! acknowledged data is there. After each family the process is killed, started again and checked.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `attack`, `engine`, `families`, `watch`, `canary`, `server`, `client`, `target`,
//! `dial`, `wire`, `address`, `report`.

#![forbid(unsafe_code)]

mod address;
mod attack;
mod canary;
mod client;
mod dial;
mod engine;
mod families;
mod report;
mod server;
mod target;
mod watch;
mod wire;

pub use address::free_address;
pub use engine::{Options, run};
pub use report::Report;
pub use wire::noise;
