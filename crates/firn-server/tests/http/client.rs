//! A client of a few lines: one request, one connection, the whole answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// A response, not decoded.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// Sends one request and reads until the server closes.
pub(crate) fn send(
    to: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(to).expect("the server listens");
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n");
    if !body.is_empty() || method == "POST" {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).expect("the head is taken");
    // A server that refuses a body early may close before all of it is sent.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..head_end].to_vec()).expect("a text head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut answer =
        Answer { status: status.expect("a status"), headers, body: bytes[head_end + 4..].to_vec() };
    if answer.header("transfer-encoding") == "chunked" {
        answer.body = unchunk(&answer.body).expect("a body that is not cut");
    }
    answer
}

/// The contents of a chunked body; `None` if it was cut off.
pub(crate) fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line_end = rest.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..line_end]).ok()?;
        let chunk_bytes = usize::from_str_radix(line, 16).ok()?;
        if chunk_bytes == 0 {
            return Some(body);
        }
        let chunk = rest.get(line_end + 2..)?;
        body.extend_from_slice(chunk.get(..chunk_bytes)?);
        rest = chunk.get(chunk_bytes + 2..)?;
    }
}

pub(crate) fn get(to: SocketAddr, target: &str) -> Answer {
    send(to, "GET", target, &[], b"")
}

/// `target` with parameters, percent-encoded.
pub(crate) fn url(target: &str, params: &[(&str, &str)]) -> String {
    format!("{target}?{}", form(params))
}

pub(crate) fn form(params: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(params).finish()
}

/// The `data` of a successful API answer.
pub(crate) fn api(to: SocketAddr, path: &str, params: &[(&str, &str)]) -> Value {
    let answer = get(to, &url(&format!("/api/v1/{path}"), params));
    assert_eq!(answer.status, 200, "{path} {params:?}: {}", answer.text());
    let json = answer.json();
    assert_eq!(json["status"], "success");
    json["data"].clone()
}

/// Status, `errorType` and `error` of a failed API answer.
pub(crate) fn api_error(
    to: SocketAddr,
    path: &str,
    params: &[(&str, &str)],
) -> (u16, String, String) {
    let answer = get(to, &url(&format!("/api/v1/{path}"), params));
    let json = answer.json();
    assert_eq!(json["status"], "error", "{path} {params:?}: {json}");
    let text = |name: &str| json[name].as_str().expect("a text").to_owned();
    (answer.status, text("errorType"), text("error"))
}

/// Imports a text; must succeed.
pub(crate) fn import(to: SocketAddr, text: &str) {
    let answer = send(to, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
}
