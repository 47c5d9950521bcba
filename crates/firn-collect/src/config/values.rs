//! The values of keys: durations, sizes, addresses, paths, label sets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use firn_model::{Error, Result, Secret};

use super::Url;
use firn_yaml::quoted;
use firn_yaml::{Decoder, Encoded, Failure, Field, Node, NodeValue, PathVisitor, decode, text_of};

/// A text of a file in which Prometheus shows it and which may be a secret, such as the value of a
/// header. It is shown as a secret; its errors are those of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenText(Secret);

impl HiddenText {
    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl Field for HiddenText {
    fn type_name() -> String {
        String::type_name()
    }

    fn zero() -> HiddenText {
        HiddenText(Secret::zero())
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        self.0 = Secret::new(text);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        if self.is_zero() { Encoded::Text(String::new()) } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn secret_paths() -> Vec<String> {
        Secret::secret_paths()
    }
}

/// A text that should be an address. Prometheus checks it only when it sends a request. Shown
/// without a password.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlText(String);

impl UrlText {
    /// The text with its password; empty if the key is absent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Url::shown(&self.0))
    }
}

impl Field for UrlText {
    fn type_name() -> String {
        String::type_name()
    }

    fn zero() -> UrlText {
        UrlText(String::new())
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.0.read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(Url::shown(&self.0))
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

/// A number of bytes, written with units of 1,024: `15MB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(i64);

const SIZE_UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

impl Size {
    /// Bytes; negative only where the section allows it.
    pub fn as_bytes(self) -> i64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    /// `0`, or numbers with `B`, `KB` or `KiB` and so on.
    fn from_str(text: &str) -> Result<Size, String> {
        let invalid = || format!("units: invalid {text}");
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Size(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut sum = 0.0;
        while !rest.is_empty() {
            let is_number = |c: char| c.is_ascii_digit() || c == '.';
            let number_end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(number_end);
            let unit_end = behind.find(is_number).unwrap_or(behind.len());
            let (unit, behind) = behind.split_at(unit_end);
            let number: f64 = match number {
                "" | "." => return Err(invalid()),
                number => number.parse().map_err(|_| invalid())?,
            };
            let power = unit.strip_suffix('B').and_then(|prefix| {
                let prefix = prefix.strip_suffix('i').filter(|p| !p.is_empty()).unwrap_or(prefix);
                SIZE_UNITS.iter().zip(0i32..).find(|(name, _)| **name == prefix)
            });
            let Some((_, power)) = power else {
                return Err(format!("units: unknown unit {unit} in {text}"));
            };
            sum += number * 1024f64.powi(power);
            rest = behind;
        }
        if sum > 9.2e18 {
            return Err("units: overflow parsing unit".to_owned());
        }
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        let bytes = if negative { -sum } else { sum } as i64;
        Ok(Size(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0B");
        }
        let (mut rest, mut parts) = (self.0, Vec::new());
        for unit in SIZE_UNITS {
            let part = rest.checked_rem(1024).unwrap_or(0);
            if part != 0 {
                let suffix = if unit.is_empty() { "B" } else { "iB" };
                parts.push(format!("{part}{unit}{suffix}"));
            }
            rest = rest.checked_div(1024).unwrap_or(0);
        }
        parts.reverse();
        f.write_str(&parts.concat())
    }
}

impl Field for Size {
    fn type_name() -> String {
        "units.Base2Bytes".to_owned()
    }

    fn zero() -> Size {
        Size(0)
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "units.Base2Bytes")? else { return Ok(false) };
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

/// The path of a file or a pattern of paths. A relative one is relative to the folder of the file
/// that names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(String);

impl FilePath {
    /// The path; empty if the key is absent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Whether the key is absent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for FilePath {
    fn from(path: &str) -> FilePath {
        FilePath(path.to_owned())
    }
}

impl Field for FilePath {
    fn type_name() -> String {
        String::type_name()
    }

    fn zero() -> FilePath {
        FilePath::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.0.read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn each_path(&mut self, key: &'static str, visit: &mut PathVisitor<'_>) {
        if !self.0.is_empty() {
            visit(key, &mut self.0);
        }
    }
}

/// Makes the relative paths of a section relative to `folder`.
pub(crate) fn join_folder(section: &mut impl Field, folder: &Path) {
    section.each_path("", &mut |_, path| {
        if !Path::new(path).is_absolute() {
            *path = clean(&folder.join(&path)).to_string_lossy().into_owned();
        }
    });
}

/// `path` without `.` and without `a/..`.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(cleaned.components().next_back(), Some(Component::Normal(_))) =>
            {
                cleaned.pop();
            }
            Component::ParentDir if cleaned.has_root() => {}
            component => cleaned.push(component),
        }
    }
    cleaned
}

/// Labels of a file: names with values. Values may be empty.
///
/// A list, because lists of targets have a set for each target, most with one label: a map would
/// have room for eleven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSet(Box<[(String, String)]>);

impl LabelSet {
    /// The labels in order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let idx = self.0.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        self.0.get(idx).map(|(_, value)| value.as_str())
    }

    /// Labels from bytes, which a discovery may have from other programs.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text for a name or a value that is not UTF-8.
    pub fn from_bytes<'a>(
        labels: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<LabelSet> {
        let text = |(name, value): (&[u8], &[u8])| {
            let invalid = || {
                let (name, value) = (quoted(name), quoted(value));
                Error::invalid(format!("invalid label value for {name}: {value}"))
            };
            let name = std::str::from_utf8(name).map_err(|_| invalid())?;
            let value = std::str::from_utf8(value).map_err(|_| invalid())?;
            Ok((name.to_owned(), value.to_owned()))
        };
        labels.into_iter().map(text).collect()
    }

    /// Whether there is no label.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for LabelSet {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(labels: I) -> LabelSet {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        // The last value of a name counts.
        LabelSet(labels.collect::<BTreeMap<String, String>>().into_iter().collect())
    }
}

impl Field for LabelSet {
    fn type_name() -> String {
        "model.LabelSet".to_owned()
    }

    fn zero() -> LabelSet {
        LabelSet::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        if let NodeValue::Map(entries) = &node.value {
            for (key, value) in entries {
                let name = match &key.value {
                    NodeValue::Bytes(bytes) => Some(bytes.as_slice()),
                    NodeValue::Scalar(text, _) if text.is_empty() => Some(&[][..]),
                    _ => None,
                };
                if let Some(name) = name {
                    let text = format!("{} is not a valid label name", quoted(name));
                    return Err(Failure::new(text).at(key.line));
                }
                if let NodeValue::Bytes(bytes) = &value.value {
                    let text = format!("{} is not a valid label value", quoted(bytes));
                    return Err(Failure::new(text).at(value.line));
                }
            }
        }
        let mut labels = BTreeMap::<String, String>::new();
        let is_read = decode(&mut labels, node, decoder)?;
        *self = std::mem::take(&mut self.0).into_iter().chain(labels).collect();
        Ok(is_read)
    }

    fn encode(&self) -> Encoded {
        self.0.iter().cloned().collect::<BTreeMap<_, _>>().encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

/// A value of any kind, which is kept as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct AnyValue(Encoded);

impl AnyValue {
    /// The value as YAML.
    pub fn to_yaml(&self) -> String {
        firn_yaml::print(&self.0)
    }
}

impl Field for AnyValue {
    fn type_name() -> String {
        "interface {}".to_owned()
    }

    fn zero() -> AnyValue {
        AnyValue(Encoded::Null)
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.0 = match &node.value {
            NodeValue::List(_) => {
                let mut items = Vec::<AnyValue>::new();
                decode(&mut items, node, decoder)?;
                Encoded::List(items.into_iter().map(|item| item.0).collect())
            }
            NodeValue::Map(_) => {
                let mut map = BTreeMap::<String, AnyValue>::new();
                decode(&mut map, node, decoder)?;
                Encoded::Map(map.into_iter().map(|(key, value)| (key, value.0)).collect())
            }
            NodeValue::Scalar(text, firn_yaml::Kind::Text | firn_yaml::Kind::Time) => {
                Encoded::Text(text.clone())
            }
            NodeValue::Scalar(text, _) => Encoded::Word(text.clone()),
            NodeValue::Null | NodeValue::Merge | NodeValue::Bytes(_) => Encoded::Null,
        };
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        self.0.clone()
    }

    fn is_zero(&self) -> bool {
        self.0 == Encoded::Null
    }
}

impl Field for Url {
    fn type_name() -> String {
        "config.URL".to_owned()
    }

    fn zero() -> Url {
        Url::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        *self = Url::parse(text).map_err(|error| Failure::new(error).at(node.line))?;
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.to_string())
    }

    fn is_zero(&self) -> bool {
        self.as_str().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_those_of_prometheus() {
        for (text, bytes, printed) in [
            ("0", 0, "0B"),
            ("15MB", 15 << 20, "15MiB"),
            ("1KiB", 1_024, "1KiB"),
            ("1.5KB", 1_536, "1KiB512B"),
            ("1GB1B", (1 << 30) + 1, "1GiB1B"),
            ("-1KB", -1_024, "-1KiB"),
            ("512B", 512, "512B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.as_bytes(), size.to_string().as_str()), (bytes, printed), "{text}");
        }
        for text in ["", "15", "1kB", "1 MB", "iB", "1iB", "B", "-", "1..5B", "9EB", "1mb"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn relative_paths_are_joined() {
        for (path, want) in [
            ("a", "/x/y/a"),
            ("./a/../b", "/x/y/b"),
            ("../a", "/x/a"),
            ("/a/../b", "/a/../b"),
            ("", ""),
        ] {
            let mut path = FilePath::from(path);
            join_folder(&mut path, Path::new("/x/y"));
            assert_eq!(path.as_str(), want);
        }
        let mut path = FilePath::from("a/*.yml");
        join_folder(&mut path, Path::new("."));
        assert_eq!(path.as_str(), "a/*.yml");
        join_folder(&mut path, Path::new("../c"));
        assert_eq!(path.as_str(), "../c/a/*.yml");
    }

    proptest! {
        #[test]
        fn printed_sizes_are_read_back(bytes in 0i64..1 << 53) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
