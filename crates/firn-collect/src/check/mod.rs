//! The check of a configuration with the files that it names, as `promtool check config`, and the
//! lints of exposed metrics.

mod exposition;
mod metrics;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

pub use metrics::{MetricFamilies, MetricProblem};

use firn_model::{Error, Labels, Result};

use crate::config::LabelSet;
use crate::config::discovery::{Discoveries, TargetGroup};
use crate::config::{
    Alertmanagers, Config, FilePath, Files, LoadOptions, Millis, ScrapeConfig, TlsConfig, glob,
};
use crate::pool::DiscoveredGroup;
use crate::relabel::LabelEditor;
use crate::targets::{Target, alertmanager_labels};
use firn_yaml::quoted;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct CheckedConfig {
    /// The configuration without the jobs of included files.
    pub config: Config,
    /// All jobs; only those of the file itself if only its syntax was checked.
    pub jobs: Vec<ScrapeConfig>,
    /// The rule files that exist. Empty if only the syntax was checked.
    pub rule_files: Vec<PathBuf>,
    /// Files that do not exist yet, variables that are not set, and discoveries that are not
    /// supported.
    pub warnings: Vec<String>,
}

/// Checks the file `path`: its syntax and, unless `is_syntax_only`, the files that it includes,
/// credentials, certificates, files of targets, and the labels of static targets.
///
/// # Errors
/// The first violation, with Prometheus' text.
pub fn check_config(
    path: &Path,
    files: &dyn Files,
    options: &LoadOptions<'_>,
    is_syntax_only: bool,
) -> Result<CheckedConfig> {
    let loaded = Config::load(path, files, options)?;
    let config = loaded.config;
    let mut warnings: Vec<String> = loaded
        .unset_variables
        .iter()
        .map(|name| format!("external_labels: the variable {name} is empty or not set"))
        .collect();
    let mut rule_files = Vec::new();
    let jobs = if is_syntax_only {
        config.scrape_configs.to_vec()
    } else {
        rule_files = existing_rule_files(&config, files)?;
        config
            .scrape_configs(files)
            .map_err(|error| error.context("error loading scrape configs"))?
    };
    let mut checker = Checker {
        files: (!is_syntax_only).then_some(files),
        editor: LabelEditor::default(),
        warnings: Vec::new(),
    };
    jobs.iter().try_for_each(|job| checker.job(job))?;
    config.alerting.alertmanagers.iter().try_for_each(|one| checker.alertmanagers(one))?;
    warnings.append(&mut checker.warnings);
    Ok(CheckedConfig { config, jobs, rule_files, warnings })
}

/// A target of a job and the result of its relabelling.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedTarget {
    /// The labels before relabelling.
    pub discovered: Labels,
    /// The labels of the target, empty for a dropped one; or the reason why it cannot be scraped.
    pub labels: Result<Labels, String>,
}

/// A job of a configuration.
#[derive(Clone, Debug)]
pub enum FoundJob {
    /// The job.
    Job(Box<ScrapeConfig>),
    /// There is no such job.
    Unknown {
        /// The names of all jobs.
        jobs: Vec<String>,
    },
}

/// The job `job_name` of the file `path`.
///
/// # Errors
/// Those of the configuration.
pub fn find_job(
    path: &Path,
    job_name: &str,
    files: &dyn Files,
    options: &LoadOptions<'_>,
) -> Result<FoundJob> {
    let mut jobs = Config::load(path, files, options)?.config.scrape_configs(files)?;
    Ok(match jobs.iter().position(|job| job.job_name == job_name) {
        Some(idx) => FoundJob::Job(Box::new(jobs.swap_remove(idx))),
        None => FoundJob::Unknown { jobs: jobs.into_iter().map(|job| job.job_name).collect() },
    })
}

/// The origin of a group.
#[derive(Clone, Copy)]
enum GroupSource<'a> {
    /// A file of targets.
    File(&'a Path),
    /// The position in `static_configs`.
    Static(usize),
}

/// Receives a group and its origin.
type EachGroup<'a> = dyn FnMut(&TargetGroup, GroupSource<'_>, &mut LabelEditor) -> Result<()> + 'a;

/// Calls `each` with the targets of the files of `job`, with the static ones, and with those of
/// `discovered`, each once, as `promtool check service-discovery` lists them. One file is in memory
/// at a time.
///
/// # Errors
/// Those of files of targets, before the first call, and those of `each`.
pub fn for_each_target(
    job: &ScrapeConfig,
    files: &dyn Files,
    discovered: &[DiscoveredGroup],
    each: &mut dyn FnMut(CheckedTarget) -> Result<()>,
) -> Result<()> {
    let editor = LabelEditor::default();
    let mut checker = Checker { files: Some(files), editor, warnings: Vec::new() };
    checker.for_each_group(&job.discoveries, &job.job_name, &mut |_, _, _| Ok(()))?;
    // Two hashes with secret keys instead of the labels, which have some hundred bytes.
    let hashers = (RandomState::new(), RandomState::new());
    let mut seen = HashSet::new();
    let mut list = |target: &LabelSet, shared: &LabelSet, editor: &mut LabelEditor| {
        let discovered = Target::discovered_labels(job, target, shared, editor)?;
        if !seen.insert((hashers.0.hash_one(&discovered), hashers.1.hash_one(&discovered))) {
            return Ok(());
        }
        let labels = match Target::populate(job, discovered.clone(), editor) {
            Ok(target) => Ok(target.map_or(Labels::empty(), |target| target.labels)),
            Err(error) => Err(error.to_string()),
        };
        each(CheckedTarget { discovered, labels })
    };
    checker.for_each_group(&job.discoveries, &job.job_name, &mut |group, source, editor| {
        let path = match source {
            GroupSource::File(path) => Some(path.to_string_lossy()),
            GroupSource::Static(_) => None,
        };
        let of_file = path.iter().map(|path| ("__meta_filepath", &**path));
        let shared: LabelSet = group.labels.iter().chain(of_file).collect();
        group.members().try_for_each(|target| list(&target, &shared, editor))
    })?;
    for group in discovered {
        for target in &group.targets {
            list(target, &group.labels, &mut checker.editor)?;
        }
    }
    Ok(())
}

/// The first job that is scraped too rarely for queries: each of its samples is stale before the
/// next one.
pub fn too_long_interval(jobs: &[ScrapeConfig], lookback: Millis) -> Option<String> {
    let job = jobs.iter().find(|job| job.scrape_interval >= lookback)?;
    Some(format!(
        "too long scrape interval found, data point will be marked as stale - job: {}, interval: \
         {}",
        job.job_name, job.scrape_interval
    ))
}

/// A pattern may match no file; a plain name must.
fn existing_rule_files(config: &Config, files: &dyn Files) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for pattern in &config.rule_files {
        let pattern = pattern.as_str();
        let matched = glob(files, pattern)?;
        if !pattern.contains('*') {
            let Some(path) = matched.first() else {
                let pattern = quoted(pattern.as_bytes());
                let text = format!("{pattern} does not point to an existing file");
                return Err(Error::invalid(text));
            };
            check_exists(files, "rule", path)?;
        }
        found.extend(matched);
    }
    Ok(found)
}

struct Checker<'a> {
    /// `None` if only the syntax is checked.
    files: Option<&'a dyn Files>,
    editor: LabelEditor,
    warnings: Vec<String>,
}

impl<'a> Checker<'a> {
    fn job(&mut self, job: &ScrapeConfig) -> Result<()> {
        let name = &job.job_name;
        if let Some(authorization) = &job.http.authorization {
            self.existing(
                "authorization credentials or bearer token",
                &authorization.credentials_file,
            )?;
        }
        self.certificates(&job.http.tls_config)?;
        for kubernetes in job.discoveries.kubernetes.iter() {
            self.certificates(&kubernetes.http.tls_config)?;
        }
        let place = format!("scrape job {}", quoted(name.as_bytes()));
        self.unsupported(&job.discoveries, &place);
        self.for_each_group(&job.discoveries, &place, &mut |group, source, editor| {
            // Groups of files have no name in promtool.
            let name = match source {
                GroupSource::File(_) => String::new(),
                GroupSource::Static(position) => position.to_string(),
            };
            for (idx, target) in group.members().enumerate() {
                let discovered = Target::discovered_labels(job, &target, &group.labels, editor)?;
                Target::populate(job, discovered, editor).map_err(|error| {
                    error.context(format_args!("instance {idx} in group {name}"))
                })?;
            }
            Ok(())
        })
    }

    fn alertmanagers(&mut self, settings: &Alertmanagers) -> Result<()> {
        self.unsupported(&settings.discoveries, "alertmanager config");
        let place = "alertmanager config";
        self.for_each_group(&settings.discoveries, place, &mut |group, _, editor| {
            for target in group.members() {
                alertmanager_labels(settings, &target, &group.labels, editor)?;
            }
            Ok(())
        })
    }

    fn unsupported(&mut self, discoveries: &Discoveries, place: &str) {
        let warning =
            |kind: &str| format!("{kind} in {place} is not implemented: a server refuses the file");
        self.warnings.extend(discoveries.unsupported().map(warning));
    }

    /// Calls `each` with the groups of all files of `discoveries`, then with the static ones.
    fn for_each_group(
        &mut self,
        discoveries: &Discoveries,
        place: &str,
        each: &mut EachGroup<'_>,
    ) -> Result<()> {
        let patterns = discoveries.file.iter().flat_map(|discovery| &discovery.files);
        for pattern in patterns {
            let Some(files) = self.files else { break };
            let name = quoted(pattern.as_str().as_bytes());
            let paths = glob(files, pattern.as_str())?;
            if paths.is_empty() {
                let warning = format!("file {name} for file_sd in {place} does not exist");
                self.warnings.push(warning);
            }
            for path in paths {
                let (groups, _held) = TargetGroup::read_held(&path, files)
                    .map_err(|error| error.context(format_args!("checking SD file {name}")))?;
                let mut each_group =
                    |group| each(group, GroupSource::File(&path), &mut self.editor);
                groups.iter().try_for_each(&mut each_group)?;
            }
        }
        let mut groups = discoveries.static_groups.iter().enumerate();
        groups.try_for_each(|(position, group)| {
            each(group, GroupSource::Static(position), &mut self.editor)
        })
    }

    fn certificates(&self, tls: &TlsConfig) -> Result<()> {
        self.existing("client cert", &tls.cert_file)?;
        self.existing("client key", &tls.key_file)
    }

    fn existing(&self, kind: &str, file: &FilePath) -> Result<()> {
        let Some(files) = self.files.filter(|_| !file.is_empty()) else { return Ok(()) };
        check_exists(files, kind, file.as_path())
    }
}

fn check_exists(files: &dyn Files, kind: &str, path: &Path) -> Result<()> {
    if files.exists(path) {
        return Ok(());
    }
    let path = path.to_string_lossy();
    let name = quoted(path.as_bytes());
    Err(Error::invalid(format!(
        "error checking {kind} file {name}: stat {path}: no such file or directory"
    )))
}
