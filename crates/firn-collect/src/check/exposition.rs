//! The text format as strictly as promtool reads it.
//!
//! The order of the checks is that of its parser, so that the first mistake has its text. Scrapes
//! have another parser, which accepts more, as in Prometheus. Names in quotes are those of
//! Prometheus 3.

use std::collections::HashSet;

use firn_model::{Error, METRIC_NAME, MetricType, Result};
use firn_yaml::quoted;

use super::metrics::{ExposedSample, Family, MetricFamilies};
use crate::scrape::parse_value;

/// A line that is read from the left. Past its end the input ends.
struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
    number: u64,
}

impl<'a> Cursor<'a> {
    fn mistake(&self, text: impl AsRef<str>) -> Error {
        let (number, text) = (self.number, text.as_ref());
        Error::invalid(format!("text format parsing error in line {number}: {text}"))
    }

    fn current(&self) -> Result<u8> {
        let byte = self.line.get(self.at).copied();
        byte.ok_or_else(|| self.mistake("unexpected end of input stream"))
    }

    fn step(&mut self) -> Result<u8> {
        self.at = self.at.saturating_add(1);
        self.current()
    }

    /// Steps over blanks, and returns the byte after them.
    fn skip_blanks(&mut self) -> Result<u8> {
        while matches!(self.line.get(self.at), Some(b' ' | b'\t')) {
            self.at = self.at.saturating_add(1);
        }
        self.current()
    }

    /// The bytes up to the first one that `ends`, which exists.
    fn until(&mut self, ends: impl Fn(u8) -> bool) -> Result<&'a [u8]> {
        let rest = self.line.get(self.at..).unwrap_or(&[]);
        let len = rest.iter().position(|&byte| ends(byte)).unwrap_or(rest.len());
        self.at = self.at.saturating_add(len);
        self.current()?;
        Ok(rest.get(..len).unwrap_or(&[]))
    }

    fn word(&mut self) -> Result<&'a [u8]> {
        self.until(|byte| matches!(byte, b' ' | b'\t' | b'\n'))
    }

    /// The rest of the line. promtool drops backslashes in it.
    fn rest(&mut self) -> Result<Vec<u8>> {
        let rest = self.until(|byte| byte == b'\n')?;
        Ok(rest.iter().copied().filter(|&byte| byte != b'\\').collect())
    }

    /// A name without quotes, or an empty one.
    fn name(&mut self, has_colons: bool) -> Result<String> {
        let is_start =
            |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':' && has_colons;
        if !is_start(self.current()?) {
            return Ok(String::new());
        }
        let name = self.until(|byte| !is_start(byte) && !byte.is_ascii_digit())?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// A name, which may be quoted, or an empty one.
    fn name_or_quoted(&mut self, has_colons: bool) -> Result<String> {
        match self.current()? {
            b'"' => self.quoted_text("metric name"),
            _ => self.name(has_colons),
        }
    }

    /// The text in the quotes that begin here, and the place after them.
    fn quoted_text(&mut self, subject: &str) -> Result<String> {
        let mut text = Vec::new();
        loop {
            match self.step()? {
                b'"' => break,
                b'\n' => {
                    let text = quoted(&text);
                    return Err(
                        self.mistake(format!("{subject} {text} contains unescaped new-line"))
                    );
                }
                b'\\' => text.push(self.escaped(true)?),
                byte => text.push(byte),
            }
        }
        self.at = self.at.saturating_add(1);
        String::from_utf8(text).map_err(|error| {
            let text = quoted(error.as_bytes());
            self.mistake(format!("invalid {subject} {text}"))
        })
    }

    /// The byte of the escape sequence that begins here.
    fn escaped(&mut self, has_quote: bool) -> Result<u8> {
        match self.step()? {
            b'\\' => Ok(b'\\'),
            b'n' => Ok(b'\n'),
            b'"' if has_quote => Ok(b'"'),
            byte => {
                let shown = char::from(byte);
                Err(self.mistake(format!("invalid escape sequence '\\{shown}'")))
            }
        }
    }
}

/// The byte in single quotes, with Go's escapes.
fn quoted_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => r#"'"'"#.to_owned(),
        _ => {
            let text = quoted(char::from(byte).to_string().as_bytes());
            format!("'{}'", text.trim_matches('"'))
        }
    }
}

impl MetricFamilies {
    /// Adds a line with its end. Only the last line of an input may have none.
    pub(super) fn add_line(&mut self, line: &[u8], number: u64) -> Result<()> {
        let mut cursor = Cursor { line, at: 0, number };
        let blanks = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        cursor.at = blanks;
        match line.get(blanks) {
            None | Some(b'\n') => Ok(()),
            Some(b'#') => self.add_comment(&mut cursor),
            Some(_) => {
                let sample = self.sample(&mut cursor)?;
                self.add_sample(sample)
            }
        }
    }

    fn add_comment(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        cursor.at = cursor.at.saturating_add(1);
        cursor.skip_blanks()?;
        let keyword = cursor.word()?;
        if cursor.current()? == b'\n' {
            return Ok(());
        }
        let is_help = keyword == b"HELP";
        if !is_help && keyword != b"TYPE" {
            return cursor.until(|byte| byte == b'\n').map(|_| ());
        }
        cursor.skip_blanks()?;
        let name = cursor.name_or_quoted(true)?;
        match cursor.current()? {
            b'\n' => return Ok(()),
            b' ' | b'\t' => {}
            _ => return Err(cursor.mistake("invalid metric name in comment")),
        }
        let name = self.family_of(&name).0.to_owned();
        let family = self.family(&name)?;
        if cursor.skip_blanks()? == b'\n' {
            return Ok(());
        }
        if is_help { add_help(family, &name, cursor) } else { add_type(family, &name, cursor) }
    }

    fn sample(&mut self, cursor: &mut Cursor<'_>) -> Result<ExposedSample> {
        let mut is_in_braces = cursor.current()? == b'{';
        let name = match is_in_braces {
            true => {
                let is_quoted = cursor.step().and_then(|_| cursor.skip_blanks())? == b'"';
                if is_quoted { cursor.quoted_text("metric name")? } else { String::new() }
            }
            false => cursor.name(true)?,
        };
        if name.is_empty() {
            return Err(cursor.mistake("invalid metric name"));
        }
        let (family, is_count_or_sum) = self.family_of(&name);
        let family = family.to_owned();
        let bound = self.family(&family)?.start_samples();
        let mut sample = ExposedSample { family, labels: Vec::new(), has_bound: false };
        let mut names = HashSet::new();
        let byte = cursor.skip_blanks()?;
        if is_in_braces {
            match byte {
                b',' | b'}' => {}
                byte => {
                    let byte = quoted_byte(byte);
                    return Err(cursor.mistake(format!("unexpected end of metric name {byte}")));
                }
            }
        } else {
            is_in_braces = byte == b'{';
        }
        while is_in_braces && cursor.current()? != b'}' {
            cursor.step()?;
            if cursor.skip_blanks()? == b'}' {
                break;
            }
            let (name, value) = label(cursor, &sample.family, bound, &mut names)?;
            if name == bound {
                let number = parse_value(value.as_bytes()).ok_or_else(|| {
                    let value = quoted(value.as_bytes());
                    cursor.mistake(format!(
                        "expected float as value for '{bound}' label, got {value}"
                    ))
                })?;
                sample.has_bound = !number.is_nan() && !is_count_or_sum;
            } else {
                sample.labels.push((name, value.clone()));
            }
            if !matches!(cursor.skip_blanks()?, b',' | b'}') {
                let value = quoted(value.as_bytes());
                return Err(cursor.mistake(format!("unexpected end of label value {value}")));
            }
        }
        if is_in_braces {
            cursor.step()?;
            cursor.skip_blanks()?;
        }
        check_value(cursor)?;
        Ok(sample)
    }

    /// The family of a name: that of the name, or the summary or histogram that it belongs to; and
    /// whether it is the count or the sum of the latter.
    fn family_of<'a>(&self, name: &'a str) -> (&'a str, bool) {
        use MetricType::{Histogram, Summary};
        if self.type_of(name).is_some() {
            return (name, false);
        }
        let suffixes: [(&str, &[MetricType]); 3] = [
            ("_count", &[Histogram, Summary]),
            ("_sum", &[Histogram, Summary]),
            ("_bucket", &[Histogram]),
        ];
        let found = suffixes.iter().find_map(|(suffix, types)| {
            let base = name.strip_suffix(suffix)?;
            let metric_type = self.type_of(base)?;
            types.contains(&metric_type).then_some((base, *suffix != "_bucket"))
        });
        found.unwrap_or((name, false))
    }
}

fn add_help(family: &mut Family, name: &str, cursor: &mut Cursor<'_>) -> Result<()> {
    if family.has_help {
        let name = quoted(name.as_bytes());
        return Err(cursor.mistake(format!("second HELP line for metric name {name}")));
    }
    loop {
        match cursor.current()? {
            b'\n' => break,
            b'\\' => {
                cursor.escaped(false)?;
            }
            _ => {}
        }
        cursor.at = cursor.at.saturating_add(1);
    }
    family.has_help = true;
    Ok(())
}

fn add_type(family: &mut Family, name: &str, cursor: &mut Cursor<'_>) -> Result<()> {
    if family.has_type {
        let name = quoted(name.as_bytes());
        return Err(cursor.mistake(format!(
            "second TYPE line for metric name {name}, or TYPE reported after samples"
        )));
    }
    let word = cursor.rest()?;
    family.metric_type = match String::from_utf8_lossy(&word).to_uppercase().as_str() {
        "COUNTER" => MetricType::Counter,
        "GAUGE" => MetricType::Gauge,
        "SUMMARY" => MetricType::Summary,
        "UNTYPED" => MetricType::Unknown,
        "HISTOGRAM" => MetricType::Histogram,
        "GAUGE_HISTOGRAM" => MetricType::GaugeHistogram,
        _ => {
            return Err(cursor.mistake(format!("unknown metric type {}", quoted(&word))));
        }
    };
    family.has_type = true;
    Ok(())
}

/// A label. The caller checks the value of `bound`, and then the byte after it.
fn label(
    cursor: &mut Cursor<'_>,
    family: &str,
    bound: &str,
    names: &mut HashSet<String>,
) -> Result<(String, String)> {
    let name = cursor.name_or_quoted(false)?;
    let shown = || quoted(family.as_bytes());
    if name.is_empty() {
        return Err(cursor.mistake(format!("invalid label name for metric {}", shown())));
    }
    if name == METRIC_NAME {
        return Err(cursor.mistake("label name \"__name__\" is reserved"));
    }
    let byte = cursor.skip_blanks()?;
    if byte != b'=' {
        let byte = quoted_byte(byte);
        return Err(cursor.mistake(format!("expected '=' after label name, found {byte}")));
    }
    if name != bound && !names.insert(name.clone()) {
        return Err(cursor.mistake(format!("duplicate label names for metric {}", shown())));
    }
    cursor.step()?;
    let byte = cursor.skip_blanks()?;
    if byte != b'"' {
        let byte = quoted_byte(byte);
        return Err(cursor.mistake(format!("expected '\"' at start of label value, found {byte}")));
    }
    let value = cursor.quoted_text("label value")?;
    Ok((name, value))
}

/// The value and the time at the end of a line.
fn check_value(cursor: &mut Cursor<'_>) -> Result<()> {
    let value = cursor.word()?;
    if parse_value(value).is_none() {
        return Err(cursor.mistake(format!("expected float as value, got {}", quoted(value))));
    }
    if cursor.current()? == b'\n' {
        return Ok(());
    }
    cursor.skip_blanks()?;
    let time = cursor.word()?;
    let number = std::str::from_utf8(time).ok().and_then(|text| text.parse::<i64>().ok());
    if number.is_none() {
        return Err(cursor.mistake(format!("expected integer as timestamp, got {}", quoted(time))));
    }
    let rest = cursor.rest()?;
    if !rest.is_empty() {
        return Err(cursor.mistake(format!("spurious string after timestamp: {}", quoted(&rest))));
    }
    Ok(())
}
