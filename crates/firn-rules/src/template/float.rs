//! Floats as text: Go's `strconv.FormatFloat`.

use std::fmt::Write;

/// More digits are zeros: a double has at most 1,074 decimals.
const DIGITS_MAX: usize = 1_100;

/// Formats a float without its sign. `form` is one of `e E f g G b x X`; without a `precision` the
/// text has the fewest digits that read back as the same number.
pub(super) fn format_float(value: f64, form: char, precision: Option<usize>) -> String {
    let value = value.abs();
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return "Inf".to_owned();
    }
    match form {
        'e' | 'E' => exponential(value, precision, form),
        'f' => positional(value, precision),
        'b' => binary(value),
        'x' | 'X' => hexadecimal(value, precision, form),
        _ => general(value, precision, if form == 'G' { 'E' } else { 'e' }),
    }
}

/// As Go's `%g` with four significant digits, with the sign: the form of the `humanize` functions.
pub(super) fn four_digits(value: f64) -> String {
    let sign = match value {
        value if value.is_nan() => "",
        value if value.is_sign_negative() => "-",
        value if value.is_infinite() => "+",
        _ => "",
    };
    format!("{sign}{}", format_float(value, 'g', Some(4)))
}

/// Significant digits without zeros at the end, and the decimal exponent of the first one.
fn digits(value: f64, precision: Option<usize>) -> (String, i32) {
    let scientific = match precision {
        Some(count) => format!("{value:.*e}", count.clamp(1, DIGITS_MAX).saturating_sub(1)),
        None => format!("{value:e}"),
    };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits = mantissa.replace('.', "");
    let digits = digits.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

fn exponential(value: f64, precision: Option<usize>, letter: char) -> String {
    let (digits, exponent) = digits(value, precision.map(|count| count.saturating_add(1)));
    let (first, rest) = digits.split_at_checked(1).unwrap_or(("0", ""));
    let zeros = precision.unwrap_or(0).saturating_sub(rest.len());
    let zeros = "0".repeat(zeros);
    let point = if rest.is_empty() && zeros.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{first}{point}{rest}{zeros}{letter}{sign}{:02}", exponent.unsigned_abs())
}

fn positional(value: f64, precision: Option<usize>) -> String {
    let Some(precision) = precision else { return format!("{value}") };
    let mut text = format!("{value:.*}", precision.min(DIGITS_MAX));
    text.extend(std::iter::repeat_n('0', precision.saturating_sub(DIGITS_MAX)));
    text
}

/// An exponent below -4, and from the precision on; from 6 on without a precision.
fn general(value: f64, precision: Option<usize>, letter: char) -> String {
    let (digits, exponent) = digits(value, precision);
    let limit = precision.map_or(6, |count| count.max(1));
    let is_large = usize::try_from(exponent).is_ok_and(|exponent| exponent >= limit);
    if exponent < -4 || is_large {
        let (first, rest) = digits.split_at_checked(1).unwrap_or(("0", ""));
        let point = if rest.is_empty() { "" } else { "." };
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{first}{point}{rest}{letter}{sign}{:02}", exponent.unsigned_abs());
    }
    match usize::try_from(exponent) {
        Ok(exponent) => {
            let whole = exponent.saturating_add(1);
            match digits.split_at_checked(whole) {
                Some((whole, "")) => whole.to_owned(),
                Some((whole, fraction)) => format!("{whole}.{fraction}"),
                None => format!("{digits}{}", "0".repeat(whole.saturating_sub(digits.len()))),
            }
        }
        Err(_) => {
            let zeros = exponent.unsigned_abs().saturating_sub(1);
            format!("0.{}{digits}", "0".repeat(usize::try_from(zeros).unwrap_or(0)))
        }
    }
}

/// The mantissa with 52 bits behind the point, and the exponent of 2.
fn parts(value: f64) -> (u64, i64) {
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match i64::try_from(bits >> 52 & 0x7ff).unwrap_or(0) {
        0 => (fraction, -1_022),
        exponent => (fraction | 1 << 52, exponent.saturating_sub(1_023)),
    }
}

/// `4503599627370496p-52`.
fn binary(value: f64) -> String {
    let (mantissa, exponent) = parts(value);
    let exponent = exponent.saturating_sub(52);
    format!("{mantissa}p{}{}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

/// `0x1.8p+01`.
fn hexadecimal(value: f64, precision: Option<usize>, form: char) -> String {
    let (mut mantissa, mut exponent) = parts(value);
    if mantissa == 0 {
        exponent = 0;
    }
    // Subnormal numbers begin with 1 too. 60 bits behind the point leave room for rounding.
    mantissa <<= 8;
    while mantissa != 0 && mantissa < 1 << 60 {
        mantissa <<= 1;
        exponent = exponent.saturating_sub(1);
    }
    if let Some(shift) = precision.filter(|&digit_count| digit_count < 15).and_then(|digit_count| {
        u32::try_from(60usize.saturating_sub(digit_count.saturating_mul(4))).ok()
    }) {
        let extra = mantissa & (1u64 << shift).saturating_sub(1);
        mantissa >>= shift;
        let half = 1u64 << shift.saturating_sub(1);
        let rounds_up = extra > half || extra == half && mantissa & 1 == 1;
        mantissa = mantissa.saturating_add(u64::from(rounds_up)) << shift;
        if mantissa >= 1 << 61 {
            mantissa >>= 1;
            exponent = exponent.saturating_add(1);
        }
    }
    let fraction = mantissa & ((1 << 60) - 1);
    let mut hex = format!("{fraction:015x}");
    match precision {
        None => hex.truncate(hex.trim_end_matches('0').len()),
        Some(count) if count < hex.len() => hex.truncate(count),
        Some(count) => hex.extend(std::iter::repeat_n('0', count.saturating_sub(hex.len()))),
    }
    let point = if hex.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(out, "0x{}{point}{hex}p{sign}{:02}", mantissa >> 60, exponent.unsigned_abs());
    if form == 'X' { out.to_uppercase() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_formatted_as_in_go() {
        let f = |value: f64, form: char, precision, want: &str| {
            assert_eq!(format_float(value, form, precision), want, "{value} {form} {precision:?}");
        };
        f(1_234_567.0, 'g', None, "1.234567e+06");
        f(999_999.0, 'g', None, "999999");
        f(100_000.0, 'g', None, "100000");
        f(0.0001, 'g', None, "0.0001");
        f(0.00001234, 'g', None, "1.234e-05");
        f(0.0, 'g', None, "0");
        f(3.0, 'e', None, "3e+00");
        f(1234.5678, 'e', Some(2), "1.23e+03");
        f(0.5, 'f', Some(0), "0");
        f(1.5, 'f', Some(0), "2");
        f(2.0, 'f', Some(3), "2.000");
        f(1e22, 'f', None, "10000000000000000000000");
        f(1_234_567.0, 'g', Some(4), "1.235e+06");
        f(1e100, 'G', None, "1E+100");
        f(1.0, 'b', None, "4503599627370496p-52");
        f(3.5, 'x', None, "0x1.cp+01");
        f(0.0, 'x', None, "0x0p+00");
        f(1.999, 'X', Some(1), "0X1.0P+01");
        f(5e-324, 'x', None, "0x1p-1074");
        f(0.1, 'f', Some(1_200), &positional(0.1, Some(1_200)));
        assert_eq!(positional(0.1, Some(1_200)).len(), 1_202);
        assert_eq!(four_digits(f64::NEG_INFINITY), "-Inf");
        assert_eq!(four_digits(-0.0), "-0");
    }
}
