//! Prometheus and FirnDB side by side, with the same samples in both.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use firn_promqltest::expressions::{Dialect, TimeAlignment, World};
use serde_json::Value;
use tempfile::TempDir;

use super::answer::{Answer, Question, difference};
use super::data::{Data, SenderLabels};
use super::known;
use crate::http;
use crate::process::{Process, firn, free_address, wait_until_ready};

/// The two servers and their data.
pub(super) struct Pair {
    pub(super) dialect: Dialect,
    pub(super) world: World,
    pub(super) senders: SenderLabels,
    prometheus_at: SocketAddr,
    firn_at: SocketAddr,
    _prometheus: Process,
    _firn: Process,
    _folder: TempDir,
}

const TODAYS_NAME: &str = "double_exponential_smoothing";

impl Pair {
    /// Starts both and writes the world of `seed`.
    pub(super) fn start(program: &Path, seed: u64, senders: SenderLabels) -> Pair {
        let folder = tempfile::tempdir().expect("a folder");
        let (prometheus_at, firn_at) = (free_address(), free_address());
        let prometheus = start_prometheus(program, folder.path(), prometheus_at);
        let firn = start_firn(folder.path(), firn_at);
        let dialect = dialect(prometheus_at);
        let grid = if dialect == Dialect::V2 { TimeAlignment::Off } else { TimeAlignment::On };
        let world = World::new(seed, grid);
        let data = Data { world: &world, senders };
        data.write_to_prometheus(prometheus_at);
        data.write_to_firn(seed, firn_at);
        data.check_groups(firn_at);
        Pair {
            dialect,
            world,
            senders,
            prometheus_at,
            firn_at,
            _prometheus: prometheus,
            _firn: firn,
            _folder: folder,
        }
    }

    /// Both responses to a query.
    pub(super) fn ask(&self, text: &str, question: &Question) -> (Answer, Answer) {
        let seconds = |ms: i64| format!("{}.{:03}", ms / 1_000, ms % 1_000);
        let (path, times) = match *question {
            Question::Instant { ts } => ("/api/v1/query", vec![("time", seconds(ts))]),
            Question::Range { start, end, step_ms } => {
                let times = vec![
                    ("start", seconds(start)),
                    ("end", seconds(end)),
                    ("step", seconds(step_ms)),
                ];
                ("/api/v1/query_range", times)
            }
        };
        let ask = |address, text: &str| {
            let mut parameters = vec![("query", text)];
            parameters.extend(times.iter().map(|(name, value)| (*name, value.as_str())));
            let (status, body) = self.send(address, "POST", path, &parameters);
            Answer::read(status, &body)
        };
        let theirs = match self.dialect {
            // As long as today's name, so that positions in errors agree.
            Dialect::V2 => text.replace(TODAYS_NAME, &format!("{:28}", "holt_winters")),
            Dialect::V3 => text.to_owned(),
        };
        (ask(self.prometheus_at, &theirs), ask(self.firn_at, text))
    }

    /// Both responses to any GET request.
    pub(super) fn get(&self, path: &str, parameters: &[(&str, &str)]) -> [(u16, String); 2] {
        [self.prometheus_at, self.firn_at]
            .map(|address| self.send(address, "GET", path, parameters))
    }

    /// The unexpected difference between two responses to `text`, if there is one.
    pub(super) fn difference(&self, text: &str, theirs: &Answer, ours: &Answer) -> Option<String> {
        let is_ordered = is_instant(theirs) && known::is_ordered(text);
        let what = difference(theirs, ours, is_ordered)?;
        known::reason(self.dialect, theirs, ours).is_none().then_some(what)
    }

    fn send(
        &self,
        address: SocketAddr,
        method: &str,
        path: &str,
        parameters: &[(&str, &str)],
    ) -> (u16, String) {
        let pairs = parameters.iter();
        let form: Vec<String> =
            pairs.map(|(name, value)| format!("{name}={}", http::encode(value))).collect();
        let form = form.join("&");
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = match method {
            "GET" => http::get(address, &format!("{path}?{form}")),
            _ => http::request(address, method, path, &kind, form.as_bytes()),
        };
        let answer = answer.unwrap_or_else(|| panic!("{address}{path}?{form}: no answer"));
        (answer.status, answer.body)
    }
}

/// Whether the order of series means anything: a matrix is sorted by labels.
fn is_instant(answer: &Answer) -> bool {
    match answer {
        Answer::Data(super::answer::Data::Series { points, .. }) => {
            points.values().all(|points| points.len() == 1)
        }
        _ => false,
    }
}

fn start_prometheus(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let config = folder.join("prometheus.yml");
    fs::write(&config, "global: {evaluation_interval: 1m}\n").expect("a configuration file");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus-data").display()));
    // The world's time is fixed, so it gets old.
    command.arg("--storage.tsdb.retention.time=100y");
    command.arg(format!("--web.listen-address={address}"));
    command.arg("--web.enable-remote-write-receiver");
    // A version that does not know a feature logs that and continues.
    command.arg(
        "--enable-feature=promql-experimental-functions,promql-duration-expr,\
         promql-extended-range-selectors,promql-binop-fill-modifiers",
    );
    let process = Process::start("prometheus", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn start_firn(folder: &Path, address: SocketAddr) -> Process {
    let mut command = firn(folder, address);
    command.args(["--self-scrape=never", "--shards=4", "--log-streams=2", "--enable-admin-api"]);
    command.args(["--head-flush-bytes=100KiB", "--upload-age-max=5s"]);
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn dialect(address: SocketAddr) -> Dialect {
    let answer = http::get(address, "/api/v1/status/buildinfo").expect("buildinfo");
    let json: Value = serde_json::from_str(&answer.body).expect("JSON");
    let version = json["data"]["version"].as_str().unwrap_or_default().to_owned();
    println!("Prometheus {version}");
    if version.starts_with("2.") { Dialect::V2 } else { Dialect::V3 }
}
