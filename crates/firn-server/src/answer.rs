//! Responses of handlers, and the API's errors with their types and status codes.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, VARY,
};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use firn_model::{Error, ErrorKind, Reservation, excerpt, excerpt_within, one_line};

use crate::throttle::Throttle;
use crate::wire::json;

pub(crate) const JSON: &str = "application/json";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// A finished body, compressed if the client accepts that, with its memory reservation.
#[derive(Debug)]
pub(crate) struct Payload {
    bytes: PayloadBytes,
    packing: Packing,
    held: Option<Reservation>,
}

#[derive(Debug)]
enum PayloadBytes {
    /// In one or more pieces.
    Own(Vec<Vec<u8>>),
    /// Bytes that a cache shares.
    Shared(Arc<[u8]>),
}

/// Compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Zstd,
    Gzip,
    /// HTTP's name for zlib.
    Deflate,
}

/// An error of the query API.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) kind: ApiErrorKind,
    pub(crate) text: String,
}

/// `errorType`, which determines the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiErrorKind {
    BadData,
    Execution,
    Canceled,
    Timeout,
    Internal,
    Unavailable,
    NotFound,
    /// The user has too many queries at once.
    TooMany,
    /// Memory, or another part of the server's capacity, is used up for now.
    Busy {
        retry_after_ms: u64,
    },
}

const ERROR_BYTES_MAX: usize = 4_096;
// The first of `Accept-Encoding` that are read: a list of thousands would take milliseconds.
const CODINGS_MAX: usize = 32;
// Smaller bodies fit into one packet; compressing them only costs time.
const PACKED_BYTES_MIN: usize = 1_024;
// 2 ns a byte; JSON of numbers gets no smaller by the next levels.
const ZSTD_LEVEL: i32 = 1;

impl Packing {
    // The order of preference among equal weights: less work and fewer bytes first.
    const ALL: [Packing; 3] = [Packing::Zstd, Packing::Gzip, Packing::Deflate];

    /// The heaviest coding of `Accept-Encoding` that is known here; a weight of 0 means no.
    pub(crate) fn of(headers: &HeaderMap) -> Packing {
        let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
        let elements = values.flat_map(|value| value.split(',')).take(CODINGS_MAX);
        let codings: Vec<(&str, f32)> = elements.filter_map(coding_and_weight).collect();
        let weight = |name: &str| {
            let named = codings.iter().find(|(coding, _)| coding.eq_ignore_ascii_case(name));
            named.or_else(|| codings.iter().find(|(coding, _)| *coding == "*")).map_or(0.0, |c| c.1)
        };
        let mut best = (Packing::Plain, 0.0);
        for packing in Packing::ALL {
            let weight = weight(packing.name());
            if weight > best.1 {
                best = (packing, weight);
            }
        }
        best.0
    }

    fn name(self) -> &'static str {
        match self {
            Packing::Plain => "identity",
            Packing::Zstd => "zstd",
            Packing::Gzip => "gzip",
            Packing::Deflate => "deflate",
        }
    }

    /// Packs `pieces` into at most `bytes_max`.
    ///
    /// # Errors
    /// If they do not fit.
    fn pack(self, pieces: &[Vec<u8>], bytes_max: usize) -> std::io::Result<Vec<u8>> {
        let mut buffer = BoundedVec { bytes: Vec::with_capacity(bytes_max), bytes_max };
        let fast = flate2::Compression::fast();
        let write = |writer: &mut dyn Write| pieces.iter().try_for_each(|p| writer.write_all(p));
        match self {
            Packing::Plain => {
                write(&mut buffer)?;
                Ok(buffer.bytes)
            }
            Packing::Zstd => {
                let mut encoder = zstd::Encoder::new(buffer, ZSTD_LEVEL)?;
                write(&mut encoder)?;
                Ok(encoder.finish()?.bytes)
            }
            Packing::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(buffer, fast);
                write(&mut encoder)?;
                Ok(encoder.finish()?.bytes)
            }
            Packing::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(buffer, fast);
                write(&mut encoder)?;
                Ok(encoder.finish()?.bytes)
            }
        }
    }
}

/// A writer that fails instead of growing over its bound.
struct BoundedVec {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Write for BoundedVec {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.bytes_max - self.bytes.len() {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One element of `Accept-Encoding`; without a weight it has 1. A weight that is none is 0.
fn coding_and_weight(element: &str) -> Option<(&str, f32)> {
    let mut parts = element.split(';').map(str::trim);
    let coding = parts.next().filter(|coding| !coding.is_empty())?;
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    Some((coding, weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))))
}

impl Payload {
    /// Compresses `bytes` if the client accepts it and it saves enough. Costs up to 10 ns per byte:
    /// do not call it on an async thread with a large body.
    pub(crate) fn new(bytes: Vec<u8>, packing: Packing, held: Option<Reservation>) -> Payload {
        Payload::of_pieces(vec![bytes], packing, held)
    }

    /// As [`Payload::new`], of a body in pieces.
    pub(crate) fn of_pieces(
        pieces: Vec<Vec<u8>>,
        packing: Packing,
        mut held: Option<Reservation>,
    ) -> Payload {
        let plain = |pieces, held| Payload {
            bytes: PayloadBytes::Own(pieces),
            packing: Packing::Plain,
            held,
        };
        let len: usize = pieces.iter().map(Vec::len).sum();
        if packing == Packing::Plain || len < PACKED_BYTES_MIN {
            return plain(pieces, held);
        }
        // While it is packed both forms exist. Without memory for that, or if it saves less than a
        // quarter, it is sent as it is.
        let packed_bytes_max = len / 4 * 3;
        if held.as_mut().is_some_and(|held| held.grow(packed_bytes_max as u64).is_err()) {
            return plain(pieces, held);
        }
        let (pieces, packing) = match packing.pack(&pieces, packed_bytes_max) {
            Ok(mut packed) => {
                packed.shrink_to_fit();
                (vec![packed], packing)
            }
            Err(_) => (pieces, Packing::Plain),
        };
        if let Some(held) = &mut held {
            held.shrink_to(pieces.iter().map(Vec::capacity).sum::<usize>() as u64);
        }
        Payload { bytes: PayloadBytes::Own(pieces), packing, held }
    }

    /// The JSON document of an earlier payload, from its bytes and the packing of its client.
    pub(crate) fn of_kept_json(bytes: Arc<[u8]>, packing: Packing, held: Reservation) -> Payload {
        // No packed form begins like a document. Short ones are not packed.
        let packing = if bytes.first() == Some(&b'{') { Packing::Plain } else { packing };
        Payload { bytes: PayloadBytes::Shared(bytes), packing, held: Some(held) }
    }

    /// The body as it will be sent, if it is in one piece.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.bytes {
            PayloadBytes::Own(pieces) => match pieces.as_slice() {
                [bytes] => Some(bytes),
                _ => None,
            },
            PayloadBytes::Shared(bytes) => Some(bytes),
        }
    }

    /// The answer with this body.
    pub(crate) fn answer(self, status: StatusCode, content_type: &'static str) -> Response<Body> {
        let body = match self.bytes {
            PayloadBytes::Own(pieces) => FramedBody::new(pieces, self.held),
            PayloadBytes::Shared(bytes) => FramedBody::shared(bytes, self.held),
        };
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        if self.packing != Packing::Plain {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(self.packing.name()));
        }
        response
    }
}

/// A body that is sent in frames. The memory of a piece and its reservation last until the
/// connection has written the last of its frames; of a piece that a client reads slowly, the sent
/// half is released first.
struct FramedBody {
    /// Of the current piece; empty at the end of the body.
    rest: Bytes,
    /// Bytes of this piece before `rest` that are still in memory.
    sent: usize,
    later: std::vec::IntoIter<Vec<u8>>,
    later_held: Option<Reservation>,
    /// Empty, to reserve a copy of the rest.
    next_held: Option<Reservation>,
    started: Option<Instant>,
}

// hyper holds some frames at a time.
const FRAME_BYTES: usize = 64 << 10;
// A client that keeps pace has received the whole body before this time.
const SLOW_AFTER: Duration = Duration::from_secs(1);
const COPIED_BYTES_MIN: usize = 1 << 20;

/// Bytes with their reservation, both released with the last frame that refers to them.
struct ReservedBytes {
    bytes: Vec<u8>,
    _held: Option<Reservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FramedBody {
    fn new(pieces: Vec<Vec<u8>>, mut held: Option<Reservation>) -> FramedBody {
        let next_held = held.as_mut().map(|held| held.split(0));
        let (rest, later) = (Bytes::new(), pieces.into_iter());
        let mut body =
            FramedBody { rest, sent: 0, later, later_held: held, next_held, started: None };
        body.next_piece();
        body
    }

    /// A body of bytes that others use too.
    fn shared<B, H>(bytes: B, held: H) -> FramedBody
    where
        B: AsRef<[u8]> + Send + 'static,
        H: Send + 'static,
    {
        let rest = Bytes::from_owner(SharedBytes { bytes, _held: held });
        let later = Vec::new().into_iter();
        FramedBody { rest, sent: 0, later, later_held: None, next_held: None, started: None }
    }

    /// Begins the next piece if the current one was sent.
    fn next_piece(&mut self) {
        while self.rest.is_empty()
            && let Some(bytes) = self.later.next()
        {
            let held = match self.later.len() {
                0 => self.later_held.take(),
                _ => self.later_held.as_mut().map(|held| held.split(bytes.capacity() as u64)),
            };
            let piece = ReservedBytes { bytes, _held: held };
            (self.rest, self.sent) = (Bytes::from_owner(piece), 0);
        }
    }

    fn unsent_bytes(&self) -> usize {
        self.rest.len() + self.later.as_slice().iter().map(Vec::len).sum::<usize>()
    }

    /// Copies the unsent bytes of the piece if the client is slow and half was sent, so that the
    /// sent half is released. All copies together are no longer than the piece.
    fn release_sent(&mut self) {
        let started = *self.started.get_or_insert_with(Instant::now);
        let is_half_sent = self.sent >= self.rest.len() && self.rest.len() >= COPIED_BYTES_MIN;
        if !is_half_sent || started.elapsed() < SLOW_AFTER {
            return;
        }
        let Some(next_held) = &mut self.next_held else { return };
        let mut held = next_held.split(0);
        if held.grow(self.rest.len() as u64).is_ok() {
            let rest = ReservedBytes { bytes: self.rest.to_vec(), _held: Some(held) };
            (self.rest, self.sent) = (Bytes::from_owner(rest), 0);
        }
    }
}

impl axum::body::HttpBody for FramedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        self.release_sent();
        let frame_bytes = self.rest.len().min(FRAME_BYTES);
        self.sent += frame_bytes;
        let frame = self.rest.split_to(frame_bytes);
        self.next_piece();
        Poll::Ready(Some(Ok(hyper::body::Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.unsent_bytes() as u64)
    }
}

/// Bytes that several clients receive, with a reservation.
struct SharedBytes<B, H> {
    bytes: B,
    _held: H,
}

impl<B: AsRef<[u8]>, H> AsRef<[u8]> for SharedBytes<B, H> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// A body of shared bytes. The reservation lasts until the last client has received it.
pub(crate) fn shared_body(bytes: Bytes, held: Arc<Reservation>) -> Body {
    Body::new(FramedBody::shared(bytes, held))
}

/// An error of no handler: JSON for paths of the API, one line of text for others.
pub(crate) fn error(is_api: bool, status: StatusCode, why: String) -> Response<Body> {
    if !is_api {
        return text(status, why + "\n");
    }
    let name = match status {
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => "timeout",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "unavailable",
        status if status.is_server_error() => "internal",
        _ => "bad_data",
    };
    Payload::new(json::failure(name, &why), Packing::Plain, None).answer(status, JSON)
}

/// A text answer.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut text = text.into();
    if status.is_client_error() || status.is_server_error() {
        // As in JSON, an error repeats only the beginning of a client's input, on one line.
        let line = one_line(text.strip_suffix('\n').unwrap_or(&text));
        text = excerpt_within(&line, ERROR_BYTES_MAX).into_owned() + "\n";
    }
    Payload::new(text.into_bytes(), Packing::Plain, None).answer(status, TEXT)
}

/// An empty success.
pub(crate) fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// 499, nginx's code for a client that disconnected; it appears only in metrics.
pub(crate) fn client_gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

/// A database error for writers: a status, one sentence, and the time to retry.
pub(crate) fn write_error(error: &Error) -> Response<Body> {
    with_retry_after(error, text(write_status(error), format!("{error}\n")))
}

/// The same in the API's JSON form. A missing object is 404 here, and a transaction that lost a
/// conflict 409.
pub(crate) fn write_error_json(error: &Error) -> Response<Body> {
    let (status, name) = match write_status(error) {
        _ if *error.kind() == ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        _ if *error.kind() == ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        status if status == StatusCode::INTERNAL_SERVER_ERROR => (status, "internal"),
        status if status.is_server_error() => (status, "unavailable"),
        status if status == StatusCode::TOO_MANY_REQUESTS => (status, "unavailable"),
        status => (status, "bad_data"),
    };
    let body = json::failure(name, &error.to_string());
    with_retry_after(error, Payload::new(body, Packing::Plain, None).answer(status, JSON))
}

/// The status of a database error for writers.
pub(crate) fn write_status(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::NotFound => StatusCode::BAD_REQUEST,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Busy { .. } | ErrorKind::SeriesLimit { .. } => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unavailable
        | ErrorKind::Closed
        | ErrorKind::Conflict
        | ErrorKind::Timeout
        | ErrorKind::Canceled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupt { .. } | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Retry time after a failed device or slow tier: the length of an outage is unknown, and a retry
/// is cheap.
const UNAVAILABLE_RETRY_SECONDS: u64 = 1;

/// Adds `Retry-After` to the response if a retry may succeed.
pub(crate) fn with_retry_after(error: &Error, mut response: Response<Body>) -> Response<Body> {
    let seconds = match error.kind() {
        ErrorKind::Busy { retry_after_ms } | ErrorKind::SeriesLimit { retry_after_ms, .. } => {
            retry_after_ms.div_ceil(1_000).max(1)
        }
        ErrorKind::Unavailable => UNAVAILABLE_RETRY_SECONDS,
        _ => return response,
    };
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

impl ApiError {
    /// An invalid request.
    pub(crate) fn bad_data(text: impl Into<String>) -> ApiError {
        ApiError { kind: ApiErrorKind::BadData, text: text.into() }
    }

    /// A parameter does not parse.
    pub(crate) fn parameter(name: &str, why: impl std::fmt::Display) -> ApiError {
        ApiError::bad_data(format!("invalid parameter {:?}: {why}", excerpt(name)))
    }

    /// The limit of a user's queries at once.
    pub(crate) fn too_many_queries() -> ApiError {
        let text = "too many queries of this user at once (users.limits.queries_at_once)";
        ApiError { kind: ApiErrorKind::TooMany, text: text.to_owned() }
    }

    /// The same for writers, whose errors have other codes.
    pub(crate) fn into_error(self) -> Error {
        let kind = match self.kind {
            ApiErrorKind::BadData | ApiErrorKind::Execution => ErrorKind::Invalid,
            ApiErrorKind::Canceled => ErrorKind::Canceled,
            ApiErrorKind::Timeout => ErrorKind::Timeout,
            ApiErrorKind::Unavailable => ErrorKind::Unavailable,
            ApiErrorKind::NotFound => ErrorKind::NotFound,
            ApiErrorKind::Internal => ErrorKind::Internal,
            ApiErrorKind::TooMany => ErrorKind::Busy { retry_after_ms: 1_000 },
            ApiErrorKind::Busy { retry_after_ms } => ErrorKind::Busy { retry_after_ms },
        };
        Error::new(kind, self.text)
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            ApiErrorKind::BadData => StatusCode::BAD_REQUEST,
            ApiErrorKind::Execution => StatusCode::UNPROCESSABLE_ENTITY,
            ApiErrorKind::Canceled => client_gone(),
            ApiErrorKind::Timeout | ApiErrorKind::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            // Prometheus' status for `unavailable` is 500, which its clients expect.
            ApiErrorKind::Unavailable | ApiErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ApiErrorKind::NotFound => StatusCode::NOT_FOUND,
            ApiErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// When a retry may succeed, if that is known.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        match self.kind {
            ApiErrorKind::TooMany => Some(1),
            ApiErrorKind::Busy { retry_after_ms } => Some(retry_after_ms.div_ceil(1_000).max(1)),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            ApiErrorKind::BadData => "bad_data",
            ApiErrorKind::Execution => "execution",
            ApiErrorKind::Canceled => "canceled",
            ApiErrorKind::Timeout => "timeout",
            ApiErrorKind::Internal => "internal",
            ApiErrorKind::Unavailable | ApiErrorKind::Busy { .. } => "unavailable",
            ApiErrorKind::NotFound => "not_found",
            ApiErrorKind::TooMany => "too_many_requests",
        }
    }
}

/// A database error in the middle of a query.
impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let kind = match error.kind() {
            ErrorKind::Invalid | ErrorKind::TooLarge => ApiErrorKind::Execution,
            ErrorKind::NotFound => ApiErrorKind::NotFound,
            ErrorKind::Canceled => ApiErrorKind::Canceled,
            ErrorKind::Timeout => ApiErrorKind::Timeout,
            ErrorKind::Busy { retry_after_ms } | ErrorKind::SeriesLimit { retry_after_ms, .. } => {
                ApiErrorKind::Busy { retry_after_ms: *retry_after_ms }
            }
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Conflict => {
                ApiErrorKind::Unavailable
            }
            ErrorKind::Corrupt { .. } | ErrorKind::Internal => ApiErrorKind::Internal,
        };
        if matches!(kind, ApiErrorKind::Internal) {
            static FAILURES: Throttle = Throttle::new();
            if let Some(count) = FAILURES.note(1, Instant::now()) {
                tracing::error!("{count} queries failed; the last: {error}");
            }
        }
        ApiError { kind, text: error.to_string() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let body = json::failure(self.name(), &self.text);
        let mut response = Payload::new(body, Packing::Plain, None).answer(self.status(), JSON);
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::body::HttpBody;
    use firn_model::{Budget, Pool};

    use super::*;

    fn next_frame(body: &mut FramedBody) -> Option<Bytes> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(body).poll_frame(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("a frame is always ready"),
        }
    }

    #[test]
    fn the_last_frame_releases_the_reservation_of_a_body() {
        let budget = Budget::new(100 << 20);
        let bytes: Vec<u8> = (0..4 << 20).map(|idx| (idx / 777) as u8).collect();
        for is_slow in [false, true] {
            let held = budget.reserve(Pool::Query, bytes.len() as u64).unwrap();
            let mut body = FramedBody::new(vec![bytes.clone()], Some(held));
            assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
            let (mut received, mut least) = (Vec::new(), u64::MAX);
            let mut last = None;
            while let Some(frame) = next_frame(&mut body) {
                assert!(frame.len() <= FRAME_BYTES);
                received.extend_from_slice(&frame);
                last = Some(frame);
                let used = budget.usage().used_bytes;
                assert!(used >= (bytes.len() - received.len()) as u64);
                least = least.min(used);
                if is_slow && received.len() == FRAME_BYTES {
                    body.started = body.started.and_then(|at| at.checked_sub(SLOW_AFTER));
                }
            }
            assert!(received == bytes && body.is_end_stream());
            drop(body);
            assert!(budget.usage().used_bytes > 0, "the last frame was not written yet");
            assert_eq!(least <= 1 << 20, is_slow, "{least} bytes are the least in memory");
            drop(last);
            assert_eq!(budget.usage().used_bytes, 0);
        }
    }

    #[test]
    fn each_piece_of_a_body_is_released_when_it_is_sent() {
        let budget = Budget::new(100 << 20);
        let pieces: Vec<Vec<u8>> = vec![vec![1; 300_000], Vec::new(), vec![2; 10], vec![3; 70_000]];
        let all = pieces.concat();
        let held = budget.reserve(Pool::Query, 370_010).unwrap();
        let payload = Payload::of_pieces(pieces.clone(), Packing::Gzip, Some(held));
        let mut unpacked = Vec::new();
        let mut packed = flate2::read::GzDecoder::new(payload.bytes().unwrap());
        std::io::Read::read_to_end(&mut packed, &mut unpacked).unwrap();
        assert!(unpacked == all);
        drop(payload);
        let held = budget.reserve(Pool::Query, 370_010).unwrap();
        let mut body = FramedBody::new(pieces, Some(held));
        let mut received = Vec::new();
        while let Some(frame) = next_frame(&mut body) {
            received.extend_from_slice(&frame);
            drop(frame);
            let unsent = (all.len() - received.len()) as u64;
            assert_eq!(body.size_hint().exact(), Some(unsent));
            let used = budget.usage().used_bytes;
            assert!(used >= unsent && (unsent > 70_010 || used <= 70_010), "{used} for {unsent}");
        }
        assert!(received == all && body.is_end_stream());
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[test]
    fn a_body_without_memory_for_its_packed_form_is_sent_plain() {
        let bytes = vec![b'x'; 1 << 20];
        for (limit, packing) in [(1 << 20, Packing::Plain), (2 << 20, Packing::Gzip)] {
            let budget = Budget::unlimited().part(limit);
            let held = budget.reserve(Pool::Query, bytes.len() as u64).unwrap();
            let payload = Payload::new(bytes.clone(), Packing::Gzip, Some(held));
            assert_eq!(payload.packing, packing);
            assert!(budget.usage().used_bytes >= payload.bytes().unwrap().len() as u64);
        }
    }

    #[test]
    fn accept_encoding_is_read_with_weights() {
        let f = |value: &'static str, wanted: Packing| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(Packing::of(&headers), wanted, "{value}");
        };
        f("gzip", Packing::Gzip);
        f("deflate, GZIP;q=0.5, br", Packing::Deflate);
        f("deflate,gzip ; q=1", Packing::Gzip);
        f("gzip, deflate, br, zstd", Packing::Zstd);
        f("zstd;q=0.3, gzip;Q=0.4", Packing::Gzip);
        f("*", Packing::Zstd);
        f("zstd;q=0, *", Packing::Gzip);
        for none in
            ["identity", "gzip;q=0", "gzip; q=0.0, br", "x-gzip", "gzip;q=much", "*;q=0", ","]
        {
            f(none, Packing::Plain);
        }
        assert_eq!(Packing::of(&HeaderMap::new()), Packing::Plain);
    }

    #[test]
    fn an_error_is_one_line() {
        let evil = "a\n2026-01-01T00:00:00Z ERROR b\u{1b}[2J\u{9b}\u{202e}\u{2028}\n";
        let body = |response: Response<Body>| {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut body = response.into_body();
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => {
                    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
                }
                _ => panic!("no body"),
            }
        };
        let plain = body(text(StatusCode::BAD_REQUEST, evil));
        let line = plain.strip_suffix('\n').unwrap();
        assert_eq!(one_line(line), line);
        assert!(line.starts_with(r"a\n2026") && line.ends_with(r"\u{2028}"), "{line}");
        let json = body(ApiError::bad_data(evil).into_response());
        assert_eq!(one_line(&json), json);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["error"], evil);
        assert_eq!(body(text(StatusCode::OK, "a\nb\n")), "a\nb\n");
    }

    #[test]
    fn errors_have_prometheus_types_and_codes() {
        let f = |kind: ErrorKind, name: &str, status: u16| {
            let error = ApiError::from(Error::new(kind, "x"));
            assert_eq!((error.name(), error.status().as_u16()), (name, status));
        };
        f(ErrorKind::Invalid, "execution", 422);
        f(ErrorKind::TooLarge, "execution", 422);
        f(ErrorKind::Canceled, "canceled", 499);
        f(ErrorKind::Timeout, "timeout", 503);
        f(ErrorKind::NotFound, "not_found", 404);
        f(ErrorKind::Corrupt { file: "17.fst".to_owned(), offset: 4 }, "internal", 500);
        f(ErrorKind::Internal, "internal", 500);
        for cannot_now in [ErrorKind::Unavailable, ErrorKind::Closed, ErrorKind::Conflict] {
            f(cannot_now, "unavailable", 500);
        }
        // The memory budget is used up.
        f(ErrorKind::Busy { retry_after_ms: 1 }, "unavailable", 503);
        let error = ApiError::from(Error::busy(2_001, "memory budget: query needs more"));
        assert_eq!(error.into_response().headers()[RETRY_AFTER], "3");
        assert_eq!(ApiError::bad_data("x").status(), StatusCode::BAD_REQUEST);
    }
}
