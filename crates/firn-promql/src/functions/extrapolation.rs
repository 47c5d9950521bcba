//! The extrapolation of a rate from the samples in a window to the whole window.

use firn_model::Timestamp;

/// The extrapolation of the increase between a window's samples to the whole window, in seconds.
/// The same for all members that share the times, so it is computed once for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extrapolation {
    /// From the first sample back to the point that the increase is extended to.
    to_start: f64,
    to_end: f64,
    /// From the first sample to the last.
    sampled: f64,
    /// The divisor of per-second rates, otherwise 1.
    divisor: f64,
    /// The factor of the increase of a series that is not limited at zero.
    factor: f64,
}

impl Extrapolation {
    /// Extrapolates to the window from `start` to `end`: up to a boundary if samples are near it
    /// (within 1.1 times their average distance), otherwise half a distance further.
    pub(super) fn new(
        times: &[Timestamp],
        start: Timestamp,
        end: Timestamp,
        divisor: f64,
    ) -> Extrapolation {
        let [first, .., last] = *times else {
            return Extrapolation {
                to_start: 0.0,
                to_end: 0.0,
                sampled: 0.0,
                divisor,
                factor: f64::NAN,
            };
        };
        let sampled = millis(last, first);
        let gap = sampled / (times.len() - 1) as f64;
        let near = gap * 1.1;
        let to_border = |seconds: f64| if seconds >= near { gap / 2.0 } else { seconds };
        let (to_start, to_end) = (to_border(millis(first, start)), to_border(millis(end, last)));
        let mut extrapolation = Extrapolation { to_start, to_end, sampled, divisor, factor: 0.0 };
        extrapolation.factor = extrapolation.factor_from(to_start);
        extrapolation
    }

    fn factor_from(&self, to_start: f64) -> f64 {
        (self.sampled + to_start + self.to_end) / self.sampled / self.divisor
    }

    /// The factor for one series. A counter is not extended to times at which it would be negative.
    pub(super) fn factor_of(&self, increase: f64, counter_start: Option<f64>) -> f64 {
        if let Some(value) = counter_start
            && increase > 0.0
            && value >= 0.0
        {
            let to_zero = self.sampled * (value / increase);
            if to_zero < self.to_start {
                return self.factor_from(to_zero);
            }
        }
        self.factor
    }
}

/// Seconds from `from` to `to`.
pub(super) fn millis(to: Timestamp, from: Timestamp) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}
