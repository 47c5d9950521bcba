//! An evaluation takes no more memory than it has reserved, whatever the query: every function,
//! aggregation and operator with hostile arguments over hostile series, under an allocator that
//! counts. A function that is added to the language is covered without a change here.

use std::ops::Range;
use std::sync::Arc;

use firn_model::{
    Budget, CancelToken, Column, ColumnBatch, ColumnValues, ErrorKind, Labels, Pool, QueryContext,
    Reservation, Result, Select, Selected, Selection, Slot, Timestamp,
};
use firn_promql::{EvalOptions, Function, QueryOutput, ValueType, eval, parse};

use super::counting::counted;

/// The memory of a query.
const LIMIT_BYTES: u64 = 24 << 20;
/// Memory that no reservation counts: the state of one evaluation, buffers for one series.
const SLACK_BYTES: u64 = 512 << 10;

const SERIES: usize = 60;
const SAMPLES: i64 = 300;
const SPACING_MS: i64 = 10_000;

/// Series with long labels and a time column each; no value occurs twice.
struct HostileStore {
    series: Vec<Labels>,
}

struct HostileSeries {
    keys: Vec<Labels>,
    key_of: Vec<u32>,
    budget: Budget,
    _held: Reservation,
}

impl HostileStore {
    fn new() -> HostileStore {
        let long = "x".repeat(2_000);
        let mut series = Vec::new();
        for idx in 0..SERIES {
            let (instance, le) = (format!("i{idx}"), format!("{idx}"));
            let unique = format!("{idx}{long}");
            let common = [("job", "j"), ("instance", &*instance)];
            let own = [("__name__", "m"), ("le", &*le), ("long", &*unique), ("odd", "\u{1}\"")];
            series.push(Labels::from_pairs(common.into_iter().chain(own)).unwrap());
            let info = [("__name__", "target_info"), ("about", &*unique), ("more", &*long)];
            series.push(Labels::from_pairs(common.into_iter().chain(info)).unwrap());
        }
        HostileStore { series }
    }
}

impl Select for HostileStore {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        let is_selected = |labels: &&Labels| {
            let value = |name: &str| labels.get(name).unwrap_or("").to_owned();
            selection.matchers.iter().all(|matcher| matcher.matches(&value(matcher.name())))
        };
        let found = self.series.iter().filter(is_selected);
        let bytes: usize = found.clone().map(|labels| labels.as_encoded().len() + 64).sum();
        let held = context.budget.reserve(Pool::Query, bytes as u64)?;
        let mut keys: Vec<Labels> = Vec::new();
        let mut key_of = Vec::new();
        for labels in found {
            let key = selection.grouping.key(labels);
            let idx = keys.iter().position(|known| *known == key).unwrap_or(keys.len());
            if idx == keys.len() {
                keys.push(key);
            }
            key_of.push(idx as u32);
        }
        let budget = context.budget.clone();
        Ok(Box::new(HostileSeries { keys, key_of, budget, _held: held }))
    }
}

impl Selected for HostileSeries {
    fn keys(&self) -> &[Labels] {
        &self.keys
    }

    fn group_count(&self) -> usize {
        1
    }

    fn member_count(&self, _: usize) -> usize {
        self.key_of.len()
    }

    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>> {
        Ok(groups.map(|_| self.batch()).collect())
    }

    fn each(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&ColumnBatch) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.key_of.len() as u64 * (SAMPLES as u64 * 16 + 200);
        let _held = self.budget.reserve(Pool::Query, bytes)?;
        groups.into_iter().try_for_each(|_| each(&self.batch()))
    }
}

impl HostileSeries {
    fn batch(&self) -> ColumnBatch {
        let column = |(idx, &key): (usize, &u32)| Column {
            slot: Slot(idx as u32),
            key,
            time_idx: idx as u32,
            presence: None,
            values: ColumnValues::F64(
                (0..SAMPLES).map(|n| (n * 1_000 + idx as i64) as f64 + 0.123_456_789).collect(),
            ),
        };
        let times = |idx: usize| -> Arc<[Timestamp]> {
            (0..SAMPLES).map(|n| n * SPACING_MS + idx as i64 + 1).collect()
        };
        ColumnBatch {
            times: (0..self.key_of.len()).map(times).collect(),
            columns: self.key_of.iter().enumerate().map(column).collect(),
        }
    }
}

/// The result of a query, and the memory that it took and reserved.
struct Run {
    result: Result<QueryOutput>,
    peak_bytes: u64,
    reserved_bytes: u64,
}

fn run(store: &HostileStore, query: &str, options: &EvalOptions) -> Run {
    let expr = parse(query).unwrap_or_else(|e| panic!("{}: {e}", &query[..query.len().min(300)]));
    let budget = Budget::unlimited().part(LIMIT_BYTES);
    let context = QueryContext::new(CancelToken::new(), budget.clone());
    let (result, peak_bytes, result_bytes) = counted(|| eval(&expr, store, options, &context));
    let reserved_bytes = budget.usage().peak_bytes;
    if let Ok(output) = &result {
        let held = output.held.bytes();
        let query = &query[..query.len().min(300)];
        assert!(held + SLACK_BYTES >= result_bytes, "{query}: {result_bytes} of {held} bytes");
        assert_eq!(budget.usage().used_bytes, held, "{query}");
    }
    Run { result, peak_bytes, reserved_bytes }
}

/// Runs `query` at one time, and at more steps than a series has samples. Returns the peak of the
/// worse one.
fn check(store: &HostileStore, query: &str) -> u64 {
    let instant = EvalOptions::instant(SAMPLES * SPACING_MS / 2);
    let range = EvalOptions::range(0, SAMPLES * SPACING_MS, SPACING_MS / 4);
    let mut worst = 0;
    for options in [instant, range] {
        for delayed_name_removal in [false, true] {
            let options = EvalOptions { delayed_name_removal, ..options.clone() };
            let Run { result, peak_bytes, reserved_bytes } = run(store, query, &options);
            let query = &query[..query.len().min(300)];
            assert!(
                peak_bytes <= reserved_bytes + SLACK_BYTES,
                "{query} at {:?}: took {peak_bytes} bytes with {reserved_bytes} reserved: {:?}",
                options.step_ms,
                result.as_ref().err()
            );
            if let Err(error) = &result {
                assert!(error.to_string().len() < 3_000, "{query}: {error}");
            }
            worst = worst.max(peak_bytes);
        }
    }
    worst
}

/// Arguments of a type, the worst that a query can contain.
fn arguments(kind: ValueType) -> Vec<String> {
    let long = "y".repeat(50_000);
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    match kind {
        ValueType::Vector => list(&["m", "m @ 100", "vector(time())", "rate(m[1m])"]),
        ValueType::Matrix => {
            list(&["m[10m]", "m[1h:1s]", "m[1h:1s] @ 100", "vector(time())[1h:100ms]"])
        }
        ValueType::Scalar => list(&["0.5", "time()", "scalar(m)"]),
        ValueType::String => vec![
            format!("\"{long}\""),
            "\"long\"".into(),
            "\"instance\"".into(),
            "\"(.*)\"".into(),
            "\"$1$1$1$0\"".into(),
        ],
    }
}

/// Calls of `function` with each argument in each place, the others being the first of their type,
/// and with many arguments where the function takes any number.
fn calls(function: &Function) -> Vec<String> {
    let kinds = function.args;
    let first = |kind: &ValueType| match kind {
        ValueType::String => "\"instance\"".to_owned(),
        kind => arguments(*kind).remove(0),
    };
    let usual: Vec<String> = kinds.iter().map(first).collect();
    let call = |args: &[String]| format!("{}({})", function.name, args.join(", "));
    let mut calls = vec![call(&usual)];
    for (place, kind) in kinds.iter().enumerate() {
        for argument in arguments(*kind) {
            let mut args = usual.clone();
            args[place] = argument;
            calls.push(call(&args));
        }
    }
    if function.variadic < 0 {
        let more = vec!["\"long\"".to_owned(); 2_000];
        let mut args = usual.clone();
        args.extend(more);
        calls.push(call(&args));
        let separator = kinds.len() - 2;
        args[separator] = format!("\"{}\"", "z".repeat(50_000));
        calls.push(call(&args));
    }
    // `info` reads series by the labels of others; its second argument is a selector only.
    calls.retain(|call| !call.starts_with("info(") || !call.contains(", "));
    calls
}

#[test]
fn no_function_takes_more_memory_than_it_reserved() {
    let store = HostileStore::new();
    let mut worst = 0;
    for function in Function::all() {
        for call in calls(function) {
            match parse(&call) {
                Ok(expr) if expr.value_type() != ValueType::String => {
                    worst = worst.max(check(&store, &call));
                }
                // An argument that the type check refuses.
                _ => assert!(call.len() < 100_000, "{}", &call[..100]),
            }
        }
    }
    assert!(worst > LIMIT_BYTES / 4, "nothing was hostile: at most {worst} bytes");
}

#[test]
fn no_aggregation_and_no_operator_takes_more_memory_than_it_reserved() {
    let store = HostileStore::new();
    let names: Vec<String> = (0..500).map(|idx| format!("name_{idx}")).collect();
    let copied = format!("about, long, {}", names.join(", "));
    let names = format!("instance, {copied}");
    let params = |op: &str| match op {
        "topk" | "bottomk" | "limitk" => vec!["1, ", "1000, ", "time(), "],
        "quantile" => vec!["0.5, "],
        "limit_ratio" => vec!["0.5, ", "-0.9, "],
        "count_values" => vec!["\"v\", ", "\"instance\", "],
        _ => vec![""],
    };
    let ops = [
        "sum",
        "avg",
        "count",
        "min",
        "max",
        "group",
        "stddev",
        "stdvar",
        "topk",
        "bottomk",
        "count_values",
        "quantile",
        "limitk",
        "limit_ratio",
    ];
    for op in ops {
        for param in params(op) {
            for inner in ["m", "m @ 100", "abs(m)", "rate(m[1m])"] {
                check(&store, &format!("{op}({param}{inner})"));
                check(&store, &format!("{op} by ({names}) ({param}{inner})"));
                check(&store, &format!("{op} without (le) ({param}{inner})"));
            }
        }
    }
    for op in ["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", "<=", ">", ">="] {
        check(&store, &format!("m {op} m"));
        check(&store, &format!("m {op} time()"));
        check(&store, &format!("time() {op} m @ 100"));
        check(&store, &format!("m {op} on (instance) group_left (about, more) target_info"));
        check(&store, &format!("target_info {op} on (instance) group_right ({copied}) m"));
        check(&store, &format!("m {op} on (instance) group_left (about) m"));
        check(&store, &format!("m {op} on (long) m @ 100"));
    }
    for op in ["and", "or", "unless"] {
        check(&store, &format!("m {op} m"));
        check(&store, &format!("m {op} on (instance) target_info"));
        check(&store, &format!("m @ 100 {op} ignoring (le) target_info @ 100"));
    }
    check(&store, "-m");
    check(&store, "info(m)");
    check(&store, "info(rate(m[1m]), {about=~\".+\"})");
}

/// The refusal of a query that would take all memory: its message, after little memory.
fn refused(store: &HostileStore, query: &str) -> String {
    check(store, query);
    let Run { result, .. } = run(store, query, &EvalOptions::instant(SAMPLES * SPACING_MS / 2));
    let error = result.err().unwrap_or_else(|| panic!("{}", &query[..query.len().min(300)]));
    assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge), "{error}");
    error.to_string()
}

/// Each of these took hundreds of megabytes to hundreds of gigabytes.
#[test]
fn labels_that_would_be_too_long_are_refused_before_they_are_built() {
    let store = HostileStore::new();
    let sources = ", \"instance\"".repeat(40_000);
    let separator = "s".repeat(500_000);
    let error = refused(&store, &format!("label_join(m, \"a\", \"{separator}\"{sources})"));
    assert!(error.contains("over the limit of 4096 (--label-value-bytes-max)"), "{error}");

    let template = "t".repeat(100_000);
    let replace = |template: &str, pattern: &str| {
        format!("label_replace(m, \"a\", \"{template}\", \"long\", \"{pattern}\")")
    };
    let error = refused(&store, &replace(&template, "(.*)"));
    assert!(error.contains("would make a value of 100000 bytes for label \"a\""), "{error}");
    let error = refused(&store, &replace(&"$1".repeat(50_000), "(.*)"));
    assert!(error.contains("(--label-value-bytes-max)"), "{error}");

    let error = refused(&store, &replace("$1", &"(a)?".repeat(14_000)));
    assert!(error.contains("has 14000 capture groups, at most 100"), "{error}");
    for pattern in [r"((\\pL){0,31}){0,32}", r"(\\pL{0,31}){0,32}"] {
        let error = refused(&store, &replace("$1", pattern));
        assert!(error.contains("compiles to more than"), "{error}");
    }
    let classes = r"\\pL\\W".repeat(3_000);
    check(&store, &replace("$1", &classes));

    let name = "n".repeat(100_000);
    for query in [
        format!("label_join(m, \"{name}\", \"\", \"long\")"),
        format!("label_replace(m, \"{name}\", \"x\", \"\", \"\")"),
        format!("count_values(\"{name}\", m)"),
        format!("histogram_quantiles(m, \"{name}\", 0.5, 0.9)"),
    ] {
        let error = refused(&store, &query);
        assert!(error.contains("(--label-name-bytes-max)"), "{error}");
    }
}

/// Columns of steps, of which a short query can request any number.
#[test]
fn grids_and_repeated_values_are_reserved_before_they_are_computed() {
    let store = HostileStore::new();
    let long_range = EvalOptions::range(0, 40_000_000, 1);
    for query in [
        "max_over_time(vector(time())[12h:1ms])",
        "max_over_time(vector(scalar(m))[5m:1ms])",
        "sum_over_time(m[1h:1ms])",
        "vector(1)[12h:1ms]",
    ] {
        check(&store, query);
    }
    for query in ["time()", "m @ 100", "vector(1)", "1 + 2", "count_values(\"v\", m)", "absent(x)"]
    {
        let Run { result, peak_bytes, reserved_bytes } = run(&store, query, &long_range);
        assert!(peak_bytes <= reserved_bytes + SLACK_BYTES, "{query}: {peak_bytes} bytes");
        assert!(result.is_err(), "{query}");
    }
    // Raw samples are results too.
    let two_megabytes = run(&store, "m[1d]", &EvalOptions::instant(SAMPLES * SPACING_MS));
    let held = two_megabytes.result.unwrap().held.bytes();
    assert!(held >= SERIES as u64 * (SAMPLES as u64 - 1) * 16, "{held}");
    check(&store, "m[1d]");
}

/// One annotation per series is possible, of which a response contains ten.
#[test]
fn annotations_of_many_series_are_bounded() {
    let mut store = HostileStore::new();
    let bound = "not a number".repeat(300);
    for idx in 0..2_000 {
        let bound = format!("{idx} {bound}");
        let pairs = [("__name__", "b"), ("le", &*bound)];
        store.series.push(Labels::from_pairs(pairs).unwrap());
    }
    let options = EvalOptions::instant(SAMPLES * SPACING_MS / 2);
    let expr = parse("histogram_quantile(0.5, b)").unwrap();
    let output = eval(&expr, &store, &options, &QueryContext::unbounded()).unwrap();
    let count = output.annotations.warnings().count();
    let bytes: usize = output.annotations.warnings().map(|text| text.len()).sum();
    assert!((11..2_000).contains(&count) && bytes < 1 << 20, "{count} of {bytes} bytes");
}
