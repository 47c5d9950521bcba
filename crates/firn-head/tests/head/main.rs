//! Tests of the head through its public interface.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod flush;
mod memory;
mod model;
mod threads;
mod world;
mod write;
