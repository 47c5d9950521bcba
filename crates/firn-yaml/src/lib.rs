//! YAML as Prometheus reads it: documents of configurations, rules and tests.
//!
//! **Owns** the tree of a document with lines and columns, typed sections with Prometheus' rules
//! for defaults, nulls and errors, and printing.
//!
//! **Never** does I/O, and knows no key of a file.
//!
//! **Path through**: `section!` declares a struct with a key for each field, and
//! [`from_document_within`] reads a text into it. [`Document::parse`] is the tree alone.
//! [`print()`] prints the result of [`Field::encode`].
//!
//! Four rules of Prometheus' decoder are visible to users: a null is the zero value of a key and
//! not its default; a scalar of any kind is accepted where a text is expected, with its spelling;
//! all keys of wrong types or names in a file are reported at once; and the words `yes`, `no`, `on`
//! and `off` are switches.
//!
//! **Invariants**: the bytes, values, levels and aliases of a document are bounded; the memory of a
//! tree and of its values is reserved before they exist; nothing panics on input.
//!
//! Terms: `docs/glossary.md`. Reading order: `text`, `scalar`, `tokens`, `failure`, `repair`,
//! `node`, `decode`, `section`, `fields`, `duration`, `placed`, `raw_text`, `emit`.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod decode;
mod duration;
mod emit;
mod failure;
mod fields;
mod node;
mod placed;
mod raw_text;
mod repair;
mod scalar;
mod section;
mod text;
mod tokens;

pub use decode::{
    Checked, Decoder, Encoded, Field, PathVisitor, Section, UnknownKeys, decode,
    from_document_within, paths_below, read_section, text_of,
};
pub use duration::{Millis, go_duration};
pub use emit::print;
pub use failure::Failure;
pub use fields::Items;
pub use node::{Document, Node, NodeValue};
pub use placed::Placed;
pub use raw_text::RawText;
pub use scalar::Kind;
#[doc(hidden)]
pub use section::assert_omit;
pub use text::quoted;
