//! Tests of PromQL. No product crate depends on this crate.
//!
//! **Owns** storage in memory ([`MemorySelect`]), the runner of scripts in Prometheus' `promqltest`
//! grammar (load blocks, queries, expected results; [`run_script`]), the checks that the fuzzers
//! run, and the generator of typed expressions ([`expressions`]).
//!
//! **Never** opens a file: callers read scripts and pass their text. The program `firn-promqltest`
//! runs the scripts of a folder.
//!
//! Terms: `docs/glossary.md`. Reading order: `memory`, `line`, `histogram`, `series`, `script`,
//! `compare`, `check`, `run`, `generate`, `fuzz`, `expressions`.

#![forbid(unsafe_code)]

mod check;
mod compare;
pub mod expressions;
mod fuzz;
mod generate;
mod histogram;
mod line;
mod memory;
mod run;
mod script;
mod series;

pub use fuzz::{check_evaluation, check_generated, check_text};
pub use memory::MemorySelect;
pub use run::{Failure, Report, run_script};
