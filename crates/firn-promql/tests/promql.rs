//! Black-box tests of the language: our own scripts, the shared conformance files, errors, and
//! invalid texts.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "reads scripts from files")]

#[path = "promql/conformance.rs"]
mod conformance;
#[path = "promql/corpus.rs"]
mod corpus;
#[path = "promql/counting.rs"]
mod counting;
#[path = "promql/errors.rs"]
mod errors;
#[path = "promql/found.rs"]
mod found;
#[path = "promql/grouping.rs"]
mod grouping;
#[path = "promql/labelsets.rs"]
mod labelsets;
#[path = "promql/memory.rs"]
mod memory;
#[path = "promql/names.rs"]
mod names;
#[path = "promql/nonsense.rs"]
mod nonsense;
#[path = "promql/printing.rs"]
mod printing;
#[path = "promql/samples.rs"]
mod samples;
#[path = "promql/threads.rs"]
mod threads;
