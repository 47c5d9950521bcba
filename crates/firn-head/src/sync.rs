//! The locks of this crate's racing code, which imports them as `super::sync`. So a model can
//! compile the same code against a scheduler that tries many interleavings (see `epoch_model.rs`).

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use parking_lot::{Mutex, RwLock};
