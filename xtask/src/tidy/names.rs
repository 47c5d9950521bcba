//! Checks names: a type name is a noun of the field and means one thing in its crate.

use std::collections::BTreeMap;

use super::Breach;
use super::lexer::{Source, Token};
use super::rules::{BANNED_FUNCTION_PREFIXES, BANNED_TYPE_NAMES, TYPE_NAME_EXCEPTIONS};

/// The declared types: file and line of each declaration, by crate and name.
#[derive(Debug, Default)]
pub(crate) struct TypeNames {
    declared: BTreeMap<(String, String), Vec<(String, usize)>>,
}

impl TypeNames {
    /// Records the types of one file of a crate's `src` and checks their names and those of its
    /// functions.
    pub(crate) fn check_file(
        &mut self,
        path: &str,
        source: &Source<'_>,
        breaches: &mut Vec<Breach>,
    ) {
        for (kind, name) in declarations(&source.tokens) {
            match kind {
                Kind::Function => check_function(path, name, breaches),
                Kind::Type => {
                    if BANNED_TYPE_NAMES.contains(&name.text) {
                        let message =
                            format!("type `{}`: name it with a noun of the field", name.text);
                        breaches.push(Breach::at(path, name.line, message));
                    }
                    if let Some(package) = crate_of_source(path) {
                        let key = (package.to_owned(), name.text.to_owned());
                        self.declared.entry(key).or_default().push((path.to_owned(), name.line));
                    }
                }
            }
        }
    }

    /// Reports the types that share a name within a crate, once per declaration.
    pub(crate) fn check_duplicates(&self, breaches: &mut Vec<Breach>) {
        for ((package, name), sites) in &self.declared {
            let excepted = TYPE_NAME_EXCEPTIONS
                .iter()
                .any(|(room, exception, _)| room == package && exception == name);
            if sites.len() < 2 || excepted {
                continue;
            }
            for (idx, (path, line)) in sites.iter().enumerate() {
                let others: Vec<_> =
                    sites.iter().enumerate().filter(|(other, _)| *other != idx).collect();
                let others: Vec<_> =
                    others.iter().map(|(_, (path, line))| format!("{path}:{line}")).collect();
                let message =
                    format!("type `{name}` is declared more than once: also {}", others.join(", "));
                breaches.push(Breach::at(path, *line, message));
            }
        }
    }
}

/// `crates/firn-log/src/stream.rs` belongs to `firn-log`; a program in `src/bin` is a crate of its
/// own; tests, benches and examples belong to none.
fn crate_of_source(path: &str) -> Option<&str> {
    let (package, inside) = path.strip_prefix("crates/").unwrap_or(path).split_once('/')?;
    let source = inside.strip_prefix("src/")?;
    match source.strip_prefix("bin/") {
        Some(program) => program.split(['/', '.']).next(),
        None => Some(package),
    }
}

fn check_function(path: &str, name: Token<'_>, breaches: &mut Vec<Breach>) {
    if let Some(prefix) =
        BANNED_FUNCTION_PREFIXES.iter().find(|prefix| name.text.starts_with(**prefix))
    {
        let message = format!("function `{}`: {prefix} is no verb of a machine", name.text);
        breaches.push(Breach::at(path, name.line, message));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Type,
    Function,
}

/// Names of declared types and functions. Bodies of macros and associated types are exempt.
fn declarations<'a>(tokens: &[Token<'a>]) -> Vec<(Kind, Token<'a>)> {
    let mut found = Vec::new();
    // For each open brace: whether it opens an `impl` or a `trait`, in which `type` is associated.
    let mut braces = Vec::new();
    let mut header_start = 0;
    let mut idx = 0;
    while idx < tokens.len() {
        match tokens[idx].text {
            "macro_rules" => idx = end_of_group(tokens, idx),
            "{" => {
                braces.push(opens_associated(&tokens[header_start..idx]));
                header_start = idx + 1;
            }
            "}" => {
                braces.pop();
                header_start = idx + 1;
            }
            ";" => header_start = idx + 1,
            keyword @ ("struct" | "enum" | "trait" | "type" | "union" | "fn") => {
                let associated = keyword == "type" && braces.last() == Some(&true);
                let name = tokens.get(idx + 1).filter(|name| is_name(tokens, idx, name));
                if let Some(name) = name.filter(|_| !associated) {
                    let kind = if keyword == "fn" { Kind::Function } else { Kind::Type };
                    found.push((kind, *name));
                }
            }
            _ => {}
        }
        idx += 1;
    }
    found
}

/// `union` and `type` are names too where no name follows them: `a.union(b)`, `r#type`.
fn is_name(tokens: &[Token<'_>], keyword_idx: usize, name: &Token<'_>) -> bool {
    let word = name.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let before = keyword_idx.checked_sub(1).and_then(|before| tokens.get(before));
    word && !before.is_some_and(|before| [".", "#", "$"].contains(&before.text))
}

fn opens_associated(header: &[Token<'_>]) -> bool {
    let mut depth = 0;
    for token in header {
        match token.text {
            "[" | "(" => depth += 1,
            "]" | ")" => depth -= 1,
            _ if depth > 0 => {}
            "impl" | "trait" => return true,
            "#" | "pub" | "unsafe" | "default" | "auto" | "!" => {}
            _ => return false,
        }
    }
    false
}

/// The index of the token that closes the first group after `start`.
fn end_of_group(tokens: &[Token<'_>], start: usize) -> usize {
    let mut depth = 0;
    for (idx, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if depth == 0 {
                    return idx;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lexer::lex;

    fn names(text: &str) -> Vec<String> {
        let source = lex(text);
        declarations(&source.tokens).iter().map(|(_, name)| name.text.to_owned()).collect()
    }

    fn breaches(files: &[(&str, &str)]) -> Vec<String> {
        let mut types = TypeNames::default();
        let mut breaches = Vec::new();
        for (path, text) in files {
            types.check_file(path, &lex(text), &mut breaches);
        }
        types.check_duplicates(&mut breaches);
        breaches.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_kinds_of_types_are_seen() {
        let text = "pub struct A; enum B {} pub(crate) trait C {} type D = u8; union E { a: u8 }
            mod tests { struct F { x: u8 } fn g() { struct H; } }";
        assert_eq!(names(text), ["A", "B", "C", "D", "E", "F", "g", "H"]);
    }

    #[test]
    fn associated_types_and_macros_are_exempt() {
        let text = "impl Iterator for A { type Item = u8; fn next() {} }
            #[allow(x)] pub(crate) trait B { type C; }
            macro_rules! m { () => { struct D; } }
            fn f() -> impl E { type G = u8; }";
        assert_eq!(names(text), ["next", "B", "f", "G"]);
    }

    #[test]
    fn method_calls_and_raw_names_are_no_declarations() {
        assert!(names("a.union(b); let r#type = 1; x(\"struct A\"); // struct B").is_empty());
    }

    #[test]
    fn duplicates_are_reported_at_each_site_of_one_crate() {
        let found = breaches(&[
            ("crates/a/src/x.rs", "struct Part;"),
            ("crates/a/src/y.rs", "\nenum Part {}"),
            ("crates/a/tests/z.rs", "struct Part;"),
            ("crates/b/src/x.rs", "struct Part;"),
        ]);
        let want = [
            "crates/a/src/x.rs:1: type `Part` is declared more than once: also crates/a/src/y.rs:2",
            "crates/a/src/y.rs:2: type `Part` is declared more than once: also crates/a/src/x.rs:1",
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn riddles_are_reported() {
        let text = "struct Told;fn tell_all(){}";
        let found = breaches(&[("crates/a/src/x.rs", text)]);
        assert_eq!(found.len(), 2);
    }
}
