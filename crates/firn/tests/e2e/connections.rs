//! Hundreds of silent, stalled or malformed connections: other clients are served, the memory of
//! unread responses stays reserved, and a stop does not wait for stalled clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;
use crate::tiers::metric;

const NOW_MS: i64 = 1_700_000_000_000;

fn start(folder: &std::path::Path, address: SocketAddr, arguments: &[&str]) -> Process {
    let mut command = firn(folder, address);
    let process = Process::start("firn", folder, command.args(arguments));
    wait_until_ready(address, "/-/ready");
    process
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the system accepts it");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// Sends `text` and reads until the server closes the connection.
fn exchange(address: SocketAddr, text: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(text).expect("the server receives");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A body that was announced and does not arrive holds no memory, and idle connections are evicted.
#[test]
fn silent_connections_block_no_other_client() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let limits = ["--memory", "64MiB", "--connections-max", "40", "--self-scrape", "never"];
    let mut server = start(folder.path(), address, &limits);

    // Requests in the middle of their bodies, each announcing half of the memory.
    let post =
        "POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 33000000\r\n\r\nx";
    let mut silent: Vec<TcpStream> = (0..35).map(|_| connect(address)).collect();
    for stream in &mut silent {
        stream.write_all(post.as_bytes()).expect("the server receives");
    }
    let in_requests = |count: f64| {
        metric(address, "firn_http_connections{state=\"admitted\"}").is_some_and(|now| now >= count)
    };
    wait_for("the bodies to begin", Duration::from_secs(30), || in_requests(35.0));
    let mut request = WriteRequest::default();
    request.series(&[("__name__", "new"), ("at", "once")], &[(NOW_MS, 1.0)]);
    let (status, text) = request.send(address);
    assert_eq!(status, 204, "a new series while 35 bodies are awaited: {text}");

    // Connections without a request, and with half of a head.
    let mut idle: Vec<TcpStream> = (0..300).map(|_| connect(address)).collect();
    for stream in idle.iter_mut().step_by(2) {
        let _ = stream.write_all(b"GET /api/v1/query HTTP/1.1\r\nHost: x\r\n");
    }
    for path in ["/-/healthy", "/-/ready", "/metrics"] {
        assert_eq!(get(address, path).expect("an answer").status, 200, "{path}");
    }
    assert!(metric(address, "firn_http_connections_closed_total{reason=\"replaced\"}") > Some(0.0));
    let query = [("query", "new"), ("time", "1700000000")];
    let data = api(address, "/api/v1/query", &query).expect("an answer");
    assert_eq!(data["result"].as_array().map(Vec::len), Some(1));

    assert_eq!(server.terminate(), Some(0));
    assert!(!server.output().contains("cut off connections"), "the stop waited for silent clients");
}

/// Unread responses keep their reservation until they have left the server.
#[test]
fn unread_responses_stay_in_the_budget_and_a_stop_cuts_them_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let limits = ["--memory", "128MiB", "--self-scrape", "never"];
    let mut server = start(folder.path(), address, &limits);
    for round in 0..200 {
        let mut request = WriteRequest::default();
        for series in 0..400 {
            let labels = [("__name__", "wide"), ("series", &format!("{series:0>200}"))];
            request.series(&labels, &[(NOW_MS + round * 15_000, (round * series) as f64)]);
        }
        assert_eq!(request.send(address).0, 204);
    }
    let end = NOW_MS / 1_000 + 200 * 15;
    let path = format!("/api/v1/query_range?query=wide&start={}&end={end}&step=5", end - 3_000);
    let length = get(address, &path).expect("an answer").bytes.len();
    assert!(length > 4_000_000, "{length} bytes");

    let reserved = || metric(address, "firn_memory_reserved_bytes{pool=\"query\"}");
    let mut unread = Vec::new();
    for _ in 0..12 {
        let mut stream = connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it receives");
        unread.push(stream);
    }
    // The system takes some of each response; the rest is in the server.
    wait_for("the responses to be reserved", Duration::from_secs(60), || {
        reserved() > Some(1_000_000.0)
    });
    assert_eq!(get(address, "/-/healthy").expect("an answer").status, 200);
    assert_eq!(server.terminate(), Some(0));
    assert!(!server.output().contains("cut off connections"), "the stop waited for the readers");
}

/// Every error has a text, also for a malformed request.
#[test]
fn every_error_has_a_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let _server = start(folder.path(), address, &["--self-scrape", "never"]);
    let raw = "GET /api/v1/query?query=up{a=\"<b>`\"}&time=0 HTTP/1.1\r\nHost: localhost\r\n\
         Connection: close\r\n\r\n";
    let answer = exchange(address, raw.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"success\""), "{answer}");
    let bad = |text: &str| format!("{text}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    for request in [
        "GET / HTTP/9.9".to_owned(),
        "GET /a b HTTP/1.1".to_owned(),
        "GET /%zz HTTP/1.1".to_owned(),
        "GET /\u{1} HTTP/1.1".to_owned(),
        "GET /missing HTTP/1.1".to_owned(),
        "PATCH /api/v1/query HTTP/1.1".to_owned(),
        "DELETE /-/healthy HTTP/1.1".to_owned(),
        "CONNECT localhost:1 HTTP/1.1".to_owned(),
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2".to_owned(),
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2".to_owned(),
        "GET / HTTP/1.1\r\nA: b\r\n c".to_owned(),
        "GET / HTTP/1.1\r\n: b".to_owned(),
        format!("GET / HTTP/1.1{}", "\r\na: b".repeat(150)),
        format!("GET /?{} HTTP/1.1", "\"".repeat(30_000)),
        format!("GET / HTTP/1.1\r\na: {}", "b".repeat(200_000)),
        "POST /api/v1/read HTTP/1.1\r\nContent-Length: 99999999999".to_owned(),
        "POST /api/v1/write HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}".to_owned(),
    ] {
        let answer = exchange(address, bad(&request).as_bytes());
        let shown: String = request.chars().take(60).collect();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status: u16 = head.split(' ').nth(1).unwrap_or_default().parse().unwrap_or(0);
        assert!((400..600).contains(&status) && body.len() > 10, "{shown:?}: {answer:?}");
    }
}

/// Health, metrics and the administrator have a listener of their own.
#[test]
fn the_admin_listener_serves_what_the_main_one_then_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, admin) = (free_address(), free_address());
    let at = admin.to_string();
    let arguments = ["--admin-listen", &at, "--enable-admin-api", "--enable-lifecycle"];
    let mut server = start(folder.path(), address, &arguments);
    for path in ["/-/healthy", "/-/ready", "/metrics"] {
        assert_eq!(get(address, path).expect("an answer").status, 200, "{path}");
        assert_eq!(get(admin, path).expect("an answer").status, 200, "{path}");
    }
    let post = |address, path| crate::http::request(address, "POST", path, &[], &[]);
    for path in ["/api/v1/admin/tsdb/clean_tombstones", "/-/reload", "/-/quit"] {
        let refused = post(address, path).expect("an answer");
        assert!(refused.status == 404 && refused.body.contains("--admin-listen"), "{path}");
    }
    assert_eq!(get(admin, "/api/v1/query?query=1").expect("an answer").status, 404);
    assert_eq!(post(admin, "/api/v1/admin/tsdb/clean_tombstones").expect("an answer").status, 204);
    assert_eq!(post(admin, "/-/quit").expect("an answer").status, 200);
    wait_for("the stop", Duration::from_secs(60), || server.has_ended());
}
