//! Places that clients share so that none of them can take all.
//!
//! A client takes another place only while it has, with that one, at most three times as many as
//! are free: alone it gets three quarters of them, and however many clients take as much as they
//! can, a place stays free for another one, up to one place for each client. Of those that wait,
//! the client with the fewest places is next. (Dynamic thresholds; Choudhury and Hahne, 1998.)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::FetchError;

/// One of the clients that share places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(u64);

/// Places that clients share.
#[derive(Clone, Debug)]
pub struct FairPlaces {
    count: usize,
    state: Arc<Mutex<PlacesState>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct PlacePermit {
    places: FairPlaces,
    client: ClientId,
}

#[derive(Debug)]
struct PlacesState {
    free: usize,
    /// The places of each client that has some.
    held: HashMap<ClientId, usize>,
    /// The waiters of each client that has some, in the order of their tickets.
    waiting: HashMap<ClientId, BTreeMap<Ticket, oneshot::Sender<PlacePermit>>>,
    next_ticket: Ticket,
}

/// The number of a waiter.
type Ticket = u64;

/// Leaves the queue when it is dropped.
struct Waiter<'p> {
    places: &'p FairPlaces,
    client: ClientId,
    ticket: Ticket,
}

/// Places of a client for each free one.
const SHARE_MAX: usize = 3;

impl ClientId {
    /// One that no other client has.
    pub fn unique() -> ClientId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        ClientId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl FairPlaces {
    /// `count` free places.
    pub fn new(count: usize) -> FairPlaces {
        let state = PlacesState {
            free: count,
            held: HashMap::new(),
            waiting: HashMap::new(),
            next_ticket: 0,
        };
        FairPlaces { count, state: Arc::new(Mutex::new(state)) }
    }

    /// The number of all places.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The places that are taken.
    pub fn taken(&self) -> usize {
        self.count.saturating_sub(self.state.lock().free)
    }

    /// The free places, and those of `client`.
    pub(crate) fn shares(&self, client: ClientId) -> (usize, usize) {
        let state = self.state.lock();
        (state.free, state.held_by(client))
    }

    /// Waits for a place; the caller has a time limit. O(clients that wait).
    ///
    /// # Errors
    /// None in practice: each waiter gets its place.
    pub async fn take(&self, client: ClientId) -> Result<PlacePermit, FetchError> {
        let (sender, permit) = oneshot::channel();
        let ticket = self.state.lock().enqueue(client, sender);
        let _waiter = Waiter { places: self, client, ticket };
        self.serve();
        permit.await.map_err(|error| FetchError::transport("connect", error))
    }

    /// Assigns free places to waiters.
    fn serve(&self) {
        loop {
            // The lock ends before a permit can be dropped.
            let Some((client, sender)) = self.state.lock().next() else { return };
            // To a waiter that has just left the permit is not sent, so the place is free again.
            let _ = sender.send(PlacePermit { places: self.clone(), client });
        }
    }
}

impl PlacesState {
    fn held_by(&self, client: ClientId) -> usize {
        self.held.get(&client).copied().unwrap_or(0)
    }

    fn may_take(&self, client: ClientId) -> bool {
        let held = self.held_by(client);
        let others = self.free.saturating_sub(1);
        self.free > 0 && (held == 0 || held < others.saturating_mul(SHARE_MAX))
    }

    fn enqueue(&mut self, client: ClientId, sender: oneshot::Sender<PlacePermit>) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket = ticket.wrapping_add(1);
        self.waiting.entry(client).or_default().insert(ticket, sender);
        ticket
    }

    /// Takes a place for the first waiter of the client with the fewest places.
    fn next(&mut self) -> Option<(ClientId, oneshot::Sender<PlacePermit>)> {
        let order = |(client, waiters): (&ClientId, &BTreeMap<Ticket, _>)| {
            let ticket = waiters.first_key_value().map(|(ticket, _)| *ticket);
            (self.held_by(*client), ticket, *client)
        };
        let (client, ticket) = {
            let served = self.waiting.iter().filter(|(client, _)| self.may_take(**client));
            let (_, ticket, client) =
                served.map(order).min_by_key(|(held, ticket, _)| (*held, *ticket))?;
            (client, ticket?)
        };
        let sender = self.leave(client, ticket)?;
        self.free = self.free.saturating_sub(1);
        let held = self.held.entry(client).or_default();
        *held = held.saturating_add(1);
        Some((client, sender))
    }

    fn leave(&mut self, client: ClientId, ticket: Ticket) -> Option<oneshot::Sender<PlacePermit>> {
        let waiters = self.waiting.get_mut(&client)?;
        let sender = waiters.remove(&ticket);
        if waiters.is_empty() {
            self.waiting.remove(&client);
        }
        sender
    }

    fn release(&mut self, client: ClientId) {
        self.free = self.free.saturating_add(1);
        if let Some(held) = self.held.get_mut(&client) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(&client);
            }
        }
    }
}

impl Drop for PlacePermit {
    fn drop(&mut self) {
        self.places.state.lock().release(self.client);
        self.places.serve();
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.places.state.lock().leave(self.client, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// A place at once, or none.
    fn try_take(places: &FairPlaces, client: ClientId) -> Option<PlacePermit> {
        let taking = pin!(places.take(client));
        match taking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit.unwrap()),
            Poll::Pending => None,
        }
    }

    fn take_all(places: &FairPlaces, client: ClientId) -> Vec<PlacePermit> {
        std::iter::from_fn(|| try_take(places, client)).collect()
    }

    /// Before, the requests of one client that hang took all places.
    #[test]
    fn no_client_can_take_all_places() {
        for (count, wanted) in [
            (1, &[1, 0][..]),
            (2, &[1, 1, 0]),
            (4, &[3, 1, 0]),
            (62, &[46, 12, 3, 1, 0]),
            (160, &[120, 30, 7, 2, 1, 0]),
        ] {
            let (places, mut open) = (FairPlaces::new(count), Vec::new());
            for (idx, wanted) in wanted.iter().enumerate() {
                let permits = take_all(&places, ClientId::unique());
                assert_eq!(permits.len(), *wanted, "{count} places, client {idx}");
                open.extend(permits);
            }
            assert_eq!(places.taken(), count);
            drop(open);
            assert_eq!(places.taken(), 0);
            assert!(places.state.lock().held.is_empty());
        }
    }

    #[tokio::test]
    async fn the_client_with_the_fewest_places_is_next() {
        let places = FairPlaces::new(8);
        let [many, few, new] = [(); 3].map(|()| ClientId::unique());
        let mut open = take_all(&places, many);
        assert_eq!(open.len(), 6);
        let few_permits = take_all(&places, few);
        assert_eq!(few_permits.len(), 1);
        let other = try_take(&places, ClientId::unique()).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for client in [many, many, few, new, new] {
            let (places, order) = (places.clone(), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let permit = places.take(client).await.unwrap();
                order.lock().push(client);
                permit
            }));
            tokio::task::yield_now().await;
        }
        assert!(order.lock().is_empty());
        // A free place is for `new`, which has none; the others leave the last place free.
        drop(other);
        tokio::task::yield_now().await;
        assert_eq!(*order.lock(), [new]);
        for _ in 0..3 {
            open.pop();
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(*order.lock(), [new, few, new]);
        open.clear();
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(order.lock().len(), 5);
    }

    /// A time limit that ends a wait leaves neither an entry nor a lost place.
    #[test]
    fn waiters_that_leave_are_forgotten() {
        let places = FairPlaces::new(1);
        let [first, second] = [(); 2].map(|()| ClientId::unique());
        let permit = try_take(&places, first).unwrap();
        assert!(try_take(&places, second).is_none());
        assert!(places.state.lock().waiting.is_empty());
        let mut served = Box::pin(places.take(second));
        let mut context = Context::from_waker(Waker::noop());
        assert!(served.as_mut().poll(&mut context).is_pending());
        drop(permit);
        assert_eq!(places.taken(), 1);
        // It has its place, and leaves before it looks.
        drop(served);
        assert_eq!(places.taken(), 0);
        assert!(try_take(&places, first).is_some());
    }
}
