//! Dates in UTC, by the proleptic Gregorian calendar.

use crate::syntax::FunctionId;

/// The components of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i64,
    /// 1 to 12.
    pub(crate) month: i64,
    /// 1 to 31.
    pub(crate) day: i64,
    /// Seconds since midnight.
    pub(crate) seconds: i64,
    /// Days since March of the first year.
    days: u64,
}

// Days are counted from this year's March, so that a leap day is the last day of its year and that
// every number of seconds since the epoch is after the first day. Source: Go's package `time`.
const FIRST_YEAR: i64 = -292_277_022_400;
const ERA_DAYS: u64 = 146_097;
// From March of the first year to the epoch.
const EPOCH_SECONDS: u64 =
    (FIRST_YEAR.unsigned_abs() / 400 * ERA_DAYS + 306) * 86_400 + 62_135_596_800;

impl Date {
    /// The date of a number of seconds since the epoch. The few numbers before the first year are
    /// as many seconds after the last, as in Go.
    pub(crate) fn from_seconds(seconds: i64) -> Date {
        Date::from_first_year(EPOCH_SECONDS.wrapping_add_signed(seconds))
    }

    /// The date of a number of seconds since March of the first year.
    fn from_first_year(seconds: u64) -> Date {
        // Eras have 400 years. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
        let days = seconds / 86_400;
        let (era, day_of_era) = ((days / ERA_DAYS) as i64, (days % ERA_DAYS) as i64);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
        let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
        let year = FIRST_YEAR + era * 400 + year_of_era + i64::from(month <= 2);
        Date { year, month, day, seconds: (seconds % 86_400) as i64, days }
    }

    fn is_leap(self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    /// Computed as in Prometheus: 32 minus the day of the month's 32nd, which is after the last
    /// date for the last month of all.
    fn days_in_month(self) -> i64 {
        let day_32 = self.days.wrapping_add_signed(32 - self.day);
        32 - Date::from_first_year(day_32.wrapping_mul(86_400)).day
    }

    fn day_of_year(self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let month_idx = usize::try_from(self.month - 1).unwrap_or(0).min(11);
        BEFORE[month_idx] + self.day + i64::from(self.month > 2 && self.is_leap())
    }
}

/// A date function's value at `seconds` since the epoch.
pub(crate) fn date_part(function: FunctionId, seconds: f64) -> f64 {
    let date = Date::from_seconds(whole_seconds(seconds));
    let part = match function {
        FunctionId::DayOfMonth => date.day,
        // The first day is a Wednesday.
        FunctionId::DayOfWeek => ((date.days + 3) % 7) as i64,
        FunctionId::DayOfYear => date.day_of_year(),
        FunctionId::DaysInMonth => date.days_in_month(),
        FunctionId::Hour => date.seconds / 3_600,
        FunctionId::Minute => date.seconds / 60 % 60,
        FunctionId::Month => date.month,
        _ => date.year,
    };
    part as f64
}

/// `seconds` without its fraction. NaN, infinities and numbers out of range become the smallest
/// integer: Prometheus converts with an instruction of x86-64 that does the same.
fn whole_seconds(seconds: f64) -> i64 {
    const RANGE: std::ops::Range<f64> = i64::MIN as f64..i64::MAX as f64;
    if RANGE.contains(&seconds) { seconds as i64 } else { i64::MIN }
}

/// `2006-01-02T22:04:05Z`.
pub(crate) fn rfc3339(seconds: i64) -> String {
    let date = Date::from_seconds(seconds);
    let (hour, minute, second) = (date.seconds / 3_600, date.seconds / 60 % 60, date.seconds % 60);
    format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", date.year, date.month, date.day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_before_the_epoch() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59Z");
        assert_eq!(rfc3339(1_136_239_445), "2006-01-02T22:04:05Z");
        assert_eq!(rfc3339(1_456_790_399), "2016-02-29T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_part(FunctionId::DayOfYear, 1_483_191_420.0), 366.0);
        assert_eq!(date_part(FunctionId::DaysInMonth, 1_485_907_200.0), 28.0);
        assert_eq!(date_part(FunctionId::DayOfWeek, 0.0), 4.0);
    }

    /// Year, month, day, day of the week, day of the year, days in the month, hour and minute, as
    /// Go 1.26 computes them.
    #[test]
    fn dates_are_those_of_go_up_to_the_ends_of_time() {
        const DATES: [(i64, [i64; 8]); 22] = [
            (i64::MIN, [292277026596, 12, 4, 0, 339, 31, 15, 30]),
            (i64::MAX, [292277026596, 12, 4, 0, 339, 31, 15, 30]),
            (1 << 55, [1141709097, 6, 13, 0, 164, 30, 6, 26]),
            (-1 << 55, [-1141705158, 7, 20, 0, 201, 31, 17, 33]),
            (1 << 56, [2283416224, 11, 24, 3, 329, 30, 12, 52]),
            (-1 << 56, [-2283412285, 2, 7, 4, 38, 28, 11, 7]),
            (1 << 60, [36534630048, 5, 13, 3, 134, 31, 13, 56]),
            (-1 << 60, [-36534626109, 8, 20, 4, 232, 31, 10, 3]),
            (1 << 62, [146138514283, 6, 19, 2, 170, 30, 7, 45]),
            (-1 << 62, [-146138510344, 7, 14, 5, 196, 31, 16, 14]),
            (9_200_000_000_000_000_000, [291536396232, 8, 31, 5, 244, 31, 11, 33]),
            (-9_200_000_000_000_000_000, [-291536392293, 5, 3, 2, 123, 31, 12, 26]),
            (1_000_000_000_000_000_000, [31688740476, 10, 23, 5, 297, 31, 1, 46]),
            (-1_000_000_000_000_000_000, [-31688736537, 3, 10, 2, 69, 31, 22, 13]),
            (-62_135_596_800, [1, 1, 1, 1, 1, 31, 0, 0]),
            (-62_135_596_801, [0, 12, 31, 0, 366, 31, 23, 59]),
            (9_223_371_966_579_724_799, [292277024369, 12, 31, 3, 365, 31, 23, 59]),
            (-9_223_372_028_741_760_000, [-292277022400, 3, 1, 3, 61, 31, 0, 0]),
            (-9_223_372_028_741_760_001, [292277026854, 1, 7, 3, 7, 7, 7, 0]),
            (-1, [1969, 12, 31, 3, 365, 31, 23, 59]),
            (253_402_300_800, [10000, 1, 1, 6, 1, 31, 0, 0]),
            (1_000_000_000_000, [33658, 9, 27, 5, 270, 30, 1, 46]),
        ];
        for (seconds, expected) in DATES {
            let date = Date::from_seconds(seconds);
            let week_day = ((date.days + 3) % 7) as i64;
            let (hour, minute) = (date.seconds / 3_600, date.seconds / 60 % 60);
            let got = [
                date.year,
                date.month,
                date.day,
                week_day,
                date.day_of_year(),
                date.days_in_month(),
                hour,
                minute,
            ];
            assert_eq!(got, expected, "{seconds}");
        }
    }

    /// Found by comparing with Prometheus 3.15: infinities and NaN had dates of their own.
    #[test]
    fn numbers_without_a_date_have_that_of_the_smallest_integer() {
        let first = date_part(FunctionId::Year, i64::MIN as f64);
        assert_eq!(first, 292_277_026_596.0);
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 2f64.powi(63)] {
            assert_eq!(date_part(FunctionId::Year, number), first, "{number}");
            assert_eq!(date_part(FunctionId::Minute, number), 30.0, "{number}");
        }
        assert_eq!(date_part(FunctionId::Year, -0.5), 1970.0);
    }
}
