//! Compiled regular expressions: lazily built automata whose memory is reserved.
//!
//! A regular expression of a few bytes compiles to megabytes and takes a second to compile. So each
//! one is compiled within the limits of a query: [`QueryContext`] provides the budget, the
//! cancellation and the [`RegexAllowance`] of its request. The automaton is the only compiled form:
//! one per pattern, shared by all clones of a matcher, and by the scans of index files.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind};

use crate::network_thread::assert_not_network_thread;
use crate::pattern_syntax;
use crate::{Error, Pool, QueryContext, Reservation, Result, excerpt};

// Patterns without a form that needs no automaton. 10,000 alternatives fit.
const PATTERN_BYTES_MAX: usize = 256 << 10;
// The syntax tree of a pattern: measured by `the_memory_of_a_compilation_is_reserved`.
const TREE_BYTES_PER_BYTE: u64 = 512;
// A class of Unicode, such as `\pL`, has up to a thousand ranges.
const UNICODE_CLASS_BYTES: u64 = 32 << 10;
// The table of suffixes in the compiler of classes beyond ASCII, such as `.`; its size is fixed.
const SUFFIX_TABLE_BYTES: u64 = 448 << 10;
// The states of an automaton are compiled within the first limit, or the next one. So the memory
// that is reserved for a compilation follows its need.
const STATE_BYTES_LIMITS: [usize; 4] = [32 << 10, 256 << 10, 2 << 20, 8 << 20];
// A compilation holds its states twice, and tables beside them.
const COMPILE_BYTES_PER_BYTE: u64 = 3;
// The part of the automaton that is built while it is used. With less memory it is slower.
const CACHE_BYTES_MAX: usize = 2 << 20;
const KEPT_CACHE_BYTES_MAX: usize = 32 << 10;
// All that a request compiles.
const COUNT_MAX: u64 = 1_000;
const STATE_BYTES_MAX: u64 = 64 << 20;

/// The number and the size of the regular expressions that one request may still compile. Clones
/// share it.
#[derive(Clone, Debug)]
pub struct RegexAllowance(Arc<AllowanceLeft>);

#[derive(Debug)]
struct AllowanceLeft {
    count: AtomicU64,
    state_bytes: AtomicU64,
}

impl Default for RegexAllowance {
    fn default() -> RegexAllowance {
        RegexAllowance(Arc::new(AllowanceLeft {
            count: AtomicU64::new(COUNT_MAX),
            state_bytes: AtomicU64::new(STATE_BYTES_MAX),
        }))
    }
}

impl RegexAllowance {
    fn take_one(&self) -> Result<()> {
        take(&self.0.count, 1).ok_or_else(|| {
            Error::too_large(format!(
                "the request has over {COUNT_MAX} regular expressions: send several requests"
            ))
        })
    }

    fn take_states(&self, bytes: u64) -> Result<()> {
        take(&self.0.state_bytes, bytes).ok_or_else(|| {
            Error::too_large(format!(
                "the regular expressions of the request compile to over {STATE_BYTES_MAX} bytes: \
                 use smaller repetitions and fewer Unicode classes, or send several requests"
            ))
        })
    }
}

fn take(left: &AtomicU64, amount: u64) -> Option<()> {
    let rest = |left: u64| left.checked_sub(amount);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok().map(|_| ())
}

/// A compiled regular expression that matches whole texts.
pub struct CompiledRegex {
    automaton: DFA,
    state_count: usize,
    fixed_bytes: u64,
    working: Mutex<WorkingMemory>,
}

struct WorkingMemory {
    cache: Cache,
    /// All memory of the expression.
    held: Reservation,
}

impl CompiledRegex {
    /// Compiles `pattern` within the limits of `context`. Its memory stays reserved in the budget
    /// of `context` until it is dropped.
    ///
    /// # Errors
    /// `Invalid` if it is no regular expression, `TooLarge` over the limits of one expression, of
    /// the request and of the query's memory, `Busy` without memory, `Canceled`, `Timeout`.
    pub(crate) fn new(pattern: &str, context: &QueryContext) -> Result<CompiledRegex> {
        assert_not_network_thread();
        context.cancel.check()?;
        context.regexes.take_one()?;
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Error::too_large(format!(
                "a regular expression has {} bytes, at most {PATTERN_BYTES_MAX} are compiled",
                pattern.len()
            )));
        }
        let tree_bytes = pattern_tree_bytes(pattern);
        let budget = &context.budget;
        let too_long =
            |error: Error| budget.error_of_text(error, "a regular expression", pattern.len());
        let mut held = budget.reserve(Pool::Query, tree_bytes).map_err(too_long)?;
        let tree = pattern_syntax::parse(pattern)
            .map_err(|reason| Error::invalid(format!("error parsing regexp: {reason}")))?;
        let mut limits = STATE_BYTES_LIMITS.into_iter();
        let states = loop {
            context.cancel.check()?;
            let Some(limit) = limits.next() else {
                let most = STATE_BYTES_LIMITS.last().copied().unwrap_or_default();
                let reason = format!("it compiles to over {most} bytes");
                return Err(fault(pattern, &reason));
            };
            let wanted = tree_bytes.saturating_add(COMPILE_BYTES_PER_BYTE * limit as u64);
            held.cover(wanted).map_err(too_long)?;
            let config = thompson::Config::new()
                .which_captures(WhichCaptures::None)
                .utf8(false)
                .nfa_size_limit(Some(limit));
            match thompson::Compiler::new().configure(config).build_from_hir(&tree) {
                Ok(states) => break states,
                Err(error) if error.size_limit().is_some() => {
                    context.regexes.take_states(limit as u64)?;
                }
                Err(error) => return Err(fault(pattern, &error.to_string())),
            }
        };
        drop(tree);
        context.regexes.take_states(states.memory_usage() as u64)?;
        CompiledRegex::of_states(&states, held).map_err(|reason| fault(pattern, &reason))
    }

    fn of_states(states: &NFA, mut held: Reservation) -> Result<CompiledRegex, String> {
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .cache_capacity(CACHE_BYTES_MAX)
            .skip_cache_capacity_check(true);
        let automaton = DFA::builder().configure(config).build_from_nfa(states.clone());
        let automaton = automaton.map_err(|error| error.to_string())?;
        let cache = automaton.create_cache();
        let fixed_bytes = (states.memory_usage() + size_of::<CompiledRegex>()) as u64;
        // The reservation of the compilation was larger.
        held.shrink_to(fixed_bytes + cache_bytes(&cache));
        let state_count = states.states().len();
        let working = Mutex::new(WorkingMemory { cache, held });
        Ok(CompiledRegex { automaton, state_count, fixed_bytes, working })
    }

    /// Whether the expression matches all of `text`.
    pub fn is_match(&self, text: &str) -> bool {
        self.search().is_match(text.as_bytes())
    }

    /// Exclusive access to the automaton, for many texts in sequence.
    pub fn search(&self) -> RegexSearch<'_> {
        let working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        RegexSearch { regex: self, working }
    }

    /// The number of states. Each byte of a text visits all of them in the worst case.
    pub fn state_count(&self) -> usize {
        self.state_count
    }

    /// The memory that is reserved for the expression. Waits for a running search.
    pub fn held_bytes(&self) -> u64 {
        self.search().working.held.bytes()
    }

    /// See [`crate::Matcher::keep`].
    pub(crate) fn keep(&self) {
        let mut search = self.search();
        let WorkingMemory { cache, held } = &mut *search.working;
        if cache.memory_usage() > KEPT_CACHE_BYTES_MAX {
            *cache = self.automaton.create_cache();
            let bytes = self.fixed_bytes + cache_bytes(cache);
            held.shrink_to(bytes);
        }
        held.keep_for(Pool::Cache);
    }

    /// The number of texts to match between two checks for cancellation, at most `most`: fewer for
    /// expressions with many states, because each byte of a text may visit all of them.
    pub fn texts_per_check(&self, most: usize) -> usize {
        // An ordinary expression has some dozens.
        most.saturating_mul(64).checked_div(self.state_count).unwrap_or(most).clamp(1, most.max(1))
    }
}

impl fmt::Debug for CompiledRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledRegex").field("state_count", &self.state_count).finish()
    }
}

/// Exclusive use of a [`CompiledRegex`].
pub struct RegexSearch<'r> {
    regex: &'r CompiledRegex,
    working: MutexGuard<'r, WorkingMemory>,
}

impl RegexSearch<'_> {
    /// Whether the expression matches all of `text`.
    pub fn is_match(&mut self, text: &[u8]) -> bool {
        let input = Input::new(text).anchored(Anchored::Yes).earliest(true);
        let found = self.regex.automaton.try_search_fwd(&mut self.working.cache, &input);
        // The automaton has neither a limit of its work nor bytes at which it stops.
        found.is_ok_and(|end| end.is_some())
    }

    /// The automaton and its cache, for a search byte by byte. Later searches may clear the cache.
    pub fn automaton(&mut self) -> (&DFA, &mut Cache) {
        (&self.regex.automaton, &mut self.working.cache)
    }
}

impl Drop for RegexSearch<'_> {
    /// Reserves the memory that the cache has grown by; without free memory the cache is dropped.
    /// Nothing is reclaimed, because the owner of a matcher may hold locks of a cache.
    fn drop(&mut self) {
        let WorkingMemory { cache, held } = &mut *self.working;
        if !held.cover_of_free(self.regex.fixed_bytes + cache_bytes(cache)) {
            *cache = self.regex.automaton.create_cache();
        }
    }
}

impl fmt::Debug for RegexSearch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regex.fmt(f)
    }
}

/// The memory of a cache. Its lists and its table double their capacity, and it counts only their
/// entries: measured by `the_memory_of_matching_is_reserved_and_released_with_the_matcher`.
fn cache_bytes(cache: &Cache) -> u64 {
    5 * cache.memory_usage() as u64 / 2
}

/// Upper bound of the memory of a pattern's syntax trees and of its compiler's tables.
pub fn pattern_tree_bytes(pattern: &str) -> u64 {
    let is_class = |pair: &&[u8]| matches!(pair, [b'\\', b'p' | b'P']);
    let class_count = pattern.as_bytes().windows(2).filter(is_class).count() as u64;
    let text_bytes = (pattern.len() as u64 + 16).saturating_mul(TREE_BYTES_PER_BYTE);
    let class_bytes = class_count.saturating_mul(UNICODE_CLASS_BYTES);
    text_bytes.saturating_add(class_bytes).saturating_add(SUFFIX_TABLE_BYTES)
}

/// Describes an error in a regular expression in one line.
fn fault(pattern: &str, reason: &str) -> Error {
    Error::invalid(format!("error parsing regexp: {reason}: `{}`", excerpt(pattern)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{MatchOp, Matcher};

    fn compiled(pattern: &str) -> CompiledRegex {
        CompiledRegex::new(pattern, &QueryContext::unbounded()).unwrap()
    }

    #[test]
    fn perl_classes_are_those_of_go() {
        let f = |pattern: &str, text: &str, wanted: bool| {
            assert_eq!(compiled(pattern).is_match(text), wanted, "{pattern} {text:?}");
        };
        f(r"\d", "7", true);
        f(r"\d", "\u{663}", false);
        f(r"\D", "\u{663}", true);
        f(r"[^\d]", "\u{663}", true);
        f(r"\w+", "a_Z9", true);
        f(r"\w", "é", false);
        f(r"\W", "é", true);
        f(r"[\W\d]{2}", "é7", true);
        f(r"[\w.-]+", "a.b-c", true);
        f(r"\s", "\t", true);
        f(r"\s", "\u{b}", false);
        f(r"\s", "\u{a0}", false);
        f(r"\S", "\u{a0}", true);
        f(r"é\b.*", "éa", true);
        f(r"a\b.*", "aé", true);
        f(r"a\B.*", "aé", false);
        f(r"\p{L}", "é", true);
        f("(?i)é", "É", true);
        f(".", "é", true);
        f("..", "é", false);
        f("a.b", "a\nb", true);
        f("a$b|c", "c", true);
        f("a|b", "ab", false);
    }

    #[test]
    fn large_expressions_are_refused_in_one_line() {
        let f = |pattern: &str, wanted: &str| {
            let error = Matcher::new("a", MatchOp::Regex, pattern).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.len() < 1_000, "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        };
        f(r"\pL{1000}", "it compiles to over 8388608 bytes");
        f(&format!("{}a{}", "(".repeat(300), ")".repeat(300)), "expression nests too deeply");
        f(&"a.".repeat(200_000), "at most 262144 are compiled");
        f(&format!("({}", "x".repeat(10_000)), "missing closing )");
        f("a**[", "invalid nested repetition operator: `**`");
        f("([a", "error parsing regexp: missing closing ]: `[a`");
    }

    proptest! {
        #[test]
        fn it_matches_what_the_regex_crate_matches(
            pattern in r"([ab.]|a\*|b\+|\||[(][ab|]{0,3}[)]|\[[ab]\]|\[\^a\]|é|\$|\^|\{2\}){0,8}",
            texts in proptest::collection::vec("[abé\n]{0,6}", 1..20),
        ) {
            let Ok(wanted) = regex::Regex::new(&format!("^(?s:{pattern})$")) else {
                prop_assert!(CompiledRegex::new(&pattern, &QueryContext::unbounded()).is_err());
                return Ok(());
            };
            let got = match CompiledRegex::new(&pattern, &QueryContext::unbounded()) {
                Ok(got) => got,
                Err(error) => {
                    // As in Go, unlike in Rust.
                    prop_assert!(error.to_string().contains("nested repetition"), "{}", error);
                    return Ok(());
                }
            };
            for text in &texts {
                prop_assert_eq!(got.is_match(text), wanted.is_match(text), "{:?}", text);
            }
        }
    }
}
