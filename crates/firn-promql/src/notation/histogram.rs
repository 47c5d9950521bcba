//! Native histograms: `{{schema:0 sum:5 count:4 buckets:[1 2 1]}}`.

use std::sync::Arc;

use firn_model::{Histogram, HistogramBucket, ResetHint};

use super::line::ScriptHistogram;
use crate::syntax::parse_number;

/// The maximum number of buckets in a list.
const BUCKETS_MAX: usize = 10_000;

/// Parses the text between `{{` and `}}`.
pub(super) fn parse(text: &str) -> Result<ScriptHistogram, String> {
    let mut histogram = Histogram::empty();
    let mut has_hint = false;
    let (mut offset, mut n_offset) = (0, 0);
    let (mut buckets, mut n_buckets): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    let mut keys: Vec<String> = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let (key, after) =
            rest.split_once(':').ok_or_else(|| format!("no key in histogram {rest:?}"))?;
        let (value, after) = match after.strip_prefix('[') {
            Some(list) => list.split_once(']').ok_or("a list without ]")?,
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        let key = key.to_ascii_lowercase();
        if keys.contains(&key) {
            return Err(format!("duplicate key {key:?} in histogram"));
        }
        match key.as_str() {
            "schema" => histogram.schema = whole(value)?,
            "sum" => histogram.sum = number(value)?,
            "count" => histogram.count = number(value)?,
            "z_bucket" => histogram.zero_count = number(value)?,
            "z_bucket_w" => histogram.zero_threshold = number(value)?,
            "offset" => offset = whole(value)?,
            "n_offset" => n_offset = whole(value)?,
            "buckets" => buckets = numbers(value)?,
            "n_buckets" => n_buckets = numbers(value)?,
            "custom_values" => histogram.custom_bounds = numbers(value)?.into(),
            "counter_reset_hint" => {
                has_hint = true;
                histogram.reset_hint = match value.to_ascii_lowercase().as_str() {
                    "unknown" => ResetHint::Unknown,
                    "reset" => ResetHint::Reset,
                    "not_reset" => ResetHint::NoReset,
                    "gauge" => ResetHint::Gauge,
                    other => return Err(format!("unknown counter reset hint {other:?}")),
                };
            }
            other => return Err(format!("unknown histogram key {other:?}")),
        }
        keys.push(key);
        rest = after.trim_start();
    }
    if !matches!(histogram.schema, -4..=8 | Histogram::CUSTOM_SCHEMA) {
        return Err(format!("unknown histogram schema {}", histogram.schema));
    }
    let placed = |offset: i32, counts: Vec<f64>| {
        let indexes = offset..;
        indexes.zip(counts).map(|(index, count)| HistogramBucket { index, count }).collect()
    };
    histogram.positive = placed(offset, buckets);
    histogram.negative = placed(n_offset, n_buckets);
    Ok(ScriptHistogram { histogram: Arc::new(histogram), has_hint })
}

fn number(text: &str) -> Result<f64, String> {
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text),
    };
    // A number of PromQL has no binary exponent.
    let is_plain = !unsigned.starts_with(['+', '-']) && !unsigned.contains(['p', 'P']);
    let value = match parse_number(unsigned) {
        Ok(value) if is_plain => value,
        _ => return Err(format!("no number: {text:?}")),
    };
    Ok(if is_negative { -value } else { value })
}

fn whole(text: &str) -> Result<i32, String> {
    if text.starts_with('+') {
        return Err(format!("no whole number: {text:?}"));
    }
    let bound = 1 << 20;
    let value: i32 = text.parse().map_err(|_| format!("no whole number: {text:?}"))?;
    if (-bound..=bound).contains(&value) { Ok(value) } else { Err(format!("{text} is too far")) }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let all: Vec<f64> = text.split_whitespace().map(number).collect::<Result<_, _>>()?;
    if all.is_empty() || text.starts_with(char::is_whitespace) {
        return Err(format!("expected numbers in a list, got [{text}]"));
    }
    if all.len() > BUCKETS_MAX { Err("too many buckets".to_owned()) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verdicts of promtool 3.14.
    #[test]
    fn repeated_keys_and_odd_lists_are_refused() {
        for text in [
            "count:1 COUNT:2",
            "buckets:[1] buckets:[1]",
            "buckets:[]",
            "buckets:[ 1 2]",
            " sum:1",
            "sum:+1",
            "schema:+1",
            "sum:--1",
            "sum:0x1p1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["buckets:[1  2]", "sum:-1", "sum:0x1F", "buckets:[1_0]", "sum:1 "] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let hint = parse("counter_reset_hint:Gauge").unwrap().histogram.reset_hint;
        assert_eq!(hint, ResetHint::Gauge);
    }

    #[test]
    fn histograms_are_read_with_all_their_parts() {
        let written = parse(
            "SCHEMA:1 sum:-Inf count:3 z_bucket:1 z_bucket_w:0.5 buckets:[1 2] offset:-2 \
             n_buckets:[4]",
        );
        let histogram = written.unwrap().histogram;
        assert_eq!(histogram.positive[1], HistogramBucket { index: -1, count: 2.0 });
        assert_eq!(histogram.negative[0], HistogramBucket { index: 0, count: 4.0 });
        assert_eq!((histogram.schema, histogram.sum), (1, f64::NEG_INFINITY));
        assert!(
            parse("schema:9").is_err() && parse("bucket:[1]").is_err() && parse("sum").is_err()
        );
        assert!(parse("counter_reset_hint:gauge").unwrap().has_hint);
    }
}
