//! Strings and numbers in Go's notation, which Prometheus' messages use.

use std::fmt::Write as _;

/// `bytes` in double quotes with Go's escapes; invalid UTF-8 as `\xNN`.
pub fn go_quote(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().saturating_add(2));
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                c => push_escaped(&mut out, c),
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").unwrap_or(());
        }
    }
    out.push('"');
    out
}

/// `c` in single quotes with Go's escapes.
pub fn go_quote_char(c: char) -> String {
    let mut out = String::from("'");
    match c {
        '\'' => out.push_str("\\'"),
        c => push_escaped(&mut out, c),
    }
    out.push('\'');
    out
}

/// `c` with Go's escapes except for quotes.
fn push_escaped(out: &mut String, c: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)).unwrap_or(()),
        c if is_printable(c) => out.push(c),
        c if u32::from(c) < 0x10000 => write!(out, "\\u{:04x}", u32::from(c)).unwrap_or(()),
        c => write!(out, "\\U{:08x}", u32::from(c)).unwrap_or(()),
    }
}

/// Whether Go prints `c` as it is: no control or format character, no blank but the space, nothing
/// that Unicode has not assigned.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // The standard library escapes the same characters, and marks at the start of a text.
    let mut buf = [b'a'; 5];
    let len = c.encode_utf8(&mut buf[1..]).len();
    let text = buf.get(..len.saturating_add(1)).and_then(|text| std::str::from_utf8(text).ok());
    text.is_some_and(|text| text.escape_debug().nth(2).is_none())
}

/// A number as Go's `ParseFloat` reads it: decimal, or hexadecimal with a binary exponent, of the
/// size of a double, with underscores between digits, NaN without a sign.
///
/// # Errors
/// Go's message.
pub fn parse_float(text: &str) -> Result<f64, String> {
    let error =
        |why| Err(format!("strconv.ParseFloat: parsing {}: {why}", go_quote(text.as_bytes())));
    let plain = text.replace('_', "").to_ascii_lowercase();
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    let value = match digits.strip_prefix("0x") {
        Some(hex) if plain.starts_with('-') => parse_hex(hex).map(|value| -value),
        Some(hex) => parse_hex(hex),
        None => plain.parse::<f64>().ok(),
    };
    let is_signed_nan = |value: &f64| value.is_nan() && text.starts_with(['+', '-']);
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit());
    match value.filter(|value| underscores_are_inside(text) && !is_signed_nan(value)) {
        Some(value) if value.is_infinite() && is_number => error("value out of range"),
        Some(value) => Ok(value),
        None => error("invalid syntax"),
    }
}

/// `1.8p-3`, hexadecimal digits with a binary exponent, rounded to the nearest double.
fn parse_hex(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let magnitude = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_empty = whole.is_empty() && fraction.is_empty() || magnitude.is_empty();
    if is_empty || !magnitude.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // No text of a label is long enough to make up for a larger one.
    const EXPONENT_MAX: i64 = 1 << 40;
    let magnitude = magnitude.parse().unwrap_or(EXPONENT_MAX).min(EXPONENT_MAX);
    let mut scale =
        if exponent.starts_with('-') { 0_i64.saturating_sub(magnitude) } else { magnitude };
    // 60 bits of the digits; the last one is set if a later one is.
    let mut bits = 0_u64;
    for (idx, digit) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = u64::from(digit.to_digit(16)?);
        let is_kept = bits >> 56 == 0;
        bits = if is_kept { bits << 4 | digit } else { bits | u64::from(digit != 0) };
        let is_fraction = idx >= whole.len();
        scale = scale.saturating_add(match (is_kept, is_fraction) {
            (true, true) => -4,
            (false, false) => 4,
            _ => 0,
        });
    }
    if bits == 0 {
        return Some(0.0);
    }
    let top = scale.saturating_add(i64::from(bits.ilog2()));
    // The exponent of the last bit that a double of this size has.
    let last = top.saturating_sub(52).max(-1_074);
    let dropped = u32::try_from(last.saturating_sub(scale)).ok().filter(|_| last > scale);
    if let Some(dropped) = dropped {
        let Some(half) = 1_u64.checked_shl(dropped.saturating_sub(1)) else { return Some(0.0) };
        let kept = bits.checked_shr(dropped).unwrap_or(0);
        let rest = bits & half.wrapping_shl(1).wrapping_sub(1);
        let is_up = rest > half || rest == half && kept & 1 == 1;
        bits = kept.saturating_add(u64::from(is_up));
        scale = last;
    }
    // Exact: the product is a double, and so is the number between the two factors.
    let scale = i32::try_from(scale.clamp(-1_200, 1_200)).ok()?;
    let first = scale.div_euclid(2);
    Some(bits as f64 * 2_f64.powi(first) * 2_f64.powi(scale.saturating_sub(first)))
}

/// Whether each underscore is between digits, or between a prefix such as `0x` and a digit.
fn underscores_are_inside(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let digits = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    let prefixed = ["0x", "0b", "0o"].iter().find_map(|prefix| digits.strip_prefix(prefix));
    let is_hex = digits.starts_with("0x");
    let mut after_digit = prefixed.is_some();
    let mut after_underscore = false;
    for byte in prefixed.unwrap_or(digits).bytes() {
        let is_digit = byte.is_ascii_digit() || is_hex && byte.is_ascii_hexdigit();
        let is_underscore = byte == b'_';
        if is_underscore && !after_digit || after_underscore && !is_digit {
            return false;
        }
        (after_digit, after_underscore) = (is_digit, is_underscore);
    }
    !after_underscore
}

/// The bytes of a string token that includes its quotes. `None` if an escape is invalid (the lexer
/// checks them).
pub(crate) fn unquote(token: &str) -> Option<Vec<u8>> {
    let quote = token.chars().next()?;
    let inner = token.strip_prefix(quote)?.strip_suffix(quote)?.as_bytes();
    if quote == '`' {
        return Some(inner.to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first()?;
        let simple = match escape {
            b'a' => Some(7),
            b'b' => Some(8),
            b'f' => Some(12),
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            b'v' => Some(11),
            b'\\' | b'\'' | b'"' => Some(escape),
            _ => None,
        };
        if let Some(byte) = simple {
            out.push(byte);
            rest = after;
            continue;
        }
        let (from, digits, base) = match escape {
            // The first digit is the escape itself.
            b'0'..=b'7' => (rest, 3, 8),
            b'x' => (after, 2, 16),
            b'u' => (after, 4, 16),
            b'U' => (after, 8, 16),
            _ => return None,
        };
        let (text, behind) = from.split_at_checked(digits)?;
        let value = u32::from_str_radix(std::str::from_utf8(text).ok()?, base).ok()?;
        rest = behind;
        if digits <= 3 {
            out.push(u8::try_from(value).ok()?);
        } else {
            let mut buf = [0; 4];
            out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut buf).as_bytes());
        }
    }
    Some(out)
}

/// A number as Go parses it: an integer with base prefix (leading 0 is octal) and underscores, else
/// a float. `Err` is the message of Go's parser.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    match parse_uint(text).and_then(|value| i64::try_from(value).ok()) {
        Some(integer) => Ok(integer as f64),
        None => parse_float(text),
    }
}

/// An integer without a sign as Go's `ParseUint` reads it: decimal, or with the prefix `0x`, `0o`,
/// `0b` or `0`, with underscores between digits. `None` for anything else.
pub fn parse_uint(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    let digits = digits.replace('_', "");
    // `from_str_radix` would accept a sign here.
    let is_integer = digits.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_integer && underscores_are_inside(text)).then_some(())?;
    u64::from_str_radix(&digits, base).ok()
}

/// Like Go's `%g`: shortest digits, exponent form below 1e-4 and from 1e6 on.
pub fn format_g(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value}")
}

/// Like Go's `FormatFloat(v, 'f', -1, 64)`: shortest digits, never an exponent.
pub fn format_f(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_bytes() {
        assert_eq!(unquote(r#""a\xff\u00e9\101\n""#).unwrap(), b"a\xff\xc3\xa9A\n");
        assert_eq!(unquote(r"`a\n`").unwrap(), br"a\n");
        assert_eq!(go_quote(b"a\xc5z\"\n"), r#""a\xc5z\"\n""#);
    }

    /// Found by comparing with Prometheus 3.15: only control characters were escaped, and quotes
    /// of the other kind were.
    #[test]
    fn characters_that_go_does_not_print_are_escaped() {
        let f = |text: &str| go_quote(text.as_bytes());
        assert_eq!(f("\u{a0}\u{feff}\u{ad}\u{2028}\0"), r#""\u00a0\ufeff\u00ad\u2028\x00""#);
        assert_eq!(
            f("\u{e000}\u{e0001}\u{378}\u{3000}\u{85}"),
            r#""\ue000\U000e0001\u0378\u3000\u0085""#
        );
        assert_eq!(f("😀日ü\u{301}' "), "\"😀日ü\u{301}' \"");
        let f = go_quote_char;
        assert_eq!((f('"'), f('\'')), ("'\"'".to_owned(), r"'\''".to_owned()));
        assert_eq!((f('\0'), f('\u{a0}')), (r"'\x00'".to_owned(), r"'\u00a0'".to_owned()));
        assert_eq!((f('\u{301}'), f('\\')), ("'\u{301}'".to_owned(), r"'\\'".to_owned()));
    }

    #[test]
    fn floats_are_those_of_go() {
        for (text, value) in [("1_0", 10.0), ("1_0.5e1_0", 10.5e10), (".5", 0.5), ("1.", 1.0)] {
            assert_eq!(parse_float(text), Ok(value), "{text}");
        }
        for (text, value) in [
            ("0x1p-2", 0.25),
            ("-0X1.8P1", -3.0),
            ("0x_f.8p0", 15.5),
            ("0x.8p+1", 1.0),
            ("0x0p9999999999999999999999", 0.0),
            ("0x1p-1074", f64::from_bits(1)),
            ("0x1p-1075", 0.0),
            ("0x1.8p-1075", f64::from_bits(1)),
            ("0x3p-1075", f64::from_bits(2)),
            ("0x1.fffffffffffff7p0", f64::from_bits(0x3fff_ffff_ffff_ffff)),
            ("0x1.fffffffffffff8p0", 2.0),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000000000001p0", 1.0 + f64::EPSILON),
            ("0x1.fffffffffffffp1023", f64::MAX),
            ("0x10000000000000000000000p-88", 1.0),
        ] {
            assert_eq!(parse_float(text), Ok(value), "{text}");
        }
        assert_eq!(parse_float("-Infinity"), Ok(f64::NEG_INFINITY));
        assert!(parse_float("nAn").is_ok_and(f64::is_nan));
        for text in [
            "0x1", "0x1.8", "0xp1", "0x.p1", "0x1p", "0x1p+", "0x1p1.0", "0x1g0p1", "+nan", "_1",
            "1_", "1_e999", "1__0", "1_.5", "", " 1", "in_f", "1e", "1e_5", "++1", "one",
        ] {
            let error = parse_float(text).unwrap_err();
            assert!(error.ends_with("invalid syntax"), "{text}: {error}");
        }
        for text in ["1e400", "-1e400", "0x1p1024"] {
            assert!(parse_float(text).unwrap_err().ends_with("value out of range"), "{text}");
        }
    }

    #[test]
    fn numbers_are_go_numbers() {
        let f = |text| parse_number(text).unwrap();
        assert_eq!(f("0x1F"), 31.0);
        assert_eq!(f("1_000"), 1000.0);
        assert_eq!(f("017"), 15.0);
        assert_eq!(f("08"), 8.0);
        assert_eq!(f(".5"), 0.5);
        assert_eq!(f("2."), 2.0);
        assert_eq!(f("inF"), f64::INFINITY);
        assert_eq!(f("0x_1F"), 31.0);
        for wrong in ["1_", "0x1_", "1__2", "1_e5", "1e", "1e5_", "0x"] {
            assert!(parse_number(wrong).unwrap_err().ends_with("invalid syntax"), "{wrong}");
        }
        assert!(parse_number("1e309").unwrap_err().contains("value out of range"));
        assert_eq!(format_g(1.1), "1.1");
        assert_eq!(format_g(1e-7), "1e-07");
        assert_eq!(format_f(1e22), "10000000000000000000000");
    }
}
