//! Texts as Go writes and reads them, where promtool's output has them.

use std::fmt::Write;
use std::str::FromStr;

use firn_model::is_control;
use firn_server::wire::json;

/// A duration of Go's `time.ParseDuration`, in nanoseconds: `1h30m`, `1.5s`, `-300ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoDuration(pub(crate) i64);

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<GoDuration, String> {
        let invalid = || format!("time: invalid duration {text:?}");
        let (is_negative, mut rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if rest == "0" {
            return Ok(GoDuration(0));
        }
        let mut total: i64 = 0;
        if rest.is_empty() {
            return Err(invalid());
        }
        while !rest.is_empty() {
            let is_number = |c: char| c.is_ascii_digit() || c == '.';
            let number_len = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(number_len);
            let unit_len = behind.find(is_number).unwrap_or(behind.len());
            let (unit, next) = behind.split_at(unit_len);
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return Err(invalid());
            }
            if unit.is_empty() {
                return Err(format!("time: missing unit in duration {text:?}"));
            }
            let unit_ns = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, ns)| *ns);
            let unit_ns = unit_ns
                .ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
            let whole: i64 =
                if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
            let fraction: f64 = format!("0.{fraction}").parse().unwrap_or(0.0);
            let fraction_ns = (fraction * unit_ns as f64) as i64;
            total = whole
                .checked_mul(unit_ns)
                .and_then(|ns| ns.checked_add(fraction_ns))
                .and_then(|ns| ns.checked_add(total))
                .ok_or_else(invalid)?;
            rest = next;
        }
        Ok(GoDuration(if is_negative { -total } else { total }))
    }
}

impl std::fmt::Display for GoDuration {
    /// As `Duration.String` of whole seconds and above; a fraction of a second in seconds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, ns) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let small = |unit_ns: u64| ns as f64 / unit_ns as f64;
        match ns {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{sign}{ns}ns"),
            1_000..1_000_000 => write!(f, "{sign}{}\u{b5}s", small(1_000)),
            1_000_000..1_000_000_000 => write!(f, "{sign}{}ms", small(1_000_000)),
            _ => {
                let (minutes, rest) = (ns / 60_000_000_000, ns % 60_000_000_000);
                let seconds = rest as f64 / 1e9;
                match (minutes / 60, minutes % 60) {
                    (0, 0) => write!(f, "{sign}{seconds}s"),
                    (0, minutes) => write!(f, "{sign}{minutes}m{seconds}s"),
                    (hours, minutes) => write!(f, "{sign}{hours}h{minutes}m{seconds}s"),
                }
            }
        }
    }
}

/// A number as `FormatFloat(value, 'f', -1, 64)`.
pub(crate) fn go_float(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

/// A number as `%g`: with an exponent below 0.0001 and from 1,000,000 on.
pub(crate) fn go_short_float(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return go_float(value);
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return go_float(value);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// A number as `%f`.
pub(crate) fn go_fixed_float(value: f64) -> String {
    if value.is_finite() { format!("{value:.6}") } else { go_float(value) }
}

/// A JSON text as Go's encoder writes it: `<`, `>` and `&` are escaped.
pub(crate) fn push_json_text(text: &str, out: &mut String) {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    json::push_string(text, &mut quoted);
    // The encoder writes UTF-8.
    for c in String::from_utf8_lossy(&quoted).chars() {
        match c {
            c if matches!(c, '<' | '>' | '&') || is_control(c) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        let ns = |text: &str| text.parse::<GoDuration>().map(|duration| duration.0);
        for (text, want, shown) in [
            ("0", 0, "0s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("90s", 90_000_000_000, "1m30s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5m", 30_000_000_000, "30s"),
            ("-300ms", -300_000_000, "-300ms"),
            ("+2us", 2_000, "2\u{b5}s"),
            ("7ns", 7, "7ns"),
        ] {
            assert_eq!(ns(text), Ok(want), "{text}");
            assert_eq!(GoDuration(want).to_string(), shown);
        }
        for text in ["", "-", "5", "1d", "1.2.3s", ".s", "x", "9999999999h", "1h 2m"] {
            assert!(ns(text).is_err(), "{text}");
        }
        assert_eq!(ns("5"), Err("time: missing unit in duration \"5\"".to_owned()));
        assert_eq!(ns("1d"), Err("time: unknown unit \"d\" in duration \"1d\"".to_owned()));
    }

    #[test]
    fn numbers_are_those_of_go() {
        let all = |value| (go_float(value), go_short_float(value), go_fixed_float(value));
        let texts = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(all(1.5), texts("1.5", "1.5", "1.500000"));
        assert_eq!(all(-0.0), texts("-0", "-0", "-0.000000"));
        assert_eq!(all(1e-5), texts("0.00001", "1e-05", "0.000010"));
        assert_eq!(all(f64::INFINITY), texts("+Inf", "+Inf", "+Inf"));
        assert_eq!(all(f64::NAN), texts("NaN", "NaN", "NaN"));
        assert_eq!(go_float(1e22), "10000000000000000000000");
        assert_eq!(go_short_float(999_999.0), "999999");
        assert_eq!(go_short_float(-1_250_000.0), "-1.25e+06");
    }

    #[test]
    fn json_escapes_what_go_and_a_terminal_need() {
        let mut out = String::new();
        push_json_text("<a&\"b\\\u{1b}\u{9b}\u{2028}\u{202e}é>", &mut out);
        let want = r#""\u003ca\u0026\"b\\\u001b\u009b\u2028\u202eé\u003e""#;
        assert_eq!(out, want);
    }
}
