//! Regular expressions in Go's syntax, parsed for the regex crate. See [`crate::go_pattern`].
//!
//! In Go `\d`, `\w`, `\s` and `\b` know ASCII only. In Rust they know Unicode, which is another
//! language and takes a hundred times the memory.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{Ast, Error, ErrorKind};
use regex_syntax::hir::translate::TranslatorBuilder;
use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, Hir, HirKind, Repetition,
};

use crate::go_pattern::{END, NEST_MAX, PatternUse, START, translate};

/// The depth of the tree of a translated pattern, for callers that compile it: the `nest_limit` of
/// the regex crate, which also counts alternatives, sequences, repetitions and the anchors.
pub const PATTERN_DEPTH_MAX: u32 = 4 * (NEST_MAX + 1) + 2 * NEST_MAX + CLASS_DEPTH;
/// The depth of a class in brackets.
const CLASS_DEPTH: u32 = 8;

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
        .map(with_byte_classes)
        .map_err(|error| error.kind().to_string())
}

/// `tree` with bytes in place of every class that contains all characters beyond ASCII, such as `.`
/// and `[^/]`. A character is a byte that begins one and all that continue it, because texts are
/// valid UTF-8. Compiling such a class as characters takes 40 us and half a megabyte.
fn with_byte_classes(tree: Hir) -> Hir {
    let all = |trees: Vec<Hir>| trees.into_iter().map(with_byte_classes).collect();
    match tree.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(text) => Hir::literal(text.0),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Class(Class::Unicode(class)) => {
            byte_class(&class).unwrap_or_else(|| Hir::class(Class::Unicode(class)))
        }
        HirKind::Class(class) => Hir::class(class),
        HirKind::Repetition(mut repetition) => {
            repetition.sub = Box::new(with_byte_classes(*repetition.sub));
            Hir::repetition(repetition)
        }
        HirKind::Capture(group) => with_byte_classes(*group.sub),
        HirKind::Concat(trees) => Hir::concat(all(trees)),
        HirKind::Alternation(trees) => Hir::alternation(all(trees)),
    }
}

/// The bytes of one character of `class`; `None` if the class lacks a character beyond ASCII.
fn byte_class(class: &ClassUnicode) -> Option<Hir> {
    let last = class.ranges().last()?;
    if last.start() > '\u{80}' || last.end() < char::MAX {
        return None;
    }
    let ascii = class.ranges().iter().filter_map(|range| {
        let start = u8::try_from(range.start()).ok().filter(u8::is_ascii)?;
        Some(ClassBytesRange::new(start, u8::try_from(range.end()).unwrap_or(0x7f).min(0x7f)))
    });
    let begins = ClassBytes::new(ascii.chain([ClassBytesRange::new(0xc0, 0xff)]));
    let continues = ClassBytes::new([ClassBytesRange::new(0x80, 0xbf)]);
    let sub = Box::new(Hir::class(Class::Bytes(continues)));
    let rest = Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub });
    Some(Hir::concat(vec![Hir::class(Class::Bytes(begins)), rest]))
}

/// `pattern`, which must match a whole value, as a pattern of Rust with the same meaning: for
/// callers that compile it themselves, with [`PATTERN_DEPTH_MAX`], because they need its groups.
/// It is for bytes (`utf8(false)`): `\B` is an ASCII boundary. For the names of groups see
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
    ParserBuilder::new().nest_limit(PATTERN_DEPTH_MAX).build().parse(pattern).map_err(reason)
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

    /// Found by comparing with Go: the flag applied to the next element only.
    #[test]
    fn a_flag_between_an_element_and_its_repetition_applies_to_both() {
        for (pattern, text, wanted) in [
            ("(.)(?U)*(.*)", "ab", "-|ab"),
            ("(.)(?U)*?(.*)", "ab", "b|"),
            ("(.)(?U)+(.*?)", "ab", "a|b"),
            ("(?U)(.)(?-U)*(.*)", "ab", "b|"),
            ("(?U)(.)(?-U)(?U)*(.*)", "ab", "-|ab"),
            ("(?U:(.)(?-U)*)(.*)", "ab", "b|"),
            ("(.(?U))*(.*)", "ab", "b|"),
            ("(?U:(.))*(.*)", "ab", "b|"),
            ("(.)(?U-U)*(.*)", "ab", "b|"),
            ("(?:c|(.)(?U)*)(.*)", "ab", "-|ab"),
            (r"(.)(?U)\Q\E*(.*)", "ab", "-|ab"),
            ("(.)(?U)*(?-U)*(.*)", "ab", "-|ab"),
            ("(?:(a?b?))(?U){0,2}é", "aé", "a"),
        ] {
            let regex = regex::bytes::Regex::new(&rust_pattern(pattern).unwrap()).unwrap();
            let captures = regex.captures(text.as_bytes()).unwrap();
            let groups = captures.iter().skip(1).map(|group| {
                group.map_or("-", |group| std::str::from_utf8(group.as_bytes()).unwrap())
            });
            assert_eq!(groups.collect::<Vec<_>>().join("|"), wanted, "{pattern}");
        }
    }

    /// Found by an attack: 98 groups were allowed, or 49 of sequences.
    #[test]
    fn groups_nest_up_to_the_documented_limit() {
        let nested = |(open, close): (&str, &str), count: usize| {
            format!("{}[^[:alpha:]\\W]{}", open.repeat(count), close.repeat(count))
        };
        let compiled = move || {
            for shape in [("(", ")"), ("x(", ")z"), ("x(a|y", ")*z"), ("(?:", ")(?i)*?")] {
                let groups = shape.0.matches('(').count();
                let most = NEST_MAX as usize / groups;
                let deepest = nested(shape, most);
                parse(&deepest).unwrap();
                let regex = rust_pattern(&deepest).unwrap();
                regex::bytes::RegexBuilder::new(&regex)
                    .nest_limit(PATTERN_DEPTH_MAX)
                    .build()
                    .unwrap();
                let error = parse(&nested(shape, most + 1)).unwrap_err();
                assert!(error.contains("expression nests too deeply"), "{error}");
            }
        };
        // A part of the stack of a query thread.
        #[expect(clippy::disallowed_methods, reason = "a thread with a small stack")]
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(compiled);
        thread.unwrap().join().unwrap();
    }
}
