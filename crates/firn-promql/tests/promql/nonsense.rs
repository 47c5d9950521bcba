//! No text makes the parser or the evaluator panic or overflow the stack.

use std::sync::Arc;

use firn_model::{
    Histogram, HistogramBucket, Labels, MixedEntry, PointValue, QueryContext, STALE_NAN,
};
use firn_promql::{EvalOptions, eval, parse, selections};
use firn_promqltest::MemorySelect;
use proptest::prelude::*;

/// Tokens that often form a valid query, sometimes a strange one.
const PIECES: [&str; 84] = [
    "foo",
    "bar",
    "sum",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "@",
    "start()",
    "end()",
    "step()",
    "range()",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "=",
    "!=",
    "=~",
    "!~",
    "==",
    "<",
    ">=",
    "</",
    ">/",
    "+",
    "-",
    "*",
    "/",
    "%",
    "^",
    "and",
    "or",
    "unless",
    "atan2",
    "1",
    "0",
    "-1",
    "1e3",
    "NaN",
    "Inf",
    "5m",
    "1h",
    "[5m]",
    "[1h:1m]",
    "[30m:]",
    "\"x\"",
    "'a'",
    "`b`",
    "\\",
    "a=\"b\"",
    "rate(",
    "increase(",
    "topk(",
    "quantile(",
    "count_values(",
    "label_replace(",
    "histogram_quantile(",
    "absent(",
    "vector(1)",
    "time()",
    "scalar(",
    "fill(0)",
    "fill_left(1)",
    "anchored",
    "smoothed",
    "limit_ratio(",
    "info(",
    "predict_linear(",
    "#",
    "\n",
    "é",
    "9223372036854775807",
    "-9e18",
    "max_of(1,2)",
    "foo[5m]",
];

fn store() -> MemorySelect {
    let mut store = MemorySelect::new();
    for name in ["foo", "bar"] {
        for instance in ["1", "2"] {
            let pairs = [("__name__", name), ("job", "a"), ("instance", instance), ("le", "1")];
            let labels = Labels::from_pairs(pairs).unwrap();
            for idx in 0..40 {
                store.push(&labels, idx * 15_000, (idx % 7) as f64);
            }
            if (name, instance) == ("bar", "2") {
                (10..40).for_each(|idx| store.push_entry(&labels, idx * 15_000, mixed(idx)));
            }
        }
    }
    store
}

/// Histograms of all layouts, mixed with floats, start timestamps and ends of series.
fn mixed(idx: i64) -> MixedEntry {
    let count = (idx % 7) as f64;
    let buckets = |first: i32| {
        (first..first + 3).map(|index| HistogramBucket { index, count: count / 3.0 }).collect()
    };
    let histogram = Histogram {
        schema: (idx % 5) as i32 - 2,
        count,
        sum: count * 1.5,
        zero_threshold: [0.0, 0.3, 2.0][(idx % 3) as usize],
        positive: buckets(-1),
        negative: buckets(0),
        ..Histogram::empty()
    };
    let value = match idx % 10 {
        8 => PointValue::Float(count),
        9 if idx == 29 => PointValue::Float(STALE_NAN),
        5 | 6 => PointValue::Histogram(Arc::new(Histogram {
            schema: Histogram::CUSTOM_SCHEMA,
            custom_bounds: [[1.0, 5.0], [5.0, 7.0]][(idx % 2) as usize].into(),
            positive: buckets(0),
            negative: Vec::new(),
            ..histogram
        })),
        _ => PointValue::Histogram(Arc::new(histogram)),
    };
    MixedEntry { start: if idx % 4 == 0 { idx * 15_000 - 15_000 } else { 0 }, value }
}

/// A value by its bits.
fn bits(value: &PointValue) -> String {
    match value {
        PointValue::Float(value) => format!("{:x}", value.to_bits()),
        PointValue::Histogram(histogram) => format!("{histogram:?}"),
    }
}

/// Parses, prints and evaluates a text.
fn try_all(text: &str, store: &MemorySelect) {
    let Ok(expr) = parse(text) else { return };
    let printed = expr.to_string();
    assert!(parse(&printed).is_ok(), "{text:?} prints as {printed:?}");
    let ranges = [
        EvalOptions::instant(300_000),
        EvalOptions::instant(i64::MIN),
        EvalOptions::instant(i64::MAX),
        EvalOptions::range(0, 600_000, 60_000),
        EvalOptions::range(600_000, 0, 60_000),
    ];
    for options in ranges {
        for delayed_name_removal in [false, true] {
            let options =
                EvalOptions { samples_max: 20_000, delayed_name_removal, ..options.clone() };
            let _ = selections(&expr, &options);
            let _ = eval(&expr, store, &options, &QueryContext::unbounded());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn token_soups_do_not_panic(pieces in prop::collection::vec(0..PIECES.len(), 1..14)) {
        let text: Vec<&str> = pieces.iter().map(|&idx| PIECES[idx]).collect();
        try_all(&text.join(" "), &store());
        try_all(&text.concat(), &store());
    }

    #[test]
    fn random_texts_do_not_panic(text in "\\PC{0,40}") {
        try_all(&text, &store());
    }

    #[test]
    fn random_ascii_does_not_panic(text in "[ -~\\n]{0,40}") {
        try_all(&text, &store());
    }
}

/// Queries of every shape, composed of smaller ones.
fn query() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("foo".to_owned()),
        Just("bar{instance=\"1\"}".to_owned()),
        Just("foo offset 1m".to_owned()),
        Just("foo @ 100".to_owned()),
        Just("rate(foo[5m])".to_owned()),
        Just("vector(2)".to_owned()),
        Just("bar".to_owned()),
        Just("rate(bar[5m])".to_owned()),
        Just("resets(bar[2m])".to_owned()),
        Just("avg_over_time(bar[1m])".to_owned()),
        Just("increase(bar[2m] smoothed)".to_owned()),
        Just("bar smoothed".to_owned()),
        Just("foo * on(instance) group_left bar".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            inner.clone().prop_map(|q| format!("sum by (instance) ({q})")),
            inner.clone().prop_map(|q| format!("avg by (job) ({q})")),
            inner.clone().prop_map(|q| format!("limitk(2, {q})")),
            inner.clone().prop_map(|q| format!("({q}) >/ 0.7")),
            inner.clone().prop_map(|q| format!("histogram_sum({q})")),
            inner.clone().prop_map(|q| format!("topk(1, {q})")),
            inner.clone().prop_map(|q| format!("-({q})")),
            inner.clone().prop_map(|q| format!("max_over_time(({q})[5m:1m])")),
            inner
                .clone()
                .prop_map(|q| format!("label_replace({q}, \"x\", \"$1\", \"job\", \"(.*)\")")),
            inner.clone().prop_map(|q| format!("histogram_quantile(0.5, {q})")),
            inner.clone().prop_map(|q| format!("scalar({q}) + {q}")),
            two.clone().prop_map(|(a, b)| format!("({a}) + on (instance) ({b})")),
            two.clone().prop_map(|(a, b)| format!("({a}) - on (instance) ({b})")),
            two.clone().prop_map(|(a, b)| format!("({a}) == on (instance) ({b})")),
            two.clone().prop_map(|(a, b)| format!("({a}) > bool ({b})")),
            two.clone().prop_map(|(a, b)| format!("({a}) or ({b})")),
            two.prop_map(|(a, b)| format!("({a}) unless on () ({b})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each step of a range query equals the instant query at that time, unless one of the two
    /// fails: errors are detected over all steps together.
    #[test]
    fn range_queries_are_instant_queries_side_by_side(query in query()) {
        let store = store();
        let expr = parse(&query).unwrap();
        let context = QueryContext::unbounded();
        let range = EvalOptions::range(60_000, 540_000, 120_000);
        let Ok(output) = eval(&expr, &store, &range, &context) else { return Ok(()) };
        let firn_promql::Value::Matrix(matrix) = output.value else { panic!("{query}") };
        for ts in (60_000..=540_000).step_by(120_000) {
            let instant = eval(&expr, &store, &EvalOptions::instant(ts), &context).unwrap();
            let firn_promql::Value::Vector(vector) = instant.value else { panic!("{query}") };
            let mut got: Vec<_> = vector
                .into_iter()
                .map(|point| (point.labels, bits(&point.value)))
                .collect();
            got.sort();
            let wanted: Vec<_> = matrix
                .iter()
                .filter_map(|series| {
                    let float = series.floats.iter().find(|sample| sample.ts == ts);
                    let histogram = series.histograms.iter().find(|point| point.ts == ts);
                    let value = match (float, histogram) {
                        (Some(sample), None) => PointValue::Float(sample.value),
                        (None, Some(point)) => PointValue::Histogram(Arc::clone(&point.histogram)),
                        (None, None) => return None,
                        both => panic!("{query}: {both:?}"),
                    };
                    Some((series.labels.clone(), bits(&value)))
                })
                .collect();
            prop_assert_eq!(&got, &wanted, "{} at {}", query, ts);
        }
    }
}

/// Found by fuzzing: the first evaluation of a subquery was computed below the smallest time.
#[test]
fn subqueries_may_exceed_the_range_of_timestamps() {
    for text in ["max_over_time(foo[5m:1m])", "sum_over_time(foo[1h:7s] offset -1h)"] {
        try_all(text, &store());
    }
}

#[test]
fn deep_and_long_queries_are_refused_before_the_stack_ends() {
    let store = store();
    let nested = |open: &str, inner: &str, close: &str, levels: usize| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    for levels in [10, 90, 195, 390, 100_000] {
        let texts = [
            nested("(", "foo", ")", levels),
            nested("-", "foo", "", levels),
            nested("sum(", "foo", ")", levels),
            nested("abs(", "foo", ")", levels),
            nested("foo + ", "foo", "", levels),
            nested("foo ^ ", "foo", "", levels),
            nested("", "foo", "[5m:1m]", levels),
            format!("foo[{}]", nested("(", "1m", ")", levels)),
            format!("foo[1m{}]", " + 1m".repeat(levels)),
            format!("foo offset {}", nested("-(", "1m", ")", levels)),
        ];
        for text in texts {
            try_all(&text, &store);
        }
    }
    assert!(parse(&nested("foo + ", "foo", "", 390)).is_ok());
    let error = parse(&nested("(", "foo", ")", 100_000)).unwrap_err().to_string();
    assert!(error.contains("nested more than 400 levels"), "{error}");
}

/// Before, a list had as many labels as a query has room for: each label of each series was
/// searched for in all of them, while no new series could be defined.
#[test]
fn lists_of_labels_have_at_most_a_thousand() {
    let names = |count: usize| vec!["a"; count].join(", ");
    let texts = |count: usize| {
        let (list, other) = (names(count), "b");
        [
            format!("sum by ({list}) (foo)"),
            format!("sum(foo) without ({list})"),
            format!("foo + on ({list}) foo"),
            format!("foo + ignoring ({list}) foo"),
            format!("foo + on ({other}) group_left ({list}) foo"),
            format!("foo + on ({other}) group_right ({list}) foo"),
        ]
    };
    for text in texts(1_000) {
        assert!(parse(&text).is_ok(), "{text}");
    }
    for text in texts(1_001) {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("a list has over 1000 labels"), "{error}");
    }
}
