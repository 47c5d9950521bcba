//! The locks of this room. Racing code names them through `super::sync`, so that its model can be
//! compiled against a scheduler that tries many interleavings (see `commit_model.rs`).
//!
//! They are the standard library's, without its poisoning: `notify_all` makes all who wait ready to run at once. That of
//! `parking_lot` wakes one, who wakes the next when it has had the lock: where cores are busy, a chain of thirty waiters takes
//! thirty turns of the scheduler, and a leader who lets others come along first finds few that could.

pub(crate) use std::sync::MutexGuard;
pub(crate) use std::thread::yield_now;

use std::sync::PoisonError;

/// A lock that a panic of its holder leaves as it is: what is under it says by itself what holds.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

/// Where threads wait for what others change under a [`Mutex`].
#[derive(Debug)]
pub(crate) struct Condvar(std::sync::Condvar);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
