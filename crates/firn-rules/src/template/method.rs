//! The methods of times, durations and histograms.

use firn_promql::histogram_text;

use super::signature::{Parameter, Signature};
use super::time::{
    DateTime, TIME_NS_MAX, duration_text, format_time, month_name, round_duration, seconds,
    time_go_text, time_text, truncate_duration, units, weekday_name,
};
use super::value::{Indirection, IntType, Value};

/// The parameters of a method. `None` if the type has no method of this name.
pub(super) fn signature(receiver: &Value, name: &str) -> Option<Signature> {
    use Parameter::{Duration, Int, String, Time};
    let fixed = |parameters| Some(Signature::fixed(parameters));
    let faulty = |fault| Some(Signature { parameters: &[], rest: None, fault: Some(fault) });
    match (receiver, name) {
        (Value::Time(..), name) => match name {
            "Add" | "Round" | "Truncate" => fixed(&[Duration]),
            "AddDate" => fixed(&[Int, Int, Int]),
            "After" | "Before" | "Compare" | "Equal" | "Sub" => fixed(&[Time]),
            "Format" => fixed(&[String]),
            "Day" | "GoString" | "Hour" | "IsDST" | "IsZero" | "Local" | "Location" | "Minute"
            | "Month" | "Nanosecond" | "Second" | "String" | "UTC" | "Unix" | "UnixMicro"
            | "UnixMilli" | "UnixNano" | "Weekday" | "Year" | "YearDay" => fixed(&[]),
            "Clock" => faulty("function Clock has 3 return values; should be 1 or 2"),
            "Date" => faulty("function Date has 3 return values; should be 1 or 2"),
            "ISOWeek" => faulty(
                "invalid function signature for ISOWeek: second return value should be error; is int",
            ),
            "Zone" => faulty(
                "invalid function signature for Zone: second return value should be error; is int",
            ),
            _ => None,
        },
        (Value::DurationPointer(_) | Value::Int(_, IntType::Duration), name) => match name {
            "Abs" | "Hours" | "Microseconds" | "Milliseconds" | "Minutes" | "Nanoseconds"
            | "Seconds" | "String" => fixed(&[]),
            "Round" | "Truncate" => fixed(&[Duration]),
            _ => None,
        },
        (Value::Int(_, IntType::Month | IntType::Weekday), "String")
        | (Value::Histogram(_), "String" | "UsesCustomBuckets") => fixed(&[]),
        _ => None,
    }
}

/// Calls a method with arguments of its parameters' types.
///
/// # Errors
/// The method does not exist.
pub(super) fn call(receiver: &Value, name: &str, args: &[Value]) -> Result<Value, String> {
    let value = match receiver {
        Value::Time(ns, _) => time_method(*ns, name, args),
        Value::DurationPointer(ns) | Value::Int(ns, IntType::Duration) => {
            duration_method(*ns, name, args)
        }
        Value::Int(month, IntType::Month) => Some(Value::text(month_name(*month))),
        Value::Int(weekday, IntType::Weekday) => Some(Value::text(weekday_name(*weekday))),
        Value::Histogram(histogram) => Some(match name {
            "UsesCustomBuckets" => Value::Bool(histogram.has_custom_bounds()),
            _ => Value::text(histogram_text(histogram)),
        }),
        _ => None,
    };
    value.ok_or_else(|| format!("{name} is not implemented"))
}

/// The year 1, Go's zero time.
const ZERO_TIME_NS: i128 = -62_135_596_800 * 1_000_000_000;
const NS_PER_SECOND: i128 = 1_000_000_000;

fn time_method(ns: i128, name: &str, args: &[Value]) -> Option<Value> {
    let duration = || match args.first() {
        Some(Value::Int(ns, _)) => *ns,
        _ => 0,
    };
    let other = || match args.first() {
        Some(Value::Time(ns, _)) => *ns,
        _ => 0,
    };
    let int_at = |idx: usize| match args.get(idx) {
        Some(Value::Int(value, _)) => *value,
        _ => 0,
    };
    let time = |ns: i128| Value::Time(ns.clamp(-TIME_NS_MAX, TIME_NS_MAX), Indirection::Value);
    // Go's numbers wrap.
    #[expect(clippy::cast_possible_truncation, reason = "as in Go")]
    let int64 = |value: i128| Value::Int(value as i64, IntType::Int64);
    let parts = DateTime::new(ns);
    Some(match name {
        "Add" => time(ns.saturating_add(duration().into())),
        "AddDate" => {
            let moved = DateTime {
                year: parts.year.saturating_add(int_at(0)),
                month: parts.month.saturating_add(int_at(1)),
                day: parts.day.saturating_add(int_at(2)),
                ..parts
            };
            time(moved.ns())
        }
        "Sub" => {
            let difference = ns.saturating_sub(other());
            let limit = if difference < 0 { i64::MIN } else { i64::MAX };
            Value::Int(i64::try_from(difference).unwrap_or(limit), IntType::Duration)
        }
        "After" => Value::Bool(ns > other()),
        "Before" => Value::Bool(ns < other()),
        "Equal" => Value::Bool(ns == other()),
        "Compare" => Value::int(match ns.cmp(&other()) {
            std::cmp::Ordering::Less => -1,
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => 1,
        }),
        "Round" | "Truncate" => {
            let unit = i128::from(duration());
            if unit <= 0 {
                return Some(time(ns));
            }
            // Go counts from the zero time.
            let rest = ns.saturating_sub(ZERO_TIME_NS).checked_rem_euclid(unit).unwrap_or(0);
            let truncated = ns.saturating_sub(rest);
            let rounds_up = name == "Round" && rest.saturating_mul(2) >= unit;
            time(if rounds_up { truncated.saturating_add(unit) } else { truncated })
        }
        "Format" => {
            let layout = args.first().and_then(Value::as_text).map_or("", |text| &**text);
            Value::text(format_time(ns, layout))
        }
        "UTC" | "Local" => time(ns),
        "Location" => Value::text("UTC"),
        "IsDST" => Value::Bool(false),
        "IsZero" => Value::Bool(ns == ZERO_TIME_NS),
        "Unix" => int64(ns.div_euclid(NS_PER_SECOND)),
        "UnixMilli" => int64(ns.div_euclid(1_000_000)),
        "UnixMicro" => int64(ns.div_euclid(1_000)),
        "UnixNano" => int64(ns),
        "Year" => Value::int(parts.year),
        "Month" => Value::Int(parts.month, IntType::Month),
        "Day" => Value::int(parts.day),
        "Hour" => Value::int(parts.hour),
        "Minute" => Value::int(parts.minute),
        "Second" => Value::int(parts.second),
        "Nanosecond" => Value::int(parts.nanosecond),
        "Weekday" => Value::Int(parts.weekday, IntType::Weekday),
        "YearDay" => Value::int(parts.year_day),
        "String" => Value::text(time_text(ns)),
        "GoString" => Value::text(time_go_text(ns)),
        _ => return None,
    })
}

fn duration_method(ns: i64, name: &str, args: &[Value]) -> Option<Value> {
    let unit = match args.first() {
        Some(Value::Int(ns, _)) => *ns,
        _ => 0,
    };
    let duration = |ns| Value::Int(ns, IntType::Duration);
    let int64 = |value: Option<i64>| Value::Int(value.unwrap_or(0), IntType::Int64);
    Some(match name {
        "Abs" => duration(ns.saturating_abs()),
        "Hours" => Value::Float(units(ns, 3_600_000_000_000)),
        "Minutes" => Value::Float(units(ns, 60_000_000_000)),
        "Seconds" => Value::Float(seconds(ns)),
        "Milliseconds" => int64(ns.checked_div(1_000_000)),
        "Microseconds" => int64(ns.checked_div(1_000)),
        "Nanoseconds" => int64(Some(ns)),
        "Round" => duration(round_duration(ns, unit)),
        "Truncate" => duration(truncate_duration(ns, unit)),
        "String" => Value::text(duration_text(ns)),
        _ => return None,
    })
}
