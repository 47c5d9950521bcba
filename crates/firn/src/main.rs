//! The command `firn`.
//!
//! **Owns** the command line and the text that is printed on the terminal.
//!
//! **Never** contains logic that belongs to the rooms below: it parses arguments, starts one of
//! them, and reports the result.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `config`, `cache`, `check`, `inspect`, `user`, `http`, `output`, `allocator`.

#![deny(unsafe_code)]
// The macros panic when the output is closed; `output` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allocator;
mod cache;
mod check;
mod config;
mod http;
mod inspect;
mod output;
mod user;

use std::borrow::Cow;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use firn_server::{Flags, ServeConfig, Server, redacted};

/// FirnDB, a time series database compatible with Prometheus
///
/// It accepts remote write and text exposition and answers PromQL. `firn serve` runs the server.
#[derive(Debug, Parser)]
#[command(name = "firn", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the database server
    ///
    /// The server needs no settings: it listens on 127.0.0.1:9420 and stores data in ./firn-data.
    /// It stops on SIGTERM and SIGINT.
    Serve(Box<Flags<ServeConfig>>),
    /// Run a cache: in front of a database, or for programs that store points
    ///
    /// With --proxy it answers range queries in front of a database that you have already
    /// (docs/result-cache.md). Without --proxy it stores points by key and time range for any
    /// program (docs/cache-protocol.md). It stops on SIGTERM and SIGINT.
    Cache(Box<cache::Cache>),
    /// Print or check settings
    #[command(subcommand)]
    Config(config::Config),
    /// Check every byte of a database against its checksum, and repair it
    ///
    /// No server may have the folder open. Without --repair the command changes nothing. It fails
    /// if it finds damage that remains.
    Check(check::Check),
    /// Show the contents of a database
    #[command(subcommand)]
    Inspect(inspect::Inspect),
    /// Add users and tokens to a web configuration, and check it
    #[command(subcommand)]
    User(user::User),
}

fn main() -> ExitCode {
    allocator::share_system_arena();
    allocator::purge_without_delay();
    let arguments = Arguments::try_parse().unwrap_or_else(|error| exit_with(&error));
    let done = match arguments.command {
        Command::Serve(flags) => {
            output::log_to_stderr();
            serve(&flags)
        }
        Command::Cache(cache) => {
            output::log_to_stderr();
            cache::cache(&cache)
        }
        Command::Config(config) => config::config(&config),
        Command::Check(check) => check::check(&check),
        Command::Inspect(inspect) => inspect::inspect(&inspect),
        Command::User(user) => user::user(&user),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&format!("firn: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Prints the help, or the mistake in the arguments without the passwords that it repeats.
fn exit_with(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    match redacted(&text) {
        Cow::Owned(shown) if error.use_stderr() => {
            eprint!("{shown}");
            std::process::exit(error.exit_code())
        }
        _ => error.exit(),
    }
}

// A start that fails mostly fails within this time; its error is then printed without the greeting.
// A longer start can be watched at the address in the greeting.
const START_MAX: Duration = Duration::from_secs(1);

fn serve(flags: &Flags<ServeConfig>) -> firn_server::Result<()> {
    let loaded = flags.load()?;
    output::log_warnings(&loaded.warnings);
    let config = loaded.config;
    output::log_warnings(firn_server::raise_open_files(config.connections_max.0).as_slice());
    let mut server = Server::start(config.clone(), allocator::release)?;
    let served = server.wait_until_ready(START_MAX).and_then(|_| {
        greet(&config, &server);
        server.wait_for_signal()
    });
    // The first error is the cause. A database that never opened has nothing to flush.
    let stopped = server.stop();
    served.and(stopped)
}

/// Prints the addresses that a newcomer needs.
fn greet(config: &ServeConfig, server: &Server) {
    let mut listen = server.listen();
    if listen.ip().is_unspecified() {
        listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let (version, scheme) =
        (env!("CARGO_PKG_VERSION"), if server.has_tls() { "https" } else { "http" });
    output::announce(&format!(
        "FirnDB {version}   data in {}, history in {}\n\
         Web page       {scheme}://{listen}/\n\
         Grafana        data source of type Prometheus, URL {scheme}://{listen}\n\
         Prometheus     remote_write: [{{ url: \"{scheme}://{listen}/api/v1/write\" }}]\n",
        config.data, config.slow_tier,
    ));
}
