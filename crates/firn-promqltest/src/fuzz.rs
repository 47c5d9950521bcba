//! The checks that the fuzzers in `fuzz/` run on their input. They are here so that a test can run
//! them on the corpus without a fuzzer.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{
    Budget, CancelToken, Histogram, HistogramBucket, Labels, METRIC_NAME, MixedEntry, PointValue,
    QueryContext, Timestamp,
};
use firn_promql::{EvalOptions, Expr, QueryOutput, Value, eval, parse, selections};

use super::MemorySelect;
use super::generate::query;

/// Parses a text. A valid text prints as a text that parses to the same print, and its positions
/// are inside the text.
///
/// # Panics
/// If either does not hold.
pub fn check_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text) {
        Ok(expr) => {
            let printed = expr.to_string();
            let again = parse(&printed)
                .unwrap_or_else(|error| panic!("{text:?} prints as {printed:?}: {error}"));
            // Infinity prints with a sign, as in Prometheus; each further round adds a sign.
            if !printed.contains("+Inf") {
                assert_eq!(again.to_string(), printed, "{text:?} prints otherwise when read again");
            }
            let span = expr.root.span;
            assert!(
                span.start <= span.end && span.end as usize <= text.len(),
                "{text:?}: {span:?}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty(), "{text:?}"),
    }
}

/// Evaluates a text at ordinary and at extreme times.
pub fn check_evaluation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(expr) = parse(text) else { return };
    let store = store();
    for options in [
        EvalOptions::instant(300_000),
        EvalOptions::instant(Timestamp::MIN),
        EvalOptions::instant(Timestamp::MAX),
        EvalOptions::range(0, 600_000, 60_000),
        EvalOptions::range(600_000, 0, 60_000),
        EvalOptions::range(Timestamp::MAX - 3, Timestamp::MAX, 1),
        EvalOptions::range(Timestamp::MIN, Timestamp::MAX, Timestamp::MAX),
    ] {
        for delayed_name_removal in [false, true] {
            let options = EvalOptions { delayed_name_removal, ..options.clone() };
            let _ = selections(&expr, &options);
            let _ = evaluated(&expr, &store, options);
        }
    }
}

/// Generates a query from the bytes and evaluates it. Each step of a range query must equal the
/// instant query at that time.
///
/// # Panics
/// If a step differs.
pub fn check_generated(data: &[u8]) {
    let text = query(data);
    // A generated query may be invalid; the parser refuses it.
    let Ok(expr) = parse(&text) else { return };
    check_text(text.as_bytes());
    let store = store();
    let (start, end, step_ms) = (60_000, 540_000, 120_000);
    let Ok(output) = evaluated(&expr, &store, EvalOptions::range(start, end, step_ms)) else {
        return;
    };
    // These functions have another value in an instant query.
    if ["start(", "end(", "step(", "range("].iter().any(|word| text.contains(word)) {
        return;
    }
    for ts in (start..=end).step_by(step_ms as usize) {
        match evaluated(&expr, &store, EvalOptions::instant(ts)) {
            Ok(instant) => {
                assert_eq!(points_at(&output, ts), points_at(&instant, ts), "{text} at {ts}");
            }
            Err(error) => panic!("{text} at {ts} fails, but not as a step: {error}"),
        }
    }
}

fn evaluated(
    expr: &Expr,
    store: &MemorySelect,
    options: EvalOptions,
) -> firn_model::Result<QueryOutput> {
    // Small limits: a query that exceeds them fails soon.
    let options = EvalOptions { samples_max: 20_000, ..options };
    let context = QueryContext::new(CancelToken::new(), Budget::new(32 << 20));
    eval(expr, store, &options, &context)
}

/// The points of a result at one time: labels to bits, or to the text of a histogram.
fn points_at(output: &QueryOutput, at: Timestamp) -> BTreeMap<Labels, String> {
    let shown = |value: &PointValue| match value {
        PointValue::Float(value) => format!("{:016x}", value.to_bits()),
        PointValue::Histogram(histogram) => format!("{histogram:?}"),
    };
    match &output.value {
        Value::Scalar { value, .. } => {
            BTreeMap::from([(Labels::empty(), shown(&PointValue::Float(*value)))])
        }
        Value::String { .. } => BTreeMap::new(),
        Value::Vector(points) => {
            points.iter().map(|point| (point.labels.clone(), shown(&point.value))).collect()
        }
        Value::Matrix(series) => series
            .iter()
            .flat_map(|series| {
                let floats = series.floats.iter().filter(|sample| sample.ts == at);
                let floats = floats.map(|sample| shown(&PointValue::Float(sample.value)));
                let histograms = series.histograms.iter().filter(|point| point.ts == at);
                let histograms = histograms
                    .map(|point| shown(&PointValue::Histogram(Arc::clone(&point.histogram))));
                floats.chain(histograms).map(|value| (series.labels.clone(), value))
            })
            .collect(),
    }
}

/// Gauges, counters, gaps, classic and native histograms, and extreme values over 10 min.
fn store() -> MemorySelect {
    let mut store = MemorySelect::new();
    let labels = |name: &str, instance: &str, le: &str| {
        let pairs = [(METRIC_NAME, name), ("instance", instance), ("job", "a"), ("le", le)];
        Labels::from_pairs(pairs).unwrap_or_else(|_| Labels::empty())
    };
    for (instance, offset) in [("1", 0.0), ("2", 0.5)] {
        for idx in 0..40 {
            let ts = idx * 15_000;
            store.push(&labels("foo", instance, ""), ts, (idx % 7) as f64 - offset);
            store.push(&labels("bar", instance, ""), ts, (idx % 13) as f64 * 10.0 + offset);
            if idx % 5 != 3 {
                let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, 5e-324];
                store.push(&labels("odd", instance, ""), ts, odd[idx as usize % odd.len()]);
            }
            for (le, share) in [("1", 1.0), ("2.5", 2.0), ("+Inf", 4.0)] {
                store.push(&labels("h_bucket", instance, le), ts, share * idx as f64);
            }
            let value = match idx % 11 {
                10 => PointValue::Float(offset),
                _ => PointValue::Histogram(Arc::new(histogram(idx as f64 + offset, idx > 20))),
            };
            store.push_entry(&labels("native", instance, ""), ts, MixedEntry { start: 0, value });
        }
    }
    store
}

fn histogram(count: f64, has_custom_bounds: bool) -> Histogram {
    let bucket = |index, count| HistogramBucket { index, count };
    let common = Histogram { count, sum: count * 1.5, ..Histogram::empty() };
    if has_custom_bounds {
        let positive = vec![bucket(0, count / 2.0), bucket(2, count / 2.0)];
        let custom_bounds = Arc::from([1.0, 2.5]);
        return Histogram { schema: Histogram::CUSTOM_SCHEMA, positive, custom_bounds, ..common };
    }
    Histogram {
        schema: if count > 10.0 { 1 } else { 2 },
        zero_count: count / 4.0,
        zero_threshold: 0.001,
        positive: vec![bucket(-3, count / 4.0), bucket(0, count / 4.0)],
        negative: vec![bucket(1, count / 4.0)],
        ..common
    }
}
