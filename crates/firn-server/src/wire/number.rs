//! Numbers and times as Prometheus' API and text formats write and read them.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_collect::scrape::parse_value;
use firn_model::{Error, Result, Timestamp, excerpt};

/// The earliest time that the API prints; accepted back.
pub const MIN_TIME_TEXT: &str = "-292273086-05-16T16:47:06Z";
/// The latest time that the API prints; accepted back.
pub const MAX_TIME_TEXT: &str = "+292277025-08-18T07:12:54.999999999Z";

/// Appends `value` in its shortest form that reads back: Go's `AppendFloat(v, 'f' or 'e', -1, 64)`
/// with `e` below 1e-6 and from 1e21 on.
#[expect(clippy::cast_possible_truncation, reason = "an integer below 2^53 is converted")]
pub fn push_float(value: f64, out: &mut Vec<u8>) {
    let magnitude = value.abs();
    // Integers that a double holds exactly: most samples are counts. Converted and compared, which
    // is two instructions; `fract` is a call.
    let integer = value as i64;
    if magnitude < 9_007_199_254_740_992.0 && integer as f64 == value && integer != 0 {
        return push_i64(integer, out);
    }
    let mut buffer = zmij::Buffer::new();
    // Between these `zmij` writes no exponent, and a fraction if there is one.
    if (1e-5..9_007_199_254_740_992.0).contains(&magnitude) {
        return out.extend_from_slice(buffer.format_finite(value).as_bytes());
    }
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    }
    let text = buffer.format_finite(value);
    match text.split_once('e') {
        None => out.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes()),
        Some(parts) if !(1e-6..1e21).contains(&magnitude) => push_exponent(parts, out),
        // `zmij` writes exponents where Go does not yet.
        Some(_) => {
            use std::io::Write;
            // Writing into a Vec cannot fail.
            let _ = write!(out, "{value}");
        }
    }
}

/// As Go, with a sign and at least two digits of exponent: `1e-07`, `1e+21`.
fn push_exponent((mantissa, exponent): (&str, &str), out: &mut Vec<u8>) {
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => (b'-', digits),
        None => (b'+', exponent.strip_prefix('+').unwrap_or(exponent)),
    };
    out.extend_from_slice(mantissa.as_bytes());
    out.extend_from_slice(&[b'e', sign]);
    if digits.len() < 2 {
        out.push(b'0');
    }
    out.extend_from_slice(digits.as_bytes());
}

/// Appends a decimal integer.
pub fn push_i64(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a decimal integer.
pub fn push_u64(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends milliseconds as seconds: `1435781451.781`; whole seconds have no point.
#[expect(clippy::arithmetic_side_effects, reason = "each number added is one decimal digit")]
pub fn push_time(ts: Timestamp, out: &mut Vec<u8>) {
    if ts < 0 {
        out.push(b'-');
    }
    let ms = ts.unsigned_abs();
    push_u64(ms / 1_000, out);
    let fraction = ms % 1_000;
    if fraction != 0 {
        out.push(b'.');
        out.extend_from_slice(&[
            b'0' + (fraction / 100) as u8,
            b'0' + (fraction / 10 % 10) as u8,
            b'0' + (fraction % 10) as u8,
        ]);
    }
}

/// Appends times as [`push_time`] does, each with the same texts around it. Neighbours share all
/// but their last digits, which are written over those of the time before.
#[derive(Debug)]
pub struct TimeWriter {
    before: &'static str,
    behind: &'static str,
    /// `before`, the last time and `behind`, if it was a time of whole seconds with enough digits.
    text: Vec<u8>,
    /// Its seconds without the digits that are replaced.
    high: i64,
}

/// Digits of a time that may be replaced, and the number of their combinations.
const LOW_DIGITS: usize = 5;
const LOW_COUNT: i64 = 100_000;

impl TimeWriter {
    /// A writer of times between `before` and `behind`.
    pub fn new(before: &'static str, behind: &'static str) -> TimeWriter {
        TimeWriter { before, behind, text: Vec::new(), high: 0 }
    }

    /// Appends a time and the texts around it.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "divisors are constants; a digit is below 10; `text` is longer than the digits"
    )]
    pub fn push(&mut self, ts: Timestamp, out: &mut Vec<u8>) {
        let (seconds, ms) = (ts / 1_000, ts % 1_000);
        let (high, low) = (seconds / LOW_COUNT, seconds % LOW_COUNT);
        let is_whole = ms == 0 && high > 0;
        if !is_whole || high != self.high {
            let start = out.len();
            out.extend_from_slice(self.before.as_bytes());
            push_time(ts, out);
            out.extend_from_slice(self.behind.as_bytes());
            self.high = if is_whole { high } else { 0 };
            self.text.clear();
            self.text.extend_from_slice(out.get(start..).unwrap_or_default());
            return;
        }
        let end = self.text.len() - self.behind.len();
        let digits = self.text.get_mut(end - LOW_DIGITS..end).unwrap_or_default();
        let mut rest = low;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(&self.text);
    }
}

/// A time of the API: seconds as a float, RFC 3339, or one of the two extremes that the server
/// prints. Milliseconds.
///
/// # Errors
/// `Invalid` with the text.
#[expect(
    clippy::cast_possible_truncation,
    reason = "between the largest timestamp and the limit, the cast saturates"
)]
pub fn parse_time(text: &str) -> Result<Timestamp> {
    if let Some(seconds) = parse_value(text.as_bytes()) {
        // As Go: fraction rounded to milliseconds on its own, so that large times keep theirs.
        let ms = seconds.trunc() * 1_000.0 + (seconds.fract() * 1_000.0).round();
        if ms.is_finite() && ms.abs() < 9.3e18 {
            return Ok(ms as Timestamp);
        }
    } else if text == MIN_TIME_TEXT {
        return Ok(Timestamp::MIN);
    } else if text == MAX_TIME_TEXT {
        return Ok(Timestamp::MAX);
    } else if let Some(ts) = parse_rfc3339(text) {
        return Ok(ts);
    }
    Err(Error::invalid(format!("cannot parse {:?} to a valid timestamp", excerpt(text))))
}

/// A duration of the API: seconds as a float, or `1h30m`. Nanoseconds, as Go holds them.
///
/// # Errors
/// `Invalid` with the text, also when it overflows 64 bits of nanoseconds.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the float is compared with the range of `i64` first"
)]
pub fn parse_duration_ns(text: &str) -> Result<i64> {
    if let Some(seconds) = parse_value(text.as_bytes()) {
        let ns = seconds * 1e9;
        if ns.is_nan() || ns.abs() > i64::MAX as f64 {
            return Err(Error::invalid(format!(
                "cannot parse {:?} to a valid duration. It overflows int64",
                excerpt(text)
            )));
        }
        return Ok(ns as i64);
    }
    parse_unit_duration_ms(text).and_then(|ms| ms.checked_mul(1_000_000)).ok_or_else(|| {
        Error::invalid(format!("cannot parse {:?} to a valid duration", excerpt(text)))
    })
}

/// `1y2w3d4h5m6s7ms`: each unit once, in this order. Milliseconds.
pub fn parse_unit_duration_ms(text: &str) -> Option<i64> {
    const UNITS: [(&str, i64); 7] = [
        ("y", 365 * 86_400_000),
        ("w", 7 * 86_400_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ];
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut total, mut next_unit) = (text, 0i64, 0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|&len| len > 0)?;
        let count: i64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = rest.get(..letters)?;
        let mut units = UNITS.iter().enumerate().skip(next_unit);
        let (idx, &(_, unit_ms)) = units.find(|(_, (name, _))| *name == unit)?;
        total = total.checked_add(count.checked_mul(unit_ms)?)?;
        next_unit = idx.saturating_add(1);
        rest = rest.get(letters..)?;
    }
    (next_unit > 0).then_some(total)
}

/// Formats milliseconds in the largest units without remainder: `15s`, `1h30m`, `15d`, `2w`.
/// [`parse_unit_duration_ms`] parses it. As in Prometheus, years and weeks only without a rest.
#[expect(clippy::arithmetic_side_effects, reason = "no unit is 0 ms")]
pub fn unit_duration(ms: i64) -> String {
    const UNITS: [(&str, i64, bool); 7] = [
        ("y", 365 * 86_400_000, true),
        ("w", 7 * 86_400_000, true),
        ("d", 86_400_000, false),
        ("h", 3_600_000, false),
        ("m", 60_000, false),
        ("s", 1_000, false),
        ("ms", 1, false),
    ];
    let mut text = String::new();
    let mut rest = ms.max(0);
    for (name, unit_ms, only_whole) in UNITS {
        if rest >= unit_ms && (!only_whole || rest % unit_ms == 0) {
            text += &format!("{}{name}", rest / unit_ms);
            rest %= unit_ms;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Milliseconds as `2015-07-01T20:10:51.781Z`; whole seconds have no point. Clocks are between the
/// years 0 and 9999; other times are written too, but are no RFC 3339.
pub fn rfc3339(ts: Timestamp) -> String {
    let (seconds, ms) = (ts.div_euclid(1_000), ts.rem_euclid(1_000));
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let fraction = if ms == 0 { String::new() } else { format!(".{ms:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// `2015-07-01T20:10:51.781Z` or with an offset; up to nanoseconds, rounded down to milliseconds.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a year has four digits and every other number two; `at` is inside of `bytes`"
)]
fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then_some(())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    };
    let is = |idx: usize, wanted: u8| (bytes.get(idx) == Some(&wanted)).then_some(());
    is(4, b'-').and(is(7, b'-')).and(is(13, b':')).and(is(16, b':'))?;
    is(10, b'T').or(is(10, b't'))?;
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60;
    (in_range && (1..=days_in_month(year, month)).contains(&day)).then_some(())?;

    let mut at = 19;
    let mut ms = 0;
    if bytes.get(at) == Some(&b'.') {
        let digits = bytes.get(at + 1..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        (1..=9).contains(&digits).then_some(())?;
        for idx in 0..3 {
            let digit = if idx < digits { bytes.get(at + 1 + idx)? - b'0' } else { 0 };
            ms = ms * 10 + i64::from(digit);
        }
        at += 1 + digits;
    }
    let offset_minutes = match (bytes.get(at)?, bytes.len() - at) {
        (b'Z' | b'z', 1) => 0,
        (sign @ (b'+' | b'-'), 6) => {
            is(at + 3, b':')?;
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            (hours < 24 && minutes < 60).then_some(())?;
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second
        - offset_minutes * 60;
    Some(seconds * 1_000 + ms)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar, counted in years that begin in March so that
/// the leap day is the last (Howard Hinnant, "chrono-compatible low-level date algorithms").
#[expect(clippy::arithmetic_side_effects, reason = "a year has four digits, a month and a day two")]
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a number of days since 1970-01-01: the inverse of the function above.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the days of a timestamp in milliseconds are below 2^37"
)]
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_go_writes_them() {
        let f = |value: f64, want: &str| {
            let mut out = Vec::new();
            push_float(value, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), want, "{value:?}");
        };
        f(0.0, "0");
        f(-0.0, "-0");
        f(1.0, "1");
        f(-1.5, "-1.5");
        f(0.1, "0.1");
        f(100_000.0, "100000");
        f(123_456_789.125, "123456789.125");
        f(1_521_397_973_932_701.0 + 0.25, "1521397973932701.2");
        f(1_521_397_973_932_701.0 + 0.75, "1521397973932701.8");
        f(9_007_199_254_740_991.0, "9007199254740991");
        f(9_007_199_254_740_993.0, "9007199254740992");
        f(1e20, "100000000000000000000");
        f(123_456_789_012_345_680_000.0, "123456789012345680000");
        f(1e21, "1e+21");
        f(1.5e21, "1.5e+21");
        f(-1e22, "-1e+22");
        f(1e100, "1e+100");
        f(1e-6, "0.000001");
        f(0.000_001_25, "0.00000125");
        f(1e-7, "1e-07");
        f(-1.25e-7, "-1.25e-07");
        f(5e-324, "5e-324");
        f(f64::MAX, "1.7976931348623157e+308");
        f(f64::MIN_POSITIVE, "2.2250738585072014e-308");
        f(f64::NAN, "NaN");
        f(f64::INFINITY, "+Inf");
        f(f64::NEG_INFINITY, "-Inf");
    }

    #[test]
    fn floats_are_as_short_as_the_standard_library_writes_them() {
        let f = |value: f64| {
            let mut out = Vec::new();
            push_float(value, &mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(value.to_bits()), "{text}");
            // Not the same: half way between two of a length, Go takes the even one.
            let (standard, exponent) = (value.to_string(), format!("{value:e}"));
            match text.split_once('e') {
                None => assert_eq!(text.len(), standard.len(), "{text}"),
                Some((mantissa, power)) => {
                    let power: i32 = power.parse().unwrap();
                    assert_eq!(format!("{mantissa}e{power}").len(), exponent.len(), "{text}");
                }
            }
            assert_eq!(text.contains('e'), !(1e-6..1e21).contains(&value.abs()), "{text}");
        };
        // All magnitudes, and decimal ones around those where exponents begin.
        let mut bits = 1_u64;
        for n in 0..200_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n);
            let value = f64::from_bits(bits);
            if value.is_finite() && value != 0.0 {
                f(value);
            }
            f((bits >> 40 | 1) as f64 * 10_f64.powi((n % 40) as i32 - 16));
        }
    }

    #[test]
    fn a_writer_of_times_writes_each_like_the_first() {
        let mut writer = TimeWriter::new("[", ",");
        let mut ts = -3_000_000_i64;
        for n in 0..200_000_i64 {
            let (mut text, mut want) = (Vec::new(), b"[".to_vec());
            writer.push(ts, &mut text);
            push_time(ts, &mut want);
            want.push(b',');
            assert_eq!(text, want, "{ts}");
            ts += match n % 7 {
                0 => 1,
                1 => 999,
                2 => -1_000,
                _ => [15_000, 60_000, 1_000_000, 77_777_777_000][(n / 7 % 4) as usize],
            };
        }
        for ts in [i64::MIN, 1_700_000_000_000, i64::MAX, 0, 1_700_000_000_000, 1_699_999_999_999] {
            let (mut text, mut want) = (Vec::new(), b"[".to_vec());
            writer.push(ts, &mut text);
            push_time(ts, &mut want);
            want.push(b',');
            assert_eq!(text, want);
        }
    }

    #[test]
    fn times_are_seconds_with_three_decimals_or_none() {
        let f = |ts: Timestamp, want: &str| {
            let mut out = Vec::new();
            push_time(ts, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        };
        f(0, "0");
        f(1_435_781_451_781, "1435781451.781");
        f(1_500, "1.500");
        f(1_005, "1.005");
        f(999, "0.999");
        f(-1, "-0.001");
        f(-60_000, "-60");
        f(i64::MIN, "-9223372036854775.808");
        f(i64::MAX, "9223372036854775.807");
    }

    #[test]
    fn times_of_the_api_are_floats_rfc3339_or_the_extremes() {
        let f = |text: &str, want: Option<Timestamp>| {
            assert_eq!(parse_time(text).ok(), want, "{text}");
        };
        f("0", Some(0));
        f("1435781451.781", Some(1_435_781_451_781));
        f("-1.5", Some(-1_500));
        f("1e9", Some(1_000_000_000_000));
        f("1.0004", Some(1_000));
        f("2015-07-01T20:10:51.781Z", Some(1_435_781_451_781));
        f("2015-07-01T20:10:51Z", Some(1_435_781_451_000));
        f("2015-07-01T22:10:51.781999999+02:00", Some(1_435_781_451_781));
        f("1969-12-31T23:59:59.5Z", Some(-500));
        f("2000-02-29T00:00:00Z", Some(951_782_400_000));
        f("1900-02-29T00:00:00Z", None);
        f("0000-03-01T00:00:00Z", Some(-62_162_035_200_000));
        f(MIN_TIME_TEXT, Some(i64::MIN));
        f(MAX_TIME_TEXT, Some(i64::MAX));
        for bad in ["", "now", "NaN", "Inf", "2015-07-01", "2015-07-01T20:10:51", "1e300", "ab:cd"]
        {
            f(bad, None);
        }
        for bad in ["2015-13-01T00:00:00Z", "2015-07-01T24:00:00Z", "2015-07-01T00:00:00.Z", "é"] {
            f(bad, None);
        }
    }

    #[test]
    fn durations_of_the_api_are_floats_or_units() {
        let f = |text: &str, want: Option<i64>| {
            assert_eq!(parse_duration_ns(text).ok(), want, "{text}");
        };
        f("1", Some(1_000_000_000));
        f("0.5", Some(500_000_000));
        f("-5", Some(-5_000_000_000));
        f("1h30m", Some(5_400_000_000_000));
        f("1y2w3d4h5m6s7ms", Some(33_019_506_007_000_000));
        f("1w", Some(604_800_000_000_000));
        for bad in ["", "1ns", "1m1h", "1m1m", "m", "5x", "1e300", "NaN", "300y", "-1m", "1.5h"] {
            f(bad, None);
        }
    }

    #[test]
    fn times_and_durations_are_written_so_that_they_read_back() {
        let f = |ts: Timestamp, want: &str| {
            assert_eq!(rfc3339(ts), want);
            assert_eq!(parse_time(want).ok(), Some(ts), "{want}");
        };
        f(0, "1970-01-01T00:00:00Z");
        f(1_435_781_451_781, "2015-07-01T20:10:51.781Z");
        f(-500, "1969-12-31T23:59:59.500Z");
        f(951_782_400_000, "2000-02-29T00:00:00Z");
        f(4_107_542_399_999, "2100-02-28T23:59:59.999Z");
        f(-62_162_035_200_000, "0000-03-01T00:00:00Z");
        let f = |ms: i64, want: &str| {
            assert_eq!(unit_duration(ms), want);
            assert_eq!(parse_unit_duration_ms(want), Some(ms), "{want}");
        };
        f(0, "0s");
        f(1, "1ms");
        f(15_000, "15s");
        f(5_400_000, "1h30m");
        f(15 * 86_400_000, "15d");
        f(14 * 86_400_000, "2w");
        f(365 * 86_400_000, "1y");
        f(366 * 86_400_000 + 1_001, "366d1s1ms");
    }
}
