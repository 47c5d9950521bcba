//! Values of the standard types in a document.

use std::collections::BTreeMap;

use firn_model::Secret;

use super::decode::{Decoder, Encoded, Field, PathVisitor, decode, merged, paths_below, text_of};
use super::failure::Failure;
use super::node::{Node, NodeValue};
use super::scalar::Kind;
use crate::text::quoted;

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

macro_rules! whole_number_field {
    ($type:ty, $type_name:literal) => {
        impl Field for $type {
            fn type_name() -> String {
                $type_name.to_owned()
            }

            fn zero() -> $type {
                0
            }

            fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
                let number = whole_number(node).and_then(|number| number.try_into().ok());
                match number {
                    Some(number) => *self = number,
                    None => decoder.type_error::<$type>(node),
                }
                Ok(number.is_some())
            }

            fn encode(&self) -> Encoded {
                Encoded::Word(self.to_string())
            }

            fn is_zero(&self) -> bool {
                *self == 0
            }
        }
    };
}

whole_number_field!(i64, "int");
whole_number_field!(u64, "uint");

/// A whole number; a fraction is cut off, as in Prometheus.
fn whole_number(node: &Node) -> Option<i128> {
    match node.value {
        NodeValue::Scalar(_, Kind::Whole(number)) => Some(number),
        #[expect(clippy::cast_possible_truncation, reason = "saturates; the field's type is less")]
        NodeValue::Scalar(_, Kind::Float(number)) if number.is_finite() => Some(number as i128),
        _ => None,
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
        if decoder.refuses_keys(entries) {
            return Ok(false);
        }
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
