//! One GET request to a running server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use firn_server::{Error, Result, redacted};

const TIMEOUT: Duration = Duration::from_secs(150);

/// Body of the response to `GET target` from the server at `address`, whatever its status.
///
/// # Errors
/// `Unavailable` when the server cannot be reached or does not respond in time.
pub(crate) fn get(address: &str, target: &str, token: Option<&str>) -> Result<Vec<u8>> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    if address.rsplit_once(':').is_none_or(|(host, _)| host.is_empty()) {
        let what = format!("--server: expected HOST:PORT such as 127.0.0.1:9420, got {address:?}");
        return Err(Error::invalid(what));
    }
    let failed = |e: std::io::Error| {
        let shown = redacted(address);
        let what = format!("cannot reach the server at {shown}; is it running?");
        Error::unavailable(what).because(e)
    };
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    // Version 1.0: the response ends with the connection and has no chunks.
    write!(stream, "GET {target} HTTP/1.0\r\nHost: {address}\r\n{token}\r\n").map_err(failed)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).map_err(failed)?;
    let body_start = response.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    Ok(response.split_off(body_start.unwrap_or(response.len())))
}
