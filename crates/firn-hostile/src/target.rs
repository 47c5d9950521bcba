//! The server under attack as its attackers see it, and the settings of its start.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dial::{Connection, Dialer};
use crate::families::origin::Origin;

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
    pub(crate) flags: Vec<String>,
    pub(crate) prepare: Option<Prepare>,
    /// Of the load that queries read; 0 is none.
    pub(crate) series: usize,
    /// `RLIMIT_FSIZE`: a file that would grow beyond it fails as on a full disk, and regular writes
    /// may be refused.
    pub(crate) file_bytes_max: Option<u64>,
    /// `RLIMIT_NOFILE`; that of this program without.
    pub(crate) open_files_max: Option<u64>,
    /// Sent with every request that is not anonymous.
    pub(crate) authorization: Option<String>,
    /// Sent first on the connections of probes to a cache.
    pub(crate) token: Option<&'static str>,
    pub(crate) has_tls: bool,
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
    pub(crate) authorization: Option<String>,
    pub(crate) token: Option<&'static str>,
    pub(crate) health_path: &'static str,
    /// Regular writes may be refused, but not lost.
    pub(crate) is_full: bool,
    /// Factor of all limits.
    pub(crate) slack: u32,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) origin: Option<Origin>,
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
}
