//! JSON of other programs: read as Go reads it, with a bound on its memory.

use std::fmt;

use firn_model::excerpt;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor,
};
use serde_json::Result;

/// Reads a whole JSON text. Unlike with a plain `serde_json::from_slice`, a list is no struct: `[]`
/// would be one whose fields all have defaults, and `["a"]` one with a first field.
///
/// # Errors
/// As `serde_json::from_slice`, and for a list in place of a struct.
pub fn from_json<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(Strict(&mut deserializer))?;
    deserializer.end()?;
    Ok(value)
}

/// The error of an answer. Its text may repeat a value of any length.
pub(crate) fn json_error(error: serde_json::Error) -> firn_model::Error {
    firn_model::Error::invalid(format!("json: {}", excerpt(&without_value(&error.to_string()))))
}

/// The text of an error of `serde_json` without the text of a wrong type, which may be a secret: a
/// file of targets may be a link to another file.
fn without_value(text: &str) -> String {
    let value = text.split_once(": string \"").zip(text.rsplit_once("\", expected"));
    match value {
        Some(((before, _), (_, after))) => format!("{before}: string, expected{after}"),
        None => text.to_owned(),
    }
}

/// Counts of values in a JSON text, which bound the memory of its objects. Each is at least the
/// true one, whatever the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JsonCounts {
    /// Texts, keys among them.
    pub texts: usize,
    /// Values that may be an object: objects, and lists and nulls that are items of a list.
    pub objects: usize,
    /// Bytes of the longest text without quotes.
    pub longest_text: usize,
}

/// The error of a text of the wrong type repeats it, with escapes, in a string that grows.
const ERROR_BYTES_PER_BYTE: usize = 16;

impl JsonCounts {
    /// Counts in one pass, which takes the bytes in a text for values too.
    pub fn of(text: &[u8]) -> JsonCounts {
        let (mut quotes, mut objects) = (0_usize, 0_usize);
        let (mut unquoted, mut longest_text) = (0_usize, 0);
        // The last byte that is no space.
        let mut last = b' ';
        for &byte in text {
            unquoted = if byte == b'"' { 0 } else { unquoted.saturating_add(1) };
            longest_text = unquoted.max(longest_text);
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => continue,
                b'"' => quotes = quotes.saturating_add(1),
                b'{' => objects = objects.saturating_add(1),
                b'[' | b'n' if matches!(last, b'[' | b',') => objects = objects.saturating_add(1),
                _ => {}
            }
            last = byte;
        }
        JsonCounts { texts: quotes.div_ceil(2), objects, longest_text }
    }

    /// The memory of the objects or of an error, at most, with that of the text itself.
    pub fn bytes(self, text_bytes: usize, object_bytes: usize, text: &[u8]) -> usize {
        let texts = self.texts.saturating_mul(text_bytes);
        let objects = self.objects.saturating_mul(object_bytes);
        texts.saturating_add(objects).saturating_add(text.len()).saturating_add(self.error_bytes())
    }

    /// The memory of an error, at most.
    pub fn error_bytes(self) -> usize {
        self.longest_text.saturating_mul(ERROR_BYTES_PER_BYTE)
    }
}

/// Refuses lists in place of structs, at any depth.
struct Strict<T>(T);

/// Methods that pass on their arguments.
macro_rules! pass_on {
    ($($method:ident($($argument:ident: $kind:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(
            self,
            $($argument: $kind,)*
            visitor: V,
        ) -> std::result::Result<V::Value, D::Error> {
            self.0.$method($($argument,)* Strict(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, D::Error> {
        self.0.deserialize_map(Strict(visitor))
    }

    pass_on! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }
}

/// Visits of values without parts.
macro_rules! visit {
    ($($method:ident($kind:ty);)*) => {$(
        fn $method<E: serde::de::Error>(self, value: $kind) -> std::result::Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_i128(i128);
        visit_u64(u64);
        visit_u128(u128);
        visit_f64(f64);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: serde::de::Error>(self) -> std::result::Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> std::result::Result<V::Value, D::Error> {
        self.0.visit_some(Strict(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        value: D,
    ) -> std::result::Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> std::result::Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> std::result::Result<V::Value, A::Error> {
        self.0.visit_map(Strict(entries))
    }

    /// The content of a variant is not checked: no answer has an enum.
    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> std::result::Result<V::Value, A::Error> {
        self.0.visit_enum(data)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> std::result::Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<T::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::value::RawValue;

    use super::*;

    /// Before, a message had the whole text, such as that of a file behind a link.
    #[test]
    fn no_error_repeats_a_text() {
        for text in [r#""sek\"ret""#, r#"["sekret"]"#, r#"[[1], "sekret"]"#] {
            let error = from_json::<Vec<Vec<u8>>>(text.as_bytes()).unwrap_err();
            let shown = json_error(error).to_string();
            assert!(shown.contains("string, expected") && !shown.contains("sek"), "{shown}");
        }
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct NestedObject {
        name: String,
        parts: Vec<NestedObject>,
        only: Option<Box<NestedObject>>,
        named: BTreeMap<String, NestedObject>,
        pair: Option<(u8, bool)>,
    }

    #[test]
    fn lists_are_no_structs() {
        let read = |text: &str| from_json::<NestedObject>(text.as_bytes());
        let text = r#"{"name": "a", "parts": [{"pair": [1, true]}], "only": {}, "named":
                      {"x": {"name": "b"}}, "other": [[], {"a": [null]}]}"#;
        let part = read(text).unwrap();
        assert_eq!(part, serde_json::from_str(text).unwrap());
        assert_eq!((part.parts[0].pair, &*part.named["x"].name), (Some((1, true)), "b"));
        for list in ["[]", "[\"a\"]"] {
            for text in [
                list.to_owned(),
                format!("{{\"parts\": [{list}]}}"),
                format!("{{\"only\": {list}}}"),
                format!("{{\"named\": {{\"x\": {list}}}}}"),
            ] {
                let error = read(&text).unwrap_err().to_string();
                assert!(error.starts_with("invalid type: sequence, expected struct"), "{error}");
            }
        }
        assert!(read("{} x").unwrap_err().to_string().contains("trailing characters"));
        let raw: Vec<&RawValue> = from_json(b"[ [], {} ]").unwrap();
        assert_eq!((raw[0].get(), raw[1].get()), ("[]", "{}"));
    }

    #[test]
    fn counts_are_at_least_the_true_ones() {
        for (text, texts, objects) in [
            ("", 0, 0),
            (r#"{"a": ["b", "c"], "d": [], "e": null}"#, 5, 1),
            ("[[], [\n], null,null, {}, 0]", 0, 5),
            ("[[[]]]", 0, 2),
        ] {
            let counts = JsonCounts::of(text.as_bytes());
            assert_eq!((counts.texts, counts.objects), (texts, objects), "{text}");
        }
    }
}
