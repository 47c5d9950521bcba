//! `firn cache --proxy`: a cache of range queries in front of an existing database.
//!
//! **Path of a range query**: identical concurrent requests become one (`flights`); the cached part
//! of the answer is read from slabs on flash; the one missing range of steps is fetched from the
//! origin, and its settled part is stored. The response is the JSON that the origin would send.
//!
//! Requests that `policy` lists are forwarded unchanged, others are refused. Headers of the
//! connection are removed first, so that keys are made of the headers that the origin receives.
//!
//! Source: TSCache (PVLDB 2021), sections 3.2 (query and time range as key) and 3.3 (partial hits),
//! as a proxy.
//!
//! Reading order: `policy`, `question`; `range`, `matrix` for Prometheus; `influx` for InfluxDB;
//! `origin`, `hop`, `client`.

mod client;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hop;
mod influx;
mod matrix;
mod origin;
mod policy;
mod question;
mod range;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::get;
use bytes::BytesMut;
use firn_cache::{Background, OwnerHistory, Store, StoreOptions};
use firn_cache_client::BreakEven;
use firn_env::{Disk, FolderLock, LocalDisk};
use firn_model::{Budget, Error, Pool, Reservation, Result, Timestamp};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

use self::origin::{FetchError, Fetched, Origin, end_to_end, stripped_header};
use self::policy::{Admitted, NotForwarded};
use self::question::{Question, is_asked_at};
use self::range::is_in_key;
use crate::access::Gate;
use crate::admin_listener::AdminListener;
use crate::answer::{JSON, Packing, Payload, no_content, text};
use crate::clock::clock_ms;
use crate::config::{CacheConfig, OriginUrl};
use crate::flights::Flights;
use crate::http::auth::{self, Access, Caller, is_permitted};
use crate::http::guard::{self, Guard};
use crate::http::params::check_count;
use crate::http::roles;
use crate::machine::warn_if_readable;
use crate::metrics_text::{Kind, MetricsText};
use crate::net::{BoundService, ConnectionLimits, ConnectionTable, HttpOptions, Service, serve};
use crate::telemetry::{Counter, write_process};
use crate::throttle::Throttle;
use firn_env::given_file::check_authorities;

/// The folder of the answers below the cache's folder.
const FOLDER: &str = "answers";
/// Path of the proxy's own metrics. All other paths are the origin's.
const METRICS_PATH: &str = "/-/cache/metrics";
/// Errors without a text are the origin's.
const HTTP: HttpOptions = HttpOptions {
    open_paths: &[METRICS_PATH],
    explains_errors: false,
    buffer_bytes_max: BUFFER_BYTES_MAX,
};
/// The buffer of a connection, to a client and to the origin; a head must fit. Heads of Prometheus
/// have less than 1 KiB. Hundreds of clients may have full ones: parts of a forwarded body take
/// about three times as much.
const BUFFER_BYTES_MAX: usize = 32 << 10;
/// A longer form is not a query: it is forwarded.
const FORM_BYTES_MAX: usize = 2 << 20;
/// The network thread checks the statements of shorter forms itself.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;
/// Memory of a form, in multiples of its length: as received, as pairs, as the question.
const FORM_WEIGHT: u64 = 4;
/// Memory of an answer in flight, in multiples of its length: as received, as values, as sent.
const ANSWER_WEIGHT: u64 = 6;
/// Memory of all answers in flight, in multiples of the longest one that is parsed.
const ANSWERS_WEIGHT: u64 = 8;
/// The network thread copies answers of up to 256 KiB and compresses those of up to 4 KiB itself:
/// at some 0.1 and 10 ns per byte, a change of threads and back takes about as long, partly in the
/// kernel.
const COPIED_HERE_BYTES_MAX: usize = 256 << 10;
const PACKED_HERE_BYTES_MAX: usize = 4 << 10;
/// An answer has about this many times the bytes that its points take in slabs.
const STORED_SHARE: u64 = 2;
/// A clock that is ahead of the database's by more than half of `--settle` and more than this is
/// wrong.
const CLOCK_DIFFERENCE_MS: i64 = 10_000;
/// The result of the lookup: `hit`, `partial` or `miss`. Absent if the request was forwarded.
const CACHE_HEADER: &str = "x-firn-cache";

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    service: Service,
    /// The listener of `--admin-listen`.
    admin: Option<Service>,
    shared: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    config: CacheConfig,
    origin: Origin,
    /// Users and TLS.
    gate: Arc<Gate>,
    /// Refuses requests that a web page may have sent.
    guard: Arc<Guard>,
    store: Arc<Store>,
    flights: Flights<(Vec<u8>, firn_model::TimeRange), Answered>,
    /// Memory of all answers in flight. An answer without memory is forwarded, unparsed.
    answers: Budget,
    /// The break-even of the origin, in bytes of its answers.
    break_even: Mutex<BreakEven>,
    numbers: ProxyCounters,
    _writer: Background,
    _lock: Box<dyn FolderLock>,
}

#[derive(Debug, Default)]
struct ProxyCounters {
    passed: Counter,
    refused: Counter,
    hits: Counter,
    partial_hits: Counter,
    misses: Counter,
    collapsed: Counter,
    origin_failures: Counter,
}

/// The outcome of a request.
#[derive(Clone, Debug)]
enum Answered {
    /// A response in the origin's form, the result of the lookup, and its memory.
    Json(Bytes, &'static str, Arc<Reservation>),
    /// The origin's response.
    AsIs(Fetched, Arc<Reservation>),
    /// The answer is too long to parse, or memory is short: each client receives its own.
    Pass,
    /// There is none.
    Failed(String),
}

impl Proxy {
    /// Opens the cache and listens, in front of the database at `origin`. A thread without work
    /// calls `on_idle`: the program may have its allocator release memory there.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken or the disk fails, `Busy` when another process has
    /// the folder.
    pub fn start(origin: &OriginUrl, config: CacheConfig, on_idle: fn()) -> Result<Proxy> {
        check_authorities()?;
        let owner = xxhash_rust::xxh3::xxh3_64(origin.owner().as_bytes());
        let origin = Origin::new(origin, &config)?;
        let folder_error =
            |e: Error| e.context(format!("cannot open the cache in {}", config.data));
        config.check_folder()?;
        warn_if_readable(&config.data, FOLDER);
        let disk = Arc::new(LocalDisk::open(config.data.to_path_buf())?);
        let lock = disk.lock().map_err(folder_error)?;
        let budget = Budget::new(config.memory_bytes());
        let options = StoreOptions {
            flash_bytes_max: config.size.0,
            slab_bytes: 256 << 10,
            owner,
            ..StoreOptions::default()
        };
        let store = Store::open(disk, FOLDER, &budget, options, OwnerHistory::IMMUTABLE)
            .map_err(folder_error)?;
        let store = Arc::new(store);
        let written = Arc::clone(&store);
        let writer = Background::start("firn-cache", store.wake(), move || written.work())?;
        let gate = Arc::new(Gate::open(config.gate_options(None), budget, on_idle)?);
        let bound = BoundService::bind("firn-proxy", config.listen.all(), on_idle)?;
        let bound = bound.with_gate(&gate)?;
        let table = ConnectionTable::new(ConnectionLimits::within_open_files(
            config.connections_max.to_usize(),
            config.connections_per_client_max.get().map(|max| max.to_usize()),
        ));
        let admin = AdminListener::bind(&config, &gate, on_idle)?;
        let answers_bytes_max = config.answer_bytes_max.0.saturating_mul(ANSWERS_WEIGHT);
        let guard = Guard::new(&config.allowed_hosts, &config.cors_origin);
        let guard = Arc::new(guard.for_proxy());
        let shared = Arc::new(ProxyState {
            config,
            origin,
            gate,
            guard: Arc::clone(&guard),
            store,
            flights: Flights::default(),
            answers: Budget::new(answers_bytes_max),
            break_even: Mutex::default(),
            numbers: ProxyCounters::default(),
            _writer: writer,
            _lock: lock,
        });
        let router = Router::new()
            .route(
                METRICS_PATH,
                get(async |State(shared): State<Arc<ProxyState>>| {
                    text(StatusCode::OK, metrics(&shared))
                }),
            )
            .fallback(answer)
            .method_not_allowed_fallback(async || {
                text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
            })
            .layer(from_fn_with_state(Arc::clone(&shared), guarded))
            .with_state(Arc::clone(&shared))
            .layer(from_fn_with_state(guard, guard::guard));
        let reloaded = Arc::clone(&shared.gate);
        bound.keep_current(&shared.gate, move || reloaded.reload())?;
        let service = serve(bound, table, router, HTTP);
        let metered = Arc::clone(&shared);
        let admin = admin.map(|admin| admin.start(move || metrics(&metered)));
        Ok(Proxy { service, admin, shared })
    }

    /// The addresses of the sockets, with the ports that the system chose.
    pub fn listens(&self) -> &[SocketAddr] {
        self.service.listens()
    }

    /// Whether the addresses speak TLS.
    pub fn has_tls(&self) -> bool {
        self.shared.gate.tls().is_some()
    }

    /// Waits until the process receives SIGTERM or SIGINT.
    ///
    /// # Errors
    /// `Unavailable` when signals cannot be received.
    pub fn wait_for_signal(&self) -> Result<()> {
        self.service.wait_for_signal()
    }

    /// Finishes the running requests and writes the results that are in memory.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the cache contains less after the next start.
    pub fn stop(self) -> Result<()> {
        let shared = self.shared;
        let closed = self.service.stop(|| {
            shared.gate.stop();
            shared.store.flush();
            shared.store.checkpoint().map(|_| ())
        });
        // Last, so that it answers until the end.
        if let Some(admin) = self.admin {
            admin.stop(|| ());
        }
        closed
    }
}

/// Lets requests through whose user may call the origin's endpoint. The origin does not see the
/// proxy's own users.
async fn guarded(
    State(shared): State<Arc<ProxyState>>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    // A browser sends no credentials with it. The guard has checked whether a page may send more.
    if request.method() == Method::OPTIONS {
        return no_content();
    }
    request.extensions_mut().insert(Arc::clone(&shared.gate));
    let access = match request.uri().path() {
        METRICS_PATH => Access::Read,
        path => roles::access_of(request.method(), path),
    };
    let mut response = match auth::check(access, &mut request).await {
        Ok(()) => {
            if shared.gate.has_users() {
                request.headers_mut().remove(AUTHORIZATION);
            }
            next.run(request).await
        }
        Err(refusal) => *refusal,
    };
    for (name, value) in &shared.gate.policy().headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

async fn answer(State(shared): State<Arc<ProxyState>>, request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&request);
    let (mut parts, body) = request.into_parts();
    // Before it waits for an equal request, which may be the one that it is a part of.
    if let Some(refusal) = shared.origin.loop_detected(&parts.headers) {
        shared.numbers.refused.add(1);
        return refusal;
    }
    if let Some(name) = stripped_header(&parts.headers) {
        return shared.refuse(&parts, &policy::stripped_header(&name));
    }
    parts.headers = end_to_end(&parts.headers);
    // The client of the origin would not send it.
    if matches!(parts.method, Method::GET | Method::HEAD) && !body.is_end_stream() {
        return shared.refuse(&parts, &policy::unexpected_body());
    }
    let admitted = match policy::check(&parts, shared.config.proxy_paths.get().as_ref()) {
        Ok(admitted) => admitted,
        Err(refused) => return shared.refuse(&parts, &refused),
    };
    let reads_only = match admitted {
        Admitted::Always => false,
        Admitted::IfStatementsRead => true,
        Admitted::ByRole => !is_permitted(Access::Admin, &caller.user),
    };
    let refuse_statements = |parts: &Parts, refused: &NotForwarded| match admitted {
        Admitted::ByRole => shared.forbid(parts, &caller),
        _ => shared.refuse(parts, refused),
    };
    let query = parts.uri.query().unwrap_or_default().as_bytes();
    if reads_only && let Err(refused) = policy::check_statements(&[query]) {
        return refuse_statements(&parts, &refused);
    }
    let has_plain_body = !parts.headers.contains_key(CONTENT_ENCODING);
    let is_form = parts.method == Method::POST && has_plain_body && has_form(&parts.headers);
    let is_plain = parts.method == Method::GET && has_plain_body && body.is_end_stream();
    if reads_only && !is_form && !body.is_end_stream() {
        return refuse_statements(&parts, &policy::unreadable_statements());
    }
    let may_be_cached = is_asked_at(parts.uri.path());
    if !(may_be_cached || reads_only) || !(is_plain || is_form) {
        return shared.pass(parts, body).await;
    }
    let (form, _held) = match form(body, &shared.answers).await {
        Form::Whole(form, held) => (form, held),
        Form::TooLong(_) if reads_only => {
            return refuse_statements(&parts, &policy::unreadable_statements());
        }
        Form::TooLong(body) => return shared.pass(parts, body).await,
        // A chunked body has no declared length: the origin would take the received part for all of
        // it.
        Form::Cut(why) => {
            return text(StatusCode::BAD_REQUEST, format!("the form was cut off: {why}\n"));
        }
    };
    if reads_only && let Err(refused) = check_form(&form).await {
        return refuse_statements(&parts, &refused);
    }
    let query = parts.uri.query().unwrap_or_default().as_bytes();
    // Decoding very many parameters would keep a network thread from other clients.
    if check_count(&form).and(check_count(query)).is_err() {
        return shared.pass(parts, Body::from(form)).await;
    }
    let settle_ms = shared.config.settle.ms();
    let question = match form.len() <= DECODED_HERE_BYTES_MAX {
        true => question_of(&parts, &form, settle_ms),
        // It takes some milliseconds.
        false => {
            let (parts, form) = (parts.clone(), form.clone());
            let asked = move || question_of(&parts, &form, settle_ms);
            tokio::task::spawn_blocking(asked).await.unwrap_or(None)
        }
    };
    let Some(question) = question.filter(|_| may_be_cached) else {
        return shared.pass(parts, Body::from(form)).await;
    };
    let mut flight = question.flight();
    // Two proxies that lead to each other would else wait for each other's requests.
    for via in hop::own_kind(&parts.headers) {
        flight.0.extend_from_slice(via.as_bytes());
    }
    let (answered, is_own) =
        shared.flights.join(flight, shared.ask(&parts, Arc::new(question))).await;
    if !is_own {
        shared.numbers.collapsed.add(1);
    }
    shared.deliver(answered, is_own, parts, form).await
}

impl ProxyState {
    fn refuse(&self, parts: &Parts, refused: &NotForwarded) -> Response<Body> {
        self.numbers.refused.add(1);
        guard::refused(refused.status, &refused.what, parts.uri.path())
    }

    /// Refuses statements of a user without role admin.
    fn forbid(&self, parts: &Parts, caller: &Caller) -> Response<Body> {
        self.numbers.refused.add(1);
        auth::forbid(&self.gate, caller, Access::Admin, parts.uri.path())
    }

    async fn pass(&self, parts: Parts, body: Body) -> Response<Body> {
        self.numbers.passed.add(1);
        self.origin.pass(parts, body).await
    }

    /// The response to one of the clients that wait for `answered`. Its own request was made if
    /// `is_own`, else an equal one of another client.
    async fn deliver(
        &self,
        answered: Answered,
        is_own: bool,
        parts: Parts,
        form: Bytes,
    ) -> Response<Body> {
        match answered {
            Answered::Json(bytes, found, _held) => {
                // Each client has a copy of its own until it has read it, packed or not.
                let copies = 2 * bytes.len() as u64;
                let Ok(held) = self.answers.reserve(Pool::Requests, copies) else {
                    return self.pass(parts, Body::from(form)).await;
                };
                let packing = Packing::of(&parts.headers);
                let is_short = match packing {
                    Packing::Plain => bytes.len() <= COPIED_HERE_BYTES_MAX,
                    _ => bytes.len() <= PACKED_HERE_BYTES_MAX,
                };
                let pack = move || Payload::new(bytes.into(), packing, Some(held));
                // Compressing a long answer takes as long as a short query.
                let packed = match is_short {
                    true => Ok(pack()),
                    false => tokio::task::spawn_blocking(pack).await,
                };
                match packed {
                    Ok(payload) => {
                        let mut response = payload.answer(StatusCode::OK, JSON);
                        response
                            .headers_mut()
                            .insert(CACHE_HEADER, HeaderValue::from_static(found));
                        response
                    }
                    Err(_) => text(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "compressing the response panicked, which is a bug; see the log\n",
                    ),
                }
            }
            // It may have a cookie or be another client's own.
            Answered::AsIs(fetched, _held) if !is_own && !fetched.may_be_shared(is_in_key) => {
                self.pass(parts, Body::from(form)).await
            }
            Answered::AsIs(fetched, held) => fetched.answer(held),
            Answered::Pass => self.pass(parts, Body::from(form)).await,
            Answered::Failed(why) => self.origin.unreachable(&why),
        }
    }

    /// Responds from the cache, and fetches the missing part from the origin.
    async fn ask(&self, parts: &Parts, question: Arc<Question>) -> Answered {
        let known_bytes = question.estimate_bytes(&self.store);
        let Ok(mut held) =
            self.answers.reserve(Pool::Requests, known_bytes.saturating_mul(ANSWER_WEIGHT))
        else {
            return Answered::Pass;
        };
        let (store, reader) = (Arc::clone(&self.store), Arc::clone(&question));
        let bytes_max = self.config.answer_bytes_max.0;
        // The cache's file is read on a thread that may block.
        let least = self.config.partial_bytes_min.get().map(|size| size.0);
        let least = least.unwrap_or_else(|| self.break_even.lock().next_bytes_min() / STORED_SHARE);
        let look_up = move || {
            let begun = Instant::now();
            let known = reader.look_up(&store, bytes_max, least);
            let took = begun.elapsed();
            let found = reader.found(&known);
            let filled_bytes = reader.filled_bytes(&known, &[]);
            let is_room = filled_bytes <= bytes_max && held.grow(filled_bytes).is_ok();
            let answer = (found == "hit" && is_room).then(|| reader.write(&known));
            (known, found, answer, took, held)
        };
        let looked_up = tokio::task::spawn_blocking(look_up).await;
        let Ok((known, found, answer, took, mut held)) = looked_up else {
            return Answered::Pass;
        };
        if found != "miss" {
            self.break_even.lock().record_lookup(known_bytes, took);
        }
        if let Some(answer) = answer {
            self.numbers.hits.add(1);
            return Answered::Json(answer.into(), found, Arc::new(held));
        }
        if found == "hit" {
            return Answered::Pass;
        }
        let missing = question.pairs_of_missing(&known);
        let (begun, asked_ms) = (Instant::now(), clock_ms());
        let fetched = match self.fetch(parts, &missing, &mut held).await {
            Ok(fetched) => fetched,
            Err(instead) => return instead,
        };
        // Short points and many series take more memory than the answer's length suggests.
        let (counted, body) = (Arc::clone(&question), fetched.body.clone());
        // The thread has the reservation: it works to its end after the client has disconnected.
        let count = move || {
            let filled_bytes = counted.filled_bytes(&known, &body);
            let joined = counted.join_bytes(&body).saturating_add(filled_bytes);
            let received = body.len() as u64 * ANSWER_WEIGHT;
            let is_room =
                filled_bytes <= bytes_max && held.grow(joined.saturating_sub(received)).is_ok();
            (known, is_room, held)
        };
        let counted = tokio::task::spawn_blocking(count).await;
        let Ok((known, is_room, mut held)) = counted else { return Answered::Pass };
        let is_whole = fetched.status == StatusCode::OK && is_room;
        let may_be_stored = fetched.may_be_shared(is_in_key) && self.agrees(&fetched, asked_ms);
        if is_whole && may_be_stored {
            let (bytes, took) = (fetched.body.len() as u64, begun.elapsed());
            self.break_even.lock().record_computed(bytes, took);
            let (store, writer) = (Arc::clone(&self.store), Arc::clone(&question));
            let body = fetched.body.clone();
            let join = move || (writer.join(&store, known, &body), held);
            let joined = tokio::task::spawn_blocking(join).await;
            let Ok((joined, its_held)) = joined else { return Answered::Pass };
            held = its_held;
            if let Some(joined) = joined {
                let counter = match found {
                    "miss" => &self.numbers.misses,
                    _ => &self.numbers.partial_hits,
                };
                counter.add(1);
                return Answered::Json(joined.into(), found, Arc::new(held));
            }
        }
        self.numbers.passed.add(1);
        // The origin's error or warning about a part must be repeated for the whole, in its own
        // words.
        if found == "miss" {
            return Answered::AsIs(fetched, Arc::new(held));
        }
        match self.fetch(parts, question.pairs(), &mut held).await {
            Ok(fetched) => Answered::AsIs(fetched, Arc::new(held)),
            Err(instead) => instead,
        }
    }

    /// Whether the proxy's clock is right enough to know which samples are settled. One that is
    /// ahead would store steps whose samples are still arriving.
    fn agrees(&self, fetched: &Fetched, asked_ms: Timestamp) -> bool {
        static AHEAD: Throttle = Throttle::new();
        let ahead_ms = fetched.behind_ms(asked_ms);
        let agrees = ahead_ms <= (self.config.settle.ms() / 2).max(CLOCK_DIFFERENCE_MS);
        if !agrees && AHEAD.note(1, Instant::now()).is_some() {
            tracing::warn!(
                "the clock is {} s ahead of that of the database: answers are not cached",
                ahead_ms / 1_000
            );
        }
        agrees
    }

    async fn fetch(
        &self,
        parts: &Parts,
        pairs: &[(String, String)],
        held: &mut Reservation,
    ) -> std::result::Result<Fetched, Answered> {
        let bytes_max = self.config.answer_bytes_max.to_usize();
        let fetched = self.origin.fetch(parts, pairs, bytes_max, ANSWER_WEIGHT, held).await;
        fetched.map_err(|e| match e {
            FetchError::TooLong => Answered::Pass,
            FetchError::Failed(why) => {
                self.numbers.origin_failures.add(1);
                Answered::Failed(why)
            }
        })
    }
}

/// A body of which the first bytes were read.
struct Begun {
    read: Option<Bytes>,
    rest: Body,
}

impl HttpBody for Begun {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        match self.read.take() {
            Some(read) => Poll::Ready(Some(Ok(Frame::data(read)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let (read, rest) = (self.read.as_ref().map_or(0, Bytes::len) as u64, self.rest.size_hint());
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(read.saturating_add(rest)),
            None => SizeHint::default(),
        }
    }
}

/// The body of a request with the content type of a form.
enum Form {
    /// With its memory.
    Whole(Bytes, Reservation),
    /// As it came: it is too long, or memory is short.
    TooLong(Body),
    /// It was cut off, with the reason. A body reports that once; later reads see a regular end.
    Cut(axum::Error),
}

async fn form(mut body: Body, budget: &Budget) -> Form {
    let (mut form, mut held) = (BytesMut::new(), budget.empty(Pool::Requests));
    while let Some(frame) = body.frame().await {
        let data = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(why) => return Form::Cut(why),
        };
        form.extend_from_slice(&data);
        let has_room = held.grow(data.len() as u64 * FORM_WEIGHT).is_ok();
        if form.len() > FORM_BYTES_MAX || !has_room {
            return Form::TooLong(Body::new(Begun { read: Some(form.freeze()), rest: body }));
        }
    }
    Form::Whole(form.freeze(), held)
}

/// The query of a request, if the cache supports it.
fn question_of(parts: &Parts, form: &[u8], settle_ms: i64) -> Option<Question> {
    let query = parts.uri.query().unwrap_or_default().as_bytes();
    // A form comes first, as Prometheus reads it.
    let pairs = form_urlencoded::parse(form).chain(form_urlencoded::parse(query));
    let pairs = pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    Question::new(parts, pairs, clock_ms(), settle_ms)
}

/// Checks the statements of a form. Those of a long one take milliseconds, in which a network
/// thread would serve no other client.
async fn check_form(form: &Bytes) -> std::result::Result<(), NotForwarded> {
    if form.len() <= DECODED_HERE_BYTES_MAX {
        return policy::check_statements(&[form]);
    }
    let form = form.clone();
    let checked = tokio::task::spawn_blocking(move || policy::check_statements(&[&form]));
    checked.await.unwrap_or_else(|_| Err(policy::unreadable_statements()))
}

fn has_form(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

fn metrics(shared: &ProxyState) -> String {
    let mut out = MetricsText::default();
    write_process(&mut out);
    shared.gate.write_text(&mut out);
    let numbers = &shared.numbers;
    let name = "firn_proxy_range_queries_total";
    out.family(name, Kind::Counter, "Range queries by result of the cache lookup.");
    for (result, counter) in
        [("hit", &numbers.hits), ("partial", &numbers.partial_hits), ("miss", &numbers.misses)]
    {
        out.sample(name, &[("result", result)], counter.get() as f64);
    }
    for (name, help, counter) in [
        (
            "firn_proxy_forwarded_requests_total",
            "Requests forwarded to the origin without the cache.",
            &numbers.passed,
        ),
        (
            "firn_proxy_refused_requests_total",
            "Requests refused because their path, method or statement is not forwarded, or because \
             --proxy leads back to the proxy.",
            &numbers.refused,
        ),
        (
            "firn_proxy_collapsed_requests_total",
            "Requests that shared the response of an identical concurrent request.",
            &numbers.collapsed,
        ),
        (
            "firn_proxy_origin_errors_total",
            "Requests that the origin did not answer.",
            &numbers.origin_failures,
        ),
    ] {
        out.counter(name, help, counter.get() as f64);
    }
    out.gauge(
        "firn_proxy_partial_bytes_min",
        "Partial hits below this size are not used.",
        shared
            .config
            .partial_bytes_min
            .get()
            .map(|size| size.0)
            .unwrap_or_else(|| shared.break_even.lock().bytes_min() / STORED_SHARE) as f64,
    );
    shared.guard.write_text(&mut out);
    crate::stats::write_store(&shared.store.stats(), &mut out);
    out.finish()
}

#[cfg(test)]
mod tests;
