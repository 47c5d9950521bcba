//! The notation of series in tests: `name{a="b"} 1+2x3 _ stale {{sum:5 count:4}}`.
//!
//! Scripts of `firn-promqltest` and unit tests of rules contain such lines. Reading order: `line`,
//! `histogram`, `series`.

mod histogram;
mod line;
mod series;

pub use line::{ScriptHistogram, SeriesItem, SeriesLine};
