//! The files that name targets and rules, in Prometheus' formats.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io::Write as _};

use super::page::metric_names;

/// Seconds between two scrapes of a target.
pub const SCRAPE_S: u64 = 15;
/// Seconds between two evaluations of a rule.
pub const EVALUATION_S: u64 = 30;
/// Groups of rules; each is about the targets of one shard.
pub const RULE_GROUPS: usize = 200;

/// A folder with `prometheus.yml`, a list of targets and a file of rules.
#[derive(Debug)]
pub struct Files {
    folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Files {
    /// Files for targets that `address` serves; no target and no rule at first.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn new(address: SocketAddr) -> io::Result<Files> {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let files = Files { folder, address };
        let config = format!(
            "global:\n  scrape_interval: {SCRAPE_S}s\n  evaluation_interval: {EVALUATION_S}s\n\
             rule_files: [{rules}]\n\
             scrape_configs:\n- job_name: bench\n  file_sd_configs:\n\
             \x20 - files: [{targets}]\n    refresh_interval: 5s\n",
            rules = files.path("rules.yml").display(),
            targets = files.path("targets.json").display(),
        );
        files.write("prometheus.yml", &config)?;
        files.write("targets.json", "[]")?;
        files.write("rules.yml", "groups: []\n")?;
        Ok(files)
    }

    /// The path of `prometheus.yml`.
    pub fn config(&self) -> PathBuf {
        self.path("prometheus.yml")
    }

    /// Names targets with these numbers; programs see it within seconds.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_targets(&self, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let entry = |number: u64| {
            format!(
                "{{\"targets\":[\"{}\"],\"labels\":{{\"__metrics_path__\":\"/target/{number}\",\
                 \"instance\":\"host-{number:05}\",\"shard\":\"{}\"}}}}",
                self.address,
                number as usize % RULE_GROUPS
            )
        };
        let entries: Vec<String> = numbers.into_iter().map(entry).collect();
        self.write("targets.json", &format!("[{}]\n", entries.join(",\n")))
    }

    /// In each group a recording rule and an alert for each metric, which never fires. Programs see
    /// it after a reload.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_rules(&self, groups: Range<usize>) -> io::Result<()> {
        let mut text = "groups:\n".to_owned();
        for group in groups {
            let _ = writeln!(text, "- name: shard-{group}\n  rules:");
            for metric in metric_names() {
                let selector = format!("{metric}{{shard='{group}'}}");
                let read = if metric.ends_with("_total") || metric.ends_with("_bucket") {
                    format!("rate({selector}[2m])")
                } else {
                    selector
                };
                let _ = writeln!(
                    text,
                    "  - record: shard:{metric}:sum\n    expr: sum by (instance) ({read})\n\
                     \x20   labels: {{shard: '{group}'}}\n\
                     \x20 - alert: High_{metric}\n    expr: {read} > 1e18\n    for: 5m"
                );
            }
        }
        self.write("rules.yml", &text)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the file at once, so that no program reads half of it.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let temporary = self.path("new");
        fs::File::create(&temporary)?.write_all(text.as_bytes())?;
        fs::rename(temporary, Path::new(&self.path(name)))
    }
}
