//! `firn serve --prometheus-config` scrapes: alone, over a reload, a target that dies and a kill;
//! and beside a real Prometheus with the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::http::{api, get};
use crate::process::{
    Process, firn, free_address, installed, start_node_exporter, start_pushgateway,
    start_redis_exporter, wait_for, wait_until_ready,
};

/// A target that serves a body until it is dropped; the address stays free afterwards.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    body: Arc<Mutex<String>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    pub(crate) fn start(body: &str) -> Target {
        Target::start_at(free_address(), body)
    }

    pub(crate) fn start_at(address: SocketAddr, body: &str) -> Target {
        let listener = TcpListener::bind(address).expect("a free port");
        let body = Arc::new(Mutex::new(body.to_owned()));
        let ends = Arc::new(AtomicBool::new(false));
        let (served, ended) = (Arc::clone(&body), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let body = served.lock().expect("no panic").clone();
                let _ = stream.map(|stream| respond(stream, &body));
            }
        });
        Target { address, body, ends, thread: Some(thread) }
    }

    pub(crate) fn set_body(&self, body: &str) {
        *self.body.lock().expect("no panic") = body.to_owned();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn respond(mut stream: TcpStream, body: &str) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let (mut head, mut part) = (Vec::new(), [0; 4_096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(len) if len > 0 => head.extend_from_slice(&part[..len]),
            _ => return,
        }
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes());
}

/// Writes a file in one step.
pub(crate) fn replace(path: &Path, text: &str) {
    let other = path.with_extension("new");
    fs::write(&other, text).expect("a file");
    fs::rename(other, path).expect("a file");
}

fn start(folder: &Path, address: SocketAddr) -> Process {
    let mut command = firn(folder, address);
    command.arg("--prometheus-config").arg(folder.join("prometheus.yml"));
    command.args(["--self-scrape", "never"]);
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// The results of an instant query, as `labels value`, without those named in `without`.
pub(crate) fn results(address: SocketAddr, query: &str) -> BTreeSet<String> {
    let Ok(data) = api(address, "/api/v1/query", &[("query", query)]) else {
        return BTreeSet::new();
    };
    let series = data["result"].as_array().cloned().unwrap_or_default();
    series
        .iter()
        .map(|one| {
            format!("{} {}", labels_of(&one["metric"]), one["value"][1].as_str().unwrap_or(""))
        })
        .collect()
}

/// Labels as a text in order. Prometheus 3 writes bounds as `1.0`, Debian's Prometheus 2 as `1`.
pub(crate) fn labels_of(metric: &Value) -> String {
    let labels: BTreeMap<String, String> = metric
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value.as_str().unwrap_or_default();
            let bound = ["le", "quantile"].contains(&name.as_str()).then(|| text.parse::<f64>());
            let text =
                bound.and_then(Result::ok).map_or(text.to_owned(), |bound| bound.to_string());
            (name.clone(), text)
        })
        .collect();
    format!("{labels:?}")
}

fn wait_for_results(address: SocketAddr, query: &str, want: &[String]) {
    let want: BTreeSet<String> = want.iter().cloned().collect();
    let mut found = BTreeSet::new();
    for _ in 0..1_200 {
        found = results(address, query);
        if found == want {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    panic!("{query} is {found:#?}, expected {want:#?}");
}

fn result(metric: &[(&str, &str)], value: &str) -> String {
    let metric: BTreeMap<String, String> =
        metric.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    format!("{metric:?} {value}")
}

#[test]
fn jobs_files_of_targets_a_reload_and_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (first, second) = (Target::start("a 1\nb{x=\"y\"} 2\n"), Target::start("a 3\n"));
    let lone = Target::start("l 1\n");
    let targets = folder.join("targets.yml");
    let list = |addresses: &[SocketAddr]| {
        let addresses: Vec<String> = addresses.iter().map(|one| format!("'{one}'")).collect();
        replace(
            &targets,
            &format!("- targets: [{}]\n  labels: {{team: x}}\n", addresses.join(",")),
        );
    };
    list(&[first.address]);
    let files = "- job_name: files\n  file_sd_configs: [{files: ['targets.yml']}]\n";
    let other =
        format!("- job_name: other\n  static_configs: [{{targets: ['{}']}}]\n", lone.address);
    let config = |jobs: &str| {
        let global = "global: {scrape_interval: 1s, query_log_file: queries.log}";
        let text = format!("{global}\nscrape_configs:\n{jobs}");
        replace(&folder.join("prometheus.yml"), &text);
    };
    config(&format!("{files}{other}"));
    let address = free_address();
    let mut server = start(folder, address);
    let of = |target: &Target, name: &str, value: &str| {
        let instance = target.address.to_string();
        let labels = [("__name__", name), ("instance", &instance), ("job", "files"), ("team", "x")];
        result(&labels, value)
    };
    let lone_instance = lone.address.to_string();
    let of_lone = |value: &str| {
        result(&[("__name__", "l"), ("instance", &lone_instance), ("job", "other")], value)
    };
    wait_for_results(address, "a", &[of(&first, "a", "1")]);
    wait_for_results(address, "l", &[of_lone("1")]);

    // A second target by the file, and the end of the first one.
    list(&[first.address, second.address]);
    wait_for_results(address, "a", &[of(&first, "a", "1"), of(&second, "a", "3")]);
    let dead = first.address;
    drop(first);
    let of_first = |name: &str, value: &str| {
        let instance = dead.to_string();
        result(
            &[("__name__", name), ("instance", &instance), ("job", "files"), ("team", "x")],
            value,
        )
    };
    wait_for_results(address, "up{job=\"files\"}", &[of_first("up", "0"), of(&second, "up", "1")]);
    wait_for_results(address, "a", &[of(&second, "a", "3")]);
    wait_for_results(address, "b", &[]);

    // A kill: every scrape is whole, and targets are scraped again.
    server.kill();
    second.set_body("a 4\nc 5\n");
    lone.set_body("l 2\n");
    let mut server = start(folder, address);
    wait_for_results(address, "a", &[of(&second, "a", "4")]);
    // Only a server that has scraped a series can mark it stale.
    wait_for_results(address, "l", &[of_lone("2")]);
    let whole = "count(count_over_time(up{job=\"files\"}[10m]) \
                 != on (instance) count_over_time(scrape_samples_scraped[10m]))";
    assert_eq!(results(address, whole), BTreeSet::new(), "half scrapes");

    // SIGHUP: a job is removed, its series become stale; a mistake changes nothing.
    config(files);
    server.hang_up();
    wait_for_results(address, "l", &[]);
    wait_for_results(address, "up{job=\"other\"}", &[]);
    config("- job_name: ''\n");
    server.hang_up();
    wait_for("the refusal", Duration::from_secs(60), || {
        server.output().contains("the configuration is wrong; the previous one stays in use")
    });
    list(&[second.address]);
    wait_for_results(address, "up", &[of(&second, "up", "1")]);
    let metrics = get(address, "/metrics").expect("metrics").body;
    assert!(metrics.contains("prometheus_config_last_reload_successful 0\n"), "{metrics}");
    assert!(metrics.contains("prometheus_engine_query_log_enabled 1\n"), "{metrics}");
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let queries = fs::read_to_string(folder.join("queries.log")).expect("a query log");
    assert!(queries.contains("\"query\":\"up\""), "{queries}");
}

#[test]
fn a_start_with_a_wrong_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    replace(&folder.path().join("prometheus.yml"), "scrape_configs: [{job_name: a, typo: 1}]");
    let mut command = firn(folder.path(), free_address());
    command.arg("--prometheus-config").arg(folder.path().join("prometheus.yml"));
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains("field typo not found") && text.contains("prometheus.yml"), "{text}");
}

/// The targets of a server as `pool labels url health error`.
fn targets(address: SocketAddr) -> BTreeSet<String> {
    let Some(answer) = get(address, "/api/v1/targets") else { return BTreeSet::new() };
    let data: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let active = data["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
    active
        .iter()
        .map(|target| {
            let text = |name: &str| target[name].as_str().unwrap_or_default().to_owned();
            let fields = ["scrapePool", "scrapeUrl", "globalUrl", "health", "scrapeInterval"];
            let has_error = !text("lastError").is_empty();
            format!("{} {:?} {has_error}", labels_of(&target["labels"]), fields.map(text))
        })
        .collect()
}

/// All series of the last minutes.
fn series(address: SocketAddr) -> BTreeSet<String> {
    let data = api(address, "/api/v1/series", &[("match[]", "{job=~\".+\"}")]).unwrap_or_default();
    data.as_array().into_iter().flatten().map(labels_of).collect()
}

/// Waits until both are equal and not empty.
pub(crate) fn wait_for_equal(what: &str, both: impl Fn() -> (BTreeSet<String>, BTreeSet<String>)) {
    wait_until_equal(what, false, both);
}

/// Two servers scrape at times of their own, so a second reading could see a scrape of only one of
/// them: the reading that is judged is the one that ends the wait.
fn wait_until_equal(
    what: &str,
    may_be_empty: bool,
    both: impl Fn() -> (BTreeSet<String>, BTreeSet<String>),
) {
    let (mut theirs, mut ours) = both();
    for _ in 0..600 {
        if theirs == ours && (may_be_empty || !theirs.is_empty()) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(100));
        (theirs, ours) = both();
    }
    let missing: Vec<&String> = theirs.difference(&ours).take(10).collect();
    let added: Vec<&String> = ours.difference(&theirs).take(10).collect();
    panic!("{what}: only Prometheus: {missing:#?}\nonly FirnDB: {added:#?}");
}

const AFTER_RELOAD: &str = "after a reload";

const APP: &str = "# TYPE requests_total counter\nrequests_total{code=\"200\",job=\"x\"} 10\n\
                   requests_total{code=\"500\",job=\"x\"} 1\nnoise{a=\"1\"} 1\nsecret_value 5\n";

#[test]
fn prometheus_and_firn_store_the_same_with_one_file() {
    let (Some(prometheus), Some(node_exporter), Some(pushgateway), Some(redis_exporter)) = (
        installed("prometheus"),
        installed("prometheus-node-exporter"),
        installed("prometheus-pushgateway"),
        installed("prometheus-redis-exporter"),
    ) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (node_at, prometheus_at, firn_at) = (free_address(), free_address(), free_address());
    let (gateway_at, redis_at) = (free_address(), free_address());
    let _gateway = start_pushgateway(&pushgateway, folder, gateway_at);
    let _redis = start_redis_exporter(&redis_exporter, folder, redis_at, free_address());
    let _node = start_node_exporter(&node_exporter, folder, node_at);
    let (app, dying) = (Target::start(APP), Target::start("d 1\n"));
    let broken = Target::start("good 1\nbad{ 2\n");
    let dead = free_address();
    let list = |addresses: &[SocketAddr]| {
        let addresses: Vec<String> = addresses.iter().map(|one| format!("\"{one}\"")).collect();
        let text =
            format!("[{{\"targets\": [{}], \"labels\": {{\"dc\": \"e\"}}}}]", addresses.join(","));
        replace(&folder.join("targets.json"), &text);
    };
    list(&[dying.address]);
    let config = |more: &str| {
        let text = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs:\n\
             - job_name: node\n  static_configs: [{{targets: ['{node_at}']}}]\n\
             - job_name: app\n  static_configs: [{{targets: ['{0}', 'skip:1'], \
             labels: {{env: test, empty: ''}}}}]\n  relabel_configs:\n\
             \x20 - {{source_labels: [__address__], regex: 'skip:.*', action: drop}}\n\
             \x20 - {{source_labels: [env], target_label: stage, replacement: 'is-$1'}}\n\
             \x20 metric_relabel_configs:\n\
             \x20 - {{source_labels: [__name__], regex: 'secret_.*', action: drop}}\n\
             \x20 - {{regex: a, action: labeldrop}}\n\
             - job_name: honest\n  honor_labels: true\n  honor_timestamps: false\n\
             \x20 static_configs: [{{targets: ['{0}']}}]\n\
             - job_name: gateway\n  honor_labels: true\n\
             \x20 static_configs: [{{targets: ['{gateway_at}']}}]\n\
             - job_name: redis\n  static_configs: [{{targets: ['{redis_at}']}}]\n\
             - job_name: files\n  file_sd_configs: [{{files: ['targets.json']}}]\n\
             - job_name: bad\n  static_configs: [{{targets: ['{dead}', '{1}']}}]\n{more}",
            app.address, broken.address
        );
        replace(&folder.join("prometheus.yml"), &text);
    };
    config(&format!("- job_name: removed\n  static_configs: [{{targets: ['{}']}}]\n", app.address));
    let mut command = Command::new(prometheus);
    command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus-data").display()));
    command.arg(format!("--web.listen-address={prometheus_at}"));
    let theirs = Process::start("prometheus", folder, &mut command);
    wait_until_ready(prometheus_at, "/-/ready");
    let ours = start(folder, firn_at);

    let compare = |stage: &str| {
        wait_for_equal(&format!("targets {stage}"), || (targets(prometheus_at), targets(firn_at)));
        // Values that are the same at every scrape, and the absence of stale series.
        for query in [
            "up",
            "requests_total",
            "noise",
            "d",
            "scrape_samples_scraped{job!~\"node|gateway|redis\"}",
            "scrape_samples_post_metric_relabeling{job!~\"node|gateway|redis\"}",
            "{job=\"batch\"}",
            "redis_up",
            "pushgateway_build_info",
            "{job=\"bad\",__name__!~\"scrape_.*\"}",
            "{job=\"app\",__name__!~\"scrape_.*\"}",
            "{job=\"honest\",__name__!~\"scrape_.*\"}",
            "{job=\"x\"}",
        ] {
            let both = || {
                let mut both = (results(prometheus_at, query), results(firn_at, query));
                // Prometheus 2 marks no series of a removed job as stale, Prometheus 3 does.
                let is_compared =
                    |one: &String| stage != AFTER_RELOAD || !one.contains("\"job\": \"removed\"");
                both.0.retain(is_compared);
                both.1.retain(is_compared);
                both
            };
            wait_until_equal(&format!("{query} {stage}"), true, both);
        }
        wait_for_equal(&format!("series {stage}"), || (series(prometheus_at), series(firn_at)));
    };
    wait_for("the first scrapes", Duration::from_secs(60), || {
        let up = |address| results(address, "sum(up)");
        up(prometheus_at) == up(firn_at) && up(firn_at).iter().any(|sum| sum.ends_with(" 7"))
    });
    assert!(series(firn_at).len() > 500, "a node exporter has more series");
    compare("at the start");

    // A series leaves, a target dies, another appears by the file.
    app.set_body("requests_total{code=\"200\",job=\"x\"} 10\nnoise{a=\"1\"} 1\n");
    let added = Target::start("d 2\nnew{le=\"5\"} 1\n");
    let gone = dying.address;
    drop(dying);
    list(&[gone, added.address]);
    wait_for("the new target and the end of a series", Duration::from_secs(60), || {
        [firn_at, prometheus_at].into_iter().all(|address| {
            results(address, "d").len() == 1
                && results(address, "requests_total{code=\"500\"}").is_empty()
        })
    });
    compare("after a death");
    list(&[added.address]);
    wait_for("the end of the dead target", Duration::from_secs(60), || {
        let is_gone =
            |address| !results(address, "up").iter().any(|up| up.contains(&gone.to_string()));
        is_gone(firn_at) && is_gone(prometheus_at)
    });
    compare("after its removal");

    // A reload without one job.
    config("");
    theirs.hang_up();
    ours.hang_up();
    wait_for_results(firn_at, "{job=\"removed\"}", &[]);
    compare(AFTER_RELOAD);
    let pools = |address| {
        let answer = get(address, "/api/v1/targets").expect("targets");
        let data: Value = serde_json::from_str(&answer.body).expect("json");
        data["data"]["droppedTargets"][0]["discoveredLabels"]["__address__"].clone()
    };
    assert_eq!(pools(firn_at), pools(prometheus_at));
}
