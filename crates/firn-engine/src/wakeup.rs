//! Waking the maintenance lanes, and ending them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firn_model::{CancelToken, Error, Result};
use parking_lot::{Condvar, Mutex};

/// Requests to the maintenance lanes: flush soon, stop.
#[derive(Default)]
pub(crate) struct Wakeup {
    /// Held by a lane from its last look for work until it sleeps. No other lock is taken under it.
    asleep: Mutex<()>,
    condvar: Condvar,
    is_flush_requested: AtomicBool,
    is_closed: AtomicBool,
    /// Canceled before the last flush.
    stopping: CancelToken,
    /// Canceled when the database closes.
    closing: CancelToken,
}

impl Wakeup {
    /// Makes the head's lane flush soon. While a request waits, another one does not wake the lane:
    /// the flush may have failed, and then the lane waits to retry it.
    pub(crate) fn request_flush(&self) {
        if !self.is_flush_requested.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    pub(crate) fn is_flush_requested(&self) -> bool {
        self.is_flush_requested.load(Ordering::Relaxed)
    }

    /// The requested flush is done.
    pub(crate) fn clear_flush_request(&self) {
        self.is_flush_requested.store(false, Ordering::Relaxed);
    }

    /// Ends flushes of many tables: the database is about to close.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Ends flushes of many tables when the database is about to close.
    pub(crate) fn stopping(&self) -> &CancelToken {
        &self.stopping
    }

    /// Ends the lanes and refuses further work.
    pub(crate) fn close(&self) {
        self.stop();
        self.is_closed.store(true, Ordering::Release);
        self.closing.cancel();
        self.wake();
    }

    /// Ends long work of the lanes when the database closes.
    pub(crate) fn closing(&self) -> &CancelToken {
        &self.closing
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    /// # Errors
    /// `Closed` after [`Wakeup::close`].
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { Err(Error::closed("the database is shutting down")) }
    }

    /// Sleeps until it is woken, at most for `limit`; not at all if the database is closed or
    /// `has_work`, which is called under the lock so that no request is missed.
    pub(crate) fn wait(&self, limit: Duration, has_work: impl FnOnce() -> bool) {
        let mut asleep = self.asleep.lock();
        if self.is_open() && !has_work() {
            self.condvar.wait_for(&mut asleep, limit);
        }
    }

    fn wake(&self) {
        // A lane that has looked for work and does not sleep yet would miss the notification.
        let _asleep = self.asleep.lock();
        self.condvar.notify_all();
    }
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeup").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
