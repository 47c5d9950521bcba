//! Two series of a result with the same labels at one step are an error, as in Prometheus, in
//! instant and in range queries.

use firn_model::{Labels, QueryContext};
use firn_promql::{EvalOptions, Value, eval, parse, prepare};
use firn_promqltest::MemorySelect;

const END: i64 = 120_000;

/// Two metrics with equal labels, as gauges and as classic histograms.
fn store() -> MemorySelect {
    let mut store = MemorySelect::new();
    for name in ["a", "b"] {
        for step in 0..=8 {
            let (ts, value) = (step * 15_000, step as f64);
            let labels = |pairs: &[(&str, &str)]| {
                let name = [("__name__", name)].into_iter();
                Labels::from_pairs(name.chain(pairs.iter().copied())).unwrap()
            };
            store.push(&labels(&[("x", "1")]), ts, value);
            store.push(&labels(&[("x", "1"), ("q", "0.5"), ("le", "1")]), ts, value);
            store.push(&labels(&[("x", "1"), ("q", "0.5"), ("le", "+Inf")]), ts, value * 2.0);
        }
    }
    store
}

fn check(query: &str, is_error: bool) {
    for options in [EvalOptions::instant(END), EvalOptions::range(END - 60_000, END, 15_000)] {
        let output = eval(&parse(query).unwrap(), &store(), &options, &QueryContext::unbounded());
        let error = output.err().map(|error| error.to_string());
        let want = is_error.then_some("vector cannot contain metrics with the same labelset");
        assert_eq!(error.as_deref(), want, "{query}");
    }
}

#[test]
fn functions_that_drop_the_name_or_a_label_find_equal_series() {
    for query in [
        "abs({x=\"1\",le=\"\"})",
        "-{x=\"1\",le=\"\"}",
        "{x=\"1\",le=\"\"} + 1",
        "{x=\"1\",le=\"\"} > bool 0",
        "rate({x=\"1\",le=\"\"}[1m])",
        "quantile_over_time(0.5, {x=\"1\",le=\"\"}[1m])",
        "timestamp({x=\"1\",le=\"\"})",
        "max_over_time((-{x=\"1\",le=\"\"})[1m:15s])",
        "sum(-{x=\"1\",le=\"\"})",
        "-{x=\"1\",le=\"\"} or vector(1)",
        "label_replace({x=\"1\",le=\"\"}, \"__name__\", \"c\", \"\", \"\")",
        "label_join({le!=\"\",__name__=\"a\"}, \"le\", \"\", \"none\")",
        "histogram_quantile(0.5, {x=\"1\",le!=\"\"})",
        "sum(histogram_quantile(0.5, {x=\"1\",le!=\"\"}))",
        "histogram_fraction(0, 1, {x=\"1\",le!=\"\"})",
        "histogram_quantiles({x=\"1\",le!=\"\"}, \"p\", 0.5, 0.9)",
        // The same quantile twice, in any spelling.
        "histogram_quantiles(a{le!=\"\"}, \"p\", 0.5, 0.50)",
        "histogram_quantiles(a{le!=\"\"}, \"p\", NaN, NaN)",
    ] {
        check(query, true);
    }
}

#[test]
fn functions_that_keep_the_name_do_not() {
    for query in [
        "+{x=\"1\",le=\"\"}",
        "{x=\"1\",le=\"\"} >= 0",
        "last_over_time({x=\"1\",le=\"\"}[1m])",
        "sort({x=\"1\",le=\"\"})",
        "topk(2, {x=\"1\",le=\"\"})",
        "{x=\"1\",le=\"\"} and {x=\"1\",le=\"\"}",
        "count_values(\"x\", {x=\"1\",le=\"\"})",
        "a{le=\"\"} * on (x) b{le=\"\"}",
        // The label of the quantile replaces one of the series.
        "histogram_quantiles(a{le!=\"\"}, \"q\", 0.5, 0.9)",
    ] {
        check(query, false);
    }
}

/// A value with a byte that is no text selected the series with the replacement character.
#[test]
fn a_matcher_that_is_not_utf8_equals_no_label() {
    let mut store = MemorySelect::new();
    for value in ["\u{fffd}", "x", ""] {
        store.push(&Labels::from_pairs([("__name__", "m"), ("a", value)]).unwrap(), 0, 1.0);
    }
    let count = |query: &str| {
        let options = EvalOptions::instant(0);
        let output = eval(&parse(query).unwrap(), &store, &options, &QueryContext::unbounded());
        let Value::Vector(vector) = output.unwrap().value else { panic!("no vector") };
        vector.len()
    };
    for (query, want) in [
        ("m{a=\"\u{fffd}\"}", 1),
        (r#"m{a="\xff"}"#, 0),
        (r#"m{a="x\xff"}"#, 0),
        (r#"m{a!="\xff"}"#, 3),
    ] {
        assert_eq!(count(query), want, "{query}");
    }
    for query in [r#"m{a=~"\xff"}"#, r#"m{a!~"x|\xff"}"#] {
        let error = parse(query).unwrap_err().to_string();
        assert!(error.contains("error parsing regexp: invalid UTF-8: "), "{error}");
    }
    let all = prepare(r#"{a!="\xff"}"#, &QueryContext::unbounded());
    assert!(all.is_err(), "it selects all series");
}
