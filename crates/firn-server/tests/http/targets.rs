//! Targets, metadata, rules and alerts.

use serde_json::Value;

use crate::client::{api, api_error, get, send, url};
use crate::write_request::Message;
use crate::{Running, wait_for};

/// A server that has scraped itself.
fn scraped() -> (Running, Value) {
    let server = Running::start(&["--self-scrape=1h"]);
    let data = wait_for(|| {
        let data = api(server.at(), "targets", &[]);
        let is_scraped = data["activeTargets"][0]["health"] != "unknown";
        if is_scraped { Ok(data) } else { Err(data.to_string()) }
    });
    (server, data)
}

#[test]
fn the_server_is_its_own_target() {
    let (server, data) = scraped();
    let address = server.at().to_string();
    let target = &data["activeTargets"][0];
    assert_eq!(data["activeTargets"].as_array().map(Vec::len), Some(1));
    assert_eq!(data["droppedTargets"].to_string(), "[]");
    assert_eq!(data["droppedTargetCounts"].to_string(), r#"{"firndb-self":0}"#);
    assert_eq!(
        target["discoveredLabels"],
        serde_json::json!({
            "__address__": address,
            "__metrics_path__": "/metrics",
            "__scheme__": "http",
            "__scrape_interval__": "1h",
            "__scrape_timeout__": "10s",
            "job": "firndb-self",
        })
    );
    assert_eq!(target["labels"], serde_json::json!({ "instance": address, "job": "firndb-self" }));
    let text = |name: &str| target[name].as_str().unwrap_or("no text").to_owned();
    assert_eq!((text("scrapePool"), text("health")), ("firndb-self".to_owned(), "up".to_owned()));
    assert_eq!(text("scrapeUrl"), format!("http://{address}/metrics"));
    let port = format!(":{}/metrics", server.at().port());
    assert!(text("globalUrl").starts_with("http://") && text("globalUrl").ends_with(&port));
    assert_eq!(text("lastError"), "");
    assert_eq!((text("scrapeInterval"), text("scrapeTimeout")), ("1h".into(), "10s".into()));
    assert!(target["lastScrapeDuration"].as_f64().is_some_and(|seconds| seconds > 0.0), "{target}");

    // `lastScrape` is the time of the samples, and the target's address is the scraped one.
    let time = text("lastScrape");
    let up = api(server.at(), "query", &[("query", "timestamp(up)"), ("time", &time)]);
    let at_scrape = api(server.at(), "query", &[("query", "time()"), ("time", &time)]);
    assert_eq!(up["result"][0]["value"][1], at_scrape["result"][1], "{up} {at_scrape}");
    assert_eq!(up["result"][0]["metric"], target["labels"]);
    assert!(get(server.at(), "/metrics").text().contains("firn_build_info"));
}

#[test]
fn targets_are_filtered_by_state_and_pool() {
    let (server, _) = scraped();
    let f = |params: &[(&str, &str)], want: (usize, &str)| {
        let data = api(server.at(), "targets", params);
        let active = data["activeTargets"].as_array().expect("a list").len();
        assert_eq!((active, data["droppedTargetCounts"].to_string().as_str()), want, "{params:?}");
        assert_eq!(data["droppedTargets"].to_string(), "[]");
    };
    f(&[("state", "any")], (1, r#"{"firndb-self":0}"#));
    f(&[("state", "active")], (1, "null"));
    f(&[("state", "Active")], (1, "null"));
    f(&[("state", "dropped")], (0, r#"{"firndb-self":0}"#));
    f(&[("state", "other")], (0, "null"));
    f(&[("scrapePool", "firndb-self")], (1, r#"{"firndb-self":0}"#));
    f(&[("scrapePool", "other")], (0, r#"{"firndb-self":0}"#));
    assert_eq!(
        api(server.at(), "scrape_pools", &[]).to_string(),
        r#"{"scrapePools":["firndb-self"]}"#
    );

    // Without scraping: present and empty, not 404.
    let server = Running::start(&[]);
    let none = r#"{"activeTargets":[],"droppedTargetCounts":{},"droppedTargets":[]}"#;
    assert_eq!(api(server.at(), "targets", &[]).to_string(), none);
    assert_eq!(api(server.at(), "targets/metadata", &[]).to_string(), "[]");
    assert_eq!(api(server.at(), "scrape_pools", &[]).to_string(), r#"{"scrapePools":[]}"#);
    let none = r#"{"activeAlertmanagers":[],"droppedAlertmanagers":[]}"#;
    assert_eq!(api(server.at(), "alertmanagers", &[]).to_string(), none);
}

#[test]
fn a_targets_metadata_is_that_of_its_scrape() {
    let (server, _) = scraped();
    let address = server.at().to_string();
    let f = |params: &[(&str, &str)]| {
        let data = api(server.at(), "targets/metadata", params);
        data.as_array().expect("a list").clone()
    };
    let one = f(&[("metric", "firn_flushes_total")]);
    let want = serde_json::json!([{
        "target": { "instance": address, "job": "firndb-self" },
        "type": "counter",
        "help": "Flushes of the head to tables.",
        "unit": "",
    }]);
    assert_eq!(Value::Array(one), want);
    let all = f(&[]);
    assert!(all.len() > 50 && all.iter().all(|entry| entry["target"]["job"] == "firndb-self"));
    assert!(all.iter().any(|entry| entry["metric"] == "up"));
    let selector = format!("{{job=\"firndb-self\",instance=~\"{address}|x\",zone=\"\"}}");
    assert_eq!(f(&[("match_target", &selector)]).len(), all.len());
    assert_eq!(f(&[("match_target", "{job=\"other\"}")]).len(), 0);
    assert_eq!(f(&[("match_target", "{zone=\"a\"}")]).len(), 0);
    assert_eq!(f(&[("metric", "nothing")]).len(), 0);
    assert_eq!(f(&[("limit", "0")]).len(), 0);
    assert_eq!(f(&[("limit", "1")]).len(), all.len(), "the limit is one of targets");
    let error = |params: &[(&str, &str)]| api_error(server.at(), "targets/metadata", params).2;
    assert_eq!(error(&[("limit", "x")]), "limit must be a number");
    let broken = error(&[("match_target", "x{")]);
    assert!(broken.starts_with("invalid parameter \"match_target\": 1:3: parse error"), "{broken}");
}

#[test]
fn metadata_is_the_latest_of_any_sender() {
    let (server, _) = scraped();
    // Field 3 of a write request: type, family, help, unit.
    let told = |kind: u64, name: &str, help: &str, unit: &str| {
        Message::default().varint(1, kind).bytes(2, name).bytes(4, help).bytes(5, unit).0
    };
    let request = Message::default()
        .bytes(3, told(1, "a_seconds_total", "How \"long\".", "seconds"))
        .bytes(3, told(0, "b", "", ""));
    assert_eq!(request.send(server.at()).status, 204);
    let f = |params: &[(&str, &str)]| api(server.at(), "metadata", params);
    assert_eq!(
        f(&[("metric", "a_seconds_total")]).to_string(),
        r#"{"a_seconds_total":[{"help":"How \"long\".","type":"counter","unit":"seconds"}]}"#
    );
    assert_eq!(
        f(&[("metric", "b")]).to_string(),
        r#"{"b":[{"help":"","type":"unknown","unit":""}]}"#
    );
    assert_eq!(f(&[("metric", "c")]).to_string(), "{}");
    let all = f(&[]);
    assert_eq!(all["up"][0]["type"], "gauge", "metadata of the scrape is included");
    let count = |params: &[(&str, &str)]| f(params).as_object().expect("an object").len();
    assert_eq!(count(&[("limit", "1")]), 1);
    assert_eq!(count(&[("limit", "0")]), 0);
    assert_eq!(count(&[("limit", "-1")]), count(&[]));
    assert_eq!(f(&[("limit_per_metric", "1")]), f(&[]));
    for name in ["limit", "limit_per_metric"] {
        let (status, kind, text) = api_error(server.at(), "metadata", &[(name, "x")]);
        assert_eq!((status, kind.as_str()), (400, "bad_data"));
        assert_eq!(text, format!("{name} must be a number"));
    }
    assert_eq!(send(server.at(), "POST", "/api/v1/metadata", &[], b"").status, 405);
}

#[test]
fn rules_and_alerts_are_empty_and_their_parameters_are_checked() {
    let server = Running::start(&[]);
    let empty = r#"{"groups":[]}"#;
    assert_eq!(api(server.at(), "alerts", &[]).to_string(), r#"{"alerts":[]}"#);
    for params in [
        &[][..],
        &[("type", "alert")],
        &[("type", "record")],
        &[("type", "")],
        &[("rule_name[]", "a"), ("rule_name[]", "b"), ("rule_group[]", "g"), ("file[]", "/f.yaml")],
        &[("match[]", "{severity='page'}"), ("match[]", "{team=~'a|b'}")],
        &[("exclude_alerts", "true")],
        &[("exclude_alerts", "0")],
        &[("group_limit", "1")],
    ] {
        assert_eq!(api(server.at(), "rules", params).to_string(), empty, "{params:?}");
    }
    let f = |params: &[(&str, &str)], want: &str| {
        let (status, kind, text) = api_error(server.at(), "rules", params);
        assert_eq!((status, kind.as_str()), (400, "bad_data"));
        assert!(text.starts_with(want), "{params:?}: {text}");
    };
    f(&[("type", "x")], r#"invalid parameter "type": not supported value "x""#);
    f(&[("match[]", "{")], "1:2: parse error");
    f(&[("match[]", "{a=''}")], "match[] must contain");
    f(&[("exclude_alerts", "maybe")], r#"invalid parameter "exclude_alerts""#);
    f(
        &[("group_limit", "0")],
        r#"invalid parameter "group_limit": group_limit needs to be greater"#,
    );
    f(&[("group_limit", "-3")], r#"invalid parameter "group_limit""#);
    f(&[("group_limit", "x")], r#"invalid parameter "group_limit""#);
    f(&[("group_next_token", "abc")], r#"invalid parameter "group_next_token": group_limit needs"#);
    let token = [("group_limit", "1"), ("group_next_token", "abc")];
    f(&token, r#"invalid parameter "group_next_token": invalid group_next_token"#);
    let packed =
        send(server.at(), "GET", &url("/api/v1/rules", &[]), &[("Accept-Encoding", "gzip")], b"");
    assert_eq!(packed.json()["data"].to_string(), empty);
}
