//! Outgoing remote write: to a FirnDB and to a real Prometheus, with receivers that are down, a
//! sender that is killed, relabelling, and receivers that refuse.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::http::{api, get, request};
use crate::process::{
    Process, firn, free_address, installed, now_ms, start_firn, start_prometheus, wait_for,
    wait_until_ready,
};
use crate::remote_write::WriteRequest;

const WAIT_MAX: Duration = Duration::from_secs(60);
const STALE: u64 = 0x7ff0_0000_0000_0002;
const SERIES_COUNT: usize = 20;

fn start_sender(folder: &Path, address: SocketAddr, sections: &str) -> Process {
    let config = folder.join("sender.yml");
    fs::write(&config, sections).expect("a file");
    let mut command = firn(folder, address);
    command.arg("--prometheus-config").arg(&config);
    command.args(["--self-scrape", "never", "--flush-age-max", "1s"]);
    let process = Process::start("firn-sender", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// A section for a receiver at `to` that sends often.
fn section(to: SocketAddr, more: &str) -> String {
    format!(
        "global: {{external_labels: {{region: eu}}}}\nremote_write:\n- url: 'http://{to}/api/v1/write'\n\
         \x20 queue_config: {{batch_send_deadline: 100ms, max_samples_per_send: 50, max_shards: 4, \
         min_backoff: 10ms, max_backoff: 100ms}}\n{more}"
    )
}

/// One sample of each series; every tenth round is a staleness marker.
fn value(round: i64, series: usize) -> f64 {
    if round % 10 == 9 { f64::from_bits(STALE) } else { round as f64 + series as f64 / 7.0 }
}

fn write(address: SocketAddr, start_ms: i64, round: i64) {
    let mut sent = WriteRequest::default();
    for series in 0..SERIES_COUNT {
        let name = series.to_string();
        let labels = [("__name__", "out"), ("instance", "i"), ("job", "j"), ("series", &name)];
        sent.series(&labels, &[(start_ms + round * 100, value(round, series))]);
    }
    let (status, text) = sent.send(address);
    assert_eq!(status, 204, "{text}");
}

/// The samples of `metric`, staleness markers left out, by the label `series`.
fn stored(address: SocketAddr, metric: &str) -> BTreeMap<String, Vec<(i64, String)>> {
    let query = format!("{metric}[1h]");
    let Ok(data) = api(address, "/api/v1/query", &[("query", &query)]) else {
        return BTreeMap::new();
    };
    let series = data["result"].as_array().cloned().unwrap_or_default();
    let samples = |one: &serde_json::Value| {
        let values = one["values"].as_array().cloned().unwrap_or_default();
        let sample = |pair: &serde_json::Value| {
            let ms = (pair[0].as_f64().unwrap_or(0.0) * 1e3).round() as i64;
            (ms, pair[1].as_str().unwrap_or_default().to_owned())
        };
        values.iter().map(sample).collect()
    };
    series
        .iter()
        .map(|one| {
            let metric = &one["metric"];
            assert_eq!(metric["region"], "eu", "external labels");
            (metric["series"].as_str().unwrap_or_default().to_owned(), samples(one))
        })
        .collect()
}

fn expected(start_ms: i64, rounds: i64) -> BTreeMap<String, Vec<(i64, String)>> {
    let of = |series: usize| {
        let rounds = (0..rounds).filter(|round| round % 10 != 9);
        let samples =
            rounds.map(|round| (start_ms + round * 100, value(round, series).to_string()));
        (series.to_string(), samples.collect())
    };
    (0..SERIES_COUNT).map(of).collect()
}

fn wait_for_all(address: SocketAddr, metric: &str, start_ms: i64, rounds: i64) {
    let want = expected(start_ms, rounds);
    for _ in 0..1_200 {
        if stored(address, metric) == want {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let found = stored(address, metric);
    let missing: usize = want
        .iter()
        .map(|(series, samples)| {
            let there = found.get(series).cloned().unwrap_or_default();
            samples.iter().filter(|sample| !there.contains(sample)).count()
        })
        .sum();
    panic!("{missing} samples are missing; {:?} against {:?}", found.get("3"), want.get("3"));
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let metrics = get(address, "/metrics").expect("metrics").body;
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(0.0)
}

/// Writes during an outage of the receiver and a kill of the sender. `start` starts the receiver.
fn outage_and_kill(start: &dyn Fn(SocketAddr) -> Process, more: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (sender_at, receiver_at) = (free_address(), free_address());
    let sections = section(receiver_at, more);
    let mut receiver = start(receiver_at);
    let mut sender = start_sender(folder.path(), sender_at, &sections);
    // Every sample after the first start is sent; the position of the first start must be stored.
    let running = || metric(sender_at, "prometheus_remote_storage_shards_max") == 4.0;
    wait_for("the destination", WAIT_MAX, running);
    let start_ms = now_ms() - 600_000;
    (0..50).for_each(|round| write(sender_at, start_ms, round));
    wait_for_all(receiver_at, "out", start_ms, 50);
    // Down; meanwhile the sender flushes, so that only the log kept for it has the samples.
    assert_eq!(receiver.terminate(), Some(0));
    (50..90).for_each(|round| write(sender_at, start_ms, round));
    wait_for("a flush", WAIT_MAX, || metric(sender_at, "firn_flushes_total") > 0.0);
    let retried = || metric(sender_at, "prometheus_remote_storage_samples_retried_total") > 0.0;
    wait_for("a repeated request", WAIT_MAX, retried);
    // The range that is repeated has been read, so only later samples wait in the log.
    (90..100).for_each(|round| write(sender_at, start_ms, round));
    let behind = || metric(sender_at, "prometheus_remote_storage_log_behind_bytes") > 100.0;
    wait_for("the size of the log that waits", WAIT_MAX, behind);
    sender.kill();
    let mut sender = start_sender(folder.path(), sender_at, &sections);
    (100..120).for_each(|round| write(sender_at, start_ms, round));
    let _receiver = start(receiver_at);
    wait_for_all(receiver_at, "out", start_ms, 120);
    // A kill in the middle of sending.
    for round in 120..200 {
        write(sender_at, start_ms, round);
        if round % 20 == 10 {
            sender.kill();
            sender = start_sender(folder.path(), sender_at, &sections);
        }
    }
    wait_for_all(receiver_at, "out", start_ms, 200);
    assert_eq!(metric(sender_at, "firn_remote_write_log_dropped_bytes_total"), 0.0);
    assert_eq!(sender.terminate(), Some(0));
}

#[test]
fn nothing_is_lost_while_a_firn_is_down_and_the_sender_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    outage_and_kill(&|address| start_firn(folder.path(), address), "");
}

#[test]
fn nothing_is_lost_while_a_prometheus_is_down_and_the_sender_is_killed() {
    let Some(program) = installed("prometheus") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let start = |address| start_prometheus(&program, folder.path(), address, "global: {}\n");
    outage_and_kill(&start, "");
}

/// The bits of all samples of `out`, by an export of the receiver.
#[test]
fn staleness_markers_and_values_arrive_bit_for_bit() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (sender_at, receiver_at) = (free_address(), free_address());
    let _receiver = start_firn(two.path(), receiver_at);
    let _sender = start_sender(one.path(), sender_at, &section(receiver_at, ""));
    wait_for("the destination", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 4.0
    });
    let start_ms = now_ms() - 60_000;
    (0..10).for_each(|round| write(sender_at, start_ms, round));
    wait_for_all(receiver_at, "out", start_ms, 10);
    // The marker ends the series at once: without it the last value would be found.
    let at = |ms: i64| format!("{:.3}", ms as f64 / 1e3);
    let count = |time: i64| {
        let data =
            api(receiver_at, "/api/v1/query", &[("query", "count(out)"), ("time", &at(time))]);
        data.expect("a query")["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    wait_for("the markers", WAIT_MAX, || count(start_ms + 900).is_none());
    assert_eq!(count(start_ms + 899).as_deref(), Some("20"));
}

#[test]
fn rules_drop_and_rename_and_a_reload_keeps_the_position() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (sender_at, receiver_at) = (free_address(), free_address());
    let _receiver = start_firn(two.path(), receiver_at);
    let rules = "  write_relabel_configs:\n\
        \x20 - {source_labels: [region, series], regex: 'eu;1.', action: drop}\n\
        \x20 - {source_labels: [__name__], regex: out, target_label: __name__, \
        replacement: renamed}\n\
        \x20 - {regex: job, action: labeldrop}\n";
    let sender = start_sender(one.path(), sender_at, &section(receiver_at, rules));
    wait_for("the destination", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 4.0
    });
    let start_ms = now_ms() - 60_000;
    (0..9).for_each(|round| write(sender_at, start_ms, round));
    let want = |rounds| {
        let mut want = expected(start_ms, rounds);
        want.retain(|series, _| !(series.len() == 2 && series.starts_with('1')));
        want
    };
    wait_for("the samples", WAIT_MAX, || stored(receiver_at, "renamed") == want(9));
    assert!(stored(receiver_at, "out").is_empty());
    let dropped = metric(sender_at, "prometheus_remote_storage_samples_dropped_total");
    assert_eq!(dropped, 90.0, "ten series in nine rounds");
    // A changed section continues at its position; the same file again changes nothing.
    sender.hang_up();
    (9..12).for_each(|round| write(sender_at, start_ms, round));
    wait_for("the samples", WAIT_MAX, || stored(receiver_at, "renamed") == want(12));
    let changed = section(receiver_at, rules).replace("max_shards: 4", "max_shards: 5");
    fs::write(one.path().join("sender.yml"), changed).expect("a file");
    sender.hang_up();
    wait_for("the change", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 5.0
    });
    (12..15).for_each(|round| write(sender_at, start_ms, round));
    wait_for("the samples", WAIT_MAX, || stored(receiver_at, "renamed") == want(15));
    // Without a section, nothing is kept.
    fs::write(one.path().join("sender.yml"), "remote_write: []\n").expect("a file");
    sender.hang_up();
    wait_for("the end of the destination", WAIT_MAX, || {
        !get(sender_at, "/metrics").expect("metrics").body.contains("prometheus_remote_storage")
    });
}

/// A receiver that answers with the next of some statuses, then with the last one for ever, and
/// keeps the heads of requests.
fn scripted(statuses: &'static [&'static str]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let address = free_address();
    let listener = TcpListener::bind(address).expect("a free port");
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    std::thread::spawn(move || {
        for (idx, stream) in listener.incoming().enumerate() {
            let status = statuses.get(idx).or(statuses.last()).expect("a status");
            let Ok(stream) = stream else { continue };
            if let Some(head) = answer(stream, status) {
                kept.lock().expect("no panic").push(head);
            }
        }
    });
    (address, heads)
}

fn answer(mut stream: TcpStream, status: &str) -> Option<String> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let (mut bytes, mut part) = (Vec::new(), [0; 4_096]);
    let head_len = loop {
        let len = stream.read(&mut part).ok().filter(|&len| len > 0)?;
        bytes.extend_from_slice(&part[..len]);
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_len]).to_lowercase();
    let length: usize = head.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
    while bytes.len() < head_len + length {
        let len = stream.read(&mut part).ok().filter(|&len| len > 0)?;
        bytes.extend_from_slice(&part[..len]);
    }
    let text = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbad\n");
    stream.write_all(text.as_bytes()).ok()?;
    Some(head)
}

#[test]
fn refused_samples_are_dropped_and_others_are_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let sender_at = free_address();
    let (receiver_at, heads) =
        scripted(&["500 No", "503 No", "429 No", "400 Bad Request", "200 OK"]);
    let more = "  headers: {X-Scope: tenant}\n  basic_auth: {username: u, password: p}\n\
                \x20 metadata_config: {send: false}\n";
    let sections = section(receiver_at, more)
        .replace("max_shards: 4", "max_shards: 1, retry_on_http_429: true");
    let _sender = start_sender(folder.path(), sender_at, &sections);
    wait_for("the destination", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 1.0
    });
    let start_ms = now_ms() - 60_000;
    write(sender_at, start_ms, 0);
    let count = |name: &str| metric(sender_at, &format!("prometheus_remote_storage_{name}"));
    wait_for("the refusal", WAIT_MAX, || count("samples_failed_total") == 20.0);
    assert_eq!(count("samples_retried_total"), 60.0);
    write(sender_at, start_ms, 1);
    let sent = || {
        count("queue_highest_sent_timestamp_seconds") * 1e3 == (start_ms + 100) as f64
            && count("samples_pending") == 0.0
    };
    wait_for("the next samples", WAIT_MAX, sent);
    assert_eq!(count("samples_failed_total"), 20.0);
    for head in &*heads.lock().expect("no panic") {
        for line in [
            "post /api/v1/write http/1.1",
            "content-encoding: snappy",
            "content-type: application/x-protobuf\r",
            "x-prometheus-remote-write-version: 0.1.0",
            "x-scope: tenant",
            "authorization: basic dtpw",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
    }
}

/// A receiver that hangs takes no memory or thread from writes, and the log for it is bounded.
#[test]
fn a_receiver_that_hangs_hinders_no_write_and_the_log_for_it_is_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let sender_at = free_address();
    let receiver = TcpListener::bind(free_address()).expect("a free port");
    let receiver_at = receiver.local_addr().expect("an address");
    fs::write(folder.path().join("sender.yml"), section(receiver_at, "")).expect("a file");
    let mut command = firn(folder.path(), sender_at);
    command.arg("--prometheus-config").arg(folder.path().join("sender.yml"));
    command.args(["--self-scrape", "never", "--flush-age-max", "1s"]);
    command.args(["--remote-write-log-max", "1KiB"]);
    let mut sender = Process::start("firn-sender", folder.path(), &mut command);
    wait_until_ready(sender_at, "/-/ready");
    wait_for("the destination", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 4.0
    });
    let start_ms = now_ms() - 600_000;
    // Labels fill segments of the log.
    for round in 0..60 {
        let mut sent = WriteRequest::default();
        for series in 0..400 {
            let label = format!("{round}-{series}-").repeat(150);
            sent.series(&[("__name__", "fill"), ("label", &label)], &[(start_ms, 1.0)]);
        }
        assert_eq!(sent.send(sender_at).0, 204);
    }
    wait_for("dropped log", WAIT_MAX, || {
        metric(sender_at, "firn_remote_write_log_dropped_bytes_total") > 0.0
    });
    let answer = request(sender_at, "GET", "/api/v1/query?query=count(fill)", &[], b"");
    assert_eq!(answer.expect("an answer").status, 200);
    assert_eq!(sender.terminate(), Some(0), "a stop does not wait for the receiver");
    drop(receiver);
}

#[test]
fn version_2_names_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let sender_at = free_address();
    let (receiver_at, heads) = scripted(&["204 No Content"]);
    let more = "  protobuf_message: io.prometheus.write.v2.Request\n";
    let _sender = start_sender(folder.path(), sender_at, &section(receiver_at, more));
    wait_for("the destination", WAIT_MAX, || {
        metric(sender_at, "prometheus_remote_storage_shards_max") == 4.0
    });
    write(sender_at, now_ms() - 60_000, 0);
    wait_for("a request", WAIT_MAX, || !heads.lock().expect("no panic").is_empty());
    let head = heads.lock().expect("no panic")[0].clone();
    for line in [
        "content-type: application/x-protobuf;proto=io.prometheus.write.v2.request",
        "x-prometheus-remote-write-version: 2.0.0",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
}
