use firn_collect::config::Config;
use firn_collect::discovery::Provider;
use parking_lot::Mutex;

use super::super::test_server::{Reply, TestServer, json, status};
use super::super::tests::{TestTask, test_run};
use super::*;

const TIMES: WatchTimes = WatchTimes {
    wait: Duration::from_millis(1_500),
    slack: Duration::from_millis(500),
    retry: Duration::from_millis(10),
    first_list: Duration::from_secs(30),
    publish: Duration::from_millis(1),
};

fn targets(server: &TestServer, keys: &str) -> ConsulTargets {
    let text = format!(
        "scrape_configs: [{{job_name: j, consul_sd_configs: \
         [{{server: '127.0.0.1:{}', refresh_interval: 10ms, {keys}}}]}}]",
        server.port
    );
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let found = Provider::all_of(&loaded.config.scrape_configs[0].discoveries, "job");
    match found.unwrap().pop() {
        Some(Provider::Consul(targets)) => *targets,
        other => panic!("{other:?}"),
    }
}

fn start(
    server: &TestServer,
    keys: &str,
    times: WatchTimes,
) -> (tokio::task::JoinHandle<()>, TestTask) {
    let (run, task) = test_run("consul", 8 << 20);
    (tokio::spawn(run.consul(targets(server, keys), times)), task)
}

fn self_answer() -> Reply {
    json("", r#"{"Config": {"Datacenter": "dc1", "NodeName": "n"}}"#)
}

fn instances(ports: &[u16]) -> String {
    let instance = |port: &u16| {
        format!(r#"{{"Node": {{"Address": "n"}}, "Service": {{"Port": {port}, "Tags": ["t"]}}}}"#)
    };
    format!("[{}]", ports.iter().map(instance).collect::<Vec<_>>().join(","))
}

fn at_index(index: u64, body: &str) -> Reply {
    json(&format!("X-Consul-Index: {index}\r\n"), body)
}

/// A catalog with services that a test changes. As Consul, it holds queries back while nothing has
/// changed; the test server polls.
#[derive(Clone, Default)]
struct Catalog(Arc<Mutex<(u64, PortsByService)>>);

type PortsByService = BTreeMap<String, Vec<u16>>;

impl Catalog {
    fn set(&self, index: u64, services: &[(&str, &[u16])]) {
        let services = services.iter().map(|(name, ports)| ((*name).to_owned(), ports.to_vec()));
        *self.0.lock() = (index, services.collect());
    }

    fn answer(&self, path: &str) -> Reply {
        let (index, services) = self.0.lock().clone();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        if path == "/v1/agent/self" {
            return self_answer();
        }
        assert!(query.contains("stale=") && query.contains("wait=1500ms"), "{query}");
        match path.strip_prefix("/v1/health/service/") {
            Some(name) => {
                at_index(index, &instances(services.get(name).map_or(&[][..], Vec::as_slice)))
            }
            None => {
                let names = services.keys().map(|name| format!("\"{name}\": [\"t\"]"));
                at_index(index, &format!("{{{}}}", names.collect::<Vec<_>>().join(",")))
            }
        }
    }
}

#[tokio::test]
async fn services_come_change_and_go() {
    let catalog = Catalog::default();
    catalog.set(5, &[("a", &[1]), ("b", &[2, 3])]);
    let answers = catalog.clone();
    let server = TestServer::start(move |path| answers.answer(path)).await;
    let (work, task) = start(&server, "token: sekret", TIMES);
    // The first list has all services.
    task.wait_for(&["n:1", "n:2", "n:3"]).await;
    catalog.set(6, &[("a", &[1, 4]), ("c", &[5])]);
    task.wait_for(&["n:1", "n:4", "n:5"]).await;
    // A smaller index: a server was restored from an old state.
    catalog.set(3, &[("c", &[6])]);
    task.wait_for(&["n:6"]).await;
    catalog.set(4, &[]);
    task.wait_for(&[]).await;
    let heads = server.heads();
    assert!(heads.iter().all(|head| head.contains("x-consul-token: sekret")));
    assert!(heads.iter().any(|head| head.contains("index=5&")), "{:?}", heads.last());
    assert!(heads.iter().any(|head| head.starts_with("GET /v1/health/service/b?")));
    work.abort();
}

#[tokio::test]
async fn known_services_need_no_catalog() {
    let catalog = Catalog::default();
    catalog.set(5, &[("a", &[1]), ("b", &[2])]);
    let answers = catalog.clone();
    let server = TestServer::start(move |path| answers.answer(path)).await;
    let (work, task) = start(&server, "datacenter: dc9, services: [b, d]", TIMES);
    task.wait_for(&["n:2"]).await;
    let heads = server.heads();
    assert!(heads.iter().all(|head| head.contains("/v1/health/") && head.contains("dc=dc9")));
    assert!(!heads[0].contains("x-consul-token"));
    work.abort();
}

/// A watch of one service that fails in many ways keeps its last list.
#[tokio::test]
async fn wrong_answers_keep_the_last_list() {
    let count = Mutex::new(0);
    let server = TestServer::start(move |_| {
        let mut count = count.lock();
        *count += 1;
        match *count {
            1 => at_index(7, &instances(&[1])),
            2 => status(500, "rpc error: No cluster leader"),
            3 => at_index(8, "<!doctype html><html></html>"),
            4 => at_index(9, "{}"),
            5 => Reply::Bytes(
                b"HTTP/1.1 200 OK\r\nx-consul-index: 10\r\ncontent-length: 99\r\n\r\n[".to_vec(),
            ),
            6 => Reply::Hang(Vec::new()),
            7 => Reply::Hang(
                b"HTTP/1.1 200 OK\r\nx-consul-index: 11\r\ncontent-length: 9\r\n\r\n[".to_vec(),
            ),
            8 => {
                Reply::Endless(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n[[".repeat(100))
            }
            9 => Reply::Bytes(b"nonsense\r\n\r\n".to_vec()),
            10 => status(403, "ACL not found"),
            // Without an index, the answer is a list as well.
            _ => json("", &instances(&[2])),
        }
    })
    .await;
    let (work, task) = start(&server, "datacenter: d, services: [a]", TIMES);
    task.wait_for(&["n:1"]).await;
    // The next answer takes its whole time limit.
    task.wait_for_failures("consul", 5).await;
    assert_eq!(task.addresses().unwrap(), ["n:1"]);
    task.wait_for(&["n:2"]).await;
    task.wait_for_failures("consul", 9).await;
    // Two answers that could not be read are no failed queries.
    assert_eq!(task.metric("consul_rpc_failures_total{name=\"scrape\"}"), 7.0);
    let calls = |call: &str| {
        let labels = format!("{{name=\"scrape\",endpoint=\"catalog\",call=\"{call}\"}}");
        task.metric(&format!("consul_rpc_duration_seconds_count{labels}"))
    };
    assert!(calls("service") >= 11.0 && calls("services") == 0.0);
    // After a failure, the next query does not wait for a change.
    assert!(server.heads()[1].contains("index=7"));
    assert!(!server.heads()[2].contains("index="));
    work.abort();
}

// A service whose watch hangs delays the first list for a while, and no other service after it.
#[tokio::test]
async fn a_watch_that_hangs_delays_no_other() {
    let server = TestServer::start(|path| match path.contains("/hang?") {
        true => Reply::Hang(Vec::new()),
        false => at_index(1, &instances(&[1])),
    })
    .await;
    let times = WatchTimes {
        wait: Duration::from_secs(60),
        first_list: Duration::from_millis(100),
        ..TIMES
    };
    let (work, task) = start(&server, "datacenter: d, services: [a, hang]", times);
    task.wait_for(&["n:1"]).await;
    work.abort();
}

#[tokio::test]
async fn a_server_that_fails_at_first_is_asked_again() {
    let count = Mutex::new(0);
    let catalog = Catalog::default();
    catalog.set(5, &[("a", &[1])]);
    let server = TestServer::start(move |path| {
        let mut count = count.lock();
        *count += 1;
        match *count {
            1 => status(500, "starting"),
            2 => json("", "{}"),
            // The first query of the catalog.
            4 => status(500, "no leader"),
            _ => catalog.answer(path),
        }
    })
    .await;
    let (work, task) = start(&server, "", TIMES);
    task.wait_for(&["n:1"]).await;
    task.wait_for_failures("consul", 3).await;
    work.abort();
}

#[tokio::test]
async fn too_many_services_are_a_failed_refresh() {
    let catalog = Catalog::default();
    let services: Vec<String> = (0..=WATCHES_MAX).map(|idx| format!("s{idx}")).collect();
    let many: Vec<(&str, &[u16])> = services.iter().map(|name| (name.as_str(), &[][..])).collect();
    catalog.set(5, &[("a", &[1])]);
    let answers = catalog.clone();
    let server = TestServer::start(move |path| answers.answer(path)).await;
    let (work, task) = start(&server, "", TIMES);
    task.wait_for(&["n:1"]).await;
    catalog.set(6, &many);
    task.wait_for_failures("consul", 1).await;
    // The service that was known is still watched.
    assert!(server.heads().iter().all(|head| !head.contains("/service/s")));
    catalog.set(7, &[("a", &[2])]);
    task.wait_for(&["n:2"]).await;
    work.abort();
}
