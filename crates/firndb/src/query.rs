//! The query path: parse, freeze a view, evaluate.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use firn_cache::{QueryRange, TextTicket};
use firn_model::{
    CancelToken, Error, LabelLimits, Labels, Matcher, Pool, QueryContext, Reservation, Result,
    TimeRange, Timestamp,
};
use firn_promql::{EvalOptions, PartResult, QueryOutput};

use crate::results::{QueryReply, RangeQuery};
use crate::{Cardinality, Db, History, Snapshot};

/// The evaluation times of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryTime {
    /// Once.
    Instant(Timestamp),
    /// At `start`, `start + step_ms`, ... up to `end`.
    Range {
        /// The first time.
        start: Timestamp,
        /// The last possible time.
        end: Timestamp,
        /// The interval, above 0.
        step_ms: i64,
    },
}

/// The limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct QueryOptions {
    /// Milliseconds before each step in which a selector looks for a sample.
    pub lookback_ms: i64,
    /// The maximum number of samples in memory at one time.
    pub samples_max: u64,
    /// Whether to count the samples of each step; see [`QueryOutput::samples`]. Cached steps count
    /// none.
    pub counts_samples: bool,
    /// The longest names and values of labels that functions such as `label_join` may make.
    pub labels_max: LabelLimits,
    /// The step of subqueries without a step of their own, in milliseconds, above 0. The result
    /// cache serves queries with the default only.
    pub subquery_step_ms: i64,
}

// As in Prometheus without a configuration.
const SUBQUERY_STEP_MS: i64 = 60_000;

impl Default for QueryOptions {
    fn default() -> QueryOptions {
        QueryOptions {
            lookback_ms: 5 * 60_000,
            samples_max: 50_000_000,
            counts_samples: false,
            labels_max: LabelLimits::default(),
            subquery_step_ms: SUBQUERY_STEP_MS,
        }
    }
}

/// Evaluates a parsed expression while the log is replayed ([`crate::RecoveryProgress::history`]).
/// `None` if the result depends on rows of the log.
///
/// # Errors
/// As [`Db::query`].
pub fn evaluate_history(
    history: &History,
    expr: &firn_promql::Expr,
    time: QueryTime,
    options: &QueryOptions,
    context: &QueryContext,
) -> Result<Option<QueryOutput>> {
    expr.compile(context)?;
    let view = history.view();
    let output = firn_promql::eval(expr, &view, &eval_options(time, options), context);
    if view.needs_log() { Ok(None) } else { output.map(Some) }
}

fn eval_options(time: QueryTime, options: &QueryOptions) -> EvalOptions {
    let times = match time {
        QueryTime::Instant(ts) => EvalOptions::instant(ts),
        QueryTime::Range { start, end, step_ms } => EvalOptions::range(start, end, step_ms),
    };
    EvalOptions {
        lookback_ms: options.lookback_ms,
        samples_max: options.samples_max,
        counts_samples: options.counts_samples,
        labels_max: options.labels_max,
        subquery_step_ms: options.subquery_step_ms.max(1),
        ..times
    }
}

impl Db {
    /// Evaluates a PromQL query over one frozen view.
    ///
    /// # Errors
    /// `Invalid` with line and column for a text that does not parse, `Invalid` without them for
    /// one that cannot be evaluated, `TooLarge` over a limit, `Timeout`, `Canceled`, and errors of
    /// storage.
    ///
    /// ```
    /// use firndb::{Db, Labels, Options, QueryOptions, QueryTime, Value, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
    /// db.put(&labels, 1_000, 21.5)?;
    /// db.put(&labels, 61_000, 22.5)?;
    ///
    /// let time = QueryTime::Range { start: 60_000, end: 120_000, step_ms: 60_000 };
    /// let options = QueryOptions { lookback_ms: 60_000, ..QueryOptions::default() };
    /// let output = db.query("max by (room) (temperature)", time, &options, &db.context())?;
    /// let Value::Matrix(series) = output.value else { unreachable!("a range query") };
    /// let values: Vec<f64> = series[0].floats.iter().map(|sample| sample.value).collect();
    /// assert_eq!(values, [21.5, 22.5]);
    ///
    /// let error = db.query("sum(", time, &options, &db.context()).unwrap_err();
    /// assert!(error.to_string().contains("1:5: parse error: unclosed left parenthesis"));
    /// # db.close()
    /// # }
    /// ```
    pub fn query(
        &self,
        text: &str,
        time: QueryTime,
        options: &QueryOptions,
        context: &QueryContext,
    ) -> Result<QueryOutput> {
        self.evaluate(&firn_promql::prepare(text, context)?, time, options, context)
    }

    /// Like [`Db::query`] for a parsed expression.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub fn evaluate(
        &self,
        expr: &firn_promql::Expr,
        time: QueryTime,
        options: &QueryOptions,
        context: &QueryContext,
    ) -> Result<QueryOutput> {
        match self.evaluate_or_recall(expr, time, options, context, None)? {
            QueryReply::Output(output, _) => Ok(*output),
            QueryReply::Text(_) => Err(Error::internal("a text was recalled in place of a result")),
        }
    }

    /// Like [`Db::evaluate`], for a caller that makes a text of the result, which depends on
    /// nothing but the result and `form`. The result cache keeps such texts; `None` uses none.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub fn evaluate_or_recall(
        &self,
        expr: &firn_promql::Expr,
        time: QueryTime,
        options: &QueryOptions,
        context: &QueryContext,
        form: Option<u8>,
    ) -> Result<QueryReply> {
        let options = eval_options(time, options);
        // Before the result cache shares the matchers with writers.
        expr.compile(context)?;
        // Kept results are those of all series; a query with a scope sees only some of them.
        let is_shared = context.scope.is_empty() && options.subquery_step_ms == SUBQUERY_STEP_MS;
        let results = self.results.get().filter(|_| is_shared);
        if let (QueryTime::Range { .. }, Some(results)) = (time, results) {
            let now_ms = self.now_ms();
            let query = RangeQuery { expr, options: &options, context, now_ms, form };
            if let Some(reply) = results.evaluate(&query, || self.snapshot()) {
                return reply;
            }
        }
        let output = firn_promql::eval(expr, &self.snapshot(), &options, context)?;
        Ok(QueryReply::Output(Box::new(output), None))
    }

    /// The text that [`Db::evaluate_or_recall`] would recall for a query with the text `query`. It
    /// is not parsed: the cost is that of a lookup in memory. `None` also if an equal query had
    /// another text.
    pub fn recall(
        &self,
        query: &str,
        time: QueryTime,
        options: &QueryOptions,
        form: u8,
    ) -> Option<Arc<[u8]>> {
        let results = self.results.get()?;
        let QueryTime::Range { start, end, step_ms } = time else { return None };
        let QueryOptions { lookback_ms, samples_max, subquery_step_ms, .. } = *options;
        let oldest = results.oldest(self.now_ms());
        let range = QueryRange { start, end, step_ms, lookback_ms, oldest };
        let number = self.engine.visible();
        (subquery_step_ms == SUBQUERY_STEP_MS)
            .then(|| results.recall(query, (range, samples_max), number, form))?
    }

    /// Keeps the text of a result for [`Db::evaluate_or_recall`].
    pub fn keep_text(&self, ticket: TextTicket, text: &[u8]) {
        if let Some(results) = self.results.get() {
            results.keep_text(ticket, text);
        }
    }

    /// An instant query of `view` with the results of some nodes of `expr` in it, as
    /// [`firn_promql::SharedResults`] has them.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub fn evaluate_with_parts(
        view: &Snapshot,
        expr: &firn_promql::Expr,
        parts: &[PartResult],
        ts: Timestamp,
        options: &QueryOptions,
        context: &QueryContext,
    ) -> Result<QueryOutput> {
        let options = eval_options(QueryTime::Instant(ts), options);
        firn_promql::eval_with_parts(expr, parts, view, &options, context)
    }

    /// [`Db::query`] with the default options, without a time-out.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub fn query_now(&self, text: &str, time: QueryTime) -> Result<QueryOutput> {
        self.query(text, time, &QueryOptions::default(), &self.context())
    }

    /// A context that is never cancelled, with the database's budget and helpers.
    pub fn context(&self) -> QueryContext {
        QueryContext {
            helpers: self.helpers.clone(),
            ..QueryContext::new(CancelToken::new(), self.budget().clone())
        }
    }

    /// The label sets of all series that match one of `selectors` and have samples in `range`,
    /// sorted; at most `limit`, of the groups with the lowest ids, or all with 0. Returns the
    /// reservation of the list's memory too.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` without memory for the list, and errors of storage.
    ///
    /// ```
    /// use firndb::{Db, Labels, MatchOp, Matcher, Options, TimeRange, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
    /// db.put(&labels, 1_000, 21.5)?;
    /// let attic = vec![Matcher::new("room", MatchOp::Equal, "attic")?];
    /// let (listed, _held) = db.series(&[attic], TimeRange::new(0, 2_000), 0, &db.context())?;
    /// assert_eq!(listed, [labels]);
    /// # db.close()
    /// # }
    /// ```
    pub fn series(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
    ) -> Result<(Vec<Labels>, Reservation)> {
        list_series(&self.snapshot(), selectors, range, limit, context)
    }

    /// The label names of those series (of all series without selectors), sorted, and the
    /// reservation of the list's memory; at most `limit`.
    ///
    /// # Errors
    /// As [`Db::series`].
    pub fn label_names(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
    ) -> Result<(Vec<String>, Reservation)> {
        list_label_names(&self.snapshot(), selectors, range, limit, context)
    }

    /// The values of label `name` in those series (in all series without selectors), sorted, and
    /// the reservation of the list's memory; at most `limit`.
    ///
    /// # Errors
    /// As [`Db::series`].
    pub fn label_values(
        &self,
        name: &str,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
    ) -> Result<(Vec<String>, Reservation)> {
        let mut values = Vec::new();
        let mut held = context.budget.empty(Pool::Query);
        self.each_label_value(name, selectors, range, limit, context, &mut |value| {
            held.grow((value.len() + NAME_BYTES) as u64)?;
            values.push(value.to_owned());
            Ok(())
        })?;
        Ok((values, held))
    }

    /// Calls `each` with the values of [`Db::label_values`], ascending. With at most one selector
    /// no list of them is built.
    ///
    /// # Errors
    /// As [`Db::series`], and those of `each`.
    pub fn each_label_value(
        &self,
        name: &str,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
        each: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        list_label_values(&self.snapshot(), name, (selectors, range, limit), context, each)
    }

    /// The metrics and labels with the most series, at most `top` entries per list, and the
    /// reservation of their memory.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` without memory for the lists; `Invalid` for a context with a
    /// scope.
    pub fn cardinality(
        &self,
        top: usize,
        context: &QueryContext,
    ) -> Result<(Cardinality, Reservation)> {
        if !context.scope.is_empty() {
            return Err(Error::invalid("the cardinality of a part of the series is not counted"));
        }
        self.snapshot().index().cardinality(top, context)
    }
}

// The memory of a name in a set beside its text.
const NAME_BYTES: usize = 64;
// The memory of a label set beside its text.
const LABELS_BYTES: usize = size_of::<Labels>() + 16;

/// [`Db::series`] of `snapshot`.
///
/// # Errors
/// As [`Db::series`].
pub fn list_series(
    snapshot: &Snapshot,
    selectors: &[Vec<Matcher>],
    range: TimeRange,
    limit: usize,
    context: &QueryContext,
) -> Result<(Vec<Labels>, Reservation)> {
    let mut series = Vec::new();
    let mut held = context.budget.empty(Pool::Query);
    for matchers in selectors {
        context.cancel.check()?;
        snapshot.present_series(matchers, range, limit, context, &mut |labels| {
            held.grow((labels.as_encoded().len() + LABELS_BYTES) as u64)?;
            series.push(labels);
            Ok(())
        })?;
    }
    sort_and_cut(&mut series, limit);
    Ok((series, held))
}

/// [`Db::label_names`] of `snapshot`.
///
/// # Errors
/// As [`Db::series`].
pub fn list_label_names(
    snapshot: &Snapshot,
    selectors: &[Vec<Matcher>],
    range: TimeRange,
    limit: usize,
    context: &QueryContext,
) -> Result<(Vec<String>, Reservation)> {
    // Many selectors have the same names.
    let mut names = BTreeSet::new();
    let mut held = context.budget.empty(Pool::Query);
    for matchers in or_every_series(selectors) {
        context.cancel.check()?;
        let mut count = 0;
        snapshot.each_label_name(&matchers, range, context, &mut |name| {
            if !names.contains(name) {
                held.grow((name.len() + NAME_BYTES) as u64)?;
                names.insert(name.to_owned());
            }
            count += 1;
            let is_last = count == limit;
            Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    let mut names = names.into_iter().collect();
    sort_and_cut(&mut names, limit);
    Ok((names, held))
}

/// [`Db::each_label_value`] of `snapshot`.
///
/// # Errors
/// As [`Db::each_label_value`].
pub fn list_label_values(
    snapshot: &Snapshot,
    name: &str,
    (selectors, range, limit): (&[Vec<Matcher>], TimeRange, usize),
    context: &QueryContext,
    each: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let list = |matchers: &[Matcher], each: &mut dyn FnMut(&str) -> Result<()>| {
        let mut left = if limit == 0 { usize::MAX } else { limit };
        snapshot.each_label_value(name, matchers, range, context, &mut |value| {
            each(value)?;
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    };
    if let [] | [_] = selectors {
        return list(selectors.first().map_or(&[], Vec::as_slice), each);
    }
    let mut values = BTreeSet::new();
    let mut held = context.budget.empty(Pool::Query);
    for matchers in selectors {
        list(matchers, &mut |value| {
            if !values.contains(value) {
                held.grow((value.len() + NAME_BYTES) as u64)?;
                values.insert(value.to_owned());
            }
            Ok(())
        })?;
    }
    let count = if limit == 0 { values.len() } else { limit };
    values.iter().take(count).try_for_each(|value| each(value))
}

/// Without selectors every series matches.
fn or_every_series(selectors: &[Vec<Matcher>]) -> Vec<Vec<Matcher>> {
    if selectors.is_empty() { vec![Vec::new()] } else { selectors.to_vec() }
}

fn sort_and_cut<T: Ord>(list: &mut Vec<T>, limit: usize) {
    list.sort_unstable();
    list.dedup();
    if limit > 0 {
        list.truncate(limit);
    }
}

#[cfg(test)]
mod tests {
    use firn_model::MatchOp;
    use firn_promql::Value;

    use super::*;
    use crate::{Options, RecoveryProgress, WalkOptions, local_env};

    const HOUR_MS: i64 = 3_600_000;

    fn sum_at(name: &str) -> String {
        format!("sum({name}) + 0")
    }

    type WalkedSamples = Vec<(Labels, Vec<i64>, Vec<f64>)>;

    /// Series, label names, hosts, and all samples.
    fn listed_and_walked(
        view: &Snapshot,
        range: TimeRange,
    ) -> (Vec<Labels>, Vec<String>, Vec<String>, WalkedSamples) {
        let context = QueryContext::unbounded();
        let all = vec![Matcher::new("__name__", MatchOp::NotEqual, "").unwrap()];
        let (series, _) =
            list_series(view, std::slice::from_ref(&all), range, 0, &context).unwrap();
        let (names, _) = list_label_names(view, &[], range, 0, &context).unwrap();
        let mut hosts = Vec::new();
        list_label_values(view, "host", (&[], range, 0), &context, &mut |host| {
            hosts.push(host.to_owned());
            Ok(())
        })
        .unwrap();
        let options =
            WalkOptions { matchers: all, range, extra: Labels::empty(), samples_max: 100 };
        let (mut walk, mut samples) = (view.walk(options, &context).unwrap(), Vec::new());
        while let Some(run) = walk.next_run().unwrap() {
            samples.push((run.labels.clone(), run.times.to_vec(), run.values.to_vec()));
        }
        (series, names, hosts, samples)
    }

    /// Tables contain an old series; the log, when the process ended, a delete of a part of it and
    /// a new series, with one row at `late_ms`.
    #[test]
    fn history_before_the_rows_of_the_log_is_complete_without_them() {
        for (late_ms, is_answered) in [(20 * HOUR_MS, true), (HOUR_MS / 2, false)] {
            let folder = tempfile::tempdir().unwrap();
            let env = || local_env(folder.path()).unwrap();
            let db =
                Db::open_idle(env(), Options::default(), &RecoveryProgress::default()).unwrap();
            let labels = |name, host| {
                Labels::from_pairs([("__name__", name), ("host", host), ("job", "a")]).unwrap()
            };
            for host in ["a", "b"] {
                db.put(&labels("old", host), HOUR_MS, 1.0).unwrap();
                db.put(&labels("old", host), HOUR_MS + 1_000, 3.0).unwrap();
            }
            db.flush().unwrap();
            let host_b = vec![Matcher::new("host", MatchOp::Equal, "b").unwrap()];
            db.delete(&[host_b], TimeRange::new(0, HOUR_MS + 500)).unwrap();
            db.put(&labels("new", "a"), 20 * HOUR_MS, 7.0).unwrap();
            db.put(&labels("new", "a"), late_ms, 7.0).unwrap();
            drop(db);

            let progress = RecoveryProgress::default();
            let db = Db::open_idle(env(), Options::default(), &progress).unwrap();
            let history = progress.history().expect("the log was read");
            let evaluate = |text: &str, time: QueryTime| {
                let context = db.context();
                let expr = firn_promql::prepare(text, &context).unwrap();
                let options = QueryOptions::default();
                let early = evaluate_history(&history, &expr, time, &options, &context).unwrap();
                let whole = db.evaluate(&expr, time, &options, &context).unwrap();
                (early.map(|output| output.value), whole.value)
            };
            let at = |ts: i64| QueryTime::Instant(ts);
            for (name, ts) in [("old", HOUR_MS + 200), ("old", HOUR_MS + 2_000), ("new", HOUR_MS)] {
                let (early, whole) = evaluate(&sum_at(name), at(ts));
                assert_eq!(early, is_answered.then_some(whole), "{name} at {ts}");
            }
            let range = |end| QueryTime::Range { start: HOUR_MS, end, step_ms: 60_000 };
            let (early, whole) = evaluate("old", range(2 * HOUR_MS));
            assert_eq!(early, is_answered.then_some(whole));
            // The last step reads rows of the log, with and without an offset.
            assert_eq!(evaluate("old", range(20 * HOUR_MS)).0, None);
            assert_eq!(evaluate("new", at(20 * HOUR_MS)).0, None);
            let (early, whole) = evaluate("sum(old offset 19h)", at(20 * HOUR_MS + 2_000));
            assert_eq!(early, is_answered.then_some(whole));
            assert_eq!(evaluate("sum(new @ 72000)", at(HOUR_MS)).0, None);
            for (range, hosts) in [
                (TimeRange::new(0, HOUR_MS + 200), &["a"][..]),
                (TimeRange::new(HOUR_MS + 600, 2 * HOUR_MS), &["a", "b"][..]),
            ] {
                let whole = listed_and_walked(&db.snapshot(), range);
                assert_eq!(whole.2, hosts, "the delete in the log applies");
                let early = history.tables(range).map(|view| listed_and_walked(view, range));
                assert_eq!(early, is_answered.then_some(whole), "{range:?}");
            }
            assert!(history.tables(TimeRange::new(0, 20 * HOUR_MS)).is_none());
            let (early, whole) = evaluate("1 + 1", at(20 * HOUR_MS));
            assert_eq!(early, Some(whole), "no data is read");
            let (Some(Value::Vector(points)), true) =
                (evaluate("old", at(HOUR_MS + 200)).0, is_answered)
            else {
                continue;
            };
            assert_eq!(points.len(), 1, "the delete in the log applies");
            progress.end();
            assert!(progress.history().is_none());
        }
    }
}
