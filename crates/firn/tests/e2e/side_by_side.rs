//! A real Prometheus and FirnDB with one `prometheus.yml`: stored samples, rules, alerts and a real
//! Alertmanager, over a target that dies, a reload and a kill of both.
//!
//! `FIRN_STAGE_SECONDS=60` makes each of the five stages that much longer (`make soak`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::alert_restarts::Gate;
use crate::alerts::{WAIT_MAX, received, start_alertmanager, wait_for_received};
use crate::http::get;
use crate::process::{
    Process, firn, free_address, installed, now_ms, start_node_exporter, start_pushgateway,
    start_redis, start_redis_exporter, wait_for, wait_until_ready,
};
use crate::scraping::{Target, replace, results, wait_for_equal};
use crate::stored_runs::{
    Stretch, Tolerance, gaps, samples, stored_series, value_runs, values_over,
};

/// Both servers.
struct Pair {
    theirs: SocketAddr,
    ours: SocketAddr,
}

impl Pair {
    fn map<T>(&self, f: impl FnMut(SocketAddr) -> T) -> [T; 2] {
        [self.theirs, self.ours].map(f)
    }
}

const EXTERNAL_URL: &str = "http://same.example";

fn start_theirs(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus-data").display()));
    command.arg(format!("--web.listen-address={address}"));
    command.arg(format!("--web.external-url={EXTERNAL_URL}"));
    command.args(["--rules.alert.resend-delay=2s", "--rules.alert.for-grace-period=1s"]);
    let process = Process::start("prometheus", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn start_ours(folder: &Path, address: SocketAddr) -> Process {
    let mut command = firn(folder, address);
    command.arg("--prometheus-config").arg(folder.join("prometheus.yml"));
    command.args(["--self-scrape", "never", "--external-url", EXTERNAL_URL]);
    command.args(["--alert-resend-delay", "2s", "--alert-grace-period", "1s"]);
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// The rules of a server with the parts that do not change at each evaluation.
fn rules(address: SocketAddr) -> BTreeSet<String> {
    let Some(answer) = get(address, "/api/v1/rules") else { return BTreeSet::new() };
    let json: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let groups = json["data"]["groups"].as_array().cloned().unwrap_or_default();
    let mut shown = BTreeSet::new();
    for group in &groups {
        for rule in group["rules"].as_array().into_iter().flatten() {
            let parts = ["name", "query", "labels", "annotations", "state", "health", "type"];
            // An empty map may be left out.
            let parts = parts.map(|part| rule[part].to_string().replace("null", "{}"));
            let alerts = rule["alerts"].as_array().cloned().unwrap_or_default();
            let alert = |alert: &Value| {
                ["labels", "annotations", "state", "value"].map(|part| alert[part].to_string())
            };
            let alerts: BTreeSet<_> = alerts.iter().map(alert).collect();
            shown.insert(format!("{} {parts:?} {alerts:?}", group["name"]));
        }
    }
    shown
}

/// The least number of evaluations of a group, of both servers.
fn evaluations(pair: &Pair) -> Option<f64> {
    let mut counts = Vec::new();
    for address in [pair.theirs, pair.ours] {
        let metrics = get(address, "/metrics")?.body;
        let start = "prometheus_rule_group_iterations_total{";
        let lines = metrics.lines().filter(|line| line.starts_with(start));
        let of_groups: Vec<f64> =
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
        counts.push(of_groups.into_iter().reduce(f64::min)?);
    }
    counts.into_iter().reduce(f64::min)
}

/// The last state of each alert that a server has sent after the first `skipped` alerts of both,
/// with its annotations and its link.
fn sent(gate: &Gate, program: &str, skipped: usize) -> BTreeSet<String> {
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let passed = gate.all().into_iter().skip(skipped);
    for passed in passed.filter(|passed| passed.sender.starts_with(program)) {
        let (alert, is_resolved) = (&passed.alert, passed.is_resolved);
        let text =
            format!("{} {} resolved: {is_resolved}", alert["annotations"], alert["generatorURL"]);
        last.insert(alert["labels"].to_string(), text);
    }
    last.into_iter().map(|(labels, text)| format!("{labels} {text}")).collect()
}

const RULES: &str = r#"groups:
- name: records
  rules:
  - {record: 'job:up:sum', expr: 'sum by (job) (up)'}
  - {record: 'job:errors:ratio', labels: {team: a},
     expr: 'sum by (job) (requests_total{code="500"}) / sum by (job) (requests_total)'}
  - {record: 'job:errors:double', expr: 'job:errors:ratio * 2'}
- name: alerts
  rules:
  - {alert: Down, expr: 'up{job="dying"} == 0', labels: {severity: page, replica: r1},
     annotations: {text: '{{ $labels.instance }} of {{ $labels.job }}, {{ $externalLabels.dc }}'}}
  - {alert: Errors, expr: 'job:errors:ratio > 0.2', for: 1s,
     annotations: {ratio: '{{ $value | humanizePercentage }}'}}
"#;

/// The configuration; after a reload, a metric has another new name.
fn config(addresses: &Addresses, new_name: &str) -> String {
    let Addresses { gate, node, gateway, redis_exporter, app, dying } = addresses;
    format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms, \
         external_labels: {{dc: eu}}}}\n\
         rule_files: [rules.yml]\n\
         alerting:\n  alert_relabel_configs: [{{action: labeldrop, regex: replica}}]\n\
         \x20 alertmanagers: [{{static_configs: [{{targets: ['{gate}']}}]}}]\n\
         scrape_configs:\n\
         - {{job_name: node, static_configs: [{{targets: ['{node}']}}]}}\n\
         - job_name: gateway\n  honor_labels: true\n\
         \x20 static_configs: [{{targets: ['{gateway}']}}]\n\
         - {{job_name: redis, static_configs: [{{targets: ['{redis_exporter}']}}]}}\n\
         - job_name: app\n  static_configs: [{{targets: ['{app}']}}]\n  relabel_configs:\n\
         \x20 - {{source_labels: [__address__, __scheme__], separator: '/', \
         target_label: from}}\n\
         \x20 - {{source_labels: [__scrape_interval__], target_label: interval}}\n\
         \x20 metric_relabel_configs:\n\
         \x20 - {{source_labels: [__name__], regex: 'secret_.*', action: drop}}\n\
         \x20 - {{source_labels: [__name__], regex: 'old_(.*)', target_label: __name__, \
         replacement: '{new_name}_$1'}}\n\
         - job_name: files\n  file_sd_configs: [{{files: ['targets.json']}}]\n\
         \x20 relabel_configs:\n\
         \x20 - {{source_labels: [__meta_filepath], regex: '.*/(.+)', target_label: file}}\n\
         - {{job_name: dying, static_configs: [{{targets: ['{dying}']}}]}}\n"
    )
}

struct Addresses {
    gate: SocketAddr,
    node: SocketAddr,
    gateway: SocketAddr,
    redis_exporter: SocketAddr,
    app: SocketAddr,
    dying: SocketAddr,
}

/// The body of the target `app`: values that change, a series of every second stage, one that ends
/// while both servers are down, one with a time of its own, one that is dropped.
fn body(stage: usize) -> String {
    let errors = if stage == 0 { 1 } else { 4 };
    let odd = ["1", "NaN", "+Inf", "-0", "1e-300"][stage];
    let mut body = format!(
        "# TYPE requests_total counter\nrequests_total{{code=\"200\"}} 10\n\
         requests_total{{code=\"500\"}} {errors}\nstage {stage}\nodd {odd}\nsecret_value 5\n\
         old_name{{a=\"b\"}} {stage}\ntimed {stage} {}\n",
        now_ms()
    );
    if stage.is_multiple_of(2) {
        body.push_str("flips{even=\"yes\"} 1\n");
    }
    if stage < KILL_STAGE {
        body.push_str("lost 1\n");
    }
    body
}

const KILL_STAGE: usize = 3;

/// Series whose values the test sets.
const OF_TARGETS: &str = "{job=~\"app|dying\",__name__!~\"(scrape_|job:|ALERTS).*\"}";
const OF_RECORDS: &str = "{__name__=~\"job:.*\"}";

/// Prometheus sends changed lists of targets to its scrapers every 5 s.
const DISCOVERY_MS_MAX: i64 = 6_000;

/// A run of both servers.
struct Run {
    pair: Pair,
    stretch: Stretch,
    /// Times in which one server may have been up while the other was down.
    outages: Vec<Stretch>,
    /// The time in which the target `dying` was dead.
    dead: Stretch,
    dying: SocketAddr,
    shift_ms_max: i64,
}

/// Compares all that was stored.
fn compare_stored(run: &Run) {
    let mut differences = Vec::new();
    let [theirs, ours] = run.pair.map(|address| stored_series(address, run.stretch));
    println!("{} and {} series", theirs.len(), ours.len());
    differences.extend(theirs.difference(&ours).map(|one| format!("only Prometheus: {one}")));
    differences.extend(ours.difference(&theirs).map(|one| format!("only FirnDB: {one}")));
    let failures = compare_scrapes(run, &mut differences);
    compare_sequences(run, failures, &mut differences);
    compare_constants(run, &mut differences);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Finds times without scrapes. Returns the times of scrapes that failed although their target was
/// alive, which happens on a busy machine.
fn compare_scrapes(run: &Run, differences: &mut Vec<String>) -> Vec<i64> {
    let mut failures = Vec::new();
    for (program, address) in [("Prometheus", run.pair.theirs), ("FirnDB", run.pair.ours)] {
        let (mut scrape_count, failed_before) = (0, failures.len());
        for (labels, samples) in samples(address, "up", run.stretch) {
            let is_dying = labels.contains(&run.dying.to_string());
            let is_failure = |sample: &&(i64, String)| {
                sample.1 == "0" && !(is_dying && run.dead.contains(sample.0))
            };
            failures.extend(samples.iter().filter(is_failure).map(|(ts, _)| *ts));
            scrape_count += samples.len();
            let gaps = gaps(&samples, run.shift_ms_max, &run.outages);
            if !is_of_file(&labels) && !gaps.is_empty() {
                differences.push(format!("{program} has no scrapes of {labels} in {gaps:?}"));
            }
        }
        let failed_count = failures.len() - failed_before;
        println!("{program}: {scrape_count} scrapes, {failed_count} failed");
        if failed_count * 20 > scrape_count {
            differences.push(format!("{program}: more than 5% of the scrapes failed"));
        }
    }
    failures
}

/// Whether these are labels of the target that leaves its file for some time.
fn is_of_file(labels: &str) -> bool {
    labels.contains("\"job\": \"files\"")
}

/// Values, gaps and the times of changes.
fn compare_sequences(run: &Run, failures: Vec<i64>, differences: &mut Vec<String>) {
    let (shift_ms_max, outages) = (run.shift_ms_max, run.outages.clone());
    let tolerance = Tolerance { shift_ms_max, outages, failures };
    let shift_ms_max = shift_ms_max + DISCOVERY_MS_MAX;
    let tolerance_of_files = Tolerance { shift_ms_max, ..tolerance.clone() };
    for query in [
        "up",
        // Durations differ by nature.
        "{job=~\"app|files|dying\",__name__!~\"up|scrape_duration_seconds|job:.*|ALERTS.*\"}",
        "{job=\"batch\"}",
        OF_RECORDS,
        "ALERTS",
        // Its values are times of evaluations.
        "ALERTS_FOR_STATE * 0",
    ] {
        let [theirs, ours] = run.pair.map(|address| value_runs(address, query, run.stretch));
        let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        let (mut shift_ms, mut run_count) = (0, 0);
        for key in &keys {
            let of = |runs: &BTreeMap<_, Vec<_>>| runs.get(*key).cloned().unwrap_or_default();
            let (theirs, ours) = (of(&theirs), of(&ours));
            let tolerance = if is_of_file(key) { &tolerance_of_files } else { &tolerance };
            match tolerance.compare(&theirs, &ours) {
                Ok(_) if is_of_file(key) => {}
                Ok(shift) => shift_ms = shift_ms.max(shift),
                Err(e) => differences.push(format!("{key}: {e}")),
            }
            run_count += ours.len();
        }
        println!("{query}: {} series, {run_count} runs, shift {shift_ms} ms", keys.len());
        assert!(!keys.is_empty(), "{query} selects nothing");
    }
}

/// Values of exporters that were the same at each scrape of both.
fn compare_constants(run: &Run, differences: &mut Vec<String>) {
    let named = "label_replace({job=~\"node|gateway|redis|batch\"}, \
                 \"name\", \"$1\", \"__name__\", \"(.+)\")[$range:500ms]";
    let constant = format!("max_over_time({named}) == min_over_time({named})");
    let [theirs, ours] = run.pair.map(|address| values_over(address, &constant, run.stretch));
    let mut both_count = 0;
    for (labels, value) in &theirs {
        let Some(our_value) = ours.get(labels) else { continue };
        both_count += 1;
        if value != our_value {
            differences.push(format!("{labels} is {value} in Prometheus, {our_value} in FirnDB"));
        }
    }
    println!("{both_count} constants ({} and {})", theirs.len(), ours.len());
    assert!(both_count > 200, "a node exporter has more constants");
}

/// Stored samples, results of rules, states of alerts, and the alerts that an Alertmanager
/// received, by sender.
#[test]
fn prometheus_and_firn_store_and_send_the_same_with_one_file() {
    let (
        Some(prometheus),
        Some(node_exporter),
        Some(pushgateway),
        Some(redis_exporter),
        Some(alertmanager),
    ) = (
        installed("prometheus"),
        installed("prometheus-node-exporter"),
        installed("prometheus-pushgateway"),
        installed("prometheus-redis-exporter"),
        installed("prometheus-alertmanager"),
    )
    else {
        return;
    };
    let stage_seconds: Option<u64> =
        std::env::var("FIRN_STAGE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    // Other tests of `make test` share the machine. A long run is alone.
    let shift_ms_max = if stage_seconds.is_some() { 2_000 } else { 5_000 };
    let end_stage = || {
        let end = Instant::now() + Duration::from_secs(stage_seconds.unwrap_or(0));
        while Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(100));
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (node_at, manager_at, redis_at) = (free_address(), free_address(), free_address());
    let (gateway_at, redis_exporter_at) = (free_address(), free_address());
    let pair = Pair { theirs: free_address(), ours: free_address() };
    let _node = start_node_exporter(&node_exporter, folder, node_at);
    let _gateway = start_pushgateway(&pushgateway, folder, gateway_at);
    let _redis = start_redis(folder, redis_at);
    let _redis_exporter =
        start_redis_exporter(&redis_exporter, folder, redis_exporter_at, redis_at);
    let _manager = start_alertmanager(&alertmanager, folder, manager_at);
    let gate = Gate::open(manager_at);
    let (app, leaving) = (Target::start(&body(0)), Target::start("l 1\n"));
    let dying = Target::start("d 1\n");
    let dead = dying.address;
    let addresses = Addresses {
        gate: gate.address,
        node: node_at,
        gateway: gateway_at,
        redis_exporter: redis_exporter_at,
        app: app.address,
        dying: dead,
    };
    let listed = format!("[{{\"targets\": [\"{}\"]}}]", leaving.address);
    replace(&folder.join("targets.json"), &listed);
    fs::write(folder.join("prometheus.yml"), config(&addresses, "fresh")).expect("a file");
    fs::write(folder.join("rules.yml"), RULES).expect("a file");
    let begun_ms = now_ms();
    let mut theirs = start_theirs(&prometheus, folder, pair.theirs);
    let mut ours = start_ours(folder, pair.ours);

    // Waits until both have scraped the values of a stage, and another time after new series.
    let wait_for_stage = |stage: usize| {
        let query = format!("stage == {stage} and on (job) scrape_series_added == 0");
        wait_for("the values of a stage", WAIT_MAX, || {
            pair.map(|address| results(address, &query)).iter().all(|found| !found.is_empty())
        });
    };
    // Waits until the results of queries and the states of rules are equal.
    let compare_shown = |stage: &str, queries: &[&str]| {
        for query in queries {
            let both = || (results(pair.theirs, query), results(pair.ours, query));
            wait_for_equal(&format!("{query} {stage}"), both);
        }
        wait_for_equal(&format!("rules {stage}"), || (rules(pair.theirs), rules(pair.ours)));
    };
    // Waits until both have sent an alert in a state, and until all that they show is equal.
    let compare_after = |skipped: usize, stage: &str, name: &str, is_resolved: bool| {
        // Only one of them may have seen a slow scrape, and resolved its alert: resolved alerts
        // are compared where both have sent each of them.
        let is_compared = |alert: &String| is_resolved || alert.ends_with("resolved: false");
        let both_sent = || {
            ["prometheus/", "firndb/"].map(|program| {
                let sent = sent(&gate, program, skipped);
                sent.into_iter().filter(is_compared).collect::<BTreeSet<String>>()
            })
        };
        let state = format!("resolved: {is_resolved}");
        let is_sent = |sent: &BTreeSet<String>| {
            sent.iter().any(|alert| alert.contains(name) && alert.ends_with(&state))
        };
        wait_for(&format!("{name} {stage}"), WAIT_MAX, || both_sent().iter().all(is_sent));
        compare_shown(stage, &[OF_TARGETS, OF_RECORDS, "ALERTS"]);
        wait_for_equal(&format!("sent alerts {stage}"), || both_sent().into());
    };
    let compare = |stage: &str, name: &str, is_resolved: bool| {
        compare_after(0, stage, name, is_resolved);
    };
    let has_file = |address| !results(address, "up{job=\"files\"}").is_empty();
    wait_for_stage(0);
    wait_for("a target of a file", WAIT_MAX, || has_file(pair.theirs) && has_file(pair.ours));
    compare_shown("at the start", &[OF_TARGETS, OF_RECORDS]);
    let start = Stretch { start_ms: begun_ms, end_ms: now_ms() };
    end_stage();

    // A target dies, another one leaves its file.
    replace(&folder.join("targets.json"), "[]");
    let died_ms = now_ms();
    app.set_body(&body(1));
    drop(dying);
    compare("after a death", "Down", false);
    compare("after a death", "Errors", false);
    assert_eq!(wait_for_received(manager_at, "Down").len(), 1, "both send the same labels");
    wait_for_stage(1);
    end_stage();

    // A reload: an alert ends because its rule changes, another one is new, a metric is renamed.
    let changed = RULES.replace("> 0.2", "> 0.9") + "  - {alert: Always, expr: 'vector(1)'}\n";
    replace(&folder.join("rules.yml"), &changed);
    replace(&folder.join("prometheus.yml"), &config(&addresses, "changed"));
    theirs.hang_up();
    ours.hang_up();
    // A server that reloads later would store the next value with the previous name.
    wait_for("the new name", WAIT_MAX, || {
        pair.map(|address| results(address, "changed_name")).iter().all(|found| !found.is_empty())
    });
    app.set_body(&body(2));
    compare("after a reload", "Always", false);
    compare("after a reload", "Errors", true);
    wait_for_stage(2);
    wait_for("the end of a target", WAIT_MAX, || !has_file(pair.theirs) && !has_file(pair.ours));
    end_stage();

    // A kill of both while an alert fires; then its target returns.
    let killed_ms = now_ms();
    theirs.kill();
    ours.kill();
    app.set_body(&body(KILL_STAGE));
    replace(&folder.join("targets.json"), &listed);
    let _theirs = start_theirs(&prometheus, folder, pair.theirs);
    let mut ours = start_ours(folder, pair.ours);
    // The third evaluation is the first one that writes the states of alerts again.
    wait_for("some evaluations", WAIT_MAX, || evaluations(&pair).is_some_and(|least| least > 4.0));
    let evaluated = gate.all().len();
    wait_for_stage(KILL_STAGE);
    wait_for("a target of a file", WAIT_MAX, || has_file(pair.theirs) && has_file(pair.ours));
    let kill = Stretch { start_ms: killed_ms, end_ms: now_ms() };
    compare_after(evaluated, "after a kill", "Down", false);
    end_stage();

    let _back = Target::start_at(dead, "d 2\n");
    app.set_body(&body(4));
    wait_for_stage(4);
    compare("after a return", "Down", true);
    let returned_ms = now_ms();
    wait_for("its end", WAIT_MAX, || received(manager_at, "Down").is_empty());
    assert_eq!(wait_for_received(manager_at, "Always").len(), 1);
    // The last changes: the result of a rule, and another scrape after the return of a series.
    let back = "job:up:sum{job=\"dying\"} == 1 and on (job) scrape_series_added == 0";
    wait_for("the end of changes", WAIT_MAX, || {
        pair.map(|address| results(address, back)).iter().all(|found| !found.is_empty())
    });
    end_stage();

    compare_stored(&Run {
        stretch: Stretch { start_ms: begun_ms, end_ms: now_ms() },
        outages: vec![start, kill],
        dead: Stretch { start_ms: died_ms, end_ms: returned_ms },
        dying: dead,
        shift_ms_max,
        pair,
    });
    assert_eq!(ours.terminate(), Some(0), "{}", ours.output());
}
