//! The suffixes of an operand: `[5m]`, `[1h:1m]`, `offset`, `@`, `anchored`, `smoothed`.

use super::{Parsed, Parser};
use crate::syntax::lexer::{Keyword, TokenKind};
use crate::syntax::{
    At, BinaryOp, BoundaryMode, DurationExpr, Length, MatrixSelector, Node, NodeKind, Span,
    Subquery,
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
        let lengths = "number, duration, step(), or range()";
        if !starts_duration(self.peek()) {
            return Err(self.unexpected("subquery or range selector", lengths));
        }
        let range = self.positive_length()?;
        if self.accept(TokenKind::Colon).is_some() {
            let mut step = Length::ZERO;
            if self.peek() != TokenKind::RightBracket {
                if !starts_duration(self.peek()) {
                    let expected = "number, duration, step(), range(), or \"]\"";
                    return Err(self.unexpected("subquery selector", expected));
                }
                step = self.positive_length()?;
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
        const CONTEXT: &str = "offset";
        const EXPECTED: &str = "number, duration, step(), or range()";
        self.take();
        if !starts_duration(self.peek()) {
            return Err(self.unexpected(CONTEXT, EXPECTED));
        }
        let sign_span = self.token().span;
        let negate = match self.peek() {
            TokenKind::Operator(BinaryOp::Sub) => Some(true),
            TokenKind::Operator(BinaryOp::Add) => Some(false),
            _ => None,
        };
        if negate.is_some() {
            self.take();
        }
        let mut value = self.nested(|parser| parser.duration_primary(CONTEXT, EXPECTED))?;
        if negate == Some(true) {
            value = match value {
                DurationExpr::Number { value, is_duration } => {
                    DurationExpr::Number { value: -value, is_duration }
                }
                other => DurationExpr::Negate(Box::new(other)),
            };
        }
        let length = self.length(value, sign_span)?;
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
        Ok(())
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
