//! The memory of the parser's tokens.
//!
//! A collection in brackets may be a key, so the parser keeps its tokens until its end, which may
//! be that of the file. [`MeteredText`] counts them as their characters are read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::str::Chars;

use firn_model::{Error, Reservation};

/// The memory of a token with its text, in a queue that doubles.
const TOKEN_BYTES: u64 = 3 * 112 + 32;
/// Tokens between two reservations; fewer are not reserved.
const STEP_TOKENS: u64 = 512;

/// Counts the tokens of one step of the parser. Shared by the parser's text and its caller.
pub(crate) struct TokenMeter {
    held: RefCell<Reservation>,
    /// In halves of a token; `None` before the first opening bracket of a step.
    halves: Cell<Option<u64>>,
    refused: RefCell<Option<Error>>,
    /// The parser reads nothing in a step that only takes a token that it has.
    is_new_step: Cell<bool>,
}

/// The characters of a text. It ends where the memory of its tokens is refused.
pub(crate) struct MeteredText<'t> {
    chars: Chars<'t>,
    meter: Rc<TokenMeter>,
    /// The last two characters.
    before: [char; 2],
    in_scalar: bool,
    /// Characters since the last opening bracket.
    since_bracket: usize,
}

/// The parser may look at this many characters in the step before.
const LOOKAHEAD: usize = 16;

impl TokenMeter {
    /// Reserves in `held`.
    pub(crate) fn new(held: Reservation) -> Rc<TokenMeter> {
        Rc::new(TokenMeter {
            held: RefCell::new(held),
            halves: Cell::new(None),
            refused: RefCell::new(None),
            is_new_step: Cell::new(true),
        })
    }

    /// Before each step of the parser.
    pub(crate) fn begin_step(&self) {
        self.is_new_step.set(true);
    }

    /// After each step: why the text ended early.
    pub(crate) fn refused(&self) -> Option<Error> {
        self.refused.borrow_mut().take()
    }

    fn add(&self, more: u64, is_near_bracket: bool) {
        if self.is_new_step.replace(false) {
            self.halves.set(None);
        }
        let Some(halves) = self.halves.get().or(is_near_bracket.then_some(0)) else { return };
        let sum = halves.saturating_add(more);
        self.halves.set(Some(sum));
        let steps = |halves: u64| halves / (2 * STEP_TOKENS);
        if steps(sum) > steps(halves) {
            // Enough for the next step, too.
            let tokens = steps(sum).saturating_add(1).saturating_mul(STEP_TOKENS);
            let bytes = tokens.saturating_mul(TOKEN_BYTES);
            if let Err(error) = self.held.borrow_mut().cover(bytes) {
                *self.refused.borrow_mut() = Some(error);
            }
        }
    }
}

impl<'t> MeteredText<'t> {
    pub(crate) fn new(text: &'t str, meter: &Rc<TokenMeter>) -> MeteredText<'t> {
        let meter = Rc::clone(meter);
        MeteredText {
            chars: text.chars(),
            meter,
            before: [' '; 2],
            in_scalar: false,
            since_bracket: usize::MAX,
        }
    }

    /// The tokens that end or begin at `next`, at most, in halves: a quote is half a scalar.
    /// Whether it is inside quotes does not matter, so that no text can hide tokens.
    fn halves(&mut self, next: char) -> u64 {
        let is_separator = |c| matches!(c, ',' | '[' | ']' | '{' | '}');
        let is_quote = |c| matches!(c, '"' | '\'');
        let [older, last] = self.before;
        self.before = [last, next];
        let is_value = last == ':'
            && (next.is_whitespace()
                || is_separator(next)
                || is_quote(next)
                || is_quote(older)
                || matches!(older, ']' | '}'));
        // A mapping without braces begins and ends, a key, a value.
        let of_value = if is_value { 8 } else { 0 };
        self.in_scalar &= !is_value;
        let of_next: u64 = if is_separator(next) || matches!(next, '&' | '*' | '!' | '?') {
            self.in_scalar = false;
            2
        } else if is_quote(next) {
            self.in_scalar = false;
            1
        } else if self.in_scalar || next.is_whitespace() {
            0
        } else {
            self.in_scalar = true;
            2
        };
        of_next.saturating_add(of_value)
    }
}

impl Iterator for MeteredText<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        if self.meter.refused.borrow().is_some() {
            return None;
        }
        let next = self.chars.next()?;
        let halves = self.halves(next);
        self.since_bracket = match next {
            '[' | '{' => 0,
            _ => self.since_bracket.saturating_add(1),
        };
        self.meter.add(halves, self.since_bracket < LOOKAHEAD);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};

    use super::*;

    fn tokens(text: &str) -> u64 {
        let meter = TokenMeter::new(Budget::unlimited().empty(Pool::Requests));
        assert_eq!(MeteredText::new(text, &meter).count(), text.chars().count());
        meter.halves.get().unwrap_or(0).div_ceil(2)
    }

    // At least the tokens of the parser, and not many more.
    #[test]
    fn tokens_in_brackets_are_counted() {
        for (text, at_least, at_most) in [
            ("[]", 2, 2),
            ("[a, b]", 5, 5),
            ("['', \"\"]", 5, 5),
            ("['a b', c d]", 5, 6),
            ("{a: 1, 'b':2}", 11, 17),
            ("[10.0.0.1:9100, 'b:c']", 5, 6),
            ("[&a &b *c !d e]", 7, 12),
            ("[[[[]]]]", 8, 8),
            ("a, b: 'c'", 0, 0),
        ] {
            let count = tokens(text);
            assert!((at_least..=at_most).contains(&count), "{text}: {count}");
        }
    }
}
