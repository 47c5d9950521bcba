//! The configuration file: YAML, one key for each setting, named as its flag.
//!
//! The parser's events are read directly, so that a value is the text that was typed (`15d`,
//! `0755`, `1.50`) and every message names its line.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use firn_model::{Error, Result, redacted};
use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::setting::Setting;
use super::source::Source;
use firn_env::given_file::read_text_once;

/// A configuration file, parsed and not yet checked.
pub(super) struct ConfigFile {
    path: String,
    entries: BTreeMap<String, FileEntry>,
}

// Sections of Prometheus' configuration, with which its file may begin.
const PROMETHEUS_KEYS: [&str; 6] =
    ["alerting", "global", "remote_write", "rule_files", "scrape_config_files", "scrape_configs"];

struct FileEntry {
    text: String,
    /// Of the key, counted from 1.
    line: usize,
}

/// Without the values, which may be passwords.
impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.entries.keys().collect();
        f.debug_struct("ConfigFile").field("path", &self.path).field("keys", &keys).finish()
    }
}

impl ConfigFile {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// `Invalid` when it cannot be read or is not a YAML mapping of settings.
    pub(super) fn read(path: &Path) -> Result<ConfigFile> {
        let shown = path.display().to_string();
        ConfigFile::parse(&shown, &read_text_once(path, "--config")?)
    }

    /// Parses `text`; `path` names it in messages.
    pub(super) fn parse(path: &str, text: &str) -> Result<ConfigFile> {
        let mut file = ConfigFile { path: path.to_owned(), entries: BTreeMap::new() };
        let mut events = Events { path, parser: Parser::new_from_str(text) };
        match events.next()? {
            (Event::StreamEnd, _) => return Ok(file),
            (Event::MappingStart(..), _) => {}
            (_, line) => return Err(events.error(line, "expected lines of the form KEY: VALUE")),
        }
        loop {
            let (key, line) = match events.next()? {
                (Event::Scalar(key, ..), line) => (key.into_owned(), line),
                (Event::MappingEnd, _) => break,
                (_, line) => return Err(events.error(line, "expected the name of a setting")),
            };
            if PROMETHEUS_KEYS.contains(&key.as_str()) {
                let what = format!(
                    "{key}: a section of Prometheus' configuration; its file is the value of \
                     --prometheus-config"
                );
                return Err(events.error(line, what));
            }
            let text = events.value(&key)?;
            if let Some(first) = file.entries.get(&key) {
                let what = format!("{key}: set twice, first in line {}", first.line);
                return Err(events.error(line, what));
            }
            file.entries.insert(key, FileEntry { text, line });
        }
        match events.next()? {
            (Event::StreamEnd, _) => Ok(file),
            (_, line) => Err(events.error(line, "expected one YAML document, got a second one")),
        }
    }

    /// Checks that every key is a setting of `command`.
    ///
    /// # Errors
    /// `Invalid`, naming the first unknown key and the setting with the nearest name.
    pub(super) fn check_keys(&self, table: &[Setting], command: &str) -> Result<()> {
        let is_unknown = |key: &str| table.iter().all(|setting| setting.name != key);
        let unknown = self.entries.iter().filter(|(key, _)| is_unknown(key));
        let Some((key, entry)) = unknown.min_by_key(|(_, entry)| entry.line) else {
            return Ok(());
        };
        let nearest =
            table.iter().map(|setting| setting.name).min_by_key(|name| distance(key, name));
        Err(Error::invalid(format!(
            "{}:{}: {key}: no setting of firn {command}; the nearest is {}",
            self.path,
            entry.line,
            nearest.unwrap_or_default()
        )))
    }

    /// The text of a key and its line.
    pub(super) fn get(&self, key: &str) -> Option<(String, Source)> {
        let entry = self.entries.get(key)?;
        let source = Source::File { path: self.path.clone(), line: entry.line };
        Some((entry.text.clone(), source))
    }
}

/// The parser's events without those that contain no data.
struct Events<'a> {
    path: &'a str,
    parser: Parser<'a, StrInput<'a>>,
}

impl<'a> Events<'a> {
    /// The next event and its line. The end of the stream repeats.
    fn next(&mut self) -> Result<(Event<'a>, usize)> {
        loop {
            return match self.parser.next() {
                None => Ok((Event::StreamEnd, 0)),
                Some(Ok((Event::StreamStart | Event::DocumentEnd | Event::Nothing, _))) => continue,
                Some(Ok((Event::DocumentStart(_), _))) => continue,
                Some(Ok((event, Span { start, .. }))) => Ok((event, start.line())),
                Some(Err(error)) => Err(self.error(error.marker().line(), error.info())),
            };
        }
    }

    /// The value of `key` as the text of a flag: lists are joined by commas, mappings are
    /// `name=value` pairs.
    fn value(&mut self, key: &str) -> Result<String> {
        match self.next()? {
            (Event::Scalar(text, style, ..), line) => self.scalar(key, &text, style, line),
            (Event::SequenceStart(..), _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => return Ok(items.join(",")),
                        (Event::Scalar(text, style, ..), line) => {
                            items.push(self.item(key, &text, style, line)?);
                        }
                        (_, line) => return Err(self.nested(key, line)),
                    }
                }
            }
            (Event::MappingStart(..), _) => {
                let mut pairs = Vec::new();
                loop {
                    let name = match self.next()? {
                        (Event::MappingEnd, _) => return Ok(pairs.join(",")),
                        (Event::Scalar(name, ..), line) if name.contains('=') => {
                            let what = format!("{key}: expected names without `=`, got {name:?}");
                            return Err(self.error(line, what));
                        }
                        (Event::Scalar(name, style, ..), line) => {
                            self.item(key, &name, style, line)?
                        }
                        (_, line) => return Err(self.nested(key, line)),
                    };
                    match self.next()? {
                        (Event::Scalar(text, style, ..), line) => {
                            let text = self.item(key, &text, style, line)?;
                            pairs.push(format!("{name}={text}"));
                        }
                        (_, line) => return Err(self.nested(key, line)),
                    }
                }
            }
            (_, line) => Err(self.nested(key, line)),
        }
    }

    fn scalar(&self, key: &str, text: &str, style: ScalarStyle, line: usize) -> Result<String> {
        if style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
            return Err(self.error(line, format!("{key}: expected a value, got none")));
        }
        Ok(text.to_owned())
    }

    /// An element of a list or mapping, which commas separate in the text of a flag.
    fn item(&self, key: &str, text: &str, style: ScalarStyle, line: usize) -> Result<String> {
        let text = self.scalar(key, text, style, line)?;
        if text.contains(',') {
            let got = redacted(&text);
            let what = format!("{key}: expected elements without a comma, got {got:?}");
            return Err(self.error(line, what));
        }
        Ok(text)
    }

    fn nested(&self, key: &str, line: usize) -> Error {
        self.error(line, format!("{key}: expected a value, a list or a mapping of plain values"))
    }

    fn error(&self, line: usize, what: impl fmt::Display) -> Error {
        Error::invalid(format!("{}:{line}: {what}", self.path))
    }
}

/// How many characters must be inserted, removed or replaced to get from one to the other
/// (Levenshtein distance).
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a distance is at most the length of the longer text"
)]
pub(super) fn distance(source: &str, target: &str) -> usize {
    let target: Vec<char> = target.chars().collect();
    let mut costs: Vec<usize> = (0..=target.len()).collect();
    for (row, from) in source.chars().enumerate() {
        let mut diagonal = row;
        let mut left = row + 1;
        for (to, cost) in target.iter().zip(costs.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = *cost;
            *cost = replaced.min(diagonal + 1).min(left + 1);
            left = *cost;
        }
        if let Some(first) = costs.first_mut() {
            *first = row + 1;
        }
    }
    costs.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: std::result::Result<&[(&str, &str, usize)], &str>) {
        let parsed = ConfigFile::parse("f.yaml", text);
        match expected {
            Ok(expected) => {
                let entries = parsed.unwrap().entries;
                let found: Vec<(&str, &str, usize)> =
                    entries.iter().map(|(key, e)| (&**key, &*e.text, e.line)).collect();
                assert_eq!(found, expected, "{text}");
            }
            Err(message) => assert_eq!(parsed.unwrap_err().what(), message, "{text}"),
        }
    }

    #[test]
    fn values_are_the_text_that_was_typed() {
        check("", Ok(&[]));
        check("# only a comment\n", Ok(&[]));
        check("b: 0755\n\na: 'x: y' # a comment\n", Ok(&[("a", "x: y", 3), ("b", "0755", 1)]));
        check("---\na: 1.50\n...\n", Ok(&[("a", "1.50", 2)]));
        check(
            "a: [job, instance]\nb:\n- x\n- y\n",
            Ok(&[("a", "job,instance", 1), ("b", "x,y", 2)]),
        );
        check("a:\n  region: eu\n  zone: 'b c'\n", Ok(&[("a", "region=eu,zone=b c", 1)]));
        check("a: []\nb: ''\n", Ok(&[("a", "", 1), ("b", "", 2)]));
    }

    #[test]
    fn refusals_name_file_line_and_key() {
        check("a: 1\nb:\n", Err("f.yaml:2: b: expected a value, got none"));
        check("a: 1\nb: 2\na: 3\n", Err("f.yaml:3: a: set twice, first in line 1"));
        check("- a\n", Err("f.yaml:1: expected lines of the form KEY: VALUE"));
        check("a: 1\n---\nb: 2\n", Err("f.yaml:3: expected one YAML document, got a second one"));
        let nested = "f.yaml:1: a: expected a value, a list or a mapping of plain values";
        check("a: [[x]]\n", Err(nested));
        check("a: {x=y: z}\n", Err("f.yaml:1: a: expected names without `=`, got \"x=y\""));
        check("a: ['x,y']\n", Err("f.yaml:1: a: expected elements without a comma, got \"x,y\""));
        assert!(ConfigFile::parse("f.yaml", "a: [\n").is_err());
        assert!(ConfigFile::parse("f.yaml", "a: *b\n").is_err());
    }

    #[test]
    fn the_distance_is_the_least_number_of_edits() {
        for (a, b, edits) in [("", "ab", 2), ("kitten", "sitting", 3), ("flush", "flush", 0)] {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits), "{a} {b}");
        }
    }
}
