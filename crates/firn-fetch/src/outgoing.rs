//! The connections to other servers that the process has open, bounded for all of its clients:
//! scrapes, discoveries, rules, remote writes. Each takes a file, and the database and its clients
//! need files too.

use std::fmt;
use std::sync::LazyLock;

use crate::FetchError;
use crate::fair::{ClientId, FairPlaces, PlacePermit};

/// The use of a client's connections. Each has a part of all connections, so that servers that hang
/// take those of one use only; and of that part [`FairPlaces`] leave some to other clients.
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
    purpose: Purpose,
    client: ClientId,
    _held: PlacePermit,
}

/// Places for connections.
#[derive(Debug)]
pub(crate) struct Places {
    /// Five eighths of all.
    scrapes: FairPlaces,
    /// An eighth.
    alerts: FairPlaces,
    /// A quarter.
    other: FairPlaces,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| Places::among(firn_env::open_files_max()));

/// With fewer files than this there are still some places.
const COUNT_MIN: usize = 16;
const COUNT_MAX: usize = 1 << 20;

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 3] = [Purpose::Scrapes, Purpose::Alerts, Purpose::Other];

    /// The label value of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Purpose::Scrapes => "scrapes",
            Purpose::Alerts => "alerts",
            Purpose::Other => "other",
        }
    }

    /// The number of connections that the process may have open for it at the same time.
    pub fn connections_max(self) -> usize {
        Places::of_process().of(self).count()
    }

    /// The number of connections that the process has open for it.
    pub fn connections_open(self) -> usize {
        Places::of_process().of(self).taken()
    }
}

impl Places {
    /// Those of the process: a quarter of the files that it may have open.
    pub(crate) fn of_process() -> &'static Places {
        &PLACES
    }

    fn among(files: u64) -> Places {
        let count = usize::try_from(files / 4).unwrap_or(COUNT_MAX).clamp(COUNT_MIN, COUNT_MAX);
        let part = |eighths: usize| FairPlaces::new((count / 8).saturating_mul(eighths));
        Places { scrapes: part(5), alerts: part(1), other: part(2) }
    }

    /// Waits for a place; the caller has a time limit.
    ///
    /// # Errors
    /// None in practice: the places are never closed.
    pub(crate) async fn take(
        &self,
        purpose: Purpose,
        client: ClientId,
    ) -> Result<ConnectionPermit, FetchError> {
        let held = self.of(purpose).take(client).await?;
        Ok(ConnectionPermit { purpose, client, _held: held })
    }

    /// Whether an idle connection is worth its place. A quarter of the places serves requests only,
    /// so that one that waits gets its turn; and idle connections take at most half of the places
    /// alone, so that their client may open more.
    pub(crate) fn has_room_for_idle(&self, permit: &ConnectionPermit) -> bool {
        let places = self.of(permit.purpose);
        let (free, of_client) = places.shares(permit.client);
        free >= places.count() / 4 && free >= of_client
    }

    fn of(&self, purpose: Purpose) -> &FairPlaces {
        match purpose {
            Purpose::Scrapes => &self.scrapes,
            Purpose::Alerts => &self.alerts,
            Purpose::Other => &self.other,
        }
    }
}

impl ConnectionPermit {
    /// The client of the connection.
    pub(crate) fn client(&self) -> ClientId {
        self.client
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
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_wait_for_places_and_idle_ones_leave_some() {
        for (files, counts) in [
            (0, [10, 2, 4]),
            (1_024, [160, 32, 64]),
            (u64::MAX, [5, 1, 2].map(|eighths| COUNT_MAX / 8 * eighths)),
        ] {
            assert_eq!(
                Purpose::ALL.map(|purpose| Places::among(files).of(purpose).count()),
                counts
            );
        }
        let places = Places::among(1_024);
        // Of one client, and of as many as connections.
        for (is_one, idle_max, count) in [(true, 32, 48), (false, 48, 64)] {
            let (one, mut open) = (ClientId::unique(), Vec::new());
            for idx in 1..=count {
                let client = if is_one { one } else { ClientId::unique() };
                let permit = places.take(Purpose::Other, client).await.unwrap();
                assert_eq!(places.has_room_for_idle(&permit), idx <= idle_max, "{idx}");
                open.push(permit);
            }
            let mut next = pin!(places.take(Purpose::Other, one));
            let wait = Duration::from_secs(9);
            assert!(tokio::time::timeout(wait, next.as_mut()).await.is_err());
            open.pop();
            assert!(next.await.is_ok());
        }
    }

    /// Before, targets that hang took all places.
    #[tokio::test(start_paused = true)]
    async fn servers_that_hang_take_the_places_of_one_purpose() {
        let (places, mut open) = (Places::among(1_024), Vec::new());
        for purpose in Purpose::ALL {
            let wait = Duration::from_secs(9);
            let next = || tokio::time::timeout(wait, places.take(purpose, ClientId::unique()));
            while let Ok(permit) = next().await {
                open.push(permit.unwrap());
            }
        }
        assert_eq!(open.len(), 256);
    }
}
