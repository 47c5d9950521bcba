//! Matchers: what a selector asks of one label.

use std::fmt;

use regex::Regex;

use crate::{Error, Result};

/// How a matcher compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `=~`, anchored at both ends.
    Regex,
    /// `!~`, anchored at both ends.
    NotRegex,
}

/// One condition on one label. An absent label has the value `""`.
#[derive(Clone)]
pub struct Matcher {
    name: String,
    op: MatchOp,
    value: String,
    regex: Option<Regex>,
}

// A regular expression that compiles to more than this is refused; 10,000 alternatives fit.
const REGEX_BYTES_MAX: usize = 16 << 20;

impl Matcher {
    /// A matcher; a regular expression is compiled here, once.
    ///
    /// # Errors
    /// `Invalid` for a regular expression that does not compile or is too large.
    pub fn new(name: impl Into<String>, op: MatchOp, value: impl Into<String>) -> Result<Matcher> {
        let (name, value) = (name.into(), value.into());
        let regex = match op {
            MatchOp::Equal | MatchOp::NotEqual => None,
            MatchOp::Regex | MatchOp::NotRegex => Some(
                regex::RegexBuilder::new(&format!("^(?s:{value})$"))
                    .size_limit(REGEX_BYTES_MAX)
                    .build()
                    .map_err(|e| {
                        Error::invalid(format!("bad regular expression {value:?} for label {name}"))
                            .because(e)
                    })?,
            ),
        };
        Ok(Matcher { name, op, value, regex })
    }

    /// `name = value`.
    pub fn equal(name: impl Into<String>, value: impl Into<String>) -> Matcher {
        Matcher { name: name.into(), op: MatchOp::Equal, value: value.into(), regex: None }
    }

    /// The label's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it compares.
    pub fn op(&self) -> MatchOp {
        self.op
    }

    /// The value or pattern as it was written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Whether a label with `value` passes.
    pub fn matches(&self, value: &str) -> bool {
        match (self.op, &self.regex) {
            (MatchOp::Equal, _) => value == self.value,
            (MatchOp::NotEqual, _) => value != self.value,
            (MatchOp::Regex, Some(regex)) => regex.is_match(value),
            (MatchOp::NotRegex, Some(regex)) => !regex.is_match(value),
            (MatchOp::Regex | MatchOp::NotRegex, None) => unreachable!("compiled in `new`"),
        }
    }

    /// Whether a series without the label passes.
    pub fn matches_absent(&self) -> bool {
        self.matches("")
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Matcher) -> bool {
        (&self.name, self.op, &self.value) == (&other.name, other.op, &other.value)
    }
}

impl Eq for Matcher {}

impl std::hash::Hash for Matcher {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.name, self.op, &self.value).hash(state);
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Regex => "=~",
            MatchOp::NotRegex => "!~",
        };
        write!(f, "{}{op}{:?}", self.name, self.value)
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regexes_are_anchored_and_dot_takes_newlines() {
        let f =
            |op, pattern: &str, value: &str| Matcher::new("l", op, pattern).unwrap().matches(value);
        assert!(f(MatchOp::Regex, "a|b", "b"));
        assert!(!f(MatchOp::Regex, "a|b", "ab"));
        assert!(f(MatchOp::Regex, "a.b", "a\nb"));
        assert!(f(MatchOp::NotRegex, "a.+", "a"));
        assert!(f(MatchOp::Regex, "", ""));
        assert!(
            Matcher::new("l", MatchOp::Regex, "(").unwrap_err().to_string().contains("label l")
        );
    }
}
