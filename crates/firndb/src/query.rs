//! The way of a query: parse, freeze, evaluate.

use firn_model::{
    CancelToken, Error, Grouping, Labels, MatchOp, Matcher, Pool, QueryContext, Result, Selection,
    SeriesRef, TimeRange, Timestamp,
};
use firn_promql::{EvalOptions, QueryOutput};

use crate::results::RangeQuery;
use crate::{Cardinality, Db};

/// When a query is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryTime {
    /// Once.
    Instant(Timestamp),
    /// At `start`, `start + step_ms`, ... up to `end`.
    Range {
        /// The first time.
        start: Timestamp,
        /// The last time at most.
        end: Timestamp,
        /// The distance, above 0.
        step_ms: i64,
    },
}

/// How a query is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct QueryOptions {
    /// How far back a selector looks for a sample.
    pub lookback_ms: i64,
    /// Samples that may be in memory at one time.
    pub samples_max: u64,
    /// Whether to count what each step looks at; see [`QueryOutput::samples`].
    pub counts_samples: bool,
}

impl Default for QueryOptions {
    fn default() -> QueryOptions {
        QueryOptions { lookback_ms: 5 * 60_000, samples_max: 50_000_000, counts_samples: false }
    }
}

impl Db {
    /// Evaluates a PromQL text over one frozen view.
    ///
    /// # Errors
    /// `Invalid` with line and column for a text that does not parse, `Invalid` without for one
    /// that cannot be evaluated, `TooLarge` over a limit, `Timeout`, `Canceled`, and storage's.
    pub fn query(
        &self,
        text: &str,
        time: QueryTime,
        options: &QueryOptions,
        context: &QueryContext,
    ) -> Result<QueryOutput> {
        let expr = firn_promql::parse(text).map_err(|e| Error::invalid(e.to_string()))?;
        self.evaluate(&expr, time, options, context)
    }

    /// As [`Db::query`] for an expression that is parsed already.
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
            ..times
        };
        if let (QueryTime::Range { .. }, Some(results)) = (time, self.results.get()) {
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

    /// [`Db::query`] with the default options, without limits of its own.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub fn query_now(&self, text: &str, time: QueryTime) -> Result<QueryOutput> {
        self.query(text, time, &QueryOptions::default(), &self.context())
    }

    /// A context that is never cancelled and draws on the database's budget and helpers.
    pub fn context(&self) -> QueryContext {
        QueryContext {
            helpers: self.helpers.clone(),
            ..QueryContext::new(CancelToken::new(), self.budget().clone())
        }
    }

    /// The label sets of all series that match one of `selectors` and have samples in `range`, sorted;
    /// at most `limit`, 0 for all.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` without memory for the list, and storage's.
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

    /// The label names of those series (of all, without selectors), sorted; at most `limit`.
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
        let mut names = Vec::new();
        for matchers in or_all(selectors) {
            names.extend(snapshot.label_names(&matchers, range, context)?);
        }
        sort_and_cut(&mut names, limit);
        Ok(names)
    }

    /// The values that label `name` has in those series (of all, without selectors), sorted; at
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
        for mut matchers in or_all(selectors) {
            // Series without the label have nothing to tell.
            matchers.push(Matcher::new(name, MatchOp::NotEqual, "")?);
            // Grouped by this one label the keys are the values: no label set is built.
            let grouping = Grouping::By(vec![name.to_owned()]);
            let (keys, held) = snapshot.keys(&Selection { matchers, range, grouping }, context)?;
            // As much again.
            all_held.grow(held.bytes())?;
            values.extend(keys.iter().filter_map(|key| key.get(name)).map(String::from));
        }
        sort_and_cut(&mut values, limit);
        Ok(values)
    }

    /// What makes the database large; at most `top` entries per list.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`.
    pub fn cardinality(&self, top: usize, context: &QueryContext) -> Result<Cardinality> {
        self.snapshot().index().cardinality(top, &context.cancel)
    }
}

// What a label set takes beside its text.
const LABELS_BYTES: usize = size_of::<Labels>() + 16;

/// All that match, under one key: label sets are not built.
fn one_key(matchers: &[Matcher], range: TimeRange) -> Selection {
    Selection { matchers: matchers.to_vec(), range, grouping: Grouping::By(Vec::new()) }
}

/// No selector asks for every series.
fn or_all(selectors: &[Vec<Matcher>]) -> Vec<Vec<Matcher>> {
    if selectors.is_empty() { vec![Vec::new()] } else { selectors.to_vec() }
}

fn sort_and_cut<T: Ord>(list: &mut Vec<T>, limit: usize) {
    list.sort_unstable();
    list.dedup();
    if limit > 0 {
        list.truncate(limit);
    }
}
