//! The real program while its log device fails, by strace: a sync with EIO, or a write with ENOSPC,
//! again and again.
//!
//! Fault: the 60th sync of each thread and every 11th after it, or equally for writes. On disk: the
//! written data; the process survives. Afterwards: a waiting client receives 503 with the time of
//! the next try, and sees no part of its write; the segment is neither written nor synced any more;
//! the next requests succeed without a restart; after a SIGKILL all acknowledged data is there,
//! refused data is not, and nothing is there in part.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kill::{Client, Fate};
use crate::process::{Process, firn, free_address, installed, wait_until_ready};

/// Requests that are refused before it is enough; each costs a segment of 32 MiB.
const REFUSED: usize = 6;
/// This many requests without an error mean that nothing fails.
const REQUESTS_MAX: usize = 20_000;
const CLIENTS: u64 = 4;

/// Opening takes fewer syncs than 60.
#[test]
fn a_failed_sync_is_reported_and_its_segment_abandoned() {
    let Some(trace) = live_on("fdatasync:error=EIO:when=60+11") else { return };
    let failed = check(&trace).unwrap_or_else(|e| panic!("{e}"));
    assert!(failed >= REFUSED, "only {failed} log syncs failed");
}

/// Opening takes fewer than 300 writes, and so does a new segment, so that one can be created
/// between two failures.
#[test]
fn a_write_without_space_is_reported_and_writing_continues() {
    let Some(trace) = live_on("pwrite64:error=ENOSPC:when=300+301") else { return };
    let failed = check(&trace).unwrap_or_else(|e| panic!("{e}"));
    assert!(failed > 0, "no log write failed");
}

/// Clients write, change and delete while the faults of `inject` occur, until enough requests were
/// refused and all succeed again; then the process is killed and restarted. Returns the output of
/// strace; `None` where strace is missing.
fn live_on(inject: &str) -> Option<String> {
    let strace = installed("strace")?;
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, address, trace) = (folder.path(), free_address(), folder.path().join("trace"));
    let mut ours = firn(folder, address);
    // A flush would write other files and reuse the abandoned segments. On a busy machine, the
    // estimated time of a replay may start one.
    ours.args(["--flush-age-max=2h", "--restart-time-max=2h"]);
    ours.args(["--enable-admin-api", "--self-scrape=never"]);
    ours.arg("--log-streams=2");
    let mut command = std::process::Command::new(strace);
    command.args(["-f", "--seccomp-bpf", "-y", "-s", "8", "-o"]).arg(&trace);
    command.args(["-e", "trace=pwrite64,fdatasync", "-e", &format!("inject={inject}")]);
    command.arg(ours.get_program()).args(ours.get_args());
    let mut server = Process::start("strace", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let base_ms = now.as_millis() as i64 - 3_600_000;
    let mut clients: Vec<Client> = (0..CLIENTS).map(|idx| Client::new(idx, base_ms, 1)).collect();
    let (mut refused, mut requests) = (0, 0);
    while refused < REFUSED {
        for client in &mut clients {
            refused += usize::from(client.act(address).expect("an answer") == 503);
            requests += 1;
        }
        assert!(requests < REQUESTS_MAX, "{refused} of {requests} requests were refused");
    }
    // The last entry of each stream succeeded, so that a crash cannot bring a failed one back.
    while !clients.iter_mut().all(|client| succeeds(client, address)) {}
    println!("{inject}: {refused} of {requests} requests refused");
    for client in &mut clients {
        let doubted: Vec<usize> =
            (0..client.rows.len()).filter(|&row| client.rows[row] == Fate::Unknown).collect();
        client.check(address, usize::MAX, 0);
        let shown = doubted.into_iter().find(|&row| client.rows[row] == Fate::There);
        assert_eq!(shown, None, "a row that was refused is there");
    }
    server.kill_child();
    let mut ours = firn(folder, address);
    let _server = Process::start("firn", folder, ours.arg("--log-streams=2"));
    wait_until_ready(address, "/-/ready");
    clients.iter_mut().for_each(|client| client.check(address, usize::MAX, 1));
    Some(std::fs::read_to_string(&trace).expect("strace's output"))
}

/// A write of its own group, then a transaction, which has another stream perhaps.
fn succeeds(client: &mut Client, address: SocketAddr) -> bool {
    let write = client.write(address).expect("an answer");
    let transaction = client.transact(address).expect("an answer");
    (write, transaction) == (204, 200)
}

/// Counts the log's files that failed; an error names the first that was used again.
fn check(trace: &str) -> Result<usize, String> {
    let mut failed: BTreeSet<&str> = BTreeSet::new();
    // Per thread: the file of a call that has not returned.
    let mut open: BTreeMap<&str, &str> = BTreeMap::new();
    for (idx, line) in trace.lines().enumerate() {
        let (thread, call) = line.split_once(' ').unwrap_or((line, ""));
        let call = call.trim_start();
        let resumed = call.starts_with("<... ");
        let named = call.split('<').nth(1).and_then(|rest| rest.split('>').next()).unwrap_or("");
        let file = if resumed { open.remove(thread).unwrap_or("") } else { named };
        if !file.contains("/log/") {
            continue;
        }
        if !resumed && failed.contains(file) {
            return Err(format!("line {}: {file} is used after it has failed", idx + 1));
        }
        if call.contains("<unfinished ...>") {
            open.insert(thread, file);
        } else if is_failed(call) {
            failed.insert(file);
        }
    }
    Ok(failed.len())
}

/// Whether the call returned an error. strace fills short lines with blanks before the result, and
/// with them the lines of resumed calls.
fn is_failed(call: &str) -> bool {
    call.rsplit_once(" = ").is_some_and(|(_, result)| result.starts_with("-1 "))
}

#[test]
fn the_check_sees_a_segment_that_is_used_again() {
    let failed = "1 pwrite64(7</d/log/0/1.log>, \"x\"..., 99, 0) = 99\n\
                  1 fdatasync(7</d/log/0/1.log> <unfinished ...>\n\
                  2 fdatasync(8</d/log/1/1.log>) = 0\n\
                  1 <... fdatasync resumed>)          = -1 EIO (Input/output error) (INJECTED)\n";
    let next = "1 pwrite64(9</d/log/0/2.log>, \"x\"..., 99, 0) = 99\n";
    assert_eq!(check(&format!("{failed}{next}")), Ok(1));
    let again = "2 fdatasync(7</d/log/0/1.log>) = 0\n";
    assert!(check(&format!("{failed}{next}{again}")).is_err());
}
