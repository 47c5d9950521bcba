//! Texts that Prometheus' parser accepts and the one here refuses.
//!
//! A mistake of the parser may have a [`Repair`]: the text is changed at the place of the mistake
//! and read again. Lines keep their numbers; columns behind a change on its line move.

use saphyr_parser::{Marker, ScanError};

/// A change of a text that does not change its meaning to Prometheus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair {
    kind: RepairKind,
    at: Marker,
}

#[derive(Clone, Copy, Debug)]
enum RepairKind {
    /// Deeper lines in the quoted scalar at the place, which may have any indentation.
    DeepenScalar,
    /// Deeper lines in the collection in brackets around the place, which may have any
    /// indentation.
    DeepenBrackets,
    /// Deeper text in the line of the place, which is in a quoted scalar and begins with a tab.
    DeepenLine,
    /// The same in a collection in brackets, before a token. In others, tabs are a mistake.
    DeepenBracketLine,
    /// A blank at the place: between a token and a comment, or behind a colon and a tab.
    AddBlank,
    /// `'` instead of `\'` in the quoted scalar at the place.
    UnescapeQuotes,
}

impl Repair {
    /// The repair for a mistake; `None` if Prometheus' parser refuses the text too.
    pub(crate) fn of(error: &ScanError) -> Option<Repair> {
        let kind = match error.info() {
            "invalid indentation in quoted scalar" => RepairKind::DeepenScalar,
            // Outside of brackets, less indentation ends a collection.
            "invalid indentation" | "invalid indentation in flow construct" => {
                RepairKind::DeepenBrackets
            }
            "tab cannot be used as indentation" => RepairKind::DeepenLine,
            "tabs disallowed within this context (block indentation)" => {
                RepairKind::DeepenBracketLine
            }
            "comments must be separated from other tokens by whitespace"
            | "':' must be followed by a valid YAML whitespace" => RepairKind::AddBlank,
            "while parsing a quoted scalar, found unknown escape character" => {
                RepairKind::UnescapeQuotes
            }
            _ => return None,
        };
        Some(Repair { kind, at: *error.marker() })
    }

    /// The place of the mistake, in characters.
    pub(crate) fn index(self) -> usize {
        self.at.index()
    }

    /// The changed text; `None` if nothing changes, or if it would have over `bytes_max`.
    pub(crate) fn apply(self, text: &str, bytes_max: usize) -> Option<String> {
        let (at, c) = text.char_indices().nth(self.at.index())?;
        let (before, rest) = text.split_at_checked(at)?;
        match self.kind {
            RepairKind::DeepenScalar => {
                let (scalar, behind) = rest.split_at_checked(quoted_bytes(rest, c))?;
                // The line of its first quote stays.
                let first = scalar.find(['\n', '\r'])?.saturating_add(1);
                let (_, lines) = scalar.split_at_checked(first)?;
                let (before, _) = text.split_at_checked(at.saturating_add(first))?;
                deepened([before, lines, behind], self.at.col(), bytes_max)
            }
            RepairKind::DeepenBrackets | RepairKind::DeepenLine | RepairKind::DeepenBracketLine => {
                let line = before.rfind(['\n', '\r'])?.saturating_add(1);
                let (before, lines) = text.split_at_checked(line)?;
                let end = match self.kind {
                    RepairKind::DeepenBrackets => {
                        let bytes = bracket_bytes(rest).unwrap_or(rest.len());
                        at.checked_sub(line)?.saturating_add(bytes)
                    }
                    // Outside of brackets, none is open before the line and closed behind it.
                    RepairKind::DeepenBracketLine
                        if !before.contains(['[', '{']) || bracket_bytes(rest).is_none() =>
                    {
                        return None;
                    }
                    _ => lines.find(['\n', '\r']).unwrap_or(lines.len()),
                };
                let (lines, behind) = lines.split_at_checked(end)?;
                // No collection around the place begins farther to the right.
                let columns = before.lines().map(block_columns).max()?.saturating_add(2);
                deepened([before, lines, behind], columns, bytes_max)
            }
            RepairKind::AddBlank => (text.len() < bytes_max).then(|| [before, " ", rest].concat()),
            RepairKind::UnescapeQuotes => {
                let (scalar, behind) = rest.split_at_checked(quoted_bytes(rest, c))?;
                let unescaped = unescaped(scalar);
                let is_changed = unescaped.len() < scalar.len();
                is_changed.then(|| [before, &unescaped, behind].concat())
            }
        }
    }
}

/// The texts in order, with `columns` blanks before each of the `lines`.
fn deepened(
    [before, lines, behind]: [&str; 3],
    columns: usize,
    bytes_max: usize,
) -> Option<String> {
    // Not before an empty line or the second half of a line break.
    let is_deepened = |line: &&str| *line != "\n";
    let is_indicator = |line: &str| line.starts_with("---") || line.starts_with("...");
    let mut all = lines.split_inclusive(['\n', '\r']).filter(is_deepened);
    let (count, has_indicator) = (all.clone().count(), all.any(is_indicator));
    let added = columns.saturating_mul(count);
    let len: usize = [before.len(), lines.len(), behind.len(), added].into_iter().sum();
    if added == 0 || has_indicator || len > bytes_max {
        return None;
    }
    let indent = " ".repeat(columns);
    let mut out = String::with_capacity(len);
    out.push_str(before);
    for line in lines.split_inclusive(['\n', '\r']) {
        if is_deepened(&line) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    out.push_str(behind);
    Some(out)
}

/// The length of the scalar at the start of `text`, with both of its quotes.
fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        let is_double = quote == '"';
        if is_double && c == '\\' {
            chars.next();
        } else if c == quote && (is_double || chars.next_if(|next| next.1 == quote).is_none()) {
            return at.saturating_add(1);
        }
    }
    text.len()
}

/// `scalar`, in double quotes, with `'` instead of `\'`.
fn unescaped(scalar: &str) -> String {
    let mut out = String::with_capacity(scalar.len());
    let mut chars = scalar.chars();
    while let Some(c) = chars.next() {
        match (c, chars.as_str().chars().next()) {
            ('\\', Some('\'')) => {}
            ('\\', Some(escaped)) => {
                out.extend([c, escaped]);
                chars.next();
            }
            _ => out.push(c),
        }
    }
    out
}

/// The length of `text` up to the bracket that closes the collection in which it begins, at a
/// token; `None` without one.
fn bracket_bytes(text: &str) -> Option<usize> {
    let mut depth = 1_usize;
    // The last character, and the last one that is no blank.
    let (mut last, mut mark) = (' ', ',');
    let mut skipped = 0;
    for (at, c) in text.char_indices() {
        if at < skipped {
            continue;
        }
        let rest = text.get(at..).unwrap_or_default();
        match c {
            '[' | '{' => depth = depth.saturating_add(1),
            ']' | '}' => depth = depth.saturating_sub(1),
            '"' | '\'' if matches!(mark, ',' | ':' | '[' | '{') => {
                skipped = at.saturating_add(quoted_bytes(rest, c));
            }
            '#' if last.is_whitespace() => {
                skipped = at.saturating_add(rest.find(['\n', '\r']).unwrap_or(rest.len()));
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            return Some(at.saturating_add(1));
        }
        last = c;
        mark = if c.is_whitespace() { mark } else { c };
    }
    None
}

/// The column of the first collection in a line that is not one of its first marks. None begins
/// behind a tab.
fn block_columns(line: &str) -> usize {
    let rest = line.trim_start_matches([' ', '-', '?']);
    if rest.starts_with('\t') { 0 } else { line.len().saturating_sub(rest.len()) }
}
