//! HTTP over one connection.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;

use super::service::{Accepted, BoundService, Service, Stopping, stopped};

// Longer than clients keep idle connections (Go: 90 s), so that the client closes them.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
// Of each connection; a header must fit. With the default of 400 KiB this buffer would be most of
// the memory of an idle sender.
const BUFFER_BYTES_MAX: usize = 128 << 10;

/// The address of the client: an extension of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) SocketAddr);

/// Serves HTTP on `bound`, over at most `connections_max` connections.
pub(crate) fn serve(bound: BoundService, router: Router, connections_max: usize) -> Service {
    let service = TowerToHyperService::new(router);
    bound.start(connections_max, move |accepted, stopping| {
        connection(accepted, service.clone(), stopping)
    })
}

async fn connection(
    accepted: Accepted,
    service: TowerToHyperService<Router>,
    mut stopping: Stopping,
) {
    let Accepted { transport, client } = accepted;
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ClientAddress(client));
        service.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(transport), service));
    // An error here is a client that disconnected or does not speak HTTP; there is nothing to do.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::sync::mpsc;

    use axum::Extension;
    use axum::routing::get;

    use super::*;

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
        let bound = BoundService::bind("test", "127.0.0.1:0".parse().unwrap(), || ()).unwrap();
        let service = serve(bound, Router::new().route("/", get(handler)), 1);

        let mut client = Client::connect(service.listen()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&client.local_addr().unwrap().to_string()), "{answer}");
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
        let bound = BoundService::bind("test", "127.0.0.1:0".parse().unwrap(), || ()).unwrap();
        let service = serve(bound, Router::new().route("/", get(handler)), 1);

        let mut client = Client::connect(service.listen()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(events.recv(), Ok("started"));
        drop(client);
        assert_eq!(events.recv(), Ok("dropped"));
        // Its permit is free again, and a stop does not wait for it.
        drop(Client::connect(service.listen()).unwrap());
        service.stop(|| ());
    }
}
