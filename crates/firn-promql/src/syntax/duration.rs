//! Durations: `1h30m`, and arithmetic on them.

use super::{BinaryOp, DurationExpr};

const UNITS: [(&str, i64); 7] = [
    ("y", 365 * 24 * 3_600_000),
    ("w", 7 * 24 * 3_600_000),
    ("d", 24 * 3_600_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Milliseconds of `1h30m`: units from large to small, each at most once.
///
/// # Errors
/// Prometheus' message for a text that is not a duration, or for a duration that exceeds Go's range
/// of nanoseconds.
pub(crate) fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let bad = || format!("not a valid duration string: {}", super::go_quote(text.as_bytes()));
    if text == "0" {
        return Ok(0);
    }
    let mut rest = text;
    let mut unit_next = 0;
    let mut sum = 0i64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let (unit_idx, (_, unit_ms)) =
            UNITS.iter().enumerate().find(|(_, known)| known.0 == unit).ok_or_else(bad)?;
        if number.is_empty() || unit_idx < unit_next {
            return Err(bad());
        }
        unit_next = unit_idx.saturating_add(1);
        sum = number
            .parse::<i64>()
            .ok()
            .and_then(|number| number.checked_mul(*unit_ms))
            .and_then(|part| sum.checked_add(part))
            .filter(|&sum| sum <= i64::MAX / 1_000_000)
            .ok_or_else(|| "duration out of range".to_owned())?;
        rest = after;
    }
    if text.is_empty() { Err("empty duration string".to_owned()) } else { Ok(sum) }
}

/// The shortest usual form: years and weeks only without a remainder.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "no unit is 0 ms, and `count` units are not more than `ms`"
)]
pub(crate) fn format_duration(mut ms: i64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (idx, (unit, unit_ms)) in UNITS.iter().enumerate() {
        let exact_only = idx < 2;
        if exact_only && ms % unit_ms != 0 {
            continue;
        }
        let count = ms / unit_ms;
        if count > 0 {
            out.push_str(&format!("{count}{unit}"));
            ms -= count * unit_ms;
        }
    }
    out
}

impl DurationExpr {
    /// The value in seconds.
    ///
    /// # Errors
    /// Prometheus' message for a division by zero.
    pub(crate) fn seconds(&self, step: f64, range: f64) -> Result<f64, String> {
        Ok(match self {
            DurationExpr::Number { value, .. } => *value,
            DurationExpr::Step => step,
            DurationExpr::Range => range,
            DurationExpr::Negate(inner) => -inner.seconds(step, range)?,
            DurationExpr::Paren(inner) => inner.seconds(step, range)?,
            DurationExpr::Choice { greater, lhs, rhs } => {
                let (lhs, rhs) = (lhs.seconds(step, range)?, rhs.seconds(step, range)?);
                if *greater { lhs.max(rhs) } else { lhs.min(rhs) }
            }
            DurationExpr::Binary { op, lhs, rhs } => {
                let (lhs, rhs) = (lhs.seconds(step, range)?, rhs.seconds(step, range)?);
                match op {
                    BinaryOp::Add => lhs + rhs,
                    BinaryOp::Sub => lhs - rhs,
                    BinaryOp::Mul => lhs * rhs,
                    BinaryOp::Div if rhs == 0.0 => return Err("division by zero".to_owned()),
                    BinaryOp::Div => lhs / rhs,
                    BinaryOp::Mod if rhs == 0.0 => return Err("modulo by zero".to_owned()),
                    BinaryOp::Mod => lhs % rhs,
                    _ => lhs.powf(rhs),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write() {
        for (text, ms) in
            [("1h30m", 5_400_000), ("5m", 300_000), ("10s53ms", 10_053), ("2w", 1_209_600_000)]
        {
            assert_eq!(parse_duration_ms(text), Ok(ms));
            assert_eq!(format_duration(ms), text);
        }
        assert_eq!(format_duration(90 * 24 * 3_600_000), "90d");
        for bad in ["1m1h", "1", "h", "1h1h", "", "5q"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_duration_ms("300y"), Err("duration out of range".to_owned()));
    }
}
