//! The detail of histograms that an expression needs.

use crate::syntax::FunctionId;

/// The detail that the expressions above a selector need of its histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HistogramDetail {
    /// All of it, unless a function below needs less.
    #[default]
    Whole,
    /// Count and sum.
    Totals,
    /// All of it, at any depth below: an outer function reads buckets, or a subquery selects
    /// samples.
    WholeBelow,
}

impl HistogramDetail {
    /// The detail that the arguments of `function` need.
    pub(crate) fn below(self, function: FunctionId) -> HistogramDetail {
        use FunctionId as F;
        match function {
            _ if self == HistogramDetail::WholeBelow => HistogramDetail::WholeBelow,
            F::HistogramCount | F::HistogramSum | F::HistogramAvg => HistogramDetail::Totals,
            F::HistogramStddev
            | F::HistogramStdvar
            | F::HistogramQuantile
            | F::HistogramQuantiles
            | F::HistogramFraction => HistogramDetail::WholeBelow,
            _ => self,
        }
    }
}
