//! The values that a matcher accepts, in the form that is cheapest to evaluate.
//!
//! Most regular expressions of dashboards are lists of literals (`a|b|c`) or a literal next to
//! `.*`. They need no automaton: literals are looked up, prefixes and substrings are compared.

use crate::{HEAP_BLOCK_BYTES, MatchOp};

/// The values that a matcher accepts before negation (for `!=` and `!~`: the values it rejects).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any value, and an absent label.
    Any,
    /// Any value except the empty one.
    NonEmpty,
    /// One of these values, sorted and unique; `""` is the absent label.
    OneOf(Vec<String>),
    /// Values with this prefix.
    Prefix {
        /// The prefix.
        text: String,
        /// Whether at least one more character must follow.
        longer: bool,
    },
    /// Values that contain this text.
    Contains(String),
    /// Values that the regular expression matches.
    Regex,
}

impl Pattern {
    /// The memory of its texts.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Pattern::Any | Pattern::NonEmpty | Pattern::Regex => 0,
            Pattern::OneOf(texts) => {
                let text_bytes = texts.iter().map(|text| text.capacity() + HEAP_BLOCK_BYTES);
                texts.capacity() * size_of::<String>() + text_bytes.sum::<usize>()
            }
            Pattern::Prefix { text, .. } | Pattern::Contains(text) => {
                text.capacity() + HEAP_BLOCK_BYTES
            }
        }
    }

    /// The pattern of a matcher, without its negation.
    pub(crate) fn of(op: MatchOp, value: &str) -> Pattern {
        match op {
            MatchOp::Equal | MatchOp::NotEqual => Pattern::OneOf(vec![value.to_owned()]),
            MatchOp::Regex | MatchOp::NotRegex => Pattern::of_regex(value),
        }
    }

    fn of_regex(regex: &str) -> Pattern {
        let regex = without_parentheses(regex);
        match regex {
            ".*" => return Pattern::Any,
            ".+" => return Pattern::NonEmpty,
            _ => {}
        }
        if let Some(mut literals) = split_literals(regex) {
            literals.sort_unstable();
            literals.dedup();
            return Pattern::OneOf(literals);
        }
        if let Some(text) = regex.strip_suffix(".*") {
            if let Some(text) = literal(text) {
                return Pattern::Prefix { text, longer: false };
            }
            if let Some(text) = text.strip_prefix(".*").and_then(literal) {
                return Pattern::Contains(text);
            }
        }
        if let Some(text) = regex.strip_suffix(".+").and_then(literal) {
            return Pattern::Prefix { text, longer: true };
        }
        Pattern::Regex
    }

    /// Whether a value (`""`: absent) is accepted; `None` if only the regular expression can
    /// decide.
    pub(crate) fn takes(&self, value: &str) -> Option<bool> {
        Some(match self {
            Pattern::Any => true,
            Pattern::NonEmpty => !value.is_empty(),
            Pattern::OneOf(values) => values.binary_search_by(|v| v.as_str().cmp(value)).is_ok(),
            Pattern::Prefix { text, longer } => {
                value.strip_prefix(text.as_str()).is_some_and(|rest| !longer || !rest.is_empty())
            }
            Pattern::Contains(text) => value.contains(text.as_str()),
            Pattern::Regex => return None,
        })
    }
}

/// Removes one pair of parentheses around the whole expression.
fn without_parentheses(regex: &str) -> &str {
    let inside = regex.strip_prefix('(').and_then(|r| r.strip_suffix(')'));
    let inside = inside.map(|inside| inside.strip_prefix("?:").unwrap_or(inside));
    match inside {
        Some(inside) if !inside.contains(['(', ')', '\\', '[']) && !inside.starts_with('?') => {
            inside
        }
        _ => regex,
    }
}

fn split_literals(regex: &str) -> Option<Vec<String>> {
    // An escaped bar would be split too; the automaton handles those.
    if regex.contains("\\|") {
        return None;
    }
    regex.split('|').map(literal).collect()
}

/// The only text that `regex` matches, if there is exactly one.
fn literal(regex: &str) -> Option<String> {
    let mut text = String::with_capacity(regex.len());
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        match c {
            // An escaped letter is a class or an assertion; escaped punctuation is literal.
            '\\' => text.push(chars.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                return None;
            }
            c => text.push(c),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_forms_need_no_automaton() {
        let one_of = |values: &[&str]| {
            Pattern::OneOf(values.iter().map(|&value| value.to_owned()).collect())
        };
        let f = Pattern::of_regex;
        assert_eq!(f(""), one_of(&[""]));
        assert_eq!(f("b-c|a||a"), one_of(&["", "a", "b-c"]));
        assert_eq!(f("(a|b)"), one_of(&["a", "b"]));
        assert_eq!(f("(?:a|b)"), one_of(&["a", "b"]));
        assert_eq!(f(r"10\.0\.0\.1:9100"), one_of(&["10.0.0.1:9100"]));
        assert_eq!(f("cpu_.*"), Pattern::Prefix { text: "cpu_".into(), longer: false });
        assert_eq!(f("cpu_.+"), Pattern::Prefix { text: "cpu_".into(), longer: true });
        assert_eq!(f(".*x.*"), Pattern::Contains("x".into()));
        assert_eq!((f(".*"), f(".+"), f("(.*)")), (Pattern::Any, Pattern::NonEmpty, Pattern::Any));
        for other in ["a.b", "(a)|(b)", "(?i)a", "a|b.*", r"\d", r"a\|b", "[ab]", "a$", "(a|b)c"] {
            assert_eq!(f(other), Pattern::Regex, "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_pattern_agrees_with_the_regular_expression(
            regex in r"[(]?([ab.]|\.\*|\.\+|\||\\\.|\?:|[)]){0,5}[)]?",
            value in "[ab.|]{0,4}",
        ) {
            let Ok(compiled) = regex::Regex::new(&format!("^(?s:{regex})$")) else {
                return Ok(());
            };
            let pattern = Pattern::of_regex(&regex);
            if let Some(got) = pattern.takes(&value) {
                prop_assert_eq!(got, compiled.is_match(&value), "{:?}", pattern);
            }
        }
    }
}
