//! Checks circles: no file of a crate names itself through other files.
//!
//! Between a module and those below it imports do not count, nor do those of tests. Paths are
//! followed as far as they name files, so that a type that a module passes on counts for the
//! module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Breach;
use super::lexer::{Source, Token};

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

    /// Reports the shortest circle of each file whose other files follow it by name, so that no
    /// circle is reported twice.
    pub(crate) fn check(&self, breaches: &mut Vec<Breach>) {
        let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (file, used) in self.paths.keys().flat_map(|module| self.files_used_by(module)) {
            uses.entry(file).or_default().insert(used);
        }
        for &file in uses.keys() {
            if let Some(circle) = shortest_circle(&uses, file) {
                let message = format!("imports in a circle: {}", circle.join(" -> "));
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

/// The shortest way from `start` over files behind it and back.
fn shortest_circle<'g>(
    uses: &BTreeMap<&'g str, BTreeSet<&'g str>>,
    start: &'g str,
) -> Option<Vec<&'g str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(file) = waiting.pop_front() {
        for &used in uses.get(file).into_iter().flatten() {
            if used == start {
                let way = std::iter::successors(Some(file), |file| came_from.get(file).copied());
                let mut circle: Vec<&str> = std::iter::once(start).chain(way).collect();
                circle.reverse();
                return Some(circle);
            }
            if used > start && !came_from.contains_key(used) {
                came_from.insert(used, file);
                waiting.push_back(used);
            }
        }
    }
    None
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
        let [b, c] = ["crates/a/src/b.rs", "crates/a/src/c/mod.rs"];
        assert_eq!(circles(&files), [format!("{b}:1: imports in a circle: {b} -> {c} -> {b}")]);
    }

    #[test]
    fn a_circle_of_three_files_is_reported_once() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod c; mod d; mod e;"),
            ("crates/a/src/b.rs", "use crate::c::C;"),
            ("crates/a/src/c.rs", "use crate::{d::D, e::E};"),
            ("crates/a/src/d.rs", "use crate::b::B;"),
            ("crates/a/src/e.rs", "use crate::d::D;"),
        ];
        let [b, c, d] = ["b", "c", "d"].map(|name| format!("crates/a/src/{name}.rs"));
        let message = format!("imports in a circle: {b} -> {c} -> {d} -> {b}");
        assert_eq!(circles(&files), [format!("{b}:1: {message}")]);
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
