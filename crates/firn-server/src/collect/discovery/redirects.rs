//! Tests of redirects: no discovery sends its credentials to another host than its own.

use std::sync::Arc;
use std::time::Duration;

use firn_collect::discovery::Provider;
use firn_model::Budget;

use super::test_server::{Reply, TestServer, status};
use super::tests::{failures, providers};
use super::{DiscoveryTask, DiscoveryTasks, Run, TaskState};

// `u:sekret` in `Authorization`.
const BASIC: &str = "dTpzZWtyZXQ=";

/// A server that redirects all requests to `away`; only the token of the metadata service is
/// returned.
async fn redirecting_server(code: u16, away: String) -> TestServer {
    TestServer::start(move |path| match path {
        "/latest/api/token" => status(200, "sekret"),
        _ => {
            let head = "content-length: 0\r\n\r\n";
            Reply::Bytes(format!("HTTP/1.1 {code} X\r\nlocation: {away}\r\n{head}").into_bytes())
        }
    })
    .await
}

/// A discovery with these keys, and variables of the environment for EC2.
pub(super) fn start(
    keys: &str,
    env: Vec<(&'static str, String)>,
    tasks: &DiscoveryTasks,
) -> tokio::task::JoinHandle<()> {
    let provider = providers(keys).remove(0);
    let shared = Arc::clone(&tasks.shared);
    let Provider::Ec2(config) = provider else {
        return tokio::spawn(async move {
            let _task = DiscoveryTask::start(provider, &shared);
            std::future::pending::<()>().await;
        });
    };
    let run = Run { kind: "ec2", state: Arc::new(TaskState::default()), shared };
    let env = move |name: &str| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    };
    tokio::spawn(run.refresh_instances(*config, Arc::new(env)))
}

/// Before, the session token of AWS, the token of its metadata service and forms with tokens
/// followed a redirect.
#[tokio::test]
async fn no_credentials_follow_a_redirect_to_another_host() {
    const AUTH: &str = "authorization: {credentials: sekret}";
    let keys: [(&str, String); 10] = [
        ("http", format!("http_sd_configs: [{{url: 'URL/x', {AUTH}}}]")),
        ("http", "http_sd_configs: [{url: 'http://u:sekret@HOST/x'}]".to_owned()),
        (
            "http",
            "http_sd_configs: [{url: 'URL/x', basic_auth: {username: u, password: sekret}}]".into(),
        ),
        (
            "http",
            "http_sd_configs: [{url: 'URL/x', http_headers: {x: {secrets: [sekret]}}}]".into(),
        ),
        ("consul", "consul_sd_configs: [{server: HOST, token: sekret}]".to_owned()),
        ("docker", format!("docker_sd_configs: [{{host: 'URL', {AUTH}}}]")),
        ("dockerswarm", format!("dockerswarm_sd_configs: [{{host: 'URL', role: nodes, {AUTH}}}]")),
        (
            "kubernetes",
            format!("kubernetes_sd_configs: [{{role: pod, api_server: 'URL', {AUTH}}}]"),
        ),
        ("ec2", "ec2_sd_configs: [{endpoint: 'URL', region: r}]".to_owned()),
        // The metadata service of the instance has the region.
        ("ec2", "ec2_sd_configs: [{port: 1}]".to_owned()),
    ];
    for (kind, keys) in keys {
        for code in [302, 307] {
            let other = TestServer::start(|_| status(404, "")).await;
            // Another name of this machine.
            let away = format!("http://localhost:{}/away", other.port);
            let server = redirecting_server(code, away).await;
            let host = format!("127.0.0.1:{}", server.port);
            let url = format!("http://{host}");
            let mut env = vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.clone())];
            if keys.contains("region") {
                env.extend(
                    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
                        .map(|name| (name, "sekret".to_owned())),
                );
            }
            let tasks = DiscoveryTasks::new("scrape", &Budget::new(16 << 20));
            let keys = keys.replace("URL", &url).replace("HOST", &host);
            let work = start(&keys, env, &tasks);
            while failures(&tasks, kind) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            work.abort();
            let is_secret =
                |request: &String| request.contains("sekret") || request.contains(BASIC);
            assert!(server.heads().iter().any(is_secret), "{keys}: {:?}", server.heads());
            let leaked: Vec<String> = other.heads().into_iter().filter(is_secret).collect();
            assert!(leaked.is_empty(), "{keys} {code}: {leaked:?}");
            // A form is not sent again: with its tokens (307), or without its body (302).
            let is_form = keys.contains("region");
            assert_eq!(other.heads().is_empty(), is_form, "{keys} {code}");
        }
    }
}
