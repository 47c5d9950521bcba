//! Label names, values and pairs.

use std::fmt::{self, Display};
use std::str::FromStr;

use firn_model::Labels;
use firndb::GroupBy;

use super::{ExpectedForm, SettingType, expected};

/// Label names between commas, or a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLabels(pub GroupBy);

impl FromStr for GroupLabels {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<GroupLabels, ExpectedForm> {
        match text {
            "auto" => return Ok(GroupLabels(GroupBy::Auto)),
            "none" => return Ok(GroupLabels(GroupBy::Labels(Vec::new()))),
            _ => {}
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        match names.iter().all(|name| is_label_name(name)) {
            true => Ok(GroupLabels(GroupBy::Labels(names))),
            false => expected(
                "label names between commas, without brackets and quotes, or \"auto\" or \"none\"",
            ),
        }
    }
}

impl Display for GroupLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            GroupBy::Auto => f.write_str("auto"),
            GroupBy::Labels(names) if names.is_empty() => f.write_str("none"),
            GroupBy::Labels(names) => f.write_str(&names.join(",")),
        }
    }
}

impl SettingType for GroupLabels {
    const VALUE_NAME: &'static str = "LABELS";
    const KIND: &'static str = "list of label names, auto or none";
}

/// Whether a name is not empty and contains no punctuation of PromQL or YAML: `{job` is a mistake.
fn is_label_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| "{}[]()\"'`=~!,".contains(c) || c.is_whitespace())
}

/// `name=value` pairs between commas; empty for none.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelPairs(pub Labels);

impl FromStr for LabelPairs {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LabelPairs, ExpectedForm> {
        let pairs = text.split(',').filter(|_| !text.is_empty()).map(|pair| {
            pair.split_once('=').filter(|(name, value)| {
                let is_quoted = value.starts_with('"') && value.ends_with('"');
                is_label_name(name) && !value.is_empty() && !is_quoted
            })
        });
        let labels = pairs.collect::<Option<Vec<_>>>().and_then(|pairs| {
            // Fails for a repeated name.
            Labels::from_pairs(pairs).ok()
        });
        match labels {
            Some(labels) => Ok(LabelPairs(labels)),
            None => expected(
                "name=value pairs between commas, each name once, without braces and quotes",
            ),
        }
    }
}

impl Display for LabelPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if idx == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl SettingType for LabelPairs {
    const VALUE_NAME: &'static str = "LABELS";
    const KIND: &'static str = "name=value pairs";
    const IS_LIST: bool = true;

    fn is_on(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The value of a label: any text but an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelValue(pub String);

impl FromStr for LabelValue {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LabelValue, ExpectedForm> {
        match text {
            "" => expected("the value of a label, not an empty one"),
            _ if text.len() > LABEL_VALUE_BYTES_MAX => {
                expected(format!("the value of a label of at most {LABEL_VALUE_BYTES_MAX} bytes"))
            }
            _ => Ok(LabelValue(text.to_owned())),
        }
    }
}

// A name that is typed; labels of series have a setting.
const LABEL_VALUE_BYTES_MAX: usize = 256;

impl Display for LabelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SettingType for LabelValue {
    const VALUE_NAME: &'static str = "NAME";
    const KIND: &'static str = "text";
}
