//! Files of target groups, which `file_sd_configs` names.

use std::collections::BTreeMap;
use std::path::Path;

use firn_model::{Error, Result};
use serde::Deserialize;

use super::discovery::TargetGroup;
use super::{Files, Items, LabelSet, read};
use firn_yaml::quoted;
use firn_yaml::{Field, from_document};

/// A group of a JSON document. Unknown keys are errors, as in YAML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonGroup {
    #[serde(default)]
    targets: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl TargetGroup {
    /// Reads the groups of a file by its extension: `.json`, `.yml` or `.yaml`.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable` if the file cannot be read; `Invalid` for another extension, an
    /// unknown key, a null and a wrong name of a label.
    pub fn read_file(path: &Path, files: &dyn Files) -> Result<Vec<TargetGroup>> {
        let text = read(path, files)?;
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        match extension.as_deref().map(str::to_lowercase).as_deref() {
            Some("json") => TargetGroup::parse_json(text.as_bytes()),
            Some("yml" | "yaml") => TargetGroup::parse_yaml(&text),
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
        let groups: Option<Vec<Option<JsonGroup>>> = serde_json::from_slice(text)
            .map_err(|error| Error::invalid(format!("json: {error}")))?;
        let group = |(idx, group): (usize, Option<JsonGroup>)| {
            let group = group.ok_or_else(|| null_group(idx))?;
            let labels = group.labels.unwrap_or_default();
            if labels.contains_key("") {
                return Err(Error::invalid("\"\" is not a valid label name"));
            }
            let labels = labels.into_iter().collect::<LabelSet>();
            Ok(TargetGroup { targets: group.targets.unwrap_or_default(), labels })
        };
        groups.unwrap_or_default().into_iter().enumerate().map(group).collect()
    }

    fn parse_yaml(text: &str) -> Result<Vec<TargetGroup>> {
        let mut groups = Items::<TargetGroup>::zero();
        from_document(text, &mut groups).map_err(|error| Error::invalid(error.to_string()))?;
        match groups.has_null() {
            true => Err(null_group(0)),
            false => Ok(std::mem::take(groups.items_mut())),
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
        assert_eq!(groups, TargetGroup::parse_yaml(yaml).unwrap());
        let members: Vec<_> = groups[0].members().collect();
        assert_eq!(members[1].get("__address__"), Some("b:2"));
        assert_eq!(TargetGroup::parse_json(b"null").unwrap(), []);
        assert_eq!(TargetGroup::parse_yaml("").unwrap(), []);
        for (json, yaml, want) in [
            ("[null]", "[~]", "nil target group item found (index 0)"),
            (r#"[{"targats": []}]"#, "[{targats: []}]", "targats"),
            (r#"[{"labels": {"": "x"}}]"#, "[{labels: {'': x}}]", "is not a valid label name"),
            ("{}", "a: 1", ""),
        ] {
            let error = TargetGroup::parse_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
            let error = TargetGroup::parse_yaml(yaml).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
