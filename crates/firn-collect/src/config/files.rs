//! The files of a configuration, which the caller reads.

use std::path::{Path, PathBuf};

use firn_model::{Budget, Error, Result};

/// Reads files for a configuration.
pub trait Files {
    /// The contents of a file.
    ///
    /// # Errors
    /// The file cannot be read; `NotFound` if it does not exist.
    fn read(&self, path: &Path) -> std::io::Result<String>;

    /// The names in a folder, in any order.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn list(&self, folder: &Path) -> std::io::Result<Vec<String>>;

    /// The memory that reading files and their values may use.
    fn budget(&self) -> Budget {
        Budget::unlimited()
    }

    /// The length of a file, without reading it; 0 if it is not known.
    fn bytes(&self, _path: &Path) -> u64 {
        0
    }

    /// Whether a file or a folder exists; a link exists if its target does.
    fn exists(&self, path: &Path) -> bool {
        self.has_name(path)
    }

    /// Whether the folder of `path` has its name, even if that is a link without a target.
    fn has_name(&self, path: &Path) -> bool {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let names = self.list(folder.unwrap_or(Path::new("."))).unwrap_or_default();
        path.file_name().is_some_and(|file| names.iter().any(|name| file == name.as_str()))
    }
}

/// The names that match `pattern`, in order of paths: `*`, `?` and `[a-z]` match within one element
/// of a path. No match is no error. A link without a target matches, so that reading it fails.
///
/// # Errors
/// `Invalid` for a pattern with an open bracket.
pub fn glob(files: &dyn Files, pattern: &str) -> Result<Vec<PathBuf>> {
    matches(pattern, "").ok_or_else(|| Error::invalid("syntax error in pattern"))?;
    let mut found = vec![PathBuf::new()];
    for element in Path::new(pattern).components() {
        let element = element.as_os_str();
        let text = element.to_string_lossy();
        if !text.contains(['*', '?', '[', '\\']) {
            found.iter_mut().for_each(|path| path.push(element));
            continue;
        }
        let mut next = Vec::new();
        for folder in found {
            let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
            let mut names = files.list(listed).unwrap_or_default();
            names.retain(|name| matches(&text, name) == Some(true));
            names.sort_unstable();
            next.extend(names.iter().map(|name| folder.join(name)));
        }
        found = next;
    }
    found.retain(|path| files.has_name(path));
    Ok(found)
}

/// Whether `name` matches `pattern` whole, as in Go's `filepath.Match`; `None` for a pattern that
/// ends in a bracket or in an escape. Takes at most pattern times name steps.
fn matches(pattern: &str, name: &str) -> Option<bool> {
    let tokens = tokens(pattern)?;
    let name: Vec<char> = name.chars().collect();
    // The ends of the prefixes of the name that the tokens so far match.
    let mut ends = vec![false; name.len().saturating_add(1)];
    if let Some(first) = ends.first_mut() {
        *first = true;
    }
    for token in &tokens {
        if let Token::Any = token {
            let mut reached = false;
            for end in &mut ends {
                reached |= *end;
                *end = reached;
            }
            continue;
        }
        let mut next = vec![false; ends.len()];
        let pairs = ends.iter().zip(&name).zip(next.iter_mut().skip(1));
        for ((is_reached, c), next) in pairs {
            *next = *is_reached && token.is_match(*c);
        }
        ends = next;
    }
    ends.last().copied()
}

enum Token {
    /// `*`
    Any,
    One,
    Char(char),
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    fn is_match(&self, c: char) -> bool {
        match self {
            Token::Any | Token::One => true,
            Token::Char(own) => *own == c,
            Token::Class { is_negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *is_negated
            }
        }
    }
}

fn tokens(pattern: &str) -> Option<Vec<Token>> {
    let mut chars = pattern.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::Any,
            '?' => Token::One,
            '\\' => Token::Char(chars.next()?),
            '[' => {
                let is_negated = chars.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                loop {
                    let mut one = || match chars.next()? {
                        '\\' => chars.next(),
                        c => Some(c),
                    };
                    let first = one()?;
                    if first == ']' && !ranges.is_empty() {
                        break;
                    }
                    let last = match chars.next_if_eq(&'-') {
                        Some(_) => match chars.next()? {
                            '\\' => chars.next()?,
                            c => c,
                        },
                        None => first,
                    };
                    ranges.push((first, last));
                }
                Token::Class { is_negated, ranges }
            }
            c => Token::Char(c),
        });
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree;

    impl Files for Tree {
        fn read(&self, _path: &Path) -> std::io::Result<String> {
            Ok(String::new())
        }

        fn list(&self, folder: &Path) -> std::io::Result<Vec<String>> {
            let names: &[&str] = match folder.to_str() {
                Some(".") => &["x.yml"],
                Some("/a") => &["b1", "b2"],
                Some("/a/b1" | "/a/b2") => &["d.yml", "c.yml", "c.json"],
                _ => &[],
            };
            Ok(names.iter().map(|name| name.to_string()).collect())
        }
    }

    #[test]
    fn patterns_find_files() {
        let f = |pattern: &str| {
            let found = glob(&Tree, pattern).unwrap();
            found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(f("/a/b1/*.yml"), "/a/b1/c.yml /a/b1/d.yml");
        assert_eq!(f("/a/b?/c.*"), "/a/b1/c.json /a/b1/c.yml /a/b2/c.json /a/b2/c.yml");
        assert_eq!(f("/a/b[2-9]/d.yml"), "/a/b2/d.yml");
        assert_eq!(f("/a/b1/none.yml"), "");
        assert_eq!(f("*.yml"), "x.yml");
        assert_eq!(f("x.yml"), "x.yml");
        assert!(glob(&Tree, "/a/[").is_err());
    }

    #[test]
    fn names_are_matched_as_in_go() {
        for (pattern, name, want) in [
            ("abc", "abc", Some(true)),
            ("*", "abc", Some(true)),
            ("a*b*c", "aXbYc", Some(true)),
            ("a*b*c", "aXcYb", Some(false)),
            ("a?c", "ac", Some(false)),
            ("[^a-c]x", "dx", Some(true)),
            ("[^a-c]x", "bx", Some(false)),
            (r"\*", "*", Some(true)),
            ("[]a]", "]", Some(true)),
            ("[", "a", None),
            ("a[", "a", None),
            (r"a\", "a", None),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
        assert_eq!(matches(&"*a".repeat(1_000), &"a".repeat(999)), Some(false));
    }
}
