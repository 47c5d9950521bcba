//! Selectors: a name, matchers in braces, or both.

use firn_model::{METRIC_NAME, MatchOp, Matcher};

use super::{Parsed, Parser};
use crate::syntax::lexer::Kind;
use crate::syntax::{BinaryOp, Borders, Length, Node, NodeKind, Selector};

impl Parser<'_> {
    pub(super) fn selector(&mut self) -> Parsed<Node> {
        let mut span = self.token().span;
        let mut name = None;
        if self.peek() != Kind::LeftBrace {
            let token = self.take();
            name = Some(token.text(self.input).to_owned());
        }
        let mut matchers = Vec::new();
        if self.accept(Kind::LeftBrace).is_some() {
            matchers = self.matchers()?;
            span.end = self.closing;
        }
        matchers.extend(name.iter().map(|name| Matcher::equal(METRIC_NAME, name.as_str())));
        let selector =
            Selector { name, matchers, offset: Length::ZERO, at: None, borders: Borders::Plain };
        Ok(Node { span, kind: NodeKind::Selector(Box::new(selector)) })
    }

    /// Everything up to the closing brace, that included.
    fn matchers(&mut self) -> Parsed<Vec<Matcher>> {
        const CONTEXT: &str = "label matching";
        let mut matchers = Vec::new();
        loop {
            if self.accept(Kind::RightBrace).is_some() {
                return Ok(matchers);
            }
            matchers.push(self.matcher(CONTEXT)?);
            if self.accept(Kind::Comma).is_none() && self.peek() != Kind::RightBrace {
                return Err(self.unexpected(CONTEXT, "\",\" or \"}\""));
            }
        }
    }

    fn matcher(&mut self, context: &str) -> Parsed<Matcher> {
        let name_token = self.token();
        let name = match name_token.kind {
            Kind::Identifier => {
                self.take();
                name_token.text(self.input).to_owned()
            }
            Kind::String => {
                self.take();
                let name = self.string_text(name_token)?;
                if match_op(self.peek()).is_none() {
                    // A lone quoted text is the metric's name.
                    return Ok(Matcher::equal(METRIC_NAME, name));
                }
                name
            }
            _ => return Err(self.unexpected(context, "identifier or \"}\"")),
        };
        let Some(op) = match_op(self.peek()) else {
            return Err(self.unexpected(context, "label matching operator"));
        };
        self.take();
        let value_token = self.expect(Kind::String, context, "string")?;
        let value = self.string_text(value_token)?;
        Matcher::bounded(name, op, value, self.regex_bytes_max)
            .map_err(|error| self.error(name_token.span.to(value_token.span), error.to_string()))
    }
}

fn match_op(kind: Kind) -> Option<MatchOp> {
    match kind {
        Kind::Equal => Some(MatchOp::Equal),
        Kind::Operator(BinaryOp::NotEqual) => Some(MatchOp::NotEqual),
        Kind::MatchRegex => Some(MatchOp::Regex),
        Kind::MatchNotRegex => Some(MatchOp::NotRegex),
        _ => None,
    }
}
