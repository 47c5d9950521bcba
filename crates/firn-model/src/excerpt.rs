//! A client's input in messages: its beginning, on one line.

use std::borrow::Cow;

/// The bytes of input that a message repeats.
const EXCERPT_BYTES_MAX: usize = 512;

/// `text`, or its beginning and its length if it is long. Every message that repeats a client's
/// input uses this, so that no response and no log line grows with the input.
///
/// ```
/// assert_eq!(firn_model::excerpt("up"), "up");
/// let long = firn_model::excerpt(&"9".repeat(20_000_000)).into_owned();
/// assert!(long.len() < 600 && long.ends_with("99... (20000000 bytes)"), "{long}");
/// ```
pub fn excerpt(text: &str) -> Cow<'_, str> {
    excerpt_within(text, EXCERPT_BYTES_MAX)
}

/// As [`excerpt`], with about `bytes_max` bytes: for messages that contain excerpts.
pub fn excerpt_within(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let head = text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default();
    Cow::Owned(format!("{head}... ({} bytes)", text.len()))
}

/// Whether a character ends a line, controls a terminal, or reorders the text beside it: control
/// characters, separators of lines and paragraphs, and the directions of bidirectional text.
pub fn is_control(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with an escape in place of every character of [`is_control`]. Everything that is logged
/// or answered as a line passes through this: a client's input cannot forge another line.
///
/// ```
/// assert_eq!(firn_model::one_line("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
/// ```
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |character: char| match is_control(character) {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_input_is_cut_at_a_character() {
        let text = "é".repeat(EXCERPT_BYTES_MAX);
        let short = excerpt(&text);
        assert!(short.starts_with("éé") && short.ends_with("é... (1024 bytes)"), "{short}");
        assert!(matches!(excerpt("short"), Cow::Borrowed("short")));
    }

    #[test]
    fn a_line_contains_no_character_that_controls_its_reader() {
        let f = |text: &str, want: &str| {
            assert_eq!(one_line(text), want);
            assert!(!one_line(text).contains(is_control), "{text:?}");
        };
        f("up{job=\"é\"} \\n", "up{job=\"é\"} \\n");
        f("a\nb\r\tc\0", "a\\nb\\r\\tc\\u{0}");
        f("\u{1b}[31m\u{7f}\u{9b}2J\u{85}", "\\u{1b}[31m\\u{7f}\\u{9b}2J\\u{85}");
        f("\u{202e}a\u{2066}b\u{2069}\u{2028}", "\\u{202e}a\\u{2066}b\\u{2069}\\u{2028}");
    }
}
