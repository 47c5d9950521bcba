//! The head from outside.

mod flush;
mod memory;
mod model;
mod threads;
mod world;
mod write;
