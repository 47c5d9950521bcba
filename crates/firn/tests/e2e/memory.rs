//! A tenth of the memory that a load needs: the load is slowed and refused, never lost, and the
//! process stays within its limit.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firn_hostile::noise;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;
use crate::tiers::metric;

const REQUESTS: u64 = 2;
const SERIES: u64 = 800;
/// Of one label; the texts are as good as random and cannot be compressed.
const VALUE_BYTES: usize = 1_500;
const NOW_MS: i64 = 1_700_000_000_000;

/// With the smallest limit there is, or with `FIRN_MEMORY_MIB` and a proportionally larger load
/// (`make soak`).
///
/// Each sender has 1.3 MB in flight, which take about 8 MB decompressed and decoded: five times the
/// limit for all senders. Three queries read all series over and over, each of which would need the
/// same amount again.
#[test]
fn a_tenth_of_the_memory_refuses_and_loses_nothing() {
    let limit_mib = std::env::var("FIRN_MEMORY_MIB");
    let limit_mib: u64 = limit_mib.map_or(64, |mib| mib.parse().expect("FIRN_MEMORY_MIB"));
    let (limit_bytes, senders) = (limit_mib << 20, 40 * limit_mib / 64);
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let start = || {
        let mut command = firn(folder.path(), address);
        let limit = format!("{limit_mib}MiB");
        command.args(["--memory", &limit, "--self-scrape", "never", "--log-sync", "never"]);
        // Memory is the only limit that may refuse the load.
        command.args(["--new-series-per-second-max", "0", "--series-per-metric-max", "0"]);
        let process = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        process
    };
    let mut server = start();
    let peak = Peak::default();
    let (refused, limited) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let refused = &refused;
        let _ends = SetOnDrop(&done);
        scope.spawn(|| peak.watch(server.id(), &done));
        let queries = [0, 1, 2].map(|_| scope.spawn(|| query_all(address, &done, &limited)));
        let senders: Vec<_> = (0..senders)
            .map(|sender| scope.spawn(move || send_all(address, sender, refused)))
            .collect();
        let sent: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        done.store(true, Ordering::Relaxed);
        let asked: Vec<_> = queries.into_iter().map(|query| query.join()).collect();
        assert!(sent.iter().all(Result::is_ok) && asked.iter().all(Result::is_ok));
    });
    println!(
        "{} requests refused, {} queries over their limit, at most {} bytes resident",
        refused.load(Ordering::Relaxed),
        limited.load(Ordering::Relaxed),
        peak.0.load(Ordering::Relaxed)
    );
    println!("{}", memory_metrics(address));
    assert!(refused.load(Ordering::Relaxed) > 0, "a load that fits shows nothing");
    peak.check(limit_bytes);
    all_is_there(address, senders);
    conserved(address, senders);

    // The log's rows come back into the same memory.
    server.kill();
    drop(server);
    let server = start();
    let done = AtomicBool::new(false);
    let peak = Peak::default();
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&done);
        scope.spawn(|| peak.watch(server.id(), &done));
        all_is_there(address, senders);
        done.store(true, Ordering::Relaxed);
    });
    println!("after a restart at most {} bytes resident", peak.0.load(Ordering::Relaxed));
    peak.check(limit_bytes);
}

/// Flushed data stays hot and serves queries, and the metrics report its memory.
#[test]
fn flushed_rows_answer_from_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    command.args(["--head-flush-bytes", "64KiB", "--self-scrape", "never"]);
    let _server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let value = |name: &str| metric(address, name).unwrap_or_else(|| panic!("no {name}"));
    let mut rounds = 0;
    // Rows become columns in blocks some time after they arrive, and are flushed in the form that
    // they have then. A query of an hour has 239 rounds at most.
    wait_for("a conversion and a flush", Duration::from_secs(60), || {
        let is_done = || value("firn_head_hot_bytes") > 0.0 && value("firn_head_block_bytes") > 0.0;
        if rounds == 239 {
            return is_done();
        }
        let mut request = WriteRequest::default();
        for series in 0..100 {
            let labels = [("__name__", "hot"), ("series", &series.to_string())];
            request.series(&labels, &[(NOW_MS + rounds * 15_000, (rounds * series) as f64)]);
        }
        assert_eq!(request.send(address).0, 204);
        rounds += 1;
        is_done()
    });
    let time = (NOW_MS / 1_000 + rounds * 15).to_string();
    let query = [("query", "sum(count_over_time(hot[1h]))"), ("time", time.as_str())];
    let data = api(address, "/api/v1/query", &query).expect("an answer");
    assert_eq!(data["result"][0]["value"][1], (rounds * 100).to_string());
    for name in ["hot_bytes", "block_bytes", "hot_reads_total"] {
        assert!(value(&format!("firn_head_{name}")) > 0.0, "{name}");
    }
    for kind in
        ["free_block_bytes", "cooling_bytes", "recycled_bytes_total", "released_bytes_total"]
    {
        assert!(value(&format!("firn_head_{kind}")) >= 0.0, "{kind}");
    }
    assert_eq!(
        value("firn_head_fallback_reads_total") + value("firn_head_revoked_reads_total"),
        0.0
    );
}

/// Sends each request until it is accepted; refusals must contain when to retry.
fn send_all(address: SocketAddr, sender: u64, refused: &AtomicU64) {
    for number in 0..REQUESTS {
        let mut request = WriteRequest::default();
        for series in 0..SERIES {
            let path = noise((sender * REQUESTS + number) * SERIES + series, VALUE_BYTES);
            let (host, series) = (format!("host-{sender}-{number}"), series.to_string());
            let labels = [
                ("__name__", "pressed"),
                ("instance", host.as_str()),
                ("job", "test"),
                ("path", path.as_str()),
                ("sender", &sender.to_string()),
                ("series", series.as_str()),
            ];
            request.series(&labels, &[(NOW_MS, 1.0), (NOW_MS + 15_000, 2.0)]);
        }
        wait_for("a write to be taken", Duration::from_secs(400), || {
            let (status, text) = request.send(address);
            if status == 429 {
                refused.fetch_add(1, Ordering::Relaxed);
                assert!(text.contains("memory budget") || text.contains("requests wait"), "{text}");
            } else {
                // 0: the server answered before it read the body, and the connection was reset.
                assert!(status == 204 || status == 0, "{status}: {text}");
            }
            status == 204
        });
    }
}

/// Queries answer or name the limit.
fn query_all(address: SocketAddr, done: &AtomicBool, limited: &AtomicU64) {
    while !done.load(Ordering::Relaxed) {
        let query = [("query", "pressed"), ("time", "1700000015")];
        if let Err(text) = api(address, "/api/v1/query", &query) {
            assert!(text.contains("memory"), "{text}");
            limited.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn all_is_there(address: SocketAddr, senders: u64) {
    for sender in 0..senders {
        let query = format!("sum(pressed{{sender=\"{sender}\"}})");
        wait_for("a query to be answered", Duration::from_secs(60), || {
            let parameters = [("query", query.as_str()), ("time", "1700000015")];
            let Ok(data) = api(address, "/api/v1/query", &parameters) else { return false };
            let sum = data["result"][0]["value"][1].as_str().map(str::to_owned);
            assert_eq!(sum, Some((2 * REQUESTS * SERIES).to_string()), "sender {sender}");
            true
        });
    }
}

/// Received = stored + rejected by reason, and all that was sent was stored once or more.
fn conserved(address: SocketAddr, senders: u64) {
    let metrics = get(address, "/metrics").expect("metrics").body;
    let sum = |name: &str| -> f64 {
        let lines = metrics.lines().filter(|line| {
            line.starts_with(&format!("{name}{{")) && line.contains("protocol=\"remote_write\"")
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let stored = sum("firn_write_stored_samples_total");
    let rejected = sum("firn_write_rejected_samples_total");
    assert_eq!(sum("firn_write_received_samples_total"), stored + rejected);
    assert!(stored >= (senders * REQUESTS * SERIES * 2) as f64, "{stored}");
}

fn memory_metrics(address: SocketAddr) -> String {
    let metrics = get(address, "/metrics").expect("metrics").body;
    let wanted =
        ["firn_memory_reserved", "firn_memory_rejected", "firn_flushes", "firn_memory_peak"];
    let lines = metrics.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The most anonymous memory that a process was seen with. The kernel reclaims pages of files, its
/// code among them, by itself.
#[derive(Default)]
pub(crate) struct Peak(AtomicU64);

/// Sets its flag when it is dropped: a watch ends after a failed assertion too.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Peak {
    pub(crate) fn watch(&self, pid: u32, done: &AtomicBool) {
        loop {
            let is_last = done.load(Ordering::Relaxed);
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            self.0.fetch_max(kib.unwrap_or(0) << 10, Ordering::Relaxed);
            if is_last {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    pub(crate) fn check(&self, limit_bytes: u64) {
        let peak = self.0.load(Ordering::Relaxed);
        assert!(peak > 0 && peak <= limit_bytes / 10 * 11, "{peak} bytes for {limit_bytes}");
    }
}
