//! Values that generated cases found to differ from Prometheus 3.15.

use firn_model::{Labels, MixedEntry, PointValue, QueryContext};
use firn_promql::{EvalOptions, Value, eval, parse};
use firn_promqltest::MemorySelect;

/// The texts of the points and annotations of `query`.
fn run(store: &MemorySelect, query: &str, options: &EvalOptions) -> String {
    let expr = parse(query).expect(query);
    let output = eval(&expr, store, options, &QueryContext::unbounded()).expect(query);
    let points: Vec<String> = match output.value {
        Value::Vector(points) => {
            points.iter().map(|one| format!("{} {:?}", one.labels, one.value)).collect()
        }
        Value::Matrix(series) => series.iter().map(|one| format!("{:?}", one.floats)).collect(),
        other => vec![format!("{other:?}")],
    };
    let notes: Vec<String> = output.annotations.warnings().collect();
    [points, notes].concat().join("; ")
}

/// The value before the first sample was subtracted at the end there, and never here.
#[test]
fn sums_of_a_counter_with_a_known_start_have_the_order_of_prometheus() {
    let mut store = MemorySelect::new();
    let labels = Labels::from_pairs([("__name__", "a_total")]).unwrap();
    for (ts, value, start) in
        [(15_000, -1e308, 13_000), (30_000, 1e100, 0), (45_000, 1e100, 0), (60_000, -6e10, 0)]
    {
        store.push_entry(&labels, ts, MixedEntry { start, value: PointValue::Float(value) });
    }
    let got = run(&store, "increase(a_total[1m])", &EvalOptions::instant(60_001));
    assert_eq!(got, "{} Float(0.0)");
}

#[test]
fn a_range_of_one_instant_has_no_step() {
    let store = MemorySelect::new();
    let got = |end| run(&store, "vector(step())", &EvalOptions::range(15_000, end, 15_000));
    assert!(got(15_000).contains("value: 0.0"), "{}", got(15_000));
    assert!(got(15_001).contains("value: 15.0"), "{}", got(15_001));
}

#[test]
fn bounds_of_buckets_are_numbers_of_go() {
    let mut store = MemorySelect::new();
    for (bound, count) in [("1_0", 1.0), ("1e400", 2.0), ("NaN", 2.0), ("+nan", 2.0), ("+Inf", 4.0)]
    {
        let labels = Labels::from_pairs([("__name__", "b"), ("le", bound)]).unwrap();
        store.push(&labels, 0, count);
    }
    let got = run(&store, "histogram_quantile(0.25, b)", &EvalOptions::instant(0));
    assert!(got.starts_with("{} Float(10.0); "), "{got}");
    for wrong in ["1e400", "NaN", "+nan"] {
        let text = format!("malformed value of \"{wrong}\" (1:26)");
        assert!(got.contains(&text), "{got}");
    }
    assert_eq!(got.matches("malformed").count(), 3, "{got}");
}

/// A series with start timestamps had no values at the ends of its window.
#[test]
fn extended_windows_do_not_depend_on_start_timestamps() {
    let got = |start: i64, query: &str| {
        let mut store = MemorySelect::new();
        let labels = Labels::from_pairs([("__name__", "m")]).unwrap();
        for (ts, value) in [(0, 0.0), (20_000, 2.0), (60_000, 6.0)] {
            store.push_entry(&labels, ts, MixedEntry { start, value: PointValue::Float(value) });
        }
        run(&store, query, &EvalOptions::instant(30_000))
    };
    for query in ["m[15s] smoothed", "m[15s] anchored"] {
        assert_eq!(got(-5_000, query), got(0, query));
        assert_eq!(got(0, query).matches("ts: ").count(), 3, "{}", got(0, query));
    }
}
