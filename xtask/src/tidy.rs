//! Repository rules: which room may use which, circles of files, the English of comments and
//! messages, names, documents. Every rule is checked on every file in under two seconds.

mod circles;
mod documents;
mod lexer;
mod names;
mod prose;
mod rooms;
mod rules;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// One place that breaks one rule.
#[derive(Debug)]
pub(crate) struct Breach {
    path: String,
    line: usize,
    message: String,
}

impl Breach {
    fn at(path: &str, line: usize, message: String) -> Breach {
        Breach { path: path.to_owned(), line, message }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Prints every breach. `paths` limits the report to files and folders, relative to the root of
/// the repository.
pub(crate) fn check(paths: &[String]) -> Result<(), String> {
    if let Some(missing) = paths.iter().find(|path| !Path::new(path).exists()) {
        return Err(format!(
            "{missing}: no such file; paths are relative to the repository's root"
        ));
    }
    let mut breaches = Vec::new();
    rooms::check_edges(&mut breaches)?;
    rooms::check_cards(&mut breaches);
    documents::check_glossary(&mut breaches);
    documents::check_decisions(&mut breaches);
    let mut types = names::TypeNames::default();
    let mut modules = circles::ModuleGraph::default();
    for file in files_below(Path::new(".")) {
        let path = file.to_string_lossy().trim_start_matches("./").to_owned();
        let Ok(text) = fs::read_to_string(&file) else { continue };
        check_file(&path, &text, (&mut types, &mut modules), &mut breaches);
    }
    types.check_duplicates(&mut breaches);
    modules.check(&mut breaches);
    let selected = |breach: &Breach| {
        let inside = |path: &String| {
            let path = path.trim_start_matches("./").trim_end_matches('/');
            let rest = breach.path.strip_prefix(path);
            path == "." || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        paths.is_empty() || paths.iter().any(inside)
    };
    breaches.retain(selected);
    breaches.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for breach in &breaches {
        println!("{breach}");
    }
    if breaches.is_empty() {
        println!("== tidy: ok");
        return Ok(());
    }
    Err(format!("{} breaches of the repository's rules", breaches.len()))
}

fn check_file(
    path: &str,
    text: &str,
    (types, modules): (&mut names::TypeNames, &mut circles::ModuleGraph),
    breaches: &mut Vec<Breach>,
) {
    match path.rsplit('.').next() {
        Some("rs") => {
            let source = lexer::lex(text);
            prose::check_rust(path, text, &source, breaches);
            types.check_file(path, &source, breaches);
            modules.add_file(path, &source);
            rooms::check_rust(path, &source, breaches);
        }
        Some("md") => {
            prose::check_markdown(path, text, breaches);
            documents::check_paths(path, text, breaches);
        }
        Some("toml" | "py" | "sh") => prose::check_hash_comments(path, text, breaches),
        _ if ["Makefile", ".ci/run"].contains(&path) => {
            prose::check_hash_comments(path, text, breaches);
        }
        _ => return,
    }
    for (idx, line) in text.lines().enumerate() {
        if line.contains(concat!("TO", "DO")) && !line.contains("(#") {
            let message = "a to-do needs an issue number: (#12)".to_owned();
            breaches.push(Breach::at(path, idx + 1, message));
        }
    }
}

/// All files, ascending; build output, data and version control are left out.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return files };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files.push(entry.path());
        } else if !["target", ".git", "firn-data", "corpus"].contains(&name.as_str()) {
            files.extend(files_below(&entry.path()));
        }
    }
    files.sort();
    files
}
