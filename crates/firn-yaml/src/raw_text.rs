//! Texts of which Prometheus checks the encoding later, or never.

use super::decode::{Decoder, Encoded, Field, text_of};
use super::failure::Failure;
use super::node::{Node, NodeValue};

/// A text, or the bytes of a `!!binary` that are no UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawText {
    text: String,
    /// `None` if they are those of the text.
    bytes: Option<Vec<u8>>,
}

impl RawText {
    /// The text, with U+FFFD in place of bytes that are none.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or(self.text.as_bytes())
    }

    /// Whether the bytes are UTF-8.
    pub fn is_utf8(&self) -> bool {
        self.bytes.is_none()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl From<&str> for RawText {
    fn from(text: &str) -> RawText {
        RawText { text: text.to_owned(), bytes: None }
    }
}

impl Field for RawText {
    fn type_name() -> String {
        String::type_name()
    }

    fn zero() -> RawText {
        RawText::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        if let NodeValue::Bytes(bytes) = &node.value {
            let text = String::from_utf8_lossy(bytes).into_owned();
            *self = RawText { text, bytes: Some(bytes.clone()) };
            return Ok(true);
        }
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        *self = RawText::from(text);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.text.clone())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::from_document;

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let mut list = Vec::<RawText>::new();
        from_document("[a, !!binary YQ==, !!binary Yf9i]", &mut list).unwrap();
        let read: Vec<_> = list.iter().map(|one| (one.as_str(), one.is_utf8())).collect();
        assert_eq!(read, [("a", true), ("a", true), ("a\u{fffd}b", false)]);
        assert_eq!(list[2].as_bytes(), b"a\xffb");
        assert_eq!(list[0], list[1]);
    }
}
