//! The replacement of `label_replace`: text with references to capture groups.

use firn_model::{Result, rust_group_name};
use regex::bytes::Captures;

use super::meter::Meter;

/// A replacement: `$1`, `$name` and `${name}` refer to capture groups, `$$` is a dollar. Groups
/// that do not exist are empty. A dollar before anything else is text.
#[derive(Clone, Copy)]
pub(super) struct Template<'t> {
    pub(super) text: &'t str,
}

/// A part of a template. Parts are read from the text each time: a template of a megabyte has no
/// list of them.
enum Part<'t> {
    Text(&'t str),
    Group(&'t str),
}

impl<'t> Template<'t> {
    /// The length of [`Template::expand`], without building it.
    ///
    /// # Errors
    /// `Timeout` or `Canceled`: each of many groups may have a long value.
    pub(super) fn expanded_bytes(self, captures: &Captures<'_>, meter: &Meter) -> Result<usize> {
        let mut sum = 0usize;
        for (idx, part) in self.parts().enumerate() {
            meter.check_canceled_at(idx)?;
            sum = sum.saturating_add(value(&part, captures).len());
        }
        Ok(sum)
    }

    /// The template with the values of the groups.
    pub(super) fn expand(self, captures: &Captures<'_>, expanded_bytes: usize) -> String {
        let mut expanded = String::with_capacity(expanded_bytes);
        self.parts().for_each(|part| expanded.push_str(value(&part, captures)));
        expanded
    }

    fn parts(self) -> impl Iterator<Item = Part<'t>> {
        let mut rest = self.text;
        std::iter::from_fn(move || {
            let dollar = rest.find('$');
            let Some(after) = dollar.and_then(|at| rest.get(at + 1..)) else {
                return (!rest.is_empty()).then(|| Part::Text(std::mem::take(&mut rest)));
            };
            if dollar != Some(0) {
                let (text, from_dollar) = rest.split_at(rest.len() - after.len() - 1);
                rest = from_dollar;
                return Some(Part::Text(text));
            }
            let (part, end) = reference(after);
            rest = end;
            Some(part)
        })
    }
}

/// The part that begins with a dollar before `after`, and the text behind it.
fn reference(after: &str) -> (Part<'_>, &str) {
    if let Some(end) = after.strip_prefix('$') {
        return (Part::Text("$"), end);
    }
    if let Some((name, end)) = after.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
        return (Part::Group(name), end);
    }
    let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let name_end = after.find(|c| !is_name(c)).unwrap_or(after.len());
    match after.split_at(name_end) {
        ("", _) => (Part::Text("$"), after),
        (name, end) => (Part::Group(name), end),
    }
}

fn value<'v>(part: &Part<'v>, captures: &'v Captures<'_>) -> &'v str {
    match part {
        Part::Text(text) => text,
        Part::Group(name) => {
            let group = match name.parse::<usize>() {
                Ok(idx) => captures.get(idx),
                Err(_) => captures.name(&rust_group_name(name)),
            };
            group.and_then(|group| std::str::from_utf8(group.as_bytes()).ok()).unwrap_or("")
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;
    use proptest::prelude::*;
    use regex::bytes::Regex;

    use super::*;

    fn meter() -> Meter {
        Meter::new(u64::MAX, &QueryContext::unbounded())
    }

    #[test]
    fn references_are_replaced_and_other_dollars_kept() {
        let regex = Regex::new("(?P<a>x+)(y)?").unwrap();
        let captures = regex.captures(b"xx").unwrap();
        let f = |text: &str| {
            let template = Template { text };
            let bytes = template.expanded_bytes(&captures, &meter()).unwrap();
            let expanded = template.expand(&captures, bytes);
            assert_eq!(expanded.len(), bytes, "{text}");
            expanded
        };
        assert_eq!(f("<$1-${a}-$a>"), "<xx-xx-xx>");
        assert_eq!(f("$2$9$nothing${nothing}$1a"), "");
        assert_eq!(f("$$1 $ ${ $- é$"), "$1 $ ${ $- é$");
        assert_eq!(f(""), "");
    }

    /// Was refused.
    #[test]
    fn the_name_of_a_group_may_begin_with_a_digit() {
        let regex = Regex::new(&firn_model::rust_pattern("(?P<1a>x)y").unwrap()).unwrap();
        let captures = regex.captures(b"xy").unwrap();
        assert_eq!(Template { text: "$1a" }.expand(&captures, 1), "x");
    }

    proptest! {
        /// The library's own expansion builds the text at once.
        #[test]
        fn an_expansion_is_that_of_the_library(text in "[$a1{}é_ ]{0,12}") {
            let regex = Regex::new("(?P<a>x+)(y)?").unwrap();
            let captures = regex.captures(b"axx").unwrap();
            let mut expected = Vec::new();
            captures.expand(text.as_bytes(), &mut expected);
            let expected = String::from_utf8(expected).unwrap();
            let template = Template { text: &text };
            let bytes = template.expanded_bytes(&captures, &meter()).unwrap();
            prop_assert_eq!(template.expand(&captures, bytes), expected);
        }
    }
}
