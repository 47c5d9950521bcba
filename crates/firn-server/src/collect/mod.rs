//! Collection: the file `prometheus.yml`, discovery, and scraping.
//!
//! **Owns** the loaded configuration and its reload, the tasks of discoveries, the thread that
//! scrapes, the threads that turn long answers into rows, and the states of targets.
//!
//! **Never** parses a key, a body or a label: `firn-collect` does. Never opens a connection:
//! `firn-fetch` does.
//!
//! **Paths**: [`PrometheusFile`] loads the file and calls each [`ConfigPart`]. [`Collector`] is the
//! part that scrapes. In `scrape_loop`, `follow` sets jobs and targets, `pace` starts scrapes, and
//! `work` is one scrape; `commits` writes the rows of several. [`DiscoveryTasks`] runs the
//! discoveries of a part and keeps the last good lists.
//!
//! **Invariants**: a file that any part refuses changes nothing; a scrape is one batch; memory of
//! bodies, lists and targets is reserved first; at most one scrape per target is in flight; no lock
//! is held over I/O.
//!
//! Reading order: `files`, `support`, `config_file`, `discovery`, `store`, `families`, `metrics`,
//! `commits`, `collector`, `scrape_loop`.

mod collector;
mod commits;
mod config_file;
mod discover;
mod discovery;
mod failure_log;
mod families;
mod files;
mod metrics;
pub(crate) mod scrape_loop;
mod store;
mod support;

use std::path::PathBuf;
use std::sync::Arc;

use firn_model::Result;

pub(crate) use collector::{Collector, ScrapeState};
pub use config_file::is_of_prometheus_config;
pub(crate) use config_file::{Apply, ConfigPart, LoadedFile, PrometheusFile};
pub use discover::{FoundTargets, discover};
pub(crate) use discovery::{DiscoveryTasks, TargetList, USER_AGENT};
pub(crate) use families::Family;
pub(crate) use files::LocalFiles;
pub use support::UnsupportedParts;
pub(crate) use support::{check_alertmanagers, check_remote_write};

use crate::metrics_text::MetricsText;

/// The file of `--prometheus-config` and the part that scrapes.
#[derive(Debug)]
pub(crate) struct Collect {
    pub(crate) file: PrometheusFile,
    pub(crate) collector: Arc<Collector>,
}

impl Collect {
    /// Loads the file `path`. `others` are further parts that act on it.
    ///
    /// # Errors
    /// As [`PrometheusFile::open`].
    pub(crate) fn open(path: PathBuf, others: Vec<Arc<dyn ConfigPart>>) -> Result<Collect> {
        let collector = Arc::new(Collector::default());
        let mut parts: Vec<Arc<dyn ConfigPart>> = vec![Arc::<Collector>::clone(&collector)];
        parts.extend(others);
        Ok(Collect { file: PrometheusFile::open(path, parts)?, collector })
    }

    /// Ends the scrapes, before the database is closed.
    pub(crate) fn stop(&self) {
        self.collector.stop();
    }

    /// The metrics, with those of `notify`, the discoveries of Alertmanagers.
    pub(crate) fn write_text(&self, notify: &DiscoveryTasks, text: &mut MetricsText) {
        self.file.write_text(text);
        self.collector.write_text(notify, text);
        metrics::write_outgoing(text);
    }
}

#[cfg(test)]
mod tests {
    use firn_model::Budget;

    use super::*;

    /// Before, a log could be appended to credentials, certificates and lists of targets.
    #[test]
    fn all_files_that_the_configuration_reads_are_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        write("a.rules", "groups: []\n");
        write("b.rules", "groups: []\n");
        write("token", "secret\n");
        write("targets.json", "[]\n");
        write(
            "jobs.yml",
            "scrape_configs: [{job_name: b, authorization: {credentials_file: token}}]\n",
        );
        let text = "
global: {query_log_file: queries.log, scrape_failure_log_file: failures.log}
rule_files: ['*.rules', new.yml]
scrape_config_files: [jobs.yml, none.yml]
scrape_configs:
- job_name: a
  basic_auth: {username: u, password_file: token}
  tls_config: {ca_file: ca.pem}
  file_sd_configs: [{files: ['*.json']}]
remote_write:
- {url: http://localhost:1/, http_headers: {X-A: {files: [header]}}}
";
        let path = write("prometheus.yml", text);
        let files = LocalFiles { budget: Budget::unlimited() };
        let options = firn_collect::config::LoadOptions { env: &|_| None, is_agent: false };
        let config = firn_collect::config::Config::load(&path, &files, &options).unwrap().config;
        let jobs = config.scrape_configs(&files).unwrap();
        let named = config.named_files(jobs.iter(), &files).unwrap();
        let mut named: Vec<_> = named
            .iter()
            .map(|(key, path)| (*key, path.strip_prefix(folder.path()).unwrap().to_str().unwrap()))
            .collect();
        named.sort_unstable();
        let wanted = [
            ("ca_file", "ca.pem"),
            ("credentials_file", "token"),
            ("files", "*.json"),
            ("files", "header"),
            ("files", "targets.json"),
            ("password_file", "token"),
            ("rule_files", "*.rules"),
            ("rule_files", "a.rules"),
            ("rule_files", "b.rules"),
            ("rule_files", "new.yml"),
            ("scrape_config_files", "jobs.yml"),
            ("scrape_config_files", "none.yml"),
        ];
        assert_eq!(named, wanted);
        let text = "scrape_configs: [{job_name: a, authorization: {credentials_file: token}}]\n";
        let collect = Collect::open(write("small.yml", text), Vec::new()).unwrap();
        let inputs = collect.file.current().inputs().unwrap().into_iter();
        let inputs: Vec<_> = inputs.map(|input| (input.setting, input.path)).collect();
        let setting = "credentials_file in --prometheus-config".to_owned();
        assert_eq!(inputs, [(setting, folder.path().join("token"))]);
    }
}
