//! Locks whose order is watched in debug builds, see [`LockClass`]. In a release build they are
//! those of `parking_lot`.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::{HeldLock, LockClass};

/// A mutex of a class.
pub struct Mutex<T> {
    #[cfg(debug_assertions)]
    class: &'static LockClass,
    inner: parking_lot::Mutex<T>,
}

/// A reader-writer lock of a class.
pub struct RwLock<T> {
    #[cfg(debug_assertions)]
    class: &'static LockClass,
    inner: parking_lot::RwLock<T>,
}

/// Access to a locked [`Mutex`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// Read access to a [`RwLock`].
pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// Write access to a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

/// Access to a locked value; unlocks on drop.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard<G> {
    inner: G,
    _held: HeldLock,
}

/// The class of every lock in a release build, which has no fields.
#[cfg(not(debug_assertions))]
static UNWATCHED: LockClass = LockClass::new("");

// A release build pays nothing.
#[cfg(not(debug_assertions))]
const _: () = {
    type Read<'a> = parking_lot::RwLockReadGuard<'a, u64>;
    assert!(size_of::<Mutex<u64>>() == size_of::<parking_lot::Mutex<u64>>());
    assert!(size_of::<RwLock<u64>>() == size_of::<parking_lot::RwLock<u64>>());
    assert!(size_of::<RwLockReadGuard<'_, u64>>() == size_of::<Read<'_>>());
    assert!(!std::mem::needs_drop::<HeldLock>());
};

/// The address by which a lock is known.
fn address<T>(lock: &T) -> usize {
    std::ptr::from_ref(lock).addr()
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "nothing is watched"))]
    pub const fn new(class: &'static LockClass, value: T) -> Mutex<T> {
        Mutex {
            #[cfg(debug_assertions)]
            class,
            inner: parking_lot::Mutex::new(value),
        }
    }

    #[cfg(debug_assertions)]
    fn class(&self) -> &'static LockClass {
        self.class
    }

    #[cfg(not(debug_assertions))]
    fn class(&self) -> &'static LockClass {
        &UNWATCHED
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// As [`LockClass::wait_for`].
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.class().wait_for(address(self));
        Guard { inner: self.inner.lock(), _held: held }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// `None` if another thread has locked it. Never waits, so it has no place in the order.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(Guard { inner, _held: self.class().hold(address(self)) })
    }
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "nothing is watched"))]
    pub const fn new(class: &'static LockClass, value: T) -> RwLock<T> {
        RwLock {
            #[cfg(debug_assertions)]
            class,
            inner: parking_lot::RwLock::new(value),
        }
    }

    #[cfg(debug_assertions)]
    fn class(&self) -> &'static LockClass {
        self.class
    }

    #[cfg(not(debug_assertions))]
    fn class(&self) -> &'static LockClass {
        &UNWATCHED
    }

    /// Waits for read access. Also waits for a writer that waits.
    ///
    /// # Panics
    /// As [`LockClass::wait_for`].
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.class().wait_for(address(self));
        Guard { inner: self.inner.read(), _held: held }
    }

    /// Waits for write access.
    ///
    /// # Panics
    /// As [`LockClass::wait_for`].
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.class().wait_for(address(self));
        Guard { inner: self.inner.write(), _held: held }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
