//! Tokens of a template: the text outside of actions, and the words inside of them.
//!
//! The order of tokens, their lines and the texts of errors are those of Go's `text/template`.

use std::borrow::Cow;
use std::fmt;

use firn_promql::{go_quote, is_printable};

use super::number::escaped_char;

/// The kind of a token. Those from [`Kind::Block`] on are keywords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Error,
    Bool,
    Char,
    CharConstant,
    Complex,
    Assign,
    Declare,
    Eof,
    Field,
    Identifier,
    LeftDelim,
    LeftParen,
    Number,
    Pipe,
    RawString,
    RightDelim,
    RightParen,
    Space,
    String,
    Text,
    Variable,
    Block,
    Break,
    Continue,
    Dot,
    Define,
    Else,
    End,
    If,
    Nil,
    Range,
    Template,
    With,
}

const KEYWORDS: [(&str, Kind); 11] = [
    ("block", Kind::Block),
    ("break", Kind::Break),
    ("continue", Kind::Continue),
    ("define", Kind::Define),
    ("else", Kind::Else),
    ("end", Kind::End),
    ("if", Kind::If),
    ("range", Kind::Range),
    ("nil", Kind::Nil),
    ("template", Kind::Template),
    ("with", Kind::With),
];

/// A token.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    /// The offset of its first byte.
    pub(super) at: usize,
    /// As in the template; the message of an error.
    pub(super) text: Cow<'a, str>,
    /// The line of its start, from 1.
    pub(super) line: usize,
}

/// As in errors.
impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Eof => f.write_str("EOF"),
            Kind::Error => f.write_str(&self.text),
            kind if kind >= Kind::Block => write!(f, "<{}>", self.text),
            _ if self.text.len() > 10 => {
                let start: String = self.text.chars().take(10).collect();
                write!(f, "{}...", go_quote(start.as_bytes()))
            }
            _ => f.write_str(&go_quote(self.text.as_bytes())),
        }
    }
}

/// Reads tokens one by one. After an error it returns [`Kind::Eof`].
#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// The offset and the line of the token that is read.
    start: usize,
    start_line: usize,
    line: usize,
    paren_depth: usize,
    in_action: bool,
}

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];
const OPEN: &str = "{{";
const CLOSE: &str = "}}";
/// A minus and a space, inside of a delimiter.
const TRIM_BYTES: usize = 2;

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, start: 0, start_line: 1, line: 1, paren_depth: 0, in_action: false }
    }

    pub(super) fn next_token(&mut self) -> Token<'a> {
        match self.in_action {
            true => self.inside_action(),
            false => self.outside(),
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Skips `c`, which is next.
    fn skip(&mut self, c: char) {
        self.at = self.at.saturating_add(c.len_utf8());
        self.line = self.line.saturating_add(usize::from(c == '\n'));
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.skip(c);
        Some(c)
    }

    /// Skips bytes whose newlines are counted.
    fn skip_bytes(&mut self, bytes: usize) {
        let skipped = self.rest().get(..bytes).unwrap_or_default();
        self.line = self.line.saturating_add(skipped.matches('\n').count());
        self.at = self.at.saturating_add(skipped.len());
    }

    fn accept(&mut self, is_accepted: impl Fn(char) -> bool) -> bool {
        match self.peek() {
            Some(c) if is_accepted(c) => {
                self.skip(c);
                true
            }
            _ => false,
        }
    }

    fn accept_run(&mut self, is_accepted: impl Fn(char) -> bool + Copy) {
        while self.accept(is_accepted) {}
    }

    fn read(&self) -> &'a str {
        self.text.get(self.start..self.at).unwrap_or_default()
    }

    fn emit(&mut self, kind: Kind) -> Token<'a> {
        let text = Cow::Borrowed(self.read());
        let token = Token { kind, at: self.start, text, line: self.start_line };
        self.ignore();
        token
    }

    fn ignore(&mut self) {
        self.start = self.at;
        self.start_line = self.line;
    }

    fn error(&mut self, why: impl Into<String>) -> Token<'a> {
        let text = Cow::Owned(why.into());
        let token = Token { kind: Kind::Error, at: self.start, text, line: self.start_line };
        (self.text, self.at, self.start) = ("", 0, 0);
        token
    }

    /// Text up to the next action, or the delimiter of that action. Skips comments.
    fn outside(&mut self) -> Token<'a> {
        loop {
            let Some(text_bytes) = self.rest().find(OPEN) else {
                self.skip_bytes(self.rest().len());
                let kind = if self.at > self.start { Kind::Text } else { Kind::Eof };
                return self.emit(kind);
            };
            if text_bytes > 0 {
                let (text, after) = self.rest().split_at(text_bytes);
                let kept = match has_left_trim(after.get(OPEN.len()..).unwrap_or_default()) {
                    true => text.trim_end_matches(SPACES),
                    false => text,
                };
                self.skip_bytes(kept.len());
                let token = self.emit(Kind::Text);
                self.skip_bytes(text.len().saturating_sub(kept.len()));
                self.ignore();
                if !token.text.is_empty() {
                    return token;
                }
            }
            self.at = self.at.saturating_add(OPEN.len());
            let marker_bytes = if has_left_trim(self.rest()) { TRIM_BYTES } else { 0 };
            if self.rest().get(marker_bytes..).is_some_and(|rest| rest.starts_with("/*")) {
                self.skip_bytes(marker_bytes);
                self.ignore();
                match self.comment() {
                    Ok(()) => continue,
                    Err(why) => return self.error(why),
                }
            }
            let token = self.emit(Kind::LeftDelim);
            self.in_action = true;
            self.skip_bytes(marker_bytes);
            self.ignore();
            self.paren_depth = 0;
            return token;
        }
    }

    fn comment(&mut self) -> Result<(), &'static str> {
        let rest = self.rest().get(2..).unwrap_or_default();
        let end = rest.find("*/").ok_or("unclosed comment")?;
        self.skip_bytes(end.saturating_add(4));
        let trims = self.right_delimiter().ok_or("comment ends before closing delimiter")?;
        self.close(trims);
        Ok(())
    }

    /// Whether `}}` is next, and whether it trims.
    fn right_delimiter(&self) -> Option<bool> {
        let rest = self.rest();
        let trims = has_right_trim(rest)
            && rest.get(TRIM_BYTES..).is_some_and(|rest| rest.starts_with(CLOSE));
        (trims || rest.starts_with(CLOSE)).then_some(trims)
    }

    fn close(&mut self, trims: bool) {
        self.skip_bytes(CLOSE.len().saturating_add(if trims { TRIM_BYTES } else { 0 }));
        if trims {
            let rest = self.rest();
            let spaces = rest.len().saturating_sub(rest.trim_start_matches(SPACES).len());
            self.skip_bytes(spaces);
        }
        self.ignore();
    }

    fn close_action(&mut self, trims: bool) -> Token<'a> {
        if trims {
            self.skip_bytes(TRIM_BYTES);
            self.ignore();
        }
        self.at = self.at.saturating_add(CLOSE.len());
        let token = self.emit(Kind::RightDelim);
        if trims {
            let rest = self.rest();
            let spaces = rest.len().saturating_sub(rest.trim_start_matches(SPACES).len());
            self.skip_bytes(spaces);
            self.ignore();
        }
        self.in_action = false;
        token
    }

    fn inside_action(&mut self) -> Token<'a> {
        if let Some(trims) = self.right_delimiter() {
            return match self.paren_depth {
                0 => self.close_action(trims),
                _ => self.error("unclosed left paren"),
            };
        }
        let Some(c) = self.peek() else { return self.error("unclosed action") };
        if SPACES.contains(&c) {
            return self.spaces();
        }
        let is_number_start = |c: char| matches!(c, '+' | '-' | '0'..='9');
        if is_number_start(c) {
            return self.number();
        }
        if is_alphanumeric(c) {
            return self.word();
        }
        self.skip(c);
        match c {
            '=' => self.emit(Kind::Assign),
            ':' if self.next() == Some('=') => self.emit(Kind::Declare),
            ':' => self.error("expected :="),
            '|' => self.emit(Kind::Pipe),
            '"' => self.quoted('"', Kind::String, "unterminated quoted string"),
            '\'' => self.quoted('\'', Kind::CharConstant, "unterminated character constant"),
            '`' => match self.rest().find('`') {
                Some(end) => {
                    self.skip_bytes(end.saturating_add(1));
                    self.emit(Kind::RawString)
                }
                None => self.error("unterminated raw quoted string"),
            },
            '$' => self.field_or_variable(Kind::Variable),
            '.' if self.peek().is_some_and(|c| c.is_ascii_digit()) => {
                self.at = self.start;
                self.number()
            }
            // A dot that ends the template starts a number in Go's lexer: a bad one.
            '.' if self.peek().is_none() => {
                self.at = self.start;
                self.number()
            }
            '.' => self.field_or_variable(Kind::Field),
            '(' => {
                self.paren_depth = self.paren_depth.saturating_add(1);
                self.emit(Kind::LeftParen)
            }
            ')' => match self.paren_depth.checked_sub(1) {
                Some(depth) => {
                    self.paren_depth = depth;
                    self.emit(Kind::RightParen)
                }
                None => self.error("unexpected right paren"),
            },
            c if c.is_ascii() && is_printable(c) => self.emit(Kind::Char),
            c => self.error(format!("unrecognized character in action: {}", code_point(c))),
        }
    }

    fn spaces(&mut self) -> Token<'a> {
        self.accept_run(|c| SPACES.contains(&c));
        let count = self.read().len();
        // The last space may belong to a delimiter that trims.
        let last = self.at.saturating_sub(1);
        let tail = self.text.get(last..).unwrap_or_default();
        if tail.get(1..).is_some_and(|tail| tail.starts_with("-}}")) {
            let is_newline = tail.starts_with('\n');
            self.line = self.line.saturating_sub(usize::from(is_newline));
            self.at = last;
            if count == 1 {
                return self.close_action(true);
            }
        }
        self.emit(Kind::Space)
    }

    fn word(&mut self) -> Token<'a> {
        self.accept_run(is_alphanumeric);
        if !self.is_terminated() {
            return self.bad_character();
        }
        let word = self.read();
        let keyword = KEYWORDS.iter().find(|(keyword, _)| *keyword == word);
        self.emit(match (keyword, word) {
            (Some((_, kind)), _) => *kind,
            (None, "true" | "false") => Kind::Bool,
            (None, _) => Kind::Identifier,
        })
    }

    fn field_or_variable(&mut self, kind: Kind) -> Token<'a> {
        if self.is_terminated() {
            return self.emit(if kind == Kind::Variable { kind } else { Kind::Dot });
        }
        self.accept_run(is_alphanumeric);
        if !self.is_terminated() {
            return self.bad_character();
        }
        self.emit(kind)
    }

    fn bad_character(&mut self) -> Token<'a> {
        let c = self.peek().map(code_point).unwrap_or_default();
        self.error(format!("bad character {c}"))
    }

    /// Whether an identifier may end here.
    fn is_terminated(&self) -> bool {
        match self.peek() {
            None | Some('.' | ',' | '|' | ':' | ')' | '(') => true,
            Some(c) => SPACES.contains(&c) || self.rest().starts_with(CLOSE),
        }
    }

    fn quoted(&mut self, quote: char, kind: Kind, unterminated: &str) -> Token<'a> {
        loop {
            match self.next() {
                Some('\\') => match self.next() {
                    None | Some('\n') => return self.error(unterminated),
                    Some(_) => {}
                },
                None | Some('\n') => return self.error(unterminated),
                Some(c) if c == quote => return self.emit(kind),
                Some(_) => {}
            }
        }
    }

    fn number(&mut self) -> Token<'a> {
        let is_number = self.scan_number();
        let is_sum = is_number && matches!(self.peek(), Some('+' | '-'));
        if !is_number || is_sum && !(self.scan_number() && self.read().ends_with('i')) {
            let why = format!("bad number syntax: {}", go_quote(self.read().as_bytes()));
            return self.error(why);
        }
        self.emit(if is_sum { Kind::Complex } else { Kind::Number })
    }

    fn scan_number(&mut self) -> bool {
        self.accept(|c| matches!(c, '+' | '-'));
        let mut radix = 10;
        if self.accept(|c| c == '0') {
            for (letter, base) in [('x', 16), ('o', 8), ('b', 2)] {
                if self.accept(|c| c.eq_ignore_ascii_case(&letter)) {
                    radix = base;
                    break;
                }
            }
        }
        let is_digit = |c: char| c == '_' || c.is_digit(radix);
        self.accept_run(is_digit);
        if self.accept(|c| c == '.') {
            self.accept_run(is_digit);
        }
        let exponent = match radix {
            10 => Some('e'),
            16 => Some('p'),
            _ => None,
        };
        if exponent.is_some_and(|letter| self.accept(|c| c.eq_ignore_ascii_case(&letter))) {
            self.accept(|c| matches!(c, '+' | '-'));
            self.accept_run(|c| c == '_' || c.is_ascii_digit());
        }
        self.accept(|c| c == 'i');
        match self.peek() {
            Some(c) if is_alphanumeric(c) => {
                self.skip(c);
                false
            }
            _ => true,
        }
    }
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn has_left_trim(after_open: &str) -> bool {
    after_open.strip_prefix('-').is_some_and(|rest| rest.starts_with(SPACES))
}

fn has_right_trim(rest: &str) -> bool {
    rest.starts_with(SPACES) && rest.get(1..).is_some_and(|rest| rest.starts_with('-'))
}

/// `U+0041 'A'`.
fn code_point(c: char) -> String {
    let shown = if is_printable(c) { format!(" '{c}'") } else { String::new() };
    format!("U+{:04X}{shown}", u32::from(c))
}

/// The text of a string token, without its quotes. `None` for an invalid escape.
pub(super) fn unquote(token: &str) -> Option<String> {
    if let Some(raw) = token.strip_prefix('`') {
        return Some(raw.strip_suffix('`')?.replace('\r', ""));
    }
    let mut rest = token.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let (escaped, after) = escaped_char(rest, '"')?;
        escaped.push_to(&mut bytes);
        rest = after;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
