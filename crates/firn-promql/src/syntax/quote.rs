//! Strings and numbers in Go's notation, which Prometheus' messages use.

use std::fmt::Write as _;

/// `bytes` in double quotes with Go's escapes; invalid UTF-8 as `\xNN`.
pub(crate) fn go_quote(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().saturating_add(2));
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)).unwrap_or(()),
                c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c)).unwrap_or(()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").unwrap_or(());
        }
    }
    out.push('"');
    out
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
    if let Some(integer) = parse_integer(text) {
        return Ok(integer as f64);
    }
    let plain = text.replace('_', "");
    let complain =
        |why| Err(format!("strconv.ParseFloat: parsing {}: {why}", go_quote(text.as_bytes())));
    match plain.parse::<f64>() {
        Ok(value) if value.is_infinite() && plain.bytes().any(|b| b.is_ascii_digit()) => {
            complain("value out of range")
        }
        Ok(value) => Ok(value),
        Err(_) => complain("invalid syntax"),
    }
}

fn parse_integer(text: &str) -> Option<i64> {
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
    digits.bytes().all(|b| b.is_ascii_alphanumeric()).then_some(())?;
    i64::from_str_radix(&digits, base).ok()
}

/// Like Go's `%g`: shortest digits, exponent form below 1e-4 and from 1e6 on.
pub(crate) fn format_g(value: f64) -> String {
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
pub(crate) fn format_f(value: f64) -> String {
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
        assert!(parse_number("1e309").unwrap_err().contains("value out of range"));
        assert_eq!(format_g(1.1), "1.1");
        assert_eq!(format_g(1e-7), "1e-07");
        assert_eq!(format_f(1e22), "10000000000000000000000");
    }
}
