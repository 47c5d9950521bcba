//! Matchers: conditions of a selector on one label.

use std::fmt;
use std::sync::Arc;

use regex::Regex;

use crate::pattern::Pattern;
use crate::{Error, Result};

/// The comparison of a matcher.
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
    /// Only for [`Pattern::Regex`]. Shared, because a regular expression allocates working memory
    /// when used.
    regex: Option<Arc<Regex>>,
}

// Compiled size limit of a regular expression; 10,000 alternatives fit.
const REGEX_BYTES_MAX: usize = 16 << 20;
// Cache size limit of a regular expression; with less memory it is slower, but correct.
const REGEX_CACHE_BYTES_MAX: usize = 2 << 20;

/// Describes an error in a regular expression in one line, in Go's words where they are known.
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
    /// Builds a matcher. A regular expression is compiled here, once, if the pattern needs one:
    /// compiling takes 100 microseconds, more than a small query.
    ///
    /// # Errors
    /// `Invalid` for a regular expression that does not compile or is too large.
    pub fn new(name: impl Into<String>, op: MatchOp, value: impl Into<String>) -> Result<Matcher> {
        Matcher::bounded(name, op, value, REGEX_BYTES_MAX)
    }

    /// As [`Matcher::new`], with a limit on the compiled size, for callers that receive many
    /// regular expressions at once.
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

    /// The comparison.
    pub fn op(&self) -> MatchOp {
        self.op
    }

    /// The value or pattern as written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The values accepted before negation: used to find values instead of testing each.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether the matcher negates its pattern.
    pub fn is_negative(&self) -> bool {
        matches!(self.op, MatchOp::NotEqual | MatchOp::NotRegex)
    }

    /// Whether the pattern accepts `value`, before negation.
    pub fn pattern_takes(&self, value: &str) -> bool {
        self.pattern
            .takes(value)
            .unwrap_or_else(|| self.regex.as_ref().is_some_and(|regex| regex.is_match(value)))
    }

    /// Whether a label with `value` matches.
    pub fn matches(&self, value: &str) -> bool {
        self.pattern_takes(value) != self.is_negative()
    }

    /// Whether a series without the label matches.
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
