//! The suffixes of an operand: `[5m]`, `[1h:1m]`, `offset`, `@`, `anchored`, `smoothed`.

use super::length::{LengthContext, is_arithmetic, negated};
use super::{Parsed, Parser};
use crate::syntax::lexer::{Keyword, TokenKind};
use crate::syntax::{
    At, BinaryOp, BoundaryMode, DurationExpr, Length, MatrixSelector, Node, NodeKind, Span,
    Subquery,
};

const LENGTHS: &str = "number, duration, step(), or range()";
const RANGE: LengthContext =
    LengthContext { name: "subquery or range selector", expected: LENGTHS };
const OFFSET: LengthContext = LengthContext { name: "offset", expected: LENGTHS };
const SUBQUERY_STEP: LengthContext = LengthContext {
    name: "subquery selector",
    expected: "number, duration, step(), range(), or \"]\"",
};

impl Parser<'_> {
    pub(super) fn modifiers(&mut self, mut node: Node) -> Parsed<Node> {
        let depth = self.depth;
        loop {
            match self.peek() {
                TokenKind::LeftBracket => {
                    self.deeper()?;
                    node = self.brackets(node)?;
                }
                TokenKind::Keyword(Keyword::Offset) => self.offset(&mut node)?,
                TokenKind::At => self.at(&mut node)?,
                TokenKind::Keyword(word @ (Keyword::Anchored | Keyword::Smoothed)) => {
                    self.take();
                    self.boundary(&mut node, word)?;
                }
                _ => {
                    self.depth = depth;
                    return Ok(node);
                }
            }
        }
    }

    /// `[5m]` or `[1h:1m]`.
    fn brackets(&mut self, node: Node) -> Parsed<Node> {
        let open = self.take();
        if !starts_duration(self.peek()) {
            return Err(self.unexpected(RANGE.name, RANGE.expected));
        }
        let range = self.positive_length(RANGE)?;
        if self.accept(TokenKind::Colon).is_some() {
            let mut step = Length::ZERO;
            if self.peek() != TokenKind::RightBracket {
                if !starts_duration(self.peek()) {
                    return Err(self.unexpected(SUBQUERY_STEP.name, SUBQUERY_STEP.expected));
                }
                step = self.positive_length(SUBQUERY_STEP)?;
            }
            self.expect(TokenKind::RightBracket, "subquery selector", "\"]\"")?;
            let span = Span { start: node.span.start, end: self.closing };
            let subquery = Subquery { expr: node, range, step, offset: Length::ZERO, at: None };
            return Ok(Node { span, kind: NodeKind::Subquery(Box::new(subquery)) });
        }
        let close = self.expect(TokenKind::RightBracket, "subquery or range", "\":\" or \"]\"")?;
        let span = Span { start: node.span.start, end: self.closing };
        let selector = match node.kind {
            NodeKind::Selector(selector) => *selector,
            _ => {
                let what = "ranges only allowed for vector selectors";
                return Err(self.error(open.span.to(close.span), what));
            }
        };
        if !selector.offset.is_zero() {
            let what = "no offset modifiers allowed before range";
            return Err(self.error(open.span.to(close.span), what));
        }
        if matches!(selector.at, Some(At::Time(_))) {
            let what = "no @ modifiers allowed before range";
            return Err(self.error(open.span.to(close.span), what));
        }
        let matrix = MatrixSelector { selector, range };
        Ok(Node { span, kind: NodeKind::Matrix(Box::new(matrix)) })
    }

    fn offset(&mut self, node: &mut Node) -> Parsed<()> {
        self.take();
        if !starts_duration(self.peek()) {
            return Err(self.unexpected(OFFSET.name, OFFSET.expected));
        }
        let is_sign = |kind| matches!(kind, TokenKind::Operator(BinaryOp::Sub | BinaryOp::Add));
        let first = self.token();
        let (value, span) = match first.kind {
            // As in Prometheus, arithmetic continues after a parenthesis or two signs only.
            TokenKind::LeftParen => self.arithmetic()?,
            kind if is_sign(kind) && is_sign(self.peek_second()) => self.arithmetic()?,
            kind => {
                if is_sign(kind) {
                    self.take();
                }
                let (value, span) = self.nested(|parser| parser.duration_primary(OFFSET))?;
                let is_negative = kind == TokenKind::Operator(BinaryOp::Sub);
                (if is_negative { negated(value) } else { value }, first.span.to(span))
            }
        };
        let length = self.length(value, span)?;
        let span = node.span;
        let target = match &mut node.kind {
            NodeKind::Selector(selector) => &mut selector.offset,
            NodeKind::Matrix(matrix) => &mut matrix.selector.offset,
            NodeKind::Subquery(subquery) => &mut subquery.offset,
            _ => {
                let what = "offset modifier must be preceded by an instant vector selector or \
                            range vector selector or a subquery";
                return Err(self.error(span, what));
            }
        };
        if !target.is_zero() {
            return Err(self.error(span, "offset may not be set multiple times"));
        }
        *target = length;
        node.span.end = self.closing;
        // The sign is not printed, and arithmetic continues after a parenthesis without one.
        let is_plus = first.kind == TokenKind::Operator(BinaryOp::Add);
        if is_plus && matches!(self.peek(), TokenKind::Operator(op) if is_arithmetic(op)) {
            let empty = NodeKind::String(Vec::new());
            let inner = std::mem::replace(node, Node { span: node.span, kind: empty });
            *node = Node { span: inner.span, kind: NodeKind::Paren(Box::new(inner)) };
        }
        Ok(())
    }

    /// An offset in one piece, so that it is read back from its printed form.
    fn arithmetic(&mut self) -> Parsed<(DurationExpr, Span)> {
        let (value, span) = self.duration(1, OFFSET)?;
        let is_binary = matches!(value, DurationExpr::Binary { .. });
        Ok((if is_binary { DurationExpr::Paren(Box::new(value)) } else { value }, span))
    }

    fn at(&mut self, node: &mut Node) -> Parsed<()> {
        self.take();
        let at = match self.peek() {
            TokenKind::Keyword(word @ (Keyword::Start | Keyword::End)) => {
                self.take();
                self.expect(TokenKind::LeftParen, "@", "timestamp")?;
                self.expect(TokenKind::RightParen, "@", "timestamp")?;
                if word == Keyword::Start { At::Start } else { At::End }
            }
            _ => {
                let seconds = self.signed_number("@", "timestamp")?;
                if !(seconds > i64::MIN as f64 && seconds < i64::MAX as f64) {
                    let what = format!("timestamp out of bounds for @ modifier: {seconds:.6}");
                    return Err(self.error(node.span, what));
                }
                #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
                let ms = (seconds * 1000.0).round() as i64;
                At::Time(ms)
            }
        };
        let span = node.span;
        let target = match &mut node.kind {
            NodeKind::Selector(selector) => &mut selector.at,
            NodeKind::Matrix(matrix) => &mut matrix.selector.at,
            NodeKind::Subquery(subquery) => &mut subquery.at,
            _ => {
                let what = "@ modifier must be preceded by an instant vector selector or \
                            range vector selector or a subquery";
                return Err(self.error(span, what));
            }
        };
        if target.is_some() {
            return Err(self.error(span, "@ <timestamp> may not be set multiple times"));
        }
        *target = Some(at);
        node.span.end = self.closing;
        Ok(())
    }

    fn boundary(&mut self, node: &mut Node, word: Keyword) -> Parsed<()> {
        let (boundary, name) = match word {
            Keyword::Anchored => (BoundaryMode::Anchored, "anchored"),
            _ => (BoundaryMode::Smoothed, "smoothed"),
        };
        let span = node.span;
        let target = match &mut node.kind {
            NodeKind::Selector(selector) => &mut selector.boundary,
            NodeKind::Matrix(matrix) => &mut matrix.selector.boundary,
            NodeKind::Subquery(_) => {
                let what = format!("{name} modifier is not supported for subqueries");
                return Err(self.error(span, what));
            }
            // Prometheus' message for an operand that is not a selector.
            _ => return Err(self.error(span, format!("{name} modifier not implemented"))),
        };
        if *target != BoundaryMode::Plain && *target != boundary {
            let what = "anchored and smoothed modifiers cannot be used together";
            return Err(self.error(span, what));
        }
        *target = boundary;
        Ok(())
    }
}

fn starts_duration(kind: TokenKind) -> bool {
    use Keyword::{MaxOf, MinOf, Range, Step};
    matches!(
        kind,
        TokenKind::Number
            | TokenKind::Duration
            | TokenKind::LeftParen
            | TokenKind::Operator(BinaryOp::Add | BinaryOp::Sub)
            | TokenKind::Keyword(Step | Range | MaxOf | MinOf)
    )
}
