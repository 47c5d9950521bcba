//! The server under attack: a process of its own with limits on memory, address space and files.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::address::free_address;
use crate::client::{Answer, Connection, exchange, get};
use crate::dial::Dialer;
use crate::families::origin::Origin;

/// `--memory` of the server.
pub(crate) const MEMORY_MIB: u64 = 128;
/// The limit of its address space. Idle it has about 400 MiB: 45 stacks of 2 MiB, an arena of the
/// allocator, the program.
const ADDRESS_SPACE_MIB: u64 = 1_024;
/// The kernel completes a connection before the server accepts it; only a full queue takes longer.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// The short run attacks a debug build while other tests run, on a machine that may pause for
/// seconds: its limits are this many times those of the full run, which has the machine for itself.
const SHORT_RUN_SLACK: u32 = 8;
const LOG_LINES: usize = 5;
/// The start of an event that attacks try to add to the log.
pub(crate) const FORGED: &str = "2020-01-01T00:00:00.000000Z ERROR forged";

/// The program's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `firn serve`.
    Database,
    /// `firn cache`.
    Cache,
    /// `firn cache --proxy`, before an origin that records its requests.
    Proxy,
}

/// Files and further flags that a family needs, made in its folder before the first start.
type Prepare = fn(&Path) -> io::Result<Vec<String>>;

/// How a family's server starts.
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    flags: Vec<String>,
    prepare: Option<Prepare>,
    /// Of the load that queries read; 0 is none.
    pub(crate) series: usize,
    /// `RLIMIT_FSIZE`: a file that would grow beyond it fails as on a full disk, and regular writes
    /// may be refused.
    file_bytes_max: Option<u64>,
    /// `RLIMIT_NOFILE`; that of this program without.
    open_files_max: Option<u64>,
    /// Sent with every request that is not anonymous.
    authorization: Option<String>,
    /// Sent first on the connections of probes to a cache.
    token: Option<&'static str>,
    has_tls: bool,
    /// Of the health check.
    pub(crate) health_path: &'static str,
}

impl Setup {
    /// A database with the load.
    pub(crate) fn database(flags: &[&str]) -> Setup {
        Setup { series: 5_000, ..Setup::of(Kind::Database, "/-/healthy", flags) }
    }

    /// A cache of points.
    pub(crate) fn cache(flags: &[&str]) -> Setup {
        Setup::of(Kind::Cache, "", flags)
    }

    /// A proxy.
    pub(crate) fn proxy(flags: &[&str]) -> Setup {
        Setup::of(Kind::Proxy, "/-/cache/metrics", flags)
    }

    fn of(kind: Kind, health_path: &'static str, flags: &[&str]) -> Setup {
        Setup {
            kind,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            prepare: None,
            series: 0,
            file_bytes_max: None,
            open_files_max: None,
            authorization: None,
            token: None,
            has_tls: false,
            health_path,
        }
    }

    /// The prepared files make it speak TLS.
    pub(crate) fn tls(mut self) -> Setup {
        self.has_tls = true;
        self
    }

    /// With the token of a cache.
    pub(crate) fn token(mut self, token: &'static str) -> Setup {
        self.token = Some(token);
        self
    }

    /// Without the load.
    pub(crate) fn empty(mut self) -> Setup {
        self.series = 0;
        self
    }

    /// With files of its own.
    pub(crate) fn prepared(mut self, prepare: Prepare) -> Setup {
        self.prepare = Some(prepare);
        self
    }

    /// With small files.
    pub(crate) fn file_bytes_max(mut self, bytes: u64) -> Setup {
        self.file_bytes_max = Some(bytes);
        self
    }

    /// With few open files.
    pub(crate) fn open_files_max(mut self, count: u64) -> Setup {
        self.open_files_max = Some(count);
        self
    }

    /// With credentials.
    pub(crate) fn authorized(mut self, authorization: &str) -> Setup {
        self.authorization = Some(authorization.to_owned());
        self
    }
}

/// A started server, as its attackers see it.
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// Its address, and whether it speaks TLS.
    pub(crate) dialer: Dialer,
    authorization: Option<String>,
    token: Option<&'static str>,
    health_path: &'static str,
    /// Regular writes may be refused, but not lost.
    pub(crate) is_full: bool,
    /// Factor of all limits.
    slack: u32,
    folder: tempfile::TempDir,
    pub(crate) origin: Option<Origin>,
}

/// The process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    program: PathBuf,
    arguments: Vec<String>,
    limits: String,
    /// Its attackers' view.
    pub(crate) target: Target,
    log_folder: PathBuf,
    starts: usize,
}

impl Target {
    pub(crate) fn address(&self) -> SocketAddr {
        self.dialer.address()
    }

    pub(crate) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// Commands of the cache's protocol after the token, if there is one.
    pub(crate) fn with_token(&self, commands: &str) -> Vec<u8> {
        let token = self.token.map(|token| format!("auth {token}\r\n"));
        (token.unwrap_or_default() + commands).into_bytes()
    }

    /// A limit of this run, of which `time` is the limit in the full run.
    pub(crate) fn limit(&self, time: Duration) -> Duration {
        time * self.slack
    }

    /// The folder of the server's data and files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// All that the server has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// Checks that each line of the log is one event: no client has added a line.
    ///
    /// # Errors
    /// With the first other line.
    pub(crate) fn check_log(&self) -> Result<(), String> {
        // The greeting is on standard output.
        const GREETING: [&str; 8] = [
            "FirnDB ",
            "Web page ",
            "Grafana ",
            "Prometheus ",
            "URL ",
            "Address ",
            "Metrics ",
            "firn: ",
        ];
        let is_event = |line: &str| {
            let mut words = line.split_whitespace();
            let time = words.next().unwrap_or_default();
            let is_time = time.len() == 27 && time.ends_with('Z') && time.starts_with("20");
            is_time && matches!(words.next(), Some("ERROR" | "WARN" | "INFO"))
        };
        let is_line = |line: &str| {
            let is_known = is_event(line) || GREETING.iter().any(|word| line.starts_with(word));
            let is_forged = line.contains(FORGED) && !line.contains(&format!("\\n{FORGED}"));
            is_known && !is_forged && !line.contains(char::is_control)
        };
        let log = self.log();
        let mut lines = log.split('\n').filter(|line| !line.is_empty());
        match lines.find(|line| !is_line(line)) {
            Some(line) => Err(format!("a line of the log is no event: {line:?}")),
            None => Ok(()),
        }
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> io::Result<Box<dyn Connection>> {
        self.dialer.connect()
    }

    /// A new connection, without TLS in any case.
    pub(crate) fn connect_plain(&self) -> io::Result<TcpStream> {
        self.dialer.connect_plain()
    }

    /// Whether it serves requests.
    fn is_ready(&self) -> bool {
        match self.kind {
            Kind::Database => get("/-/ready").anonymous().send(self).status == 200,
            Kind::Cache => {
                let answers = exchange(self, &self.with_token("version\r\nquit\r\n"));
                answers.first().is_some_and(|answer| answer.text().contains("VERSION"))
            }
            _ => get(self.health_path).send(self).status == 200,
        }
    }
}

impl Server {
    /// Starts it in a new folder and waits until it answers.
    ///
    /// # Errors
    /// If it ends or does not answer in time, with the end of its log.
    pub(crate) fn start(program: &Path, setup: &Setup, is_quick: bool) -> Result<Server, String> {
        let folder = tempfile::Builder::new().prefix("firn-hostile-").tempdir();
        let folder = folder.map_err(|e| format!("cannot make a folder: {e}"))?;
        let address = free_address();
        let origin = match setup.kind {
            Kind::Proxy => Some(Origin::start().map_err(|e| format!("the origin: {e}"))?),
            _ => None,
        };
        let mut arguments = vec![
            if setup.kind == Kind::Database { "serve" } else { "cache" }.to_owned(),
            format!("--data={}", folder.path().join("data").display()),
            format!("--listen={address}"),
            format!("--memory={MEMORY_MIB}MiB"),
        ];
        arguments.extend(setup.flags.iter().cloned());
        if let Some(origin) = &origin {
            arguments.push(format!("--proxy={}", origin.url()));
        }
        if let Some(prepare) = setup.prepare {
            arguments.extend(prepare(folder.path()).map_err(|e| format!("cannot prepare: {e}"))?);
        }
        let slack = if is_quick { SHORT_RUN_SLACK } else { 1 };
        let target = Target {
            kind: setup.kind,
            dialer: Dialer::new(address, setup.has_tls, CONNECT_TIME_MAX * slack),
            authorization: setup.authorization.clone(),
            token: setup.token,
            is_full: setup.file_bytes_max.is_some(),
            slack,
            health_path: setup.health_path,
            folder,
            origin,
        };
        let limits = limits(setup);
        let child = spawn(program, &arguments, &limits, &target)?;
        let program = program.to_path_buf();
        let log_folder = target.folder().to_path_buf();
        let mut server =
            Server { child, program, arguments, limits, target, log_folder, starts: 1 };
        server.wait_until_healthy()?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended, and how.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("the process ended with {status}; {}", self.log_end()))
    }

    /// Kills it without warning and starts it again on the same folder and port.
    ///
    /// `spawned` receives the new process before it is ready.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(crate) fn restart(&mut self, spawned: impl FnOnce(u32)) -> Result<(), String> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.starts += 1;
        self.child = spawn(&self.program, &self.arguments, &self.limits, &self.target)?;
        spawned(self.pid());
        self.wait_until_healthy()
    }

    /// SIGTERM, then the time until the process has ended.
    ///
    /// # Errors
    /// If it does not end within `time_max`, or ends with an error.
    pub(crate) fn stop(&mut self, time_max: Duration) -> Result<(), String> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|e| format!("cannot stop: {e}"))?;
        }
        let start = Instant::now();
        while start.elapsed() < time_max {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("SIGTERM ended it with {status}")),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("SIGTERM did not end it within {time_max:?}"))
    }

    fn wait_until_healthy(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            if self.target.is_ready() {
                return Ok(());
            }
            if let Some(how) = self.ended() {
                return Err(format!("cannot start the server: {how}"));
            }
            if start.elapsed() > self.target.limit(START_TIME_MAX) {
                return Err(format!("the server does not answer; {}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.log_folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("its log ends with: {}", lines[lines.len().saturating_sub(LOG_LINES)..].join(" | "))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Commands of the shell that becomes the server.
fn limits(setup: &Setup) -> String {
    let file_bytes = setup.file_bytes_max.map(|bytes| format!("ulimit -f {}; ", bytes >> 9));
    let open_files = setup.open_files_max.map(|count| format!("ulimit -n {count}; "));
    let limits = file_bytes.into_iter().chain(open_files).collect::<String>();
    format!("{limits}ulimit -v {}; ", ADDRESS_SPACE_MIB << 10)
}

fn spawn(
    program: &Path,
    arguments: &[String],
    limits: &str,
    target: &Target,
) -> Result<Child, String> {
    let log = fs::OpenOptions::new().create(true).append(true).open(target.folder().join("log"));
    let log = log.map_err(|e| format!("cannot open the log: {e}"))?;
    let stdout = log.try_clone().map_err(|e| format!("cannot open the log: {e}"))?;
    Command::new("sh")
        .args(["-c", &format!("{limits}exec \"$0\" \"$@\"")])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(log)
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", program.display()))
}

/// Sends a request until the server accepts it or `time_max` has passed: after an attack it may
/// still be busy, which is not a loss of data.
pub(crate) fn insist(time_max: Duration, send: impl Fn() -> Answer, wanted: u16) -> Answer {
    let start = Instant::now();
    loop {
        let answer = send();
        if answer.status == wanted || start.elapsed() > time_max {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
