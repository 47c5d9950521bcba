//! Durations as Prometheus writes them.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use super::decode::{Decoder, Encoded, Field, text_of};
use super::failure::Failure;
use super::node::Node;
use super::text::quoted;

/// A duration in milliseconds, written as in Prometheus: `1h30m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

/// Unit, rank and milliseconds.
const UNITS: [(&str, u8, u64); 7] = [
    ("y", 1, 365 * 86_400_000),
    ("w", 2, 7 * 86_400_000),
    ("d", 3, 86_400_000),
    ("h", 4, 3_600_000),
    ("m", 5, 60_000),
    ("s", 6, 1_000),
    ("ms", 7, 1),
];
/// Prometheus' durations are nanoseconds in 63 bits.
const MILLIS_MAX: u64 = (i64::MAX as u64) / 1_000_000;

impl Millis {
    /// A duration of `ms` milliseconds.
    pub const fn new(ms: u64) -> Millis {
        Millis(ms)
    }

    /// A duration of `seconds` seconds.
    pub const fn seconds(seconds: u64) -> Millis {
        Millis(seconds.saturating_mul(1_000))
    }

    /// Milliseconds.
    pub fn as_ms(self) -> u64 {
        self.0
    }
}

impl FromStr for Millis {
    type Err = String;

    /// `0`, or whole numbers with units, the largest unit first, each once.
    fn from_str(text: &str) -> Result<Millis, String> {
        let invalid = || format!("not a valid duration string: {}", quoted(text.as_bytes()));
        match text {
            "0" => return Ok(Millis(0)),
            "" => return Err("empty duration string".to_owned()),
            _ => {}
        }
        let out_of_range = || "duration out of range".to_owned();
        let (mut rest, mut last_rank, mut sum) = (text, 0, 0u64);
        while !rest.is_empty() {
            let number_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(number_end);
            let unit_end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
            let (unit, behind) = behind.split_at(unit_end);
            let number: u64 = number.parse().map_err(|_| invalid())?;
            if unit.is_empty() {
                return Err(invalid());
            }
            let Some(&(_, rank, unit_ms)) = UNITS.iter().find(|(name, ..)| *name == unit) else {
                let (unit, text) = (quoted(unit.as_bytes()), quoted(text.as_bytes()));
                return Err(format!("unknown unit {unit} in duration {text}"));
            };
            if rank <= last_rank {
                return Err(invalid());
            }
            last_rank = rank;
            let ms = number.checked_mul(unit_ms).ok_or_else(out_of_range)?;
            sum = sum.checked_add(ms).filter(|sum| *sum <= MILLIS_MAX).ok_or_else(out_of_range)?;
            rest = behind;
        }
        Ok(Millis(sum))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ms = self.0;
        if ms == 0 {
            return f.write_str("0s");
        }
        for (unit, _, unit_ms) in UNITS {
            let (count, rest) =
                (ms.checked_div(unit_ms).unwrap_or(0), ms.checked_rem(unit_ms).unwrap_or(0));
            // 90d is easier to read than 12w6d.
            let is_exact_only = matches!(unit, "y" | "w");
            if count > 0 && (rest == 0 || !is_exact_only) {
                write!(f, "{count}{unit}")?;
                ms = rest;
            }
        }
        Ok(())
    }
}

impl Field for Millis {
    fn type_name() -> String {
        "model.Duration".to_owned()
    }

    fn zero() -> Millis {
        Millis(0)
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        *self = text.parse().map_err(|error: String| Failure::new(error).at(node.line))?;
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.to_string())
    }

    fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

/// A duration in milliseconds as Go prints it: `1h0m0s`, `1m30.5s`, `500ms`, `0s`.
pub fn go_duration(ms: i64) -> String {
    let mut out = String::new();
    if ms < 0 {
        out.push('-');
    }
    let ms = ms.unsigned_abs();
    let (seconds, rest) = (ms / 1_000, ms % 1_000);
    if seconds == 0 {
        let _ = if rest == 0 { write!(out, "0s") } else { write!(out, "{rest}ms") };
        return out;
    }
    let (hours, minutes, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        let _ = write!(out, "{hours}h");
    }
    if seconds >= 60 {
        let _ = write!(out, "{minutes}m");
    }
    let _ = write!(out, "{second}");
    if rest > 0 {
        let fraction = format!("{rest:03}");
        let _ = write!(out, ".{}", fraction.trim_end_matches('0'));
    }
    out.push('s');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_those_of_prometheus() {
        for (text, ms, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("324ms", 324, "324ms"),
            ("3s", 3_000, "3s"),
            ("5m", 300_000, "5m"),
            ("60m", 3_600_000, "1h"),
            ("4d1h", 349_200_000, "4d1h"),
            ("14d", 1_209_600_000, "2w"),
            ("3w2d", 1_987_200_000, "23d"),
            ("10y", 315_360_000_000, "10y"),
            ("1y1ms", 31_536_000_001, "365d1ms"),
        ] {
            let duration: Millis = text.parse().unwrap();
            assert_eq!((duration.as_ms(), duration.to_string().as_str()), (ms, printed), "{text}");
        }
        for (text, want) in [
            ("", "empty duration string"),
            ("1", "not a valid duration string: \"1\""),
            ("-1w", "not a valid duration string: \"-1w\""),
            ("1.5d", "unknown unit \".\" in duration \"1.5d\""),
            ("d", "not a valid duration string: \"d\""),
            ("1m1d", "not a valid duration string: \"1m1d\""),
            ("1m1m", "not a valid duration string: \"1m1m\""),
            ("2notseconds", "unknown unit \"notseconds\" in duration \"2notseconds\""),
            ("294y", "duration out of range"),
            ("200y400d10675199d", "not a valid duration string"),
            ("99999999999999999999s", "not a valid duration string"),
        ] {
            let error = text.parse::<Millis>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn printed_durations_are_read_back(ms in 0..MILLIS_MAX) {
            prop_assert_eq!(Millis(ms).to_string().parse(), Ok(Millis(ms)));
        }
    }

    #[test]
    fn durations_are_printed_as_in_go() {
        for (ms, want) in [
            (0, "0s"),
            (500, "500ms"),
            (1_000, "1s"),
            (90_500, "1m30.5s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
            (-60_000, "-1m0s"),
        ] {
            assert_eq!(go_duration(ms), want);
        }
    }
}
