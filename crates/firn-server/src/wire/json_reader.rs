//! Reads JSON of a known shape in one pass: it builds no tree, and an error names the byte and the
//! path.
//!
//! The caller requests the value that must follow. Unexpected fields are errors: silently skipping
//! a misspelt field would lose data.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::borrow::Cow;
use std::fmt::Write;

use firn_model::{Error, Reservation, Result, excerpt};

/// A walk over one JSON text.
#[derive(Debug)]
pub(crate) struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    /// Memory of all strings with escapes so far, which are copies.
    held: Reservation,
    copied_bytes: u64,
}

/// An error and its path, innermost step first.
#[derive(Debug)]
pub(crate) struct JsonFault {
    at: usize,
    what: Error,
    way: Vec<PathStep>,
}

#[derive(Debug)]
enum PathStep {
    Field(String),
    Item(usize),
}

/// The result of one step of the walk.
pub(crate) type Read<T> = std::result::Result<T, JsonFault>;

/// Reads all of `bytes`; `read` consumes the one value in it. `held` is empty; copies of strings
/// are reserved in it.
///
/// # Errors
/// `Invalid` with byte and path, or the error of `read` with both prepended; `Busy` without memory.
pub(crate) fn read_json<T>(
    bytes: &[u8],
    held: Reservation,
    read: impl FnOnce(&mut JsonReader<'_>) -> Read<T>,
) -> Result<T> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Error::invalid(format!("JSON, byte {}: the body is not UTF-8", e.valid_up_to()))
    })?;
    let mut reader = JsonReader { text, at: 0, held, copied_bytes: 0 };
    let whole = |reader: &mut JsonReader<'_>| {
        let value = read(reader)?;
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.fault("unexpected bytes after the end of the body")),
        }
    };
    whole(&mut reader).map_err(JsonFault::into_error)
}

impl<'a> JsonReader<'a> {
    /// The position of the walk, in bytes.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// An object: `field` reads the value of each key.
    pub(crate) fn object(
        &mut self,
        mut field: impl FnMut(&mut JsonReader<'a>, &str) -> Read<()>,
    ) -> Read<()> {
        self.open(b'{', "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            if !self.take(b':') {
                return Err(self.fault("a colon must follow a field's name"));
            }
            field(self, &key)
                .map_err(|fault| fault.inside(PathStep::Field(head(&key).to_owned())))?;
            if self.take(b'}') {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.fault("a comma or the end of the object must follow"));
            }
        }
    }

    /// An array: `item` reads each item and receives its index.
    pub(crate) fn array(
        &mut self,
        mut item: impl FnMut(&mut JsonReader<'a>, usize) -> Read<()>,
    ) -> Read<()> {
        self.open(b'[', "an array")?;
        if self.take(b']') {
            return Ok(());
        }
        for idx in 0.. {
            item(self, idx).map_err(|fault| fault.inside(PathStep::Item(idx)))?;
            if self.take(b']') {
                break;
            }
            if !self.take(b',') {
                return Err(self.fault("a comma or the end of the array must follow"));
            }
        }
        Ok(())
    }

    /// A string; borrowed unless it has escapes.
    pub(crate) fn string(&mut self) -> Read<Cow<'a, str>> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a string"));
        }
        self.step(1);
        let start = self.at;
        let plain = self.run();
        if self.byte() == Some(b'"') {
            self.step(1);
            return Ok(Cow::Borrowed(plain));
        }
        let mut text = self.copy(plain, start)?;
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.step(1);
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err(self.fault("a control character must be escaped")),
                None => return Err(self.fault_at(start, "the string does not end")),
            }
            text.push_str(self.run());
        }
    }

    /// A copy of `plain`, which starts at `start`, with room for the rest of its string. An escape
    /// sequence is never shorter than its character.
    fn copy(&mut self, plain: &str, start: usize) -> Read<String> {
        let mut is_escaped = false;
        let rest = self.rest().bytes().take_while(|&byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            !is_end
        });
        let len = plain.len().saturating_add(rest.count());
        self.copied_bytes = self.copied_bytes.saturating_add(len as u64);
        self.held.cover(self.copied_bytes).map_err(|e| self.refuse_at(start, e))?;
        let mut text = String::with_capacity(len);
        text.push_str(plain);
        Ok(text)
    }

    /// The text of a number.
    pub(crate) fn number(&mut self) -> Read<&'a str> {
        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            return Err(self.unexpected("a number"));
        }
        let rest = self.rest();
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let len = rest.bytes().take_while(|byte| is_part(byte)).count();
        let number = rest.get(..len).unwrap_or_default();
        if !is_number(number) {
            let number = excerpt(number);
            return Err(self.fault(format!("expected a JSON number, got {number:?}")));
        }
        self.step(len);
        Ok(number)
    }

    /// An integer of type `T`.
    pub(crate) fn integer<T: std::str::FromStr>(&mut self, wanted: &str) -> Read<T> {
        let start = self.skip_blanks();
        let number = self.number()?;
        number
            .parse()
            .map_err(|_| self.fault_at(start, format!("{} is not {wanted}", excerpt(number))))
    }

    /// Skips `null` if it is next.
    pub(crate) fn null(&mut self) -> bool {
        self.skip_blanks();
        let is_null = self.rest().starts_with("null");
        self.step(if is_null { 4 } else { 0 });
        is_null
    }

    /// The first byte of the next value, `None` at the end.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.skip_blanks();
        self.byte()
    }

    /// A mistake at the byte where the walk is.
    pub(crate) fn fault(&self, what: impl Into<String>) -> JsonFault {
        self.fault_at(self.at, what)
    }

    /// A mistake at a byte that the walk has passed.
    pub(crate) fn fault_at(&self, at: usize, what: impl Into<String>) -> JsonFault {
        JsonFault { at, what: Error::invalid(what), way: Vec::new() }
    }

    /// The fault for a value at `at` that breaks a rule.
    pub(crate) fn refuse_at(&self, at: usize, what: Error) -> JsonFault {
        JsonFault { at, what, way: Vec::new() }
    }

    /// The error for another value than `wanted`.
    pub(crate) fn unexpected(&mut self, wanted: &str) -> JsonFault {
        let found = match self.peek() {
            None => "the end",
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b'-' | b'0'..=b'9') => "a number",
            Some(b't' | b'f') => "true or false",
            Some(b'n') => "null",
            Some(_) => "something else",
        };
        self.fault(format!("expected {wanted}, got {found}"))
    }

    fn open(&mut self, byte: u8, wanted: &str) -> Read<()> {
        if self.take(byte) { Ok(()) } else { Err(self.unexpected(wanted)) }
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.step(usize::from(is_there));
        is_there
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Steps over bytes of the text.
    fn step(&mut self, len: usize) {
        self.at = self.at.saturating_add(len);
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The byte behind blanks.
    fn skip_blanks(&mut self) -> usize {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.step(1);
        }
        self.at
    }

    /// Skips unescaped characters of a string.
    fn run(&mut self) -> &'a str {
        let rest = self.rest();
        let len = rest.bytes().take_while(|&b| b >= 0x20 && b != b'"' && b != b'\\').count();
        self.step(len);
        rest.get(..len).unwrap_or_default()
    }

    fn escape(&mut self) -> Read<char> {
        let start = self.at;
        let bad = |reader: &Self| reader.fault_at(start, "unknown escape sequence");
        self.step(1);
        let kind = self.byte().ok_or_else(|| bad(self))?;
        self.step(1);
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.code_unit().ok_or_else(|| bad(self))?;
                let is_high = (0xd800..0xdc00).contains(&unit);
                let is_pair = is_high && self.rest().starts_with("\\u");
                let code = if is_pair {
                    self.step(2);
                    let low = self.code_unit().filter(|low| (0xdc00..0xe000).contains(low));
                    let low = low.ok_or_else(|| bad(self))?;
                    // Ten bits of each half; pairs encode the characters from U+10000 on.
                    ((unit & 0x3ff) << 10 | low & 0x3ff).saturating_add(0x1_0000)
                } else {
                    unit
                };
                // Half of a pair is no character.
                char::from_u32(code).ok_or_else(|| bad(self))?
            }
            _ => return Err(bad(self)),
        })
    }

    fn code_unit(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4)?;
        // `from_str_radix` would take a sign too.
        let digits = Some(digits).filter(|d| d.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.step(4);
        u32::from_str_radix(digits, 16).ok()
    }
}

impl JsonFault {
    fn inside(mut self, step: PathStep) -> JsonFault {
        self.way.push(step);
        self
    }

    fn into_error(self) -> Error {
        let mut context = format!("JSON, byte {}", self.at);
        for (idx, step) in self.way.iter().rev().enumerate() {
            // Writing into a string cannot fail.
            let _ = match step {
                PathStep::Field(name) if idx == 0 => write!(context, ", {name}"),
                PathStep::Field(name) => write!(context, ".{name}"),
                PathStep::Item(item) => write!(context, "[{item}]"),
            };
        }
        self.what.context(context)
    }
}

/// Truncates a name from a request for messages.
fn head(name: &str) -> &str {
    name.get(..name.floor_char_boundary(64)).unwrap_or(name)
}

/// Whether `text` is a number in JSON's syntax: no leading zero, no sign except minus, digits on
/// both sides of a point.
fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    are_digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(are_digits)
        && exponent.is_none_or(|text| are_digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use firn_model::{Budget, Pool};

    fn unheld() -> Reservation {
        Budget::unlimited().empty(Pool::Requests)
    }

    /// Any value as a tree: everything that the reader supports.
    fn value(reader: &mut JsonReader<'_>) -> Read<Value> {
        match reader.peek() {
            Some(b'{') => {
                let mut fields = serde_json::Map::new();
                reader.object(|reader, key| {
                    fields.insert(key.to_owned(), value(reader)?);
                    Ok(())
                })?;
                Ok(Value::Object(fields))
            }
            Some(b'[') => {
                let mut items = Vec::new();
                reader.array(|reader, _| {
                    items.push(value(reader)?);
                    Ok(())
                })?;
                Ok(Value::Array(items))
            }
            Some(b'"') => Ok(Value::String(reader.string()?.into_owned())),
            _ if reader.null() => Ok(Value::Null),
            _ => {
                let number: f64 = reader.number()?.parse().expect("a number");
                let number = serde_json::Number::from_f64(number);
                number.map(Value::Number).ok_or_else(|| reader.fault("out of range"))
            }
        }
    }

    fn same(left: &Value, right: &Value) -> bool {
        match (left, right) {
            (Value::Array(l), Value::Array(r)) => {
                l.len() == r.len() && l.iter().zip(r).all(|(l, r)| same(l, r))
            }
            (Value::Object(l), Value::Object(r)) => {
                l.len() == r.len() && l.iter().zip(r).all(|(l, r)| l.0 == r.0 && same(l.1, r.1))
            }
            (Value::Number(l), Value::Number(r)) => l.as_f64() == r.as_f64(),
            _ => left == right,
        }
    }

    #[test]
    fn mistakes_name_byte_and_way() {
        let f = |text: &str| {
            let read = |reader: &mut JsonReader<'_>| {
                reader.object(|reader, key| match key {
                    "rows" => reader.array(|reader, _| {
                        reader.array(|reader, _| reader.integer::<i64>("an integer").map(drop))
                    }),
                    _ => Err(reader.fault("no such field")),
                })
            };
            read_json(text.as_bytes(), unheld(), read).map_err(|e| e.to_string())
        };
        assert_eq!(f(r#" { "rows" : [ [1, -2] , [] ] } "#), Ok(()));
        let cases = [
            ("", "JSON, byte 0: expected an object, got the end"),
            ("[]", "JSON, byte 0: expected an object, got an array"),
            (
                r#"{"rows":[[1],[2,"3"]]}"#,
                "JSON, byte 16, rows[1][1]: expected a number, got a string",
            ),
            (r#"{"rows":[[1.5]]}"#, "JSON, byte 10, rows[0][0]: 1.5 is not an integer"),
            (r#"{"rows":[[01]]}"#, "JSON, byte 10, rows[0][0]: expected a JSON number, got \"01\""),
            (
                r#"{"rows":[[1,]]}"#,
                "JSON, byte 12, rows[0][1]: expected a number, got something else",
            ),
            (
                r#"{"rows":[[1]}"#,
                "JSON, byte 12, rows: a comma or the end of the array must follow",
            ),
            (r#"{"row":[]}"#, "JSON, byte 7, row: no such field"),
            (r#"{"rows":[]}}"#, "JSON, byte 11: unexpected bytes after the end of the body"),
            (r#"{"rows" []}"#, "JSON, byte 8: a colon must follow a field's name"),
            ("{\"ro", "JSON, byte 2: the string does not end"),
        ];
        for (text, wanted) in cases {
            assert_eq!(f(text).unwrap_err(), wanted, "{text}");
        }
        let error =
            read_json(b"\"\xff\"", unheld(), |reader| reader.string().map(drop)).unwrap_err();
        assert_eq!(error.to_string(), "JSON, byte 1: the body is not UTF-8");
    }

    #[test]
    fn copies_of_strings_are_reserved_before_they_are_made() {
        let budget = Budget::new(100_000);
        let read = |text: &str| {
            read_json(text.as_bytes(), budget.empty(Pool::Requests), |reader| {
                let at = budget.usage().used_bytes;
                let read = reader.string()?;
                let held = budget.usage().used_bytes - at;
                Ok(matches!(read, Cow::Owned(copy) if held < copy.capacity() as u64))
            })
        };
        let long = "n".repeat(200_000);
        assert!(!read(&format!("\"{long}\"")).unwrap(), "borrowed");
        assert!(!read(&format!("\"\\n\\\\{}\"", "\\u00e9".repeat(100))).unwrap());
        let error = read(&format!("\"\\n{long}\"")).unwrap_err();
        assert!(error.is_retriable(), "{error}");
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[test]
    fn strings_and_numbers_are_read_as_serde_reads_them() {
        let texts = [
            r#""plain""#,
            r#""a\"b\\c\/d\b\f\n\r\té\ud83d\ude00😀""#,
            r#""\ud83d""#,
            r#""\ude00""#,
            r#""\ud83dA""#,
            r#""\u+041""#,
            r#""\x""#,
            "\"a\nb\"",
            r#""\"#,
            "0",
            "-0",
            "-",
            "1.",
            ".5",
            "1e5",
            "1E+5",
            "1e",
            "+1",
            "00",
            "1.5e-3",
            "12345678901234567890",
            "nul",
            "null",
            "[1,2,]",
            "[]",
            "{}",
            r#"{"a":1,"b":{"c":[null,"x"]}}"#,
            "[1 2]",
            "{\"a\"}",
        ];
        for text in texts {
            let ours = read_json(text.as_bytes(), unheld(), value).ok();
            let theirs = serde_json::from_str::<Value>(text).ok();
            match (&ours, &theirs) {
                (Some(ours), Some(theirs)) => {
                    assert!(same(ours, theirs), "{text}: {ours} {theirs}")
                }
                _ => assert_eq!(ours, theirs, "{text}"),
            }
        }
    }

    proptest! {
        #[test]
        fn malformed_json_is_refused_and_never_panics(
            picks in proptest::collection::vec((0usize..20, any::<u8>()), 0..40)
        ) {
            const PIECES: [&str; 19] = [
                "{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\u00e9", "\\", "null", "1", "-", "0", ".5",
                "e3", " ", "\\ud83d", "é",
            ];
            let mut bytes = Vec::new();
            for (piece, byte) in picks {
                match PIECES.get(piece) {
                    Some(piece) => bytes.extend_from_slice(piece.as_bytes()),
                    None => bytes.push(byte),
                }
            }
            let ours = read_json(&bytes, unheld(), value).ok();
            let theirs = serde_json::from_slice::<Value>(&bytes).ok();
            // Literals that this reader does not support.
            let theirs = theirs.filter(|value| !value.is_boolean());
            prop_assert_eq!(ours.is_some(), theirs.is_some());
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                prop_assert!(same(&ours, &theirs));
            }
        }
    }
}
