//! Samples and alerts as promtool prints them.

use std::collections::BTreeMap;
use std::fmt::Write;

use firn_model::{Histogram, HistogramBucket, Labels, PointValue, ResetHint};
use firn_promql::format_g;
use firn_yaml::quoted;

/// An alert that fires.
pub(super) type AlertTexts = (BTreeMap<String, String>, BTreeMap<String, String>);

/// `{a="b", "c.d"="e"}`.
pub(super) fn labels_text<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::from("{");
    for (idx, (name, value)) in labels.enumerate() {
        if idx > 0 {
            out.push_str(", ");
        }
        let is_word = !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
        match is_word {
            true => out.push_str(name),
            false => out.push_str(&quoted(name.as_bytes())),
        }
        let _ = write!(out, "={}", quoted(value.as_bytes()));
    }
    out.push('}');
    out
}

fn map_text(labels: &BTreeMap<String, String>) -> String {
    labels_text(labels.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// The alerts as an indented list.
pub(super) fn alerts_text(alerts: &[AlertTexts]) -> String {
    if alerts.is_empty() {
        return "[]".to_owned();
    }
    const INDENT: &str = "            ";
    let mut out = format!("[\n{INDENT}");
    for (idx, alert) in alerts.iter().enumerate() {
        if idx > 0 {
            let _ = write!(out, ",\n{INDENT}");
        }
        let (labels, annotations) = alert_lines(alert);
        let _ = write!(out, "{idx}:\n{INDENT}  {labels}\n{INDENT}  {annotations}");
    }
    let _ = write!(out, "\n{INDENT}]");
    out
}

/// The alerts of both lists, those of one list alone marked with `-` or `+`.
pub(super) fn alerts_diff(expected: &[AlertTexts], got: &[AlertTexts]) -> String {
    let mut out = String::new();
    let missing = expected.iter().filter(|alert| !got.contains(alert)).map(|alert| ('-', alert));
    let both = expected.iter().filter(|alert| got.contains(alert)).map(|alert| (' ', alert));
    let more = got.iter().filter(|alert| !expected.contains(alert)).map(|alert| ('+', alert));
    for (mark, alert) in both.chain(missing).chain(more) {
        let (labels, annotations) = alert_lines(alert);
        let _ = write!(out, "\n          {mark} {labels}\n          {mark} {annotations}");
    }
    out
}

fn alert_lines((labels, annotations): &AlertTexts) -> (String, String) {
    (format!("Labels:{}", map_text(labels)), format!("Annotations:{}", map_text(annotations)))
}

/// `{a="b"} 1E+00, ..`, or `nil`.
pub(super) fn samples_text(samples: &[(Labels, PointValue)]) -> String {
    if samples.is_empty() {
        return "nil".to_owned();
    }
    let one = |(labels, value): &(Labels, PointValue)| {
        let value = match value {
            PointValue::Float(value) => scientific(*value),
            PointValue::Histogram(histogram) => histogram_text(histogram),
        };
        format!("{} {value}", labels_text(labels.iter()))
    };
    samples.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// As Go's format `E`: `1.5E+01`.
pub(super) fn scientific(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let text = format!("{value:E}");
    let (mantissa, exponent) = text.split_once('E').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}E{sign}{digits:0>2}")
}

/// A histogram in the notation of input series. Histograms are equal if their texts are.
pub(super) fn histogram_text(histogram: &Histogram) -> String {
    let mut parts = Vec::new();
    if histogram.schema != 0 {
        parts.push(format!("schema:{}", histogram.schema));
    }
    for (key, value) in [
        ("count", histogram.count),
        ("sum", histogram.sum),
        ("z_bucket", histogram.zero_count),
        ("z_bucket_w", histogram.zero_threshold),
    ] {
        if value != 0.0 {
            parts.push(format!("{key}:{}", format_g(value)));
        }
    }
    if histogram.schema == Histogram::CUSTOM_SCHEMA {
        parts.push(format!("custom_values:[{}]", numbers(histogram.custom_bounds.iter().copied())));
    }
    match histogram.reset_hint {
        ResetHint::Unknown => {}
        ResetHint::Reset => parts.push("counter_reset_hint:reset".to_owned()),
        ResetHint::NoReset => parts.push("counter_reset_hint:not_reset".to_owned()),
        ResetHint::Gauge => parts.push("counter_reset_hint:gauge".to_owned()),
    }
    bucket_parts("offset", "buckets", &histogram.positive, &mut parts);
    bucket_parts("n_offset", "n_buckets", &histogram.negative, &mut parts);
    format!("{{{{{}}}}}", parts.join(" "))
}

/// The buckets from the first to the last that is populated.
fn bucket_parts(offset_key: &str, key: &str, buckets: &[HistogramBucket], parts: &mut Vec<String>) {
    let populated = || buckets.iter().filter(|bucket| bucket.count != 0.0);
    let (Some(first), Some(last)) = (populated().next(), populated().next_back()) else { return };
    if first.index != 0 {
        parts.push(format!("{offset_key}:{}", first.index));
    }
    let mut counts = Vec::new();
    let mut next = first.index;
    for bucket in populated() {
        // A gap of a million buckets is not worth its zeros.
        while next < bucket.index && counts.len() < GAP_MAX {
            counts.push(0.0);
            next = next.saturating_add(1);
        }
        counts.push(bucket.count);
        next = bucket.index.saturating_add(1);
    }
    debug_assert!(first.index <= last.index, "buckets are in order");
    parts.push(format!("{key}:[{}]", numbers(counts.into_iter())));
}

const GAP_MAX: usize = 100_000;

fn numbers(values: impl Iterator<Item = f64>) -> String {
    values.map(format_g).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_in_go() {
        for (value, want) in [
            (0.0, "0E+00"),
            (1.0, "1E+00"),
            (-15.25, "-1.525E+01"),
            (1e21, "1E+21"),
            (0.00001, "1E-05"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(scientific(value), want);
        }
    }

    #[test]
    fn lists_of_alerts_are_indented() {
        let pairs = |text: &str| BTreeMap::from([("a".to_owned(), text.to_owned())]);
        let alerts = [(pairs("x"), pairs("1")), (pairs("y"), BTreeMap::new())];
        let want = "[\n            0:\n              Labels:{a=\"x\"}\n              \
                    Annotations:{a=\"1\"},\n            1:\n              Labels:{a=\"y\"}\n              \
                    Annotations:{}\n            ]";
        assert_eq!(alerts_text(&alerts), want);
        assert_eq!(alerts_text(&[]), "[]");
        let diff = alerts_diff(&alerts[..1], &alerts[1..]);
        let want = "\n          - Labels:{a=\"x\"}\n          - Annotations:{a=\"1\"}\n          + \
                    Labels:{a=\"y\"}\n          + Annotations:{}";
        assert_eq!(diff, want);
    }

    #[test]
    fn histograms_are_printed_in_series_notation() {
        for text in [
            "{{}}",
            "{{schema:1 count:3 sum:-2.5 z_bucket:1 z_bucket_w:0.5 offset:-2 buckets:[1 0 2]}}",
            "{{schema:-53 count:5 sum:9 custom_values:[1 5] buckets:[2 0 3]}}",
            "{{count:4 counter_reset_hint:gauge n_offset:1 n_buckets:[4]}}",
            "{{count:1e+06 sum:1.234567e+06 buckets:[1e+06]}}",
        ] {
            let line = firn_promql::notation::SeriesLine::parse(&format!("a {text}")).unwrap();
            let [firn_promql::notation::SeriesItem::Histogram(written)] = line.items.as_slice()
            else {
                panic!("{line:?}")
            };
            assert_eq!(histogram_text(&written.histogram), text);
        }
    }
}
