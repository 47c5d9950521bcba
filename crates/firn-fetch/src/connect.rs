//! Connections: opened directly, to a Unix socket or through a proxy, and kept between requests.

use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use firn_model::{Budget, Pool, Reservation, system_text};
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::FetchError;
use crate::fair::ClientId;
use crate::frames::{FrameCount, FrameLimit};
use crate::lookup::lookup;
use crate::outgoing::{ConnectionPermit, Places, Purpose};
use crate::proxy::{Proxies, Proxy, ProxyKind};
use crate::sent_secrets::SentSecrets;
use crate::tls::TlsSource;

/// The open connections of a caller to one address, and to the one that it redirects to.
#[derive(Debug, Default)]
pub struct Connections {
    /// The most recently used last.
    open: Vec<Open>,
    /// Whether the current request waits for a place.
    is_waiting: bool,
    /// The length of the last unpacked body: the next one probably has it too.
    pub(crate) body_len: usize,
}

// An answer and the address that it redirects to.
const CONNECTIONS_MAX: usize = 2;

// The read buffer of a connection, which is held while the connection is idle: it is small for the
// sake of many targets. The head of an answer must fit in.
const READ_BYTES: u32 = 16 << 10;

/// The memory of a connection: its read buffer, a write buffer, its state; with TLS the buffers of
/// both directions, too.
const CONNECTION_BYTES: u64 = READ_BYTES as u64 + (10 << 10);
const TLS_BYTES: u64 = 40 << 10;

/// Bytes of bodies that HTTP/2 receives ahead: 64 MB/s at 1 ms, 2 MB/s at 30 ms. The default is
/// 5 MB for each target.
const WINDOW_BYTES: u32 = 64 << 10;

// Longest answer of a proxy to a request for a tunnel.
const TUNNEL_BYTES_MAX: usize = 16 << 10;

/// A connection that is ready for one request after the other.
#[derive(Debug)]
pub(crate) struct Open {
    route: Route,
    sender: Sender,
    /// The memory of buffers and state.
    _held: Reservation,
    permit: ConnectionPermit,
    /// Whether the server is on this machine, or on the same link without a router.
    is_near: bool,
}

/// The machines that a request may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All: the configuration, or a server that is near, names the address.
    Anywhere,
    /// A server elsewhere names the address by a redirect. It must not reach servers that only this
    /// machine can reach, such as this one's API on loopback or a cloud's metadata service.
    Away,
}

impl Reach {
    pub(crate) fn includes(self, is_near: bool) -> bool {
        self == Reach::Anywhere || !is_near
    }
}

/// The address of a connection, and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    is_tls: bool,
    host: String,
    port: u16,
    unix_socket: Option<String>,
    proxy: Option<Proxy>,
    /// The hash of the certificates that the connection was opened with.
    tls_hash: u64,
}

enum Sender {
    Http1(Box<Http1>),
    Http2(Http2),
}

/// A connection that a task of its own drives, as it serves several streams.
struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    /// Counts the frames of the current request.
    frames: FrameCount,
}

/// A connection that the task of the request drives: a task of its own would be woken, often on
/// another thread, for each piece of a body.
struct Http1 {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` after its end.
    connection: Option<Http1Connection>,
}

type Http1Connection = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sender::Http1(_) => "Http1",
            Sender::Http2(_) => "Http2",
        })
    }
}

impl Connections {
    /// Takes the open connection along `route`, if it leads to a machine within `reach`.
    pub(crate) fn take(&mut self, route: &Route, reach: Reach) -> Option<Open> {
        self.open.retain_mut(|open| !open.is_closed());
        let is_usable = |open: &Open| open.route == *route && reach.includes(open.is_near);
        let idx = self.open.iter().position(is_usable)?;
        Some(self.open.remove(idx))
    }

    /// Waits for the place of one more connection.
    pub(crate) async fn place(
        &mut self,
        purpose: Purpose,
        client: ClientId,
    ) -> Result<ConnectionPermit, FetchError> {
        self.is_waiting = true;
        let permit = Places::of_process().take(purpose, client).await;
        self.is_waiting = false;
        permit
    }

    /// The error of a request whose time limit has passed.
    pub(crate) fn timeout(&mut self, purpose: Purpose) -> FetchError {
        match std::mem::take(&mut self.is_waiting) {
            true => FetchError::NoConnection(purpose),
            false => FetchError::Timeout,
        }
    }

    /// Keeps a connection for the next request, unless others need its place.
    pub(crate) fn keep(&mut self, open: Open) {
        if !Places::of_process().has_room_for_idle(&open.permit) {
            return;
        }
        while self.open.len() >= CONNECTIONS_MAX {
            self.open.remove(0);
        }
        self.open.push(open);
    }
}

impl Open {
    /// Whether the server has closed the connection, as far as is known.
    fn is_closed(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(http1) => {
                // No task has driven the connection since the last answer.
                poll(&mut http1.connection, &mut Context::from_waker(Waker::noop()));
                http1.sender.is_closed()
            }
            Sender::Http2(http2) => http2.sender.is_closed(),
        }
    }

    /// Waits for `work`, which needs this connection: an answer, or a body.
    pub(crate) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        match &mut self.sender {
            Sender::Http1(http1) => drive(&mut http1.connection, work).await,
            Sender::Http2(_) => work.await,
        }
    }

    /// The machines that a redirect by this server may lead to.
    pub(crate) fn reach(&self) -> Reach {
        if self.is_near { Reach::Anywhere } else { Reach::Away }
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Whether requests name the whole address.
    pub(crate) fn is_absolute(&self) -> bool {
        let is_http = |proxy: &Proxy| proxy.kind != ProxyKind::Socks5;
        !self.route.is_tls && self.route.proxy.as_ref().is_some_and(is_http)
    }

    pub(crate) fn proxy_authorization(&self) -> Option<String> {
        self.route.proxy.as_ref().filter(|_| self.is_absolute()).and_then(Proxy::authorization)
    }

    pub(crate) async fn send(
        &mut self,
        request: hyper::Request<Full<Bytes>>,
    ) -> hyper::Result<hyper::Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(http1) => http1.send(request).await,
            Sender::Http2(Http2 { sender, frames }) => {
                sender.ready().await?;
                frames.reset();
                sender.send_request(request).await
            }
        }
    }
}

impl Http1 {
    async fn send(
        &mut self,
        request: hyper::Request<Full<Bytes>>,
    ) -> hyper::Result<hyper::Response<Incoming>> {
        let Http1 { sender, connection } = self;
        drive(connection, async {
            sender.ready().await?;
            sender.send_request(request).await
        })
        .await
    }
}

/// Waits for `work`, and meanwhile moves the bytes of the connection that it needs.
async fn drive<T>(connection: &mut Option<Http1Connection>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        poll(connection, context);
        work.as_mut().poll(context)
    })
    .await
}

/// Moves the bytes that can be moved. An error of the connection is that of the request, too.
fn poll(connection: &mut Option<Http1Connection>, context: &mut Context<'_>) {
    if let Some(open) = connection
        && Pin::new(open).poll(context).is_ready()
    {
        *connection = None;
    }
}

impl Route {
    pub(crate) fn new(
        uri: &Uri,
        unix_socket: Option<&str>,
        proxies: &Proxies,
        tls_hash: u64,
    ) -> Result<Route, FetchError> {
        let (is_tls, default_port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            other => {
                let shown = firn_model::excerpt(other.unwrap_or_default());
                let text = format!("unsupported protocol scheme {shown:?}");
                return Err(FetchError::Transport(text));
            }
        };
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| FetchError::Transport("http: no Host in request URL".to_owned()))?;
        let proxy = match unix_socket {
            Some(_) => None,
            None => proxies.of(uri).cloned(),
        };
        Ok(Route {
            is_tls,
            host: host.to_owned(),
            port: port_of(uri, default_port)?,
            unix_socket: unix_socket.map(str::to_owned),
            proxy,
            tls_hash,
        })
    }

    /// Opens a connection.
    pub(crate) async fn open(
        self,
        tls: Option<(&TlsSource, Arc<ClientConfig>)>,
        proxies: &Proxies,
        budget: &Budget,
        (permit, reach): (ConnectionPermit, Reach),
    ) -> Result<Open, FetchError> {
        let bytes = CONNECTION_BYTES.saturating_add(if tls.is_some() { TLS_BYTES } else { 0 });
        let mut held = budget.reserve(Pool::Requests, bytes).map_err(FetchError::Memory)?;
        let client = permit.client();
        let mut is_near = false;
        let mut stream = match (&self.unix_socket, &self.proxy) {
            (Some(path), _) => {
                is_near = true;
                let connected = UnixStream::connect(path).await;
                boxed(connected.map_err(|error| {
                    FetchError::transport(
                        &format!("dial unix {path}: connect"),
                        system_text(&error),
                    )
                })?)
            }
            (None, Some(proxy)) => self.through(proxy, tls.as_ref(), proxies, client).await?,
            (None, None) => {
                let stream = dial(&self.host, self.port, client).await?;
                is_near = leads_near(&stream);
                boxed(stream)
            }
        };
        if !reach.includes(is_near) {
            let what = "a server elsewhere redirects to this machine or its link";
            return Err(FetchError::Transport(what.to_owned()));
        }
        let mut is_http2 = false;
        if let (true, Some((source, config))) = (self.is_tls, tls) {
            let name = source.server_name(&self.host)?;
            let connector = TlsConnector::from(config);
            let tls = connector
                .connect(name, stream)
                .await
                .map_err(|error| FetchError::transport("tls", error))?;
            is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            stream = boxed(tls);
        }
        let failed = |error: hyper::Error| FetchError::transport("connect", error);
        let sender = if is_http2 {
            held.grow(u64::from(WINDOW_BYTES)).map_err(FetchError::Memory)?;
            let frames = FrameCount::default();
            // The server may send as much before the body is read.
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                .max_header_list_size(READ_BYTES)
                .handshake(TokioIo::new(FrameLimit::new(stream, frames.clone())))
                .await
                .map_err(failed)?;
            // Ends when the sender is dropped or the connection breaks.
            tokio::spawn(connection);
            Sender::Http2(Http2 { sender, frames })
        } else {
            let (sender, connection) = http1::Builder::new()
                .read_buf_exact_size(Some(READ_BYTES as usize))
                .handshake(TokioIo::new(stream))
                .await
                .map_err(failed)?;
            Sender::Http1(Box::new(Http1 { sender, connection: Some(connection) }))
        };
        Ok(Open { route: self, sender, _held: held, permit, is_near })
    }

    /// A stream to the server, or for plain HTTP to its proxy.
    async fn through(
        &self,
        proxy: &Proxy,
        tls: Option<&(&TlsSource, Arc<ClientConfig>)>,
        proxies: &Proxies,
        client: ClientId,
    ) -> Result<Box<dyn Stream>, FetchError> {
        let mut stream = boxed(dial(&proxy.host, proxy.port, client).await?);
        match proxy.kind {
            ProxyKind::Socks5 => {
                socks5(&mut stream, proxy, &self.host, self.port).await?;
                return Ok(stream);
            }
            ProxyKind::Https => {
                let Some((_, config)) = tls else {
                    return Err(FetchError::Transport("proxy: no TLS".to_owned()));
                };
                let name = rustls::pki_types::ServerName::try_from(proxy.host.clone())
                    .map_err(|error| FetchError::transport("proxy", error))?;
                let mut config = ClientConfig::clone(config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let connector = TlsConnector::from(Arc::new(config));
                let tls = connector
                    .connect(name, stream)
                    .await
                    .map_err(|error| FetchError::transport("proxy: tls", error))?;
                stream = boxed(tls);
            }
            ProxyKind::Http => {}
        }
        if self.is_tls {
            tunnel(&mut stream, proxy, proxies, &self.host, self.port).await?;
        }
        Ok(stream)
    }
}

/// A connection that HTTP or TLS runs over.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The port of `uri`; `default` without one.
///
/// # Errors
/// `Transport` with Go's text for a port that is none, such as 99999. [`Uri`] accepts any digits,
/// and has no port then: the default port of the host would get the request.
fn port_of(uri: &Uri, default: u16) -> Result<u16, FetchError> {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    // Colons in brackets are those of an IPv6 address.
    let behind_host = place.rsplit_once(']').map_or(place, |(_, rest)| rest);
    match behind_host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty()) {
        None => Ok(default),
        Some(port) => port.parse().map_err(|_| {
            let shown = firn_model::excerpt(port);
            FetchError::Transport(format!("dial tcp: address {shown}: invalid port"))
        }),
    }
}

fn boxed<'s>(stream: impl Stream + 's) -> Box<dyn Stream + 's> {
    Box::new(stream)
}

async fn dial(host: &str, port: u16, client: ClientId) -> Result<TcpStream, FetchError> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let place = format!("dial tcp {host}:{port}");
    let addresses = lookup(name, port, client).await;
    let addresses = addresses.map_err(|error| FetchError::transport(&place, error))?;
    let stream = TcpStream::connect(addresses.as_slice()).await.map_err(|error| {
        FetchError::transport(&format!("{place}: connect"), system_text(&error))
    })?;
    // A request is one small write.
    stream.set_nodelay(true).map_err(|error| FetchError::transport("dial tcp", error))?;
    Ok(stream)
}

/// Whether the other side is this machine, by any of its addresses, or on its link.
fn leads_near(stream: &TcpStream) -> bool {
    let (Ok(peer), Ok(own)) = (stream.peer_addr(), stream.local_addr()) else { return true };
    let is_own = peer.ip() == own.ip();
    is_own
        || match peer.ip().to_canonical() {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
        }
}

/// Opens a tunnel through an HTTP proxy.
async fn tunnel(
    stream: &mut Box<dyn Stream>,
    proxy: &Proxy,
    proxies: &Proxies,
    host: &str,
    port: u16,
) -> Result<(), FetchError> {
    let failed = |error: std::io::Error| FetchError::transport("proxyconnect", error);
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    let mut sent = SentSecrets::default();
    if let Some(authorization) = proxy.authorization() {
        sent.add_header(authorization.as_bytes());
        request += &format!("Proxy-Authorization: {authorization}\r\n");
    }
    for (name, value) in &proxies.connect_headers {
        let is_clean = |text: &str| !text.contains(['\r', '\n']);
        if is_clean(name) && is_clean(value.expose()) {
            sent.add_header(value.expose().as_bytes());
            request += &format!("{name}: {}\r\n", value.expose());
        }
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut head = Vec::new();
    // Byte by byte, so that nothing behind the head is taken from the tunnel. Once a connection.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= TUNNEL_BYTES_MAX {
            return Err(FetchError::Transport("proxyconnect: the answer is too long".to_owned()));
        }
        head.push(stream.read_u8().await.map_err(failed)?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    let mut words = status.splitn(3, ' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    match words.next() {
        Some("200") if is_http => Ok(()),
        _ => {
            let status = sent.hide_text(status);
            let shown = firn_model::excerpt(&status);
            Err(FetchError::Transport(format!("proxyconnect: the proxy answered {shown:?}")))
        }
    }
}

/// The handshake of SOCKS 5 (RFC 1928, RFC 1929). The proxy resolves the host.
async fn socks5(
    stream: &mut Box<dyn Stream>,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), FetchError> {
    const PLAIN: u8 = 0;
    const PASSWORD: u8 = 2;
    let io = |error: std::io::Error| FetchError::transport("socks", error);
    let failed = |text: &str| FetchError::Transport(format!("socks: {text}"));
    let short = |text: &str| {
        u8::try_from(text.len()).map_err(|_| failed("a name is longer than 255 bytes"))
    };
    let method = if proxy.user.is_some() { PASSWORD } else { PLAIN };
    stream.write_all(&[5, 1, method]).await.map_err(io)?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await.map_err(io)?;
    if answer != [5, method] {
        return Err(failed("the proxy refuses the method of authentication"));
    }
    if let Some((name, password)) = &proxy.user {
        let password = password.expose();
        let mut request = vec![1, short(name)?];
        request.extend_from_slice(name.as_bytes());
        request.push(short(password)?);
        request.extend_from_slice(password.as_bytes());
        stream.write_all(&request).await.map_err(io)?;
        stream.read_exact(&mut answer).await.map_err(io)?;
        if answer != [1, 0] {
            return Err(failed("the proxy refuses the user"));
        }
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut request = vec![5, 1, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => {
            request.push(1);
            request.extend_from_slice(&ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            request.push(4);
            request.extend_from_slice(&ip.octets());
        }
        Err(_) => {
            request.extend_from_slice(&[3, short(host)?]);
            request.extend_from_slice(host.as_bytes());
        }
    }
    request.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&request).await.map_err(io)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.map_err(io)?;
    let [5, code, 0, kind] = answer else { return Err(failed("a malformed answer")) };
    if code != 0 {
        return Err(failed(&format!("the proxy answered with code {code}")));
    }
    let address_bytes = match kind {
        1 => 4,
        3 => usize::from(stream.read_u8().await.map_err(io)?),
        4 => 16,
        _ => return Err(failed("a malformed answer")),
    };
    let mut rest = vec![0; address_bytes.saturating_add(2)];
    stream.read_exact(&mut rest).await.map_err(io)?;
    Ok(())
}
