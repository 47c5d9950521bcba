//! A call of a window function.

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
}

impl RangeCall<'_> {
    pub(crate) fn param(&self, idx: usize, step: usize) -> f64 {
        self.params.get(idx).and_then(|values| values.get(step)).copied().unwrap_or(f64::NAN)
    }
}
