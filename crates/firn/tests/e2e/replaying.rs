//! The responses of a server while it replays its log: `/api/v1/status/walreplay`, and queries,
//! lists and remote reads of older times than the log. strace makes each read of the log take
//! seconds, so that the tests can observe the middle.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::http::{self, Answer};
use crate::process::{Process, firn, free_address, installed, start_firn, wait_until_ready};
use crate::remote_read;
use crate::remote_write::WriteRequest;

const SERIES: i64 = 50;
const SAMPLES: i64 = 200;
const REQUESTS: i64 = 50;
/// Reads have a megabyte each, about 130 of them: the log is searched for deletes before its rows
/// are read, and unused parts of a segment are read too. From this read on each is slow.
const SLOW_FROM: usize = 4;
const READ_TAKES: &str = "3s";

#[test]
fn a_replay_reports_its_progress_and_its_end() {
    let Some(strace) = installed("strace") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, address) = (folder.path(), free_address());
    let arguments =
        ["--self-scrape=never", "--flush-age-max=2h", "--restart-time-max=2h", "--log-streams=1"];
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
        let answer = http::get(address, path).expect("an answer");
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.head.contains("retry-after: "), "{}", answer.head);
        assert!(answer.body.contains("% ") || answer.body.contains("%)"), "{}", answer.body);
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

/// On disk: tables with `old`, two hours old and shorter by a delete in the log, and a log with
/// `noise`. While the log is replayed, a query, a list and a remote read of the older times have
/// their final results; any other, and every write, gets 503.
#[test]
fn history_is_answered_during_a_replay() {
    const OLD: i64 = 100;
    let Some(strace) = installed("strace") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, address) = (folder.path(), free_address());
    let arguments = [
        "--self-scrape=never",
        "--flush-age-max=2h",
        "--restart-time-max=2h",
        "--log-streams=1",
        "--enable-admin-api",
    ];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let now_ms = now.as_millis() as i64;
    let old_ms = now_ms - 2 * 3_600_000;
    let mut server = Process::start("firn", folder, firn(folder, address).args(arguments));
    wait_until_ready(address, "/-/ready");
    let labels = [("__name__", "old"), ("instance", "a"), ("job", "old")];
    let samples: Vec<(i64, f64)> = (0..OLD).map(|idx| (old_ms + idx * 1_000, 1.0)).collect();
    let mut body = WriteRequest::default();
    body.series(&labels, &samples);
    assert_eq!(body.send(address).0, 204);
    // A clean end flushes.
    assert_eq!(server.terminate(), Some(0));
    let mut server = Process::start("firn", folder, firn(folder, address).args(arguments));
    wait_until_ready(address, "/-/ready");
    let deleted = format!(
        "/api/v1/admin/tsdb/delete_series?match[]=old&start={}&end={}",
        seconds(old_ms),
        seconds(old_ms + 9_000)
    );
    let answer = http::request(address, "POST", &deleted, &[], &[]).expect("an answer");
    assert_eq!(answer.status, 204, "{}", answer.body);
    let first_ms = now_ms - REQUESTS * SAMPLES * 10;
    (0..REQUESTS).for_each(|request| {
        assert_eq!(noise(first_ms, request).send(address).0, 204);
    });
    server.kill();

    // The read with which the second pass over the log begins.
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(&folder.join("firn-data"), &copy.path().join("firn-data"));
    let slow_from = first_read_of_second_pass(&strace, copy.path(), &arguments);
    let inject = format!("inject=pread64:delay_enter={READ_TAKES}:when={}+", slow_from + 1);
    let mut command = std::process::Command::new(&strace);
    command.args(["-f", "-o", "/dev/null", "-e", "trace=pread64", "-e"]).arg(inject);
    add_log_files(&mut command, folder);
    let mut ours = firn(folder, address);
    command.arg(ours.args(arguments).get_program()).args(ours.get_args());
    let mut traced = Process::start("strace", folder, &mut command);
    let count = |name: &str, at_ms: i64| {
        let query = http::encode(&format!("sum(count_over_time({name}[10m]))"));
        let path = format!("/api/v1/query?query={query}&time={}", seconds(at_ms));
        http::get(address, &path)
    };
    let answer = loop {
        std::thread::park_timeout(Duration::from_millis(20));
        match count("old", old_ms + 300_000) {
            Some(answer) if answer.status == 200 => break answer,
            Some(answer) => assert_eq!(answer.status, 503, "{}", answer.body),
            None => {}
        }
        assert!(!traced.has_ended(), "{}", traced.output());
    };
    let ready = http::get(address, "/-/ready").expect("an answer");
    assert_eq!(ready.status, 503, "the replay ended too soon");
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    let counted = &answer["data"]["result"][0]["value"][1];
    assert_eq!(*counted, (OLD - 10).to_string(), "the delete in the log applies: {answer}");
    for (name, at_ms) in [("noise", now_ms), ("old", now_ms)] {
        assert_refused(&count(name, at_ms).expect("an answer"));
    }
    check_lists(address, old_ms, now_ms);
    let answer = remote_read::stream(address, "old", old_ms, old_ms + 300_000).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(remote_read::sample_count(&answer.bytes) as i64, OLD - 10);
    assert_refused(&remote_read::stream(address, "old", old_ms, now_ms).expect("an answer"));
    assert_eq!(noise(first_ms, 0).send(address).0, 503);
    traced.kill_child();
    drop(traced);

    let _server = start_firn(folder, address);
    for (name, at_ms, expected) in
        [("old", old_ms + 300_000, OLD - 10), ("noise", now_ms, SERIES * SAMPLES * REQUESTS)]
    {
        let answer = count(name, at_ms).expect("an answer");
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(answer["data"]["result"][0]["value"][1], expected.to_string(), "{answer}");
    }
}

/// Lists over a time before the log are complete, and the delete in the log applies. Others are
/// refused.
fn check_lists(address: SocketAddr, old_ms: i64, now_ms: i64) {
    let list = |path: &str, times: &str| {
        http::get(address, &format!("/api/v1/{path}{times}")).expect("an answer")
    };
    let between = |first_ms: i64, last_ms: i64| {
        format!("start={}&end={}", seconds(first_ms), seconds(last_ms))
    };
    let old = json!([{"__name__": "old", "instance": "a", "job": "old"}]);
    for (path, expected) in [
        ("series?match[]=old&", old),
        ("labels?", json!(["__name__", "instance", "job"])),
        ("label/job/values?", json!(["old"])),
    ] {
        for (last_ms, expected) in [(old_ms + 300_000, expected), (old_ms + 9_000, json!([]))] {
            let answer = list(path, &between(old_ms, last_ms));
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(answer["data"], expected, "{path} until {last_ms}");
        }
        assert_refused(&list(path, &between(old_ms, now_ms)));
        assert_refused(&list(path, ""));
    }
}

/// The answer to a request that needs the log: the progress, and when to retry.
fn assert_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.head.contains("retry-after: "), "{}", answer.head);
    assert!(answer.body.contains("bytes of log are read"), "{}", answer.body);
}

/// The number of the read of the log, from 1, that reads the first block a second time.
fn first_read_of_second_pass(
    strace: &std::path::Path,
    folder: &std::path::Path,
    arguments: &[&str],
) -> usize {
    let (trace, address) = (folder.join("trace"), free_address());
    let mut command = std::process::Command::new(strace);
    command.args(["-f", "-e", "trace=pread64", "-e", "signal=none", "-o"]).arg(&trace);
    add_log_files(&mut command, folder);
    let mut ours = firn(folder, address);
    command.arg(ours.args(arguments).get_program()).args(ours.get_args());
    let mut traced = Process::start("strace", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    traced.kill_child();
    let trace = std::fs::read_to_string(trace).expect("a trace");
    // A line of another thread in between splits a call into `pread64(3, <unfinished ...>` and
    // `<... pread64 resumed>"", 1048576, 0) = 1048576`, both behind the thread's number.
    let (mut places, mut unfinished) = (Vec::new(), BTreeMap::new());
    for line in trace.lines() {
        let thread = line.split_whitespace().next();
        if line.contains("pread64(") {
            unfinished.insert(thread, places.len());
            places.push(None);
        }
        if line.contains("pread64")
            && let Some((call, _)) = line.rsplit_once(") = ")
            && let Some(call_idx) = unfinished.remove(&thread)
        {
            places[call_idx] = length_and_offset(call);
        }
    }
    let is_large = |place: &&(u64, u64)| place.0 >= 64 << 10;
    let first = places.iter().flatten().find(is_large);
    let again = places.iter().enumerate().filter(|(_, place)| place.as_ref() == first).nth(1);
    again.unwrap_or_else(|| panic!("the log is not read twice: {trace}")).0 + 1
}

/// The last two arguments of a call.
fn length_and_offset(call: &str) -> Option<(u64, u64)> {
    let mut last = call.rsplit(", ");
    let offset = last.next()?.parse().ok()?;
    Some((last.next()?.parse().ok()?, offset))
}

fn add_log_files(command: &mut std::process::Command, folder: &std::path::Path) {
    for file in std::fs::read_dir(folder.join("firn-data/fast/log/0")).expect("a log") {
        command.arg("-P").arg(file.expect("a file").path());
    }
}

fn copy_folder(source: &std::path::Path, target: &std::path::Path) {
    std::fs::create_dir_all(target).expect("a folder");
    for entry in std::fs::read_dir(source).expect("a folder") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        match entry.file_type().expect("a type").is_dir() {
            true => copy_folder(&from, &to),
            false => drop(std::fs::copy(from, to).expect("a copy")),
        }
    }
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
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
