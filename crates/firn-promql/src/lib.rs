//! PromQL: the language, its planning and evaluation.
//!
//! **Owns** the parser (positions on every node, errors in Prometheus' words), the plan (which series, which
//! exact time range, which labels matter) and the evaluation over column batches.
//!
//! **Never** knows where samples are kept: it sees storage only as [`firn_model::Select`]. It reads no clock,
//! does no I/O, and starts threads only as scoped helpers of one evaluation, as many as the query's context lends.
//!
//! **The way through**: [`parse`] gives an [`Expr`]; [`eval()`] resolves what depends on the query's times
//! (`plan`), reads each selector group by group (`eval/scan`), computes one column of one value per step for
//! each series, folds it into its group at once where an aggregation stands above, and combines columns upwards.
//!
//! **Invariants**
//! - A step of a range query has the bits that an instant query at that time has: partial aggregates end at
//!   absolute block borders and nothing is ever subtracted (`each_step_has_the_bits_of_its_window_alone`).
//! - Results do not depend on the number of threads: members reach an aggregation in the order of groups and slots.
//! - Windows are open on the left and closed on the right; bounds are computed once per time column.
//! - Loops over floats meet nothing but floats: a member with histograms or start timestamps takes another way
//!   (`Kernel::mixed`, `histogram`), and a series of floats has no column for histograms.
//! - A grouping goes down to storage only where the result is exactly the same.
//! - No text makes the parser or the evaluator panic; trees are at most 400 levels high.
//!
//! ```
//! use firn_model::{Labels, QueryContext};
//! use firn_promql::{EvalOptions, PointValue, Value, eval, parse};
//! use firn_promqltest::MemorySelect;
//!
//! let mut store = MemorySelect::new();
//! let labels = Labels::from_pairs([("__name__", "requests_total"), ("job", "api")])?;
//! (0..9).for_each(|idx| store.push(&labels, idx * 15_000, idx as f64 * 30.0));
//!
//! let expr = parse("sum by (job) (max_over_time(requests_total[1m]))")?;
//! let options = EvalOptions::instant(120_000);
//! let output = eval(&expr, &store, &options, &QueryContext::unbounded())?;
//! let Value::Vector(vector) = output.value else { unreachable!("a sum is a vector") };
//! assert_eq!(vector[0].labels.to_string(), "{job=\"api\"}");
//! assert_eq!(vector[0].value, PointValue::Float(240.0));
//!
//! assert_eq!(parse("sum(").unwrap_err().to_string(), "1:5: parse error: unclosed left parenthesis");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: `syntax`, `value`, `plan`, `depends`, `parts`, `eval`, `functions`, `histogram`.

#![forbid(unsafe_code)]

mod depends;
mod eval;
mod functions;
mod histogram;
mod parts;
mod plan;
mod syntax;
#[cfg(feature = "test-util")]
pub mod test_util;
mod value;

use firn_model::Timestamp;

pub use depends::{Dependency, Reach, dependencies};
pub use eval::tally::SampleStats;
pub use eval::{eval, eval_given};
pub use histogram::{BoundedBucket, all_buckets};
pub use parts::{Given, parts};
pub use plan::{check_range, selections};
pub use syntax::{
    Aggregate, AggregateOp, At, Binary, BinaryOp, Borders, Cardinality, DurationExpr, Expr,
    Function, Length, Matching, MatrixSelector, Node, NodeKind, ParseError, Pretty, Selector, Span,
    Subquery, parse, parse_selector,
};
pub use value::{
    Annotation, AnnotationKind, Annotations, HistogramPoint, PointValue, QueryOutput, Series,
    Value, ValueType, VectorPoint,
};

use eval::window::Steps;

/// When to evaluate, and within which limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalOptions {
    /// The first (and for an instant query only) evaluation time, milliseconds.
    pub start: Timestamp,
    /// The last evaluation time at most; ignored for an instant query.
    pub end: Timestamp,
    /// Distance of evaluation times for a range query, above 0; `None` for an instant query.
    pub step_ms: Option<i64>,
    /// How far back a selector looks for a sample.
    pub lookback_ms: i64,
    /// Samples that may be in memory at one time.
    pub samples_max: u64,
    /// The step of a subquery that names none.
    pub subquery_step_ms: i64,
    /// Whether `__name__` is dropped at the very end only (Prometheus' `promql-delayed-name-removal`), so that
    /// what stands above a function still sees it. Off as in Prometheus.
    pub delayed_name_removal: bool,
    /// Whether to count what each step looks at (a few per cent of the evaluation's time).
    pub counts_samples: bool,
}

impl EvalOptions {
    /// One evaluation at `ts` with Prometheus' defaults.
    pub fn instant(ts: Timestamp) -> EvalOptions {
        EvalOptions {
            start: ts,
            end: ts,
            step_ms: None,
            lookback_ms: 300_000,
            samples_max: 50_000_000,
            subquery_step_ms: 60_000,
            delayed_name_removal: false,
            counts_samples: false,
        }
    }

    /// Evaluations from `start` to `end`, `step_ms` apart, with Prometheus' defaults.
    pub fn range(start: Timestamp, end: Timestamp, step_ms: i64) -> EvalOptions {
        EvalOptions { end, step_ms: Some(step_ms), ..EvalOptions::instant(start) }
    }

    pub(crate) fn steps(&self) -> Steps {
        match self.step_ms {
            None => Steps::one(self.start),
            Some(step_ms) => Steps::between(self.start, self.end, step_ms),
        }
    }

    pub(crate) fn end_or_start(&self) -> Timestamp {
        if self.step_ms.is_some() { self.end } else { self.start }
    }

    /// What `step()` and `range()` stand for, seconds.
    pub(crate) fn step_and_range_seconds(&self) -> (f64, f64) {
        let step_ms = self.step_ms.unwrap_or(0);
        let range_ms = self.end_or_start().saturating_sub(self.start);
        (step_ms as f64 / 1000.0, range_ms as f64 / 1000.0)
    }
}
