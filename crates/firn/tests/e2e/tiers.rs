//! History on the slow tier: followed by a replica, restored on an empty machine, written by one
//! server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::http::{api, get};
use crate::process::{Process, S3, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

const MINUTE: Duration = Duration::from_secs(60);

/// A slow tier, and the variables that a program needs to use it.
struct SlowTier {
    place: String,
    variables: Vec<(&'static str, String)>,
}

fn start(folder: &Path, name: &str, slow: &SlowTier, flags: &[&str]) -> (Process, SocketAddr) {
    let (process, address) = spawn(folder, name, slow, flags);
    wait_until_ready(address, "/-/ready");
    (process, address)
}

fn spawn(folder: &Path, name: &str, slow: &SlowTier, flags: &[&str]) -> (Process, SocketAddr) {
    let address = free_address();
    let mut command = firn(&folder.join(name), address);
    command.args(["--slow-tier", &slow.place, "--self-scrape", "never"]);
    command.envs(slow.variables.clone()).args(flags);
    if !flags.contains(&"--read-only") {
        command.args(["--flush-age-max", "1s", "--upload-age-max", "1s"]);
    }
    (Process::start(name, folder, &mut command), address)
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

pub(crate) fn metric(address: SocketAddr, name: &str) -> Option<f64> {
    let text = get(address, "/metrics")?.body;
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn a_lost_machine_is_replaced_and_a_replica_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("bucket").display().to_string();
    check_slow_tier(folder.path(), &SlowTier { place, variables: Vec::new() });
}

#[test]
fn a_lost_machine_is_replaced_and_a_replica_follows_over_s3() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(s3) = S3::start(folder.path()) else { return };
    let place = format!("{}/some/prefix", S3::BUCKET);
    check_slow_tier(folder.path(), &SlowTier { place, variables: s3.variables().to_vec() });
}

/// A writer, a replica, an inspection of the tables, another writer in place of the first, and the
/// first again.
fn check_slow_tier(folder: &Path, slow: &SlowTier) {
    let (mut first, first_at) = start(folder, "first", slow, &[]);
    for idx in 0..50 {
        assert_eq!(write(first_at, idx), 204);
    }
    let uploaded = |address, ts: f64| {
        wait_for("the upload", MINUTE, || {
            metric(address, "firn_slow_tier_newest_timestamp_seconds").is_some_and(|at| at >= ts)
        });
    };
    uploaded(first_at, 1_700_000_049.0);

    let (_replica, replica_at) = start(folder, "replica", slow, &["--read-only"]);
    assert_eq!(newest(replica_at).as_deref(), Some("49"));
    assert_eq!(write(replica_at, 99), 503);
    inspect_tables(&folder.join("first"), slow);

    // The machine is lost, and an empty one replaces it.
    first.kill();
    let refused = firn(&folder.join("second"), free_address())
        .args(["--slow-tier", &slow.place])
        .envs(slow.variables.clone())
        .output()
        .expect("firn runs");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("--restore"), "{told}");
    let (mut second, second_at) = start(folder, "second", slow, &["--restore"]);
    assert_eq!(newest(second_at).as_deref(), Some("49"));
    assert_eq!(write(second_at, 60), 204);
    uploaded(second_at, 1_700_000_060.0);
    wait_for("the replica", MINUTE, || newest(replica_at).as_deref() == Some("60"));

    // It was not lost after all: it detects that it was replaced, and accepts no more writes.
    let (_first, first_at) = spawn(folder, "first", slow, &[]);
    wait_for("the fence", MINUTE, || {
        let ready = get(first_at, "/-/ready");
        ready.is_some_and(|answer| answer.status == 503 && answer.body.contains("taken over"))
    });
    assert_eq!(write(first_at, 70), 503);
    assert_eq!(metric(first_at, "firn_slow_tier_fenced"), Some(1.0));
    assert!(newest(first_at).is_some(), "it still answers");
    assert_eq!(write(second_at, 80), 204);
    second.kill();
    forget_the_slow_tier(&folder.join("second").join("firn-data"), slow);
}

/// A repair without the location of the history counts nothing as lost, unless a flag allows it;
/// then the folder continues with a slow tier of its own.
fn forget_the_slow_tier(data: &Path, slow: &SlowTier) {
    let check = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.arg("check").arg("--data").arg(data).args(args).envs(slow.variables.clone());
        let output = command.output().expect("firn runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_done, err) = check(&["--repair"]);
    assert!(!is_done && err.contains("set --slow-tier to their location"), "{err}");
    let (is_done, err) = check(&["--slow-tier", &slow.place]);
    assert!(is_done, "{err}");
    for args in [&["--repair", "--forget-lost-history"][..], &[]] {
        let (is_done, err) = check(args);
        assert!(is_done, "{args:?}: {err}");
    }
    let (is_done, err) = check(&["--slow-tier", &slow.place, "--repair", "--forget-lost-history"]);
    assert!(!is_done && err.contains("written from another folder"), "{err}");
}

/// The report of `firn inspect` about the slow tier while a server writes there.
fn inspect_tables(data: &Path, slow: &SlowTier) {
    let firn = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.arg("inspect").args(args).envs(slow.variables.clone());
        let output = command.output().expect("firn runs");
        let [out, err] = [output.stdout, output.stderr].map(String::from_utf8);
        (output.status.success(), out.expect("text"), err.expect("text"))
    };
    let told = |args: &[&str]| {
        let args = [args, &["--slow-tier", &slow.place, "--slow-only"]].concat();
        let (is_done, out, err) = firn(&args);
        assert!(is_done && err.is_empty(), "{args:?}: {err}");
        out
    };
    let levels = told(&["tables"]);
    assert!(levels.contains("level 2 (slow tier): 1 partitions"), "{levels}");
    let report: serde_json::Value =
        serde_json::from_str(&told(&["tables", "--json"])).expect("JSON");
    let table = &report["levels"][2]["partitions"][0]["tables"][0];
    let (id, group) = (table["table"].to_string(), table["groups"][0].to_string());
    assert!(levels.contains(&format!("table {id}: ")), "{levels}");
    let blocks = told(&["tables", "--table", &id]);
    assert!(blocks.contains("  block at 24: ") && blocks.contains(" columns: "), "{blocks}");
    let columns = told(&["tables", "--table", &id, "--group", &group]);
    let line = columns.lines().find(|line| line.contains("slot 0 ")).expect("a column");
    assert!(line.contains("kept") && line.contains("decimals / 10^0: delta"), "{columns}");
    assert!(told(&["cardinality"]).starts_with("1 series in "), "cardinality");

    let missing = ["tables", "--table", "999", "--slow-tier", &slow.place, "--slow-only"];
    let (is_done, _, err) = firn(&missing);
    assert!(!is_done && err.contains("no table 999"), "{err}");
    let data = data.join("firn-data").display().to_string();
    let (is_done, _, err) = firn(&["tables", "--data", &data, "--slow-tier", &slow.place]);
    assert!(!is_done && err.contains("--slow-only"), "{err}");
    let (is_done, _, err) = firn(&["tables", "--data", "nowhere"]);
    assert!(!is_done && err.contains("--data"), "{err}");
}

/// Before, `fast/` and the bucket's own folder were created wherever `--data` and `--slow-tier`
/// pointed.
#[test]
fn a_reader_creates_nothing_in_a_slow_tier() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
        names.sort();
        names
    };
    let refused = |data: &Path, slow: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["serve", "--read-only", "--listen", &free_address().to_string()]);
        command.arg("--data").arg(data).arg("--slow-tier").arg(slow);
        let output = command.output().expect("firn runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (data, missing) = (folder.path().join("data"), folder.path().join("missing"));
    let text = refused(&data, &missing);
    assert!(text.contains("missing") && !data.exists() && !missing.exists(), "{text}");
    let tier = folder.path().join("tier");
    std::fs::create_dir_all(tier.join(".firn-bucket")).expect("a slow tier");
    for inside in [tier.clone(), tier.join("sub/folder")] {
        let text = refused(&inside, &tier);
        assert!(text.contains("slow tier") && text.contains("another data folder"), "{text}");
    }
    assert_eq!(names(&tier), [".firn-bucket"]);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    refused(&data, &empty);
    assert!(names(&empty).is_empty(), "{:?}", names(&empty));
}
