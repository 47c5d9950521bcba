//! YAML as a tree whose nodes know their line, and sections of it whose keys are taken one by one:
//! a key that is not taken is an error.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, Result, excerpt};
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

/// A node, its line from 1, and its column from 0.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) value: NodeValue,
}

#[derive(Clone, Debug)]
pub(super) enum NodeValue {
    /// The text as it was typed; `None` for an absent value.
    Scalar(Option<String>),
    List(Vec<Node>),
    Map(Vec<KeyValue>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct KeyValue {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Node,
}

/// A mapping whose keys are taken one by one.
#[derive(Debug)]
pub(super) struct Section<'a> {
    file: &'a str,
    /// The path of keys that leads here, with a dot at its end; empty at the top.
    prefix: String,
    entries: Vec<KeyValue>,
    known: Vec<&'static str>,
}

/// The tree of a file is small; deeper ones are mistakes.
const DEPTH_MAX: usize = 8;

/// Parses `text`, the contents of `file`. `None` for an empty document.
///
/// # Errors
/// `Invalid` with file and line: no YAML, several documents, references to anchors, too deep.
pub(super) fn parse(file: &str, text: &str) -> Result<Option<Node>> {
    let mut reader = TreeReader { file, parser: Parser::new_from_str(text), last_line: 1 };
    let root = match reader.next()? {
        Some((event, line, column)) => reader.node(event, (line, column), 0)?,
        None => return Ok(None),
    };
    match reader.next()? {
        Some((_, line, _)) => {
            Err(error(file, line, "expected one YAML document, got a second one"))
        }
        None => Ok(Some(root)),
    }
}

/// An error at a line of a file.
pub(super) fn error(file: &str, line: usize, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{file}:{line}: {what}"))
}

struct TreeReader<'a> {
    file: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    last_line: usize,
}

impl<'a> TreeReader<'a> {
    /// The next event that carries data, with line and column; `None` at the end.
    fn next(&mut self) -> Result<Option<(Event<'a>, usize, usize)>> {
        loop {
            return match self.parser.next() {
                None | Some(Ok((Event::StreamEnd, _))) => Ok(None),
                Some(Ok((
                    Event::StreamStart
                    | Event::DocumentStart(_)
                    | Event::DocumentEnd
                    | Event::Nothing,
                    _,
                ))) => continue,
                Some(Ok((event, span))) => {
                    self.last_line = span.start.line();
                    Ok(Some((event, span.start.line(), span.start.col())))
                }
                Some(Err(e)) => Err(error(self.file, e.marker().line(), e.info())),
            };
        }
    }

    fn expect(&mut self) -> Result<(Event<'a>, usize, usize)> {
        let (file, line) = (self.file, self.last_line);
        self.next()?.ok_or_else(|| error(file, line, "the file ends early"))
    }

    fn node(
        &mut self,
        event: Event<'a>,
        (line, column): (usize, usize),
        depth: usize,
    ) -> Result<Node> {
        if depth > DEPTH_MAX {
            return Err(error(self.file, line, "nested too deeply"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                let is_none = style == ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                NodeValue::Scalar((!is_none).then(|| text.into_owned()))
            }
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.expect()? {
                        (Event::SequenceEnd, ..) => break,
                        (event, line, column) => {
                            items.push(self.node(
                                event,
                                (line, column),
                                depth.saturating_add(1),
                            )?);
                        }
                    }
                }
                NodeValue::List(items)
            }
            Event::MappingStart(..) => {
                let mut entries: Vec<KeyValue> = Vec::new();
                loop {
                    let (key, key_line) = match self.expect()? {
                        (Event::MappingEnd, ..) => break,
                        (Event::Scalar(key, ..), line, _) => (key.into_owned(), line),
                        (_, line, _) => return Err(error(self.file, line, "expected a key")),
                    };
                    if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                        let what = format!("{key}: set twice, first in line {}", first.line);
                        return Err(error(self.file, key_line, what));
                    }
                    let (event, line, column) = self.expect()?;
                    let value = self.node(event, (line, column), depth.saturating_add(1))?;
                    entries.push(KeyValue { key, line: key_line, value });
                }
                NodeValue::Map(entries)
            }
            _ => return Err(error(self.file, line, "references to anchors are not supported")),
        };
        Ok(Node { line, column, value })
    }
}

impl<'a> Section<'a> {
    /// The mapping `node`, which messages call `name`. An absent value is an empty mapping.
    ///
    /// # Errors
    /// `Invalid` for another kind of node.
    pub(super) fn new(file: &'a str, name: &str, node: Node) -> Result<Section<'a>> {
        let entries = match node.value {
            NodeValue::Map(entries) => entries,
            NodeValue::Scalar(None) => Vec::new(),
            _ => {
                let name = if name.is_empty() { "the file" } else { name };
                return Err(error(file, node.line, format!("{name}: expected KEY: VALUE lines")));
            }
        };
        let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
        Ok(Section { file, prefix, entries, known: Vec::new() })
    }

    /// The error of the key `key` at `line`.
    pub(super) fn error(&self, key: &str, line: usize, what: impl std::fmt::Display) -> Error {
        error(self.file, line, format!("{}{key}: {what}", self.prefix))
    }

    /// Takes a key out of the section; `None` if it is not there or has no value.
    pub(super) fn take(&mut self, key: &'static str) -> Option<KeyValue> {
        self.known.push(key);
        let idx = self.entries.iter().position(|entry| entry.key == key)?;
        let entry = self.entries.remove(idx);
        (!matches!(entry.value.value, NodeValue::Scalar(None))).then_some(entry)
    }

    /// A scalar with its line.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<(String, usize)>> {
        let Some(entry) = self.take(key) else { return Ok(None) };
        match entry.value.value {
            NodeValue::Scalar(Some(text)) => Ok(Some((text, entry.line))),
            _ => Err(self.error(key, entry.line, "expected a single value")),
        }
    }

    /// `true` or `false`.
    pub(super) fn switch(&mut self, key: &'static str) -> Result<Option<bool>> {
        let Some((text, line)) = self.text(key)? else { return Ok(None) };
        match text.as_str() {
            "true" | "True" | "TRUE" | "yes" | "on" => Ok(Some(true)),
            "false" | "False" | "FALSE" | "no" | "off" => Ok(Some(false)),
            _ => Err(self.error(key, line, "expected true or false")),
        }
    }

    /// A number above 0.
    pub(super) fn number(&mut self, key: &'static str) -> Result<Option<u64>> {
        let Some((text, line)) = self.text(key)? else { return Ok(None) };
        match text.parse() {
            Ok(number @ 1..) => Ok(Some(number)),
            _ => Err(self.error(key, line, "expected a whole number above 0")),
        }
    }

    /// A list of scalars with their lines; a single scalar is a list of one.
    pub(super) fn texts(&mut self, key: &'static str) -> Result<Vec<(String, usize)>> {
        let Some(entry) = self.take(key) else { return Ok(Vec::new()) };
        let items = match entry.value.value {
            NodeValue::List(items) => items,
            NodeValue::Scalar(_) => vec![entry.value],
            NodeValue::Map(_) => return Err(self.error(key, entry.line, "expected a list")),
        };
        let text = |item: Node| match item.value {
            NodeValue::Scalar(Some(text)) => Ok((text, item.line)),
            _ => Err(self.error(key, item.line, "expected a list of single values")),
        };
        items.into_iter().map(text).collect()
    }

    /// The mapping below `key`, empty if it is absent.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Section<'a>> {
        let name = format!("{}{key}", self.prefix);
        match self.take(key) {
            Some(entry) => Section::new(self.file, &name, entry.value),
            None => {
                let prefix = format!("{name}.");
                Ok(Section { file: self.file, prefix, entries: Vec::new(), known: Vec::new() })
            }
        }
    }

    /// All entries, whose keys are free.
    pub(super) fn into_entries(self) -> Vec<KeyValue> {
        self.entries
    }

    /// Ends the section.
    ///
    /// # Errors
    /// `Invalid` for a key that was not taken.
    pub(super) fn finish(self) -> Result<()> {
        let Some(unknown) = self.entries.first() else { return Ok(()) };
        let known = self.known.join(", ");
        let key = excerpt(&unknown.key);
        Err(self.error(&key, unknown.line, format!("unknown key; expected one of {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> Result<Section<'static>> {
        Section::new("f", "", parse("f", text)?.unwrap())
    }

    #[test]
    fn keys_are_taken_and_others_named() {
        let mut top = section("a: 1\nb: [x, 'y']\nc:\n  d: true\ne:\n").unwrap();
        assert_eq!(top.number("a").unwrap(), Some(1));
        assert_eq!(top.texts("b").unwrap(), [("x".to_owned(), 2), ("y".to_owned(), 2)]);
        let mut c = top.section("c").unwrap();
        assert_eq!(c.switch("d").unwrap(), Some(true));
        c.finish().unwrap();
        assert_eq!(top.text("e").unwrap(), None);
        top.finish().unwrap();
        let mut top = section("a: 1\nbc: 2\n").unwrap();
        top.take("a");
        let error = top.finish().unwrap_err().to_string();
        assert!(error.contains("f:2: bc: unknown key; expected one of a"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, wanted) in [
            ("a: 1\na: 2\n", "f:2: a: set twice, first in line 1"),
            ("a: 1\n---\nb: 2\n", "second one"),
            ("a: &x 1\nb: *x\n", "f:2: references to anchors are not supported"),
            ("[1]: 2\n", "f:1: expected a key"),
            ("[[[[[[[[[[[1]]]]]]]]]]]", "nested too deeply"),
            ("- 1\n", "the file: expected KEY: VALUE lines"),
        ] {
            let error = section(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(parse("f", "").unwrap().is_none());
        assert!(parse("f", "a: [\n").is_err());
    }
}
