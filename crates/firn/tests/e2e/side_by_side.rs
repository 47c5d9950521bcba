//! A real Prometheus and FirnDB with one `prometheus.yml`: rules, alerts and a real Alertmanager,
//! over a target that dies, a reload and a kill of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::alert_restarts::Gate;
use crate::alerts::{WAIT_MAX, received, start_alertmanager, wait_for_received};
use crate::http::get;
use crate::process::{
    Process, firn, free_address, installed, start_node_exporter, wait_for, wait_until_ready,
};
use crate::scraping::{Target, replace, results, wait_for_equal};

/// Both servers.
struct Pair {
    theirs: SocketAddr,
    ours: SocketAddr,
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

/// Results of rules, states of alerts and the alerts that an Alertmanager received, by sender.
#[test]
fn prometheus_and_firn_send_the_same_alerts_with_one_file() {
    let (Some(prometheus), Some(node_exporter), Some(alertmanager)) = (
        installed("prometheus"),
        installed("prometheus-node-exporter"),
        installed("prometheus-alertmanager"),
    ) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (node_at, manager_at) = (free_address(), free_address());
    let pair = Pair { theirs: free_address(), ours: free_address() };
    let _node = start_node_exporter(&node_exporter, folder, node_at);
    let _manager = start_alertmanager(&alertmanager, folder, manager_at);
    let gate = Gate::open(manager_at);
    let app = Target::start("requests_total{code=\"200\"} 10\nrequests_total{code=\"500\"} 4\n");
    let dying = Target::start("d 1\n");
    let config = format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms, \
         external_labels: {{dc: eu}}}}\n\
         rule_files: [rules.yml]\n\
         alerting:\n  alert_relabel_configs: [{{action: labeldrop, regex: replica}}]\n\
         \x20 alertmanagers: [{{static_configs: [{{targets: ['{}']}}]}}]\n\
         scrape_configs:\n\
         - {{job_name: node, static_configs: [{{targets: ['{node_at}']}}]}}\n\
         - {{job_name: app, static_configs: [{{targets: ['{}']}}]}}\n\
         - {{job_name: dying, static_configs: [{{targets: ['{}']}}]}}\n",
        gate.address, app.address, dying.address
    );
    fs::write(folder.join("prometheus.yml"), config).expect("a file");
    fs::write(folder.join("rules.yml"), RULES).expect("a file");
    let mut theirs = start_theirs(&prometheus, folder, pair.theirs);
    let mut ours = start_ours(folder, pair.ours);

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
        for query in ["{__name__=~\"job:.*\"}", "ALERTS"] {
            let both = || (results(pair.theirs, query), results(pair.ours, query));
            wait_for_equal(&format!("{query} {stage}"), both);
        }
        wait_for_equal(&format!("rules {stage}"), || (rules(pair.theirs), rules(pair.ours)));
        wait_for_equal(&format!("sent alerts {stage}"), || both_sent().into());
    };
    let compare = |stage: &str, name: &str, is_resolved: bool| {
        compare_after(0, stage, name, is_resolved);
    };
    compare("at the start", "Errors", false);
    let dead = dying.address;
    drop(dying);
    compare("after a death", "Down", false);
    assert_eq!(wait_for_received(manager_at, "Down").len(), 1, "both send the same labels");

    // A reload: an alert ends because its rule changes, and another one is new.
    let changed = RULES.replace("> 0.2", "> 0.9") + "  - {alert: Always, expr: 'vector(1)'}\n";
    replace(&folder.join("rules.yml"), &changed);
    theirs.hang_up();
    ours.hang_up();
    compare("after a reload", "Always", false);
    compare("after a reload", "Errors", true);

    // A kill of both while an alert fires; then its target returns.
    theirs.kill();
    ours.kill();
    let _theirs = start_theirs(&prometheus, folder, pair.theirs);
    let mut ours = start_ours(folder, pair.ours);
    // The third evaluation is the first one that writes the states of alerts again.
    wait_for("some evaluations", WAIT_MAX, || evaluations(&pair).is_some_and(|least| least > 4.0));
    compare_after(gate.all().len(), "after a kill", "Down", false);
    let _back = Target::start_at(dead, "d 2\n");
    compare("after a return", "Down", true);
    wait_for("its end", WAIT_MAX, || received(manager_at, "Down").is_empty());
    assert_eq!(wait_for_received(manager_at, "Always").len(), 1);
    assert_eq!(ours.terminate(), Some(0), "{}", ours.output());
}
