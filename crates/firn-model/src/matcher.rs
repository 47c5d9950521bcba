//! Matchers: conditions of a selector on one label.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::pattern::Pattern;
use crate::{CompiledRegex, HEAP_BLOCK_BYTES, QueryContext, Result};

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
    /// Only for [`Pattern::Regex`]; empty until it is compiled, once for all clones.
    regex: Option<Arc<OnceLock<CompiledRegex>>>,
}

impl Matcher {
    /// Builds a matcher and compiles its pattern: for patterns of our own, of settings and of
    /// programs. A client's pattern is parsed ([`Matcher::parsed`]) and compiled within the limits
    /// of its query.
    ///
    /// # Errors
    /// `Invalid` for a regular expression that does not compile, `TooLarge` over the limits.
    pub fn new(name: impl Into<String>, op: MatchOp, value: impl Into<String>) -> Result<Matcher> {
        let matcher = Matcher::parsed(name, op, value);
        if matcher.needs_compiling() {
            matcher.compile(&QueryContext::unbounded())?;
        }
        Ok(matcher)
    }

    /// The memory that the matcher refers to, without that of its compiled pattern.
    pub fn heap_bytes(&self) -> usize {
        // The lock that clones share, with its heap block.
        const LOCK_BYTES: usize = 48;
        let lock = self.regex.as_ref().map_or(0, |_| LOCK_BYTES);
        let texts = self.name.capacity() + self.value.capacity() + 2 * HEAP_BLOCK_BYTES;
        texts + self.pattern.heap_bytes() + lock
    }

    /// Builds a matcher without compiling its pattern, which takes longer than a small query.
    /// [`Matcher::compile`] follows before the first use.
    pub fn parsed(name: impl Into<String>, op: MatchOp, value: impl Into<String>) -> Matcher {
        let (name, value) = (name.into(), value.into());
        let pattern = Pattern::of(op, &value);
        let regex = (pattern == Pattern::Regex).then(Arc::default);
        Matcher { name, op, value, pattern, regex }
    }

    /// Uses the compiled pattern of `other`, which has the same value, instead of its own: one of
    /// the two is compiled for both.
    pub fn share_pattern(&mut self, other: &Matcher) {
        debug_assert_eq!(self.value, other.value);
        self.regex.clone_from(&other.regex);
    }

    /// Whether [`Matcher::compile`] has work to do.
    pub fn needs_compiling(&self) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.get().is_none())
    }

    /// Compiles the pattern within the limits of a query, for all clones. Does nothing if it is
    /// compiled or needs no compiling.
    ///
    /// # Errors
    /// `Invalid` if it is no regular expression, `TooLarge` over the limits of one expression, of
    /// the request and of the query's memory, `Busy` without memory, `Canceled`, `Timeout`.
    pub fn compile(&self, context: &QueryContext) -> Result<()> {
        if let Some(regex) = &self.regex
            && regex.get().is_none()
        {
            // Another thread may have compiled it meanwhile.
            let _ = regex.set(CompiledRegex::new(&self.value, context)?);
        }
        Ok(())
    }

    /// For matchers that outlive their query: releases working memory of the compiled pattern
    /// beyond some KiB, and counts the rest for [`Pool::Cache`](crate::Pool::Cache).
    pub fn keep(&self) {
        if let Some(regex) = self.regex.as_ref().and_then(|regex| regex.get()) {
            regex.keep();
        }
    }

    /// The compiled pattern; `None` if it needs none.
    pub fn regex(&self) -> Option<&CompiledRegex> {
        let regex = self.regex.as_ref()?;
        if regex.get().is_none() {
            debug_assert!(false, "{self} is used before it is compiled");
            self.compile(&QueryContext::unbounded()).ok()?;
        }
        regex.get()
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
            .unwrap_or_else(|| self.regex().is_some_and(|regex| regex.is_match(value)))
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
