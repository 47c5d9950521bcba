//! Patterns over sorted, front-coded values. An automaton keeps its state after each byte of the
//! current value, so that shared prefixes are processed once. If no value with the current prefix
//! matches, the scan continues with the next value without that prefix; if all match, their letters
//! are not read.

use std::ops::Range;

use firn_model::{CancelToken, CompiledRegex, Matcher, Pattern, RegexSearch, Result};
use regex_automata::hybrid::LazyStateID;
use regex_automata::{Anchored, Input};

use crate::sealed::read::segment::Sealed;

// Up to this many values, trying each is faster than building an automaton.
const TRIED_MAX: u32 = 128;
// Values skipped one by one before searching the next one without the dead prefix.
const PASSED_MAX: u32 = 32;
const VALUES_PER_CHECK: u32 = 1_024;

/// The outcome that a value's prefix determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefixVerdict {
    /// The following bytes decide.
    Open,
    /// No value with this prefix matches.
    Dead,
    /// Every value with this prefix matches.
    Sure,
    /// The automaton cannot decide.
    Unknown,
}

/// A deterministic automaton over bytes.
trait Automaton {
    type State: Copy;

    fn start(&mut self) -> Option<Self::State>;

    fn step(&mut self, state: Self::State, byte: u8) -> (Self::State, PrefixVerdict);

    /// Whether a value that ends here matches; `None` if the automaton cannot decide.
    fn passes_at_end(&mut self, state: Self::State) -> Option<bool>;

    /// Whether a whole value matches.
    fn takes(&mut self, value: &[u8]) -> bool;

    /// Ends the exclusive use of the matcher's expression; no other method is called after it.
    fn release(&mut self) {}
}

/// Values to match between two checks for cancellation.
fn values_per_check(matcher: &Matcher) -> u32 {
    let most = VALUES_PER_CHECK as usize;
    matcher.regex().map_or(most, |regex| regex.texts_per_check(most)) as u32
}

impl Sealed {
    /// Calls `each` with those of `pairs` (all values of one name) whose value the pattern of
    /// `matcher` accepts, ignoring its negation; ascending.
    pub(crate) fn scan_values(
        &self,
        pairs: Range<u32>,
        matcher: &Matcher,
        cancel: &CancelToken,
        mut each: impl FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        match matcher.pattern() {
            Pattern::Contains(text) => {
                self.walk_values(pairs, matcher, &mut Contains::new(text.as_bytes()), cancel, each)
            }
            _ if pairs.len() as u32 > TRIED_MAX
                && let Some(regex) = matcher.regex() =>
            {
                self.walk_values(pairs, matcher, &mut RegexWalk::new(regex), cancel, each)
            }
            _ => self.try_values(pairs, matcher, cancel, &mut each),
        }
    }

    fn try_values(
        &self,
        pairs: Range<u32>,
        matcher: &Matcher,
        cancel: &CancelToken,
        each: &mut impl FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        let mut walk = self.strings.walk(&self.blocks, u64::from(pairs.start))?;
        let per_check = values_per_check(matcher);
        for pair in pairs {
            if pair.is_multiple_of(per_check) {
                cancel.check()?;
            }
            walk.advance()?;
            if takes(matcher, walk.text()) {
                each(pair)?;
            }
        }
        Ok(())
    }

    fn walk_values<M: Automaton>(
        &self,
        pairs: Range<u32>,
        matcher: &Matcher,
        machine: &mut M,
        cancel: &CancelToken,
        mut each: impl FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        let Some(start) = machine.start() else {
            machine.release();
            return self.try_values(pairs, matcher, cancel, &mut each);
        };
        let per_check = values_per_check(matcher);
        let mut walk = self.strings.walk(&self.blocks, u64::from(pairs.start))?;
        // The state after each byte of the current value, as far as computed.
        let mut states = vec![start];
        let mut settled: Option<(usize, PrefixVerdict)> = None;
        let (mut passed, mut walked) = (0u32, 0u32);
        while walk.next_id() < u64::from(pairs.end) {
            walked += 1;
            if walked.is_multiple_of(per_check) {
                cancel.check()?;
            }
            let pair = walk.next_id() as u32;
            walk.advance()?;
            if let Some((depth, outlook)) = settled
                && walk.same() >= depth
            {
                match outlook {
                    PrefixVerdict::Sure => each(pair)?,
                    _ => passed += 1,
                }
                if passed > PASSED_MAX {
                    (passed, settled) = (0, None);
                    states.truncate(1);
                    let Some(after) = successor(&walk.text()[..depth]) else { return Ok(()) };
                    let rest = u64::from(pair)..u64::from(pairs.end);
                    let (Ok(next) | Err(next)) = self.strings.find(&self.blocks, rest, &after)?;
                    if next >= u64::from(pairs.end) {
                        return Ok(());
                    }
                    walk = self.strings.walk(&self.blocks, next)?;
                }
                continue;
            }
            (passed, settled) = (0, None);
            states.truncate(walk.same() + 1);
            let text = walk.text();
            while let Some(&byte) = text.get(states.len() - 1) {
                let last = states.last().copied().unwrap_or(start);
                let (state, outlook) = machine.step(last, byte);
                if outlook != PrefixVerdict::Open {
                    settled = Some((states.len(), outlook));
                    break;
                }
                states.push(state);
            }
            let passes = match settled {
                None => machine.passes_at_end(states.last().copied().unwrap_or(start)),
                Some((_, PrefixVerdict::Unknown)) => None,
                Some((_, outlook)) => Some(outlook == PrefixVerdict::Sure),
            };
            if settled.is_some_and(|(_, outlook)| outlook == PrefixVerdict::Unknown) {
                settled = None;
            }
            if passes.unwrap_or_else(|| machine.takes(text)) {
                each(pair)?;
            }
            if machine.start().is_none() {
                // The automaton is exhausted, so its earlier states are invalid.
                machine.release();
                let rest = pair + 1..pairs.end;
                return self.try_values(rest, matcher, cancel, &mut each);
            }
        }
        Ok(())
    }
}

/// Whether the pattern accepts a value. Invalid UTF-8 matches nothing; writers only write valid
/// text.
pub(crate) fn takes(matcher: &Matcher, value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|value| matcher.pattern_takes(value))
}

/// The least text above all texts that begin with `prefix`; `None` if there is none.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut text = prefix[..=kept].to_vec();
    text[kept] += 1;
    Some(text)
}

/// Searches for a substring (Knuth-Morris-Pratt).
#[derive(Debug)]
struct Contains<'p> {
    text: &'p [u8],
    /// By number of matched bytes: the matched bytes that remain after a mismatch.
    fallback: Vec<usize>,
}

impl<'p> Contains<'p> {
    fn new(text: &'p [u8]) -> Contains<'p> {
        let mut fallback = vec![0; text.len() + 1];
        let mut seen = 0;
        for at in 1..text.len() {
            while seen > 0 && text[at] != text[seen] {
                seen = fallback[seen];
            }
            seen += usize::from(text[at] == text[seen]);
            fallback[at + 1] = seen;
        }
        Contains { text, fallback }
    }
}

impl Automaton for Contains<'_> {
    type State = usize;

    fn start(&mut self) -> Option<usize> {
        Some(0)
    }

    fn step(&mut self, mut seen: usize, byte: u8) -> (usize, PrefixVerdict) {
        while seen > 0 && self.text[seen] != byte {
            seen = self.fallback[seen];
        }
        seen += usize::from(self.text[seen] == byte);
        (seen, if seen == self.text.len() { PrefixVerdict::Sure } else { PrefixVerdict::Open })
    }

    fn passes_at_end(&mut self, seen: usize) -> Option<bool> {
        Some(seen == self.text.len())
    }

    fn takes(&mut self, value: &[u8]) -> bool {
        let all = value.iter().fold(0, |seen, &byte| match seen {
            seen if seen == self.text.len() => seen,
            seen => self.step(seen, byte).0,
        });
        all == self.text.len()
    }
}

/// The automaton of a regular expression, which it builds while it walks.
#[derive(Debug)]
struct RegexWalk<'r> {
    /// `None` once released: matching single values needs the expression too.
    search: Option<RegexSearch<'r>>,
    /// How often the automaton's cache had been cleared when the walk began.
    clear_count: usize,
    /// Set when earlier states have become invalid.
    is_exhausted: bool,
}

impl<'r> RegexWalk<'r> {
    fn new(regex: &'r CompiledRegex) -> RegexWalk<'r> {
        let mut search = regex.search();
        let clear_count = search.automaton().1.clear_count();
        RegexWalk { search: Some(search), clear_count, is_exhausted: false }
    }
}

impl Automaton for RegexWalk<'_> {
    type State = LazyStateID;

    fn start(&mut self) -> Option<LazyStateID> {
        if self.is_exhausted {
            return None;
        }
        let (dfa, cache) = self.search.as_mut()?.automaton();
        let input = Input::new("").anchored(Anchored::Yes);
        let start = dfa.start_state_forward(cache, &input).ok();
        // A cleared cache has reassigned all state ids.
        self.is_exhausted = cache.clear_count() > self.clear_count;
        start.filter(|_| !self.is_exhausted)
    }

    fn step(&mut self, state: LazyStateID, byte: u8) -> (LazyStateID, PrefixVerdict) {
        let Some(search) = self.search.as_mut().filter(|_| !self.is_exhausted) else {
            return (state, PrefixVerdict::Unknown);
        };
        let (dfa, cache) = search.automaton();
        let next = dfa.next_state(cache, state, byte);
        self.is_exhausted = next.is_err() || cache.clear_count() > self.clear_count;
        match next {
            Ok(next) if !self.is_exhausted => {
                let outlook = match next {
                    next if next.is_dead() => PrefixVerdict::Dead,
                    // Reported one byte late: the match is complete and no further byte can undo
                    // it.
                    next if next.is_match() => PrefixVerdict::Sure,
                    next if next.is_quit() => PrefixVerdict::Unknown,
                    _ => PrefixVerdict::Open,
                };
                (next, outlook)
            }
            _ => (state, PrefixVerdict::Unknown),
        }
    }

    fn passes_at_end(&mut self, state: LazyStateID) -> Option<bool> {
        let search = self.search.as_mut().filter(|_| !self.is_exhausted)?;
        let (dfa, cache) = search.automaton();
        let end = dfa.next_eoi_state(cache, state);
        self.is_exhausted = end.is_err() || cache.clear_count() > self.clear_count;
        let end = end.ok().filter(|end| !self.is_exhausted && !end.is_quit())?;
        Some(end.is_match())
    }

    fn takes(&mut self, value: &[u8]) -> bool {
        self.search.as_mut().is_some_and(|search| search.is_match(value))
    }

    fn release(&mut self) {
        self.search = None;
    }
}
