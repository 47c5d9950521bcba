//! Typed sections of a document.
//!
//! A section is a struct that `section!` declares: each field with its key. Keys that it does not
//! know, keys that are set twice and values of other types are collected in the [`Decoder`]; a
//! violation of a section's own rules ends the decoding at once, as in Prometheus.

use std::collections::HashSet;
use std::fmt;

use firn_model::{Budget, Reservation};

use super::failure::Failure;
use super::node::{Document, Node, NodeValue};
use crate::text::{message, quoted};

/// The handling of keys that a section does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownKeys {
    /// They are errors.
    Refused,
    /// They are ignored.
    Ignored,
}

/// The version of Go's library whose texts the errors of repeated keys have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// That of configurations, lists of targets and tests.
    V2,
    /// That of rule files: it reads no mapping with a repeated key.
    V3,
}

/// The errors of a document that do not end its decoding, and the work that it may still cause.
#[derive(Debug)]
pub struct Decoder {
    type_errors: Vec<String>,
    nodes_left: usize,
    unknown: UnknownKeys,
    dialect: Dialect,
    held: Reservation,
    /// The memory of the values so far.
    bytes: u64,
}

// Aliases multiply the nodes of a document: ten levels of ten aliases are 10^10 nodes.
const NODES_MAX: usize = 4_000_000;
const TYPE_ERRORS_MAX: usize = 100;
// A text is a block of the allocator.
const TEXT_BYTES: usize = 32;

impl Decoder {
    pub(crate) fn new(unknown: UnknownKeys, dialect: Dialect, held: Reservation) -> Decoder {
        let (type_errors, nodes_left) = (Vec::new(), NODES_MAX);
        Decoder { type_errors, nodes_left, unknown, dialect, held, bytes: 0 }
    }

    /// The memory of the values, or the errors of all that were read.
    pub(crate) fn finish(self) -> Result<Reservation, Failure> {
        match self.type_errors.as_slice() {
            [] => Ok(self.held),
            errors => {
                let text = format!("yaml: unmarshal errors:\n  {}", errors.join("\n  "));
                Err(Failure::of_lines(text))
            }
        }
    }

    /// Records that `node` is no value of `T`. The error of a type with secrets does not show the
    /// value, which may be one that was written one level too high.
    pub fn type_error<T: Field>(&mut self, node: &Node) {
        if self.type_errors.len() >= TYPE_ERRORS_MAX {
            return;
        }
        let value = match &node.value {
            NodeValue::Scalar(text, _) if T::secret_paths().is_empty() => {
                let short: String = text.chars().take(7).collect();
                match text.len() {
                    0..=10 => format!(" `{text}`"),
                    _ => format!(" `{short}...`"),
                }
            }
            _ => String::new(),
        };
        self.wrong_type(node, &value, &T::type_name());
    }

    /// Records that `node`, shown as `value`, is no value of the type `type_name`.
    fn wrong_type(&mut self, node: &Node, value: &str, type_name: &str) {
        self.error(node, format_args!("cannot unmarshal {}{value} into {type_name}", node.tag()));
    }

    /// Counts `count` values.
    fn charge(&mut self, count: usize) -> Result<(), Failure> {
        let left = self.nodes_left.checked_sub(count);
        self.nodes_left = left.ok_or_else(|| {
            let text = format!("yaml: document contains over {NODES_MAX} values with its aliases");
            Failure::new(text)
        })?;
        Ok(())
    }

    /// Reserves the memory of a value of `bytes` and of its text. A list grows to twice its length.
    pub(crate) fn reserve(&mut self, node: &Node, bytes: usize) -> Result<(), Failure> {
        let text_bytes = match &node.value {
            NodeValue::Scalar(text, _) => text.len().saturating_add(TEXT_BYTES),
            _ => 0,
        };
        let bytes = bytes.saturating_mul(2).saturating_add(text_bytes);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.held.cover(self.bytes).map_err(|error| Failure::of_memory(&error))
    }

    /// Records each pair of equal keys, if the dialect reads no mapping with them. Returns whether
    /// there are any.
    pub(crate) fn refuses_keys(&mut self, entries: &Entries) -> bool {
        if self.dialect == Dialect::V2 {
            return false;
        }
        let texts = || {
            entries.iter().filter_map(|(key, _)| match &key.value {
                NodeValue::Scalar(text, _) => Some((text.as_str(), &**key)),
                NodeValue::Merge => Some(("<<", &**key)),
                _ => None,
            })
        };
        let mut seen = HashSet::new();
        let repeated: HashSet<&str> =
            texts().map(|key| key.0).filter(|text| !seen.insert(*text)).collect();
        let keys: Vec<(&str, &Node)> = texts().filter(|key| repeated.contains(key.0)).collect();
        for (place, (text, first)) in keys.iter().enumerate() {
            if self.type_errors.len() >= TYPE_ERRORS_MAX {
                break;
            }
            let (key, line) = (quoted(text.as_bytes()), first.line);
            let later = keys.iter().skip(place.saturating_add(1));
            for (_, second) in later.filter(|other| other.0 == *text) {
                self.error(
                    second,
                    format_args!("mapping key {key} already defined at line {line}"),
                );
            }
        }
        !repeated.is_empty()
    }

    pub(crate) fn error(&mut self, node: &Node, text: fmt::Arguments<'_>) {
        if self.type_errors.len() < TYPE_ERRORS_MAX {
            let text = message(&text.to_string());
            self.type_errors.push(format!("line {}: {text}", node.line));
        }
    }
}

/// Reads or changes a path of a file, given with its key.
pub type PathVisitor<'v> = dyn FnMut(&'static str, &mut String) + 'v;

/// A value of a document.
pub trait Field: Sized {
    /// The type's name in messages, as in Prometheus.
    fn type_name() -> String;
    /// The value of a null.
    fn zero() -> Self;
    /// Reads a null.
    fn read_null(&mut self, _node: &Node) {
        *self = Self::zero();
    }
    /// Reads a value that is no null. `false` after type errors.
    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure>;
    /// The value for printing; secrets are hidden.
    fn encode(&self) -> Encoded;
    /// Whether printing may omit the value.
    fn is_zero(&self) -> bool;
    /// The places of secrets in a value: keys behind slashes, `[]` for the elements of a list, `{}`
    /// for the values of a mapping. The place of a secret itself is empty.
    fn secret_paths() -> Vec<String> {
        Vec::new()
    }
    /// Calls `visit` with every path of a file in the value and the key that names it. `key` is
    /// that of the value itself.
    fn each_path(&mut self, _key: &'static str, _visit: &mut PathVisitor<'_>) {}
}

/// A value for printing.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoded {
    /// A null.
    Null,
    /// A number, a switch or another word that needs no quotes.
    Word(String),
    /// A text, quoted if it needs quotes.
    Text(String),
    /// A list.
    List(Vec<Encoded>),
    /// A mapping, in the order of printing.
    Map(Vec<(String, Encoded)>),
}

/// A mapping with known keys; see [`section!`](crate::section!).
pub trait Section: Checked {
    /// The type's name in messages, as in Prometheus.
    const TYPE: &'static str;
    /// Reads the value of `key`; `None` if there is no such key.
    fn read_key(
        &mut self,
        key: &str,
        node: &Node,
        decoder: &mut Decoder,
    ) -> Result<Option<bool>, Failure>;
    /// Adds the keys for printing.
    fn encode_keys(&self, keys: &mut Vec<(String, Encoded)>);
}

/// The rules of a section.
pub trait Checked {
    /// Sets the defaults of a section that is present.
    fn start(&mut self) {}
    /// Checks the values of a section that was read without errors.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Reads `text` into `out`, which keeps its value if the document is empty.
///
/// # Errors
/// Those of [`Document::parse`] and [`Document::decode`].
#[cfg(test)]
pub(crate) fn from_document<T: Field>(text: &str, out: &mut T) -> Result<(), Failure> {
    from_document_within(text, out, &Budget::unlimited()).map(drop)
}

/// Reads `text` into `out`, which keeps its value if the document is empty, within the memory of
/// `budget`. Returns the memory of the values, as [`Document::decode`].
///
/// # Errors
/// Those of [`Document::parse_within`] and [`Document::decode`].
pub fn from_document_within<T: Field>(
    text: &str,
    out: &mut T,
    budget: &Budget,
) -> Result<Reservation, Failure> {
    Document::parse_within(text, budget)?.decode_as(out, UnknownKeys::Refused, Dialect::V2)
}

impl Document {
    /// Reads the document, a rule file, into `out`, which keeps its value if the document is empty.
    /// Returns the memory of the values, an upper estimate, which the caller keeps as long as them.
    ///
    /// # Errors
    /// All keys that are not known and all values of wrong types, or the first violation of a
    /// section's own rules; no memory.
    pub fn decode<T: Field>(
        &mut self,
        out: &mut T,
        unknown: UnknownKeys,
    ) -> Result<Reservation, Failure> {
        self.decode_as(out, unknown, Dialect::V3)
    }

    fn decode_as<T: Field>(
        &mut self,
        out: &mut T,
        unknown: UnknownKeys,
        dialect: Dialect,
    ) -> Result<Reservation, Failure> {
        let held = self.held.split(0);
        let Some(root) = &self.root else { return Ok(held) };
        if matches!(root.value, NodeValue::Null) {
            return Ok(held);
        }
        let mut decoder = Decoder::new(unknown, dialect, held);
        decode(out, root, &mut decoder)?;
        decoder.finish()
    }
}

/// Reads a node. `false` after type errors.
pub fn decode<T: Field>(out: &mut T, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
    decoder.charge(1)?;
    decoder.reserve(node, size_of::<T>())?;
    if matches!(node.value, NodeValue::Null) {
        out.read_null(node);
        return Ok(true);
    }
    out.read(node, decoder)
}

/// Reads a mapping into a section.
pub fn read_section<S: Section + Field>(
    section: &mut S,
    node: &Node,
    decoder: &mut Decoder,
) -> Result<bool, Failure> {
    let before = decoder.type_errors.len();
    section.start();
    match &node.value {
        NodeValue::Map(entries) if decoder.refuses_keys(entries) => {}
        NodeValue::Map(entries) => read_entries(section, entries, decoder)?,
        _ => decoder.type_error::<S>(node),
    }
    if decoder.type_errors.len() > before {
        return Ok(false);
    }
    section.check().map_err(|text| Failure::new(text).at(node.line))?;
    Ok(true)
}

pub(crate) type Entries = [(std::rc::Rc<Node>, std::rc::Rc<Node>)];

fn read_entries<S: Section>(
    section: &mut S,
    entries: &Entries,
    decoder: &mut Decoder,
) -> Result<(), Failure> {
    let mut keys = HashSet::new();
    for (key_node, node) in entries {
        if matches!(key_node.value, NodeValue::Merge) {
            for entries in merged(node)? {
                decoder.charge(entries.len().saturating_add(1))?;
                read_entries(section, entries, decoder)?;
            }
            continue;
        }
        let Some(key) = text_of(key_node, decoder, "string")? else { continue };
        let line = key_node.line;
        if keys.contains(key) {
            decoder.error(key_node, format_args!("field {key} already set in type {}", S::TYPE));
        } else if section.read_key(key, node, decoder).map_err(|e| e.at(line))?.is_some() {
            keys.insert(key);
        } else if decoder.unknown == UnknownKeys::Refused {
            decoder.error(key_node, format_args!("field {key} not found in type {}", S::TYPE));
        }
    }
    Ok(())
}

/// The mappings of a merge key, from the weakest to the strongest.
pub(crate) fn merged(node: &Node) -> Result<Vec<&Entries>, Failure> {
    let mapping = |node: &'_ Node| matches!(node.value, NodeValue::Map(_));
    let wrong = || {
        Failure::new("yaml: map merge requires map or sequence of maps as the value").at(node.line)
    };
    match &node.value {
        NodeValue::Map(entries) => Ok(vec![entries]),
        NodeValue::List(items) if items.iter().all(|item| mapping(item)) => {
            let entries = items.iter().rev().filter_map(|item| match &item.value {
                NodeValue::Map(entries) => Some(entries.as_slice()),
                _ => None,
            });
            Ok(entries.collect())
        }
        _ => Err(wrong()),
    }
}

/// The text of a scalar; `None` after a type error. Null is the empty text.
pub fn text_of<'n>(
    node: &'n Node,
    decoder: &mut Decoder,
    type_name: &str,
) -> Result<Option<&'n str>, Failure> {
    match &node.value {
        NodeValue::Scalar(text, _) => Ok(Some(text)),
        NodeValue::Null => Ok(Some("")),
        NodeValue::Merge => Ok(Some("<<")),
        NodeValue::Bytes(_) => Err(Failure::new("the !!binary value is not UTF-8").at(node.line)),
        NodeValue::List(_) | NodeValue::Map(_) => {
            decoder.wrong_type(node, "", type_name);
            Ok(None)
        }
    }
}

/// The places of secrets in a value of `T` that is below `key`.
pub fn paths_below<T: Field>(key: &str) -> impl Iterator<Item = String> {
    T::secret_paths().into_iter().map(move |path| format!("/{key}{path}"))
}
