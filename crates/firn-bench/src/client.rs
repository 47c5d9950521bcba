//! A persistent HTTP/1.1 connection: minimal, so that its cost does not affect measurements.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firn_cache_client::{Connection as Transport, Tls};

/// A server, with the needs of its clients.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Of its listener.
    pub address: SocketAddr,
    /// For a server with TLS.
    pub tls: Option<Tls>,
    /// For a server with users: a token.
    pub token: Option<String>,
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint { address, tls: None, token: None }
    }
}

/// One connection, used for one request after the other.
///
/// Its methods panic if the server closes the connection or responds with anything but 2xx: errors
/// must not be measured.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<Transport>,
    /// Headers of every request.
    headers: String,
    body: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Panics
    /// If the connection is refused.
    pub fn open(endpoint: impl Into<Endpoint>) -> Connection {
        let Endpoint { address, tls, token } = endpoint.into();
        let timeout = Duration::from_secs(120);
        let stream = Transport::open(&address.to_string(), tls.as_ref(), timeout);
        let stream = stream.expect("the server listens");
        let login = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        Connection {
            reader: BufReader::with_capacity(64 << 10, stream),
            headers: format!("Host: localhost\r\n{}", login.unwrap_or_default()),
            body: Vec::new(),
        }
    }

    /// Accepts this encoding of further answers, which are not decoded.
    pub fn accept_encoding(&mut self, encoding: &str) {
        self.headers.push_str(&format!("Accept-Encoding: {encoding}\r\n"));
    }

    /// Sends a remote write request (1.0, snappy).
    ///
    /// # Panics
    /// If it is refused.
    pub fn post(&mut self, path: &str, body: &[u8]) {
        let head = format!(
            "POST {path} HTTP/1.1\r\n{}Content-Type: application/x-protobuf\r\n\
             Content-Encoding: snappy\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n\
             Content-Length: {}\r\n\r\n",
            self.headers,
            body.len()
        );
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).expect("the server reads");
        stream.write_all(body).and_then(|()| stream.flush()).expect("the server reads");
        self.read_answer(path);
    }

    /// Requests `target` (path and query); the result is valid until the next request.
    ///
    /// # Panics
    /// If it is refused.
    pub fn get(&mut self, target: &str) -> &[u8] {
        let head = format!("GET {target} HTTP/1.1\r\n{}\r\n", self.headers);
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).and_then(|()| stream.flush()).expect("the server reads");
        self.read_answer(target);
        &self.body
    }

    /// Reads one answer whole, so that the connection can be used again.
    fn read_answer(&mut self, target: &str) {
        self.body.clear();
        let status_line = self.line();
        let mut body_bytes = 0;
        let mut is_chunked = false;
        loop {
            let line = self.line().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(length) = line.strip_prefix("content-length:") {
                body_bytes = length.trim().parse().expect("a length is a number");
            }
            is_chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
        }
        if is_chunked {
            loop {
                let line = self.line();
                let length = line.split(';').next().unwrap_or_default().trim();
                let chunk_bytes = usize::from_str_radix(length, 16).expect("a chunk's length");
                self.append(chunk_bytes);
                self.line();
                if chunk_bytes == 0 {
                    break;
                }
            }
        } else {
            self.append(body_bytes);
        }
        let is_success = status_line.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        let body = String::from_utf8_lossy(&self.body);
        assert!(is_success, "the server refused {target}: {status_line}: {body}");
    }

    fn append(&mut self, byte_count: usize) {
        let before = self.body.len();
        self.body.resize(before + byte_count, 0);
        self.reader.read_exact(&mut self.body[before..]).expect("the server answers");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).expect("the server answers");
        assert!(read > 0, "the server closed the connection");
        line.truncate(line.trim_end().len());
        line
    }
}

/// Posts all of `bodies`, in their order, over `connection_count` connections at a time.
///
/// # Panics
/// If one is refused.
pub fn post_all(
    endpoint: impl Into<Endpoint>,
    path: &str,
    bodies: &[Vec<u8>],
    connection_count: usize,
) {
    let endpoint = &endpoint.into();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..connection_count {
            let next = &next;
            scope.spawn(move || {
                let mut connection = Connection::open(endpoint.clone());
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    connection.post(path, body);
                }
            });
        }
    });
}

/// `text` as a value in a query string.
pub fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for &byte in text.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
