//! What surrounds the API: the page, health, errors of HTTP itself, start, stop, a folder in use.

use std::io::{Read, Write};
use std::time::Duration;

use crate::client::{api, get, import, send};
use crate::{Running, start_in};

#[test]
fn pages_and_health_answer() {
    let server = Running::start(&[]);
    let at = server.at();
    let page = get(at, "/");
    assert!(page.status == 200 && page.text().contains("FirnDB"));
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    for path in ["/-/healthy", "/-/ready"] {
        assert_eq!(get(at, path).status, 200);
        let head = send(at, "HEAD", path, &[], b"");
        assert!(head.status == 200 && head.body.is_empty());
    }
    let metrics = get(at, "/metrics");
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.text().contains("firn_build_info{version=\""));
    let build = api(at, "status/buildinfo", &[]);
    assert!(build["version"].as_str().is_some_and(|version| version.starts_with("3.")), "{build}");
}

#[test]
fn unknown_paths_and_methods_are_told_in_plain_text() {
    let server = Running::start(&[]);
    let at = server.at();
    let missing = get(at, "/api/v1/nothing");
    assert_eq!((missing.status, missing.text().as_str()), (404, "404 page not found\n"));
    assert!(missing.header("content-type").starts_with("text/plain"));
    let wrong = send(at, "DELETE", "/api/v1/query", &[], b"");
    assert_eq!(wrong.status, 405);
    let allow = wrong.header("allow").to_owned();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    assert_eq!(send(at, "POST", "/api/v1/metadata", &[], b"").status, 405);
}

#[test]
fn other_origins_and_packed_answers() {
    let server = Running::start(&[]);
    let at = server.at();
    let plain = get(at, "/metrics");
    assert!(plain.headers.iter().any(|(name, value)| name == "vary" && value == "Origin"));
    assert_eq!(plain.header("access-control-allow-origin"), "");
    let origin = [("Origin", "http://grafana"), ("Accept-Encoding", "deflate, gzip")];
    let packed = send(at, "GET", "/metrics", &origin, b"");
    assert_eq!(packed.header("access-control-allow-origin"), "http://grafana");
    assert_eq!(packed.header("access-control-allow-methods"), "GET, POST, OPTIONS");
    assert_eq!(packed.header("content-encoding"), "gzip");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_string(&mut text).expect("gzip");
    assert!(
        text.contains("firn_http_requests_total{handler=\"/metrics\",code=\"200\"} 1\n"),
        "{text}"
    );
    let preflight = send(at, "OPTIONS", "/api/v1/query", &origin[..1], b"");
    assert_eq!((preflight.status, preflight.body.len()), (204, 0));
    assert_eq!(preflight.header("access-control-allow-origin"), "http://grafana");
}

#[test]
fn what_is_no_http_hurts_nobody() {
    let server = Running::start(&["--connections-max=2"]);
    for junk in [&b"\x16\x03\x01\x02\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b""] {
        let mut stream = std::net::TcpStream::connect(server.at()).expect("a connection");
        let _ = stream.write_all(junk);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    // More connections than are open at one time: the rest wait their turn.
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let at = server.at();
            std::thread::spawn(move || get(at, "/-/healthy").status)
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().expect("no panic") == 200));
}

#[test]
fn data_is_there_after_a_clean_stop() {
    let mut server = Running::start(&[]);
    import(server.at(), "kept{x=\"1\"} 1.25 1700000000000\n");
    server.restart(&[]);
    let data = api(server.at(), "query", &[("query", "kept"), ("time", "1700000000")]);
    assert_eq!(data["result"][0]["value"][1], "1.25");
    import(server.at(), "kept{x=\"1\"} 2 1700000001000\n");
    let data = api(server.at(), "query", &[("query", "kept[1m]"), ("time", "1700000002")]);
    assert_eq!(data["result"][0]["values"].as_array().expect("two").len(), 2);
}

/// The second server listens, because it does so before the database is open, and tells everybody
/// that it is not ready; opening fails with the folder's name.
#[test]
fn a_second_server_on_the_folder_is_refused_and_never_ready() {
    let first = Running::start(&[]);
    let mut second = start_in(&first.folder, &[]);
    let refused = second.wait_until_ready(Duration::from_secs(60));
    let refused = refused.expect_err("the folder is in use").to_string();
    assert!(refused.contains("is open in another process"), "{refused}");
    assert!(refused.contains(&first.folder.path().display().to_string()), "{refused}");
    let at = second.listen();
    assert_eq!(get(at, "/-/healthy").status, 200);
    for path in ["/-/ready", "/api/v1/query?query=1", "/api/v1/labels"] {
        let answer = get(at, path);
        assert_eq!(answer.status, 503);
        assert!(answer.text().starts_with("Service Unavailable: starting"), "{}", answer.text());
    }
    assert_eq!(send(at, "POST", "/api/v1/write", &[], b"").status, 503);
    assert_eq!(send(at, "POST", "/api/v1/import/prometheus", &[], b"a 1").status, 503);
    assert_eq!(api(at, "status/walreplay", &[]).to_string(), r#"{"current":0,"max":0,"min":0}"#);
    assert!(get(at, "/metrics").text().contains("firn_ready 0\n"));
    second.stop().expect("nothing to lose");
}

#[test]
fn it_scrapes_itself_from_the_first_second() {
    let server = Running::start(&["--self-scrape=1h"]);
    let query = format!("up{{job=\"firn\",instance=\"{}\"}}", server.at());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let data = api(server.at(), "query", &[("query", &query)]);
        if data["result"][0]["value"][1] == "1" {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "no sample of its own: {data}");
        std::thread::yield_now();
    }
    let known = api(server.at(), "metadata", &[("metric", "firn_samples_written_total")]);
    assert_eq!(known["firn_samples_written_total"][0]["type"], "counter");
}
