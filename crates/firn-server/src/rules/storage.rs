//! The database of one evaluation: queries within the limits of rules, and results as rows.
//!
//! The results of rules with one name are a FirnDB group: its labels are the name, and `alertname`
//! for the series of alerts. So they share the time column of their common slots, and never enter
//! the group of a scraped target.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_model::{
    CancelToken, Error, ErrorKind, LabelLimits, Labels, METRIC_NAME, Matcher, PointValue,
    QueryContext, Reservation, Result, RowBatch, SeriesRef, TimeRange, Timestamp, is_stale_nan,
};
use firn_promql::{HeldMemory, QueryOutput, SharedExprs, Value, prepare};
use firn_rules::group::{ALERT_NAME, ALERTS, ALERTS_FOR_STATE, ForStateSample, ResultRow, Storage};
use firndb::{Db, ForeignMember, QueryTime};

use super::options::RuleLimits;
use super::stage::{StageQueries, StageResult};
use super::watch::QueryWatch;

/// The references of the series that a group wrote at its last evaluation.
#[derive(Debug, Default)]
pub(super) struct SeriesCache {
    generation: u32,
    refs: HashMap<Labels, SeriesRef>,
    /// Those of the evaluation before; they move to `refs` as they are used.
    previous: HashMap<Labels, SeriesRef>,
}

/// Storage of one evaluation of one group.
pub(super) struct RuleStorage<'a> {
    db: &'a Db,
    limits: &'a RuleLimits,
    watch: &'a QueryWatch,
    /// Offers the queries of a stage to threads without work.
    share: &'a dyn Fn(&Arc<StageQueries>),
    work: RefCell<EvaluationWork<'a>>,
}

struct EvaluationWork<'a> {
    cache: &'a mut SeriesCache,
    /// The values written at the one time of this evaluation.
    written: HashMap<SeriesRef, f64>,
    /// The memory of results whose rows are not written yet.
    results: Vec<HeldMemory>,
    /// The memory of the series in `cache` and in the group, which the evaluation before has left.
    held: Reservation,
    /// How much of it the results of this evaluation need.
    series_bytes: u64,
    /// The time of the query of each rule, and of the use of its result.
    rule_times: Vec<Duration>,
    /// When the last result was applied.
    applied_at: Instant,
    /// Until when refused rows are written again; set by the first refusal.
    busy_until: Option<Instant>,
}

// Memory of a point that a rule returns: two series with their entries in a map and in a set.
const SERIES_BYTES: u64 = 512;

fn series_bytes(labels: &Labels) -> u64 {
    labels.as_encoded().len() as u64 + SERIES_BYTES
}

// Series leave the index at merges of all its files, which are rare.
const WRITE_ATTEMPTS: usize = 3;
/// Rows that are refused with `Busy` are written again for this time in each evaluation, such as
/// until others release memory: a lost evaluation is a gap.
const BUSY_TIME_MAX: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

const NO_HISTOGRAMS: &str = "native histograms are not stored";

impl<'a> RuleStorage<'a> {
    pub(super) fn new(
        db: &'a Db,
        limits: &'a RuleLimits,
        watch: &'a QueryWatch,
        share: &'a dyn Fn(&Arc<StageQueries>),
        (cache, held): (&'a mut SeriesCache, Reservation),
    ) -> RuleStorage<'a> {
        cache.begin(db.generation());
        let work = EvaluationWork {
            cache,
            written: HashMap::new(),
            results: Vec::new(),
            held,
            series_bytes: 0,
            rule_times: Vec::new(),
            applied_at: Instant::now(),
            busy_until: None,
        };
        RuleStorage { db, limits, watch, share, work: RefCell::new(work) }
    }

    /// Evaluates the text of a template.
    ///
    /// # Errors
    /// As [`Db::query`].
    pub(super) fn query_text(&self, text: &str, ts: Timestamp) -> Result<Value> {
        let context = self.context();
        let _watched = self.watch.watch(&context.cancel, self.limits.timeout);
        let expr = prepare(text, &context)?;
        let output =
            self.db.evaluate(&expr, QueryTime::Instant(ts), &self.limits.query, &context)?;
        self.work.borrow_mut().results.push(output.held);
        Ok(output.value)
    }

    /// How long each rule took, and the memory of the series that the group keeps.
    pub(super) fn finish(self) -> (Vec<Duration>, Reservation) {
        let mut work = self.work.into_inner();
        work.held.shrink_to(work.series_bytes);
        (work.rule_times, work.held)
    }

    /// The value of a rule's query. Reserves the memory of the series that it makes.
    fn accept(&self, (output, took): StageResult) -> Result<Value> {
        let work = &mut *self.work.borrow_mut();
        work.rule_times.push(took);
        let QueryOutput { value, held, .. } = output?;
        work.results.push(held);
        let bytes = match &value {
            Value::Vector(points) => points.iter().map(|point| series_bytes(&point.labels)).sum(),
            Value::Scalar { .. } => SERIES_BYTES,
            Value::String { .. } | Value::Matrix(_) => 0,
        };
        // Here, so that a rule without memory fails alone: writes are those of several rules.
        let series_bytes = work.series_bytes + bytes;
        work.held.cover(series_bytes)?;
        work.series_bytes = series_bytes;
        Ok(value)
    }

    fn context(&self) -> QueryContext {
        QueryContext::new(CancelToken::new(), self.limits.budget.clone())
    }
}

impl Storage for RuleStorage<'_> {
    fn query_all(&self, exprs: &Arc<SharedExprs>, ts: Timestamp) -> Vec<Result<Value>> {
        let stage = Arc::new(StageQueries::new(exprs, ts, self.limits));
        if exprs.batches().len() > 1 {
            (self.share)(&stage);
        }
        let results = stage.finish(self.db, self.watch);
        let values = results.into_iter().map(|result| self.accept(result)).collect();
        self.work.borrow_mut().applied_at = Instant::now();
        values
    }

    fn write(&self, ts: Timestamp, rows: &[ResultRow]) -> Result<Vec<Option<Error>>> {
        let mut work = self.work.borrow_mut();
        let written = work.write(self.db, &self.limits.query.labels_max, ts, rows);
        work.results.clear();
        written
    }

    fn newest(&self, matchers: &[Matcher], range: TimeRange) -> Result<Vec<ForStateSample>> {
        let context = self.context();
        let _watched = self.watch.watch(&context.cancel, self.limits.timeout);
        let (samples, _held) = self.db.newest(&[matchers.to_vec()], range, &context)?;
        let sample = |(labels, sample): (Labels, firn_model::Sample)| ForStateSample {
            labels,
            ts: sample.ts,
            value: sample.value,
        };
        Ok(samples.into_iter().map(sample).collect())
    }

    fn end_rule(&self, idx: usize) {
        let mut work = self.work.borrow_mut();
        let now = Instant::now();
        let took = now.saturating_duration_since(mem::replace(&mut work.applied_at, now));
        if let Some(rule_took) = work.rule_times.get_mut(idx) {
            *rule_took = rule_took.saturating_add(took);
        }
    }
}

impl EvaluationWork<'_> {
    fn write(
        &mut self,
        db: &Db,
        limits: &LabelLimits,
        ts: Timestamp,
        rows: &[ResultRow],
    ) -> Result<Vec<Option<Error>>> {
        let mut attempts_left = WRITE_ATTEMPTS;
        while attempts_left > 0 {
            let mut errors: Vec<Option<Error>> = rows.iter().map(|_| None).collect();
            self.resolve(db, limits, rows, &mut errors);
            if errors.iter().flatten().any(|error| self.may_retry(error)) {
                continue;
            }
            let mut batch = RowBatch::default();
            let mut written = HashMap::new();
            for (row, error) in rows.iter().zip(&mut errors) {
                let PointValue::Float(value) = row.value else {
                    error.get_or_insert_with(|| Error::invalid(NO_HISTOGRAMS));
                    continue;
                };
                let Some(&series) = self.cache.refs.get(&row.labels) else { continue };
                let known = written.get(&series).or_else(|| self.written.get(&series));
                match known.copied() {
                    // A rule continues the series of another one.
                    Some(known) if is_stale_nan(known) || known.to_bits() == value.to_bits() => {}
                    Some(_) => {
                        *error = Some(Error::invalid("duplicate sample for timestamp"));
                        continue;
                    }
                    None => {}
                }
                written.insert(series, value);
                batch.push(series, ts, value);
            }
            if batch.is_empty() {
                return Ok(errors);
            }
            let report = match db.write_known(&mut batch, self.cache.generation) {
                Err(error) if self.may_retry(&error) => continue,
                report => report?,
            };
            if report.unknown > 0 {
                // Series left the index between the lookup and the write.
                self.cache.clear(db.generation());
                attempts_left -= 1;
                continue;
            }
            if let Some(refused) = report.refused_ts {
                let times = db.accepted_times();
                let why = times.refusal(refused).map(|refusal| times.explain(refused, refusal));
                let why = why.map_or_else(|| "the time is refused".to_owned(), |e| e.to_string());
                for error in errors.iter_mut().filter(|error| error.is_none()) {
                    *error = Some(Error::invalid(why.as_str()));
                }
                return Ok(errors);
            }
            self.written.extend(written);
            return Ok(errors);
        }
        Err(Error::unavailable("series of the rule are removed while it writes; it is retried"))
    }

    /// Finds the references of all rows, and defines new series.
    fn resolve(
        &mut self,
        db: &Db,
        limits: &LabelLimits,
        rows: &[ResultRow],
        errors: &mut [Option<Error>],
    ) {
        let mut unknown: BTreeMap<Labels, Vec<usize>> = BTreeMap::new();
        for (idx, row) in rows.iter().enumerate() {
            if self.cache.has(&row.labels) {
                continue;
            }
            match limits.check(&[&row.labels]) {
                Ok(()) => unknown.entry(row.labels.clone()).or_default().push(idx),
                Err(why) => {
                    if let Some(error) = errors.get_mut(idx) {
                        *error = Some(Error::invalid(format!("a result of the rule: {why}")));
                    }
                }
            }
        }
        if unknown.is_empty() {
            return;
        }
        let room = self.hold_previous();
        let labels: Vec<Labels> = unknown.keys().cloned().collect();
        let mut refuse = |labels: &Labels, why: &Error| {
            for idx in unknown.get(labels).into_iter().flatten() {
                if let Some(error) = errors.get_mut(*idx) {
                    *error = Some(Error::new(why.kind().clone(), why.to_string()));
                }
            }
        };
        let known = match room.and_then(|()| db.find(&labels)) {
            Ok(known) => known,
            Err(why) => return labels.iter().for_each(|labels| refuse(labels, &why)),
        };
        let mut new: BTreeMap<Labels, Vec<(Labels, Labels)>> = BTreeMap::new();
        for (labels, known) in labels.into_iter().zip(known) {
            match known {
                Some(series) => drop(self.cache.refs.insert(labels, series)),
                None => {
                    let (group, member) = group_and_member(&labels);
                    new.entry(group).or_default().push((member, labels));
                }
            }
        }
        for (group, members) in new {
            let own: Vec<Labels> = members.iter().map(|(member, _)| member.clone()).collect();
            match db.resolve_group(&group, &own, ForeignMember::Use) {
                Ok(resolved) => {
                    let whole = members.into_iter().map(|(_, whole)| whole);
                    self.cache.refs.extend(whole.zip(resolved.members));
                }
                Err(why) => members.iter().for_each(|(_, whole)| refuse(whole, &why)),
            }
        }
    }
}

impl EvaluationWork<'_> {
    /// Whether the refused rows are to be written again; then it has waited a little.
    fn may_retry(&mut self, error: &Error) -> bool {
        if !matches!(error.kind(), ErrorKind::Busy { .. }) {
            return false;
        }
        let now = Instant::now();
        let may_retry = now < *self.busy_until.get_or_insert(now + BUSY_TIME_MAX);
        if may_retry {
            std::thread::park_timeout(BUSY_PAUSE);
        }
        may_retry
    }

    /// Reserves the memory of series that this evaluation has not continued, beside that of its
    /// own: they stay until its end.
    fn hold_previous(&mut self) -> Result<()> {
        // One of the two series of a point.
        let previous_bytes = self.cache.previous.keys().map(series_bytes).sum::<u64>() / 2;
        let held = self.held.cover(self.series_bytes + previous_bytes);
        held.map_err(|error| error.context("no memory for new series"))
    }
}

impl SeriesCache {
    /// A new evaluation begins: series that it does not use are forgotten at the next one.
    fn begin(&mut self, generation: u32) {
        self.previous = mem::take(&mut self.refs);
        if self.generation != generation {
            self.clear(generation);
        }
    }

    fn clear(&mut self, generation: u32) {
        self.refs.clear();
        self.previous.clear();
        self.generation = generation;
    }

    fn has(&mut self, labels: &Labels) -> bool {
        if self.refs.contains_key(labels) {
            return true;
        }
        match self.previous.remove_entry(labels) {
            Some((labels, series)) => {
                self.refs.insert(labels, series);
                true
            }
            None => false,
        }
    }
}

/// The labels of the FirnDB group of a series, and its own.
fn group_and_member(labels: &Labels) -> (Labels, Labels) {
    let is_alert = matches!(labels.metric_name(), ALERTS | ALERTS_FOR_STATE);
    let is_shared = |name: &str| name == METRIC_NAME || is_alert && name == ALERT_NAME;
    (labels.filter(is_shared), labels.filter(|name| !is_shared(name)))
}
