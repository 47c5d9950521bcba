//! The database behind the proxy: requests and responses are forwarded unchanged, except for
//! headers of one connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Instant, UNIX_EPOCH};

use axum::body::{Body, HttpBody};
use axum::http::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode, Uri};
use bytes::Bytes;
use firn_fetch::with_causes;
use firn_model::{Error, Reservation, Result, Timestamp};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep_until};
use url::Url;

use super::Begun;
use super::client::OriginClient;
use super::hop::{self, HopName};
use super::policy::percent_decode;
use super::range::{is_in_key, shared_headers};
use crate::answer::{self, JSON, Packing, Payload, shared_body};
use crate::config::{CacheConfig, OriginUrl};
use crate::net::{TRANSFER_LIMITS, TransferClock, TransferLimits};
use crate::throttle::Throttle;
use crate::wire::base64::base64;
use crate::wire::json;

/// Headers that belong to one connection and not to the message (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Headers that a browser adds for this proxy, which has checked them. A query of the cache is the
/// same without them.
const OF_BROWSERS: [HeaderName; 3] =
    [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_HEADERS, header::ACCESS_CONTROL_REQUEST_METHOD];

/// The origin: the database behind the proxy.
#[derive(Debug)]
pub(super) struct Origin {
    /// Without credentials.
    url: Url,
    /// `Authorization` of requests without one, if the setting names user and password.
    credentials: Option<HeaderValue>,
    /// The name of this proxy in forwarded requests.
    hop: HopName,
    client: OriginClient,
    /// The limits for the body of a response.
    limits: TransferLimits,
}

/// The body of a response, which ends with an error if the origin is too slow.
struct TimedBody<B> {
    body: B,
    clock: TransferClock,
    limits: TransferLimits,
    /// When the origin will have taken too long, while it has to act.
    timer: Option<Pin<Box<Sleep>>>,
}

/// An answer that was read whole.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum FetchError {
    /// It exceeds the limit, or the available memory.
    TooLong,
    /// The origin cannot be reached, or its response was cut off.
    Failed(String),
}

impl Origin {
    /// A client of the database at `origin`.
    ///
    /// # Errors
    /// `Invalid` for certificates that cannot be used, `Unavailable` when TLS cannot be set up.
    pub(super) fn new(origin: &OriginUrl, config: &CacheConfig) -> Result<Origin> {
        let client = OriginClient::new(config)?;
        let mut url = origin.url().clone();
        let plain =
            |text: &str| String::from_utf8_lossy(&percent_decode(text.as_bytes())).into_owned();
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        let credentials = has_credentials.then(|| {
            let user = plain(url.username());
            basic_authorization(&user, &plain(url.password().unwrap_or_default()))
        });
        let credentials = credentials.transpose()?;
        // Both fail only for URLs without a host.
        let _ = url.set_password(None).and_then(|()| url.set_username(""));
        let patience = config.origin_timeout.duration();
        let limits = TransferLimits { stall: patience, slack: patience, ..TRANSFER_LIMITS };
        Ok(Origin { url, credentials, hop: HopName::new(), client, limits })
    }

    /// Forwards a request with [`end_to_end`] headers, and its response, as streams.
    pub(super) async fn pass(&self, parts: Parts, body: Body) -> Response<Body> {
        let Some(url) = self.url_of(parts.uri.path(), parts.uri.query()) else {
            return not_forwarded();
        };
        let mut headers = parts.headers;
        let has_body = parts.method != Method::HEAD;
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        self.hop.append_to(&mut headers, parts.version);
        let cut = Arc::<OnceLock<String>>::default();
        let body = match body.is_end_stream() {
            true => Body::empty(),
            false => {
                let cut = Arc::clone(&cut);
                Body::new(body.map_err(move |error| {
                    // The first error is the last item of a body.
                    let _ = cut.set(with_causes(&error));
                    error
                }))
            }
        };
        match self.client.send(self.request(parts.method, url, headers, body)).await {
            Ok(answer) => {
                let (mut parts, body) = answer.into_parts();
                parts.headers = end_to_end(&parts.headers);
                if has_body && parts.status != StatusCode::NOT_MODIFIED {
                    // The server states that of the body: an origin may state another one.
                    parts.headers.remove(header::CONTENT_LENGTH);
                }
                if let Err(why) = check_status(parts.status) {
                    return unreachable_origin(&self.url, &why);
                }
                let response = Response::from_parts(parts, Body::new(self.timed(body)));
                match is_error(response.status()) && has_body {
                    true => self.explained(response).await,
                    false => response,
                }
            }
            Err(failed) => match cut.get() {
                Some(why) => {
                    let why = format!("the body of the request was cut off: {why}");
                    failure(StatusCode::BAD_REQUEST, "bad_data", &why)
                }
                None => unreachable_origin(&self.url, &failed),
            },
        }
    }

    fn timed(&self, body: Incoming) -> TimedBody<Incoming> {
        TimedBody { body, clock: TransferClock::default(), limits: self.limits, timer: None }
    }

    /// An error of the origin as it is, or with a sentence if it has no body.
    async fn explained(&self, response: Response<Body>) -> Response<Body> {
        let (parts, mut body) = response.into_parts();
        loop {
            let data = match body.frame().await {
                None => return with_sentence(Response::from_parts(parts, Body::empty())),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    return unreachable_origin(&self.url, &with_causes(&error));
                }
            };
            if !data.is_empty() {
                let body = Body::new(Begun { read: Some(data), rest: body });
                return Response::from_parts(parts, body);
            }
        }
    }

    /// Sends the request with other parameters, in the URL or as a form for a POST, and without the
    /// headers on which a shared answer must not depend. Reads at most
    /// `bytes_max` of the response, and at most the available memory: each byte takes `weight` from
    /// the budget of `held`.
    pub(super) async fn fetch(
        &self,
        parts: &Parts,
        pairs: &[(String, String)],
        bytes_max: usize,
        weight: u64,
        held: &mut Reservation,
    ) -> std::result::Result<Fetched, FetchError> {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let mut headers = shared_headers(&parts.headers);
        for name in &OF_BROWSERS {
            headers.remove(name);
        }
        for via in hop::own_kind(&parts.headers) {
            headers.append(header::VIA, via);
        }
        self.hop.append_to(&mut headers, parts.version);
        let is_post = parts.method == Method::POST;
        if is_post {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(header::CONTENT_TYPE, form);
        }
        let url = self.url_of(parts.uri.path(), (!is_post).then_some(&*form));
        let url = url.ok_or_else(|| FetchError::Failed("the path is not forwarded".to_owned()))?;
        let request = match is_post {
            true => self.request(Method::POST, url, headers, Body::from(form)),
            false => self.request(Method::GET, url, headers, Body::empty()),
        };
        let answer = self.client.send(request).await.map_err(FetchError::Failed)?;
        let (status, mut headers) = (answer.status(), end_to_end(answer.headers()));
        headers.remove(header::CONTENT_LENGTH);
        check_status(status).map_err(FetchError::Failed)?;
        let mut arriving = self.timed(answer.into_body());
        let mut body = Vec::new();
        while let Some(frame) = arriving.frame().await {
            let frame = frame.map_err(|e| FetchError::Failed(e.to_string()))?;
            let chunk = frame.into_data().unwrap_or_default();
            let is_room = held.grow(chunk.len() as u64 * weight).is_ok();
            if !is_room || body.len() + chunk.len() > bytes_max {
                return Err(FetchError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Fetched { status, headers, body: body.into() })
    }

    /// The answer to a request that this proxy has forwarded before; `None` for others.
    pub(super) fn loop_detected(&self, headers: &HeaderMap) -> Option<Response<Body>> {
        static LOOPS: Throttle = Throttle::new();
        if !self.hop.is_in(headers) {
            return None;
        }
        let why = format!(
            "--proxy {} leads back to this proxy: set it to the address of the database",
            self.url
        );
        if let Some(count) = LOOPS.note(1, Instant::now()) {
            tracing::error!("{why}; refused {count} requests that came back");
        }
        Some(failure(StatusCode::LOOP_DETECTED, "unavailable", &why))
    }

    /// The answer when the origin has none.
    pub(super) fn unreachable(&self, why: &str) -> Response<Body> {
        unreachable_origin(&self.url, why)
    }

    /// The request with the client's headers, and with the proxy's credentials unless the client
    /// has its own.
    fn request(
        &self,
        method: Method,
        uri: Uri,
        mut headers: HeaderMap,
        body: Body,
    ) -> Request<Body> {
        if let Some(credentials) = &self.credentials
            && let Entry::Vacant(own) = headers.entry(header::AUTHORIZATION)
        {
            own.insert(credentials.clone());
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        request
    }

    /// `None` if the URL's parser changes a byte of the path that was checked.
    fn url_of(&self, path: &str, query: Option<&str>) -> Option<Uri> {
        let mut url = self.url.clone();
        let prefix = self.url.path().trim_end_matches('/');
        let wanted = format!("{prefix}{path}");
        url.set_path(&wanted);
        url.set_query(query);
        let is_same = path.starts_with('/') && url.path() == wanted;
        url.as_str().parse().ok().filter(|_| is_same)
    }
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody<Data = Bytes, Error: std::error::Error> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| {
                let frame = frame.map_err(|e| io::Error::other(with_causes(&e)))?;
                self.clock.moved(frame.data_ref().map_or(0, Bytes::len));
                Ok(frame)
            }));
        }
        let limits = self.limits;
        let latest = self.clock.waits(limits);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(latest)));
        ready!(timer.as_mut().poll(context));
        let why = format!(
            "the response is slower than {} bytes per second, after --origin-timeout of slack",
            limits.bytes_per_second_min
        );
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, why))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Fetched {
    /// Whether another client with the same request may receive it: the database has not marked it
    /// as one client's own or as not to be stored, and it depends on no header that
    /// `is_in_key` does not cover.
    pub(super) fn may_be_shared(&self, is_in_key: impl Fn(&str) -> bool) -> bool {
        let words = |name| {
            let values = self.headers.get_all(name).iter();
            values.flat_map(|value| value.to_str().unwrap_or("*").split(','))
        };
        let is_private = words(header::CACHE_CONTROL).any(|word| {
            let directive = word.split('=').next().unwrap_or_default().trim();
            ["private", "no-store", "no-cache"].iter().any(|no| directive.eq_ignore_ascii_case(no))
        });
        let varies = words(header::VARY).map(|name| name.trim().to_ascii_lowercase());
        let is_covered = varies.filter(|name| !name.is_empty()).all(|name| {
            // The proxy sends the same of these for all clients, or none.
            let is_fixed = name == "accept-encoding" || OF_BROWSERS.iter().any(|own| *own == *name);
            is_fixed || (name != "*" && is_in_key(&name))
        });
        !is_private && is_covered && !self.headers.contains_key(header::SET_COOKIE)
    }

    /// Milliseconds by which the clock of the database was behind `now`; 0 if it states no time.
    pub(super) fn behind_ms(&self, now: Timestamp) -> i64 {
        let date = self.headers.get(header::DATE).and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| httpdate::parse_http_date(text).ok());
        let Some(since) = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()) else {
            return 0;
        };
        // Of the second that the header states, all but the last millisecond may have passed.
        let latest = i64::try_from(since.as_millis()).unwrap_or(i64::MAX).saturating_add(999);
        now.saturating_sub(latest).max(0)
    }

    /// As an answer to a client, with the memory of the body.
    pub(super) fn answer(&self, held: Arc<Reservation>) -> Response<Body> {
        let mut response = Response::new(shared_body(self.body.clone(), held));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        match is_error(self.status) && self.body.is_empty() {
            true => with_sentence(response),
            false => response,
        }
    }
}

fn basic_authorization(user: &str, password: &str) -> Result<HeaderValue> {
    let encoded = base64(format!("{user}:{password}").as_bytes());
    let mut value = HeaderValue::try_from(format!("Basic {encoded}"))
        .map_err(|_| Error::invalid("--proxy: user and password are not usable"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A header that `Connection` names although the response depends on it: the origin would answer
/// as if the client had sent none, and with the proxy's own credentials.
pub(super) fn stripped_header(headers: &HeaderMap) -> Option<HeaderName> {
    let named = headers.get_all(header::CONNECTION).iter();
    let named = named.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut named = named.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    named.find(|name| {
        let is_credential = [header::AUTHORIZATION, header::COOKIE].contains(name);
        let is_sent = headers.contains_key(name) && is_in_key(name.as_str());
        is_credential || is_sent && !HOP_BY_HOP.contains(name)
    })
}

/// The headers without those of the connection: the fixed ones, and those that `Connection` names.
pub(super) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        kept.remove(name.trim());
    }
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // The body has the length of its chunks.
        kept.remove(header::CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// # Errors
/// For a response that is no answer: the client requested no other protocol, and after one the
/// bytes on the connection are not HTTP.
fn check_status(status: StatusCode) -> std::result::Result<(), String> {
    match status.is_informational() {
        true => {
            Err(format!("it sent status {}, which the request does not allow", status.as_u16()))
        }
        false => Ok(()),
    }
}

/// The origin's error with a sentence in place of its empty body, where its type is one of text or
/// JSON, or missing.
fn with_sentence(response: Response<Body>) -> Response<Body> {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.map_or("", |value| value.to_str().unwrap_or("?"));
    let is_json = content_type.starts_with(JSON);
    if !content_type.is_empty() && !is_json && !content_type.starts_with("text/") {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let status = parts.status;
    let why = format!("the proxy's origin answered {status} without a text");
    let (explained, body) = answer::error(is_json, status, why).into_parts();
    for stale in [header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::ETAG] {
        parts.headers.remove(stale);
    }
    if let Some(content_type) = explained.headers.get(header::CONTENT_TYPE) {
        parts.headers.insert(header::CONTENT_TYPE, content_type.clone());
    }
    Response::from_parts(parts, body)
}

/// In the form that Prometheus' clients understand.
fn unreachable_origin(url: &Url, why: &str) -> Response<Body> {
    static FAILURES: Throttle = Throttle::new();
    if let Some(count) = FAILURES.note(1, Instant::now()) {
        tracing::warn!("{url} does not answer {count} requests; the last one: {why}");
    }
    failure(
        StatusCode::BAD_GATEWAY,
        "unavailable",
        &format!("the proxy's origin {url} does not answer: {why}"),
    )
}

fn not_forwarded() -> Response<Body> {
    failure(StatusCode::BAD_REQUEST, "bad_data", "the path is not forwarded")
}

fn failure(status: StatusCode, kind: &str, error: &str) -> Response<Body> {
    Payload::new(json::failure(kind, error), Packing::Plain, None).answer(status, JSON)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// Before, a body that dripped a byte within each timeout never ended.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_drips_ends() {
        let limits = TransferLimits {
            stall: Duration::from_secs(10),
            slack: Duration::from_secs(20),
            bytes_per_second_min: 1_000,
        };
        let timed = |pause: Duration, bytes: usize| {
            let stream = futures_util::stream::unfold(0, move |sent| async move {
                sleep(pause).await;
                (sent < 100).then(|| (io::Result::Ok(vec![b'x'; bytes]), sent + 1))
            });
            let (body, clock) = (Body::from_stream(stream), TransferClock::default());
            TimedBody { body, clock, limits, timer: None }
        };
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let error = timed(second, 1).collect().await.unwrap_err();
        assert!(error.to_string().contains("--origin-timeout"), "{error}");
        assert!(start.elapsed() <= 21 * second, "{:?}", start.elapsed());
        let error = timed(11 * second, 100_000).collect().await.unwrap_err();
        assert!(error.to_string().contains("--origin-timeout"), "{error}");
        let whole = timed(second, 1_000).collect().await.unwrap().to_bytes();
        assert_eq!(whole.len(), 100_000, "the slowest rate is enough");
    }
}
