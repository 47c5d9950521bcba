//! Collection: the file `prometheus.yml`, discovery, and scraping.
//!
//! **Owns** the loaded configuration and its reload, the tasks of discoveries, the thread that
//! scrapes, the threads that turn long answers into rows, and the states of targets.
//!
//! **Never** parses a key, a body or a label: `firn-collect` does. Never opens a connection:
//! `firn-fetch` does.
//!
//! **Paths**: [`PrometheusFile`] loads the file and calls each [`ConfigPart`]. [`Collector`] is the
//! part that scrapes: `follow` sets jobs and targets, `pace` starts scrapes, `work` is one scrape,
//! and `commits` writes the rows of several. [`DiscoveryTasks`] runs the discoveries of a part and
//! keeps the last good lists.
//!
//! **Invariants**: a file that any part refuses changes nothing; a scrape is one batch; memory of
//! bodies, lists and targets is reserved first; at most one scrape per target is in flight; no lock
//! is held over I/O.
//!
//! Reading order: `files`, `config_file`, `discovery`, `store`, `families`, `metrics`, `commits`,
//! `collector`.

mod collector;
mod commits;
mod config_file;
mod discovery;
mod families;
mod files;
mod metrics;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

use firn_collect::config::glob;
use firn_model::{Budget, Result};

pub(crate) use collector::{Collector, run};
pub(crate) use config_file::{Apply, ConfigPart, LoadedFile, PrometheusFile};
pub(crate) use discovery::{DiscoveryTasks, USER_AGENT};
pub(crate) use families::Family;
pub(crate) use files::LocalFiles;

use crate::access::line_log::InputFile;
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

    /// The files that the configuration names: rules, and further scrape configurations.
    ///
    /// # Errors
    /// `Invalid` for a pattern that the load refuses.
    pub(crate) fn inputs(&self) -> Result<Vec<InputFile>> {
        let config = &self.file.current().config;
        let files = LocalFiles { budget: Budget::unlimited() };
        let rules = config.rule_files.iter().map(|pattern| ("rule_files", pattern));
        let jobs = config.scrape_config_files.iter().map(|one| ("scrape_config_files", one));
        let mut inputs = Vec::new();
        for (key, pattern) in rules.chain(jobs) {
            let setting = format!("{key} in --prometheus-config");
            let paths = glob(&files, pattern.as_str())?.into_iter();
            inputs.extend(paths.map(|path| InputFile { setting: setting.clone(), path }));
        }
        Ok(inputs)
    }

    /// Ends the scrapes, before the database is closed.
    pub(crate) fn stop(&self) {
        self.collector.stop();
    }

    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        self.file.write_text(text);
        self.collector.write_text(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_further_jobs_are_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        write("a.rules", "groups: []\n");
        write("b.rules", "groups: []\n");
        write("jobs.yml", "scrape_configs: []\n");
        let text = "rule_files: ['*.rules']\nscrape_config_files: [jobs.yml, none.yml]\n";
        let collect = Collect::open(write("prometheus.yml", text), Vec::new()).unwrap();
        let inputs = collect.inputs().unwrap().into_iter();
        let inputs = inputs.map(|input| (input.setting, input.path));
        let (rules, jobs) = ("rule_files", "scrape_config_files");
        let wanted = [(rules, "a.rules"), (rules, "b.rules"), (jobs, "jobs.yml")];
        let wanted = wanted
            .map(|(key, name)| (format!("{key} in --prometheus-config"), folder.path().join(name)));
        assert_eq!(inputs.collect::<Vec<_>>(), wanted);
    }
}
