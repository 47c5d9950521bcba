//! `firn test rules`: runs unit tests of rules, with the output and the exit codes of promtool.

use std::collections::HashSet;
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use firn_collect::config::glob;
use firn_model::{Budget, CancelToken, Pool};
use firn_rules::unit_test::{
    RuleSource, RunTests, TestFile, TestFilter, TestLimits, TestReport, date_and_time,
};
use firn_server::given_file::OutputFile;
use firn_server::is_same_file;

use crate::check_rules::read_rules;
use crate::local_files::LocalFiles;
use crate::output;

/// `firn test`.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Write the results in the XML format of JUnit to a file
    #[arg(long, value_name = "FILE", global = true)]
    junit: Option<PathBuf>,

    #[command(subcommand)]
    subject: TestSubject,
}

#[derive(Debug, Subcommand)]
enum TestSubject {
    /// Run unit tests of rules, in the file format of promtool
    ///
    /// Exits with 1 for a failed test and for a wrong file.
    Rules(TestRules),
}

/// `firn test rules`.
#[derive(Debug, Args)]
struct TestRules {
    /// The files of tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Run only tests with a name that a regular expression matches; may be repeated
    #[arg(long, value_name = "REGEX")]
    run: Vec<String>,

    /// Mark differences of alerts, instead of printing expected and received ones
    #[arg(long)]
    diff: bool,

    /// Print all samples at the end of each test
    #[arg(long)]
    debug: bool,

    /// Ignore unknown keys of rule files, which a server refuses
    #[arg(long)]
    ignore_unknown_fields: bool,
}

/// The time of a file. promtool allows 100 s for a query.
const FILE_TIME_MAX: Duration = Duration::from_secs(600);
/// The memory of a file: its values, samples, queries and alerts.
const FILE_MEMORY_BYTES_MAX: u64 = 1 << 30;

/// The outcome of a file: its tests, or the reason why none ran.
type Outcome = Result<Vec<TestReport>, String>;

/// Runs the tests of the files in order and prints the result of each file.
pub(crate) fn run(
    Test { junit: junit_path, subject: TestSubject::Rules(test) }: &Test,
) -> ExitCode {
    let output = junit_path.as_deref().map(|path| open_output(path, &test.files));
    let mut output = match output.transpose() {
        Ok(output) => output,
        Err(why) => {
            output::report_line(&format!("firn: --junit {why}"));
            return ExitCode::FAILURE;
        }
    };
    let filter = match test.run.as_slice() {
        [] => None,
        patterns => match TestFilter::new(patterns) {
            Ok(filter) => Some(filter),
            Err(error) => {
                output::report_line(&format!("firn: --run: {error}"));
                return ExitCode::FAILURE;
            }
        },
    };
    let mut options = RunTests {
        filter,
        has_diff: test.diff,
        has_samples: test.debug,
        ignores_unknown: test.ignore_unknown_fields,
        limits: TestLimits::default(),
    };
    let mut outcomes = Vec::new();
    let mut rule_paths = HashSet::new();
    for path in &test.files {
        let (limits, _ends_watch) = limits();
        options.limits = limits;
        let outcome = run_file(path, &options, &mut rule_paths);
        print(&outcome, test.debug);
        outcomes.push((path, outcome));
    }
    let has_failed = outcomes.iter().any(|(_, outcome)| match outcome {
        Ok(reports) => reports.iter().any(|report| !report.failures.is_empty()),
        Err(_) => true,
    });
    if let Some((path, file)) = junit_path.as_ref().zip(output.take()) {
        let is_rules = rule_paths.iter().any(|read| is_same_file(read, path));
        let written = match is_rules {
            true => Err(READ_FILE.to_owned()),
            false => file
                .replace()
                .and_then(|mut file| file.write_all(junit(&outcomes).as_bytes()))
                .map_err(|error| error.to_string()),
        };
        if let Err(why) = written {
            output::report_line(&format!("firn: --junit {}: {why}", path.display()));
            return ExitCode::FAILURE;
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Why `--junit` is refused.
const READ_FILE: &str = "the tests read this file; expected another one";

/// Opens the file of `--junit`, which is not written yet.
fn open_output(path: &Path, test_files: &[PathBuf]) -> Result<OutputFile, String> {
    if test_files.iter().any(|file| is_same_file(file, path)) {
        return Err(format!("{}: {READ_FILE}", path.display()));
    }
    OutputFile::open(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn since_start() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// The limits of a file. Its time ends with the sender, or after [`FILE_TIME_MAX`].
fn limits() -> (TestLimits, Sender<()>) {
    let cancel = CancelToken::new();
    let (sender, receiver) = mpsc::channel();
    let watched = cancel.clone();
    thread::spawn(move || {
        if receiver.recv_timeout(FILE_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
            watched.time_out();
        }
    });
    let budget = Budget::unlimited().part(FILE_MEMORY_BYTES_MAX);
    (TestLimits { budget, cancel, clock: since_start }, sender)
}

/// Adds the paths of its rules to `read`.
fn run_file(path: &Path, options: &RunTests, read: &mut HashSet<PathBuf>) -> Outcome {
    let text = read_rules(path)?;
    let budget = &options.limits.budget;
    let file = TestFile::parse(&path.display().to_string(), &text, budget)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut rule_paths: Vec<PathBuf> = Vec::new();
    for pattern in file.rule_patterns() {
        // An empty pattern is not the folder.
        let pattern = match pattern.is_empty() {
            true => String::new(),
            false => folder.join(pattern).to_string_lossy().into_owned(),
        };
        let found = glob(&LocalFiles, &pattern).map_err(|error| error.to_string())?;
        if found.is_empty() {
            output::report_line(&format!("  WARNING: no file match pattern {pattern}"));
        }
        rule_paths.extend(found);
    }
    let mut rules: Vec<(String, String)> = Vec::new();
    let mut known = HashSet::new();
    let mut held = budget.empty(Pool::Query);
    for path in rule_paths {
        // A file under two patterns is read once.
        if !known.insert(path.clone()) {
            continue;
        }
        read.insert(path.clone());
        let name = path.display().to_string();
        let text = read_rules(&path).map_err(|e| format!("{name}: {e}"))?;
        held.grow(text.len() as u64).map_err(|e| format!("{name}: {e}"))?;
        rules.push((name, text));
    }
    let rules: Vec<RuleSource<'_>> =
        rules.iter().map(|(path, text)| RuleSource { path, text }).collect();
    Ok(file.run(&rules, options))
}

/// With `has_debug`, prints the beginning, the samples and the end of each test first.
fn print(outcome: &Outcome, has_debug: bool) {
    for report in outcome.iter().flatten().filter(|_| has_debug) {
        let TestReport { name, took, .. } = report;
        output::report_line(&format!("DEBUG: Starting test {name}"));
        if let Some(samples) = &report.samples {
            output::report_lines(samples);
        }
        output::report_line(&format!("DEBUG: Test {name} finished, took {took:?}"));
    }
    let has_failed = match outcome {
        Ok(reports) => reports.iter().any(|report| !report.failures.is_empty()),
        Err(_) => true,
    };
    if !has_failed {
        return output::announce("  SUCCESS\n\n");
    }
    output::report("  FAILED:\n");
    for failure in outcome.iter().flatten().flat_map(|report| &report.failures) {
        output::report_lines(failure);
        output::announce("\n");
    }
    if let Err(error) = outcome {
        output::report_mistakes(error);
        output::announce("\n");
    }
    output::announce("\n");
}

/// The outcomes in the XML format of JUnit, as promtool writes it.
fn junit(outcomes: &[(&PathBuf, Outcome)]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = date_and_time(now);
    let mut out = String::from("<testsuites>");
    for (path, outcome) in outcomes {
        let name = xml(&path.display().to_string());
        let reports = outcome.as_deref().unwrap_or_default();
        let failure_count: usize = reports.iter().map(|report| report.failures.len()).sum();
        let (count, error_count) = match outcome {
            Ok(reports) => (reports.len(), 0),
            Err(_) => (1, 1),
        };
        let _ = write!(
            out,
            "<testsuite name=\"{name}\" tests=\"{count}\" failures=\"{failure_count}\" \
             errors=\"{error_count}\" skipped=\"0\" timestamp=\"{now}\">"
        );
        if let Err(error) = outcome {
            let error = xml(error);
            let _ = write!(out, "<testcase name=\"unknown\"><error>{error}</error></testcase>");
        }
        for report in reports {
            let _ = write!(out, "<testcase name=\"{}\">", xml(&report.name));
            for failure in &report.failures {
                let _ = write!(out, "<failure>{}</failure>", xml(failure));
            }
            out.push_str("</testcase>");
        }
        out.push_str("</testsuite>");
    }
    out.push_str("</testsuites>");
    out
}

/// A text as Go's encoder escapes it; characters that XML does not have are replaced.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\t' => out.push_str("&#x9;"),
            '\n' => out.push_str("&#xA;"),
            '\r' => out.push_str("&#xD;"),
            '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Before, a pipe waited for ever for a program that reads it, and the file of a test or of its
    /// rules was replaced by the results.
    #[test]
    fn results_replace_no_file_that_the_tests_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let rules = "groups: []\n";
        let tests = "rule_files: [rules.yml]\ntests: []\n";
        fs::write(at("rules.yml"), rules).unwrap();
        fs::write(at("tests.yml"), tests).unwrap();
        let run_with = |junit: &str| {
            let test = TestRules {
                files: vec![at("tests.yml")],
                run: Vec::new(),
                diff: false,
                debug: false,
                ignore_unknown_fields: false,
            };
            run(&Test { junit: Some(at(junit)), subject: TestSubject::Rules(test) })
        };
        for junit in ["pipe", "tests.yml", "rules.yml"] {
            assert_eq!(run_with(junit), ExitCode::FAILURE, "{junit}");
        }
        assert_eq!(fs::read_to_string(at("rules.yml")).unwrap(), rules);
        assert_eq!(fs::read_to_string(at("tests.yml")).unwrap(), tests);
        fs::write(at("results.xml"), "long former results ".repeat(100)).unwrap();
        assert_eq!(run_with("results.xml"), ExitCode::SUCCESS);
        assert!(fs::read_to_string(at("results.xml")).unwrap().ends_with("</testsuites>"));
    }
}
