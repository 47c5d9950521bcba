//! `firn check rules`: checks rule files, with the output and the exit codes of promtool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use firn_collect::config::Files;
use firn_model::{CancelToken, Error, QueryContext, system_text};
use firn_rules::file::{
    FileGroup, MORE_DOCUMENTS, ReadOptions, RuleFile, UnknownKeys, duplicates, duplicates_text,
};

use crate::local_files::{LocalFiles, read_file, read_input};
use crate::output;

/// `firn check rules`.
#[derive(Debug, Args)]
pub(crate) struct CheckRules {
    /// The files; standard input without any
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Lints that are applied: duplicate-rules, all or none
    #[arg(long, value_name = "LINT", value_delimiter = ',', default_value = "duplicate-rules")]
    lint: Vec<String>,

    /// Exit with code 3 if a lint fails
    #[arg(long)]
    lint_fatal: bool,

    /// Ignore unknown keys, which a server refuses
    #[arg(long)]
    ignore_unknown_fields: bool,
}

/// The findings in some files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Findings {
    /// A file is wrong.
    pub(crate) has_errors: bool,
    /// A lint failed.
    pub(crate) has_lints: bool,
}

/// The settings of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleChecks {
    /// Whether duplicate rules are found.
    pub(crate) finds_duplicates: bool,
    /// The handling of unknown keys.
    pub(crate) unknown: UnknownKeys,
}

const FAILED: u8 = 1;
const LINT_FAILED: u8 = 3;

impl Findings {
    /// The findings of both.
    pub(crate) fn and(self, other: Findings) -> Findings {
        Findings {
            has_errors: self.has_errors || other.has_errors,
            has_lints: self.has_lints || other.has_lints,
        }
    }

    /// An error outweighs a lint.
    pub(crate) fn exit_code(self, is_lint_fatal: bool) -> ExitCode {
        match self {
            Findings { has_errors: true, .. } => ExitCode::from(FAILED),
            Findings { has_lints: true, .. } if is_lint_fatal => ExitCode::from(LINT_FAILED),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Checks the files in order and prints the result of each.
pub(crate) fn run(check: &CheckRules) -> ExitCode {
    warn_of_unknown_lints(&check.lint, &[DUPLICATE_RULES]);
    let checks = RuleChecks {
        finds_duplicates: applies(&check.lint, DUPLICATE_RULES),
        unknown: unknown_keys(check.ignore_unknown_fields),
    };
    let findings = if check.files.is_empty() {
        output::announce("Checking standard input\n");
        check_text(read_input().map_err(|error| system_text(&error)), None, checks)
    } else {
        check_files(&check.files, checks)
    };
    findings.exit_code(check.lint_fatal)
}

/// The lint of duplicate rules.
pub(crate) const DUPLICATE_RULES: &str = "duplicate-rules";

/// Whether `lint` is one of those to apply to rules. As in promtool, `none` takes none away.
pub(crate) fn applies(lints: &[String], lint: &str) -> bool {
    lints.iter().any(|applied| applied == lint || applied == "all")
}

/// Prints promtool's warning for each lint that is not `known`.
pub(crate) fn warn_of_unknown_lints(lints: &[String], known: &[&str]) {
    let is_known = |lint: &str| ["all", "none"].contains(&lint) || known.contains(&lint);
    // An empty list has no unknown ones.
    let is_empty = matches!(lints, [lint] if lint.is_empty());
    for lint in lints.iter().filter(|lint| !is_known(lint) && !is_empty) {
        output::announce_line(&format!("WARNING: unknown lint option: {lint:?}"));
    }
}

/// The handling of unknown keys under `--ignore-unknown-fields`.
pub(crate) fn unknown_keys(is_ignoring: bool) -> UnknownKeys {
    if is_ignoring { UnknownKeys::Ignored } else { UnknownKeys::Refused }
}

/// Checks rule files and prints the result of each.
pub(crate) fn check_files(paths: &[PathBuf], checks: RuleChecks) -> Findings {
    let mut findings = Findings::default();
    for path in paths {
        output::announce_line(&format!("Checking {}", path.display()));
        findings = findings.and(check_text(read_rules(path), Some(path), checks));
    }
    findings
}

/// The text of a file of rules.
///
/// # Errors
/// Those of reading, as in promtool.
pub(crate) fn read_rules(path: &Path) -> Result<String, String> {
    read_file(path).map_err(|error| format!("open {}: {}", path.display(), system_text(&error)))
}

/// Checks the contents of a file and prints the result.
fn check_text(text: Result<String, String>, path: Option<&Path>, checks: RuleChecks) -> Findings {
    let context = QueryContext::new(CancelToken::new(), LocalFiles.budget());
    let options = ReadOptions { unknown: checks.unknown, context, ..ReadOptions::default() };
    let read = text.map_err(|error| vec![error]);
    let parse = |text: String| {
        let parsed = RuleFile::parse_within(&text, &options, &LocalFiles.budget());
        parsed.map_err(|mistakes| mistakes.iter().map(Error::to_string).collect())
    };
    match read.and_then(parse) {
        Err(mistakes) => {
            output::report("  FAILED:\n");
            let place = path.map_or(String::new(), |path| format!("{}: ", path.display()));
            for mistake in mistakes {
                output::report_mistakes(&format!("{place}{mistake}"));
            }
            // promtool ends only its other outcomes with an empty line.
            Findings { has_errors: true, has_lints: false }
        }
        Ok((file, _held)) => {
            if file.has_more_documents {
                output::report_line(&format!("  WARNING: {MORE_DOCUMENTS}"));
            }
            let findings = lint(&file.groups, checks);
            output::announce("\n");
            findings
        }
    }
}

fn lint(groups: &[FileGroup], checks: RuleChecks) -> Findings {
    let found = match checks.finds_duplicates {
        true => duplicates_text(&duplicates(groups)),
        false => None,
    };
    match found {
        Some(text) => {
            output::report("  FAILED:\n");
            output::report_lines(&text);
            Findings { has_errors: false, has_lints: true }
        }
        None => {
            let count: usize = groups.iter().map(|group| group.rules.len()).sum();
            output::announce(&format!("  SUCCESS: {count} rules found\n"));
            Findings::default()
        }
    }
}
