//! The locks of this room's racing code, which names them through `super::sync`, so that its model can be
//! compiled against a scheduler that tries many interleavings (see `epoch_model.rs`).

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use parking_lot::{Mutex, RwLock};
