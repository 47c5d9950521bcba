//! The query path: parse, freeze a view, evaluate.

use std::collections::BTreeSet;

use firn_model::{
    CancelToken, Error, Grouping, LabelLimits, Labels, MatchOp, Matcher, Pool, QueryContext,
    Result, Selection, SeriesRef, TimeRange, Timestamp,
};
use firn_promql::{EvalOptions, QueryOutput};

use crate::results::RangeQuery;
use crate::{Cardinality, Db};

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
    /// Whether to count the samples of each step; see [`QueryOutput::samples`].
    pub counts_samples: bool,
    /// The longest names and values of labels that functions such as `label_join` may make.
    pub labels_max: LabelLimits,
}

impl Default for QueryOptions {
    fn default() -> QueryOptions {
        QueryOptions {
            lookback_ms: 5 * 60_000,
            samples_max: 50_000_000,
            counts_samples: false,
            labels_max: LabelLimits::default(),
        }
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
        let times = match time {
            QueryTime::Instant(ts) => EvalOptions::instant(ts),
            QueryTime::Range { start, end, step_ms } => EvalOptions::range(start, end, step_ms),
        };
        let options = EvalOptions {
            lookback_ms: options.lookback_ms,
            samples_max: options.samples_max,
            counts_samples: options.counts_samples,
            labels_max: options.labels_max,
            ..times
        };
        // Before the result cache shares the matchers with writers.
        expr.compile(context)?;
        // Kept results are those of all series; a query with a scope sees only some of them.
        let results = self.results.get().filter(|_| context.scope.is_empty());
        if let (QueryTime::Range { .. }, Some(results)) = (time, results) {
            let query = RangeQuery { expr, options: &options, context, now_ms: self.now_ms() };
            if options.counts_samples {
                let snapshot = self.snapshot();
                results.count_steps(&query, &snapshot);
                return firn_promql::eval(expr, &snapshot, &options, context);
            }
            if let Some(output) = results.evaluate(&query, || self.snapshot()) {
                return output;
            }
        }
        firn_promql::eval(expr, &self.snapshot(), &options, context)
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
    /// sorted; at most `limit`, or all with 0.
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
    /// let listed = db.series(&[attic], TimeRange::new(0, 2_000), 0, &db.context())?;
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
    ) -> Result<Vec<Labels>> {
        let snapshot = self.snapshot();
        let mut series = Vec::new();
        let mut held = context.budget.empty(Pool::Query);
        for matchers in selectors {
            context.cancel.check()?;
            let found = snapshot.present(&one_key(matchers, range), context)?;
            for group in &found.groups {
                context.cancel.check()?;
                let first = series.len();
                for member in &group.members {
                    let found = SeriesRef { group: group.group, slot: member.slot };
                    series.extend(snapshot.index().labels(found)?);
                }
                let bytes = |labels: &Labels| (labels.as_encoded().len() + LABELS_BYTES) as u64;
                held.grow(series.iter().skip(first).map(bytes).sum())?;
            }
        }
        sort_and_cut(&mut series, limit);
        Ok(series)
    }

    /// The label names of those series (of all series without selectors), sorted; at most `limit`.
    ///
    /// # Errors
    /// As [`Db::series`].
    pub fn label_names(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
    ) -> Result<Vec<String>> {
        let snapshot = self.snapshot();
        // Many selectors have the same names.
        let mut names = BTreeSet::new();
        let mut held = context.budget.empty(Pool::Query);
        for matchers in or_every_series(selectors) {
            context.cancel.check()?;
            for name in snapshot.label_names(&matchers, range, context)? {
                if !names.contains(&name) {
                    held.grow((name.len() + NAME_BYTES) as u64)?;
                    names.insert(name);
                }
            }
        }
        let mut names = names.into_iter().collect();
        sort_and_cut(&mut names, limit);
        Ok(names)
    }

    /// The values of label `name` in those series (in all series without selectors), sorted; at
    /// most `limit`.
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
    ) -> Result<Vec<String>> {
        let snapshot = self.snapshot();
        let mut values = Vec::new();
        let mut all_held = context.budget.empty(Pool::Query);
        for mut matchers in or_every_series(selectors) {
            context.cancel.check()?;
            // Series without the label have no value to list.
            matchers.push(Matcher::new(name, MatchOp::NotEqual, "")?);
            // Grouped by this label alone, the keys are the values: no label set is built.
            let grouping = Grouping::By(vec![name.to_owned()]);
            let (keys, held) = snapshot.keys(&Selection { matchers, range, grouping }, context)?;
            // The values take as much memory again as the keys.
            all_held.grow(held.bytes())?;
            values.extend(keys.iter().filter_map(|key| key.get(name)).map(String::from));
        }
        sort_and_cut(&mut values, limit);
        Ok(values)
    }

    /// The metrics and labels with the most series; at most `top` entries per list.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`; `Invalid` for a context with a scope.
    pub fn cardinality(&self, top: usize, context: &QueryContext) -> Result<Cardinality> {
        if !context.scope.is_empty() {
            return Err(Error::invalid("the cardinality of a part of the series is not counted"));
        }
        self.snapshot().index().cardinality(top, &context.cancel)
    }
}

// The memory of a name in a set beside its text.
const NAME_BYTES: usize = 64;
// The memory of a label set beside its text.
const LABELS_BYTES: usize = size_of::<Labels>() + 16;

/// All matching series under one key, so that no label set is built.
fn one_key(matchers: &[Matcher], range: TimeRange) -> Selection {
    Selection { matchers: matchers.to_vec(), range, grouping: Grouping::By(Vec::new()) }
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
