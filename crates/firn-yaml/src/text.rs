//! Texts in messages and in documents.

use std::fmt::Write;

use firn_model::{excerpt_within, is_control, one_line};

/// Longer messages repeat a value of a document.
const MESSAGE_BYTES_MAX: usize = 4_096;
/// Behind a value, a message states its mistake.
const END_BYTES: usize = 512;

/// `text` on one line; of a long one the beginning, the length and the end.
pub(crate) fn message(text: &str) -> String {
    if text.len() <= MESSAGE_BYTES_MAX {
        return one_line(text).into_owned();
    }
    let head_bytes = MESSAGE_BYTES_MAX.saturating_sub(END_BYTES);
    let end_at = text.ceil_char_boundary(text.len().saturating_sub(END_BYTES));
    let (head, end) = (excerpt_within(text, head_bytes), text.get(end_at..).unwrap_or_default());
    one_line(&format!("{head}...{end}")).into_owned()
}

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
                '\u{7}' => write!(out, "\\a"),
                '\u{8}' => write!(out, "\\b"),
                '\u{b}' => write!(out, "\\v"),
                '\u{c}' => write!(out, "\\f"),
                '\0'..='\u{1f}' | '\u{7f}' => write!(out, "\\x{:02x}", u32::from(c)),
                c if is_control(c) || c == '\u{feff}' => write!(out, "\\u{:04x}", u32::from(c)),
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
    fn a_quoted_text_cannot_reorder_its_line() {
        assert_eq!(quoted("a\u{202e}b\u{2066}".as_bytes()), r#""a\u202eb\u2066""#);
    }

    /// Before, a message had the whole of a value of megabytes.
    #[test]
    fn a_long_message_keeps_its_ends() {
        assert_eq!(message("a\nb"), "a\\nb");
        let long = message(&format!("unknown action \"{}\" (line 7)", "é".repeat(1 << 20)));
        assert!(long.len() < 4_200, "{}", long.len());
        let has_ends = long.starts_with("unknown action \"é") && long.ends_with("é\" (line 7)");
        assert!(has_ends && long.contains("é... (2097178 bytes)...é"), "{long}");
    }

    #[test]
    fn texts_are_quoted_as_in_go() {
        assert_eq!(quoted(b"a\"b\\c\n\x01\xff"), r#""a\"b\\c\n\x01\xff""#);
        assert_eq!(quoted("é\u{85}".as_bytes()), "\"é\\u0085\"");
        assert_eq!(quoted(b"\x07\x08\x0b\x0c\x0e"), r#""\a\b\v\f\x0e""#);
    }
}
