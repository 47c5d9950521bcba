//! The baseline: an inverted index of nested hash maps, as in Prometheus' head, written as
//! compactly as that structure permits. Name to value to a sorted list of `u32`; per series the
//! `u32` of its pairs; each text once.

use std::hash::BuildHasher;
use std::rc::Rc;

use firn_model::{Labels, MatchOp, Matcher};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

/// Series numbers by label, and labels by series number.
#[derive(Debug, Default)]
pub struct NestedMaps {
    names: HashMap<Rc<[u8]>, Values>,
    pairs: Vec<Pair>,
    /// Start of each series' pairs in `lists`; they end at the next one's start.
    starts: Vec<u32>,
    lists: Vec<u32>,
    known: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// The number of each value's pair.
type Values = HashMap<Rc<[u8]>, u32>;

#[derive(Debug)]
struct Pair {
    name: Rc<[u8]>,
    value: Rc<[u8]>,
    series: Vec<u32>,
}

impl NestedMaps {
    /// The number of a label set, assigned now if it has none.
    pub fn resolve(&mut self, labels: &Labels, ids: &mut Vec<u32>) -> u32 {
        ids.clear();
        for (name, value) in labels.iter_bytes() {
            let id = self.pair(name, value);
            ids.push(id);
        }
        let hash = self.hasher.hash_one(&ids[..]);
        if let Some(&known) = self.known.find(hash, |&known| self.list(known) == &ids[..]) {
            return known;
        }
        let number = self.starts.len() as u32;
        self.starts.push(self.lists.len() as u32);
        self.lists.extend_from_slice(ids);
        ids.iter().for_each(|&id| self.pairs[id as usize].series.push(number));
        let (starts, lists, hasher) = (&self.starts, &self.lists, &self.hasher);
        let rehash = |&number: &u32| hasher.hash_one(list(starts, lists, number));
        self.known.insert_unique(hash, number, rehash);
        number
    }

    /// Releases the spare capacity of growing lists.
    pub fn shrink(&mut self) {
        self.pairs.iter_mut().for_each(|pair| pair.series.shrink_to_fit());
        self.pairs.shrink_to_fit();
        self.lists.shrink_to_fit();
        self.starts.shrink_to_fit();
        self.names.values_mut().for_each(HashMap::shrink_to_fit);
    }

    /// The series for which all matchers hold, rising.
    pub fn select(&self, matchers: &[Matcher]) -> Vec<u32> {
        let mut found: Option<Vec<u32>> = None;
        let (absent_too, positive): (Vec<&Matcher>, Vec<&Matcher>) =
            matchers.iter().partition(|matcher| matcher.matches(""));
        for matcher in positive {
            let list = self.union(matcher, true);
            found = Some(match found {
                None => list,
                Some(found) => intersect(&found, &list),
            });
        }
        let mut found = found.unwrap_or_else(|| (0..self.starts.len() as u32).collect());
        for matcher in absent_too {
            let list = self.union(matcher, false);
            found.retain(|number| list.binary_search(number).is_err());
        }
        found
    }

    /// Number of series.
    pub fn series_count(&self) -> usize {
        self.starts.len()
    }

    /// Every pair, in order of first use.
    pub fn pair_texts(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs.iter().map(|pair| (&*pair.name, &*pair.value))
    }

    fn pair(&mut self, name: &[u8], value: &[u8]) -> u32 {
        if let Some(&id) = self.names.get(name).and_then(|values| values.get(value)) {
            return id;
        }
        let id = self.pairs.len() as u32;
        let known = self.names.get_key_value(name).map(|(name, _)| Rc::clone(name));
        let name = known.unwrap_or_else(|| Rc::from(name));
        let value: Rc<[u8]> = Rc::from(value);
        self.names.entry(Rc::clone(&name)).or_default().insert(Rc::clone(&value), id);
        self.pairs.push(Pair { name, value, series: Vec::new() });
        id
    }

    fn list(&self, number: u32) -> &[u32] {
        list(&self.starts, &self.lists, number)
    }

    /// The series with a value that the matcher accepts, or rejects if `takes` is false.
    fn union(&self, matcher: &Matcher, takes: bool) -> Vec<u32> {
        let Some(values) = self.names.get(matcher.name().as_bytes()) else { return Vec::new() };
        let list_of = |&id: &u32| &self.pairs[id as usize].series[..];
        if takes && matcher.op() == MatchOp::Equal {
            let id = values.get(matcher.value().as_bytes());
            return id.map(|id| list_of(id).to_vec()).unwrap_or_default();
        }
        let is_it =
            |value: &[u8]| std::str::from_utf8(value).is_ok_and(|v| matcher.matches(v) == takes);
        let lists = values.iter().filter(|(value, _)| is_it(value)).map(|(_, id)| list_of(id));
        let mut union = lists.collect::<Vec<_>>().concat();
        union.sort_unstable();
        union
    }
}

fn list<'a>(starts: &[u32], lists: &'a [u32], number: u32) -> &'a [u32] {
    let start = starts[number as usize] as usize;
    let end = starts.get(number as usize + 1).map_or(lists.len(), |&end| end as usize);
    &lists[start..end]
}

/// The intersection; elements of the shorter list are searched in the longer one with doubling
/// steps.
fn intersect(a: &[u32], b: &[u32]) -> Vec<u32> {
    let (short, mut long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let mut both = Vec::with_capacity(short.len());
    for &number in short {
        let mut step = 1;
        while step < long.len() && long[step] < number {
            step *= 2;
        }
        let window = &long[..long.len().min(step + 1)];
        long = &long[window.partition_point(|&other| other < number)..];
        if long.first() == Some(&number) {
            both.push(number);
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_matching_series() {
        let mut maps = NestedMaps::default();
        let mut ids = Vec::new();
        let mut add = |pairs: &[(&str, &str)]| {
            let labels = Labels::from_pairs(pairs.iter().copied()).unwrap();
            maps.resolve(&labels, &mut ids)
        };
        assert_eq!(add(&[("a", "1"), ("b", "x")]), 0);
        assert_eq!(add(&[("a", "2"), ("b", "x")]), 1);
        assert_eq!(add(&[("a", "1"), ("b", "x")]), 0);
        assert_eq!(add(&[("a", "3")]), 2);
        maps.shrink();
        let f = |matchers: &[(&str, MatchOp, &str)]| {
            let made = matchers.iter().map(|m| Matcher::new(m.0, m.1, m.2).unwrap());
            maps.select(&made.collect::<Vec<_>>())
        };
        assert_eq!(f(&[("b", MatchOp::Equal, "x")]), [0, 1]);
        assert_eq!(f(&[("b", MatchOp::Equal, "x"), ("a", MatchOp::Regex, "2|3")]), [1]);
        assert_eq!(f(&[("b", MatchOp::NotEqual, "x")]), [2]);
        assert_eq!(f(&[("a", MatchOp::NotRegex, "[12]")]), [2]);
        assert_eq!(f(&[]), [0, 1, 2]);
        assert_eq!(f(&[("c", MatchOp::Equal, "x")]), [0; 0]);
        assert_eq!(maps.series_count(), 3);
    }
}
