//! Text to tokens, all at once: a query is short, and the parser looks ahead by index.

mod series;

pub(crate) use series::{check_metric, check_series};

use super::error::ParseError;
use super::quote::{go_quote, go_quote_char, is_printable};
use crate::syntax::Span;

/// The kind of a token. Keywords have their own kinds because most may also be names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TokenKind {
    Eof,
    Error,
    Identifier,
    /// An identifier with a colon in it.
    MetricIdentifier,
    Number,
    Duration,
    String,
    LeftParen,
    RightParen,
    LeftBrace,
    RightBrace,
    LeftBracket,
    RightBracket,
    Comma,
    Colon,
    Equal,
    At,
    MatchRegex,
    MatchNotRegex,
    /// Arithmetic, comparison, trim and set operators.
    Operator(crate::syntax::BinaryOp),
    Aggregator(crate::syntax::AggregateOp),
    Keyword(Keyword),
}

/// Words with a special meaning in some contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keyword {
    Anchored,
    Bool,
    By,
    End,
    Fill,
    FillLeft,
    FillRight,
    GroupLeft,
    GroupRight,
    Ignoring,
    MaxOf,
    MinOf,
    Offset,
    On,
    Range,
    Smoothed,
    Start,
    Step,
    Without,
}

impl Keyword {
    /// Whether error messages show the word as a quoted text instead of `<word>`.
    fn is_plain(self) -> bool {
        matches!(
            self,
            Keyword::Start
                | Keyword::End
                | Keyword::Step
                | Keyword::Range
                | Keyword::MaxOf
                | Keyword::MinOf
        )
    }
}

/// A token: its kind and its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
}

impl Token {
    /// The token's text.
    pub(crate) fn text(self, input: &str) -> &str {
        input.get(self.span.start as usize..self.span.end as usize).unwrap_or("")
    }

    /// The name of the token in error messages: `identifier "foo"`, `<op:+>`, `end of input`.
    pub(crate) fn describe(self, input: &str) -> String {
        let text = self.text(input);
        let quoted = || match text.char_indices().nth(10).and_then(|(cut, _)| text.get(..cut)) {
            Some(beginning) => format!("{}...", go_quote(beginning.as_bytes())),
            None => go_quote(text.as_bytes()),
        };
        match self.kind {
            TokenKind::Eof | TokenKind::Error => "end of input".to_owned(),
            TokenKind::Identifier => format!("identifier {}", go_quote(text.as_bytes())),
            TokenKind::MetricIdentifier => {
                format!("metric identifier {}", go_quote(text.as_bytes()))
            }
            TokenKind::Number => format!("number {}", quoted()),
            TokenKind::Duration => format!("duration {}", quoted()),
            TokenKind::String => format!("string {}", quoted()),
            TokenKind::At
            | TokenKind::MatchRegex
            | TokenKind::MatchNotRegex
            | TokenKind::Operator(_) => {
                format!("<op:{text}>")
            }
            TokenKind::Aggregator(_) => format!("<aggr:{text}>"),
            TokenKind::Keyword(word) if !word.is_plain() => format!("<{text}>"),
            _ => quoted(),
        }
    }
}

/// The tokens of a text. The last one is `Eof`, or `Error` with the lexer's error beside it. The
/// parser reports that error when it reaches the token, so an earlier error is reported first.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) list: Vec<Token>,
    pub(crate) error: Option<ParseError>,
}

/// Splits `input` into tokens.
pub(crate) fn tokenize(input: &str) -> Tokens {
    let mut lexer = Lexer::new(input);
    lexer.list.reserve((input.len() / 4).saturating_add(2));
    let error = lexer.run().err();
    if let Some(error) = &error {
        lexer.list.push(Token { kind: TokenKind::Error, span: error.span });
    }
    Tokens { list: lexer.list, error }
}

struct Lexer<'a> {
    input: &'a str,
    bytes: &'a [u8],
    at: usize,
    list: Vec<Token>,
    paren_depth: u32,
    in_braces: bool,
    in_brackets: bool,
    seen_colon: bool,
    /// Whether a duration precedes in the brackets.
    seen_duration: bool,
}

impl<'a> Lexer<'a> {
    fn new(input: &'a str) -> Lexer<'a> {
        Lexer {
            input,
            bytes: input.as_bytes(),
            at: 0,
            list: Vec::new(),
            paren_depth: 0,
            in_braces: false,
            in_brackets: false,
            seen_colon: false,
            seen_duration: false,
        }
    }
}

impl Lexer<'_> {
    fn run(&mut self) -> Result<(), ParseError> {
        loop {
            self.skip_blanks();
            let start = self.at;
            let Some(&byte) = self.bytes.get(start) else {
                return self.finish();
            };
            if self.in_braces {
                self.inside_braces(start, byte)?;
            } else {
                self.statement(start, byte)?;
            }
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.step(1),
                b'#' => {
                    while self.bytes.get(self.at).is_some_and(|b| !matches!(b, b'\n' | b'\r')) {
                        self.step(1);
                    }
                }
                _ => return,
            }
        }
    }

    fn finish(&mut self) -> Result<(), ParseError> {
        let end = self.at;
        if self.in_braces {
            return Err(self.error(end, "unexpected end of input inside braces"));
        }
        if self.paren_depth > 0 {
            return Err(self.error(end, "unclosed left parenthesis"));
        }
        if self.in_brackets {
            return Err(self.error(end, "unclosed left bracket"));
        }
        self.emit(end, TokenKind::Eof);
        Ok(())
    }

    fn statement(&mut self, start: usize, byte: u8) -> Result<(), ParseError> {
        use crate::syntax::BinaryOp::{
            Add, Div, Equal, Greater, GreaterEqual, Less, LessEqual, Mod, Mul, NotEqual, Pow, Sub,
            TrimLower, TrimUpper,
        };
        let next = self.byte_after(start);
        let (kind, len) = match (byte, next) {
            (b',', _) => (TokenKind::Comma, 1),
            (b'*', _) => (TokenKind::Operator(Mul), 1),
            (b'/', _) => (TokenKind::Operator(Div), 1),
            (b'%', _) => (TokenKind::Operator(Mod), 1),
            (b'+', _) => (TokenKind::Operator(Add), 1),
            (b'-', _) => (TokenKind::Operator(Sub), 1),
            (b'^', _) => (TokenKind::Operator(Pow), 1),
            (b'@', _) => (TokenKind::At, 1),
            (b'=', Some(b'=')) => (TokenKind::Operator(Equal), 2),
            (b'=', Some(b'~')) => {
                return Err(self.error(start, "unexpected character after '=': '~'"));
            }
            (b'=', _) => (TokenKind::Equal, 1),
            (b'!', Some(b'=')) => (TokenKind::Operator(NotEqual), 2),
            (b'!', _) => {
                let what = format!(
                    "unexpected character after '!': {}",
                    self.char_at(start.saturating_add(1))
                );
                return Err(self.error(start, what));
            }
            (b'<', Some(b'=')) => (TokenKind::Operator(LessEqual), 2),
            (b'<', Some(b'/')) => (TokenKind::Operator(TrimUpper), 2),
            (b'<', _) => (TokenKind::Operator(Less), 1),
            (b'>', Some(b'=')) => (TokenKind::Operator(GreaterEqual), 2),
            (b'>', Some(b'/')) => (TokenKind::Operator(TrimLower), 2),
            (b'>', _) => (TokenKind::Operator(Greater), 1),
            (b'(', _) => {
                self.paren_depth = self.paren_depth.saturating_add(1);
                (TokenKind::LeftParen, 1)
            }
            (b')', _) => {
                let Some(outer) = self.paren_depth.checked_sub(1) else {
                    // Prometheus has consumed the byte when it reports this error.
                    let end = start.saturating_add(1);
                    return Err(self.error(end, "unexpected right parenthesis ')'"));
                };
                self.paren_depth = outer;
                (TokenKind::RightParen, 1)
            }
            (b'{', _) => {
                self.in_braces = true;
                (TokenKind::LeftBrace, 1)
            }
            (b'[', _) => {
                if self.in_brackets {
                    return Err(self.error(start, "unexpected left bracket '['"));
                }
                self.in_brackets = true;
                self.seen_colon = false;
                self.seen_duration = false;
                (TokenKind::LeftBracket, 1)
            }
            (b']', _) => {
                if !self.in_brackets {
                    return Err(self.error(start, "unexpected right bracket ']'"));
                }
                self.in_brackets = false;
                (TokenKind::RightBracket, 1)
            }
            (b':', _) if self.in_brackets => {
                if !self.seen_duration {
                    // Prometheus has consumed the byte when it reports this error.
                    let end = start.saturating_add(1);
                    let what = "unexpected colon before duration in duration expression";
                    return Err(self.error(end, what));
                }
                if self.seen_colon {
                    return Err(self.error(start, "unexpected colon ':'"));
                }
                self.seen_colon = true;
                (TokenKind::Colon, 1)
            }
            (b'"' | b'\'' | b'`', _) => return self.string(start, byte),
            (b'0'..=b'9', _) | (b'.', Some(b'0'..=b'9')) => return self.number_or_duration(start),
            (b'_' | b':' | b'a'..=b'z' | b'A'..=b'Z', _) => return self.word(start),
            _ => {
                let what = format!("unexpected character: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        };
        self.step(len);
        self.emit(start, kind);
        Ok(())
    }

    fn inside_braces(&mut self, start: usize, byte: u8) -> Result<(), ParseError> {
        let next = self.byte_after(start);
        let (kind, len) = match (byte, next) {
            (b',', _) => (TokenKind::Comma, 1),
            (b'=', Some(b'~')) => (TokenKind::MatchRegex, 2),
            (b'=', _) => (TokenKind::Equal, 1),
            (b'!', Some(b'~')) => (TokenKind::MatchNotRegex, 2),
            (b'!', Some(b'=')) => (TokenKind::Operator(crate::syntax::BinaryOp::NotEqual), 2),
            (b'!', _) => {
                let after = self.char_at(start.saturating_add(1));
                let what = format!("unexpected character after '!' inside braces: {after}");
                return Err(self.error(start, what));
            }
            (b'}', _) => {
                self.in_braces = false;
                (TokenKind::RightBrace, 1)
            }
            (b'{', _) => return Err(self.error(start, "unexpected left brace '{'")),
            (b'"' | b'\'' | b'`', _) => return self.string(start, byte),
            (b'_' | b'a'..=b'z' | b'A'..=b'Z', _) => {
                self.skip_while(is_word);
                self.emit(start, TokenKind::Identifier);
                return Ok(());
            }
            _ => {
                let what = format!("unexpected character inside braces: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        };
        self.step(len);
        self.emit(start, kind);
        Ok(())
    }

    /// A keyword or an identifier; in brackets only the words of duration expressions.
    fn word(&mut self, start: usize) -> Result<(), ParseError> {
        self.skip_while(|byte| is_word(byte) || byte == b':');
        let word = &self.input[start..self.at];
        let mut kind = word_kind(word);
        if self.in_brackets {
            use Keyword::{MaxOf, MinOf, Range, Step};
            if !matches!(kind, TokenKind::Keyword(Step | Range | MaxOf | MinOf)) {
                let what =
                    format!("unexpected character in duration expression: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
            self.seen_duration = true;
        }
        if let TokenKind::Keyword(Keyword::Fill | Keyword::FillLeft | Keyword::FillRight) = kind {
            // Only before a parenthesis, so that metrics may have these names.
            let rest = self.input[self.at..].trim_start_matches([' ', '\t', '\n', '\r']);
            if !rest.starts_with('(') {
                kind = TokenKind::Identifier;
            }
        }
        self.emit(start, kind);
        Ok(())
    }

    fn string(&mut self, start: usize, quote: u8) -> Result<(), ParseError> {
        let raw = quote == b'`';
        self.step(1);
        while let Some(&byte) = self.bytes.get(self.at) {
            self.step(1);
            match byte {
                _ if byte == quote => {
                    self.emit(start, TokenKind::String);
                    return Ok(());
                }
                b'\n' if !raw => break,
                b'\\' if !raw => self.escape(start, quote)?,
                _ => {}
            }
        }
        let what = if raw { "unterminated raw string" } else { "unterminated quoted string" };
        Err(self.error(start, what))
    }

    /// Checks one escape sequence; its backslash is already consumed.
    fn escape(&mut self, start: usize, quote: u8) -> Result<(), ParseError> {
        let (digit_count, base, value_max) = match self.bytes.get(self.at).copied() {
            None => return Err(self.error(start, "escape sequence not terminated")),
            Some(b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'\\') => {
                self.step(1);
                return Ok(());
            }
            Some(byte) if byte == quote => {
                self.step(1);
                return Ok(());
            }
            Some(b'0'..=b'7') => (3, 8, 255),
            Some(b'x') => (2, 16, 255),
            Some(b'u') => (4, 16, 0x10ffff),
            Some(b'U') => (8, 16, 0x10ffff),
            Some(_) => {
                let what = format!("unknown escape sequence {}", self.code_point_at(self.at));
                return Err(self.error(start, what));
            }
        };
        if base == 16 {
            self.step(1);
        }
        let mut value = 0u32;
        for _ in 0..digit_count {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(self.error(start, "escape sequence not terminated"));
            };
            let Some(digit) = (byte as char).to_digit(base) else {
                let what =
                    format!("illegal character {} in escape sequence", self.code_point_at(self.at));
                return Err(self.error(start, what));
            };
            value = value.wrapping_mul(base).wrapping_add(digit);
            self.step(1);
        }
        if value > value_max || (0xd800..0xe000).contains(&value) {
            return Err(self.error(start, "escape sequence is an invalid Unicode code point"));
        }
        Ok(())
    }

    fn number_or_duration(&mut self, start: usize) -> Result<(), ParseError> {
        self.seen_duration = true;
        if self.number(start) {
            self.emit(start, TokenKind::Number);
            return Ok(());
        }
        if self.duration_rest() {
            self.emit(start, TokenKind::Duration);
            return Ok(());
        }
        let end = self.at.max(start.saturating_add(1)).min(self.bytes.len());
        let text = String::from_utf8_lossy(self.bytes.get(start..end).unwrap_or_default());
        let what = format!("bad number or duration syntax: {}", go_quote(text.as_bytes()));
        Err(self.error(start, what))
    }

    /// Consumes a number: `12`, `.5`, `1_000`, `0x1F`, `1e-3`. Returns false, at the first invalid
    /// byte, if the text is no number; the following bytes may still make it a duration.
    fn number(&mut self, start: usize) -> bool {
        let hex = matches!(self.bytes.get(start..), Some([b'0', b'x' | b'X', ..]));
        if hex {
            self.step(2);
            self.accept(b"_");
        }
        // A second dot is a fault of the number, not of the token.
        self.accept(b".");
        let (mut dot, mut exponent) = (false, false);
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'0'..=b'9' => self.step(1),
                b'a'..=b'f' | b'A'..=b'F' if hex => self.step(1),
                b'.' => {
                    self.step(1);
                    if dot || self.accept(b"_.") || hex {
                        return false;
                    }
                    dot = true;
                }
                b'e' | b'E' => {
                    self.step(1);
                    if exponent {
                        return false;
                    }
                    exponent = true;
                    self.accept(b"+-");
                    if self.accept(b"._eE") || self.at >= self.bytes.len() {
                        return false;
                    }
                }
                b'_' => {
                    self.step(1);
                    if self.accept(b"._eE") || self.at >= self.bytes.len() {
                        return false;
                    }
                }
                _ => break,
            }
        }
        !self.bytes.get(self.at).copied().is_some_and(is_word)
    }

    /// Consumes the rest of a duration such as `1h30m`; its first digits are already consumed.
    fn duration_rest(&mut self) -> bool {
        loop {
            if !self.accept(b"smhdwy") {
                return false;
            }
            self.accept(b"s");
            if !self.accept(b"0123456789") {
                let goes_on = self.bytes.get(self.at).copied().is_some_and(is_word);
                // Error messages include the extra byte.
                self.step(usize::from(goes_on));
                return !goes_on;
            }
            while self.accept(b"0123456789") {}
        }
    }

    fn accept(&mut self, set: &[u8]) -> bool {
        let yes = self.bytes.get(self.at).is_some_and(|byte| set.contains(byte));
        self.step(usize::from(yes));
        yes
    }

    fn skip_while(&mut self, test: impl Fn(u8) -> bool) {
        while self.bytes.get(self.at).copied().is_some_and(&test) {
            self.step(1);
        }
    }

    fn byte_after(&self, at: usize) -> Option<u8> {
        self.bytes.get(at.saturating_add(1)).copied()
    }

    /// Steps over bytes of the text.
    fn step(&mut self, len: usize) {
        self.at = self.at.saturating_add(len);
    }

    fn char_at(&self, at: usize) -> String {
        match self.input.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) => go_quote_char(c),
            // Go prints this character for the end of the text.
            None => "'\u{fffd}'".to_owned(),
        }
    }

    fn code_point_at(&self, at: usize) -> String {
        match self.input.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) if is_printable(c) => format!("U+{:04X} '{c}'", u32::from(c)),
            Some(c) => format!("U+{:04X}", u32::from(c)),
            None => "U+FFFD".to_owned(),
        }
    }

    fn emit(&mut self, start: usize, kind: TokenKind) {
        self.list.push(Token { kind, span: Span::new(start, self.at) });
    }

    fn error(&self, start: usize, what: impl Into<String>) -> ParseError {
        ParseError::at(self.input, Span::new(start, self.input.len()), what)
    }
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// Keywords are case-insensitive.
fn word_kind(word: &str) -> TokenKind {
    use crate::syntax::{AggregateOp as A, BinaryOp as B};
    let lower = word.to_ascii_lowercase();
    match lower.as_str() {
        "and" => TokenKind::Operator(B::And),
        "or" => TokenKind::Operator(B::Or),
        "unless" => TokenKind::Operator(B::Unless),
        "atan2" => TokenKind::Operator(B::Atan2),
        "sum" => TokenKind::Aggregator(A::Sum),
        "avg" => TokenKind::Aggregator(A::Avg),
        "count" => TokenKind::Aggregator(A::Count),
        "min" => TokenKind::Aggregator(A::Min),
        "max" => TokenKind::Aggregator(A::Max),
        "group" => TokenKind::Aggregator(A::Group),
        "stddev" => TokenKind::Aggregator(A::Stddev),
        "stdvar" => TokenKind::Aggregator(A::Stdvar),
        "topk" => TokenKind::Aggregator(A::Topk),
        "bottomk" => TokenKind::Aggregator(A::Bottomk),
        "count_values" => TokenKind::Aggregator(A::CountValues),
        "quantile" => TokenKind::Aggregator(A::Quantile),
        "limitk" => TokenKind::Aggregator(A::Limitk),
        "limit_ratio" => TokenKind::Aggregator(A::LimitRatio),
        "anchored" => TokenKind::Keyword(Keyword::Anchored),
        "bool" => TokenKind::Keyword(Keyword::Bool),
        "by" => TokenKind::Keyword(Keyword::By),
        "end" => TokenKind::Keyword(Keyword::End),
        "fill" => TokenKind::Keyword(Keyword::Fill),
        "fill_left" => TokenKind::Keyword(Keyword::FillLeft),
        "fill_right" => TokenKind::Keyword(Keyword::FillRight),
        "group_left" => TokenKind::Keyword(Keyword::GroupLeft),
        "group_right" => TokenKind::Keyword(Keyword::GroupRight),
        "ignoring" => TokenKind::Keyword(Keyword::Ignoring),
        "max_of" => TokenKind::Keyword(Keyword::MaxOf),
        "min_of" => TokenKind::Keyword(Keyword::MinOf),
        "offset" => TokenKind::Keyword(Keyword::Offset),
        "on" => TokenKind::Keyword(Keyword::On),
        "range" => TokenKind::Keyword(Keyword::Range),
        "smoothed" => TokenKind::Keyword(Keyword::Smoothed),
        "start" => TokenKind::Keyword(Keyword::Start),
        "step" => TokenKind::Keyword(Keyword::Step),
        "without" => TokenKind::Keyword(Keyword::Without),
        "inf" | "nan" => TokenKind::Number,
        _ if word.contains(':') => TokenKind::MetricIdentifier,
        _ => TokenKind::Identifier,
    }
}
