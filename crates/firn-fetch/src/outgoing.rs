//! The connections to other servers that the process has open, bounded for all of its clients:
//! scrapes, discoveries, rules, remote writes. Each takes a file, and the database and its clients
//! need files too.

use std::fmt;
use std::sync::LazyLock;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::FetchError;

/// The use of a client's connections. Each has a part of all connections, so that servers that hang
/// take those of one use only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Scrapes of targets.
    Scrapes,
    /// Alerts to Alertmanagers.
    Alerts,
    /// Discoveries, remote writes, tokens, commands.
    Other,
}

/// The permit of an open connection.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    pub(crate) purpose: Purpose,
    _held: SemaphorePermit<'static>,
}

/// Places for connections.
#[derive(Debug)]
pub(crate) struct Places {
    /// Five eighths of all.
    scrapes: PlaceCount,
    /// An eighth.
    alerts: PlaceCount,
    /// A quarter.
    other: PlaceCount,
}

/// The places for one purpose.
#[derive(Debug)]
struct PlaceCount {
    free: Semaphore,
    count: usize,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| Places::among(firn_env::open_files_max()));

/// With fewer files than this there are still some places.
const COUNT_MIN: usize = 16;
const COUNT_MAX: usize = 1 << 20;

impl Purpose {
    /// The number of connections that the process may have open for it at the same time.
    pub fn connections_max(self) -> usize {
        Places::of_process().of(self).count
    }
}

impl Places {
    /// Those of the process: a quarter of the files that it may have open.
    pub(crate) fn of_process() -> &'static Places {
        &PLACES
    }

    fn among(files: u64) -> Places {
        let count = usize::try_from(files / 4).unwrap_or(COUNT_MAX).clamp(COUNT_MIN, COUNT_MAX);
        let part = |eighths: usize| {
            let count = (count / 8).saturating_mul(eighths);
            PlaceCount { free: Semaphore::new(count), count }
        };
        Places { scrapes: part(5), alerts: part(1), other: part(2) }
    }

    /// Waits for a place, in order; the caller has a time limit.
    ///
    /// # Errors
    /// None in practice: the places are never closed.
    pub(crate) async fn take(
        &'static self,
        purpose: Purpose,
    ) -> Result<ConnectionPermit, FetchError> {
        let permit = self.of(purpose).free.acquire().await;
        let held = permit.map_err(|error| FetchError::transport("connect", error))?;
        Ok(ConnectionPermit { purpose, _held: held })
    }

    /// Whether an idle connection is worth its place. A quarter of the places serves requests only,
    /// so that one that waits gets its turn.
    pub(crate) fn has_room_for_idle(&self, purpose: Purpose) -> bool {
        let places = self.of(purpose);
        places.free.available_permits() >= places.count / 4
    }

    fn of(&self, purpose: Purpose) -> &PlaceCount {
        match purpose {
            Purpose::Scrapes => &self.scrapes,
            Purpose::Alerts => &self.alerts,
            Purpose::Other => &self.other,
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Scrapes => "scrapes",
            Purpose::Alerts => "alerts",
            Purpose::Other => "discoveries and remote writes",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PURPOSES: [Purpose; 3] = [Purpose::Scrapes, Purpose::Alerts, Purpose::Other];

    fn places(files: u64) -> &'static Places {
        Box::leak(Box::new(Places::among(files)))
    }

    #[tokio::test(start_paused = true)]
    async fn connections_wait_for_places_and_idle_ones_leave_some() {
        for (files, counts) in [
            (0, [10, 2, 4]),
            (1_024, [160, 32, 64]),
            (u64::MAX, [5, 1, 2].map(|eighths| COUNT_MAX / 8 * eighths)),
        ] {
            assert_eq!(PURPOSES.map(|purpose| places(files).of(purpose).count), counts);
        }
        let places = places(1_024);
        let mut open = Vec::new();
        for idx in 0..64 {
            assert_eq!(places.has_room_for_idle(Purpose::Other), idx <= 48, "{idx}");
            open.push(places.take(Purpose::Other).await.unwrap());
        }
        let next = tokio::spawn(places.take(Purpose::Other));
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        open.pop();
        assert!(next.await.unwrap().is_ok());
    }

    /// Before, targets that hang took all places.
    #[tokio::test(start_paused = true)]
    async fn servers_that_hang_take_the_places_of_one_purpose() {
        let (places, mut open) = (places(1_024), Vec::new());
        for purpose in PURPOSES {
            assert!(places.has_room_for_idle(purpose), "{purpose}");
            let wait = Duration::from_secs(9);
            while let Ok(permit) = tokio::time::timeout(wait, places.take(purpose)).await {
                open.push(permit.unwrap());
            }
        }
        assert_eq!(open.len(), 256);
    }
}
