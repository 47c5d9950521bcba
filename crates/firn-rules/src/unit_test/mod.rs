//! Unit tests of rules in promtool's file format.
//!
//! [`TestFile::parse`] reads a file, [`TestFile::run`] evaluates its tests over storage in memory.
//! Reading order: `section`, `time`, `storage`, `text`, `run`.

mod run;
mod section;
mod storage;
mod text;
mod time;

use std::collections::BTreeMap;

use firn_model::{MatchOp, Matcher, Result, one_line};
use firn_yaml::{Field, from_document};

pub use time::date_and_time;

use section::TestFileText;

/// Without a setting, and the interval of samples then too.
const INTERVAL_MS_DEFAULT: i64 = 60_000;

/// A file of tests.
#[derive(Clone, Debug)]
pub struct TestFile {
    text: TestFileText,
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
    /// All samples at the end, if the settings demand them.
    pub samples: Option<String>,
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
    /// Reads a file. Unknown keys are errors.
    ///
    /// # Errors
    /// The mistakes, with Prometheus' texts.
    pub fn parse(text: &str) -> Result<TestFile, String> {
        let mut file = TestFileText::zero();
        from_document(text, &mut file).map_err(|failure| failure.to_string())?;
        let mut order = BTreeMap::new();
        for (idx, name) in file.group_eval_order.iter().enumerate() {
            if order.insert(name.clone(), idx).is_some() {
                let name = one_line(name);
                return Err(format!("group name repeated in evaluation order: {name}"));
            }
        }
        Ok(TestFile { text: file, order })
    }

    /// The patterns of the rule files, relative to the folder of the test file.
    pub fn rule_patterns(&self) -> &[String] {
        &self.text.rule_files
    }

    /// Runs the tests over the rule files, in the order of the file.
    pub fn run(&self, rules: &[RuleSource<'_>], options: &RunTests) -> Vec<TestReport> {
        let name = |(idx, name): (usize, &str)| match name {
            "" => format!("unnamed#{idx}"),
            name => name.to_owned(),
        };
        let selected = |name: &str| options.filter.as_ref().is_none_or(|f| f.selects(name));
        let tests = self.text.tests.iter().enumerate();
        tests
            .filter(|(_, test)| selected(&test.name))
            .map(|(idx, test)| {
                let mut report =
                    TestReport { name: name((idx, &test.name)), ..TestReport::default() };
                run::run(self, test, rules, options, &mut report);
                report
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
