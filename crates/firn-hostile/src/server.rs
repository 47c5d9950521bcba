//! The server under attack: a process of its own with limits on memory, address space and files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::address::free_address;
use crate::client::{exchange, get};
use crate::dial::Dialer;
use crate::families::origin::Origin;
use crate::target::{Kind, Setup, Target};

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
            if is_ready(&self.target) {
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
    let child = Command::new("sh")
        .args(["-c", &format!("{limits}exec \"$0\" \"$@\"")])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(log)
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    wait_for_own_memory(child.id());
    Ok(child)
}

/// Waits until a new process has memory of its own. Linux resumes the parent a moment earlier, and
/// then counts the parent's memory as the child's: hundreds of megabytes of the tests.
fn wait_for_own_memory(pid: u32) {
    let program_of = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
    let (own, start) = (program_of("self"), Instant::now());
    while program_of(&pid.to_string()) == own && start.elapsed() < START_TIME_MAX {
        std::thread::yield_now();
    }
}

/// Whether it serves requests.
fn is_ready(target: &Target) -> bool {
    match target.kind {
        Kind::Database => get("/-/ready").anonymous().send(target).status == 200,
        Kind::Cache => {
            let answers = exchange(target, &target.with_token("version\r\nquit\r\n"));
            answers.first().is_some_and(|answer| answer.text().contains("VERSION"))
        }
        _ => get(target.health_path).send(target).status == 200,
    }
}
