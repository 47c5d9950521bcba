//! The server over real connections, on a real folder: inputs, outputs, and every bad input with
//! its status and message.

mod admin;
mod browsers;
mod client;
mod federation;
mod groups;
mod language;
mod limits;
mod listings;
mod metric_names;
mod query_api;
mod query_stats;
mod remote_read;
mod remote_write;
mod rules;
mod scraping;
mod status;
mod surroundings;
mod tally;
mod targets;
mod times;
mod transactions;
mod write_request;
mod xor_decoder;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Command, FromArgMatches};
use firn_server::{Flags, HostProcess, ServeConfig, Server};
use tempfile::TempDir;

/// A server of its own for a test.
struct Running {
    server: Option<Server>,
    folder: TempDir,
}

impl Running {
    /// A ready server; `args` are flags as they are typed.
    fn start(args: &[&str]) -> Running {
        let folder = TempDir::new().expect("a folder");
        let mut server = start_in(&folder, args);
        wait_until_ready(&mut server);
        Running { server: Some(server), folder }
    }

    fn at(&self) -> SocketAddr {
        self.server.as_ref().expect("it runs").listen()
    }

    /// Stops in order and starts again on the same folder.
    fn restart(&mut self, args: &[&str]) {
        self.server.take().expect("it runs").stop().expect("a clean stop");
        let mut server = start_in(&self.folder, args);
        wait_until_ready(&mut server);
        self.server = Some(server);
    }
}

fn start_in(folder: &TempDir, args: &[&str]) -> Server {
    start_with_data(&folder.path().join("data"), args)
}

fn start_with_data(data: &Path, args: &[&str]) -> Server {
    try_start(data, args).expect("a server")
}

fn try_start(data: &Path, args: &[&str]) -> firn_server::Result<Server> {
    let data = format!("--data={}", data.display());
    let fixed = ["firn", &data, "--listen=127.0.0.1:0", "--self-scrape=never", "--memory=256MiB"];
    let command = Flags::<ServeConfig>::augment_args(Command::new("firn").args_override_self(true));
    let matches = command.get_matches_from(fixed.iter().chain(args));
    let flags = Flags::<ServeConfig>::from_arg_matches(&matches).expect("flags");
    // All servers of the tests share one process.
    let process = HostProcess { release_memory: || (), is_dedicated: false };
    Server::start(flags.load().expect("settings").config, process)
}

fn wait_until_ready(server: &mut Server) {
    let ready = server.wait_until_ready(Duration::from_secs(60)).expect("the database opens");
    assert!(ready, "the database takes over a minute to open");
}

/// Attempts again and again until there is a value. An error describes the state instead of it.
///
/// # Panics
/// After a minute, with the last error: the test cannot continue.
fn wait_for<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(found) => assert!(Instant::now() < deadline, "still {found}"),
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// As [`wait_for`], for a condition.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(|| is_so().then_some(()).ok_or_else(|| format!("not: {what}")));
}
