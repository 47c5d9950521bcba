//! Durations and the arithmetic on them.

use super::{Parsed, Parser, tighter, tightness};
use crate::syntax::lexer::{Keyword, TokenKind};
use crate::syntax::{BinaryOp, DurationExpr, Length, Span};

impl Parser<'_> {
    pub(super) fn positive_length(&mut self) -> Parsed<Length> {
        let span = self.token().span;
        let value = self.duration(1)?;
        if let DurationExpr::Number { value, .. } = value
            && value <= 0.0
        {
            return Err(self.error(span, "duration must be greater than 0"));
        }
        self.length(value, span)
    }

    /// Folds a length that does not depend on the query's times into a number.
    pub(super) fn length(&self, value: DurationExpr, span: Span) -> Parsed<Length> {
        match value {
            DurationExpr::Number { value, .. } => {
                if value.is_nan() || value.abs() > i64::MAX as f64 / 1e9 {
                    return Err(self.error(span, "duration out of range"));
                }
                #[expect(clippy::cast_possible_truncation, reason = "checked above")]
                let nanos = (value * 1e9).round() as i64;
                Ok(Length::Fixed(nanos))
            }
            value => Ok(Length::Computed(Box::new(value))),
        }
    }

    /// Arithmetic on durations, as in brackets.
    fn duration(&mut self, tightness_min: u8) -> Parsed<DurationExpr> {
        const CONTEXT: &str = "subquery or range selector";
        const EXPECTED: &str = "number, duration, step(), or range()";
        let depth = self.depth;
        let mut lhs = self.nested(|parser| match parser.peek() {
            TokenKind::Operator(op @ (BinaryOp::Sub | BinaryOp::Add)) => {
                parser.take();
                let operand = parser.duration(tighter(tightness(BinaryOp::Mul)))?;
                Ok(match (op, operand) {
                    (BinaryOp::Add, operand) => operand,
                    (_, DurationExpr::Number { value, is_duration }) => {
                        DurationExpr::Number { value: -value, is_duration }
                    }
                    (_, operand) => DurationExpr::Negate(Box::new(operand)),
                })
            }
            _ => parser.duration_primary(CONTEXT, EXPECTED),
        })?;
        while let TokenKind::Operator(op) = self.peek() {
            use BinaryOp::{Add, Div, Mod, Mul, Pow, Sub};
            let tightness = tightness(op);
            if tightness < tightness_min || !matches!(op, Add | Sub | Mul | Div | Mod | Pow) {
                break;
            }
            self.deeper()?;
            let op_token = self.take();
            let rhs = self.duration(if op == Pow { tightness } else { tighter(tightness) })?;
            if let DurationExpr::Number { value: 0.0, .. } = rhs {
                let what = match op {
                    Div => "division by zero",
                    Mod => "modulo by zero",
                    _ => "",
                };
                if !what.is_empty() {
                    return Err(self.error(op_token.span, what));
                }
            }
            lhs = DurationExpr::Binary { op, lhs: Box::new(lhs), rhs: Box::new(rhs) };
        }
        self.depth = depth;
        Ok(lhs)
    }

    pub(super) fn duration_primary(
        &mut self,
        context: &str,
        expected: &str,
    ) -> Parsed<DurationExpr> {
        let token = self.token();
        match token.kind {
            TokenKind::Number | TokenKind::Duration => {
                self.take();
                let (value, is_duration) = self.number(token)?;
                Ok(DurationExpr::Number { value, is_duration })
            }
            TokenKind::LeftParen => {
                self.take();
                let inner = self.duration(1)?;
                self.expect(TokenKind::RightParen, context, expected)?;
                Ok(match inner {
                    number @ DurationExpr::Number { .. } => number,
                    inner => DurationExpr::Paren(Box::new(inner)),
                })
            }
            TokenKind::Keyword(word @ (Keyword::Step | Keyword::Range)) => {
                self.take();
                self.expect(TokenKind::LeftParen, context, expected)?;
                self.expect(TokenKind::RightParen, context, expected)?;
                Ok(if word == Keyword::Step { DurationExpr::Step } else { DurationExpr::Range })
            }
            TokenKind::Keyword(word @ (Keyword::MinOf | Keyword::MaxOf)) => {
                self.take();
                self.expect(TokenKind::LeftParen, context, expected)?;
                let lhs = Box::new(self.duration(1)?);
                self.expect(TokenKind::Comma, context, expected)?;
                let rhs = Box::new(self.duration(1)?);
                self.expect(TokenKind::RightParen, context, expected)?;
                Ok(DurationExpr::Choice { greater: word == Keyword::MaxOf, lhs, rhs })
            }
            _ => Err(self.unexpected(context, expected)),
        }
    }
}
