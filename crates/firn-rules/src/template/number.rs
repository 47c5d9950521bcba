//! Numbers and characters as Go reads them from text.

use firn_promql::{go_quote, parse_float, parse_uint};

/// A number of a template. Its syntax may fit several types.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) int: Option<i64>,
    pub(super) uint: Option<u64>,
    pub(super) float: Option<f64>,
    /// As in the template.
    pub(super) text: String,
}

impl Number {
    /// Reads a number.
    ///
    /// # Errors
    /// Go's message.
    pub(super) fn parse(text: &str) -> Result<Number, String> {
        let quoted = || go_quote(text.as_bytes());
        let mut int = parse_int(text);
        let mut uint = match int {
            // A zero with a sign.
            Some(0) => Some(0),
            _ => parse_uint(text),
        };
        let mut float = int.map(|int| int as f64).or(uint.map(|uint| uint as f64));
        if float.is_none()
            && let Ok(value) = parse_float(text)
        {
            if !text.contains(['.', 'e', 'E', 'p', 'P']) {
                return Err(format!("integer overflow: {}", quoted()));
            }
            float = Some(value);
            int = exact_i64(value);
            uint = exact_u64(value);
        }
        match float {
            Some(_) => Ok(Number { int, uint, float, text: text.to_owned() }),
            None => Err(format!("illegal number syntax: {}", quoted())),
        }
    }

    /// Reads a character in single quotes, which is a number.
    ///
    /// # Errors
    /// Go's message.
    pub(super) fn parse_char(text: &str) -> Result<Number, String> {
        let inside = text.get(1..).unwrap_or_default();
        let (escaped, tail) = escaped_char(inside, '\'').ok_or("invalid syntax")?;
        if tail != "'" {
            return Err(format!("malformed character constant: {text}"));
        }
        let code = match escaped {
            Escaped::Char(c) => u32::from(c),
            Escaped::Byte(byte) => u32::from(byte),
        };
        let text = text.to_owned();
        Ok(Number {
            int: Some(code.into()),
            uint: Some(code.into()),
            float: Some(code.into()),
            text,
        })
    }

    /// Whether the syntax alone makes it a float.
    pub(super) fn is_typed_float(&self) -> bool {
        let is_hex = self.text.starts_with("0x") || self.text.starts_with("0X");
        let is_hex_int = is_hex && !self.text.contains(['p', 'P']);
        !is_hex_int && !self.text.starts_with('\'') && self.text.contains(['.', 'e', 'E', 'p', 'P'])
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the result is compared")]
fn exact_i64(value: f64) -> Option<i64> {
    let int = value as i64;
    (int as f64 == value && int != i64::MAX).then_some(int)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is compared"
)]
fn exact_u64(value: f64) -> Option<u64> {
    let uint = value as u64;
    (uint as f64 == value && uint != u64::MAX).then_some(uint)
}

/// An integer with an optional sign and prefix.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let magnitude = parse_uint(unsigned)?;
    match text.starts_with('-') {
        true => 0i64.checked_sub_unsigned(magnitude),
        false => i64::try_from(magnitude).ok(),
    }
}

/// A character of a quoted text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Escaped {
    Char(char),
    /// The byte that an escape names.
    Byte(u8),
}

impl Escaped {
    pub(super) fn push_to(self, bytes: &mut Vec<u8>) {
        match self {
            Escaped::Char(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Escaped::Byte(byte) => bytes.push(byte),
        }
    }
}

/// The first character of a text in `quote`s, and the text behind it. `None` if it is invalid.
pub(super) fn escaped_char(text: &str, quote: char) -> Option<(Escaped, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == quote {
        return None;
    }
    if first != '\\' {
        return Some((Escaped::Char(first), chars.as_str()));
    }
    let after = chars.as_str();
    let kind = chars.next()?;
    let plain = |c| Some((Escaped::Char(c), chars.as_str()));
    match kind {
        'a' => plain('\x07'),
        'b' => plain('\x08'),
        'f' => plain('\x0c'),
        'n' => plain('\n'),
        'r' => plain('\r'),
        't' => plain('\t'),
        'v' => plain('\x0b'),
        '\\' => plain('\\'),
        '\'' | '"' if kind == quote => plain(kind),
        'x' | 'u' | 'U' => {
            let digit_count = match kind {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            let (digits, rest) = chars.as_str().split_at_checked(digit_count)?;
            let code = hex(digits, 16)?;
            match kind {
                'x' => Some((Escaped::Byte(u8::try_from(code).ok()?), rest)),
                _ => Some((Escaped::Char(char::from_u32(code)?), rest)),
            }
        }
        '0'..='7' => {
            let (digits, rest) = after.split_at_checked(3)?;
            Some((Escaped::Byte(u8::try_from(hex(digits, 8)?).ok()?), rest))
        }
        _ => None,
    }
}

fn hex(digits: &str, radix: u32) -> Option<u32> {
    digits.chars().all(|c| c.is_digit(radix)).then_some(())?;
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_the_types_of_their_syntax() {
        let f = |text: &str| {
            let number = Number::parse(text).unwrap();
            (number.int, number.uint, number.float)
        };
        assert_eq!(f("017"), (Some(15), Some(15), Some(15.0)));
        assert_eq!(f("-0x1F"), (Some(-31), None, Some(-31.0)));
        assert_eq!(f("1e3"), (Some(1000), Some(1000), Some(1000.0)));
        assert_eq!(f("1.5"), (None, None, Some(1.5)));
        assert_eq!(f("18446744073709551615").1, Some(u64::MAX));
        assert_eq!(Number::parse("08").unwrap_err(), "integer overflow: \"08\"");
        assert_eq!(Number::parse("0x").unwrap_err(), "illegal number syntax: \"0x\"");
        assert_eq!(Number::parse_char("'\\n'").unwrap().int, Some(10));
        assert_eq!(Number::parse_char("'ab'").unwrap_err(), "malformed character constant: 'ab'");
    }
}
