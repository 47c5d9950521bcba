//! Runs a script. Each case is evaluated in every way that must return the same result.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use firn_model::{Labels, MixedEntry, QueryContext};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{
    At, EvalOptions, MemorySelect, Node, NodeKind, PointValue, QueryOutput, Value, VectorPoint,
    eval, parse,
};

use super::check::{self, Verdict};
use super::histogram;
use super::script::{self, Case, CommandKind, EvalTime};

/// The result of a script. A case is *native* if it expects native histograms or its query names a
/// metric that was loaded with some.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Passed cases without native histograms.
    pub float_passed: usize,
    /// All cases without native histograms.
    pub float_count: usize,
    /// Passed cases with native histograms.
    pub native_passed: usize,
    /// All cases with native histograms.
    pub native_count: usize,
    /// The failed cases.
    pub failures: Vec<Failure>,
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The line at which the case starts.
    pub line: usize,
    /// Whether it is a native case.
    pub is_native: bool,
    /// Its query.
    pub query: String,
    /// The difference from the expectation.
    pub reason: String,
}

impl Report {
    /// Adds the results of another script.
    pub fn add(&mut self, other: &Report) {
        self.float_passed += other.float_passed;
        self.float_count += other.float_count;
        self.native_passed += other.native_passed;
        self.native_count += other.native_count;
        self.failures.extend(other.failures.iter().cloned());
    }
}

/// The sample limit per query that the scripts assume.
const SAMPLES_MAX: u64 = 10_000;

/// Runs all cases of a script against a [`MemorySelect`] of its own.
///
/// # Errors
/// A script that does not follow the grammar, with the line.
pub fn run_script(text: &str) -> Result<Report, String> {
    let mut report = Report::default();
    let mut store = MemorySelect::new();
    let mut native_names: HashSet<String> = HashSet::new();
    for command in script::parse(text)? {
        match command.kind {
            CommandKind::Clear => {
                store.clear();
                native_names.clear();
            }
            CommandKind::Load { step_ms, folds_buckets, series } => {
                for line in series.iter().filter(|line| line.has_histogram()) {
                    native_names.insert(line.labels.metric_name().to_owned());
                }
                load(&series, step_ms, &mut store)
                    .map_err(|error| format!("line {}: {error}", command.line))?;
                if folds_buckets {
                    let folded = histogram::fold(&series, step_ms)
                        .map_err(|error| format!("line {}: {error}", command.line))?;
                    for (labels, ts, histogram) in folded {
                        native_names.insert(labels.metric_name().to_owned());
                        let value = PointValue::Histogram(Arc::new(histogram));
                        store.push_entry(&labels, ts, MixedEntry { start: 0, value });
                    }
                }
            }
            CommandKind::Eval(case) => {
                let is_native = is_native(&case, &native_names);
                let verdict = run_case(&case, &store);
                let (passed, count) = match is_native {
                    true => (&mut report.native_passed, &mut report.native_count),
                    false => (&mut report.float_passed, &mut report.float_count),
                };
                *count += 1;
                match verdict {
                    Ok(()) => *passed += 1,
                    Err(reason) => report.failures.push(Failure {
                        line: command.line,
                        is_native,
                        query: case.query.clone(),
                        reason,
                    }),
                }
            }
        }
    }
    Ok(report)
}

/// A series of a load block.
struct LoadedSeries<'a> {
    items: &'a [SeriesItem],
    starts: Option<&'a [Option<i64>]>,
}

/// Loads the lines of a block; the last line for a series wins.
fn load(lines: &[SeriesLine], step_ms: i64, store: &mut MemorySelect) -> Result<(), String> {
    let mut last: BTreeMap<&Labels, LoadedSeries<'_>> = BTreeMap::new();
    let mut before: Option<&SeriesLine> = None;
    for line in lines {
        if line.starts.is_none() {
            let starts = before
                .filter(|before| before.labels == line.labels)
                .and_then(|before| before.starts.as_deref());
            if starts.is_some_and(|starts| starts.len() != line.items.len()) {
                return Err(format!(
                    "{}: the numbers of start timestamps and values differ",
                    line.labels
                ));
            }
            last.insert(&line.labels, LoadedSeries { items: &line.items, starts });
        }
        before = Some(line);
    }
    for (labels, LoadedSeries { items, starts }) in last {
        for (idx, item) in items.iter().enumerate() {
            let ts = idx as i64 * step_ms;
            let value = match item {
                SeriesItem::Gap => continue,
                SeriesItem::Float(value) => PointValue::Float(*value),
                SeriesItem::Histogram(written) => {
                    PointValue::Histogram(Arc::clone(&written.histogram))
                }
            };
            let start = starts.and_then(|starts| starts[idx]).map_or(0, |offset| ts + offset);
            store.push_entry(labels, ts, MixedEntry { start, value });
        }
    }
    Ok(())
}

fn is_native(case: &Case, names: &HashSet<String>) -> bool {
    let is_word = |c: char| c == '_' || c == ':' || c.is_ascii_alphanumeric();
    case.series.iter().any(SeriesLine::has_histogram)
        || case.query.split(|c| !is_word(c)).any(|word| names.contains(word))
}

/// The functions with a value that depends on the evaluation time itself.
const TIME_FUNCTIONS: [&str; 15] = [
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "days_in_month",
    "hour",
    "minute",
    "month",
    "year",
    "predict_linear",
    "time",
    "timestamp",
    "start",
    "end",
    "step",
    "range",
];

fn run_case(case: &Case, store: &MemorySelect) -> Verdict {
    let EvalTime::Instant(time) = case.when else { return run_range(case, store) };
    let mut asked = vec![(case.query.clone(), time)];
    if let Ok(expr) = parse(&case.query)
        && !calls_any(&expr.root, &TIME_FUNCTIONS)
    {
        let mut pinned = expr.clone();
        pin(&mut pinned.root, time);
        let text = pinned.to_string();
        let times = match time {
            0 => vec![-1_000, 0, 1_000],
            t => vec![-10 * t, 0, t / 5, t, 10 * t],
        };
        asked.extend(times.into_iter().map(|time| (text.clone(), time)));
    }
    for (query, time) in &asked {
        run_instant(case, store, query, *time)
            .map_err(|reason| format!("{query} at {time} ms: {reason}"))?;
    }
    Ok(())
}

fn options(base: EvalOptions) -> EvalOptions {
    EvalOptions {
        samples_max: SAMPLES_MAX,
        delayed_name_removal: true,
        start_timestamps: true,
        ..base
    }
}

fn evaluate(store: &MemorySelect, query: &str, base: EvalOptions) -> Result<QueryOutput, String> {
    let expr = parse(query).map_err(|error| error.to_string())?;
    eval(&expr, store, &options(base), &QueryContext::unbounded())
        .map_err(|error| error.what().to_owned())
}

/// Compares success or failure with the expectation; returns the result to check further, if any.
fn expect_outcome(
    case: &Case,
    outcome: Result<QueryOutput, String>,
) -> Result<Option<QueryOutput>, String> {
    match (&case.fails, outcome) {
        (None, Ok(output)) => Ok(Some(output)),
        (None, Err(error)) => Err(format!("failed: {error}")),
        (Some(_), Ok(_)) => Err("did not fail".to_owned()),
        (Some(wording), Err(error)) if wording.fits(&error) => Ok(None),
        (Some(wording), Err(error)) => Err(format!("failed with {error:?}, expected {wording:?}")),
    }
}

fn run_instant(case: &Case, store: &MemorySelect, query: &str, time: i64) -> Verdict {
    let Some(output) = expect_outcome(case, evaluate(store, query, EvalOptions::instant(time)))?
    else {
        return Ok(());
    };
    check::annotations(case, &output.annotations)?;
    check::value(case, &output.value)?;
    let about_query = ["start()", "end()", "range()", "step()"];
    if case.text.is_some()
        || case.range_vector.is_some()
        || about_query.iter().any(|call| query.contains(call))
    {
        return Ok(());
    }
    let range = EvalOptions::range(time - 60_000, time + 60_000, 60_000);
    let output =
        evaluate(store, query, range).map_err(|error| format!("failed as range query: {error}"))?;
    if case.ordered {
        return Ok(());
    }
    middle(case, &output.value, time).map_err(|reason| format!("as range query: {reason}"))
}

/// The point at `time` of a range query's result.
fn middle(case: &Case, value: &Value, time: i64) -> Verdict {
    let Value::Matrix(matrix) = value else { return Err("no matrix".to_owned()) };
    let points: Vec<VectorPoint> = matrix
        .iter()
        .filter_map(|series| {
            let (_, value) = check::series_points(series).into_iter().find(|p| p.0 == time)?;
            Some(VectorPoint { labels: series.labels.clone(), ts: time, value })
        })
        .collect();
    match (case.scalar, points.as_slice()) {
        (Some(_), [VectorPoint { labels, value: PointValue::Float(value), .. }])
            if *labels == Labels::empty() =>
        {
            check::scalar(case, *value)
        }
        (Some(wanted), points) => Err(format!("got {points:?}, expected scalar {wanted}")),
        (None, points) => check::vector(case, points),
    }
}

fn run_range(case: &Case, store: &MemorySelect) -> Verdict {
    let EvalTime::Range { start, end, step_ms } = case.when else { return Ok(()) };
    let outcome = evaluate(store, &case.query, EvalOptions::range(start, end, step_ms));
    let Some(output) = expect_outcome(case, outcome)? else { return Ok(()) };
    check::annotations(case, &output.annotations)?;
    check::value(case, &output.value)
}

/// Whether a function of `names` is called below `node`.
fn calls_any(node: &Node, names: &[&str]) -> bool {
    let below = |node: &Node| calls_any(node, names);
    match &node.kind {
        NodeKind::Call { function, args } => {
            names.contains(&function.name) || args.iter().any(below)
        }
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => below(inner),
        NodeKind::Subquery(subquery) => below(&subquery.expr),
        NodeKind::Binary(binary) => below(&binary.lhs) || below(&binary.rhs),
        NodeKind::Aggregate(aggregate) => {
            below(&aggregate.expr) || aggregate.param.as_ref().is_some_and(below)
        }
        _ => false,
    }
}

/// Adds `@ time` to every selector and subquery without `@`, except inside subqueries.
fn pin(node: &mut Node, time: i64) {
    let at = Some(At::Time(time));
    match &mut node.kind {
        NodeKind::Selector(selector) => selector.at = selector.at.or(at),
        NodeKind::Matrix(matrix) => matrix.selector.at = matrix.selector.at.or(at),
        NodeKind::Subquery(subquery) => subquery.at = subquery.at.or(at),
        NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => pin(inner, time),
        NodeKind::Binary(binary) => {
            pin(&mut binary.lhs, time);
            pin(&mut binary.rhs, time);
        }
        NodeKind::Aggregate(aggregate) => {
            aggregate.param.iter_mut().for_each(|param| pin(param, time));
            pin(&mut aggregate.expr, time);
        }
        NodeKind::Call { args, .. } => args.iter_mut().for_each(|arg| pin(arg, time)),
        NodeKind::Number { .. } | NodeKind::String(_) => {}
    }
}
