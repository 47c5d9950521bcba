//! The locks of this crate. Racing code imports them as `super::sync`, so a model can compile the
//! same code against a scheduler that tries many interleavings (see `commit_model.rs`).

pub(crate) use std::thread::yield_now;

use std::sync::PoisonError;

pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};

/// A condition variable for changes under a [`Mutex`]. `notify_all` makes all waiters runnable at
/// once. The one of `parking_lot` wakes a single thread, which wakes the next after it has held the
/// lock. On busy cores a chain of thirty waiters then takes thirty scheduler turns, and a gathering
/// leader finds few runnable threads.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// A waiter locks this before it releases the other lock, and a notifier locks it before it
    /// notifies. So no notification is missed.
    gate: std::sync::Mutex<()>,
    woken: std::sync::Condvar,
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    /// May wake up spuriously.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = MutexGuard::mutex(&guard);
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        drop(self.woken.wait(gate).unwrap_or_else(PoisonError::into_inner));
        mutex.lock()
    }

    pub(crate) fn notify_one(&self) {
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
    }
}
