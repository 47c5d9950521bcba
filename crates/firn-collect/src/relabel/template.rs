//! Replacements: texts with references to groups, by the rules of Go's `Regexp.Expand`.

use firn_model::Result;

use super::editor::check_bytes;
use super::pattern::{Pattern, Slots};

/// A compiled replacement. `$1`, `${1}`, `$name` and `${name}` refer to groups, `$$` is a dollar. A
/// name is as long as possible: `$1x` is the group `1x`. Groups that do not exist are empty.
#[derive(Clone, Debug)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Group(usize),
}

impl Template {
    /// `text` with the groups of `pattern`.
    pub(super) fn new(text: &str, pattern: &Pattern) -> Template {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            plain.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                plain.push('$');
                rest = after;
                continue;
            }
            let Some((name, after)) = reference(after) else {
                plain.push('$');
                rest = after;
                continue;
            };
            rest = after;
            let group = match number(name) {
                Some(number) => Some(number),
                None => pattern.group_named(name),
            };
            if let Some(group) = group {
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Group(group));
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Template { parts }
    }

    /// Appends the replacement for a match in `value`, up to `bytes_max` bytes of `out`.
    ///
    /// # Errors
    /// `TooLarge` if it is too long.
    pub(super) fn expand(
        &self,
        value: &str,
        slots: &Slots,
        (out, bytes_max): (&mut String, usize),
    ) -> Result<()> {
        for part in &self.parts {
            let text = match part {
                Part::Text(text) => text.as_str(),
                Part::Group(group) => slots.group(*group, value),
            };
            check_bytes(out.len().saturating_add(text.len()), bytes_max)?;
            out.push_str(text);
        }
        Ok(())
    }
}

/// The name behind a dollar, and the text behind it; `None` if the dollar is text.
fn reference(after: &str) -> Option<(&str, &str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let (inside, is_braced) = match after.strip_prefix('{') {
        Some(inside) => (inside, true),
        None => (after, false),
    };
    let name_end = inside.find(|c| !is_name(c)).unwrap_or(inside.len());
    let (name, rest) = inside.split_at(name_end);
    if name.is_empty() {
        return None;
    }
    let rest = if is_braced { rest.strip_prefix('}')? } else { rest };
    Some((name, rest))
}

/// The number of a group. A leading zero makes a name.
fn number(name: &str) -> Option<usize> {
    let is_number = name.bytes().all(|c| c.is_ascii_digit());
    let has_leading_zero = name.len() > 1 && name.starts_with('0');
    (is_number && !has_leading_zero && name.len() <= 9).then(|| name.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::pattern::PatternAllowance;
    use super::*;

    /// Was refused.
    #[test]
    fn the_name_of_a_group_may_begin_with_a_digit() {
        let pattern = Pattern::new("(?P<1a>x)y", &mut PatternAllowance::default()).unwrap();
        let mut slots = Slots::default();
        assert!(pattern.find("xy", &mut slots));
        let mut out = String::new();
        Template::new("$1a", &pattern).expand("xy", &slots, (&mut out, 99)).unwrap();
        assert_eq!(out, "x");
    }

    /// Was refused.
    #[test]
    fn a_name_may_have_several_groups() {
        let pattern = "(?P<a>x)(?P<b>y)(?<a>z)?";
        let pattern = Pattern::new(pattern, &mut PatternAllowance::default()).unwrap();
        let mut slots = Slots::default();
        assert!(pattern.find("xyz", &mut slots));
        let mut out = String::new();
        Template::new("$a$b$3", &pattern).expand("xyz", &slots, (&mut out, 99)).unwrap();
        assert_eq!(out, "xyz");
    }

    #[test]
    fn references_are_those_of_go() {
        let mut allowance = PatternAllowance::default();
        let pattern = Pattern::new("(x+)(?P<n1>y)(z)?", &mut allowance).unwrap();
        let mut slots = Slots::default();
        assert!(pattern.find("xxy", &mut slots));
        let f = |text: &str| {
            let mut out = String::new();
            Template::new(text, &pattern).expand("xxy", &slots, (&mut out, 99)).unwrap();
            out
        };
        for (text, want) in [
            ("$1", "xx"),
            ("${1}a", "xxa"),
            ("$1a", ""),
            ("$1é", ""),
            ("$1-$2", "xx-y"),
            ("$n1${n1}", "yy"),
            ("$0", "xxy"),
            ("$00", ""),
            ("$3$4$none", ""),
            ("$$1", "$1"),
            ("$", "$"),
            ("a$-", "a$-"),
            ("${", "${"),
            ("${}", "${}"),
            ("${1", "${1"),
            ("${1-}", "${1-}"),
            ("", ""),
        ] {
            assert_eq!(f(text), want, "{text}");
        }
    }
}
