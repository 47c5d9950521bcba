//! `firn check config`: checks files of Prometheus, with the output and the exit codes of promtool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use firn_collect::check::{CheckedConfig, check_config, too_long_interval};
use firn_collect::config::{LoadOptions, Millis};
use firn_server::UnsupportedParts;

use crate::check_rules::{
    DUPLICATE_RULES, Findings, RuleChecks, applies, check_files, unknown_keys,
    warn_of_unknown_lints,
};
use crate::local_files::LocalFiles;
use crate::output;

/// `firn check config`.
#[derive(Debug, Args)]
pub(crate) struct CheckConfig {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Check only the syntax, not the files that are named in it
    #[arg(long)]
    syntax_only: bool,

    /// Check the file of an agent
    #[arg(long)]
    agent: bool,

    /// Lints that are applied: duplicate-rules, too-long-scrape-interval, all or none
    #[arg(long, value_name = "LINT", value_delimiter = ',', default_value = "duplicate-rules")]
    lint: Vec<String>,

    /// Exit with code 3 if a lint fails
    #[arg(long)]
    lint_fatal: bool,

    /// Ignore unknown keys of rule files, which a server refuses
    #[arg(long)]
    ignore_unknown_fields: bool,

    /// The lookback of queries, for the lint of intervals
    #[arg(long = "query.lookback-delta", value_name = "DURATION", default_value = "5m")]
    lookback: Millis,
}

/// The lint of intervals.
const TOO_LONG_INTERVAL: &str = "too-long-scrape-interval";

/// Checks the files in order and prints a line for each, then their rule files.
pub(crate) fn run(check: &CheckConfig) -> ExitCode {
    // As in promtool, `none` takes the warnings away, too.
    if !check.applies_none() {
        warn_of_unknown_lints(&check.lint, &[DUPLICATE_RULES, TOO_LONG_INTERVAL]);
    }
    let check_all = |path: &PathBuf| check_file(check, path);
    let findings = check.files.iter().map(check_all).fold(Findings::default(), Findings::and);
    findings.exit_code(check.lint_fatal)
}

fn check_file(check: &CheckConfig, path: &Path) -> Findings {
    let name = path.display();
    output::announce_line(&format!("Checking {name}"));
    let options = LoadOptions { env: &|name| std::env::var(name).ok(), is_agent: check.agent };
    let checked = match check_config(path, &LocalFiles, &options, check.syntax_only) {
        Ok(checked) => checked,
        Err(error) => {
            output::report_mistakes(&format!("  FAILED: {error}"));
            output::announce("\n");
            return Findings { has_errors: true, has_lints: false };
        }
    };
    let parts = UnsupportedParts::find(&checked.config, &checked.jobs, !check.syntax_only);
    for warning in &checked.warnings {
        output::announce_line(&format!("  WARNING: {warning}"));
    }
    for key in &parts.keys_without_effect {
        output::announce_line(&format!("  WARNING: {key}: a server ignores it"));
    }
    for reason in &parts.failing_jobs {
        output::announce_line(&format!("  WARNING: every scrape fails: {reason}"));
    }
    for reason in &parts.refusals {
        let refusal = format!("a server refuses the file: {reason}");
        match check.syntax_only {
            true => output::announce_line(&format!("  WARNING: {refusal}")),
            false => output::report_line(&format!("  FAILED: {refusal}")),
        }
    }
    if !(check.syntax_only || parts.refusals.is_empty()) {
        output::announce("\n");
        return Findings { has_errors: true, has_lints: false };
    }
    if !checked.rule_files.is_empty() {
        let count = checked.rule_files.len();
        output::announce(&format!("  SUCCESS: {count} rule files found\n"));
    }
    output::announce_line(&format!(" SUCCESS: {name} is valid prometheus config file syntax"));
    output::announce("\n");
    if check.syntax_only {
        return Findings::default();
    }
    let interval = lint_intervals(check, &checked);
    let checks = RuleChecks {
        finds_duplicates: check.applies(DUPLICATE_RULES),
        unknown: unknown_keys(check.ignore_unknown_fields),
    };
    interval.and(check_files(&checked.rule_files, checks))
}

impl CheckConfig {
    fn applies_none(&self) -> bool {
        self.lint.iter().any(|given| given == "none")
    }

    /// As in promtool, `none` takes the other lints away.
    fn applies(&self, lint: &str) -> bool {
        !self.applies_none() && applies(&self.lint, lint)
    }
}

fn lint_intervals(check: &CheckConfig, checked: &CheckedConfig) -> Findings {
    let found = match check.applies(TOO_LONG_INTERVAL) {
        true => too_long_interval(&checked.jobs, check.lookback),
        false => None,
    };
    if let Some(found) = &found {
        output::report_line(&format!("  FAILED: {found}"));
    }
    Findings { has_errors: false, has_lints: found.is_some() }
}
