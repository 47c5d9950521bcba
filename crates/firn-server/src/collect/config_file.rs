//! The file of `--prometheus-config`: its load, its reload, and the parts of the server that act
//! on it.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use firn_collect::config::{Config, Files, LoadOptions, ScrapeConfig, glob};
use firn_model::{Budget, Error, Pool, Result, Timestamp};
use parking_lot::{Mutex, RwLock};
use ring::digest::{Context, SHA256};

use super::files::LocalFiles;
use super::support::keys_without_effect;
use crate::access::line_log::InputFile;
use crate::clock::clock_ms;
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;

// As of `firn check config`, which accepts the files of a start.
const START_BYTES_MAX: u64 = 512 << 20;

/// The memory of files before that of the database is known.
fn start_budget() -> Budget {
    Budget::unlimited().part(START_BYTES_MAX)
}

/// A loaded file, checked whole.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub(crate) config: Config,
    /// The jobs of the file and of the files that it includes.
    pub(crate) jobs: Vec<Arc<ScrapeConfig>>,
    pub(crate) loaded_ms: Timestamp,
}

impl LoadedFile {
    /// The files that the configuration and the files that it includes name: rules, further scrape
    /// configurations, credentials, certificates, lists of targets.
    ///
    /// # Errors
    /// `Invalid` for a pattern that the load refuses.
    pub(crate) fn inputs(&self) -> Result<Vec<InputFile>> {
        let files = LocalFiles { budget: Budget::unlimited() };
        let named = self.config.named_files(self.jobs.iter().map(AsRef::as_ref), &files)?;
        let input = |(key, path)| InputFile { setting: format!("{key} in {FLAG}"), path };
        Ok(named.into_iter().map(input).collect())
    }
}

/// Makes a part of the server act on a file that all parts have accepted. Must be quick: it stores
/// the new state, and a task of the part does the work.
pub(crate) type Apply<'p> = Box<dyn FnOnce() + Send + 'p>;

/// A part of the server that acts on the file.
pub(crate) trait ConfigPart: fmt::Debug + Send + Sync {
    /// Reads and checks all that the part needs of `file`, files that it names included. Changes
    /// nothing until the returned function is called, which happens once every part has accepted
    /// the file.
    ///
    /// # Errors
    /// If the part cannot act on the file. No part then acts on it.
    fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, files: &LocalFiles) -> Result<Apply<'p>>;
}

const FLAG: &str = "--prometheus-config";

/// Whether `error`, of a start, is that of the file of `--prometheus-config` or of a file in it.
pub fn is_of_prometheus_config(error: &Error) -> bool {
    error.what().starts_with(FLAG)
}

/// The file and its parts.
#[derive(Debug)]
pub(crate) struct PrometheusFile {
    path: PathBuf,
    parts: Vec<Arc<dyn ConfigPart>>,
    current: RwLock<Arc<LoadedFile>>,
    /// The last load succeeded.
    is_current: AtomicBool,
    failures: Counter,
    /// Held while the file is loaded: one reload at a time.
    loading: Mutex<()>,
    /// The memory of reloads, once the database is open.
    budget: OnceLock<Budget>,
}

impl PrometheusFile {
    /// Loads the file `path` and makes `parts` act on it, in order.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable` if a file cannot be read, `Invalid` with Prometheus' text, and
    /// those of the parts.
    pub(crate) fn open(path: PathBuf, parts: Vec<Arc<dyn ConfigPart>>) -> Result<PrometheusFile> {
        let file = PrometheusFile {
            path,
            parts,
            current: RwLock::new(Arc::new(LoadedFile {
                config: Config::default(),
                jobs: Vec::new(),
                loaded_ms: 0,
            })),
            is_current: AtomicBool::new(true),
            failures: Counter::default(),
            loading: Mutex::new(()),
            budget: OnceLock::new(),
        };
        file.load().map_err(|error| error.context(FLAG))?;
        Ok(file)
    }

    /// Reads files within `budget` from now on. Reading them at the start has a fixed limit.
    pub(crate) fn limit_memory(&self, budget: &Budget) {
        // A second call is a bug; the first budget stays.
        let _ = self.budget.set(budget.clone());
    }

    /// Loads the file again, all or nothing: if any part refuses it, every part keeps the previous
    /// one.
    ///
    /// # Errors
    /// As [`PrometheusFile::open`].
    pub(crate) fn reload(&self) -> Result<()> {
        let loaded = self.load();
        self.is_current.store(loaded.is_ok(), Ordering::Relaxed);
        match &loaded {
            Ok(()) => tracing::info!(path = %self.path.display(), "loaded the configuration again"),
            Err(error) => {
                self.failures.add(1);
                tracing::error!(
                    path = %self.path.display(),
                    %error,
                    "the configuration is wrong; the previous one stays in use"
                );
            }
        }
        loaded
    }

    fn load(&self) -> Result<()> {
        let _loading = self.loading.lock();
        let options = LoadOptions { env: &|name| std::env::var(name).ok(), is_agent: false };
        let files = self.files();
        let loaded = Config::load(&self.path, &files, &options)?;
        let jobs = loaded
            .config
            .scrape_configs(&files)
            .map_err(|error| error.context("error loading scrape configs"))?;
        let file = Arc::new(LoadedFile {
            config: loaded.config,
            jobs: jobs.into_iter().map(Arc::new).collect(),
            loaded_ms: clock_ms(),
        });
        let prepared: Result<Vec<Apply<'_>>> =
            self.parts.iter().map(|part| part.prepare(&file, &files)).collect();
        let prepared = prepared?;
        for name in &loaded.unset_variables {
            tracing::warn!("external_labels: the variable {name} is empty or not set");
        }
        for key in keys_without_effect(&file.config, file.jobs.iter().map(AsRef::as_ref)) {
            tracing::warn!("{key}: this part of the configuration has no effect");
        }
        *self.current.write() = file;
        prepared.into_iter().for_each(|apply| apply());
        Ok(())
    }

    /// A digest of the texts that a reload reads: of the file, and of the rule files and further
    /// scrape configurations that match the patterns in use.
    ///
    /// # Errors
    /// `Busy` without memory for one of them.
    pub(crate) fn digest(&self) -> Result<Vec<u8>> {
        let (files, current) = (self.files(), self.current());
        let config = &current.config;
        let mut paths = vec![self.path.clone()];
        for pattern in config.rule_files.iter().chain(&config.scrape_config_files) {
            paths.extend(glob(&files, pattern.as_str())?);
        }
        let mut digest = Context::new(&SHA256);
        for path in paths {
            let _held = files.budget().reserve(Pool::Requests, files.bytes(&path))?;
            // A file that cannot be read is another text: the reload names the reason.
            let text = files.read(&path).unwrap_or_default();
            for part in [path.as_os_str().as_encoded_bytes(), text.as_bytes()] {
                digest.update(&(part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
        Ok(digest.finish().as_ref().to_vec())
    }

    fn files(&self) -> LocalFiles {
        LocalFiles { budget: self.budget.get().cloned().unwrap_or_else(start_budget) }
    }

    /// The file that is in use.
    pub(crate) fn current(&self) -> Arc<LoadedFile> {
        Arc::clone(&self.current.read())
    }

    /// Whether the last load succeeded.
    pub(crate) fn is_current(&self) -> bool {
        self.is_current.load(Ordering::Relaxed)
    }

    /// The state of loading, under this server's names and those that Prometheus' dashboards and
    /// alerts use.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        let is_current = f64::from(u8::from(self.is_current()));
        let loaded_s = self.current().loaded_ms as f64 / 1e3;
        for prefix in ["firn", "prometheus"] {
            text.gauge(
                &format!("{prefix}_config_last_reload_successful"),
                "1 if the last load of the configuration succeeded.",
                is_current,
            );
            text.gauge(
                &format!("{prefix}_config_last_reload_success_timestamp_seconds"),
                "Time of the last successful load of the configuration.",
                loaded_s,
            );
        }
        let name = "firn_config_failed_reloads_total";
        text.family(name, Kind::Counter, "Loads of the configuration that failed.");
        text.sample(name, &[], self.failures.get() as f64);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Accepts files of at most `job_count_max` jobs.
    #[derive(Debug, Default)]
    struct Part {
        job_count_max: usize,
        applied: Mutex<Vec<usize>>,
    }

    impl ConfigPart for Part {
        fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, _: &LocalFiles) -> Result<Apply<'p>> {
            let count = file.jobs.len();
            if count > self.job_count_max {
                return Err(Error::invalid("too many jobs"));
            }
            Ok(Box::new(move || self.applied.lock().push(count)))
        }
    }

    struct World {
        folder: TempDir,
        parts: [Arc<Part>; 2],
    }

    impl World {
        fn new() -> World {
            let part = |job_count_max| Arc::new(Part { job_count_max, ..Part::default() });
            World { folder: TempDir::new().unwrap(), parts: [part(3), part(2)] }
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        }

        fn open(&self, text: &str) -> Result<PrometheusFile> {
            let parts =
                self.parts.iter().map(|part| Arc::clone(part) as Arc<dyn ConfigPart>).collect();
            PrometheusFile::open(self.write("prometheus.yml", text), parts)
        }

        fn applied(&self) -> [Vec<usize>; 2] {
            [0, 1].map(|idx| self.parts[idx].applied.lock().clone())
        }
    }

    fn jobs(count: usize) -> String {
        let jobs: Vec<String> = (0..count).map(|idx| format!("{{job_name: j{idx}}}")).collect();
        format!("scrape_configs: [{}]\n", jobs.join(","))
    }

    // The second part refuses three jobs: the first one must not see them either.
    #[test]
    fn a_file_that_one_part_refuses_changes_no_part() {
        let world = World::new();
        let file = world.open(&jobs(1)).unwrap();
        assert_eq!(world.applied(), [vec![1], vec![1]]);
        world.write("prometheus.yml", &jobs(3));
        assert!(file.reload().unwrap_err().to_string().contains("too many jobs"));
        assert_eq!(world.applied(), [vec![1], vec![1]]);
        assert_eq!((file.current().jobs.len(), file.is_current()), (1, false));
        world.write("prometheus.yml", "scrape_configs: [{}]");
        assert!(file.reload().unwrap_err().to_string().contains("job_name is empty"));
        std::fs::remove_file(world.folder.path().join("prometheus.yml")).unwrap();
        assert!(file.reload().unwrap_err().to_string().contains("no such file"));
        assert_eq!(world.applied(), [vec![1], vec![1]]);
        world.write("prometheus.yml", &jobs(2));
        file.reload().unwrap();
        assert_eq!(world.applied(), [vec![1, 2], vec![1, 2]]);
        assert_eq!((file.current().jobs.len(), file.is_current()), (2, true));
        let mut text = MetricsText::default();
        file.write_text(&mut text);
        let text = text.finish();
        assert!(text.contains("prometheus_config_last_reload_successful 1\n"), "{text}");
        assert!(text.contains("firn_config_failed_reloads_total 3\n"), "{text}");
    }

    #[test]
    fn the_jobs_of_included_files_are_read_and_their_mistakes_refuse_the_file() {
        let world = World::new();
        world.write("more.yml", &jobs(1));
        let file = world.open("scrape_config_files: ['mor*.yml']\n").unwrap();
        assert_eq!(file.current().jobs.len(), 1);
        world.write("more.yml", "scrape_configs: [{job_name: a, typo: 1}]");
        let error = file.reload().unwrap_err().to_string();
        assert!(error.contains("field typo not found"), "{error}");
        let error = world.open("global: {scrape_interval: x}").unwrap_err().to_string();
        assert!(error.contains("--prometheus-config"), "{error}");
    }

    #[test]
    fn a_digest_is_that_of_all_texts_of_a_reload() {
        let world = World::new();
        world.write("more.yml", &jobs(1));
        world.write("1.rules", "groups: []");
        let text = "rule_files: ['*.rules', none.yml]\nscrape_config_files: [more.yml]\n";
        let file = world.open(text).unwrap();
        let mut last = file.digest().unwrap();
        let mut is_changed = || {
            let next = file.digest().unwrap();
            std::mem::replace(&mut last, next.clone()) != next
        };
        assert!(!is_changed());
        world.write("other.yml", "a");
        world.write("1.rules", "groups: []");
        assert!(!is_changed());
        for name in ["prometheus.yml", "more.yml", "1.rules", "2.rules", "none.yml"] {
            world.write(name, "a");
            assert!(is_changed(), "{name}");
        }
        std::fs::remove_file(world.folder.path().join("more.yml")).unwrap();
        assert!(is_changed() && !is_changed());
    }
}
