//! Numbers and characters as Go reads them from text.

use firn_promql::go_quote;

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

/// An integer without a sign: decimal, or with the prefix `0x`, `0o`, `0b` or `0`.
fn parse_uint(text: &str) -> Option<u64> {
    let prefixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let prefixed = prefixes
        .iter()
        .find_map(|(prefix, radix)| Some((text.strip_prefix(prefix)?, *radix)))
        .filter(|_| text.len() > 1);
    let (digits, radix) = prefixed.unwrap_or((text, 10));
    if !has_separators_inside(digits, prefixed.is_some()) {
        return None;
    }
    let plain = digits.replace('_', "");
    // `from_str_radix` would accept a sign here.
    plain.chars().all(|c| c.is_digit(radix)).then_some(())?;
    u64::from_str_radix(&plain, radix).ok()
}

/// Whether each underscore is between digits, or between a prefix and a digit.
fn has_separators_inside(digits: &str, is_prefixed: bool) -> bool {
    let mut after_digit = is_prefixed;
    for byte in digits.bytes() {
        if byte == b'_' && !after_digit {
            return false;
        }
        after_digit = byte.is_ascii_hexdigit();
    }
    !digits.ends_with('_') && !digits.contains("_.") && !digits.contains("_p")
}

/// A float as Go's `ParseFloat` reads it.
///
/// # Errors
/// Go's message.
pub(super) fn parse_float(text: &str) -> Result<f64, String> {
    let fault =
        |why| Err(format!("strconv.ParseFloat: parsing {}: {why}", go_quote(text.as_bytes())));
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let lower = unsigned.to_ascii_lowercase();
    let special = match lower.as_str() {
        "inf" | "infinity" => Some(f64::INFINITY),
        "nan" if unsigned.len() == text.len() => Some(f64::NAN),
        _ => None,
    };
    if let Some(value) = special {
        return Ok(sign * value);
    }
    if !lower.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return fault("invalid syntax");
    }
    let magnitude = match lower.strip_prefix("0x") {
        Some(digits) if has_separators_inside(digits, true) => parse_hex_float(digits),
        Some(_) => None,
        // An `e` between digits is no separator.
        None if has_separators_inside(&lower, false)
            && !lower.contains("_e")
            && !lower.contains("e_") =>
        {
            lower.replace('_', "").parse::<f64>().ok()
        }
        None => None,
    };
    match magnitude {
        None => fault("invalid syntax"),
        Some(value) if value.is_infinite() => fault("value out of range"),
        Some(value) => Ok(sign * value),
    }
}

/// `1.8p-3`: hexadecimal digits and a decimal exponent of 2.
fn parse_hex_float(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once('p')?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut mantissa = 0u64;
    let mut scale = 0i64;
    let mut count = 0u32;
    for (digit, is_fraction) in
        whole.chars().map(|c| (c, false)).chain(fraction.chars().map(|c| (c, true)))
    {
        if digit == '_' {
            continue;
        }
        let value = u64::from(digit.to_digit(16)?);
        count = 1;
        if mantissa < 1 << 58 {
            mantissa = mantissa << 4 | value;
            scale = scale.saturating_sub(if is_fraction { 4 } else { 0 });
        } else {
            // Beyond the precision: a digit only decides the rounding.
            mantissa |= u64::from(value != 0);
            scale = scale.saturating_add(if is_fraction { 0 } else { 4 });
        }
    }
    let exponent = exponent.replace('_', "").parse::<i64>().ok()?.saturating_add(scale);
    if count == 0 {
        return None;
    }
    let mut value = mantissa as f64;
    let mut left = i32::try_from(exponent.clamp(-4_000, 4_000)).ok()?;
    while left != 0 && value != 0.0 && value.is_finite() {
        let step = left.clamp(-500, 500);
        value *= 2f64.powi(step);
        left = left.saturating_sub(step);
    }
    Some(value)
}

/// A character of a quoted text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Escaped {
    Char(char),
    /// Of an escape that names a byte.
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
    fn floats_are_read_as_in_go() {
        let f = |text: &str| parse_float(text).unwrap();
        assert_eq!(f(".12"), 0.12);
        assert_eq!(f("1_000.5"), 1000.5);
        assert_eq!(f("0x1.8p-1"), 0.75);
        assert_eq!(f("0x.8p1"), 1.0);
        assert_eq!(f("-iNf"), f64::NEG_INFINITY);
        assert!(f("nan").is_nan());
        for wrong in [
            "", "one", "+nan", "1e", "_1", "1_", "1__0", "1_.5", "0x1", "0xp1", " 1", "1e_5", "++1",
        ] {
            let error = parse_float(wrong).unwrap_err();
            assert!(error.ends_with("invalid syntax"), "{wrong}: {error}");
        }
        assert!(parse_float("1e400").unwrap_err().ends_with("value out of range"));
    }

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
