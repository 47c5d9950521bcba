//! The check of series of unit tests, `name{a="b"} 1+2x3 _ stale`, with Prometheus' messages.
//!
//! Prometheus' parser is generated: an error inside a value has the context `in series values`, one
//! between two values has none.

use std::collections::HashSet;

use firn_model::METRIC_NAME;

use super::{Lexer, Token, TokenKind, is_word, word_kind};
use crate::syntax::parser::is_metric_name;
use crate::syntax::{BinaryOp, ParseError, Span, unquote};

/// The place between the tokens of values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrammarState {
    /// After the labels, before a blank.
    Begin,
    /// After a blank.
    Item,
    /// After `_`, or a value.
    Blank,
    Value,
    /// After the sign of a value, and after that of the step.
    Sign,
    StepSign,
    Step,
    /// After `x`, and after the number of repeats.
    Times,
    Repeats,
}

impl GrammarState {
    fn context(self) -> &'static str {
        match self {
            GrammarState::Item
            | GrammarState::Blank
            | GrammarState::Value
            | GrammarState::Repeats => "",
            _ => " in series values",
        }
    }
}

/// A token of values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueToken {
    End,
    Space,
    Sign,
    Times,
    Gap,
    /// Also `inf` and `nan`.
    Number,
    Stale,
    Histogram,
    Other(TokenKind),
}

/// Checks one series with its values, and returns the first label that it has twice.
///
/// # Errors
/// The first mistake, with Prometheus' text and position.
pub(crate) fn check_series(text: &str) -> Result<Option<String>, ParseError> {
    let mut lexer = Lexer::new(text);
    let repeated = lexer.labels(" in series values")?;
    let mut place = GrammarState::Begin;
    loop {
        let (token, span) = lexer.value_token()?;
        place = match (place, token) {
            (
                GrammarState::Begin
                | GrammarState::Item
                | GrammarState::Blank
                | GrammarState::Value
                | GrammarState::Repeats,
                ValueToken::End,
            ) => return Ok(repeated),
            (
                GrammarState::Begin
                | GrammarState::Blank
                | GrammarState::Value
                | GrammarState::Repeats,
                ValueToken::Space,
            ) => GrammarState::Item,
            (GrammarState::Item, ValueToken::Gap) => GrammarState::Blank,
            (GrammarState::Item, ValueToken::Sign) => GrammarState::Sign,
            (
                GrammarState::Item,
                ValueToken::Number | ValueToken::Stale | ValueToken::Histogram,
            )
            | (GrammarState::Sign, ValueToken::Number) => GrammarState::Value,
            (GrammarState::Value, ValueToken::Sign) => GrammarState::StepSign,
            (GrammarState::StepSign, ValueToken::Number | ValueToken::Histogram) => {
                GrammarState::Step
            }
            (GrammarState::Blank | GrammarState::Value | GrammarState::Step, ValueToken::Times) => {
                GrammarState::Times
            }
            (GrammarState::Times, ValueToken::Number) => {
                lexer.check_repeats(span)?;
                GrammarState::Repeats
            }
            (place, token) => return Err(lexer.unexpected(place, token, span)),
        };
    }
}

/// Checks a series without values, and returns the first label that it has twice.
///
/// # Errors
/// As [`check_series`].
pub(crate) fn check_metric(text: &str) -> Result<Option<String>, ParseError> {
    let mut lexer = Lexer::new(text);
    let repeated = lexer.labels("")?;
    let after = lexer.next()?;
    match after.kind {
        TokenKind::Eof => Ok(repeated),
        _ => Err(lexer.refuse(after, "")),
    }
}

/// A name that may be quoted.
fn label_name(kind: TokenKind, text: &str) -> String {
    match unquote(text) {
        Some(name) if kind == TokenKind::String => String::from_utf8_lossy(&name).into_owned(),
        _ => text.to_owned(),
    }
}

impl Lexer<'_> {
    /// The next token of the labels.
    fn next(&mut self) -> Result<Token, ParseError> {
        self.skip_blanks();
        let start = self.at;
        match self.bytes.get(start) {
            Some(&byte) if self.in_braces => self.inside_braces(start, byte)?,
            Some(&byte) => self.statement(start, byte)?,
            None => self.finish()?,
        }
        let end = Token { kind: TokenKind::Eof, span: Span::new(start, start) };
        Ok(self.list.pop().unwrap_or(end))
    }

    fn refuse(&self, token: Token, rest: &str) -> ParseError {
        let what = format!("unexpected {}{rest}", token.describe(self.input));
        self.error(token.span.start as usize, what)
    }

    /// Steps over the name and the labels, between which no blanks may be if there is a context.
    /// Returns the first label that is repeated.
    fn labels(&mut self, context: &str) -> Result<Option<String>, ParseError> {
        let (mut names, mut repeated) = (HashSet::new(), None);
        let first = self.next()?;
        let has_name = first.kind != TokenKind::LeftBrace;
        if has_name {
            if !is_metric_name(first.kind) {
                return Err(self.refuse(first, context));
            }
            if context.is_empty() {
                self.skip_blanks();
            }
            if self.bytes.get(self.at) != Some(&b'{') {
                return Ok(None);
            }
            self.next()?;
        }
        loop {
            let name = self.next()?;
            match name.kind {
                TokenKind::RightBrace => return Ok(repeated),
                TokenKind::Identifier | TokenKind::String => {}
                _ => {
                    return Err(self.refuse(name, " in label set, expected identifier or \"}\""));
                }
            }
            let mut after = self.next()?;
            let is_name = name.kind == TokenKind::String
                && matches!(after.kind, TokenKind::Comma | TokenKind::RightBrace);
            if !is_name {
                if after.kind != TokenKind::Equal {
                    return Err(self.refuse(after, " in label set, expected \"=\""));
                }
                let value = self.next()?;
                if value.kind != TokenKind::String {
                    return Err(self.refuse(value, " in label set, expected string"));
                }
                let name = label_name(name.kind, name.text(self.input));
                // Empty labels are none, and the name before the braces replaces one inside.
                let is_set = value.text(self.input).len() > 2;
                let is_replaced = has_name && name == METRIC_NAME;
                if is_set && !is_replaced && repeated.is_none() {
                    repeated = names.replace(name);
                }
                after = self.next()?;
            } else if repeated.is_none() {
                repeated = names.replace(METRIC_NAME.to_owned());
            }
            match after.kind {
                TokenKind::Comma => {}
                TokenKind::RightBrace => return Ok(repeated),
                _ => return Err(self.refuse(after, " in label set, expected \",\" or \"}\"")),
            }
        }
    }

    fn value_token(&mut self) -> Result<(ValueToken, Span), ParseError> {
        let start = self.at;
        let Some(&byte) = self.bytes.get(start) else {
            return Ok((ValueToken::End, Span::new(start, start)));
        };
        self.step(1);
        let token = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                self.skip_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
                return Ok((ValueToken::Space, Span::new(start, start.saturating_add(1))));
            }
            b'+' | b'-' => ValueToken::Sign,
            b'x' => ValueToken::Times,
            b'_' => ValueToken::Gap,
            b'0'..=b'9' => self.value_number(start)?,
            b'.' if self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) => {
                self.value_number(start)?
            }
            b'a'..=b'z' | b'A'..=b'Z' => {
                self.skip_while(|byte| is_word(byte) || byte == b':');
                let word = self.input.get(start..self.at).unwrap_or("");
                match word_kind(word) {
                    TokenKind::Number => ValueToken::Number,
                    _ if word == "stale" => ValueToken::Stale,
                    kind => ValueToken::Other(kind),
                }
            }
            b'{' if self.bytes.get(self.at) == Some(&b'{') => {
                let rest = self.input.get(start..).unwrap_or("");
                let len = rest.find("}}").map_or(rest.len(), |len| len.saturating_add(2));
                self.at = start.saturating_add(len);
                ValueToken::Histogram
            }
            _ => {
                let what =
                    format!("unexpected character in series sequence: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        };
        Ok((token, Span::new(start, self.at)))
    }

    fn value_number(&mut self, start: usize) -> Result<ValueToken, ParseError> {
        let is_digit = |byte: u8| byte.is_ascii_digit();
        self.at = start;
        self.skip_grouped_digits();
        if self.accept(b".") {
            self.skip_while(is_digit);
        }
        let has_exponent = self.accept(b"eE");
        if has_exponent {
            self.accept(b"+-");
        }
        let exponent = self.at;
        if has_exponent {
            self.skip_while(is_digit);
        }
        let quoted =
            |lexer: &Self| super::go_quote(lexer.bytes.get(start..lexer.at).unwrap_or(&[]));
        let next = self.bytes.get(self.at).copied();
        if next.is_some_and(|byte| is_word(byte) && byte != b'x') {
            return Err(self.error(start, format!("bad number syntax: {}", quoted(self))));
        }
        let plain = self.input.get(start..self.at).unwrap_or("").replace('_', "");
        let why = match plain.parse::<f64>() {
            _ if has_exponent && exponent == self.at => "invalid syntax",
            Ok(f64::INFINITY) => "value out of range",
            _ => return Ok(ValueToken::Number),
        };
        let why = format!("strconv.ParseFloat: parsing {}: {why}", quoted(self));
        Err(self.error(start, format!("error parsing number: {why}")))
    }

    /// `1_000`: a `_` between digits belongs to the number.
    fn skip_grouped_digits(&mut self) {
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        self.skip_while(|byte| byte.is_ascii_digit());
        while self.bytes.get(self.at) == Some(&b'_')
            && is_digit(self.bytes.get(self.at.saturating_add(1)))
        {
            self.at = self.at.saturating_add(1);
            self.skip_while(|byte| byte.is_ascii_digit());
        }
    }

    fn check_repeats(&self, span: Span) -> Result<(), ParseError> {
        let text = self.input.get(span.start as usize..span.end as usize).unwrap_or("");
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let why = match text.parse::<u64>() {
            Ok(_) if is_number => return Ok(()),
            Err(_) if is_number => "value out of range",
            _ => "invalid syntax",
        };
        let text = super::go_quote(text.as_bytes());
        let what = format!(
            "invalid repetition in series values: strconv.ParseUint: parsing {text}: {why}"
        );
        Err(self.error(span.start as usize, what))
    }

    fn unexpected(&self, place: GrammarState, token: ValueToken, span: Span) -> ParseError {
        let operator = TokenKind::Operator(BinaryOp::Add);
        let kind = match token {
            ValueToken::End => TokenKind::Eof,
            ValueToken::Sign => operator,
            ValueToken::Number => TokenKind::Number,
            ValueToken::Stale => TokenKind::Identifier,
            // Shown as its text.
            ValueToken::Space | ValueToken::Times | ValueToken::Gap | ValueToken::Histogram => {
                TokenKind::Comma
            }
            ValueToken::Other(kind) => kind,
        };
        let is_value = place == GrammarState::Item && kind == TokenKind::Identifier;
        let rest = match is_value {
            true => " in series values, expected number or \"stale\"",
            false => place.context(),
        };
        self.refuse(Token { kind, span }, rest)
    }
}
