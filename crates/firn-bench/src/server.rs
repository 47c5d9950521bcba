//! A program under test, with its own folder and port. Its CPU and memory are the kernel's figures.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

/// A program that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// This project's.
    Firn,
    /// The binary that the variable `PROMETHEUS` names, else Debian's `prometheus`.
    Prometheus,
    /// The binary that the variable `VICTORIA_METRICS` names, else Debian's `victoria-metrics`.
    VictoriaMetrics,
    /// Debian's `influxdb`, which is a 1.x.
    InfluxDb,
}

/// A running program; killed and its folder removed when dropped.
#[derive(Debug)]
pub struct Server {
    program: Program,
    arguments: Vec<OsString>,
    child: Child,
    /// Its listen address.
    pub address: SocketAddr,
    folder: tempfile::TempDir,
}

/// The memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Anonymous pages.
    pub anonymous: u64,
    /// Resident pages of files.
    pub file: u64,
}

impl Program {
    /// The programs with PromQL.
    pub const ALL: [Program; 3] = [Program::Firn, Program::Prometheus, Program::VictoriaMetrics];

    /// The display name.
    pub fn name(self) -> &'static str {
        match self {
            Program::Firn => "FirnDB",
            Program::Prometheus => "Prometheus",
            Program::VictoriaMetrics => "VictoriaMetrics",
            Program::InfluxDb => "InfluxDB",
        }
    }

    /// The executable, if it is installed. Ours is built beside this benchmark.
    pub fn path(self) -> Option<PathBuf> {
        let (name, variable) = match self {
            Program::Firn => return beside_us("firn"),
            Program::Prometheus => ("prometheus", "PROMETHEUS"),
            Program::VictoriaMetrics => ("victoria-metrics", "VICTORIA_METRICS"),
            Program::InfluxDb => ("influxd", "INFLUXD"),
        };
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            return Some(PathBuf::from(path));
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
    }

    /// The first line that it prints as its version; empty if it cannot be started.
    pub fn version(self) -> String {
        let argument = if self == Program::InfluxDb { "version" } else { "--version" };
        let output = self.path().map(|path| Command::new(path).arg(argument).output());
        let Some(Ok(output)) = output else { return String::new() };
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    }

    /// The path that answers 200 once queries are answered.
    fn ready_path(self) -> &'static str {
        match self {
            Program::Firn | Program::Prometheus => "/-/ready",
            // Its port opens after its storage.
            Program::VictoriaMetrics => "/health",
            Program::InfluxDb => "/ping",
        }
    }

    /// The path of remote write. InfluxDB has it for the database `d`, which must exist.
    pub fn write_path(self) -> &'static str {
        match self {
            Program::InfluxDb => "/api/v1/prom/write?db=d",
            _ => "/api/v1/write",
        }
    }

    /// Starts it on a free port with an empty folder and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, cannot be started, or does not answer within 30 s.
    pub fn start(self) -> io::Result<Server> {
        self.start_as(u64::MAX, &[], None)
    }

    /// As [`Program::start`], with a memory limit: Go's collector stays below it, and the kernel
    /// refuses more (`RLIMIT_DATA`). Pages of its files in the page cache are not counted, to its
    /// advantage.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start_within(self, memory_bytes_max: u64) -> io::Result<Server> {
        self.start_as(memory_bytes_max, &[], None)
    }

    /// As [`Program::start`], with more arguments.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start_with(self, more: &[&str]) -> io::Result<Server> {
        self.start_as(u64::MAX, more, None)
    }

    /// As [`Program::start`], with a `prometheus.yml` whose targets it scrapes.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start_collecting(self, config: &Path) -> io::Result<Server> {
        let more: &[&str] = if self == Program::Firn { &["--self-scrape=never"] } else { &[] };
        self.start_as(u64::MAX, more, Some(config))
    }

    fn start_as(
        self,
        memory_bytes_max: u64,
        more: &[&str],
        config: Option<&Path>,
    ) -> io::Result<Server> {
        let path = self.path().ok_or(io::ErrorKind::NotFound)?;
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let address = free_address()?;
        let mut command = Command::new(path);
        self.arguments(&mut command, folder.path(), address, config)?;
        command.args(more);
        let has_cache = more.iter().any(|arg| arg.starts_with("--result-cache"));
        if self == Program::Firn && !has_cache {
            // As for the other programs: the query is measured, not a cache of answers.
            command.arg("--result-cache=0");
        }
        let is_limited = memory_bytes_max < u64::MAX;
        if is_limited {
            // A tenth for memory outside of the collector.
            command.env("GOMEMLIMIT", (memory_bytes_max / 10 * 9).to_string());
        }
        let arguments = command.get_args().map(OsString::from).collect();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if is_limited {
            let most = Some(memory_bytes_max);
            let limit = Rlimit { current: most, maximum: most };
            prlimit(Pid::from_raw(child.id() as i32), Resource::Data, limit)?;
        }
        let server = Server { program: self, arguments, child, address, folder };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn arguments(
        self,
        command: &mut Command,
        folder: &Path,
        address: SocketAddr,
        config: Option<&Path>,
    ) -> io::Result<()> {
        match self {
            Program::Firn => {
                command.arg("serve").arg("--data").arg(folder);
                command.arg("--listen").arg(address.to_string());
                if let Some(config) = config {
                    command.arg("--prometheus-config").arg(config);
                }
            }
            Program::Prometheus => {
                let own = folder.join("prometheus.yml");
                fs::write(&own, "global: {scrape_interval: 1h}\n")?;
                let config = config.unwrap_or(&own);
                command.arg(format!("--config.file={}", config.display()));
                command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
                command.arg(format!("--web.listen-address={address}"));
                command.args(["--web.enable-remote-write-receiver", "--log.level=error"]);
                // Retention counts from the newest sample: the data spans months, and all of it is
                // queried.
                command.arg("--storage.tsdb.retention.time=100y");
            }
            Program::VictoriaMetrics => {
                command.arg(format!("-storageDataPath={}", folder.join("data").display()));
                command.arg(format!("-httpListenAddr={address}"));
                command.args(["-retentionPeriod=100y", "-loggerLevel=ERROR"]);
                // The query is measured, not a cache of answers.
                command.arg("-search.disableCache");
                if let Some(config) = config {
                    command.arg(format!("-promscrape.config={}", config.display()));
                    // Rules are evaluated by another program.
                    command.arg("-promscrape.config.strictParse=false");
                    command.arg("-promscrape.fileSDCheckInterval=5s");
                }
            }
            Program::InfluxDb => {
                let config = folder.join("influxdb.conf");
                let text = format!(
                    "reporting-disabled = true\nbind-address = \"{}\"\n[meta]\ndir = \"{data}/meta\"\n\
                     [data]\ndir = \"{data}/data\"\nwal-dir = \"{data}/wal\"\n\
                     [http]\nbind-address = \"{address}\"\nlog-enabled = false\n\
                     [monitor]\nstore-enabled = false\n",
                    free_address()?,
                    data = folder.join("data").display(),
                );
                fs::write(&config, text)?;
                command.arg("-config").arg(config);
            }
        }
        Ok(())
    }
}

/// User and system CPU seconds of a process since its start.
///
/// # Panics
/// If the process has ended.
pub fn process_cpu_s(pid: u32) -> f64 {
    let ticks: u64 = process_stat(pid, [11, 12]).iter().sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU seconds of the threads that a process has now, to the microsecond: [`process_cpu_s`] counts
/// hundredths of a second. Threads that end meanwhile are not counted.
///
/// # Panics
/// If the process has ended.
pub fn threads_cpu_s(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the server runs");
    let cpu_ns = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    cpu_ns.sum::<u64>() as f64 / 1e9
}

/// Fields of `/proc/PID/stat`, counted after the name in parentheses, which may contain blanks.
fn process_stat<const N: usize>(pid: u32, wanted: [usize; N]) -> [u64; N] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    wanted.map(|idx| fields[idx].parse().unwrap_or(0))
}

impl Server {
    /// Kills it (SIGKILL) and starts it again with its data; returns the time from the start until
    /// it is ready for queries.
    ///
    /// # Errors
    /// When it cannot be started, or is not ready within two minutes.
    pub fn kill_and_restart(&mut self) -> io::Result<Duration> {
        self.child.kill()?;
        self.child.wait()?;
        let path = self.program.path().ok_or(io::ErrorKind::NotFound)?;
        let started = Instant::now();
        let mut command = Command::new(path);
        command.args(&self.arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = command.spawn()?;
        wait_until_ready(self.address, self.program.ready_path())?;
        Ok(started.elapsed())
    }

    /// Makes it read its files again (SIGHUP).
    ///
    /// # Errors
    /// When the process has ended.
    pub fn reload(&self) -> io::Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::process::kill_process(pid, Signal::HUP)?)
    }

    /// User and system CPU seconds since its start.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn cpu_s(&self) -> f64 {
        process_cpu_s(self.child.id())
    }

    /// As [`threads_cpu_s`].
    ///
    /// # Panics
    /// If the process has ended.
    pub fn threads_cpu_s(&self) -> f64 {
        threads_cpu_s(self.child.id())
    }

    /// Pages that the kernel has mapped into it since its start, without those read from a device.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn page_faults(&self) -> u64 {
        process_stat(self.child.id(), [7])[0]
    }

    /// Waits, a minute at most, until it has merged the loaded data, which is not measured.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn wait_until_quiet(&self) {
        const WAIT_MAX: Duration = Duration::from_secs(60);
        let begun = Instant::now();
        let mut before_s = self.cpu_s();
        while begun.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_secs(2));
            let now_s = self.cpu_s();
            if now_s - before_s < 0.1 {
                return;
            }
            before_s = now_s;
        }
    }

    /// Its current memory.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn memory(&self) -> Memory {
        Memory {
            anonymous: self.status_bytes("RssAnon:"),
            file: self.status_bytes("RssFile:") + self.status_bytes("RssShmem:"),
        }
    }

    /// Resets the peak of resident memory; returns the resident memory, bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn start_peak(&self) -> u64 {
        // 5 resets the high water mark (proc(5)).
        fs::write(self.proc("clear_refs"), "5").expect("the server runs");
        self.status_bytes("VmRSS:")
    }

    /// The peak of resident memory since [`Server::start_peak`], bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn peak(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// Bytes of its data on disk.
    pub fn data_bytes(&self) -> u64 {
        bytes_below(&self.folder.path().join("data"))
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.child.id()))
    }

    fn wait_until_it_answers(&self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            if TcpStream::connect(self.address).is_ok() {
                // The port opens a moment before the storage does.
                std::thread::sleep(Duration::from_secs(2));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memory {
    /// Both kinds.
    pub fn total(self) -> u64 {
        self.anonymous + self.file
    }
}

/// Bytes of all files below a folder; 0 if it does not exist.
pub fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Polls every 5 ms until the server answers 200 to `path`.
///
/// # Errors
/// When it does not within two minutes.
pub fn wait_until_ready(address: SocketAddr, path: &str) -> io::Result<()> {
    const WAIT_MAX: Duration = Duration::from_secs(120);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let is_ready = || -> io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split(' ').nth(1) == Some("200"))
    };
    let started = Instant::now();
    while started.elapsed() < WAIT_MAX {
        if is_ready().unwrap_or(false) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the server is not ready"))
}

fn beside_us(name: &str) -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.join(name);
    path.is_file().then_some(path)
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
