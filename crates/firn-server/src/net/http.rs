//! HTTP over one connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

use super::service::{Accepted, BoundService, Service, Stopping, stopped};
use super::socket::{Exchange, Socket};
use super::table::{ConnectionHandle, ConnectionTable};
use crate::answer;
use crate::clock::clock_ms;

/// The usual [`HttpOptions::buffer_bytes_max`]. With hyper's default of 400 KiB this buffer would
/// be most of the memory of an idle sender.
pub(crate) const BUFFER_BYTES_MAX: usize = 128 << 10;

/// From 1970, before which [`clock_ms`] is 0, to the end of the year 9999: hyper panics at other
/// dates, which it cannot write.
const HTTP_DATES: RangeInclusive<i64> = 1..=253_402_300_799_999;

/// The address of the client: an extension of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) SocketAddr);

/// The address of the listener that a client has reached: an extension of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) SocketAddr);

/// How a service answers HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpOptions {
    /// Paths that are answered although all connections are taken: health and metrics.
    pub(crate) open_paths: &'static [&'static str],
    /// Whether errors without a text get one: not if they may be another server's.
    pub(crate) explains_errors: bool,
    /// The buffer of a connection; a head must fit.
    pub(crate) buffer_bytes_max: usize,
}

/// The routes of a service.
#[derive(Debug)]
pub(super) struct HttpService {
    router: TowerToHyperService<Router>,
    options: HttpOptions,
}

/// Serves HTTP on `bound`, over connections in `table`.
pub(crate) fn serve(
    bound: BoundService,
    table: Arc<ConnectionTable>,
    router: Router,
    options: HttpOptions,
) -> Service {
    let http = HttpService::new(router, options);
    bound.start(table, move |accepted, stopping| {
        let Accepted { transport, client, listen, handle } = accepted;
        let ends = (ClientAddress(client), ListenAddress(listen));
        serve_stream(transport, ends, handle, Arc::clone(&http), stopping)
    })
}

/// Serves one connection until it is closed, or until the stop and the end of its request.
pub(super) async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    ends: (ClientAddress, ListenAddress),
    handle: Arc<ConnectionHandle>,
    http: Arc<HttpService>,
    mut stopping: Stopping,
) {
    let exchange = Arc::new(Exchange::default());
    if !HTTP_DATES.contains(&clock_ms()) {
        return;
    }
    let socket = Socket::new(stream, Arc::clone(&handle), Arc::clone(&exchange));
    let (http, handle, requests) = (&*http, &*handle, &exchange);
    let service = service_fn(move |request: Request<Incoming>| {
        let refused = requests.next_request();
        let request_end = RequestEnd(Arc::clone(requests));
        async move {
            let response = match refused {
                Some(refusal) => answer::error(refusal.is_api, refusal.status, refusal.why),
                None => http.respond(request, handle, ends).await,
            };
            let response = response.map(|body| Tracked { body, _request_end: request_end });
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(http.options.buffer_bytes_max);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(socket), service));
    // An error here is a client that disconnected or is too slow; there is nothing to do.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stopped(&mut stopping) => {
            exchange.stop();
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

impl HttpService {
    pub(super) fn new(router: Router, options: HttpOptions) -> Arc<HttpService> {
        Arc::new(HttpService { router: TowerToHyperService::new(router), options })
    }

    async fn respond(
        &self,
        mut request: Request<Incoming>,
        handle: &ConnectionHandle,
        (client, listen): (ClientAddress, ListenAddress),
    ) -> Response<Body> {
        let is_api = request.uri().path().starts_with("/api/");
        let is_open = self.options.open_paths.contains(&request.uri().path());
        let admitted = if is_open {
            Ok(())
        } else if handle.set_busy() {
            handle.admit().await
        } else {
            Err("the connection was closed for another one".to_owned())
        };
        if let Err(why) = admitted {
            let mut response = answer::error(is_api, StatusCode::SERVICE_UNAVAILABLE, why);
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        }
        // Its place is one of those before admission: clients that do not read their responses, or
        // whose logins wait, must not keep others from being accepted.
        if !handle.is_admitted() {
            handle.set_evictable();
        }
        let is_head = request.method() == Method::HEAD;
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(listen);
        let Ok(response) = self.router.call(request).await;
        match self.options.explains_errors && !is_head {
            true => explained(is_api, response),
            false => response,
        }
    }
}

/// Adds the reason phrase to an error without a text.
fn explained(is_api: bool, response: Response<Body>) -> Response<Body> {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.body().size_hint().exact() != Some(0) {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let reason = status.canonical_reason().unwrap_or("unknown error");
    let (explained, body) = answer::error(is_api, status, reason.to_owned()).into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    if let Some(content_type) = explained.headers.get(CONTENT_TYPE) {
        parts.headers.insert(CONTENT_TYPE, content_type.clone());
    }
    Response::from_parts(parts, body)
}

/// Ends a request when its response was written to hyper, or its client has disconnected.
#[derive(Debug)]
struct RequestEnd(Arc<Exchange>);

impl Drop for RequestEnd {
    fn drop(&mut self) {
        self.0.end_request();
    }
}

/// The body of a response.
#[derive(Debug)]
struct Tracked {
    body: Body,
    _request_end: RequestEnd,
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::sync::mpsc;

    use axum::Extension;
    use axum::routing::{MethodRouter, get};

    use super::*;
    use crate::net::ConnectionLimits;

    fn served(bound: BoundService, handler: MethodRouter) -> Service {
        served_within(bound, ConnectionLimits::new(1, None), handler)
    }

    fn served_within(
        bound: BoundService,
        limits: ConnectionLimits,
        handler: MethodRouter,
    ) -> Service {
        let options = HttpOptions {
            open_paths: &["/open"],
            explains_errors: true,
            buffer_bytes_max: BUFFER_BYTES_MAX,
        };
        let table = ConnectionTable::new(limits);
        serve(bound, table, Router::new().route("/", handler), options)
    }

    struct SendWhenDropped(mpsc::Sender<&'static str>);

    impl Drop for SendWhenDropped {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }

    #[test]
    fn a_request_carries_the_address_of_its_client() {
        let handler =
            async |Extension(ClientAddress(client)): Extension<ClientAddress>| client.to_string();
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let service = served(bound, get(handler));

        let mut client = Client::connect(service.listens()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&client.local_addr().unwrap().to_string()), "{answer}");
        service.stop(|| ());
    }

    /// Before, connections whose requests had arrived were closed while their tasks waited for the
    /// thread.
    #[test]
    fn a_burst_of_clients_with_long_requests_is_answered() {
        let busy = async || std::thread::sleep(std::time::Duration::from_millis(1));
        let bound = BoundService::bind_small("test", &["127.0.0.1:0".parse().unwrap()], || ());
        let service = served_within(bound.unwrap(), ConnectionLimits::new(512, None), get(busy));
        let (address, target) = (service.listens()[0], "a".repeat(60_000));
        let ask = || {
            let mut client = Client::connect(address).unwrap();
            let head = format!("GET /?{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let mut answer = String::new();
            let sent = client.write_all(head.as_bytes());
            sent.and_then(|()| client.read_to_string(&mut answer)).is_ok_and(|_| !answer.is_empty())
        };
        let answered = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..300).map(|_| scope.spawn(ask)).collect();
            clients.into_iter().map(|client| client.join().unwrap()).filter(|is| *is).count()
        });
        assert_eq!(answered, 300);
        service.stop(|| ());
    }

    /// A query stops when its future is dropped, which is when its client disconnects.
    #[test]
    fn a_handler_is_dropped_when_its_client_disconnects() {
        let (sender, events) = mpsc::channel();
        let handler = async move || {
            let _guard = SendWhenDropped(sender.clone());
            let _ = sender.send("started");
            std::future::pending::<()>().await;
        };
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let service = served(bound, get(handler));

        let mut client = Client::connect(service.listens()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(events.recv(), Ok("started"));
        drop(client);
        assert_eq!(events.recv(), Ok("dropped"));
        // Its permit is free again, and a stop does not wait for it.
        drop(Client::connect(service.listens()[0]).unwrap());
        service.stop(|| ());
    }
}
