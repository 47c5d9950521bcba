//! Errors in a query, with Prometheus' messages and positions.

use std::fmt;

use firn_model::excerpt_within;

use crate::syntax::Span;

// Messages repeat parts of the query, which may be a megabyte.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The reason why a text is not a query. Displayed as in Prometheus: `1:3: parse error: unexpected
/// end of input`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The message without position.
    pub message: String,
    /// The position of the error in bytes.
    pub span: Span,
    /// Line, from 1; 0 for an empty text.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

impl ParseError {
    /// An error at `span` of `text`.
    pub(crate) fn at(text: &str, span: Span, message: impl Into<String>) -> ParseError {
        let (line, column) = if text.is_empty() { (0, 0) } else { line_column(text, span.start) };
        let message = message.into();
        let message = excerpt_within(&message, MESSAGE_BYTES_MAX).into_owned();
        ParseError { message, span, line, column }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "unknown position: parse error: {}", self.message),
            line => write!(f, "{line}:{}: parse error: {}", self.column, self.message),
        }
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for firn_model::Error {
    fn from(error: ParseError) -> firn_model::Error {
        firn_model::Error::invalid(error.to_string())
    }
}

/// Line and column of byte `at`, both from 1; columns count bytes.
pub(crate) fn line_column(text: &str, at: u32) -> (u32, u32) {
    let before = text.as_bytes().get(..at as usize).unwrap_or(text.as_bytes());
    let line = before.split(|&byte| byte == b'\n').count();
    let last_line = before.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
    (bounded(line), bounded(last_line.len().saturating_add(1)))
}

fn bounded(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
