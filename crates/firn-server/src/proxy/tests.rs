//! Tests with a socket as the origin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use super::*;
use crate::config::from_flags;

/// Sends a form in chunks with `body` verbatim, and waits for the response if `stays`. Returns the
/// response.
fn post(proxy: &Proxy, body: &str, stays: bool) -> String {
    let mut stream = TcpStream::connect(proxy.listen()).unwrap();
    let head = "POST /query?db=d HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n\r\n";
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    if !stays {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    // A client that disconnects may receive nothing.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// InfluxDB accepts changes as forms: a part of one may be another change, and a larger one.
#[test]
fn a_form_that_breaks_off_never_reaches_the_origin() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    // The first request that arrives, with its chunks.
    let first = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut byte) = (Vec::new(), [0]);
        while !request.ends_with(b"\r\n0\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
            request.extend_from_slice(&byte);
        }
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).unwrap();
        String::from_utf8(request).unwrap()
    });
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let flags = [
        ("listen", "127.0.0.1:0"),
        ("data", &data),
        ("size", "64MiB"),
        ("memory", "64MiB"),
        ("answer-bytes-max", "1MiB"),
        ("connections-max", "4"),
        ("settle", "1ms"),
        ("proxy", &origin),
    ];
    let config = from_flags::<CacheConfig>(&flags).unwrap();
    let proxy = Proxy::start(&config.proxy.get().unwrap(), config, || ()).unwrap();
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let begun = chunk("q=DROP SERIES FROM cpu");
    // Between chunks, in the middle of one, and with one that is none.
    for (cut, stays) in [("", false), ("15\r\n WHERE ho", false), ("no length\r\n", true)] {
        let answer = post(&proxy, &format!("{begun}{cut}"), stays);
        let is_refused = answer.starts_with("HTTP/1.1 400 ") && answer.contains("was cut off");
        assert!(is_refused || (answer.is_empty() && !stays), "{cut:?}: {answer}");
    }
    let answer = post(&proxy, &format!("{begun}{}0\r\n\r\n", chunk(" WHERE host='a'")), true);
    let request = first.join().unwrap();
    assert!(request.contains("q=DROP SERIES FROM cpu WHERE host='a'"), "{request}");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    proxy.stop().unwrap();
}
