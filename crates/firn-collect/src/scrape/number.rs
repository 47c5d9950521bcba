//! Numbers of the exposition formats.

use std::io::Write;

use firn_model::Timestamp;

/// The NaN that Prometheus' parsers return for each of its text forms.
const NORMAL_NAN_BITS: u64 = 0x7ff8_0000_0000_0001;

/// Powers of ten that a double holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Parses a sample's value: the syntax of Go's `ParseFloat`, without hexadecimal and `_`.
#[inline]
pub fn parse_value(text: &[u8]) -> Option<f64> {
    match short_value(text) {
        Some((value, len)) if len == text.len() => Some(value),
        _ => parse_slow(text),
    }
}

/// The number at the start of `text` and its length, if it has the usual form: at most 15 digits,
/// and a power of ten up to 22. The digits are then an integer below 2^53 and the power is exact,
/// so that one multiplication or division rounds correctly (Clinger 1990).
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "at most 20 bytes are read")]
pub(super) fn short_value(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (mut at, mut mantissa) = (start, 0_u64);
    let mut digits = |at: &mut usize| {
        let start = *at;
        while let Some(digit) = text.get(*at).map(|byte| byte.wrapping_sub(b'0'))
            && digit < 10
            && *at < start + 16
        {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
            *at += 1;
        }
        *at - start
    };
    let mut digit_count = digits(&mut at);
    let mut power = 0_i32;
    if text.get(at) == Some(&b'.') {
        at += 1;
        let fraction = digits(&mut at);
        digit_count += fraction;
        power = -i32::try_from(fraction).ok()?;
    }
    if digit_count == 0 || digit_count > 15 {
        return None;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let (sign, skipped) = match text.get(at + 1)? {
            b'-' => (-1, 2),
            b'+' => (1, 2),
            _ => (1, 1),
        };
        at += skipped;
        let first = i32::from(text.get(at)?.wrapping_sub(b'0'));
        at += 1;
        let mut exponent = first;
        if let Some(second) = text.get(at).map(|byte| byte.wrapping_sub(b'0'))
            && second < 10
        {
            exponent = exponent * 10 + i32::from(second);
            at += 1;
        }
        if first > 9 {
            return None;
        }
        power += sign * exponent;
    }
    let mut value = mantissa as f64;
    if power < 0 {
        value /= POWERS.get(power.unsigned_abs() as usize)?;
    } else if power > 0 {
        value *= POWERS.get(power.unsigned_abs() as usize)?;
    }
    Some((if negative { -value } else { value }, at))
}

#[cold]
#[inline(never)]
fn parse_slow(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let first = *text.as_bytes().first()?;
    // Rust reads `+nan` and `-nan`, Go does not.
    if text.eq_ignore_ascii_case("nan") {
        return Some(f64::from_bits(NORMAL_NAN_BITS));
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned.eq_ignore_ascii_case("inf") || unsigned.eq_ignore_ascii_case("infinity") {
        return Some(if first == b'-' { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    // The rest must be digits. A number that is infinite only by overflow is rejected.
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// A timestamp of the Prometheus text format: whole milliseconds.
pub(super) fn parse_millis(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A timestamp of OpenMetrics: seconds with a fraction, cut to milliseconds as Prometheus cuts it.
#[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
pub(super) fn parse_seconds(text: &[u8]) -> Option<Timestamp> {
    let seconds = parse_value(text).filter(|seconds| seconds.is_finite())?;
    Some((seconds * 1_000.0) as i64)
}

/// Appends a bound of `le` or `quantile` as OpenMetrics writes it: Go's shortest form, with `.0`
/// behind an integer.
pub(super) fn push_bound(value: f64, out: &mut Vec<u8>) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    }
    let magnitude = value.abs();
    // Writing into a `Vec` cannot fail.
    if magnitude != 0.0 && !(1e-4..1e6).contains(&magnitude) {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        let _ = write!(out, "{mantissa}e{sign}{digits:0>2}");
    } else {
        let _ = write!(out, "{value:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_read_as_go_reads_them() {
        for (text, want) in [
            ("1", 1.0),
            ("+1", 1.0),
            ("-.5", -0.5),
            ("1.", 1.0),
            ("0042", 42.0),
            ("1e3", 1000.0),
            ("1E-2", 0.01),
            ("-0", -0.0),
            ("123456789012345.", 123_456_789_012_345.0),
            ("Inf", f64::INFINITY),
            ("+iNf", f64::INFINITY),
            ("-infinity", f64::NEG_INFINITY),
        ] {
            let got = parse_value(text.as_bytes()).map(f64::to_bits);
            assert_eq!(got, Some(want.to_bits()), "{text}");
        }
        assert_eq!(parse_value(b"nan").map(f64::to_bits), Some(NORMAL_NAN_BITS));
        for bad in
            ["", "+", "-", ".", "1_0", "0x1F", "1p4", "1e400", "-nan", "+NaN", "1e", " 1", "infin"]
        {
            assert_eq!(parse_value(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let f = |value: f64, want: &str| {
            let mut out = Vec::new();
            push_bound(value, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        };
        f(1.0, "1.0");
        f(0.0, "0.0");
        f(0.5, "0.5");
        f(172.8, "172.8");
        f(100_000.0, "100000.0");
        f(1e6, "1e+06");
        f(1_234_567.5, "1.2345675e+06");
        f(1e21, "1e+21");
        f(0.000_1, "0.0001");
        f(0.000_01, "1e-05");
        f(1.5e-7, "1.5e-07");
        f(f64::INFINITY, "+Inf");
    }

    proptest! {
        #[test]
        fn short_numbers_are_those_of_the_standard_library(
            text in r"-?[0-9]{0,17}(\.[0-9]{0,17})?([eE][-+]?[0-9]{0,3})?",
        ) {
            let want = text.parse::<f64>().ok().filter(|value| value.is_finite()).map(f64::to_bits);
            prop_assert_eq!(parse_value(text.as_bytes()).map(f64::to_bits), want, "{}", text);
        }
    }
}
