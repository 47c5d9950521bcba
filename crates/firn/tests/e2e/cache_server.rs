//! `firn cache` from the outside: killed and restarted, sharded, and used by clients in two
//! languages.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firn_cache_client::{
    Client, Format, GetRequest, Options, decode_points, encode_points, server_of,
};

use crate::process::{Process, free_address, installed, repository, wait_until_ready};

const METRICS: &str = "/-/cache/metrics";
const KILLS: usize = 6;
const KEYS: u64 = 8;
const TIMES: i64 = 400;

fn start(folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["cache", "--size=16MiB", "--memory=32MiB", "--partial-bytes-min=0"]);
    command.arg("--data").arg(folder).arg("--listen").arg(address.to_string());
    let process = Process::start("cache", folder.parent().expect("a folder"), &mut command);
    wait_until_ready(address, METRICS);
    process
}

/// A busy machine may need more than the 5 s of the default.
fn patient() -> Options {
    Options { timeout: Duration::from_secs(60), ..Options::default() }
}

fn client(address: SocketAddr) -> Client {
    Client::new(&[&address.to_string()], patient()).expect("a client")
}

/// For each time of a key: the number of its last set, 0 after a delete, and the numbers of
/// requests without a response, which may have been carried out.
type Acknowledged = HashMap<(u64, i64), Vec<u64>>;

/// Points of a kilobyte, so that slabs are written all the time.
fn value_of(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(1_000, number as u8);
    value
}

/// Sets and deletes until the server has been killed.
fn talk(
    address: SocketAddr,
    acknowledged: &Mutex<Acknowledged>,
    writer: u64,
    is_over: &AtomicBool,
    from: u64,
) {
    let mut client = client(address);
    let mut number = from;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        // Each writer has its own keys, so that the last number of each key is known.
        let key = writer + 2 * (number % (KEYS / 2));
        let start = (number as i64 * 37) % TIMES;
        let end = (start + (number as i64 * 13) % 60).min(TIMES - 1);
        let is_delete = number.is_multiple_of(7);
        let name = format!("key{key}");
        let done = if is_delete {
            client.delete(&name, 0, (start, end)).map(|_| None)
        } else {
            let value = value_of(number);
            let points = encode_points((start..=end).map(|ts| (ts, &*value)));
            client.set(&name, 0, (start, end), Format::Binary, &points)
        };
        let mut acknowledged = acknowledged.lock().expect("no panic");
        for ts in start..=end {
            let known = acknowledged.entry((key, ts)).or_default();
            match &done {
                Ok(Some((_, kept))) if ts <= *kept => *known = vec![number],
                Ok(_) => *known = vec![0],
                Err(_) => known.push(if is_delete { 0 } else { number }),
            }
        }
        if done.is_err() {
            return;
        }
    }
}

/// Compares all stored points with the acknowledged ones; returns the number of points.
fn check(address: SocketAddr, acknowledged: &Acknowledged) -> usize {
    let mut client = client(address);
    let mut given = 0;
    for key in 0..KEYS {
        for start in (0..TIMES).step_by(20) {
            let end = start + 19;
            let found = client.get(&format!("key{key}"), 0, (start, end), Format::Binary);
            let found = found.expect("an answer");
            let points: HashMap<i64, &[u8]> =
                decode_points(&found.value).expect("points").into_iter().collect();
            let is_missing = |ts| found.missing.is_some_and(|(a, b)| (a..=b).contains(&ts));
            for ts in (start..=end).filter(|ts| !is_missing(*ts)) {
                let known = acknowledged.get(&(key, ts)).map_or(&[0][..], Vec::as_slice);
                let number = points.get(&ts).map_or(0, |value| {
                    assert_eq!(value.len(), 1_000);
                    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
                });
                assert!(number > 0, "every known time has a point: key{key} {ts}");
                assert!(
                    known.contains(&number),
                    "key{key} {ts}: {number}, expected one of {known:?}"
                );
                given += 1;
            }
        }
    }
    given
}

/// Crash: the process, while two clients set and delete. On disk: the data that the system has.
/// Afterwards: the cache returns only the last acknowledged points, and most of them.
#[test]
fn deleted_and_replaced_points_do_not_return_after_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("cache");
    let address = free_address();
    let acknowledged = Mutex::new(Acknowledged::new());
    let mut given = 0;
    for round in 0..KILLS {
        let mut server = start(&data, address);
        given += check(address, &acknowledged.lock().expect("no panic"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (acknowledged, is_over) = (&acknowledged, &is_over);
                let from = (round as u64 * 2 + writer) * 1_000_000;
                scope.spawn(move || talk(address, acknowledged, writer, is_over, from));
            }
            // Bounded by work, not by time: until the file has grown by this many bytes.
            let written = || {
                let text = crate::http::get(address, METRICS).map(|answer| answer.body);
                let line = "firn_cache_written_slabs_total ";
                let text = text.unwrap_or_default();
                let value = text.lines().find_map(|one| one.strip_prefix(line));
                value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
            };
            crate::process::wait_for("slabs", Duration::from_secs(120), || {
                written() >= 6.0 + round as f64
            });
            server.kill();
            is_over.store(true, Ordering::Relaxed);
        });
        // A number that is listed twice counts once.
        for known in acknowledged.lock().expect("no panic").values_mut() {
            known.dedup();
        }
    }
    let mut server = start(&data, address);
    given += check(address, &acknowledged.lock().expect("no panic"));
    assert!(given > 1_000, "{given} points outlived {KILLS} kills");
    assert_eq!(server.terminate(), Some(0));
    let kept = check_after_stop(&data, address, &acknowledged.lock().expect("no panic"));
    assert!(kept > 0);
}

fn check_after_stop(data: &Path, address: SocketAddr, acknowledged: &Acknowledged) -> usize {
    let mut server = start(data, address);
    let given = check(address, acknowledged);
    let stats = Command::new(env!("CARGO_BIN_EXE_firn"))
        .args(["cache", "stats", "--server", &address.to_string()])
        .output()
        .expect("firn runs");
    let text = String::from_utf8_lossy(&stats.stdout).into_owned();
    assert!(stats.status.success(), "{text}");
    let count = |name: &str| -> u64 {
        let value = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line of it");
        value.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
    };
    let answered = count("hits") + count("partial hits");
    assert_eq!(answered + count("misses"), KEYS * TIMES as u64 / 20, "{text}");
    assert_eq!(answered > 0, given > 0, "{given} points\n{text}");
    assert_eq!(server.terminate(), Some(0));
    given
}

#[test]
fn clients_in_rust_and_python_share_two_servers() {
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = [free_address(), free_address()];
    let _servers = [0, 1].map(|n| start(&folder.path().join(n.to_string()), addresses[n]));
    let names = addresses.map(|address| address.to_string());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut both = Client::new(&names, patient()).expect("a client");
    let mut counts = [0, 0];
    for number in 0..40 {
        let key = format!("rust/{number}");
        let value = format!("[[{number},1]]");
        let kept = both.set(&key, 3, (0, 99), Format::Json, value.as_bytes()).expect("an answer");
        assert_eq!(kept, Some((0, 99)));
        let server = server_of(&key, &names);
        counts[server] += 1;
        let alone = client(addresses[server]).get(&key, 3, (0, 99), Format::Json);
        assert_eq!(alone.expect("an answer").value, value.as_bytes());
    }
    assert!(counts.iter().all(|&count| count > 5), "{counts:?}");
    let keys: Vec<String> = (0..40).map(|number| format!("rust/{number}")).collect();
    let ask = |key| GetRequest {
        key,
        field: 3,
        range: (0, 120),
        format: Format::Json,
        part_bytes_min: None,
    };
    let questions: Vec<GetRequest<'_>> = keys.iter().map(|key| ask(key)).collect();
    for (number, found) in both.get_many(&questions).into_iter().enumerate() {
        let found = found.expect("an answer");
        assert_eq!(found.missing, Some((100, 120)));
        assert_eq!(found.value, format!("[[{number},1]]").into_bytes());
    }
    // A part that is smaller than the client's limit.
    let large = GetRequest { part_bytes_min: Some(1_000), ..ask(&keys[0]) };
    let found = both.get_many(&[large]).remove(0).expect("an answer");
    assert_eq!((found.missing, found.absent), (Some((0, 120)), Some((100, 120))));
    assert_eq!(found.value, b"[]");
    assert!(both.delete("rust/1", 3, (0, 9)).expect("an answer"));

    let Some(python) = installed("python3") else { return };
    let tests = Command::new(python)
        .args(["-B", "-m", "unittest", "-v", "test_firn_cache"])
        .current_dir(repository().join("clients/python"))
        .env("FIRN_CACHE_SERVERS", names.join(","))
        .output()
        .expect("python runs");
    let text = String::from_utf8_lossy(&tests.stderr).into_owned();
    assert!(tests.status.success() && !text.contains("skipped"), "{text}");
}
