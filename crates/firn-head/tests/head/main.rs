//! The head from outside.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod flush;
mod memory;
mod model;
mod threads;
mod world;
mod write;
