//! SIGKILL under load, again and again, with clients that remember every acknowledgement.
//!
//! Crash: the process, at any point, during writes, transactions, deletes, conversions and flushes,
//! with any `--log-sync`. On disk: the data that the system has; the test syncs nothing.
//! Afterwards: each acknowledged row is there with the values of all its members; each acknowledged
//! delete holds; an unacknowledged change is there completely or not at all; a row of a transaction
//! is there exactly if its twin in another group is; an observed state remains through all later
//! lives.
//!
//! `FIRN_KILLS=200` kills that number of times (`make soak`), `FIRN_SEED=7` draws settings and
//! times from another seed.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{self, Answer};
use crate::process::{Process, firn, free_address, wait_until_ready};
use crate::remote_write::WriteRequest;

const KILLS: u64 = 20;
const WRITERS: usize = 4;
/// Values of one row.
const MEMBERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Rows of the previous life that are checked again after each kill; at the end all rows are.
const LOOK_BACK: usize = 500;
/// One request in this many is a delete.
const DELETE_EVERY: u64 = 40;
/// One request in this many is a transaction.
const TRANSACTION_EVERY: u64 = 8;
/// The number of other groups, in other shards and streams too, one of which a transaction writes
/// to.
const TWINS: usize = 8;

/// The fate of a row, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// Acknowledged, or seen after a kill.
    There,
    /// Deleted, or not seen after a kill.
    Gone,
    /// No answer.
    Unknown,
}

/// One client with a group of its own; row `n` has time `base_ms + n` and the value `n` in all
/// members.
pub(crate) struct Client {
    name: String,
    base_ms: i64,
    pub(crate) rows: Vec<Fate>,
    /// Rows that a transaction wrote, with a sample in another group.
    has_twin: Vec<bool>,
    /// Rows of deletes that were not acknowledged: of each all are there, or none.
    doubted: Vec<Range<usize>>,
    random: u64,
}

/// The device of the log.
#[derive(Clone, Copy)]
enum Device {
    Files,
    /// Mapped, as byte-addressable memory: stores of a process outlive it.
    Memory,
}

#[test]
fn acknowledged_changes_survive_repeated_sigkill() {
    kill_again_and_again(Device::Files);
}

#[test]
fn nor_with_the_log_on_memory() {
    kill_again_and_again(Device::Memory);
}

fn kill_again_and_again(device: Device) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (kills, seed) = (number("FIRN_KILLS").unwrap_or(KILLS), number("FIRN_SEED").unwrap_or(1));
    println!(
        "again: FIRN_SEED={seed} FIRN_KILLS={kills} cargo test --package firn --test e2e kill"
    );
    let folder = TempDir::new().expect("a folder");
    let address = free_address();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let base_ms = now.as_millis() as i64 - 3_600_000;
    let mut clients: Vec<Client> =
        (0..WRITERS as u64).map(|idx| Client::new(idx, base_ms, seed)).collect();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for kill in 0..kills {
        let mut server = start(&folder, device, address, &mut random);
        clients.iter_mut().for_each(|client| client.check(address, LOOK_BACK, kill));
        let requests = 5 + draw(&mut random, 150);
        live(&mut clients, address, requests, || server.kill());
    }
    let _server = start(&folder, device, address, &mut random);
    for client in &mut clients {
        client.check(address, usize::MAX, kills);
        let count = |fate| client.rows.iter().filter(|&&row| row == fate).count();
        println!(
            "{}: {} rows present, {} deleted",
            client.name,
            count(Fate::There),
            count(Fate::Gone)
        );
        assert!(count(Fate::There) as u64 > kills, "{} wrote nearly nothing", client.name);
    }
}

/// With settings that let everything happen within a second.
fn start(folder: &TempDir, device: Device, address: SocketAddr, random: &mut u64) -> Process {
    let age = ["1s", "3s", "20m"][draw(random, 3) as usize];
    let head = ["64KiB", "1MiB", "64MiB"][draw(random, 3) as usize];
    let mut command = firn(folder.path(), address);
    command.args(["--enable-admin-api", "--self-scrape=never"]);
    command.arg(format!("--flush-age-max={age}")).arg(format!("--head-flush-bytes={head}"));
    // The shortest time flushes as often as the server permits.
    let restart = ["1ms", "20ms", "2s"][draw(random, 3) as usize];
    command.arg(format!("--restart-time-max={restart}"));
    command.arg(format!("--log-streams={}", 1 + draw(random, 3)));
    command.arg(format!("--log-sync={}", ["always", "20ms", "never"][draw(random, 3) as usize]));
    if let Device::Memory = device {
        let memory = folder.path().join("memory");
        std::fs::create_dir_all(&memory).expect("a folder");
        command.arg(format!("--log-device=memory:{}", memory.display()));
    }
    let process = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// All clients write until this many requests were answered; then `kill` runs, and each client
/// continues until the server is dead.
fn live(clients: &mut [Client], address: SocketAddr, requests: u64, kill: impl FnOnce()) {
    let (answered, is_dead) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in clients {
            let (answered, is_dead) = (&answered, &is_dead);
            scope.spawn(move || {
                while client.act(address).is_some() && !is_dead.load(Ordering::Relaxed) {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while answered.load(Ordering::Relaxed) < requests {
            std::thread::yield_now();
        }
        kill();
        is_dead.store(true, Ordering::Relaxed);
    });
}

impl Client {
    pub(crate) fn new(idx: u64, base_ms: i64, seed: u64) -> Client {
        let random = (seed << 8 | idx).wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        let (rows, has_twin, doubted) = (Vec::new(), Vec::new(), Vec::new());
        Client { name: format!("client-{idx}"), base_ms, rows, has_twin, doubted, random }
    }

    /// One request and its status; `None` without a response.
    pub(crate) fn act(&mut self, address: SocketAddr) -> Option<u16> {
        let deletes = draw(&mut self.random, DELETE_EVERY) == 0 && self.rows.len() > 50;
        let transacts = draw(&mut self.random, TRANSACTION_EVERY) == 0;
        match () {
            () if deletes => self.delete(address),
            () if transacts => self.transact(address),
            () => self.write(address),
        }
    }

    /// One new row, its twin in another group, and an update of the last rows to their own values.
    pub(crate) fn transact(&mut self, address: SocketAddr) -> Option<u16> {
        let row = self.rows.len();
        let insert = |name: &str, job: &str, member: &str| {
            json!({
                "op": "insert",
                "series": {"__name__": name, "instance": self.name, "job": job, "member": member},
                "timestamp": self.time_ms(row),
                "value": row,
            })
        };
        let mut operations: Vec<Value> =
            MEMBERS.iter().map(|member| insert("kill", "e2e", member)).collect();
        operations.push(insert("twin", &format!("twin-{}", row % TWINS), "t"));
        operations.push(json!({
            "op": "update",
            "match": format!("kill{{instance=\"{}\"}}", self.name),
            "start": self.time_ms(row.saturating_sub(10)),
            "end": self.time_ms(row),
            "multiply": 1,
            "add": 0,
        }));
        let body = json!({ "operations": operations }).to_string();
        self.rows.push(Fate::Unknown);
        self.has_twin.push(true);
        let headers = [("Content-Type", "application/json")];
        let path = "/api/v1/transaction";
        let answer = http::request(address, "POST", path, &headers, body.as_bytes())?;
        if is_acknowledged(&answer) {
            self.rows[row] = Fate::There;
        }
        Some(answer.status)
    }

    /// One to four new rows.
    pub(crate) fn write(&mut self, address: SocketAddr) -> Option<u16> {
        let first = self.rows.len();
        let count = 1 + draw(&mut self.random, 4) as usize;
        let rows: Vec<(i64, f64)> =
            (first..first + count).map(|row| (self.time_ms(row), row as f64)).collect();
        let mut request = WriteRequest::default();
        for member in MEMBERS {
            let labels = [
                ("__name__", "kill"),
                ("instance", &*self.name),
                ("job", "e2e"),
                ("member", member),
            ];
            request.series(&labels, &rows);
        }
        self.rows.extend(rows.iter().map(|_| Fate::Unknown));
        self.has_twin.resize(self.rows.len(), false);
        let answer = request.post(address)?;
        if is_acknowledged(&answer) {
            self.rows[first..].fill(Fate::There);
        }
        Some(answer.status)
    }

    /// Some rows from a while ago.
    fn delete(&mut self, address: SocketAddr) -> Option<u16> {
        let start = self.rows.len() - 50 + draw(&mut self.random, 20) as usize;
        let rows = start..start + 1 + draw(&mut self.random, 20) as usize;
        let overlaps = |other: &Range<usize>| other.start < rows.end && rows.start < other.end;
        if self.rows[rows.clone()].contains(&Fate::Unknown) || self.doubted.iter().any(overlaps) {
            return self.write(address);
        }
        let seconds = |row: usize| self.time_ms(row) as f64 / 1_000.0;
        let form = format!(
            "match[]={}&match[]={}&start={:.3}&end={:.3}",
            http::encode(&format!("kill{{instance=\"{}\"}}", self.name)),
            http::encode(&format!("twin{{instance=\"{}\"}}", self.name)),
            seconds(rows.start),
            seconds(rows.end - 1),
        );
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let path = "/api/v1/admin/tsdb/delete_series";
        let answer = http::request(address, "POST", path, &headers, form.as_bytes());
        match &answer {
            Some(answer) if is_acknowledged(answer) => self.rows[rows].fill(Fate::Gone),
            _ => self.doubted.push(rows),
        }
        Some(answer?.status)
    }

    /// The last `look_back` rows and more have the right values. Unknown outcomes are resolved.
    pub(crate) fn check(&mut self, address: SocketAddr, look_back: usize, kill: u64) {
        let unknown = self.rows.iter().position(|&row| row == Fate::Unknown);
        let doubted = std::mem::take(&mut self.doubted);
        let unsure = doubted.iter().map(|rows| rows.start).chain(unknown).min();
        let first = self.rows.len().saturating_sub(look_back).min(unsure.unwrap_or(usize::MAX));
        let found = self.read(address, first);
        let twins = self.read_twins(address, first);
        // For each uncertain delete, the fate of the rows that existed before it.
        let mut outcomes = vec![Vec::new(); doubted.len()];
        for (row, found) in (first..).zip(found) {
            let whole = found == [true; MEMBERS.len()];
            let context = format!("{}, row {row}, after kill {kill}", self.name);
            assert!(whole || found == [false; MEMBERS.len()], "{context}: half there, {found:?}");
            let has_twin = self.has_twin[row] && whole;
            assert_eq!(twins[row - first], has_twin, "{context}: half a transaction, row {whole}");
            match self.rows[row] {
                Fate::There => match doubted.iter().position(|rows| rows.contains(&row)) {
                    Some(delete) => outcomes[delete].push(whole),
                    None => assert!(whole, "{context}: lost"),
                },
                Fate::Gone => assert!(!whole, "{context}: came back"),
                Fate::Unknown => {}
            }
            self.rows[row] = if whole { Fate::There } else { Fate::Gone };
        }
        for (rows, mut outcomes) in doubted.into_iter().zip(outcomes) {
            outcomes.dedup();
            assert!(outcomes.len() < 2, "{}: half a delete of {rows:?}", self.name);
        }
    }

    /// Which members have the right value, for each row from `first` on.
    fn read(&self, address: SocketAddr, first: usize) -> Vec<[bool; MEMBERS.len()]> {
        let mut found = vec![[false; MEMBERS.len()]; self.rows.len() - first];
        self.each("kill", address, first, |row, member| {
            let member = MEMBERS.iter().position(|&one| one == member).expect("a member");
            found[row - first][member] = true;
        });
        found
    }

    /// Which rows from `first` on have a sample in another group.
    fn read_twins(&self, address: SocketAddr, first: usize) -> Vec<bool> {
        let mut found = vec![false; self.rows.len() - first];
        self.each("twin", address, first, |row, _| found[row - first] = true);
        found
    }

    /// Calls `f` with row and member of each sample of metric `name` from row `first` on, after a
    /// check of its value.
    fn each(&self, name: &str, address: SocketAddr, first: usize, mut f: impl FnMut(usize, &str)) {
        let Some(last) = self.rows.len().checked_sub(1).filter(|&last| last >= first) else {
            return;
        };
        let query = format!("{name}{{instance=\"{}\"}}[{}ms]", self.name, last - first + 1);
        let time = format!("{:.3}", self.time_ms(last) as f64 / 1_000.0);
        let data = http::api(address, "/api/v1/query", &[("query", &query), ("time", &time)]);
        let data = data.expect("an answer");
        for series in data["result"].as_array().expect("a matrix") {
            let member = series["metric"]["member"].as_str().expect("a member");
            for value in series["values"].as_array().expect("values") {
                let seconds = value[0].as_f64().expect("a time");
                let row = ((seconds * 1_000.0).round() as i64 - self.base_ms) as usize;
                assert_eq!(value[1].as_str(), Some(&*row.to_string()), "{} row {row}", self.name);
                f(row, member);
            }
        }
    }

    fn time_ms(&self, row: usize) -> i64 {
        self.base_ms + row as i64
    }
}

/// Whether the request was carried out. A busy or failing one may have been carried out in part
/// before a crash; its response contains when to retry.
fn is_acknowledged(answer: &Answer) -> bool {
    match answer.status {
        200 | 204 => true,
        429 | 503 => {
            assert!(answer.head.contains("retry-after: "), "{}", answer.head);
            false
        }
        status => panic!("{status}: {}", answer.body),
    }
}

/// A number below `below`.
pub(crate) fn draw(random: &mut u64, below: u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 11) % below
}
