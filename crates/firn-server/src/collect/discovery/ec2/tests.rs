use std::collections::BTreeMap;
use std::sync::Mutex;

use firn_collect::config::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::{DiscoveryTasks, TaskState};
use super::*;

/// The answers of each key, with their statuses.
type AnswersByKey = BTreeMap<&'static str, Vec<(u16, String)>>;

/// A server on loopback that is EC2, STS and the metadata service: the answers of each key that a
/// request contains are used once, the last one always.
#[derive(Clone, Default)]
struct TestAws {
    answers: Arc<Mutex<AnswersByKey>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TestAws {
    fn answer(&self, key: &'static str, status: u16, body: &str) {
        self.answers.lock().unwrap().entry(key).or_default().push((status, body.to_owned()));
    }

    fn requests(&self, key: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.contains(key)).cloned().collect()
    }

    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let aws = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = Vec::new();
                let request = loop {
                    let mut part = [0; 4_096];
                    let len = stream.read(&mut part).await.unwrap_or(0);
                    bytes.extend_from_slice(&part[..len]);
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length =
                        head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if len == 0 || body.len() >= length.map_or(0, |len| len.parse().unwrap()) {
                        break text;
                    }
                };
                let (status, body) = aws.respond(&request);
                aws.requests.lock().unwrap().push(request);
                let len = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n"
                );
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        format!("http://{address}")
    }

    fn respond(&self, request: &str) -> (u16, String) {
        let mut answers = self.answers.lock().unwrap();
        let known = answers.iter_mut().rev().find(|(key, _)| request.contains(**key));
        match known {
            Some((_, answers)) if answers.len() > 1 => answers.remove(0),
            Some((_, answers)) => answers[0].clone(),
            None => (404, String::new()),
        }
    }
}

fn instances(names: &[&str], next: &str) -> String {
    let item = |name: &&str| {
        format!(
            "<item><instanceId>{name}</instanceId><privateIpAddress>{name}</privateIpAddress>\
             <placement><availabilityZone>z</availabilityZone></placement></item>"
        )
    };
    let items: String = names.iter().map(item).collect();
    format!(
        "<R><reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>\
         <nextToken>{next}</nextToken></R>"
    )
}

const ZONES: &str = "<R><availabilityZoneInfo><item><zoneName>z</zoneName><zoneId>zid</zoneId>\
                     </item></availabilityZoneInfo></R>";

struct Ec2Discovery {
    state: Arc<TaskState>,
    tasks: DiscoveryTasks,
    work: tokio::task::JoinHandle<()>,
}

impl Drop for Ec2Discovery {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl Ec2Discovery {
    fn start(keys: &str, env: Vec<(&'static str, String)>) -> Ec2Discovery {
        let text = format!(
            "scrape_configs: [{{job_name: j, ec2_sd_configs: [{{refresh_interval: 20ms, {keys}}}]}}]"
        );
        let loaded = Config::parse(&text, &|_| None).unwrap();
        let config = loaded.config.scrape_configs[0].discoveries.ec2[0].clone();
        let budget = Budget::new(16 << 20);
        let tasks = DiscoveryTasks::new("scrape", &budget);
        let state = Arc::new(TaskState::default());
        let shared = Arc::clone(&tasks.shared);
        let run = Run { kind: "ec2", state: Arc::clone(&state), shared };
        let env: Env = Arc::new(move |name: &str| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        });
        let work = tokio::spawn(run.refresh_instances(config, env));
        Ec2Discovery { state, tasks, work }
    }

    fn addresses(&self) -> Option<Vec<String>> {
        let list = self.state.list.lock().clone()?;
        let targets = list.groups.iter().flat_map(|group| &group.targets);
        let label = |name: &str, target: &firn_collect::config::LabelSet| {
            target.get(name).unwrap_or("-").to_owned()
        };
        let text = |target| {
            let zone = label("__meta_ec2_availability_zone_id", target);
            format!("{} {zone}", label("__address__", target))
        };
        Some(targets.map(text).collect())
    }

    async fn wait_for(&self, want: &[&str]) {
        let mut changes = self.tasks.changes();
        let waiting = async {
            while self.addresses().is_none_or(|found| found != want) {
                changes.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "{:?}, expected {want:?}", self.addresses());
    }

    fn failures(&self) -> u64 {
        let idx = super::super::KINDS.iter().position(|kind| *kind == "ec2").unwrap();
        self.tasks.shared.failures[idx].get()
    }
}

#[tokio::test]
async fn pages_of_instances_are_targets_and_failures_keep_them() {
    let aws = TestAws::default();
    aws.answer("DescribeAvailabilityZones", 500, "");
    aws.answer("DescribeAvailabilityZones", 200, ZONES);
    aws.answer("Action=DescribeInstances&MaxResults=1000&V", 200, &instances(&["a"], "t"));
    aws.answer("NextToken=t", 200, &instances(&["b"], ""));
    for (status, body) in [(403, "<html>"), (200, "<html>"), (200, "{}")] {
        aws.answer("Action=DescribeInstances&MaxResults=1000&V", status, body);
    }
    aws.answer("Action=DescribeInstances&MaxResults=1000&V", 200, &instances(&["c"], ""));
    let url = aws.start().await;
    let keys = format!("endpoint: '{url}', region: r, access_key: k, secret_key: s, port: 1");
    let discovery = Ec2Discovery::start(&keys, Vec::new());
    // Without zones the label is empty; they are described again.
    discovery.wait_for(&["a:1 -", "b:1 -"]).await;
    discovery.wait_for(&["c:1 zid"]).await;
    assert_eq!(discovery.failures(), 3);
    let request = &aws.requests("DescribeInstances")[0];
    for want in ["x-amz-date: 20", "Credential=k/20", "/r/ec2/aws4_request", "user-agent: FirnDB/"]
    {
        assert!(request.contains(want), "{want}: {request}");
    }
}

#[tokio::test]
async fn the_instance_has_region_and_credentials() {
    let aws = TestAws::default();
    aws.answer("PUT /latest/api/token", 200, "imds-token");
    aws.answer("GET /latest/meta-data/placement/region", 404, "");
    aws.answer("GET /latest/meta-data/placement/region", 200, "eu-9");
    aws.answer("GET /latest/meta-data/iam/security-credentials/ ", 200, "role\n");
    aws.answer(
        "GET /latest/meta-data/iam/security-credentials/role",
        200,
        r#"{"AccessKeyId": "AK", "SecretAccessKey": "s", "Token": "session"}"#,
    );
    aws.answer("DescribeAvailabilityZones", 200, ZONES);
    aws.answer("Action=DescribeInstances", 200, &instances(&["a"], ""));
    let url = aws.start().await;
    let env = vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.clone())];
    let discovery = Ec2Discovery::start(&format!("endpoint: '{url}'"), env);
    discovery.wait_for(&["a:80 zid"]).await;
    assert_eq!(discovery.failures(), 1);
    let metadata = aws.requests("/latest/meta-data/");
    assert!(metadata.iter().all(|one| one.contains("x-aws-ec2-metadata-token: imds-token")));
    let request = &aws.requests("Action=DescribeInstances")[0];
    for want in ["x-amz-security-token: session", "Credential=AK/", "/eu-9/ec2/"] {
        assert!(request.contains(want), "{want}: {request}");
    }
}

#[tokio::test]
async fn a_discovery_without_credentials_fails_with_the_reason() {
    let env = vec![("AWS_EC2_METADATA_DISABLED", "true".to_owned())];
    let discovery = Ec2Discovery::start("region: r, endpoint: 'http://127.0.0.1:1'", env);
    discovery.wait_for(&[]).await;
    assert!(discovery.failures() >= 1);
}
