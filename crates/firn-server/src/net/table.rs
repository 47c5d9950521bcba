//! The open connections: their limits, and the choice of the one that is evicted for a new one.
//!
//! An accepted connection is *pending*. Its first request *admits* it; admitted connections are
//! limited, in total and for each client. Requests for health and metrics need no admission, so
//! they are answered while the limit is reached. The oldest connection between two requests is
//! evicted for a new one, never one within a request. Pending connections are limited in total; the
//! client with the most of them loses its own, so that no client evicts those of all others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::limits::ConnectionLimits;
use crate::access::network;
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;

/// A connection is not evicted before this time, and not before its task has found it silent after
/// it: its request may have arrived already, and the task waits for a thread.
pub(super) const YOUNG_FOR: Duration = Duration::from_millis(25);
/// A request waits this long for admission.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);

/// The open connections of a service.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limits: ConnectionLimits,
    started: Instant,
    open: Mutex<OpenConnections>,
    /// A connection was closed, or may be evicted now.
    changed: Notify,
    /// Someone waits for `changed`.
    is_contended: AtomicU64,
    is_closed: AtomicBool,
    pub(super) closings: Closings,
}

/// Why connections were closed and requests refused.
#[derive(Debug, Default)]
pub(super) struct Closings {
    /// Between two requests for too long.
    pub(super) idle: Counter,
    /// Closed for another connection.
    pub(super) replaced: Counter,
    pub(super) slow_request: Counter,
    pub(super) slow_response: Counter,
    pub(super) malformed: Counter,
    pub(super) over_limit: Counter,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_id: u64,
    by_id: HashMap<u64, Arc<ConnectionEntry>>,
    admitted_by_client: HashMap<IpAddr, usize>,
    admitted_count: usize,
    pending_count: usize,
    waiting_count: usize,
    /// Evicted, and not closed yet.
    closing_count: usize,
}

/// The pending connections of one client.
#[derive(Debug, Default)]
struct PendingOfClient {
    count: usize,
    /// The phase, the time and the number of the one that is evicted first.
    first: Option<(u64, u64, u64)>,
}

/// The shared state of a connection.
#[derive(Debug)]
struct ConnectionEntry {
    client: IpAddr,
    /// Milliseconds since the start of the service, times 4, plus a [`Phase`].
    state: AtomicU64,
    /// Its task has run [`YOUNG_FOR`] after the connection was accepted.
    is_grown: AtomicBool,
    is_admitted: AtomicBool,
    evicted: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two requests, or before the first.
    Idle = 0,
    /// In the head of a request.
    Head = 1,
    /// In a request or a response.
    Busy = 2,
    /// Evicted for another connection.
    Closed = 3,
}

/// A connection's own access to its entry, which is removed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    table: Arc<ConnectionTable>,
    entry: Arc<ConnectionEntry>,
    id: u64,
}

#[derive(Clone, Copy, Debug)]
struct ConnectionCounts {
    admitted: usize,
    pending: usize,
}

impl ConnectionTable {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<ConnectionTable> {
        Arc::new(ConnectionTable {
            limits,
            started: Instant::now(),
            open: Mutex::default(),
            changed: Notify::new(),
            is_contended: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            closings: Closings::default(),
        })
    }

    /// Adds a pending connection of `client`. At the limit, evicts the oldest one without a request
    /// of the client that has most pending connections, or waits while all of them have requests.
    /// Waits for the descriptors of evicted ones, too.
    pub(crate) async fn enter(self: &Arc<ConnectionTable>, client: SocketAddr) -> ConnectionHandle {
        let client = network(client.ip());
        loop {
            let entering = self.when_changed(|| self.try_enter(client));
            // Young connections become old without a change.
            if let Ok(entered) = tokio::time::timeout(YOUNG_FOR, entering).await {
                return entered;
            }
        }
    }

    fn try_enter(self: &Arc<ConnectionTable>, client: IpAddr) -> Option<ConnectionHandle> {
        let mut open = self.open.lock();
        if open.closing_count >= self.limits.closing_max() {
            return None;
        }
        while open.pending_count >= self.limits.pending_max {
            let most = open.client_of_most_pending(client)?;
            let now_ms = self.started.elapsed().as_millis() as u64;
            let is_young = |other: &ConnectionEntry| {
                let since_ms = other.state.load(Ordering::SeqCst) >> 2;
                let is_new = now_ms.saturating_sub(since_ms) < YOUNG_FOR.as_millis() as u64;
                is_new || !other.is_grown.load(Ordering::SeqCst)
            };
            let may_close = |other: &ConnectionEntry| {
                !other.is_admitted() && other.client == most && !is_young(other)
            };
            // Fails if the request of its last connection without one has come meanwhile, too.
            let is_closed = self.close_oldest(&mut open, may_close);
            let may_be_young =
                |other: &Arc<ConnectionEntry>| other.client == most && is_young(other);
            if !is_closed && open.by_id.values().any(may_be_young) {
                return None;
            }
        }
        let entry = Arc::new(ConnectionEntry {
            client,
            state: AtomicU64::new(self.state(Phase::Idle)),
            is_grown: AtomicBool::new(false),
            is_admitted: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        let id = open.next_id;
        open.next_id += 1;
        open.pending_count += 1;
        open.by_id.insert(id, Arc::clone(&entry));
        Some(ConnectionHandle { table: Arc::clone(self), entry, id })
    }

    /// Ends all waits for admission.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    fn counts(&self) -> ConnectionCounts {
        let open = self.open.lock();
        ConnectionCounts { admitted: open.admitted_count, pending: open.pending_count }
    }

    /// Writes the numbers of connections.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        let counts = self.counts();
        let name = "firn_http_connections";
        text.family(
            name,
            Kind::Gauge,
            "Open connections: admitted with a request, or pending without one.",
        );
        text.sample(name, &[("state", "admitted")], counts.admitted as f64);
        text.sample(name, &[("state", "pending")], counts.pending as f64);
        let name = "firn_http_connections_closed_total";
        text.family(name, Kind::Counter, "Connections that the server closed, by reason.");
        for (reason, count) in [
            ("idle", &self.closings.idle),
            ("replaced", &self.closings.replaced),
            ("slow_request", &self.closings.slow_request),
            ("slow_response", &self.closings.slow_response),
        ] {
            text.sample(name, &[("reason", reason)], count.get() as f64);
        }
        let name = "firn_http_requests_refused_total";
        text.family(name, Kind::Counter, "Requests that no handler has seen, by reason.");
        for (reason, count) in
            [("malformed", &self.closings.malformed), ("connections", &self.closings.over_limit)]
        {
            text.sample(name, &[("reason", reason)], count.get() as f64);
        }
    }

    /// Calls `attempt` until it succeeds: now, and after every change.
    async fn when_changed<T>(&self, attempt: impl Fn() -> Option<T>) -> T {
        if let Some(done) = attempt() {
            return done;
        }
        let _contended = Raised::new(&self.is_contended);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(done) = attempt() {
                return done;
            }
            changed.await;
        }
    }

    fn has_changed(&self) {
        if self.is_contended.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Evicts the oldest connection between two requests. False if there is none.
    pub(super) fn evict_one(&self) -> bool {
        self.close_oldest(&mut self.open.lock(), |_| true)
    }

    /// Closes the oldest connection among those that `may_close` selects: one between requests, or
    /// else one in a head. Returns whether there was one. Costs a pass over all connections.
    fn close_oldest(
        &self,
        open: &mut OpenConnections,
        may_close: impl Fn(&ConnectionEntry) -> bool,
    ) -> bool {
        loop {
            let candidates = open.by_id.iter().filter(|(_, other)| may_close(other));
            let states = candidates.map(|(id, other)| (other.state.load(Ordering::SeqCst), *id));
            let waiting = states.filter(|(state, _)| state & 3 <= Phase::Head as u64);
            let Some((state, id)) = waiting.min_by_key(|(state, id)| (state & 3, state >> 2, *id))
            else {
                return false;
            };
            let Some(other) = open.by_id.get(&id).cloned() else { return false };
            // Fails if a request has come meanwhile.
            if other.change(state, Phase::Closed) {
                open.remove(id, &other);
                open.closing_count += 1;
                other.evicted.notify_one();
                self.closings.replaced.add(1);
                return true;
            }
        }
    }

    fn state(&self, phase: Phase) -> u64 {
        let ms = self.started.elapsed().as_millis() as u64;
        ms << 2 | phase as u64
    }

    fn per_client_max(&self, client: IpAddr) -> usize {
        match client.is_loopback() {
            true => self.limits.per_local_client_max,
            false => self.limits.per_client_max,
        }
    }

    /// Admits `entry` if the limits allow it.
    fn try_admit_entry(&self, entry: &ConnectionEntry) -> bool {
        let mut open = self.open.lock();
        // An evicted connection has left `open`. Evictions need its lock.
        if entry.is_closed() {
            return false;
        }
        let client = entry.client;
        let of_client = open.admitted_by_client.get(&client).copied().unwrap_or(0);
        if of_client >= self.per_client_max(client)
            && !self.close_oldest(&mut open, |other| other.is_admitted() && other.client == client)
        {
            return false;
        }
        if open.admitted_count >= self.limits.connections_max
            && !self.close_oldest(&mut open, ConnectionEntry::is_admitted)
        {
            return false;
        }
        entry.is_admitted.store(true, Ordering::SeqCst);
        open.pending_count -= 1;
        open.admitted_count += 1;
        *open.admitted_by_client.entry(client).or_default() += 1;
        drop(open);
        // There is a place for a pending connection.
        self.has_changed();
        true
    }
}

impl OpenConnections {
    /// The client with the most pending connections, counting the one that `entering` opens. It has
    /// one without a request: the oldest of all such clients if several have as many. `None` if all
    /// pending connections have requests. Costs a pass over all connections.
    fn client_of_most_pending(&self, entering: IpAddr) -> Option<IpAddr> {
        let mut clients: HashMap<IpAddr, PendingOfClient> = HashMap::new();
        clients.entry(entering).or_default().count = 1;
        for (id, entry) in self.by_id.iter().filter(|(_, entry)| !entry.is_admitted()) {
            let of_client = clients.entry(entry.client).or_default();
            of_client.count += 1;
            let state = entry.state.load(Ordering::SeqCst);
            if state & 3 <= Phase::Head as u64 {
                let rank = (state & 3, state >> 2, *id);
                of_client.first = Some(of_client.first.map_or(rank, |first| first.min(rank)));
            }
        }
        let evictable = clients.iter().filter_map(|(client, of_client)| {
            Some((Reverse(of_client.count), of_client.first?, *client))
        });
        evictable.min().map(|(_, _, client)| client)
    }

    /// False if the connection was evicted.
    fn remove(&mut self, id: u64, entry: &ConnectionEntry) -> bool {
        if self.by_id.remove(&id).is_none() {
            return false;
        }
        if !entry.is_admitted() {
            self.pending_count -= 1;
            return true;
        }
        self.admitted_count -= 1;
        if let Some(count) = self.admitted_by_client.get_mut(&entry.client) {
            *count -= 1;
            if *count == 0 {
                self.admitted_by_client.remove(&entry.client);
            }
        }
        true
    }
}

impl ConnectionEntry {
    fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & 3 == Phase::Closed as u64
    }

    fn change(&self, from: u64, to: Phase) -> bool {
        let target = from & !3 | to as u64;
        self.state.compare_exchange(from, target, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl ConnectionHandle {
    /// The task of the connection has looked for a request, [`YOUNG_FOR`] after its start.
    pub(super) fn set_grown(&self) {
        self.entry.is_grown.store(true, Ordering::SeqCst);
    }

    /// The connection waits for its next request; it may be evicted.
    pub(crate) fn set_idle(&self) {
        if self.set(Phase::Idle) {
            self.table.has_changed();
        }
    }

    /// A request has begun. False if the connection was evicted.
    pub(crate) fn set_head(&self) -> bool {
        self.set(Phase::Head)
    }

    /// A request has arrived. False if the connection was evicted.
    pub(crate) fn set_busy(&self) -> bool {
        self.set(Phase::Busy)
    }

    /// Whether the connection was evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.entry.is_closed()
    }

    /// The connection may be evicted, as one within a head: its request needs no admission, or its
    /// remaining bytes are discarded.
    pub(crate) fn set_evictable(&self) {
        if self.set(Phase::Head) {
            self.table.has_changed();
        }
    }

    fn set(&self, phase: Phase) -> bool {
        let before = self.entry.state.load(Ordering::SeqCst);
        if before & 3 == phase as u64 {
            return true;
        }
        let target = self.table.state(phase);
        // Only this connection changes its phase, unless it is evicted.
        before & 3 != Phase::Closed as u64
            && self
                .entry
                .state
                .compare_exchange(before, target, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    pub(super) fn closings(&self) -> &Closings {
        &self.table.closings
    }

    /// Waits until the connection is evicted: it then closes without another byte.
    pub(crate) async fn evicted(&self) {
        self.entry.evicted.notified().await;
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.entry.is_admitted()
    }

    /// Admits a connection within a request if the limits allow it now.
    pub(crate) fn try_admit(&self) -> bool {
        self.is_admitted() || self.table.try_admit_entry(&self.entry)
    }

    /// Admits a connection within a request, once the limits allow it.
    ///
    /// # Errors
    /// The reason, as one sentence.
    pub(crate) async fn admit(&self) -> Result<(), String> {
        let table = &self.table;
        if self.try_admit() {
            return Ok(());
        }
        let refused = || {
            table.closings.over_limit.add(1);
            Err(self.why_refused())
        };
        let Some(_waiting) = Waiting::new(table) else { return refused() };
        let seated = table.when_changed(|| {
            let is_closed = table.is_closed.load(Ordering::SeqCst);
            (is_closed || table.try_admit_entry(&self.entry)).then_some(!is_closed)
        });
        match tokio::time::timeout(ADMISSION_TIMEOUT, seated).await {
            Ok(true) => Ok(()),
            _ => refused(),
        }
    }

    fn why_refused(&self) -> String {
        let (table, client) = (&self.table, self.entry.client);
        if table.is_closed.load(Ordering::SeqCst) {
            return "the server is stopping".to_owned();
        }
        let of_client = table.open.lock().admitted_by_client.get(&client).copied().unwrap_or(0);
        let per_client_max = table.per_client_max(client);
        if of_client >= per_client_max && per_client_max < table.limits.connections_max {
            return format!(
                "{client} has {of_client} connections with requests, which is its limit \
                 (--connections-per-client-max); retry later"
            );
        }
        let connections_max = table.limits.connections_max;
        format!("all {connections_max} connections (--connections-max) have requests; retry later")
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        let mut open = self.table.open.lock();
        if !open.remove(self.id, &self.entry) {
            open.closing_count -= 1;
        }
        drop(open);
        self.table.has_changed();
    }
}

/// One of the requests that wait for admission.
struct Waiting<'a>(&'a ConnectionTable);

impl<'a> Waiting<'a> {
    fn new(table: &'a ConnectionTable) -> Option<Waiting<'a>> {
        let mut open = table.open.lock();
        if open.waiting_count >= table.limits.waiting_max() {
            return None;
        }
        open.waiting_count += 1;
        Some(Waiting(table))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.open.lock().waiting_count -= 1;
    }
}

/// A count that is one higher while this exists.
struct Raised<'a>(&'a AtomicU64);

impl<'a> Raised<'a> {
    fn new(count: &'a AtomicU64) -> Raised<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Raised(count)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::limits::PENDING_MAX;

    fn table_of(connections_max: usize, per_client_max: usize) -> Arc<ConnectionTable> {
        ConnectionTable::new(ConnectionLimits {
            connections_max,
            pending_max: PENDING_MAX,
            per_client_max,
            per_local_client_max: connections_max,
        })
    }

    fn client(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 1))
    }

    /// A connection whose task runs.
    async fn entered(table: &Arc<ConnectionTable>, client: SocketAddr) -> ConnectionHandle {
        let handle = table.enter(client).await;
        handle.set_grown();
        handle
    }

    async fn seated(table: &Arc<ConnectionTable>, number: u8) -> ConnectionHandle {
        let handle = entered(table, client(number)).await;
        assert!(handle.set_head() && handle.set_busy());
        handle.admit().await.unwrap();
        handle
    }

    fn is_open(handle: &ConnectionHandle) -> bool {
        !handle.is_evicted()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_idle_connection_is_closed_and_never_one_within_a_request() {
        let table = table_of(3, 3);
        let [first, second, third] =
            [seated(&table, 1).await, seated(&table, 2).await, seated(&table, 3).await];
        tokio::time::advance(Duration::from_secs(1)).await;
        second.set_idle();
        tokio::time::advance(Duration::from_secs(1)).await;
        third.set_idle();
        let fourth = seated(&table, 4).await;
        assert!(!is_open(&second), "the oldest");
        second.evicted().await;
        assert!(!second.set_busy(), "a request that comes now is too late");
        assert!(is_open(&first) && is_open(&third));
        drop(second);
        assert_eq!(table.counts().admitted, 3);
        let fifth = seated(&table, 5).await;
        assert!(!is_open(&third));
        drop(third);

        // All admitted connections have requests: the sixth waits until one is between requests.
        let sixth = entered(&table, client(6)).await;
        assert!(sixth.set_busy());
        let (took, ()) = tokio::join!(sixth.admit(), async {
            tokio::task::yield_now().await;
            assert!(!sixth.is_admitted());
            fourth.set_idle();
        });
        took.unwrap();
        assert!(!is_open(&fourth) && is_open(&first) && is_open(&fifth));
    }

    /// It was counted as admitted for ever, and left a place of those before admission twice: in
    /// the end no connection was accepted.
    #[tokio::test(start_paused = true)]
    async fn an_evicted_connection_is_not_admitted() {
        let table = table_of(10, 10);
        let mut pending = Vec::new();
        for _ in 0..PENDING_MAX {
            pending.push(entered(&table, client(1)).await);
        }
        assert!(pending.iter().all(ConnectionHandle::set_head));
        let next = entered(&table, client(2)).await;
        let evicted = pending.iter().find(|handle| handle.is_evicted()).unwrap();
        assert!(!evicted.try_admit());
        drop((pending, next));
        let counts = table.counts();
        assert_eq!((counts.admitted, counts.pending), (0, 0));
    }

    /// Before, a connection was reset whose request had arrived and whose task waited for a thread.
    #[tokio::test(start_paused = true)]
    async fn a_young_connection_is_not_evicted() {
        let table = table_of(10, 10);
        let mut pending = Vec::new();
        for _ in 0..PENDING_MAX {
            pending.push(entered(&table, client(1)).await);
        }
        let began = Instant::now();
        let (_next, ()) = tokio::join!(entered(&table, client(1)), async {
            tokio::time::sleep(YOUNG_FOR / 2).await;
            assert!(pending.iter().all(is_open));
            let first = pending.first().unwrap();
            assert!(first.set_head() && first.set_busy());
            first.admit().await.unwrap();
        });
        assert!(began.elapsed() < YOUNG_FOR && pending.iter().all(is_open));
        let _other = entered(&table, client(1)).await;
        assert!(began.elapsed() >= YOUNG_FOR);
        assert_eq!(pending.iter().filter(|handle| !is_open(handle)).count(), 1);
    }

    /// Before, connections were closed without a response while many heads of 60 kB had arrived and
    /// their tasks waited for a thread for over 25 ms.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_evicted_before_its_task_has_run() {
        let table = table_of(10, 10);
        let mut pending = Vec::new();
        for _ in 0..PENDING_MAX {
            pending.push(table.enter(client(1)).await);
        }
        let enter = || tokio::time::timeout(40 * YOUNG_FOR, table.enter(client(1)));
        assert!(enter().await.is_err() && pending.iter().all(is_open));
        let other = tokio::time::timeout(YOUNG_FOR, table.enter(client(2)));
        assert!(other.await.is_err() && pending.iter().all(is_open));
        pending[7].set_grown();
        let _next = enter().await.unwrap();
        assert!(pending.iter().enumerate().all(|(idx, one)| is_open(one) == (idx != 7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_admission_is_refused_in_the_end() {
        let table = table_of(1, 1);
        let first = seated(&table, 1).await;
        let second = entered(&table, client(2)).await;
        assert!(second.set_busy());
        let why = second.admit().await.unwrap_err();
        assert!(why.contains("--connections-max"), "{why}");
        assert_eq!(table.closings.over_limit.get(), 1);
        let (refused, ()) = tokio::join!(second.admit(), async { table.close() });
        assert_eq!(refused.unwrap_err(), "the server is stopping");
        drop(first);
        second.admit().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_a_limit_of_its_own_and_loses_its_own_idle_connection() {
        let table = table_of(10, 2);
        let [first, _second] = [seated(&table, 1).await, seated(&table, 1).await];
        let other = seated(&table, 2).await;
        other.set_idle();
        tokio::time::advance(Duration::from_secs(1)).await;
        first.set_idle();
        let _third = seated(&table, 1).await;
        assert!(!is_open(&first) && is_open(&other));
        let fourth = entered(&table, client(1)).await;
        assert!(fourth.set_busy());
        let why = fourth.admit().await.unwrap_err();
        assert!(why.contains("10.0.0.1") && why.contains("--connections-per-client-max"), "{why}");
        // Addresses of one IPv6 network are one client, loopback has a limit of its own.
        let v6 = |text: &str| network(text.parse().unwrap());
        assert_eq!(v6("2001:db8:1:2:3::4"), v6("2001:db8:1:2:5::"));
        assert_ne!(v6("2001:db8:1:2::"), v6("2001:db8:1:3::"));
        assert_eq!(v6("::ffff:10.0.0.1"), client(1).ip());
        assert!(v6("::1").is_loopback() && v6("::ffff:127.0.0.1").is_loopback());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_evict_each_other() {
        let table = table_of(1, 1);
        let busy = seated(&table, 1).await;
        let mut silent = Vec::new();
        for _ in 0..PENDING_MAX {
            silent.push(entered(&table, client(2)).await);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let asking = entered(&table, client(3)).await;
        assert!(!is_open(&silent[0]), "the oldest");
        assert!(asking.set_head() && asking.set_busy());
        for silent in &mut silent {
            *silent = entered(&table, client(2)).await;
        }
        assert!(is_open(&asking) && is_open(&busy));
        let counts = table.counts();
        assert_eq!((counts.admitted, counts.pending), (1, PENDING_MAX));
        drop((silent, asking, busy));
        let counts = table.counts();
        assert_eq!((counts.admitted, counts.pending), (0, 0));
        assert!(table.open.lock().admitted_by_client.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_floods_evicts_only_its_own_pending_connections() {
        let table = table_of(10, 10);
        // The oldest of all, one of them within a head.
        let others = [entered(&table, client(2)).await, entered(&table, client(3)).await];
        assert!(others[0].set_head());
        tokio::time::advance(Duration::from_millis(1)).await;
        let mut flood = Vec::new();
        for _ in 0..2 * PENDING_MAX {
            flood.push(entered(&table, client(1)).await);
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(flood.last().is_some_and(is_open), "the oldest of the flood is evicted");
            flood.retain(is_open);
        }
        assert!(others.iter().all(is_open));
        assert_eq!(flood.len(), PENDING_MAX - others.len());
        assert_eq!(table.counts().pending, PENDING_MAX);
        let newcomer = entered(&table, client(4)).await;
        assert!(others.iter().all(is_open) && is_open(&newcomer));
        // Addresses of one IPv6 network are one client.
        let table = table_of(10, 10);
        let quiet = entered(&table, client(2)).await;
        for host in 0..2 * PENDING_MAX {
            let address = format!("[2001:db8:1:2::{host:x}]:1").parse().unwrap();
            flood.push(entered(&table, address).await);
            flood.retain(is_open);
        }
        assert!(is_open(&quiet));
    }

    /// At a limit of 200 files a flood took all of them: evicted connections kept their descriptors
    /// until their tasks had run, and further ones were accepted meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_flood_waits_for_the_descriptors_of_evicted_connections() {
        let table = table_of(10, 10);
        let mut flood = Vec::new();
        let enter = || tokio::time::timeout(2 * YOUNG_FOR, entered(&table, client(1)));
        while let Ok(handle) = enter().await {
            flood.push(handle);
        }
        let closing_max = table.limits.closing_max();
        assert_eq!((flood.len(), closing_max), (PENDING_MAX + closing_max, 32));
        let evicted = flood.iter().position(|handle| !is_open(handle)).unwrap();
        let (entered, ()) = tokio::join!(enter(), async { drop(flood.remove(evicted)) });
        flood.push(entered.unwrap());
        assert!(enter().await.is_err());
        drop(flood);
        assert_eq!(table.open.lock().closing_count, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_whose_pending_connections_have_requests_blocks_no_other() {
        let table = table_of(10, 10);
        let mut busy = Vec::new();
        for _ in 0..PENDING_MAX - 2 {
            busy.push(entered(&table, client(1)).await);
        }
        assert!(busy.iter().all(ConnectionHandle::set_busy));
        let silent = [entered(&table, client(2)).await, entered(&table, client(3)).await];
        let next = entered(&table, client(4)).await;
        assert!(!is_open(&silent[0]) && is_open(&silent[1]), "the oldest of as many");
        // The entering connection counts: its client has two.
        let _second = entered(&table, client(4)).await;
        assert!(!is_open(&next) && is_open(&silent[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn when_too_many_wait_the_next_is_refused_at_once() {
        let table = table_of(1, 1);
        let _busy = seated(&table, 1).await;
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..table.limits.waiting_max() {
            let handle = entered(&table, client(number as u8)).await;
            assert!(handle.set_busy());
            waiting.spawn(async move { handle.admit().await.is_ok() });
        }
        for _ in 0..table.limits.waiting_max() {
            tokio::task::yield_now().await;
        }
        let next = entered(&table, client(200)).await;
        assert!(next.set_busy());
        let refused = tokio::time::timeout(Duration::from_millis(1), next.admit());
        assert!(refused.await.unwrap().is_err());
        while let Some(seated) = waiting.join_next().await {
            assert!(!seated.unwrap());
        }
    }
}
