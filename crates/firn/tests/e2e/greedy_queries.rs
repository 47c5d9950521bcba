//! One query that would take all memory: each is refused, and the process stays within its limit.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::http::{encode, get, request};
use crate::memory::{Peak, SetOnDrop};
use crate::process::{Process, firn, free_address, wait_until_ready};
use crate::remote_write::WriteRequest;

const LIMIT_MIB: u64 = 64;
const SERIES: usize = 5_000;
const NOW_MS: i64 = 1_700_000_000_000;

/// The queries, each with a part of its error.
fn queries() -> Vec<(String, &'static str)> {
    let sources = ", \"i\"".repeat(20_000);
    let separator = "s".repeat(100_000);
    let replace = |template: &str, pattern: &str| {
        format!("label_replace(m, \"a\", \"{template}\", \"i\", \"{pattern}\")")
    };
    let name = "n".repeat(100_000);
    vec![
        (format!("label_join(m, \"a\", \"{separator}\"{sources})"), "--label-value-bytes-max"),
        (replace("$1", &"(a)?".repeat(14_000)), "capture groups"),
        (replace(&"t".repeat(100_000), "(.*)"), "--label-value-bytes-max"),
        (replace(&"$1".repeat(50_000), "(.*)"), "--label-value-bytes-max"),
        // Its parser, its automaton or its search: each would exceed the query's memory.
        (replace("$1", r"(\\pL{0,30}){0,33}"), "query"),
        (format!("count_values(\"{name}\", m)"), "--label-name-bytes-max"),
        ("max_over_time(vector(time())[12h:1ms])".into(), "memory"),
        ("count_values(\"v\", m * time())[1h:1s]".into(), "memory"),
        ("(m @ 1700000000)[1d:1s]".into(), "samples"),
    ]
}

#[test]
fn one_query_cannot_take_all_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let limit = format!("{LIMIT_MIB}MiB");
    command.args(["--memory", &limit, "--self-scrape", "never"]);
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let mut write = WriteRequest::default();
    for idx in 0..SERIES {
        let value = idx as f64 + 0.5;
        write.series(&[("__name__", "m"), ("i", &idx.to_string())], &[(NOW_MS, value)]);
    }
    assert_eq!(write.send(address).0, 204);

    let (peak, done) = (Peak::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&done);
        scope.spawn(|| peak.watch(server.id(), &done));
        for (query, expected) in queries() {
            let body = format!("query={}&time={}", encode(&query), NOW_MS / 1_000);
            let kind = [("Content-Type", "application/x-www-form-urlencoded")];
            let answer = request(address, "POST", "/api/v1/query", &kind, body.as_bytes());
            let start = &query[..query.len().min(80)];
            let answer = answer.unwrap_or_else(|| panic!("no answer to {start}"));
            assert!((400..500).contains(&answer.status), "{start}: {}", answer.status);
            assert!(answer.body.contains(expected), "{start}: {}", answer.body);
            assert!(answer.body.len() < 4_000, "{start}: {} bytes", answer.body.len());
        }
        done.store(true, Ordering::Relaxed);
    });
    peak.check(LIMIT_MIB << 20);
    assert_eq!(get(address, "/-/healthy").map(|answer| answer.status), Some(200));
}
