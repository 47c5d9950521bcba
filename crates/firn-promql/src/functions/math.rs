//! Functions of one number.

use crate::syntax::FunctionId;

/// The function that maps each value of a vector, if `function` is such a one.
pub(crate) fn of_one_number(function: FunctionId) -> Option<fn(f64) -> f64> {
    Some(match function {
        FunctionId::Abs => f64::abs,
        FunctionId::Acos => f64::acos,
        FunctionId::Acosh => f64::acosh,
        FunctionId::Asin => f64::asin,
        FunctionId::Asinh => f64::asinh,
        FunctionId::Atan => f64::atan,
        FunctionId::Atanh => f64::atanh,
        FunctionId::Ceil => f64::ceil,
        FunctionId::Cos => f64::cos,
        FunctionId::Cosh => f64::cosh,
        FunctionId::Deg => |value| value * 180.0 / std::f64::consts::PI,
        FunctionId::Exp => f64::exp,
        FunctionId::Floor => f64::floor,
        FunctionId::Ln => f64::ln,
        FunctionId::Log10 => f64::log10,
        FunctionId::Log2 => f64::log2,
        FunctionId::Rad => |value| value * std::f64::consts::PI / 180.0,
        FunctionId::Sgn => sign,
        FunctionId::Sin => f64::sin,
        FunctionId::Sinh => f64::sinh,
        FunctionId::Sqrt => f64::sqrt,
        FunctionId::Tan => f64::tan,
        FunctionId::Tanh => f64::tanh,
        _ => return None,
    })
}

/// -1, 1, or the value itself for zeros and NaN.
fn sign(value: f64) -> f64 {
    if value < 0.0 {
        -1.0
    } else if value > 0.0 {
        1.0
    } else {
        value
    }
}

/// The nearest multiple of `nearest`, ties up. Inverting first keeps more digits, as Prometheus found.
pub(crate) fn round(value: f64, nearest: f64) -> f64 {
    let inverse = 1.0 / nearest;
    (value * inverse + 0.5).floor() / inverse
}

/// `value` between the bounds; NaN if any of the three is.
pub(crate) fn clamp(value: f64, low: f64, high: f64) -> f64 {
    max(low, min(high, value))
}

/// The greater one; NaN if either is.
pub(crate) fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The smaller one; NaN if either is.
pub(crate) fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}
