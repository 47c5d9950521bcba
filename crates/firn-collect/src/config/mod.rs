//! Prometheus' configuration file.
//!
//! [`Config::load`] reads a file with Prometheus' defaults and checks, with Prometheus' texts of
//! errors. The result is plain data: jobs have all that they inherit, rules are compiled, paths are
//! joined with the folder of their file. [`Config::scrape_configs`] adds the included files.
//!
//! Secrets are [`firn_model::Secret`]s: neither [`Config::to_yaml`] nor `Debug` shows them.

mod alerting;
pub mod discovery;
mod files;
mod global;
mod http;
mod other;
mod remote;
mod rule_list;
mod scrape;
mod target_file;
mod url;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use firn_model::{Budget, Error, Pool, Reservation, Result, system_text};

pub use self::url::Url;
pub use alerting::{Alerting, AlertmanagerVersion, Alertmanagers};
pub use files::{Files, glob};
pub use firn_yaml::{Items, Millis};
pub use global::{Escaping, EscapingText, Global, ScrapeProtocol};
pub use http::{
    Authorization, BasicAuth, Header, HttpClient, OAuth2, ProxyConfig, TlsConfig, TlsVersion,
};
pub use other::{
    ChunkEncoding, Exemplars, LogLevel, Otlp, Retention, Runtime, Storage, Tracing, TracingClient,
    Tsdb,
};
pub use remote::{
    AzureAd, AzureCertificate, AzureManagedIdentity, AzureOAuth, AzureSdk, AzureWorkloadIdentity,
    GoogleIam, MetadataConfig, QueueConfig, RemoteRead, RemoteWrite, SigV4, WriteMessage,
};
pub use rule_list::RuleList;
pub use scrape::ScrapeConfig;
pub(crate) use values::join_folder;
pub use values::{AnyValue, FilePath, HiddenText, LabelSet, Size, UrlText};

use crate::relabel::NameScheme;
use firn_yaml::quoted;
use firn_yaml::{Checked, Encoded, Failure, Field, from_document_within, print, section};

/// Keys of files that a server writes.
const LOG_KEYS: [&str; 2] = ["query_log_file", "scrape_failure_log_file"];
/// Keys of patterns. `files` is a key of `file_sd_configs`, and one of headers, without patterns.
const PATTERN_KEYS: [&str; 3] = ["rule_files", "scrape_config_files", "files"];

section! {
    /// A whole file. The paths of files and patterns are joined with its folder.
    pub struct Config: "config.plain" {
        global: Global = "global",
        runtime: Runtime = "runtime" omit,
        alerting: Alerting = "alerting" omit,
        rule_files: Vec<FilePath> = "rule_files" omit,
        scrape_config_files: Vec<FilePath> = "scrape_config_files" omit,
        /// Those of this file; see [`Config::scrape_configs`].
        scrape_configs: Items<ScrapeConfig> = "scrape_configs" omit,
        storage: Storage = "storage" omit,
        tracing: Option<Tracing> = "tracing" omit,
        remote_write: Items<RemoteWrite> = "remote_write" omit,
        remote_read: Items<RemoteRead> = "remote_read" omit,
        otlp: Otlp = "otlp",
    }
}

section! {
    /// A file that is included.
    struct IncludedFile: "config.ScrapeConfigs" {
        scrape_configs: Items<ScrapeConfig> = "scrape_configs" omit,
    }
}

impl Checked for IncludedFile {}

/// A loaded file.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Variables in `external_labels` that are not set, in order of labels.
    pub unset_variables: Vec<String>,
}

/// The way to load a file.
pub struct LoadOptions<'a> {
    /// The values of environment variables.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Whether only sections of an agent are allowed.
    pub is_agent: bool,
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions").field("is_agent", &self.is_agent).finish_non_exhaustive()
    }
}

impl Default for Config {
    /// The configuration of an empty file.
    fn default() -> Config {
        Config {
            global: Global::default(),
            runtime: Runtime::default(),
            storage: Storage { tsdb: Some(Tsdb::defaults()), exemplars: None },
            otlp: Otlp::default(),
            ..Config::zero()
        }
    }
}

impl Checked for Config {
    fn start(&mut self) {
        *self = Config::default();
        self.storage.tsdb = None;
    }

    fn check(&mut self) -> Result<(), String> {
        // Sections that are open but empty.
        if self.global.is_zero() {
            self.global = Global::default();
        }
        if self.runtime.is_zero() {
            self.runtime = Runtime::default();
        }
        self.storage.tsdb.get_or_insert_with(Tsdb::defaults);
        check_patterns(&self.rule_files, "rule file")?;
        check_patterns(&self.scrape_config_files, "scrape config file")?;
        check_nulls(self.scrape_configs.has_null(), "scrape config")?;
        let mut names = BTreeSet::new();
        for job in self.scrape_configs.items_mut() {
            job.inherit(&self.global)?;
            if !names.insert(job.job_name.clone()) {
                return Err(repeated("scrape", &job.job_name));
            }
        }
        let scheme = self.global.metric_name_validation_scheme;
        self.alerting.compile(scheme)?;
        check_nulls(self.remote_write.has_null(), "remote write config")?;
        check_names(self.remote_write.iter().map(|remote| remote.name.as_str()), "remote write")?;
        for remote in self.remote_write.items_mut() {
            remote.write_relabel_configs.compile(scheme)?;
        }
        check_nulls(self.remote_read.has_null(), "remote read config")?;
        check_names(self.remote_read.iter().map(|remote| remote.name.as_str()), "remote read")
    }
}

fn check_nulls(has_null: bool, name: &str) -> Result<(), String> {
    if has_null { Err(format!("empty or null {name} section")) } else { Ok(()) }
}

fn repeated(kind: &str, name: &str) -> String {
    let name = quoted(name.as_bytes());
    format!("found multiple {kind} configs with job name {name}")
}

/// Empty names may be repeated.
fn check_names<'n>(names: impl Iterator<Item = &'n str>, kind: &str) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names.filter(|name| !name.is_empty()) {
        if !seen.insert(name) {
            return Err(repeated(kind, name));
        }
    }
    Ok(())
}

/// `*` may only be in the last element, once.
fn check_patterns(patterns: &[FilePath], kind: &str) -> Result<(), String> {
    for pattern in patterns {
        let behind = pattern.as_str().split_once('*').map_or("", |(_, behind)| behind);
        if behind.contains('/') {
            let pattern = quoted(pattern.as_str().as_bytes());
            return Err(format!("invalid {kind} path {pattern}"));
        }
    }
    Ok(())
}

impl Config {
    /// Parses `text` without joining paths.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text, and a line where it is known.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Loaded> {
        Config::parse_within(text, env, &Budget::unlimited())
    }

    fn parse_within(
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        budget: &Budget,
    ) -> Result<Loaded> {
        let mut config = Config::default();
        let read = from_document_within(text, &mut config, budget);
        // The values are those of an operator, and stay: the limit is that of reading them.
        drop(read.map_err(Failure::into_error)?);
        let mut unset_variables = Vec::new();
        for value in config.global.external_labels.values_mut() {
            *value = expand(value, env, &mut unset_variables);
        }
        let has_utf8 = config.global.metric_name_validation_scheme != NameScheme::Legacy;
        config.otlp.check_strategy(has_utf8).map_err(Error::invalid)?;
        Ok(Loaded { config, unset_variables })
    }

    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be read, `Invalid` as [`Config::parse`], `Busy` without memory.
    pub fn load(path: &Path, files: &dyn Files, options: &LoadOptions<'_>) -> Result<Loaded> {
        let FileText { text, _held } = read(path, files)?;
        let mut loaded = Config::parse_within(&text, options.env, &files.budget())
            .map_err(|error| error.context(format_args!("parsing YAML file {}", path.display())))?;
        let config = &mut loaded.config;
        if options.is_agent {
            let alerting = &config.alerting;
            let has_alerting =
                !alerting.alertmanagers.is_empty() || !alerting.alert_relabel_configs.is_empty();
            for (section, is_set) in [
                ("alerting", has_alerting),
                ("rule_files", !config.rule_files.is_empty()),
                ("remote_read", !config.remote_read.is_empty()),
            ] {
                if is_set {
                    let text = format!("field {section} is not allowed in agent mode");
                    return Err(Error::invalid(text));
                }
            }
        }
        join_folder(config, folder_of(path));
        Ok(loaded)
    }

    /// The files that the configuration and `jobs`, which it includes, name to be read, each with
    /// its key. A pattern is followed by the files that match now.
    ///
    /// # Errors
    /// `Invalid` for a pattern with an open bracket.
    pub fn named_files<'j>(
        &self,
        jobs: impl Iterator<Item = &'j ScrapeConfig>,
        files: &dyn Files,
    ) -> Result<Vec<(&'static str, PathBuf)>> {
        let mut named = BTreeSet::new();
        let mut visit = |key: &'static str, path: &mut String| {
            if !LOG_KEYS.contains(&key) {
                named.insert((key, PathBuf::from(path.as_str())));
            }
        };
        self.clone().each_path("", &mut visit);
        jobs.for_each(|job| job.clone().each_path("", &mut visit));
        let mut found = Vec::new();
        for (key, path) in named {
            found.push((key, path.clone()));
            if PATTERN_KEYS.contains(&key) {
                let matching = glob(files, &path.to_string_lossy())?;
                found.extend(matching.into_iter().filter(|one| *one != path).map(|one| (key, one)));
            }
        }
        Ok(found)
    }

    /// The jobs of the file and of all files that it includes, in order.
    ///
    /// # Errors
    /// `Unavailable` if an included file cannot be read, `Invalid` if it is wrong or repeats the
    /// name of a job, `Busy` without memory.
    pub fn scrape_configs(&self, files: &dyn Files) -> Result<Vec<ScrapeConfig>> {
        let mut jobs = self.scrape_configs.to_vec();
        let mut places: BTreeMap<String, String> =
            jobs.iter().map(|job| (job.job_name.clone(), "main config file".to_owned())).collect();
        for pattern in &self.scrape_config_files {
            let pattern = pattern.as_str();
            let paths = glob(files, pattern).map_err(|error| {
                let pattern = quoted(pattern.as_bytes());
                error.context(format_args!("error retrieving scrape config files for {pattern}"))
            })?;
            for path in paths {
                let name = quoted(path.to_string_lossy().as_bytes());
                let mut included = IncludedFile::zero();
                let file = read(&path, files)?;
                from_document_within(&file.text, &mut included, &files.budget())
                    .map_err(|error| error.into_error().context(&name))?;
                let wrong = |error: String| Error::invalid(format!("{name}: {error}"));
                check_nulls(included.scrape_configs.has_null(), "scrape config").map_err(wrong)?;
                for job in included.scrape_configs.items_mut() {
                    job.inherit(&self.global).map_err(wrong)?;
                    join_folder(job, folder_of(&path));
                    if let Some(first) = places.get(&job.job_name) {
                        let text = repeated("scrape", &job.job_name);
                        return Err(wrong(format!("{text}, first found in {first}")));
                    }
                    places.insert(job.job_name.clone(), name.clone());
                }
                jobs.append(included.scrape_configs.items_mut());
            }
        }
        Ok(jobs)
    }

    /// The configuration as YAML, with all values that it inherits and without secrets. Passwords
    /// of addresses are hidden in every text: targets, parameters, labels, replacements.
    pub fn to_yaml(&self) -> String {
        let mut encoded = self.encode();
        hide_passwords(&mut encoded);
        print(&encoded)
    }
}

fn hide_passwords(encoded: &mut Encoded) {
    match encoded {
        Encoded::Text(text) if text.contains('@') => *text = Url::shown(text),
        Encoded::List(items) => items.iter_mut().for_each(hide_passwords),
        Encoded::Map(keys) => keys.iter_mut().for_each(|(_, value)| hide_passwords(value)),
        Encoded::Text(_) | Encoded::Word(_) | Encoded::Null => {}
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The text of a file, with its memory.
struct FileText {
    text: String,
    _held: Reservation,
}

fn read(path: &Path, files: &dyn Files) -> Result<FileText> {
    let held = files.budget().reserve(Pool::Requests, files.bytes(path))?;
    let text = files.read(path).map_err(|error| {
        let context = format!("open {}", path.display());
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("{context}: no such file or directory"))
            }
            _ => Error::unavailable(format!("{context}: {}", system_text(&error))),
        }
    })?;
    Ok(FileText { text, _held: held })
}

/// `text` with `$name`, `${name}` and `$$` replaced, as by Go's `os.Expand`.
fn expand(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    unset_variables: &mut Vec<String>,
) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (name, behind) = variable(after);
        rest = behind;
        match name {
            // A dollar that no name follows.
            Some("") => out.push('$'),
            Some("$") => out.push('$'),
            Some(name) => match env(name).filter(|value| !value.is_empty()) {
                Some(value) => out.push_str(&value),
                None => unset_variables.push(name.to_owned()),
            },
            // `${}` and `${` without an end disappear.
            None => {}
        }
    }
    out.push_str(rest);
    out
}

/// The name behind a dollar, and the text behind the name; `None` for braces without a name.
fn variable(after: &str) -> (Option<&str>, &str) {
    let is_special = |c: char| "*#$@!?-0123456789".contains(c);
    if let Some(inside) = after.strip_prefix('{') {
        return match inside.split_once('}') {
            Some(("", behind)) => (None, behind),
            Some((name, behind)) => (Some(name), behind),
            None => (None, inside),
        };
    }
    let name_end = match after.chars().next() {
        Some(first) if is_special(first) => first.len_utf8(),
        _ => after.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(after.len()),
    };
    let (name, behind) = after.split_at(name_end);
    (Some(name), behind)
}

#[cfg(test)]
mod tests;
