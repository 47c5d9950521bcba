//! What a computation has to say about the samples that it met.

use std::collections::BTreeSet;

/// The remarks of one computation, each once.
pub(crate) type Remarks = BTreeSet<Remark>;

/// A remark without the metric and the place in the query that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Remark {
    /// Floats and histograms stood where only one kind makes sense.
    MixedKinds,
    /// Exponential and custom buckets stood together.
    MixedSchemas,
    /// A gauge where a counter belongs.
    NotCounter,
    /// A counter where a gauge belongs.
    NotGauge,
    /// Histograms stood among floats and were left out.
    IgnoredInRange,
    /// Custom bounds differed; those that all had were used.
    BoundsDiffered(Operation),
    /// Some histograms come after a counter reset, some do not.
    ResetsConflict(Operation),
    /// A sample says that it counts since before the sample before it.
    StartOverlaps,
}

/// What was done to histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Addition,
    Subtraction,
    Aggregation,
}

impl Operation {
    /// As messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Addition => "addition",
            Operation::Subtraction => "subtraction",
            Operation::Aggregation => "aggregation",
        }
    }
}
