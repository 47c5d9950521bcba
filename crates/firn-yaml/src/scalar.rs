//! The kinds of plain scalars in Prometheus: those of YAML 1.1, with its switches and numbers.

/// The kind of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A null.
    Null,
    /// A text.
    Text,
    /// A switch such as `yes`.
    Switch(bool),
    /// A whole number, above `i64::MAX` too.
    Whole(i128),
    /// Another number.
    Float(f64),
    /// A date, which is read as a text.
    Time,
}

impl Kind {
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Kind::Null => "!!null",
            Kind::Text => "!!str",
            Kind::Switch(_) => "!!bool",
            Kind::Whole(_) => "!!int",
            Kind::Float(_) => "!!float",
            Kind::Time => "!!timestamp",
        }
    }
}

/// The kind of a plain scalar.
pub(crate) fn kind_of(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Kind::Switch(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Kind::Switch(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Kind::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Kind::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Kind::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Kind::Text;
    }
    if is_date(text) {
        return Kind::Time;
    }
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    if let Some(number) = whole(&plain) {
        return Kind::Whole(number);
    }
    // Go reads a number beyond its range as a text.
    if is_float(&plain)
        && let Ok(number) = plain.parse::<f64>()
        && number.is_finite()
    {
        return Kind::Float(number);
    }
    Kind::Text
}

/// Go's literals of whole numbers: `0x1f`, `0b1`, `0o17`, `017`.
fn whole(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if let Some(digits) = lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        (digits, 8)
    } else {
        (lower.as_str(), 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let number = if negative { number.checked_neg()? } else { number };
    (number >= i128::from(i64::MIN)).then_some(number)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let all_digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && all_digits(digits)
    });
    let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent_fits
        && all_digits(before)
        && all_digits(behind)
        && (!before.is_empty() || !behind.is_empty())
}

/// A date such as `2020-01-31`, alone or with a time of day.
fn is_date(text: &str) -> bool {
    let (date, rest) = match text.find(['T', 't', ' ']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let mut parts = date.split('-');
    let number = |part: Option<&str>, len: std::ops::RangeInclusive<usize>| {
        part.is_some_and(|part| {
            len.contains(&part.len()) && part.bytes().all(|c| c.is_ascii_digit())
        })
    };
    number(parts.next(), 4..=4)
        && number(parts.next(), 1..=2)
        && number(parts.next(), 1..=2)
        && parts.next().is_none()
        && (rest.is_empty() || rest.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_kinds_of_go_yaml() {
        for (text, want) in [
            ("15", Kind::Whole(15)),
            ("-1", Kind::Whole(-1)),
            ("0x1f", Kind::Whole(31)),
            ("010", Kind::Whole(8)),
            ("0o17", Kind::Whole(15)),
            ("-0b11", Kind::Whole(-3)),
            ("1_000", Kind::Whole(1_000)),
            ("18446744073709551615", Kind::Whole(u64::MAX.into())),
            ("18446744073709551616", Kind::Float(18446744073709551616.0)),
            ("1.5e3", Kind::Float(1500.0)),
            (".5", Kind::Float(0.5)),
            ("5.", Kind::Float(5.0)),
            (".inf", Kind::Float(f64::INFINITY)),
            ("1e400", Kind::Text),
            ("-", Kind::Text),
            (".", Kind::Text),
            ("15s", Kind::Text),
            ("1.2.3.4", Kind::Text),
            ("+-1", Kind::Text),
            ("0x", Kind::Text),
            ("yes", Kind::Switch(true)),
            ("OFF", Kind::Switch(false)),
            ("~", Kind::Null),
            ("2020-01-31", Kind::Time),
            ("2020-01-31 10:00:00", Kind::Time),
            ("localhost:9090", Kind::Text),
        ] {
            assert_eq!(kind_of(text), want, "{text}");
        }
    }
}
