//! Remarks of a computation on its samples.

use std::collections::BTreeSet;

/// The remarks of one computation, without duplicates.
pub(crate) type Remarks = BTreeSet<Remark>;

/// A remark, without its metric and its position in the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Remark {
    /// Floats and histograms are mixed, but only one kind is supported.
    MixedKinds,
    /// Exponential and custom buckets are mixed.
    MixedSchemas,
    /// A gauge histogram in a function for counters.
    NotCounter,
    /// A counter histogram in a function for gauges.
    NotGauge,
    /// Histograms among floats were ignored.
    IgnoredInRange,
    /// Custom bounds differed; the common ones were used.
    BoundsDiffered(Operation),
    /// Some histograms follow a counter reset, some do not.
    ResetsConflict(Operation),
    /// The start timestamp of a sample is before the previous sample.
    StartOverlaps,
}

/// An operation on histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Addition,
    Subtraction,
    Aggregation,
}

impl Operation {
    /// The name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Addition => "addition",
            Operation::Subtraction => "subtraction",
            Operation::Aggregation => "aggregation",
        }
    }
}
