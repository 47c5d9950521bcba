//! Turns: large write bodies pass one after the other when memory is not enough for all of them.
//!
//! A request takes memory in steps: its body, the decoded values, new series, rows. Large requests
//! that take these steps at the same time refuse each other, and all of them are repeated. So a
//! large request first takes a [`Turn`] and keeps it until it was written or refused. A turn is a
//! share of half of the memory: six times the size of the body, at most all of it. So large bodies
//! of `--memory` / 12 together pass at the same time, or one longer body alone.
//!
//! - Requests that are not large, decompressed, never wait ([`Turns::is_large`]).
//! - Nothing is reserved for a turn or for an announced length. The memory of bodies that wait is
//!   reserved like any other. One that announces a large length waits with 64 KiB here; TCP holds
//!   back the rest.
//! - Clients take turns: of one client only the first request is in the queue, so that no client
//!   holds up the others with many requests. A wait is bounded, then the request is refused as
//!   `Busy`.
//! - A slow sender loses its turn ([`Turn::arrives_until`]), which does not refuse it: its body
//!   takes another turn when it is whole.
//! - Operations with selectors in a transaction may take as long as a query, so they have no turn.
//! - A request has at most one turn at a time and waits for no second one while it has one, so
//!   there is no deadlock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::access::ip_of;
use crate::http::auth::Caller;

/// The turns of all large bodies of a server.
#[derive(Debug)]
pub(crate) struct Turns {
    free: Arc<Semaphore>,
    memory_bytes: u64,
    /// The clients with waiting requests.
    positions: Mutex<HashMap<TurnClient, ClientPosition>>,
}

/// The position of a client, held by its request in the queue.
#[derive(Debug)]
struct ClientPosition {
    semaphore: Arc<Semaphore>,
    waiting_count: usize,
}

/// A client among those that take turns: its address and user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TurnClient(IpAddr, Box<str>);

impl From<&Caller> for TurnClient {
    fn from(caller: &Caller) -> TurnClient {
        TurnClient(ip_of(caller.address), caller.user.name().into())
    }
}

/// Large bodies of a certain size may pass, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    begun: Instant,
    /// Bytes of the body that were here then.
    bytes_before: usize,
    _shares: OwnedSemaphorePermit,
}

// A body is large over 1/64 of the memory: 2 MiB of 128 MiB. Requests of Prometheus, 700 KB
// decoded, are small at any limit.
const LARGE_PART: u64 = 64;
// A body that announces a large length waits after these bytes.
const ANNOUNCED_BYTES: usize = 64 << 10;
// Shares of the half of the memory that large bodies may take.
const SHARE_COUNT: u32 = 64;
// A decoded item takes up to four times its bytes, beside its body and its unpacked bytes.
const BYTES_PER_BODY_BYTE: u64 = 6;
// Half of the time after which Prometheus ends a request.
const WAIT_MAX: Duration = Duration::from_secs(15);
// A body keeps its turn as long as it arrives at 4 MB/s, beside this time, which grows with the
// bytes that arrive. Those of a sender that waits are in the kernel's buffers, so they are here at
// once.
const SLACK_AT_FIRST: Duration = Duration::from_millis(100);
const SLACK_MAX: Duration = Duration::from_millis(500);
const BYTES_PER_MICROSECOND_MIN: u64 = 4;

impl Turns {
    /// The turns of a server with this limit of memory.
    pub(crate) fn within(memory_bytes: u64) -> Turns {
        let free = Arc::new(Semaphore::new(SHARE_COUNT as usize));
        Turns { free, memory_bytes, positions: Mutex::default() }
    }

    /// Whether a request of `bytes`, decompressed, needs a turn.
    pub(crate) fn is_large(&self, bytes: u64) -> bool {
        bytes > self.memory_bytes / LARGE_PART
    }

    /// The bytes that a body may have before it needs a turn. A length is announced for free, so an
    /// announcement only makes it wait earlier.
    pub(crate) fn bytes_before_turn(&self, announced: Option<u64>) -> usize {
        let large = usize::try_from(self.memory_bytes / LARGE_PART).unwrap_or(usize::MAX);
        match announced {
            Some(len) if self.is_large(len) => large.min(ANNOUNCED_BYTES),
            _ => large,
        }
    }

    /// A turn for a request of `client` of `bytes`, decompressed, of which `bytes_before` are here.
    ///
    /// # Errors
    /// `Busy` if the requests before it take too long.
    pub(crate) async fn take(
        &self,
        client: &TurnClient,
        bytes: u64,
        bytes_before: usize,
    ) -> Result<Turn> {
        let half = (self.memory_bytes / 2).max(1);
        let needed = u128::from(bytes) * u128::from(BYTES_PER_BODY_BYTE * u64::from(SHARE_COUNT));
        let shares = needed.div_ceil(u128::from(half)).clamp(1, u128::from(SHARE_COUNT));
        let shares = u32::try_from(shares).unwrap_or(SHARE_COUNT);
        let position = QueuePosition::of(self, client);
        let taken = async {
            let _first = position.semaphore.acquire().await?;
            Arc::clone(&self.free).acquire_many_owned(shares).await
        };
        match tokio::time::timeout(WAIT_MAX, taken).await {
            Ok(Ok(shares)) => Ok(Turn { begun: Instant::now(), bytes_before, _shares: shares }),
            Ok(Err(_)) => Err(Error::closed("the server is stopping")),
            Err(_) => Err(Error::busy(
                1_000,
                format!(
                    "large requests wait for each other, this one for {} s (--memory has no room \
                     for all of them): retry later, send less at once, or raise --memory",
                    WAIT_MAX.as_secs()
                ),
            )),
        }
    }
}

/// The position of a client in the queue, kept as long as a request of the client waits.
struct QueuePosition<'a> {
    turns: &'a Turns,
    client: &'a TurnClient,
    semaphore: Arc<Semaphore>,
}

impl<'a> QueuePosition<'a> {
    fn of(turns: &'a Turns, client: &'a TurnClient) -> QueuePosition<'a> {
        let mut positions = turns.positions.lock();
        let new = || ClientPosition { semaphore: Arc::new(Semaphore::new(1)), waiting_count: 0 };
        let position = positions.entry(client.clone()).or_insert_with(new);
        position.waiting_count += 1;
        QueuePosition { turns, client, semaphore: Arc::clone(&position.semaphore) }
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut positions = self.turns.positions.lock();
        let Some(position) = positions.get_mut(self.client) else { return };
        position.waiting_count -= 1;
        if position.waiting_count == 0 {
            positions.remove(self.client);
        }
    }
}

impl Turn {
    /// When a body of which `bytes` are here must have sent more to keep its turn.
    pub(crate) fn arrives_until(&self, bytes: usize) -> Instant {
        let arrived = bytes.saturating_sub(self.bytes_before) as u64;
        let slack = SLACK_MAX.min(SLACK_AT_FIRST + Duration::from_micros(arrived));
        self.begun + slack + Duration::from_micros(arrived / BYTES_PER_MICROSECOND_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Whether a turn for `bytes` is free now.
    async fn take_now(turns: &Turns, bytes: u64) -> Option<Turn> {
        tokio::time::timeout(Duration::ZERO, turns.take(&client(0), bytes, 0)).await.ok()?.ok()
    }

    fn client(number: u8) -> TurnClient {
        TurnClient(IpAddr::from([127, 0, 0, number]), Box::default())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_fit_pass_together_and_larger_ones_alone() {
        let turns = Turns::within(128 * MIB);
        assert!(!turns.is_large(2 * MIB) && turns.is_large(2 * MIB + 1));
        let small: Vec<_> = [3, 3, 3].map(|mib| take_now(&turns, mib * MIB)).into_iter().collect();
        let mut held = Vec::new();
        for taken in small {
            held.push(taken.await.expect("18 of 64 MiB each"));
        }
        assert!(take_now(&turns, 3 * MIB).await.is_none());
        held.pop();
        drop(take_now(&turns, 3 * MIB).await.expect("of the one that ended"));
        drop(held);
        let all = take_now(&turns, u64::MAX).await.expect("at most all");
        assert!(take_now(&turns, 1).await.is_none());
        drop(all);
        assert!(take_now(&turns, 64 * MIB).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_in_order_and_a_wait_ends() {
        let turns = Arc::new(Turns::within(128 * MIB));
        let first = turns.take(&client(0), 12 * MIB, 0).await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..3 {
            let (waiting, sender) = (Arc::clone(&turns), sender.clone());
            tokio::spawn(async move {
                // The last one would fit beside the one before it.
                let bytes = [12, 12, 1][usize::from(number)] * MIB;
                let _turn = waiting.take(&client(number), bytes, 0).await.unwrap();
                sender.send(number).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        for number in 0..3 {
            assert_eq!(order.recv().await, Some(number));
        }
        let _held = turns.take(&client(0), 12 * MIB, 0).await.unwrap();
        let refused = turns.take(&client(0), 3 * MIB, 0).await.unwrap_err();
        assert!(refused.is_retriable() && refused.to_string().contains("requests wait"));
        assert!(turns.positions.lock().is_empty());
    }

    /// Before, a client with many requests held up all others.
    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_one_request_of_another_at_most() {
        let turns = Arc::new(Turns::within(128 * MIB));
        let first = turns.take(&client(0), 12 * MIB, 0).await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in [1, 1, 1, 1, 2] {
            let (waiting, sender) = (Arc::clone(&turns), sender.clone());
            tokio::spawn(async move {
                let _turn = waiting.take(&client(number), 12 * MIB, 0).await.unwrap();
                sender.send(number).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        for number in [1, 2, 1, 1, 1] {
            assert_eq!(order.recv().await, Some(number));
        }
        tokio::task::yield_now().await;
        assert!(turns.positions.lock().is_empty());
    }

    /// Before, the references to a semaphore were counted: two requests that ended at the same time
    /// each counted that of the other one, and the entry of their client stayed.
    #[test]
    fn requests_that_end_together_leave_no_position() {
        let turns = Turns::within(128 * MIB);
        let client = client(1);
        let (first, second) =
            (QueuePosition::of(&turns, &client), QueuePosition::of(&turns, &client));
        // As on a thread that has left `drop` and not yet released its reference.
        let _released_later = Arc::clone(&first.semaphore);
        drop(first);
        assert_eq!(turns.positions.lock()[&client].waiting_count, 1);
        drop(second);
        assert!(turns.positions.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_follows_the_pace_of_its_body() {
        let turns = Turns::within(128 * MIB);
        assert_eq!(turns.bytes_before_turn(None), 2 << 20);
        assert_eq!(turns.bytes_before_turn(Some(2 * MIB)), 2 << 20);
        assert_eq!(turns.bytes_before_turn(Some(2 * MIB + 1)), ANNOUNCED_BYTES);
        let turn = turns.take(&client(0), 12 * MIB, 1_000).await.unwrap();
        let left = |bytes| turn.arrives_until(bytes) - Instant::now();
        assert_eq!(left(1_000), SLACK_AT_FIRST);
        assert_eq!(left(101_000), 2 * SLACK_AT_FIRST + Duration::from_millis(25));
        assert_eq!(left(4_001_000), SLACK_MAX + Duration::from_secs(1));
    }
}
