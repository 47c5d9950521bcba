//! Tests of cancellation. The number of series has no bound but memory, so that each loop over them
//! could take seconds: each checks for cancellation once per series.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firn_model::{
    CancelToken, Histogram, HistogramBucket, Labels, MixedEntry, PointValue, QueryContext,
};

use super::detail::HistogramDetail;
use super::evaluator::Evaluator;
use super::meter::{Meter, PARTS_PER_CHECK};
use super::notes::Notes;
use crate::memory::MemorySelect;
use crate::{EvalOptions, parse, plan};

const TIME: i64 = 600_000;

/// `count` series of each of three metrics: `m` and `n` are floats, `h` are histograms, and `b` are
/// buckets of which each is a classic histogram of its own.
fn store(count: usize) -> MemorySelect {
    let mut store = MemorySelect::new();
    let buckets = |count: f64| vec![HistogramBucket { index: 0, count }];
    for idx in 0..count {
        let id = format!("{idx:05}");
        let labels = |name: &str| {
            let pairs = [("__name__", name), ("id", &id), ("instance", &id), ("job", "j")];
            Labels::from_pairs(pairs).unwrap()
        };
        for (ts, value) in [(TIME - 60_000, idx as f64), (TIME, idx as f64 + 1.0)] {
            for name in ["m", "n", "target_info"] {
                store.push(&labels(name), ts, value);
            }
            store.push(&labels("b").with("le", "+Inf"), ts, value);
            let (count, sum) = (value, value);
            let histogram =
                Histogram { count, sum, positive: buckets(value), ..Histogram::empty() };
            let value = PointValue::Histogram(Arc::new(histogram));
            store.push_entry(&labels("h"), ts, MixedEntry { start: 0, value });
        }
    }
    store
}

/// The number of checks for cancellation during an evaluation, without those of reading samples.
fn checks(query: &str, series_count: usize, options: &EvalOptions) -> u64 {
    let store = store(series_count);
    let expr = parse(query).unwrap();
    let context = QueryContext::new(CancelToken::new(), QueryContext::unbounded().budget);
    expr.compile(&context).unwrap();
    let root = plan::resolve(&expr.root, options).unwrap();
    let mut evaluator = Evaluator {
        part_results: HashMap::new(),
        select: &store,
        context: &context,
        options,
        meter: Meter::new(u64::MAX, &context),
        notes: Notes::default(),
        remarks: BTreeSet::new(),
        detail: HistogramDetail::default(),
    };
    evaluator.output(&root, &options.steps()).unwrap_or_else(|e| panic!("{query}: {e}"));
    evaluator.meter.check_count()
}

/// Without a check in a loop, its query has a smaller number. Loops that only copy an index or a
/// number have none.
#[test]
fn each_loop_over_series_checks_for_cancellation() {
    const FEW: usize = 20;
    let instant = EvalOptions::instant(TIME);
    let range = EvalOptions::range(TIME - 60_000, TIME, 30_000);
    let delayed = EvalOptions { delayed_name_removal: true, ..instant };
    let mut wrong = Vec::new();
    let mut f = |options: &EvalOptions, query: &str, want: u64| {
        let more = checks(query, 2 * FEW, options) - checks(query, FEW, options);
        let got = more / FEW as u64;
        if got != want {
            wrong.push(format!("{query}: {got}, expected {want}"));
        }
    };
    // Its memory, and its points as a result.
    f(&instant, "m", 2);
    f(&instant, "m * 2", 6);
    f(&instant, "2 > m", 3);
    f(&instant, "h * 2", 6);
    f(&instant, "-h", 6);
    f(&instant, "abs(m)", 5);
    f(&instant, "hour(m)", 5);
    f(&instant, "clamp(m, 1, 2)", 6);
    f(&instant, "timestamp(-m)", 8);
    f(&instant, "scalar(m)", 2);
    f(&instant, "absent(m)", 2);
    f(&instant, "sort(m)", 3);
    f(&instant, "sort_by_label(m, 'id')", 4);
    f(&instant, "label_replace(m, 'x', '$1', 'id', '(.*)')", 5);
    f(&instant, "label_join(m, 'x', '-', 'id')", 5);
    f(&instant, "info(m)", 11);
    f(&instant, "histogram_quantile(0.5, b)", 9);
    f(&instant, "histogram_quantiles(b, 'q', 0.5)", 9);
    f(&instant, "histogram_fraction(0, 1, h)", 8);
    f(&instant, "histogram_quantile(0.5, h)", 8);
    f(&instant, "histogram_stddev(h)", 6);
    f(&instant, "rate(m[5m])", 4);
    f(&instant, "rate(m[5m]) or n", 9);
    f(&instant, "quantile_over_time(2, m[5m])", 3);
    f(&instant, "absent_over_time(m[5m])", 1);
    f(&instant, "max_over_time(abs(m)[5m:1m])", 8);
    f(&instant, "abs(m)[5m:1m]", 6);
    f(&instant, "sum by (id) (m)", 3);
    f(&instant, "sum by (id) (-m)", 10);
    f(&instant, "stddev(-m)", 5);
    f(&instant, "quantile by (id) (0.5, m)", 5);
    f(&instant, "count_values('x', m)", 6);
    f(&instant, "count_values by (id) ('x', h)", 6);
    f(&instant, "topk(100, m)", 5);
    f(&instant, "topk by (id) (200, m)", 7);
    f(&instant, "limitk(100, m)", 4);
    f(&instant, "limit_ratio(0.5, m)", 4);
    f(&instant, "sum(h)", 2);
    f(&instant, "sum by (id) (h)", 9);
    f(&instant, "count by (id) (h)", 8);
    f(&instant, "min by (id) ({__name__=~'h|m'})", 13);
    f(&instant, "m + on (id) n", 12);
    f(&instant, "m + on (id) group_left () n", 12);
    f(&instant, "h + on (id) h", 12);
    f(&instant, "m and on (id) n", 6);
    f(&instant, "m or on (id) n", 7);
    f(&instant, "m unless on (id) n", 4);
    f(&range, "m", 3);
    f(&range, "m @ 600", 4);
    f(&range, "topk(3, m)", 4);
    f(&delayed, "abs(m)", 6);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Before, a label of one series was made without a check, from a query of a megabyte.
#[test]
fn loops_over_the_parts_of_a_label_check_for_cancellation() {
    let options = EvalOptions::instant(TIME);
    let f = |query: &dyn Fn(usize) -> String, want: u64| {
        let more =
            checks(&query(3 * PARTS_PER_CHECK), 1, &options) - checks(&query(1), 1, &options);
        assert_eq!(more, want);
    };
    f(&|count| format!("label_join(m, 'x', '', {})", vec!["'a'"; count].join(", ")), 6);
    f(&|count| format!("label_replace(m, 'x', '{}', 'id', '.*')", "$1".repeat(count)), 3);
}
