//! Kernels: the computation of one value per window of a series, and the kernels of instant
//! selectors.

use std::sync::Arc;

use firn_model::{PointValue, Result};

use super::vector::{VectorSeries, is_absent};
use super::window::{Frame, MixedSamples, Samples, is_stale};
use crate::functions::extended;
use crate::histogram::{self, Remarks};

/// Computes one value per window of a series. Plain floats, the usual case, have a loop of their
/// own that does not check the type of each sample.
pub(crate) trait Kernel: Sync {
    /// Computes one value per window; all steps of `out` are absent initially.
    ///
    /// # Errors
    /// `Invalid` for an invalid parameter of the function.
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()>;

    /// The same for samples with histograms or start timestamps; `out` has no point initially.
    ///
    /// # Errors
    /// As [`Kernel::floats`].
    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()>;

    /// Whether all samples of a window count for its step, and not only the resulting point.
    fn looks_at_windows(&self) -> bool {
        true
    }
}

/// The newest sample of each window.
pub(super) struct Newest;

impl Kernel for Newest {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(out) {
            if let Some(last) = window.last() {
                // A stale marker has the bits of an absent point, which is its meaning here.
                *out = samples.values[last];
            }
        }
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (step, window) in samples.windows.iter().enumerate() {
            let Some(entry) = window.last().map(|last| &samples.entries[last]) else { continue };
            match &entry.value {
                PointValue::Float(value) => out.values[step] = *value,
                stale if is_stale(stale) => {}
                PointValue::Histogram(histogram) => out.set_histogram(step, Arc::clone(histogram)),
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The value of each window at its reference time.
pub(super) struct SmoothedValues {
    pub(super) frame: Frame,
}

impl Kernel for SmoothedValues {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        extended::smoothed_values(samples, &self.frame, out);
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()> {
        for (step, window) in samples.windows.iter().enumerate() {
            let at = self.frame.reference(step);
            if let Some(value) = histogram::smoothed_point(samples, window, at, remarks) {
                out.set(step, value);
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The time of the newest sample of each window.
pub(super) struct NewestTimes {
    /// 1 for milliseconds, 1000 for seconds.
    pub(super) per_unit_ms: f64,
}

impl Kernel for NewestTimes {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(out) {
            if let Some(last) = window.last()
                && !is_absent(samples.values[last])
            {
                *out = samples.times[last] as f64 / self.per_unit_ms;
            }
        }
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(&mut out.values) {
            if let Some(last) = window.last()
                && !is_stale(&samples.entries[last].value)
            {
                *out = samples.times[last] as f64 / self.per_unit_ms;
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}

/// The start timestamp, in seconds, of the newest sample of each window; 0 if it is unknown.
pub(super) struct NewestStarts;

impl Kernel for NewestStarts {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(out) {
            if window.last().is_some_and(|last| !is_absent(samples.values[last])) {
                *out = 0.0;
            }
        }
        Ok(())
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        _: &mut Remarks,
    ) -> Result<()> {
        for (window, out) in samples.windows.iter().zip(&mut out.values) {
            let newest = window.last().map(|last| &samples.entries[last]);
            if let Some(entry) = newest.filter(|entry| !is_stale(&entry.value)) {
                *out = entry.start as f64 / 1000.0;
            }
        }
        Ok(())
    }

    fn looks_at_windows(&self) -> bool {
        false
    }
}
