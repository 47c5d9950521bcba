//! Values as text: Go's package `fmt`.

use std::fmt::Write;
use std::sync::Arc;

use firn_promql::{go_quote, go_quote_char, histogram_text, is_printable};

use super::float::format_float;
use super::time::{duration_text, month_name, time_go_text, time_text, weekday_name};
use super::value::{AlertData, Indirection, IntType, Sample, Value};

/// The text is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// The text of one value.
fn print_value(value: &Value, bytes_max: usize) -> Result<String, TooLong> {
    let mut printer = Printer::new(bytes_max);
    printer.argument(value, 'v');
    printer.finish()
}

/// As Go's `Sprint`: a space between two values that are no texts.
pub(super) fn sprint(values: &[Value], bytes_max: usize) -> Result<String, TooLong> {
    let mut printer = Printer::new(bytes_max);
    let mut after_text = true;
    for (idx, value) in values.iter().enumerate() {
        let is_text = value.as_text().is_some();
        if idx > 0 && !is_text && !after_text {
            printer.push(" ");
        }
        printer.argument(value, 'v');
        after_text = is_text;
    }
    printer.finish()
}

/// As Go's `Sprintln`.
pub(super) fn sprintln(values: &[Value], bytes_max: usize) -> Result<String, TooLong> {
    let mut printer = Printer::new(bytes_max);
    for (idx, value) in values.iter().enumerate() {
        if idx > 0 {
            printer.push(" ");
        }
        printer.argument(value, 'v');
    }
    printer.push("\n");
    printer.finish()
}

/// As Go's `Sprintf`.
pub(super) fn sprintf(format: &str, values: &[Value], bytes_max: usize) -> Result<String, TooLong> {
    let mut printer = Printer::new(bytes_max);
    Formatter { format, at: 0, values, next: 0, reordered: false, good_index: true }
        .run(&mut printer);
    printer.finish()
}

/// Widths and precisions above this are errors in Go.
const NUMBER_MAX: i64 = 1_000_000;

/// Interprets a format.
struct Formatter<'a> {
    format: &'a str,
    at: usize,
    values: &'a [Value],
    /// The index of the next value.
    next: usize,
    /// Whether the format has indexes such as `[1]`.
    reordered: bool,
    good_index: bool,
}

impl Formatter<'_> {
    fn peek(&self) -> Option<char> {
        self.format.get(self.at..).and_then(|rest| rest.chars().next())
    }

    fn skip(&mut self, c: char) {
        self.at = self.at.saturating_add(c.len_utf8());
    }

    fn run(&mut self, printer: &mut Printer) {
        while !printer.is_full {
            let rest = self.format.get(self.at..).unwrap_or_default();
            let text = rest.split('%').next().unwrap_or_default();
            printer.push(text);
            self.at = self.at.saturating_add(text.len());
            if self.peek() != Some('%') {
                break;
            }
            self.skip('%');
            self.verb(printer);
        }
        if !self.reordered && self.next < self.values.len() {
            self.extra(printer);
        }
    }

    fn verb(&mut self, printer: &mut Printer) {
        printer.flags = Flags::default();
        self.good_index = true;
        while let Some(c) = self.peek() {
            match c {
                '#' => printer.flags.sharp = true,
                '0' => printer.flags.zero = true,
                '+' => printer.flags.plus = true,
                '-' => printer.flags.minus = true,
                ' ' => printer.flags.space = true,
                _ => break,
            }
            self.skip(c);
        }
        let mut after_index = self.index();
        if self.peek() == Some('*') {
            self.skip('*');
            match self.number_argument() {
                Some(width) => {
                    printer.flags.minus |= width < 0;
                    // Zeros are never on the right.
                    printer.flags.zero &= width >= 0;
                    printer.flags.width = usize::try_from(width.unsigned_abs()).ok();
                }
                None => printer.push("%!(BADWIDTH)"),
            }
            after_index = false;
        } else {
            printer.flags.width = self.number();
            self.good_index &= !(after_index && printer.flags.width.is_some());
        }
        let rest = self.format.get(self.at..).unwrap_or_default();
        if rest.starts_with('.') && rest.len() > 1 {
            self.skip('.');
            self.good_index &= !after_index;
            after_index = self.index();
            if self.peek() == Some('*') {
                self.skip('*');
                printer.flags.precision =
                    self.number_argument().and_then(|precision| usize::try_from(precision).ok());
                if printer.flags.precision.is_none() {
                    printer.push("%!(BADPREC)");
                }
                after_index = false;
            } else {
                printer.flags.precision = Some(self.number().unwrap_or(0));
            }
        }
        if !after_index {
            self.index();
        }
        let Some(verb) = self.peek() else { return printer.push("%!(NOVERB)") };
        self.skip(verb);
        if verb == '%' {
            return printer.push("%");
        }
        if !self.good_index {
            return printer.push(&format!("%!{verb}(BADINDEX)"));
        }
        let Some(value) = self.values.get(self.next) else {
            return printer.push(&format!("%!{verb}(MISSING)"));
        };
        self.next = self.next.saturating_add(1);
        if matches!(verb, 'v' | 'w') {
            let flags = &mut printer.flags;
            (flags.sharp_v, flags.sharp) = (flags.sharp, false);
            (flags.plus_v, flags.plus) = (flags.plus, false);
        }
        printer.argument(value, verb);
    }

    /// Digits. `None` without digits; all is skipped if the number is too large.
    fn number(&mut self) -> Option<usize> {
        let rest = self.format.get(self.at..).unwrap_or_default();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest.get(..end).filter(|digits| !digits.is_empty())?;
        match parse_width(digits) {
            Some(number) => {
                self.at = self.at.saturating_add(end);
                Some(number)
            }
            None => {
                self.at = self.format.len();
                None
            }
        }
    }

    /// The next value as a width or a precision.
    fn number_argument(&mut self) -> Option<i64> {
        let value = self.values.get(self.next)?;
        self.next = self.next.saturating_add(1);
        let number = match value {
            Value::Int(number, _) => Some(*number),
            Value::Uint(number, _) => i64::try_from(*number).ok(),
            _ => None,
        };
        number.filter(|number| (-NUMBER_MAX..=NUMBER_MAX).contains(number))
    }

    /// `[n]`, the index of the next value from 1. Returns whether there was one.
    fn index(&mut self) -> bool {
        if self.peek() != Some('[') {
            return false;
        }
        self.reordered = true;
        let inside = self.format.get(self.at.saturating_add(1)..).unwrap_or_default();
        let Some(end) = inside.find(']').filter(|_| inside.len() > 1) else {
            self.good_index = false;
            self.skip('[');
            return false;
        };
        self.at = self.at.saturating_add(end).saturating_add(2);
        let digits = inside.get(..end).unwrap_or_default();
        let number = digits.chars().all(|c| c.is_ascii_digit()).then(|| parse_width(digits));
        let Some(number) = number.flatten().filter(|_| !digits.is_empty()) else {
            self.good_index = false;
            return false;
        };
        match number.checked_sub(1).filter(|&idx| idx < self.values.len()) {
            Some(idx) => self.next = idx,
            None => self.good_index = false,
        }
        true
    }

    /// Values that the format does not use.
    fn extra(&self, printer: &mut Printer) {
        printer.flags = Flags::default();
        printer.push("%!(EXTRA ");
        for (idx, value) in self.values.iter().skip(self.next).enumerate() {
            if idx > 0 {
                printer.push(", ");
            }
            if !matches!(value, Value::Nil) {
                printer.push(value.type_name());
                printer.push("=");
            }
            printer.argument(value, 'v');
        }
        printer.push(")");
    }
}

/// A number of at most [`NUMBER_MAX`], or one digit more, as in Go.
fn parse_width(digits: &str) -> Option<usize> {
    let mut number = 0i64;
    for digit in digits.chars() {
        if number > NUMBER_MAX {
            return None;
        }
        number = number.saturating_mul(10).saturating_add(i64::from(digit.to_digit(10)?));
    }
    usize::try_from(number).ok()
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    width: Option<usize>,
    precision: Option<usize>,
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    /// `%+v`: names of fields.
    plus_v: bool,
    /// `%#v`: the syntax of Go.
    sharp_v: bool,
}

struct Printer {
    out: String,
    bytes_max: usize,
    is_full: bool,
    flags: Flags,
    /// Inside of the text about a wrong verb: types do not print themselves.
    in_error: bool,
}

impl Printer {
    fn new(bytes_max: usize) -> Printer {
        let flags = Flags::default();
        Printer { out: String::new(), bytes_max, is_full: false, flags, in_error: false }
    }

    fn finish(self) -> Result<String, TooLong> {
        if self.is_full { Err(TooLong) } else { Ok(self.out) }
    }

    fn push(&mut self, text: &str) {
        self.is_full |= text.len() > self.bytes_max.saturating_sub(self.out.len());
        if !self.is_full {
            self.out.push_str(text);
        }
    }

    fn push_padding(&mut self, count: usize) {
        self.is_full |= count > self.bytes_max.saturating_sub(self.out.len());
        if !self.is_full {
            // Zeros are never on the right.
            let fill = if self.flags.zero && !self.flags.minus { '0' } else { ' ' };
            self.out.extend(std::iter::repeat_n(fill, count));
        }
    }

    fn pad(&mut self, text: &str) {
        let missing = match self.flags.width {
            Some(width) => width.saturating_sub(text.chars().count()),
            None => 0,
        };
        if self.flags.minus {
            self.push(text);
            self.push_padding(missing);
        } else {
            self.push_padding(missing);
            self.push(text);
        }
    }

    fn pad_without_zeros(&mut self, text: &str) {
        let zero = std::mem::take(&mut self.flags.zero);
        self.pad(text);
        self.flags.zero = zero;
    }

    /// A value that is not inside of another one.
    fn argument(&mut self, value: &Value, verb: char) {
        match (value, verb) {
            (Value::Nil, 'T' | 'v') => self.pad("<nil>"),
            (Value::Nil, _) => self.bad_verb(value, verb),
            (_, 'T') => self.string_s(value.type_name()),
            (_, 'p') => self.bad_verb(value, verb),
            _ => self.value(value, verb, 0),
        }
    }

    fn bad_verb(&mut self, value: &Value, verb: char) {
        let in_error = std::mem::replace(&mut self.in_error, true);
        self.push(&format!("%!{verb}("));
        if matches!(value, Value::Nil) {
            self.push("<nil>");
        } else {
            self.push(value.type_name());
            self.push("=");
            self.value(value, 'v', 0);
        }
        self.push(")");
        self.in_error = in_error;
    }

    /// The text of a type that prints itself.
    fn own_text(&self, value: &Value, verb: char) -> Option<String> {
        if self.flags.sharp_v {
            return match value {
                Value::Time(ns, _) => Some(time_go_text(*ns)),
                _ => None,
            };
        }
        if self.in_error || !matches!(verb, 'v' | 's' | 'x' | 'X' | 'q') {
            return None;
        }
        match value {
            Value::Int(ns, IntType::Duration) | Value::DurationPointer(ns) => {
                Some(duration_text(*ns))
            }
            Value::Int(month, IntType::Month) => Some(month_name(*month)),
            Value::Int(weekday, IntType::Weekday) => Some(weekday_name(*weekday)),
            Value::Time(ns, _) => Some(time_text(*ns)),
            Value::Histogram(histogram) => Some(histogram_text(histogram)),
            _ => None,
        }
    }

    /// `depth` is 0 for a value that is not inside of another one.
    fn value(&mut self, value: &Value, verb: char, depth: usize) {
        if self.is_full {
            return;
        }
        if verb == 'w' {
            return self.bad_verb(value, verb);
        }
        if let Some(text) = self.own_text(value, verb) {
            return match self.flags.sharp_v {
                true => self.string_s(&text),
                false => self.string(value, &text, verb),
            };
        }
        match value {
            Value::Nil if verb == 'v' => match self.flags.sharp_v {
                true => self.push("interface {}(nil)"),
                false => self.push("<nil>"),
            },
            Value::Nil => self.bad_verb(value, verb),
            Value::Bool(flag) => match verb {
                't' | 'v' => self.pad(if *flag { "true" } else { "false" }),
                _ => self.bad_verb(value, verb),
            },
            Value::Int(number, _) | Value::DurationPointer(number) => {
                self.integer(value, Integer::new(*number), verb);
            }
            Value::Uint(number, _) => {
                let number = Integer { magnitude: *number, is_negative: false, is_signed: false };
                self.integer(value, number, verb);
            }
            Value::Float(number) => self.float(value, *number, verb),
            Value::String(text) | Value::Html(text) => self.string(value, text, verb),
            Value::Labels(labels) => {
                let entries = labels
                    .iter()
                    .map(|(name, label)| (Value::text(name.as_str()), Value::text(label.as_str())));
                self.map(value, entries, verb, depth);
            }
            Value::Map(map) => {
                let entries =
                    map.iter().map(|(name, inner)| (Value::text(name.as_str()), inner.clone()));
                self.map(value, entries, verb, depth);
            }
            Value::List(_, items) => self.list(value, items.iter().cloned(), verb, depth),
            Value::Samples(samples) => {
                let items = samples.iter().map(|sample| Value::Sample(Arc::clone(sample)));
                self.list(value, items, verb, depth);
            }
            Value::Sample(sample) => {
                let Sample { labels, value: inner } = &**sample;
                let fields =
                    [("Labels", Value::Labels(Arc::clone(labels))), ("Value", inner.clone())];
                self.push("&");
                self.fields("template.sample", &fields, verb, depth);
            }
            Value::Alert(data) => {
                let AlertData { labels, external_labels, external_url, value: inner } = &**data;
                let fields = [
                    ("Labels", Value::Labels(Arc::clone(labels))),
                    ("ExternalLabels", Value::Labels(Arc::clone(external_labels))),
                    ("ExternalURL", Value::String(Arc::clone(external_url))),
                    ("Value", inner.clone()),
                ];
                self.fields(value.type_name(), &fields, verb, depth);
            }
            // Go prints the fields or an address here.
            Value::Histogram(histogram) => self.string_s(&histogram_text(histogram)),
            Value::Time(ns, _) => self.string_s(&time_text(*ns)),
        }
    }

    fn map(
        &mut self,
        value: &Value,
        entries: impl Iterator<Item = (Value, Value)>,
        verb: char,
        depth: usize,
    ) {
        let is_go = self.flags.sharp_v;
        if is_go {
            self.push(value.type_name());
        }
        self.push(if is_go { "{" } else { "map[" });
        for (idx, (name, inner)) in entries.enumerate() {
            if idx > 0 {
                self.push(if is_go { ", " } else { " " });
            }
            self.value(&name, verb, depth.saturating_add(1));
            self.push(":");
            self.value(&inner, verb, depth.saturating_add(1));
            if self.is_full {
                return;
            }
        }
        self.push(if is_go { "}" } else { "]" });
    }

    fn list(
        &mut self,
        value: &Value,
        items: impl Iterator<Item = Value>,
        verb: char,
        depth: usize,
    ) {
        let is_go = self.flags.sharp_v;
        if is_go {
            self.push(value.type_name());
        }
        self.push(if is_go { "{" } else { "[" });
        for (idx, item) in items.enumerate() {
            if idx > 0 {
                self.push(if is_go { ", " } else { " " });
            }
            self.value(&item, verb, depth.saturating_add(1));
            if self.is_full {
                return;
            }
        }
        self.push(if is_go { "}" } else { "]" });
    }

    fn fields(&mut self, type_name: &str, fields: &[(&str, Value)], verb: char, depth: usize) {
        let is_go = self.flags.sharp_v;
        if is_go {
            self.push(type_name);
        }
        self.push("{");
        for (idx, (name, field)) in fields.iter().enumerate() {
            if idx > 0 {
                self.push(if is_go { ", " } else { " " });
            }
            if is_go || self.flags.plus_v {
                self.push(name);
                self.push(":");
            }
            self.value(field, verb, depth.saturating_add(1));
        }
        self.push("}");
    }

    fn string(&mut self, value: &Value, text: &str, verb: char) {
        match verb {
            'v' if self.flags.sharp_v => self.string_q(text),
            'v' | 's' => self.string_s(text),
            'x' => self.string_x(text, false),
            'X' => self.string_x(text, true),
            'q' => self.string_q(text),
            _ => self.bad_verb(value, verb),
        }
    }

    fn truncated<'t>(&self, text: &'t str) -> &'t str {
        let end = self.flags.precision.and_then(|count| text.char_indices().nth(count));
        end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
    }

    fn string_s(&mut self, text: &str) {
        let text = self.truncated(text);
        self.pad(text);
    }

    fn string_q(&mut self, text: &str) {
        let text = self.truncated(text);
        let can_be_raw =
            |c: char| c != '`' && c != '\u{feff}' && c != '\x7f' && (c == '\t' || c >= ' ');
        if self.flags.sharp && text.chars().all(can_be_raw) {
            return self.pad(&format!("`{text}`"));
        }
        let quoted = go_quote(text.as_bytes());
        match self.flags.plus {
            true => self.pad(&ascii(&quoted)),
            false => self.pad(&quoted),
        }
    }

    fn string_x(&mut self, text: &str, is_upper: bool) {
        let count = self.flags.precision.unwrap_or(usize::MAX).min(text.len());
        // A byte has at most five characters.
        if count.saturating_mul(2) > self.bytes_max {
            self.is_full = true;
            return;
        }
        let prefix = match (self.flags.sharp, is_upper) {
            (false, _) => "",
            (true, false) => "0x",
            (true, true) => "0X",
        };
        let mut out = String::new();
        for (idx, byte) in text.bytes().take(count).enumerate() {
            if idx > 0 && self.flags.space {
                out.push(' ');
            }
            if idx == 0 || self.flags.space {
                out.push_str(prefix);
            }
            // Writing to a string cannot fail.
            let _ = match is_upper {
                true => write!(out, "{byte:02X}"),
                false => write!(out, "{byte:02x}"),
            };
        }
        self.pad(&out);
    }

    fn integer(&mut self, value: &Value, number: Integer, verb: char) {
        let code = char::from_u32(u32::try_from(number.magnitude).unwrap_or(u32::MAX))
            .filter(|_| !number.is_negative)
            .unwrap_or(char::REPLACEMENT_CHARACTER);
        match verb {
            'v' if self.flags.sharp_v && !number.is_signed => {
                let sharp = std::mem::replace(&mut self.flags.sharp, true);
                self.integer_in(number, 16, verb);
                self.flags.sharp = sharp;
            }
            'v' | 'd' => self.integer_in(number, 10, verb),
            'b' => self.integer_in(number, 2, verb),
            'o' | 'O' => self.integer_in(number, 8, verb),
            'x' | 'X' => self.integer_in(number, 16, verb),
            'c' => self.pad(code.encode_utf8(&mut [0; 4])),
            'q' => {
                let quoted = go_quote_char(code);
                match self.flags.plus {
                    true => self.pad(&ascii(&quoted)),
                    false => self.pad(&quoted),
                }
            }
            'U' => {
                let bits = match number.is_negative {
                    true => number.magnitude.wrapping_neg(),
                    false => number.magnitude,
                };
                let digit_count = self.flags.precision.unwrap_or(0).max(4);
                let shown = match self.flags.sharp && is_printable(code) && !number.is_negative {
                    true => format!(" '{code}'"),
                    false => String::new(),
                };
                let zeros = self.zeros(digit_count, format!("{bits:X}").len());
                self.pad_without_zeros(&format!("U+{zeros}{bits:X}{shown}"));
            }
            _ => self.bad_verb(value, verb),
        }
    }

    /// The zeros that extend `digit_count` digits to `wanted`, within the limit of the text.
    fn zeros(&mut self, wanted: usize, digit_count: usize) -> String {
        let count = wanted.saturating_sub(digit_count);
        self.is_full |= count > self.bytes_max;
        if self.is_full { String::new() } else { "0".repeat(count) }
    }

    fn integer_in(&mut self, number: Integer, radix: u32, verb: char) {
        let Integer { magnitude, is_negative, .. } = number;
        if self.flags.precision == Some(0) && magnitude == 0 {
            return self.pad_without_zeros("");
        }
        let mut digits = match (radix, verb) {
            (2, _) => format!("{magnitude:b}"),
            (8, _) => format!("{magnitude:o}"),
            (16, 'X') => format!("{magnitude:X}"),
            (16, _) => format!("{magnitude:x}"),
            _ => magnitude.to_string(),
        };
        let has_sign = is_negative || self.flags.plus || self.flags.space;
        let wanted = match (self.flags.precision, self.flags.width) {
            (Some(precision), _) => precision,
            (None, Some(width)) if self.flags.zero && !self.flags.minus => {
                width.saturating_sub(usize::from(has_sign))
            }
            _ => 0,
        };
        digits.insert_str(0, &self.zeros(wanted, digits.len()));
        let prefix = match (self.flags.sharp, radix) {
            (true, 2) => "0b",
            (true, 8) if !digits.starts_with('0') => "0",
            (true, 16) if verb == 'X' => "0X",
            (true, 16) => "0x",
            _ => "",
        };
        let octal = if verb == 'O' { "0o" } else { "" };
        let sign = match (is_negative, self.flags.plus, self.flags.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        };
        self.pad_without_zeros(&format!("{sign}{octal}{prefix}{digits}"));
    }

    fn float(&mut self, value: &Value, number: f64, verb: char) {
        let (form, precision) = match verb {
            'v' => ('g', None),
            'b' | 'g' | 'G' | 'x' | 'X' => (verb, None),
            'f' | 'e' | 'E' => (verb, Some(6)),
            'F' => ('f', Some(6)),
            _ => return self.bad_verb(value, verb),
        };
        let precision = self.flags.precision.or(precision);
        if precision.is_some_and(|precision| precision > self.bytes_max) {
            self.is_full = true;
            return;
        }
        let unsigned = format_float(number.abs(), form, precision);
        let is_negative = number.is_sign_negative() && !number.is_nan();
        let sign = match (is_negative, self.flags.plus, self.flags.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        };
        if number.is_nan() {
            return self.pad_without_zeros(&format!("{sign}NaN"));
        }
        if number.is_infinite() {
            // The sign of an infinity is always shown.
            let sign = if sign.is_empty() { "+" } else { sign };
            return self.pad_without_zeros(&format!("{sign}Inf"));
        }
        let shown = match self.flags.sharp && form != 'b' {
            true => with_point(&unsigned, form, precision),
            false => unsigned,
        };
        let count = shown.len().saturating_add(sign.len());
        match self.flags.width {
            // The sign is in front of the zeros.
            Some(width) if self.flags.zero && !self.flags.minus && !sign.is_empty() => {
                self.push(sign);
                self.push_padding(width.saturating_sub(count));
                self.push(&shown);
            }
            _ => self.pad(&format!("{sign}{shown}")),
        }
    }
}

/// `%#g`: always a point, and zeros up to the precision.
fn with_point(unsigned: &str, form: char, precision: Option<usize>) -> String {
    let exponents: &[char] = if matches!(form, 'x' | 'X') { &['p', 'P'] } else { &['e', 'E'] };
    let end = unsigned.find(exponents).unwrap_or(unsigned.len());
    let (digits, tail) = unsigned.split_at(end);
    let wanted = match form {
        'g' | 'G' | 'x' => precision.unwrap_or(6),
        _ => 0,
    };
    let significant = digits
        .chars()
        .filter(|c| *c != '.')
        .skip_while(|c| *c == '0')
        .count()
        .max(usize::from(digits == "0"));
    let point = if digits.contains('.') { "" } else { "." };
    let zeros = "0".repeat(wanted.saturating_sub(significant));
    format!("{digits}{point}{zeros}{tail}")
}

#[derive(Clone, Copy)]
struct Integer {
    magnitude: u64,
    is_negative: bool,
    is_signed: bool,
}

impl Integer {
    fn new(number: i64) -> Integer {
        Integer { magnitude: number.unsigned_abs(), is_negative: number < 0, is_signed: true }
    }
}

/// A quoted text with escapes for all characters beyond ASCII.
fn ascii(quoted: &str) -> String {
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        // Writing to a string cannot fail.
        let _ = match u32::from(c) {
            0..0x80 => write!(out, "{c}"),
            code @ 0x80..0x10000 => write!(out, "\\u{code:04x}"),
            code => write!(out, "\\U{code:08x}"),
        };
    }
    out
}

/// The text that an action prints: values behind pointers, and words for no value.
pub(super) fn action_text(value: &Value, bytes_max: usize) -> Result<String, TooLong> {
    match value {
        Value::Nil => Ok("<no value>".to_owned()),
        // Go follows the pointer.
        Value::Sample(_) => {
            let text = print_value(value, bytes_max)?;
            Ok(text.strip_prefix('&').unwrap_or(&text).to_owned())
        }
        Value::DurationPointer(ns) => Ok(duration_text(*ns)),
        Value::Time(ns, Indirection::Pointer) => Ok(time_text(*ns)),
        _ => print_value(value, bytes_max),
    }
}
