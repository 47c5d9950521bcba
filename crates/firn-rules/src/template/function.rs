//! The functions of Prometheus.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use firn_model::{PATTERN_DEPTH_MAX, pattern_tree_bytes, rust_group_name, rust_pattern_anywhere};
use firn_promql::{go_quote, parse_float};
use regex::{Captures, Regex, RegexBuilder};

use super::exec::{Run, too_long};
use super::float::{format_float, four_digits};
use super::text::{
    join_host_port, query_escape, split_host_port, title, to_lower, to_upper, url_path,
};
use super::time::{seconds, time_text};
use super::value::{Indirection, IntType, Sample, UintType, Value, ValueMap};

/// The steps that a query counts.
const QUERY_STEPS: usize = 1_000;
/// The steps that the compilation of a regular expression counts, and each of its bytes.
const REGEX_STEPS: usize = 20_000;
const REGEX_STEPS_PER_BYTE: usize = 20;
/// The bytes that a search reads in one step.
const SEARCH_BYTES_PER_STEP: usize = 64;
/// A text that grows has up to twice its length, and is copied.
const TEXT_BYTES_PER_BYTE: usize = 3;
/// A pattern compiles within the first of these limits that suffices, so that the memory that is
/// reserved follows its need.
const REGEX_BYTES_LIMITS: [usize; 3] = [32 << 10, 256 << 10, 1 << 20];
/// A compilation holds both directions of an automaton, each twice, and tables beside them.
const COMPILE_BYTES_PER_BYTE: usize = 6;
/// Each part of an automaton that is built while it is used; there are two.
const REGEX_CACHE_BYTES: usize = 64 << 10;
/// Compiled patterns that are kept.
const REGEXES_MAX: usize = 16;
/// The memory of an entry of a map beside its value.
const MAP_ENTRY_BYTES: usize = 128;
/// Maps inside of each other.
const MAP_DEPTH_MAX: usize = 100;

const NIL_POINTER: &str = "runtime error: invalid memory address or nil pointer dereference";

impl Run<'_> {
    /// Calls a function with arguments of its parameters' types.
    ///
    /// # Errors
    /// The message of the function.
    pub(super) fn call_function(&mut self, name: &str, args: &[Value]) -> Result<Value, String> {
        let text = |idx: usize| match args.get(idx) {
            Some(Value::String(text)) => &**text,
            _ => "",
        };
        let any = args.first().unwrap_or(&Value::Nil);
        let result = match name {
            "query" => self.query(text(0))?,
            "first" => match any {
                Value::Samples(samples) if !samples.is_empty() => {
                    samples.first().map_or(Value::Nil, |sample| Value::Sample(Arc::clone(sample)))
                }
                _ => return Err("first() called on vector with no elements".to_owned()),
            },
            "label" => Value::text(label(args.get(1), text(0))?),
            "value" => match any {
                Value::Sample(sample) => sample.value.clone(),
                _ => return Err(NIL_POINTER.to_owned()),
            },
            "strvalue" => Value::text(label(args.first(), "__value__")?),
            "sortByLabel" => sort_by_label(text(0), args.get(1)),
            "args" => self.args(args)?,
            "match" => Value::Bool(self.matches(text(0), text(1))?),
            "reReplaceAll" => Value::text(self.replace_all(text(0), text(1), text(2))?),
            "safeHtml" => Value::Html(text(0).into()),
            "title" => Value::text(title(text(0))),
            "toUpper" => Value::text(to_upper(text(0))),
            "toLower" => Value::text(to_lower(text(0))),
            "graphLink" => {
                Value::text(format!("/graph?g0.expr={}&g0.tab=0", query_escape(text(0))))
            }
            "tableLink" => {
                Value::text(format!("/graph?g0.expr={}&g0.tab=1", query_escape(text(0))))
            }
            "urlQueryEscape" => Value::text(query_escape(text(0))),
            "stripPort" => Value::text(split_host_port(text(0)).map_or(text(0), |(host, _)| host)),
            "stripDomain" => Value::text(strip_domain(text(0))),
            "pathPrefix" => Value::text(url_path(self.environment.external_url)),
            "externalURL" => Value::text(self.environment.external_url),
            "now" => Value::Float(self.environment.now as f64 / 1_000.0),
            "parseDuration" => Value::Float(parse_duration(text(0))?),
            "humanize" => Value::text(humanize(to_float(any)?)),
            "humanize1024" => Value::text(humanize_1024(to_float(any)?)),
            "humanizeDuration" => Value::text(humanize_duration(to_float(any)?)),
            "humanizePercentage" => {
                Value::text(format!("{}%", four_digits(to_float(any)? * 100.0)))
            }
            "humanizeTimestamp" => Value::text(humanize_timestamp(to_float(any)?)?),
            "toTime" => Value::Time(to_time(to_float(any)?)?, Indirection::Pointer),
            "toDuration" => Value::DurationPointer(go_int(to_float(any)? * 1e9)),
            _ => return self.call_builtin(name, args),
        };
        if let Some(text) = result.as_text() {
            self.limits.take_bytes(text.len())?;
        }
        Ok(result)
    }

    fn query(&mut self, text: &str) -> Result<Value, String> {
        self.limits.take_steps(QUERY_STEPS)?;
        let points = (self.environment.query)(text)?;
        let label_bytes = |labels: &firn_model::Labels| -> usize {
            labels.iter().map(|(name, value)| name.len().saturating_add(value.len())).sum()
        };
        for point in &points {
            self.limits.take_bytes(label_bytes(&point.labels))?;
        }
        Ok(Value::Samples(points.iter().map(|point| Arc::new(Sample::from(point))).collect()))
    }

    fn args(&mut self, args: &[Value]) -> Result<Value, String> {
        self.limits.take_bytes(args.len().saturating_mul(MAP_ENTRY_BYTES))?;
        if args.iter().any(|value| value.depth() >= MAP_DEPTH_MAX) {
            return Err(format!("values are nested over {MAP_DEPTH_MAX} levels deep"));
        }
        let named =
            args.iter().enumerate().map(|(idx, value)| (format!("arg{idx}"), value.clone()));
        Ok(Value::Map(Arc::new(ValueMap::new(BTreeMap::from_iter(named)))))
    }

    /// The compiled pattern, as Go compiles it.
    fn regex(&mut self, pattern: &str) -> Result<Regex, String> {
        if let Some(regex) = self.regexes.get(pattern) {
            return Ok(regex.clone());
        }
        let byte_steps = pattern.len().saturating_mul(REGEX_STEPS_PER_BYTE);
        self.limits.take_steps(byte_steps.saturating_add(REGEX_STEPS))?;
        let fault = |why: &str| format!("error parsing regexp: {why}");
        let translated = rust_pattern_anywhere(pattern).map_err(|why| fault(&why))?;
        if self.regexes.len() >= REGEXES_MAX {
            self.regexes.clear();
            self.regex_bytes = 0;
        }
        let tree_bytes = usize::try_from(pattern_tree_bytes(&translated)).unwrap_or(usize::MAX);
        let mut limits = REGEX_BYTES_LIMITS.into_iter();
        let (regex, limit) = loop {
            let Some(limit) = limits.next() else {
                let [.., most] = REGEX_BYTES_LIMITS;
                return Err(fault(&format!(
                    "expression compiles to over {most} bytes: `{pattern}`"
                )));
            };
            self.reserve(tree_bytes.saturating_add(COMPILE_BYTES_PER_BYTE.saturating_mul(limit)))?;
            let mut builder = RegexBuilder::new(&translated);
            builder.nest_limit(PATTERN_DEPTH_MAX);
            match builder.size_limit(limit).dfa_size_limit(REGEX_CACHE_BYTES).build() {
                Ok(regex) => break (regex, limit),
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    return Err(fault(error.to_string().lines().last().unwrap_or_default()));
                }
            }
        };
        let kept = limit.saturating_add(REGEX_CACHE_BYTES).saturating_mul(2);
        self.regex_bytes = self.regex_bytes.saturating_add(kept);
        self.reserve(0)?;
        self.regexes.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }

    /// Reserves the memory of the execution, and `more` for a moment.
    pub(super) fn reserve(&self, more: usize) -> Result<(), String> {
        let bytes = self.bytes_max.saturating_mul(TEXT_BYTES_PER_BYTE);
        let bytes = bytes.saturating_add(self.regex_bytes).saturating_add(more);
        (self.environment.reserve)(bytes)
    }

    fn take_search(&mut self, bytes: usize) -> Result<(), String> {
        self.limits.take_steps((bytes / SEARCH_BYTES_PER_STEP).saturating_add(1))
    }

    fn matches(&mut self, pattern: &str, text: &str) -> Result<bool, String> {
        let regex = self.regex(pattern)?;
        self.take_search(text.len())?;
        Ok(regex.is_match(text))
    }

    fn replace_all(&mut self, pattern: &str, with: &str, text: &str) -> Result<String, String> {
        let regex = self
            .regex(pattern)
            .map_err(|why| format!("regexp: Compile({}): {why}", quoted_pattern(pattern)))?;
        self.take_search(text.len())?;
        let mut out = String::new();
        let mut copied = 0;
        for captures in regex.captures_iter(text) {
            let Some(found) = captures.get(0) else { continue };
            // Each search may read up to the end.
            self.take_search(text.len().saturating_sub(found.start()))?;
            out.push_str(text.get(copied..found.start()).unwrap_or_default());
            expand(with, &captures, &mut out);
            copied = found.end();
            if out.len() > self.limits.bytes_left() {
                return Err(too_long());
            }
        }
        out.push_str(text.get(copied..).unwrap_or_default());
        Ok(out)
    }
}

/// As Go's `Regexp.Expand`: `$1`, `${1}`, `$name`, `${name}` and `$$`.
fn expand(with: &str, captures: &Captures<'_>, out: &mut String) {
    let mut rest = with;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(behind) = after.strip_prefix('$') {
            out.push('$');
            rest = behind;
            continue;
        }
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        let in_braces = after.strip_prefix('{');
        let name_start = in_braces.unwrap_or(after);
        let end = name_start.find(|c| !is_name(c)).unwrap_or(name_start.len());
        let (name, behind) = name_start.split_at(end);
        let behind = match in_braces {
            Some(_) => behind.strip_prefix('}'),
            None => Some(behind),
        };
        let Some(behind) = behind.filter(|_| !name.is_empty()) else {
            // A plain dollar.
            out.push('$');
            rest = after;
            continue;
        };
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let has_zero = name.len() > 1 && name.starts_with('0');
        let group = match is_number && !has_zero {
            true => name.parse::<usize>().ok().and_then(|idx| captures.get(idx)),
            false => captures.name(&rust_group_name(name)),
        };
        out.push_str(group.map_or("", |group| group.as_str()));
        rest = behind;
    }
    out.push_str(rest);
}

/// As Go's `quote` of patterns: in backquotes if possible.
fn quoted_pattern(pattern: &str) -> String {
    match pattern.contains(['`', '\u{feff}', '\x7f'])
        || pattern.chars().any(|c| c < ' ' && c != '\t')
    {
        true => go_quote(pattern.as_bytes()),
        false => format!("`{pattern}`"),
    }
}

fn label<'v>(sample: Option<&'v Value>, name: &str) -> Result<&'v str, String> {
    match sample {
        Some(Value::Sample(sample)) => Ok(sample.labels.get(name).map_or("", String::as_str)),
        _ => Err(NIL_POINTER.to_owned()),
    }
}

fn sort_by_label(name: &str, samples: Option<&Value>) -> Value {
    let mut sorted: Vec<Arc<Sample>> = match samples {
        Some(Value::Samples(samples)) => samples.to_vec(),
        _ => Vec::new(),
    };
    let text = |sample: &Arc<Sample>| sample.labels.get(name).cloned().unwrap_or_default();
    sorted.sort_by_cached_key(text);
    Value::Samples(sorted.into())
}

/// The number of a value: a number or a text.
fn to_float(value: &Value) -> Result<f64, String> {
    match value {
        Value::Float(value) => Ok(*value),
        Value::String(text) => parse_float(text),
        Value::Int(value, IntType::Int | IntType::Int64) => Ok(*value as f64),
        Value::Uint(value, UintType::Uint64) => Ok(*value as f64),
        Value::Int(ns, IntType::Duration) => Ok(seconds(*ns)),
        other => Err(format!("can't convert {} to float", other.type_name())),
    }
}

/// As Go's conversion on amd64: the smallest integer for every number out of range.
#[expect(clippy::cast_possible_truncation, reason = "checked")]
fn go_int(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&value) { value as i64 } else { i64::MIN }
}

const LARGE: [&str; 8] = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
const LARGE_1024: [&str; 8] = ["ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"];
const SMALL: [&str; 8] = ["m", "u", "n", "p", "f", "a", "z", "y"];

/// Divides until the number is below `unit`.
fn scaled_down(mut value: f64, unit: f64, prefixes: [&'static str; 8]) -> (f64, &'static str) {
    let mut prefix = "";
    for next in prefixes {
        if value.abs() < unit {
            break;
        }
        (prefix, value) = (next, value / unit);
    }
    (value, prefix)
}

/// Multiplies until the number is 1 or more.
fn scaled_up(mut value: f64) -> (f64, &'static str) {
    let mut prefix = "";
    for next in SMALL {
        if value.abs() >= 1.0 {
            break;
        }
        (prefix, value) = (next, value * 1_000.0);
    }
    (value, prefix)
}

fn humanize(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return four_digits(value);
    }
    let (value, prefix) = match value.abs() >= 1.0 {
        true => scaled_down(value, 1_000.0, LARGE),
        false => scaled_up(value),
    };
    format!("{}{prefix}", four_digits(value))
}

fn humanize_1024(value: f64) -> String {
    if value.abs() <= 1.0 || !value.is_finite() {
        return four_digits(value);
    }
    let (value, prefix) = scaled_down(value, 1_024.0, LARGE_1024);
    format!("{}{prefix}", four_digits(value))
}

fn humanize_duration(value: f64) -> String {
    if !value.is_finite() {
        return four_digits(value);
    }
    if value == 0.0 {
        return format!("{}s", four_digits(value));
    }
    if value.abs() < 1.0 {
        let (value, prefix) = scaled_up(value);
        return format!("{}{prefix}s", four_digits(value));
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let value = value.abs();
    let whole = go_int(value);
    let (seconds, minutes) = (whole % 60, whole / 60 % 60);
    let (hours, days) = (whole / 3_600 % 24, whole / 86_400);
    if days != 0 {
        format!("{sign}{days}d {hours}h {minutes}m {seconds}s")
    } else if hours != 0 {
        format!("{sign}{hours}h {minutes}m {seconds}s")
    } else if minutes != 0 {
        format!("{sign}{minutes}m {seconds}s")
    } else {
        format!("{sign}{}s", four_digits(value))
    }
}

fn humanize_timestamp(value: f64) -> Result<String, String> {
    match value.is_finite() {
        true => to_time(value).map(time_text),
        false => Ok(four_digits(value)),
    }
}

/// Nanoseconds since 1970, cut to milliseconds.
fn to_time(seconds: f64) -> Result<i128, String> {
    if !seconds.is_finite() {
        return Err("value is NaN or Inf".to_owned());
    }
    let ns = seconds * 1e9;
    if ns.abs() > 9_223_372_036_854_775_808.0 {
        let sign = if seconds < 0.0 { "-" } else { "" };
        let shown = format_float(seconds, 'g', None);
        return Err(format!(
            "{sign}{shown} cannot be represented as a nanoseconds timestamp since it overflows int64"
        ));
    }
    let ms = go_int(ns) / 1_000_000;
    Ok(i128::from(ms).saturating_mul(1_000_000))
}

fn strip_domain(host_port: &str) -> String {
    let (host, port) = split_host_port(host_port).unwrap_or((host_port, ""));
    // Go's parser accepts a zone behind an IPv6 address.
    let address = match host.split_once('%') {
        Some((address, zone)) if address.contains(':') && !zone.is_empty() => address,
        _ => host,
    };
    if address.parse::<IpAddr>().is_ok() {
        return host_port.to_owned();
    }
    let name = host.split('.').next().unwrap_or_default();
    if port.is_empty() { name.to_owned() } else { join_host_port(name, port) }
}

/// The units of durations in nanoseconds, from large to small.
const UNITS: [(&str, u64); 7] = [
    ("y", 365 * 24 * 3_600_000_000_000),
    ("w", 7 * 24 * 3_600_000_000_000),
    ("d", 24 * 3_600_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

/// Seconds of a duration, which may have a minus.
fn parse_duration(text: &str) -> Result<f64, String> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let ns = parse_duration_ns(unsigned)?;
    let ns = if unsigned.len() < text.len() { ns.saturating_neg() } else { ns };
    Ok(ns as f64 / 1e9)
}

fn parse_duration_ns(text: &str) -> Result<i64, String> {
    let quoted = || go_quote(text.as_bytes());
    let bad = || format!("not a valid duration string: {}", quoted());
    let out_of_range = || "duration out of range".to_owned();
    match text {
        "0" => return Ok(0),
        "" => return Err("empty duration string".to_owned()),
        _ => {}
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut sum = 0u64;
    while !rest.is_empty() {
        let digit_end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, after) = rest.split_at(digit_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let number: u64 = number.parse().map_err(|_| bad())?;
        if !UNITS.iter().any(|(known, _)| *known == unit) {
            let unit = go_quote(unit.as_bytes());
            return Err(format!("unknown unit {unit} in duration {}", quoted()));
        }
        // Units descend, each at most once.
        let (_, unit_ns) = units.find(|(known, _)| *known == unit).ok_or_else(bad)?;
        let part = number.checked_mul(*unit_ns).ok_or_else(out_of_range)?;
        sum = sum.checked_add(part).ok_or_else(out_of_range)?;
        rest = after;
    }
    i64::try_from(sum).map_err(|_| out_of_range())
}
