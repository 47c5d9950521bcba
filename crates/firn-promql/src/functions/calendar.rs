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
    /// Days since 1970-01-01.
    days: i64,
}

impl Date {
    /// The date of a number of seconds since the epoch.
    pub(crate) fn from_seconds(seconds: i64) -> Date {
        let days = seconds.div_euclid(86_400);
        // Years start in March, so that the leap day is the last day; eras have 400 years. Source:
        // H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
        let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Date { year, month, day, seconds: seconds.rem_euclid(86_400), days }
    }

    fn is_leap(self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_in_month(self) -> i64 {
        match self.month {
            2 => 28 + i64::from(self.is_leap()),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    fn day_of_year(self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let month_idx = usize::try_from(self.month - 1).unwrap_or(0).min(11);
        BEFORE[month_idx] + self.day + i64::from(self.month > 2 && self.is_leap())
    }
}

/// A date function's value at `seconds` since the epoch.
pub(crate) fn date_part(function: FunctionId, seconds: f64) -> f64 {
    // Larger years are meaningless; the bound prevents overflow.
    let date = Date::from_seconds((seconds as i64).clamp(-1 << 55, 1 << 55));
    let part = match function {
        FunctionId::DayOfMonth => date.day,
        FunctionId::DayOfWeek => (date.days + 4).rem_euclid(7),
        FunctionId::DayOfYear => date.day_of_year(),
        FunctionId::DaysInMonth => date.days_in_month(),
        FunctionId::Hour => date.seconds / 3_600,
        FunctionId::Minute => date.seconds / 60 % 60,
        FunctionId::Month => date.month,
        _ => date.year,
    };
    part as f64
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
}
