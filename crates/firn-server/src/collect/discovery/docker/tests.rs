use std::sync::atomic::{AtomicUsize, Ordering};

use firn_collect::config::Config;
use firn_collect::discovery::Provider;

use super::super::test_server::{Reply, TestServer, json, status};
use super::super::tests::test_run;
use super::*;

fn daemon(key: &str, keys: &str) -> Daemon {
    let text = format!("scrape_configs: [{{job_name: j, {key}: [{{{keys}}}]}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let mut found = Provider::all_of(&loaded.config.scrape_configs[0].discoveries, "job").unwrap();
    match found.pop() {
        Some(Provider::Docker(targets)) => Daemon::Docker(*targets),
        Some(Provider::Swarm(targets)) => Daemon::Swarm(*targets),
        other => panic!("{other:?}"),
    }
}

fn containers(ip: &str) -> String {
    format!(
        r#"[{{"Id": "a", "Names": ["/a"], "HostConfig": {{"NetworkMode": "x"}},
            "NetworkSettings": {{"Networks": {{
                "x": {{"NetworkID": "x", "IPAddress": "{ip}"}}}}}}}}]"#
    )
}

fn ping() -> Reply {
    Reply::Bytes(b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\ncontent-length: 2\r\n\r\nOK".to_vec())
}

#[tokio::test]
async fn a_daemon_behind_a_socket_is_refreshed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let server = TestServer::unix(&socket, |path| match path {
        "/_ping" => ping(),
        "/v1.44/containers/json" => json("", &containers("10.0.0.1")),
        "/v1.44/networks" => json("", "[]"),
        _ => status(404, "{\"message\": \"page not found\"}"),
    });
    let keys = format!("host: 'unix://{}', refresh_interval: 50ms", socket.display());
    let (run, task) = test_run("docker", 1 << 20);
    let work = tokio::spawn(run.daemon(daemon("docker_sd_configs", &keys)));
    task.wait_for(&["10.0.0.1:80"]).await;
    assert!(server.heads()[1].contains("host: localhost"), "{:?}", server.heads());
    // The version is negotiated once.
    server.wait_for_requests(7).await;
    let pings = server.heads().iter().filter(|head| head.contains("/_ping")).count();
    assert_eq!(pings, 1);
    work.abort();
}

/// Each answer of a swarm's manager but the first one is wrong: the first list stays.
#[tokio::test]
async fn wrong_answers_keep_the_last_list() {
    const NODES: &str = r#"[{"Status": {"Addr": "10.0.0.1"}}]"#;
    let count = AtomicUsize::new(0);
    let server = TestServer::start(move |path| match path {
        "/_ping" => ping(),
        _ => match count.fetch_add(1, Ordering::Relaxed) {
            0 => json("", NODES),
            1 => status(500, "{\"message\": \"no leader\"}"),
            2 => status(503, "{\"message\": \"This node is not a swarm manager\"}"),
            3 => json("", "<!doctype html><html></html>"),
            4 => json("", "{\"nodes\": []}"),
            5 => json("", &NODES[..20]),
            6 => Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[".to_vec()),
            7 => Reply::Bytes(b"nonsense\r\n\r\n".to_vec()),
            8 => Reply::Hang(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[".to_vec()),
            9 => Reply::Endless(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[[[".repeat(100),
            ),
            _ => json("", &NODES.replace("10.0.0.1", "10.0.0.2")),
        },
    })
    .await;
    let keys = format!(
        "host: 'tcp://127.0.0.1:{}', role: nodes, refresh_interval: 300ms, port: 9",
        server.port
    );
    let (run, task) = test_run("dockerswarm", 1 << 20);
    let work = tokio::spawn(run.daemon(daemon("dockerswarm_sd_configs", &keys)));
    task.wait_for(&["10.0.0.1:9"]).await;
    task.wait_for_failures("dockerswarm", 8).await;
    assert_eq!(task.addresses().unwrap(), ["10.0.0.1:9"]);
    task.wait_for(&["10.0.0.2:9"]).await;
    work.abort();
}

#[tokio::test]
async fn a_missing_daemon_is_a_failed_refresh() {
    let keys = "host: 'unix:///nonexistent/docker.sock', refresh_interval: 20ms";
    let (run, task) = test_run("docker", 1 << 20);
    let work = tokio::spawn(run.daemon(daemon("docker_sd_configs", keys)));
    task.wait_for(&[]).await;
    task.wait_for_failures("docker", 2).await;
    work.abort();
}
