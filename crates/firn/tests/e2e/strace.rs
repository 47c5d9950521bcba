//! The real binary under strace: no 2xx leaves before the sync that covers it has returned.

use std::collections::BTreeMap;
use std::process::Command;

use crate::process::{Process, firn, free_address, installed, wait_until_ready};
use crate::remote_write::WriteRequest;

const REQUESTS: usize = 40;

#[test]
fn no_acknowledgement_leaves_before_its_sync() {
    let Some(strace) = installed("strace") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let address = free_address();
    let trace = folder.join("trace");
    let mut ours = firn(folder, address);
    // Its writes would run beside the requests.
    ours.arg("--self-scrape=never");
    let mut command = Command::new(strace);
    command.args(["-f", "-y", "-s", "24", "-o"]).arg(&trace);
    command.args(["-e", "trace=pwrite64,pwritev,fdatasync,fsync,write,writev,sendto,sendmsg"]);
    command.arg(ours.get_program()).args(ours.get_args());
    let mut server = Process::start("strace", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    for idx in 0..REQUESTS {
        let ts = 1_700_000_000_000 + idx as i64 * 1_000;
        let mut request = WriteRequest::default();
        request.series(&[("__name__", "traced"), ("job", "strace")], &[(ts, idx as f64)]);
        let (status, text) = request.send(address);
        assert_eq!(status, 204, "{text}");
    }
    // strace ends with its child.
    assert_eq!(server.terminate_child(), Some(0));
    let text = std::fs::read_to_string(&trace).expect("strace's output");
    let acknowledged = check(&text).unwrap_or_else(|e| panic!("{e}"));
    assert!(acknowledged >= REQUESTS, "{acknowledged} acknowledgements traced");
}

#[test]
fn the_check_sees_an_early_acknowledgement() {
    let honest = "1 fdatasync(7</d/log/0/1.log>) = 0\n\
                  1 pwrite64(7</d/log/0/1.log>, \"x\"..., 99, 0) = 99\n\
                  1 pwrite64(8</d/log/0/2.log>, \"\\0\"..., 99, 0) = 99\n\
                  1 fdatasync(8</d/log/0/2.log>) = 0\n\
                  1 fdatasync(7</d/log/0/1.log>) = 0\n\
                  3 pwrite64(8</d/log/0/2.log>, \"FIRNBLNK\\0\"..., 1024, 0) = 1024\n\
                  2 writev(9<socket:[1]>, [{iov_base=\"HTTP/1.1 204 No Content\"..., ";
    assert_eq!(check(honest), Ok(1));
    let early = "1 fdatasync(7</d/log/0/1.log>) = 0\n\
                 1 pwrite64(7</d/log/0/1.log>, \"x\"..., 99, 0) = 99\n\
                 2 writev(9<socket:[1]>, [{iov_base=\"HTTP/1.1 204 No Content\"..., ";
    assert!(check(early).is_err());
    let unfinished = "1 fdatasync(7</d/log/0/1.log>) = 0\n\
                      1 pwrite64(7</d/log/0/1.log>, \"x\"..., 99, 0) = 99\n\
                      1 fdatasync(7</d/log/0/1.log> <unfinished ...>\n\
                      2 sendto(9<socket:[1]>, \"HTTP/1.1 204 No Content\"..., \n\
                      1 <... fdatasync resumed>) = 0\n";
    assert!(check(unfinished).is_err());
}

/// Counts the 204s; an error names the first one that was sent while written log bytes were not
/// synced. Only one request is in progress at a time, so every log write before a 204 belongs to it
/// or to an older one. A segment is created ahead on another thread and receives entries only after
/// its first sync, so that earlier writes to a file are ignored; so is the record of an unused
/// file, which that thread writes again.
fn check(trace: &str) -> Result<usize, String> {
    // Per log file: written since its last finished sync. Per thread: the file it is syncing.
    let mut dirty: BTreeMap<&str, bool> = BTreeMap::new();
    let mut syncing: BTreeMap<&str, &str> = BTreeMap::new();
    let mut acknowledged = 0;
    for (idx, line) in trace.lines().enumerate() {
        let (thread, call) = line.split_once(' ').unwrap_or((line, ""));
        let call = call.trim_start();
        let file = call.split('<').nth(1).and_then(|rest| rest.split('>').next()).unwrap_or("");
        let is_log = file.contains("/log/");
        if is_log && call.starts_with("pwrite") && !call.contains(", \"FIRNBLNK") {
            dirty.entry(file).and_modify(|dirty| *dirty = true);
        } else if is_log && (call.starts_with("fdatasync(") || call.starts_with("fsync(")) {
            if call.contains("unfinished") {
                syncing.insert(thread, file);
            } else if call.ends_with("= 0") {
                dirty.insert(file, false);
            }
        } else if call.starts_with("<... fdatasync resumed")
            || call.starts_with("<... fsync resumed")
        {
            if let Some(file) = syncing.remove(thread)
                && call.ends_with("= 0")
            {
                dirty.insert(file, false);
            }
        } else if call.contains("HTTP/1.1 204") {
            acknowledged += 1;
            if let Some((file, _)) = dirty.iter().find(|(_, dirty)| **dirty) {
                return Err(format!("line {}: a 204 leaves while {file} is not synced", idx + 1));
            }
        }
    }
    Ok(acknowledged)
}
