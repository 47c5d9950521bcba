//! The keys of a rule file.

use std::collections::BTreeMap;

use firn_yaml::{Checked, Millis, Placed, section};

section! {
    /// A file.
    pub(super) struct FileText: "rulefmt.RuleGroups" {
        groups: Vec<Placed<GroupText>> = "groups",
    }
}

section! {
    /// A group.
    pub(super) struct GroupText: "rulefmt.RuleGroup" {
        name: String = "name",
        interval: Millis = "interval" omit,
        query_offset: Option<Millis> = "query_offset" omit,
        limit: i64 = "limit" omit,
        rules: Vec<RuleText> = "rules",
        labels: BTreeMap<String, String> = "labels" omit,
    }
}

section! {
    /// A rule. Values without a key are at line 0.
    pub(super) struct RuleText: "rulefmt.Rule" {
        record: Placed<String> = "record" omit,
        alert: Placed<String> = "alert" omit,
        expr: Placed<String> = "expr",
        hold: Millis = "for" omit,
        keep_firing_for: Millis = "keep_firing_for" omit,
        labels: BTreeMap<String, String> = "labels" omit,
        annotations: BTreeMap<String, String> = "annotations" omit,
    }
}

impl Checked for FileText {}
impl Checked for GroupText {}
impl Checked for RuleText {}
