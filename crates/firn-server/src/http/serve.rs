//! Connections: accepted up to a number, served, and let finish when the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

// Longer than clients keep idle connections (Go: 90 s), so that they close them and not we.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
// Read buffer of a connection; a header must fit. The default of 400 KiB would be most of an idle
// sender's memory.
const BUFFER_BYTES_MAX: usize = 128 << 10;
// Requests that run longer after a stop are cut off.
const GRACE: Duration = Duration::from_secs(30);
// Pause after running out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Serves HTTP until `stop` is true, then waits for running requests.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let talk = |stream| connection(stream, service.clone(), stop.clone());
    accept(listener, connections_max, stop.clone(), talk).await;
}

/// Runs `talk` on each connection, at most `connections_max` at once, until `stop` is true; then
/// waits for open connections. `talk` must return soon after a stop.
pub(crate) async fn accept<F>(
    listener: TcpListener,
    connections_max: usize,
    mut stopping: watch::Receiver<bool>,
    talk: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(connections_max));
    let mut connections = JoinSet::new();
    loop {
        // Acquired before accepting, so that connections over the limit wait in the system's queue.
        let accepting = async {
            let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        let (accepted, permit) = tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = accepting => match accepted {
                Some(accepted) => accepted,
                None => break,
            },
        };
        match accepted {
            Ok((stream, _)) => {
                // Answers are written whole; waiting for more would only delay them.
                let _ = stream.set_nodelay(true);
                let talk = talk(stream);
                connections.spawn(async move {
                    talk.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finished).await.is_err() {
        tracing::warn!("connections were cut off after {} s", GRACE.as_secs());
    }
}

/// Waits until the server stops; a dropped sender counts as stopped.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    mut stop: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    // An error here is a client that disconnected or does not speak HTTP: nothing to do.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::mpsc;

    use super::*;

    struct TellsWhenDropped(mpsc::UnboundedSender<&'static str>);

    impl Drop for TellsWhenDropped {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }

    /// A query stops when its future is dropped, which happens here.
    #[tokio::test]
    async fn a_handler_is_dropped_when_its_client_goes() {
        let (sender, mut told) = mpsc::unbounded_channel();
        let handler = async move || {
            let _guard = TellsWhenDropped(sender.clone());
            let _ = sender.send("started");
            std::future::pending::<()>().await;
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = watch::channel(false);
        let router = Router::new().route("/", get(handler));
        let serving = tokio::spawn(serve(listener, router, 1, stopping));

        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert_eq!(told.recv().await, Some("started"));
        drop(client);
        assert_eq!(told.recv().await, Some("dropped"));
        // Its place is free again, and a stop does not wait for it.
        drop(TcpStream::connect(address).await.unwrap());
        stop.send(true).unwrap();
        serving.await.unwrap();
    }
}
