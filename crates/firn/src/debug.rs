//! `firn debug`: fetches the diagnostics of a server into an archive, as promtool does.

mod archive;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use crate::client::{ClientFile, ServerAddress};
use crate::output;
use archive::Archive;

/// `firn debug`.
#[derive(Debug, Args)]
pub(crate) struct Debug {
    #[command(flatten)]
    client: ClientFile,

    #[command(subcommand)]
    subject: DebugSubject,
}

#[derive(Debug, Subcommand)]
enum DebugSubject {
    /// Fetch metrics and all states
    ///
    /// The archive has no pprof profiles, because a FirnDB server has none.
    All(Server),
    /// Fetch metrics
    Metrics(Server),
    /// Fetch states of the server in place of profiles, which FirnDB does not have
    Pprof(Server),
}

#[derive(Debug, Args)]
struct Server {
    /// The address of the server, such as http://localhost:9420
    server: ServerAddress,
}

/// As in promtool, in the current folder.
const ARCHIVE: &str = "debug.tar.gz";
/// A response of a busy server takes seconds.
const TIMEOUT: Duration = Duration::from_secs(120);
/// All responses together: a server decides their lengths, and those of zeros fill an archive fast.
const RESPONSES_BYTES_MAX: u64 = 256 << 20;
/// Path and name in the archive.
const METRICS: [(&str, &str); 1] = [("/metrics", "metrics.txt")];
const STATES: [(&str, &str); 14] = [
    ("/api/v1/status/buildinfo", "buildinfo.json"),
    ("/api/v1/status/runtimeinfo", "runtimeinfo.json"),
    ("/api/v1/status/flags", "flags.json"),
    ("/api/v1/status/config", "config.json"),
    ("/api/v1/status/tsdb", "tsdb.json"),
    ("/api/v1/status/tsdb/blocks", "blocks.json"),
    ("/api/v1/status/walreplay", "walreplay.json"),
    ("/api/v1/status/groups", "groups.json"),
    ("/api/v1/features", "features.json"),
    ("/api/v1/scrape_pools", "scrape_pools.json"),
    ("/api/v1/targets", "targets.json"),
    ("/api/v1/rules", "rules.json"),
    ("/api/v1/alerts", "alerts.json"),
    ("/api/v1/alertmanagers", "alertmanagers.json"),
];
const NO_PROFILES: &str = "  WARNING: a FirnDB server has no profiles of pprof (CPU, heap, \
                           goroutines, traces): the archive contains states of the server instead";

/// Writes the archive.
pub(crate) fn run(debug: &Debug) -> ExitCode {
    let (server, has_metrics, has_states) = match &debug.subject {
        DebugSubject::All(server) => (server, true, true),
        DebugSubject::Metrics(server) => (server, true, false),
        DebugSubject::Pprof(server) => (server, false, true),
    };
    if has_states {
        output::report_line(NO_PROFILES);
    }
    let metrics = METRICS.iter().filter(|_| has_metrics);
    let endpoints: Vec<_> = metrics.chain(STATES.iter().filter(|_| has_states)).copied().collect();
    let path = Path::new(ARCHIVE);
    match write(path, &server.server, &debug.client, &endpoints, RESPONSES_BYTES_MAX) {
        Ok(()) => {
            output::announce(&format!(
                "Compiling debug information complete, all files written in \"{ARCHIVE}\".\n"
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::report_line(&format!("error completing debug command: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// A response that is no success is left out, except that of all.
fn write(
    path: &Path,
    address: &ServerAddress,
    client: &ClientFile,
    endpoints: &[(&str, &str)],
    bytes_max: u64,
) -> Result<(), String> {
    let mut server = client.client(address, &[])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let created = |error| format!("error creating a new archiver: {error}");
    let added = |error| format!("error writing into the archive: {error}");
    // The first response comes before the archive: a wrong address leaves an older one as it is.
    let (mut archive, mut bytes_left) = (None, bytes_max);
    for (endpoint, name) in endpoints {
        output::announce_line(&format!("collecting: {}", server.url(endpoint)));
        let response = server
            .get(endpoint, TIMEOUT)
            .map_err(|error| format!("error executing HTTP request: {error}"))?;
        if response.status / 100 != 2 {
            let (url, status) = (server.url(endpoint), response.status_text());
            output::report_line(&format!("  WARNING: {url} is left out: {status}"));
            continue;
        }
        let bytes = response.body.len() as u64;
        bytes_left = bytes_left.checked_sub(bytes).ok_or_else(|| {
            format!("the responses have more than {bytes_max} bytes together; left out: {name}")
        })?;
        if archive.is_none() {
            archive = Some(Archive::create(path, now).map_err(created)?);
        }
        if let Some(archive) = &mut archive {
            archive.add(name, &response.body).map_err(added)?;
        }
    }
    let archive = archive.ok_or("the server refused all requests")?;
    archive.close().map_err(|error| format!("error closing archive writer: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Before, each response had a limit of its own: 15 of them made an archive of gigabytes.
    #[test]
    fn all_responses_have_one_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let address: ServerAddress = address.parse().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let _ = stream.read(&mut [0; 4_096]).expect("a request");
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\n";
                stream.write_all(format!("{head}0123456789").as_bytes()).expect("a reader");
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.tar.gz");
        let endpoints = [("/a", "a"), ("/b", "b"), ("/c", "c")];
        let written =
            |bytes_max| write(&path, &address, &ClientFile::default(), &endpoints, bytes_max);
        assert_eq!(written(30), Ok(()));
        let error = written(29).expect_err("30 bytes");
        assert_eq!(error, "the responses have more than 29 bytes together; left out: c");
    }
}
