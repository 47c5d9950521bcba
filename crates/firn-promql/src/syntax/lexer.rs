//! Text to tokens, all at once: a query is short and the parser looks ahead by index.

use super::error::ParseError;
use super::quote::go_quote;
use crate::syntax::Span;

/// What a token is. Keywords are their own kinds because most may also be names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
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

/// Words with a meaning in some places.
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
    /// Whether error texts show the word as a plain quoted text instead of `<word>`.
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

/// A token: its kind and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
}

impl Token {
    /// The token's text.
    pub(crate) fn text(self, input: &str) -> &str {
        input.get(self.span.start as usize..self.span.end as usize).unwrap_or("")
    }

    /// How error texts name it: `identifier "foo"`, `<op:+>`, `end of input`.
    pub(crate) fn describe(self, input: &str) -> String {
        let text = self.text(input);
        let quoted = || match text.char_indices().nth(10) {
            Some((cut, _)) if text.len() > 10 => {
                format!("{}...", go_quote(&text.as_bytes()[..cut]))
            }
            _ => go_quote(text.as_bytes()),
        };
        match self.kind {
            Kind::Eof | Kind::Error => "end of input".to_owned(),
            Kind::Identifier => format!("identifier {}", go_quote(text.as_bytes())),
            Kind::MetricIdentifier => format!("metric identifier {}", go_quote(text.as_bytes())),
            Kind::Number => format!("number {}", quoted()),
            Kind::Duration => format!("duration {}", quoted()),
            Kind::String => format!("string {}", quoted()),
            Kind::At | Kind::MatchRegex | Kind::MatchNotRegex | Kind::Operator(_) => {
                format!("<op:{text}>")
            }
            Kind::Aggregator(_) => format!("<aggr:{text}>"),
            Kind::Keyword(word) if !word.is_plain() => format!("<{text}>"),
            _ => quoted(),
        }
    }
}

/// A text as tokens. The last one is `Eof`, or `Error` with the lexer's complaint beside it: the parser
/// reports that when it gets there, so that an earlier mistake is told first.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) list: Vec<Token>,
    pub(crate) error: Option<ParseError>,
}

/// Splits `input` into tokens.
pub(crate) fn tokenize(input: &str) -> Tokens {
    let mut lexer = Lexer {
        input,
        bytes: input.as_bytes(),
        at: 0,
        list: Vec::with_capacity(input.len() / 4 + 2),
        paren_depth: 0,
        in_braces: false,
        in_brackets: false,
        seen_colon: false,
    };
    let error = lexer.run().err();
    if let Some(error) = &error {
        lexer.list.push(Token { kind: Kind::Error, span: error.span });
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
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                b'#' => {
                    while self.bytes.get(self.at).is_some_and(|b| !matches!(b, b'\n' | b'\r')) {
                        self.at += 1;
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
        self.emit(end, Kind::Eof);
        Ok(())
    }

    fn statement(&mut self, start: usize, byte: u8) -> Result<(), ParseError> {
        use crate::syntax::BinaryOp::{
            Add, Div, Equal, Greater, GreaterEqual, Less, LessEqual, Mod, Mul, NotEqual, Pow, Sub,
            TrimLower, TrimUpper,
        };
        let next = self.bytes.get(start + 1).copied();
        let (kind, len) = match (byte, next) {
            (b',', _) => (Kind::Comma, 1),
            (b'*', _) => (Kind::Operator(Mul), 1),
            (b'/', _) => (Kind::Operator(Div), 1),
            (b'%', _) => (Kind::Operator(Mod), 1),
            (b'+', _) => (Kind::Operator(Add), 1),
            (b'-', _) => (Kind::Operator(Sub), 1),
            (b'^', _) => (Kind::Operator(Pow), 1),
            (b'@', _) => (Kind::At, 1),
            (b'=', Some(b'=')) => (Kind::Operator(Equal), 2),
            (b'=', Some(b'~')) => {
                return Err(self.error(start, "unexpected character after '=': '~'"));
            }
            (b'=', _) => (Kind::Equal, 1),
            (b'!', Some(b'=')) => (Kind::Operator(NotEqual), 2),
            (b'!', _) => {
                let what = format!("unexpected character after '!': {}", self.char_at(start + 1));
                return Err(self.error(start, what));
            }
            (b'<', Some(b'=')) => (Kind::Operator(LessEqual), 2),
            (b'<', Some(b'/')) => (Kind::Operator(TrimUpper), 2),
            (b'<', _) => (Kind::Operator(Less), 1),
            (b'>', Some(b'=')) => (Kind::Operator(GreaterEqual), 2),
            (b'>', Some(b'/')) => (Kind::Operator(TrimLower), 2),
            (b'>', _) => (Kind::Operator(Greater), 1),
            (b'(', _) => {
                self.paren_depth += 1;
                (Kind::LeftParen, 1)
            }
            (b')', _) => {
                if self.paren_depth == 0 {
                    // Prometheus has read it already when it complains.
                    return Err(self.error(start + 1, "unexpected right parenthesis ')'"));
                }
                self.paren_depth -= 1;
                (Kind::RightParen, 1)
            }
            (b'{', _) => {
                self.in_braces = true;
                (Kind::LeftBrace, 1)
            }
            (b'[', _) => {
                if self.in_brackets {
                    return Err(self.error(start, "unexpected left bracket '['"));
                }
                self.in_brackets = true;
                self.seen_colon = false;
                (Kind::LeftBracket, 1)
            }
            (b']', _) => {
                if !self.in_brackets {
                    return Err(self.error(start, "unexpected right bracket ']'"));
                }
                self.in_brackets = false;
                (Kind::RightBracket, 1)
            }
            (b':', _) if self.in_brackets => {
                if self.seen_colon {
                    return Err(self.error(start, "unexpected colon ':'"));
                }
                self.seen_colon = true;
                (Kind::Colon, 1)
            }
            (b'"' | b'\'' | b'`', _) => return self.string(start, byte),
            (b'0'..=b'9', _) | (b'.', Some(b'0'..=b'9')) => return self.number_or_duration(start),
            (b'_' | b':' | b'a'..=b'z' | b'A'..=b'Z', _) => return self.word(start),
            _ => {
                let what = format!("unexpected character: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        };
        self.at += len;
        self.emit(start, kind);
        Ok(())
    }

    fn inside_braces(&mut self, start: usize, byte: u8) -> Result<(), ParseError> {
        let next = self.bytes.get(start + 1).copied();
        let (kind, len) = match (byte, next) {
            (b',', _) => (Kind::Comma, 1),
            (b'=', Some(b'~')) => (Kind::MatchRegex, 2),
            (b'=', _) => (Kind::Equal, 1),
            (b'!', Some(b'~')) => (Kind::MatchNotRegex, 2),
            (b'!', Some(b'=')) => (Kind::Operator(crate::syntax::BinaryOp::NotEqual), 2),
            (b'!', _) => {
                let after = self.char_at(start + 1);
                let what = format!("unexpected character after '!' inside braces: {after}");
                return Err(self.error(start, what));
            }
            (b'}', _) => {
                self.in_braces = false;
                (Kind::RightBrace, 1)
            }
            (b'{', _) => return Err(self.error(start, "unexpected left brace '{'")),
            (b'"' | b'\'' | b'`', _) => return self.string(start, byte),
            (b'_' | b'a'..=b'z' | b'A'..=b'Z', _) => {
                self.skip_while(is_word);
                self.emit(start, Kind::Identifier);
                return Ok(());
            }
            _ => {
                let what = format!("unexpected character inside braces: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        };
        self.at += len;
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
            if !matches!(kind, Kind::Keyword(Step | Range | MaxOf | MinOf)) {
                let what =
                    format!("unexpected character in duration expression: {}", self.char_at(start));
                return Err(self.error(start, what));
            }
        }
        if let Kind::Keyword(Keyword::Fill | Keyword::FillLeft | Keyword::FillRight) = kind {
            // Only before a parenthesis, so that metrics may bear these names.
            let rest = self.input[self.at..].trim_start_matches([' ', '\t', '\n', '\r']);
            if !rest.starts_with('(') {
                kind = Kind::Identifier;
            }
        }
        self.emit(start, kind);
        Ok(())
    }

    fn string(&mut self, start: usize, quote: u8) -> Result<(), ParseError> {
        let raw = quote == b'`';
        self.at += 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                _ if byte == quote => {
                    self.emit(start, Kind::String);
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

    /// Checks one escape; the backslash is behind us.
    fn escape(&mut self, start: usize, quote: u8) -> Result<(), ParseError> {
        let (digit_count, base, value_max) = match self.bytes.get(self.at).copied() {
            None => return Err(self.error(start, "escape sequence not terminated")),
            Some(b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'\\') => {
                self.at += 1;
                return Ok(());
            }
            Some(byte) if byte == quote => {
                self.at += 1;
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
            self.at += 1;
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
            self.at += 1;
        }
        if value > value_max || (0xd800..0xe000).contains(&value) {
            return Err(self.error(start, "escape sequence is an invalid Unicode code point"));
        }
        Ok(())
    }

    fn number_or_duration(&mut self, start: usize) -> Result<(), ParseError> {
        if self.number(start) {
            self.emit(start, Kind::Number);
            return Ok(());
        }
        if self.duration_rest() {
            self.emit(start, Kind::Duration);
            return Ok(());
        }
        let end = self.at.max(start + 1).min(self.bytes.len());
        let text = String::from_utf8_lossy(&self.bytes[start..end]).into_owned();
        let what = format!("bad number or duration syntax: {}", go_quote(text.as_bytes()));
        Err(self.error(start, what))
    }

    /// Walks over a number: `12`, `.5`, `1_000`, `0x1F`, `1e-3`. False, and standing where it went wrong, if
    /// it is none; what follows may still make it a duration.
    fn number(&mut self, start: usize) -> bool {
        let hex =
            self.bytes[start] == b'0' && matches!(self.bytes.get(start + 1), Some(b'x' | b'X'));
        if hex {
            self.at += 2;
        }
        let (mut dot, mut exponent) = (false, false);
        while let Some(&byte) = self.bytes.get(self.at) {
            let next = self.bytes.get(self.at + 1).copied();
            match byte {
                b'0'..=b'9' => self.at += 1,
                b'a'..=b'f' | b'A'..=b'F' if hex => self.at += 1,
                b'.' => {
                    self.at += 1;
                    if dot || hex || matches!(next, Some(b'_' | b'.')) {
                        return false;
                    }
                    dot = true;
                }
                b'e' | b'E' => {
                    self.at += 1;
                    if exponent {
                        return false;
                    }
                    exponent = true;
                    if matches!(next, Some(b'+' | b'-')) {
                        self.at += 1;
                    }
                    if !self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
                        return false;
                    }
                }
                b'_' => {
                    self.at += 1;
                    if matches!(next, None | Some(b'.' | b'_' | b'e' | b'E')) && !hex {
                        return false;
                    }
                }
                _ => break,
            }
        }
        !self.bytes.get(self.at).copied().is_some_and(is_word)
    }

    /// Walks over the rest of a duration like `1h30m`, its first digits behind us.
    fn duration_rest(&mut self) -> bool {
        loop {
            if !self.accept(b"smhdwy") {
                return false;
            }
            self.accept(b"s");
            if !self.accept(b"0123456789") {
                let goes_on = self.bytes.get(self.at).copied().is_some_and(is_word);
                // The byte too many is part of what error texts show.
                self.at += usize::from(goes_on);
                return !goes_on;
            }
            while self.accept(b"0123456789") {}
        }
    }

    fn accept(&mut self, set: &[u8]) -> bool {
        let yes = self.bytes.get(self.at).is_some_and(|byte| set.contains(byte));
        self.at += usize::from(yes);
        yes
    }

    fn skip_while(&mut self, test: impl Fn(u8) -> bool) {
        while self.bytes.get(self.at).copied().is_some_and(&test) {
            self.at += 1;
        }
    }

    fn char_at(&self, at: usize) -> String {
        match self.input.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("'{}'", c.escape_debug()),
            // What Go prints for the end of the text.
            None => "'\u{fffd}'".to_owned(),
        }
    }

    fn code_point_at(&self, at: usize) -> String {
        match self.input.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("U+{:04X} '{c}'", u32::from(c)),
            None => "U+FFFD".to_owned(),
        }
    }

    fn emit(&mut self, start: usize, kind: Kind) {
        self.list.push(Token { kind, span: Span::new(start, self.at) });
    }

    fn error(&self, start: usize, what: impl Into<String>) -> ParseError {
        ParseError::at(self.input, Span::new(start, self.input.len()), what)
    }
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// Keywords are the same in any case.
fn word_kind(word: &str) -> Kind {
    use crate::syntax::{AggregateOp as A, BinaryOp as B};
    let lower = word.to_ascii_lowercase();
    match lower.as_str() {
        "and" => Kind::Operator(B::And),
        "or" => Kind::Operator(B::Or),
        "unless" => Kind::Operator(B::Unless),
        "atan2" => Kind::Operator(B::Atan2),
        "sum" => Kind::Aggregator(A::Sum),
        "avg" => Kind::Aggregator(A::Avg),
        "count" => Kind::Aggregator(A::Count),
        "min" => Kind::Aggregator(A::Min),
        "max" => Kind::Aggregator(A::Max),
        "group" => Kind::Aggregator(A::Group),
        "stddev" => Kind::Aggregator(A::Stddev),
        "stdvar" => Kind::Aggregator(A::Stdvar),
        "topk" => Kind::Aggregator(A::Topk),
        "bottomk" => Kind::Aggregator(A::Bottomk),
        "count_values" => Kind::Aggregator(A::CountValues),
        "quantile" => Kind::Aggregator(A::Quantile),
        "limitk" => Kind::Aggregator(A::Limitk),
        "limit_ratio" => Kind::Aggregator(A::LimitRatio),
        "anchored" => Kind::Keyword(Keyword::Anchored),
        "bool" => Kind::Keyword(Keyword::Bool),
        "by" => Kind::Keyword(Keyword::By),
        "end" => Kind::Keyword(Keyword::End),
        "fill" => Kind::Keyword(Keyword::Fill),
        "fill_left" => Kind::Keyword(Keyword::FillLeft),
        "fill_right" => Kind::Keyword(Keyword::FillRight),
        "group_left" => Kind::Keyword(Keyword::GroupLeft),
        "group_right" => Kind::Keyword(Keyword::GroupRight),
        "ignoring" => Kind::Keyword(Keyword::Ignoring),
        "max_of" => Kind::Keyword(Keyword::MaxOf),
        "min_of" => Kind::Keyword(Keyword::MinOf),
        "offset" => Kind::Keyword(Keyword::Offset),
        "on" => Kind::Keyword(Keyword::On),
        "range" => Kind::Keyword(Keyword::Range),
        "smoothed" => Kind::Keyword(Keyword::Smoothed),
        "start" => Kind::Keyword(Keyword::Start),
        "step" => Kind::Keyword(Keyword::Step),
        "without" => Kind::Keyword(Keyword::Without),
        "inf" | "nan" => Kind::Number,
        _ if word.contains(':') => Kind::MetricIdentifier,
        _ => Kind::Identifier,
    }
}
