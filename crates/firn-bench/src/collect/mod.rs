//! Collection: targets to scrape, the files that name them, and rules over their series.
//!
//! **Owns** the exposition of a target ([`page`]), the server of all targets, good and bad ones
//! ([`targets`]), and the files of Prometheus that describe them ([`files`]). **Never** starts a
//! program: the binary does.

pub mod files;
pub mod page;
pub mod targets;
