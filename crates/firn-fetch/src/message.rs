//! A request and its answer.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use firn_model::Secret;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};

use crate::body::Body;
use crate::sent_secrets::SentSecrets;

/// A request. Without content it is a `GET`, else a `POST` or a `PUT`.
#[derive(Clone, Debug)]
pub struct Request {
    /// The address.
    pub url: String,
    /// The path of the Unix socket to connect to, in place of the address' host.
    pub unix_socket: Option<String>,
    /// Headers beside those of the configuration.
    pub headers: Vec<(HeaderName, String)>,
    /// `Authorization`, if the configuration has no credentials.
    pub authorization: Option<Secret>,
    /// Headers that only the host of the address receives, not one that it redirects to.
    pub secrets: Vec<(HeaderName, Secret)>,
    /// The body to send.
    pub content: Option<Content>,
    /// An unpacked body of this length is too long. 0 is no limit but that of the memory.
    pub body_bytes_max: u64,
    /// From the connection to the last byte of the body.
    pub timeout: Duration,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub struct Content {
    /// Whether the request is a `PUT`.
    pub is_put: bool,
    /// Whether it has credentials: a redirect that would send it to another host is an error.
    pub is_secret: bool,
    /// `Content-Type`.
    pub media_type: String,
    /// The bytes.
    pub bytes: Bytes,
}

/// An answer with any status.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body, unpacked. Of a status other than 200 at most 16 KiB, and `<secret>` in place of
    /// each credential that the request carried: errors show its beginning.
    pub body: Body,
    pub(crate) secrets: SentSecrets,
}

impl Response {
    /// `Content-Type`, if it is a text.
    pub fn content_type(&self) -> Option<&str> {
        self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok())
    }

    /// The status with its standard text, as in `404 Not Found`.
    pub fn status_text(&self) -> String {
        StatusCode::from_u16(self.status)
            .map_or_else(|_| self.status.to_string(), |s| s.to_string())
    }

    /// `Retry-After` in seconds. Dates are ignored.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The text of an error that quotes the body, without the credentials that the request carried.
    /// O(length of the body).
    pub fn without_secrets(&self, error: impl fmt::Display) -> String {
        self.secrets.hide_in_error(&error.to_string(), &self.body)
    }
}
