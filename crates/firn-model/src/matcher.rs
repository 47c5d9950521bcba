//! Matchers: what a selector asks of one label.

use std::fmt;
use std::sync::Arc;

use regex::Regex;

use crate::pattern::Pattern;
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
    pattern: Pattern,
    /// Only for [`Pattern::Regex`]. Shared, because a regular expression grows working memory in use.
    regex: Option<Arc<Regex>>,
}

// A regular expression that compiles to more than this is refused; 10,000 alternatives fit.
const REGEX_BYTES_MAX: usize = 16 << 20;
// What a regular expression may remember while it matches; with less it is slower, not wrong.
const REGEX_CACHE_BYTES_MAX: usize = 2 << 20;

/// What is wrong with a regular expression, in one line and in Go's words where those are known.
fn regex_fault(value: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default();
    let reason = match reason.strip_prefix("error: ").unwrap_or(reason) {
        "unclosed group" => "missing closing )",
        "unopened group" => "unexpected )",
        other => other,
    };
    format!("error parsing regexp: {reason}: `^(?s:{value})$`")
}

impl Matcher {
    /// A matcher; a regular expression is compiled here, once, if it takes one: compiling costs 100
    /// microseconds, more than answering a small query.
    ///
    /// # Errors
    /// `Invalid` for a regular expression that does not compile or is too large.
    pub fn new(name: impl Into<String>, op: MatchOp, value: impl Into<String>) -> Result<Matcher> {
        Matcher::bounded(name, op, value, REGEX_BYTES_MAX)
    }

    /// The same with a limit for what a regular expression compiles to: where many come from outside at once.
    ///
    /// # Errors
    /// As [`Matcher::new`].
    pub fn bounded(
        name: impl Into<String>,
        op: MatchOp,
        value: impl Into<String>,
        regex_bytes_max: usize,
    ) -> Result<Matcher> {
        let (name, value) = (name.into(), value.into());
        let pattern = Pattern::of(op, &value);
        let regex = match pattern {
            Pattern::Regex => Some(Arc::new(
                regex::RegexBuilder::new(&format!("^(?s:{value})$"))
                    .size_limit(regex_bytes_max.min(REGEX_BYTES_MAX))
                    .dfa_size_limit(regex_bytes_max.min(REGEX_CACHE_BYTES_MAX))
                    .build()
                    .map_err(|e| Error::invalid(regex_fault(&value, &e)))?,
            )),
            _ => None,
        };
        Ok(Matcher { name, op, value, pattern, regex })
    }

    /// `name = value`.
    pub fn equal(name: impl Into<String>, value: impl Into<String>) -> Matcher {
        let value = value.into();
        let pattern = Pattern::of(MatchOp::Equal, &value);
        Matcher { name: name.into(), op: MatchOp::Equal, value, pattern, regex: None }
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

    /// What it takes, its negation left out: to find values in place of trying them.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether it takes what its pattern does not.
    pub fn is_negative(&self) -> bool {
        matches!(self.op, MatchOp::NotEqual | MatchOp::NotRegex)
    }

    /// Whether a label with `value` is taken by the pattern, negation left out.
    pub fn pattern_takes(&self, value: &str) -> bool {
        self.pattern
            .takes(value)
            .unwrap_or_else(|| self.regex.as_ref().is_some_and(|regex| regex.is_match(value)))
    }

    /// Whether a label with `value` passes.
    pub fn matches(&self, value: &str) -> bool {
        self.pattern_takes(value) != self.is_negative()
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
        assert!(f(MatchOp::Regex, "a[bc]+", "abcb"));
        assert!(f(MatchOp::NotRegex, "a[bc]+", "xabcb"));
        assert!(f(MatchOp::Regex, "", ""));
        let refused = Matcher::new("l", MatchOp::Regex, "(").unwrap_err().to_string();
        assert!(refused.contains("missing closing )") && refused.contains("("), "{refused}");
    }
}
