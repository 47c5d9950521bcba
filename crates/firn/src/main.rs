//! The command `firn`.
//!
//! **Owns** the command line and the text that is printed on the terminal.
//!
//! **Never** contains logic that belongs to the rooms below: it parses arguments, starts one of
//! them, and reports the result.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `promtool_arguments`, `config`, `cache`, `check`, `check_config`, `check_rules`,
//! `check_others`, `check_server`, `test_rules`, `query`, `push`, `debug`, `relabel`, `promql`,
//! `tsdb`, `inspect`, `user`, `client`, `http`, `local_files`, `go_text`, `output`, `signals`,
//! `allocator`.

#![deny(unsafe_code)]
// The macros panic when the output is closed; `output` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allocator;
mod cache;
mod check;
mod check_config;
mod check_others;
mod check_rules;
mod check_server;
mod client;
mod config;
mod debug;
mod go_text;
mod http;
mod inspect;
mod local_files;
mod output;
mod promql;
mod promtool_arguments;
mod push;
mod query;
mod relabel;
mod signals;
mod test_rules;
mod tsdb;
mod user;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use firn_server::{
    Flags, HostProcess, ServeConfig, Server, is_of_prometheus_config, one_line, redacted,
};
use promtool_arguments::given_arguments;

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
    /// Check every byte of a database against its checksum, and repair it; or check other files
    ///
    /// No server may have the folder open. Without --repair the command changes nothing. It fails
    /// if it finds damage that remains. With a subcommand it checks files of Prometheus.
    Check(check::Check),
    /// Run unit tests of rules
    Test(test_rules::Test),
    /// Query a server with the API of Prometheus, as promtool does
    ///
    /// Exits with 1 if the server does not return a result.
    Query(query::Query),
    /// Send metrics to a server by remote write, as promtool does
    Push(push::Push),
    /// Fetch the diagnostics of a server into debug.tar.gz, as promtool does
    ///
    /// The archive has no pprof profiles. It contains metrics, settings, the configuration,
    /// statistics of the database, targets, rules and alerts.
    Debug(debug::Debug),
    /// Show the labels after each rule of relabelling
    Relabel(relabel::Relabel),
    /// Format and change queries
    #[command(subcommand)]
    Promql(promql::Promql),
    /// Commands of promtool for blocks of Prometheus: each names its substitute
    #[command(hide = true)]
    Tsdb(tsdb::Substituted),
    /// Show the contents of a database
    #[command(subcommand)]
    Inspect(inspect::Inspect),
    /// Add users and tokens to a web configuration, and check it
    #[command(subcommand)]
    User(user::User),
}

/// The code of a server that does not start because of its `prometheus.yml`, as of Prometheus.
const WRONG_PROMETHEUS_CONFIG: u8 = 2;

fn main() -> ExitCode {
    allocator::share_system_arena();
    allocator::purge_at_once();
    signals::set_up_for_commands();
    let arguments = Arguments::try_parse_from(given_arguments(std::env::args_os()))
        .unwrap_or_else(|error| exit_with(&error));
    // A server reads prometheus.yml, whose mistakes are a list.
    let report_error = match &arguments.command {
        Command::Serve(_) => output::report_mistakes,
        _ => output::report_line,
    };
    let done = match arguments.command {
        Command::Serve(flags) => {
            set_up_for_servers();
            serve(&flags)
        }
        Command::Cache(cache) => {
            set_up_for_servers();
            cache::cache(&cache)
        }
        Command::Config(config) => config::config(&config),
        Command::Check(check) => match &check.subject {
            Some(check::Subject::Config(config)) => return check_config::run(config),
            Some(check::Subject::Rules(rules)) => return check_rules::run(rules),
            Some(check::Subject::Metrics(check)) => return check_others::run_metrics(check),
            Some(check::Subject::WebConfig(check)) => return check_others::run_web_config(check),
            Some(check::Subject::ServiceDiscovery(check)) => {
                return check_others::run_discovery(check);
            }
            Some(check::Subject::Healthy(check)) => return check_server::run(check, "/-/healthy"),
            Some(check::Subject::Ready(check)) => return check_server::run(check, "/-/ready"),
            None => check::check(&check),
        },
        Command::Test(test) => return test_rules::run(&test),
        Command::Query(query) => return query::run(&query),
        Command::Push(push) => return push::run(&push),
        Command::Debug(debug) => return debug::run(&debug),
        Command::Relabel(relabel) => return relabel::run(&relabel),
        Command::Promql(promql) => return promql::run(&promql),
        Command::Tsdb(command) => return tsdb::run_tsdb(&command),
        Command::Inspect(inspect) => inspect::inspect(&inspect),
        Command::User(user) => user::user(&user),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error(&format!("firn: {error}"));
            match is_of_prometheus_config(&error) {
                true => ExitCode::from(WRONG_PROMETHEUS_CONFIG),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn set_up_for_servers() {
    output::log_to_stderr();
    signals::set_up_for_servers();
    allocator::purge_soon();
}

/// Prints the help, or the mistake in the arguments without the passwords that it repeats, and
/// without characters that control the terminal.
fn exit_with(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    let shown = output::printable(&redacted(&text));
    if shown == text || !error.use_stderr() {
        // In colours.
        error.exit()
    }
    output::report(&shown);
    std::process::exit(error.exit_code())
}

// A start that fails mostly fails within this time; its error is then printed without the greeting.
// A longer start can be watched at the address in the greeting.
const START_MAX: Duration = Duration::from_secs(1);

fn serve(flags: &Flags<ServeConfig>) -> firn_server::Result<()> {
    let loaded = flags.load()?;
    output::log_warnings(&loaded.warnings);
    let config = loaded.config;
    output::log_warnings(firn_server::raise_open_files(config.connections_max.0).as_slice());
    let process = HostProcess { release_memory: allocator::release, is_dedicated: true };
    let mut server = Server::start(config.clone(), process)?;
    let served = server.run(START_MAX, |server| greet(&config, server));
    // The first error is the cause. A database that never opened has nothing to flush.
    let stopped = server.stop();
    served.and(stopped)
}

/// Prints the addresses that a newcomer needs.
fn greet(config: &ServeConfig, server: &Server) {
    let scheme = output::scheme(server.has_tls());
    let reached = server.listens().iter().map(|listen| {
        let is_any = listen.ip().is_unspecified();
        let ip = if is_any { Ipv4Addr::LOCALHOST.into() } else { listen.ip() };
        SocketAddr::new(ip, listen.port())
    });
    let reached: Vec<SocketAddr> = reached.collect();
    let pages = output::urls(scheme, &reached);
    let (version, listen) = (env!("CARGO_PKG_VERSION"), reached[0]);
    output::announce(&format!(
        "FirnDB {version}   data in {}, history in {}\n\
         Web page       {pages}\n\
         Grafana        data source of type Prometheus, URL {scheme}://{listen}\n\
         Prometheus     remote_write: [{{ url: \"{scheme}://{listen}/api/v1/write\" }}]\n",
        one_line(&config.data.to_string()),
        one_line(&config.slow_tier.to_string()),
    ));
}
