//! The tasks of discoveries and their last good lists.

mod api;
mod consul;
mod counts;
mod dns;
mod docker;
mod ec2;
#[cfg(test)]
mod echoes;
mod kubernetes;
#[cfg(test)]
mod redirects;
#[cfg(test)]
mod test_server;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::http::HeaderName;
use firn_collect::discovery::{
    DnsTargets, FileTargets, HttpTargets, Provider, heap_bytes, static_groups,
};
use firn_collect::pool::DiscoveredGroup;
use firn_fetch::dns::DnsSettings;
use firn_fetch::{Bodies, Client, Connections, Request};
use firn_model::{Budget, Error, Pool, Reservation, excerpt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use self::counts::DiscoveryCounts;
use self::docker::Daemon;
use super::files::LocalFiles;
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;
use crate::throttle::EventCount;

/// The client's name in requests to targets and discoveries.
pub(crate) const USER_AGENT: &str = concat!("FirnDB/", env!("CARGO_PKG_VERSION"));

/// The discoveries of a part of the server: of the jobs, or of the sets of Alertmanagers. Dropping
/// it stops them.
#[derive(Debug)]
pub(crate) struct DiscoveryTasks {
    /// The label `name` of metrics: `scrape` or `notify`, as in Prometheus.
    name: &'static str,
    sets: Mutex<BTreeMap<String, Vec<Arc<DiscoveryTask>>>>,
    shared: Arc<SharedLists>,
}

/// A good list, with its memory.
#[derive(Debug)]
pub(crate) struct TargetList {
    pub(crate) groups: Vec<DiscoveredGroup>,
    _held: Option<Reservation>,
}

/// The state that all tasks share.
struct SharedLists {
    budget: Budget,
    bodies: Bodies,
    /// Rises with every new list.
    changes: watch::Sender<u64>,
    failures: [Counter; KINDS.len()],
    counts: Arc<DiscoveryCounts>,
    /// The errors of refreshes.
    #[cfg(test)]
    errors: Mutex<Vec<String>>,
}

const KINDS: [&str; 9] =
    ["static", "file", "http", "dns", "consul", "docker", "dockerswarm", "ec2", "kubernetes"];

/// One discovery, shared by all sets that have it.
struct DiscoveryTask {
    provider: Provider,
    state: Arc<TaskState>,
    work: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct TaskState {
    /// `None` until the first refresh, good or not, is over.
    list: Mutex<Option<Arc<TargetList>>>,
    failure: Mutex<RefreshFailure>,
    /// The files of the last good lists, with the times of their changes in seconds.
    file_times: Mutex<BTreeMap<PathBuf, f64>>,
}

/// Whether refreshes of a discovery fail.
#[derive(Debug, Default)]
struct RefreshFailure {
    /// The last failure, until a refresh without any.
    shown: Option<Box<str>>,
    /// Whether a part of the present refresh has failed.
    is_in_part: bool,
    lines: EventCount,
}

// The files of lists are checked this often for a change.
const FILE_POLL: Duration = Duration::from_secs(1);
// The longest answer of an HTTP server.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

impl DiscoveryTasks {
    /// No discoveries. The memory of lists is part of `budget`.
    pub(crate) fn new(name: &'static str, budget: &Budget) -> DiscoveryTasks {
        let (changes, _) = watch::channel(0);
        let shared = SharedLists {
            budget: budget.clone(),
            bodies: Bodies::new(budget),
            changes,
            failures: Default::default(),
            counts: Arc::default(),
            #[cfg(test)]
            errors: Mutex::default(),
        };
        DiscoveryTasks { name, sets: Mutex::default(), shared: Arc::new(shared) }
    }

    /// Sets the discoveries of each set. Those that were there before continue with their lists.
    /// Needs the context of the runtime.
    pub(crate) fn set(&self, sets: impl IntoIterator<Item = (String, Vec<Provider>)>) {
        let mut current = self.sets.lock();
        let mut tasks: Vec<Arc<DiscoveryTask>> = current.values().flatten().cloned().collect();
        let mut task_of = |provider: Provider| {
            let known = tasks.iter().find(|task| task.provider == provider).cloned();
            known.unwrap_or_else(|| {
                let task = Arc::new(DiscoveryTask::start(provider, &self.shared));
                tasks.push(Arc::clone(&task));
                task
            })
        };
        let sets = sets.into_iter().map(|(name, providers)| {
            (name, providers.into_iter().map(&mut task_of).collect::<Vec<_>>())
        });
        *current = sets.collect();
    }

    /// The lists of a set; `None` while the first refresh of one of its discoveries runs.
    pub(crate) fn lists(&self, set: &str) -> Option<Vec<Arc<TargetList>>> {
        let sets = self.sets.lock();
        let tasks = sets.get(set).into_iter().flatten();
        tasks.map(|task| task.state.list.lock().clone()).collect()
    }

    /// The lists of the discoveries of a set whose first refresh is over.
    pub(crate) fn known_lists(&self, set: &str) -> Vec<Arc<TargetList>> {
        let sets = self.sets.lock();
        let tasks = sets.get(set).into_iter().flatten();
        tasks.filter_map(|task| task.state.list.lock().clone()).collect()
    }

    /// A sentence for each discovery of a set whose last refresh failed.
    pub(crate) fn failures(&self, set: &str) -> Vec<String> {
        let sets = self.sets.lock();
        let failure = |task: &Arc<DiscoveryTask>| {
            let failure = task.state.failure.lock();
            let (kind, error) = (task.provider.kind(), failure.shown.as_ref()?);
            Some(format!("the discovery {kind} failed, its last good list stays: {error}"))
        };
        sets.get(set).into_iter().flatten().filter_map(failure).collect()
    }

    /// Changes whenever a list does.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Writes the metrics of the discoveries of all parts.
    pub(crate) fn write_all(all: &[&DiscoveryTasks], text: &mut MetricsText) {
        let all: Vec<_> = all.iter().map(|tasks| (*tasks, tasks.sets.lock())).collect();
        let counts: Vec<_> =
            all.iter().map(|(tasks, _)| (tasks.name, &*tasks.shared.counts)).collect();
        for prefix in ["firn", "prometheus"] {
            let name = format!("{prefix}_sd_discovered_targets");
            text.family(&name, Kind::Gauge, "Targets in the last good lists of discoveries.");
            for (part, sets) in &all {
                for (set, tasks) in sets.iter() {
                    let labels = [("name", part.name), ("config", set.as_str())];
                    let count: usize = tasks.iter().map(|task| task.state.target_count()).sum();
                    text.sample(&name, &labels, count as f64);
                }
            }
            let name = format!("{prefix}_sd_refresh_failures_total");
            text.family(&name, Kind::Counter, "Refreshes of discoveries that failed.");
            for (part, _) in &all {
                for (kind, failures) in KINDS.iter().zip(&part.shared.failures).skip(1) {
                    let labels = [("name", part.name), ("mechanism", *kind)];
                    text.sample(&name, &labels, failures.get() as f64);
                }
            }
            let name = format!("{prefix}_sd_http_failures_total");
            text.family(&name, Kind::Counter, "Refreshes of HTTP discoveries that failed.");
            let http = KINDS.iter().position(|kind| *kind == "http");
            for (part, _) in &all {
                let failures = http.and_then(|idx| part.shared.failures.get(idx));
                let count = failures.map_or(0, Counter::get);
                text.sample(&name, &[("name", part.name)], count as f64);
            }
            let name = format!("{prefix}_sd_updates_total");
            text.family(&name, Kind::Counter, "New lists of discoveries.");
            for (part, _) in &all {
                let count = *part.shared.changes.borrow();
                text.sample(&name, &[("name", part.name)], count as f64);
            }
            let name = format!("{prefix}_sd_failed_configs");
            let help = "Always 0: a discovery that cannot be made refuses the configuration.";
            text.family(&name, Kind::Gauge, help);
            for (part, sets) in &all {
                for set in sets.keys() {
                    text.sample(&name, &[("name", part.name), ("config", set)], 0.0);
                }
            }
            counts::write_text(prefix, &counts, text);
            let name = format!("{prefix}_sd_file_mtime_seconds");
            text.family(&name, Kind::Gauge, "Last change of each file of targets in use.");
            for (part, sets) in &all {
                // A file of several discoveries is one sample.
                let mut times = BTreeMap::new();
                for task in sets.values().flatten() {
                    times.extend(task.state.file_times.lock().clone());
                }
                for (path, time) in &times {
                    let filename = path.to_string_lossy();
                    text.sample(&name, &[("name", part.name), ("filename", &filename)], *time);
                }
            }
        }
    }
}

impl fmt::Debug for SharedLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLists").finish_non_exhaustive()
    }
}

/// Without the provider, which may have long lists.
impl fmt::Debug for DiscoveryTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoveryTask").field("kind", &self.provider.kind()).finish()
    }
}

impl DiscoveryTask {
    fn start(provider: Provider, shared: &Arc<SharedLists>) -> DiscoveryTask {
        let state = Arc::new(TaskState::default());
        let run =
            Run { kind: provider.kind(), state: Arc::clone(&state), shared: Arc::clone(shared) };
        let work = match provider.clone() {
            Provider::Static(groups) => {
                let groups = static_groups(&groups);
                // The file was read within the memory.
                let mut held = shared.budget.empty(Pool::Cache);
                held.take(heap_bytes(&groups) as u64);
                let list = TargetList { groups, _held: Some(held) };
                *state.list.lock() = Some(Arc::new(list));
                None
            }
            Provider::File(config) => Some(tokio::spawn(run.files(FileTargets::new(config)))),
            Provider::Http(config) => Some(tokio::spawn(run.http(HttpTargets::new(*config)))),
            Provider::Ec2(config) => Some(tokio::spawn(run.ec2(*config))),
            Provider::Kubernetes(config) => Some(tokio::spawn(run.kubernetes(*config))),
            Provider::Dns(config) => {
                Some(tokio::spawn(run.dns(DnsTargets::new(config), DnsSettings::of_system)))
            }
            Provider::Consul(targets) => {
                Some(tokio::spawn(run.consul(*targets, consul::WatchTimes::DEFAULT)))
            }
            Provider::Docker(targets) => Some(tokio::spawn(run.daemon(Daemon::Docker(*targets)))),
            Provider::Swarm(targets) => Some(tokio::spawn(run.daemon(Daemon::Swarm(*targets)))),
        };
        DiscoveryTask { provider, state, work }
    }
}

impl Drop for DiscoveryTask {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            work.abort();
        }
    }
}

impl TaskState {
    fn target_count(&self) -> usize {
        let list = self.list.lock();
        list.iter().flat_map(|list| &list.groups).map(|group| group.targets.len()).sum()
    }
}

impl RefreshFailure {
    /// The parts of a refresh that did not fail are published.
    fn refreshed(&mut self) {
        if !std::mem::take(&mut self.is_in_part) {
            self.shown = None;
        }
    }
}

/// The work of a task.
struct Run {
    kind: &'static str,
    state: Arc<TaskState>,
    shared: Arc<SharedLists>,
}

impl Run {
    /// As [`Run::publish`] of a list of at most `bytes`. Without memory the refresh has failed.
    fn publish_copy(&self, bytes: usize, groups: impl FnOnce() -> Vec<DiscoveredGroup>) {
        match self.shared.budget.reserve(Pool::Cache, bytes as u64) {
            Ok(held) => self.publish(groups(), held),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// A refresh has found `groups`.
    fn publish(&self, groups: Vec<DiscoveredGroup>, held: Reservation) {
        self.state.failure.lock().refreshed();
        let mut list = self.state.list.lock();
        if list.as_ref().is_some_and(|list| list.groups == groups) {
            return;
        }
        *list = Some(Arc::new(TargetList { groups, _held: Some(held) }));
        drop(list);
        self.announce();
    }

    /// A part of a refresh has failed: its last good list stays.
    fn failed_in_part(&self, error: &str) {
        self.count_failure(error);
        self.state.failure.lock().is_in_part = true;
    }

    fn count_failure(&self, error: &str) {
        #[cfg(test)]
        self.shared.errors.lock().push(error.to_owned());
        if let Some(idx) = KINDS.iter().position(|kind| *kind == self.kind) {
            self.shared.failures[idx].add(1);
        }
        let due = {
            let mut failure = self.state.failure.lock();
            failure.shown = Some(excerpt(error).into());
            failure.lines.note(1, Instant::now())
        };
        if let Some(count) = due {
            let kind = self.kind;
            tracing::warn!(kind, count, error, "a discovery failed; its last good list stays");
        }
    }

    /// A refresh has failed: the last good list stays.
    fn failed(&self, error: &str) {
        self.count_failure(error);
        let mut list = self.state.list.lock();
        if list.is_none() {
            *list = Some(Arc::new(TargetList { groups: Vec::new(), _held: None }));
            drop(list);
            self.announce();
        }
    }

    /// A refresh of a whole list that began at `start` is over, good or not.
    fn refreshed(&self, start: Instant) {
        self.shared.counts.add_refresh(self.kind, start.elapsed());
    }

    fn announce(&self) {
        self.shared.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Reads files again when one of them has changed, and each refresh interval.
    async fn files(self, mut targets: FileTargets) {
        let refresh = Duration::from_millis(targets.refresh_ms().max(1));
        let mut stamps = None;
        let mut read_at = Instant::now();
        loop {
            let is_due = stamps.is_none() || read_at.elapsed() >= refresh;
            let files = LocalFiles { budget: self.shared.budget.clone() };
            let polling = spawn_blocking(move || {
                let start = Instant::now();
                let paths = targets.paths(&files);
                // Before the files: a change during the read is found by the next poll.
                let found = Some(file_stamps(&paths));
                let is_changed = is_due || found != stamps;
                let errors = is_changed.then(|| targets.refresh(&paths, &files));
                (targets, found, errors.map(|errors| (errors, start.elapsed())))
            });
            let Ok((polled, found, scanned)) = polling.await else { return };
            (targets, stamps) = (polled, found);
            if let Some((errors, took)) = scanned {
                read_at = Instant::now();
                self.shared.counts.add_file_scan(took, errors.len());
                self.note_file_times(stamps.as_deref().unwrap_or_default(), &errors);
                for (path, error) in &errors {
                    self.failed_in_part(&format!("{}: {error}", path.display()));
                }
                self.publish_copy(targets.groups_bytes(), || targets.groups());
            }
            tokio::time::sleep(FILE_POLL).await;
        }
    }

    /// A file that cannot be read keeps the time of its last good list.
    fn note_file_times(&self, stamps: &[FileStamp], errors: &[(PathBuf, Error)]) {
        let failed: HashSet<&Path> = errors.iter().map(|(path, _)| path.as_path()).collect();
        let mut times = self.state.file_times.lock();
        let previous = std::mem::take(&mut *times);
        for stamp in stamps {
            let since = stamp.modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let time = match failed.contains(stamp.path.as_path()) {
                false => since.map(|since| since.as_secs_f64()),
                true => previous.get(&stamp.path).copied(),
            };
            times.extend(time.map(|time| (stamp.path.clone(), time)));
        }
    }

    /// Requests the list each refresh interval.
    async fn http(self, targets: HttpTargets) {
        let refresh = Duration::from_millis(targets.refresh_ms());
        let targets = Arc::new(targets);
        let mut connections = Connections::default();
        let mut client = None;
        loop {
            let start = Instant::now();
            match self.request(&targets, &mut client, &mut connections).await {
                Ok((groups, held)) => self.publish(groups, held),
                Err(error) => self.failed(&format!("{}: {error}", targets.config().url)),
            }
            self.refreshed(start);
            tokio::time::sleep(refresh).await;
        }
    }

    async fn request(
        &self,
        targets: &Arc<HttpTargets>,
        client: &mut Option<Client>,
        connections: &mut Connections,
    ) -> Result<(Vec<DiscoveredGroup>, Reservation), String> {
        let SharedLists { budget, bodies, .. } = &*self.shared;
        let client = match client {
            Some(client) => client,
            None => client.insert(
                Client::new(&targets.config().http, bodies).map_err(|error| error.to_string())?,
            ),
        };
        let headers = targets.headers(USER_AGENT).into_iter();
        let request = Request {
            url: targets.config().url.as_str().to_owned(),
            unix_socket: None,
            headers: headers.map(|(name, text)| (HeaderName::from_static(name), text)).collect(),
            authorization: None,
            secrets: Vec::new(),
            content: None,
            body_bytes_max: ANSWER_BYTES_MAX,
            timeout: Duration::from_millis(targets.refresh_ms()),
        };
        let response =
            client.send(&request, connections).await.map_err(|error| error.to_string())?;
        let (targets, budget) = (Arc::clone(targets), budget.clone());
        let reading = spawn_blocking(move || {
            let status = response.status_text();
            let read = targets.groups(&status, response.content_type(), &response.body, &budget);
            read.map_err(|error| response.without_secrets(error))
        });
        reading.await.map_err(|e| not_read("the list", &e))?
    }
}

/// Why a task that reads `what` has no result: the server is stopping, or it panicked.
fn not_read(what: &str, error: &tokio::task::JoinError) -> String {
    match error.is_cancelled() {
        true => "the server is stopping".to_owned(),
        false => format!("reading {what} panicked, which is a bug"),
    }
}

/// The state of a file that a change of it changes.
#[derive(Debug, PartialEq, Eq)]
struct FileStamp {
    path: PathBuf,
    modified: Option<std::time::SystemTime>,
    bytes: u64,
    inode: u64,
}

fn file_stamps(paths: &[PathBuf]) -> Vec<FileStamp> {
    use std::os::unix::fs::MetadataExt;
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(FileStamp {
            path: path.clone(),
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            inode: metadata.ino(),
        })
    };
    paths.iter().filter_map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use firn_collect::config::Config;
    use std::net::SocketAddr;

    use super::*;

    pub(super) fn providers(keys: &str) -> Vec<Provider> {
        let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
        let loaded = Config::parse(&text, &|_| None).unwrap();
        Provider::all_of(&loaded.config.scrape_configs[0].discoveries, "job").unwrap()
    }

    fn addresses(tasks: &DiscoveryTasks, set: &str) -> Option<Vec<String>> {
        let lists = tasks.lists(set)?;
        let groups = lists.iter().flat_map(|list| &list.groups);
        let targets = groups.flat_map(|group| &group.targets);
        Some(targets.map(|target| target.get("__address__").unwrap().to_owned()).collect())
    }

    async fn wait_for(tasks: &DiscoveryTasks, set: &str, want: &[&str]) {
        let mut changes = tasks.changes();
        let waiting = async {
            while addresses(tasks, set).is_none_or(|found| found != want) {
                changes.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "{:?}, expected {want:?}", addresses(tasks, set));
    }

    pub(super) fn failures(tasks: &DiscoveryTasks, kind: &str) -> u64 {
        tasks.shared.failures[KINDS.iter().position(|known| *known == kind).unwrap()].get()
    }

    fn write(path: &Path, text: &str) {
        // In one step, as a reader of half a file would see a mistake.
        let other = path.with_extension("new");
        std::fs::write(&other, text).unwrap();
        std::fs::rename(other, path).unwrap();
    }

    #[tokio::test]
    async fn files_are_watched_and_a_broken_one_keeps_its_list() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yml");
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(1 << 20));
        write(&path, "- {targets: [h:1]}");
        let keys = format!(
            "file_sd_configs: [{{files: ['{}/*.yml']}}], static_configs: [{{targets: [h:0]}}]",
            folder.path().display()
        );
        tasks.set([("j".to_owned(), providers(&keys))]);
        wait_for(&tasks, "j", &["h:0", "h:1"]).await;
        write(&path, "- {targets: [h:2]}");
        wait_for(&tasks, "j", &["h:0", "h:2"]).await;
        // An equal discovery continues; so it knows the old list of the broken file.
        write(&path, "- {targets: [h:2");
        tasks.set([("j".to_owned(), providers(&keys)), ("k".to_owned(), providers(&keys))]);
        while failures(&tasks, "file") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(addresses(&tasks, "k").unwrap(), ["h:0", "h:2"]);
        let metrics = || {
            let mut text = MetricsText::default();
            DiscoveryTasks::write_all(&[&tasks], &mut text);
            text.finish()
        };
        let (text, filename) = (metrics(), path.display());
        let mtime = "prometheus_sd_file_mtime_seconds{name=\"scrape\",filename=";
        let file = format!("{mtime}\"{filename}\"}} 1");
        assert_eq!((text.matches(mtime).count(), text.contains(&file)), (1, true), "{text}");
        for (name, least) in [("read_errors_total", 1.0), ("scan_duration_seconds_count", 3.0)] {
            let start = format!("prometheus_sd_file_{name}{{name=\"scrape\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
            assert!(value.parse::<f64>().unwrap() >= least, "{name}: {text}");
        }
        std::fs::remove_file(&path).unwrap();
        wait_for(&tasks, "k", &["h:0"]).await;
        assert!(!metrics().contains(mtime), "{}", metrics());
        tasks.set([]);
        assert_eq!(tasks.lists("j").map(|lists| lists.len()), Some(0));
    }

    /// A server that returns each of `answers` once, the last one again and again.
    async fn serve(answers: Vec<&'static str>) -> SocketAddr {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut answers = answers.into_iter();
            let mut answer = answers.next().unwrap_or_default();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4_096];
                let len = stream.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..len]).to_lowercase();
                assert!(head.contains("x-prometheus-refresh-interval-seconds: 1.1\r\n"), "{head}");
                let _ = stream.write_all(answer.as_bytes()).await;
                answer = answers.next().unwrap_or(answer);
            }
        });
        address
    }

    fn served_by(address: SocketAddr) -> Vec<Provider> {
        // The interval is the time limit of a request, too.
        providers(&format!(
            "http_sd_configs: [{{url: 'http://{address}/', refresh_interval: 1100ms}}]"
        ))
    }

    #[tokio::test]
    async fn a_server_that_fails_keeps_its_list() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
        let good = |body: &str| -> &'static str {
            format!("{HEAD}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).leak()
        };
        let answers = vec![
            good(r#"[{"targets": ["h:1", "h:2"]}]"#),
            "HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            good("[null]"),
            "nonsense\r\n\r\n",
            good(r#"[{"targets": ["h:3"]}]"#),
        ];
        let address = serve(answers).await;
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(1 << 20));
        tasks.set([("j".to_owned(), served_by(address))]);
        wait_for(&tasks, "j", &["h:1", "h:2"]).await;
        wait_for(&tasks, "j", &["h:3"]).await;
        assert_eq!(failures(&tasks, "http"), 3);
        let mut text = MetricsText::default();
        DiscoveryTasks::write_all(&[&tasks], &mut text);
        let text = text.finish();
        let want = "prometheus_sd_discovered_targets{name=\"scrape\",config=\"j\"} 1\n";
        assert!(text.contains(want), "{text}");
        assert!(text.contains(
            "prometheus_sd_refresh_failures_total{name=\"scrape\",mechanism=\"http\"} 3\n"
        ));
        assert!(text.contains("prometheus_sd_http_failures_total{name=\"scrape\"} 3\n"), "{text}");
        let name = "prometheus_sd_refresh_duration_seconds_count";
        let start = format!("{name}{{name=\"scrape\",mechanism=\"http\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        assert!(count.parse::<u64>().unwrap() >= 4, "{text}");
    }

    /// Before, a list that is read each millisecond and fails filled the log.
    #[test]
    fn failures_of_a_discovery_are_one_line_a_minute() {
        let (run, task) = test_run("http", 1 << 20);
        let lines = crate::throttle::lines_of(|| {
            for _ in 0..1_000 {
                run.failed("first");
                run.failed_in_part("second");
            }
        });
        assert_eq!((lines.len(), task.failures("http")), (1, 2_000), "{lines:?}");
        assert!(lines[0].contains("\"first\""), "{lines:?}");
    }

    #[tokio::test]
    async fn a_list_without_memory_is_a_failed_refresh() {
        let targets: Vec<String> = (0..10_000).map(|idx| format!("\"h:{idx}\"")).collect();
        let body = format!("[{{\"targets\": [{}]}}]", targets.join(","));
        let answer = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let address = serve(vec![answer.leak()]).await;
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(1 << 20));
        tasks.set([("j".to_owned(), served_by(address))]);
        wait_for(&tasks, "j", &[]).await;
        assert!(failures(&tasks, "http") > 0);
    }

    /// A task that runs on its own, with its state.
    pub(super) fn test_run(kind: &'static str, memory: u64) -> (Run, TestTask) {
        let tasks = DiscoveryTasks::new("scrape", &Budget::new(memory));
        let task = TestTask { state: Arc::default(), tasks };
        let (state, shared) = (Arc::clone(&task.state), Arc::clone(&task.tasks.shared));
        (Run { kind, state, shared }, task)
    }

    pub(super) struct TestTask {
        state: Arc<TaskState>,
        tasks: DiscoveryTasks,
    }

    impl TestTask {
        /// The addresses of the last good list, in order.
        pub(super) fn addresses(&self) -> Option<Vec<String>> {
            let list = self.state.list.lock().clone()?;
            let targets = list.groups.iter().flat_map(|group| &group.targets);
            let address = |target: &firn_collect::config::LabelSet| {
                target.get("__address__").unwrap().to_owned()
            };
            let mut addresses: Vec<String> = targets.map(address).collect();
            addresses.sort_unstable();
            Some(addresses)
        }

        pub(super) async fn wait_for(&self, want: &[&str]) {
            let mut changes = self.tasks.changes();
            let waiting = async {
                while self.addresses().is_none_or(|found| found != want) {
                    changes.changed().await.unwrap();
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
            assert!(waited.is_ok(), "{:?}, expected {want:?}", self.addresses());
        }

        pub(super) fn failures(&self, kind: &str) -> u64 {
            failures(&self.tasks, kind)
        }

        /// The metric `name`, with labels, under the prefix of Prometheus.
        pub(super) fn metric(&self, name: &str) -> f64 {
            let mut text = MetricsText::default();
            DiscoveryTasks::write_all(&[&self.tasks], &mut text);
            let text = text.finish();
            let start = format!("prometheus_sd_{name} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            value.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
        }

        /// Waits until `count` refreshes have failed, which changes no list.
        pub(super) async fn wait_for_failures(&self, kind: &str, count: u64) {
            let failing = async {
                while failures(&self.tasks, kind) < count {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(60), failing).await;
            assert!(waited.is_ok(), "{}, expected {count}", failures(&self.tasks, kind));
        }
    }
}
