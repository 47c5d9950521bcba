//! Doubles as scaled integers: most monitoring values are decimals with few digits, and integers
//! compress where bit patterns do not.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

/// The conversion between a double and an integer `d`.
///
/// Numbers 0 to 22: `d / 10^k`, correctly rounded, as in parsed decimal text of up to 15 digits.
/// Numbers 32 to 54: `d * 10^-(k - 32)`, as in programs that multiply ticks. Other numbers are not
/// scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Scale(u8);

/// Integers up to this value times a power of ten have an error under 1/4, so rounding recovers
/// them.
const SCALED_MAX: f64 = 1e15;
const MULTIPLIES: u8 = 32;
/// Values near a decimal are below this (2^39); any other decimal is then thousands of errors away.
const NEAR_MAX: f64 = 549_755_813_888.0;
const NEAR_ERROR_MAX: u64 = 2048;

impl Scale {
    /// `d` itself.
    pub(crate) const ONE: Scale = Scale(0);

    /// The scale with a stored number.
    pub(crate) fn from_u8(number: u8) -> Option<Scale> {
        (number & !MULTIPLIES <= 22).then_some(Scale(number))
    }

    pub(crate) fn as_u8(self) -> u8 {
        self.0
    }

    /// The scale that covers the decimals of both; a product if one of them is.
    pub(crate) fn union(self, other: Scale) -> Scale {
        let k = (self.0 & !MULTIPLIES).max(other.0 & !MULTIPLIES);
        Scale(k | (self.0 | other.0) & MULTIPLIES)
    }

    /// The double for `d`.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "hot; a `Scale` has an exponent of at most 22")]
    pub(crate) fn value(self, d: i64) -> f64 {
        let k = usize::from(self.0 & 31);
        if self.0 < MULTIPLIES {
            // Division by one is exact, but slow.
            if k == 0 { d as f64 } else { d as f64 / POWERS[k] }
        } else {
            d as f64 * INVERSE_POWERS[k]
        }
    }

    /// The integer nearest to `value` at this scale; 0 if none fits. Encoder and decoder compute
    /// it, so it is a pure function of the bits.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::indexing_slicing,
        reason = "hot; a `Scale` has an exponent of at most 22, and the magnitudes are below 2^63"
    )]
    pub(crate) fn nearest(self, value: f64) -> i64 {
        if self.0 == 0 {
            // Integers below 2^63 need no rounding.
            return if value.abs() < 9.2e18 { value as i64 } else { 0 };
        }
        let scaled = value * POWERS[usize::from(self.0 & 31)];
        if scaled.abs() < 4e18 { (scaled + 0.5f64.copysign(scaled)) as i64 } else { 0 }
    }

    /// The integer that yields exactly the bits of `value` at this scale.
    #[inline]
    pub(crate) fn exact(self, value: f64) -> Option<i64> {
        let d = self.nearest(value);
        (self.value(d).to_bits() == value.to_bits()).then_some(d)
    }

    /// The smallest scale that represents `value` exactly, with its integer. Costs some
    /// nanoseconds.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing,
        reason = "the magnitude is from 10^-22 to 10^15, so `k` is from 0 to 22"
    )]
    pub(crate) fn find(value: f64) -> Option<(Scale, i64)> {
        if let Some(d) = Scale::ONE.exact(value) {
            return Some((Scale::ONE, d));
        }
        let magnitude = value.abs();
        if !(1e-22..SCALED_MAX).contains(&magnitude) {
            return None;
        }
        // The largest scale with an integer below 10^15 decides whether any scale is exact.
        let mut k = 22.min(14 - floor_log10(magnitude)) as u8;
        if magnitude * POWERS[usize::from(k)] >= SCALED_MAX {
            k = k.checked_sub(1)?;
        }
        let product = if Scale(k).exact(value).is_some() { 0 } else { MULTIPLIES };
        let mut d = Scale(k | product).exact(value)?;
        for step in [8, 4, 2, 1] {
            let divisor = 10i64.pow(u32::from(step));
            if k >= step && d % divisor == 0 {
                d /= divisor;
                k -= step;
            }
        }
        // With fewer digits the decimal is the same, but not always the product.
        let scale = Scale(k | product);
        (scale.exact(value) == Some(d)).then_some((scale, d))
    }

    /// The decimal of few digits near `value`, and its distance in units in the last place. Sums of
    /// decimals, such as counters of seconds, drift that way. Not for exact decimals with more
    /// digits.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "the magnitude is from 10^-6 to 2^39, so `k` is from 0 to 9"
    )]
    pub(crate) fn find_near(value: f64) -> Option<(Scale, i64, i64)> {
        let magnitude = value.abs();
        if !(1e-6..NEAR_MAX).contains(&magnitude) {
            return None;
        }
        let mut k = 9.min(11 - floor_log10(magnitude)) as u8;
        let mut d = Scale(k).nearest(value);
        let error = Scale(k).error(value, d);
        if error.unsigned_abs() > NEAR_ERROR_MAX || d == 0 {
            return None;
        }
        while k > 0 && d % 10 == 0 {
            d /= 10;
            k -= 1;
        }
        Some((Scale(k), d, Scale(k).error(value, d)))
    }

    /// The distance between the bits of `value` and those of `d`.
    #[inline]
    pub(crate) fn error(self, value: f64, d: i64) -> i64 {
        value.to_bits().wrapping_sub(self.value(d).to_bits()) as i64
    }

    /// The inverse of [`Scale::error`].
    #[inline]
    pub(crate) fn value_with_error(self, d: i64, error: i64) -> f64 {
        f64::from_bits(self.value(d).to_bits().wrapping_add(error as u64))
    }
}

/// The decimal exponent of a positive double, or one less.
#[expect(clippy::arithmetic_side_effects, reason = "the exponent of a double has 11 bits")]
fn floor_log10(magnitude: f64) -> i32 {
    let exponent = ((magnitude.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    // log10(2) in 16 bits, rounded down.
    (exponent * 19_728) >> 16
}

const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
const INVERSE_POWERS: [f64; 23] = [
    1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14,
    1e-15, 1e-16, 1e-17, 1e-18, 1e-19, 1e-20, 1e-21, 1e-22,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_decimals_are_near_decimals() {
        let mut sum = 0.0;
        for step in 1..2000 {
            sum += f64::from(step % 17) * 0.01;
            if let Some((scale, d, error)) = Scale::find_near(sum) {
                assert!(scale.as_u8() <= 2 && error.abs() < 2000, "{sum}");
                assert_eq!(scale.value_with_error(d, error).to_bits(), sum.to_bits());
            } else {
                assert!(sum < 1e-6);
            }
        }
        assert_eq!(Scale::find_near(7.389999999999975), Some((Scale(2), 739, -28)));
        assert_eq!(Scale::find_near(std::f64::consts::PI), None);
        assert_eq!(Scale::find_near(f64::NAN), None);
    }

    #[test]
    fn exact_decimals_have_a_scale() {
        for (value, d, number) in [
            (0.0, 0, 0),
            (-3.0, -3, 0),
            (9_007_199_254_740_993.0, 9_007_199_254_740_992, 0),
            (1e18, 1_000_000_000_000_000_000, 0),
            (0.1, 1, 1),
            (2.1241e-5, 21_241, 9),
            (-1234.5678, -12_345_678, 4),
            (0.061728, 61_728, 6),
            (123_456_789.012_345, 123_456_789_012_345, 6),
            (1e-15, 1, 15),
            (3.0 * 0.1, 3, 1 | MULTIPLIES),
        ] {
            assert_eq!(Scale::find(value), Some((Scale(number), d)), "{value}");
        }
        for value in [
            -0.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MIN_POSITIVE,
            5e-324,
            f64::MAX,
            std::f64::consts::PI,
            1.0 / 3.0,
        ] {
            assert_eq!(Scale::find(value), None, "{value}");
        }
    }
}
