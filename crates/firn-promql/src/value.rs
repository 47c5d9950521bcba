//! Results of queries.

use std::fmt;
use std::sync::Arc;

use firn_model::{Histogram, Labels, Reservation, Sample, Timestamp};

pub use firn_model::PointValue;

use crate::eval::tally::SampleStats;
use crate::syntax::{Span, ValueType};

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

/// A histogram point of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramPoint {
    /// The time in milliseconds.
    pub ts: Timestamp,
    /// The histogram.
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

/// The value of a query.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number at the evaluation time.
    Scalar {
        /// The evaluation time, milliseconds.
        ts: Timestamp,
        /// The number.
        value: f64,
    },
    /// A string; PromQL strings are bytes.
    String {
        /// The evaluation time, milliseconds.
        ts: Timestamp,
        /// The bytes, usually UTF-8.
        value: Vec<u8>,
    },
    /// Series with one point each, in evaluation order.
    Vector(Vec<VectorPoint>),
    /// Series with points in time order, sorted by labels.
    Matrix(Vec<Series>),
}

impl Value {
    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::Scalar { .. } => ValueType::Scalar,
            Value::String { .. } => ValueType::String,
            Value::Vector(_) => ValueType::Vector,
            Value::Matrix(_) => ValueType::Matrix,
        }
    }
}

/// The severity of an [`Annotation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnnotationKind {
    /// The result is probably wrong or incomplete.
    Warning,
    /// Information only.
    Info,
}

/// A remark on a query's evaluation, returned with its result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Annotation {
    /// The severity.
    pub kind: AnnotationKind,
    /// The text without prefix and position.
    pub text: String,
    /// The expression that the remark is about.
    pub span: Span,
    /// Line of the expression in the query, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

/// As in the HTTP API: `PromQL warning: text (1:7)`.
impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            AnnotationKind::Warning => "PromQL warning",
            AnnotationKind::Info => "PromQL info",
        };
        write!(f, "{kind}: {} ({}:{})", self.text, self.line, self.column)
    }
}

/// The remarks of one evaluation without duplicates, ordered by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Sorted, without duplicates.
    pub list: Vec<Annotation>,
}

impl Annotations {
    /// The texts of the warnings as the API returns them.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.texts(AnnotationKind::Warning)
    }

    /// The texts of the infos as the API returns them.
    pub fn infos(&self) -> impl Iterator<Item = String> + '_ {
        self.texts(AnnotationKind::Info)
    }

    fn texts(&self, kind: AnnotationKind) -> impl Iterator<Item = String> + '_ {
        self.list.iter().filter(move |note| note.kind == kind).map(ToString::to_string)
    }
}

/// A query's value and its annotations.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryOutput {
    /// The value.
    pub value: Value,
    /// Warnings and infos.
    pub annotations: Annotations,
    /// The number of samples read from storage.
    pub samples_read: u64,
    /// The largest number of samples in memory at one time.
    pub samples_peak: u64,
    /// The samples of each step, with [`crate::EvalOptions::counts_samples`] only.
    pub samples: Option<SampleStats>,
    /// The reservation of the value's memory.
    pub held: HeldMemory,
}

/// The memory of a [`QueryOutput`], reserved as long as any clone lives. All are equal: two results
/// with the same content are the same result.
#[derive(Clone, Debug, Default)]
pub struct HeldMemory(Vec<Arc<Reservation>>);

impl HeldMemory {
    /// Holds `reservation`.
    pub fn new(reservation: Reservation) -> HeldMemory {
        HeldMemory(vec![Arc::new(reservation)])
    }

    /// Holds the memory of `other` too.
    pub fn add(&mut self, other: HeldMemory) {
        self.0.extend(other.0);
    }

    /// The number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|one| one.bytes()).sum()
    }
}

impl PartialEq for HeldMemory {
    fn eq(&self, _: &HeldMemory) -> bool {
        true
    }
}
