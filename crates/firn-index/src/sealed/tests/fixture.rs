//! The bytes of a small segment, kept together with docs/formats/index.md.
