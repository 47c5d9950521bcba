//! Deletes over HTTP outlive the process that took them; a snapshot is served like the original.

use std::net::SocketAddr;

use tempfile::TempDir;

use crate::http;
use crate::process::{Process, firn, free_address, wait_until_ready};

const HEADERS: [(&str, &str); 1] = [("Content-Type", "application/x-www-form-urlencoded")];

fn start(folder: &TempDir, address: SocketAddr) -> Process {
    let mut command = firn(folder.path(), address);
    command.args(["--enable-admin-api", "--self-scrape=never"]);
    let process = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn import(address: SocketAddr, text: &str) {
    let path = "/api/v1/import/prometheus";
    let answer = http::request(address, "POST", path, &[], text.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 204, "{}", answer.body);
}

fn admin(address: SocketAddr, path: &str, form: &str) -> http::Answer {
    let path = format!("/api/v1/admin/tsdb/{path}");
    http::request(address, "POST", &path, &HEADERS, form.as_bytes()).expect("an answer")
}

/// `host count` of the samples of each host, up to second 1,000.
fn counts(address: SocketAddr) -> Vec<String> {
    let query = [("query", "count_over_time(up[1000s])"), ("time", "1000")];
    let data = http::api(address, "/api/v1/query", &query).expect("an answer");
    let result = data["result"].as_array().expect("a vector").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let one =
        |one: &serde_json::Value| text(&one["metric"]["instance"]) + " " + &text(&one["value"][1]);
    let mut counts: Vec<String> = result.iter().map(one).collect();
    counts.sort();
    counts
}

#[test]
fn a_delete_survives_sigkill_and_a_snapshot_is_served_like_the_original() {
    let folder = TempDir::new().expect("a folder");
    let address = free_address();
    let mut server = start(&folder, address);
    let mut text = String::new();
    for host in ["a", "b", "c"] {
        for second in (10..=1_000).step_by(10) {
            text += &format!("up{{job=\"e2e\",instance=\"{host}\"}} 1 {second}000\n");
        }
    }
    import(address, &text);
    assert_eq!(counts(address), ["a 100", "b 100", "c 100"]);
    let answer = admin(address, "delete_series", "match[]=up%7Binstance%3D%22b%22%7D");
    assert_eq!(answer.status, 204, "{}", answer.body);
    let answer = admin(
        address,
        "delete_series",
        "match[]=%7Binstance%3D%22c%22%7D&start=500.001&end=1970-01-01T00:15:00Z",
    );
    assert_eq!(answer.status, 204, "{}", answer.body);
    let deleted = ["a 100", "c 60"];
    assert_eq!(counts(address), deleted);
    server.kill();

    let mut server = start(&folder, address);
    assert_eq!(counts(address), deleted, "after SIGKILL");
    // Late, of a time and a series that were deleted.
    import(address, "up{job=\"e2e\",instance=\"b\"} 1 700000\n");
    assert_eq!(counts(address), ["a 100", "b 1", "c 60"]);
    let answer = admin(address, "snapshot", "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let json: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let name = json["data"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(admin(address, "clean_tombstones", "").status, 204);
    server.kill();

    let _server = start(&folder, address);
    assert_eq!(counts(address), ["a 100", "b 1", "c 60"], "cleaned, after SIGKILL");
    let copy_at = free_address();
    let data = folder.path().join("firn-data").join("snapshots").join(name);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_firn"));
    command.arg("serve").arg("--data").arg(data).arg("--self-scrape=never");
    command.arg("--listen").arg(copy_at.to_string());
    let _copy = Process::start("copy", folder.path(), &mut command);
    wait_until_ready(copy_at, "/-/ready");
    assert_eq!(counts(copy_at), ["a 100", "b 1", "c 60"], "the snapshot, beside the original");
}
