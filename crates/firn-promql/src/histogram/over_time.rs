//! Functions of windows that hold histograms.

use firn_model::{PointValue, Result, Timestamp};

use super::{Remark, Remarks};
use crate::eval::select::Kernel;
use crate::eval::vector::VectorSeries;
use crate::eval::window::{Frame, MixedSamples, Samples, Steps, Windows};
use crate::functions::range::RangeCall;

/// Computes one series from windows that may hold histograms. A window of floats only has the value that the
/// float's loop gives it.
///
/// # Errors
/// `Invalid` for a parameter that the function refuses.
pub(crate) fn range_call(
    call: &RangeCall<'_>,
    samples: MixedSamples<'_>,
    out: &mut VectorSeries,
    remarks: &mut Remarks,
) -> Result<()> {
    for (step, window) in samples.windows.iter().enumerate() {
        let mut times: Vec<Timestamp> = Vec::new();
        let mut floats: Vec<f64> = Vec::new();
        for idx in window.clone() {
            if let PointValue::Float(value) = samples.entries[idx].value {
                times.push(samples.times[idx]);
                floats.push(value);
            }
        }
        if floats.len() == window.len() {
            let steps = Steps::one(call.frame.steps.at(step));
            let params: Vec<Vec<f64>> =
                (0..call.params.len()).map(|idx| vec![call.param(idx, step)]).collect();
            let frame = Frame { steps, ..call.frame };
            let alone = RangeCall { frame, params: &params, ..*call };
            let mut windows = Windows::default();
            windows.compute(&times, &alone.frame);
            let samples = Samples { times: &times, values: &floats, windows: &windows };
            alone.floats(samples, &mut out.values[step..=step])?;
        } else if !floats.is_empty() {
            remarks.insert(Remark::MixedKinds);
        }
    }
    Ok(())
}
