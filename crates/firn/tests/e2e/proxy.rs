//! `firn cache --proxy` in front of a real Prometheus: the same bytes, most of them without a
//! request to Prometheus.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::{self, Answer, encode};
use crate::process::{Process, free_address, installed, start_prometheus, wait_until_ready};
use crate::remote_write::WriteRequest;

const STEP_S: i64 = 15;
const METRICS: &str = "/-/cache/metrics";

fn start_proxy(folder: &Path, origin: SocketAddr, address: SocketAddr) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    // Every part, however small.
    command
        .args(["cache", "--size=64MiB", "--partial-bytes-min=0", "--proxy"])
        .arg(format!("http://{origin}"));
    command.arg("--data").arg(folder.join("cache")).arg("--listen").arg(address.to_string());
    let process = Process::start("cache", folder, &mut command);
    wait_until_ready(address, METRICS);
    process
}

/// Three hours up to `now_s`, with an intermittent series and labels that JSON must escape.
fn write(prometheus: SocketAddr, now_s: i64) {
    let steps: Vec<i64> = (now_s - 3 * 3_600..=now_s).step_by(STEP_S as usize).collect();
    for part in steps.chunks(240) {
        let mut request = WriteRequest::default();
        for number in 0..12_i64 {
            let value = |ts: i64| match number {
                3 => f64::NAN,
                5 => f64::INFINITY,
                _ => ((ts * (number + 1)) % 9_973) as f64 / 7.0,
            };
            let is_there = |ts: i64| number != 4 || (ts / 900) % 2 == 0;
            let samples: Vec<(i64, f64)> = part
                .iter()
                .filter(|&&ts| is_there(ts))
                .map(|&ts| (ts * 1_000, value(ts)))
                .collect();
            let text = format!("n{number}");
            let labels = [("__name__", "load"), ("kind", "\"a\\b\"\n\u{e9}"), ("number", &text)];
            if !samples.is_empty() {
                request.series(&labels, &samples);
            }
        }
        let (status, text) = request.send(prometheus);
        assert!(status < 300, "{status}: {text}");
    }
}

fn query_range(address: SocketAddr, query: &str, start: i64, end: i64, step: &str) -> Answer {
    let path =
        format!("/api/v1/query_range?query={}&start={start}&end={end}&step={step}", encode(query));
    http::get(address, &path).expect("an answer")
}

/// The share of a response that came from the cache, as its header states; `None` if the request
/// was forwarded.
fn found(answer: &Answer) -> Option<&str> {
    answer.head.lines().find_map(|line| line.strip_prefix("x-firn-cache: ")).map(str::trim)
}

fn metric(proxy: SocketAddr, sample: &str) -> f64 {
    let text = http::get(proxy, METRICS).expect("metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(sample)).map(str::trim);
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {sample} in {text}"))
}

#[test]
fn a_prometheus_responds_the_same_behind_the_proxy() {
    let Some(program) = installed("prometheus") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (prometheus_at, proxy_at) = (free_address(), free_address());
    let mut prometheus = start_prometheus(&program, folder, prometheus_at, "");
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let now_s = now_s / 60 * 60;
    write(prometheus_at, now_s);
    let mut proxy = start_proxy(folder, prometheus_at, proxy_at);

    let queries = [
        "load",
        "sum by (number) (rate(load[2m]))",
        "load{number=~\"n[345]\"} offset 7m",
        "max_over_time(load{number=\"n4\"}[1m]) > 100",
        "count(load) or vector(0)",
        "nothing",
    ];
    // A dashboard's windows slide; the last one ends now, where samples may still come.
    let windows = [(170, 100), (165, 95), (175, 90), (175, 90), (100, 30), (100, 0), (98, 0)];
    for query in queries {
        for (idx, (from, to)) in windows.into_iter().enumerate() {
            let (start, end) = (now_s - from * 60, now_s - to * 60);
            let direct = query_range(prometheus_at, query, start, end, "30");
            let proxied = query_range(proxy_at, query, start, end, "30");
            assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body), "{query}");
            let wanted = match idx {
                // The third is cached in the middle only, and one range is requested.
                0 | 2 => "miss",
                3 => "hit",
                _ => "partial",
            };
            assert_eq!(found(&proxied), Some(wanted), "{query}, window {idx}");
        }
    }
    // Another phase of the steps is another result. A form is equivalent to a URL.
    let (start, end) = (now_s - 9_000 + 7, now_s - 6_000);
    assert_eq!(found(&query_range(proxy_at, "load", start, end, "30s")), Some("miss"));
    let form = format!("query=load&start={start}&end={end}&step=30");
    let form_type = [("Content-Type", "application/x-www-form-urlencoded")];
    let post = |address| {
        let path = "/api/v1/query_range";
        http::request(address, "POST", path, &form_type, form.as_bytes()).expect("an answer")
    };
    let (direct, proxied) = (post(prometheus_at), post(proxy_at));
    assert_eq!((&direct.body, Some("hit")), (&proxied.body, found(&proxied)));

    // A form beyond the limit is forwarded unchanged.
    let long = format!("{form}&padding={}", "x".repeat(3 << 20));
    let post_long = |address| {
        let path = "/api/v1/query_range";
        http::request(address, "POST", path, &form_type, long.as_bytes()).expect("an answer")
    };
    let (direct, proxied) = (post_long(prometheus_at), post_long(proxy_at));
    assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body));
    assert_eq!((proxied.status, found(&proxied)), (200, None));
    // A GET with a body is not: servers understand it differently.
    let path = format!("/api/v1/query_range?{form}");
    let refused = http::request(proxy_at, "GET", &path, &[], b"no form").expect("an answer");
    assert_eq!(refused.status, 400, "{}", refused.body);

    // Everything else is forwarded: errors, other queries, and options that the cache does not
    // know.
    for path in [
        "/api/v1/query_range?query=sum(&start=1&end=2&step=1",
        "/api/v1/query_range?query=load&start=1&end=2&step=0",
        "/api/v1/query_range?query=load",
        &format!("/api/v1/query_range?query=load%20%40%20end()&start={start}&end={end}&step=30"),
        &format!("/api/v1/query?query=sum(load)&time={end}"),
        "/api/v1/labels",
        "/api/v1/series?match[]=load",
        "/api/v1/status/buildinfo",
        "/",
    ] {
        let direct = http::get(prometheus_at, path).expect("an answer");
        let proxied = http::get(proxy_at, path).expect("an answer");
        assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body), "{path}");
        assert_eq!(found(&proxied), None, "{path}");
    }
    let unlisted = http::get(proxy_at, "/no/such/path").expect("an answer");
    assert_eq!(unlisted.status, 403, "{}", unlisted.body);
    assert!(metric(proxy_at, "firn_proxy_range_queries_total{result=\"partial\"}") > 20.0);
    assert!(metric(proxy_at, "firn_proxy_forwarded_requests_total") >= 9.0);

    // With a measured break-even the responses are the same, whatever its value.
    let measured_at = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["cache", "--size=64MiB", "--proxy"]).arg(format!("http://{prometheus_at}"));
    let data = folder.join("measured");
    command.arg("--data").arg(data).arg("--listen").arg(measured_at.to_string());
    let measured = Process::start("measured", folder, &mut command);
    wait_until_ready(measured_at, METRICS);
    for round in 0..4 {
        for (query, (from, to)) in queries.into_iter().zip(windows.into_iter().cycle().skip(round))
        {
            let (start, end) = (now_s - from * 60, now_s - to * 60);
            let direct = query_range(prometheus_at, query, start, end, "30");
            let proxied = query_range(measured_at, query, start, end, "30");
            assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body), "{query}");
        }
    }
    // Until enough is measured, every partial hit is used.
    assert!(metric(measured_at, "firn_proxy_range_queries_total{result=\"partial\"}") > 0.0);
    drop(measured);

    // Cached results outlive the proxy and are served while the origin is down.
    assert_eq!(proxy.terminate(), Some(0));
    let (start, end) = (now_s - 175 * 60, now_s - 90 * 60);
    let direct = query_range(prometheus_at, queries[1], start, end, "30");
    prometheus.kill();
    let _proxy = start_proxy(folder, prometheus_at, proxy_at);
    let proxied = query_range(proxy_at, queries[1], start, end, "30");
    assert_eq!((found(&proxied), &proxied.body), (Some("hit"), &direct.body));
    let refused = query_range(proxy_at, queries[1], start, now_s, "30");
    assert_eq!(refused.status, 502, "{}", refused.body);
    assert!(
        refused.body.contains("\"status\":\"error\"") && refused.body.contains("does not answer")
    );
}
