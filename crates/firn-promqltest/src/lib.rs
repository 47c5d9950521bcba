//! Tests of PromQL. No product crate depends on this crate.
//!
//! **Owns** the runner of scripts in Prometheus' `promqltest` grammar (load blocks, queries,
//! expected results; [`run_script`]), the checks that the fuzzers run, and the generator of typed
//! expressions ([`expressions`]).
//!
//! **Never** opens a file: callers read scripts and pass their text. The program `firn-promqltest`
//! runs the scripts of a folder.
//!
//! Terms: `docs/glossary.md`. Reading order: `histogram`, `script`, `compare`, `check`, `run`,
//! `generate`, `fuzz`, `expressions`.

#![forbid(unsafe_code)]

mod check;
mod compare;
pub mod expressions;
mod fuzz;
mod generate;
mod histogram;
mod run;
mod script;

pub use firn_promql::MemorySelect;
pub use fuzz::{check_evaluation, check_generated, check_text};
pub use run::{Failure, Report, run_script};
