//! The outcome of cases.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::Value;

/// The passed cases and the failures of a kind.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of cases that passed.
    pub passed_count: usize,
    /// The name and the failure of each other case.
    pub failures: Vec<String>,
}

impl Report {
    /// Number of all cases.
    pub fn count(&self) -> usize {
        self.passed_count + self.failures.len()
    }

    /// Runs a case. One that panics, as a malformed one does, is a failure.
    pub(crate) fn run(&mut self, name: &str, case: impl FnOnce() -> Result<(), String>) {
        let result = catch_unwind(AssertUnwindSafe(case));
        match result.unwrap_or_else(|_| Err("the case panicked".to_owned())) {
            Ok(()) => self.passed_count += 1,
            Err(failure) => self.failures.push(format!("{name}: {failure}")),
        }
    }
}

/// A file of cases; null if it does not exist, which is a file without cases.
pub(crate) fn read_json(path: &Path) -> Value {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Value::Null,
        text => text.unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    };
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of the list `value`; none without a list.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The cases of the map `value`, with their names.
pub(crate) fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The texts of the list `value`; none without a list.
pub(crate) fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// `Err` with both texts unless they are equal.
pub(crate) fn expect_equal(got: &str, want: &str) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("got {got}, expected {want}")) }
}

/// `Err` unless `result` failed with a text that contains all `parts`.
pub(crate) fn expect_error<T>(result: Result<T, String>, parts: &[&str]) -> Result<(), String> {
    match result {
        Ok(_) => Err(format!("no error, expected {parts:?}")),
        Err(error) => match parts.iter().find(|part| !error.contains(**part)) {
            Some(part) => Err(format!("got {error}, expected {part}")),
            None => Ok(()),
        },
    }
}

/// The texts that an error must contain: paths of the folder, and the wording of YAML only up to
/// the name of the field.
pub(crate) fn error_parts(value: &Value, folder: &Path) -> Vec<String> {
    let dir = format!("{}/", folder.display());
    texts(value)
        .into_iter()
        .map(|part| part.replace("{dir}", &dir))
        .map(|part| match part.split_once(" not found in type") {
            Some((field, _)) => format!("{field} not found"),
            None => part,
        })
        .collect()
}
