//! The locks of this room. Racing code names them through `super::sync`, so that its model can be
//! compiled against a scheduler that tries many interleavings (see `commit_model.rs`).

pub(crate) use std::thread::yield_now;

use std::sync::PoisonError;

pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Where threads wait for what others change under a [`Mutex`]. `notify_all` makes all of them ready to run at once. That of
/// `parking_lot` wakes one, who wakes the next when it has had the lock: where cores are busy, a chain of thirty waiters takes
/// thirty turns of the scheduler, and a leader who lets others come along first finds few that could.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// Who waits takes this before it lets go of the other lock, who wakes takes it before it wakes: so nobody sleeps through it.
    gate: std::sync::Mutex<()>,
    woken: std::sync::Condvar,
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    /// May return without a reason.
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
