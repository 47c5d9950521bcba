//! Values with their place in the document.

use super::decode::{Decoder, Encoded, Field, PathVisitor};
use super::failure::Failure;
use super::node::Node;

/// A value with its place; both numbers are 0 for a value that the document does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl<T: Field> Field for Placed<T> {
    fn type_name() -> String {
        T::type_name()
    }

    fn zero() -> Placed<T> {
        Placed { value: T::zero(), line: 0, column: 0 }
    }

    fn read_null(&mut self, node: &Node) {
        *self = Placed { value: T::zero(), line: node.line, column: node.column };
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        (self.line, self.column) = (node.line, node.column);
        self.value.read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        self.value.encode()
    }

    fn is_zero(&self) -> bool {
        self.value.is_zero()
    }

    fn secret_paths() -> Vec<String> {
        T::secret_paths()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        self.value.each_path(key, visit);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::decode::from_document;

    #[test]
    fn nulls_have_a_place_too() {
        let mut map = BTreeMap::<String, Placed<String>>::new();
        from_document("a: b\nc:  ~\n", &mut map).unwrap();
        let places: Vec<_> = map.values().map(|v| (v.value.as_str(), v.line, v.column)).collect();
        assert_eq!(places, [("b", 1, 4), ("", 2, 5)]);
    }
}
