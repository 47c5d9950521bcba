//! The lock and the counter of [`crate::sequence`], which imports them as `super::sync`, so that
//! `sequence_model.rs` can compile the same code against a scheduler that tries interleavings.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use parking_lot::Mutex;
