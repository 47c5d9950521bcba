//! The syntax of regular expressions: parsed as Rust's, with the Perl classes of Go, which
//! Prometheus uses.
//!
//! In Go `\d`, `\w`, `\s` and `\b` know ASCII only. In Rust they know Unicode, which is another
//! language and takes a hundred times the memory.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::print::Printer;
use regex_syntax::ast::{
    AssertionKind, Ast, ClassBracketed, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem, Group,
};
use regex_syntax::hir::Hir;
use regex_syntax::hir::translate::TranslatorBuilder;

// Parsing and compiling recurse over groups and repetitions.
const NEST_MAX: u32 = 100;

/// Parses `pattern`, which must match a whole value; a dot matches newlines.
///
/// # Errors
/// The last line of the parser's message.
pub(crate) fn parse(pattern: &str) -> Result<Hir, String> {
    let anchored = format!("^(?s:{})$", with_literals_escaped(pattern));
    let ast = tree(&anchored)?;
    // Without `utf8`, so that `\B` may be an ASCII boundary. Only whole texts are matched.
    TranslatorBuilder::new()
        .utf8(false)
        .build()
        .translate(&anchored, &ast)
        .map_err(|error| last_line(&error))
}

/// `pattern`, which must match a whole value, as a pattern of Rust with the same meaning: for
/// callers that compile it themselves because they need its groups. It is for bytes
/// (`utf8(false)`): `\B` is an ASCII boundary.
///
/// # Errors
/// The last line of the parser's message.
pub fn rust_pattern(pattern: &str) -> Result<String, String> {
    printed(&tree(&format!("^(?s:{})$", with_literals_escaped(pattern)))?)
}

/// `pattern`, which may match anywhere, as a pattern of Rust with the same meaning.
///
/// # Errors
/// The last line of the parser's message.
pub fn rust_pattern_anywhere(pattern: &str) -> Result<String, String> {
    printed(&tree(&with_literals_escaped(pattern))?)
}

fn printed(ast: &Ast) -> Result<String, String> {
    let mut printed = String::new();
    Printer::new().print(ast, &mut printed).map_err(|error| last_line(&error))?;
    Ok(printed)
}

fn tree(pattern: &str) -> Result<Ast, String> {
    let parsed = ParserBuilder::new().nest_limit(NEST_MAX).build().parse(pattern);
    let mut ast = parsed.map_err(|error| last_line(&error))?;
    check_repetitions(&ast, pattern)?;
    use_ascii(&mut ast);
    Ok(ast)
}

/// Go refuses a repetition of a repetition without a group, such as `a**`. Recursion is bounded by
/// [`NEST_MAX`].
fn check_repetitions(ast: &Ast, pattern: &str) -> Result<(), String> {
    let check = |ast: &Ast| check_repetitions(ast, pattern);
    match ast {
        Ast::Repetition(outer) => {
            if let Ast::Repetition(inner) = &*outer.ast {
                let operators = inner.op.span.start.offset..outer.op.span.end.offset;
                let operators = pattern.get(operators).unwrap_or_default();
                return Err(format!("invalid nested repetition operator: `{operators}`"));
            }
            check(&outer.ast)
        }
        Ast::Group(group) => check(&group.ast),
        Ast::Alternation(alternation) => alternation.asts.iter().try_for_each(check),
        Ast::Concat(concat) => concat.asts.iter().try_for_each(check),
        _ => Ok(()),
    }
}

/// Escapes the characters of `pattern` that are literals in Go and operators or errors in Rust: a
/// brace that begins no repetition, `[`, `&` and `~` in classes, a dash behind a class in a class,
/// and all between `\Q` and `\E`.
fn with_literals_escaped(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(first) = rest.chars().next() {
        let mut len = first.len_utf8();
        let mut is_class = false;
        match first {
            '\\' if rest.starts_with("\\Q") && !in_class => {
                let quoted = rest.get(2..).unwrap_or("");
                let (text, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                out.push_str(&regex_syntax::escape(text));
                rest = after;
                continue;
            }
            '\\' => {
                len = escape_bytes(rest);
                is_class = in_class && rest.get(1..).is_some_and(|c| c.starts_with(CLASS_LETTERS));
            }
            '[' if !in_class => {
                in_class = true;
                // A bracket in front of all others is a member.
                let negated = rest.get(1..).is_some_and(|after| after.starts_with('^'));
                len += usize::from(negated);
                let is_member = rest.get(len..).is_some_and(|after| after.starts_with(']'));
                len += usize::from(is_member);
            }
            '[' if rest.starts_with("[:") => {
                // `[:alpha:]`. Stops at the next bracket, so that all searches take linear time.
                let is_name = |c: char| c == '^' || c.is_ascii_alphabetic();
                let end = rest
                    .get(2..)
                    .and_then(|name| name.trim_start_matches(is_name).strip_prefix(":]"));
                match end {
                    Some(after) => {
                        len = rest.len() - after.len();
                        is_class = true;
                    }
                    None => out.push('\\'),
                }
            }
            '[' | '&' | '~' if in_class => out.push('\\'),
            ']' => in_class = false,
            '{' if !in_class && !is_repetition(rest) => out.push('\\'),
            _ => {}
        }
        let (taken, after) = rest.split_at_checked(len).unwrap_or((rest, ""));
        out.push_str(taken);
        rest = after;
        if let Some(after) = rest.strip_prefix('-').filter(|_| is_class) {
            out.push_str("\\-");
            rest = after;
        }
    }
    out
}

/// The letters of escapes that are classes.
const CLASS_LETTERS: [char; 8] = ['d', 'D', 's', 'S', 'w', 'W', 'p', 'P'];

/// The length of the escape sequence in front: `\d`, `\p{Greek}`, `\x{41}`.
fn escape_bytes(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    let Some(escaped) = chars.next() else { return 1 };
    let len = 1 + escaped.len_utf8();
    match (escaped, chars.next()) {
        ('p' | 'P' | 'x', Some('{')) => {
            // No name of a class is longer.
            let end = text.bytes().take(64).position(|byte| byte == b'}');
            end.map_or(len, |end| end + 1)
        }
        // `\pL`.
        ('p' | 'P', Some(name)) => len + name.len_utf8(),
        _ => len,
    }
}

/// Whether `text` begins with `{2}`, `{2,}` or `{2,3}`.
fn is_repetition(text: &str) -> bool {
    let is_bound = |c: char| c == ',' || c.is_ascii_digit();
    let after = text.get(1..).unwrap_or("");
    let rest = after.trim_start_matches(is_bound);
    if !rest.starts_with('}') {
        return false;
    }
    let inside = after.strip_suffix(rest).unwrap_or("");
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        None => is_number(inside),
        Some((min, max)) => is_number(min) && (max.is_empty() || is_number(max)),
    }
}

fn last_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default();
    reason.strip_prefix("error: ").unwrap_or(reason).to_owned()
}

/// Replaces Perl classes and word boundaries by those of ASCII. Recursion is bounded by
/// [`NEST_MAX`].
fn use_ascii(ast: &mut Ast) {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Literal(_) | Ast::Dot(_) | Ast::ClassUnicode(_) => {}
        Ast::Assertion(assertion) => match assertion.kind {
            AssertionKind::StartLine
            | AssertionKind::EndLine
            | AssertionKind::StartText
            | AssertionKind::EndText => {}
            _ => {
                let assertion = Ast::Assertion(assertion.clone());
                if let Ok(mut without_unicode) = ParserBuilder::new().build().parse("(?-u:x)")
                    && let Ast::Group(group) = &mut without_unicode
                {
                    *group.ast = assertion;
                    *ast = without_unicode;
                }
            }
        },
        Ast::ClassPerl(class) => {
            if let Some(class) = ascii_class(class) {
                *ast = Ast::ClassBracketed(class);
            }
        }
        Ast::ClassBracketed(class) => use_ascii_in_set(&mut class.kind),
        Ast::Repetition(repetition) => use_ascii(&mut repetition.ast),
        Ast::Group(group) => {
            let Group { ast, .. } = &mut **group;
            use_ascii(ast);
        }
        Ast::Alternation(alternation) => alternation.asts.iter_mut().for_each(use_ascii),
        Ast::Concat(concat) => concat.asts.iter_mut().for_each(use_ascii),
    }
}

fn use_ascii_in_set(set: &mut ClassSet) {
    match set {
        ClassSet::Item(item) => use_ascii_in_item(item),
        ClassSet::BinaryOp(operation) => {
            use_ascii_in_set(&mut operation.lhs);
            use_ascii_in_set(&mut operation.rhs);
        }
    }
}

fn use_ascii_in_item(item: &mut ClassSetItem) {
    match item {
        ClassSetItem::Perl(class) => {
            if let Some(class) = ascii_class(class) {
                *item = ClassSetItem::Bracketed(class);
            }
        }
        ClassSetItem::Bracketed(class) => use_ascii_in_set(&mut class.kind),
        ClassSetItem::Union(union) => union.items.iter_mut().for_each(use_ascii_in_item),
        ClassSetItem::Empty(_)
        | ClassSetItem::Literal(_)
        | ClassSetItem::Range(_)
        | ClassSetItem::Ascii(_)
        | ClassSetItem::Unicode(_) => {}
    }
}

/// The class in brackets, as in Go.
fn ascii_class(class: &ClassPerl) -> Option<Box<ClassBracketed>> {
    let text = match (&class.kind, class.negated) {
        (ClassPerlKind::Digit, false) => "[0-9]",
        (ClassPerlKind::Digit, true) => "[^0-9]",
        (ClassPerlKind::Space, false) => r"[\t\n\f\r ]",
        (ClassPerlKind::Space, true) => r"[^\t\n\f\r ]",
        (ClassPerlKind::Word, false) => "[0-9A-Za-z_]",
        (ClassPerlKind::Word, true) => "[^0-9A-Za-z_]",
    };
    match ParserBuilder::new().build().parse(text) {
        Ok(Ast::ClassBracketed(ref class)) => Some(class.clone()),
        // The texts above are classes.
        _ => None,
    }
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
            (r"\Q(x{\E(.*)\Q.", "(x{1.", Some("1")),
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
