//! Checks circles: no two files of a crate name each other.
//!
//! A module and the modules below it are exempt, and so are tests. Paths are followed as far as
//! they name files, so that a type that a module passes on counts for the module.

use std::collections::{BTreeMap, BTreeSet};

use super::Breach;
use super::lexer::{Source, Token};
use super::rules::CIRCLE_EXCEPTIONS;

/// The modules of each crate, and the paths in each of them.
#[derive(Debug, Default)]
pub(crate) struct ModuleGraph {
    files: BTreeMap<Module, String>,
    paths: BTreeMap<Module, BTreeSet<Vec<String>>>,
}

/// The folder of a crate, and the path in it.
type Module = (String, Vec<String>);

impl ModuleGraph {
    /// Records one file of a crate's `src`. Programs in `src/bin` are left out.
    pub(crate) fn add_file(&mut self, path: &str, source: &Source<'_>) {
        let Some((folder, inside)) = path.split_once("/src/") else { return };
        let inside = inside.trim_end_matches(".rs");
        let words: Vec<&str> = match inside {
            "lib" | "main" => Vec::new(),
            _ => inside.trim_end_matches("/mod").split('/').collect(),
        };
        if words.iter().any(|word| ["bin", "tests", "fuzz"].contains(word)) {
            return;
        }
        let mut paths = BTreeSet::new();
        for (idx, token) in source.tokens.iter().enumerate() {
            let rest = &source.tokens[idx..];
            if rest.len() > 2 && rest[0].text == "mod" && rest[1].text == "tests" {
                break;
            }
            let base = match token.text {
                "crate" => &[],
                "self" => &words[..],
                "super" => &words[..words.len().saturating_sub(1)],
                _ => continue,
            };
            add_paths(&rest[1..], base.to_vec(), &mut paths);
        }
        let module: Module = (folder.to_owned(), words.into_iter().map(str::to_owned).collect());
        self.files.insert(module.clone(), path.to_owned());
        self.paths.insert(module, paths);
    }

    /// Reports each circle once.
    pub(crate) fn check(&self, breaches: &mut Vec<Breach>) {
        let edges: BTreeSet<(&str, &str)> =
            self.paths.keys().flat_map(|module| self.files_used_by(module)).collect();
        for &(file, other) in edges.iter().filter(|(file, other)| file < other) {
            let is_excepted = CIRCLE_EXCEPTIONS.iter().any(|(a, b, _)| (*a, *b) == (file, other));
            if edges.contains(&(other, file)) && !is_excepted {
                let message = format!("{other} imports from this file, which imports from it");
                breaches.push(Breach::at(file, 1, message));
            }
        }
    }

    /// The file of a module, with each other file that it names.
    fn files_used_by<'g>(&'g self, module: &'g Module) -> impl Iterator<Item = (&'g str, &'g str)> {
        let (folder, own) = module;
        self.paths[module].iter().filter_map(move |path| {
            let mut ends = (1..=path.len()).rev();
            let used = ends.find_map(|end| {
                let used = (folder.clone(), path[..end].to_vec());
                self.files.get_key_value(&used)
            });
            let ((_, used), file) = used?;
            let is_family = used.starts_with(own) || own.starts_with(used);
            (!is_family).then_some((self.files[module].as_str(), file.as_str()))
        })
    }
}

/// Adds the paths of a tree such as `::{a::B, c}` below `base`. Returns the tokens behind it.
fn add_paths<'t, 'a>(
    mut tokens: &'t [Token<'a>],
    mut base: Vec<&'a str>,
    paths: &mut BTreeSet<Vec<String>>,
) -> &'t [Token<'a>] {
    while let [Token { text: ":", .. }, Token { text: ":", .. }, next, rest @ ..] = tokens {
        tokens = rest;
        if next.text == "super" {
            base.pop();
        } else if next.text != "{" {
            base.push(next.text);
        } else {
            while let [first, rest @ ..] = tokens {
                tokens = rest;
                match first.text {
                    "}" => break,
                    "," => {}
                    word => tokens = add_paths(tokens, [&base[..], &[word]].concat(), paths),
                }
            }
            return tokens;
        }
    }
    paths.insert(base.into_iter().map(str::to_owned).collect());
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lexer::lex;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let (mut graph, mut breaches) = (ModuleGraph::default(), Vec::new());
        for (path, text) in files {
            graph.add_file(path, &lex(text));
        }
        graph.check(&mut breaches);
        breaches.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_of_files_is_reported_once() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod c;"),
            ("crates/a/src/b.rs", "use super::{d, c::{self, C}}; struct B;"),
            ("crates/a/src/c/mod.rs", "fn f() -> crate::b::B<u8>; mod e; use self::e::E;"),
            ("crates/a/src/c/e.rs", "use super::super::b::B; use super::C;"),
        ];
        let message = "crates/a/src/c/mod.rs imports from this file, which imports from it";
        assert_eq!(circles(&files), [format!("crates/a/src/b.rs:1: {message}")]);
    }

    #[test]
    fn families_tests_and_other_crates_make_no_circle() {
        let files = [
            ("crates/a/src/b.rs", "use crate::c::C; mod e;"),
            ("crates/a/src/b/e.rs", "use super::B;"),
            ("crates/a/src/c.rs", "#[cfg(test)] mod tests { use crate::b::B; }"),
            ("crates/a/src/c/tests.rs", "use crate::b::B;"),
            ("crates/z/src/c.rs", "use crate::b::B;"),
        ];
        assert!(circles(&files).is_empty());
    }
}
