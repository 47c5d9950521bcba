//! The lint of duplicate rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use firn_model::one_line;

use super::FileGroup;

/// A name and labels that several rules of a file have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateRule {
    /// The name of the recorded metric or of the alert.
    pub name: String,
    /// The labels with those of the group.
    pub labels: BTreeMap<String, String>,
}

/// The lines of promtool for one rule.
impl fmt::Display for DuplicateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Metric: {}\nLabel(s):", one_line(&self.name))?;
        let mut labels = self.labels.iter();
        labels
            .try_for_each(|(name, value)| writeln!(f, "\t{}: {}", one_line(name), one_line(value)))
    }
}

/// The rules that occur more than once, in order of names and labels.
pub fn duplicates(groups: &[FileGroup]) -> Vec<DuplicateRule> {
    let (mut seen, mut repeated) = (BTreeSet::new(), BTreeSet::new());
    for rule in groups.iter().flat_map(|group| &group.rules) {
        let key = (rule.name(), rule.labels());
        if !seen.insert(key) {
            repeated.insert(key);
        }
    }
    let owned = |(name, labels): (&str, &BTreeMap<String, String>)| DuplicateRule {
        name: name.to_owned(),
        labels: labels.clone(),
    };
    repeated.into_iter().map(owned).collect()
}

/// The finding of promtool for `duplicates`, if there are any.
pub fn duplicates_text(duplicates: &[DuplicateRule]) -> Option<String> {
    let count = duplicates.len();
    let rules: String = duplicates.iter().map(DuplicateRule::to_string).collect();
    (count > 0).then(|| {
        format!(
            "lint error {count} duplicate rule(s) found.\n{rules}Might cause inconsistency while \
             recording expressions"
        )
    })
}
