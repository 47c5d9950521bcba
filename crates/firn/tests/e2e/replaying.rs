//! The response of `/api/v1/status/walreplay` while the log is replayed. strace makes each read of
//! the log take seconds, so that the test can observe the middle.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::http;
use crate::process::{Process, firn, free_address, installed, start_firn, wait_until_ready};
use crate::remote_write::WriteRequest;

const SERIES: i64 = 50;
const SAMPLES: i64 = 200;
const REQUESTS: i64 = 50;
/// Reads have a megabyte each, about 130 of them: the log is searched for deletes before its rows
/// are read, and unused parts of a segment are read too. From this read on each is slow.
const SLOW_FROM: usize = 6;
const READ_TAKES: &str = "3s";

#[test]
fn a_replay_reports_its_progress_and_its_end() {
    let Some(strace) = installed("strace") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, address) = (folder.path(), free_address());
    let arguments = ["--self-scrape=never", "--flush-age-max=2h", "--log-streams=1"];
    let mut server = Process::start("firn", folder, firn(folder, address).args(arguments));
    wait_until_ready(address, "/-/ready");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let first_ms = now.as_millis() as i64 - REQUESTS * SAMPLES * 10;
    (0..REQUESTS).for_each(|request| {
        let (status, text) = noise(first_ms, request).send(address);
        assert_eq!(status, 204, "{text}");
    });
    server.kill();

    let mut command = std::process::Command::new(strace);
    command.args(["-f", "-o", "/dev/null", "-e", "trace=pread64", "-e"]);
    command.arg(format!("inject=pread64:delay_enter={READ_TAKES}:when={SLOW_FROM}+"));
    let log = folder.join("firn-data/fast/log/0");
    for file in std::fs::read_dir(&log).expect("a log") {
        command.arg("-P").arg(file.expect("a file").path());
    }
    let mut ours = firn(folder, address);
    command.arg(ours.args(arguments).get_program()).args(ours.get_args());
    let mut traced = Process::start("strace", folder, &mut command);
    let mut last = 0;
    let middle = loop {
        std::thread::park_timeout(Duration::from_millis(20));
        // No server listens at first.
        let Some(progress) = walreplay(address) else { continue };
        let (current, max) = (number(&progress, "current"), number(&progress, "max"));
        assert!(current >= last && current <= max, "{progress} after {last}");
        assert!(
            progress["percent"].as_f64() < Some(100.0),
            "the replay ended too soon: {progress}"
        );
        last = current;
        if current > 0 {
            break progress;
        }
        assert_eq!(progress["secondsLeft"], Value::Null, "the time is unknown yet: {progress}");
    };
    let (current, max) = (number(&middle, "current") as f64, number(&middle, "max") as f64);
    let (percent, left_s) = (middle["percent"].as_f64(), middle["secondsLeft"].as_f64());
    println!("{middle}");
    assert!(percent.is_some_and(|percent| (percent - current * 100.0 / max).abs() < 0.1));
    assert!(left_s.is_some_and(|left_s| left_s > 0.0), "{middle}");
    for path in ["/-/ready", "/api/v1/query?query=1"] {
        assert_eq!(http::get(address, path).expect("an answer").status, 503, "{path}");
    }
    traced.kill_child();
    drop(traced);

    let _server = start_firn(folder, address);
    let progress = walreplay(address).expect("an answer");
    assert_eq!(
        (progress["percent"].as_f64(), &progress["current"]),
        (Some(100.0), &progress["max"])
    );
    let count = [("query", "sum(count_over_time(noise[1h]))")];
    let found = http::api(address, "/api/v1/query", &count).expect("an answer");
    assert_eq!(found["result"][0]["value"][1], (SERIES * SAMPLES * REQUESTS).to_string());
}

fn walreplay(address: SocketAddr) -> Option<Value> {
    let answer = http::get(address, "/api/v1/status/walreplay")?;
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    Some(answer["data"].clone())
}

fn number(progress: &Value, name: &str) -> u64 {
    progress[name].as_u64().unwrap_or_else(|| panic!("no {name} in {progress}"))
}

/// Samples that nothing makes shorter.
fn noise(first_ms: i64, request: i64) -> WriteRequest {
    let mut random = request as u64 * 2 + 1;
    let mut body = WriteRequest::default();
    for series in 0..SERIES {
        let name = series.to_string();
        let labels = [("__name__", "noise"), ("instance", "a"), ("job", "noise"), ("n", &*name)];
        let samples: Vec<(i64, f64)> = (0..SAMPLES)
            .map(|sample| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e);
                (first_ms + (request * SAMPLES + sample) * 10, random as f64)
            })
            .collect();
        body.series(&labels, &samples);
    }
    body
}
