//! The database behind the proxy: requests and responses are forwarded unchanged, except for
//! headers of one connection.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode};
use bytes::Bytes;
use firn_model::{Error, Reservation, Result, Secret};
use reqwest::{Certificate, Client, ClientBuilder, Identity, RequestBuilder, Url};

use super::policy::percent_decode;
use crate::answer::shared_body;
use crate::config::{CacheConfig, FilePath, Or, OriginUrl, Unset};

// An unreachable host must not block a dashboard for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// User and password of requests without `Authorization`, if the setting names them.
    credentials: Option<(String, Secret)>,
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
            // Until the response begins, and between two parts of it.
            .read_timeout(config.origin_timeout.duration())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|e| Error::unavailable("cannot set up the proxy's connections").because(e))?;
        let mut url = origin.url().clone();
        let plain =
            |text: &str| String::from_utf8_lossy(&percent_decode(text.as_bytes())).into_owned();
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        let credentials = has_credentials.then(|| {
            (plain(url.username()), Secret::new(plain(url.password().unwrap_or_default())))
        });
        // Both fail only for URLs without a host.
        let _ = url.set_password(None).and_then(|()| url.set_username(""));
        Ok(Origin { url, credentials, client })
    }

    /// Forwards a request with [`end_to_end`] headers, and its response, as streams.
    pub(super) async fn pass(&self, parts: Parts, body: Body) -> Response<Body> {
        let Some(url) = self.url_of(parts.uri.path(), parts.uri.query()) else {
            return not_forwarded();
        };
        let mut headers = parts.headers;
        headers.remove(header::HOST);
        let request = self.client.request(parts.method, url);
        let mut request = self.authorized(request, headers);
        if !body.is_end_stream() {
            request = request.body(reqwest::Body::wrap_stream(body.into_data_stream()));
        }
        match request.send().await {
            Ok(answer) => {
                let (mut parts, body) = Response::from(answer).into_parts();
                parts.headers = end_to_end(&parts.headers);
                Response::from_parts(parts, Body::new(body))
            }
            Err(error) => unreachable_origin(&self.url, &chain(error)),
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
        let mut headers = parts.headers.clone();
        let own = [header::HOST, header::ACCEPT_ENCODING, header::CONTENT_LENGTH];
        for name in own.iter().chain(&OF_BROWSERS) {
            headers.remove(name);
        }
        let is_post = parts.method == Method::POST;
        let url = self.url_of(parts.uri.path(), (!is_post).then_some(&*form));
        let url = url.ok_or_else(|| FetchError::Failed("the path is not forwarded".to_owned()))?;
        let request = match is_post {
            true => self.authorized(self.client.post(url), headers).body(form),
            false => self.authorized(self.client.get(url), headers),
        };
        let failed = |error: reqwest::Error| FetchError::Failed(chain(error));
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

    /// The request with the client's headers, and with the proxy's credentials unless the client
    /// has its own.
    fn authorized(&self, request: RequestBuilder, headers: HeaderMap) -> RequestBuilder {
        let has_own = headers.contains_key(header::AUTHORIZATION);
        let request = request.headers(headers);
        match self.credentials.as_ref().filter(|_| !has_own) {
            Some((user, password)) => request.basic_auth(user, Some(password.expose())),
            None => request,
        }
    }

    /// `None` if the URL's parser reads another path than the one that was checked.
    fn url_of(&self, path: &str, query: Option<&str>) -> Option<Url> {
        let mut url = self.url.clone();
        let prefix = self.url.path().trim_end_matches('/');
        let wanted = format!("{prefix}{path}");
        url.set_path(&wanted);
        url.set_query(query);
        let depth = |path: &str| path.matches('/').count();
        let is_below = path.starts_with('/')
            && url.path().strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        (is_below && depth(url.path()) == depth(&wanted)).then_some(url)
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

    /// As an answer to a client, with the memory of the body.
    pub(super) fn answer(&self, held: Arc<Reservation>) -> Response<Body> {
        let mut response = Response::new(shared_body(self.body.clone(), held));
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

/// The headers without those of the connection: the fixed ones, and those that `Connection` names.
pub(super) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
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
    tracing::warn!("{url} does not answer: {why}");
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
    let body = serde_json::json!({"status": "error", "errorType": kind, "error": error});
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static(crate::answer::JSON);
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The error with its causes: the outermost one states only that sending failed. Without the URL,
/// whose parameters may be passwords.
fn chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    if error.is_timeout() && !error.is_connect() {
        text = format!("no progress within --origin-timeout: {text}");
    }
    let mut next = std::error::Error::source(&error);
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
