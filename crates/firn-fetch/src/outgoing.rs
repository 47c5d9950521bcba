//! The connections to other servers that the process has open, bounded for all of its clients:
//! scrapes, discoveries, rules, remote writes. Each takes a file, and the database and its clients
//! need files too.

use std::sync::LazyLock;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::FetchError;

/// The permit of an open connection.
pub(crate) type ConnectionPermit = SemaphorePermit<'static>;

/// Places for connections.
#[derive(Debug)]
pub(crate) struct Places {
    free: Semaphore,
    count: usize,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| Places::among(firn_env::open_files_max()));

/// With fewer files than this there are still some places.
const COUNT_MIN: usize = 16;
const COUNT_MAX: usize = 1 << 20;

impl Places {
    /// Those of the process: a quarter of the files that it may have open.
    pub(crate) fn of_process() -> &'static Places {
        &PLACES
    }

    fn among(files: u64) -> Places {
        let count = usize::try_from(files / 4).unwrap_or(COUNT_MAX).clamp(COUNT_MIN, COUNT_MAX);
        Places { free: Semaphore::new(count), count }
    }

    /// Waits for a place, in order; the caller has a time limit.
    ///
    /// # Errors
    /// None in practice: the places are never closed.
    pub(crate) async fn take(&'static self) -> Result<ConnectionPermit, FetchError> {
        self.free.acquire().await.map_err(|error| FetchError::transport("connect", error))
    }

    /// Whether an idle connection is worth its place. A quarter of the places serves requests only,
    /// so that one that waits gets its turn.
    pub(crate) fn has_room_for_idle(&self) -> bool {
        self.free.available_permits() >= self.count / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_wait_for_places_and_idle_ones_leave_some() {
        for (files, count) in [(0, 16), (1_024, 256), (u64::MAX, COUNT_MAX)] {
            assert_eq!(Places::among(files).count, count);
        }
        let places: &'static Places = Box::leak(Box::new(Places::among(0)));
        let mut open = Vec::new();
        for idx in 0..16 {
            assert_eq!(places.has_room_for_idle(), idx <= 12, "{idx}");
            open.push(places.take().await.unwrap());
        }
        let next = tokio::spawn(places.take());
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        open.pop();
        assert!(next.await.unwrap().is_ok());
    }
}
