//! PromQL: parser, plan and evaluation over column batches.
//!
//! **Owns** the parser (positions on every node, Prometheus' error messages), the plan (series,
//! exact time ranges, labels that an aggregation needs), the evaluation over column batches, and
//! for tests of rules the notation of series and storage in memory.
//!
//! **Never** accesses storage other than through [`firn_model::Select`]. It reads no clock and does
//! no I/O. It starts threads only as scoped helpers of one evaluation, at most as many as the
//! query's context lends.
//!
//! **Path through**: [`prepare`] returns an [`Expr`]: [`parse`] reads the text, which is linear in
//! its length, and [`Expr::compile`] compiles patterns within a query's limits. [`eval()`] replaces
//! everything that depends on the query's times (`plan`) and reads each selector group by group
//! (`eval/scan`). For each series it computes one column with one value per step. Below an
//! aggregation the column is folded into its group at once; other operators and functions combine
//! columns.
//!
//! **Invariants**
//! - A step of a range query has the same bits as an instant query at that time: partial aggregates
//!   end at absolute block boundaries and nothing is ever subtracted
//!   (`each_step_has_the_bits_of_its_window_alone`).
//! - Results do not depend on the number of threads: members reach an aggregation in the order of
//!   groups and slots.
//! - Windows are open on the left and closed on the right; bounds are computed once per time
//!   column.
//! - Loops over floats never meet another type: a member with histograms or start timestamps takes
//!   a path of its own (`Kernel::mixed`, `histogram`), and a series of floats has no column for
//!   histograms.
//! - A grouping is pushed down to storage only if the result is exactly the same.
//! - No text makes the parser or the evaluator panic; trees have at most 400 levels.
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
//! let error = parse("sum(").unwrap_err();
//! assert_eq!(error.to_string(), "1:5: parse error: unclosed left parenthesis");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Terms: `docs/glossary.md`. Reading order: `syntax`, `value`, `plan`, `depends`, `parts`,
//! `shared`, `eval`, `functions`, `histogram`, `notation`, `memory`.

#![forbid(unsafe_code)]

mod depends;
mod eval;
mod functions;
mod histogram;
mod memory;
pub mod notation;
mod parts;
mod plan;
mod shared;
mod syntax;
#[cfg(feature = "test-util")]
pub mod test_util;
mod value;

use firn_model::{LabelLimits, Timestamp};

pub use depends::{Dependency, Reach, dependencies};
pub use eval::tally::SampleStats;
pub use eval::{eval, eval_with_parts};
pub use histogram::{BoundedBucket, all_buckets, text as histogram_text};
pub use memory::MemorySelect;
pub use parts::{PartResult, parts};
pub use plan::{check_range, selections};
pub use shared::{SharedExprs, SharedResults};
pub use syntax::{
    Aggregate, AggregateOp, At, Binary, BinaryOp, BoundaryMode, Cardinality, DurationExpr, Expr,
    Function, Length, Matching, MatrixSelector, Node, NodeKind, ParseError, Pretty, Selector, Span,
    Subquery, ValueType, format_f, format_g, go_quote, go_quote_char, is_printable, parse,
    parse_float, parse_matchers, parse_selector, parse_uint, prepare, tree_bytes,
};
pub use value::{
    Annotation, AnnotationKind, Annotations, HeldMemory, HistogramPoint, PointValue, QueryOutput,
    Series, Value, VectorPoint,
};

use eval::window::Steps;

/// The times of an evaluation and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalOptions {
    /// The first evaluation time, in milliseconds; the only one of an instant query.
    pub start: Timestamp,
    /// The last possible evaluation time, in milliseconds; ignored for an instant query.
    pub end: Timestamp,
    /// Milliseconds between evaluation times of a range query, above 0; `None` for an instant
    /// query.
    pub step_ms: Option<i64>,
    /// Milliseconds before each step in which a selector looks for a sample.
    pub lookback_ms: i64,
    /// The maximum number of samples in memory at one time.
    pub samples_max: u64,
    /// The step of subqueries without a step of their own.
    pub subquery_step_ms: i64,
    /// Whether `__name__` is dropped only at the very end (Prometheus' feature
    /// `promql-delayed-name-removal`), so that operators above a function still see it. Off by
    /// default, as in Prometheus.
    pub delayed_name_removal: bool,
    /// Whether to count the samples of each step, which costs a few per cent of the evaluation's
    /// time.
    pub counts_samples: bool,
    /// Whether `start_timestamp` has results (Prometheus' feature `use-start-timestamps`): 0 for a
    /// sample whose start is unknown. Off by default, as in Prometheus. Functions of counters use
    /// start timestamps wherever storage returns them.
    pub start_timestamps: bool,
    /// The longest names and values of labels that functions may make: those that writes may store.
    pub labels_max: LabelLimits,
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
            start_timestamps: false,
            labels_max: LabelLimits::default(),
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

    /// The values of `step()` and `range()` in seconds.
    pub(crate) fn step_and_range_seconds(&self) -> (f64, f64) {
        let step_ms = self.step_ms.unwrap_or(0);
        let range_ms = self.end_or_start().saturating_sub(self.start);
        (step_ms as f64 / 1000.0, range_ms as f64 / 1000.0)
    }
}
