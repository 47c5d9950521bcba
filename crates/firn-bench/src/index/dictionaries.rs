//! Two other dictionaries of label pairs: a double-array trie and a finite state transducer.

use std::cell::RefCell;

use fst::{Automaton, IntoStreamer, Streamer};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

// Separates name and value. The trie ends its keys with 0, so this is another byte that labels do
// not contain.
const BETWEEN: u8 = 1;

/// `name` and `value` as a key.
pub fn key(name: &[u8], value: &[u8]) -> Vec<u8> {
    [name, &[BETWEEN], value].concat()
}

/// Sorted keys without duplicates; the number of a key is its position.
pub fn sorted<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = pairs.map(|(name, value)| key(name, value)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Pairs in a double-array trie.
pub struct DoubleArray {
    array: yada::DoubleArray<Vec<u8>>,
    byte_count: usize,
}

/// Pairs in a transducer.
pub struct Transducer {
    map: fst::Map<Vec<u8>>,
}

impl std::fmt::Debug for DoubleArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DoubleArray({} bytes)", self.byte_count)
    }
}

impl std::fmt::Debug for Transducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transducer({} keys)", self.map.len())
    }
}

impl DoubleArray {
    /// `None` if the keys do not fit into one.
    pub fn new(keys: &[Vec<u8>]) -> Option<DoubleArray> {
        let numbered: Vec<(&[u8], u32)> =
            keys.iter().enumerate().map(|(number, key)| (&key[..], number as u32)).collect();
        let bytes = yada::builder::DoubleArrayBuilder::build(&numbered).ok()?;
        let byte_count = bytes.len();
        Some(DoubleArray { array: yada::DoubleArray::new(bytes).ok()?, byte_count })
    }

    /// The number of a key.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.array.exact_match_search(key)
    }

    /// Its size.
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }
}

impl Transducer {
    /// # Panics
    /// If the keys are not sorted.
    pub fn new(keys: &[Vec<u8>]) -> Transducer {
        let numbered = keys.iter().enumerate().map(|(number, key)| (key, number as u64));
        Transducer { map: fst::Map::from_iter(numbered).expect("sorted keys") }
    }

    /// The number of a key.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.map.get(key).map(|number| number as u32)
    }

    /// The number of values of `name` that begin with `prefix`.
    pub fn count_prefix(&self, name: &str, prefix: &str) -> usize {
        let prefix = key(name.as_bytes(), prefix.as_bytes());
        let mut after = prefix.clone();
        // The prefix is not empty and its last byte is not 0xff: it is a separator and UTF-8.
        if let Some(last) = after.last_mut() {
            *last += 1;
        }
        let mut found = self.map.range().ge(&prefix).lt(&after).into_stream();
        let mut count = 0;
        while found.next().is_some() {
            count += 1;
        }
        count
    }

    /// Counts the values of `name` that match `pattern` completely: the automaton runs over the
    /// transducer.
    ///
    /// # Panics
    /// If the pattern is invalid.
    pub fn count_regex(&self, name: &str, pattern: &str) -> usize {
        let walk = PairRegex::new(name, pattern);
        let mut found = self.map.search(&walk).into_stream();
        let mut count = 0;
        while found.next().is_some() {
            count += 1;
        }
        count
    }

    /// Its size.
    pub fn byte_count(&self) -> usize {
        self.map.as_fst().size()
    }
}

/// A pattern over the values of one name.
struct PairRegex {
    dfa: DFA,
    cache: RefCell<Cache>,
}

impl PairRegex {
    fn new(name: &str, pattern: &str) -> PairRegex {
        let between = char::from(BETWEEN);
        let pattern = format!("{}{between}(?s:{pattern})$", escaped_name(name));
        let dfa = DFA::builder()
            .configure(DFA::config().match_kind(MatchKind::All).cache_capacity(64 << 20))
            .build(&pattern)
            .expect("a pattern");
        let cache = RefCell::new(dfa.create_cache());
        PairRegex { dfa, cache }
    }
}

impl Automaton for PairRegex {
    type State = LazyStateID;

    fn start(&self) -> LazyStateID {
        let config = start::Config::new().anchored(Anchored::Yes);
        self.dfa.start_state(&mut self.cache.borrow_mut(), &config).expect("an anchored start")
    }

    fn is_match(&self, state: &LazyStateID) -> bool {
        let end = self.dfa.next_eoi_state(&mut self.cache.borrow_mut(), *state);
        end.is_ok_and(|end| end.is_match())
    }

    fn can_match(&self, state: &LazyStateID) -> bool {
        !state.is_dead()
    }

    fn accept(&self, state: &LazyStateID, byte: u8) -> LazyStateID {
        self.dfa.next_state(&mut self.cache.borrow_mut(), *state, byte).expect("a large cache")
    }
}

/// Label names are letters, digits and `_` here; anything else would need escaping.
fn escaped_name(name: &str) -> String {
    name.chars()
        .flat_map(|c| if c.is_alphanumeric() || c == '_' { vec![c] } else { vec!['\\', c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_know_every_pair_and_the_transducer_finds_ranges() {
        let pairs: [(&[u8], &[u8]); 5] = [
            (b"host", b"h2"),
            (b"host", b"h10"),
            (b"a", b"h1"),
            (b"host", b"h1"),
            (b"host", b"h1"),
        ];
        let keys = sorted(pairs.into_iter());
        let (array, transducer) = (DoubleArray::new(&keys).unwrap(), Transducer::new(&keys));
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(array.find(key), Some(number as u32));
            assert_eq!(transducer.find(key), Some(number as u32));
        }
        let absent = key(b"host", b"h");
        assert_eq!((array.find(&absent), transducer.find(&absent)), (None, None));
        assert_eq!(transducer.count_prefix("host", "h1"), 2);
        assert_eq!(transducer.count_regex("host", "h1.*"), 2);
        assert_eq!(transducer.count_regex("host", ".*[02]"), 2);
        assert_eq!(transducer.count_regex("host", "h"), 0);
        assert!(array.byte_count() > 0 && transducer.byte_count() > 0);
    }
}
