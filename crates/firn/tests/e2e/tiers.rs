//! History on the slow tier: shown by a replica, restored on an empty machine, written by one server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

const MINUTE: Duration = Duration::from_secs(60);

fn start(folder: &Path, name: &str, slow: &Path, flags: &[&str]) -> (Process, SocketAddr) {
    let address = free_address();
    let mut command = firn(&folder.join(name), address);
    command.arg("--slow-tier").arg(slow).args(["--self-scrape", "never"]);
    command.args(["--flush-age-max", "1s", "--upload-age-max", "1s"]).args(flags);
    let process = Process::start(name, folder, &mut command);
    wait_until_ready(address, "/-/ready");
    (process, address)
}

fn write(address: SocketAddr, idx: i64) -> u16 {
    let mut request = WriteRequest::default();
    let ts = 1_700_000_000_000 + idx * 1_000;
    request.series(&[("__name__", "kept"), ("job", "tiers")], &[(ts, idx as f64)]);
    request.send(address).0
}

/// The newest value of the series, as a query finds it.
fn newest(address: SocketAddr) -> Option<String> {
    let query = [("query", "last_over_time(kept[1h])"), ("time", "1700001000")];
    let data = api(address, "/api/v1/query", &query).ok()?;
    data["result"][0]["value"][1].as_str().map(str::to_owned)
}

fn metric(address: SocketAddr, name: &str) -> Option<f64> {
    let text = get(address, "/metrics")?.body;
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn a_lost_machine_is_replaced_and_a_replica_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = folder.path().join("bucket");
    let (mut first, first_at) = start(folder.path(), "first", &slow, &[]);
    for idx in 0..50 {
        assert_eq!(write(first_at, idx), 204);
    }
    let uploaded = |address, ts: f64| {
        wait_for("the upload", MINUTE, || {
            metric(address, "firn_slow_tier_newest_timestamp_seconds").is_some_and(|at| at >= ts)
        });
    };
    uploaded(first_at, 1_700_000_049.0);

    let (_replica, replica_at) = start(folder.path(), "replica", &slow, &["--read-only"]);
    assert_eq!(newest(replica_at).as_deref(), Some("49"));
    assert_eq!(write(replica_at, 99), 503);

    // The machine is gone, and an empty one takes its place.
    first.kill();
    let refused = firn(&folder.path().join("second"), free_address())
        .arg("--slow-tier")
        .arg(&slow)
        .output()
        .expect("firn runs");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("--restore"), "{told}");
    let (_second, second_at) = start(folder.path(), "second", &slow, &["--restore"]);
    assert_eq!(newest(second_at).as_deref(), Some("49"));
    assert_eq!(write(second_at, 60), 204);
    uploaded(second_at, 1_700_000_060.0);
    wait_for("the replica", MINUTE, || newest(replica_at).as_deref() == Some("60"));

    // It was not gone after all: it learns that it was replaced, and takes nothing any more.
    let (_first, first_at) = start(folder.path(), "first", &slow, &[]);
    wait_for("the fence", MINUTE, || write(first_at, 70) == 503);
    assert_eq!(metric(first_at, "firn_slow_tier_fenced"), Some(1.0));
    assert!(newest(first_at).is_some(), "it still answers");
    assert_eq!(write(second_at, 80), 204);
}
