//! Rules, alerts and Alertmanagers over HTTP.

use std::fs;

use serde_json::{Value, json};

use crate::client::{api, api_error, get, import, send};
use crate::{Running, start_in, wait_for, wait_until, wait_until_ready};
use tempfile::TempDir;

const CONFIG: &str = "global: {evaluation_interval: 100ms, external_labels: {dc: eu}}\n\
    rule_files: ['rules/*.yml']\n\
    alerting: {alertmanagers: [{static_configs: [{targets: ['127.0.0.1:1', gone]}], \
    relabel_configs: [{action: drop, source_labels: [__address__], regex: gone}]}]}\n";

const RULES: &str = "groups:\n\
    - name: one\n  limit: 10\n  rules:\n\
    \x20 - {record: 'x:sum', expr: 'sum(x)', labels: {team: a}}\n\
    \x20 - {alert: High, expr: 'x > 1', annotations: {summary: 'is {{ $value }}'}, \
    labels: {severity: page}}\n\
    - name: two\n  interval: 1y\n  rules:\n\
    \x20 - {alert: Never, expr: 'x > 100', for: 90s, keep_firing_for: 1m, labels: {of: '{{ $labels.x }}'}}\n";

/// A server with a configuration in its folder.
fn start(rules: &[(&str, &str)]) -> Running {
    let folder = TempDir::new().expect("a folder");
    fs::create_dir(folder.path().join("rules")).expect("a folder");
    fs::write(folder.path().join("prometheus.yml"), CONFIG).expect("a file");
    write(&folder, rules);
    let config = format!("--prometheus-config={}", folder.path().join("prometheus.yml").display());
    let args = [config.as_str(), "--enable-lifecycle", "--external-url=http://firn.example/p/"];
    let mut server = start_in(&folder, &args);
    wait_until_ready(&mut server);
    Running { server: Some(server), folder }
}

fn write(folder: &TempDir, rules: &[(&str, &str)]) {
    for (name, text) in rules {
        fs::write(folder.path().join("rules").join(name), text).expect("a file");
    }
}

fn names(rules: &Value) -> Vec<String> {
    let groups = rules["groups"].as_array().expect("a list");
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().expect("a list"));
    rules.map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn rules_are_evaluated_and_listed() {
    let server = start(&[("a.yml", RULES)]);
    import(server.at(), "x{job=\"a\"} 3\nx{job=\"b\"} 1\n");
    let group = |idx: usize| api(server.at(), "rules", &[])["groups"][idx].clone();
    wait_until("an alert", || {
        group(0)["rules"][1]["alerts"].as_array().is_some_and(|a| !a.is_empty())
    });
    let (first, second) = (group(0), group(1));
    let file = server.folder.path().join("rules/a.yml").display().to_string();
    for (key, want) in [
        ("name", json!("one")),
        ("file", json!(file)),
        ("interval", json!(0.1)),
        ("limit", json!(10)),
    ] {
        assert_eq!(first[key], want, "{first}");
    }
    assert!(first["evaluationTime"].is_f64() && first["lastEvaluation"] != "0001-01-01T00:00:00Z");
    let record = &first["rules"][0];
    for (key, want) in [
        ("name", json!("x:sum")),
        ("query", json!("sum(x)")),
        ("labels", json!({ "team": "a" })),
        ("health", json!("ok")),
        ("type", json!("recording")),
        ("state", Value::Null),
    ] {
        assert_eq!(record[key], want, "{record}");
    }
    let rule = &first["rules"][1];
    for (key, want) in [
        ("state", json!("firing")),
        ("name", json!("High")),
        ("query", json!("x > 1")),
        ("duration", json!(0)),
        ("keepFiringFor", json!(0)),
        ("labels", json!({ "severity": "page" })),
        ("annotations", json!({ "summary": "is {{ $value }}" })),
        ("type", json!("alerting")),
    ] {
        assert_eq!(rule[key], want, "{rule}");
    }
    let alert = &rule["alerts"][0];
    assert_eq!(
        alert["labels"],
        json!({ "alertname": "High", "job": "a", "severity": "page" }),
        "{alert}"
    );
    assert_eq!(alert["annotations"], json!({ "summary": "is 3" }));
    assert_eq!((&alert["state"], &alert["value"]), (&json!("firing"), &json!("3e+00")));
    assert!(alert["activeAt"].as_str().is_some_and(|time| time.ends_with('Z')), "{alert}");
    assert_eq!(api(server.at(), "alerts", &[])["alerts"][0]["labels"], alert["labels"]);
    // Not evaluated yet.
    let never = &second["rules"][0];
    for (key, want) in [
        ("state", json!("unknown")),
        ("health", json!("unknown")),
        ("duration", json!(90)),
        ("keepFiringFor", json!(60)),
        ("alerts", json!([])),
        ("lastEvaluation", json!("0001-01-01T00:00:00Z")),
    ] {
        assert_eq!(never[key], want, "{never}");
    }
    wait_until("results", || {
        let result = api(server.at(), "query", &[("query", "x:sum")])["result"].clone();
        result[0]["value"][1] == "4" && result[0]["metric"]["team"] == "a"
    });
    wait_until("ALERTS", || {
        let query = [("query", "ALERTS{alertname=\"High\",alertstate=\"firing\",job=\"a\"}")];
        api(server.at(), "query", &query)["result"][0]["value"][1] == "1"
    });
}

#[test]
fn rules_are_selected_and_paged() {
    let server = start(&[
        ("a.yml", RULES),
        ("b.yml", "groups: [{name: three, rules: [{record: r, expr: '1'}]}, {name: empty}]"),
    ]);
    let f = |params: &[(&str, &str)]| names(&api(server.at(), "rules", params));
    assert_eq!(f(&[]), ["x:sum", "High", "Never", "r"]);
    assert_eq!(f(&[("type", "alert")]), ["High", "Never"]);
    assert_eq!(f(&[("type", "record")]), ["x:sum", "r"]);
    assert_eq!(f(&[("rule_name[]", "r"), ("rule_name[]", "Never")]), ["Never", "r"]);
    assert_eq!(f(&[("rule_group[]", "two"), ("rule_group[]", "three")]), ["Never", "r"]);
    let file = server.folder.path().join("rules/b.yml").display().to_string();
    assert_eq!(f(&[("file[]", &file)]), ["r"]);
    assert_eq!(f(&[("match[]", "{severity='page'}")]), ["High"]);
    assert_eq!(
        f(&[("match[]", "{severity='page'}"), ("match[]", "{team='a'}")]),
        ["x:sum", "High"]
    );
    // A template counts as it is written.
    assert_eq!(f(&[("match[]", "{of!=''}")]), ["Never"]);
    assert_eq!(f(&[("rule_name[]", "other")]), [""; 0]);
    let silent = api(server.at(), "rules", &[("exclude_alerts", "tRuE"), ("type", "alert")]);
    assert_eq!(silent["groups"][0]["rules"][0]["alerts"], Value::Null);
    // Pages: groups whose rules are all left out do not count.
    let page = |token: &str| {
        api(server.at(), "rules", &[("group_limit", "1"), ("group_next_token", token)])
    };
    let first = page("");
    assert_eq!(names(&first), ["x:sum", "High"]);
    let token = first["groupNextToken"].as_str().expect("a token");
    assert_eq!(token.len(), 64);
    let second = page(token);
    assert_eq!(names(&second), ["Never"]);
    let third = page(second["groupNextToken"].as_str().expect("a token"));
    assert_eq!((names(&third), &third["groupNextToken"]), (vec!["r".to_owned()], &Value::Null));
    let wrong = [("group_limit", "1"), ("group_next_token", "abc")];
    let (status, kind, text) = api_error(server.at(), "rules", &wrong);
    assert_eq!((status, kind.as_str()), (400, "bad_data"));
    assert!(text.contains("were rule groups changed?"), "{text}");
}

#[test]
fn a_reload_changes_rules_or_nothing() {
    let server = start(&[("a.yml", RULES)]);
    let reload = || send(server.at(), "POST", "/-/reload", &[], b"");
    let f = || names(&api(server.at(), "rules", &[]));
    write(&server.folder, &[("a.yml", "groups: [{name: g, rules: [{record: r, expr: 'sum('}]}]")]);
    let refused = reload();
    assert_eq!(refused.status, 500, "{}", refused.text());
    assert!(refused.text().contains("group \"g\", rule 1, \"r\": could not parse expression"));
    assert_eq!(f(), ["x:sum", "High", "Never"]);
    write(&server.folder, &[("a.yml", "groups: [{name: g, rules: [{record: r, expr: '1'}]}]")]);
    assert_eq!(reload().status, 200);
    assert_eq!(f(), ["r"]);
}

#[test]
fn alertmanagers_and_metrics_are_listed() {
    let server = start(&[("a.yml", RULES)]);
    assert_eq!(
        api(server.at(), "alertmanagers", &[]),
        json!({
            "activeAlertmanagers": [{ "url": "http://127.0.0.1:1/api/v2/alerts" }],
            "droppedAlertmanagers": [{ "url": "http://gone/api/v2/alerts" }],
        })
    );
    let file = server.folder.path().join("rules/a.yml").display().to_string();
    let metrics = || get(server.at(), "/metrics").text();
    for prefix in ["firn", "prometheus"] {
        let evaluations = format!("{prefix}_rule_evaluations_total{{rule_group=\"{file};one\"}} ");
        wait_until("an evaluation", || {
            let metrics = metrics();
            let line = metrics.lines().find_map(|line| line.strip_prefix(&evaluations));
            line.is_some_and(|count| count != "0")
        });
        let failed = format!(
            "{prefix}_notifications_dropped_total{{alertmanager=\"http://127.0.0.1:1/api/v2/alerts\"}} 0\n"
        );
        assert!(metrics().contains(&failed), "{}", metrics());
    }
    import(server.at(), "x{job=\"a\"} 3\n");
    wait_until("a failed delivery", || {
        let metrics = metrics();
        let errors = "prometheus_notifications_errors_total{alertmanager=\"http://127.0.0.1:1/api/v2/alerts\"} ";
        metrics.lines().any(|line| line.strip_prefix(errors).is_some_and(|count| count != "0"))
    });
}

/// Before, most panels of the dashboards of Prometheus were empty, and failed discoveries of
/// Alertmanagers had no metric.
#[test]
fn the_metrics_of_dashboards_and_alerts_for_prometheus_exist() {
    let folder = TempDir::new().expect("a folder");
    let config = "scrape_configs: [{job_name: j, static_configs: [{targets: ['127.0.0.1:1']}]}]\n\
        remote_write: [{name: far, url: 'http://127.0.0.1:1/w'}]\n\
        alerting: {alertmanagers: [{file_sd_configs: [{files: ['list.json']}]}]}\n";
    fs::write(folder.path().join("prometheus.yml"), config).expect("a file");
    fs::write(folder.path().join("list.json"), "no list").expect("a file");
    let path = format!("--prometheus-config={}", folder.path().join("prometheus.yml").display());
    let names = [
        "build_info{version=",
        "engine_queries ",
        "engine_queries_concurrent_max 20",
        "engine_query_duration_seconds{slice=\"inner_eval\",quantile=\"0.9\"} ",
        "engine_query_duration_seconds_count{slice=\"queue_time\"} 1\n",
        "engine_query_duration_histogram_seconds_bucket{slice=\"inner_eval\",le=\"0.1\"} ",
        "remote_storage_enqueue_retries_total{remote_name=\"far\"",
        "remote_storage_samples_in_total ",
        "sd_failed_configs{name=\"notify\",config=",
        "sd_refresh_failures_total{name=\"notify\",mechanism=\"file\"} ",
        "sd_updates_total{name=\"scrape\"} ",
        "target_scrape_pool_sync_total{scrape_job=\"j\"} ",
        "target_scrape_pool_target_limit{scrape_job=\"j\"} 0",
        "tsdb_compactions_failed_total 0",
        "tsdb_head_samples_appended_total{type=\"float\"} ",
        "tsdb_head_series ",
        "ready 1\n",
        "http_requests_total{handler=\"/api/v1/query\",code=\"200\"} 1\n",
    ];
    for (switch, is_offered) in [("true", true), ("false", false)] {
        let args = [path.as_str(), &format!("--prometheus-metric-names={switch}")];
        let mut server = start_in(&folder, &args);
        wait_until_ready(&mut server);
        let at = server.listen();
        api(at, "query", &[("query", "1")]);
        let none = format!("{}0\n", names[9]);
        wait_for(|| {
            let metrics = get(at, "/metrics").text();
            if metrics.contains(&none) {
                return Err("no refresh has failed".to_owned());
            }
            for (idx, name) in names.iter().enumerate() {
                // Those of scrapes and discoveries have no switch.
                let is_always = (8..13).contains(&idx);
                let found = metrics.contains(&format!("\nprometheus_{name}"));
                if found != (is_offered || is_always) {
                    return Err(format!("{name} is {found}: {metrics}"));
                }
            }
            Ok(())
        });
        server.stop().expect("a clean stop");
    }
}

#[test]
fn a_rule_file_with_a_mistake_refuses_the_start() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("prometheus.yml"), "rule_files: [a.yml]").expect("a file");
    fs::write(folder.path().join("a.yml"), "groups: [{name: g, rules: [{}]}]").expect("a file");
    let config = format!("--prometheus-config={}", folder.path().join("prometheus.yml").display());
    let error = crate::try_start(&folder.path().join("data"), &[&config]).expect_err("a mistake");
    assert!(error.to_string().contains("one of 'record' or 'alert' must be set"), "{error}");
}
