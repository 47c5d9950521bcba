//! Comparison of floats.

use firn_model::is_stale_nan;

/// Whether two numbers are equal, both NaN, or differ by less than a millionth of their sum.
pub(super) fn almost_equal(a: f64, b: f64) -> bool {
    const TOLERANCE: f64 = 1e-6;
    if is_stale_nan(a) || is_stale_nan(b) {
        return is_stale_nan(a) && is_stale_nan(b);
    }
    if a == b || (a.is_nan() && b.is_nan()) {
        return true;
    }
    let (sum, difference) = (a.abs() + b.abs(), (a - b).abs());
    if a == 0.0 || b == 0.0 || sum < f64::MIN_POSITIVE {
        return difference < TOLERANCE * f64::MIN_POSITIVE;
    }
    difference / sum.min(f64::MAX) < TOLERANCE
}
