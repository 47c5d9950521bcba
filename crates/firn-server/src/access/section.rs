//! Sections of the web configuration: a mapping of a document with the keys that it may have.
//! Values are borrowed from the document, and every check takes one pass.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::rc::Rc;

use firn_model::{Budget, Error, Result, excerpt};
use firn_yaml::{Document, Failure, Node, NodeValue};

/// The value of a key, and the line of the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyValue<'a> {
    pub(super) line: usize,
    pub(super) value: &'a Node,
}

/// A mapping whose keys are known.
#[derive(Debug)]
pub(super) struct Section<'a> {
    file: &'a str,
    /// The path of keys that leads here, with a dot at its end; empty at the top.
    prefix: String,
    keys: &'static [&'static str],
    /// One for each key.
    entries: Vec<Option<KeyValue<'a>>>,
}

/// Elements of one list. Lists of a real file have some dozens.
const LIST_LEN_MAX: usize = 1_000;

/// Parses `text`, the contents of `file`, within the memory of `budget`.
///
/// # Errors
/// `Invalid`: no YAML, several documents, aliases, too deep or too many values; `Busy` without
/// memory.
pub(super) fn parse(file: &str, text: &str, budget: &Budget) -> Result<Document> {
    let named = |failure: Failure| failure.into_error().context(file);
    let document = Document::parse_within(text, budget).map_err(named)?;
    if let Some(line) = document.alias_line {
        return Err(error(file, line, "aliases of anchors are not supported"));
    }
    match document.more_line {
        Some(line) => Err(error(file, line, "expected one YAML document, got a second one")),
        None => Ok(document),
    }
}

/// An error at a line of a file.
pub(super) fn error(file: &str, line: usize, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{file}:{line}: {what}"))
}

/// A key of a mapping; `None` for a key that is no single value.
pub(super) fn key_of(key: &Node) -> Option<&str> {
    match &key.value {
        NodeValue::Null => Some(""),
        NodeValue::Merge => Some("<<"),
        _ => scalar(key),
    }
}

/// The keys and values of a mapping; none for another kind of node.
pub(super) fn pairs(node: &Node) -> &[(Rc<Node>, Rc<Node>)] {
    match &node.value {
        NodeValue::Map(pairs) => pairs,
        _ => &[],
    }
}

/// The first value of `key` in a mapping.
pub(super) fn find<'a>(node: &'a Node, key: &str) -> Option<KeyValue<'a>> {
    let (key, value) = pairs(node).iter().find(|(other, _)| key_of(other) == Some(key))?;
    Some(KeyValue { line: key.line, value })
}

/// The text of a single value.
pub(super) fn scalar(node: &Node) -> Option<&str> {
    match &node.value {
        NodeValue::Scalar(text, _) => Some(text),
        _ => None,
    }
}

impl<'a> Section<'a> {
    /// The mapping `node` with the keys `keys`; messages call it `name`. A null and an absent value
    /// are empty mappings.
    ///
    /// # Errors
    /// `Invalid` for another kind of node, for unknown keys and for keys that are set twice.
    pub(super) fn new(
        file: &'a str,
        name: &str,
        node: Option<&'a Node>,
        keys: &'static [&'static str],
    ) -> Result<Section<'a>> {
        let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
        let mut section = Section { file, prefix, keys, entries: vec![None; keys.len()] };
        let Some(node) = node else { return Ok(section) };
        if !matches!(node.value, NodeValue::Null | NodeValue::Map(_)) {
            let name = if name.is_empty() { "the file" } else { name };
            return Err(error(file, node.line, format!("{name}: expected KEY: VALUE lines")));
        }
        for (key, value) in pairs(node) {
            section.add(key, value)?;
        }
        Ok(section)
    }

    fn add(&mut self, key: &Node, value: &'a Node) -> Result<()> {
        let line = key.line;
        let Some(key) = key_of(key) else { return Err(error(self.file, line, "expected a key")) };
        let place = self.keys.iter().zip(&mut self.entries).find(|(known, _)| **known == key);
        match place {
            Some((_, entry @ None)) => {
                *entry = Some(KeyValue { line, value });
                Ok(())
            }
            Some((_, Some(first))) => {
                let what = format!("set twice, first in line {}", first.line);
                Err(self.error(key, line, what))
            }
            None => {
                let what = format!("unknown key; expected one of {}", self.keys.join(", "));
                Err(self.error(&excerpt(key), line, what))
            }
        }
    }

    /// The error of the key `key` at `line`.
    pub(super) fn error(&self, key: &str, line: usize, what: impl std::fmt::Display) -> Error {
        error(self.file, line, format!("{}{key}: {what}", self.prefix))
    }

    /// The value of a key of the section; `None` if it is absent or null.
    pub(super) fn entry(&self, key: &str) -> Option<KeyValue<'a>> {
        debug_assert!(self.keys.contains(&key), "{key} is no key of {}", self.prefix);
        let (_, entry) = self.keys.iter().zip(&self.entries).find(|(known, _)| **known == key)?;
        entry.filter(|entry| !matches!(entry.value.value, NodeValue::Null))
    }

    /// Refuses one of `keys` without a value: an empty limit or matcher is a forgotten one.
    pub(super) fn refuse_nulls(&self, keys: &[&str]) -> Result<()> {
        for (key, entry) in self.keys.iter().zip(&self.entries) {
            if let Some(KeyValue { line, value }) = entry
                && matches!(value.value, NodeValue::Null)
                && keys.contains(key)
            {
                return Err(self.error(key, *line, "has no value; remove the key or set it"));
            }
        }
        Ok(())
    }

    /// A single value with its line.
    pub(super) fn text(&self, key: &str) -> Result<Option<(&'a str, usize)>> {
        let Some(KeyValue { line, value }) = self.entry(key) else { return Ok(None) };
        let text = scalar(value).ok_or_else(|| self.error(key, line, "expected a single value"))?;
        Ok(Some((text, line)))
    }

    /// `true` or `false`.
    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>> {
        let Some((text, line)) = self.text(key)? else { return Ok(None) };
        match text {
            "true" | "True" | "TRUE" | "yes" | "on" => Ok(Some(true)),
            "false" | "False" | "FALSE" | "no" | "off" => Ok(Some(false)),
            _ => Err(self.error(key, line, "expected true or false")),
        }
    }

    /// A number above 0.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        let Some((text, line)) = self.text(key)? else { return Ok(None) };
        match text.parse() {
            Ok(number @ 1..) => Ok(Some(number)),
            _ => Err(self.error(key, line, "expected a whole number above 0")),
        }
    }

    /// A list of at most [`LIST_LEN_MAX`] single values with their lines; a single value is a list
    /// of one.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<(&'a str, usize)>> {
        let Some(KeyValue { line, value }) = self.entry(key) else { return Ok(Vec::new()) };
        let items = match &value.value {
            NodeValue::List(items) => items,
            _ => {
                let text = scalar(value).ok_or_else(|| self.error(key, line, "expected a list"))?;
                return Ok(vec![(text, line)]);
            }
        };
        if items.len() > LIST_LEN_MAX {
            let what = format!("{} elements, at most {LIST_LEN_MAX} are accepted", items.len());
            return Err(self.error(key, line, what));
        }
        let text = |item: &'a Rc<Node>| {
            let text = scalar(item)
                .ok_or_else(|| self.error(key, item.line, "expected a list of single values"))?;
            Ok((text, item.line))
        };
        items.iter().map(text).collect()
    }

    /// The mapping below `key`, empty if it is absent.
    pub(super) fn section(&self, key: &str, keys: &'static [&'static str]) -> Result<Section<'a>> {
        let name = format!("{}{key}", self.prefix);
        Section::new(self.file, &name, self.entry(key).map(|entry| entry.value), keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[&str] = &["a", "b", "c", "e"];

    fn with_section(text: &str, check: impl FnOnce(&Section<'_>)) -> Result<()> {
        let document = parse("f", text, &Budget::unlimited())?;
        check(&Section::new("f", "", document.root.as_deref(), KEYS)?);
        Ok(())
    }

    #[test]
    fn values_are_read_with_their_lines() {
        with_section("a: 1\nb: [x, 'y']\nc:\n  d: true\ne:\n", |top| {
            assert_eq!(top.number("a").unwrap(), Some(1));
            assert_eq!(top.texts("b").unwrap(), [("x", 2), ("y", 2)]);
            assert_eq!(top.texts("a").unwrap(), [("1", 1)]);
            assert_eq!(top.section("c", &["d"]).unwrap().switch("d").unwrap(), Some(true));
            assert_eq!(top.text("e").unwrap(), None);
            assert!(top.section("e", &[]).is_ok() && top.section("a", &[]).is_err());
        })
        .unwrap();
        with_section("", |top| assert!(top.entry("a").is_none())).unwrap();
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, wanted) in [
            ("a: 1\nbc: 2\n", "f:2: bc: unknown key; expected one of a, b, c, e"),
            ("a: 1\na: 2\n", "f:2: a: set twice, first in line 1"),
            ("a:\na: 2\n", "f:2: a: set twice, first in line 1"),
            ("<<: {a: 1}\n", "f:1: <<: unknown key"),
            ("a: 1\n---\nb: 2\n", "f:3: expected one YAML document, got a second one"),
            ("a: &x 1\nb: *x\n", "f:2: aliases of anchors are not supported"),
            ("[1]: 2\n", "f:1: expected a key"),
            ("- 1\n", "f:1: the file: expected KEY: VALUE lines"),
            (&"[".repeat(100), "f: yaml: line 1: over 64 levels of nesting"),
            ("a: 1\nb: [\n", "f: yaml: line 3: "),
        ] {
            let error = with_section(text, |_| ()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let long = format!("b: [{}]", "a,".repeat(LIST_LEN_MAX + 1));
        with_section(&long, |top| {
            let error = top.texts("b").unwrap_err().to_string();
            assert!(error.contains("f:1: b: 1001 elements, at most 1000"), "{error}");
        })
        .unwrap();
    }
}
