//! The command itself: first run, a second process, SIGTERM, bad arguments, the README's lines.

use std::process::Command;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, start_firn, wait_until_ready};
use crate::remote_write::WriteRequest;

#[test]
fn a_first_run_shows_its_own_data_and_stops_on_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = start_firn(folder.path(), address);
    // The server scrapes itself from the first second on.
    crate::process::wait_for("self-scrape", std::time::Duration::from_secs(30), || {
        api(address, "/api/v1/query", &[("query", "up{job=\"firn\"}")])
            .is_ok_and(|data| data["result"][0]["value"][1] == "1")
    });
    let page = get(address, "/").expect("a page");
    assert!(page.status == 200 && page.body.contains("FirnDB"), "{}", page.body);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let printed = server.output();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("http://")).collect();
    assert!(!lines.is_empty() && printed.contains(&address.to_string()), "{printed}");
}

#[test]
fn what_was_acknowledged_is_there_after_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut acknowledged = Vec::new();
    for life in 0..3 {
        let mut server = start_firn(folder.path(), address);
        for idx in 0..50 {
            let ts = 1_700_000_000_000 + (life * 50 + idx) * 1_000;
            let mut request = WriteRequest::default();
            request.series(&[("__name__", "kept"), ("job", "kill")], &[(ts, ts as f64)]);
            assert_eq!(request.send(address).0, 204);
            acknowledged.push(ts);
        }
        server.kill();
    }
    let _server = start_firn(folder.path(), address);
    let query = [("query", "kept[1h]"), ("time", "1700001000")];
    let data = api(address, "/api/v1/query", &query).expect("a query");
    let values = data["result"][0]["values"].as_array().cloned().unwrap_or_default();
    let found: Vec<i64> =
        values.iter().map(|v| (v[0].as_f64().unwrap_or(0.0) * 1000.0).round() as i64).collect();
    assert_eq!(found, acknowledged);
}

#[test]
fn a_second_process_on_the_same_folder_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let _first = start_firn(folder.path(), free_address());
    let output = firn(folder.path(), free_address()).output().expect("firn runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("firn-data") && told.contains("process"), "{told}");
}

#[test]
fn bad_arguments_say_what_is_wrong() {
    let f = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_firn")).args(args).output().expect("firn runs");
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(f(&["serve", "--listen", "nowhere"]).contains("nowhere"));
    assert!(f(&["serve", "--slow-tier", "ftp://x/y"]).contains("ftp"));
    assert!(f(&["serve", "--memory", "lots"]).contains("lots"));
    assert!(f(&["cache", "--proxy", "nowhere"]).contains("--proxy is \"nowhere\""));
    assert!(f(&["cache", "--proxy", "http://x", "--size", "1KiB"]).contains("at least 8388608"));
    assert!(f(&["nonsense"]).contains("nonsense"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let _first = start_firn(folder.path(), address);
    let other = tempfile::tempdir().expect("a folder");
    let output = firn(other.path(), address).output().expect("firn runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains(&address.to_string()), "{told}");
}

/// The curl lines of the README, run as they stand there.
#[test]
fn the_readme_tells_the_truth() {
    let readme =
        std::fs::read_to_string(crate::process::repository().join("README.md")).expect("README");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let _server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    for command in commands {
        let here = command.replace("localhost:9420", &address.to_string());
        let output = Command::new("sh").args(["-c", &here]).output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{here}: {told}");
        assert!(!told.contains("error"), "{here}: {told}");
        if here.contains("/query") {
            assert!(told.contains("\"success\"") && told.contains("21.5"), "{here}: {told}");
        }
    }
}
