//! Results: what a query gives back.

use std::fmt;
use std::sync::Arc;

use firn_model::{Histogram, Labels, Sample, Timestamp};

pub use firn_model::PointValue;

use crate::eval::tally::SampleStats;
use crate::syntax::Span;

/// The type of an expression, as Prometheus names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// One number per step.
    Scalar,
    /// One text.
    String,
    /// Series with one point per step.
    Vector,
    /// Series with a window of points per step.
    Matrix,
}

impl ValueType {
    /// The name that error texts use: `instant vector` for a vector.
    pub fn documented(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::String => "string",
            ValueType::Vector => "instant vector",
            ValueType::Matrix => "range vector",
        }
    }

    /// The name in the API's `resultType`.
    pub fn api_name(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::String => "string",
            ValueType::Vector => "vector",
            ValueType::Matrix => "matrix",
        }
    }
}

/// One series of an instant vector.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorPoint {
    /// Its labels.
    pub labels: Labels,
    /// The time of the evaluation, milliseconds.
    pub ts: Timestamp,
    /// Its value.
    pub value: PointValue,
}

/// One series of a matrix. No time is in both lists.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Series {
    /// Its labels.
    pub labels: Labels,
    /// The float points, times rising.
    pub floats: Vec<Sample>,
    /// The histogram points, times rising.
    pub histograms: Vec<HistogramPoint>,
}

/// A point of a matrix that is a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramPoint {
    /// When, in milliseconds.
    pub ts: Timestamp,
    /// What.
    pub histogram: Arc<Histogram>,
}

impl Series {
    /// A series of floats.
    pub fn new(labels: Labels, floats: Vec<Sample>) -> Series {
        Series { labels, floats, histograms: Vec::new() }
    }

    /// Whether it has no point.
    pub fn is_empty(&self) -> bool {
        self.floats.is_empty() && self.histograms.is_empty()
    }
}

/// What a query evaluates to.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number at the evaluation time.
    Scalar {
        /// The evaluation time, milliseconds.
        ts: Timestamp,
        /// The number.
        value: f64,
    },
    /// A text; PromQL texts are bytes.
    String {
        /// The evaluation time, milliseconds.
        ts: Timestamp,
        /// The bytes, mostly UTF-8.
        value: Vec<u8>,
    },
    /// Series with one point each, in the order of evaluation.
    Vector(Vec<VectorPoint>),
    /// Series with points in time order, sorted by labels.
    Matrix(Vec<Series>),
}

impl Value {
    /// What it is.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::Scalar { .. } => ValueType::Scalar,
            Value::String { .. } => ValueType::String,
            Value::Vector(_) => ValueType::Vector,
            Value::Matrix(_) => ValueType::Matrix,
        }
    }
}

/// How grave an [`Annotation`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnnotationKind {
    /// The result is probably not what was wanted.
    Warning,
    /// Worth knowing.
    Info,
}

/// A remark on a query's evaluation that goes out with its result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Annotation {
    /// How grave.
    pub kind: AnnotationKind,
    /// The text without prefix and position.
    pub text: String,
    /// The expression concerned.
    pub span: Span,
    /// Line of the expression in the query, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

/// As the HTTP API gives it: `PromQL warning: text (1:7)`.
impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            AnnotationKind::Warning => "PromQL warning",
            AnnotationKind::Info => "PromQL info",
        };
        write!(f, "{kind}: {} ({}:{})", self.text, self.line, self.column)
    }
}

/// The remarks of one evaluation, each once, in order of their position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Sorted, no two equal.
    pub list: Vec<Annotation>,
}

impl Annotations {
    /// The warnings' texts as the API gives them.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.texts(AnnotationKind::Warning)
    }

    /// The infos' texts as the API gives them.
    pub fn infos(&self) -> impl Iterator<Item = String> + '_ {
        self.texts(AnnotationKind::Info)
    }

    fn texts(&self, kind: AnnotationKind) -> impl Iterator<Item = String> + '_ {
        self.list.iter().filter(move |note| note.kind == kind).map(ToString::to_string)
    }
}

/// A query's value and the remarks on it.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryOutput {
    /// The value.
    pub value: Value,
    /// Warnings and infos.
    pub annotations: Annotations,
    /// Number of samples that were read from storage.
    pub samples_read: u64,
    /// The most samples that were in memory at one time.
    pub samples_peak: u64,
    /// What each step looked at, if [`crate::EvalOptions::counts_samples`] asked for it.
    pub samples: Option<SampleStats>,
}
