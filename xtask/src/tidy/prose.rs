//! Checks the English: extracts paragraphs from Rust, Markdown and `#` comments, then applies the
//! phrase rules and the limits of line length.

use super::Breach;
use super::lexer::{self, Source, StringLiteral};
use super::rules::{
    CODE_COLUMNS_MAX, FOREIGN_PATH_ADVICE, FOREIGN_PATHS, MARKDOWN_COLUMNS_MAX, PHRASES,
    PROSE_EXCEPTIONS, PhraseRule, Scope,
};

/// A string literal with fewer spaces is a key, a name or a format, not prose.
const PROSE_SPACES_MIN: usize = 3;

pub(crate) fn check_rust(path: &str, text: &str, source: &Source<'_>, breaches: &mut Vec<Breach>) {
    for (idx, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let table = ["/// |", "//! |", "// |"].iter().any(|start| comment.starts_with(start));
        // A query, a JSON answer or the header of a table loses its shape when it is broken.
        let literal = !comment.starts_with("//") && line.contains('"');
        if !table && !literal {
            check_columns(path, idx + 1, line, CODE_COLUMNS_MAX, breaches);
        }
    }
    for paragraph in comment_paragraphs(source) {
        paragraph.check(path, "", breaches);
    }
    for literal in &source.strings {
        if literal.text.matches(' ').count() >= PROSE_SPACES_MIN {
            string_paragraph(literal).check(path, " (string)", breaches);
        }
    }
}

pub(crate) fn check_markdown(path: &str, text: &str, breaches: &mut Vec<Breach>) {
    let mut paragraphs = Paragraphs::default();
    let mut fence = Fence::default();
    for (idx, line) in text.lines().enumerate() {
        if fence.contains(line) {
            paragraphs.end();
            continue;
        }
        if !line.starts_with('|') {
            check_columns(path, idx + 1, line, MARKDOWN_COLUMNS_MAX, breaches);
        }
        paragraphs.push_line(idx + 1, line);
    }
    for paragraph in paragraphs.finish() {
        paragraph.check(path, "", breaches);
    }
}

/// Makefile, TOML, shell, Python: whole-line `#` comments, and docstrings of Python.
pub(crate) fn check_hash_comments(path: &str, text: &str, breaches: &mut Vec<Breach>) {
    let mut paragraphs = Paragraphs::default();
    let mut docstring = false;
    for (idx, line) in text.lines().enumerate() {
        let line_number = idx + 1;
        let quotes = if path.ends_with(".py") { line.matches("\"\"\"").count() } else { 0 };
        let bare = line.trim_start();
        let prose = if docstring || (quotes > 0 && bare.starts_with("\"\"\"")) {
            Some(bare.replace("\"\"\"", ""))
        } else {
            bare.strip_prefix('#').filter(|comment| !comment.starts_with('!')).map(str::to_owned)
        };
        docstring ^= quotes % 2 == 1;
        match prose {
            Some(prose) => {
                check_columns(path, line_number, line, CODE_COLUMNS_MAX, breaches);
                paragraphs.push_line(line_number, &prose);
            }
            None => paragraphs.end(),
        }
    }
    for paragraph in paragraphs.finish() {
        paragraph.check(path, "", breaches);
    }
}

fn check_columns(path: &str, line: usize, text: &str, limit: usize, breaches: &mut Vec<Breach>) {
    let columns = text.chars().count();
    if columns <= limit {
        return;
    }
    // An address cannot be wrapped: a line is exempt if little else is on it.
    let addresses = text.split(' ').filter(|word| word.contains("://") || word.contains("]("));
    let address_columns = addresses.map(|word| word.chars().count()).max().unwrap_or(0);
    if columns - address_columns < limit / 2 {
        return;
    }
    breaches.push(Breach::at(path, line, format!("{columns} columns, limit {limit}")));
}

/// Adjacent comments of one kind and column are one text; a code line separates them.
fn comment_paragraphs(source: &Source<'_>) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let mut fence = Fence::default();
    let mut last_line = 0;
    let mut last_marker = "";
    for comment in &source.comments {
        let marker = ["/**", "/*!", "/*", "///", "//!", "//"]
            .into_iter()
            .find(|marker| comment.text.starts_with(marker))
            .unwrap_or_default();
        if comment.line != last_line + 1 || marker != last_marker || comment.trailing {
            paragraphs.end();
            fence = Fence::default();
        }
        let text = comment.text[marker.len()..].trim_end_matches("*/");
        for (idx, line) in text.split('\n').enumerate() {
            let line = line.trim_start().strip_prefix("* ").filter(|_| idx > 0).unwrap_or(line);
            if fence.contains(line) {
                paragraphs.end();
            } else {
                paragraphs.push_line(comment.line + idx, line);
            }
            last_line = comment.line + idx;
        }
        last_marker = marker;
        if comment.trailing {
            paragraphs.end();
        }
    }
    paragraphs.finish()
}

fn string_paragraph(literal: &StringLiteral<'_>) -> Paragraph {
    let mut paragraph = Paragraph::default();
    let mut continued = false;
    for (idx, line) in literal.text.split('\n').enumerate() {
        let mut line = if continued { line.trim_start() } else { line };
        continued = !literal.raw && line.ends_with('\\');
        if continued {
            line = &line[..line.len() - 1];
        }
        let unescaped = if literal.raw { line.to_owned() } else { unescape(line) };
        paragraph.push(literal.line + idx, &unescaped, if continued { "" } else { "\n" });
    }
    paragraph.mask_placeholders();
    paragraph
}

/// Escapes that separate words or quote them; others become a full stop, which ends a word.
fn unescape(line: &str) -> String {
    let mut unescaped = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(character) = chars.next() {
        unescaped.push(match character {
            '\\' => match chars.next() {
                Some('n' | 'r') => '\n',
                Some('t') => ' ',
                Some(quoted @ ('"' | '\'' | '\\')) => quoted,
                _ => '.',
            },
            other => other,
        });
    }
    unescaped
}

/// Fenced blocks of Markdown.
#[derive(Debug, Default)]
struct Fence {
    open: bool,
}

impl Fence {
    /// Whether `line` is inside a fence or is its border.
    fn contains(&mut self, line: &str) -> bool {
        let border = line.trim_start().starts_with("```");
        let inside = self.open || border;
        self.open ^= border;
        inside
    }
}

/// Collects lines into paragraphs: an empty line, a list item, a heading and a row of a table each
/// start another one.
#[derive(Debug, Default)]
struct Paragraphs {
    done: Vec<Paragraph>,
    current: Paragraph,
}

impl Paragraphs {
    fn push_line(&mut self, line: usize, text: &str) {
        let text = text.trim();
        let item = ["- ", "* ", "+ ", "#", "|", "> "].iter().find(|mark| text.starts_with(**mark));
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let numbered = digits > 0 && text[digits..].starts_with(". ");
        if text.is_empty() || item.is_some() || numbered {
            self.end();
        }
        let mark_bytes = if numbered { digits + 2 } else { item.map_or(0, |mark| mark.len()) };
        self.current.push(line, text[mark_bytes..].trim_start_matches(['#', ' ']), " ");
        if text.starts_with('#') || text.starts_with('|') {
            self.end();
        }
    }

    fn end(&mut self) {
        let paragraph = std::mem::take(&mut self.current);
        if !paragraph.text.trim().is_empty() {
            self.done.push(paragraph);
        }
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

/// A run of text in which sentences may cross lines.
#[derive(Debug, Default)]
struct Paragraph {
    text: String,
    /// Offset in `text` and line in the file, ascending.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, line: usize, text: &str, separator: &str) {
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
        self.text.push_str(separator);
    }

    fn line_at(&self, offset: usize) -> (usize, &str) {
        let idx = self.lines.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        let (start, line) = self.lines.get(idx).copied().unwrap_or_default();
        let end = self.lines.get(idx + 1).map_or(self.text.len(), |(end, _)| *end);
        (line, self.text[start..end].trim())
    }

    /// `{name}` in a format string is not prose.
    fn mask_placeholders(&mut self) {
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        mask_between(&mut bytes, b'{', b'}');
        self.text = String::from_utf8_lossy(&bytes).into_owned();
    }

    fn check(&self, path: &str, kind: &str, breaches: &mut Vec<Breach>) {
        let mut report = |offset: usize, phrase: &str, advice: &str| {
            let (line, text) = self.line_at(offset);
            let excepted =
                PROSE_EXCEPTIONS.iter().any(|(file, part, _)| *file == path && text.contains(part));
            if !excepted {
                let shown: String = text.replace('\n', " ").chars().take(110).collect();
                let message = format!("\"{phrase}\"{kind}: {advice} | {shown}");
                breaches.push(Breach::at(path, line, message));
            }
        };
        for folder in FOREIGN_PATHS {
            for (offset, _) in self.text.match_indices(folder) {
                if !self.text[..offset].ends_with(lexer::is_word) {
                    report(offset, folder, FOREIGN_PATH_ADVICE);
                }
            }
        }
        for (offset, phrase, rule) in find_phrases(&mask(&self.text)) {
            report(offset, &phrase, rule.advice);
        }
    }
}

/// Replaces code, quotations and addresses by words of the same length.
fn mask(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    mask_between(&mut bytes, b'`', b'`');
    mask_between(&mut bytes, b'"', b'"');
    let masked = String::from_utf8_lossy(&bytes).into_owned();
    let mut bytes = masked.clone().into_bytes();
    let mut start = 0;
    for word in masked.split([' ', '\n']) {
        let address = word.find("](").or_else(|| word.contains("://").then_some(0));
        if let Some(offset) = address {
            bytes[start + offset..start + word.len()].fill(b'x');
        }
        start += word.len() + 1;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Fills each pair of `open` and `close` and the bytes between them. Bytes inside become `x`: the
/// text keeps its length, so offsets stay valid.
fn mask_between(bytes: &mut [u8], open: u8, close: u8) {
    let mut start = None;
    for idx in 0..bytes.len() {
        match start {
            Some(from) if bytes[idx] == close => {
                bytes[from..=idx].fill(b'x');
                start = None;
            }
            None if bytes[idx] == open => start = Some(idx),
            _ => {}
        }
    }
}

#[derive(Debug)]
struct Word<'a> {
    start: usize,
    text: &'a str,
    lower: String,
}

fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (idx, character) in text.char_indices().chain([(text.len(), ' ')]) {
        match (start, lexer::is_word(character)) {
            (None, true) => start = Some(idx),
            (Some(from), false) => {
                let word = &text[from..idx];
                words.push(Word { start: from, text: word, lower: word.to_lowercase() });
                start = None;
            }
            _ => {}
        }
    }
    words
}

fn find_phrases(text: &str) -> Vec<(usize, String, &'static PhraseRule)> {
    let words = words(text);
    let mut breaches = Vec::new();
    for idx in 0..words.len() {
        for rule in PHRASES {
            let matched =
                rule.phrases.iter().find_map(|phrase| match_at(text, &words[idx..], phrase));
            let Some(count) = matched else { continue };
            let last = &words[idx + count - 1];
            let end = last.start + last.text.len();
            let next =
                words.get(idx + count).filter(|next| matches!(&text[end..next.start], " " | "-"));
            let allowed = next.is_some_and(|next| rule.unless_next.contains(&next.lower.as_str()));
            if !allowed && in_scope(rule.scope, text, words[idx].start, words[idx].text) {
                breaches.push((words[idx].start, text[words[idx].start..end].to_owned(), rule));
            }
        }
    }
    breaches
}

/// How many words the phrase has, if `words` start with it.
fn match_at(text: &str, words: &[Word<'_>], phrase: &str) -> Option<usize> {
    let mut count = 0;
    for (part, word) in phrase.split(' ').zip(words.iter().map(Some).chain(std::iter::repeat(None)))
    {
        let word = word?;
        if word.lower != part {
            return None;
        }
        if count > 0 {
            let before = &words[count - 1];
            let between = &text[before.start + before.text.len()..word.start];
            if !between.chars().all(char::is_whitespace) {
                return None;
            }
        }
        count += 1;
    }
    Some(count)
}

fn in_scope(scope: Scope, text: &str, start: usize, word: &str) -> bool {
    match scope {
        Scope::Anywhere => true,
        Scope::LowerCase => word.starts_with(char::is_lowercase),
        Scope::Statements => !is_question(text, start),
        Scope::StatementStart => starts_sentence(text, start) && !is_question(text, start),
        Scope::WholeSentence => {
            let sentence = sentence_from(text, start);
            starts_sentence(text, start) && !sentence.contains([',', ':', '?'])
        }
    }
}

fn is_question(text: &str, start: usize) -> bool {
    text[start..].chars().find(|character| ['.', '?'].contains(character)) == Some('?')
}

fn starts_sentence(text: &str, start: usize) -> bool {
    let before = &text[..start];
    let spaced = before.trim_end_matches(' ');
    spaced.is_empty()
        || before.ends_with(['\n', '('])
        || before.ends_with("**")
        || (spaced.len() < before.len() && spaced.ends_with(['.', ';', ':', '!', '?', '-']))
}

/// Up to the first full stop that ends a sentence, or a semicolon.
fn sentence_from(text: &str, start: usize) -> &str {
    let rest = &text[start..];
    let ends = [". ", "; ", ".\n", "\n\n", "? "];
    let end = ends.iter().filter_map(|end| rest.find(end).map(|idx| idx + 1)).min();
    &rest[..end.unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests;
