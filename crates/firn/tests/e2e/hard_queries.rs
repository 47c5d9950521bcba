//! Texts that are hard to parse or to compile, at every endpoint that takes one: each is answered,
//! the process stays within its memory limit, and other clients are answered meanwhile.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::http::{Answer, encode, get, request};
use crate::memory::{Peak, SetOnDrop};
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::{WriteRequest, field, varint};
use crate::tiers::metric;

const LIMIT_BYTES: u64 = 128 << 20;

/// Matchers that take much memory to compile, or are refused.
fn hard_matchers() -> Vec<String> {
    let regex = |pattern: &str| format!("a=~{}", serde_json::to_string(pattern).expect("JSON"));
    let mut matchers = vec![
        regex(r"(\pL{30}){30}"),
        regex("(a{1000}){1000}"),
        regex(&format!("(?i){}", r"\pL".repeat(2_000))),
        regex(&"(a|b.){9}".repeat(5_000)),
        regex(&format!("[ab]*a[ab]{{{}}}", 20)),
        regex(&"a|".repeat(100_000)),
        regex(&"x.".repeat(200_000)),
        regex(&"(".repeat(50_000)),
    ];
    matchers.push((0..1_500).map(|n| format!("l{n}=~\"a.c{n}\",")).collect());
    matchers.push(vec![regex(r"(\pL{10}){20}"); 300].join(","));
    matchers
}

fn post(address: SocketAddr, path: &str, body: &str) -> Option<Answer> {
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    request(address, "POST", path, &headers, body.as_bytes())
}

/// One request with `selector` to each endpoint that takes one.
fn send_everywhere(address: SocketAddr, selector: &str) -> Vec<(String, Option<Answer>)> {
    let text = encode(selector);
    let mut answers = Vec::new();
    for path in ["query", "query_range", "format_query", "parse_query", "query_exemplars"] {
        let body = format!("query={text}&start=0&end=10&step=1");
        answers.push((path.to_owned(), post(address, &format!("/api/v1/{path}"), &body)));
    }
    for path in ["series", "labels"] {
        let body = format!("match[]={text}&match[]={text}&match[]={text}");
        answers.push((path.to_owned(), post(address, &format!("/api/v1/{path}"), &body)));
    }
    let delete = "/api/v1/admin/tsdb/delete_series";
    answers.push((delete.to_owned(), post(address, delete, &format!("match[]={text}"))));
    for path in [
        "/api/v1/label/a/values?match[]=",
        "/federate?match[]=",
        "/api/v1/groups?match[]=",
        "/api/v1/status/groups?match[]=",
        "/api/v1/targets/metadata?match_target=",
        "/api/v1/rules?match[]=",
    ] {
        answers.push((path.to_owned(), get(address, &format!("{path}{text}"))));
    }
    let quoted = serde_json::to_string(selector).expect("JSON");
    let body = format!(r#"{{"operations":[{{"op":"read","match":{quoted}}}]}}"#);
    let path = "/api/v1/transaction";
    answers.push((path.to_owned(), request(address, "POST", path, &[], body.as_bytes())));
    answers
}

/// A remote read with matchers of `kind`, snappy.
fn read_body(patterns: &[String]) -> Vec<u8> {
    let mut query = Vec::new();
    for pattern in patterns {
        let mut matcher = vec![0x08];
        varint(2, &mut matcher);
        field(0x12, b"a", &mut matcher);
        field(0x1a, pattern.as_bytes(), &mut matcher);
        field(0x1a, &matcher, &mut query);
    }
    let mut body = Vec::new();
    field(0x0a, &query, &mut body);
    snap::raw::Encoder::new().compress_vec(&body).expect("fits")
}

#[test]
fn hard_selectors_stay_within_the_memory_limit_at_every_endpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    command.args(["--memory", "128MiB", "--self-scrape", "never", "--enable-admin-api"]);
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let mut sent = WriteRequest::default();
    for number in 0..200 {
        let value = format!("{}{number}", "ab".repeat(100));
        sent.series(&[("__name__", "up"), ("a", &value)], &[(1_700_000_000_000, 1.0)]);
    }
    assert_eq!(sent.send(address).0, 204);
    let peak = Peak::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&done);
        let watching = scope.spawn(|| peak.watch(server.id(), &done));
        std::thread::scope(|scope| {
            for matchers in hard_matchers() {
                scope.spawn(move || {
                    let selector = format!("up{{{matchers}}}");
                    for (path, answer) in send_everywhere(address, &selector) {
                        let Some(answer) = answer else { continue };
                        // Too long for a URL: 414 and 431 are answers too.
                        let is_known = matches!(answer.status, 200 | 204 | 400..=499 | 500 | 503);
                        assert!(is_known, "{path}: {}", answer.head);
                        let is_error = answer.status >= 400;
                        let len = answer.bytes.len();
                        assert!(!is_error || len < 5_000, "{path}: an error of {len} bytes");
                        assert!(!is_error || len > 0, "{path}: an empty error");
                    }
                });
            }
            scope.spawn(move || {
                let headers =
                    [("Content-Type", "application/x-protobuf"), ("Content-Encoding", "snappy")];
                for patterns in [
                    vec![r"(\pL{10}){20}".to_owned(); 2_000],
                    vec!["a|".repeat(500_000); 20],
                    vec!["x".repeat(1 << 20); 20],
                ] {
                    let body = read_body(&patterns);
                    let answer = request(address, "POST", "/api/v1/read", &headers, &body);
                    let status = answer.map(|answer| answer.status);
                    assert!(matches!(status, Some(200 | 400 | 422 | 503)), "{status:?}");
                }
            });
            for _ in 0..20 {
                let answer = get(address, "/-/healthy").expect("an answer");
                assert_eq!(answer.status, 200);
            }
        });
        done.store(true, Ordering::Relaxed);
        watching.join().expect("no panic");
    });
    peak.check(LIMIT_BYTES);
    // A response that no client waits for is released after the client has its next one.
    let reserved = || metric(address, "firn_memory_reserved_bytes{pool=\"query\"}");
    wait_for("released memory", Duration::from_secs(60), || reserved() == Some(0.0));
    assert!(!server.output().contains("panicked"), "{}", server.output());
}

#[test]
fn a_request_has_a_bounded_number_of_selectors() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let _server = crate::process::start_firn(folder.path(), address);
    let many = |count: usize| vec!["match[]=up"; count].join("&");
    for path in ["/api/v1/labels", "/api/v1/series"] {
        assert_eq!(post(address, path, &many(1_000)).map(|answer| answer.status), Some(200));
        let refused = post(address, path, &many(1_001)).expect("an answer");
        assert_eq!(refused.status, 400, "{path}");
        assert!(refused.body.contains("got 1001 selectors, expected at most 1000"), "{path}");
    }
    for path in ["/federate", "/api/v1/groups", "/api/v1/status/groups", "/api/v1/label/a/values"] {
        let refused = get(address, &format!("{path}?{}", many(1_001))).expect("an answer");
        assert_eq!(refused.status, 400, "{path}");
    }
}

#[test]
fn errors_repeat_only_the_beginning_of_long_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let _server = crate::process::start_firn(folder.path(), address);
    let long = "9".repeat(5 << 20);
    let word = "x".repeat(900_000);
    let json = [("Content-Type", "application/json")];
    const LONG_PATTERN: usize = 6;
    let answers = [
        post(address, "/api/v1/query", &format!("query=up&time={long}")),
        post(address, "/api/v1/query", &format!("query=up&timeout={long}x")),
        post(address, "/api/v1/query", &format!("query=up&limit=x{long}")),
        post(address, "/api/v1/query", &format!("query={word}+{word}")),
        post(address, "/api/v1/query", &format!("query={word}(1)")),
        post(address, "/api/v1/query", &format!("query=0x{word}")),
        post(address, "/api/v1/query", &format!("query=up{{a=~%22({word}%22}}")),
        post(address, "/api/v1/query_range", &format!("query=up&start=0&end=1&step={long}")),
        post(address, "/api/v1/labels", &format!("start={long}x")),
        request(address, "POST", "/api/v1/groups", &json, format!("{{\"{long}\":1}}").as_bytes()),
        request(address, "POST", "/api/v1/groups/write", &json, long.as_bytes()),
        request(
            address,
            "POST",
            "/api/v1/transaction",
            &json,
            format!("{{\"operations\":[{{\"op\":\"{long}\"}}]}}").as_bytes(),
        ),
        request(
            address,
            "POST",
            "/api/v1/transaction",
            &json,
            format!("{{\"operations\":[{{\"timestamp\":{long}}}]}}").as_bytes(),
        ),
        request(
            address,
            "POST",
            "/api/v1/import/prometheus",
            &[],
            format!("up {word}\n").as_bytes(),
        ),
        request(
            address,
            "POST",
            "/api/v1/import/prometheus",
            &[],
            format!("# TYPE up {word}\n").as_bytes(),
        ),
    ];
    for (idx, answer) in answers.into_iter().enumerate() {
        let answer = answer.unwrap_or_else(|| panic!("request {idx} has no answer"));
        // The pattern is well formed, and too long to be compiled.
        let status = if idx == LONG_PATTERN { 422 } else { 400 };
        assert_eq!(answer.status, status, "request {idx}: {}", answer.head);
        let len = answer.bytes.len();
        assert!((1..5_000).contains(&len), "request {idx}: {len} bytes");
    }
}
