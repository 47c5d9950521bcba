//! Pieces of the language that `firn-promqltest` shares: its scripts contain the same durations,
//! strings and numbers. Compiled with the feature `test-util` only.

use crate::syntax;

/// Milliseconds of a duration such as `1h30m`.
///
/// # Errors
/// Prometheus' message for a text that is not a duration or is too long.
pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    syntax::parse_duration_ms(text)
}

/// A number in Go's spelling.
///
/// # Errors
/// The message of Go's parser.
pub fn parse_number(text: &str) -> Result<f64, String> {
    syntax::parse_number(text)
}

/// `bytes` as a string literal with Go's escapes.
pub fn go_quote(bytes: &[u8]) -> String {
    syntax::go_quote(bytes)
}

/// The bytes of a string literal, quotes included; `None` if an escape is invalid.
pub fn unquote(literal: &str) -> Option<Vec<u8>> {
    syntax::unquote(literal)
}
