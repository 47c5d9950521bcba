//! For tests, here and in other rooms: storage that is a plain list of samples, a runner for scripts in Prometheus'
//! `promqltest` grammar (load blocks, queries, expected results), what the fuzzers do, and expressions that mostly have
//! an answer.
//!
//! Nothing here opens files: callers read scripts and hand over their text.

mod check;
pub mod expressions;
mod fuzz;
mod generate;
mod histogram;
mod memory;
mod run;
mod script;
mod series;

pub use fuzz::{check_evaluation, check_generated, check_text};
pub use memory::MemorySelect;
pub use run::{Failure, Report, run_script};
