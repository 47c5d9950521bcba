//! The result cache over a SIGKILL.
//!
//! Crash: the process, after results were cached and after late samples arrived that no query has
//! read yet. On disk: the data that the system has. Afterwards: results equal computed ones, and
//! most steps need no computation.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::http;
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

const STEP_S: i64 = 15;
const STEPS: i64 = 480;
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
const PANELS: [&str; 3] = [
    "load",
    "sum by (host) (rate(requests_total[2m]))",
    "max_over_time(load[5m]) / on (host) load",
];

#[test]
fn answers_that_were_kept_before_a_kill_are_there_and_true_after_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let end = now.div_euclid(STEP_S) * STEP_S - 300;
    let start = end - STEPS * STEP_S;
    let query_range = |text, extra: &str| query_range(address, text, start, end, extra);

    // A flush a second, so that cached results reach the device.
    let mut server = start_with(folder.path(), address, "1s");
    let samples = |value: f64, step: i64| (1_000 * (start + step * STEP_S), value + step as f64);
    write(address, &(-40..=STEPS).map(|step| samples(1.0, step)).collect::<Vec<_>>());
    let first = PANELS.map(|panel| query_range(panel, ""));
    // A flush may be in progress. The next one seals all results, and the one after it records the
    // slabs that have been written since.
    let flushes = metric(address, "firn_flushes_total") + 4.0;
    wait_for("slabs of answers", Duration::from_secs(120), || {
        write(address, &[(1_000 * now, 1.0)]);
        metric(address, "firn_flushes_total") >= flushes
            && metric(address, "firn_cache_slabs") > 0.0
    });
    assert_eq!(metric(address, "firn_result_cache_hit_steps_total"), 0.0);
    server.kill();

    // No flush any more: new samples are in the log alone.
    let mut server = start_with(folder.path(), address, "20m");
    let late = STEPS / 2;
    write(address, &[samples(100.0, late)]);
    server.kill();

    let _server = start_with(folder.path(), address, "20m");
    for (panel, before) in PANELS.iter().zip(&first) {
        let answer = query_range(panel, "");
        assert_eq!(answer, query_range(panel, "&stats=all"), "{panel}");
        assert_ne!(&answer, before, "{panel}: nothing came late");
    }
    let found = metric(address, "firn_result_cache_hit_steps_total");
    let least = PANELS.len() as i64 * (late - 40);
    assert!(found >= least as f64, "{found} steps were kept, {least} should be");
}

/// A repeated response is the text of the one before. It has the bytes that formatting the values
/// has, in each encoding, and is dropped when a sample changes one of its steps.
#[test]
fn a_repeated_response_has_the_same_bytes_until_a_sample_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let end = now.div_euclid(STEP_S) * STEP_S - 300;
    let start = end - STEPS * STEP_S;
    let _server = start_with(folder.path(), address, "20m");
    let samples = |value: f64, step: i64| (1_000 * (start + step * STEP_S), value / step as f64);
    write(address, &(1..=STEPS).map(|step| samples(1e3, step)).collect::<Vec<_>>());
    let body = |text: &str, extra: &str, encoding: &str| {
        let text = http::encode(text);
        let path = format!(
            "/api/v1/query_range?query={text}&start={start}&end={end}&step={STEP_S}{extra}"
        );
        let accept = [("Accept-Encoding", encoding)];
        let response = http::request(address, "GET", &path, &accept, b"").expect("an answer");
        assert_eq!(response.status, 200, "{}", response.body);
        (response.head.contains(&format!("content-encoding: {encoding}")), response.bytes)
    };
    for panel in PANELS {
        for round in 0..3 {
            // With a limit no text is kept.
            let formatted = body(panel, "&limit=1000", "identity");
            assert_eq!(body(panel, "", "identity"), formatted, "{panel} {round}");
        }
        let [packed, again] = ["gzip", "gzip"].map(|encoding| body(panel, "", encoding));
        assert!(packed.0 && packed == again && packed.1 != body(panel, "", "identity").1);
    }
    assert!(metric(address, "firn_result_cache_text_hits_total") >= 6.0);
    let before = body(PANELS[0], "", "identity");
    write(address, &[samples(7e5, STEPS / 2)]);
    let after = body(PANELS[0], "", "identity");
    assert_ne!(before, after);
    assert_eq!(after, body(PANELS[0], "&limit=1000", "identity"));
}

fn start_with(folder: &Path, address: SocketAddr, flush_age: &str) -> Process {
    let mut command = firn(folder, address);
    command.args(["--self-scrape=never", &format!("--flush-age-max={flush_age}")]);
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn write(address: SocketAddr, samples: &[(i64, f64)]) {
    let mut request = WriteRequest::default();
    for host in HOSTS {
        for name in ["load", "requests_total"] {
            request.series(&[("__name__", name), ("host", host)], samples);
        }
    }
    let (status, text) = request.send(address);
    assert!((200..300).contains(&status), "{status}: {text}");
}

/// The result of a range query, without warnings and statistics.
fn query_range(address: SocketAddr, text: &str, start: i64, end: i64, extra: &str) -> Value {
    let text = http::encode(text);
    let path =
        format!("/api/v1/query_range?query={text}&start={start}&end={end}&step={STEP_S}{extra}");
    let answer = http::get(address, &path).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    let result = answer["data"]["result"].take();
    assert!(result.as_array().is_some_and(|series| !series.is_empty()), "{path}");
    result
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let page = http::get(address, "/metrics").expect("metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}:\n{page}"))
}
