//! An HTTP server of tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

/// The answer to a request.
pub(super) enum Reply {
    Bytes(Vec<u8>),
    /// The bytes, and then no more: the connection stays open.
    Hang(Vec<u8>),
    /// The bytes again and again.
    Endless(Vec<u8>),
}

/// A server that keeps its requests.
#[derive(Clone, Default)]
pub(super) struct TestServer {
    pub(super) port: u16,
    heads: Arc<Mutex<Vec<String>>>,
    /// Notified of each request.
    arrived: Arc<Notify>,
}

/// An answer of JSON with more lines of its head.
pub(super) fn json(head: &str, body: &str) -> Reply {
    let len = body.len();
    let kind = "content-type: application/json";
    let head = format!("HTTP/1.1 200 OK\r\n{kind}\r\n{head}content-length: {len}\r\n\r\n{body}");
    Reply::Bytes(head.into_bytes())
}

pub(super) fn status(code: u16, body: &str) -> Reply {
    let len = body.len();
    Reply::Bytes(format!("HTTP/1.1 {code} X\r\ncontent-length: {len}\r\n\r\n{body}").into_bytes())
}

impl TestServer {
    /// `reply` gets the path and query of each request.
    pub(super) async fn start(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> TestServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = TestServer { port, ..TestServer::default() };
        let (serving, reply) = (server.clone(), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, serving.clone(), Arc::clone(&reply)));
            }
        });
        server
    }

    /// The same behind a Unix socket.
    pub(super) fn unix(
        path: &Path,
        reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> TestServer {
        let listener = UnixListener::bind(path).unwrap();
        let server = TestServer::default();
        let (serving, reply) = (server.clone(), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, serving.clone(), Arc::clone(&reply)));
            }
        });
        server
    }

    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }

    /// Waits until `count` requests have arrived.
    ///
    /// # Panics
    /// After a minute.
    pub(super) async fn wait_for_requests(&self, count: usize) {
        let arrival = async {
            loop {
                let arrived = self.arrived.notified();
                if self.heads.lock().len() >= count {
                    return;
                }
                arrived.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), arrival).await;
        assert!(waited.is_ok(), "{:?}, expected {count} requests", self.heads());
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    server: TestServer,
    reply: Arc<impl Fn(&str) -> Reply>,
) {
    let mut bytes = Vec::new();
    let mut part = [0; 4_096];
    while let Ok(len @ 1..) = stream.read(&mut part).await {
        bytes.extend_from_slice(&part[..len]);
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let Some((lines, body)) = head.split_once("\r\n\r\n") else { continue };
        let body_len = lines.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() < body_len.map_or(0, |len| len.parse().unwrap()) {
            continue;
        }
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        server.heads.lock().push(head);
        server.arrived.notify_waiters();
        bytes.clear();
        match reply(&path) {
            Reply::Bytes(answer) => {
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            Reply::Hang(answer) => {
                let _ = stream.write_all(&answer).await;
                std::future::pending::<()>().await;
            }
            Reply::Endless(answer) => while stream.write_all(&answer).await.is_ok() {},
        }
    }
}
