//! The result cache in the way of a range query.
//!
//! What it answers equals what evaluating says, bit for bit, or it is not asked: expressions whose steps depend on more
//! than samples ([`firn_promql::dependencies`]), queries that want to be told what they read, and ranges that
//! retention may cut while they are kept.

use std::sync::Arc;

use firn_cache::{
    Answer, AnswerSeries, Background, Dependency, Question, Recovered, ResultCache, Session, Span,
    StoreOptions,
};
use firn_engine::{Engine, Replayed, Snapshot};
use firn_model::{
    ChangeSink, GiveBack, GroupId, Grouping, Matcher, Pool, QueryContext, Reservation, Result,
    Timestamp,
};
use firn_promql::{
    Annotations, EvalOptions, Expr, HistogramPoint, QueryOutput, Reach, Series, Value, ValueType,
};

use crate::{ResultOptions, ResultStats};

/// The cache's folder below the data folder.
const FOLDER: &str = "cache/results";

/// A result cache with the thread that writes its slabs.
#[derive(Debug)]
pub(crate) struct Results {
    cache: Arc<ResultCache>,
    retention_ms: Option<i64>,
    _writer: Background,
}

/// One range query.
pub(crate) struct RangeQuery<'a> {
    pub(crate) expr: &'a Expr,
    pub(crate) options: &'a EvalOptions,
    pub(crate) context: &'a QueryContext,
    pub(crate) now_ms: Timestamp,
}

impl Results {
    /// Opens the cache of `engine`'s data folder and begins to listen to its changes.
    ///
    /// # Errors
    /// `Invalid` if somebody listens already or the options make no sense, `Unavailable` when the disk fails.
    pub(crate) fn open(
        engine: &Engine,
        retention_ms: Option<i64>,
        options: ResultOptions,
    ) -> Result<Results> {
        // What another retention has dropped may be in an answer of before.
        let store = StoreOptions { owner: owner_of(retention_ms), ..options.store };
        let options = ResultOptions { store, ..options };
        let Replayed { after, through, changes, is_damaged, may_lose } = engine.replayed();
        let recovered = (!is_damaged).then_some(Recovered { replays_after: after, through });
        let disk = Arc::clone(&engine.env().disk);
        let cache = Arc::new(ResultCache::open(disk, FOLDER, engine.budget(), options, recovered)?);
        changes.into_iter().for_each(|(range, number)| cache.replayed(range, number));
        if may_lose {
            // It outlives clean ends only.
            cache.doubted();
        }
        engine.set_change_sink(Arc::<ResultCache>::clone(&cache) as Arc<dyn ChangeSink>)?;
        engine.add_cache(Arc::<ResultCache>::clone(&cache) as Arc<dyn GiveBack>);
        cache
            .rematch(|matchers| groups(&engine.snapshot(), matchers, &QueryContext::unbounded()))?;
        let written = Arc::clone(&cache);
        let writer = Background::start("firn-cache", move || written.work())?;
        Ok(Results { cache, retention_ms, _writer: writer })
    }

    /// Forgets all answers.
    pub(crate) fn forget(&self) {
        self.cache.clear();
    }

    /// Numbers at this moment.
    pub(crate) fn stats(&self) -> ResultStats {
        self.cache.stats()
    }

    /// Writes what waits and notes up to where it is true. `engine` takes no more writes.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the cache is then empty at the next start.
    pub(crate) fn close(&self, engine: &Engine) -> Result<()> {
        self.cache.close(engine.snapshot().number())
    }

    /// Evaluates with the cache's help. `None` if it cannot help with this query.
    pub(crate) fn evaluate(
        &self,
        query: &RangeQuery<'_>,
        snapshot: impl FnOnce() -> Snapshot,
    ) -> Option<Result<QueryOutput>> {
        let RangeQuery { expr, options, .. } = query;
        if options.counts_samples {
            return None;
        }
        let (expression, dependencies) = self.taken_apart(query)?;
        let question = question(query, &expression, &dependencies)?;
        let session = self.cache.begin();
        let snapshot = snapshot();
        let found = self.cache.lookup(&question, snapshot.number());
        // Over the query's limits evaluating says so, in its own words.
        let _held = hold(&found.answer, options.samples_max, query.context)?;
        let Some((start, end)) = found.missing else {
            return Some(Ok(output(matrix(found.answer, Vec::new()))));
        };
        let part = EvalOptions { start, end, ..EvalOptions::clone(options) };
        Some(firn_promql::eval(expr, &snapshot, &part, query.context).map(|mut computed| {
            let Value::Matrix(series) =
                std::mem::replace(&mut computed.value, Value::Matrix(Vec::new()))
            else {
                return computed;
            };
            // An answer that comes with a remark is computed each time: remarks are not kept.
            if computed.annotations.list.is_empty() {
                let part = Question { start, end, ..question };
                self.fill(&session, &part, &snapshot, &series, query.context);
            }
            computed.value = Value::Matrix(matrix(found.answer, series));
            computed
        }))
    }

    /// Tells the query's statistics how much of its answer is kept. Who asks for statistics has everything computed.
    pub(crate) fn count_steps(&self, query: &RangeQuery<'_>, snapshot: &Snapshot) {
        let parts = self.taken_apart(query);
        let counted = parts.as_ref().and_then(|(expression, dependencies)| {
            let question = question(query, expression, dependencies)?;
            Some(self.cache.count_steps(&question, snapshot.number()))
        });
        let (kept, not_kept) = counted.unwrap_or_default();
        query.context.stats.steps_kept.add(kept);
        query.context.stats.steps_not_kept.add(not_kept);
    }

    /// The normalised expression and what its answer depends on; `None` if the answer must be computed.
    fn taken_apart(&self, query: &RangeQuery<'_>) -> Option<(String, Vec<Dependency>)> {
        let RangeQuery { expr, options, .. } = query;
        let is_kept = expr.value_type() == ValueType::Vector && options.start <= options.end;
        let dependencies = is_kept.then(|| self.dependencies(query)).flatten()?;
        Some((expr.to_string(), dependencies))
    }

    fn fill(
        &self,
        session: &Session,
        question: &Question<'_>,
        snapshot: &Snapshot,
        series: &[Series],
        context: &QueryContext,
    ) {
        let of = |one: &Dependency| groups(snapshot, &one.matchers, context);
        // What cannot be found out is not kept; the query itself is answered.
        let Ok(groups) = question.dependencies.iter().map(of).collect::<Result<Vec<_>>>() else {
            return;
        };
        let answer = Answer { series: series.iter().map(cached).collect() };
        self.cache.fill(session, question, snapshot.number(), &groups, &answer);
    }

    /// What the answer depends on; `None` if it must be computed.
    fn dependencies(&self, query: &RangeQuery<'_>) -> Option<Vec<Dependency>> {
        let options = query.options;
        let oldest =
            self.retention_ms.map(|retention_ms| query.now_ms.saturating_sub(retention_ms));
        let found = firn_promql::dependencies(query.expr, options.lookback_ms)?;
        let mut dependencies = Vec::with_capacity(found.len());
        for one in found {
            let (span, needed) = match one.reach {
                Reach::Relative { first_ms, last_ms } => {
                    (Span::Relative { first_ms, last_ms }, options.start.saturating_add(first_ms))
                }
                Reach::Fixed(range) => (Span::Fixed(range), range.start),
            };
            oldest.is_none_or(|oldest| needed > oldest).then_some(())?;
            dependencies.push(Dependency { matchers: one.matchers, span });
        }
        Some(dependencies)
    }
}

/// A number of its own for each retention; 0 for none.
fn owner_of(retention_ms: Option<i64>) -> u64 {
    retention_ms.map_or(0, |ms| (ms as u64).wrapping_add(1))
}

fn question<'a>(
    query: &RangeQuery<'_>,
    expression: &'a str,
    dependencies: &'a [Dependency],
) -> Option<Question<'a>> {
    let options = query.options;
    Some(Question {
        expression,
        start: options.start,
        end: options.end,
        step_ms: options.step_ms?,
        lookback_ms: options.lookback_ms,
        dependencies,
    })
}

/// The groups in which a selector matches a series, with samples or without.
fn groups(
    snapshot: &Snapshot,
    matchers: &[Matcher],
    context: &QueryContext,
) -> Result<Vec<GroupId>> {
    let one_key = Grouping::By(Vec::new());
    let found = snapshot.index().matches(matchers, &one_key, context)?;
    Ok(found.groups.iter().map(|found| found.group).collect())
}

/// Counts an answer against the limits of its query; `None` if it is over them.
fn hold(answer: &Answer, samples_max: u64, context: &QueryContext) -> Option<Reservation> {
    let (mut samples, mut bytes) = (0, 0);
    for series in &answer.series {
        samples += series.floats.len() + series.histograms.len();
        let histograms: usize = series.histograms.iter().map(|(_, h)| h.heap_bytes()).sum();
        bytes += size_of_val(&series.floats[..]) + series.labels.as_encoded().len() + histograms;
    }
    let is_within = samples as u64 <= samples_max;
    is_within.then(|| context.budget.reserve(Pool::Query, bytes as u64).ok()).flatten()
}

fn cached(series: &Series) -> AnswerSeries {
    let histograms = series.histograms.iter().map(|point| (point.ts, Arc::clone(&point.histogram)));
    AnswerSeries {
        labels: series.labels.clone(),
        floats: series.floats.clone(),
        histograms: histograms.collect(),
    }
}

/// Both parts as one matrix, sorted by labels. What is cached lies before or behind all that was computed.
fn matrix(answer: Answer, computed: Vec<Series>) -> Vec<Series> {
    let known = answer.series.into_iter().map(|one| {
        let histograms = one.histograms.into_iter();
        let mut series = Series::new(one.labels, one.floats);
        series
            .histograms
            .extend(histograms.map(|(ts, histogram)| HistogramPoint { ts, histogram }));
        series
    });
    let mut series: Vec<Series> = known.chain(computed).collect();
    series.sort_by(|a, b| a.labels.cmp(&b.labels));
    series.dedup_by(|other, kept| {
        let same = other.labels == kept.labels;
        if same {
            kept.floats.append(&mut other.floats);
            kept.floats.sort_by_key(|sample| sample.ts);
            kept.histograms.append(&mut other.histograms);
            kept.histograms.sort_by_key(|point| point.ts);
        }
        same
    });
    series
}

fn output(series: Vec<Series>) -> QueryOutput {
    QueryOutput {
        value: Value::Matrix(series),
        annotations: Annotations::default(),
        samples_read: 0,
        samples_peak: 0,
        samples: None,
    }
}
