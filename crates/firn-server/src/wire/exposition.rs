//! The text exposition format 0.0.4, as Prometheus' scrape parser reads it.
//!
//! That parser checks little more than syntax: every text that Prometheus can scrape can be
//! imported. [`decode`] locates the series text, value and time of each line; [`labels`] parses a
//! series text that the sender cache does not know. Unlike Prometheus, it ignores leading and
//! trailing blanks and accepts a sign before a timestamp.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::borrow::Cow;
use std::ops::Range;

use firn_model::{Error, LabelsBuilder, METRIC_NAME, Result, Sample, Timestamp, excerpt};

use crate::metadata::{Metadata, MetricType};
use crate::wire::LabelFault;
use crate::wire::decoded::{Decoded, SpanHasher};
use crate::wire::number::parse_float;

/// Labels that the importer adds to every series, in place of those of the same name.
#[derive(Clone, Debug, Default)]
pub struct ExtraLabels(pub Vec<(String, String)>);

impl ExtraLabels {
    /// The bytes that they add to a label set: names, values and their lengths.
    pub fn bytes(&self) -> u64 {
        let bytes = |(name, value): &(String, String)| {
            (name.len() as u64).saturating_add(value.len() as u64).saturating_add(4)
        };
        self.0.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Identifies the extra labels in the hash of a series text.
    pub fn key(&self, hasher: &SpanHasher) -> u128 {
        let mut bytes = b"exposition".to_vec();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        hasher.hash(&bytes)
    }
}

/// Walks `text` into `out`, which the caller has cleared. Samples without a time get `default_ts`;
/// `key` is [`ExtraLabels::key`].
///
/// # Errors
/// `Invalid` with the line of the first mistake; `TooLarge` from [`Decoded`].
pub fn decode(
    text: &[u8],
    default_ts: Timestamp,
    key: u128,
    hasher: &SpanHasher,
    out: &mut Decoded,
) -> Result<()> {
    let mut cursor = Cursor { text, at: 0 };
    loop {
        cursor.skip_blanks();
        match cursor.peek() {
            None => return Ok(()),
            Some(b'\n') => cursor.step(1),
            Some(b'#') => comment(&mut cursor, out)?,
            Some(_) => {
                let start = cursor.at;
                cursor.skip_series()?;
                let end = cursor.at;
                let sample = cursor.value_and_time(default_ts)?;
                out.push_sample(sample)?;
                let hash = hasher.hash(text.get(start..end).unwrap_or(&[])) ^ key;
                out.push_series(hash, start..end, true)?;
            }
        }
    }
}

/// Parses the series text that [`decode`] found at `span`: `name{label="value",...}` or
/// `{"name",label="value",...}`.
///
/// # Errors
/// [`LabelFault::Malformed`] for every mistake: one bad line fails the whole import.
pub fn labels(
    text: &[u8],
    span: Range<usize>,
    extra: &ExtraLabels,
    out: &mut LabelsBuilder,
) -> Result<(), LabelFault> {
    out.clear();
    let mut cursor = Cursor { text: text.get(..span.end).unwrap_or(text), at: span.start };
    let is_extra = |name: &str| extra.0.iter().any(|(extra, _)| extra == name);
    let mut has_name = false;
    if let Some(name) = cursor.metric_name() {
        out.push(METRIC_NAME, name);
        has_name = true;
        cursor.skip_blanks();
    }
    if cursor.take(b'{') {
        loop {
            cursor.skip_blanks();
            if cursor.take(b'}') {
                break;
            }
            let (name, quoted) = cursor.label_name()?;
            cursor.skip_blanks();
            if cursor.take(b'=') {
                cursor.skip_blanks();
                let value = cursor.quoted("a label value")?;
                if name.is_empty() {
                    return Err(cursor.error("a label has an empty name").into());
                }
                if !is_extra(&name) {
                    out.push(&name, &value);
                }
            } else if quoted && !has_name {
                out.push(METRIC_NAME, &name);
                has_name = !name.is_empty();
            } else if quoted {
                return Err(cursor.error("the metric's name is repeated").into());
            } else {
                return Err(cursor.error(format!("label {:?} has no `=`", excerpt(&name))).into());
            }
            cursor.skip_blanks();
            if !cursor.take(b',') && cursor.peek() != Some(b'}') {
                return Err(cursor.error("expected `,` or `}` after a label").into());
            }
        }
    }
    if !has_name {
        return Err(cursor.error("a series has no metric name").into());
    }
    for (name, value) in &extra.0 {
        out.push(name, value);
    }
    Ok(())
}

/// An error that names the line of byte `at`, counted from 1.
pub fn at_line(text: &[u8], at: usize, problem: impl std::fmt::Display) -> Error {
    let before = text.get(..at).unwrap_or(text);
    let line = before.iter().filter(|&&byte| byte == b'\n').count().saturating_add(1);
    Error::invalid(format!("line {line}: {problem}"))
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Steps over bytes of the text.
    fn step(&mut self, len: usize) {
        self.at = self.at.saturating_add(len);
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.step(usize::from(found));
        found
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or(&[]);
        let len = rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
        self.step(len);
        rest.get(..len).unwrap_or(&[])
    }

    fn skip_blanks(&mut self) {
        self.take_while(|byte| byte == b' ' || byte == b'\t');
    }

    #[cold]
    fn error(&self, problem: impl std::fmt::Display) -> Error {
        at_line(self.text, self.at, problem)
    }

    /// The token at the cursor, for messages.
    fn found(&self) -> String {
        match self.peek() {
            None => "the end".to_owned(),
            Some(b'\n') => "the end of the line".to_owned(),
            Some(_) => {
                let rest = self.text.get(self.at..).unwrap_or(&[]);
                let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest);
                format!("{:?}", String::from_utf8_lossy(line.get(..24).unwrap_or(line)))
            }
        }
    }

    /// A name of letters, digits, `_` and `:`, which is ASCII.
    fn metric_name(&mut self) -> Option<&'a str> {
        if self.peek().is_none_or(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let name = self.take_while(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    /// A label's name and whether it was quoted.
    fn label_name(&mut self) -> Result<(Cow<'a, str>, bool)> {
        if self.peek() == Some(b'"') {
            return Ok((self.quoted("a name")?, true));
        }
        let starts = self.peek().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let name = self.take_while(|b| starts && (b.is_ascii_alphanumeric() || b == b'_'));
        match std::str::from_utf8(name) {
            Ok(name) if starts => Ok((Cow::Borrowed(name), false)),
            _ => Err(self.error(format!("expected a label name, got {}", self.found()))),
        }
    }

    /// A quoted text, unescaped: `\\`, `\"` and `\n`; another `\x` stays as it is.
    fn quoted(&mut self, name: &str) -> Result<Cow<'a, str>> {
        if !self.take(b'"') {
            return Err(self.error(format!("expected {name} in quotes, got {}", self.found())));
        }
        let start = self.at;
        self.skip_quoted()?;
        let inner = self.text.get(start..self.at.saturating_sub(1)).unwrap_or(&[]);
        let inner = std::str::from_utf8(inner)
            .map_err(|e| self.error(format!("{name} is not UTF-8")).because(e))?;
        Ok(unescape(inner, true))
    }

    /// Steps behind the closing quote; the opening one is behind the cursor already.
    fn skip_quoted(&mut self) -> Result<()> {
        loop {
            self.take_while(|byte| byte != b'"' && byte != b'\\');
            match self.peek() {
                Some(b'"') => {
                    self.step(1);
                    return Ok(());
                }
                Some(_) if self.at.saturating_add(1) < self.text.len() => self.step(2),
                _ => return Err(self.error("a quoted text is not closed")),
            }
        }
    }

    /// Skips a name and its braces. [`labels`] checks the text between them.
    fn skip_series(&mut self) -> Result<()> {
        let name = self.metric_name();
        let name_end = self.at;
        self.skip_blanks();
        if !self.take(b'{') {
            self.at = name_end;
            return match name {
                Some(_) => Ok(()),
                None => Err(self.error(format!("expected a metric name, got {}", self.found()))),
            };
        }
        loop {
            self.take_while(|byte| !matches!(byte, b'"' | b'}' | b'\n'));
            match self.peek() {
                Some(b'}') => {
                    self.step(1);
                    return Ok(());
                }
                Some(b'"') => {
                    self.step(1);
                    self.skip_quoted()?;
                }
                _ => return Err(self.error("the labels are not closed by `}`")),
            }
        }
    }

    fn token(&mut self) -> &'a [u8] {
        self.skip_blanks();
        self.take_while(|byte| !matches!(byte, b' ' | b'\t' | b'\n'))
    }

    fn value_and_time(&mut self, default_ts: Timestamp) -> Result<Sample> {
        let text = self.token();
        let value = std::str::from_utf8(text).ok().and_then(parse_float).ok_or_else(|| {
            self.error(match text {
                [] => "expected a value after the series".to_owned(),
                _ => format!("{:?} is not a value", excerpt(&String::from_utf8_lossy(text))),
            })
        })?;
        let ts = match self.token() {
            [] => default_ts,
            text => parse_timestamp(text).ok_or_else(|| {
                let text = String::from_utf8_lossy(text);
                self.error(format!("{:?} is not a timestamp in whole milliseconds", excerpt(&text)))
            })?,
        };
        self.skip_blanks();
        match self.peek() {
            None | Some(b'\n') => Ok(Sample { ts, value }),
            Some(_) => {
                Err(self.error(format!("expected the end of the line, got {}", self.found())))
            }
        }
    }
}

fn parse_timestamp(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `# HELP name text`, `# TYPE name type`, or any other comment, which is ignored.
fn comment(cursor: &mut Cursor<'_>, out: &mut Decoded) -> Result<()> {
    cursor.step(1);
    let blanks = cursor.take_while(|byte| byte == b' ' || byte == b'\t').len();
    let keyword = cursor.take_while(|byte| byte.is_ascii_alphabetic());
    let is_metadata = blanks > 0
        && (keyword == b"HELP" || keyword == b"TYPE")
        && matches!(cursor.peek(), Some(b' ' | b'\t'));
    if !is_metadata {
        cursor.take_while(|byte| byte != b'\n');
        return Ok(());
    }
    cursor.skip_blanks();
    let name = match cursor.peek() {
        Some(b'"') => cursor.quoted("a metric name")?.into_owned(),
        _ => match cursor.metric_name() {
            Some(name) => name.to_owned(),
            None => {
                let keyword = String::from_utf8_lossy(keyword);
                let found = cursor.found();
                return Err(
                    cursor.error(format!("expected a metric name after # {keyword}, got {found}"))
                );
            }
        },
    };
    let rest = cursor.take_while(|byte| byte != b'\n');
    let rest = std::str::from_utf8(rest)
        .map_err(|e| cursor.error("the help text is not UTF-8").because(e))?;
    let text = rest.trim_matches([' ', '\t']);
    let found = if keyword == b"TYPE" {
        let kind = match text {
            "counter" => MetricType::Counter,
            "gauge" => MetricType::Gauge,
            "histogram" => MetricType::Histogram,
            "summary" => MetricType::Summary,
            "untyped" => MetricType::Unknown,
            other => {
                let found = excerpt(other);
                return Err(cursor.error(format!("invalid metric type {found:?}")));
            }
        };
        Metadata { kind, ..Metadata::default() }
    } else {
        Metadata::new(MetricType::Unknown, &unescape(text, false), "")
    };
    merge(out, &name, found, keyword == b"TYPE");
    Ok(())
}

/// Merges adjacent HELP and TYPE lines of a metric into one entry.
fn merge(out: &mut Decoded, name: &str, found: Metadata, is_type: bool) {
    match out.metadata.last_mut() {
        Some((last, known)) if **last == *name && is_type => known.kind = found.kind,
        // Added again, because its help text counts.
        Some((last, known)) if **last == *name => {
            let kind = known.kind;
            out.metadata.pop();
            out.push_metadata(name, Metadata { kind, ..found });
        }
        _ => out.push_metadata(name, found),
    }
}

fn unescape(text: &str, quotes: bool) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('\\')) => plain.push('\\'),
            ('\\', Some('"')) if quotes => plain.push('"'),
            _ => {
                plain.push(c);
                continue;
            }
        }
        rest.next();
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests;
