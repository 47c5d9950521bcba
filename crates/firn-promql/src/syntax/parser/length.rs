//! Durations and the arithmetic on them.

use super::{Parsed, Parser, tighter, tightness};
use crate::syntax::lexer::{Keyword, TokenKind};
use crate::syntax::{BinaryOp, DurationExpr, Length, Span};

/// The context of a duration and the expected tokens, for errors.
#[derive(Clone, Copy)]
pub(super) struct LengthContext {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
}

const OUT_OF_RANGE: &str = "duration out of range";

impl Parser<'_> {
    pub(super) fn positive_length(&mut self, context: LengthContext) -> Parsed<Length> {
        let (value, span) = self.duration(1, context)?;
        if let DurationExpr::Number { value, .. } = value
            && value <= 0.0
        {
            return Err(self.error(span, "duration must be greater than 0"));
        }
        match self.length(value, span)? {
            // Greater than 0, as in Prometheus, however short.
            Length::Fixed(0) => Ok(Length::Fixed(1)),
            length => Ok(length),
        }
    }

    /// Folds a length that does not depend on the query's times into a number.
    pub(super) fn length(&self, value: DurationExpr, span: Span) -> Parsed<Length> {
        match value {
            DurationExpr::Number { value, .. } => {
                if !is_in_range(value) {
                    return Err(self.error(span, OUT_OF_RANGE));
                }
                // A length is printed in milliseconds. A number of seconds that is nearest to whole
                // milliseconds is exactly that, so that the printed query is the same query.
                let ms = (value * 1e3).round();
                #[expect(clippy::cast_possible_truncation, reason = "checked above")]
                let nanos = match value == ms / 1e3 {
                    true => (ms as i64).saturating_mul(1_000_000),
                    false => (value * 1e9).round() as i64,
                };
                Ok(Length::Fixed(nanos))
            }
            value => Ok(Length::Computed(Box::new(value))),
        }
    }

    /// Arithmetic on durations, with its span.
    pub(super) fn duration(
        &mut self,
        tightness_min: u8,
        context: LengthContext,
    ) -> Parsed<(DurationExpr, Span)> {
        let depth = self.depth;
        let (mut lhs, mut span) = self.nested(|parser| match parser.peek() {
            TokenKind::Operator(op @ (BinaryOp::Sub | BinaryOp::Add)) => {
                let sign = parser.take();
                let tightness = tighter(tightness(BinaryOp::Mul));
                let (operand, span) = parser.duration(tightness, context)?;
                let operand = if op == BinaryOp::Sub { negated(operand) } else { operand };
                Ok((operand, sign.span.to(span)))
            }
            _ => {
                let (primary, span) = parser.duration_primary(context)?;
                match primary {
                    DurationExpr::Number { value, .. } if !is_in_range(value) => {
                        Err(parser.error(span, OUT_OF_RANGE))
                    }
                    primary => Ok((primary, span)),
                }
            }
        })?;
        while let TokenKind::Operator(op) = self.peek() {
            use BinaryOp::{Div, Mod, Pow};
            let tightness = tightness(op);
            if tightness < tightness_min || !is_arithmetic(op) {
                break;
            }
            self.deeper()?;
            let op_token = self.take();
            let tightness = if op == Pow { tightness } else { tighter(tightness) };
            let (rhs, end) = self.duration(tightness, context)?;
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
            span = span.to(end);
        }
        self.depth = depth;
        Ok((lhs, span))
    }

    pub(super) fn duration_primary(
        &mut self,
        context: LengthContext,
    ) -> Parsed<(DurationExpr, Span)> {
        let LengthContext { name, expected } = context;
        let token = self.token();
        let value = match token.kind {
            TokenKind::Number | TokenKind::Duration => {
                self.take();
                let (value, is_duration) = self.number(token)?;
                DurationExpr::Number { value, is_duration }
            }
            TokenKind::LeftParen => {
                self.take();
                let (inner, _) = self.duration(1, context)?;
                self.expect(TokenKind::RightParen, name, expected)?;
                match inner {
                    paren @ DurationExpr::Paren(_) => paren,
                    inner => DurationExpr::Paren(Box::new(inner)),
                }
            }
            TokenKind::Keyword(word @ (Keyword::Step | Keyword::Range)) => {
                self.take();
                self.expect(TokenKind::LeftParen, name, expected)?;
                self.expect(TokenKind::RightParen, name, expected)?;
                if word == Keyword::Step { DurationExpr::Step } else { DurationExpr::Range }
            }
            TokenKind::Keyword(word @ (Keyword::MinOf | Keyword::MaxOf)) => {
                self.take();
                self.expect(TokenKind::LeftParen, name, expected)?;
                let lhs = Box::new(self.duration(1, context)?.0);
                self.expect(TokenKind::Comma, name, expected)?;
                let rhs = Box::new(self.duration(1, context)?.0);
                self.expect(TokenKind::RightParen, name, expected)?;
                DurationExpr::Choice { greater: word == Keyword::MaxOf, lhs, rhs }
            }
            _ => return Err(self.unexpected(name, expected)),
        };
        Ok((value, Span { start: token.span.start, end: self.closing }))
    }
}

/// Whether durations have this operator.
pub(super) fn is_arithmetic(op: BinaryOp) -> bool {
    use BinaryOp::{Add, Div, Mod, Mul, Pow, Sub};
    matches!(op, Add | Sub | Mul | Div | Mod | Pow)
}

/// `value` with the other sign.
pub(super) fn negated(value: DurationExpr) -> DurationExpr {
    match value {
        DurationExpr::Number { value, is_duration } => {
            DurationExpr::Number { value: -value, is_duration }
        }
        other => DurationExpr::Negate(Box::new(other)),
    }
}

/// Whether Go's durations have it.
fn is_in_range(seconds: f64) -> bool {
    seconds.abs() <= i64::MAX as f64 / 1e9
}
