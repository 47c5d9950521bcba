//! Tests of servers that repeat a request in their answers: no error shows a credential of it.

use std::time::Duration;

use firn_model::Budget;

use super::DiscoveryTasks;
use super::redirects::start;
use super::test_server::{Reply, TestServer, json, status};
use super::tests::failures;

const SECRET: &str = "sekret-token-1";
/// An answer that no discovery can read; serde quotes the text.
const QUOTED: &str = "\"got sekret-token-1\"";
const LISTED: &str = r#"{"metadata": {"resourceVersion": "1"}, "items": []}"#;

/// Without the mend the log had the token: errors quote the text that is no list, no object or an
/// error of a watch.
#[tokio::test]
async fn no_error_of_a_discovery_shows_a_credential_of_its_request() {
    const AUTH: &str = "authorization: {credentials: sekret-token-1}";
    let watch = |line: &str| format!("{line}\n");
    let kubernetes = format!("kubernetes_sd_configs: [{{role: pod, api_server: 'URL', {AUTH}}}]");
    let item = format!("[{{\"targets\": {QUOTED}}}]");
    let long = format!(r#"{{"message": "{}{SECRET}"}}"#, "a".repeat(505));
    let cases: [(&str, String, u16, String); 11] = [
        ("http", format!("http_sd_configs: [{{url: 'URL/x', {AUTH}}}]"), 200, item),
        (
            "consul",
            format!("consul_sd_configs: [{{server: HOST, token: {SECRET}}}]"),
            200,
            QUOTED.to_owned(),
        ),
        (
            "consul",
            format!("consul_sd_configs: [{{server: HOST, datacenter: a, token: {SECRET}}}]"),
            200,
            QUOTED.to_owned(),
        ),
        (
            "docker",
            format!("docker_sd_configs: [{{host: 'URL', {AUTH}}}]"),
            200,
            format!("[{QUOTED}]"),
        ),
        (
            "dockerswarm",
            format!("dockerswarm_sd_configs: [{{host: 'URL', role: nodes, {AUTH}}}]"),
            200,
            format!("[{QUOTED}]"),
        ),
        ("kubernetes", kubernetes.clone(), 200, QUOTED.to_owned()),
        // Go escapes some characters of JSON: the body does not contain the token as it was sent.
        (
            "kubernetes",
            kubernetes.clone(),
            403,
            r#"{"message": "got sekret-t\u006fken-1"}"#.to_owned(),
        ),
        (
            "kubernetes",
            kubernetes.clone(),
            200,
            watch(r#"{"type": "ERROR", "object": {"code": 500, "message": "got sekret-token-1"}}"#),
        ),
        (
            "kubernetes",
            kubernetes.clone(),
            200,
            watch(&format!(r#"{{"type": "ADDED", "object": {QUOTED}}}"#)),
        ),
        // The end of the excerpt cuts the token.
        (
            "kubernetes",
            kubernetes.clone(),
            200,
            watch(&format!(r#"{{"type": "ERROR", "object": {long}}}"#)),
        ),
        ("kubernetes", kubernetes, 403, long),
    ];
    for (kind, keys, code, body) in cases {
        let is_event = body.contains("\"type\"");
        let answer = body.clone();
        let server = TestServer::start(move |path| match path {
            path if is_event && !path.contains("watch") => json("", LISTED),
            _ if code != 200 => status(code, &answer),
            _ if is_event => Reply::Hang(
                format!("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{answer}").into_bytes(),
            ),
            _ => json("", &answer),
        })
        .await;
        let host = format!("127.0.0.1:{}", server.port);
        let keys = keys.replace("URL", &format!("http://{host}")).replace("HOST", &host);
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(16 << 20));
        let work = start(&keys, Vec::new(), &tasks);
        while failures(&tasks, kind) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        work.abort();
        assert!(server.heads().iter().any(|head| head.contains(SECRET)), "{:?}", server.heads());
        let errors = tasks.shared.errors.lock().clone();
        let shown = |error: &String| {
            let is_hidden = error.contains("<secret") || error.contains("repeats a credential");
            is_hidden && !error.contains("sekr")
        };
        assert!(!errors.is_empty() && errors.iter().all(shown), "{keys} {body}: {errors:?}");
    }
}

/// Before, errors of Consul began with the server as it is in the configuration.
#[tokio::test]
async fn no_error_of_a_discovery_shows_the_password_of_its_address() {
    let server = TestServer::start(|_| status(500, "no")).await;
    let host = format!("127.0.0.1:{}", server.port);
    for (kind, keys) in [
        ("consul", "consul_sd_configs: [{server: 'user:hunter2@HOST'}]"),
        ("consul", "consul_sd_configs: [{server: 'http://user:hunter2@HOST', services: [s]}]"),
        ("docker", "docker_sd_configs: [{host: 'tcp://user:hunter2@HOST'}]"),
        (
            "dockerswarm",
            "dockerswarm_sd_configs: [{host: 'http://user:hunter2@HOST', role: nodes}]",
        ),
        (
            "ec2",
            "ec2_sd_configs: [{endpoint: 'http://user:hunter2@HOST', region: r, access_key: k, \
             secret_key: s}]",
        ),
        ("http", "http_sd_configs: [{url: 'http://user:hunter2@HOST/'}]"),
        (
            "kubernetes",
            "kubernetes_sd_configs: [{role: pod, api_server: 'http://user:hunter2@HOST'}]",
        ),
    ] {
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(16 << 20));
        let work = start(&keys.replace("HOST", &host), Vec::new(), &tasks);
        while failures(&tasks, kind) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        work.abort();
        let errors = tasks.shared.errors.lock().clone();
        let is_hidden = errors.iter().all(|error| !error.contains("hunter2"));
        assert!(!errors.is_empty() && is_hidden, "{keys}: {errors:?}");
    }
}
