//! Times and durations as Go prints them. All times are UTC.

use std::fmt::Write;

const NS_PER_SECOND: i128 = 1_000_000_000;
const SECONDS_PER_DAY: i128 = 86_400;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The name of a month, from 1.
pub(super) fn month_name(month: i64) -> String {
    let name = usize::try_from(month).ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    name.map_or_else(|| format!("%!Month({month})"), |name| (*name).to_owned())
}

/// The name of a day of the week; Sunday is 0.
pub(super) fn weekday_name(weekday: i64) -> String {
    let name = usize::try_from(weekday).ok().and_then(|weekday| WEEKDAYS.get(weekday));
    name.map_or_else(|| format!("%!Weekday({weekday})"), |name| (*name).to_owned())
}

/// The parts of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DateTime {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
    pub(super) nanosecond: i64,
    /// Sunday is 0.
    pub(super) weekday: i64,
    /// From 1.
    pub(super) year_day: i64,
}

/// Times from this far before to this far after 1970 are printed; others saturate. Nanoseconds of
/// about 290,000 years.
pub(super) const TIME_NS_MAX: i128 = i64::MAX as i128 * 1_000;

#[expect(clippy::arithmetic_side_effects, reason = "times are within TIME_NS_MAX")]
#[expect(clippy::cast_possible_truncation, reason = "times are within TIME_NS_MAX")]
impl DateTime {
    /// The parts of nanoseconds since 1970.
    pub(super) fn new(ns: i128) -> DateTime {
        let ns = ns.clamp(-TIME_NS_MAX, TIME_NS_MAX);
        let seconds = ns.div_euclid(NS_PER_SECOND);
        let days = seconds.div_euclid(SECONDS_PER_DAY) as i64;
        let second_of_day = seconds.rem_euclid(SECONDS_PER_DAY) as i64;
        let (year, month, day) = civil(days);
        DateTime {
            year,
            month,
            day,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            nanosecond: ns.rem_euclid(NS_PER_SECOND) as i64,
            weekday: (days + 4).rem_euclid(7),
            year_day: days - days_since_1970(year, 1, 1) + 1,
        }
    }

    /// Nanoseconds since 1970. Months and days outside of their ranges count on.
    pub(super) fn ns(&self) -> i128 {
        let clamped = |value: i64| value.clamp(-1_000_000_000, 1_000_000_000);
        let months = clamped(self.year) * 12 + clamped(self.month) - 1;
        let first = days_since_1970(months.div_euclid(12), months.rem_euclid(12) + 1, 1);
        let days = i128::from(first) + i128::from(clamped(self.day)) - 1;
        let seconds =
            days * SECONDS_PER_DAY + i128::from(self.hour * 3_600 + self.minute * 60 + self.second);
        let ns = seconds * NS_PER_SECOND + i128::from(self.nanosecond);
        ns.clamp(-TIME_NS_MAX, TIME_NS_MAX)
    }
}

/// Year, month and day of days since 1970-01-01.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms".
#[expect(clippy::arithmetic_side_effects, reason = "days are within TIME_NS_MAX")]
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`].
#[expect(clippy::arithmetic_side_effects, reason = "years are below 2^31")]
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// As Go's `Time.String`.
pub(super) fn time_text(ns: i128) -> String {
    format_time(ns, "2006-01-02 15:04:05.999999999 -0700 MST")
}

/// As Go's `%#v`.
pub(super) fn time_go_text(ns: i128) -> String {
    let DateTime { year, month, day, hour, minute, second, nanosecond, .. } = DateTime::new(ns);
    let month = month_name(month);
    format!(
        "time.Date({year}, time.{month}, {day}, {hour}, {minute}, {second}, {nanosecond}, time.UTC)"
    )
}

/// As Go's `Time.Format`: `layout` is the reference time `Mon Jan 2 15:04:05 MST 2006`.
pub(super) fn format_time(ns: i128, layout: &str) -> String {
    let parts = DateTime::new(ns);
    let mut out = String::new();
    let mut rest = layout;
    while let Some(c) = rest.chars().next() {
        let element = LAYOUT.iter().find(|(text, _)| is_element(rest, text));
        let (element, after) = match element {
            Some((text, element)) => (*element, rest.get(text.len()..).unwrap_or_default()),
            None => match fraction(rest) {
                Some((element, after)) => (element, after),
                None => {
                    out.push(c);
                    rest = rest.get(c.len_utf8()..).unwrap_or_default();
                    continue;
                }
            },
        };
        push_element(&mut out, &parts, element);
        rest = after;
    }
    out
}

/// The elements of a layout, longer ones before their beginnings.
const LAYOUT: [(&str, Element); 34] = [
    ("January", Element::LongMonth),
    ("Jan", Element::Month),
    ("Monday", Element::LongWeekday),
    ("Mon", Element::Weekday),
    ("MST", Element::Zone),
    ("01", Element::ZeroMonth),
    ("02", Element::ZeroDay),
    ("03", Element::ZeroHour12),
    ("04", Element::ZeroMinute),
    ("05", Element::ZeroSecond),
    ("06", Element::ShortYear),
    ("002", Element::ZeroYearDay),
    ("15", Element::Hour),
    ("1", Element::NumMonth),
    ("2006", Element::Year),
    ("2", Element::Day),
    ("_2006", Element::UnderYear),
    ("_2", Element::UnderDay),
    ("__2", Element::UnderYearDay),
    ("3", Element::Hour12),
    ("4", Element::Minute),
    ("5", Element::Second),
    ("PM", Element::UpperHalf),
    ("pm", Element::LowerHalf),
    ("-070000", Element::Offset("+000000")),
    ("-07:00:00", Element::Offset("+00:00:00")),
    ("-0700", Element::Offset("+0000")),
    ("-07:00", Element::Offset("+00:00")),
    ("-07", Element::Offset("+00")),
    ("Z070000", Element::Offset("Z")),
    ("Z07:00:00", Element::Offset("Z")),
    ("Z0700", Element::Offset("Z")),
    ("Z07:00", Element::Offset("Z")),
    ("Z07", Element::Offset("Z")),
];

#[derive(Clone, Copy, Debug)]
enum Element {
    LongMonth,
    Month,
    NumMonth,
    ZeroMonth,
    LongWeekday,
    Weekday,
    Day,
    UnderDay,
    ZeroDay,
    UnderYearDay,
    ZeroYearDay,
    Hour,
    Hour12,
    ZeroHour12,
    Minute,
    ZeroMinute,
    Second,
    ZeroSecond,
    Year,
    UnderYear,
    ShortYear,
    UpperHalf,
    LowerHalf,
    Zone,
    /// The text for UTC.
    Offset(&'static str),
    /// Point or comma, digits, and whether zeros at the end are left out.
    Fraction {
        point: char,
        digit_count: usize,
        is_trimmed: bool,
    },
}

fn is_element(rest: &str, text: &str) -> bool {
    let Some(after) = rest.strip_prefix(text) else { return false };
    // `Jan` and `Mon` are not the beginnings of words.
    !(matches!(text, "Jan" | "Mon") && after.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// `.000`, `,000`, `.999` or `,999` of any length, not followed by another digit.
fn fraction(rest: &str) -> Option<(Element, &str)> {
    let point = rest.chars().next().filter(|c| matches!(c, '.' | ','))?;
    let digits = rest.get(1..)?;
    let digit = digits.chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let after = digits.trim_start_matches(digit);
    let digit_count = digits.len().saturating_sub(after.len());
    (!after.starts_with(|c: char| c.is_ascii_digit())).then_some(())?;
    Some((Element::Fraction { point, digit_count, is_trimmed: digit == '9' }, after))
}

fn push_element(out: &mut String, parts: &DateTime, element: Element) {
    let hour12 = match parts.hour.rem_euclid(12) {
        0 => 12,
        hour => hour,
    };
    let half = if parts.hour >= 12 { "PM" } else { "AM" };
    let short = |name: String| name.chars().take(3).collect::<String>();
    // Writing to a string cannot fail.
    let _ = match element {
        Element::LongMonth => write!(out, "{}", month_name(parts.month)),
        Element::Month => write!(out, "{}", short(month_name(parts.month))),
        Element::NumMonth => write!(out, "{}", parts.month),
        Element::ZeroMonth => write!(out, "{:02}", parts.month),
        Element::LongWeekday => write!(out, "{}", weekday_name(parts.weekday)),
        Element::Weekday => write!(out, "{}", short(weekday_name(parts.weekday))),
        Element::Day => write!(out, "{}", parts.day),
        Element::UnderDay => write!(out, "{:2}", parts.day),
        Element::ZeroDay => write!(out, "{:02}", parts.day),
        Element::UnderYearDay => write!(out, "{:3}", parts.year_day),
        Element::ZeroYearDay => write!(out, "{:03}", parts.year_day),
        Element::Hour => write!(out, "{:02}", parts.hour),
        Element::Hour12 => write!(out, "{hour12}"),
        Element::ZeroHour12 => write!(out, "{hour12:02}"),
        Element::Minute => write!(out, "{}", parts.minute),
        Element::ZeroMinute => write!(out, "{:02}", parts.minute),
        Element::Second => write!(out, "{}", parts.second),
        Element::ZeroSecond => write!(out, "{:02}", parts.second),
        Element::Year => push_year(out, parts.year),
        Element::UnderYear => {
            out.push('_');
            push_year(out, parts.year)
        }
        Element::ShortYear => write!(out, "{:02}", parts.year.unsigned_abs() % 100),
        Element::UpperHalf => write!(out, "{half}"),
        Element::LowerHalf => write!(out, "{}", half.to_ascii_lowercase()),
        Element::Zone => write!(out, "UTC"),
        Element::Offset(text) => write!(out, "{text}"),
        Element::Fraction { point, digit_count, is_trimmed } => {
            let digits = format!("{:09}", parts.nanosecond);
            let shown = digits.get(..digit_count.min(9)).unwrap_or_default();
            let shown = if is_trimmed { shown.trim_end_matches('0') } else { shown };
            match shown.is_empty() {
                true => Ok(()),
                false => write!(out, "{point}{shown}"),
            }
        }
    };
}

fn push_year(out: &mut String, year: i64) -> std::fmt::Result {
    let sign = if year < 0 { "-" } else { "" };
    write!(out, "{sign}{:04}", year.unsigned_abs())
}

/// Seconds of nanoseconds, as Go divides.
pub(super) fn seconds(ns: i64) -> f64 {
    units(ns, 1_000_000_000)
}

/// The whole units and the fraction are divided separately, as in Go.
pub(super) fn units(ns: i64, unit_ns: i64) -> f64 {
    let whole = ns.checked_div(unit_ns).unwrap_or(0);
    let rest = ns.checked_rem(unit_ns).unwrap_or(0);
    whole as f64 + rest as f64 / unit_ns as f64
}

/// As Go's `Duration.String`: `1h2m0.5s`.
#[expect(clippy::arithmetic_side_effects, reason = "divisors are constants")]
pub(super) fn duration_text(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let magnitude = ns.unsigned_abs();
    let (unit_ns, unit) = match magnitude {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let whole = magnitude / unit_ns;
    let digit_count = unit_ns.ilog10() as usize;
    let fraction = format!("{:0digit_count$}", magnitude % unit_ns);
    let fraction = if digit_count == 0 { "" } else { fraction.trim_end_matches('0') };
    let point = if fraction.is_empty() { "" } else { "." };
    let (minutes, hours) = (whole / 60 % 60, whole / 3_600);
    let larger = match (unit, hours, minutes) {
        ("s", 0, 0) => String::new(),
        ("s", 0, minutes) => format!("{minutes}m"),
        ("s", hours, minutes) => format!("{hours}h{minutes}m"),
        _ => String::new(),
    };
    let shown = if unit == "s" { whole % 60 } else { whole };
    format!("{sign}{larger}{shown}{point}{fraction}{unit}")
}

/// As Go's `Duration.Round`: halves away from zero, saturating.
pub(super) fn round_duration(ns: i64, unit_ns: i64) -> i64 {
    if unit_ns <= 0 {
        return ns;
    }
    let (ns, unit) = (i128::from(ns), i128::from(unit_ns));
    let rest = ns.checked_rem(unit).unwrap_or(0);
    let away = rest.abs().saturating_mul(2) >= unit;
    let truncated = ns.saturating_sub(rest);
    let step = unit.saturating_mul(ns.signum());
    let rounded = if away { truncated.saturating_add(step) } else { truncated };
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

/// As Go's `Duration.Truncate`: towards zero.
pub(super) fn truncate_duration(ns: i64, unit_ns: i64) -> i64 {
    match unit_ns <= 0 {
        true => ns,
        false => ns.saturating_sub(ns.checked_rem(unit_ns).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_in_go() {
        let f = |ns, want: &str| assert_eq!(duration_text(ns), want);
        f(0, "0s");
        f(1, "1ns");
        f(-1_100, "-1.1µs");
        f(2_200_000, "2.2ms");
        f(60_500_000_000, "1m0.5s");
        f(3_600_000_000_000, "1h0m0s");
        f(i64::MAX, "2562047h47m16.854775807s");
        f(i64::MIN, "-2562047h47m16.854775808s");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let f = |ns: i128, want: &str| assert_eq!(time_text(ns), want);
        f(0, "1970-01-01 00:00:00 +0000 UTC");
        f(-1, "1969-12-31 23:59:59.999999999 +0000 UTC");
        f(951_782_400 * NS_PER_SECOND, "2000-02-29 00:00:00 +0000 UTC");
        f(1_435_065_584_128_000_000, "2015-06-23 13:19:44.128 +0000 UTC");
        for ns in [-10, 0, 1_353_755_652_000_000_000, TIME_NS_MAX, -TIME_NS_MAX] {
            assert_eq!(DateTime::new(ns).ns(), ns);
        }
    }

    #[test]
    fn layouts_are_those_of_go() {
        let ns = 1_353_755_652_120_000_000;
        let f = |layout: &str, want: &str| assert_eq!(format_time(ns, layout), want);
        f("Mon, 02 Jan 2006 15:04:05 MST", "Sat, 24 Nov 2012 11:14:12 UTC");
        f("Monday January _2 3:04PM 06", "Saturday November 24 11:14AM 12");
        f("2006-01-02T15:04:05.000Z07:00", "2012-11-24T11:14:12.120Z");
        f("05.999999 05,99 05.0001 -07:00 002 __2", "12.12 12,12 12.0011 +00:00 329 329");
        f("January Janet Month 1 _2006", "November Janet Month 11 _2012");
    }

    #[test]
    fn durations_are_rounded_as_in_go() {
        for (ns, unit, rounded, truncated) in [
            (15, 10, 20, 10),
            (-15, 10, -20, -10),
            (14, 10, 10, 10),
            (7, 3, 6, 6),
            (8, 3, 9, 6),
            (5, 0, 5, 5),
        ] {
            assert_eq!(
                (round_duration(ns, unit), truncate_duration(ns, unit)),
                (rounded, truncated)
            );
        }
        assert_eq!(round_duration(i64::MAX, i64::MAX - 1), i64::MAX - 1);
        assert_eq!(round_duration(i64::MAX, 1_000), i64::MAX);
    }
}
