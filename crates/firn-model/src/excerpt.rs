//! Excerpts of a client's input for error messages.

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
}
