//! The thread that writes slabs, so that nobody who sets or gets waits for the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use firn_model::{Error, Result};

/// How long the thread sleeps when there is nothing to do.
const PAUSE: Duration = Duration::from_millis(250);

/// A thread that does a cache's background work as long as this lives.
#[derive(Debug)]
pub struct Background {
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread `name`. `work` does one piece and returns whether there was any:
    /// [`Store::work`](crate::Store::work), [`ResultCache::work`](crate::ResultCache::work).
    ///
    /// # Errors
    /// `Unavailable` when the thread cannot be started.
    pub fn start(name: &str, work: impl Fn() -> bool + Send + 'static) -> Result<Background> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_closed);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                while !seen.load(Ordering::Acquire) {
                    if !work() {
                        std::thread::park_timeout(PAUSE);
                    }
                }
            })
            .map_err(|e| Error::unavailable("cannot start a cache's thread").because(e))?;
        Ok(Background { is_closed, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has printed why; a cache is not needed for anything.
            let _ = thread.join();
        }
    }
}
