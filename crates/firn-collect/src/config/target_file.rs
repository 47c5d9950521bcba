//! Files of target groups, which `file_sd_configs` names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use firn_model::{Budget, Error, Pool, Reservation, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::discovery::TargetGroup;
use super::{FileText, Files, Items, LabelSet, read};
use crate::json::{JsonCounts, from_json, json_error};
use firn_yaml::{Failure, Field, from_document_within, quoted};

/// A group of a JSON document, as Go reads it: keys in any case, the last of a repeated one counts,
/// and a null is empty. Unknown keys are errors, as in YAML.
#[derive(Default)]
struct JsonGroup {
    targets: Option<Vec<Option<String>>>,
    labels: Option<BTreeMap<String, Option<String>>>,
}

impl<'de> Deserialize<'de> for JsonGroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonGroup, D::Error> {
        deserializer.deserialize_map(GroupVisitor)
    }
}

struct GroupVisitor;

impl<'de> Visitor<'de> for GroupVisitor {
    type Value = JsonGroup;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a group of targets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonGroup, A::Error> {
        let mut group = JsonGroup::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key.eq_ignore_ascii_case("targets") {
                group.targets = map.next_value()?;
            } else if key.eq_ignore_ascii_case("labels") {
                group.labels = map.next_value()?;
            } else {
                let key = quoted(key.as_bytes());
                return Err(A::Error::custom(format_args!("unknown field {key}")));
            }
        }
        Ok(group)
    }
}

/// Groups with an upper estimate of their memory.
pub(crate) type HeldGroups = (Vec<TargetGroup>, Reservation);

// A text in a list that has grown to twice its length, with the pointer of its owner and the block
// of the allocator; a label is two texts and a part of a map's node that may be unused.
const JSON_TEXT_BYTES: usize = 2 * size_of::<String>() + 112;
// A group in a list that has grown to twice its length, as JSON and then as a section, and a node
// of its map of labels with room for eleven of them.
const JSON_GROUP_BYTES: usize = 4 * (size_of::<JsonGroup>() + size_of::<TargetGroup>()) + 544;

/// The memory of the groups of a JSON text, at most, whatever its shape.
fn json_bytes(text: &[u8]) -> usize {
    JsonCounts::of(text).bytes(JSON_TEXT_BYTES, JSON_GROUP_BYTES, text)
}

impl TargetGroup {
    /// Reads the groups of a file by its extension: `.json`, `.yml` or `.yaml`.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable` if the file cannot be read; `Invalid` for another extension, an
    /// unknown key, a null and a wrong name of a label; `Busy` without memory.
    pub fn read_file(path: &Path, files: &dyn Files) -> Result<Vec<TargetGroup>> {
        TargetGroup::read_held(path, files).map(|(groups, _)| groups)
    }

    /// The same with the memory of the groups.
    pub(crate) fn read_held(path: &Path, files: &dyn Files) -> Result<HeldGroups> {
        let FileText { text, _held } = read(path, files)?;
        let budget = &files.budget();
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        match extension.as_deref().map(str::to_lowercase).as_deref() {
            Some("json") => TargetGroup::parse_json_within(text.as_bytes(), budget),
            Some("yml" | "yaml") => TargetGroup::parse_yaml(&text, budget),
            _ => {
                let extension =
                    extension.map_or(String::new(), |extension| format!(".{extension}"));
                let extension = quoted(extension.as_bytes());
                Err(Error::invalid(format!("invalid file extension: {extension}")))
            }
        }
    }

    /// Reads a JSON list of groups, as files and HTTP servers have it.
    ///
    /// # Errors
    /// `Invalid` as [`TargetGroup::read_file`].
    pub fn parse_json(text: &[u8]) -> Result<Vec<TargetGroup>> {
        TargetGroup::parse_json_within(text, &Budget::unlimited()).map(|(groups, _)| groups)
    }

    /// The same within the memory of `budget`.
    pub(crate) fn parse_json_within(text: &[u8], budget: &Budget) -> Result<HeldGroups> {
        let held = budget.reserve(Pool::Requests, json_bytes(text) as u64)?;
        let groups: Option<Vec<Option<JsonGroup>>> = from_json(text).map_err(json_error)?;
        let group = |(idx, group): (usize, Option<JsonGroup>)| {
            let group = group.ok_or_else(|| null_group(idx))?;
            let labels = group.labels.unwrap_or_default();
            if labels.contains_key("") {
                return Err(Error::invalid("\"\" is not a valid label name"));
            }
            let labels = labels.into_iter().map(|(name, value)| (name, value.unwrap_or_default()));
            let targets = group.targets.unwrap_or_default().into_iter();
            let targets = targets.map(Option::unwrap_or_default).collect();
            Ok(TargetGroup { targets, labels: labels.collect::<LabelSet>() })
        };
        let groups: Result<Vec<TargetGroup>> =
            groups.unwrap_or_default().into_iter().enumerate().map(group).collect();
        Ok((groups?, held))
    }

    fn parse_yaml(text: &str, budget: &Budget) -> Result<HeldGroups> {
        let mut groups = Items::<TargetGroup>::zero();
        let held = from_document_within(text, &mut groups, budget).map_err(Failure::into_error)?;
        match groups.has_null() {
            true => Err(null_group(0)),
            false => Ok((std::mem::take(groups.items_mut()), held)),
        }
    }

    /// The labels of each target.
    pub fn members(&self) -> impl Iterator<Item = LabelSet> {
        let address = crate::targets::ADDRESS;
        self.targets.iter().map(move |target| LabelSet::from_iter([(address, target.as_str())]))
    }
}

fn null_group(idx: usize) -> Error {
    Error::invalid(format!("nil target group item found (index {idx})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_json_and_yaml() {
        let json = b"[\n\t{\"targets\": [\"a:1\", \"b:2\"], \"labels\": {\"c\": \"d\"}},\n\t{}]";
        let yaml = "- targets: ['a:1', b:2]\n  labels: {c: d}\n- {}\n";
        let groups = TargetGroup::parse_json(json).unwrap();
        let parse_yaml = |text: &str| {
            TargetGroup::parse_yaml(text, &Budget::unlimited()).map(|(groups, _)| groups)
        };
        assert_eq!(groups, parse_yaml(yaml).unwrap());
        let members: Vec<_> = groups[0].members().collect();
        assert_eq!(members[1].get("__address__"), Some("b:2"));
        // Go's names of fields, nulls, and a repeated key, whose last value counts.
        let as_go_writes =
            br#"[{"Targets": ["x"], "Labels": {"c": "d"}, "TARGETS": ["a:1", "b:2"]},
            {"targets": [null], "labels": {"n": null}}]"#;
        let of_go = TargetGroup::parse_json(as_go_writes).unwrap();
        assert_eq!(of_go[0], groups[0]);
        assert_eq!(
            (&of_go[1].targets[..], of_go[1].labels.get("n")),
            (&[String::new()][..], Some(""))
        );
        assert_eq!(TargetGroup::parse_json(b"null").unwrap(), []);
        let error = TargetGroup::parse_json(br#"[{"source": "x"}]"#).unwrap_err().to_string();
        assert!(error.starts_with("json: unknown field \"source\""), "{error}");
        assert_eq!(parse_yaml("").unwrap(), []);
        for (json, yaml, want) in [
            ("[null]", "[~]", "nil target group item found (index 0)"),
            (r#"[{"targats": []}]"#, "[{targats: []}]", "targats"),
            (r#"[{"labels": {"": "x"}}]"#, "[{labels: {'': x}}]", "is not a valid label name"),
            ("{}", "a: 1", ""),
        ] {
            let error = TargetGroup::parse_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
            let error = parse_yaml(yaml).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
