//! The command `firn`.
//!
//! **Owns** the command line and what people read on their terminal. **Never** does anything that the
//! rooms below could do: it parses arguments, starts one of them, and says how it went.

#![deny(unsafe_code)]

mod allocator;
mod cache;
mod check;
mod http;
mod inspect;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use firn_server::{Config, Server, Settings};

/// A time series database: Prometheus remote write in, PromQL out, nothing acknowledged ever lost.
#[derive(Debug, Parser)]
#[command(name = "firn", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the database server
    Serve(Box<Settings>),
    /// Run a cache: of points by key and time range for any program, or of range queries in front of a database
    Cache(Box<cache::Cache>),
    /// Read every byte of a database against its checksum; repair it
    Check(check::Check),
    /// Look into a database
    #[command(subcommand)]
    Inspect(inspect::Inspect),
}

fn main() -> ExitCode {
    allocator::give_back_at_once();
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Serve(settings) => {
            log_to_stderr();
            serve(&settings)
        }
        Command::Cache(cache) => {
            log_to_stderr();
            cache::cache(&cache)
        }
        Command::Check(check) => check::check(&check),
        Command::Inspect(inspect) => inspect::inspect(&inspect),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firn: {error}");
            ExitCode::FAILURE
        }
    }
}

// What fails at the start mostly fails in this time, and should be read alone; a start that takes
// longer can be watched where the four lines point to.
const SOON: Duration = Duration::from_secs(1);

fn serve(settings: &Settings) -> firn_server::Result<()> {
    let config = Config { on_idle: allocator::give_back, ..settings.check()? };
    let mut server = Server::start(config.clone())?;
    let served = server.wait_until_ready(SOON).and_then(|_| {
        greet(&config, &server);
        server.wait_for_signal()
    });
    // What failed first is what people must read; a database that never opened has nothing to lose.
    let stopped = server.stop();
    served.and(stopped)
}

/// Four lines on where to look.
#[expect(clippy::print_stdout, reason = "the terminal is this room's")]
fn greet(config: &Config, server: &Server) {
    let mut listen = server.listen();
    if listen.ip().is_unspecified() {
        listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "FirnDB {version}   data in {}, history in {}\n\
         Look here      http://{listen}/\n\
         Grafana        data source of type Prometheus, URL http://{listen}\n\
         Prometheus     remote_write: [{{ url: \"http://{listen}/api/v1/write\" }}]",
        config.data.display(),
        config.slow_tier,
    );
}

/// `RUST_LOG` chooses what is logged: by default warnings, and what the database says of itself.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
