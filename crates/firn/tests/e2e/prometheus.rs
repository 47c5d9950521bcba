//! A real Prometheus scrapes a real node exporter and remote-writes to FirnDB, which is killed in
//! the middle. Afterwards both return the same results, and no acknowledged sample is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::http::api;
use crate::process::{
    Process, free_address, installed, start_firn, start_node_exporter, wait_for, wait_until_ready,
};

/// Windows and offsets of the queries, in milliseconds: no sample may be on their edges, because
/// Debian's Prometheus 2.x includes the left edge and Prometheus 3 does not.
const EDGES_MS: [i64; 7] = [0, 5_000, 10_000, 12_000, 15_000, 20_000, 300_000];

const QUERIES: [&str; 44] = [
    "up",
    "node_load1",
    "count(up)",
    "node_cpu_seconds_total",
    "node_cpu_seconds_total{mode=\"idle\"}",
    "node_cpu_seconds_total{mode=~\"idle|user\"}",
    "node_cpu_seconds_total{mode!~\"idle|user\",cpu=\"0\"}",
    "node_memory_MemTotal_bytes - node_memory_MemFree_bytes",
    "node_memory_MemFree_bytes / node_memory_MemTotal_bytes * 100",
    "rate(node_cpu_seconds_total[15s])",
    "sum by (mode) (rate(node_cpu_seconds_total[15s]))",
    "sum without (cpu) (rate(node_cpu_seconds_total[15s]))",
    "avg by (cpu) (irate(node_cpu_seconds_total[15s]))",
    "increase(node_context_switches_total[20s])",
    "delta(node_memory_MemFree_bytes[20s])",
    "deriv(node_memory_MemFree_bytes[20s])",
    "avg_over_time(node_load1[20s])",
    "min_over_time(node_memory_MemFree_bytes[20s])",
    "max_over_time(node_memory_MemFree_bytes[20s])",
    "sum_over_time(node_load1[20s])",
    "count_over_time(node_load1[20s])",
    "stddev_over_time(node_memory_MemFree_bytes[20s])",
    "quantile_over_time(0.5, node_memory_MemFree_bytes[20s])",
    "last_over_time(node_load1[20s])",
    "changes(node_context_switches_total[20s])",
    "resets(node_context_switches_total[20s])",
    "node_load1 offset 10s",
    "rate(node_context_switches_total[10s] offset 5s)",
    "max_over_time(rate(node_context_switches_total[10s])[12s:3s])",
    "topk(3, node_cpu_seconds_total)",
    "bottomk(2, node_filesystem_size_bytes)",
    "quantile(0.9, node_cpu_seconds_total)",
    "stddev(node_cpu_seconds_total)",
    "count_values(\"v\", node_cpu_seconds_total > bool 0)",
    "sum(node_cpu_seconds_total) by (mode) > 0",
    "node_load1 > bool 0",
    "node_network_receive_bytes_total and on (device) node_network_up",
    "node_network_receive_bytes_total unless node_load1",
    "node_network_receive_bytes_total * on (device) group_left (operstate) node_network_info",
    "sum(rate(node_network_receive_bytes_total[15s])) or vector(0)",
    "histogram_quantile(0.9, \
     sum by (le) (rate(prometheus_http_request_duration_seconds_bucket[20s])))",
    "label_replace(up, \"target\", \"$1\", \"instance\", \"(.*):.*\")",
    "absent(nonexistent)",
    "round(node_load1, 0.1) + ceil(node_load5) + floor(node_load15)",
];

#[test]
fn prometheus_and_firn_return_the_same_and_a_kill_loses_nothing() {
    let (Some(prometheus), Some(node_exporter)) =
        (installed("prometheus"), installed("prometheus-node-exporter"))
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (node_at, prometheus_at, firn_at) = (free_address(), free_address(), free_address());
    let _node = start_node_exporter(&node_exporter, folder, node_at);
    let mut firn = start_firn(folder, firn_at);
    let _prometheus = start_prometheus(&prometheus, folder, prometheus_at, node_at, firn_at);

    let samples = |address| newest_count(address);
    // The first query adds series to Prometheus' own metrics. Prometheus 2.x extrapolates a series
    // that begins inside a window further than 3.x does, so they begin before every window.
    wait_for("a scrape in Prometheus", Duration::from_secs(60), || samples(prometheus_at) >= 1);
    wait_for("12 scrapes in FirnDB", Duration::from_secs(60), || samples(firn_at) >= 12);
    firn.kill();
    // Prometheus continues to scrape and keeps the samples that it could not send.
    let before = samples(prometheus_at);
    wait_for("4 scrapes meanwhile", Duration::from_secs(60), || {
        samples(prometheus_at) >= before + 4
    });
    let _firn = start_firn(folder, firn_at);
    let wanted = samples(prometheus_at) + 10;
    wait_for("FirnDB to catch up", Duration::from_secs(120), || samples(firn_at) >= wanted);

    // Each second has other samples: if they leave no moment, those of a later second do.
    let mut moment = None;
    wait_for("a moment between scrapes", Duration::from_secs(120), || {
        moment = quiet_moment(prometheus_at, firn_at);
        moment.is_some()
    });
    let at = moment.expect("a moment");
    // Prometheus sends its series in several queues, some of which may be behind.
    let mut missing = None;
    for _ in 0..300 {
        missing = missing_samples(prometheus_at, firn_at, at);
        if missing.is_none() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(200));
    }
    assert_eq!(missing, None);
    compare(prometheus_at, firn_at, at);
}

fn start_prometheus(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    node: SocketAddr,
    firn: SocketAddr,
) -> Process {
    let config = folder.join("prometheus.yml");
    fs::write(
        &config,
        format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs:\n\
             - {{job_name: node, static_configs: [{{targets: ['{node}']}}]}}\n\
             - {{job_name: prometheus, static_configs: [{{targets: ['{address}']}}]}}\n\
             remote_write:\n\
             - url: http://{firn}/api/v1/write\n\
             \x20 queue_config: {{batch_send_deadline: 500ms, min_backoff: 30ms, \
             max_backoff: 200ms}}\n"
        ),
    )
    .expect("a configuration file");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus-data").display()));
    command.arg(format!("--web.listen-address={address}"));
    let process = Process::start("prometheus", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// Scrapes of the node exporter that a server knows of.
fn newest_count(address: SocketAddr) -> u64 {
    let data =
        api(address, "/api/v1/query", &[("query", "count_over_time(up{job=\"node\"}[10m])")]);
    let value = data.ok().and_then(|data| data["result"][0]["value"][1].as_str().map(String::from));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// A moment, in milliseconds, that both servers have data up to and whose windows have no sample
/// on an edge, if the last half second has one.
fn quiet_moment(prometheus: SocketAddr, firn: SocketAddr) -> Option<i64> {
    let newest = |address: SocketAddr| {
        let data = api(address, "/api/v1/query", &[("query", "min(timestamp(up)) * 1000")]);
        let data = data.expect("a query");
        data["result"][0]["value"][1]
            .as_str()
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or(0.0) as i64
    };
    let end = newest(prometheus);
    wait_for("the same scrapes in FirnDB", Duration::from_secs(60), || newest(firn) >= end + 2_000);
    let window = [("query", "{__name__=~\"up|node_load1\"}[10m]")];
    let data = api(prometheus, "/api/v1/query", &window).expect("a query");
    let taken: BTreeSet<i64> = data["result"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|series| series["values"].as_array().cloned().unwrap_or_default())
        .map(|sample| (sample[0].as_f64().unwrap_or(0.0) * 1000.0).round() as i64)
        .collect();
    let at = (end - 500..end).rev().find(|at| {
        // The subquery looks at whole seconds of 3 s steps, so their windows count too.
        let mut steps = (0..6).map(|step| (at / 3_000 - step) * 3_000);
        EDGES_MS.iter().all(|edge| !taken.contains(&(at - edge)))
            && steps
                .all(|step| [10_000, 300_000].iter().all(|edge| !taken.contains(&(step - edge))))
    })?;
    // After a scrape that failed, many queries have no answer.
    let time = seconds(at);
    let up = api(prometheus, "/api/v1/query", &[("query", "min(up)"), ("time", time.as_str())]);
    (up.expect("a query")["result"][0]["value"][1] == "1").then_some(at)
}

/// The first series that does not have in FirnDB every sample that Prometheus has up to `at`, with
/// the same text.
fn missing_samples(prometheus: SocketAddr, firn: SocketAddr, at: i64) -> Option<String> {
    let time = seconds(at);
    let raw = |address: SocketAddr| -> BTreeMap<String, Value> {
        let query = [("query", "{__name__=~\".+\"}[10m]"), ("time", time.as_str())];
        let data = api(address, "/api/v1/query", &query).expect("a query");
        let series = data["result"].as_array().cloned().unwrap_or_default();
        series
            .into_iter()
            // FirnDB also has series of its own.
            .filter(|series| series["metric"]["job"] != "firndb-self")
            .map(|series| (series["metric"].to_string(), series["values"].clone()))
            .collect()
    };
    let (theirs, ours) = (raw(prometheus), raw(firn));
    assert!(theirs.len() > 500, "Prometheus has {} series", theirs.len());
    theirs
        .iter()
        .find(|(series, samples)| ours.get(*series) != Some(samples))
        .map(|(series, samples)| format!("{series}: {samples}, in FirnDB {:?}", ours.get(series)))
}

fn compare(prometheus: SocketAddr, firn: SocketAddr, at: i64) {
    let time = seconds(at);
    let mut empty = Vec::new();
    for query in QUERIES {
        let ask = |address| {
            let own = query.replace("up,", "up{job!=\"firndb-self\"},");
            let own = match own.as_str() {
                "up" => "up{job!=\"firndb-self\"}".to_owned(),
                "count(up)" => "count(up{job!=\"firndb-self\"})".to_owned(),
                _ => own,
            };
            api(address, "/api/v1/query", &[("query", own.as_str()), ("time", time.as_str())])
                .unwrap_or_else(|e| panic!("{query}: {e}"))
        };
        let (theirs, ours) = (answers(&ask(prometheus)), answers(&ask(firn)));
        if theirs.is_empty() {
            empty.push(query);
        }
        assert_eq!(
            theirs.keys().collect::<Vec<_>>(),
            ours.keys().collect::<Vec<_>>(),
            "{query}: other series"
        );
        for (series, value) in &theirs {
            assert!(
                close(*value, ours[series]),
                "{query}: {series}: Prometheus {value}, FirnDB {}",
                ours[series]
            );
        }
    }
    assert!(QUERIES.len() - empty.len() >= 30, "too many empty answers: {empty:?}");
}

fn answers(data: &Value) -> BTreeMap<String, f64> {
    let one =
        |sample: &Value| sample[1].as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    if data["resultType"] == "scalar" {
        return BTreeMap::from([(String::new(), one(&data["result"]))]);
    }
    let series = data["result"].as_array().cloned().unwrap_or_default();
    series.iter().map(|series| (series["metric"].to_string(), one(&series["value"]))).collect()
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}
