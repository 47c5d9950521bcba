//! Sizes, durations, numbers and switches.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use super::{ExpectedForm, SettingType, expected};
use crate::wire::number::{parse_unit_duration_ms, unit_duration};

/// A number of bytes: `4GiB`, `512MB`, `1g`, `1000`. Units are multiples of 1024 unless they end in
/// `B` without `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// As a length in memory.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ExpectedForm;

    #[expect(clippy::cast_possible_truncation, reason = "a float saturates")]
    fn from_str(text: &str) -> Result<ByteSize, ExpectedForm> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
        let Some(factor) = factor_of(unit.trim_start()) else {
            return match unit.trim_start() == "m" && number.parse::<f64>().is_ok() {
                true => expected(format!("{number}MiB or {number}M (m is minutes)")),
                false => expected(SIZE_FORM),
            };
        };
        // The bounds of the setting refuse the largest number with a better message.
        if let Some(whole) = whole_number(number) {
            return Ok(ByteSize(whole.saturating_mul(factor)));
        }
        match number.parse::<f64>() {
            Ok(number) if factor == 1 || (number > 0.0 && number * (factor as f64) < 1.0) => {
                expected("a whole number of bytes, or a size such as 1.5GiB")
            }
            Ok(number) => Ok(ByteSize((number * factor as f64) as u64)),
            Err(_) => expected(SIZE_FORM),
        }
    }
}

const SIZE_FORM: &str = "a size such as 64KiB or 4GiB";

/// Bytes of `unit`; case does not count, except that durations have `m`.
fn factor_of(unit: &str) -> Option<u64> {
    if unit == "m" {
        return None;
    }
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Digits as a number; a greater one than the largest is that.
fn whole_number(digits: &str) -> Option<u64> {
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_whole.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// In the largest unit that divides it.
#[expect(clippy::arithmetic_side_effects, reason = "no unit is 0 bytes")]
impl Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let bytes = self.0;
        match UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
            None => write!(f, "{bytes}"),
        }
    }
}

impl SettingType for ByteSize {
    const VALUE_NAME: &'static str = "SIZE";
    const KIND: &'static str = "size";

    fn amount(&self) -> Option<u64> {
        Some(self.0)
    }

    fn bound(amount: u64) -> String {
        ByteSize(amount).to_string()
    }

    fn is_on(&self) -> bool {
        self.0 > 0
    }
}

/// A length of time above zero: `15s`, `1h30m`, `15d`. Millisecond resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    ms: i64,
}

impl Span {
    /// Milliseconds.
    pub fn ms(self) -> i64 {
        self.ms
    }

    /// For timers.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.ms.unsigned_abs())
    }
}

impl FromStr for Span {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Span, ExpectedForm> {
        match parse_unit_duration_ms(text) {
            Some(ms) if ms > 0 => Ok(Span { ms }),
            _ => expected("a duration such as 15s, 1h30m or 15d"),
        }
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&unit_duration(self.ms))
    }
}

impl SettingType for Span {
    const VALUE_NAME: &'static str = "DURATION";
    const KIND: &'static str = "duration";

    fn amount(&self) -> Option<u64> {
        Some(self.ms.unsigned_abs())
    }

    fn bound(amount: u64) -> String {
        unit_duration(i64::try_from(amount).unwrap_or(i64::MAX))
    }
}

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl Count {
    /// As a length in memory.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Count {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Count, ExpectedForm> {
        whole_number(text).map_or_else(|| expected("a whole number"), |count| Ok(Count(count)))
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Count {
    const VALUE_NAME: &'static str = "COUNT";
    const KIND: &'static str = "number";

    fn amount(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// A number of shards: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCount(usize);

impl ShardCount {
    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

// A group id has room for this number.
const SHARDS_MAX: usize = 1 << 15;

impl FromStr for ShardCount {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<ShardCount, ExpectedForm> {
        match whole_number(text).and_then(|shards| usize::try_from(shards).ok()) {
            Some(shards) if shards.is_power_of_two() && shards <= SHARDS_MAX => {
                Ok(ShardCount(shards))
            }
            _ => expected(format!("a power of two up to {SHARDS_MAX}")),
        }
    }
}

impl Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for ShardCount {
    const VALUE_NAME: &'static str = "COUNT";
    const KIND: &'static str = "power of two";
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self.0
    }
}

impl FromStr for Switch {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Switch, ExpectedForm> {
        text.parse().map_or_else(|_| expected("true or false"), |is_on| Ok(Switch(is_on)))
    }
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Switch {
    const VALUE_NAME: &'static str = "true|false";
    const KIND: &'static str = "true or false";
    const IS_SWITCH: bool = true;

    fn is_on(&self) -> bool {
        self.0
    }
}
