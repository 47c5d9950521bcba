//! Templates of labels and annotations: Go's `text/template` with Prometheus' functions.
//!
//! [`Template::parse`] checks a text, [`Template::execute`] expands it. Results and errors are
//! those of Go, as far as its types occur in rules. Each execution has limits ([`STEPS_MAX`],
//! [`BYTES_MAX`], [`DEPTH_MAX`]), so that no template hangs or exhausts memory.
//!
//! Known differences: there are no complex numbers, texts are valid UTF-8, a list that is sorted
//! leaves the original unsorted, and pointers are equal if their values are.
//!
//! Reading order: `lex`, `number`, `node`, `parse`, `value`, `signature`, `exec`, `function`,
//! `builtin`, `method`, `print`, `float`, `time`, `text`.

#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod builtin;
mod exec;
mod float;
mod function;
mod lex;
mod method;
mod node;
mod number;
mod parse;
mod print;
mod signature;
mod text;
mod time;
mod value;

use std::fmt;

use firn_model::Timestamp;
use firn_promql::VectorPoint;

pub use exec::{BYTES_MAX, CALLS_MAX, DEPTH_MAX, STEPS_MAX};
pub use value::{AlertData, Indirection, IntType, ListType, Sample, UintType, Value, ValueMap};

/// An error of a template in the words of Go, with the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

type Result<T, E = TemplateError> = std::result::Result<T, E>;

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template {
    name: String,
    text: String,
    trees: parse::Trees,
}

/// The values that functions of a template read.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The time of the evaluation.
    pub now: Timestamp,
    /// The URL of this server.
    pub external_url: &'a str,
    /// The value of a name that a map does not contain.
    pub missing_key: MissingKey,
    /// Runs an instant query at the time of the evaluation.
    pub query: &'a dyn Fn(&str) -> Result<Vec<VectorPoint>, String>,
    /// Reserves the memory of the execution: this number of bytes in all, more or less than before.
    pub reserve: &'a dyn Fn(usize) -> Result<(), String>,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The value of a name that a map does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// The empty value of the map's type. The choice of Prometheus.
    #[default]
    Zero,
    /// No value.
    Invalid,
    /// An error.
    Error,
}

impl Template {
    /// Parses `text`. `name` is part of errors.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(name: &str, text: &str) -> Result<Template, TemplateError> {
        let trees = parse::parse(name, text, |name| signature::signature(name).is_some())?;
        Ok(Template { name: name.to_owned(), text: text.to_owned(), trees })
    }

    /// Parses `text` as a template of the alert `alert`, with the variables `$labels`,
    /// `$externalLabels`, `$externalURL` and `$value`.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse_alert(alert: &str, text: &str) -> Result<Template, TemplateError> {
        // Prometheus puts the same declarations in front: columns in errors count them.
        let declarations = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}\
                            {{$externalURL := .ExternalURL}}{{$value := .Value}}";
        Template::parse(&format!("__alert_{alert}"), &format!("{declarations}{text}"))
    }

    /// Expands the template.
    ///
    /// # Errors
    /// The first failure, or the limit that is exceeded.
    pub fn execute(
        &self,
        data: &Value,
        environment: &Environment<'_>,
    ) -> Result<String, TemplateError> {
        exec::execute(self, data, environment)
    }

    /// The name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests;
