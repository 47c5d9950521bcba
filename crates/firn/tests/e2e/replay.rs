//! The recorded scrapes through remote write into a database whose slow tier is a real S3 server.
//! Everything moves from log to bucket while it is queried; then the server restarts with empty
//! caches and every sample is read back, bit-exact.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::http::{self, api};
use crate::process::{Process, S3, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;
use crate::scrapes::{Scrape, labels, recorded, vanished};

const TARGETS: [&str; 4] = ["node", "prometheus", "redis", "pushgateway"];
const STALE_NAN: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
// How many flushes the replay is to be spread over, at least.
const FLUSHES: usize = 6;

/// Series key and job -> time -> bits.
type Samples = BTreeMap<(String, String), BTreeMap<i64, u64>>;

#[test]
fn recorded_scrapes_come_back_bit_exact_from_an_s3_bucket() {
    let mut recordings = Vec::new();
    for target in TARGETS {
        let Some(recording) = recorded(target) else { return };
        recordings.push((target, recording));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let Some(s3) = S3::start(folder) else { return };
    let firn_at = free_address();
    let start = || {
        let mut command = firn(folder, firn_at);
        command.args(["--slow-tier", &format!("{}/metrics", S3::BUCKET)]);
        // Small, so that a short replay flushes, compacts and uploads many times.
        command.args(["--log-streams", "2", "--shards", "8", "--head-flush-bytes", "60000"]);
        command.args(["--upload-age-max", "2s"]);
        command.envs(s3.variables());
        let process = Process::start("firn", folder, &mut command);
        wait_until_ready(firn_at, "/-/ready");
        process
    };
    let server = start();
    let sent = replay_while_querying(firn_at, &recordings);
    wait_for("the upload of the replay", Duration::from_secs(120), || {
        metric(firn_at, "firn_tree_tables{level=\"2\"}") > 0.0
            && metric(firn_at, "firn_tree_tables{level=\"0\"}") == 0.0
            && metric(firn_at, "firn_tree_tables{level=\"1\"}") == 0.0
    });
    assert!(metric(firn_at, "firn_flushes_total") >= FLUSHES as f64, "flushes");
    read_everything_back(firn_at, &sent);

    drop(server);
    let kept = folder.join("firn-data/fast/slow-cache");
    let _ = std::fs::remove_dir_all(&kept);
    let mut server = start();
    read_everything_back(firn_at, &sent);
    assert!(metric(firn_at, "firn_slow_tier_gets_total") > 0.0);

    // Data that was read is on this machine, also after a restart.
    server.terminate();
    let mut server = start();
    read_everything_back(firn_at, &sent);
    assert!(metric(firn_at, "firn_slow_cache_hits_total") > 0.0);

    // Damaged data is read from the bucket again. Tables that were merged meanwhile are not cached
    // yet, so that one more round may be needed.
    wait_for("damage to be met", Duration::from_secs(120), || {
        server.terminate();
        let slabs = kept.join("slabs");
        let mut bytes = std::fs::read(&slabs).expect("slabs");
        bytes.iter_mut().skip(100).step_by(1_000).for_each(|byte| *byte ^= 1);
        std::fs::write(&slabs, bytes).expect("written");
        server = start();
        read_everything_back(firn_at, &sent);
        metric(firn_at, "firn_slow_cache_corrupt_pieces_total") > 0.0
    });
    assert_eq!(metric(firn_at, "firn_tree_corrupt_tables{level=\"2\"}"), 0.0);
}

/// Sends scrape after scrape as Prometheus does, with a reader beside it; returns the acknowledged
/// samples.
fn replay_while_querying(firn: SocketAddr, recordings: &[(&str, Vec<Scrape>)]) -> Samples {
    let done = AtomicBool::new(false);
    let queries = AtomicU64::new(0);
    let mut sent = Samples::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut most = 0.0;
            while !done.load(Ordering::Relaxed) {
                let newest = recordings[0].1.last().map_or(0, |scrape| scrape.ts) / 1000;
                let query = [
                    ("query", "sum(count_over_time(node_cpu_seconds_total[2h]))"),
                    ("time", &newest.to_string()),
                ];
                let data = api(firn, "/api/v1/query", &query).expect("a query beside the writes");
                let text = data["result"][0]["value"][1].as_str().unwrap_or("0").to_owned();
                let count: f64 = text.parse().unwrap_or(0.0);
                // Reads are monotone: nothing that was seen vanishes while it moves.
                assert!(count >= most, "{count} samples after {most}");
                most = count;
                queries.fetch_add(1, Ordering::Relaxed);
            }
        });
        let steps = recordings.iter().map(|(_, recording)| recording.len()).max().unwrap_or(0);
        for step in 0..steps {
            for (target, recording) in recordings {
                let Some(now) = recording.get(step) else { continue };
                let before = step.checked_sub(1).and_then(|step| recording.get(step));
                send(firn, target, before, now, &mut sent);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(queries.load(Ordering::Relaxed) > 10, "queries ran beside the writes");
    sent
}

fn send(firn: SocketAddr, target: &str, before: Option<&Scrape>, now: &Scrape, sent: &mut Samples) {
    let gone = before.map(|before| vanished(before, now)).unwrap_or_default();
    let stale = gone.into_iter().map(|key| (key, STALE_NAN));
    let fresh = now.samples.iter().map(|(key, value)| (key.clone(), *value));
    let mut request = WriteRequest::default();
    let mut points = Vec::new();
    for (key, value) in fresh.chain(stale) {
        let labels = target_labels(&key, target);
        let pairs: Vec<(&str, &str)> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        request.series(&pairs, &[(now.ts, value)]);
        points.push((key, value));
    }
    let (status, text) = request.send(firn);
    assert!(status == 204 || status == 200, "{status}: {text}");
    for (key, value) in points {
        sent.entry((target.into(), key)).or_default().insert(now.ts, value.to_bits());
    }
}

/// Every acknowledged sample, by raw range selectors. Staleness markers do not show in answers, so
/// they count as missing there and nowhere else.
fn read_everything_back(firn: SocketAddr, sent: &Samples) {
    let last = sent.values().filter_map(|series| series.keys().next_back()).max().expect("samples");
    let time = format!("{}.{:03}", last / 1000, last % 1000);
    let mut found = 0;
    for target in TARGETS {
        let query = format!("{{job=\"{target}\"}}[3h]");
        let data =
            api(firn, "/api/v1/query", &[("query", &query), ("time", &time)]).expect("a query");
        let mut answers: BTreeMap<Vec<(String, String)>, BTreeMap<i64, u64>> = BTreeMap::new();
        for series in data["result"].as_array().into_iter().flatten() {
            answers.insert(metric_labels(&series["metric"]), samples(&series["values"]));
        }
        for ((job, key), points) in sent.iter().filter(|((job, _), _)| job == target) {
            let mut wanted = target_labels(key, job);
            wanted.retain(|(_, value)| !value.is_empty());
            wanted.sort();
            let live: BTreeMap<i64, u64> = points
                .iter()
                .filter(|(_, bits)| **bits != STALE_NAN.to_bits())
                .map(|(ts, bits)| (*ts, *bits))
                .collect();
            let answer = answers.get(&wanted).cloned().unwrap_or_default();
            assert!(answer == live, "{job} {key}: {} of {} samples", answer.len(), live.len());
            found += answer.len();
        }
    }
    assert!(found > 500_000, "{found} samples");
}

/// The labels under which a scraper stores a series: the target's own `job` and `instance` yield to
/// those of the scrape configuration.
fn target_labels(key: &str, target: &str) -> Vec<(String, String)> {
    let mut labels = labels(key);
    for (name, _) in &mut labels {
        if name == "job" || name == "instance" {
            *name = format!("exported_{name}");
        }
    }
    labels.push(("job".into(), target.into()));
    labels.push(("instance".into(), "recorded:1".into()));
    labels
}

fn metric_labels(metric: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = metric.as_object().cloned().unwrap_or_default();
    let mut labels: Vec<_> =
        object.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    labels.sort();
    labels
}

fn samples(values: &Value) -> BTreeMap<i64, u64> {
    let one = |sample: &Value| {
        let ts = (sample[0].as_f64()? * 1000.0).round() as i64;
        // The shortest text that reads back: parsing yields the same bits (except for NaN).
        let value: f64 = sample[1].as_str()?.parse().ok()?;
        Some((ts, value.to_bits()))
    };
    values.as_array().into_iter().flatten().filter_map(one).collect()
}

/// One of the server's own metrics; 0 if it is not there yet.
fn metric(firn: SocketAddr, name: &str) -> f64 {
    let answer = http::get(firn, "/metrics").expect("metrics");
    let line = answer.body.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}
