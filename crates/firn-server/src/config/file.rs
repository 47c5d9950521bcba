//! The configuration file: YAML, one key for each setting, named as its flag.
//!
//! A value is the text that was typed (`15d`, `0755`, `1.50`), and every message names its line.

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
use std::rc::Rc;

use firn_model::{Budget, Error, Result, excerpt, redacted};
use firn_yaml::{Document, Node, NodeValue};

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

// The tree of a file of settings, which has a few KB.
const EXPANDED_BYTES_MAX: u64 = 64 << 20;

struct FileEntry {
    text: String,
    /// The line of the key, counted from 1.
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

    /// Its path, as it was named.
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Parses `text`; `path` names it in messages.
    pub(super) fn parse(path: &str, text: &str) -> Result<ConfigFile> {
        let mut file = ConfigFile { path: path.to_owned(), entries: BTreeMap::new() };
        let budget = Budget::unlimited().part(EXPANDED_BYTES_MAX);
        let document =
            Document::parse_within(text, &budget).map_err(|e| e.into_error().context(path))?;
        let error = |line: usize, what: &str| Error::invalid(format!("{path}:{line}: {what}"));
        if let Some(line) = document.alias_line {
            return Err(error(line, "aliases of anchors are not supported"));
        }
        let pairs = match document.root.as_deref() {
            None => return Ok(file),
            Some(Node { value: NodeValue::Map(pairs), .. }) => pairs,
            Some(other) => return Err(error(other.line, "expected lines of the form KEY: VALUE")),
        };
        for (key, value) in pairs {
            let line = key.line;
            let NodeValue::Scalar(key, _) = &key.value else {
                return Err(error(line, "expected the name of a setting"));
            };
            if PROMETHEUS_KEYS.contains(&key.as_str()) {
                let what = "a section of Prometheus' configuration; its file is the value of \
                            --prometheus-config";
                return Err(error(line, &format!("{key}: {what}")));
            }
            let text = flag_text(value)
                .map_err(|(line, what)| error(line, &format!("{}: {what}", excerpt(key))))?;
            if let Some(first) = file.entries.get(key) {
                let what = format!("{}: set twice, first in line {}", excerpt(key), first.line);
                return Err(error(line, &what));
            }
            file.entries.insert(key.clone(), FileEntry { text, line });
        }
        match document.more_line {
            Some(line) => Err(error(line, "expected one YAML document, got a second one")),
            None => Ok(file),
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

/// A value as the text of a flag: lists are joined by commas, mappings are `name=value` pairs. The
/// error is a line and the reason.
fn flag_text(value: &Node) -> std::result::Result<String, (usize, String)> {
    match &value.value {
        NodeValue::List(items) => {
            let items: Vec<&str> =
                items.iter().map(|item| element(item)).collect::<std::result::Result<_, _>>()?;
            Ok(items.join(","))
        }
        NodeValue::Map(pairs) => {
            let pair = |(name, value): &(Rc<Node>, Rc<Node>)| {
                let text = element(name)?;
                if text.contains('=') {
                    let what = format!("expected names without `=`, got {:?}", excerpt(text));
                    return Err((name.line, what));
                }
                Ok(format!("{text}={}", element(value)?))
            };
            Ok(pairs.iter().map(pair).collect::<std::result::Result<Vec<_>, _>>()?.join(","))
        }
        _ => plain(value).map(str::to_owned),
    }
}

/// An element of a list or mapping, which commas separate in the text of a flag.
fn element(node: &Node) -> std::result::Result<&str, (usize, String)> {
    let text = plain(node)?;
    match text.contains(',') {
        true => {
            let got = redacted(text);
            Err((node.line, format!("expected elements without a comma, got {:?}", excerpt(&got))))
        }
        false => Ok(text),
    }
}

fn plain(node: &Node) -> std::result::Result<&str, (usize, String)> {
    let what = match &node.value {
        NodeValue::Scalar(text, _) => return Ok(text),
        NodeValue::Null => "expected a value, got none",
        _ => "expected a value, a list or a mapping of plain values",
    };
    Err((node.line, what.to_owned()))
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

    /// Before, 4 MB of such a mapping took more than 600 MB.
    #[test]
    fn files_are_read_within_memory() {
        let text = format!("{{{}}}", "a,".repeat(1 << 20));
        let error = ConfigFile::parse("f", &text).err().unwrap().to_string();
        assert!(error.contains("takes more than 67108864 bytes of memory"), "{error}");
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
