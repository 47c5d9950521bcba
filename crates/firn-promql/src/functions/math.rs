//! Functions of one number.

use crate::syntax::FunctionId;

/// The function that maps each value of a vector, if `function` is one.
pub(crate) fn of_one_number(function: FunctionId) -> Option<fn(f64) -> f64> {
    Some(match function {
        FunctionId::Abs => f64::abs,
        FunctionId::Acos => f64::acos,
        FunctionId::Acosh => acosh,
        FunctionId::Asin => f64::asin,
        FunctionId::Asinh => asinh,
        FunctionId::Atan => f64::atan,
        FunctionId::Atanh => f64::atanh,
        FunctionId::Ceil => f64::ceil,
        FunctionId::Cos => f64::cos,
        FunctionId::Cosh => f64::cosh,
        FunctionId::Deg => |value| value * (180.0 / std::f64::consts::PI),
        FunctionId::Exp => f64::exp,
        FunctionId::Floor => f64::floor,
        FunctionId::Ln => f64::ln,
        FunctionId::Log10 => f64::log10,
        FunctionId::Log2 => f64::log2,
        FunctionId::Rad => |value| value * (std::f64::consts::PI / 180.0),
        FunctionId::Sgn => sign,
        FunctionId::Sin => f64::sin,
        FunctionId::Sinh => f64::sinh,
        FunctionId::Sqrt => f64::sqrt,
        FunctionId::Tan => f64::tan,
        FunctionId::Tanh => f64::tanh,
        _ => return None,
    })
}

/// Above this, `x` and the root of `x * x + 1` have the same bits, and the square may overflow.
const SQUARES_MAX: f64 = (1 << 28) as f64;

/// `acosh` without overflow: the standard library's is infinite from 1e154 on.
fn acosh(value: f64) -> f64 {
    if value > SQUARES_MAX { value.ln() + std::f64::consts::LN_2 } else { value.acosh() }
}

/// `asinh` without overflow.
fn asinh(value: f64) -> f64 {
    if value.abs() > SQUARES_MAX {
        (value.abs().ln() + std::f64::consts::LN_2).copysign(value)
    } else {
        value.asinh()
    }
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

/// The nearest multiple of `nearest`, ties up. Inverting first keeps more digits, as in Prometheus.
pub(crate) fn round(value: f64, nearest: f64) -> f64 {
    let inverse = 1.0 / nearest;
    (value * inverse + 0.5).floor() / inverse
}

/// `value` between the bounds, as Go's `math.Max(low, math.Min(high, value))`.
pub(crate) fn clamp(value: f64, low: f64, high: f64) -> f64 {
    max(low, min(high, value))
}

/// The greater value by the rules of Go's `math.Max`: an infinity wins over NaN, NaN over all else,
/// 0 over -0.
pub(crate) fn max(a: f64, b: f64) -> f64 {
    if a == f64::INFINITY || b == f64::INFINITY {
        f64::INFINITY
    } else if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_negative() { b } else { a }
    } else {
        a.max(b)
    }
}

/// The smaller value by the rules of Go's `math.Min`: minus infinity wins over NaN, NaN over all
/// else, -0 over 0.
pub(crate) fn min(a: f64, b: f64) -> f64 {
    -max(-a, -b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by comparing with Prometheus 2.42: `acosh` of the greatest double was infinite.
    #[test]
    fn inverse_hyperbolic_functions_do_not_overflow() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12 * b.abs(), "{a} {b}");
        for f in [acosh, asinh] {
            close(f(f64::MAX), 710.475_860_073_943_9);
            close(f(SQUARES_MAX * 1.000_001), f(SQUARES_MAX) + 1e-6);
            assert_eq!(f(f64::INFINITY), f64::INFINITY);
            assert!(f(f64::NAN).is_nan());
        }
        close(asinh(-1e300), -asinh(1e300));
        assert_eq!((asinh(f64::NEG_INFINITY), acosh(1.0)), (f64::NEG_INFINITY, 0.0));
        assert!(acosh(-f64::MAX).is_nan());
    }

    /// Found by comparing with Prometheus 3.16.
    #[test]
    fn angles_do_not_overflow_on_their_way() {
        let f = |function| of_one_number(function).unwrap();
        assert!(f(FunctionId::Rad)(1.5e308).is_finite());
        assert!(f(FunctionId::Deg)(3e306).is_finite());
        assert_eq!(f(FunctionId::Deg)(std::f64::consts::PI), 180.0);
    }

    /// Found by comparing with Prometheus 2.42: `clamp(v, -100, scalar(nothing))` of a `v` of -Inf
    /// is -100.
    #[test]
    fn infinity_wins_over_nan() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(clamp(-inf, -100.0, nan), -100.0);
        assert_eq!(max(nan, inf), inf);
        assert_eq!(min(-inf, nan), -inf);
        assert!(clamp(inf, nan, 5.0).is_nan() && min(inf, nan).is_nan() && max(nan, -inf).is_nan());
        assert!(max(-0.0, 0.0).is_sign_positive() && min(0.0, -0.0).is_sign_negative());
        assert_eq!((min(1.0, 2.0), max(1.0, 2.0)), (1.0, 2.0));
    }
}
