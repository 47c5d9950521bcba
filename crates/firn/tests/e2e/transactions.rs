//! Transactions of the real program: read, compute, write; counters that many change; SIGKILL.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};

const T: i64 = 1_700_000_000_000;

fn start(folder: &TempDir, address: SocketAddr) -> Process {
    let mut command = firn(folder.path(), address);
    command.args(["--enable-admin-api", "--self-scrape=never"]);
    let process = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn transact(address: SocketAddr, operations: Value) -> (u16, Value) {
    let body = json!({ "operations": operations }).to_string();
    let path = "/api/v1/transaction";
    let answer = http::request(address, "POST", path, &[], body.as_bytes()).expect("an answer");
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

fn done(address: SocketAddr, operations: Value) -> Value {
    let (status, answer) = transact(address, operations);
    assert_eq!(status, 200, "{answer}");
    answer["data"]["results"].clone()
}

/// `[metric, value]` of all accounts at the time of their samples.
fn accounts(address: SocketAddr) -> Vec<(String, String)> {
    let query = [("query", "{bank=\"e2e\"}"), ("time", "1700000000")];
    let data = http::api(address, "/api/v1/query", &query).expect("an answer");
    let result = data["result"].as_array().expect("a vector");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut all: Vec<_> = result
        .iter()
        .map(|one| (text(&one["metric"]["__name__"]), text(&one["value"][1])))
        .collect();
    all.sort();
    all
}

#[test]
fn concurrent_transfers_are_atomic_and_survive_sigkill() {
    let folder = TempDir::new().expect("a folder");
    let address = free_address();
    let mut server = start(&folder, address);
    let account = |idx: usize| json!({ "__name__": format!("account_{idx}"), "bank": "e2e" });
    let open =
        |idx| json!({ "op": "insert", "series": account(idx), "timestamp": T, "value": 100 });
    done(address, (0..4).map(open).collect());

    const MOVES: usize = 25;
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                for step in 0..MOVES {
                    let add = |idx: usize, by: i64| {
                        json!({ "op": "update", "series": account(idx), "timestamp": T, "add": by })
                    };
                    let (from, to) = (thread, (thread + 1 + step % 3) % 4);
                    loop {
                        let (status, answer) =
                            transact(address, json!([add(from, -1), add(to, 1)]));
                        match status {
                            200 => break,
                            409 => continue,
                            _ => panic!("{status}: {answer}"),
                        }
                    }
                    let sum: f64 = accounts(address)
                        .iter()
                        .map(|one| one.1.parse::<f64>().expect("a number"))
                        .sum();
                    assert_eq!(sum, 400.0, "no reader sees half of a transaction");
                }
            });
        }
    });
    let before = accounts(address);
    server.kill();
    let _server = start(&folder, address);
    assert_eq!(accounts(address), before, "after SIGKILL");

    // Read, compute, write: the second of two clients that computed from the same state is refused.
    let read = json!({ "op": "read", "match": "account_0", "start": T, "end": T });
    let found = done(address, json!([read]))[0].clone();
    assert_eq!(found["series"][0]["samples"], json!([[T, before[0].1]]));
    let mut unchanged = read.clone();
    unchanged["digest"] = found["digest"].clone();
    let set = json!({ "op": "update", "series": account(0), "timestamp": T, "value": 7 });
    done(address, json!([unchanged, set]));
    let (status, answer) = transact(address, json!([set, unchanged]));
    assert_eq!((status, &answer["errorType"]), (409, &json!("conflict")), "{answer}");
    let error = answer["error"].as_str().expect("a text");
    assert!(error.contains("operation 1: ") && error.contains("retry"), "{error}");

    let all = json!({ "op": "update", "match": "{bank=\"e2e\"}", "multiply": 0, "add": 1 });
    let gone = json!({ "op": "delete", "match": "{__name__=~\"account_[12]\"}" });
    let one = json!({ "op": "delete", "series": account(3), "timestamp": T });
    let given = done(address, json!([all, gone, one, one]));
    assert_eq!(given, json!([{"samples": 4}, {"series": 2}, {"samples": 1}, {"samples": 0}]));
    assert_eq!(accounts(address), [("account_0".to_owned(), "1".to_owned())]);
}

/// A transaction that selects series has the time and the memory of a query.
#[test]
fn a_selection_has_the_limits_of_a_query() {
    let folder = TempDir::new().expect("a folder");
    let address = free_address();
    let limits = |timeout: &str, memory: &str| {
        let mut command = firn(folder.path(), address);
        command.args(["--self-scrape=never", "--query-timeout", timeout, "--query-memory", memory]);
        let process = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        process
    };
    let mut server = limits("2m", "64MiB");
    for series in 0..50 {
        let mut text = String::new();
        for idx in 0..4_000 {
            let ts = T + idx * 1_000;
            text += &format!("wide{{series=\"{series}\"}} {idx} {ts}\n");
        }
        let path = "/api/v1/import/prometheus";
        let sent = http::request(address, "POST", path, &[], text.as_bytes()).expect("an answer");
        assert_eq!(sent.status, 204, "{}", sent.body);
    }
    let read = json!([{ "op": "read", "match": "wide" }]);
    assert_eq!(transact(address, read.clone()).0, 200);
    assert_eq!(server.terminate(), Some(0));
    let mut server = limits("2m", "1MiB");
    let (status, answer) = transact(address, read.clone());
    assert!(status == 422 || status == 429, "{status} {answer}");
    assert_eq!(transact(address, json!([{ "op": "read", "match": "absent" }])).0, 200);
    assert_eq!(server.terminate(), Some(0));
    // Reading takes longer, unless the machine wakes the timer late.
    let _server = limits("1ms", "64MiB");
    wait_for("a read beyond its time", Duration::from_secs(60), || {
        let (status, answer) = transact(address, read.clone());
        let is_timeout = status == 503 && answer.to_string().contains("timed out");
        assert!(is_timeout || status == 200, "{status} {answer}");
        is_timeout
    });
}
