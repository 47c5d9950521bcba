//! Histograms that are read for their count and sum only.
//!
//! `histogram_count`, `histogram_sum` and `histogram_avg` do not need buckets, and Prometheus reads
//! histograms without them. This affects results: such histograms have been compared with the
//! previous sample, so counter resets are known that a plain selector leaves unknown, and
//! contradictions among them are reported.

use std::sync::Arc;

use firn_model::{Histogram, MixedEntry, PointValue, ResetHint, Result};

use super::kernel::Kernel;
use super::vector::VectorSeries;
use super::window::{MixedSamples, Samples, is_stale};
use crate::histogram::{Remarks, detects_reset};

/// Runs `kernel` on histograms without buckets.
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

/// The entries without buckets; each counter histogram has been compared with the previous one.
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
