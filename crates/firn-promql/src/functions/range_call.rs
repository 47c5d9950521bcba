//! A call of a window function.

use firn_model::{CancelToken, Result};

use crate::eval::window::Frame;
use crate::syntax::{BoundaryMode, FunctionId};

/// A call of a window function, without the samples.
#[derive(Debug)]
pub(crate) struct RangeCall<'a> {
    pub(crate) function: FunctionId,
    pub(crate) frame: Frame,
    pub(crate) boundary: BoundaryMode,
    /// The window's length as written.
    pub(crate) range_ms: i64,
    pub(crate) range_seconds: f64,
    /// The scalar arguments, one value per step.
    pub(crate) params: &'a [Vec<f64>],
    /// Checked between windows: thousands of windows with millions of samples take minutes.
    pub(crate) cancel: &'a CancelToken,
}

impl RangeCall<'_> {
    pub(crate) fn param(&self, idx: usize, step: usize) -> f64 {
        self.params.get(idx).and_then(|values| values.get(step)).copied().unwrap_or(f64::NAN)
    }
}

/// Checks for cancellation each time that windows with some number of samples were computed.
pub(crate) struct CancelCheck<'a> {
    cancel: &'a CancelToken,
    samples: usize,
}

/// A few milliseconds.
const CHECK_SAMPLES: usize = 1 << 20;

impl<'a> CancelCheck<'a> {
    pub(crate) fn new(cancel: &'a CancelToken) -> CancelCheck<'a> {
        CancelCheck { cancel, samples: 0 }
    }

    /// Counts a window.
    ///
    /// # Errors
    /// `Timeout` or `Canceled`.
    pub(crate) fn step(&mut self, samples: usize) -> Result<()> {
        self.samples = self.samples.saturating_add(samples);
        if self.samples < CHECK_SAMPLES {
            return Ok(());
        }
        self.samples = 0;
        self.cancel.check()
    }
}
