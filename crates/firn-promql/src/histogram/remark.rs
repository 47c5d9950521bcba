//! What a computation has to say about the samples that it met.

use std::collections::BTreeSet;

/// The remarks of one computation, each once.
pub(crate) type Remarks = BTreeSet<Remark>;

/// A remark without the metric and the place in the query that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Remark {
    /// Floats and histograms stood where only one kind makes sense.
    MixedKinds,
}
