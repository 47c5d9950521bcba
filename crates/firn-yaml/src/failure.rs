//! The mistake that ends the reading of a document.

use std::fmt;

use firn_model::{Error, ErrorKind};

use crate::text::message;

/// A decoding that ended, with the line where it is known.
#[derive(Debug)]
pub struct Failure {
    text: String,
    line: Option<usize>,
    kind: ErrorKind,
}

impl Failure {
    /// A mistake in the document, without a line. The text may repeat parts of the document.
    pub fn new(text: impl AsRef<str>) -> Failure {
        Failure::of_lines(message(text.as_ref()))
    }

    /// Mistakes, each on a line of its own.
    pub(crate) fn of_lines(text: String) -> Failure {
        Failure { text, line: None, kind: ErrorKind::Invalid }
    }

    /// A decoding that was refused for lack of memory.
    pub(crate) fn of_memory(error: &Error) -> Failure {
        Failure { text: format!("yaml: {error}"), line: None, kind: error.kind().clone() }
    }

    /// The same failure at `line`, unless it has a line.
    pub fn at(mut self, line: usize) -> Failure {
        self.line = self.line.or(Some(line));
        self
    }

    /// The error that a caller returns: `Invalid`, or that of the budget.
    pub fn into_error(self) -> Error {
        Error::new(self.kind.clone(), self.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.line {
            Some(line) => write!(f, " (line {line})"),
            None => Ok(()),
        }
    }
}
