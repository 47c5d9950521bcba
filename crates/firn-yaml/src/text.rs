//! Texts in messages and in documents.

use std::fmt::Write;

/// `bytes` in double quotes with Go's escapes: bytes that are no UTF-8 as `\xff`.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let _ = match c {
                '"' | '\\' => write!(out, "\\{c}"),
                '\n' => write!(out, "\\n"),
                '\r' => write!(out, "\\r"),
                '\t' => write!(out, "\\t"),
                '\0'..='\u{1f}' | '\u{7f}' => write!(out, "\\x{:02x}", u32::from(c)),
                c if c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}') => {
                    write!(out, "\\u{:04x}", u32::from(c))
                }
                c => out.write_char(c),
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_in_go() {
        assert_eq!(quoted(b"a\"b\\c\n\x01\xff"), r#""a\"b\\c\n\x01\xff""#);
        assert_eq!(quoted("é\u{85}".as_bytes()), "\"é\\u0085\"");
    }
}
