//! Selectors: a name, matchers in braces, or both.

use firn_model::{METRIC_NAME, MatchOp, Matcher};

use super::{MATCHER_COUNT_MAX, Parsed, Parser};
use crate::syntax::lexer::TokenKind;
use crate::syntax::{BinaryOp, BoundaryMode, Length, Node, NodeKind, Selector, go_quote};

/// The regular expression that matches no text, as Go prints it.
const NO_TEXT: &str = r"[^\x00-\x{10FFFF}]";
/// Number of matchers among which a repeated pattern is searched.
const REPEATED_PATTERNS_MAX: usize = 16;

impl Parser<'_> {
    pub(super) fn selector(&mut self) -> Parsed<Node> {
        let mut span = self.token().span;
        let mut name = None;
        if self.peek() != TokenKind::LeftBrace {
            let token = self.take();
            name = Some(token.text(self.input).to_owned());
        }
        let mut matchers = Vec::new();
        if self.accept(TokenKind::LeftBrace).is_some() {
            matchers = self.matchers()?;
            span.end = self.closing;
        }
        matchers.extend(name.iter().map(|name| Matcher::equal(METRIC_NAME, name.as_str())));
        matchers.shrink_to_fit();
        let selector = Selector {
            name,
            matchers,
            offset: Length::ZERO,
            at: None,
            boundary: BoundaryMode::Plain,
        };
        Ok(Node { span, kind: NodeKind::Selector(Box::new(selector)) })
    }

    /// The matchers up to and including the closing brace.
    fn matchers(&mut self) -> Parsed<Vec<Matcher>> {
        const CONTEXT: &str = "label matching";
        let mut matchers = Vec::new();
        loop {
            if self.accept(TokenKind::RightBrace).is_some() {
                return Ok(matchers);
            }
            if matchers.len() == MATCHER_COUNT_MAX {
                let what = format!("a selector has over {MATCHER_COUNT_MAX} matchers");
                return Err(self.error(self.token().span, what));
            }
            matchers.push(self.matcher(CONTEXT)?);
            if self.accept(TokenKind::Comma).is_none() && self.peek() != TokenKind::RightBrace {
                return Err(self.unexpected(CONTEXT, "\",\" or \"}\""));
            }
        }
    }

    fn matcher(&mut self, context: &str) -> Parsed<Matcher> {
        let name_token = self.token();
        let name = match name_token.kind {
            TokenKind::Identifier => {
                self.take();
                name_token.text(self.input).to_owned()
            }
            TokenKind::String => {
                self.take();
                let name = self.string_text(name_token)?;
                if match_op(self.peek()).is_none() {
                    // A lone quoted text is the metric name.
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
        let value_token = self.expect(TokenKind::String, context, "string")?;
        let span = name_token.span.to(value_token.span);
        let mut matcher = match String::from_utf8(self.string_bytes(value_token)?) {
            Ok(value) => Matcher::parsed(name, op, value),
            // A label has text: it never equals such a value.
            Err(error) => {
                let op = match op {
                    MatchOp::Equal => MatchOp::Regex,
                    MatchOp::NotEqual => MatchOp::NotRegex,
                    MatchOp::Regex | MatchOp::NotRegex => {
                        let pattern = go_quote(error.as_bytes());
                        let what = format!("error parsing regexp: invalid UTF-8: {pattern}");
                        return Err(self.error(span, what));
                    }
                };
                Matcher::parsed(name, op, NO_TEXT)
            }
        };
        if matcher.needs_compiling() {
            // Queries repeat a pattern, for example on both sides of an operator.
            let mut recent = self.regexes.iter().rev().take(REPEATED_PATTERNS_MAX);
            match recent.find(|(other, _)| other.value() == matcher.value()) {
                Some((same, _)) => matcher.share_pattern(same),
                None => self.regexes.push((matcher.clone(), span)),
            }
        }
        Ok(matcher)
    }
}

fn match_op(kind: TokenKind) -> Option<MatchOp> {
    match kind {
        TokenKind::Equal => Some(MatchOp::Equal),
        TokenKind::Operator(BinaryOp::NotEqual) => Some(MatchOp::NotEqual),
        TokenKind::MatchRegex => Some(MatchOp::Regex),
        TokenKind::MatchNotRegex => Some(MatchOp::NotRegex),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;

    use super::*;
    use crate::syntax::parse;

    #[test]
    fn a_repeated_pattern_is_compiled_once() {
        let query = r#"a{x=~"p.q"} + b{x=~"p.q",y!~"p.q",z=~"r.s"}"#;
        let expr = parse(query).unwrap();
        let patterns: Vec<&str> = expr.regexes.iter().map(|(matcher, _)| matcher.value()).collect();
        assert_eq!(patterns, ["p.q", "r.s"]);
        expr.compile(&QueryContext::unbounded()).unwrap();
        let NodeKind::Binary(sum) = &expr.root.kind else { panic!("{expr:?}") };
        let NodeKind::Selector(selector) = &sum.rhs.kind else { panic!("{sum:?}") };
        let of = |name: &str| selector.matchers.iter().find(|matcher| matcher.name() == name);
        let [x, y, z] = ["x", "y", "z"].map(|name| of(name).unwrap());
        assert!([x, y, z].iter().all(|matcher| !matcher.needs_compiling()));
        assert!(x.matches("p-q") && !y.matches("p-q") && !z.matches("p-q"));
    }
}
