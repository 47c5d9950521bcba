//! Checks the documents: paths and links that they name exist, and the glossary is complete.

use std::fs;
use std::path::Path;

use super::Breach;
use super::rules::GLOSSARY_WORDS;

const GLOSSARY: &str = "docs/glossary.md";
const DECISIONS: &str = "docs/decisions";

/// Paths in backticks and relative links exist.
pub(crate) fn check_paths(document: &str, text: &str, breaches: &mut Vec<Breach>) {
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    for (idx, line) in text.lines().enumerate() {
        for target in links(line) {
            let file = target.split('#').next().unwrap_or_default();
            if !target.contains("://") && !file.is_empty() && !folder.join(file).exists() {
                let message = format!("link to {target}: no such file");
                breaches.push(Breach::at(document, idx + 1, message));
            }
        }
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_path = ["crates/", "docs/", "xtask/"].iter().any(|p| quoted.starts_with(p))
                && !quoted.contains([' ', '*', '<', '{']);
            if is_path && !Path::new(quoted.trim_end_matches('/')).exists() {
                breaches.push(Breach::at(document, idx + 1, format!("`{quoted}`: no such file")));
            }
        }
    }
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Each required word has an entry, and each entry is one sentence.
pub(crate) fn check_glossary(breaches: &mut Vec<Breach>) {
    match fs::read_to_string(GLOSSARY) {
        Ok(text) => check_entries(&text, breaches),
        Err(e) => breaches.push(Breach::at(GLOSSARY, 1, format!("cannot be read: {e}"))),
    }
}

fn check_entries(text: &str, breaches: &mut Vec<Breach>) {
    let entries = entries(text);
    for (line, word, sentence) in &entries {
        let sentence = sentence.trim_start_matches([' ', ':', '-', '\u{2014}']).trim_end();
        let stops = sentence.matches(". ").count() - sentence.matches("e.g. ").count();
        if sentence.is_empty() || stops > 0 || !sentence.ends_with('.') {
            let message = format!("**{word}**: an entry is one sentence with a full stop");
            breaches.push(Breach::at(GLOSSARY, *line, message));
        }
    }
    for required in GLOSSARY_WORDS {
        let explained = entries.iter().any(|(_, word, _)| {
            word.to_lowercase().split([',', '(']).any(|name| name.trim() == *required)
        });
        if !explained {
            breaches.push(Breach::at(GLOSSARY, 1, format!("no entry **{required}**")));
        }
    }
}

/// Line, word and explanation of each entry: `**word**: explanation`, wrapped lines joined. An
/// entry may be an item of a list or the first two cells of a row of a table.
fn entries(text: &str) -> Vec<(usize, String, String)> {
    let mut entries: Vec<(usize, String, String)> = Vec::new();
    let mut open = false;
    for (idx, line) in text.lines().enumerate() {
        let bare = line.trim().trim_start_matches(['-', '*', '|', ' ']);
        let marked = line.trim().trim_start_matches(['-', '|', ' ']).starts_with("**");
        let entry = bare.split_once("**").filter(|_| marked);
        if let Some((word, rest)) = entry {
            let rest = rest.trim_matches([' ', '|']);
            entries.push((idx + 1, word.trim_end_matches(':').to_owned(), rest.to_owned()));
            open = true;
        } else if line.trim().is_empty() || line.starts_with('#') {
            open = false;
        } else if let Some((_, _, sentence)) = entries.last_mut().filter(|_| open) {
            sentence.push(' ');
            sentence.push_str(line.trim());
        }
    }
    entries
}

/// A record of a decision has the number of its file in its title, and no other one has it: two
/// branches may have taken the same number.
pub(crate) fn check_decisions(breaches: &mut Vec<Breach>) {
    let Ok(entries) = fs::read_dir(DECISIONS) else { return };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let texts = names.iter().map(|name| fs::read_to_string(format!("{DECISIONS}/{name}")));
    let texts: Vec<String> = texts.map(Result::unwrap_or_default).collect();
    let files = names.iter().map(String::as_str).zip(texts.iter().map(String::as_str));
    breaches.extend(
        wrong_numbers(files)
            .map(|(name, message)| Breach::at(&format!("{DECISIONS}/{name}"), 1, message)),
    );
}

fn wrong_numbers<'f>(
    files: impl Iterator<Item = (&'f str, &'f str)>,
) -> impl Iterator<Item = (&'f str, String)> {
    files.enumerate().filter_map(|(idx, (name, text))| {
        let number = idx + 1;
        if !name.starts_with(&format!("{number:04}-")) {
            return Some((name, format!("expected number {number:04}: each number once, no gaps")));
        }
        let title = text.lines().next().unwrap_or_default();
        let wanted = format!("# {number}. ");
        (!title.starts_with(&wanted)).then(|| (name, format!("expected {wanted:?}, got {title:?}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let mut breaches = Vec::new();
        check_entries(text, &mut breaches);
        breaches.retain(|breach| !breach.message.starts_with("no entry"));
        breaches.iter().map(|breach| format!("{}: {}", breach.line, breach.message)).collect()
    }

    #[test]
    fn entries_are_one_sentence() {
        let text = "# Words\n- **row**: samples of\n  one time, e.g. a scrape.\n\
            - **run**: One. Two.\n\
            \n**mark**\nA position.\n| **slab** | A file. |\n- **chunk**: no stop\n";
        let want = [4, 9].map(|line| {
            let word = if line == 4 { "run" } else { "chunk" };
            format!("{line}: **{word}**: an entry is one sentence with a full stop")
        });
        assert_eq!(messages(text), want);
    }

    #[test]
    fn required_words_are_found() {
        let mut breaches = Vec::new();
        let text: String =
            GLOSSARY_WORDS.iter().map(|word| format!("- **{word}**: A.\n")).collect();
        check_entries(&text, &mut breaches);
        assert!(breaches.is_empty());
        check_entries("", &mut breaches);
        assert_eq!(breaches.len(), GLOSSARY_WORDS.len());
    }

    #[test]
    fn missing_paths_and_links() {
        let mut breaches = Vec::new();
        let text = "[a](no-such.md) [b](https://x) [c](#d)\n`crates/none/x.rs` `crates/*`";
        check_paths("docs/a.md", text, &mut breaches);
        assert_eq!(breaches.iter().map(|breach| breach.line).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn decisions_have_the_number_of_their_file() {
        let f = |files: &[(&'static str, &'static str)]| {
            let names: Vec<&str> =
                wrong_numbers(files.iter().copied()).map(|(name, _)| name).collect();
            names.join(" ")
        };
        assert_eq!(f(&[("0001-a.md", "# 1. A"), ("0002-b.md", "# 2. B")]), "");
        assert_eq!(f(&[("0001-a.md", "# 1. A"), ("0001-b.md", "# 1. B")]), "0001-b.md");
        assert_eq!(f(&[("0001-a.md", "# 1. A"), ("0002-b.md", "# 1. B")]), "0002-b.md");
    }
}
