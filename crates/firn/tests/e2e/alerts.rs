//! Rules and alerts with a real Alertmanager: an alert fires and resolves; a killed server
//! continues its clocks; a reload changes rules.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::http::{api, get, request};
use crate::process::{Process, firn, free_address, installed, wait_for, wait_until_ready};

pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
const INTERVAL_MS: f64 = 200.0;

pub(crate) fn start_alertmanager(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let config = folder.join("alertmanager.yml");
    fs::write(&config, "route: {receiver: none}\nreceivers: [{name: none}]\n").expect("a file");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.path={}", folder.join("alertmanager-data").display()));
    command.arg(format!("--web.listen-address={address}"));
    command.arg("--cluster.listen-address=");
    let process = Process::start("alertmanager", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// The active alerts of Alertmanager, by name.
pub(crate) fn received(address: SocketAddr, name: &str) -> Vec<Value> {
    let answer = get(address, "/api/v2/alerts").expect("alerts");
    let alerts: Vec<Value> = serde_json::from_str(&answer.body).expect("a list");
    alerts.into_iter().filter(|alert| alert["labels"]["alertname"] == name).collect()
}

/// The same, once there are some.
pub(crate) fn wait_for_received(address: SocketAddr, name: &str) -> Vec<Value> {
    let mut alerts = Vec::new();
    wait_for(&format!("alerts {name}"), WAIT_MAX, || {
        alerts = received(address, name);
        !alerts.is_empty()
    });
    alerts
}

/// A server that sends a firing alert again after `resend_delay`.
pub(crate) fn start(folder: &Path, address: SocketAddr, resend_delay: &str) -> Process {
    let mut command = firn(folder, address);
    command.arg(format!("--prometheus-config={}", folder.join("prometheus.yml").display()));
    command.args(["--self-scrape", "never", "--alert-grace-period", "1s"]);
    command.args(["--alert-resend-delay", resend_delay]);
    command.args(["--external-url", "http://firn.example"]);
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

pub(crate) fn import(address: SocketAddr, text: &str) {
    let answer = request(address, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    assert_eq!(answer.expect("an answer").status, 204, "{text}");
}

fn alert(address: SocketAddr, name: &str) -> Option<Value> {
    let answer = get(address, "/api/v1/alerts")?;
    let json: Value = serde_json::from_str(&answer.body).ok()?;
    let alerts = json["data"]["alerts"].as_array()?.clone();
    alerts.into_iter().find(|alert| alert["labels"]["alertname"] == name)
}

/// The value of the first series of an instant query.
fn value(address: SocketAddr, query: &str) -> Option<f64> {
    let data = api(address, "/api/v1/query", &[("query", query)]).ok()?;
    data["result"][0]["value"][1].as_str()?.parse().ok()
}

pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let metrics = get(address, "/metrics").expect("metrics").body;
    let line = metrics.lines().find(|line| line.starts_with(name)).expect("the metric");
    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
}

const RULES: &str = "groups:\n- name: g\n  rules:\n\
    \x20 - {record: 'x:max', expr: 'max(x)'}\n\
    \x20 - {alert: Down, expr: 'x == 0', labels: {severity: page}, \
    annotations: {summary: '{{ $labels.job }} is down'}}\n\
    \x20 - {alert: Slow, expr: 'x:max < 5', for: 1h}\n";

#[test]
fn a_real_alertmanager_receives_alerts_and_a_killed_server_goes_on() {
    let Some(program) = installed("prometheus-alertmanager") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (address, manager) = (free_address(), free_address());
    let _alertmanager = start_alertmanager(&program, folder.path(), manager);
    let config = format!(
        "global: {{evaluation_interval: 200ms, external_labels: {{dc: eu}}}}\n\
         rule_files: [rules.yml]\n\
         alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{manager}']}}]}}]}}\n"
    );
    fs::write(folder.path().join("prometheus.yml"), config).expect("a file");
    fs::write(folder.path().join("rules.yml"), RULES).expect("a file");
    let mut server = start(folder.path(), address, "1s");

    // It fires.
    import(address, "x{job=\"a\"} 1\nx{job=\"b\"} 0\n");
    let mut alerts = wait_for_received(manager, "Down");
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    let down = alerts.remove(0);
    for (label, want) in [("job", "b"), ("severity", "page"), ("dc", "eu")] {
        assert_eq!(down["labels"][label], want, "{down}");
    }
    assert_eq!(down["annotations"]["summary"], "b is down", "{down}");
    let link = "http://firn.example/graph?g0.expr=x+%3D%3D+0&g0.tab=1";
    assert_eq!(down["generatorURL"], link, "{down}");
    assert!(received(manager, "Slow").is_empty(), "a pending alert is not sent");

    // It resolves.
    import(address, "x{job=\"b\"} 1\n");
    wait_for("the end of the alert", WAIT_MAX, || received(manager, "Down").is_empty());

    // A kill while one alert fires and another one is pending for some seconds.
    import(address, "x{job=\"b\"} 0\n");
    assert_eq!(wait_for_received(manager, "Down").len(), 1);
    let spent = "timestamp(ALERTS_FOR_STATE{alertname=\"Slow\"}) \
                 - ALERTS_FOR_STATE{alertname=\"Slow\"}";
    wait_for("a pending alert", WAIT_MAX, || value(address, spent).is_some_and(|s| s > 4.0));
    server.kill();
    let mut server = start(folder.path(), address, "1s");
    // In this order, so that slots which are missed meanwhile do not count as evaluated.
    let evaluated = || {
        metric(address, "firn_rule_group_iterations_total{")
            - metric(address, "firn_rule_group_iterations_missed_total{")
    };
    // The third evaluation is the first one that writes the state again.
    wait_for("some evaluations", WAIT_MAX, || evaluated() >= 10.0);
    let evaluations = evaluated();
    let age = value(address, spent).expect("the state of the alert");
    // Without its state before the kill the alert would be as old as the process.
    assert!(age * 1e3 > evaluations * INTERVAL_MS + 2_000.0, "{age} s, {evaluations} evaluations");
    assert_eq!(alert(address, "Slow").expect("an alert")["state"], "pending");
    wait_for("the alert", WAIT_MAX, || alert(address, "Down").is_some());
    let down = wait_for_received(manager, "Down");
    assert_eq!(down.len(), 1, "one alert, sent before and after the kill");

    // A reload, by SIGHUP.
    let changed = RULES.replace("max(x)", "min(x)").replace("Down", "Gone");
    fs::write(folder.path().join("rules.yml"), changed).expect("a file");
    server.hang_up();
    wait_for("the new rule", WAIT_MAX, || value(address, "x:max") == Some(0.0));
    assert_eq!(wait_for_received(manager, "Gone").len(), 1);
    assert!(alert(address, "Down").is_none(), "the rule was removed");
    wait_for("its marker", WAIT_MAX, || value(address, "ALERTS{alertname=\"Down\"}").is_none());
    assert_eq!(server.terminate(), Some(0));
}
