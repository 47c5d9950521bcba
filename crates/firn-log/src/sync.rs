//! The locks of this room. Racing code names them through `super::sync`, so that its model can be
//! compiled against a scheduler that tries many interleavings (see `commit_model.rs`).

pub(crate) use std::thread::yield_now;

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
