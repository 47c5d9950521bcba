//! The database of a test: input series, loaded up to the time of each evaluation, and results.

use std::cell::RefCell;
use std::sync::Arc;

use firn_model::{
    Error, Labels, Matcher, MixedEntry, PointValue, QueryContext, Result, TimeRange, Timestamp,
    is_stale_nan,
};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{
    EvalOptions, Expr, MemorySelect, PartResult, QueryOutput, SharedExprs, Value, eval_with_parts,
};

use super::section::InputText;
use crate::group::{ForStateSample, ResultRow, Storage};

pub(super) struct SampleStorage {
    select: RefCell<MemorySelect>,
    subquery_step_ms: i64,
    context: QueryContext,
}

impl SampleStorage {
    pub(super) fn new(subquery_step_ms: i64) -> SampleStorage {
        SampleStorage {
            select: RefCell::new(MemorySelect::new()),
            subquery_step_ms,
            context: QueryContext::unbounded(),
        }
    }

    /// Evaluates an instant query.
    ///
    /// # Errors
    /// As [`eval_with_parts`].
    pub(super) fn query(&self, expr: &Expr, ts: Timestamp) -> Result<Value> {
        Ok(self.evaluate(expr, &[], ts)?.value)
    }

    fn evaluate(&self, expr: &Expr, parts: &[PartResult], ts: Timestamp) -> Result<QueryOutput> {
        let options =
            EvalOptions { subquery_step_ms: self.subquery_step_ms, ..EvalOptions::instant(ts) };
        eval_with_parts(expr, parts, &*self.select.borrow(), &options, &self.context)
    }

    /// Adds all input samples up to `ts`.
    pub(super) fn load(&self, input: &mut Input, ts: Timestamp) {
        let mut select = self.select.borrow_mut();
        while let Some((at, labels, value)) = input.samples.pop_if(|sample| sample.0 <= ts) {
            select.push_entry(&labels, at, MixedEntry { start: 0, value });
        }
    }
}

impl Storage for SampleStorage {
    fn query_all(&self, exprs: &Arc<SharedExprs>, ts: Timestamp) -> Vec<Result<Value>> {
        let mut evaluate = |expr: &Expr, parts: &[PartResult]| self.evaluate(expr, parts, ts);
        let outputs = exprs.evaluate_all(&mut evaluate).into_iter();
        outputs.map(|output| Ok(output?.value)).collect()
    }

    fn write(&self, ts: Timestamp, rows: &[ResultRow]) -> Result<Vec<Option<Error>>> {
        let mut select = self.select.borrow_mut();
        let mut write = |row: &ResultRow| match select.get(&row.labels, ts) {
            Some(known) if !is_same(known, &row.value) => {
                Some(Error::invalid("duplicate sample for timestamp"))
            }
            Some(_) => None,
            None => {
                let entry = MixedEntry { start: 0, value: row.value.clone() };
                select.push_entry(&row.labels, ts, entry);
                None
            }
        };
        Ok(rows.iter().map(&mut write).collect())
    }

    fn newest(&self, _: &[Matcher], _: TimeRange) -> Result<Vec<ForStateSample>> {
        // Nothing is restored in a test.
        Ok(Vec::new())
    }
}

fn is_same(a: &PointValue, b: &PointValue) -> bool {
    match (a, b) {
        (PointValue::Float(a), PointValue::Float(b)) => {
            a == b || is_stale_nan(*a) == is_stale_nan(*b) && a.is_nan() && b.is_nan()
        }
        (a, b) => a == b,
    }
}

/// The maximum number of input samples: a sample takes about 100 bytes.
const SAMPLES_MAX: usize = 10_000_000;

/// Samples that are not loaded yet, the next one last.
#[derive(Debug)]
pub(super) struct Input {
    samples: Vec<(Timestamp, Labels, PointValue)>,
}

impl Input {
    /// The samples of `series`: the first at `start`, then one each `interval_ms`.
    pub(super) fn parse(
        series: &[InputText],
        start: Timestamp,
        interval_ms: i64,
    ) -> Result<Input, String> {
        let mut samples = Vec::new();
        for input in series {
            let text = format!("{} {}", input.series, input.values);
            let line = SeriesLine::parse(&text)
                .map_err(|error| format!("input series {:?}: {error}", input.series))?;
            for (item, idx) in line.items.into_iter().zip(0_i64..) {
                let value = match item {
                    SeriesItem::Gap => continue,
                    SeriesItem::Float(value) => PointValue::Float(value),
                    SeriesItem::Histogram(written) => PointValue::Histogram(written.histogram),
                };
                let ts = start.saturating_add(idx.saturating_mul(interval_ms));
                samples.push((ts, line.labels.clone(), value));
            }
            if samples.len() > SAMPLES_MAX {
                return Err(format!("more than {SAMPLES_MAX} samples in a test"));
            }
        }
        // Later lines win over earlier ones with the same time.
        samples.reverse();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.0));
        Ok(Input { samples })
    }
}
