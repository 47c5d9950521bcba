//! The database behind the proxy: requests and responses are forwarded unchanged.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode};
use bytes::Bytes;
use firn_model::{Error, Reservation, Result};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Url};

use crate::config::{CacheConfig, FilePath, Or, OriginUrl, Unset};

// An unreachable host must not block a dashboard for minutes. A slow response has no limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Headers that belong to one connection and not to the message (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// The origin: the database behind the proxy.
#[derive(Debug)]
pub(super) struct Origin {
    url: Url,
    client: Client,
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
        let client = with_certificates(Client::builder(), config)?
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|e| Error::unavailable("cannot set up the proxy's connections").because(e))?;
        Ok(Origin { url: origin.url().clone(), client })
    }

    /// Forwards a request and its response as streams, without hop-by-hop headers.
    pub(super) async fn pass(&self, parts: Parts, body: Body) -> Response<Body> {
        let url = self.url_of(parts.uri.path(), parts.uri.query());
        let mut headers = end_to_end(&parts.headers);
        headers.remove(header::HOST);
        let has_body = parts.headers.contains_key(header::CONTENT_LENGTH)
            || parts.headers.contains_key(header::TRANSFER_ENCODING);
        let mut request = self.client.request(parts.method, url).headers(headers);
        if has_body {
            request = request.body(reqwest::Body::wrap_stream(body.into_data_stream()));
        }
        match request.send().await {
            Ok(answer) => {
                let (mut parts, body) = Response::from(answer).into_parts();
                parts.headers = end_to_end(&parts.headers);
                Response::from_parts(parts, Body::new(body))
            }
            Err(error) => unreachable_origin(&self.url, &chain(&error)),
        }
    }

    /// Sends the request with other parameters: in the URL, or as a form for a POST. Reads at most
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
        let mut headers = end_to_end(&parts.headers);
        for own in [header::HOST, header::ACCEPT_ENCODING, header::CONTENT_LENGTH] {
            headers.remove(own);
        }
        let path = parts.uri.path();
        let request = match parts.method {
            Method::POST => self.client.post(self.url_of(path, None)).headers(headers).body(form),
            _ => self.client.get(self.url_of(path, Some(&form))).headers(headers),
        };
        let failed = |error: reqwest::Error| FetchError::Failed(chain(&error));
        let mut answer = request.send().await.map_err(failed)?;
        let (status, headers) = (answer.status(), end_to_end(answer.headers()));
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            let is_room = held.grow(chunk.len() as u64 * weight).is_ok();
            if !is_room || body.len() + chunk.len() > bytes_max {
                return Err(FetchError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Fetched { status, headers, body: body.into() })
    }

    /// The answer when the origin has none.
    pub(super) fn unreachable(&self, why: &str) -> Response<Body> {
        unreachable_origin(&self.url, why)
    }

    fn url_of(&self, path: &str, query: Option<&str>) -> Url {
        let mut url = self.url.clone();
        let prefix = self.url.path().trim_end_matches('/');
        url.set_path(&format!("{prefix}{path}"));
        url.set_query(query);
        url
    }
}

impl Fetched {
    /// As an answer to a client.
    pub(super) fn answer(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// The authorities and the identity of the settings.
fn with_certificates(builder: ClientBuilder, config: &CacheConfig) -> Result<ClientBuilder> {
    let read = |setting: &Or<Unset, FilePath>, name: &str| {
        let Some(path) = setting.get() else { return Ok(None) };
        let cannot = |e| Error::invalid(format!("cannot read {name} {path}")).because(e);
        std::fs::read(&path.0).map(Some).map_err(cannot)
    };
    let unusable = |name: &str, expected: &str| {
        let what = format!("{name}: expected {expected} in PEM form");
        move |e: reqwest::Error| Error::invalid(what).because(e)
    };
    let mut builder = builder;
    if let Some(pem) = read(&config.origin_ca_file, "--origin-ca-file")? {
        let unusable = unusable("--origin-ca-file", "certificates");
        let authorities = Certificate::from_pem_bundle(&pem).map_err(unusable)?;
        builder = builder.tls_built_in_root_certs(false);
        for authority in authorities {
            builder = builder.add_root_certificate(authority);
        }
    }
    if let Some(pem) = read(&config.origin_identity_file, "--origin-identity-file")? {
        let unusable = unusable("--origin-identity-file", "a certificate and its key");
        builder = builder.identity(Identity::from_pem(&pem).map_err(unusable)?);
    }
    Ok(builder)
}

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        kept.remove(name.trim());
    }
    for name in &HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

/// In the form that Prometheus' clients understand.
fn unreachable_origin(url: &Url, why: &str) -> Response<Body> {
    let mut shown = url.clone();
    // Remove a password; both calls fail only for URLs without a host.
    let _ = shown.set_password(None).and_then(|()| shown.set_username(""));
    tracing::warn!("{shown} does not answer: {why}");
    let error = format!("the proxy's origin {shown} does not answer: {why}");
    let body = serde_json::json!({"status": "error", "errorType": "unavailable", "error": error});
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    let json = header::HeaderValue::from_static(crate::answer::JSON);
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The error with its causes: the outermost one states only that sending failed.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
