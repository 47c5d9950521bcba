//! Which histograms are read for their count and sum only.
//!
//! Below `histogram_count`, `histogram_sum` and `histogram_avg` buckets do not matter, and Prometheus reads histograms
//! without them. That shows in results: what it reads so has been compared with the sample before it, so that counter
//! resets are known there which a plain selector leaves open, and contradictions among them are told.

use std::sync::Arc;

use firn_model::{Histogram, MixedEntry, PointValue, ResetHint, Result};

use super::select::Kernel;
use super::vector::VectorSeries;
use super::window::{MixedSamples, Samples, is_stale};
use crate::histogram::{Remarks, detects_reset};
use crate::syntax::FunctionId;

/// What the expressions above a selector need of its histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Everything, as far as is known here.
    #[default]
    Whole,
    /// Count and sum.
    Totals,
    /// Everything, whatever stands further down: an outer function looks at buckets, or a subquery picks samples.
    WholeBelow,
}

impl Needs {
    /// What the arguments of `function` need.
    pub(crate) fn below(self, function: FunctionId) -> Needs {
        use FunctionId as F;
        match function {
            _ if self == Needs::WholeBelow => Needs::WholeBelow,
            F::HistogramCount | F::HistogramSum | F::HistogramAvg => Needs::Totals,
            F::HistogramStddev
            | F::HistogramStdvar
            | F::HistogramQuantile
            | F::HistogramQuantiles
            | F::HistogramFraction => Needs::WholeBelow,
            _ => self,
        }
    }
}

/// Computes what `kernel` computes, of histograms without buckets.
pub(crate) struct TotalsOnly<'k> {
    pub(crate) kernel: &'k dyn Kernel,
}

impl Kernel for TotalsOnly<'_> {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        self.kernel.floats(samples, out)
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()> {
        let entries = totals_only(samples.entries);
        self.kernel.mixed(MixedSamples { entries: &entries, ..samples }, out, remarks)
    }

    fn looks_at_windows(&self) -> bool {
        self.kernel.looks_at_windows()
    }
}

/// The entries without buckets, each counter histogram told from the one before it.
fn totals_only(entries: &[MixedEntry]) -> Vec<MixedEntry> {
    let mut before: Option<&Histogram> = None;
    let mut totals = Vec::with_capacity(entries.len());
    for entry in entries {
        let PointValue::Histogram(histogram) = &entry.value else {
            totals.push(entry.clone());
            continue;
        };
        if is_stale(&entry.value) {
            totals.push(entry.clone());
            continue;
        }
        let reset_hint = match (histogram.reset_hint, before) {
            (ResetHint::Unknown, Some(before)) if detects_reset(histogram, before) => {
                ResetHint::Reset
            }
            (ResetHint::Unknown, Some(_)) => ResetHint::NoReset,
            (hint, _) => hint,
        };
        before = Some(histogram);
        let total = Histogram {
            schema: histogram.schema,
            reset_hint,
            count: histogram.count,
            sum: histogram.sum,
            ..Histogram::empty()
        };
        let value = PointValue::Histogram(Arc::new(total));
        totals.push(MixedEntry { start: entry.start, value });
    }
    totals
}
