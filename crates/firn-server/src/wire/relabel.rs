//! Rules of relabelling in JSON.

use firn_collect::relabel::{LabelName, RuleConfig};
use serde_json::{Map, Value};

/// A rule with the keys of a file. As in Prometheus, empty values are left out, except that of
/// `regex`.
pub fn rule_json(rule: &RuleConfig) -> Value {
    let mut keys = Map::new();
    let mut put = |name: &str, value: Value, is_empty: bool| {
        if !is_empty {
            keys.insert(name.to_owned(), value);
        }
    };
    let labels = rule.source_labels.as_deref().unwrap_or_default();
    let names: Vec<&str> = labels.iter().map(LabelName::as_str).collect();
    put("source_labels", names.into(), labels.is_empty());
    put("separator", rule.separator.as_str().into(), rule.separator.is_empty());
    put("regex", rule.regex.as_str().into(), false);
    put("modulus", rule.modulus.into(), rule.modulus == 0);
    put("target_label", rule.target_label.as_str().into(), rule.target_label.is_empty());
    put("replacement", rule.replacement.as_str().into(), rule.replacement.is_empty());
    put("action", rule.action.as_str().into(), false);
    Value::Object(keys)
}
