//! `firn check` and `firn inspect` of a data folder: they change nothing, so that damage is seen
//! again by the next check and by the server, and a file that was away is used again.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::http::api;
use crate::process::{free_address, now_ms, start_firn, wait_for};
use crate::remote_write::WriteRequest;

const SERIES: usize = 50;

/// Writes a sample of each series.
fn write(address: SocketAddr) {
    let mut request = WriteRequest::default();
    for series in 0..SERIES {
        request.series(&[("__name__", "kept"), ("n", &series.to_string())], &[(now_ms(), 1.0)]);
    }
    assert_eq!(request.send(address).0, 204);
}

/// Number of series that a query finds.
fn count(address: SocketAddr) -> usize {
    let parameters = [("query", "count(last_over_time(kept[1h]))")];
    let answer = api(address, "/api/v1/query", &parameters).expect("an answer");
    let value = &answer["result"][0]["value"][1];
    value.as_str().map_or(0, |text| text.parse().expect("a number"))
}

/// Runs firn: its exit code and both outputs.
fn run(args: &[&str], data: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    let output = command.args(args).arg("--data").arg(data).output().expect("firn runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// Name, inode, mode, times and bytes of every file and folder below `folder`.
fn state(folder: &Path) -> Vec<(PathBuf, [i64; 5], Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let facts = path.metadata().expect("a file");
            let numbers = [
                facts.ino() as i64,
                facts.mode().into(),
                facts.mtime(),
                facts.mtime_nsec(),
                facts.ctime_nsec(),
            ];
            let bytes = if facts.is_dir() { Vec::new() } else { fs::read(&path).expect("read") };
            if facts.is_dir() {
                folders.push(path.clone());
            }
            found.push((path, numbers, bytes));
        }
    }
    found.sort();
    found
}

/// The files of the log that begin with `magic`, oldest first.
fn segments(log: &Path, magic: &[u8]) -> Vec<PathBuf> {
    let files = fs::read_dir(log).expect("a log").map(|entry| entry.expect("an entry").path());
    let has_magic = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(magic));
    let mut found: Vec<PathBuf> = files.filter(has_magic).collect();
    found.sort_by_key(|path| path.as_os_str().len());
    found
}

/// Before, each of these commands wrote a new manifest and a new segment of the log: a file that
/// was away meanwhile was never read again, and a second check found no damage.
#[test]
fn a_check_and_an_inspection_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let server = start_firn(folder.path(), address);
    write(address);
    let data = folder.path().join("firn-data");
    let log = data.join("fast/log/0");
    // The file made ahead proves that the newest segment had rows.
    wait_for("the record of a durable position", Duration::from_secs(60), || {
        let mut blanks = segments(&log, b"FIRNBLNK").into_iter();
        blanks.any(|path| fs::read(path).is_ok_and(|bytes| bytes[16..24] != [0; 8]))
    });
    drop(server);
    let newest = segments(&log, b"FIRNLOG").pop().expect("a segment");
    let bytes = fs::read(&newest).expect("a segment");
    let away = folder.path().join("away");

    let before = state(&data);
    let (code, text) = run(&["check"], &data);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&["inspect", "cardinality"], &data);
    assert!(code == Some(0) && text.contains("kept"), "the log is replayed: {text}");
    for words in [&["inspect", "tables"][..], &["inspect", "groups"]] {
        let (code, text) = run(words, &data);
        assert_eq!(code, Some(0), "{text}");
    }
    assert!(state(&data) == before, "a good folder has changed");

    fs::rename(&newest, &away).expect("away");
    let before = state(&data);
    for _ in 0..2 {
        let (code, text) = run(&["check"], &data);
        assert!(code == Some(1) && text.contains("the segment is missing"), "{text}");
        assert_eq!(run(&["inspect", "cardinality"], &data).0, Some(0));
    }
    assert!(state(&data) == before, "a damaged folder has changed");
    fs::rename(&away, &newest).expect("back");
    let mut server = start_firn(folder.path(), address);
    assert_eq!(count(address), SERIES, "the rows of the segment that was away");
    write(address);
    wait_for("the record of a durable position", Duration::from_secs(60), || {
        let mut blanks = segments(&log, b"FIRNBLNK").into_iter();
        blanks.any(|path| fs::read(path).is_ok_and(|bytes| bytes[16..24] != [0; 8]))
    });
    server.kill();

    let newest = segments(&log, b"FIRNLOG").pop().expect("a segment");
    assert_ne!(fs::read(&newest).expect("a segment"), bytes, "a start begins a segment");
    fs::write(&newest, []).expect("emptied");
    for _ in 0..2 {
        let (code, text) = run(&["check"], &data);
        assert!(code == Some(1) && text.contains("has no readable header"), "{text}");
    }
    let (code, text) = run(&["check", "--repair"], &data);
    assert!(code == Some(0) && text.contains("repaired"), "{text}");
    let (code, text) = run(&["check"], &data);
    assert_eq!(code, Some(0), "{text}");
    let _server = start_firn(folder.path(), address);
    assert_eq!(count(address), SERIES, "the rows of the older segment");
}
