//! The database of a test: input series, loaded up to the time of each evaluation, and results.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{
    Error, Labels, Matcher, MixedEntry, PointValue, Pool, Reservation, Result, TimeRange,
    Timestamp, is_stale_nan,
};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{
    EvalOptions, Expr, MemorySelect, PartResult, QueryOutput, SharedExprs, Value, eval_with_parts,
};

use super::TestLimits;
use super::section::InputText;
use crate::group::{ForStateSample, ResultRow, Storage};

pub(super) struct SampleStorage<'a> {
    stored: RefCell<StoredSamples>,
    subquery_step_ms: i64,
    limits: &'a TestLimits,
}

struct StoredSamples {
    select: MemorySelect,
    /// The memory of the samples, which `held` covers.
    bytes: u64,
    held: Reservation,
}

/// The memory of a sample in a map.
const SAMPLE_BYTES: usize = 100;
/// The memory of a series without its labels.
const SERIES_BYTES: usize = 400;

impl StoredSamples {
    fn push(&mut self, labels: &Labels, ts: Timestamp, value: PointValue) -> Result<()> {
        let text_bytes = |labels: &Labels| -> usize {
            labels.iter().map(|pair| pair.0.len().saturating_add(pair.1.len())).sum()
        };
        let series_bytes = match self.select.has_series(labels) {
            true => 0,
            false => text_bytes(labels).saturating_add(SERIES_BYTES),
        };
        let bytes = series_bytes.saturating_add(SAMPLE_BYTES) as u64;
        self.held.cover(self.bytes.saturating_add(bytes))?;
        self.bytes = self.bytes.saturating_add(bytes);
        self.select.push_entry(labels, ts, MixedEntry { start: 0, value });
        Ok(())
    }
}

impl SampleStorage<'_> {
    pub(super) fn new(subquery_step_ms: i64, limits: &TestLimits) -> SampleStorage<'_> {
        let held = limits.budget.empty(Pool::Query);
        let stored =
            RefCell::new(StoredSamples { select: MemorySelect::without_groups(), bytes: 0, held });
        SampleStorage { stored, subquery_step_ms, limits }
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
        let context = self.limits.context();
        eval_with_parts(expr, parts, &self.stored.borrow().select, &options, &context)
    }

    /// Adds all input samples up to `ts`.
    ///
    /// # Errors
    /// `TooLarge` without memory.
    pub(super) fn load(&self, input: &mut Input, ts: Timestamp) -> Result<()> {
        let mut stored = self.stored.borrow_mut();
        while let Some((at, labels, value)) = input.samples.pop_if(|sample| sample.0 <= ts) {
            stored.push(&labels, at, value)?;
        }
        Ok(())
    }
}

impl Storage for SampleStorage<'_> {
    fn query_all(&self, exprs: &Arc<SharedExprs>, ts: Timestamp) -> Vec<Result<Value>> {
        let mut evaluate = |expr: &Expr, parts: &[PartResult]| self.evaluate(expr, parts, ts);
        let outputs = exprs.evaluate_all(&mut evaluate).into_iter();
        outputs.map(|output| Ok(output?.value)).collect()
    }

    fn write(&self, ts: Timestamp, rows: &[ResultRow]) -> Result<Vec<Option<Error>>> {
        let mut stored = self.stored.borrow_mut();
        let mut write = |row: &ResultRow| match stored.select.get(&row.labels, ts) {
            Some(known) if !is_same(known, &row.value) => {
                Some(Error::invalid("duplicate sample for timestamp"))
            }
            Some(_) => None,
            None => stored.push(&row.labels, ts, row.value.clone()).err(),
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

/// The maximum number of input samples before they are loaded: a sample takes 40 bytes then.
const SAMPLES_MAX: usize = 10_000_000;
/// The memory of an input sample.
const INPUT_BYTES: usize = size_of::<(Timestamp, Labels, PointValue)>();

/// Samples that are not loaded yet, the next one last.
#[derive(Debug)]
pub(super) struct Input {
    samples: Vec<(Timestamp, Labels, PointValue)>,
    _held: Reservation,
}

impl Input {
    /// The samples of `series`: the first at `start`, then one each `interval_ms`.
    pub(super) fn parse(
        series: &[InputText],
        start: Timestamp,
        interval_ms: i64,
        limits: &TestLimits,
    ) -> Result<Input, String> {
        let mut samples = Vec::new();
        let mut held = limits.budget.empty(Pool::Query);
        // The first sample of the last line of each series.
        let mut last_lines: HashMap<Labels, usize> = HashMap::new();
        // promtool makes a script of them, whose first line is a command: a text of several lines
        // is several series, and an empty line or a comment ends the script.
        let mut line_number: usize = 1;
        'script: for input in series {
            let text = format!("{} {}", input.series, input.values);
            for line in text.split('\n').map(str::trim) {
                if line.is_empty() || line.starts_with('#') {
                    break 'script;
                }
                line_number = line_number.saturating_add(1);
                let parsed = SeriesLine::parse_strictly(line);
                let line = parsed.map_err(|error| match error.strip_prefix("1:") {
                    Some(error) => format!("{line_number}:{error}"),
                    None => error,
                })?;
                let count = samples.len().saturating_add(line.items.len());
                if count > SAMPLES_MAX {
                    return Err(format!("the input series have more than {SAMPLES_MAX} samples"));
                }
                // A list that grows has up to twice its length.
                let series_bytes =
                    last_lines.len().saturating_add(1).saturating_mul(2 * INPUT_BYTES);
                let bytes = count.saturating_mul(2 * INPUT_BYTES).saturating_add(series_bytes);
                held.cover(bytes as u64).map_err(|error| error.to_string())?;
                last_lines.insert(line.labels.clone(), samples.len());
                for (item, idx) in line.items.into_iter().zip(0_i64..) {
                    let value = match item {
                        SeriesItem::Gap => continue,
                        SeriesItem::Float(value) => PointValue::Float(value),
                        SeriesItem::Histogram(written) => {
                            written.histogram.validate()?;
                            PointValue::Histogram(written.histogram)
                        }
                    };
                    let ts = start.saturating_add(idx.saturating_mul(interval_ms));
                    samples.push((ts, line.labels.clone(), value));
                }
            }
        }
        // A later line of a series replaces the earlier ones, with their gaps.
        if last_lines.len() < line_number.saturating_sub(1) {
            let mut idx: usize = 0;
            samples.retain(|(_, labels, _)| {
                let is_last = last_lines.get(labels).is_some_and(|&first| first <= idx);
                idx = idx.saturating_add(1);
                is_last
            });
        }
        samples.reverse();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.0));
        Ok(Input { samples, _held: held })
    }
}
