//! `firn check web-config`, `firn check metrics` and `firn check service-discovery`, with the
//! output and the exit codes of promtool.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use firn_collect::check::{FoundJob, MetricFamilies, find_job, for_each_target};
use firn_collect::config::{LoadOptions, Millis, ScrapeConfig};
use firn_server::{FoundTargets, Result, UserFile, discover, one_line};
use serde_json::{Map, Value, json};

use crate::local_files::LocalFiles;
use crate::output::{self, JsonList};

/// `firn check web-config`.
#[derive(Debug, Args)]
pub(crate) struct CheckWebConfig {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// `firn check metrics`.
#[derive(Debug, Args)]
pub(crate) struct CheckMetrics {
    /// Print the number of series of each metric
    #[arg(long)]
    extended: bool,

    /// Lints that are applied
    #[arg(long, value_name = "LINT", default_value = "all")]
    lint: MetricLint,
}

/// The lints of promtool for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MetricLint {
    All,
    None,
}

/// `firn check service-discovery`.
#[derive(Debug, Args)]
pub(crate) struct CheckDiscovery {
    /// The configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The name of the job
    job: String,

    /// The maximum time to wait for discoveries; files and static targets need none
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: Millis,
}

const LINT_FAILED: u8 = 3;

/// Checks web configurations as a server reads them.
pub(crate) fn run_web_config(check: &CheckWebConfig) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in &check.files {
        let name = path.display();
        // A server without the file would have no users.
        let checked = std::fs::metadata(path).map_err(|error| error.to_string()).and_then(|_| {
            UserFile::open(path).and_then(|file| file.check()).map_err(|error| error.to_string())
        });
        match checked {
            Ok(_) => output::report_line(&format!("{name} SUCCESS")),
            Err(error) => {
                output::report_line(&format!("{name} FAILED: {error}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Checks metrics from standard input.
pub(crate) fn run_metrics(check: &CheckMetrics) -> ExitCode {
    if !check.extended && check.lint == MetricLint::None {
        output::report_lines(
            "error: at least one of --extended or linting must be enabled\nUse --extended for \
             cardinality analysis, or remove --lint=none to enable linting",
        );
        return ExitCode::FAILURE;
    }
    let families = match MetricFamilies::read(io::stdin().lock()) {
        Ok(families) => families,
        Err(error) => {
            output::report_line(&format!("error while linting: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut code = ExitCode::SUCCESS;
    if check.lint == MetricLint::All {
        for problem in families.problems() {
            let line = format!("{} {}", problem.metric, problem.text);
            (0..problem.count).for_each(|_| output::report_line(&line));
            code = ExitCode::from(LINT_FAILED);
        }
    }
    if check.extended {
        families.cardinality(&mut |part| output::announce(part));
    }
    code
}

/// Prints the targets of a job.
pub(crate) fn run_discovery(check: &CheckDiscovery) -> ExitCode {
    let options = LoadOptions { env: &|name| std::env::var(name).ok(), is_agent: false };
    let found = find_job(&check.file, &check.job, &LocalFiles, &options);
    let printed = match found {
        Ok(FoundJob::Unknown { jobs }) => {
            report_unknown_job(&check.job, &jobs);
            return ExitCode::FAILURE;
        }
        Ok(FoundJob::Job(job)) => {
            for key in job.discoveries.unsupported() {
                let text = format!("WARNING: {key} is not implemented: its targets are not listed");
                output::report_line(&text);
            }
            match discover(&job, Duration::from_millis(check.timeout.as_ms())) {
                Ok(found) => print_targets(&job, &found),
                Err(error) => {
                    output::report_line(&format!("Could not create new discoverer {error}"));
                    return ExitCode::FAILURE;
                }
            }
        }
        Err(error) => Err(error),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report_mistakes(&format!("Cannot load config {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Reports that there is no such job, with those that there are.
pub(crate) fn report_unknown_job(name: &str, jobs: &[String]) {
    output::report_line(&format!("Job {name} not found. Select one of:"));
    for job in jobs {
        output::report_lines(&format!("\t{}", one_line(job)));
    }
}

fn print_targets(job: &ScrapeConfig, found: &FoundTargets) -> Result<()> {
    for failure in &found.failures {
        output::report_line(&format!("WARNING: {failure}"));
    }
    let mut list = JsonList::default();
    for_each_target(job, &LocalFiles, &found.groups, &mut |target| {
        let discovered = object(target.discovered.iter());
        list.push(&match &target.labels {
            Ok(labels) => {
                json!({ "discoveredLabels": discovered, "labels": object(labels.iter()) })
            }
            Err(error) => json!({ "discoveredLabels": discovered, "labels": {}, "error": error }),
        })
    })?;
    list.end()
}

fn object<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let pair = |(name, value): (&str, &str)| (name.to_owned(), Value::from(value));
    Value::Object(labels.map(pair).collect::<Map<_, _>>())
}
