//! The connection of one client: reads requests and writes responses in their order.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, Method, StatusCode};
use firn_cache::{CachedRange, DeclineReason, Lookup};
use firn_model::{CommitSeq, Error, ErrorKind, Pool, Reservation, TimeRange};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::protocol::{Command, Format, LINE_BYTES_MAX, RangeKey, Refused, parse_line};
use super::{ServerState, points};
use crate::access::account::Roles;
use crate::access::login::{Credentials, LoginRefusal, TokenDigest};
use crate::net::{
    Accepted, ConnectionHandle, HEAD_BYTES_MAX, HeadRefusal, SHORT_TRANSFER_LIMITS, Stopping,
    TRANSFER_LIMITS, TransferClock, TransferLimits, Transport, after, parse_head, stopped,
    too_large,
};

/// From the first byte of a line to its last.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that has to send a token first does so within this time.
const AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// A request waits for the memory of its value this long.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two attempts to reserve memory, at most.
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_millis(200);
/// While other requests wait for memory, one whose client makes no progress releases its own after
/// this time.
const WAIT_WITHOUT_ROOM: Duration = Duration::from_secs(2);
/// Memory for the first bytes of a value; it grows as they arrive.
const FIRST_BYTES: usize = 16 << 10;
/// Gets of one client that run in parallel.
const GETS_MAX: usize = 16;
/// Bytes per read.
const READ_BYTES: usize = 16 << 10;
/// Requests up to this size have memory of their own: those behind clients that do not read long
/// responses would wait for seconds.
const SHORT_KIB: u32 = 256;
pub(super) const SHORT_ROOM_KIB: u32 = 16 * SHORT_KIB;
/// Memory of a value in flight, in multiples of its length: its text and its points, or its blocks
/// and its text.
pub(super) const VALUE_WEIGHT: u64 = 5;
/// Values in memory up to this size are returned by the thread that read the request: waking
/// another one, twice, takes longer than the response.
const AT_ONCE_BYTES_MAX: u64 = 64 << 10;
/// Memory of such a value and its response: the estimate of the first is that of values alone.
const AT_ONCE_HELD_BYTES_MAX: u64 = 1 << 20;
/// Lookups of more separate parts run on a blocking thread: a client can set any number of short
/// ranges, and the thread of the connections serves all clients.
const AT_ONCE_PARTS_MAX: usize = 256;
const METRICS_PATH: &str = "/-/cache/metrics";

pub(super) struct Connection<'a> {
    shared: &'a Arc<ServerState>,
    stream: Transport,
    handle: Arc<ConnectionHandle>,
    stop: Stopping,
    accepted: Instant,
    /// The clock of the value that is received.
    read_clock: TransferClock,
    /// Received bytes; the unprocessed ones start at `start`.
    buffer: Vec<u8>,
    start: usize,
    client: SocketAddr,
    /// The address of the listener.
    listen: IpAddr,
    /// The token of the user that is logged in.
    token: Option<TokenDigest>,
    /// Under `version` of the users; all without users, none before the login.
    roles: Option<Roles>,
    version: u64,
}

/// The connection ends: the client disconnected, was idle for too long or quit, or the start of its
/// next request is unknown.
struct End;

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        accepted: Accepted,
        shared: &'a Arc<ServerState>,
        stop: Stopping,
    ) -> Connection<'a> {
        let Accepted { transport: stream, client, listen, handle } = accepted;
        Connection {
            shared,
            stream,
            client,
            listen: listen.ip(),
            handle,
            stop,
            accepted: Instant::now(),
            read_clock: TransferClock::default(),
            buffer: Vec::new(),
            start: 0,
            token: None,
            // Before the roles, which may be newer.
            version: shared.gate.version(),
            roles: shared.gate.roles_of(None),
        }
    }

    /// The roles of the client now; `None` if it must log in first, such as when its user was
    /// removed.
    fn roles(&mut self) -> Option<Roles> {
        let version = self.shared.gate.version();
        if version != self.version {
            self.roles = self.shared.gate.roles_of(self.token.as_ref());
            self.version = version;
        }
        self.roles
    }

    /// Serves requests until the client disconnects, or until the server stops and running requests
    /// are complete. Requests that have arrived behind them are not begun.
    pub(super) async fn run(mut self) {
        let mut stop = self.stop.clone();
        while !self.is_stopping() {
            if self.start == self.buffer.len() {
                self.handle.set_idle();
                let is_stranger = self.roles().is_none();
                let latest = self.accepted.checked_add(AUTH_TIMEOUT).filter(|_| is_stranger);
                let idle = self.shared.config.idle.duration();
                let idle = latest.map_or(idle, |at| at.saturating_duration_since(Instant::now()));
                let begun = tokio::select! {
                    begun = timeout(idle, self.read_more()) => begun,
                    () = stopped(&mut stop) => break,
                };
                if !matches!(begun, Ok(Ok(()))) || !self.handle.set_head() {
                    return;
                }
            }
            self.read_clock = TransferClock::default();
            if self.answer_next().await.is_err() {
                break;
            }
        }
        self.close().await;
    }

    /// The last response must arrive: a connection closed with unread bytes is reset.
    async fn close(&mut self) {
        self.handle.set_evictable();
        let mut rest = [0; READ_BYTES];
        let drained = async {
            // TLS sends its end first, for which a client that does not read has no room.
            let _ = self.stream.shutdown().await;
            while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
        };
        let _ = timeout(Duration::from_secs(1), drained).await;
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    async fn answer_next(&mut self) -> Result<(), End> {
        let Some(line) = self.raw_line().await? else {
            let problem = format!("a line has more than {LINE_BYTES_MAX} bytes");
            return self.refuse(Refused { problem, skip_bytes: None }).await;
        };
        let command = match parse_line(without_end(&line), self.shared.value_bytes_max) {
            Ok(command) => command,
            Err(refused) => return self.refuse(refused).await,
        };
        let is_open = matches!(
            command,
            Command::Auth(_) | Command::Quit | Command::Http | Command::ForeignHttp
        );
        let roles = match self.roles() {
            None if !is_open => {
                let problem = "not authenticated; send first: auth TOKEN".to_owned();
                return self.refuse(Refused { problem, skip_bytes: None }).await;
            }
            roles => roles.unwrap_or_default(),
        };
        let needs = match command {
            Command::Get(..) if !roles.read => Some(("read", None)),
            Command::Set(_, _, bytes) if !roles.write => Some(("write", Some(bytes))),
            Command::Delete(_) if !roles.write => Some(("write", Some(0))),
            _ => None,
        };
        if let Some((role, skip_bytes)) = needs {
            let problem = format!("this command needs role {role}");
            return self.refuse(Refused { problem, skip_bytes }).await;
        }
        // Until then, and within requests that need no admission, it may be evicted: strangers must
        // not keep others from being accepted.
        if !is_open {
            if !self.handle.set_busy() {
                return Err(End);
            }
            if let Err(why) = self.handle.admit().await {
                self.respond(&format!("SERVER_ERROR {why}\r\n")).await?;
                return Err(End);
            }
        }
        match command {
            Command::Auth(token) => self.authenticate(&token).await,
            Command::Set(place, format, bytes) => self.set(place, format, bytes).await,
            Command::Get(place, format, least) => self.get((place, format, least)).await,
            Command::Delete(place) => self.delete(place).await,
            Command::Version => {
                let version = concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n");
                self.write(version.as_bytes()).await
            }
            Command::Quit => Err(End),
            Command::Http => self.http(line).await,
            Command::ForeignHttp => self.refuse_http().await,
        }
    }

    /// Reports an error, and skips the value of a refused set.
    async fn refuse(&mut self, refused: Refused) -> Result<(), End> {
        self.shared.numbers.client_errors.add(1);
        self.write(format!("CLIENT_ERROR {}\r\n", refused.problem).as_bytes()).await?;
        match refused.skip_bytes {
            Some(0) => Ok(()),
            Some(bytes) => self.skip(bytes).await,
            None => Err(End),
        }
    }

    async fn authenticate(&mut self, token: &[u8]) -> Result<(), End> {
        // Before the roles, which may be newer.
        let version = self.shared.gate.version();
        let roles = match self.log_in(&Credentials::Token(token.to_vec())).await {
            Ok(roles) => roles,
            Err(refusal) => {
                let problem = match refusal {
                    LoginRefusal::Throttled(_) => "too many wrong tokens; retry later",
                    LoginRefusal::Later(_) => "too many requests; retry later",
                    LoginRefusal::Missing | LoginRefusal::Wrong => "wrong token",
                };
                let problem = problem.to_owned();
                return self.refuse(Refused { problem, skip_bytes: None }).await;
            }
        };
        (self.token, self.roles) = (Some(TokenDigest::of(token)), Some(roles));
        self.version = version;
        // At the limit, its first command tries again.
        let _ = self.handle.try_admit();
        self.write(b"OK\r\n").await
    }

    /// The roles of `credentials`.
    async fn log_in(&self, credentials: &Credentials) -> Result<Roles, LoginRefusal> {
        let gate = &self.shared.gate;
        let user = gate.log_in(&gate.policy(), credentials, self.client.ip()).await;
        user.map(|user| user.roles()).inspect_err(|&refusal| {
            gate.audit_refusal(refusal, credentials.user_name(), Some(self.client), None);
        })
    }

    async fn set(&mut self, place: RangeKey, format: Format, bytes: usize) -> Result<(), End> {
        self.shared.numbers.sets.add(1);
        let Some((value, arrived)) = self.value(bytes).await? else {
            // The rest of the value follows, and its sender may send nothing.
            return self.no_room().await;
        };
        let end = self.line().await?;
        if end.is_none_or(|end| !end.is_empty()) {
            let problem =
                format!("expected the end of the line after {bytes} bytes; is the value longer?");
            return self.refuse(Refused { problem, skip_bytes: None }).await;
        }
        // The value has its own memory already.
        let decoded = (bytes as u64).saturating_mul(VALUE_WEIGHT.saturating_sub(1));
        let Some(room) = self.room(decoded).await else { return self.no_room().await };
        // All of the value was read: a refusal need not close the connection.
        let Some(held) = self.flight_memory(decoded).await else {
            return self.respond(NO_MEMORY).await;
        };
        let memory = (arrived, room, held);
        let cache = Arc::clone(&self.shared.cache);
        let answer = blocking(move || {
            // Released with the value, even if the connection ends before.
            let (_memory, value) = (memory, value);
            let points = match points::decode(format, place.range, &value) {
                Ok(points) => points,
                Err(why) => return format!("CLIENT_ERROR {why}\r\n"),
            };
            let field = format.store_field(place.field);
            match cache.set(&place.key, field, place.range, &points) {
                Ok(kept) if kept.is_empty() => {
                    "NOT_STORED no room now; try again when the disk has caught up\r\n".to_owned()
                }
                Ok(kept) => format!("STORED {} {}\r\n", kept.start, kept.end),
                Err(error) => format!("SERVER_ERROR not stored: {error}\r\n"),
            }
        });
        let answer = answer.await;
        self.respond(&answer).await
    }

    /// Serves a get and the pipelined ones behind it in parallel.
    async fn get(&mut self, first: Get) -> Result<(), End> {
        let mut weight = self.weight(&first);
        let mut batch = vec![first];
        // At most half of the memory, so that one client's requests do not block the others.
        let weight_max = u64::from(self.shared.room_kib) << 9;
        while batch.len() < GETS_MAX {
            let Some(line) = self.line_here() else { break };
            let Ok(Command::Get(place, format, least)) =
                parse_line(without_end(line), self.shared.value_bytes_max)
            else {
                break;
            };
            let more = (place, format, least);
            let with_more = weight.saturating_add(self.weight(&more));
            if with_more > weight_max {
                break;
            }
            self.skip_line_here();
            weight = with_more;
            batch.push(more);
        }
        self.shared.numbers.gets.add(batch.len() as u64);
        let Some(room) = self.room(weight).await else { return self.no_room().await };
        // Lookups of a client that disconnects run to their end, and keep the memory until then.
        let room = Arc::new(room);
        let mut answers: VecDeque<(Arc<Get>, Answer)> = batch
            .into_iter()
            .map(|get| {
                let get = Arc::new(get);
                let answer = match self.shared.respond_now(&get) {
                    Some(response) => Answer::Here(response),
                    None => Answer::Later(self.respond_later(&get, &room)),
                };
                (get, answer)
            })
            .collect();
        while let Some((get, answer)) = answers.pop_front() {
            let mut response = answer.response().await;
            if matches!(response, Ok(None)) {
                // The responses before it have released their memory since.
                response = self.respond_later(&get, &room).await;
            }
            if matches!(response, Ok(None)) {
                // Those behind it must not hold the memory that it waits for.
                for (_, answer) in &mut answers {
                    drop(std::mem::replace(answer, Answer::Refused).response().await);
                }
                let mut wait = self.wait_for_memory();
                while matches!(response, Ok(None)) && wait.pause().await {
                    response = self.respond_later(&get, &room).await;
                }
            }
            match response {
                Ok(Some(response)) => self.respond_bytes(&response.bytes).await?,
                Ok(None) => self.respond(NO_MEMORY).await?,
                Err(_) => self.respond(PANICKED).await?,
            }
        }
        Ok(())
    }

    fn respond_later(&self, get: &Arc<Get>, room: &Arc<OwnedSemaphorePermit>) -> RunningLookup {
        let (shared, get, room) = (Arc::clone(self.shared), Arc::clone(get), Arc::clone(room));
        tokio::task::spawn_blocking(move || {
            let _room = room;
            shared.respond(&get)
        })
    }

    fn weight(&self, (place, format, _): &Get) -> u64 {
        let ask = ask(place, *format, 0, u64::MAX);
        let (cache, most) = (&self.shared.cache, self.shared.read_bytes_max);
        let bytes = match cache.is_scattered(&ask, AT_ONCE_PARTS_MAX) {
            true => most,
            false => cache.estimate_bytes(&ask).min(most),
        };
        bytes.saturating_add(READ_BYTES as u64).saturating_mul(VALUE_WEIGHT)
    }

    async fn delete(&mut self, place: RangeKey) -> Result<(), End> {
        self.shared.numbers.deletes.add(1);
        let cache = Arc::clone(&self.shared.cache);
        let answer = blocking(move || {
            let delete = |format: Format| {
                cache.delete(&place.key, format.store_field(place.field), place.range)
            };
            match (delete(Format::Json), delete(Format::Binary)) {
                (Ok(false), Ok(false)) => "NOT_FOUND\r\n".to_owned(),
                (Ok(_), Ok(_)) => "DELETED\r\n".to_owned(),
                (Err(error), _) | (_, Err(error)) => {
                    format!("SERVER_ERROR deleted, but a crash may restore the points: {error}\r\n")
                }
            }
        });
        let answer = answer.await;
        self.respond(&answer).await
    }

    /// Serves the metrics to a browser or Prometheus, and nothing else. `head` is its first line.
    async fn http(&mut self, head: Vec<u8>) -> Result<(), End> {
        let head = timeout(LINE_TIMEOUT, self.http_head(head)).await.map_err(|_| End)??;
        let request = match head.and_then(|head| parse_head(&head)) {
            Ok(request) => request,
            Err(HeadRefusal { status, why, .. }) => {
                return self.respond_http(status, &format!("{why}\n")).await;
            }
        };
        let (uri, headers) = (request.uri(), request.headers());
        let (status, body) = match self.shared.guard.admit(self.listen, &Method::GET, uri, headers)
        {
            Err((refusal, what)) => (refusal.status(), format!("{what}\n")),
            Ok(_) => match self.http_roles(headers).await {
                Err(LoginRefusal::Missing | LoginRefusal::Wrong) => {
                    (StatusCode::UNAUTHORIZED, "expected Authorization: Bearer TOKEN\n".to_owned())
                }
                Err(LoginRefusal::Throttled(_) | LoginRefusal::Later(_)) => {
                    (StatusCode::TOO_MANY_REQUESTS, "too many requests; retry later\n".to_owned())
                }
                Ok(roles) if !roles.read => {
                    self.shared.gate.forbade();
                    (StatusCode::FORBIDDEN, "the metrics need role read\n".to_owned())
                }
                Ok(_) if uri.path() == METRICS_PATH => (StatusCode::OK, self.shared.metrics()),
                Ok(_) => (
                    StatusCode::NOT_FOUND,
                    format!("this is firn cache; its metrics are at {METRICS_PATH}\n"),
                ),
            },
        };
        self.respond_http(status, &body).await
    }

    /// The head of a request, of which the first line was read.
    async fn http_head(&mut self, mut head: Vec<u8>) -> Result<Result<Vec<u8>, HeadRefusal>, End> {
        loop {
            let Some(line) = self.raw_line().await? else { return Ok(Err(too_large())) };
            head.extend_from_slice(&line);
            if without_end(&line).is_empty() {
                return Ok(Ok(head));
            }
            if head.len() > HEAD_BYTES_MAX {
                return Ok(Err(too_large()));
            }
        }
    }

    /// The roles of the connection, or those of the request's own credentials.
    async fn http_roles(&mut self, headers: &HeaderMap) -> Result<Roles, LoginRefusal> {
        match self.roles() {
            Some(roles) => Ok(roles),
            None => self.log_in(&Credentials::of_request(headers)).await,
        }
    }

    /// Refuses all other HTTP and closes the connection: the lines behind may be commands that a
    /// web page wrote into the body of a request.
    async fn refuse_http(&mut self) -> Result<(), End> {
        self.shared.numbers.client_errors.add(1);
        let body = format!(
            "this is firn cache, which does not speak HTTP except for GET {METRICS_PATH}; its \
             protocol is in docs/cache-protocol.md\n"
        );
        self.respond_http(StatusCode::METHOD_NOT_ALLOWED, &body).await
    }

    async fn respond_http(&mut self, status: StatusCode, body: &str) -> Result<(), End> {
        let mut headers = HeaderMap::new();
        self.shared.guard.protect(None, &mut headers);
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            crate::answer::TEXT,
            body.len()
        );
        for (name, value) in &headers {
            answer += &format!("{name}: {}\r\n", value.to_str().unwrap_or_default());
        }
        answer += "\r\n";
        answer += body;
        self.write(answer.as_bytes()).await?;
        Err(End)
    }

    async fn respond(&mut self, answer: &str) -> Result<(), End> {
        self.respond_bytes(answer.as_bytes()).await
    }

    async fn respond_bytes(&mut self, answer: &[u8]) -> Result<(), End> {
        self.shared.numbers.client_errors.add(u64::from(answer.starts_with(b"CLIENT_ERROR")));
        self.shared.numbers.server_errors.add(u64::from(answer.starts_with(b"SERVER_ERROR")));
        self.write(answer).await
    }

    /// Reserves memory for values of `bytes` in all; waits until others release some. `None` if
    /// that takes too long, or the server stops: each that waits may be behind others whose clients
    /// do not read.
    async fn room(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let kib = kib(bytes).clamp(1, self.shared.room_kib);
        let room = if kib <= SHORT_KIB { &self.shared.short_room } else { &self.shared.room };
        if let Ok(room) = Arc::clone(room).try_acquire_many_owned(kib) {
            return Some(room);
        }
        let mut stop = self.stop.clone();
        let room = timeout(ROOM_TIMEOUT, Arc::clone(room).acquire_many_owned(kib));
        tokio::select! {
            () = stopped(&mut stop) => None,
            room = room => room.ok()?.ok(),
        }
    }

    /// Reserves memory of `flights`; waits like [`Connection::room`].
    async fn flight_memory(&self, bytes: u64) -> Option<Reservation> {
        let flights = &self.shared.flights;
        if let Ok(held) = flights.reserve(POOL, bytes) {
            return Some(held);
        }
        let mut wait = self.wait_for_memory();
        while wait.pause().await {
            if let Ok(held) = flights.reserve(POOL, bytes) {
                return Some(held);
            }
        }
        None
    }

    fn wait_for_memory(&self) -> MemoryWait<'a> {
        let waiters = &self.shared.flight_waiters;
        waiters.fetch_add(1, Ordering::Relaxed);
        let pause = Duration::from_millis(5);
        MemoryWait { waiters, stop: self.stop.clone(), until: after(ROOM_TIMEOUT), pause }
    }

    /// Reports that there was no memory, and closes the connection.
    async fn no_room(&mut self) -> Result<(), End> {
        let why = match self.is_stopping() {
            true => "the server is stopping",
            false => "no memory for this value now (--memory); try again",
        };
        self.respond(&format!("SERVER_ERROR {why}\r\n")).await?;
        Err(End)
    }

    /// Whether other requests wait for memory.
    fn is_awaited(&self) -> bool {
        is_used_up(&self.shared.room)
            || is_used_up(&self.shared.short_room)
            || self.shared.flight_waiters.load(Ordering::Relaxed) > 0
    }

    /// Writes as fast as the client reads. A stalled response releases its memory while others wait
    /// for it.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        let (mut rest, mut clock) = (bytes, TransferClock::default());
        while !rest.is_empty() {
            let latest = clock.waits(self.transfer_limits());
            let soon = after(WAIT_WITHOUT_ROOM);
            match timeout_at(latest.min(soon), self.stream.write(rest)).await {
                Ok(written) => {
                    let written = written?;
                    clock.moved(written);
                    rest = rest.get(written..).filter(|_| written > 0).ok_or(End)?;
                }
                Err(_) if latest <= soon || self.is_awaited() => return Err(End),
                Err(_) => {}
            }
        }
        // TLS may still hold a part of it.
        let latest = clock.waits(self.transfer_limits());
        Ok(timeout_at(latest, self.stream.flush()).await.map_err(|_| End)??)
    }

    /// The next line without its end; `None` if it is too long.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, End> {
        let line = self.raw_line().await?;
        Ok(line.map(|line| without_end(&line).to_vec()))
    }

    /// The next line with its end; `None` if it is too long. A stop does not wait long for it.
    async fn raw_line(&mut self) -> Result<Option<Vec<u8>>, End> {
        if self.line_here().is_some() {
            return self.line_in_time().await;
        }
        let mut stop = self.stop.clone();
        let late = async {
            stopped(&mut stop).await;
            sleep(SHORT_TRANSFER_LIMITS.stall).await;
        };
        tokio::select! {
            line = timeout(LINE_TIMEOUT, self.line_in_time()) => line.map_err(|_| End)?,
            () = late => Err(End),
        }
    }

    async fn line_in_time(&mut self) -> Result<Option<Vec<u8>>, End> {
        loop {
            if let Some(line) = self.line_here() {
                let line = line.to_vec();
                self.skip_line_here();
                return Ok(Some(line));
            }
            if self.unread().len() > LINE_BYTES_MAX {
                return Ok(None);
            }
            self.read_more().await?;
        }
    }

    /// The received bytes that no request has used.
    fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Steps over unread bytes.
    fn step(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes);
    }

    /// The next line with its end, if all of it was read.
    fn line_here(&self) -> Option<&[u8]> {
        let rest = self.unread();
        let end = rest.iter().take(LINE_BYTES_MAX + 2).position(|&byte| byte == b'\n')?;
        rest.get(..=end)
    }

    fn skip_line_here(&mut self) {
        let end = self.unread().iter().position(|&byte| byte == b'\n');
        self.step(end.map_or(0, |end| end.saturating_add(1)));
    }

    /// Receives a value, with its memory, which grows as bytes arrive: a length is announced for
    /// free. `None` if there is no memory.
    async fn value(
        &mut self,
        bytes: usize,
    ) -> Result<Option<(Vec<u8>, OwnedSemaphorePermit)>, End> {
        let arriving = Arc::clone(&self.shared.arriving);
        let here = self.unread().len().min(bytes);
        let mut value = Vec::new();
        let Ok(mut held) = Arc::clone(&arriving).try_acquire_many_owned(0) else {
            return Ok(None);
        };
        let mut capacity = here.max(FIRST_BYTES).min(bytes);
        loop {
            let missing = kib(capacity as u64).saturating_add(1);
            let missing = missing.saturating_sub(u32::try_from(held.num_permits()).unwrap_or(0));
            let more = Arc::clone(&arriving).acquire_many_owned(missing);
            match timeout(WAIT_WITHOUT_ROOM, more).await {
                Ok(Ok(more)) => held.merge(more),
                _ => return Ok(None),
            }
            value.reserve_exact(capacity.saturating_sub(value.len()));
            if value.is_empty() {
                value.extend_from_slice(self.unread().get(..here).unwrap_or_default());
                self.step(here);
            }
            while value.len() < capacity {
                let wanted = capacity.saturating_sub(value.len()) as u64;
                let limits = self.transfer_limits();
                let latest = self.read_clock.waits(limits);
                let soon = after(WAIT_WITHOUT_ROOM);
                let mut part = (&mut self.stream).take(wanted);
                match timeout_at(latest.min(soon), part.read_buf(&mut value)).await {
                    Ok(read) => match read? {
                        0 => return Err(End),
                        read => self.read_clock.moved(read),
                    },
                    Err(_) if latest <= soon => return Err(End),
                    Err(_) if is_used_up(&arriving) => return Ok(None),
                    Err(_) => {}
                }
            }
            if capacity >= bytes {
                return Ok(Some((value, held)));
            }
            capacity = capacity.saturating_mul(2).min(bytes);
        }
    }

    /// Reads over a value and the end of its line.
    async fn skip(&mut self, bytes: usize) -> Result<(), End> {
        let mut left = bytes;
        while left > 0 {
            if self.start == self.buffer.len() {
                self.read_soon().await?;
            }
            let here = self.unread().len().min(left);
            self.step(here);
            left = left.saturating_sub(here);
        }
        match self.line().await? {
            Some(end) if end.is_empty() => Ok(()),
            _ => Err(End),
        }
    }

    /// Reads more of a value, as fast as the client sends it.
    async fn read_soon(&mut self) -> Result<(), End> {
        loop {
            let limits = self.transfer_limits();
            let latest = self.read_clock.waits(limits);
            let soon = after(WAIT_WITHOUT_ROOM);
            match timeout_at(latest.min(soon), self.read_more()).await {
                Ok(read) => return read,
                Err(_) if latest <= soon => return Err(End),
                Err(_) => {}
            }
        }
    }

    /// A stop does not wait for slow clients.
    fn transfer_limits(&self) -> TransferLimits {
        if self.is_stopping() { SHORT_TRANSFER_LIMITS } else { TRANSFER_LIMITS }
    }

    async fn read_more(&mut self) -> Result<(), End> {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(End),
            read => {
                self.read_clock.moved(read);
                Ok(())
            }
        }
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX)
}

/// Whether a request waits for permits: it takes all that are free.
fn is_used_up(room: &Semaphore) -> bool {
    room.available_permits() == 0
}

const PANICKED: &str = "SERVER_ERROR this request panicked, which is a bug\r\n";

/// Runs work that may wait for the disk on a blocking thread.
async fn blocking(work: impl FnOnce() -> String + Send + 'static) -> String {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| PANICKED.to_owned())
}

fn ask(place: &RangeKey, format: Format, partial_bytes_min: u64, bytes_max: u64) -> Lookup<'_> {
    let field = format.store_field(place.field);
    let (key, range, number) = (&*place.key, place.range, CommitSeq(0));
    Lookup { key, field, range, number, partial_bytes_min, bytes_max }
}

/// Key and range, format, and the smallest part to return.
type Get = (RangeKey, Format, Option<u64>);

/// A lookup on a thread that may wait for the device; `None` without memory.
type RunningLookup = JoinHandle<Option<Response>>;

/// The answer to a get.
enum Answer {
    Here(Response),
    Later(RunningLookup),
    /// There was no memory.
    Refused,
}

impl Answer {
    async fn response(self) -> Result<Option<Response>, JoinError> {
        match self {
            Answer::Here(response) => Ok(Some(response)),
            Answer::Later(running) => running.await,
            Answer::Refused => Ok(None),
        }
    }
}

/// A request that waits for memory of `flights`.
struct MemoryWait<'a> {
    waiters: &'a AtomicUsize,
    stop: Stopping,
    until: Instant,
    pause: Duration,
}

impl MemoryWait<'_> {
    /// Waits before the next attempt; `false` if it took too long or the server stops.
    async fn pause(&mut self) -> bool {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(ATTEMPT_PAUSE_MAX);
        tokio::select! {
            () = stopped(&mut self.stop) => false,
            () = sleep(pause) => Instant::now() < self.until,
        }
    }
}

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes for the client, and their memory.
pub(super) struct Response {
    pub(super) bytes: Vec<u8>,
    _held: Reservation,
}

/// Their memory may not be reclaimed, and is refused last.
const POOL: Pool = Pool::Jobs;
const NO_MEMORY: &str = "SERVER_ERROR no memory for these points now (--memory); try again\r\n";

impl ServerState {
    /// The response to a get, which may wait for the device; `None` without memory.
    pub(super) fn respond(&self, get: &Get) -> Option<Response> {
        let (place, format, wanted) = self.lookup(get);
        let mut held = self.flights.empty(POOL);
        let got = self.cache.get_reserved(&wanted, &mut held);
        response(got, place.range, format, self.value_bytes_max, held).ok()
    }

    fn lookup<'g>(&self, (place, format, least): &'g Get) -> (&'g RangeKey, Format, Lookup<'g>) {
        let least = least.unwrap_or(self.partial_bytes_min);
        (place, *format, ask(place, *format, least, self.read_bytes_max))
    }

    /// The response to a get of few points that are in memory.
    fn respond_now(&self, get: &Get) -> Option<Response> {
        let (place, format, wanted) = self.lookup(get);
        if self.cache.is_scattered(&wanted, AT_ONCE_PARTS_MAX)
            || self.cache.estimate_bytes(&wanted) > AT_ONCE_BYTES_MAX
        {
            return None;
        }
        let mut held = self.flights.part(AT_ONCE_HELD_BYTES_MAX).empty(POOL);
        let got = self.cache.get_now(&wanted, &mut held)?;
        response(got, place.range, format, self.value_bytes_max, held).ok()
    }
}

/// The response to a lookup: a value of at most `bytes_max`. `held` is the memory of the points.
///
/// # Errors
/// `Busy` or `TooLarge` without memory.
fn response(
    got: CachedRange,
    asked: TimeRange,
    format: Format,
    bytes_max: usize,
    mut held: Reservation,
) -> firn_model::Result<Response> {
    let TimeRange { start, end } = asked;
    let too_large = || {
        let why = format!("the points from {start} to {end} exceed {bytes_max} bytes");
        format!("CLIENT_ERROR {why} (--value-bytes-max); get shorter ranges\r\n").into_bytes()
    };
    let line = match got.declined {
        Some(DeclineReason::NoMemory) => return Err(Error::busy(1_000, "no memory for points")),
        Some(DeclineReason::TooLarge) => None,
        _ if got.missing == asked && got.declined.is_none() => {
            return Ok(Response { bytes: b"NOT_FOUND\r\n".to_vec(), _held: held });
        }
        _ if got.missing.is_empty() => Some(format!("VALUE {start} {end}")),
        _ => Some(format!("INCOMPLETE {} {}", got.missing.start, got.missing.end)),
    };
    let mut answer = Vec::new();
    let encoded = match &line {
        None => Ok(false),
        Some(_) => points::encode(format, &got, bytes_max, &mut answer, &mut held),
    };
    match (encoded, line) {
        (Ok(true), Some(line)) => {
            let absent = match got.absent {
                absent if absent == got.missing => String::new(),
                absent => format!(" {} {}", absent.start, absent.end),
            };
            let line = format!("{line} {}{absent}\r\n", answer.len());
            // Moved in place: a second copy of a large value would touch new pages.
            answer.splice(..0, line.into_bytes());
            answer.extend_from_slice(b"\r\n");
        }
        (Ok(_), _) => answer = too_large(),
        // A valid checksum over bytes that are not points: nothing can be returned.
        (Err(error), _) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
            answer = b"NOT_FOUND\r\n".to_vec();
        }
        (Err(error), _) => return Err(error),
    }
    drop(got);
    held.shrink_to(answer.capacity() as u64);
    Ok(Response { bytes: answer, _held: held })
}
