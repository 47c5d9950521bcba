//! Unit tests of rules in promtool's file format.
//!
//! [`TestFile::parse`] reads a file, [`TestFile::run`] evaluates its tests over storage in memory.
//! Reading order: `section`, `time`, `storage`, `templates`, `text`, `run`.

mod run;
mod section;
mod storage;
mod templates;
mod text;
mod time;

use std::collections::BTreeMap;
use std::time::Duration;

use firn_model::{
    Budget, CancelToken, MatchOp, Matcher, QueryContext, Reservation, Result, one_line,
};
use firn_yaml::{Field, from_document_within};

pub use time::date_and_time;

use section::TestFileText;

/// Without a setting, and the interval of samples then too.
const INTERVAL_MS_DEFAULT: i64 = 60_000;

/// A file of tests.
#[derive(Debug)]
pub struct TestFile {
    /// The path in messages.
    path: String,
    text: TestFileText,
    /// The memory of `text`.
    _held: Reservation,
    /// The position of each group with one.
    order: BTreeMap<String, usize>,
}

/// The settings of a run.
#[derive(Clone, Debug, Default)]
pub struct RunTests {
    /// The tests to run; all if `None`.
    pub filter: Option<TestFilter>,
    /// Whether alerts that differ are marked instead of printed twice.
    pub has_diff: bool,
    /// Whether reports have all samples of their test.
    pub has_samples: bool,
    /// Whether unknown keys of rule files are ignored.
    pub ignores_unknown: bool,
    /// The limits of memory and time.
    pub limits: TestLimits,
}

/// The limits of a run. By default there are none.
#[derive(Clone, Debug)]
pub struct TestLimits {
    /// The memory of a file, of samples, of queries and of alerts.
    pub budget: Budget,
    /// Ends the run.
    pub cancel: CancelToken,
    /// The time since some moment, for [`TestReport::took`].
    pub clock: fn() -> Duration,
}

impl Default for TestLimits {
    fn default() -> TestLimits {
        TestLimits {
            budget: Budget::unlimited(),
            cancel: CancelToken::new(),
            clock: || Duration::ZERO,
        }
    }
}

impl TestLimits {
    /// A context of one query.
    fn context(&self) -> QueryContext {
        QueryContext::new(self.cancel.clone(), self.budget.clone())
    }
}

/// A rule file of a test.
#[derive(Clone, Copy, Debug)]
pub struct RuleSource<'a> {
    /// The path in messages.
    pub path: &'a str,
    /// The contents.
    pub text: &'a str,
}

/// The outcome of a test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestReport {
    /// The name; `unnamed#N` without one, from 0.
    pub name: String,
    /// The failures; none if the test passed.
    pub failures: Vec<String>,
    /// All samples at the end, if the settings demand them and no rule failed.
    pub samples: Option<String>,
    /// The time of the run.
    pub took: Duration,
}

/// Selects tests by name.
#[derive(Clone, Debug)]
pub struct TestFilter(Matcher);

impl TestFilter {
    /// Selects the names in which one of the regular expressions is found.
    ///
    /// # Errors
    /// `Invalid` for a wrong regular expression.
    pub fn new(patterns: &[String]) -> Result<TestFilter> {
        let all = patterns.join("|");
        Matcher::new("name", MatchOp::Regex, format!("(?s:.*)(?:{all})(?s:.*)")).map(TestFilter)
    }

    fn selects(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

impl TestFile {
    /// Reads a file, whose values take memory of `budget`. Unknown keys are errors. `path` names
    /// the file in messages.
    ///
    /// # Errors
    /// The mistakes, with Prometheus' texts.
    pub fn parse(path: &str, text: &str, budget: &Budget) -> Result<TestFile, String> {
        let mut file = TestFileText::zero();
        let held = from_document_within(text, &mut file, budget);
        let held = held.map_err(|failure| failure.into_error().to_string())?;
        let mut order = BTreeMap::new();
        for (idx, name) in file.group_eval_order.iter().enumerate() {
            if order.insert(name.clone(), idx).is_some() {
                let name = one_line(name);
                return Err(format!("group name repeated in evaluation order: {name}"));
            }
        }
        Ok(TestFile { path: path.to_owned(), text: file, _held: held, order })
    }

    /// The patterns of the rule files, relative to the folder of the test file.
    pub fn rule_patterns(&self) -> &[String] {
        &self.text.rule_files
    }

    /// Runs the tests over the rule files, in the order of the file. A test over a limit fails with
    /// the path, its name and the limit.
    pub fn run(&self, rules: &[RuleSource<'_>], options: &RunTests) -> Vec<TestReport> {
        let name = |(idx, name): (usize, &str)| match name {
            "" => format!("unnamed#{idx}"),
            name => name.to_owned(),
        };
        let selected = |name: &str| options.filter.as_ref().is_none_or(|f| f.selects(name));
        let tests = self.text.tests.iter().enumerate();
        let mut failures = Failures::default();
        tests
            .filter(|(_, test)| selected(&test.name))
            .map(|(idx, test)| {
                let mut report =
                    TestReport { name: name((idx, &test.name)), ..TestReport::default() };
                let start = (options.limits.clock)();
                report.samples = run::run(self, test, rules, options, &mut failures);
                report.took = (options.limits.clock)().saturating_sub(start);
                report.failures = std::mem::take(&mut failures.texts);
                report
            })
            .collect()
    }
}

/// The failures of a test. Those of all tests of a file have a limit.
#[derive(Debug, Default)]
struct Failures {
    texts: Vec<String>,
    /// Those of earlier tests too.
    bytes: usize,
}

/// The maximum bytes of all failures of a file.
const FAILURE_BYTES_MAX: usize = 32 << 20;

impl Failures {
    /// Adds a failure. Returns whether there may be further ones.
    fn push(&mut self, text: String) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.bytes = self.bytes.saturating_add(text.len());
            self.texts.push(text);
        }
        if has_room && !self.has_room() {
            let text = format!(
                "    the failures of the file have more than {FAILURE_BYTES_MAX} bytes: the others \
                 are not listed"
            );
            self.texts.push(text);
        }
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.bytes <= FAILURE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
