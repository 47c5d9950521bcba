//! Rule files: their text as checked groups.
//!
//! [`RuleFile::parse`] reads a file with all mistakes in it, [`duplicates`] are the findings of
//! the lint. Reading order: `section`, `check`, `size`, `running`, `lint`.

mod check;
mod lint;
mod running;
mod section;
mod size;

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Budget, Error, QueryContext, Reservation};
use firn_yaml::{Document, Field};

pub use check::no_memory_for_expressions;
pub use firn_yaml::UnknownKeys;
pub use lint::{DuplicateRule, duplicates, duplicates_text};
pub use running::RunningExprs;

use super::group::{Group, GroupOptions, Rule, RunningRule};
use section::FileText;

/// The names of metrics, labels and annotations that rules may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleNames {
    /// Any text that is not empty.
    #[default]
    Utf8,
    /// `[a-zA-Z_][a-zA-Z0-9_]*`; metrics may have colons too.
    Legacy,
}

/// The settings of a reader.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The names that rules may have.
    pub names: RuleNames,
    /// The handling of unknown keys. A server refuses them.
    pub unknown: UnknownKeys,
    /// The limits of expressions.
    pub context: QueryContext,
    /// The expressions of rules that run in the memory of `context`.
    pub running: Arc<RunningExprs>,
}

/// Those of a tool: without limits.
impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            names: RuleNames::Utf8,
            unknown: UnknownKeys::Refused,
            context: QueryContext::unbounded(),
            running: Arc::default(),
        }
    }
}

/// A file without mistakes.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// The groups in order.
    pub groups: Vec<FileGroup>,
    /// Whether the text has further documents, which are ignored.
    pub has_more_documents: bool,
}

/// The warning for a file whose [`RuleFile::has_more_documents`] is set.
pub const MORE_DOCUMENTS: &str =
    "Multiple document yaml rules files are not supported, only the first document is processed";

/// A group of a file.
#[derive(Clone, Debug)]
pub struct FileGroup {
    /// The name, unique within the file.
    pub name: String,
    /// Milliseconds between evaluations; `None` selects the global interval.
    pub interval_ms: Option<i64>,
    /// The offset of queries, milliseconds; `None` selects the global one.
    pub query_offset_ms: Option<i64>,
    /// The maximum number of series or alerts of a rule; 0 for no maximum.
    pub limit: usize,
    /// The labels of the group, which its rules contain.
    pub labels: BTreeMap<String, String>,
    /// The rules in order.
    pub rules: Vec<Rule>,
}

impl RuleFile {
    /// Reads the first document of `text`.
    ///
    /// # Errors
    /// All mistakes with Prometheus' texts and places, such as `3:9: group "g", rule 1, "name":
    /// could not parse expression: ..`. Mistakes of YAML and of keys hide those of rules.
    pub fn parse(text: &str, options: &ReadOptions) -> Result<RuleFile, Vec<String>> {
        RuleFile::parse_within(text, options, &Budget::unlimited())
            .map(|(file, _)| file)
            .map_err(|mistakes| mistakes.iter().map(Error::to_string).collect())
    }

    /// The same within the memory of `budget` for the values of the text. That of the groups is
    /// returned with them; the limit of expressions is that of `options`.
    ///
    /// # Errors
    /// As [`RuleFile::parse`], and one `Busy` or `TooLarge` without memory.
    pub fn parse_within(
        text: &str,
        options: &ReadOptions,
        budget: &Budget,
    ) -> Result<(RuleFile, Reservation), Vec<Error>> {
        let failed = |failure: firn_yaml::Failure| vec![failure.into_error()];
        let mut file = FileText::zero();
        let mut document = Document::parse_within(text, budget).map_err(failed)?;
        let mut held = document.decode(&mut file, options.unknown).map_err(failed)?;
        let has_more_documents = document.more_line.is_some();
        drop(document);
        let groups = check::check(file, options, &mut held)?;
        // The values of the text took the memory of all keys that a rule may have, twice.
        let bytes = groups.iter().map(FileGroup::text_bytes).fold(0, usize::saturating_add) as u64;
        held.shrink_to(bytes);
        Ok((RuleFile { groups, has_more_documents }, held))
    }
}

impl FileGroup {
    /// The group of the file `path`, ready to run; see [`Group::new`].
    pub fn into_group(self, path: &str, default_interval_ms: i64, is_restored: bool) -> Group {
        let options = GroupOptions {
            file: path.to_owned(),
            name: self.name,
            interval_ms: self.interval_ms.unwrap_or(default_interval_ms),
            query_offset_ms: self.query_offset_ms,
            limit: self.limit,
        };
        Group::new(options, self.rules, is_restored)
    }

    /// The memory that the group of the file `path` takes once it runs, beside its texts, its
    /// expressions and its results, and with views of it.
    pub fn running_bytes(&self, path: &str) -> u64 {
        // Its counters and times, its places in lists.
        const GROUP_BYTES: usize = 1_024;
        // The outcomes of two evaluations, while one replaces the other; its place in the view.
        const RULE_BYTES: usize = 384 + size_of::<RunningRule>();
        // The group, its view and the list of groups have the path and the name.
        let names = path.len().saturating_add(self.name.len()).saturating_mul(3);
        let rules = self.rules.len().saturating_mul(RULE_BYTES);
        names.saturating_add(rules).saturating_add(GROUP_BYTES) as u64
    }
}

#[cfg(test)]
mod tests;
