use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use firn_collect::config::Config;
use firn_collect::discovery::Provider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::{DiscoveryTasks, SharedLists, TaskState, counts};
use super::*;
use crate::metrics_text::MetricsText;

/// The answer to a request.
#[derive(Clone, Debug)]
enum ApiAnswer {
    /// A status line and a body.
    Whole(&'static str, String),
    /// The lines of a watch, then its end.
    Lines(Vec<String>, LinesEnd),
    /// Bytes without an end.
    Endless(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum LinesEnd {
    Orderly,
    Breaks,
    Hangs,
}

/// An API server on loopback: each path has answers that are used once, the last one always.
#[derive(Clone, Default)]
struct TestApi {
    answers: Arc<Mutex<BTreeMap<&'static str, VecDeque<ApiAnswer>>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

const LIST: &str = "/api/v1/pods?limit";
const MORE: &str = "/api/v1/pods?limit=500&continue";
const WATCH: &str = "/api/v1/pods?watch";

impl TestApi {
    fn answer(&self, path: &'static str, answer: ApiAnswer) {
        self.answers.lock().unwrap().entry(path).or_default().push_back(answer);
    }

    /// A list of pods as the next answer.
    fn list(&self, version: &str, names: &[&str]) {
        self.answer(LIST, ApiAnswer::Whole("200 OK", list(version, "", names)));
    }

    fn watch(&self, lines: &[String], end: LinesEnd) {
        self.answer(WATCH, ApiAnswer::Lines(lines.to_vec(), end));
    }

    fn heads(&self, part: &str) -> Vec<String> {
        let heads = self.heads.lock().unwrap();
        heads.iter().filter(|head| head.contains(part)).cloned().collect()
    }

    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let api = api.clone();
                tokio::spawn(async move { api.serve(stream).await });
            }
        });
        format!("http://{address}")
    }

    /// One request for each connection.
    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1)?.to_owned();
        let answer = {
            let mut answers = self.answers.lock().unwrap();
            let known = answers.iter_mut().rev().find(|(known, _)| path.starts_with(**known));
            let queue = known.map(|(_, queue)| queue)?;
            match queue.len() {
                0 | 1 => queue.front().cloned()?,
                _ => queue.pop_front()?,
            }
        };
        self.heads.lock().unwrap().push(head);
        match answer {
            ApiAnswer::Whole(status, body) => {
                let len = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
            }
            ApiAnswer::Lines(lines, end) => {
                stream.write_all(CHUNKED).await.ok()?;
                for line in lines {
                    let len = line.len() + 1;
                    let chunk = format!("{len:x}\r\n{line}\n\r\n");
                    stream.write_all(chunk.as_bytes()).await.ok()?;
                }
                match end {
                    LinesEnd::Orderly => stream.write_all(b"0\r\n\r\n").await.ok()?,
                    LinesEnd::Breaks => stream.write_all(b"100\r\n{\"type\":").await.ok()?,
                    LinesEnd::Hangs => std::future::pending().await,
                }
            }
            ApiAnswer::Endless(text) => {
                stream.write_all(CHUNKED).await.ok()?;
                let chunk = text.repeat(0x10000 / text.len());
                let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
                while stream.write_all(chunk.as_bytes()).await.is_ok() {}
            }
        }
        Some(())
    }
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn pod(name: &str, version: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"d","resourceVersion":"{version}"}},"spec":{{"containers":[{{"name":"c"}}]}},"status":{{"podIP":"{name}"}}}}"#
    )
}

fn list(version: &str, next: &str, names: &[&str]) -> String {
    let pods: Vec<String> = names.iter().map(|name| pod(name, "1")).collect();
    let pods = pods.join(",");
    format!(
        r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{pods}]}}"#
    )
}

fn event(kind: &str, name: &str, version: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{}}}"#, pod(name, version))
}

struct ClusterDiscovery {
    state: Arc<TaskState>,
    shared: Arc<SharedLists>,
    work: tokio::task::JoinHandle<()>,
}

impl Drop for ClusterDiscovery {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl ClusterDiscovery {
    async fn start(api: &TestApi, keys: &str, memory: u64) -> ClusterDiscovery {
        let server = api.start().await;
        let text = format!(
            "scrape_configs: [{{job_name: j, kubernetes_sd_configs: \
             [{{role: pod, api_server: '{server}' {keys}}}]}}]"
        );
        let loaded = Config::parse(&text, &|_| None).unwrap();
        let discoveries = &loaded.config.scrape_configs[0].discoveries;
        let providers = Provider::all_of(discoveries, "job").unwrap();
        let [Provider::Kubernetes(config)] = &providers[..] else { panic!("{providers:?}") };
        let budget = Budget::new(memory);
        let shared = Arc::clone(&DiscoveryTasks::new("scrape", &budget).shared);
        let state = Arc::new(TaskState::default());
        let run =
            Run { kind: "kubernetes", state: Arc::clone(&state), shared: Arc::clone(&shared) };
        let pause = Duration::from_millis(10);
        let pacing = Pacing {
            retry_min: pause,
            retry_max: pause,
            publish_min: pause,
            idle_max: Duration::from_secs(2),
        };
        let work = tokio::spawn(run.watch_cluster((**config).clone(), pacing));
        ClusterDiscovery { state, shared, work }
    }

    fn addresses(&self) -> Option<Vec<String>> {
        let list = self.state.list.lock().clone()?;
        let targets = list.groups.iter().flat_map(|group| &group.targets);
        Some(targets.map(|target| target.get("__address__").unwrap().to_owned()).collect())
    }

    fn failures(&self) -> u64 {
        self.shared.counts.kubernetes_failures.get()
    }

    /// The counted additions, deletions and updates of pods.
    fn pod_events(&self) -> [String; 3] {
        let mut text = MetricsText::default();
        counts::write_text("prometheus", &[("scrape", &*self.shared.counts)], &mut text);
        let text = text.finish();
        ["add", "delete", "update"].map(|event| {
            let start = format!(
                "prometheus_sd_kubernetes_events_total{{name=\"scrape\",role=\"pod\",\
                 event=\"{event}\"}} "
            );
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            value.unwrap_or_else(|| panic!("{event}: {text}")).to_owned()
        })
    }

    async fn wait_for(&self, what: &str, is_done: impl Fn(&ClusterDiscovery) -> bool) {
        let waiting = async {
            while !is_done(self) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "{what}: {:?}, {} failures", self.addresses(), self.failures());
    }

    async fn wait_for_targets(&self, want: &[&str]) {
        let is_done = |this: &ClusterDiscovery| this.addresses().is_some_and(|found| found == want);
        self.wait_for(&format!("{want:?}"), is_done).await;
    }
}

#[tokio::test]
async fn a_list_of_pages_is_watched() {
    let api = TestApi::default();
    api.answer(LIST, ApiAnswer::Whole("200 OK", list("5", "t=1", &["a", "b"])));
    api.answer(MORE, ApiAnswer::Whole("200 OK", list("5", "", &["c"])));
    let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;
    // The first watch ends, the second breaks off in a line, and the third is silent.
    api.watch(&[event("ADDED", "d", "6"), event("DELETED", "a", "7")], LinesEnd::Orderly);
    api.watch(&[event("MODIFIED", "b", "8"), bookmark.to_owned()], LinesEnd::Breaks);
    api.watch(&[event("ADDED", "e", "10")], LinesEnd::Hangs);
    api.watch(&[], LinesEnd::Hangs);
    let discovery = ClusterDiscovery::start(&api, "", 16 << 20).await;
    discovery.wait_for_targets(&["b", "c", "d", "e"]).await;
    discovery.wait_for("a fourth watch", |_| api.heads(WATCH).len() >= 4).await;
    let versions: Vec<String> = api.heads(WATCH)[..4]
        .iter()
        .map(|head| head.split("resourceVersion=").nth(1).unwrap())
        .map(|rest| rest.split('&').next().unwrap().to_owned())
        .collect();
    assert_eq!(versions, ["5", "7", "9", "10"]);
    assert_eq!(api.heads(LIST).len(), 2, "one list of two pages");
    assert!(api.heads(MORE)[0].contains("continue=t%3D1"));
    assert_eq!(discovery.failures(), 0);
    assert_eq!(discovery.pod_events(), ["5", "1", "1"]);
}

#[tokio::test]
async fn a_version_that_is_too_old_is_listed_again() {
    let api = TestApi::default();
    api.list("1", &["a", "b"]);
    api.list("20", &["b", "c"]);
    api.list("30", &["d"]);
    let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;
    api.watch(&[gone.to_owned()], LinesEnd::Orderly);
    api.answer(WATCH, ApiAnswer::Whole("410 Gone", String::new()));
    api.watch(&[], LinesEnd::Hangs);
    let discovery = ClusterDiscovery::start(&api, "", 16 << 20).await;
    discovery.wait_for_targets(&["d"]).await;
    assert_eq!(discovery.failures(), 0);
    // As Prometheus' client, which compares a new list with the old one.
    assert_eq!(discovery.pod_events(), ["4", "3", "1"]);
    let head = &api.heads(LIST)[0].to_lowercase();
    assert!(head.contains("user-agent: firndb/") && head.contains("accept-encoding: gzip"));
}

#[tokio::test]
async fn a_token_is_read_again_after_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "old").unwrap();
    let api = TestApi::default();
    api.list("1", &["a"]);
    api.watch(&[event("ADDED", "b", "2")], LinesEnd::Orderly);
    let refused = r#"{"kind":"Status","message":"Unauthorized","code":401}"#.to_owned();
    api.answer(WATCH, ApiAnswer::Whole("401 Unauthorized", refused));
    let keys = format!(", authorization: {{credentials_file: '{}'}}", token.display());
    let discovery = ClusterDiscovery::start(&api, &keys, 16 << 20).await;
    discovery.wait_for_targets(&["a", "b"]).await;
    discovery.wait_for("refusals", |this| this.failures() >= 2).await;
    assert_eq!(discovery.addresses().unwrap(), ["a", "b"]);
    std::fs::write(&token, "new").unwrap();
    api.watch(&[event("ADDED", "c", "3")], LinesEnd::Hangs);
    discovery.wait_for_targets(&["a", "b", "c"]).await;
    let heads = api.heads(WATCH);
    assert!(heads[0].contains("Bearer old"), "{heads:?}");
    assert!(heads.iter().any(|head| head.contains("Bearer new")), "{heads:?}");
}

#[tokio::test]
async fn wrong_answers_keep_the_last_list() {
    let api = TestApi::default();
    // Before the first list there are no targets, and the server starts without them.
    api.answer(LIST, ApiAnswer::Whole("503 Service Unavailable", "<html>".to_owned()));
    api.list("1", &["a"]);
    api.answer(LIST, ApiAnswer::Whole("200 OK", "<html>".to_owned()));
    api.answer(LIST, ApiAnswer::Endless("{\"items\": [ "));
    api.watch(&[event("ADDED", "b", "2"), "<html>".to_owned()], LinesEnd::Orderly);
    api.answer(WATCH, ApiAnswer::Endless("a"));
    let discovery = ClusterDiscovery::start(&api, "", 4 << 20).await;
    discovery.wait_for_targets(&["a", "b"]).await;
    // The refused list, the wrong line, the wrong list, the endless list.
    discovery.wait_for("failures", |this| this.failures() >= 4).await;
    assert_eq!(discovery.addresses().unwrap(), ["a", "b"]);
    api.list("9", &["z"]);
    discovery.wait_for_targets(&["z"]).await;
    // The endless line.
    let before = discovery.failures();
    discovery.wait_for("a failure", |this| this.failures() > before).await;
    assert_eq!(discovery.addresses().unwrap(), ["z"]);
    assert!(discovery.shared.budget.usage().used_bytes <= 4 << 20);
}

#[tokio::test]
async fn objects_beyond_the_memory_are_a_failure() {
    let api = TestApi::default();
    let page = |page: usize| {
        let names: Vec<String> = (0..400).map(|idx| format!("p{page}-{idx}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        ApiAnswer::Whole("200 OK", list("2", "t", &names))
    };
    // Pages without an end.
    api.list("1", &["a"]);
    for idx in 0..200 {
        api.answer(MORE, page(idx));
    }
    let gone = r#"{"type":"ERROR","object":{"code":410}}"#.to_owned();
    api.watch(&[gone], LinesEnd::Orderly);
    api.answer(LIST, page(1_000));
    let discovery = ClusterDiscovery::start(&api, "", 8 << 20).await;
    discovery.wait_for_targets(&["a"]).await;
    discovery.wait_for("a failure", |this| this.failures() >= 1).await;
    assert_eq!(discovery.addresses().unwrap(), ["a"]);
    assert!(discovery.shared.budget.usage().used_bytes <= 8 << 20);
}
