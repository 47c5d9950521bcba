//! The query log: the file of `--query-log`, or of `query_log_file` in `--prometheus-config`, which
//! a reload may change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use firn_model::Result;
use parking_lot::RwLock;

use crate::access::Gate;
use crate::access::line_log::{ForbiddenFiles, InputFile, LineLog};
use crate::collect::{Apply, Collect, ConfigPart, LoadedFile, LocalFiles};
use crate::metrics_text::MetricsText;

/// The log, if there is one.
#[derive(Debug, Default)]
pub(crate) struct QueryLog {
    /// `--query-log`, which precedes the file of the configuration.
    setting: Option<PathBuf>,
    /// Set by [`QueryLog::start`].
    gate: OnceLock<Arc<Gate>>,
    open: RwLock<Option<OpenLog>>,
}

#[derive(Debug)]
struct OpenLog {
    path: PathBuf,
    log: LineLog,
}

impl OpenLog {
    fn open(path: &Path, setting: &'static str, forbidden: ForbiddenFiles) -> Result<OpenLog> {
        let log = LineLog::open(path, setting, forbidden)?;
        Ok(OpenLog { path: path.to_owned(), log })
    }
}

const KEY: &str = "query_log_file";

impl QueryLog {
    /// `setting` is the file of `--query-log`.
    pub(crate) fn new(setting: Option<PathBuf>) -> QueryLog {
        QueryLog { setting, ..QueryLog::default() }
    }

    /// Opens the log, once the files of the web configuration are known. Reloads of `collect` may
    /// replace it from then on.
    ///
    /// # Errors
    /// As [`LineLog::open`].
    pub(crate) fn start(&self, gate: &Arc<Gate>, collect: Option<&Collect>) -> Result<()> {
        // A second call is a bug; the first gate stays.
        let _ = self.gate.set(Arc::clone(gate));
        let file = collect.map(|collect| collect.file.current());
        let key = file.as_ref().map(|file| file.config.global.query_log_file.as_path());
        let opened = match (&self.setting, key) {
            (Some(path), _) => Some(OpenLog::open(path, "--query-log", gate.forbidden())?),
            (None, Some(path)) if !path.as_os_str().is_empty() => {
                let opened = OpenLog::open(path, KEY, gate.forbidden());
                Some(opened.map_err(|error| error.context("--prometheus-config"))?)
            }
            (None, _) => None,
        };
        self.replace(opened);
        Ok(())
    }

    fn replace(&self, opened: Option<OpenLog>) {
        let previous = std::mem::replace(&mut *self.open.write(), opened);
        // A device that hangs delays only this thread.
        drop(previous);
    }

    /// Whether queries are logged.
    pub(crate) fn is_on(&self) -> bool {
        self.open.read().is_some()
    }

    /// Queues a line, which is made only for a log that is open.
    pub(crate) fn push(&self, line: impl FnOnce() -> Vec<u8>) {
        if let Some(open) = &*self.open.read() {
            open.log.push(line());
        }
    }

    /// Opens the file again. `inputs` are the files that the process reads now.
    pub(crate) fn reopen(&self, inputs: Vec<InputFile>) {
        if let Some(open) = &*self.open.read() {
            open.log.reopen(inputs);
        }
    }

    /// Lines that the log has lost; `None` without a log.
    pub(crate) fn lost_lines(&self) -> Option<u64> {
        self.open.read().as_ref().map(|open| open.log.counts().1)
    }

    /// Writes the number of lost lines, if there is a log.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        if let Some(lost) = self.lost_lines() {
            text.counter(
                "firn_query_log_dropped_lines_total",
                "Lines that the query log lost because its device was slow or failed.",
                lost as f64,
            );
        }
    }
}

impl ConfigPart for QueryLog {
    fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, _: &LocalFiles) -> Result<Apply<'p>> {
        let path = file.config.global.query_log_file.as_path();
        let is_named = !path.as_os_str().is_empty();
        if self.setting.is_some() && is_named {
            tracing::warn!("{KEY} has no effect: --query-log names the file");
        }
        // The first file is opened by `start`, a file that is open already by `reopen`.
        let gate = self.gate.get().filter(|_| self.setting.is_none());
        let is_open = self.open.read().as_ref().is_some_and(|open| open.path == path);
        let Some(gate) = gate.filter(|_| !is_open) else { return Ok(Box::new(|| ())) };
        let opened = match is_named {
            true => {
                let mut forbidden = gate.forbidden();
                forbidden.inputs.extend(file.inputs()?);
                Some(OpenLog::open(path, KEY, forbidden)?)
            }
            false => None,
        };
        Ok(Box::new(move || self.replace(opened)))
    }
}

#[cfg(test)]
mod tests {
    use firn_model::Budget;

    use super::*;
    use crate::access::GateOptions;

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::open(GateOptions::default(), Budget::unlimited(), || ()).unwrap())
    }

    /// Before, the key had no effect.
    #[test]
    fn reloads_replace_the_log_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |keys: &str| std::fs::write(at("prometheus.yml"), keys).unwrap();
        let lines = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        std::fs::write(at("a.rules"), "groups: []\n").unwrap();
        write("global: {query_log_file: one.log}\n");
        let log = Arc::new(QueryLog::new(None));
        let collect =
            Collect::open(at("prometheus.yml"), vec![Arc::<QueryLog>::clone(&log)]).unwrap();
        assert!(!log.is_on() && log.lost_lines().is_none());
        log.start(&gate(), Some(&collect)).unwrap();
        log.push(|| b"1".to_vec());
        // Another path.
        write("global: {query_log_file: two.log}\n");
        collect.file.reload().unwrap();
        assert_eq!(lines("one.log"), "1\n");
        log.push(|| b"2".to_vec());
        // Files that cannot be opened, and files that the configuration reads, change nothing.
        for wrong in ["nowhere/q.log", "a.rules"] {
            write(&format!("global: {{query_log_file: {wrong}}}\nrule_files: [a.rules]\n"));
            let error = collect.file.reload().unwrap_err().to_string();
            assert!(error.starts_with("query_log_file: "), "{error}");
        }
        log.push(|| b"3".to_vec());
        // Rotation, then the same path again.
        std::fs::rename(at("two.log"), at("old.log")).unwrap();
        write("global: {query_log_file: two.log}\nrule_files: [a.rules]\n");
        collect.file.reload().unwrap();
        log.reopen(Vec::new());
        log.push(|| b"4".to_vec());
        assert_eq!(log.lost_lines(), Some(0));
        // Without the key there is no log.
        write("{}\n");
        collect.file.reload().unwrap();
        assert!(!log.is_on());
        log.push(|| panic!("a line for no log"));
        assert_eq!([lines("old.log"), lines("two.log")], ["2\n3\n", "4\n"]);
        assert_eq!(lines("a.rules"), "groups: []\n");
    }

    #[test]
    fn the_setting_precedes_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str| {
            let text = format!("global: {{query_log_file: {name}}}\n");
            std::fs::write(at("prometheus.yml"), text).unwrap();
        };
        write("key.log");
        let log = Arc::new(QueryLog::new(Some(at("setting.log"))));
        let collect =
            Collect::open(at("prometheus.yml"), vec![Arc::<QueryLog>::clone(&log)]).unwrap();
        log.start(&gate(), Some(&collect)).unwrap();
        write("other.log");
        collect.file.reload().unwrap();
        log.push(|| b"1".to_vec());
        drop((collect, log));
        assert_eq!(std::fs::read_to_string(at("setting.log")).unwrap(), "1\n");
        assert!(!at("key.log").exists() && !at("other.log").exists());
        // A start with a wrong file names the flag, so that its exit code is that of the file.
        write("nowhere/q.log");
        let log = Arc::new(QueryLog::new(None));
        let collect =
            Collect::open(at("prometheus.yml"), vec![Arc::<QueryLog>::clone(&log)]).unwrap();
        let error = log.start(&gate(), Some(&collect)).unwrap_err();
        assert!(crate::collect::is_of_prometheus_config(&error), "{error}");
    }
}
