//! Selections pushed down to storage: exact ranges, and groupings only if they do not change the
//! result.

use std::sync::{Arc, Mutex};

use firn_model::{
    Grouping, Histogram, HistogramBucket, Labels, MixedEntry, PointValue, QueryContext, Result,
    Select, Selected, Selection, TimeRange,
};
use firn_promql::{EvalOptions, QueryOutput, eval, parse, selections};
use firn_promqltest::MemorySelect;

/// Storage that records its selections.
struct Recorder {
    store: MemorySelect,
    asked: Mutex<Vec<Selection>>,
}

impl Select for Recorder {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        self.asked.lock().unwrap().push(selection.clone());
        self.store.select(selection, context)
    }
}

fn recorder() -> Recorder {
    let mut store = MemorySelect::new();
    for name in ["a_total", "b_total"] {
        for (idx, instance) in ["1", "2", "3"].iter().enumerate() {
            let pairs = [
                ("__name__", name),
                ("job", "j"),
                ("instance", instance),
                ("__type__", if idx == 0 { "counter" } else { "gauge" }),
            ];
            let labels = Labels::from_pairs(pairs).unwrap();
            for step in 0..60 {
                store.push(&labels, step * 15_000, (step * (idx as i64 + 2) % 37) as f64 / 3.0);
            }
        }
    }
    let labels = [("__name__", "h_total"), ("job", "j"), ("instance", "1")];
    for (labels, factor) in [(labels, 1.0), ([labels[0], labels[1], ("instance", "2")], 2.0)] {
        let labels = Labels::from_pairs(labels).unwrap();
        for step in 0..60 {
            let count = factor * step as f64;
            let positive = vec![HistogramBucket { index: 1, count }];
            let histogram = Histogram { count, sum: count, positive, ..Histogram::empty() };
            let value = PointValue::Histogram(Arc::new(histogram));
            store.push_entry(&labels, step * 15_000, MixedEntry { start: 0, value });
        }
    }
    Recorder { store, asked: Mutex::default() }
}

fn run(query: &str, options: &EvalOptions) -> (Vec<Selection>, Result<QueryOutput>) {
    let recorder = recorder();
    let expr = parse(query).unwrap();
    let output = eval(&expr, &recorder, options, &QueryContext::unbounded());
    (recorder.asked.into_inner().unwrap(), output)
}

#[test]
fn groupings_are_pushed_down_only_if_the_result_stays() {
    let by = |names: &[&str]| Grouping::By(names.iter().map(|n| (*n).to_owned()).collect());
    let f = |query: &str| run(query, &EvalOptions::instant(600_000)).0[0].grouping.clone();
    assert_eq!(f("sum by (job) (a_total)"), by(&["job"]));
    assert_eq!(f("max(rate(a_total[5m]))"), by(&[]));
    assert_eq!(f("sum by (__type__, job) (rate(a_total[5m]))"), by(&["job"]));
    assert!(matches!(f("avg without (instance) (rate(a_total[5m]))"), Grouping::Without(names)
        if names.contains(&"instance".to_owned()) && names.contains(&"__type__".to_owned())));
    // Two names may collide, which must be detected.
    assert_eq!(f("sum(rate({job=\"j\"}[5m]))"), Grouping::Series);
    assert_eq!(f("topk(1, a_total)"), Grouping::Series);
    assert_eq!(f("count_values(\"v\", a_total)"), Grouping::Series);
    assert_eq!(f("sum(abs(a_total))"), Grouping::Series);
    assert_eq!(f("rate(a_total[5m])"), Grouping::Series);
}

#[test]
fn results_are_the_same_without_groupings() {
    let queries = [
        "sum by (job) (a_total)",
        "sum by (__name__, job) ({job=\"j\"})",
        "avg without (instance) (rate(a_total[5m]))",
        "stddev by (__type__) (increase(b_total[3m]))",
        "quantile by (instance) (0.7, last_over_time(a_total[2m]))",
        "count(sum_over_time(a_total[2m] @ 300))",
        "group without () (b_total)",
        "sum by (job) (h_total)",
        "avg(rate(h_total[2m]))",
        "max by (instance) ({job=\"j\"})",
        "sum by (instance) ({__name__=~\"h_total|a_total\"})",
    ];
    for query in queries {
        for delayed_name_removal in [false, true] {
            for options in [EvalOptions::instant(600_000), EvalOptions::range(0, 900_000, 45_000)] {
                let options = EvalOptions { delayed_name_removal, ..options };
                let with = run(query, &options).1.map_err(|error| error.to_string());
                let store = recorder().store;
                let context = QueryContext::unbounded();
                let expr = parse(query).unwrap();
                let without = eval(&expr, &Ungrouped(&store), &options, &context)
                    .map_err(|error| error.to_string());
                assert_eq!(with, without, "{query}");
            }
        }
    }
}

/// Answers a grouping with one key per series that has the group's labels: the finest grouping that
/// storage may return.
struct Ungrouped<'a>(&'a MemorySelect);

struct FinerGrouping {
    keys: Vec<Labels>,
    inner: Box<dyn Selected>,
}

impl Select for Ungrouped<'_> {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        let by_series = Selection { grouping: Grouping::Series, ..selection.clone() };
        let inner = self.0.select(&by_series, context)?;
        let keys = inner.keys().iter().map(|labels| selection.grouping.key(labels)).collect();
        Ok(Box::new(FinerGrouping { keys, inner }))
    }
}

impl Selected for FinerGrouping {
    fn keys(&self) -> &[Labels] {
        &self.keys
    }

    fn group_count(&self) -> usize {
        self.inner.group_count()
    }

    fn read(&self, groups: std::ops::Range<usize>) -> Result<Vec<firn_model::ColumnBatch>> {
        self.inner.read(groups)
    }
}

#[test]
fn ranges_are_exact() {
    let f = |query: &str, options: &EvalOptions| -> Vec<TimeRange> {
        let planned: Vec<_> = selections(&parse(query).unwrap(), options)
            .unwrap()
            .into_iter()
            .map(|selection| selection.range)
            .collect();
        let read: Vec<_> = run(query, options).0.into_iter().map(|s| s.range).collect();
        assert_eq!(planned, read, "the query reads exactly the planned selections: {query}");
        planned
    };
    let at = EvalOptions::instant(600_000);
    let range = EvalOptions::range(600_000, 900_000, 60_000);
    assert_eq!(f("a_total", &at), [TimeRange::new(300_001, 600_000)]);
    assert_eq!(f("a_total", &range), [TimeRange::new(300_001, 900_000)]);
    assert_eq!(f("rate(a_total[1m])", &range), [TimeRange::new(540_001, 900_000)]);
    assert_eq!(f("a_total offset 1m", &at), [TimeRange::new(240_001, 540_000)]);
    assert_eq!(f("rate(a_total[1m] @ 100 offset -1m)", &at), [TimeRange::new(100_001, 160_000)]);
    assert_eq!(
        f("max_over_time(rate(a_total[1m])[5m:2m])", &at),
        [TimeRange::new(300_001, 600_000)]
    );
    assert_eq!(f("a_total @ end() + b_total @ start()", &range).len(), 2);
    assert_eq!(f("rate(a_total[1m] smoothed)", &at), [TimeRange::new(240_001, 900_000)]);
}
