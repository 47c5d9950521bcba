//! Typed sections of a document.
//!
//! A section is a struct that `section!` declares: each field with its key. Keys that it does not
//! know, keys that are set twice and values of other types are collected in the [`Decoder`]; a
//! violation of a section's own rules ends the decoding at once, as in Prometheus.

use std::collections::BTreeMap;
use std::fmt;

use firn_model::{Budget, Error, ErrorKind, Reservation, Secret};

use super::node::{Document, Node, NodeValue, UnknownKeys};
use super::scalar::Kind;
use crate::text::{message, quoted};

/// A decoding that ended, with the line where it is known.
#[derive(Debug)]
pub struct Failure {
    text: String,
    line: Option<usize>,
    kind: ErrorKind,
}

impl Failure {
    /// A mistake in the document, without a line. The text may repeat parts of the document.
    pub fn new(text: impl AsRef<str>) -> Failure {
        Failure::of_lines(message(text.as_ref()))
    }

    /// Mistakes, each on a line of its own.
    fn of_lines(text: String) -> Failure {
        Failure { text, line: None, kind: ErrorKind::Invalid }
    }

    /// A decoding that was refused for lack of memory.
    pub(crate) fn of_memory(error: &Error) -> Failure {
        Failure { text: format!("yaml: {error}"), line: None, kind: error.kind().clone() }
    }

    /// The same failure at `line`, unless it has a line.
    pub fn at(mut self, line: usize) -> Failure {
        self.line = self.line.or(Some(line));
        self
    }

    /// The error that a caller returns: `Invalid`, or that of the budget.
    pub fn into_error(self) -> Error {
        Error::new(self.kind.clone(), self.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.line {
            Some(line) => write!(f, " (line {line})"),
            None => Ok(()),
        }
    }
}

/// The errors of a document that do not end its decoding, and the work that it may still cause.
#[derive(Debug)]
pub struct Decoder {
    type_errors: Vec<String>,
    nodes_left: usize,
    unknown: UnknownKeys,
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
    pub(crate) fn new(unknown: UnknownKeys, held: Reservation) -> Decoder {
        Decoder { type_errors: Vec::new(), nodes_left: NODES_MAX, unknown, held, bytes: 0 }
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
    fn reserve(&mut self, node: &Node, bytes: usize) -> Result<(), Failure> {
        let text_bytes = match &node.value {
            NodeValue::Scalar(text, _) => text.len().saturating_add(TEXT_BYTES),
            _ => 0,
        };
        let bytes = bytes.saturating_mul(2).saturating_add(text_bytes);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.held.cover(self.bytes).map_err(|error| Failure::of_memory(&error))
    }

    fn error(&mut self, node: &Node, text: fmt::Arguments<'_>) {
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

/// A mapping with known keys; see [`section!`](crate::section).
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
    Document::parse_within(text, budget)?.decode(out, UnknownKeys::Refused)
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
        NodeValue::Map(entries) => read_entries(section, entries, decoder)?,
        _ => decoder.type_error::<S>(node),
    }
    if decoder.type_errors.len() > before {
        return Ok(false);
    }
    section.check().map_err(|text| Failure::new(text).at(node.line))?;
    Ok(true)
}

type Entries = [(std::rc::Rc<Node>, std::rc::Rc<Node>)];

fn read_entries<S: Section>(
    section: &mut S,
    entries: &Entries,
    decoder: &mut Decoder,
) -> Result<(), Failure> {
    let mut keys = std::collections::HashSet::new();
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
fn merged(node: &Node) -> Result<Vec<&Entries>, Failure> {
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

/// Declares a section: a struct with a key for each field. Fields that are marked `omit` are
/// printed only if they differ from null. The keys of inlined sections belong to the section too.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $type_name:literal {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty = $key:literal $($omit:ident)?, )*
        }
        $( inline { $( $(#[$inline_meta:meta])* $inline:ident: $inline_ty:ty, )* } )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $(
                #[doc = concat!("The key `", $key, "`.")]
                $(#[$field_meta])*
                $vis $field: $ty,
            )*
            $( $(
                #[doc = concat!("Keys of [`", stringify!($inline_ty), "`] in this section.")]
                $(#[$inline_meta])*
                $vis $inline: $inline_ty,
            )* )?
        }

        impl $crate::Section for $name {
            const TYPE: &'static str = $type_name;

            #[allow(unused_variables)]
            fn read_key(
                &mut self,
                key: &str,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<Option<bool>, $crate::Failure> {
                match key {
                    $( $key => $crate::decode(&mut self.$field, node, decoder).map(Some), )*
                    _ => {
                        $( $(
                            let known = $crate::Section::read_key(
                                &mut self.$inline, key, node, decoder,
                            )?;
                            if known.is_some() {
                                return Ok(known);
                            }
                        )* )?
                        Ok(None)
                    }
                }
            }

            fn encode_keys(&self, keys: &mut Vec<(String, $crate::Encoded)>) {
                $(
                    let is_omitted = false $( || {
                        const { $crate::assert_omit(stringify!($omit)) };
                        $crate::Field::is_zero(&self.$field)
                    } )?;
                    if !is_omitted {
                        keys.push(($key.to_owned(), $crate::Field::encode(&self.$field)));
                    }
                )*
                $( $( $crate::Section::encode_keys(&self.$inline, keys); )* )?
            }
        }

        impl $crate::Field for $name {
            fn type_name() -> String {
                $type_name.to_owned()
            }

            fn zero() -> Self {
                $name {
                    $( $field: <$ty as $crate::Field>::zero(), )*
                    $( $( $inline: <$inline_ty as $crate::Field>::zero(), )* )?
                }
            }

            fn read(
                &mut self,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<bool, $crate::Failure> {
                $crate::read_section(self, node, decoder)
            }

            fn encode(&self) -> $crate::Encoded {
                let mut keys = Vec::new();
                $crate::Section::encode_keys(self, &mut keys);
                $crate::Encoded::Map(keys)
            }

            fn is_zero(&self) -> bool {
                true
                    $( && $crate::Field::is_zero(&self.$field) )*
                    $( $( && $crate::Field::is_zero(&self.$inline) )* )?
            }

            fn secret_paths() -> Vec<String> {
                #[allow(unused_mut)]
                let mut paths = Vec::new();
                $( paths.extend($crate::paths_below::<$ty>($key)); )*
                $( $( paths.extend(<$inline_ty as $crate::Field>::secret_paths()); )* )?
                paths
            }

            fn each_path(&mut self, key: &'static str, visit: &mut $crate::PathVisitor<'_>) {
                $( $crate::Field::each_path(&mut self.$field, $key, visit); )*
                $( $( $crate::Field::each_path(&mut self.$inline, key, visit); )* )?
            }
        }
    };
}

/// The only mark of a field.
pub const fn assert_omit(mark: &str) {
    assert!(matches!(mark.as_bytes(), b"omit"), "fields may be marked `omit` only");
}

/// Declares an enum whose values are words. `Unset` is null. `fold` prepares the text, `unknown`
/// is the error for other words; an `empty` text may have a value.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $type_name:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal, )*
        }
        fold $fold:expr;
        unknown $unknown:expr;
        $( empty $empty:ident; )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            /// Neither set nor a default.
            #[default]
            Unset,
            $(
                #[doc = concat!("`", $word, "`.")]
                $(#[$variant_meta])*
                $variant,
            )*
        }

        impl $name {
            /// The word; empty for [`Self::Unset`].
            pub fn as_str(self) -> &'static str {
                match self {
                    $name::Unset => "",
                    $( $name::$variant => $word, )*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let fold: fn(&str) -> String = $fold;
                let unknown: fn(&str) -> String = $unknown;
                match fold(text).as_str() {
                    $( $word => Ok($name::$variant), )*
                    $( "" => Ok($name::$empty), )?
                    _ => Err(unknown(text)),
                }
            }
        }

        impl $crate::Field for $name {
            fn type_name() -> String {
                $type_name.to_owned()
            }

            fn zero() -> Self {
                $name::Unset
            }

            fn read(
                &mut self,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<bool, $crate::Failure> {
                let text = $crate::text_of(node, decoder, "string")?;
                let Some(text) = text else { return Ok(false) };
                *self = text
                    .parse()
                    .map_err(|error: String| $crate::Failure::new(error).at(node.line))?;
                Ok(true)
            }

            fn encode(&self) -> $crate::Encoded {
                $crate::Encoded::Text(self.as_str().to_owned())
            }

            fn is_zero(&self) -> bool {
                *self == $name::Unset
            }
        }
    };
}

impl Field for String {
    fn type_name() -> String {
        "string".to_owned()
    }

    fn zero() -> String {
        String::new()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        text.clone_into(self);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.clone())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}

impl Field for Secret {
    fn type_name() -> String {
        "config.plain".to_owned()
    }

    fn zero() -> Secret {
        Secret::new("")
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "config.plain")? else { return Ok(false) };
        *self = Secret::new(text);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        if self.is_zero() { Encoded::Null } else { Encoded::Text("<secret>".to_owned()) }
    }

    fn is_zero(&self) -> bool {
        self.expose().is_empty()
    }

    fn secret_paths() -> Vec<String> {
        vec![String::new()]
    }
}

impl Field for bool {
    fn type_name() -> String {
        "bool".to_owned()
    }

    fn zero() -> bool {
        false
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let NodeValue::Scalar(_, Kind::Switch(switch)) = node.value else {
            decoder.type_error::<bool>(node);
            return Ok(false);
        };
        *self = switch;
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Word(self.to_string())
    }

    fn is_zero(&self) -> bool {
        !self
    }
}

impl Field for i64 {
    fn type_name() -> String {
        "int".to_owned()
    }

    fn zero() -> i64 {
        0
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        read_whole(self, node, decoder)
    }

    fn encode(&self) -> Encoded {
        Encoded::Word(self.to_string())
    }

    fn is_zero(&self) -> bool {
        *self == 0
    }
}

impl Field for u64 {
    fn type_name() -> String {
        "uint".to_owned()
    }

    fn zero() -> u64 {
        0
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        read_whole(self, node, decoder)
    }

    fn encode(&self) -> Encoded {
        Encoded::Word(self.to_string())
    }

    fn is_zero(&self) -> bool {
        *self == 0
    }
}

/// A whole number; a fraction is cut off, as in Prometheus.
fn read_whole<T: TryFrom<i128> + Field>(
    out: &mut T,
    node: &Node,
    decoder: &mut Decoder,
) -> Result<bool, Failure> {
    let number = match node.value {
        NodeValue::Scalar(_, Kind::Whole(number)) => Some(number),
        #[expect(clippy::cast_possible_truncation, reason = "saturates, then checked by try_from")]
        NodeValue::Scalar(_, Kind::Float(number)) if number.is_finite() => Some(number as i128),
        _ => None,
    };
    match number.and_then(|number| T::try_from(number).ok()) {
        Some(number) => {
            *out = number;
            Ok(true)
        }
        None => {
            decoder.type_error::<T>(node);
            Ok(false)
        }
    }
}

impl Field for f64 {
    fn type_name() -> String {
        "float64".to_owned()
    }

    fn zero() -> f64 {
        0.0
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        *self = match node.value {
            #[expect(clippy::cast_precision_loss, reason = "the nearest number is the value")]
            NodeValue::Scalar(_, Kind::Whole(number)) => number as f64,
            NodeValue::Scalar(_, Kind::Float(number)) => number,
            _ => {
                decoder.type_error::<f64>(node);
                return Ok(false);
            }
        };
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Word(match *self {
            number if number.is_nan() => ".nan".to_owned(),
            f64::INFINITY => ".inf".to_owned(),
            f64::NEG_INFINITY => "-.inf".to_owned(),
            number => number.to_string(),
        })
    }

    fn is_zero(&self) -> bool {
        *self == 0.0
    }
}

impl<T: Field> Field for Option<T> {
    fn type_name() -> String {
        T::type_name()
    }

    fn zero() -> Option<T> {
        None
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.get_or_insert_with(T::zero).read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        self.as_ref().map_or(Encoded::Null, T::encode)
    }

    fn is_zero(&self) -> bool {
        self.is_none()
    }

    fn secret_paths() -> Vec<String> {
        T::secret_paths()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        if let Some(value) = self {
            value.each_path(key, visit);
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn type_name() -> String {
        format!("[]{}", T::type_name())
    }

    fn zero() -> Vec<T> {
        Vec::new()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let NodeValue::List(nodes) = &node.value else {
            decoder.type_error::<Self>(node);
            return Ok(false);
        };
        self.clear();
        for node in nodes {
            let mut item = T::zero();
            if decode(&mut item, node, decoder)? {
                self.push(item);
            }
        }
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::List(self.iter().map(T::encode).collect())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn secret_paths() -> Vec<String> {
        paths_below::<T>("[]").collect()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        self.iter_mut().for_each(|item| item.each_path(key, visit));
    }
}

/// A list in which a null is an error of the section that contains the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items<T> {
    items: Vec<T>,
    has_null: bool,
}

impl<T> Items<T> {
    /// Whether the file has a null in the list. Never in a checked configuration.
    pub fn has_null(&self) -> bool {
        self.has_null
    }

    /// The items.
    pub fn items_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

impl<T> std::ops::Deref for Items<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> From<Vec<T>> for Items<T> {
    fn from(items: Vec<T>) -> Items<T> {
        Items { items, has_null: false }
    }
}

impl<T: Field> Field for Items<T> {
    fn type_name() -> String {
        format!("[]*{}", T::type_name())
    }

    fn zero() -> Items<T> {
        Items { items: Vec::new(), has_null: false }
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let NodeValue::List(nodes) = &node.value else {
            decoder.type_error::<Self>(node);
            return Ok(false);
        };
        *self = Items::zero();
        for node in nodes {
            if matches!(node.value, NodeValue::Null) {
                self.has_null = true;
                continue;
            }
            let mut item = T::zero();
            if decode(&mut item, node, decoder)? {
                self.items.push(item);
            }
        }
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        self.items.encode()
    }

    fn is_zero(&self) -> bool {
        self.items.is_empty()
    }

    fn secret_paths() -> Vec<String> {
        paths_below::<T>("[]").collect()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        self.items.each_path(key, visit);
    }
}

// A key, and the part of a map's node that may be unused.
const ENTRY_BYTES: usize = 48;
// Half of the entries that the smallest map has room for: a reservation is for twice of it.
const SMALLEST_MAP: usize = 5;

impl<T: Field> Field for BTreeMap<String, T> {
    fn type_name() -> String {
        format!("map[string]{}", T::type_name())
    }

    fn zero() -> BTreeMap<String, T> {
        BTreeMap::new()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let NodeValue::Map(entries) = &node.value else {
            decoder.type_error::<Self>(node);
            return Ok(false);
        };
        if !entries.is_empty() {
            decoder.reserve(node, SMALLEST_MAP.saturating_mul(size_of::<(String, T)>()))?;
        }
        let mut own = BTreeMap::new();
        for (key_node, node) in entries {
            if matches!(key_node.value, NodeValue::Merge) {
                for entries in merged(node)? {
                    for (key, node) in entries {
                        decoder.reserve(key, ENTRY_BYTES)?;
                        let mut value = T::zero();
                        if let Some(key) = text_of(key, decoder, "string")?
                            && decode(&mut value, node, decoder)?
                        {
                            self.insert(key.to_owned(), value);
                        }
                    }
                }
                continue;
            }
            decoder.reserve(key_node, ENTRY_BYTES)?;
            let Some(key) = text_of(key_node, decoder, "string")? else { continue };
            let mut value = T::zero();
            if !decode(&mut value, node, decoder)? {
                continue;
            }
            if own.contains_key(key) {
                let key = quoted(key.as_bytes());
                decoder.error(node, format_args!("key {key} already set in map"));
                continue;
            }
            own.insert(key.to_owned(), value);
        }
        self.append(&mut own);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Map(self.iter().map(|(key, value)| (key.clone(), value.encode())).collect())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn secret_paths() -> Vec<String> {
        paths_below::<T>("{}").collect()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        self.values_mut().for_each(|value| value.each_path(key, visit));
    }
}
