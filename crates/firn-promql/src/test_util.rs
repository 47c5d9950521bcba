//! Pieces of the language that `firn-promqltest` shares: its scripts contain the same durations,
//! strings, numbers and histograms. Compiled with the feature `test-util` only.

use firn_model::Histogram;

use crate::histogram::RunningHistogram;
use crate::syntax;

/// Milliseconds of a duration such as `1h30m`.
///
/// # Errors
/// Prometheus' message for a text that is not a duration or is too long.
pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    syntax::parse_duration_ms(text)
}

/// A number in Go's spelling.
///
/// # Errors
/// The message of Go's parser.
pub fn parse_number(text: &str) -> Result<f64, String> {
    syntax::parse_number(text)
}

/// `bytes` as a string literal with Go's escapes.
pub fn go_quote(bytes: &[u8]) -> String {
    syntax::go_quote(bytes)
}

/// The bytes of a string literal, quotes included; `None` if an escape is invalid.
pub fn unquote(literal: &str) -> Option<Vec<u8>> {
    syntax::unquote(literal)
}

/// Whether a counter was reset between `previous` and `current`.
pub fn detects_reset(current: &Histogram, previous: &Histogram) -> bool {
    crate::histogram::detects_reset(current, previous)
}

/// `count` histograms: `first`, then each the previous one plus `step`, or minus `step` with
/// `subtracts`. `None` if their bucket layouts are incompatible.
pub fn histogram_ramp(
    first: &Histogram,
    step: &Histogram,
    subtracts: bool,
    count: usize,
) -> Option<Vec<Histogram>> {
    let mut running: RunningHistogram<f64> = RunningHistogram::new(first);
    let mut histograms = Vec::new();
    for idx in 0..count {
        if idx > 0 {
            let merged = if subtracts { running.subtract(step) } else { running.add(step) };
            merged.ok()?;
        }
        histograms.push(running.clone().finish());
    }
    Some(histograms)
}
