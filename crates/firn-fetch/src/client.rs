//! The client: one request with its redirects.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use firn_collect::config::{HttpClient, OAuth2};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    LOCATION, PROXY_AUTHORIZATION,
};
use hyper::{Method, StatusCode, Uri};
use tokio::task::spawn_blocking;

use crate::body::{Bodies, Body, Unpacker};
use crate::connect::{Connections, Open, Reach, Route};
use crate::fair::{ClientId, FairPlaces};
use crate::lines::Lines;
use crate::message::{Content, Request, Response};
use crate::outgoing::Purpose;
use crate::proxy::Proxies;
use crate::redirect::{REDIRECTS_MAX, is_redirect, keeps_credentials, resolve};
use crate::sent_secrets::SentSecrets;
use crate::tls::TlsSource;
use crate::tokens::Tokens;
use crate::{FetchError, credentials, with_causes};

/// A client of the configuration: `basic_auth`, `tls_config`, `proxy_url` and their like. Shared by
/// all targets of a job.
pub struct Client {
    config: HttpClient,
    tls: TlsSource,
    proxies: Proxies,
    tokens: Option<Box<TokenSource>>,
    bodies: Bodies,
    purpose: Purpose,
    id: ClientId,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The answer to a [`Client::watch`].
#[derive(Debug)]
pub enum Watched {
    /// The lines of the body.
    Lines(Lines),
    /// Another status than 200.
    Refused(Response),
}

// The part of a refusal's body that is read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

impl Client {
    /// A client for `config`, whose bodies are among `bodies`.
    ///
    /// # Errors
    /// `Credentials` for certificates and keys that cannot be read or used now, and for parts of
    /// the configuration that are not supported.
    pub fn new(config: &HttpClient, bodies: &Bodies) -> Result<Client, FetchError> {
        credentials::check(config)?;
        Ok(Client {
            tls: TlsSource::new(&config.tls_config, config.enable_http2, bodies.budget())?,
            proxies: Proxies::new(&config.proxy, &|name| std::env::var(name).ok())?,
            tokens: match &config.oauth2 {
                Some(oauth2) => Some(Box::new(TokenSource::new(oauth2, bodies)?)),
                None => None,
            },
            config: config.clone(),
            bodies: bodies.of_client(),
            purpose: Purpose::Other,
            id: ClientId::unique(),
        })
    }

    /// The same client for connections of `purpose`; before, it is for [`Purpose::Other`].
    #[must_use]
    pub fn with_purpose(self, purpose: Purpose) -> Client {
        Client { purpose, ..self }
    }

    /// Its name among the clients that share connections.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Sends a request, follows redirects and reads the body. `connections` are those that earlier
    /// requests to the same address left open.
    ///
    /// # Errors
    /// If there is no whole answer.
    pub async fn send(
        &self,
        request: &Request,
        connections: &mut Connections,
    ) -> Result<Response, FetchError> {
        let mut secrets = SentSecrets::default();
        let sending = async {
            let (response, open) = self.follow(request, connections, &mut secrets).await?;
            self.read(response, open, request, (&mut *connections, &secrets)).await
        };
        let sent = tokio::time::timeout(request.timeout, sending).await;
        match sent.unwrap_or_else(|_| Err(connections.timeout(self.purpose))) {
            Ok(response) => Ok(Response { secrets, ..response }),
            Err(error) => Err(error.without(&secrets)),
        }
    }

    /// Sends a request whose answer arrives line by line, until either side ends it. The request's
    /// `timeout` is that of the head and of a refusal. No line may have `body_bytes_max` bytes.
    ///
    /// # Errors
    /// If there is no head of an answer. Another status than 200 is a [`Watched::Refused`].
    pub async fn watch(&self, request: &Request) -> Result<Watched, FetchError> {
        let mut connections = Connections::default();
        let mut secrets = SentSecrets::default();
        let opening = async {
            let (response, open) = self.follow(request, &mut connections, &mut secrets).await?;
            if response.status() != StatusCode::OK {
                let with = (&mut connections, &secrets);
                let refusal = self.read(response, open, request, with).await;
                return refusal.map(Watched::Refused);
            }
            let budget = self.bodies.budget();
            let lines = Lines::new(open, response.into_body(), request.body_bytes_max, budget);
            Ok(Watched::Lines(lines))
        };
        let opened = tokio::time::timeout(request.timeout, opening).await;
        match opened.unwrap_or_else(|_| Err(connections.timeout(self.purpose))) {
            Ok(Watched::Lines(lines)) => Ok(Watched::Lines(lines.with_secrets(secrets))),
            Ok(Watched::Refused(response)) => {
                Ok(Watched::Refused(Response { secrets, ..response }))
            }
            Err(error) => Err(error.without(&secrets)),
        }
    }

    /// Sends a request and follows redirects: the head of the answer, and its connection. Adds the
    /// credentials that were sent to `secrets`.
    async fn follow(
        &self,
        request: &Request,
        connections: &mut Connections,
        secrets: &mut SentSecrets,
    ) -> Result<(hyper::Response<Incoming>, Open), FetchError> {
        let asked: Uri =
            request.url.parse().map_err(|error| FetchError::transport("parse", error))?;
        let mut uri = asked.clone();
        let content = request.content.as_ref();
        let mut has_credentials = true;
        let mut reach = Reach::Anywhere;
        for hop in 0..=REDIRECTS_MAX {
            let headers = self.headers(request, content, &uri, has_credentials).await?;
            secrets.add_headers(&headers);
            if let Some(content) = content.filter(|content| content.is_secret) {
                secrets.add_form(&content.bytes);
            }
            let unix_socket = request.unix_socket.as_deref().filter(|_| hop == 0);
            let outgoing = Outgoing { uri: &uri, unix_socket, headers, content };
            let (response, mut open) = self.exchange(&outgoing, reach, connections).await?;
            if let Some(authorization) = open.proxy_authorization() {
                secrets.add_header(authorization.as_bytes());
            }
            let location = response
                .headers()
                .get(LOCATION)
                .filter(|_| self.config.follow_redirects && is_redirect(response.status()));
            let Some(location) = location else {
                return Ok((response, open));
            };
            let location = location
                .to_str()
                .map_err(|error| FetchError::transport("failed to parse Location header", error))?;
            let next = resolve(&uri, location)?;
            // After another host, credentials stay away.
            has_credentials = has_credentials && keeps_credentials(&asked, &next);
            let status = response.status().as_u16();
            if content.is_some() && !matches!(status, 307 | 308) {
                // Browsers and Go's client send a GET instead, whose answer is no receipt of the
                // samples or alerts in the body.
                let what = format!(
                    "the redirect (HTTP status {status}) drops the body of the request: use the \
                     address to which it leads, or answer 307 or 308"
                );
                return Err(FetchError::Transport(what));
            }
            if !has_credentials && content.is_some_and(|content| content.is_secret) {
                let what = "the redirect would send credentials to another host";
                return Err(FetchError::Transport(what.to_owned()));
            }
            reach = open.reach();
            if open.drive(read_refusal(response)).await.is_some() {
                connections.keep(open);
            }
            uri = next;
        }
        Err(FetchError::Transport(format!("stopped after {REDIRECTS_MAX} redirects")))
    }

    async fn headers(
        &self,
        request: &Request,
        content: Option<&Content>,
        uri: &Uri,
        has_credentials: bool,
    ) -> Result<HeaderMap, FetchError> {
        let mut headers = HeaderMap::new();
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|error| FetchError::transport("header", error))
        };
        for (name, text) in &request.headers {
            headers.insert(name, value(text)?);
        }
        if let Some(content) = content {
            headers.insert(CONTENT_TYPE, value(&content.media_type)?);
        }
        if has_credentials {
            if let Some(authorization) = &request.authorization {
                credentials::insert_secret(&mut headers, authorization.expose())?;
            }
            for (name, secret) in &request.secrets {
                headers.insert(name, credentials::value(secret.expose())?);
            }
            credentials::add(&self.config, &mut headers)?;
        }
        // As Go's client does: before those of the configuration except `oauth2`, and those of the
        // address of a redirect too.
        if let Some(authorization) = credentials::of_address(uri) {
            credentials::insert_secret(&mut headers, &authorization)?;
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|_| has_credentials) {
            let authorization = tokens.authorization(request.timeout).await?;
            credentials::insert_secret(&mut headers, &authorization)?;
        }
        Ok(headers)
    }

    /// One request and the head of its answer. A connection that the server has closed meanwhile
    /// is replaced once.
    async fn exchange(
        &self,
        outgoing: &Outgoing<'_>,
        reach: Reach,
        connections: &mut Connections,
    ) -> Result<(hyper::Response<Incoming>, Open), FetchError> {
        let uri = outgoing.uri;
        let needs_tls = uri.scheme_str() == Some("https") || self.proxies.uses_tls(uri);
        let tls = if needs_tls { Some(self.tls.current()?) } else { None };
        let tls_hash = tls.as_ref().map_or(0, |tls| tls.hash);
        let route = Route::new(uri, outgoing.unix_socket, &self.proxies, tls_hash)?;
        if let Some(mut open) = connections.take(&route, reach)
            && let Ok(response) = open.send(outgoing.request(&open)?).await
        {
            return Ok((response, open));
        }
        let tls = tls.map(|tls| (&self.tls, tls.config));
        let permit = connections.place(self.purpose, self.id).await?;
        let budget = self.bodies.budget();
        let mut open = route.open(tls, &self.proxies, budget, (permit, reach)).await?;
        match open.send(outgoing.request(&open)?).await {
            Ok(response) => Ok((response, open)),
            Err(error) => Err(FetchError::Transport(with_causes(&error))),
        }
    }

    async fn read(
        &self,
        response: hyper::Response<Incoming>,
        mut open: Open,
        request: &Request,
        (connections, secrets): (&mut Connections, &SentSecrets),
    ) -> Result<Response, FetchError> {
        let status = response.status();
        let headers = response.headers().clone();
        if status != StatusCode::OK {
            let body = open.drive(read_refusal(response)).await;
            if body.is_some() {
                connections.keep(open);
            }
            let body = secrets.hide(&body.unwrap_or_default()).into_owned();
            let body = self.bodies.unlimited(body);
            let secrets = SentSecrets::default();
            return Ok(Response { status: status.as_u16(), headers, body, secrets });
        }
        let asks_gzip = |(name, text): &(HeaderName, String)| {
            name == ACCEPT_ENCODING && text.eq_ignore_ascii_case("gzip")
        };
        let is_gzip = headers
            .get(CONTENT_ENCODING)
            .is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"))
            && request.headers.iter().any(asks_gzip);
        let (bytes_max, last_len) = (request.body_bytes_max, connections.body_len);
        let unpacker = Unpacker::new(is_gzip, bytes_max, last_len, &self.bodies);
        let body = open.drive(unpack(response.into_body(), unpacker, self.id)).await?;
        connections.body_len = body.len();
        connections.keep(open);
        let secrets = SentSecrets::default();
        Ok(Response { status: status.as_u16(), headers, body, secrets })
    }
}

/// The tokens of a client, and the client that fetches them.
struct TokenSource {
    tokens: Tokens,
    /// Has no tokens of its own.
    client: Client,
}

impl TokenSource {
    /// # Errors
    /// For a grant that is not supported, and as [`Client::new`].
    fn new(config: &OAuth2, bodies: &Bodies) -> Result<TokenSource, FetchError> {
        let tokens = Tokens::new(config)?;
        let client = HttpClient {
            tls_config: config.tls_config.clone(),
            proxy: config.proxy.clone(),
            ..HttpClient::default()
        };
        Ok(TokenSource { tokens, client: Client::new(&client, bodies)? })
    }

    /// The value of `Authorization`: of the known token, or of a new one.
    async fn authorization(&self, timeout: Duration) -> Result<String, FetchError> {
        let mut turn = self.tokens.turn().await?;
        if let Some(known) = turn.known() {
            return Ok(known);
        }
        loop {
            let request = turn.request(timeout)?;
            // The recursion ends here.
            let answer = Box::pin(self.client.send(&request, turn.connections())).await?;
            if !turn.tries_form(&answer) {
                return turn.take(&answer);
            }
        }
    }
}

/// A request to one place.
struct Outgoing<'r> {
    uri: &'r Uri,
    unix_socket: Option<&'r str>,
    headers: HeaderMap,
    content: Option<&'r Content>,
}

impl Outgoing<'_> {
    /// The request in the form that the connection needs.
    fn request(&self, open: &Open) -> Result<hyper::Request<Full<Bytes>>, FetchError> {
        let failed = |error: hyper::http::Error| FetchError::transport("request", error);
        let bytes = self.content.map(|content| content.bytes.clone());
        let method = match self.content {
            Some(content) if content.is_put => Method::PUT,
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let target = match open.is_http2() || open.is_absolute() {
            true => without_user(self.uri),
            false => path.to_owned(),
        };
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(target)
            .body(Full::new(bytes.unwrap_or_default()))
            .map_err(failed)?;
        *request.headers_mut() = self.headers.clone();
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|error| FetchError::transport("request", error))
        };
        if !open.is_http2() {
            let host = self.uri.authority().map_or("", |authority| authority.as_str());
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            request.headers_mut().insert(HOST, value(host)?);
        }
        if let Some(authorization) = open.proxy_authorization() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, value(&authorization)?);
        }
        Ok(request)
    }
}

fn without_user(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or("http");
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{scheme}://{host}{path}")
}

/// Clients whose long bodies are unpacked at the same time.
static UNPACKING: LazyLock<FairPlaces> = LazyLock::new(|| FairPlaces::new(4));

async fn unpack(
    mut packed: Incoming,
    mut unpacker: Unpacker,
    client: ClientId,
) -> Result<Body, FetchError> {
    while let Some(frame) = packed.frame().await {
        let frame = frame.map_err(|error| FetchError::Transport(with_causes(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        let rest = data.slice_ref(unpacker.push_here(&data)?);
        if rest.is_empty() {
            continue;
        }
        let permit = UNPACKING.take(client).await?;
        let unpacking = spawn_blocking(move || {
            let _permit = permit;
            let pushed = unpacker.push(&rest);
            (unpacker, pushed)
        });
        let (back, pushed) =
            unpacking.await.map_err(|error| FetchError::transport("gzip", error))?;
        unpacker = back;
        pushed?;
    }
    unpacker.finish()
}

/// The body of a refusal; `None` if it is long or breaks off, so that its connection is of no use.
async fn read_refusal(response: hyper::Response<Incoming>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len().saturating_add(data.len()) > REFUSAL_BYTES_MAX {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
