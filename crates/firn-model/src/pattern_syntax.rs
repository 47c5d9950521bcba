//! The syntax of regular expressions: parsed as Rust's, with the Perl classes of Go, which
//! Prometheus uses.
//!
//! In Go `\d`, `\w`, `\s` and `\b` know ASCII only. In Rust they know Unicode, which is another
//! language and takes a hundred times the memory.

use regex_syntax::ast::parse::ParserBuilder;
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
    let anchored = format!("^(?s:{pattern})$");
    let mut ast = ParserBuilder::new()
        .nest_limit(NEST_MAX)
        .build()
        .parse(&anchored)
        .map_err(|error| last_line(&error))?;
    use_ascii(&mut ast);
    // Without `utf8`, so that `\B` may be an ASCII boundary. Only whole texts are matched.
    TranslatorBuilder::new()
        .utf8(false)
        .build()
        .translate(&anchored, &ast)
        .map_err(|error| last_line(&error))
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
