//! The keys of a rule file.

use std::collections::BTreeMap;

use firn_yaml::{
    Checked, Decoder, Encoded, Failure, Field, Millis, Node, NodeValue, Placed, RawText, decode,
    section,
};

section! {
    /// A file.
    pub(super) struct FileText: "rulefmt.RuleGroups" {
        groups: Entries<Placed<GroupText>> = "groups",
    }
}

section! {
    /// A group.
    pub(super) struct GroupText: "rulefmt.RuleGroup" {
        name: String = "name",
        interval: Millis = "interval" omit,
        query_offset: Option<Millis> = "query_offset" omit,
        limit: i64 = "limit" omit,
        rules: Entries<RuleText> = "rules",
        labels: LabelTexts = "labels" omit,
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
        labels: LabelTexts = "labels" omit,
        annotations: LabelTexts = "annotations" omit,
    }
}

impl Checked for FileText {}
impl Checked for GroupText {}
impl Checked for RuleText {}

/// A list without its nulls, which Prometheus leaves out of rule files.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entries<T>(pub(super) Vec<T>);

impl<T: Field> Field for Entries<T> {
    fn type_name() -> String {
        Vec::<T>::type_name()
    }

    fn zero() -> Entries<T> {
        Entries(Vec::new())
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let NodeValue::List(nodes) = &node.value else { return self.0.read(node, decoder) };
        self.0.clear();
        for node in nodes.iter().filter(|node| !matches!(node.value, NodeValue::Null)) {
            let mut entry = T::zero();
            if decode(&mut entry, node, decoder)? {
                self.0.push(entry);
            }
        }
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

/// Labels or annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LabelTexts {
    /// Those whose names are UTF-8, with U+FFFD in place of bytes of a value that are not.
    pub(super) texts: BTreeMap<String, String>,
    /// The names that are not UTF-8.
    pub(super) wrong_names: Vec<String>,
    /// The values that are not UTF-8.
    pub(super) wrong_values: Vec<String>,
}

impl LabelTexts {
    /// Whether there is no label.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.wrong_names.is_empty()
    }
}

impl Field for LabelTexts {
    fn type_name() -> String {
        BTreeMap::<String, String>::type_name()
    }

    fn zero() -> LabelTexts {
        LabelTexts::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let is_bytes = |node: &Node| matches!(node.value, NodeValue::Bytes(_));
        let entries = match &node.value {
            NodeValue::Map(entries) if entries.iter().any(|(k, v)| is_bytes(k) || is_bytes(v)) => {
                entries
            }
            _ => return self.texts.read(node, decoder),
        };
        for (name_node, value_node) in entries {
            let (mut name, mut value) = (RawText::default(), RawText::default());
            if !decode(&mut name, name_node, decoder)? || !decode(&mut value, value_node, decoder)?
            {
                continue;
            }
            if !value.is_utf8() {
                self.wrong_values.push(value.as_str().to_owned());
            }
            match name.is_utf8() {
                true => {
                    drop(self.texts.insert(name.as_str().to_owned(), value.as_str().to_owned()))
                }
                false => self.wrong_names.push(name.as_str().to_owned()),
            }
        }
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        self.texts.encode()
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}
