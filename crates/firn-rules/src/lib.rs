//! Rules: recording and alerting rules in Prometheus' file format.
//!
//! **Owns** rule files with their validation errors, the order of evaluation, the states of alerts,
//! and the templates of labels and annotations.
//!
//! **Never** does I/O, reads a clock or starts a thread: the caller reads files, runs queries,
//! writes results and sends alerts.
//!
//! **Path through**: [`file::RuleFile::parse`] reads the groups of a file, [`unit_test::TestFile`]
//! tests them over storage in memory. [`group::Schedule`] names the slots of a [`group::Group`].
//! For each slot, [`group::Group::evaluate`] runs the rules in order through [`group::Storage`],
//! applies results to the states of alerts, and returns the alerts to send. Labels and annotations
//! are expanded through [`group::Expand`], which [`AlertTemplates`] implements with
//! [`template::Template`].
//!
//! **Invariants**
//! - Results depend on slots and query results only.
//! - A rule that fails writes nothing, not even stale markers.
//! - The identity of an alert is its label set.
//! - A template neither hangs nor exhausts memory: its execution has limits.
//!
//! Terms: `docs/glossary.md`. Reading order: `group`, `template`, `alert_template`, `file`,
//! `unit_test`.

#![forbid(unsafe_code)]

mod alert_template;
pub mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod group;
pub mod template;
pub mod unit_test;

pub use alert_template::AlertTemplates;
