//! Tokens to tree: precedence climbing over the operators, recursive descent below them.
//! Reading order: this file (expressions and calls), `selector`, `modifier`, `length`.
//!
//! The first error ends the parse; its message and position are Prometheus'. The grammar differs
//! from a textbook grammar where users rely on it: `-` binds like `*` (so `-1^2` is -1), `^` is
//! right-associative, an offset takes one literal or call (so `x offset 1m + 2` adds 2) but all
//! arithmetic after a parenthesis (so `x offset (1m) + 2` is one offset), and nearly every keyword
//! is also a name.

mod length;
mod modifier;
mod selector;

use std::sync::Arc;

use firn_model::{Matcher, Pool, QueryContext, Reservation, assert_not_network_thread};

use super::error::ParseError;
use super::lexer::{Keyword, Token, TokenKind, Tokens, tokenize};
use super::{
    Aggregate, AggregateOp, Binary, BinaryOp, Cardinality, Expr, Function, Matching, Node,
    NodeKind, Span, check, parse_duration_ms, parse_number, unquote,
};

/// The maximum height of a tree. Evaluation recurses over it; 400 levels need less than half of a 2
/// MiB stack.
const HEIGHT_MAX: u32 = 400;
/// The maximum length of a query. The longest queries of programs have 100 kB.
const QUERY_BYTES_MAX: usize = 1 << 20;
/// The maximum number of operands of a query.
const PART_COUNT_MAX: usize = 100_000;
/// The maximum number of matchers of a selector.
const MATCHER_COUNT_MAX: usize = 1_000;
/// The maximum number of labels in a list of `by`, `without`, `on`, `ignoring`, `group_left` or
/// `group_right`: each label of each series is searched for in them.
const LISTED_COUNT_MAX: usize = 1_000;
/// Memory of tokens and tree for each word and sign of a query; matchers such as `a=""`, with four
/// signs and a word, need the most.
const TREE_BYTES_PER_WORD: u64 = 96;
/// Memory of the texts of a tree for each byte of its query: the query, its strings and their
/// copies.
const TEXT_BYTES_PER_BYTE: u64 = 8;
/// Beside that, for a word that may be the name of a metric: a selector with its matcher.
const TREE_BYTES_PER_NAME: u64 = 192;
/// Memory of the shortest expression, which is a name.
const EXPR_BYTES: u64 = 640;

/// Parses and type-checks a query, without compiling the patterns of its matchers. For the text of
/// a stranger, use [`prepare`], which limits its memory.
///
/// # Errors
/// The first error with its position, with Prometheus' message. Faults in regular expressions are
/// found by [`Expr::compile`].
pub fn parse(text: &str) -> Result<Expr, ParseError> {
    let mut parser = Parser::new(text)?;
    if parser.peek() == TokenKind::Eof {
        return Err(parser.error(Span::default(), "no expression found in input"));
    }
    let root = parser.expression(1)?;
    parser.expect_end()?;
    check::check(text, &root)?;
    let regexes = parser.regexes.into();
    Ok(Expr { text: Arc::from(text), root, regexes, _held: None, held_bytes: 0 })
}

/// Parses and type-checks a query and compiles the patterns of its matchers, all within the limits
/// of `context`. The memory of the expression, measured after parsing, stays reserved as long as it
/// lives.
///
/// # Errors
/// `Invalid` with the first error and its position, with Prometheus' message; `TooLarge` and `Busy`
/// without memory, `Canceled`, `Timeout`.
pub fn prepare(text: &str, context: &QueryContext) -> firn_model::Result<Expr> {
    assert_not_network_thread();
    context.cancel.check()?;
    let mut held = hold_tree(text, context)?;
    let mut expr = parse(text)?;
    // The tokens are freed, and most words take less than the reservation.
    let tree_bytes = expr.heap_bytes();
    held.grow(tree_bytes.saturating_sub(held.bytes()))?;
    held.shrink_to(tree_bytes);
    expr._held = Some(Arc::new(held));
    expr.compile(context)?;
    expr.held_bytes = tree_bytes.saturating_add(expr.regex_bytes());
    Ok(expr)
}

fn hold_tree(text: &str, context: &QueryContext) -> firn_model::Result<Reservation> {
    let budget = &context.budget;
    let mut held = budget.of_request(Pool::Query, text.len() as u64);
    held.grow(tree_bytes(text))
        .map_err(|error| budget.error_of_text(error, "an expression", text.len()))?;
    Ok(held)
}

/// The memory that parsing `text` may take. A text over the limit is refused before it takes any.
pub fn tree_bytes(text: &str) -> u64 {
    if text.len() > QUERY_BYTES_MAX {
        return 0;
    }
    let texts = (text.len() as u64).saturating_mul(TEXT_BYTES_PER_BYTE);
    words_bytes(text).saturating_add(texts).saturating_add(EXPR_BYTES)
}

/// The memory of the tokens of `text`: its words and the characters that are neither blank nor part
/// of a word. A long word, number or string of words has few.
fn words_bytes(text: &str) -> u64 {
    let mut bytes = 0_u64;
    let mut in_word = false;
    for character in text.chars() {
        let is_of_word = character.is_ascii_alphanumeric() || matches!(character, '_' | '.');
        let begins = is_of_word && !in_word;
        let is_sign = !is_of_word && !character.is_ascii_whitespace();
        if begins || is_sign {
            bytes = bytes.saturating_add(TREE_BYTES_PER_WORD);
        }
        if begins && !character.is_ascii_digit() {
            bytes = bytes.saturating_add(TREE_BYTES_PER_NAME);
        }
        in_word = is_of_word;
    }
    bytes
}

/// Parses a series selector such as `up{job="a"}`, the form of `match[]`, and compiles the patterns
/// of its matchers within the limits of `context`. Their memory stays reserved as long as the
/// context lives. The caller decides whether to accept a selector that matches every series, as in
/// Prometheus.
///
/// # Errors
/// As [`prepare`].
pub fn parse_selector(text: &str, context: &QueryContext) -> firn_model::Result<Vec<Matcher>> {
    assert_not_network_thread();
    context.cancel.check()?;
    let mut held = hold_tree(text, context)?;
    let mut parser = Parser::new(text)?;
    let matchers = parser.whole_selector()?;
    super::compile(text, &parser.regexes, context)?;
    drop(parser);
    // Storage copies the list.
    let kept_bytes = super::matchers_bytes(&matchers) as u64;
    held.shrink_to(kept_bytes.saturating_mul(2));
    context.kept.add(held);
    Ok(matchers)
}

/// As [`parse_selector`] without compiling the patterns and without limits of memory: for texts
/// whose [`tree_bytes`] the caller has reserved.
///
/// # Errors
/// The first error with its position.
pub fn parse_matchers(text: &str) -> Result<Vec<Matcher>, ParseError> {
    Parser::new(text)?.whole_selector()
}

struct Parser<'a> {
    input: &'a str,
    tokens: Tokens,
    next: usize,
    /// The current recursion depth.
    depth: u32,
    /// The number of operands so far.
    part_count: usize,
    /// The end of the last token that can end an expression.
    closing: u32,
    /// See [`Expr`].
    regexes: Vec<(Matcher, Span)>,
}

type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn new(input: &'a str) -> Parsed<Parser<'a>> {
        if input.len() > QUERY_BYTES_MAX {
            let what =
                format!("the query has {} bytes, at most {QUERY_BYTES_MAX} are read", input.len());
            return Err(ParseError::at(input, Span::default(), what));
        }
        Ok(Parser {
            input,
            tokens: tokenize(input),
            next: 0,
            depth: 0,
            part_count: 0,
            closing: 0,
            regexes: Vec::new(),
        })
    }

    /// The matchers of a text that is one selector.
    fn whole_selector(&mut self) -> Parsed<Vec<Matcher>> {
        if self.peek() != TokenKind::LeftBrace && !is_metric_name(self.peek()) {
            return Err(self.unexpected("", ""));
        }
        let node = self.selector()?;
        self.expect_end()?;
        match node.kind {
            NodeKind::Selector(selector) => Ok(selector.matchers),
            _ => Err(self.error(node.span, "expected a series selector")),
        }
    }

    // Tokens.

    fn token(&self) -> Token {
        let end = Span::new(self.input.len(), self.input.len());
        self.tokens
            .list
            .get(self.next)
            .copied()
            .unwrap_or(Token { kind: TokenKind::Eof, span: end })
    }

    fn peek(&self) -> TokenKind {
        self.token().kind
    }

    fn peek_second(&self) -> TokenKind {
        self.tokens.list.get(self.next.saturating_add(1)).map_or(TokenKind::Eof, |token| token.kind)
    }

    fn take(&mut self) -> Token {
        let token = self.token();
        if !matches!(token.kind, TokenKind::Eof | TokenKind::Error) {
            self.next = self.next.saturating_add(1);
        }
        use TokenKind::{Duration, Number, RightBrace, RightBracket, RightParen};
        if matches!(token.kind, RightBrace | RightParen | RightBracket | Duration | Number) {
            self.closing = token.span.end;
        }
        token
    }

    fn accept(&mut self, kind: TokenKind) -> Option<Token> {
        (self.peek() == kind).then(|| self.take())
    }

    fn expect(&mut self, kind: TokenKind, context: &str, expected: &str) -> Parsed<Token> {
        self.accept(kind).ok_or_else(|| self.unexpected(context, expected))
    }

    fn expect_end(&mut self) -> Parsed<()> {
        if self.peek() == TokenKind::Eof { Ok(()) } else { Err(self.unexpected("", "")) }
    }

    // Errors.

    fn error(&self, span: Span, what: impl Into<String>) -> ParseError {
        ParseError::at(self.input, span, what)
    }

    /// `unexpected <token> in <context>, expected <expected>`, or the lexer's error.
    fn unexpected(&self, context: &str, expected: &str) -> ParseError {
        let token = self.token();
        if let (TokenKind::Error, Some(error)) = (token.kind, &self.tokens.error) {
            return error.clone();
        }
        let mut what = format!("unexpected {}", token.describe(self.input));
        if !context.is_empty() {
            what.push_str(&format!(" in {context}"));
        }
        if !expected.is_empty() {
            what.push_str(&format!(", expected {expected}"));
        }
        self.error(token.span, what)
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let depth = self.depth;
        self.deeper()?;
        let parsed = parse(self);
        self.depth = depth;
        parsed
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > HEIGHT_MAX {
            let what = format!("the expression is nested more than {HEIGHT_MAX} levels deep");
            return Err(self.error(self.token().span, what));
        }
        Ok(())
    }

    // Expressions.

    /// An expression of operators that bind at least as tightly as `tightness_min`.
    fn expression(&mut self, tightness_min: u8) -> Parsed<Node> {
        self.part_count = self.part_count.saturating_add(1);
        if self.part_count > PART_COUNT_MAX {
            let what = format!("the expression has over {PART_COUNT_MAX} parts");
            return Err(self.error(self.token().span, what));
        }
        let depth = self.depth;
        let mut lhs = self.nested(Parser::operand)?;
        while let TokenKind::Operator(op) = self.peek() {
            let tightness = tightness(op);
            if tightness < tightness_min {
                break;
            }
            // Each operator of a chain adds a level to the tree.
            self.deeper()?;
            self.take();
            let (return_bool, matching) = self.binary_modifiers()?;
            let right_min = if op == BinaryOp::Pow { tightness } else { tighter(tightness) };
            let rhs = self.expression(right_min)?;
            let span = lhs.span.to(rhs.span);
            let binary = Binary { op, lhs, rhs, return_bool, matching };
            lhs = Node { span, kind: NodeKind::Binary(Box::new(binary)) };
        }
        self.depth = depth;
        Ok(lhs)
    }

    /// A signed or plain operand with its modifiers.
    fn operand(&mut self) -> Parsed<Node> {
        let negate = match self.peek() {
            TokenKind::Operator(BinaryOp::Sub) => true,
            TokenKind::Operator(BinaryOp::Add) => false,
            _ => {
                let primary = self.primary()?;
                return self.modifiers(primary);
            }
        };
        let sign = self.take();
        let mut operand = self.expression(tighter(tightness(BinaryOp::Mul)))?;
        let span = sign.span.to(operand.span);
        if let NodeKind::Number { value, .. } = &mut operand.kind {
            // A signed number is a number: `-1` prints as it is written.
            *value = if negate { -*value } else { *value };
            operand.span = span;
            return Ok(operand);
        }
        Ok(Node { span, kind: NodeKind::Unary { negate, operand: Box::new(operand) } })
    }

    fn primary(&mut self) -> Parsed<Node> {
        match self.peek() {
            TokenKind::LeftParen => {
                let open = self.take();
                let inner = self.expression(1)?;
                let close = self.expect(TokenKind::RightParen, "", "")?;
                let span = open.span.to(close.span);
                Ok(Node { span, kind: NodeKind::Paren(Box::new(inner)) })
            }
            TokenKind::String => {
                let token = self.take();
                let bytes = self.string_bytes(token)?;
                Ok(Node { span: token.span, kind: NodeKind::String(bytes) })
            }
            TokenKind::Number | TokenKind::Duration => {
                let token = self.take();
                let (value, is_duration) = self.number(token)?;
                Ok(Node { span: token.span, kind: NodeKind::Number { value, is_duration } })
            }
            TokenKind::Aggregator(op) if opens_aggregation(self.peek_second()) => {
                self.aggregate(op)
            }
            kind if is_callable(kind) && self.peek_second() == TokenKind::LeftParen => self.call(),
            kind if kind == TokenKind::LeftBrace || is_metric_name(kind) => self.selector(),
            _ => Err(self.unexpected("", "")),
        }
    }

    fn number(&self, token: Token) -> Parsed<(f64, bool)> {
        let text = token.text(self.input);
        if token.kind == TokenKind::Duration {
            let ms = parse_duration_ms(text).map_err(|what| self.error(token.span, what))?;
            return Ok((ms as f64 / 1000.0, true));
        }
        let value = parse_number(text)
            .map_err(|e| self.error(token.span, format!("error parsing number: {e}")))?;
        Ok((value, false))
    }

    fn string_bytes(&self, token: Token) -> Parsed<Vec<u8>> {
        unquote(token.text(self.input))
            .ok_or_else(|| self.error(token.span, "error unquoting string: invalid syntax"))
    }

    /// A string that must be UTF-8: a name. An invalid byte becomes the replacement character.
    fn string_text(&self, token: Token) -> Parsed<String> {
        Ok(String::from_utf8_lossy(&self.string_bytes(token)?).into_owned())
    }

    // Calls and aggregations.

    fn call(&mut self) -> Parsed<Node> {
        let name_token = self.take();
        let name = match name_token.kind {
            TokenKind::Keyword(_) => name_token.text(self.input).to_ascii_lowercase(),
            _ => name_token.text(self.input).to_owned(),
        };
        let args = self.call_args("")?;
        let span = Span { start: name_token.span.start, end: self.closing };
        let Some(function) = Function::named(&name) else {
            let quoted = super::go_quote(name.as_bytes());
            let what = format!("unknown function with name {quoted}");
            return Err(self.error(name_token.span, what));
        };
        Ok(Node { span, kind: NodeKind::Call { function, args } })
    }

    fn call_args(&mut self, context: &str) -> Parsed<Vec<Node>> {
        self.expect(TokenKind::LeftParen, context, "")?;
        let mut args = Vec::new();
        if self.accept(TokenKind::RightParen).is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expression(1)?);
            if self.accept(TokenKind::RightParen).is_some() {
                // Expressions of rules stay in memory; most calls have one argument.
                args.shrink_to_fit();
                return Ok(args);
            }
            let comma = self.expect(TokenKind::Comma, context, "")?;
            if self.peek() == TokenKind::RightParen {
                let what = "trailing commas not allowed in function call args";
                return Err(self.error(comma.span, what));
            }
        }
    }

    fn aggregate(&mut self, op: AggregateOp) -> Parsed<Node> {
        let op_token = self.take();
        let mut modifier = self.aggregate_modifier()?;
        let mut args = self.call_args("aggregation")?;
        if modifier.is_none() {
            modifier = self.aggregate_modifier()?;
        }
        let (grouping, without) = modifier.unwrap_or_default();
        let span = Span { start: op_token.span.start, end: self.closing };
        if args.is_empty() {
            let what = "no arguments for aggregate expression provided";
            return Err(self.error(span, what));
        }
        let expected = if op.has_param() { 2 } else { 1 };
        if args.len() != expected {
            let got = args.len();
            let what = format!(
                "wrong number of arguments for aggregate expression provided, \
                 expected {expected}, got {got}"
            );
            return Err(self.error(span, what));
        }
        let expr = args.pop().unwrap_or_else(|| unreachable!("counted above"));
        let aggregate = Aggregate { op, expr, param: args.pop(), grouping, without };
        Ok(Node { span, kind: NodeKind::Aggregate(Box::new(aggregate)) })
    }

    fn aggregate_modifier(&mut self) -> Parsed<Option<(Vec<String>, bool)>> {
        let without = match self.peek() {
            TokenKind::Keyword(Keyword::By) => false,
            TokenKind::Keyword(Keyword::Without) => true,
            _ => return Ok(None),
        };
        self.take();
        Ok(Some((self.label_list()?, without)))
    }

    /// `(a, "b c", by)`.
    fn label_list(&mut self) -> Parsed<Vec<String>> {
        const CONTEXT: &str = "grouping opts";
        self.expect(TokenKind::LeftParen, CONTEXT, "\"(\"")?;
        let mut labels = Vec::new();
        loop {
            if self.accept(TokenKind::RightParen).is_some() {
                labels.shrink_to_fit();
                return Ok(labels);
            }
            let token = self.token();
            if labels.len() == LISTED_COUNT_MAX {
                let what = format!("a list has over {LISTED_COUNT_MAX} labels");
                return Err(self.error(token.span, what));
            }
            if token.kind == TokenKind::String {
                self.take();
                let label = self.string_bytes(token)?;
                match String::from_utf8(label) {
                    Ok(label) if !label.is_empty() => labels.push(label),
                    label => {
                        let label = label.map_or_else(|e| e.into_bytes(), String::into_bytes);
                        let what =
                            format!("invalid label name for grouping: {}", super::go_quote(&label));
                        return Err(self.error(token.span, what));
                    }
                }
            } else if is_label_name(token.kind) {
                self.take();
                labels.push(token.text(self.input).to_owned());
            } else {
                return Err(self.unexpected(CONTEXT, "label"));
            }
            if self.accept(TokenKind::Comma).is_none() && self.peek() != TokenKind::RightParen {
                return Err(self.unexpected(CONTEXT, "\",\" or \")\""));
            }
        }
    }

    /// `bool on (a) group_left (b) fill (0)`.
    fn binary_modifiers(&mut self) -> Parsed<(bool, Matching)> {
        let mut matching = Matching::default();
        let return_bool = self.accept(TokenKind::Keyword(Keyword::Bool)).is_some();
        if let TokenKind::Keyword(word @ (Keyword::On | Keyword::Ignoring)) = self.peek() {
            self.take();
            matching.on = word == Keyword::On;
            matching.labels = self.label_list()?;
            if let TokenKind::Keyword(word @ (Keyword::GroupLeft | Keyword::GroupRight)) =
                self.peek()
            {
                self.take();
                matching.cardinality = match word {
                    Keyword::GroupLeft => Cardinality::ManyToOne,
                    _ => Cardinality::OneToMany,
                };
                if self.peek() == TokenKind::LeftParen {
                    matching.include = self.label_list()?;
                }
            }
        }
        match self.peek() {
            TokenKind::Keyword(Keyword::Fill) => {
                self.take();
                let value = self.fill_value()?;
                matching.fill_left = Some(value);
                matching.fill_right = Some(value);
            }
            _ => {
                while let TokenKind::Keyword(word @ (Keyword::FillLeft | Keyword::FillRight)) =
                    self.peek()
                {
                    let side = match word {
                        Keyword::FillLeft => &matching.fill_left,
                        _ => &matching.fill_right,
                    };
                    if side.is_some() {
                        return Err(self.unexpected("", ""));
                    }
                    self.take();
                    let value = Some(self.fill_value()?);
                    match word {
                        Keyword::FillLeft => matching.fill_left = value,
                        _ => matching.fill_right = value,
                    }
                }
            }
        }
        Ok((return_bool, matching))
    }

    fn fill_value(&mut self) -> Parsed<f64> {
        self.expect(TokenKind::LeftParen, "", "")?;
        let value = self.signed_number("", "")?;
        self.expect(TokenKind::RightParen, "", "")?;
        Ok(value)
    }

    fn signed_number(&mut self, context: &str, expected: &str) -> Parsed<f64> {
        let sign = match self.peek() {
            TokenKind::Operator(BinaryOp::Sub) => -1.0,
            TokenKind::Operator(BinaryOp::Add) => 1.0,
            _ => 0.0,
        };
        if sign != 0.0 {
            self.take();
        }
        let token = self.token();
        if !matches!(token.kind, TokenKind::Number | TokenKind::Duration) {
            return Err(self.unexpected(context, expected));
        }
        self.take();
        let value = self.number(token)?.0;
        Ok(if sign < 0.0 { -value } else { value })
    }
}

/// The least precedence on the right side of a left-associative operator.
fn tighter(tightness: u8) -> u8 {
    tightness.saturating_add(1)
}

/// The precedence of an operator; `^` is right-associative, all others left-associative.
fn tightness(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 1,
        BinaryOp::And | BinaryOp::Unless => 2,
        BinaryOp::Equal
        | BinaryOp::NotEqual
        | BinaryOp::Less
        | BinaryOp::LessEqual
        | BinaryOp::Greater
        | BinaryOp::GreaterEqual
        | BinaryOp::TrimUpper
        | BinaryOp::TrimLower => 3,
        BinaryOp::Add | BinaryOp::Sub => 4,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Mod | BinaryOp::Atan2 => 5,
        BinaryOp::Pow => 6,
    }
}

fn opens_aggregation(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::LeftParen | TokenKind::Keyword(Keyword::By | Keyword::Without))
}

fn is_callable(kind: TokenKind) -> bool {
    use Keyword::{End, MaxOf, MinOf, Range, Start, Step};
    matches!(
        kind,
        TokenKind::Identifier | TokenKind::Keyword(Start | End | Step | Range | MaxOf | MinOf)
    )
}

/// Whether the token may be a metric name.
pub(crate) fn is_metric_name(kind: TokenKind) -> bool {
    use Keyword::{Bool, GroupLeft, GroupRight, Ignoring, On};
    match kind {
        TokenKind::Identifier | TokenKind::MetricIdentifier | TokenKind::Aggregator(_) => true,
        TokenKind::Operator(op) => op.is_set(),
        TokenKind::Keyword(word) => !matches!(word, Bool | GroupLeft | GroupRight | Ignoring | On),
        _ => false,
    }
}

/// Whether the token may be a label name in a list of labels.
fn is_label_name(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Keyword(_) | TokenKind::Operator(BinaryOp::Atan2))
        || is_metric_name(kind)
}
