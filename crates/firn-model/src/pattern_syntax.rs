//! Regular expressions in Go's syntax, parsed for the regex crate. See [`crate::go_pattern`].
//!
//! In Go `\d`, `\w`, `\s` and `\b` know ASCII only. In Rust they know Unicode, which is another
//! language and takes a hundred times the memory.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{Ast, Error, ErrorKind};
use regex_syntax::hir::Hir;
use regex_syntax::hir::translate::TranslatorBuilder;

use crate::go_pattern::{END, NEST_MAX, PatternUse, START, translate};

/// Parses `pattern`, which must match a whole value; a dot matches newlines.
///
/// # Errors
/// Go's message, in one line. It contains the pattern as the user wrote it, as in matchers of
/// Prometheus.
pub(crate) fn parse(pattern: &str) -> Result<Hir, String> {
    let anchored = anchored(pattern, PatternUse::Matcher)?;
    // Without `utf8`, so that `\B` may be an ASCII boundary. Only whole texts are matched.
    TranslatorBuilder::new()
        .utf8(false)
        .build()
        .translate(&anchored, &tree(&anchored)?)
        .map_err(|error| error.kind().to_string())
}

/// `pattern`, which must match a whole value, as a pattern of Rust with the same meaning: for
/// callers that compile it themselves because they need its groups. It is for bytes
/// (`utf8(false)`): `\B` is an ASCII boundary. For the names of groups see
/// [`crate::rust_group_name`].
///
/// # Errors
/// Go's message, in one line. It contains the anchored pattern, as in relabelling of Prometheus.
pub fn rust_pattern(pattern: &str) -> Result<String, String> {
    checked(anchored(pattern, PatternUse::Relabelling)?)
}

/// `pattern`, which may match anywhere, as a pattern of Rust with the same meaning.
///
/// # Errors
/// Go's message, in one line.
pub fn rust_pattern_anywhere(pattern: &str) -> Result<String, String> {
    checked(translate(pattern, PatternUse::Anywhere)?)
}

fn anchored(pattern: &str, usage: PatternUse) -> Result<String, String> {
    Ok(format!("{START}{}{END}", translate(pattern, usage)?))
}

fn checked(pattern: String) -> Result<String, String> {
    tree(&pattern).map(|_| pattern)
}

fn tree(pattern: &str) -> Result<Ast, String> {
    let reason = |error: Error| match error.kind() {
        ErrorKind::NestLimitExceeded(_) => "expression nests too deeply".to_owned(),
        kind => kind.to_string(),
    };
    ParserBuilder::new().nest_limit(NEST_MAX).build().parse(pattern).map_err(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by comparing with Prometheus 3.15: such patterns were refused, and `label_replace`
    /// had classes of Unicode.
    #[test]
    fn patterns_have_the_meaning_of_go() {
        let groups = |pattern: &str, text: &str| {
            let regex = regex::bytes::Regex::new(&rust_pattern(pattern).unwrap()).unwrap();
            let captures = regex.captures(text.as_bytes())?;
            let group = captures.get(1).map_or(&b"-"[..], |group| group.as_bytes());
            Some(String::from_utf8(group.to_vec()).unwrap())
        };
        for (pattern, text, group) in [
            (r"(\w+).*", "üx1", None),
            (r".*?(\d+).*", "x1٣", Some("1")),
            (r".*\b(x).*", "üx", Some("x")),
            (r"(.*)\B.*", "aé", Some("aé")),
            (r"(.*)\Bé.*", "aéé", Some("aé")),
            (r"a\B(.*)", "ab", Some("b")),
            (r"a\B(.*)", "aé", None),
            (r"x{n}(.*)", "x{n}a", Some("a")),
            (r"(a{2})b{,2}{", "aab{,2}{", Some("aa")),
            (r"\Q(x{\E(.*)\Q.\E", "(x{1.", Some("1")),
            (r"([]&&[~a]+)", "]&&[~a", Some("]&&[~a")),
            (r"([^]{]+).\{", "a]{", Some("a")),
            (r"([[:a]+)", "[:a", Some("[:a")),
            (r"([[:alpha:]{]+)\x{41}", "b{A", Some("b{")),
            (r"(?P<n>\p{Lu}){1,}", "AB", Some("B")),
            (r"a|(b)", "b", Some("b")),
            (r"([\d-z]+)", "1-z", Some("1-z")),
            (r"([\w-]+)", "a-", Some("a-")),
            (r"([[:alpha:]-9]+)", "a-9", Some("a-9")),
            (r"([\pL-9]+)[a-c]", "é-9b", Some("é-9")),
            (r"((?:a*)*)b??", "aa", Some("aa")),
        ] {
            assert_eq!(groups(pattern, text).as_deref(), group, "{pattern}");
            assert!(parse(pattern).is_ok(), "{pattern}");
        }
        for (pattern, operators) in [("a**", "**"), ("x(a{1,2}{2})", "{1,2}{2}"), ("a+?*", "+?*")] {
            let error = rust_pattern(pattern).unwrap_err();
            let want = format!("invalid nested repetition operator: `{operators}`");
            assert_eq!(error, want);
            assert_eq!(parse(pattern).unwrap_err(), want);
        }
        for wrong in ["(", "[", "a{2", "x{", r"\Q", "é{é}", "[[", r"[\"] {
            let _ = (rust_pattern(wrong), parse(wrong));
        }
    }
}
