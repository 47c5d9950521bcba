//! The samples that each step of a query reads, counted as in Prometheus: one series with a sample
//! every 10 s, and three such series.

use firn_model::{Labels, QueryContext};
use firn_promql::{EvalOptions, SampleStats, eval, parse};
use firn_promqltest::MemorySelect;

fn store() -> MemorySelect {
    let mut store = MemorySelect::new();
    let mut add = |pairs: &[(&str, &str)]| {
        let labels = Labels::from_pairs(pairs.iter().copied()).expect("labels");
        (0..=10_000).for_each(|idx| store.push(&labels, idx * 10_000, idx as f64));
    };
    add(&[("__name__", "one")]);
    ["a", "b", "c"].iter().for_each(|x| add(&[("__name__", "three"), ("x", x)]));
    store
}

fn samples(query: &str, options: EvalOptions) -> SampleStats {
    let options = EvalOptions { counts_samples: true, ..options };
    let expr = parse(query).expect(query);
    let output = eval(&expr, &store(), &options, &QueryContext::unbounded()).expect(query);
    assert!(output.samples_peak > 0 && output.samples_read > 0, "{query}");
    output.samples.expect("asked for")
}

#[test]
fn instant_queries_count_points_and_windows() {
    let f = |query: &str, queryable: u64, read: u64| {
        let stats = samples(query, EvalOptions::instant(201_000));
        assert_eq!((stats.queryable(), stats.read()), (queryable, read), "{query}");
        assert_eq!(stats.queryable_per_step, [queryable]);
    };
    f("one", 1, 1);
    f("three", 3, 3);
    f("timestamp(one)", 1, 1);
    f("one[60s]", 6, 6);
    f("max_over_time(one[60s])", 6, 6);
    f("max_over_time(one[60s] @ 30)", 4, 4);
    f("sum by (x) (max_over_time(three[60s]))", 18, 18);
    f("one[60s:10s]", 6, 6);
    f("max_over_time(one[60s:10s])", 6, 6);
    f("max_over_time(one[59s])[20s:5s]", 24, 8);
    f("one + three * 0 or one", 5, 5);
}

#[test]
fn range_queries_count_each_step_whole_and_read_once() {
    let f = |query: &str, queryable: &[u64], read: &[u64]| {
        let stats = samples(query, EvalOptions::range(201_000, 220_000, 5_000));
        assert_eq!(stats.queryable_per_step, queryable, "{query}");
        assert_eq!(stats.read_per_step, read, "{query}");
    };
    f("one", &[1; 4], &[1; 4]);
    f("three", &[3; 4], &[3; 4]);
    f("one @ 100", &[1; 4], &[1, 0, 0, 0]);
    f("max_over_time(one[20s])", &[2; 4], &[2, 0, 1, 0]);
    f("max_over_time(one[60s])", &[6; 4], &[6, 0, 1, 0]);
    f("sum(max_over_time(three[60s] @ 30))", &[12; 4], &[12, 0, 0, 0]);
    // The grid has points at 185, 190, 195, 200, then one more for each step.
    f("max_over_time(one[20s:5s])", &[4; 4], &[4, 1, 1, 1]);
}
