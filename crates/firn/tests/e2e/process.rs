//! Programs of a scene: started on ports and folders of their own, killed at its end.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use firn_hostile::free_address;

use crate::http;

/// A running program; killed when dropped.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, its output in `folder/<name>.log`.
    pub(crate) fn start(name: &str, folder: &Path, command: &mut Command) -> Process {
        let log = folder.join(format!("{name}.log"));
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log file"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        Process { child, name: name.into(), log }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, as a service manager stops a program; its exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal("-TERM", &self.child.id().to_string())
    }

    /// The same for the program that this one started and waits for, as strace does.
    pub(crate) fn terminate_child(&mut self) -> Option<i32> {
        self.signal("-TERM", &self.child_pid())
    }

    /// SIGKILL for the program that this one started and waits for.
    pub(crate) fn kill_child(&mut self) {
        self.signal("-KILL", &self.child_pid());
    }

    /// SIGHUP: a server reloads.
    pub(crate) fn hang_up(&self) {
        self.send("-HUP");
    }

    /// Sends a signal, such as `-USR1`.
    pub(crate) fn send(&self, signal: &str) {
        let pid = self.child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().expect("kill runs");
    }

    fn child_pid(&self) -> String {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("the kernel lists children");
        children.split_whitespace().next().expect("a child").to_owned()
    }

    /// Sends it to `pid`, and waits until this program has ended.
    fn signal(&mut self, signal: &str, pid: &str) -> Option<i32> {
        Command::new("kill").args([signal, pid]).status().expect("kill runs");
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status.code();
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("{} does not stop on {signal}; {}", self.name, self.output());
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let output = self.output();
            let tail: Vec<&str> = output.lines().rev().take(20).collect();
            eprintln!("-- the last lines of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("   {line}"));
        }
    }
}

/// Our own binary, listening at `address` with its data in `folder`.
pub(crate) fn firn(folder: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.arg("serve").arg("--data").arg(folder.join("firn-data"));
    command.arg("--listen").arg(address.to_string());
    command
}

pub(crate) fn start_firn(folder: &Path, address: SocketAddr) -> Process {
    let process = Process::start("firn", folder, &mut firn(folder, address));
    wait_until_ready(address, "/-/ready");
    process
}

/// A node exporter.
pub(crate) fn start_node_exporter(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(program);
    let process = Process::start(
        "node-exporter",
        folder,
        command.arg(format!("--web.listen-address={address}")),
    );
    wait_until_ready(address, "/metrics");
    process
}

/// A Pushgateway to which a job has pushed a counter.
pub(crate) fn start_pushgateway(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(program);
    command.arg(format!("--web.listen-address={address}"));
    let process = Process::start("pushgateway", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    let body = "# TYPE rows_total counter\nrows_total{kind=\"a b\"} 12\n";
    let path = "/metrics/job/batch/instance/nightly";
    let pushed = http::request(address, "PUT", path, &[], body.as_bytes());
    assert!(pushed.is_some_and(|answer| answer.status < 300), "{}", process.output());
    process
}

/// A Redis without a file of its data; `None` where it is not installed.
pub(crate) fn start_redis(folder: &Path, address: SocketAddr) -> Option<Process> {
    let mut command = Command::new(find("redis-server")?);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--save", "", "--dir"]).arg(folder);
    Some(Process::start("redis", folder, &mut command))
}

/// A Redis exporter; without a Redis at `redis` it reports that Redis as down.
pub(crate) fn start_redis_exporter(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    redis: SocketAddr,
) -> Process {
    let mut command = Command::new(program);
    command.arg(format!("--web.listen-address={address}"));
    command.arg(format!("--redis.addr=redis://{redis}"));
    let process = Process::start("redis-exporter", folder, &mut command);
    wait_until_ready(address, "/metrics");
    process
}

/// A Prometheus that accepts remote write.
pub(crate) fn start_prometheus(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    config: &str,
) -> Process {
    start_prometheus_with(program, folder, address, config, "--log.level=info")
}

/// The same with a further flag.
pub(crate) fn start_prometheus_with(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    config: &str,
    flag: &str,
) -> Process {
    let file = folder.join("prometheus.yml");
    fs::write(&file, config).expect("a configuration file");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus-data").display()));
    command.arg(format!("--web.listen-address={address}"));
    command.args(["--web.enable-remote-write-receiver", flag]);
    let process = Process::start("prometheus", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// A real S3 server on loopback with one bucket; it ends when this is dropped.
pub(crate) struct S3 {
    _process: Process,
    address: SocketAddr,
}

impl S3 {
    /// Its bucket.
    pub(crate) const BUCKET: &str = "s3://firn-e2e";

    /// `None`, with a word on why, where the program is missing.
    pub(crate) fn start(folder: &Path) -> Option<S3> {
        let path = std::env::var_os("FIRN_MOTO_SERVER").map_or_else(
            || repository().join("target/test-programs/moto/bin/moto_server"),
            PathBuf::from,
        );
        if !path.is_file() {
            skip(&format!("{} is absent; `make deps` installs it", path.display()));
            return None;
        }
        let mut command = Command::new(path);
        // The system chooses the port; the server logs it.
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        let process = Process::start("moto", folder, &mut command);
        let mut address = None;
        wait_for("moto to listen", Duration::from_secs(60), || {
            let log = process.output();
            let line =
                log.split_once("Running on http://").and_then(|rest| rest.1.split_once('\n'));
            address = line.and_then(|line| line.0.trim().parse().ok());
            address.is_some()
        });
        let address = address.expect("an address");
        wait_until_ready(address, "/moto-api/");
        let made = http::request(address, "PUT", "/firn-e2e", &[], &[]).expect("S3 answers");
        assert_eq!(made.status, 200, "{}", made.body);
        Some(S3 { _process: process, address })
    }

    /// Its credentials and address.
    pub(crate) fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }
}

/// The time of the clock.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a date")
}

/// Waits for the condition itself: a 200 on `path`.
pub(crate) fn wait_until_ready(address: SocketAddr, path: &str) {
    wait_for(&format!("{address}{path}"), Duration::from_secs(60), || {
        http::get(address, path).is_some_and(|answer| answer.status == 200)
    });
}

/// Checks again and again until `condition` holds.
///
/// # Panics
/// After `at_most`: the test cannot continue.
pub(crate) fn wait_for(event: &str, at_most: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < at_most, "waited {at_most:?} for {event}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Where a program is, or a printed reason to skip the scene.
///
/// # Panics
/// If it is missing and `FIRN_REQUIRE_SHARED=1`.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skip(&format!("{program} is not installed; `make deps` installs it"));
    }
    found
}

/// A program of the search path.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

pub(crate) fn skip(reason: &str) {
    let is_required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
    assert!(!is_required, "{reason}");
    eprintln!("skipped: {reason}");
}

/// The top of the checkout.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
