//! A blocking HTTP/1.1 client, just enough for tests on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and headers, in lower case.
    pub(crate) head: String,
    /// The body, unchanged.
    pub(crate) bytes: Vec<u8>,
    /// The body as text.
    pub(crate) body: String,
}

/// One request on a connection of its own; `None` without a response.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut stream = connect(address)?;
    exchange(&mut stream, address, method, path, headers, body)
}

/// A connection with a time limit for reads.
pub(crate) fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(60)).ok()?;
    // Longer than a query may take, by default 2 minutes.
    stream.set_read_timeout(Some(Duration::from_secs(180))).ok()?;
    Some(stream)
}

/// One request on `stream`, which ends with it.
pub(crate) fn exchange(
    stream: &mut (impl Read + Write),
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes()).ok()?;
    // A server may answer before it has read the body.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    // A killed server may cut a response: it counts if its head is complete.
    let _ = stream.read_to_end(&mut bytes);
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..split]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &bytes[split + 4..];
    let bytes =
        if head.contains("transfer-encoding: chunked") { unchunk(body)? } else { body.to_vec() };
    let body = String::from_utf8_lossy(&bytes).into_owned();
    Some(Answer { status, head, bytes, body })
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    request(address, "GET", path, &[], &[])
}

/// The `data` of a Prometheus API answer; the text when it is an error.
pub(crate) fn api(
    address: SocketAddr,
    path: &str,
    parameters: &[(&str, &str)],
) -> Result<Value, String> {
    let form: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    let answer = request(
        address,
        "POST",
        path,
        &[("Content-Type", "application/x-www-form-urlencoded")],
        form.join("&").as_bytes(),
    )
    .ok_or_else(|| format!("{address}{path}: no answer"))?;
    let json: Value = serde_json::from_str(&answer.body).map_err(|e| {
        format!("{path}: {e} in {:?}", answer.body.chars().take(300).collect::<String>())
    })?;
    if json["status"] == "success" {
        return Ok(json["data"].clone());
    }
    Err(format!("{}: {}", answer.status, answer.body))
}

pub(crate) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let chunk_bytes =
            usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        if chunk_bytes == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + chunk_bytes)?);
        rest = rest.get(line + 2 + chunk_bytes + 2..)?;
    }
}
