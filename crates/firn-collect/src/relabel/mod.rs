//! Relabelling: rules that change, keep or drop label sets.
//!
//! [`Rules`] are compiled once and shared. [`Rules::apply`] runs them over a [`LabelEditor`], whose
//! buffers are reused: rules that change nothing allocate nothing.

mod editor;
mod md5_mod;
mod pattern;
mod rule;
mod template;
mod work;

pub use editor::LabelEditor;
pub use pattern::PATTERN_BYTES_MAX;
pub use rule::{Action, LabelName, NameScheme, RegexText, RuleConfig, Rules};
pub(crate) use work::labels_work;
