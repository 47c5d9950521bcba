//! Times of test files, and durations as Go prints them.

use firn_model::Timestamp;
use firn_promql::parse_float;

/// Milliseconds since 1970 of a number of seconds or of a time in RFC 3339.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    match parse_float(text) {
        Ok(seconds) if seconds.is_finite() => {
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            let ms = (seconds * 1_000.0).trunc() as i64;
            Some(ms)
        }
        Ok(_) => None,
        Err(_) => parse_rfc3339(text),
    }
}

/// `2026-01-31T10:00:00.5Z`, or with an offset such as `+02:00`.
fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once('T')?;
    let zone_at = rest.find(['Z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_clock = hour < 24 && minute < 60 && second < 60;
    if !is_clock || fraction.is_empty() || !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let ms: String = fraction.chars().chain("000".chars()).take(3).collect();
    let offset_minutes = match zone {
        "Z" => 0,
        zone => {
            let (sign, zone) = zone.split_at_checked(1)?;
            let [hours, minutes] = numbers(zone, ':', [2, 2])?;
            let offset = hours.checked_mul(60)?.checked_add(minutes)?;
            if sign == "-" { offset.checked_neg()? } else { offset }
        }
    };
    let days = days_since_1970(year, month, day)?;
    let minutes = days.checked_mul(1_440)?.checked_add(hour.checked_mul(60)?)?;
    let minutes = minutes.checked_add(minute)?.checked_sub(offset_minutes)?;
    let seconds = minutes.checked_mul(60)?.checked_add(second)?;
    seconds.checked_mul(1_000)?.checked_add(ms.parse().ok()?)
}

/// Numbers of digits alone, as many and as long as `lens`.
fn numbers<const COUNT: usize>(
    text: &str,
    separator: char,
    lens: [usize; COUNT],
) -> Option<[i64; COUNT]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; COUNT];
    for (number, len) in numbers.iter_mut().zip(lens) {
        let part = parts.next().filter(|part| part.len() == len)?;
        *number = part.bytes().all(|c| c.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days of the Gregorian calendar from 1970-01-01; `None` for a day that does not exist.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let months_before = usize::try_from(month.checked_sub(1)?).ok()?;
    let length = *lengths.get(months_before)?;
    if !(1..=length).contains(&day) || !(0..=9_999).contains(&year) {
        return None;
    }
    let before: i64 = lengths.iter().take(months_before).sum();
    let past = year.checked_sub(1)?;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    // Days before 1970-01-01 in the same count.
    Some(past * 365 + leaps + before + day - 1 - 719_162)
}

/// `2026-01-31T10:00:00` for seconds since 1970.
pub fn date_and_time(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    // A file is not written beyond this year.
    let mut year = 1_970_u64;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(is_leap(year)) && year < 9_999 {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_rfc_3339() {
        for (text, want) in [
            ("0", Some(0)),
            ("1600000000", Some(1_600_000_000_000)),
            ("-1.5", Some(-1_500)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2024-02-29T12:30:00.25+02:00", Some(1_709_202_600_250)),
            ("1969-12-31T23:59:59Z", Some(-1_000)),
            ("2023-02-29T00:00:00Z", None),
            ("2024-01-01", None),
            ("2024-01-01T25:00:00Z", None),
            ("NaN", None),
            ("now", None),
            // As Go reads them.
            ("1_000", Some(1_000_000)),
            ("1__0", None),
            ("_1", None),
            ("1970-01-01T00:00:00,5Z", Some(500)),
            ("1970-1-1T00:00:00Z", None),
            ("1970-01-01T00:00:00+2:00", None),
        ] {
            assert_eq!(parse_time(text), want, "{text}");
        }
    }

    #[test]
    fn printed_times_are_read_back() {
        for seconds in [0, 951_782_399, 951_782_400, 1_709_202_600, 1_735_689_599, 4_102_444_800] {
            let ms = i64::try_from(seconds).unwrap() * 1_000;
            assert_eq!(parse_time(&format!("{}Z", date_and_time(seconds))), Some(ms));
        }
    }
}
