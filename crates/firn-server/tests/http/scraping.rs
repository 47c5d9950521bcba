//! Scraping by `prometheus.yml`: targets on loopback that replay bodies, good and bad.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{api, get, send};
use crate::{Running, wait_for, wait_until};

/// A target that answers every request with the same bytes, until it is dropped.
struct TargetServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    answer: Mutex<Vec<u8>>,
    head: Mutex<String>,
    request_count: AtomicUsize,
    ends: AtomicBool,
}

impl TargetServer {
    fn start(body: &str) -> TargetServer {
        TargetServer::with_answer(answer("200 OK", "text/plain; version=0.0.4", body.as_bytes()))
    }

    fn with_answer(answer: Vec<u8>) -> TargetServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared { answer: Mutex::new(answer), ..Shared::default() });
        let server = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if server.ends.load(Ordering::Relaxed) {
                    return;
                }
                // One request per connection; a client that leaves early is no failure.
                let _ = stream.map(|stream| respond(&server, stream));
            }
        });
        TargetServer { address, shared, thread: Some(thread) }
    }

    fn set_body(&self, body: &str) {
        self.set_answer(answer("200 OK", "text/plain; version=0.0.4", body.as_bytes()));
    }

    fn set_answer(&self, answer: Vec<u8>) {
        *self.shared.answer.lock() = answer;
    }

    fn request_count(&self) -> usize {
        self.shared.request_count.load(Ordering::Relaxed)
    }
}

impl Drop for TargetServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn respond(server: &Shared, mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
    let mut head = Vec::new();
    let mut part = [0; 4_096];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(len) if len > 0 => head.extend_from_slice(&part[..len]),
            _ => return,
        }
    }
    *server.head.lock() = String::from_utf8_lossy(&head).to_lowercase();
    server.request_count.fetch_add(1, Ordering::Relaxed);
    let answer = server.answer.lock().clone();
    let _ = stream.write_all(&answer);
}

fn answer(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

/// The folder of a configuration.
struct Files(TempDir);

impl Files {
    fn new(config: &str) -> Files {
        let files = Files(TempDir::new().expect("a folder"));
        files.write("prometheus.yml", config);
        files
    }

    /// Writes in one step: a reader never sees half a file.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        let other = path.with_extension("new");
        std::fs::write(&other, text).expect("a file");
        std::fs::rename(other, &path).expect("a file");
        path
    }

    fn flag(&self) -> String {
        format!("--prometheus-config={}", self.0.path().join("prometheus.yml").display())
    }

    fn serve(&self) -> Running {
        Running::start(&[&self.flag(), "--enable-lifecycle"])
    }
}

fn config(jobs: &str) -> String {
    format!(
        "global: {{scrape_interval: 500ms, external_labels: {{site: lab}}}}\nscrape_configs:\n{jobs}"
    )
}

/// The active targets by address, once `condition` holds for them.
fn wait_for_targets(
    at: SocketAddr,
    mut condition: impl FnMut(&BTreeMap<String, Value>) -> bool,
) -> BTreeMap<String, Value> {
    wait_for(|| {
        let data = api(at, "targets", &[("state", "active")]);
        let targets: BTreeMap<String, Value> = data["activeTargets"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|target| {
                let address = target["discoveredLabels"]["__address__"].as_str().expect("a text");
                (address.to_owned(), target.clone())
            })
            .collect();
        if condition(&targets) { Ok(targets) } else { Err(format!("{targets:#?}")) }
    })
}

fn health(targets: &BTreeMap<String, Value>, address: SocketAddr) -> &str {
    targets.get(&address.to_string()).and_then(|t| t["health"].as_str()).unwrap_or("absent")
}

/// The values of an instant query by instance.
fn values(at: SocketAddr, query: &str) -> BTreeMap<String, String> {
    let data = api(at, "query", &[("query", query)]);
    let series = data["result"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    series.map(|one| (text(&one["metric"]["instance"]), text(&one["value"][1]))).collect()
}

fn wait_for_values(at: SocketAddr, query: &str, want: &[(SocketAddr, &str)]) {
    let want: BTreeMap<String, String> =
        want.iter().map(|(address, value)| (address.to_string(), (*value).to_owned())).collect();
    wait_for(|| {
        let found = values(at, query);
        let is_so = found == want;
        is_so.then_some(()).ok_or_else(|| format!("{query} is {found:?}, expected {want:?}"))
    });
}

const BODY: &str = "# HELP a_total Number of a.\n# TYPE a_total counter\na_total{x=\"1\"} 5\n\
                    a_total{x=\"2\"} 6\n# TYPE b gauge\nb 7\n";

#[test]
fn a_target_is_scraped_listed_and_described() {
    let target = TargetServer::start(BODY);
    let files = Files::new(&config(&format!(
        "- job_name: app\n  metrics_path: /m\n  params: {{q: [z]}}\n  basic_auth: {{username: u, \
         password: hidden}}\n  static_configs: [{{targets: ['{0}', 'drop:1'], \
         labels: {{team: x}}}}]\n  relabel_configs:\n\
         \x20 - {{source_labels: [__address__], regex: 'drop.*', action: drop}}\n",
        target.address
    )));
    let server = files.serve();
    let at = server.at();
    let targets = wait_for_targets(at, |targets| health(targets, target.address) == "up");
    let shown = &targets[&target.address.to_string()];
    let instance = target.address.to_string();
    assert_eq!(shown["labels"], json!({"instance": instance, "job": "app", "team": "x"}));
    assert_eq!(shown["discoveredLabels"]["__metrics_path__"], "/m");
    assert_eq!(shown["scrapePool"], "app");
    assert_eq!(shown["scrapeUrl"], format!("http://{instance}/m?q=z"));
    let global = shown["globalUrl"].as_str().expect("a text");
    assert!(global.ends_with(&format!(":{}/m?q=z", target.address.port())), "{global}");
    assert_eq!((&shown["lastError"], &shown["scrapeInterval"]), (&json!(""), &json!("500ms")));
    assert_eq!(shown["scrapeTimeout"], "500ms");
    assert!(shown["lastScrapeDuration"].as_f64().is_some_and(|seconds| seconds > 0.0));

    // The samples and the reports.
    wait_for_values(at, "a_total{x=\"1\",team=\"x\",job=\"app\"}", &[(target.address, "5")]);
    wait_for_values(at, "up{team=\"x\"}", &[(target.address, "1")]);
    wait_for_values(at, "scrape_samples_scraped", &[(target.address, "3")]);
    // A target is one group.
    let groups = api(at, "groups", &[]);
    let listed = groups.to_string();
    assert_eq!(listed.matches(&instance).count(), 1, "{listed}");

    // The request.
    let head = target.shared.head.lock().clone();
    for part in [
        "get /m?q=z http/1.1\r\n",
        "user-agent: firndb/",
        "x-prometheus-scrape-timeout-seconds: 0.5\r\n",
        "accept-encoding: gzip\r\n",
        "authorization: basic dtpoawrkzw4=\r\n",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }

    let dropped = api(at, "targets", &[("state", "dropped")]);
    assert_eq!(dropped["activeTargets"], json!([]));
    assert_eq!(dropped["droppedTargetCounts"], json!({"app": 1}));
    assert_eq!(dropped["droppedTargets"][0]["discoveredLabels"]["__address__"], "drop:1");
    assert_eq!(dropped["droppedTargets"][0]["scrapePool"], "app");
    let other = api(at, "targets", &[("scrapePool", "other")]);
    assert_eq!((&other["activeTargets"], &other["droppedTargets"]), (&json!([]), &json!([])));
    assert_eq!(api(at, "scrape_pools", &[]), json!({"scrapePools": ["app"]}));

    let described = api(at, "targets/metadata", &[("match_target", "{job=\"app\"}")]);
    let labels = &shown["labels"];
    assert_eq!(
        described,
        json!([
            {"target": labels, "metric": "a_total", "type": "counter", "help": "Number of a.",
             "unit": ""},
            {"target": labels, "metric": "b", "type": "gauge", "help": "", "unit": ""},
        ])
    );
    let of_b = api(at, "targets/metadata", &[("metric", "b")]);
    assert_eq!(of_b, json!([{"target": labels, "type": "gauge", "help": "", "unit": ""}]));
    assert_eq!(api(at, "targets/metadata", &[("match_target", "{job=\"z\"}")]), json!([]));
    assert_eq!(api(at, "metadata", &[("metric", "b")])["b"][0]["type"], "gauge");

    // The configuration as Prometheus prints it.
    let data = api(at, "status/config", &[]);
    let yaml = data["yaml"].as_str().expect("a text");
    assert!(yaml.starts_with("global:\n  scrape_interval: 500ms\n"), "{yaml}");
    assert!(yaml.contains("password: <secret>\n") && !yaml.contains("hidden"), "{yaml}");
    assert_eq!(api(at, "status/runtimeinfo", &[])["reloadConfigSuccess"], true);
    let second = "prometheus_target_interval_length_seconds_count{interval=\"500ms\"} ";
    wait_until("a second scrape", || get(at, "/metrics").text().contains(second));
    let metrics = get(at, "/metrics").text();
    for line in [
        "prometheus_config_last_reload_successful 1\n",
        "prometheus_target_scrape_pool_targets{scrape_job=\"app\"} 1\n",
        "prometheus_sd_discovered_targets{name=\"scrape\",config=\"app\"} 2\n",
        "prometheus_target_sync_length_seconds_count{scrape_job=\"app\"} ",
        "prometheus_target_sync_length_seconds{scrape_job=\"app\",quantile=\"0.5\"} 0",
        "prometheus_target_interval_length_seconds{interval=\"500ms\",quantile=\"0.01\"} ",
        "prometheus_target_interval_length_histogram_seconds_bucket{interval=\"500ms\",le=\"0.1\"} ",
        "firn_target_interval_length_seconds_count{interval=\"500ms\"} ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("firn_write_stored_samples_total{protocol=\"scrape\"} 0\n"));
    // Labels of the file are added to answers for other servers.
    wait_until("b has the label of the file", || {
        get(at, "/federate?match[]=b").text().contains("site=\"lab\"")
    });
}

#[test]
fn series_that_leave_and_targets_that_fail_are_stale() {
    let target = TargetServer::start(BODY);
    let files = Files::new(&config(&format!(
        "- job_name: app\n  static_configs: [{{targets: ['{}']}}]\n",
        target.address
    )));
    let server = files.serve();
    let at = server.at();
    wait_for_values(at, "b", &[(target.address, "7")]);
    target.set_body("a_total{x=\"1\"} 8\n");
    wait_for_values(at, "a_total", &[(target.address, "8")]);
    wait_for_values(at, "b", &[]);
    target.set_answer(answer("500 Oops", "text/plain", b"no"));
    wait_for_values(at, "up", &[(target.address, "0")]);
    wait_for_values(at, "a_total", &[]);
    let targets = wait_for_targets(at, |targets| health(targets, target.address) == "down");
    let error = &targets[&target.address.to_string()]["lastError"];
    assert_eq!(error, "server returned HTTP status 500 Internal Server Error");
    target.set_body(BODY);
    wait_for_values(at, "b", &[(target.address, "7")]);
}

// A target that repeats the request in its body: without the mend the page of targets showed the
// end of the token, as the error quotes a part of the line.
#[test]
fn a_credential_in_a_body_is_not_in_the_error_that_quotes_it() {
    let target = TargetServer::start("good 1\nsekret-token-1{ 5\n");
    let files = Files::new(&config(&format!(
        "- job_name: app\n  authorization: {{credentials: sekret-token-1}}\n  \
         static_configs: [{{targets: ['{}']}}]\n",
        target.address
    )));
    let server = files.serve();
    let targets =
        wait_for_targets(server.at(), |targets| health(targets, target.address) == "down");
    let error = targets[&target.address.to_string()]["lastError"].as_str().unwrap();
    assert!(error.contains("repeats a credential") && !error.contains("token"), "{error}");
}

// Bad input: each has a clear state, and the good target beside them is scraped.
#[test]
fn bad_answers_have_a_clear_state_and_disturb_nobody() {
    let text = "text/plain; version=0.0.4";
    let endless = {
        let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n".to_vec();
        bytes.extend(b"a 1\n".repeat(1 << 18));
        bytes
    };
    let redirect = b"HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: /metrics\r\n\
                     Content-Length: 0\r\n\r\n";
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (answer("200 OK", "text/html", b"<html>hello</html>"), "unsupported Content-Type"),
        (answer("200 OK", text, b"<html>hello</html>"), "line 1"),
        (answer("200 OK", text, b"a{b=\"\xff\xfe\"} 1\n"), "line 1"),
        (answer("404 Not Found", text, b""), "server returned HTTP status 404 Not Found"),
        (endless, "body size limit exceeded"),
        (redirect.to_vec(), "stopped after 10 redirects"),
        (b"nonsense\r\n\r\n".to_vec(), "Get \"http://127.0.0.1:"),
        (Vec::new(), "Get \"http://127.0.0.1:"),
    ];
    let servers: Vec<TargetServer> =
        cases.iter().map(|(bytes, _)| TargetServer::with_answer(bytes.clone())).collect();
    let good = TargetServer::start(BODY);
    let refused = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    };
    let mut addresses: Vec<String> =
        servers.iter().map(|server| format!("'{}'", server.address)).collect();
    addresses.push(format!("'{}'", good.address));
    addresses.push(format!("'{refused}'"));
    let files = Files::new(&config(&format!(
        "- job_name: app\n  body_size_limit: 100KB\n  static_configs: [{{targets: [{}]}}]\n\
         - job_name: tls\n  scheme: https\n  static_configs: [{{targets: ['{}']}}]\n\
         - job_name: ca\n  scheme: https\n  tls_config: {{ca_file: missing.pem}}\n  \
         static_configs: [{{targets: ['ca.invalid:1']}}]\n",
        addresses.join(", "),
        servers[0].address.to_string().replace("127.0.0.1", "localhost"),
    )));
    let server = files.serve();
    let at = server.at();
    let name = servers[0].address.to_string().replace("127.0.0.1", "localhost");
    let mut wanted: Vec<(String, &str)> =
        servers.iter().zip(&cases).map(|(one, case)| (one.address.to_string(), case.1)).collect();
    wanted.push((refused.to_string(), "refused"));
    wanted.push(("ca.invalid:1".to_owned(), "missing.pem"));
    wanted.push((name, "Get \"https://localhost:"));
    // On a busy machine an answer may also be late, so each state is awaited.
    wait_for_targets(at, |targets| {
        let has_state = |(address, want): &(String, &str)| {
            targets.get(address).is_some_and(|target| {
                let error = target["lastError"].as_str().unwrap_or_default();
                target["health"] == "down" && error.contains(want)
            })
        };
        wanted.retain(|wanted| !has_state(wanted));
        assert!([0, cases.len() + 4].contains(&targets.len()));
        wanted.is_empty() && health(targets, good.address) == "up"
    });
    wait_for_values(at, "b", &[(good.address, "7")]);
    let metrics = get(at, "/metrics").text();
    assert!(!metrics.contains("prometheus_target_scrapes_exceeded_body_size_limit_total 0\n"));
    assert!(!metrics.contains("prometheus_target_scrape_pools_failed_total 0\n"));
    assert!(!metrics.contains("firn_target_scrapes_total{result=\"failed\"} 0\n"));
}

/// Before, `scrape_failure_log_file` had no effect.
#[test]
fn scrapes_without_a_body_are_lines_of_the_log() {
    let text = "text/plain; version=0.0.4";
    let cases = [
        answer("404 Not Found", text, b""),
        answer("200 OK", text, b"<html>"),
        answer("200 OK", "text/html", b"<html>"),
        answer("200 OK", text, BODY.as_bytes()),
    ];
    let servers = cases.map(TargetServer::with_answer);
    let addresses = servers.iter().map(|server| format!("'{}'", server.address));
    let addresses: Vec<String> = addresses.collect();
    let jobs = |other: &str| {
        format!(
            "- job_name: app\n  scrape_failure_log_file: log\n  \
             static_configs: [{{targets: [{}]}}]\n\
             - job_name: other\n  scrape_failure_log_file: {other}\n  \
             static_configs: [{{targets: ['u:hidden@127.0.0.1:1']}}]\n",
            addresses.join(", "),
        )
    };
    let files = Files::new(&config(&jobs("prometheus.yml")));
    let server = files.serve();
    let at = server.at();
    let path = files.0.path().join("log");
    let lines = |path: &PathBuf| -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    wait_for_targets(at, |targets| {
        let is_tried = |one: &TargetServer| health(targets, one.address) != "unknown";
        targets.len() == 5 && servers.iter().all(is_tried) && lines(&path).len() > 1
    });
    for line in lines(&path) {
        let url = format!("http://{}/metrics", servers[0].address);
        assert_eq!((&line["job_name"], &line["target"]), (&json!("app"), &json!(url)), "{line}");
        assert_eq!(line["msg"], "server returned HTTP status 404 Not Found");
        assert_eq!(line["level"], "ERROR");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
    // The log is no file that the server reads.
    let unchanged = std::fs::read_to_string(files.0.path().join("prometheus.yml"));
    assert_eq!(unchanged.expect("a file"), config(&jobs("prometheus.yml")));

    let moved = files.0.path().join("moved");
    std::fs::rename(&path, &moved).expect("a file");
    files.write("prometheus.yml", &config(&jobs("other")));
    assert_eq!(send(at, "POST", "/-/reload", &[], b"").status, 200);
    let other = files.0.path().join("other");
    wait_until("lines of both logs", || [&path, &other].iter().all(|path| !lines(path).is_empty()));
    let line = &lines(&other)[0];
    assert_eq!(line["target"], "http://u:xxxxx@127.0.0.1:1/metrics");
    assert!(!line.to_string().contains("hidden"), "{line}");
    let targets = api(at, "targets", &[]);
    let errors = targets["activeTargets"].as_array().expect("a list").iter();
    let errors: Vec<&str> = errors.filter_map(|target| target["lastError"].as_str()).collect();
    let is_hidden = |error: &&str| error.contains("u:xxxxx@") && !error.contains("hidden");
    assert_eq!(errors.into_iter().filter(is_hidden).count(), 1, "{targets}");
    let dropped = "firn_scrape_failure_log_dropped_lines_total 0\n";
    assert!(get(at, "/metrics").text().contains(dropped));
}

#[test]
fn a_reload_changes_all_or_nothing_and_keeps_unchanged_targets() {
    let (first, second) = (TargetServer::start(BODY), TargetServer::start(BODY));
    let job = |name: &str, address: SocketAddr| {
        format!("- job_name: {name}\n  static_configs: [{{targets: ['{address}']}}]\n")
    };
    let files = Files::new(&config(&job("first", first.address)));
    let server = files.serve();
    let at = server.at();
    wait_for_targets(at, |targets| health(targets, first.address) == "up");

    // Mistakes of the file, and kinds of discovery that are not implemented, change nothing.
    for (text, want) in [
        ("scrape_configs: [{}]", "job_name is empty"),
        ("nonsense: 1", "field nonsense not found"),
        (
            "scrape_configs: [{job_name: a, nomad_sd_configs: [{}]}]",
            "nomad_sd_configs of job \"a\": this discovery is not implemented",
        ),
    ] {
        files.write("prometheus.yml", text);
        let refused = send(at, "POST", "/-/reload", &[], b"");
        assert_eq!(refused.status, 500);
        let shown = refused.text();
        assert!(shown.starts_with("failed to reload config: ") && shown.contains(want), "{shown}");
        assert_eq!(api(at, "status/runtimeinfo", &[])["reloadConfigSuccess"], false);
        assert!(get(at, "/metrics").text().contains("config_last_reload_successful 0\n"));
        assert_eq!(api(at, "scrape_pools", &[]), json!({"scrapePools": ["first"]}));
    }
    let before = first.request_count();
    wait_for_targets(at, |_| first.request_count() > before);

    files.write(
        "prometheus.yml",
        &config(&(job("first", first.address) + &job("second", second.address))),
    );
    assert_eq!(send(at, "PUT", "/-/reload", &[], b"").status, 200);
    // The first target keeps its state: it is never unknown again.
    let targets = wait_for_targets(at, |targets| {
        assert!(!["unknown", "absent"].contains(&health(targets, first.address)));
        health(targets, second.address) == "up"
    });
    assert_eq!(targets.len(), 2);
    assert_eq!(api(at, "status/runtimeinfo", &[])["reloadConfigSuccess"], true);
    wait_for_values(at, "b", &[(first.address, "7"), (second.address, "7")]);

    // The series of a removed job become stale, its reports too.
    files.write("prometheus.yml", &config(&job("second", second.address)));
    assert_eq!(send(at, "POST", "/-/reload", &[], b"").status, 200);
    wait_for_targets(at, |targets| targets.len() == 1);
    wait_for_values(at, "b", &[(second.address, "7")]);
    wait_for_values(at, "up", &[(second.address, "1")]);
    let metadata = api(at, "targets/metadata", &[("metric", "b")]);
    assert_eq!(metadata.as_array().map(Vec::len), Some(1));
}

/// Without a request; a mistake changes nothing, and the next text is loaded.
#[test]
fn a_changed_file_is_loaded_at_its_interval() {
    let files = Files::new("rule_files: ['*.rules']\n");
    let server = Running::start(&[&files.flag(), "--prometheus-config-reload=1s"]);
    let at = server.at();
    let rules = |name: &str| format!("groups: [{{name: {name}, rules: []}}]");
    let groups = || api(at, "rules", &[])["groups"].clone();
    let is_current = || api(at, "status/runtimeinfo", &[])["reloadConfigSuccess"] == true;
    files.write("a.rules", &rules("a").replace("[]", "[{record: r, expr: '1'}]"));
    wait_until("the new file is in use", || groups()[0]["name"] == "a");
    files.write("b.rules", "groups: [{nam: b}]");
    wait_until("the wrong file is seen", || !is_current());
    assert_eq!(groups().as_array().map(Vec::len), Some(1));
    std::fs::remove_file(files.0.path().join("b.rules")).expect("a file");
    wait_until("the file is right again", is_current);
}

/// A lack of memory passes, and a mistake in a file does not: they have different statuses.
#[test]
fn a_reload_without_memory_is_no_mistake_of_the_file() {
    let job =
        |targets: &str| format!("- job_name: a\n  static_configs: [{{targets: [{targets}]}}]\n");
    let files = Files::new(&config(&job("")));
    let server = Running::start(&[&files.flag(), "--enable-lifecycle", "--memory=64MiB"]);
    let reload = || send(server.at(), "POST", "/-/reload", &[], b"");
    let rules = "rule_files: [rules.yml]\n";
    files.write("rules.yml", &format!("groups: [{}]", "{},".repeat(1_000_000)));
    for large in [config(&job(&"x,".repeat(1_000_000))), rules.to_owned() + &config(&job(""))] {
        files.write("prometheus.yml", &large);
        let refused = reload();
        let shown = refused.text();
        assert_eq!(refused.status, 503, "{shown}");
        assert!(shown.contains("memory budget: "), "{shown}");
    }
    files.write("rules.yml", "groups: []");
    assert_eq!(reload().status, 200);
}

#[test]
fn lists_of_files_and_servers_are_followed() {
    let (first, second, third) =
        (TargetServer::start(BODY), TargetServer::start(BODY), TargetServer::start(BODY));
    let list = |address: SocketAddr| format!("[{{\"targets\": [\"{address}\"]}}]");
    let lists = TargetServer::with_answer(answer(
        "200 OK",
        "application/json",
        list(second.address).as_bytes(),
    ));
    let files = Files::new(&config(&format!(
        "- job_name: files\n  file_sd_configs: [{{files: ['*.json']}}]\n\
         - job_name: http\n  http_sd_configs: [{{url: 'http://{}/', refresh_interval: 500ms}}]\n",
        lists.address
    )));
    files.write("a.json", &list(first.address));
    let server = files.serve();
    let at = server.at();
    let targets = wait_for_targets(at, |targets| {
        health(targets, first.address) == "up" && health(targets, second.address) == "up"
    });
    let discovered =
        |address: SocketAddr| targets[&address.to_string()]["discoveredLabels"].clone();
    let path = files.0.path().join("a.json").display().to_string();
    assert_eq!(discovered(first.address)["__meta_filepath"], path);
    let url = format!("http://{}/", lists.address);
    assert_eq!(discovered(second.address)["__meta_url"], url);
    // Failures keep the last good lists.
    files.write("a.json", "[{\"targets\": [");
    lists.set_answer(answer("503 No", "application/json", b"[]"));
    let before = lists.request_count();
    let failed = "prometheus_sd_refresh_failures_total{name=\"scrape\",mechanism=\"file\"} 0\n";
    wait_for_targets(at, |targets| {
        assert_eq!(targets.len(), 2);
        lists.request_count() > before + 1 && !get(at, "/metrics").text().contains(failed)
    });
    let warnings = |path: &str| {
        let answer: Value = serde_json::from_str(&get(at, path).text()).expect("JSON");
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        let text = |warning: &Value| warning.as_str().expect("a text").to_owned();
        warnings.iter().map(text).collect::<Vec<_>>()
    };
    for path in ["/api/v1/targets", "/api/v1/scrape_pools"] {
        let shown = warnings(path);
        let starts = [
            "scrape pool \"files\": the discovery file failed, its last good list stays: ",
            "scrape pool \"http\": the discovery http failed, its last good list stays: ",
        ];
        let is_shown = shown.iter().zip(starts).all(|(text, start)| text.starts_with(start));
        assert!(shown.len() == 2 && is_shown, "{path}: {shown:?}");
    }
    files.write("a.json", "[]");
    lists.set_answer(answer("200 OK", "application/json", list(third.address).as_bytes()));
    wait_for_targets(at, |targets| targets.len() == 1 && health(targets, third.address) == "up");
    assert!(warnings("/api/v1/targets").is_empty());
}

/// Before, a job whose first list was refused looked like one without targets.
#[test]
fn a_list_that_is_refused_is_shown_and_the_next_one_is_used() {
    let (first, second) = (TargetServer::start(BODY), TargetServer::start(BODY));
    let list = |addresses: &[String]| format!("[{{\"targets\": {}}}]", json!(addresses));
    let many: Vec<String> = (0..20_000).map(|idx| format!("host-{idx}:1")).collect();
    let files = Files::new(&config("- job_name: j\n  file_sd_configs: [{files: ['*.json']}]\n"));
    files.write("a.json", &list(&many));
    let server = Running::start(&[&files.flag(), "--memory=64MiB"]);
    let at = server.at();
    let warning = |path: &str| {
        let answer: Value = serde_json::from_str(&get(at, path).text()).expect("JSON");
        answer["warnings"][0].as_str().unwrap_or_default().to_owned()
    };
    let wait_for_refusal = |is_refused: bool| {
        for path in ["/api/v1/targets", "/api/v1/scrape_pools"] {
            wait_until(path, || warning(path).is_empty() != is_refused);
        }
        let value = u8::from(is_refused);
        let metric = format!("firn_target_scrape_pool_list_refused{{scrape_job=\"j\"}} {value}\n");
        assert!(get(at, "/metrics").text().contains(&metric), "{metric}");
    };
    wait_for_refusal(true);
    let text = warning("/api/v1/targets");
    let start = "scrape pool \"j\": the last list of targets was refused: no memory is left for the \
                 targets: list fewer targets, or raise --memory";
    assert!(text.starts_with(start), "{text}");
    assert_eq!(warning("/api/v1/targets?scrapePool=other"), "");
    files.write("a.json", &list(&[first.address.to_string()]));
    wait_for_targets(at, |targets| targets.len() == 1 && health(targets, first.address) == "up");
    wait_for_refusal(false);
    files.write("a.json", &list(&many));
    wait_for_refusal(true);
    wait_for_targets(at, |targets| targets.len() == 1 && health(targets, first.address) == "up");
    files.write("a.json", &list(&[second.address.to_string()]));
    wait_for_targets(at, |targets| targets.len() == 1 && health(targets, second.address) == "up");
    wait_for_refusal(false);
}

#[test]
fn a_file_that_cannot_be_used_refuses_the_start() {
    let f = |text: Option<&str>, want: &str| {
        let files = Files::new(text.unwrap_or_default());
        if text.is_none() {
            std::fs::remove_file(files.0.path().join("prometheus.yml")).expect("removed");
        }
        let error = crate::try_start(&files.0.path().join("data"), &[&files.flag()]);
        let error = error.expect_err("a refusal").to_string();
        assert!(error.contains("--prometheus-config") && error.contains(want), "{error}");
    };
    f(None, "no such file or directory");
    f(Some("scrape_configs: [{job_name: a}, {job_name: a}]"), "multiple scrape configs");
    f(
        Some("scrape_configs: [{job_name: a, nomad_sd_configs: [{}]}]"),
        "nomad_sd_configs of job \"a\"",
    );
}

// Limits of the server on series and labels: known series are stored, refused samples are counted.
#[test]
fn limits_of_series_refuse_only_the_series_beyond_them() {
    let body: String = (0..20).map(|idx| format!("m{{x=\"{idx:02}\"}} {idx}\n")).collect();
    let target = TargetServer::start("m{x=\"00\"} 0\n");
    let files = Files::new(&config(&format!(
        "- job_name: app\n  static_configs: [{{targets: ['{}']}}]\n",
        target.address
    )));
    let server = Running::start(&[&files.flag(), "--series-max=15"]);
    let at = server.at();
    wait_for_values(at, "up", &[(target.address, "1")]);
    target.set_body(&body);
    let rejected = |text: &str| {
        let name = "firn_write_rejected_samples_total{protocol=\"scrape\",reason=\"series_max\"} ";
        let rest = text.split_once(name).expect("the counter").1;
        rest.lines().next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
    };
    wait_until("series are refused", || rejected(&get(at, "/metrics").text()) >= 20.0);
    // Five reports, and as many others as there is room.
    wait_until("ten are stored", || {
        api(at, "query", &[("query", "count(m)")])["result"][0]["value"][1] == "10"
    });
    wait_for_values(at, "m{x=\"00\"}", &[(target.address, "0")]);
    wait_for_values(at, "up", &[(target.address, "1")]);
}

// Item 37: a stop of the server marks no series.
#[test]
fn a_stop_marks_nothing_stale() {
    let target = TargetServer::start(BODY);
    let files = Files::new(&config(&format!(
        "- job_name: app\n  scrape_interval: 3s\n  static_configs: [{{targets: ['{}']}}]\n",
        target.address
    )));
    let mut server = files.serve();
    wait_for_values(server.at(), "b", &[(target.address, "7")]);
    server.restart(&["--enable-lifecycle"]);
    assert_eq!(values(server.at(), "b").len(), 1);
    server.restart(&[&files.flag()]);
    wait_for_targets(server.at(), |targets| health(targets, target.address) == "up");
}
