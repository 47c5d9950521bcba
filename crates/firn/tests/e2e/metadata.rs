//! Types and help texts of metrics: kept over restarts and in snapshots, and bounded in memory.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::http::{api, get, request};
use crate::memory::{Peak, SetOnDrop};
use crate::process::{Process, firn, free_address, wait_until_ready};
use crate::remote_write::{WriteRequest, field};
use crate::tiers::metric;

const LIMIT_BYTES: u64 = 64 << 20;

fn start(folder: &Path, address: SocketAddr) -> Process {
    started(folder, &mut firn(folder, address), address)
}

fn started(folder: &Path, command: &mut Command, address: SocketAddr) -> Process {
    command.args(["--memory", "64MiB", "--self-scrape", "never", "--enable-admin-api"]);
    let process = Process::start("firn", folder, command);
    wait_until_ready(address, "/-/ready");
    process
}

fn help_of(address: SocketAddr, name: &str) -> Option<String> {
    let answer = get(address, &format!("/api/v1/metadata?metric={name}")).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let json: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    Some(json["data"][name][0]["help"].as_str()?.to_owned())
}

#[test]
fn metadata_survives_a_restart_and_is_in_snapshots_and_a_damaged_file_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = start(folder.path(), address);
    let mut sent = WriteRequest::default();
    sent.metadata(1, "requests_total", "Requests.\n\"All\" of them.", "");
    sent.metadata(2, "size_bytes", "Größe.", "bytes");
    assert_eq!(sent.send(address).0, 204);
    let whole = r#"{"status":"success","data":{"requests_total":[{"type":"counter","help":"Requests.\n\"All\" of them.","unit":""}],"size_bytes":[{"type":"gauge","help":"Größe.","unit":"bytes"}]}}"#;
    let listed = |address| get(address, "/api/v1/metadata").expect("an answer").body;
    assert_eq!(listed(address), whole);
    let answer = request(address, "POST", "/api/v1/admin/tsdb/snapshot", &[], &[]);
    let json: serde_json::Value =
        serde_json::from_str(&answer.expect("an answer").body).expect("JSON");
    let name = json["data"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(server.terminate(), Some(0));

    let mut server = start(folder.path(), address);
    assert_eq!(listed(address), whole, "after a restart");
    let mut changed = WriteRequest::default();
    changed.metadata(2, "size_bytes", "Changed.", "bytes");
    assert_eq!(changed.send(address).0, 204);
    assert_eq!(server.terminate(), Some(0));

    let mut server = start(folder.path(), address);
    assert_eq!(help_of(address, "size_bytes").as_deref(), Some("Changed."));
    assert_eq!(server.terminate(), Some(0));
    let copy_at = free_address();
    let data = folder.path().join("firn-data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.arg("serve").arg("--data").arg(data.join("snapshots").join(name));
    command.arg("--listen").arg(copy_at.to_string());
    let _copy = started(folder.path(), &mut command, copy_at);
    assert_eq!(listed(copy_at), whole, "the snapshot has the metadata of its time");

    let file = data.join("fast").join("metadata");
    let mut bytes = fs::read(&file).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("written");
    let mut server = start(folder.path(), address);
    assert_eq!(listed(address), r#"{"status":"success","data":{}}"#);
    let warnings = server.output().matches("help texts of metrics were not loaded").count();
    assert_eq!(warnings, 1, "{}", server.output());
    assert_eq!(sent.send(address).0, 204);
    assert_eq!(server.terminate(), Some(0));
    let _server = start(folder.path(), address);
    assert_eq!(listed(address), whole, "the damaged file was replaced");
}

#[test]
fn a_flood_of_metadata_stays_within_the_memory_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let server = start(folder.path(), address);
    let mut sent = WriteRequest::default();
    sent.series(&[("__name__", "kept"), ("job", "e2e")], &[(1_700_000_000_000, 1.0)]);
    sent.metadata(1, "kept", "Repeated all the time.", "");
    assert_eq!(sent.send(address).0, 204);
    let peak = Peak::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&done);
        let watching = scope.spawn(|| peak.watch(server.id(), &done));
        // Two bytes each, which unpack to fifty times as much.
        for shape in [&[][..], &[0x12, 0x01, b'a'], &[0x08, 0x01], &[0x22, 0x01, b'h']] {
            let mut body = Vec::new();
            while body.len() < 8 << 20 {
                field(0x1a, shape, &mut body);
            }
            let body = snap::raw::Encoder::new().compress_vec(&body).expect("fits");
            let headers =
                [("Content-Type", "application/x-protobuf"), ("Content-Encoding", "snappy")];
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| request(address, "POST", "/api/v1/write", &headers, &body));
                }
            });
        }
        // Many metrics with long texts, of characters that JSON escapes.
        let help = "\u{1}".repeat(3_072);
        for round in 0..60 {
            let mut flood = WriteRequest::default();
            for number in 0..500 {
                flood.metadata(2, &format!("flood_{round}_{number}"), &help, &help);
            }
            let (status, text) = flood.send(address);
            assert!(matches!(status, 0 | 204 | 429), "{status}: {text}");
            assert_eq!(sent.send(address).0, 204);
        }
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let answer = get(address, "/api/v1/metadata").expect("an answer");
                    assert!(matches!(answer.status, 200 | 422 | 503), "{}", answer.head);
                });
            }
        });
        done.store(true, Ordering::Relaxed);
        watching.join().expect("no panic");
    });
    peak.check(LIMIT_BYTES);
    assert!(metric(address, "firn_metadata_bytes").is_some_and(|bytes| bytes <= 2_097_152.0));
    assert!(metric(address, "firn_metadata_evicted_total").is_some_and(|count| count > 1e3));
    assert_eq!(help_of(address, "kept").as_deref(), Some("Repeated all the time."));
    let some = get(address, "/api/v1/metadata?limit=3").expect("an answer").body;
    let some: serde_json::Value = serde_json::from_str(&some).expect("JSON");
    assert_eq!(some["data"].as_object().map(|data| data.len()), Some(3));
    let data = api(address, "/api/v1/query", &[("query", "kept"), ("time", "1700000000")]);
    assert_eq!(data.expect("an answer")["result"][0]["value"][1], "1");
}
