//! The regular expressions of rules: Go's syntax, anchored at both ends, with groups.

use firn_model::{Error, PATTERN_DEPTH_MAX, Result, excerpt, rust_group_name, rust_pattern};
use regex_automata::meta::Regex;
use regex_automata::util::primitives::NonMaxUsize;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, PatternID};

/// The longest expression. 10,000 alternatives fit.
pub const PATTERN_BYTES_MAX: usize = 256 << 10;
// A repetition of a class compiles to megabytes; ordinary expressions to kilobytes.
const STATE_BYTES_MAX: usize = 8 << 20;
const CACHE_BYTES_MAX: usize = 2 << 20;
/// All expressions of a list of rules.
const LIST_STATE_BYTES_MAX: usize = 64 << 20;
// A search with groups takes memory for each group and state.
const GROUPS_MAX: usize = 1_000;

/// An expression that must match whole values.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// `(.*)`, the default.
    Any,
    Regex(Box<Regex>),
}

/// The memory that the expressions of a list may still take.
#[derive(Debug)]
pub(super) struct PatternAllowance {
    state_bytes_left: usize,
}

impl Default for PatternAllowance {
    fn default() -> PatternAllowance {
        PatternAllowance { state_bytes_left: LIST_STATE_BYTES_MAX }
    }
}

/// The offsets of the groups of a match; reused for many matches.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Option<NonMaxUsize>>);

impl Slots {
    /// The text of a group in `value`; empty if it took no part in the match.
    pub(super) fn group<'v>(&self, group: usize, value: &'v str) -> &'v str {
        let at = |idx: usize| self.0.get(idx).copied().flatten().map(NonMaxUsize::get);
        let start_slot = group.saturating_mul(2);
        match (at(start_slot), at(start_slot.saturating_add(1))) {
            (Some(start), Some(end)) => value.get(start..end).unwrap_or(""),
            _ => "",
        }
    }

    fn set_whole(&mut self, value: &str) {
        let (start, end) = (NonMaxUsize::new(0), NonMaxUsize::new(value.len()));
        self.0.clear();
        self.0.extend([start, end, start, end]);
    }
}

impl Pattern {
    /// Checks `pattern` without compiling it.
    ///
    /// # Errors
    /// `Invalid` if it is no regular expression.
    pub(super) fn check_syntax(pattern: &str) -> Result<()> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(fault(pattern, &format!("it has over {PATTERN_BYTES_MAX} bytes")));
        }
        rust_pattern(pattern).map(drop).map_err(|reason| syntax_fault(&reason))
    }

    /// Compiles `pattern`.
    ///
    /// # Errors
    /// `Invalid` if it is no regular expression, or too large.
    pub(super) fn new(pattern: &str, allowance: &mut PatternAllowance) -> Result<Pattern> {
        if pattern == "(.*)" {
            return Ok(Pattern::Any);
        }
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(fault(pattern, &format!("it has over {PATTERN_BYTES_MAX} bytes")));
        }
        let anchored = rust_pattern(pattern).map_err(|reason| syntax_fault(&reason))?;
        let limit = STATE_BYTES_MAX.min(allowance.state_bytes_left);
        let config = Regex::config()
            .nfa_size_limit(Some(limit))
            .hybrid_cache_capacity(CACHE_BYTES_MAX)
            .onepass_size_limit(Some(CACHE_BYTES_MAX));
        let syntax = syntax::Config::new().nest_limit(PATTERN_DEPTH_MAX).utf8(false);
        let built = Regex::builder().configure(config).syntax(syntax).build(&anchored);
        let regex = built.map_err(|error| match error.size_limit() {
            Some(_) if limit < STATE_BYTES_MAX => {
                let all = "with the expressions before it, it compiles to over";
                fault(pattern, &format!("{all} {LIST_STATE_BYTES_MAX} bytes"))
            }
            Some(_) => fault(pattern, &format!("it compiles to over {limit} bytes")),
            None => fault(pattern, &last_line(&error.to_string())),
        })?;
        if regex.captures_len() > GROUPS_MAX {
            return Err(fault(pattern, &format!("it has over {GROUPS_MAX} groups")));
        }
        let left = allowance.state_bytes_left.saturating_sub(regex.memory_usage());
        allowance.state_bytes_left = left;
        Ok(Pattern::Regex(Box::new(regex)))
    }

    pub(super) fn is_match(&self, value: &str) -> bool {
        match self {
            Pattern::Any => true,
            Pattern::Regex(regex) => {
                regex.is_match(Input::new(value).anchored(Anchored::Yes).earliest(true))
            }
        }
    }

    /// Whether the expression matches, with its groups.
    pub(super) fn find(&self, value: &str, slots: &mut Slots) -> bool {
        match self {
            Pattern::Any => {
                slots.set_whole(value);
                true
            }
            Pattern::Regex(regex) => {
                slots.0.clear();
                slots.0.resize(regex.group_info().slot_len(), None);
                let input = Input::new(value).anchored(Anchored::Yes);
                regex.search_slots(&input, &mut slots.0).is_some()
            }
        }
    }

    /// The number of the group `name`.
    pub(super) fn group_named(&self, name: &str) -> Option<usize> {
        match self {
            Pattern::Any => None,
            Pattern::Regex(regex) => {
                regex.group_info().to_index(PatternID::ZERO, &rust_group_name(name))
            }
        }
    }
}

fn last_line(text: &str) -> String {
    let line = text.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Describes an error in Go's form.
fn fault(pattern: &str, reason: &str) -> Error {
    syntax_fault(&format!("{reason}: `^(?s:{})$`", excerpt(pattern)))
}

fn syntax_fault(reason: &str) -> Error {
    Error::invalid(format!("error parsing regexp: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Result<Pattern> {
        Pattern::new(text, &mut PatternAllowance::default())
    }

    #[test]
    fn whole_values_are_matched_with_newlines() {
        for (text, value, want) in [
            ("f|o", "fo", false),
            ("f|oo", "oo", true),
            ("a.b", "a\nb", true),
            ("", "", true),
            ("", "a", false),
            ("^a$", "a", true),
            ("(?i)ab", "AB", true),
            (r"\d+", "٣", false),
            (r"\pL", "é", true),
            ("(.*)", "any\nthing", true),
            ("a{,2}", "a{,2}", true),
            // Was refused.
            (r"(.*)\B", "aé", true),
            (r"a\B.", "aé", false),
        ] {
            let compiled = pattern(text).unwrap();
            let mut slots = Slots::default();
            assert_eq!(compiled.is_match(value), want, "{text} {value}");
            assert_eq!(compiled.find(value, &mut slots), want, "{text} {value}");
        }
    }

    #[test]
    fn wrong_and_large_expressions_are_refused() {
        for (text, want) in [
            ("(", "error parsing regexp: missing closing ): `^(?s:()$`"),
            (r"\pL{1000}", "over 8388608 bytes"),
            ("[", "error parsing regexp: missing closing ]: `[)$`"),
            ("(a{500}){500}", "error parsing regexp: invalid repeat count: `{500}`"),
            (r"\p{alpha}", r"error parsing regexp: invalid character class range: `\p{alpha}`"),
            (&"(a)".repeat(1_001), "over 1000 groups"),
            (&"a".repeat(PATTERN_BYTES_MAX + 1), "over 262144 bytes"),
        ] {
            let error = pattern(text).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
