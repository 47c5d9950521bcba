//! Responses of handlers, and the API's errors with their types and status codes.

use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, VARY,
};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use firn_model::{Error, ErrorKind, Reservation};

use crate::wire::json;

pub(crate) const JSON: &str = "application/json";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// A finished body, compressed if the client accepts that, with its memory reservation.
#[derive(Debug)]
pub(crate) struct Payload {
    bytes: Vec<u8>,
    packing: Packing,
    held: Option<Reservation>,
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
}

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
        let codings: Vec<(&str, f32)> =
            values.flat_map(|value| value.split(',')).filter_map(coding_and_weight).collect();
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

    fn pack(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let buffer = Vec::with_capacity(bytes.len() / 4);
        let fast = flate2::Compression::fast();
        match self {
            Packing::Plain => Ok(bytes.to_vec()),
            Packing::Zstd => {
                let mut encoder = zstd::Encoder::new(buffer, ZSTD_LEVEL)?;
                encoder.write_all(bytes)?;
                encoder.finish()
            }
            Packing::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(buffer, fast);
                encoder.write_all(bytes)?;
                encoder.finish()
            }
            Packing::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(buffer, fast);
                encoder.write_all(bytes)?;
                encoder.finish()
            }
        }
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
        if packing == Packing::Plain || bytes.len() < PACKED_BYTES_MIN {
            return Payload { bytes, packing: Packing::Plain, held };
        }
        match packing.pack(&bytes) {
            Ok(packed) => Payload { bytes: packed, packing, held },
            // Writing into a Vec does not fail; the plain body is right in any case.
            Err(_) => Payload { bytes, packing: Packing::Plain, held },
        }
    }

    /// The answer with this body.
    pub(crate) fn answer(self, status: StatusCode, content_type: &'static str) -> Response<Body> {
        let body = HeldBody { bytes: Some(Bytes::from(self.bytes)), _held: self.held };
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

/// A body that keeps its reservation until it is sent or the client disconnects.
struct HeldBody {
    bytes: Option<Bytes>,
    _held: Option<Reservation>,
}

impl axum::body::HttpBody for HeldBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.bytes.as_ref().map_or(0, |b| b.len() as u64))
    }
}

/// A text answer.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    Payload::new(text.into().into_bytes(), Packing::Plain, None).answer(status, TEXT)
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
        ApiError::bad_data(format!("invalid parameter {name:?}: {why}"))
    }

    /// The limit of a user's queries at once.
    pub(crate) fn too_many_queries() -> ApiError {
        let text = "too many queries of this user at once (users.limits.queries_at_once)";
        ApiError { kind: ApiErrorKind::TooMany, text: text.to_owned() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            ApiErrorKind::BadData => StatusCode::BAD_REQUEST,
            ApiErrorKind::Execution => StatusCode::UNPROCESSABLE_ENTITY,
            ApiErrorKind::Canceled => client_gone(),
            ApiErrorKind::Timeout => StatusCode::SERVICE_UNAVAILABLE,
            // Prometheus' status for `unavailable` is 500, which its clients expect.
            ApiErrorKind::Unavailable | ApiErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ApiErrorKind::NotFound => StatusCode::NOT_FOUND,
            ApiErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            ApiErrorKind::BadData => "bad_data",
            ApiErrorKind::Execution => "execution",
            ApiErrorKind::Canceled => "canceled",
            ApiErrorKind::Timeout => "timeout",
            ApiErrorKind::Internal => "internal",
            ApiErrorKind::Unavailable => "unavailable",
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
            ErrorKind::Busy { .. }
            | ErrorKind::SeriesLimit { .. }
            | ErrorKind::Unavailable
            | ErrorKind::Closed
            | ErrorKind::Conflict => ApiErrorKind::Unavailable,
            ErrorKind::Corrupt { .. } | ErrorKind::Internal => ApiErrorKind::Internal,
        };
        if matches!(kind, ApiErrorKind::Internal) {
            tracing::error!(%error, "a query failed");
        }
        ApiError { kind, text: error.to_string() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let body = json::failure(self.name(), &self.text);
        let mut response = Payload::new(body, Packing::Plain, None).answer(self.status(), JSON);
        if matches!(self.kind, ApiErrorKind::TooMany) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for cannot_now in [
            ErrorKind::Unavailable,
            ErrorKind::Closed,
            ErrorKind::Conflict,
            ErrorKind::Busy { retry_after_ms: 1 },
        ] {
            f(cannot_now, "unavailable", 500);
        }
        assert_eq!(ApiError::bad_data("x").status(), StatusCode::BAD_REQUEST);
    }
}
