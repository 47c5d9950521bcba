//! Patterns over sorted, front-coded values. An automaton keeps its state after each byte of the
//! current value, so that shared prefixes are processed once. If no value with the current prefix
//! matches, the scan continues with the next value without that prefix; if all match, their letters
//! are not read.

use std::ops::Range;

use firn_model::{CancelToken, Matcher, Pattern, Result};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::{Input, MatchKind};

use crate::sealed::read::segment::Sealed;

// Up to this many values, trying each is faster than building an automaton.
const TRIED_MAX: u32 = 128;
// Values skipped one by one before searching the next one without the dead prefix.
const PASSED_MAX: u32 = 32;
const VALUES_PER_CHECK: u32 = 1_024;
// Enough states for all but abusive patterns; beyond that, values are tried one by one.
const CACHE_BYTES: usize = 8 << 20;
const NFA_BYTES_MAX: usize = 16 << 20;

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
}

impl Sealed {
    /// Calls `each` with those of `pairs` (all values of one name) whose value the pattern of
    /// `matcher` accepts, ignoring its negation; ascending.
    pub(crate) fn scan_values(
        &self,
        pairs: Range<u32>,
        matcher: &Matcher,
        cancel: &CancelToken,
        mut each: impl FnMut(u32),
    ) -> Result<()> {
        match matcher.pattern() {
            Pattern::Contains(text) => {
                self.walk_values(pairs, matcher, &mut Contains::new(text.as_bytes()), cancel, each)
            }
            _ if pairs.len() as u32 > TRIED_MAX
                && let Some(mut regex) = Regex::new(matcher.value()) =>
            {
                self.walk_values(pairs, matcher, &mut regex, cancel, each)
            }
            _ => self.try_values(pairs, matcher, cancel, &mut each),
        }
    }

    fn try_values(
        &self,
        pairs: Range<u32>,
        matcher: &Matcher,
        cancel: &CancelToken,
        each: &mut impl FnMut(u32),
    ) -> Result<()> {
        let mut walk = self.strings.walk(&self.blocks, u64::from(pairs.start))?;
        for pair in pairs {
            if pair.is_multiple_of(VALUES_PER_CHECK) {
                cancel.check()?;
            }
            walk.advance()?;
            if takes(matcher, walk.text()) {
                each(pair);
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
        mut each: impl FnMut(u32),
    ) -> Result<()> {
        let Some(start) = machine.start() else {
            return self.try_values(pairs, matcher, cancel, &mut each);
        };
        let mut walk = self.strings.walk(&self.blocks, u64::from(pairs.start))?;
        // The state after each byte of the current value, as far as computed.
        let mut states = vec![start];
        let mut settled: Option<(usize, PrefixVerdict)> = None;
        let (mut passed, mut walked) = (0u32, 0u32);
        while walk.next_id() < u64::from(pairs.end) {
            walked += 1;
            if walked.is_multiple_of(VALUES_PER_CHECK) {
                cancel.check()?;
            }
            let pair = walk.next_id() as u32;
            walk.advance()?;
            if let Some((depth, outlook)) = settled
                && walk.same() >= depth
            {
                match outlook {
                    PrefixVerdict::Sure => each(pair),
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
            if passes.unwrap_or_else(|| takes(matcher, text)) {
                each(pair);
            }
            if machine.start().is_none() {
                // The automaton is exhausted, so its earlier states are invalid.
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
}

/// A regular expression as a lazily built automaton.
#[derive(Debug)]
struct Regex {
    dfa: DFA,
    cache: Cache,
    /// Set when earlier states have become invalid.
    is_exhausted: bool,
}

impl Regex {
    /// The anchored automaton of a matcher's pattern; `None` if it cannot be built.
    fn new(pattern: &str) -> Option<Regex> {
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .unicode_word_boundary(true)
            .cache_capacity(CACHE_BYTES)
            .skip_cache_capacity_check(true);
        let dfa = DFA::builder()
            .configure(config)
            .thompson(
                regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(NFA_BYTES_MAX)),
            )
            .build(&format!("^(?s:{pattern})$"))
            .ok()?;
        let cache = dfa.create_cache();
        Some(Regex { dfa, cache, is_exhausted: false })
    }
}

impl Automaton for Regex {
    type State = LazyStateID;

    fn start(&mut self) -> Option<LazyStateID> {
        if self.is_exhausted {
            return None;
        }
        self.dfa.start_state_forward(&mut self.cache, &Input::new("")).ok()
    }

    fn step(&mut self, state: LazyStateID, byte: u8) -> (LazyStateID, PrefixVerdict) {
        if self.is_exhausted {
            return (state, PrefixVerdict::Unknown);
        }
        let next = self.dfa.next_state(&mut self.cache, state, byte);
        // A cleared cache has reassigned all state ids.
        self.is_exhausted = next.is_err() || self.cache.clear_count() > 0;
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
        if self.is_exhausted {
            return None;
        }
        let end = self.dfa.next_eoi_state(&mut self.cache, state);
        self.is_exhausted = end.is_err() || self.cache.clear_count() > 0;
        let end = end.ok().filter(|end| !self.is_exhausted && !end.is_quit())?;
        Some(end.is_match())
    }
}
